//! Progressive penalties: a client that is denied too often is shut out for a while, and for longer each
//! time.
//!
//! Denials inside a detection window are counted, in two halves of it, the present one and the one before:
//! so the window slides with the client, and as many denials as the threshold within half a window are never
//! missed. A cool-down begins when they reach the threshold, in which the bucket admits nothing. Each further
//! penalty that begins within one detection window after the last one ended takes the next multiplier, up to
//! the last of them. Denials during a cool-down are not counted, so a client that keeps asking is shut out
//! for no longer than the rule says. A bucket's record has a fixed size, and no input makes the arithmetic
//! overflow.

use super::algorithm::Verdict;
use super::time::{Span, Timestamp};

/// Most multipliers of one rule.
pub const MULTIPLIERS_MAX: usize = 16;
/// The multipliers of a rule that names none.
pub const MULTIPLIERS_DEFAULT: [u32; 4] = [1, 2, 4, 8];

/// The penalty of a rule, checked when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PenaltyTerms {
    /// Denials inside the detection window that begin a penalty; at least 1.
    pub threshold: u32,
    /// Time in which `threshold` denials begin a penalty.
    pub window: Span,
    /// Length of the first penalty, before it is multiplied.
    pub cool_down: Span,
    /// Factors of the cool-down, penalty by penalty; 1 to [`MULTIPLIERS_MAX`], each at least 1.
    pub multipliers: Vec<u32>,
}

impl PenaltyTerms {
    /// The multiplier of this step; beyond the last one, the last.
    #[must_use]
    pub fn multiplier(&self, step: u8) -> u32 {
        let own = self.multipliers.get(usize::from(step)).or_else(|| self.multipliers.last());
        own.copied().unwrap_or(1)
    }

    fn cool_down_of(&self, step: u8) -> Span {
        Span(self.cool_down.0.saturating_mul(u64::from(self.multiplier(step))))
    }

    /// Half of the detection window.
    fn half(&self) -> Span {
        Span(self.window.0.div_ceil(2).max(1))
    }

    fn last_step(&self) -> u8 {
        u8::try_from(self.multipliers.len().saturating_sub(1)).unwrap_or(u8::MAX)
    }
}

/// The memory of one bucket's violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PenaltyRecord {
    /// Denials counted in the present half, which began at [`Self::since`].
    pub violations: u32,
    /// Begin of the present half of the detection window.
    pub since: Timestamp,
    /// Instant at which the newest penalty ends or has ended; zero: there was none.
    pub until: Timestamp,
    /// Place in [`PenaltyTerms::multipliers`] of the newest penalty's multiplier.
    pub step: u8,
    /// Denials counted in the half before.
    pub before: u32,
}

/// A penalty that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Penalty {
    /// Time until the penalty ends, from this decision on.
    pub left: Span,
    /// The factor by which the cool-down was multiplied.
    pub multiplier: u32,
    /// True if this very decision began it.
    pub begun: bool,
}

impl PenaltyRecord {
    /// The penalty in force at `now`.
    #[must_use]
    pub fn in_force(&self, terms: &PenaltyTerms, now: Timestamp) -> Option<Penalty> {
        let multiplier = terms.multiplier(self.step);
        let left = self.until.since(now).min(terms.cool_down_of(self.step));
        (now < self.until).then_some(Penalty { left, multiplier, begun: false })
    }

    /// Has a penalty last no longer than from `now` on: a clock that was set back would lengthen it by the
    /// step.
    fn bring_back(&mut self, terms: &PenaltyTerms, now: Timestamp) {
        self.until = self.until.min(now + terms.cool_down_of(self.step));
        if self.since.since(now) > terms.window {
            self.violations = 0;
        }
    }

    /// Counts a denial at `now`. Returns the penalty that is in force after it.
    pub fn violate(&mut self, terms: &PenaltyTerms, now: Timestamp) -> Option<Penalty> {
        self.bring_back(terms, now);
        if let Some(penalty) = self.in_force(terms, now) {
            return Some(penalty);
        }
        let (half, passed) = (terms.half(), now.since(self.since));
        if self.violations == 0 || passed.0 >= half.0.saturating_mul(2) {
            (self.before, self.violations, self.since) = (0, 0, now);
        } else if passed >= half {
            (self.before, self.violations, self.since) = (self.violations, 0, self.since + half);
        }
        self.violations = self.violations.saturating_add(1);
        if self.violations.saturating_add(self.before) < terms.threshold {
            return None;
        }
        let soon = self.until > Timestamp(0) && now.since(self.until) < terms.window;
        self.step = if soon { self.step.saturating_add(1).min(terms.last_step()) } else { 0 };
        self.until = now + terms.cool_down_of(self.step);
        (self.violations, self.before) = (0, 0);
        self.in_force(terms, now).map(|penalty| Penalty { begun: true, ..penalty })
    }

    /// Returns when nothing of it matters any more.
    #[must_use]
    pub fn expiry(&self, terms: &PenaltyTerms) -> Timestamp {
        self.until.max(self.since) + terms.window
    }
}

impl Penalty {
    /// Closes the answer of a bucket that was asked for permits. A cost that fits passes when the penalty
    /// ends; one that does not fit, when both allow it; one that never fits, never.
    pub fn close(&self, verdict: &mut Verdict) {
        let retry = if verdict.admitted { Some(self.left) } else { verdict.retry };
        verdict.retry = retry.map(|retry| retry.max(self.left));
        self.empty(verdict);
    }

    /// The same for an answer that asks for nothing: one permit is free when the penalty ends, or later.
    pub fn close_look(&self, verdict: &mut Verdict) {
        verdict.retry = Some(verdict.retry.unwrap_or(Span::ZERO).max(self.left));
        self.empty(verdict);
    }

    fn empty(&self, verdict: &mut Verdict) {
        (verdict.admitted, verdict.remaining, verdict.delay) = (false, 0, Span::ZERO);
        verdict.reset = verdict.reset.max(self.left);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn terms(threshold: u32, multipliers: &[u32]) -> PenaltyTerms {
        PenaltyTerms {
            threshold,
            window: Span::from_secs(60),
            cool_down: Span::from_secs(10),
            multipliers: multipliers.to_vec(),
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(1_000_000_000_000_000 + seconds * 1_000_000)
    }

    #[test]
    fn each_penalty_soon_after_the_last_one_is_longer_until_the_last_multiplier() {
        let terms = terms(1, &[1, 2, 4]);
        let mut record = PenaltyRecord::default();
        let mut now = 0;
        for (multiplier, seconds) in [(1, 10), (2, 20), (4, 40), (4, 40)] {
            let penalty = record.violate(&terms, at(now)).unwrap();
            assert_eq!(penalty, Penalty { left: Span::from_secs(seconds), multiplier, begun: true });
            now += seconds;
            assert_eq!(record.in_force(&terms, at(now)), None, "over at {now}");
        }
        // A detection window without a violation, and it begins anew.
        let penalty = record.violate(&terms, at(now + 60)).unwrap();
        assert_eq!((penalty.multiplier, penalty.left), (1, Span::from_secs(10)));
    }

    #[test]
    fn violations_further_apart_than_the_window_begin_nothing() {
        let terms = terms(3, &[1]);
        let mut record = PenaltyRecord::default();
        for second in [0, 30, 60, 90, 120, 150] {
            assert_eq!(record.violate(&terms, at(second)), None, "at {second}");
        }
        assert!(record.violate(&terms, at(151)).is_none_or(|penalty| penalty.begun));
    }

    #[test]
    fn as_many_denials_as_begin_a_penalty_are_found_wherever_the_window_began() {
        let terms = PenaltyTerms { window: Span::from_secs(3), ..terms(3, &[1]) };
        let mut record = PenaltyRecord::default();
        let mut violate = |millis: u64| record.violate(&terms, Timestamp(at(0).0 + millis * 1_000));
        for early in [0, 2_800, 3_200] {
            assert_eq!(violate(early), None, "at {early} ms");
        }
        assert!(violate(3_400).is_some_and(|penalty| penalty.begun), "three within 600 ms");
    }

    #[test]
    fn denials_during_a_penalty_do_not_lengthen_it() {
        let terms = terms(2, &[1, 8]);
        let mut record = PenaltyRecord::default();
        assert_eq!(record.violate(&terms, at(0)), None);
        assert!(record.violate(&terms, at(1)).unwrap().begun);
        let ends = record.until;
        for second in 2..11 {
            assert!(!record.violate(&terms, at(second)).unwrap().begun);
        }
        assert_eq!(record.until, ends);
        assert_eq!(record.violate(&terms, at(11)), None, "the first violation after it counts as one");
    }

    #[test]
    fn a_clock_that_is_set_back_lengthens_no_penalty() {
        let terms = terms(1, &[1, 2]);
        for back in [1, 60, 86_400, 31_536_000] {
            let mut record = PenaltyRecord::default();
            assert!(record.violate(&terms, at(40_000_000)).unwrap().begun);
            let now = 40_000_000 - back;
            let left = record.violate(&terms, at(now)).unwrap().left;
            assert_eq!(left, Span::from_secs(10), "set back by {back}");
            assert_eq!(record.in_force(&terms, at(now + 10)), None, "set back by {back}");
        }
    }

    #[test]
    fn a_closed_answer_says_truly_when_it_may_pass() {
        let penalty = Penalty { left: Span::from_secs(10), multiplier: 1, begun: false };
        let open = Verdict {
            admitted: true,
            remaining: 5,
            reset: Span::from_secs(3),
            retry: None,
            delay: Span::from_secs(1),
        };
        let closed = |mut verdict: Verdict| {
            penalty.close(&mut verdict);
            (verdict.admitted, verdict.remaining, verdict.reset, verdict.retry, verdict.delay)
        };
        let ten = Span::from_secs(10);
        assert_eq!(closed(open), (false, 0, ten, Some(ten), Span::ZERO));
        let later = Verdict { admitted: false, retry: Some(Span::from_secs(30)), ..open };
        assert_eq!(closed(later).3, Some(Span::from_secs(30)));
        let sooner = Verdict { admitted: false, retry: Some(Span::from_secs(2)), ..open };
        assert_eq!(closed(sooner).3, Some(ten));
        let never = Verdict { admitted: false, retry: None, ..open };
        assert_eq!(closed(never).3, None);
    }

    proptest! {
        /// Seen from outside: however often and whenever a client is denied, also with a clock that goes
        /// back, it is shut out by no more than the longest cool-down from now, never before the threshold
        /// was reached, and no instant overflows.
        #[test]
        fn a_penalty_is_bounded_and_never_comes_early(
            threshold in 1_u32..6,
            window in prop_oneof![1_u64..100, Just(366 * 86_400 * 1_000_000)],
            cool_down in prop_oneof![1_u64..100, Just(u64::MAX)],
            multipliers in proptest::collection::vec(1_u32..=u32::MAX, 1..=MULTIPLIERS_MAX),
            steps in proptest::collection::vec((0_u64..60, any::<bool>()), 1..200),
        ) {
            let terms = PenaltyTerms {
                threshold, window: Span(window), cool_down: Span(cool_down), multipliers: multipliers.clone(),
            };
            let longest = multipliers.iter().map(|one| cool_down.saturating_mul(u64::from(*one))).max().unwrap();
            let mut record = PenaltyRecord::default();
            let (mut now, mut counted) = (1_000_u64, 0_u32);
            for (step, back) in steps {
                now = if back { now.saturating_sub(step).max(1) } else { now + step };
                let shut = record.in_force(&terms, Timestamp(now)).is_some();
                let told = record.violate(&terms, Timestamp(now));
                counted += u32::from(!shut);
                match told {
                    Some(penalty) if penalty.begun => {
                        prop_assert!(!shut && counted >= threshold);
                        prop_assert!(penalty.left.0 <= longest);
                        prop_assert!(multipliers.contains(&penalty.multiplier));
                        counted = 0;
                    }
                    Some(_) => prop_assert!(shut),
                    None => prop_assert!(!shut && counted > 0),
                }
                prop_assert!(record.violations + record.before < threshold);
                prop_assert!(record.expiry(&terms) >= record.until);
            }
        }

        /// As many denials as the threshold within half a window begin a penalty, whatever came before them,
        /// and those of a whole window or more ago have no part in it.
        #[test]
        fn the_window_slides(
            threshold in 1_usize..5,
            half in 1_u64..50,
            steps in proptest::collection::vec(0_u64..60, 1..200),
        ) {
            let terms = PenaltyTerms {
                threshold: u32::try_from(threshold).unwrap(),
                window: Span(2 * half),
                cool_down: Span(1),
                multipliers: vec![1],
            };
            let (mut record, mut now, mut counted) = (PenaltyRecord::default(), 1_000_u64, Vec::new());
            for step in steps {
                now += step;
                if record.in_force(&terms, Timestamp(now)).is_some() {
                    continue;
                }
                counted.push(now);
                let begun = record.violate(&terms, Timestamp(now)).is_some();
                let within = |length: u64| counted.iter().filter(|at| now - **at < length).count();
                prop_assert!(begun || within(half) < threshold);
                prop_assert!(!begun || within(2 * half) >= threshold);
                if begun {
                    counted.clear();
                }
            }
        }
    }
}
