//! What estimates are, against a sorted list; and what they are worth, on costs with a heavy tail.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ONE: Teacher = Teacher(1);

fn kind(number: usize) -> CostKind {
    CostKind::of("default", "tokens", Some(&number.to_string()))
}

#[test]
fn kinds_are_told_apart_by_domain_rule_and_value() {
    let all = [
        CostKind::of("a", "b", None),
        CostKind::of("a", "b", Some("")),
        CostKind::of("ab", "", None),
        CostKind::of("", "ab", None),
        CostKind::of("a", "b", Some("c")),
        CostKind::of("a", "bc", None),
    ];
    for (place, one) in all.iter().enumerate() {
        assert!(all.iter().skip(place + 1).all(|other| other != one), "{place}");
    }
}

#[test]
fn before_ten_are_known_the_rule_says_and_without_it_a_tenth_of_the_limit() {
    let mut estimates = Estimates::default();
    let own = EstimateTerms { first: Some(700), ..EstimateTerms::default() };
    for number in 0..ACTUALS_MIN {
        assert_eq!(estimates.of(kind(1), &EstimateTerms::default(), 1_000), 100);
        assert_eq!(estimates.of(kind(1), &own, 1_000), 700);
        assert!(!estimates.learn(kind(1), ONE, 5 + number as u64));
        // Cancelled ones teach nothing.
        assert!(!estimates.learn(kind(1), ONE, 0));
    }
    assert_eq!(estimates.of(kind(1), &own, 1_000), 13);
    assert_eq!(estimates.of(kind(2), &EstimateTerms::default(), 0), 1, "at least one permit");
}

#[test]
fn one_kind_too_many_takes_the_place_of_the_one_that_learned_longest_ago() {
    let mut estimates = Estimates::default();
    for turn in 0..ACTUALS_MIN {
        for number in 0..KINDS_MAX {
            assert!(!estimates.learn(kind(number), ONE, 1_000 + turn as u64));
        }
    }
    assert!(!estimates.learn(kind(0), ONE, 1_000), "known already");
    assert!(estimates.learn(kind(KINDS_MAX), ONE, 1_000));
    assert_eq!(estimates.kinds(), KINDS_MAX);
    let first = EstimateTerms { first: Some(7), ..EstimateTerms::default() };
    assert_eq!(estimates.of(kind(1), &first, 0), 7, "forgotten");
    assert!(estimates.of(kind(0), &first, 0) >= 1_000);
    assert!(estimates.of(kind(2), &first, 0) >= 1_000);
}

#[test]
fn one_identity_does_not_teach_the_others_at_will() {
    let terms = EstimateTerms { percentile: 95, ..EstimateTerms::default() };
    for honest in 1..=10_u64 {
        let mut estimates = Estimates::default();
        let mut teach = |teacher, actual, times| {
            (0..times).for_each(|_| assert!(!estimates.learn(kind(1), Teacher(teacher), actual)));
            estimates.of(kind(1), &terms, 100_000)
        };
        for teacher in 1..=honest {
            teach(teacher, 100, 50 / honest + 1);
        }
        assert_eq!(teach(0, 10_000_000, 15), 100, "{honest} others");
        assert_eq!(teach(0, 10_000_000, 1_000), 100, "{honest} others, and what they taught is kept");
        assert_eq!(teach(99, 10_000_000, 15), 10_000_000, "what several have is what it is");
    }
}

proptest! {
    #[test]
    fn an_estimate_is_the_quantile_of_the_last_hundred(
        actuals in proptest::collection::vec(1..u64::MAX, ACTUALS_MIN..300), percentile in 1..=100_u8,
    ) {
        let mut estimates = Estimates::default();
        for actual in &actuals {
            estimates.learn(kind(1), ONE, *actual);
        }
        let terms = EstimateTerms { percentile, ..EstimateTerms::default() };
        let estimate = estimates.of(kind(1), &terms, 1_000);
        let last = &actuals[actuals.len().saturating_sub(ACTUALS_KEPT)..];
        let within = last.iter().filter(|actual| **actual <= estimate).count();
        let below = last.iter().filter(|actual| **actual < estimate).count();
        prop_assert!(last.contains(&estimate));
        prop_assert!(within * 100 >= last.len() * usize::from(percentile), "{within} of {}", last.len());
        prop_assert!(below * 100 < last.len() * usize::from(percentile), "{below} of {}", last.len());
    }

    #[test]
    fn what_is_kept_is_bounded(learned in proptest::collection::vec((0..6_000_usize, 1..9_u64), 0..500)) {
        let mut estimates = Estimates::default();
        for (number, actual) in learned {
            estimates.learn(kind(number), ONE, actual);
            prop_assert!(estimates.kinds() <= KINDS_MAX);
            prop_assert!(estimates.kinds() <= estimates.turns.len() && estimates.turns.len() <= KINDS_MAX * 2);
        }
    }
}

/// Draws that look random, the same in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    /// Half are at most `median`; of those above, a third exceeds each doubling, up to 32 times as much.
    fn cost(&mut self, median: u64) -> u64 {
        let mut most = median;
        if self.below(2) == 0 {
            return 1 + self.below(median);
        }
        while most < median * 16 && self.below(3) == 0 {
            most *= 2;
        }
        most + 1 + self.below(most)
    }
}

/// What a way to estimate was worth.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Worth {
    /// Permits used, in thousandths of the limit.
    used: u64,
    /// Permits used beyond the limit, in ten-thousandths of it, on average over all windows.
    over: u64,
    /// Requests that were admitted.
    admitted: u64,
}

const WINDOWS: u64 = 50;
const TICKS: u64 = 1_000;
const LIMIT: u64 = 1_000_000;
const MODELS: [(&str, u64); 2] = [("small", 100), ("large", 1_500)];

/// Requests of two models come at one and a half times the rate that a fixed window bears, each in flight for
/// a while, and what they cost is known only when they are done. None comes in the last ticks of a window, so
/// that each window is judged by its own.
fn worth(estimate: impl Fn(&Estimates, CostKind) -> u64) -> Worth {
    let (mut numbers, mut estimates) = (Draws(0x9e37_79b9_7f4a_7c15), Estimates::default());
    let mut flying: BTreeMap<(u64, u64), (CostKind, u64, u64)> = BTreeMap::new();
    let (mut charged, mut worth) = (0, Worth { used: 0, over: 0, admitted: 0 });
    for tick in 0..WINDOWS * TICKS {
        for arrival in 0..2_u64 {
            let (model, median) = MODELS[usize::from(numbers.below(4) == 0)];
            let (actual, length) = (numbers.cost(median), 5 + numbers.below(40));
            let kind = CostKind::of("default", "tokens", Some(model));
            let amount = estimate(&estimates, kind);
            if tick % TICKS < TICKS - 50 && charged + amount <= LIMIT {
                worth.admitted += 1;
                charged += amount;
                flying.insert((tick + length, tick * 2 + arrival), (kind, actual, amount));
            }
        }
        while let Some(done) = flying.first_entry().filter(|done| done.key().0 <= tick) {
            let (kind, actual, amount) = done.remove();
            charged = charged + actual - amount;
            estimates.learn(kind, Teacher(tick), actual);
        }
        if tick % TICKS == TICKS - 1 {
            worth.used += charged.min(LIMIT) * 1_000 / LIMIT;
            worth.over += charged.saturating_sub(LIMIT) * 10_000 / LIMIT;
            charged = 0;
        }
    }
    Worth { used: worth.used / WINDOWS, over: worth.over.div_ceil(WINDOWS), ..worth }
}

/// One flat estimate is too low for one model and too high for the other: of those that exceed the limit by
/// no more than what is learned, each leaves more of it unused.
#[test]
fn what_is_learned_uses_more_of_a_limit_than_any_flat_estimate_that_keeps_as_near_to_it() {
    let flat = [200, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 48_000];
    let flat = flat.map(|amount| (amount, worth(|_, _| amount)));
    for (amount, worth) in &flat {
        println!("flat {amount}: {worth:?}");
    }
    for percentile in [90, 95, 99] {
        let terms = EstimateTerms { percentile, first: Some(10_000), ..EstimateTerms::default() };
        let learned = worth(|known, kind| known.of(kind, &terms, 0));
        println!("learned, percentile {percentile}: {learned:?}");
        assert!(learned.used >= 970 && learned.over <= 25, "{learned:?}");
        for (amount, flat) in flat.iter().filter(|(_, flat)| flat.over <= learned.over) {
            assert!(flat.used < learned.used, "{amount}: {flat:?} beside {learned:?}");
        }
    }
}
