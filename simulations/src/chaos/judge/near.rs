//! Windows that are nearly exact: `gossip` while nothing is broken, and `sliding_window` by fixed shares.

use std::time::Duration;

use tidegate::core::algorithm::Algorithm;

use super::super::clock::any_is_wrong;
use super::{Evidence, Promise, Seen, Verdict, Windows};
use crate::number::{float, len};
use crate::plan::Way;

/// Until regions know of each other's demand, more may be admitted.
const SKIPPED: u64 = 2;
/// Above the limit at most, on average and in the worst window, and a permit in any. The figures of the
/// manual are of a thousand permits; of a hundred one permit is a hundredth.
const OVER_MEAN: f64 = 0.005;
const OVER_MAX: f64 = 0.05;
/// One permit of smaller limits is more than that.
const LIMIT_MIN: u32 = 100;
/// Fewer windows than this show nothing.
const ENOUGH: usize = 3;

impl Evidence<'_> {
    /// Permits surely admitted in each window of one user since the first request.
    fn sure_windows(&self) -> Windows {
        let mut windows = Windows::new();
        for seen in self.admitted() {
            if let Some(window) = self.sure_window(seen) {
                *windows.entry((seen.ask.user, window)).or_default() += seen.ask.cost;
            }
        }
        windows
    }

    pub(super) fn gossip_is_near(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "In health gossip admits little more than the limit",
            manual: "In health that is little (docs/concepts/gossip.md: a permit that is admitted twice)",
        };
        let rule = &self.plan.rule;
        let known = self.way == Way::Gossip
            && rule.algorithm == Algorithm::FixedWindow
            && rule.limit >= LIMIT_MIN
            && self.plan.demand.users == 1
            && self.plan.demand.cost == 1
            && !any_is_wrong(self.plan);
        if !known {
            return Verdict::new(PROMISE, None);
        }
        let health = self.told.faults.iter().map(|fault| fault.from).min();
        let health = health.unwrap_or(Duration::from_micros(self.plan.length.0));
        let limit = u64::from(rule.limit);
        let starved = self.windows(|_| true);
        let (mut overs, mut worst) = (Vec::new(), (0_u64, 0_u64));
        for ((_, index), admitted) in self.sure_windows() {
            let Some(at) = index.checked_sub(self.index(self.begun)).filter(|at| *at >= SKIPPED) else {
                continue;
            };
            let from = self.window() * u32::try_from(at).unwrap_or(u32::MAX);
            let until = from + self.window();
            // Regions that had too little of the machine told each other late.
            let had_too_little =
                |at: u64| starved.get(crate::number::index(at)).is_none_or(super::used::Use::is_starved);
            let late = had_too_little(at)
                || had_too_little(at.saturating_sub(1))
                || self.stalled(Duration::ZERO, (from.saturating_sub(self.window()), until));
            if until > health || late {
                continue;
            }
            let over = admitted.saturating_sub(limit);
            overs.push(float(over) / float(limit));
            worst = worst.max((over, at));
        }
        let mean = overs.iter().sum::<f64>() / len(overs.len().max(1));
        let most = float(worst.0) / float(limit);
        let found = format!(
            "{} windows judged, {:.3} % above the limit on average, and {:.1} % in the worst, window {}",
            overs.len(),
            mean * 100.0,
            most * 100.0,
            worst.1
        );
        // One permit in each window is no more than rounding.
        let kept = mean <= OVER_MEAN.max(1.0 / float(limit)) && (worst.0 <= 1 || most <= OVER_MAX);
        Verdict::new(PROMISE, (overs.len() >= ENOUGH).then_some((kept, found)))
    }

    /// Judges a `sliding_window`: the limit in any aligned window, and in the estimate that fades. Each
    /// region rounds its own down.
    pub(super) fn fullest_of_sliding(
        &self,
        judged: impl Fn(Duration, Duration) -> bool,
    ) -> Option<(bool, String)> {
        let (aligned, found) = self.fullest_window(&judged)?;
        let mut list: Vec<(&Seen, u64)> =
            self.admitted().filter_map(|seen| Some((seen, self.sure_window(seen)?))).collect();
        list.sort_by_key(|(seen, _)| seen.answered);
        let rounding = u64::try_from(self.plan.regions.len().saturating_sub(1)).unwrap_or(u64::MAX);
        let (mut windows, mut worst) = (Windows::new(), None::<(u64, u64)>);
        for (seen, window) in list {
            let user = seen.ask.user;
            *windows.entry((user, window)).or_default() += seen.ask.cost;
            let count = |window: u64| windows.get(&(user, window)).copied().unwrap_or_default();
            let at = self.since(seen.answered);
            let from = at.saturating_sub(self.window() * 2);
            let passed = seen.answered.as_micros() % self.window().as_micros().max(1);
            let left = self.window().as_micros().saturating_sub(passed);
            let before =
                u128::from(count(window.saturating_sub(1))) * left / self.window().as_micros().max(1);
            let estimate = count(window).saturating_add(u64::try_from(before).unwrap_or(u64::MAX));
            let most = self.limit_between(from, at).saturating_add(rounding);
            if judged(from, at) && worst.is_none_or(|(worst, _)| worst < estimate) {
                worst = Some((estimate, most));
            }
        }
        let (estimate, most) = worst.unwrap_or_default();
        Some((aligned && estimate <= most, format!("{found}; the highest estimate is {estimate} of {most}")))
    }
}
