//! The permits that both sides of a cut admit, by `on_partition`.

use std::time::Duration;

use tidegate::core::algorithm::Algorithm;
use tidegate::core::rule::OnPartition;

use super::super::clock::any_is_wrong;
use super::used::Use;
use super::{Evidence, Happened, NOTICED, Promise, STALL, Verdict};
use crate::number::float;
use crate::plan::{FaultKind, Way};

/// `gossip` is nearly exact within a side.
const OVER: f64 = 0.05;
/// Both sides together, or each where it has the limit for itself, use so much of what they could.
const USED: f64 = 0.92;

/// The windows of one side, or of the whole world, while a region was cut off.
#[derive(Debug, Default)]
struct Sum {
    name: &'static str,
    limits: u64,
    could: u64,
    used: u64,
    over: u64,
}

impl Evidence<'_> {
    pub(super) fn sides_keep_to_policy(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "In a cut each side admits what on_partition says",
            manual: "Under `gossip`, `on_partition` of the rule decides (docs/concepts/partitions.md: what each side of a cut admits)",
        };
        let rule = &self.plan.rule;
        let plain = self.way == Way::Gossip
            && rule.algorithm == Algorithm::FixedWindow
            && self.plan.demand.users == 1
            && !any_is_wrong(self.plan);
        if !plain {
            return Verdict::new(PROMISE, None);
        }
        let cuts = self.told.faults.iter().filter(|fault| {
            let other = self.disturbed(fault, (fault.from, fault.until));
            matches!(fault.kind, FaultKind::Cut { inward: true, outward: true, .. }) && !other
        });
        Verdict::new(PROMISE, cuts.filter_map(|cut| self.sides_of(cut)).min_by_key(|(kept, _)| *kept))
    }

    /// Returns what was found of one cut, if anything could be judged.
    fn sides_of(&self, cut: &Happened) -> Option<(bool, String)> {
        let FaultKind::Cut { regions, .. } = &cut.kind else { return None };
        let policy = self.plan.rule.on_partition;
        let steady = self.plan.demand.pattern.is_steady();
        // `share` is judged by the limit itself. These two are near the limit only where demand stays as it
        // was.
        let judged = match policy {
            OnPartition::Share => false,
            OnPartition::Freeze | OnPartition::LastKnown => steady,
            OnPartition::Ignore | OnPartition::Deny => true,
        };
        if !judged {
            return None;
        }
        let away = |region: usize| regions.contains(&region);
        let sides = match policy {
            OnPartition::Ignore => vec![
                self.sum("the side that is cut off", cut, away),
                self.sum("the others", cut, |region| !away(region)),
            ],
            _ => vec![self.sum("both sides together", cut, |_| true)],
        };
        let sides: Vec<Sum> = sides.into_iter().filter(|sum| sum.could > 0).collect();
        let kept = |sum: &Sum| match policy {
            OnPartition::Deny => sum.used == 0,
            _ => float(sum.over) <= OVER * float(sum.limits) && float(sum.used) >= USED * float(sum.could),
        };
        let found = sides.iter().map(|sum| {
            format!("{} used {} of {} and {} above the limit", sum.name, sum.used, sum.could, sum.over)
        });
        let found = found.collect::<Vec<_>>().join("; ");
        (!sides.is_empty()).then(|| (sides.iter().all(kept), found))
    }

    /// The windows in which all had noticed the cut, and in which the machine did not stand still.
    fn sum(&self, name: &'static str, cut: &Happened, of_side: impl Fn(usize) -> bool) -> Sum {
        let limit = u64::from(self.plan.rule.limit);
        let mut sum = Sum { name, ..Sum::default() };
        let windows = self.windows(|seen| of_side(seen.ask.region));
        for (at, window) in windows.iter().enumerate() {
            let from = self.window() * u32::try_from(at).unwrap_or(u32::MAX);
            let until = from + self.window();
            let inside = cut.from + NOTICED <= from && until + Duration::from_millis(100) <= cut.until;
            if !inside || window.is_starved() || self.stalled(STALL, (from, until)) {
                continue;
            }
            let Use { asked, admitted, .. } = *window;
            sum.limits += limit;
            sum.could += asked.min(limit);
            sum.used += admitted.min(limit);
            sum.over += admitted.saturating_sub(limit);
        }
        sum
    }
}
