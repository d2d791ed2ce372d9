//! The amount of a reservation whose caller names none: an upper quantile of what the last ones used.
//!
//! The costs of responses are spread widely, and differ by model or route far more than over time. So the
//! last actual costs are kept apart by rule and by one attribute, a hundred of each, and the quantile is
//! exact.
//!
//! All who share a kind learn from each other, so nobody may teach the others at will: one identity has at
//! most a part of what is kept, and pulls the estimate no higher than it would be without that identity.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::reservation_terms::EstimateTerms;

/// Actual costs that are kept of one kind.
pub const ACTUALS_KEPT: usize = 100;
/// Actual costs without which a kind counts as unknown: a quantile of fewer says little.
pub const ACTUALS_MIN: usize = 10;
/// Most of them that are of one identity, where others taught as well.
pub const ACTUALS_OF_ONE_MAX: usize = 20;
/// Kinds whose actual costs are kept: about 4 MiB. One more takes the place of the kind that has learned
/// nothing for longest.
pub const KINDS_MAX: usize = 4_096;

/// Names costs that are like each other: those of one rule, and of one value of the attribute that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CostKind(u64);

/// Names whose cost it was: a hash of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Teacher(pub u64);

impl Teacher {
    /// Returns the teacher that these identities name together.
    pub fn of<'a>(identities: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = FixedState::default().build_hasher();
        for identity in identities {
            hasher.write_usize(identity.len());
            hasher.write(identity);
        }
        Self(hasher.finish())
    }
}

impl CostKind {
    /// The kind of these costs. Two kinds of the same hash learn from each other, which is as unlikely as
    /// harmless.
    #[must_use]
    pub fn of(domain: &str, rule: &str, value: Option<&str>) -> Self {
        let mut hasher = FixedState::default().build_hasher();
        for text in [Some(domain), Some(rule), value] {
            hasher.write_usize(text.map_or(usize::MAX, str::len));
            hasher.write(text.unwrap_or_default().as_bytes());
        }
        Self(hasher.finish())
    }
}

/// The last actual costs of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct LastActuals {
    /// Newest costs, each with its teacher, the oldest first; at most [`ACTUALS_KEPT`].
    kept: VecDeque<(Teacher, u64)>,
    /// Turn at which it learned last; the kind with the lowest learned longest ago.
    turn: u64,
}

impl LastActuals {
    fn add(&mut self, teacher: Teacher, actual: u64) {
        let mut own = self.kept.iter().enumerate().filter(|(_, (other, _))| *other == teacher);
        let first = own.next().map(|(place, _)| place);
        let many = first.map_or(0, |_| 1 + own.count());
        if let Some(first) = first.filter(|_| (ACTUALS_OF_ONE_MAX..self.kept.len()).contains(&many)) {
            self.kept.remove(first);
        } else if self.kept.len() == ACTUALS_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((teacher, actual));
    }

    /// The least of them that so many percent do not exceed; where one teacher alone pulls it up, without
    /// that one's.
    fn quantile(&self, percentile: u8) -> Option<u64> {
        let all = self.quantile_without(None, percentile)?;
        let mut kept: Vec<(Teacher, u64)> = self.kept.iter().copied().collect();
        kept.sort_unstable();
        let high = kept.iter().filter(|(_, actual)| *actual >= all).count();
        // An identity that pulls it up has so many of the high ones that the rank of the rest lies below
        // them.
        let pulls = |own: &&[(Teacher, u64)]| {
            let left = kept.len() - own.len();
            let left_high = high - own.iter().filter(|(_, actual)| *actual >= all).count();
            left > 0 && rank(left, percentile) < left - left_high
        };
        let without = kept.chunk_by(|one, other| one.0 == other.0).filter(pulls);
        let without = without.filter_map(|own| self.quantile_without(Some(own.first()?.0), percentile));
        Some(without.min().unwrap_or(all))
    }

    fn quantile_without(&self, without: Option<Teacher>, percentile: u8) -> Option<u64> {
        let left = self.kept.iter().filter(|(teacher, _)| Some(*teacher) != without);
        let mut left: Vec<u64> = left.map(|(_, actual)| *actual).collect();
        let rank = rank(left.len(), percentile);
        (rank < left.len()).then(|| *left.select_nth_unstable(rank).1)
    }
}

/// The place among so many, in their order, of the least that so many percent do not exceed.
fn rank(many: usize, percentile: u8) -> usize {
    (many * usize::from(percentile)).div_ceil(100).max(1) - 1
}

/// The latest costs of each kind.
#[derive(Debug, Clone, Default)]
pub struct Estimates {
    kinds: HashMap<CostKind, LastActuals, FixedState>,
    /// Kinds by the turn at which they learned, the oldest first. The newest turn of a kind counts; the rest
    /// are cleared away when they are as many as all kinds.
    turns: VecDeque<(u64, CostKind)>,
    turn: u64,
}

impl Estimates {
    /// Takes down what one reservation used. Nothing at all says only that it was cancelled. Returns whether
    /// another kind had to be forgotten for it.
    pub fn learn(&mut self, kind: CostKind, teacher: Teacher, actual: u64) -> bool {
        if actual == 0 {
            return false;
        }
        self.turn += 1;
        if self.turns.len() >= KINDS_MAX * 2 {
            self.turns.retain(|(turn, kind)| self.kinds.get(kind).is_some_and(|known| known.turn == *turn));
        }
        self.turns.push_back((self.turn, kind));
        let actuals = self.kinds.entry(kind).or_default();
        actuals.turn = self.turn;
        actuals.add(teacher, actual);
        self.kinds.len() > KINDS_MAX && self.forget_oldest()
    }

    /// Forgets the kind that has learned nothing for longest.
    fn forget_oldest(&mut self) -> bool {
        while let Some((turn, kind)) = self.turns.pop_front() {
            if self.kinds.get(&kind).is_some_and(|known| known.turn == turn) {
                return self.kinds.remove(&kind).is_some();
            }
        }
        false
    }

    /// Returns what a reservation of this kind should take under `limit` permits a window; at least 1.
    #[must_use]
    pub fn of(&self, kind: CostKind, terms: &EstimateTerms, limit: u32) -> u64 {
        let actuals = self.kinds.get(&kind).filter(|actuals| actuals.kept.len() >= ACTUALS_MIN);
        let known = actuals.and_then(|actuals| actuals.quantile(terms.percentile));
        known.unwrap_or_else(|| terms.first_of(limit)).max(1)
    }

    /// Returns how many kinds are known.
    #[must_use]
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }
}

#[cfg(test)]
mod tests;
