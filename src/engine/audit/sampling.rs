//! The choice of the decisions that leave a record, by chance and by rule.

use std::cell::Cell;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use super::own_slot;
use crate::core::audit::Outcome;

/// The decisions that leave a record. The others are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sampling {
    /// One of so many allowed; 0: none.
    pub allowed_one_in: u32,
    /// One of so many denied; 0: none.
    pub denied_one_in: u32,
    /// Most denied a second of one rule; further ones are only added up. 0: all.
    pub denied_rows_max: u32,
    /// Rules whose every decision is recorded, whatever else is sampled.
    pub exact_rules: Vec<String>,
}

/// One decision in how many is recorded, by chance.
#[derive(Debug, Clone, Copy)]
struct OneIn {
    /// Recorded if a random number of 32 bits lies below this.
    threshold: u64,
}

impl OneIn {
    const ALL: u64 = 1 << 32;

    fn new(one_in: u32) -> Self {
        Self { threshold: if one_in == 0 { 0 } else { Self::ALL / u64::from(one_in) } }
    }

    fn draws(self) -> bool {
        self.threshold == Self::ALL || draw() < self.threshold
    }
}

/// [`Sampling`] as decisions ask it.
#[derive(Debug)]
pub(super) struct Sampled {
    allowed: OneIn,
    denied: OneIn,
    pub(super) denied_rows_max: u32,
    exact_rules: HashSet<String, RandomState>,
}

impl Sampled {
    pub(super) fn new(sampling: Sampling) -> Self {
        Self {
            allowed: OneIn::new(sampling.allowed_one_in),
            denied: OneIn::new(sampling.denied_one_in),
            denied_rows_max: sampling.denied_rows_max,
            exact_rules: sampling.exact_rules.into_iter().collect(),
        }
    }

    /// True if this decision, in which these rules take part, is to be recorded.
    pub(super) fn takes<'r>(&self, outcome: Outcome, rules: impl Iterator<Item = &'r str>) -> bool {
        self.is_exact(rules)
            || match outcome {
                Outcome::Allowed | Outcome::Throttled | Outcome::Committed => self.allowed.draws(),
                _ => self.denied.draws(),
            }
    }

    /// True if every decision is recorded in which one of these rules takes part.
    fn is_exact<'r>(&self, mut rules: impl Iterator<Item = &'r str>) -> bool {
        !self.exact_rules.is_empty() && rules.any(|rule| self.exact_rules.contains(rule))
    }
}

/// A number below 2^32 from this thread's own sequence (xorshift): patterns of the traffic do not line up
/// with it, as they would with every n-th decision.
fn draw() -> u64 {
    thread_local!(static STATE: Cell<u64> = Cell::new(0x9E37_79B9_7F4A_7C15 ^ (u64::try_from(own_slot()).unwrap_or(0) << 17)));
    let mut state = STATE.get();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    STATE.set(state);
    state >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_in_so_many_allowed_is_sampled_and_every_denial() {
        let of = |allowed_one_in| {
            Sampled::new(Sampling { allowed_one_in, denied_one_in: 1, ..Sampling::default() })
        };
        let takes = |sampled: &Sampled, outcome| sampled.takes(outcome, ["r"].into_iter());
        let some = of(100);
        let many = (0..1_000_000).filter(|_| takes(&some, Outcome::Allowed)).count();
        assert!((9_000..11_000).contains(&many), "{many}");
        let none = of(0);
        assert!((0..10_000).all(|_| !takes(&none, Outcome::Allowed)));
        assert!((0..10_000).all(|_| takes(&none, Outcome::Denied)));
        let all = of(1);
        assert!((0..10_000).all(|_| takes(&all, Outcome::Allowed)));
        let exact = Sampled::new(Sampling { exact_rules: vec!["r".to_owned()], ..Sampling::default() });
        assert!((0..10_000).all(|_| takes(&exact, Outcome::Allowed)));
    }
}
