//! A region that is added or removed while the others run.

use std::time::Duration;

use super::{Evidence, Promise, STALL, Verdict};
use crate::number::float;
use crate::plan::{FaultKind, Way};

/// The time that the daemons may take to agree, and a share to come into force.
const AGREED: Duration = Duration::from_secs(6);
/// So much of the limit the others use without the region that was removed. With its share unspent two of
/// three use two thirds.
const INHERITED: f64 = 0.9;
/// Fewer requests than this show nothing.
const ENOUGH: u64 = 50;

impl Evidence<'_> {
    pub(super) fn who_is_added_spends(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "A region that is added spends its share when all list it, and nothing before",
            manual: "A region that the others do not list spends nothing (docs/tasks/add-or-remove-a-region.md; one that all list spends its share)",
        };
        let kept = self.told.faults.iter().filter_map(|fault| {
            let FaultKind::Join { region, listed } = fault.kind else { return None };
            let from = if listed { fault.until + AGREED } else { Duration::ZERO };
            let end = Duration::from_micros(self.plan.length.0);
            if self.way == Way::Gossip || (listed && self.stalled(STALL, (fault.from, end))) {
                return None;
            }
            let asked = self.seen.iter().filter(|seen| seen.ask.region == region);
            let answered = asked.filter(|seen| seen.answer.decision().is_some());
            let (mut all, mut admitted) = (0, 0);
            for seen in answered.filter(|seen| self.since(seen.sent) >= from) {
                all += seen.ask.cost;
                admitted += if seen.answer.admitted() { seen.ask.cost } else { 0 };
            }
            let windows =
                float(self.plan.length.0.saturating_sub(u64::try_from(from.as_micros()).unwrap_or(u64::MAX)))
                    / float(self.plan.rule.window.0.max(1));
            let share = float(u64::from(self.plan.rule.limit)) / crate::number::len(self.plan.regions.len())
                * windows;
            let used = float(admitted) >= 0.8 * share.min(float(all));
            let order = if listed { "listed by all" } else { "listed by itself alone" };
            (all >= ENOUGH).then(|| {
                let kept = if listed { used } else { admitted == 0 };
                (kept, format!("{admitted} of {all} permits admitted where it is {order}"))
            })
        });
        Verdict::new(PROMISE, kept.min_by_key(|(kept, _)| *kept))
    }

    pub(super) fn share_is_inherited(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "The share of a region that was removed is spent by the others",
            manual: "Its share is now spent by the others (docs/tasks/add-or-remove-a-region.md: of a region that was removed)",
        };
        let kept = self.told.faults.iter().filter_map(|fault| {
            let FaultKind::Leave { region } = fault.kind else { return None };
            let end = Duration::from_micros(self.plan.length.0);
            let from = fault.until + AGREED;
            if self.stalled(STALL, (fault.from, end)) {
                return None;
            }
            let others = self.seen.iter().filter(|seen| seen.ask.region != region);
            let (mut asked, mut admitted) = (0, 0);
            for seen in others.filter(|seen| self.since(seen.sent) >= from) {
                asked += seen.ask.cost;
                admitted += if seen.answer.admitted() { seen.ask.cost } else { 0 };
            }
            let windows = end.saturating_sub(from).as_secs_f64() / self.window().as_secs_f64();
            let limit = self.limit_between(from, end);
            let could = float(asked).min(float(limit) * windows);
            let found = format!(
                "from {:.1} s on the others used {admitted} of {could:.0} permits",
                from.as_secs_f64()
            );
            (asked >= ENOUGH).then(|| (float(admitted) >= INHERITED * could, found))
        });
        Verdict::new(PROMISE, kept.min_by_key(|(kept, _)| *kept))
    }
}
