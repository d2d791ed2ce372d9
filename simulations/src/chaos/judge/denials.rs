//! False denials of real daemons: refusals that came while the world surely had room.
//!
//! The possible use is counted as high as it can be: everything that was admitted, or that nobody knows the
//! answer of, and that was sent before the refusal was told, in any window that it may belong to. So each
//! false denial that is found was one.

use std::collections::HashSet;
use std::time::Duration;

use super::super::answers::Answer;
use super::super::clock::any_is_wrong;
use super::{Evidence, Promise, STALL, Seen, Verdict};
use crate::model::shell::windowed;
use crate::plan::Way;

/// Fewer first requests than this show nothing.
const ENOUGH: usize = 6;
/// Regions have met after so long.
const MET: Duration = Duration::from_secs(2);

/// Refusals of a run, by kind.
#[derive(Debug, Default, Clone, Copy)]
struct Denials {
    denied: usize,
    /// While the world surely had room.
    surely_false: usize,
    /// First requests of a user in a region while more than a tenth of the limit was surely free.
    first: usize,
    first_denied: usize,
}

impl Evidence<'_> {
    pub(super) fn first_requests_pass(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "Under gossip a first request passes while a tenth of the limit is free",
            manual: "A first request finds something in every region while more than a tenth of the limit is free (docs/concepts/gossip.md, A user who travels)",
        };
        if self.way != Way::Gossip || any_is_wrong(self.plan) {
            return Verdict::new(PROMISE, None);
        }
        let denials = self.denials();
        let Denials { denied, surely_false, first, first_denied } = denials;
        let found = format!(
            "{first} first requests judged, {first_denied} denied; of {denied} denials in health {surely_false} were surely false"
        );
        Verdict::new(PROMISE, (first >= ENOUGH).then_some((first_denied == 0, found)))
    }

    /// Refusals until the first fault, from when the regions have met.
    fn denials(&self) -> Denials {
        let health = self.told.faults.iter().map(|fault| fault.from).min().unwrap_or(Duration::MAX);
        let (mut denials, mut known) = (Denials::default(), HashSet::new());
        let mut list: Vec<&Seen> = self.seen.iter().collect();
        list.sort_by_key(|seen| seen.sent);
        for seen in &list {
            let is_first = known.insert((seen.ask.user, seen.ask.region));
            let (from, until) = (self.since(seen.sent), self.since(seen.answered));
            let Answer::Decided(decision) = seen.answer else { continue };
            if from < MET || until >= health || decision.degraded || self.stalled(STALL, (from, until)) {
                continue;
            }
            let limit = u64::from(if windowed(self.plan.rule.algorithm) {
                self.plan.rule.limit
            } else {
                self.plan.rule.burst
            });
            let free = limit.saturating_sub(self.used_at_most(&list, seen));
            let (has_room, has_a_tenth) =
                (seen.ask.cost <= free, free.saturating_sub(seen.ask.cost) > limit / 10);
            denials.denied += usize::from(!decision.admitted);
            denials.surely_false += usize::from(!decision.admitted && has_room);
            denials.first += usize::from(is_first && has_a_tenth);
            denials.first_denied += usize::from(is_first && has_a_tenth && !decision.admitted);
        }
        denials
    }

    /// The most that all regions may have had in use of a user's bucket when a request was answered. The use
    /// of a window ago, or of two of a sliding one, does not count any more; of a bucket without windows all
    /// that was used since counts in full.
    fn used_at_most(&self, list: &[&Seen], judged: &Seen) -> u64 {
        let since = match windowed(self.plan.rule.algorithm) {
            true => judged.sent.saturating_sub(self.window() * 2),
            false => Duration::ZERO,
        };
        let end = list.partition_point(|seen| seen.sent <= judged.answered);
        let counts = |seen: &&&Seen| {
            let may_be = seen.answer.admitted() || seen.answer.decision().is_none();
            may_be && seen.ask.user == judged.ask.user && seen.answered >= since
        };
        let recent = list.get(..end).unwrap_or_default().iter().rev().take_while(|seen| seen.sent >= since);
        recent.filter(counts).map(|seen| seen.ask.cost).sum()
    }
}
