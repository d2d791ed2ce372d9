//! A `sliding_log`: every interval as long as the window that ends with an admission.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::core::algorithm::Algorithm;

use super::super::clock::any_is_wrong;
use super::{Evidence, Promise, Seen, Verdict};
use crate::number::float;
use crate::plan::Way;

/// Until regions know of each other's demand, more may be admitted.
const BEGINS: Duration = Duration::from_secs(2);
/// Under `gossip`: above the limit at most, on average and in the worst interval.
const OVER_MEAN: f64 = 0.000_5;
const OVER_MAX: f64 = 0.05;
/// A machine that stood still for so long told the other regions late.
const STOOD: Duration = Duration::from_millis(50);
/// Fewer intervals than this show nothing.
const ENOUGH: u64 = 500;

/// The permits that were surely admitted in an interval.
#[derive(Debug, Clone, Copy)]
struct Interval {
    from: Duration,
    until: Duration,
    admitted: u64,
}

impl Evidence<'_> {
    /// All intervals of every user.
    fn intervals(&self) -> Vec<Interval> {
        let mut of_user: BTreeMap<u64, Vec<&Seen>> = BTreeMap::new();
        for seen in self.admitted() {
            of_user.entry(seen.ask.user).or_default().push(seen);
        }
        let mut intervals = Vec::new();
        for list in of_user.values_mut() {
            list.sort_by_key(|seen| seen.answered);
            let mut first = 0;
            for (place, last) in list.iter().enumerate() {
                let (from, until) =
                    (self.since(last.answered.saturating_sub(self.window())), self.since(last.answered));
                while list.get(first).is_some_and(|seen| seen.answered + self.window() <= last.answered) {
                    first += 1;
                }
                let inside = list.get(first..=place).unwrap_or_default();
                let sure = inside.iter().filter(|seen| seen.sent + self.window() > last.answered);
                intervals.push(Interval { from, until, admitted: sure.map(|seen| seen.ask.cost).sum() });
            }
        }
        intervals
    }

    /// The fullest of those that are `judged`, and whether it is within the limit. Under `gossip` the regions
    /// of one side are as exact as all are in health, and no more.
    pub(super) fn fullest_interval(
        &self,
        judged: impl Fn(Duration, Duration) -> bool,
    ) -> Option<(bool, String)> {
        let (mut count, mut worst) = (0_u64, None::<(u64, u64, Duration)>);
        for Interval { from, until, admitted } in self.intervals() {
            if !judged(from, until) {
                continue;
            }
            count += 1;
            if worst.is_none_or(|(most, ..)| admitted > most) {
                worst = Some((admitted, self.limit_between(from, until), until));
            }
        }
        let (admitted, limit, until) = worst?;
        let found = format!(
            "{count} intervals judged; the fullest ends at {:.1} s with {admitted} of {limit}",
            until.as_secs_f64()
        );
        let over = float(admitted) / float(limit.max(1)) - 1.0;
        Some((admitted <= limit || (self.way == Way::Gossip && over <= OVER_MAX), found))
    }

    pub(super) fn logs_are_held(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "A sliding_log keeps its limit in every interval, next to exactly",
            manual: "A `sliding_log` is held to its limit in every interval, and pays for that where demand moves (docs/concepts/gossip.md: next to exactly)",
        };
        let rule = &self.plan.rule;
        if self.way != Way::Gossip || rule.algorithm != Algorithm::SlidingLog || any_is_wrong(self.plan) {
            return Verdict::new(PROMISE, None);
        }
        let health = self.told.faults.iter().map(|fault| fault.from).min().unwrap_or(Duration::MAX);
        let limit = float(u64::from(rule.limit));
        let (mut count, mut sum, mut worst) = (0, 0.0, (0.0_f64, Duration::ZERO));
        for Interval { from, until, admitted } in self.intervals() {
            let told_late = self.stalled(STOOD, (from.saturating_sub(self.window()), until));
            if from < BEGINS || until >= health || told_late {
                continue;
            }
            let over = (float(admitted) / limit - 1.0).max(0.0);
            (count, sum) = (count + 1, sum + over);
            if over > worst.0 {
                worst = (over, until);
            }
        }
        let mean = sum / float(count.max(1));
        let found = format!(
            "{count} intervals judged, {:.3} % above the limit on average, and {:.1} % in the worst, which ends at {:.1} s",
            mean * 100.0,
            worst.0 * 100.0,
            worst.1.as_secs_f64()
        );
        Verdict::new(PROMISE, (count >= ENOUGH).then_some((mean <= OVER_MEAN && worst.0 <= OVER_MAX, found)))
    }
}
