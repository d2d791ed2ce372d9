//! The regions that share limits: those that each daemon's configuration lists, and what operators changed
//! since.
//!
//! A change names one region. Every daemon keeps the newest change of each region. One that an operator
//! signed travels: every daemon tells it to the others, so all come to the same list in whatever order they
//! hear of changes, and whichever daemon was asked (a map of last-writer-wins registers: M. Shapiro et al., A
//! comprehensive study of CRDTs, 2011). One that nobody signed holds at the daemon that was asked and nowhere
//! else: no daemon takes the word of another for an operator's.
//! While they differ every region spends the smaller of the shares in question.

use std::collections::BTreeMap;

use crate::time::{Span, Timestamp};

/// Longest name of a region, in bytes.
pub const REGION_NAME_BYTES_MAX: usize = 64;
/// Most regions of which a change is remembered.
pub const REGION_CHANGES_MAX: usize = 256;
/// A change is believed if its stamp is at most so far ahead of the own clock.
pub const REGION_STAMP_AHEAD_MAX: Span = Span::from_secs(10);
/// Longest text of signed changes. The oldest are told no more where all are longer.
const ORDERS_BYTES_MAX: usize = 48 * 1_024;
/// Longest certificate and signature that are read, in bytes.
const CERTIFICATE_BYTES_MAX: usize = 2_048;
const SIGNATURE_BYTES_MAX: usize = 128;

/// True if a text can name a region.
#[must_use]
pub fn is_region_name(text: &str) -> bool {
    let fits = (1..=REGION_NAME_BYTES_MAX).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The regions that share limits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct RegionList {
    /// Regions that may hold a share, present or not; empty: nobody named them.
    pub names: Vec<String>,
    /// Regions that are listed and have no part of a limit, whatever a rule gives them.
    pub drained: Vec<String>,
    /// Regions that are listed no more. They have no part either.
    pub removed: Vec<String>,
    /// Removed regions whose daemons run no more, as an operator said: nobody waits for their word.
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

    /// True if a region has no part of any limit.
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

    /// Returns how a region stands; `None` for one that was never listed.
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

/// The place of a region in the list.
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

/// The signer of a change: an operator's certificate, and the signature by its key of
/// [`RegionOrder::message`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Signed {
    /// Certificate of the node that signed, in DER.
    pub certificate: Vec<u8>,
    /// Signature in the form that the kind of key has.
    pub signature: Vec<u8>,
}

/// A change of one region that an operator signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionOrder {
    /// Name of the region whose place in the list changes.
    pub region: String,
    /// State of the region once the order is accepted.
    pub state: RegionState,
    /// Orders the changes of a region: microseconds since the epoch.
    pub stamp: u64,
    /// Signature over the order, with the certificate of the node that gave it.
    pub signed: Signed,
}

impl RegionOrder {
    /// True if its stamp is further ahead of a clock than clocks may be apart.
    #[must_use]
    pub fn is_ahead(&self, now: Timestamp) -> bool {
        self.stamp > (now + REGION_STAMP_AHEAD_MAX).micros()
    }

    /// The bytes that are signed: they can be taken for nothing else that a key of the cluster signs.
    #[must_use]
    pub fn message(region: &str, state: RegionState, stamp: u64) -> Vec<u8> {
        format!("tidegate change of a region, 1\n{region}\n{}\n{stamp}\n", state.as_str()).into_bytes()
    }
}

/// The newest change of one region.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct RegionChange {
    state: RegionState,
    /// Orders the changes of a region: above all that the daemon knew which was asked (Lamport 1978).
    stamp: u64,
    /// `None`: an operator asked this daemon, and signed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signed: Option<Signed>,
}

impl RegionChange {
    /// Orders changes with one stamp, made at two daemons at once: the one that leaves less wins, everywhere
    /// alike; of the same change twice, the one that can be told.
    fn rank(&self) -> (u64, usize, bool) {
        let state = RegionState::ALL.iter().position(|state| *state == self.state).unwrap_or(0);
        (self.stamp, state, self.signed.is_some())
    }
}

/// The changes that operators made to the regions that configurations list: of each region the newest.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct RegionChanges(BTreeMap<String, RegionChange>);

impl RegionChanges {
    /// True if nothing was ever changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An operator changes a region here, and signs nothing. The oldest change of a region that `is_idle`
    /// gives way if there is no room. `false`: there is no room all the same, or the name is none.
    pub fn change(
        &mut self,
        now: Timestamp,
        region: &str,
        state: RegionState,
        is_idle: impl Fn(&str) -> bool,
    ) -> bool {
        // Above what is known of it, whoever said that: an operator's word is the last.
        let newest = self.0.get(region).map_or(0, |change| change.stamp);
        let stamp = now.micros().max(newest.saturating_add(1));
        self.take(region, RegionChange { state, stamp, signed: None }, is_idle)
    }

    /// Takes in a change that an operator signed: the caller has checked that. `false`: it is no newer than
    /// what is known, it is too far ahead of the clock, its name is none, or there is no room.
    pub fn hear(&mut self, now: Timestamp, order: RegionOrder, is_idle: impl Fn(&str) -> bool) -> bool {
        let is_ahead = order.is_ahead(now);
        let RegionOrder { region, state, stamp, signed } = order;
        let change = RegionChange { state, stamp, signed: Some(signed) };
        !is_ahead && !self.knows(&region, &change) && self.take(&region, change, is_idle)
    }

    /// True if [`Self::hear`] would find this order newer than what is known.
    #[must_use]
    pub fn is_news(&self, order: &RegionOrder) -> bool {
        let RegionOrder { region, state, stamp, signed } = order;
        !self.knows(region, &RegionChange { state: *state, stamp: *stamp, signed: Some(signed.clone()) })
    }

    fn knows(&self, region: &str, change: &RegionChange) -> bool {
        self.0.get(region).is_some_and(|known| known.rank() >= change.rank())
    }

    /// True if another daemon, that knows `theirs`, knows the change of a region that is known here.
    #[must_use]
    pub fn is_known_in(&self, theirs: &Self, region: &str) -> bool {
        let here = self.0.get(region);
        here.is_none_or(|here| {
            theirs.0.get(region).is_some_and(|there| {
                (there.stamp, there.state) == (here.stamp, here.state) || there.stamp > here.stamp
            })
        })
    }

    /// Puts changes that nobody signed back to the clock, where an earlier version took later ones from
    /// others.
    #[must_use]
    pub fn bounded(mut self, now: Timestamp) -> Self {
        let last = (now + REGION_STAMP_AHEAD_MAX).micros();
        for change in self.0.values_mut().filter(|change| change.signed.is_none() && change.stamp > last) {
            change.stamp = now.micros();
        }
        self
    }

    /// Drops the changes whose signer is not accepted. Returns whether there were any.
    pub fn drop_unless(&mut self, accepted: impl Fn(&Signed) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|_, change| change.signed.as_ref().is_none_or(&accepted));
        self.0.len() != before
    }

    fn take(&mut self, region: &str, change: RegionChange, is_idle: impl Fn(&str) -> bool) -> bool {
        if self.knows(region, &change) {
            return true;
        }
        let is_full = !self.0.contains_key(region) && self.0.len() >= REGION_CHANGES_MAX;
        if !is_region_name(region) || (is_full && !self.make_room(change.stamp, is_idle)) {
            return false;
        }
        self.0.insert(region.to_owned(), change);
        true
    }

    /// Drops the oldest change before this stamp of a region that is idle, those first that nobody signed.
    fn make_room(&mut self, stamp: u64, is_idle: impl Fn(&str) -> bool) -> bool {
        let given_up = self.0.iter().filter(|(region, change)| change.stamp < stamp && is_idle(region));
        let oldest = given_up.min_by_key(|(_, change)| (change.signed.is_some(), change.stamp));
        let oldest = oldest.map(|(region, _)| region.clone());
        oldest.is_some_and(|region| self.0.remove(&region).is_some())
    }

    /// The list that comes of what a configuration lists. Changes say nothing if that lists nothing, so that
    /// every region that is seen counts.
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

    /// All of them without signatures, for daemons that know of none, and to see who knows of what:
    /// `ap drained 1760000000000000,sa listed 1760000000000001`.
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
            let change = RegionChange { state: RegionState::named(state)?, stamp, signed: None };
            if words.next().is_some() || !changes.take(region, change, |_| false) {
                return None;
            }
        }
        Some(changes)
    }

    /// The signed changes as they travel: certificates, then for each change its region, state, stamp, which
    /// of the certificates, and signature; both in hexadecimal digits. The newest first, as far as they fit.
    #[must_use]
    pub fn orders(&self) -> String {
        let signed =
            self.0.iter().filter_map(|(region, change)| Some((region, change, change.signed.as_ref()?)));
        let mut signed: Vec<_> = signed.collect();
        signed.sort_by_key(|(_, change, _)| std::cmp::Reverse(change.stamp));
        let (mut certificates, mut told): (Vec<&[u8]>, Vec<String>) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for (region, change, Signed { certificate, signature }) in signed {
            let known = certificates.iter().position(|known| known == certificate);
            let place = known.unwrap_or(certificates.len());
            let RegionChange { state, stamp, .. } = change;
            let text = format!("{region} {} {stamp} {place} {}", state.as_str(), hex(signature));
            bytes += text.len() + 1 + known.map_or(2 * certificate.len() + 1, |_| 0);
            if bytes > ORDERS_BYTES_MAX {
                break;
            }
            if known.is_none() {
                certificates.push(certificate);
            }
            told.push(text);
        }
        let certificates: Vec<String> = certificates.into_iter().map(hex).collect();
        if told.is_empty() { String::new() } else { format!("{};{}", certificates.join(","), told.join(",")) }
    }

    /// Reads what [`Self::orders`] wrote, without checking a signature; `None` if it is anything else, or too
    /// much.
    #[must_use]
    pub fn read_orders(text: &str) -> Option<Vec<RegionOrder>> {
        if text.is_empty() {
            return Some(Vec::new());
        }
        if text.len() > ORDERS_BYTES_MAX + 1 {
            return None;
        }
        let (certificates, orders) = text.split_once(';')?;
        let certificates: Vec<Vec<u8>> =
            certificates.split(',').map(|text| unhex(text, CERTIFICATE_BYTES_MAX)).collect::<Option<_>>()?;
        let order = |text: &str| {
            let mut words = text.split(' ');
            let (region, state, stamp) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
            let place: usize = words.next()?.parse().ok()?;
            let signature = unhex(words.next()?, SIGNATURE_BYTES_MAX)?;
            let signed = Signed { certificate: certificates.get(place)?.clone(), signature };
            let state = RegionState::named(state)?;
            let whole = words.next().is_none() && is_region_name(region);
            whole.then(|| RegionOrder { region: region.to_owned(), state, stamp, signed })
        };
        let orders: Option<Vec<RegionOrder>> = orders.split(',').map(order).collect();
        orders.filter(|orders| orders.len() <= REGION_CHANGES_MAX)
    }
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// Reads what [`hex`] wrote, of at most so many bytes and at least one; `None` for anything else.
#[must_use]
pub fn unhex(text: &str, bytes_max: usize) -> Option<Vec<u8>> {
    if text.is_empty() || text.len() % 2 == 1 || text.len() / 2 > bytes_max {
        return None;
    }
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    digits
        .chunks(2)
        .map(|pair| u8::try_from(pair.iter().fold(0, |byte, digit| byte * 16 + digit)).ok())
        .collect()
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
            changes.hear(NOW, order(*stamp, region, *state), |_| false);
        }
        changes
    }

    const NOW: Timestamp = Timestamp(1_760_000_000_000_000);
    const BUSY: fn(&str) -> bool = |_| false;

    fn order(stamp: u64, region: &str, state: RegionState) -> RegionOrder {
        // One certificate for each three stamps.
        let certificate = vec![u8::try_from(stamp % 3).unwrap(); 5];
        let signed =
            Signed { certificate, signature: RegionOrder::message(region, state, stamp)[..9].to_vec() };
        RegionOrder { region: region.to_owned(), state, stamp, signed }
    }

    #[test]
    fn a_region_is_added_drained_and_removed() {
        let mut changes = RegionChanges::default();
        let configured = names(&["eu", "us"]);
        assert_eq!(changes.over(&configured), RegionList::of(configured.clone()));
        assert!(changes.change(Timestamp(5), "ap", RegionState::Listed, BUSY));
        let list = changes.over(&configured);
        assert_eq!(
            (list.names.as_slice(), list.state("ap")),
            (&names(&["eu", "us", "ap"])[..], Some(RegionState::Listed))
        );
        // Also by a clock that stands behind the one that made the change before.
        assert!(changes.change(Timestamp(1), "us", RegionState::Drained, BUSY));
        let list = changes.over(&configured);
        assert!(list.is_without_part("us") && list.names.contains(&"us".to_owned()));
        assert!(changes.change(Timestamp(1), "us", RegionState::Removed, BUSY));
        let list = changes.over(&configured);
        assert_eq!((list.names.clone(), list.removed.clone()), (names(&["eu", "ap"]), names(&["us"])));
        assert_eq!(list.nameable(), names(&["eu", "ap", "us"]), "a rule may go on to name it");
        assert!(list.gone.is_empty() && list.is_without_part("us"));
        assert!(changes.change(Timestamp(1), "us", RegionState::Gone, BUSY));
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
            assert!(!changes.change(Timestamp(1), wrong, RegionState::Listed, BUSY), "{wrong}");
        }
        for place in 0..REGION_CHANGES_MAX {
            let region = format!("r{place}");
            assert!(changes.change(Timestamp(1), &region, RegionState::Listed, BUSY));
        }
        assert!(!changes.change(Timestamp(1), "one-more", RegionState::Listed, BUSY));
        assert!(changes.change(Timestamp(1), "r0", RegionState::Removed, BUSY), "known ones still change");
        for text in ["ap listed", "ap nowhere 1", "ap listed x", "ap listed 1 2", "a/b listed 1"] {
            assert_eq!(RegionChanges::read(text), None, "{text}");
        }
        assert_eq!(RegionChanges::read(""), Some(RegionChanges::default()));
    }

    #[test]
    fn regions_that_somebody_invented_give_way_to_those_that_are_there() {
        let mut changes = RegionChanges::default();
        for place in 0..REGION_CHANGES_MAX {
            let region = if place == 0 { "eu".to_owned() } else { format!("no-{place}") };
            assert!(changes.change(Timestamp(1), &region, RegionState::Listed, BUSY));
        }
        let is_idle = |region: &str| region.starts_with("no-");
        assert!(changes.change(NOW, "us", RegionState::Drained, is_idle));
        assert!(changes.hear(NOW, order(NOW.micros(), "ap", RegionState::Drained), is_idle));
        let list = changes.over(&names(&["eu", "us", "ap"]));
        assert_eq!(list.drained, names(&["ap", "us"]));
        assert_eq!(changes.0.len(), REGION_CHANGES_MAX);
        assert!(!changes.hear(NOW, order(0, "sa", RegionState::Listed), is_idle), "older than all others");
    }

    #[test]
    fn an_operators_word_is_the_last_whatever_stamp_was_known() {
        // As an earlier version noted what a member said.
        let noted = format!(r#"{{"eu":{{"state":"removed","stamp":{}}}}}"#, 1_u64 << 62);
        let noted: RegionChanges = serde_json::from_str(&noted).unwrap();
        let mut changes = noted.bounded(NOW);
        assert_eq!(changes.0["eu"].stamp, NOW.micros());
        let later = NOW.micros() + 1;
        assert!(changes.hear(NOW, order(later, "eu", RegionState::Listed), BUSY));
        assert!(changes.change(NOW, "eu", RegionState::Drained, BUSY), "also one who signs nothing");
        assert_eq!(changes.over(&names(&["eu", "us"])).drained, names(&["eu"]));
        let beyond = NOW.micros() + 10_000_001;
        assert!(!changes.hear(NOW, order(beyond, "eu", RegionState::Gone), BUSY), "ahead of the clock");
        assert!(changes.hear(NOW, order(NOW.micros() + 9, "eu", RegionState::Drained), BUSY));
        assert!(!changes.drop_unless(|_| true) && changes.drop_unless(|_| false) && changes.is_empty());
    }

    #[test]
    fn signed_changes_that_do_not_fit_leave_the_oldest_out() {
        let mut changes = RegionChanges::default();
        for stamp in 1..=200 {
            let mut order = order(stamp, &format!("r{stamp}"), RegionState::Drained);
            order.signed = Signed { certificate: vec![7; 900], signature: vec![8; 128] };
            assert!(changes.hear(NOW, order, BUSY));
        }
        let text = changes.orders();
        let told = RegionChanges::read_orders(&text).unwrap();
        assert!(text.len() <= ORDERS_BYTES_MAX + 1 && told.len() < 200, "{} {}", text.len(), told.len());
        assert_eq!(told[0].region, "r200");
        for wrong in [
            "x",
            ";",
            "00;",
            "00;a listed 1 1 00",
            "00;a listed 1 0",
            "00;a listed 1 0 00 0",
            "0;a listed 1 0 00",
        ] {
            assert_eq!(RegionChanges::read_orders(wrong), None, "{wrong}");
        }
        assert_eq!(RegionChanges::read_orders(&format!("{text},")), None);
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
            let hear = |known: &mut RegionChanges, other: &RegionChanges| {
                let heard = RegionChanges::read_orders(&other.orders()).unwrap();
                let mut news = false;
                for order in heard {
                    news |= known.hear(NOW, order, BUSY);
                }
                news
            };
            let mut other = there.clone();
            hear(&mut here, &there);
            hear(&mut other, &changes(&all[..cut]));
            prop_assert_eq!(&here, &other);
            prop_assert!(!hear(&mut here, &other), "nothing is new twice");
            let told = RegionChanges::read(&here.text()).unwrap();
            for region in regions {
                prop_assert!(here.is_known_in(&told, region));
            }
        }
    }
}
