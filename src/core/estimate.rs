//! What a reservation takes whose caller names no amount: an upper quantile of what the last ones used.
//!
//! What a response costs is spread widely, and differs by model or route far more than over time. So the last
//! actual costs are kept apart by rule and by one attribute, a hundred of each, and the quantile is exact.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::reservation_terms::EstimateTerms;

/// Actual costs that are kept of one kind.
pub const ACTUALS_KEPT: usize = 100;
/// Actual costs without which a kind counts as unknown: a quantile of fewer says little.
pub const ACTUALS_MIN: usize = 10;
/// Kinds whose actual costs are kept: about 4 MiB. One more takes the place of the kind that has learned
/// nothing for longest.
pub const KINDS_MAX: usize = 4_096;

/// Names costs that are like each other: those of one rule, and of one value of the attribute that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CostKind(u64);

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
    kept: Vec<u64>,
    /// The place of the oldest, once all places are taken.
    oldest: usize,
    /// When it learned last.
    turn: u64,
}

impl LastActuals {
    fn add(&mut self, actual: u64) {
        if self.kept.len() < ACTUALS_KEPT {
            self.kept.push(actual);
        } else if let Some(oldest) = self.kept.get_mut(self.oldest) {
            *oldest = actual;
            self.oldest = (self.oldest + 1) % ACTUALS_KEPT;
        }
    }

    /// The least of them that so many percent do not exceed.
    fn quantile(&self, percentile: u8) -> Option<u64> {
        let mut sorted = self.kept.clone();
        let rank = (sorted.len() * usize::from(percentile)).div_ceil(100).max(1) - 1;
        (rank < sorted.len()).then(|| *sorted.select_nth_unstable(rank).1)
    }
}

/// What costs of each kind were lately.
#[derive(Debug, Clone, Default)]
pub struct Estimates {
    kinds: HashMap<CostKind, LastActuals, FixedState>,
    /// Kinds by the turn at which they learned, the oldest first. Of a kind its newest turn counts; the rest
    /// are cleared away when they are as many as all kinds.
    turns: VecDeque<(u64, CostKind)>,
    turn: u64,
}

impl Estimates {
    /// Takes down what one reservation used. Nothing at all says only that it was cancelled. Returns whether
    /// another kind had to be forgotten for it.
    pub fn learn(&mut self, kind: CostKind, actual: u64) -> bool {
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
        actuals.add(actual);
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

    /// What a reservation of this kind should take under `limit` permits a window; at least 1.
    #[must_use]
    pub fn of(&self, kind: CostKind, terms: &EstimateTerms, limit: u32) -> u64 {
        let actuals = self.kinds.get(&kind).filter(|actuals| actuals.kept.len() >= ACTUALS_MIN);
        let known = actuals.and_then(|actuals| actuals.quantile(terms.percentile));
        known.unwrap_or_else(|| terms.first_of(limit)).max(1)
    }

    /// How many kinds are known.
    #[must_use]
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }
}

#[cfg(test)]
mod tests;
