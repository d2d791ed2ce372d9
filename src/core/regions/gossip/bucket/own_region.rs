//! Permits that the own region admitted: this daemon's counts, and those of its siblings.
//!
//! There are places for so many counts only. What finds none is not told and nobody knows of it: the region
//! then keeps to its share until it is counted, or counts no more.

use std::sync::Arc;

use super::{DaemonContext, GossipBucket, Period, ReceivedReport, SiblingReport};
use crate::algorithm::Counting;
use crate::regions::Touched;
use crate::regions::gossip::counts::{Count, TakenIn};
use crate::time::{Span, Timestamp};
use crate::wire::{Amount, COUNTS_MAX, Counter, DEMAND_MAX};

/// While a count finds no room, this is looked at so often.
pub(super) const LOOKS_FOR_ROOM: Span = Span::from_secs(5);

impl GossipBucket {
    /// Counts what happened here. `false`: there is no room for it now.
    pub(in super::super) fn count(
        &mut self,
        now: Timestamp,
        touched: &Touched,
        here: DaemonContext<'_>,
    ) -> bool {
        self.changed = now;
        self.demand.offered(now, touched.offered, touched.largest);
        if touched.refused == 0 && touched.admitted > 0 && self.counting() == Counting::Window {
            self.unmet.admitted(touched.largest);
        }
        if let Some(period) = self.period_mut(touched.window)
            && touched.admitted | touched.returned != 0
        {
            period.note(Amount { admitted: touched.admitted, returned: touched.returned });
            return self.place_counts(now, here);
        }
        true
    }

    /// Puts what was counted here among the counts of the region. `false`: there is no room for all of it.
    pub(in super::super) fn place_counts(&mut self, now: Timestamp, here: DaemonContext<'_>) -> bool {
        self.count_anew(now, here.node);
        if self.place_under(here) {
            return true;
        }
        // A count that begins now is not among the oldest: they may be settled beside it.
        self.counts_since = self.counts_since.max(now);
        self.count_anew(now, here.node);
        self.place_under(here)
    }

    fn place_under(&mut self, here: DaemonContext<'_>) -> bool {
        let counter = Counter { node: Arc::clone(here.node), since: self.counts_since };
        let mut all_placed = true;
        for period in &mut self.periods {
            all_placed &= period.place(&counter, here);
        }
        all_placed
    }

    /// Begins a new count if the one of now is among those that are settled: the others took this daemon for
    /// gone, and may not have known all of it. All of it counts once more, rather than a part of it never.
    fn count_anew(&mut self, now: Timestamp, node: &str) {
        let since = self.counts_since;
        let newest = self.periods.iter().filter_map(|period| period.live.settled_for(node)).max();
        let Some(until) = newest.filter(|until| since <= *until) else { return };
        self.counts_since = now.max(until + Span(1));
        for period in &mut self.periods {
            if period.live.settled_for(node).is_some_and(|until| since <= until) {
                period.unplaced = period.here;
            }
        }
    }

    /// Returns what a sibling counted itself.
    pub(in super::super) fn hear_sibling(
        &mut self,
        now: Timestamp,
        node: &str,
        heard: &ReceivedReport,
        here: DaemonContext<'_>,
    ) -> TakenIn {
        self.changed = now;
        if self.siblings.len() >= COUNTS_MAX {
            self.siblings.retain(|sibling| here.lives(&sibling.node));
        }
        let full = self.siblings.len() >= COUNTS_MAX;
        match self.siblings.iter_mut().find(|sibling| sibling.node == node) {
            Some(sibling) if heard.stamp < sibling.stamp => {}
            Some(sibling) => {
                sibling.stamp = heard.stamp;
                sibling.demand = heard.demand.min(DEMAND_MAX);
            }
            None if full => {}
            None => self.siblings.push(SiblingReport {
                node: node.to_owned(),
                stamp: heard.stamp,
                demand: heard.demand.min(DEMAND_MAX),
            }),
        }
        let Some(period) = self.period_mut(heard.window) else { return TakenIn::default() };
        let taken = period.hear_own(&heard.counts, here);
        self.place_counts(now, here);
        taken
    }

    /// True if counts of now found no room, so that nobody knows all that was admitted.
    pub(in super::super) fn has_uncounted(&self, now: Timestamp) -> bool {
        let speaks = |period: &&Period| self.speaks_of(period.window, now);
        self.periods.iter().filter(speaks).any(Period::has_uncounted)
    }
}

impl Period {
    /// Notes what happened at this daemon, to be placed among the counts.
    pub(super) fn note(&mut self, more: Amount) {
        for amount in [&mut self.here, &mut self.unplaced] {
            amount.admitted = amount.admitted.saturating_add(more.admitted);
            amount.returned = amount.returned.saturating_add(more.returned);
        }
    }

    /// Adds to this count what was noted. `false`: there is no room for it.
    fn place(&mut self, counter: &Counter, here: DaemonContext<'_>) -> bool {
        if self.unplaced == Amount::default() {
            return true;
        }
        if !self.live.add(counter, self.unplaced, |node| here.lives(node)) {
            return false;
        }
        self.unplaced = Amount::default();
        self.live_version = self.live_version.wrapping_add(1);
        true
    }

    /// Takes in counts of the own region.
    pub(super) fn hear_own(&mut self, counts: &[Count], here: DaemonContext<'_>) -> TakenIn {
        let taken = self.live.merge_own(counts, |node| here.lives(node));
        if taken.changed {
            self.live_version = self.live_version.wrapping_add(1);
        }
        self.full |= taken.full;
        taken
    }

    fn has_uncounted(&self) -> bool {
        self.full || self.unplaced != Amount::default() || self.told.iter().any(|(_, told)| told.full)
    }
}
