//! Works out what the store must be told of a bucket, and when to look again.

use smallvec::SmallVec;

use super::{Bucket, Here, Period};
use crate::core::algorithm::View;
use crate::core::time::{Span, Timestamp};
use crate::core::worldwide::Effect;
use crate::core::worldwide::budget::Account;
use crate::core::worldwide::counts::Count;
use crate::core::worldwide::partition::standing;
use crate::core::worldwide::pool::Share;
use crate::core::worldwide::regions::{RegionId, Regions};
use crate::core::worldwide::replica::Policy;

/// A bucket without windows is forgotten when it has been still for this long and has drained.
const STILL: Span = Span::from_secs(60);
/// One with windows is remembered for 16 of them, at least [`STILL`] and at most this long.
const REMEMBERED_MAX: Span = Span::from_secs(300);
/// A demand is looked at again this many times in a window while nothing comes, so that what it no longer needs is freed.
const LOOKS_PER_WINDOW: u64 = 50;

impl Bucket {
    /// What all other regions are known to have admitted in a window.
    fn others_in(&self, here: Here<'_>, window: u64) -> u64 {
        let Some(period) = self.period(window) else { return 0 };
        let others = self.told_by_others(period);
        others.saturating_add(if here.shared_store { 0 } else { self.elsewhere(here, period) })
    }

    /// What the own region admitted but this daemon's own store cannot know.
    fn elsewhere(&self, here: Here<'_>, period: &Period) -> u64 {
        let unknown = |count: &&Count| count.counter.node != *here.node || count.counter.since < here.started;
        period.live.entries().iter().filter(unknown).map(Count::net).fold(0, u64::saturating_add)
    }

    /// Works out what the store must be told. Whether it has changed.
    pub(in super::super) fn look(&mut self, now: Timestamp, here: Here<'_>) -> bool {
        if !self.windowed() {
            return self.look_at_level(now, here);
        }
        let window = self.window_at(now);
        let limit = self.rule.limit.permits;
        let allowance = match self.cut.lasting(window) {
            Some(lasting) => lasting,
            None => {
                let standing = self.standing(window, here);
                let own = Account { stamp: now, admitted: self.own_net(window), demand: self.demand_at(now) };
                let ground = self.ground(&standing, here);
                self.cut.advance(now, ground);
                self.cut.allowance(own, ground)
            }
        };
        let with_next = self.own_net(window).saturating_add(1);
        self.strained =
            self.demand_at(now) > 0 && with_next.saturating_mul(4) > allowance.now.saturating_mul(3);
        let siblings = match self.period(window) {
            Some(period) if !here.shared_store => self.elsewhere(here, period),
            _ => 0,
        };
        let view = View {
            window,
            budget: u32::try_from(allowance.now.saturating_sub(siblings)).unwrap_or(limit),
            next_budget: u32::try_from(allowance.next).unwrap_or(limit),
            others: self.others_in(here, window),
            others_before: self.others_in(here, window.saturating_sub(1)),
            kept: 0,
        };
        let plain = View { window, budget: limit, next_budget: limit, ..View::default() };
        let same = match self.enforced {
            None => view == plain,
            Some((enforced, _)) => enforced == view,
        };
        if !same {
            self.enforced = Some((view, self.error_bound(now, here).0));
            self.moved_since = true;
        }
        !same
    }

    /// The same for a bucket without windows: what to charge for others, and what to hold back for them.
    fn look_at_level(&mut self, now: Timestamp, here: Here<'_>) -> bool {
        let debt = self.charge(now, here);
        // Of the daemons that share a store one charges it for all.
        if !here.shared_store || here.regions.owned_by(here.node, &self.key) {
            self.debt = self.debt.saturating_add(debt);
        }
        let own = self.own_net(0);
        let siblings = match self.period(0) {
            Some(period) if !here.shared_store => self.elsewhere(here, period),
            _ => 0,
        };
        let stored = own.saturating_sub(siblings);
        let more = i128::from(stored) - i128::from(self.stored) + i128::from(debt);
        self.stored = stored;
        // What is kept for regions that are cut off is not known to have been admitted: their counts are in the level.
        let standing = standing(&self.rule, here.regions, |_| 0, |_| None);
        let share = Share {
            limit: self.rule.limit,
            capacity: self.rule.limit.capacity(self.rule.algorithm),
            permits: standing.limit,
            parties: &standing.parties,
            horizon: here.horizon,
            tip: self.lot % 1_000_000,
        };
        self.pool.stored(now, more, share);
        self.pool.admitted(now, own, here.horizon);
        self.pool.advance(now, share);
        let view = match here.policy {
            Policy::Sum => None,
            _ => self.pool.view(now, own, share),
        };
        let view = view.unwrap_or(View { window: now.0, ..View::default() });
        let left =
            share.capacity.saturating_sub(self.pool.in_use(now, share.limit)).saturating_sub(view.others);
        let untold = own.saturating_sub(self.told.map_or(0, |told| told.net));
        self.strained = self.demand_at(now) > 0 && untold >= left;
        let (at, limit) = (|view: &View| view.held(&self.rule.limit, now), &self.rule.limit);
        let before = self.enforced.map(|(view, _)| view).unwrap_or_default();
        let little = u128::from(share.little().max(1)) * u128::from(limit.window.0.max(1));
        let moved = at(&view).abs_diff(at(&before)) >= little
            || view.next_budget.abs_diff(before.next_budget) > limit.permits / 50
            || (view.others == 0 && before.others > 0);
        if moved {
            self.enforced = Some((view, self.error_bound(now, here).0));
            self.moved_since = true;
        }
        moved || self.debt > 0
    }

    /// What other regions told beyond what is charged already, as far as it is believed.
    fn charge(&mut self, now: Timestamp, here: Here<'_>) -> u64 {
        let limit = self.rule.limit;
        let capacity = limit.capacity(self.rule.algorithm);
        let Some(period) = self.period(0) else { return 0 };
        let siblings = if here.shared_store { 0 } else { self.elsewhere(here, period) };
        let others = period.told.iter().filter(|(id, _)| *id != Regions::OWN);
        let others = others.map(|(id, told)| (id, told.counts.net()));
        let totals: SmallVec<[(RegionId, u64); 4]> =
            std::iter::once((Regions::OWN, siblings)).chain(others).collect();
        let mut debt = 0_u64;
        for (id, total) in totals {
            let charged = self.charged_for(id);
            let more = total.saturating_sub(charged.counted);
            debt = debt.saturating_add(charged.credit.believe(now, more, limit, capacity));
            charged.counted = total.max(charged.counted);
        }
        debt
    }

    /// What the store must be told; asked until there is no more.
    pub(in super::super) fn effect(&mut self) -> Option<Effect> {
        let permits = std::mem::take(&mut self.debt);
        if permits > 0 {
            return Some(Effect::Debit { key: self.key.clone(), permits });
        }
        self.queued = false;
        if !std::mem::take(&mut self.moved_since) {
            return None;
        }
        let (view, error_bound) = self.enforced?;
        Some(Effect::View { key: self.key.clone(), view, error_bound })
    }

    /// When it should be looked at again if nothing happens.
    pub(in super::super) fn next_look(&self, now: Timestamp) -> Timestamp {
        let expiry = self.expiry();
        if !self.windowed() {
            // What is held back grows by itself, but shares move with time too.
            let active = self.told.is_some_and(|told| told.demand > 0) || self.demand_at(now) > 0;
            let pause = Span((self.rule.limit.window.0 / LOOKS_PER_WINDOW).clamp(20_000, 500_000));
            let again = active.then_some(now + pause);
            // Once more when all is there again: nobody looks between the end of its demand and its next request.
            let full = self.changed + self.drained();
            let full = (now < full).then_some(full);
            return [Some(expiry), again, full, self.pool.next_instant()]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(expiry);
        }
        let window = self.window_at(now);
        let used = self.periods.last().is_some_and(|period| period.window + 2 >= window);
        let turn = if used { Timestamp::window_start(window + 1, self.rule.limit.window) } else { expiry };
        // A demand that fades must be told, though nothing happens.
        let pause = Span((self.rule.limit.window.0 / LOOKS_PER_WINDOW).clamp(10_000, 1_000_000));
        let fades = self.told.is_some_and(|told| told.demand > 0).then_some(now + pause);
        [Some(expiry), Some(turn), fades, self.cut.next_instant(now)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(expiry)
    }

    /// From when on it may be forgotten: nothing that it knows can matter any more.
    pub(in super::super) fn expiry(&self) -> Timestamp {
        let limit = &self.rule.limit;
        if self.windowed() {
            let newest =
                self.window_at(self.changed).max(self.periods.last().map_or(0, |period| period.window));
            let over = Timestamp::window_start(newest.saturating_add(3), limit.window) + Span::from_secs(1);
            // Whose it was is remembered for its next burst.
            let remembered = Span(limit.window.0.saturating_mul(16)).max(STILL).min(REMEMBERED_MAX);
            return over.max(self.changed + remembered);
        }
        self.changed + self.drained().max(STILL)
    }

    /// After so long without any request, and with all news of others, a bucket without windows is full, twice over.
    fn drained(&self) -> Span {
        let limit = &self.rule.limit;
        let refill = u128::from(limit.burst.max(limit.permits)) * u128::from(limit.window.0)
            / u128::from(limit.permits.max(1));
        Span(u64::try_from(refill).unwrap_or(u64::MAX).saturating_mul(2))
    }
}
