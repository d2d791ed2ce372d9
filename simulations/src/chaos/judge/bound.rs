//! The worldwide use that regions believe in, beside what was used.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tidegate::core::algorithm::Algorithm;

use super::super::clock::any_is_wrong;
use super::{Evidence, Promise, Seen, Verdict};
use crate::drive::Belief;
use crate::number::float;
use crate::plan::{FaultKind, Way};

/// By when a region knows that something was lost or late.
const LEARNED: Duration = Duration::from_millis(500);
/// Points of a plot, at most.
const POINTS_MAX: u32 = 480;

/// An answer that says what is believed, beside what had surely been admitted and answered before it was
/// asked.
struct Compared<'a> {
    seen: &'a Seen,
    used: u64,
    believed: u64,
    bound: u64,
}

impl Evidence<'_> {
    pub(super) fn bound_is_one(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "believed_used and error_bound together cover what was used",
            manual: "Together they are not less than what was used (docs/concepts/gossip.md, The error bound: `believed_used` and `error_bound`)",
        };
        // The promise is for clocks that agree.
        if any_is_wrong(self.plan) {
            return Verdict::new(PROMISE, None);
        }
        let (mut bounds, mut too_small, mut worst) = (Vec::new(), 0_u64, None::<(u64, String)>);
        for Compared { seen, used, believed, bound } in self.compared() {
            let span = (self.since(seen.sent), self.since(seen.answered));
            if !self.is_plain(span.0, span.1) || self.is_first_loss(span) {
                continue;
            }
            bounds.push(bound);
            let missing = used.saturating_sub(believed.saturating_add(bound));
            too_small += u64::from(missing > 0);
            if worst.as_ref().is_none_or(|(most, _)| missing > *most) {
                let at = self.since(seen.sent).as_secs_f64();
                worst =
                    Some((missing, format!("at {at:.2} s {used} were used, {believed} ± {bound} believed")));
            }
        }
        bounds.sort_unstable();
        let found = worst.zip(bounds.get(bounds.len() / 2)).map(|((missing, example), half)| {
            let example = if missing > 0 { format!("; {example}") } else { String::new() };
            let judged = bounds.len();
            (
                too_small == 0,
                format!("{judged} answers judged, half of the bounds at most {half}, {too_small} too small{example}"),
            )
        });
        Verdict::new(PROMISE, found)
    }

    /// True for half a second, and what comes late besides, after more was lost or late than before: a region
    /// learns of it by the next heartbeat.
    fn is_first_loss(&self, (from, until): (Duration, Duration)) -> bool {
        self.told.faults.iter().any(|fault| {
            let late = match &fault.kind {
                FaultKind::Slow { by, .. } => Duration::from_micros(by.0),
                FaultKind::Storm { .. } => Duration::from_micros(self.plan.weather.longest().0),
                _ => return false,
            };
            fault.from <= until && fault.from + LEARNED + late >= from
        })
    }

    /// Returns what the first user's answers say, for a plot: of each short span of time the one that
    /// believed least.
    pub(in super::super) fn beliefs(&self) -> Vec<Belief> {
        let span = Duration::from_micros(self.plan.length.0) / POINTS_MAX;
        let mut points: BTreeMap<u128, Belief> = BTreeMap::new();
        for Compared { seen, used, believed, bound } in self.compared() {
            if seen.ask.user != 0 {
                continue;
            }
            let since = self.since(seen.sent);
            let most = float(believed.saturating_add(bound));
            let belief =
                Belief { at: since.as_secs_f64(), used: float(used), believed: float(believed), most };
            let point = points.entry(since.as_micros() / span.as_micros().max(1)).or_insert(belief);
            if belief.most - belief.used < point.most - point.used {
                *point = belief;
            }
        }
        points.into_values().collect()
    }

    fn compared(&self) -> Vec<Compared<'_>> {
        if self.plan.rule.algorithm != Algorithm::FixedWindow || self.way != Way::Gossip {
            return Vec::new();
        }
        let mut admitted: HashMap<(u64, u64), Vec<(Duration, u64)>> = HashMap::new();
        for seen in self.admitted() {
            if let Some(window) = self.sure_window(seen) {
                admitted.entry((seen.ask.user, window)).or_default().push((seen.answered, seen.ask.cost));
            }
        }
        for list in admitted.values_mut() {
            list.sort_unstable();
            let mut sum = 0;
            for (_, cost) in list.iter_mut() {
                sum += *cost;
                *cost = sum;
            }
        }
        let mut all = Vec::new();
        for seen in self.seen {
            let believed = seen.answer.decision().and_then(|decision| decision.believed);
            let (Some((believed, bound)), Some(window)) = (believed, self.sure_window(seen)) else {
                continue;
            };
            let used = admitted.get(&(seen.ask.user, window)).map_or(0, |list| {
                let known = list.partition_point(|(answered, _)| *answered <= seen.sent);
                known.checked_sub(1).and_then(|place| list.get(place)).map_or(0, |(_, sum)| *sum)
            });
            all.push(Compared { seen, used, believed, bound });
        }
        all
    }
}
