//! A cost that was refused here while the world had room for it: it is told at once, as a demand by which the
//! others leave this region as much.

use super::{AHEAD_MIN, DaemonContext, GossipBucket};
use crate::algorithm::Counting;
use crate::regions::gossip::shared_level::lasts;
use crate::time::{Span, Timestamp};
use crate::wire::rounded;

/// A refused cost is asked for this long: whoever comes back after a second, as told, still finds it.
const UNMET_FOR: Span = Span::from_secs(3);

/// The dearest request that was refused lately, as a demand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unmet {
    cost: u64,
    /// Permits per second that the refused cost stands for, in millionths.
    demand: u64,
    until: Timestamp,
}

impl Unmet {
    pub(super) fn at(self, now: Timestamp) -> u64 {
        if now < self.until { self.demand } else { 0 }
    }

    /// One request was admitted that cost so much: if it is the one that was refused, nobody need leave
    /// anything for it any more.
    pub(super) fn admitted(&mut self, cost: u64) {
        if cost >= self.cost {
            *self = Self::default();
        }
    }

    /// The clock went back to `now`.
    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        self.until = self.until.min(now + UNMET_FOR);
    }
}

impl GossipBucket {
    /// A request for so many permits was refused here; zero: none was.
    pub(in super::super) fn refused(&mut self, now: Timestamp, cost: u64, here: DaemonContext<'_>) {
        if cost == 0 || !here.has_others() || !self.has_room(now, cost) {
            return;
        }
        // A division looks no less far ahead.
        let span = match self.counting() {
            Counting::Window => AHEAD_MIN,
            Counting::Level | Counting::Concurrency => {
                let capacity = self.rule.limit.capacity(self.rule.algorithm);
                lasts(self.rule.limit, capacity, here.horizon)
            }
        };
        // A report rounds it, perhaps down.
        let permits = u128::from(cost.saturating_add(cost / 512));
        let demand = permits.saturating_mul(1_000_000_000_000).div_ceil(u128::from(span.0.max(1)));
        let demand = u64::try_from(demand).unwrap_or(u64::MAX);
        let known = self.unmet.at(now);
        let cost = if known > 0 { cost.max(self.unmet.cost) } else { cost };
        self.unmet = Unmet { cost, demand: demand.max(known), until: now + UNMET_FOR };
    }

    /// True if so many permits more are within the limit, as far as regions have told.
    fn has_room(&self, now: Timestamp, cost: u64) -> bool {
        let (used, whole) = match self.counting() {
            Counting::Window => {
                let window = self.window_at(now);
                let others = self.period(window).map_or(0, |period| self.told_by_others(period));
                (self.own_net(window).saturating_add(others), u64::from(self.rule.limit.permits))
            }
            Counting::Level | Counting::Concurrency => (
                self.shared_level.store.in_use(now, self.rule.limit),
                self.rule.limit.capacity(self.rule.algorithm),
            ),
        };
        used.saturating_add(cost) <= whole
    }

    /// True if the others do not know yet of a cost that was refused.
    pub(super) fn has_unmet_news(&self, now: Timestamp) -> bool {
        let unmet = self.unmet.at(now);
        unmet > 0 && self.told.is_none_or(|told| told.demand < rounded(unmet))
    }

    /// True if the budget is used up while the world has room: the next request will be refused.
    pub(super) fn is_spent(&self, now: Timestamp) -> bool {
        let window = self.window_at(now);
        let budget = self.enforced.and_then(|(view, _)| view.as_window().copied());
        let budget = budget.filter(|view| view.window == window).map(|view| u64::from(view.budget));
        budget.is_some_and(|budget| self.own_net(window) >= budget) && self.has_room(now, 1)
    }
}
