//! Which regions share limits: what each daemon's configuration lists, and what operators changed since.
//!
//! A change names one region. Every daemon keeps the newest change of each region and tells all of them to
//! the others, so all come to the same list in whatever order they hear of changes, and whichever daemon was
//! asked (a map of last-writer-wins registers: M. Shapiro et al., A comprehensive study of CRDTs, 2011).
//! While they differ every region spends the smaller of the shares in question.

use std::collections::BTreeMap;

use crate::time::Timestamp;

/// Longest name of a region, in bytes.
pub const REGION_NAME_BYTES_MAX: usize = 64;
/// Most regions of which a change is remembered. Those beyond are not taken.
pub const REGION_CHANGES_MAX: usize = 256;
/// Largest stamp that is believed, so that there is always a later one.
const STAMP_MAX: u64 = 1 << 62;

/// Whether a text can name a region.
#[must_use]
pub fn is_region_name(text: &str) -> bool {
    let fits = (1..=REGION_NAME_BYTES_MAX).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The regions that share limits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct RegionList {
    /// Those that may hold a share, present or not; empty: nobody named them.
    pub names: Vec<String>,
    /// Those that are listed and have no part of a limit, whatever a rule gives them.
    pub drained: Vec<String>,
    /// Those that are listed no more. They have no part either.
    pub removed: Vec<String>,
    /// Of the removed ones those whose daemons run no more, as an operator said: nobody waits for their word.
    pub gone: Vec<String>,
}

impl RegionList {
    /// Nobody named any.
    pub const NOBODY: Self =
        Self { names: Vec::new(), drained: Vec::new(), removed: Vec::new(), gone: Vec::new() };

    /// Regions that nothing was changed of.
    #[must_use]
    pub fn of(names: Vec<String>) -> Self {
        Self { names, ..Self::default() }
    }

    /// Whether a region has no part of any limit.
    #[must_use]
    pub fn is_without_part(&self, region: &str) -> bool {
        self.drained.iter().chain(&self.removed).any(|name| name == region)
    }

    /// The regions that a rule may name: the removed ones too, as their shares do not count.
    #[must_use]
    pub fn nameable(&self) -> Vec<String> {
        if self.names.is_empty() {
            Vec::new()
        } else {
            self.names.iter().chain(&self.removed).cloned().collect()
        }
    }

    /// How a region stands; `None` for one that was never listed.
    #[must_use]
    pub fn state(&self, region: &str) -> Option<RegionState> {
        let has = |list: &[String]| list.iter().any(|name| name == region);
        match () {
            () if has(&self.gone) => Some(RegionState::Gone),
            () if has(&self.removed) => Some(RegionState::Removed),
            () if has(&self.drained) => Some(RegionState::Drained),
            () if has(&self.names) => Some(RegionState::Listed),
            () => None,
        }
    }
}

/// How a region stands in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionState {
    /// It may hold a share.
    Listed,
    /// It is listed, and every share of it is zero.
    Drained,
    /// It is not listed.
    Removed,
    /// It is not listed, and its daemons run no more: nobody waits for their word.
    Gone,
}

impl RegionState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Listed, Self::Drained, Self::Removed, Self::Gone];

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Listed => "listed",
            Self::Drained => "drained",
            Self::Removed => "removed",
            Self::Gone => "gone",
        }
    }

    /// The state that a word stands for.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// The newest change of one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct RegionChange {
    state: RegionState,
    /// Orders the changes of a region: above all that the daemon knew which was asked (Lamport 1978).
    stamp: u64,
}

impl RegionChange {
    /// Of two with one stamp, made at two daemons at once, the one that leaves less wins, everywhere alike.
    fn rank(self) -> (u64, usize) {
        (self.stamp, RegionState::ALL.iter().position(|state| *state == self.state).unwrap_or(0))
    }
}

/// What operators changed of the regions that configurations list: of each region the newest change.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct RegionChanges(BTreeMap<String, RegionChange>);

impl RegionChanges {
    /// Whether nothing was ever changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An operator changes a region. `false`: there is no room for another region, or the name is none.
    pub fn change(&mut self, now: Timestamp, region: &str, state: RegionState) -> bool {
        let newest = self.0.values().map(|change| change.stamp).max().unwrap_or(0);
        self.take(region, RegionChange { state, stamp: now.micros().max(newest.saturating_add(1)) })
    }

    /// Takes in what another daemon knows. Whether any of it was new.
    pub fn merge(&mut self, other: &Self) -> bool {
        let before = self.clone();
        for (region, change) in &other.0 {
            self.take(region, *change);
        }
        *self != before
    }

    fn take(&mut self, region: &str, change: RegionChange) -> bool {
        let known = self.0.get(region).copied();
        if known.is_some_and(|known| known.rank() >= change.rank()) {
            return true;
        }
        let full = known.is_none() && self.0.len() >= REGION_CHANGES_MAX;
        if !is_region_name(region) || full || change.stamp > STAMP_MAX {
            return false;
        }
        self.0.insert(region.to_owned(), change);
        true
    }

    /// The list that comes of what a configuration lists. Where that lists nothing, so that every region that
    /// is seen counts, no change speaks.
    #[must_use]
    pub fn over(&self, configured: &[String]) -> RegionList {
        let mut list = RegionList::of(configured.to_vec());
        if configured.is_empty() {
            return list;
        }
        for (region, change) in &self.0 {
            match change.state {
                RegionState::Listed | RegionState::Drained => {
                    if !list.names.contains(region) {
                        list.names.push(region.clone());
                    }
                    if change.state == RegionState::Drained {
                        list.drained.push(region.clone());
                    }
                }
                RegionState::Removed | RegionState::Gone => {
                    list.names.retain(|name| name != region);
                    list.removed.push(region.clone());
                    if change.state == RegionState::Gone {
                        list.gone.push(region.clone());
                    }
                }
            }
        }
        list
    }

    /// As it travels: `ap drained 1760000000000000,sa listed 1760000000000001`.
    #[must_use]
    pub fn text(&self) -> String {
        let each = self.0.iter();
        let each =
            each.map(|(region, change)| format!("{region} {} {}", change.state.as_str(), change.stamp));
        each.collect::<Vec<_>>().join(",")
    }

    /// Reads what [`Self::text`] wrote; `None` if it is anything else, or too much.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut changes = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let mut words = part.split(' ');
            let (region, state, stamp) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
            let change = RegionChange { state: RegionState::named(state)?, stamp };
            if words.next().is_some() || !changes.take(region, change) {
                return None;
            }
        }
        Some(changes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn changes(all: &[(u64, &str, RegionState)]) -> RegionChanges {
        let mut changes = RegionChanges::default();
        for (stamp, region, state) in all {
            assert!(changes.take(region, RegionChange { state: *state, stamp: *stamp }));
        }
        changes
    }

    #[test]
    fn a_region_is_added_drained_and_removed() {
        let mut changes = RegionChanges::default();
        let configured = names(&["eu", "us"]);
        assert_eq!(changes.over(&configured), RegionList::of(configured.clone()));
        assert!(changes.change(Timestamp(5), "ap", RegionState::Listed));
        let list = changes.over(&configured);
        assert_eq!(
            (list.names.as_slice(), list.state("ap")),
            (&names(&["eu", "us", "ap"])[..], Some(RegionState::Listed))
        );
        // Also by a clock that stands behind the one that made the change before.
        assert!(changes.change(Timestamp(1), "us", RegionState::Drained));
        let list = changes.over(&configured);
        assert!(list.is_without_part("us") && list.names.contains(&"us".to_owned()));
        assert!(changes.change(Timestamp(1), "us", RegionState::Removed));
        let list = changes.over(&configured);
        assert_eq!((list.names.clone(), list.removed.clone()), (names(&["eu", "ap"]), names(&["us"])));
        assert_eq!(list.nameable(), names(&["eu", "ap", "us"]), "a rule may go on to name it");
        assert!(list.gone.is_empty() && list.is_without_part("us"));
        assert!(changes.change(Timestamp(1), "us", RegionState::Gone));
        assert_eq!(changes.over(&configured).gone, names(&["us"]));
        assert_eq!(
            changes.over(&[]),
            RegionList::default(),
            "where nobody lists regions all that are seen count"
        );
    }

    #[test]
    fn a_name_that_is_none_and_one_too_many_are_not_taken() {
        let mut changes = RegionChanges::default();
        for wrong in ["", "a b", "a,b", &"x".repeat(65)] {
            assert!(!changes.change(Timestamp(1), wrong, RegionState::Listed), "{wrong}");
        }
        for place in 0..REGION_CHANGES_MAX {
            assert!(changes.change(Timestamp(1), &format!("r{place}"), RegionState::Listed));
        }
        assert!(!changes.change(Timestamp(1), "one-more", RegionState::Listed));
        assert!(changes.change(Timestamp(1), "r0", RegionState::Removed), "known ones still change");
        let endless = format!("ap listed {}", u64::MAX);
        for text in ["ap listed", "ap nowhere 1", "ap listed x", "ap listed 1 2", "a/b listed 1", &endless] {
            assert_eq!(RegionChanges::read(text), None, "{text}");
        }
        assert_eq!(RegionChanges::read(""), Some(RegionChanges::default()));
    }

    proptest! {
        #[test]
        fn all_come_to_the_same_list_in_whatever_order_they_hear(
            all in proptest::collection::vec((0_u64..4, 0_usize..3, 0_usize..4), 1..12),
            cut in 0_usize..12,
        ) {
            let regions = ["ap", "eu", "us"];
            let all: Vec<_> =
                all.into_iter().map(|(at, of, state)| (at, regions[of], RegionState::ALL[state])).collect();
            let cut = cut.min(all.len());
            let (mut here, there) = (changes(&all[..cut]), changes(&all[cut..]));
            let mut other = there.clone();
            here.merge(&there);
            other.merge(&changes(&all[..cut]));
            prop_assert_eq!(&here, &other);
            prop_assert!(!here.merge(&other), "nothing is new twice");
            prop_assert_eq!(RegionChanges::read(&here.text()), Some(here));
        }
    }
}
