//! Works out what the store must be told of a bucket, and when to look again.

use smallvec::SmallVec;

use super::error_bound::TURNS;
use super::own_region::LOOKS_FOR_ROOM;
use super::{DaemonContext, GossipBucket, IDLE, Period, RegionReport};
use crate::algorithm::{
    Allowance, Counting, LEVEL_TOLD, LevelAllowance, WindowAllowance, remembered, weighted,
};
use crate::regions::Effect;
use crate::regions::fair_share::{ReportFigures, UNIT};
use crate::regions::gossip::counts::Count;
use crate::regions::gossip::partition::sides;
use crate::regions::gossip::refill::{drained, refill};
use crate::regions::gossip::replica_config::Policy;
use crate::regions::gossip::shared_level::{LITTLE, LevelScope};
use crate::regions::gossip::uncertainty::ROUND_TRIP;
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};

/// A bucket without windows is forgotten when it has been still for this long and has drained.
const STILL: Span = Span::from_secs(60);
/// Beyond two of the longest ways: what a region uses is told within so long.
const UNTOLD: Span = Span::from_millis(200);
/// A demand is looked at again this many times in a window while nothing comes, so that what it no longer
/// needs is freed.
const LOOKS_PER_WINDOW: u64 = 50;
/// So many times in a window what still counts of the one before is worked out anew for a log, or each time
/// that so much has passed of a longer one.
const LOOKS_PER_LOG: u64 = 25;
const LOG_PAUSE_MAX: Span = Span::from_millis(100);
/// What still counts of a log of which others admitted little is looked at again after this long.
const LOG_LOOK_MAX: Span = Span::from_secs(1);
/// A message to a store arrives there within so long, or never.
const ARRIVES: Span = Span::from_millis(100);

impl GossipBucket {
    /// Returns what all other regions are known to have admitted in a window.
    fn others_in(&self, here: DaemonContext<'_>, window: u64) -> u64 {
        let Some(period) = self.period(window) else { return 0 };
        let others = self.told_by_others(period);
        others.saturating_add(if here.shared_store { 0 } else { self.elsewhere(here, period) })
    }

    /// Returns what the store is told that all other regions admitted in `before`, the window that has ended:
    /// it takes that as spread evenly. A log counts each admission until it leaves the interval, so there it
    /// is what a whole window would hold that was like the part of it that still counts.
    fn others_before(&self, now: Timestamp, here: DaemonContext<'_>, before: u64) -> u64 {
        let (Some(length), Some(period)) = (self.slides(), self.period(before)) else {
            return self.others_in(here, before);
        };
        let window = before.saturating_add(1);
        // Not at every look: each new figure is one more word to the store.
        let pause = log_pause(length).0;
        let passed = now.since(Timestamp::window_start(window, length)).0 / pause * pause;
        let passed = passed.min(length.0.saturating_sub(1));
        let left = (length.0 - passed).max(1);
        let still = self.lingering_of_others(period, passed, length);
        let elsewhere = if here.shared_store { 0 } else { self.elsewhere(here, period) };
        // A figure by which the store counts the same until the next look is as good as a new one.
        let told = self.enforced.and_then(|(view, _)| view.as_window().copied());
        let told = told.filter(|told| told.window == window).map(|told| told.others_before);
        let next = left.saturating_sub(until_log_look(still, left, length).0);
        let counted = |told: u64, left: u64| weighted(told, left, length.0.max(1));
        let holds = |told: &u64| {
            let told = told.checked_sub(elsewhere);
            told.is_some_and(|told| counted(told, left) == still && counted(told, next) == still)
        };
        told.filter(holds).unwrap_or_else(|| {
            let whole = u128::from(still) * u128::from(length.0) / u128::from(left);
            u64::try_from(whole).unwrap_or(u64::MAX).saturating_add(elsewhere)
        })
    }

    /// Returns what all other regions told that they admitted in a window, and that still lies in an interval
    /// as long as it once so much of the next one has passed.
    fn lingering_of_others(&self, period: &Period, passed: u64, length: Span) -> u64 {
        let others = period.told.iter().filter(|(id, _)| *id != Regions::OWN);
        let still = others.map(|(_, told)| self.believed(told.lingering(passed, length)));
        still.fold(0, u64::saturating_add)
    }

    /// Returns when what still counts of a log's window before is to be worked out anew.
    fn log_look(&self, now: Timestamp, window: u64) -> Option<Timestamp> {
        let (length, period) = (self.slides()?, self.period(window.checked_sub(1)?)?);
        let passed = now.since(Timestamp::window_start(window, length)).0;
        let still = self.lingering_of_others(period, passed, length);
        let left = length.0.saturating_sub(passed);
        (still > 0).then(|| now + until_log_look(still, left, length))
    }

    /// Returns what each region told that it admitted in the window before, and that still counts.
    pub(super) fn lingering(&self, now: Timestamp, window: u64) -> SmallVec<[(RegionId, u64); 4]> {
        let period = window.checked_sub(1).and_then(|before| self.period(before));
        let (Some(length), Some(period)) = (self.slides(), period) else { return SmallVec::new() };
        let passed = now.since(Timestamp::window_start(window, length)).0;
        let still = |told: &RegionReport| self.believed(told.lingering(passed, length));
        let counts = period.told.iter().map(|(id, told)| (id, still(told)));
        counts.filter(|(_, permits)| *permits > 0).collect()
    }

    /// Returns what the own region admitted but this daemon's own store cannot know.
    pub(super) fn elsewhere(&self, here: DaemonContext<'_>, period: &Period) -> u64 {
        let unknown = |count: &&Count| count.counter.node != *here.node || count.counter.since < here.started;
        period.live.entries().iter().filter(unknown).map(Count::net).fold(0, u64::saturating_add)
    }

    /// Works out what the store must be told. Returns whether it has changed.
    pub(in super::super) fn recompute(&mut self, now: Timestamp, here: DaemonContext<'_>) -> bool {
        if self.counting() != Counting::Window {
            return self.look_at_level(now, here);
        }
        let window = self.window_at(now);
        let limit = self.rule.limit.permits;
        // The bound of a log changes with time alone.
        let mut doubted = self.slides().is_some() && self.enforced.is_some();
        let allowance = match self.cut.lasting(window) {
            Some(lasting) => lasting,
            None => {
                doubted = self.enforced.is_some();
                let plan = self.plan(window, here);
                let own =
                    ReportFigures { stamp: now, admitted: self.own_net(window), demand: self.demand_at(now) };
                let lingering = self.lingering(now, window);
                let scope = self.scope(&plan, here, &lingering);
                self.cut.advance(now, scope);
                // The permits that others admitted in a cut that has just ended are not all known yet.
                if !here.regions.is_any_mending() {
                    self.cut.renew(now, scope);
                }
                self.cut.allowance(own, scope)
            }
        };
        let with_next = self.own_net(window).saturating_add(1);
        self.near_limit =
            self.demand_at(now) > 0 && with_next.saturating_mul(4) > allowance.now.saturating_mul(3);
        let siblings = match self.period(window) {
            Some(period) if !here.shared_store => self.elsewhere(here, period),
            _ => 0,
        };
        let view = WindowAllowance {
            window,
            budget: u32::try_from(allowance.now.saturating_sub(siblings)).unwrap_or(limit),
            next_budget: u32::try_from(allowance.next).unwrap_or(limit),
            others: self.others_in(here, window),
            others_before: self.others_before(now, here, window.saturating_sub(1)),
        };
        let plain =
            WindowAllowance { window, budget: limit, next_budget: limit, ..WindowAllowance::default() };
        let same = match self.enforced {
            // Untold, a store keeps to the region's share where other regions are known.
            None => view == plain && !here.has_others(),
            Some((enforced, _)) => enforced == Allowance::Window(view),
        };
        if same && !doubted {
            return false;
        }
        let bound = self.error_bound(now, here).0;
        // An answer takes the whole window before for possible: what the store is told of it is said besides.
        let ended = self.others_in(here, window.saturating_sub(1));
        let bound = bound.saturating_add(ended.saturating_sub(view.others_before));
        let told = self.enforced.map_or(0, |(_, told)| told);
        // A bound that is said is never too small; one that is too large is said again once that is worth a
        // message.
        let same = same && bound <= told && told - bound <= u64::from(limit / 20);
        if !same {
            self.enforce(now, Allowance::Window(view), bound);
        }
        !same
    }

    /// The same for a bucket without windows: what to charge for others, and what to hold back for them.
    fn look_at_level(&mut self, now: Timestamp, here: DaemonContext<'_>) -> bool {
        let told = self.charge(now, here);
        let heard = told.iter().map(|(_, more)| *more).fold(0, u64::saturating_add);
        let own = self.own_net(0);
        let siblings = match self.period(0) {
            Some(period) if !here.shared_store => self.elsewhere(here, period),
            _ => 0,
        };
        let (rounding_offset, limit) = (self.rounding_seed % 1_000_000, self.rule.limit);
        let mut sides = sides(&self.rule, here.regions, |all| {
            self.shared_level.by_demand(now, all, limit, rounding_offset)
        });
        if !here.safety.divides_levels {
            (sides.apart, sides.permits) = (0, u64::from(limit.permits));
        }
        let capacity = limit.capacity(self.rule.algorithm);
        // Whoever comes back after a round trip would else wait for what the store is not told of.
        let refills = refill(limit, ROUND_TRIP) / UNIT >= i128::from(capacity / LITTLE);
        let share = LevelScope {
            limit,
            capacity,
            permits: sides.permits,
            parties: &sides.parties,
            apart: sides.apart,
            corrects: here.safety.corrects_levels,
            horizon: here.horizon,
            rounding_offset,
            exact: self.unmet.at(now) > 0 && !refills,
        };
        self.shared_level.advance(now, share);
        let stored = own.saturating_sub(siblings);
        let admitted = i128::from(stored) - i128::from(self.stored);
        self.stored = stored;
        self.shared_level.store.add(now, admitted, limit);
        // A late report has refilled in part: the store must hold no more as used than all regions have in
        // use.
        let debt = match here.policy {
            Policy::Sum => heard,
            _ if !self.shared_level.catches_up() => heard,
            _ => heard.min(
                self.shared_level
                    .used_by_all(now, own, share)
                    .saturating_sub(self.shared_level.store.in_use(now, share.limit)),
            ),
        };
        self.shared_level.store.charge(now, debt, &told, limit);
        // One of the daemons that share a store charges it for all.
        if !here.shared_store || here.regions.owned_by(here.node, &self.key) {
            self.debt = self.debt.saturating_add(debt);
        }
        self.shared_level.admitted(now, own, here.horizon);
        if here.settled {
            // The permits that were used since the report in force, and those that wait to be told.
            let untold = here.horizon + here.horizon + UNTOLD;
            self.given.note_each(now, self.shared_level.given(now, false, untold, share));
            // Between two looks here another region uses what has arrived, and so does one whose clock is a
            // little ahead.
            if self.shared_level.awaits() {
                self.given.note_each(now, self.shared_level.given(now, true, untold, share));
            }
        }
        let pause = if self.demand_at(now) > 0 { self.pause() } else { Span::ZERO };
        // Nobody looks before it is full where nothing is asked for, unless others tell something.
        let renewed = if pause > Span::ZERO { pause + pause } else { self.drained() };
        let view = match here.policy {
            Policy::Sum => None,
            _ => self.shared_level.view(now, own, renewed, share),
        };
        let view = view.unwrap_or(LevelAllowance { since: now, ..LevelAllowance::default() });
        let left = share
            .capacity
            .saturating_sub(self.shared_level.store.in_use(now, share.limit))
            .saturating_sub(view.held_back);
        let untold = own.saturating_sub(self.told.map_or(0, |told| told.net));
        self.near_limit = self.demand_at(now) > 0 && untold >= left;
        let (at, limit) = (|view: &LevelAllowance| view.held(&self.rule.limit, now), &self.rule.limit);
        let before = self.enforced.and_then(|(view, _)| view.as_level().copied()).unwrap_or_default();
        let soon = |view: &LevelAllowance| view.held(&self.rule.limit, now + pause);
        let little = u128::from(share.untold().max(1)) * u128::from(limit.window.0.max(1));
        let moved = at(&view).abs_diff(at(&before)) >= little
            || soon(&view).abs_diff(soon(&before)) >= little
            || view.growth.abs_diff(before.growth) > limit.permits / 50
            || (view.held_back == 0 && before.held_back > 0)
            // An allowance that is all held back leaves no room above it for what is too little to be told.
            || (view.held_back >= share.capacity && at(&before) < at(&view));
        // Other regions use what refills until this is looked at again.
        let bound = self.error_bound(now, here).0.saturating_add(self.refilled_unseen());
        let doubted =
            self.enforced.is_some_and(|(_, told)| bound > told || told - bound > share.capacity / 10);
        // A store forgets what it was told long ago.
        let fades = here.has_others() && now.since(before.since) >= LEVEL_TOLD;
        let moved = moved || doubted || fades;
        if moved {
            // With what may be asked for until it is worth a message again.
            self.enforce(now, Allowance::Level(view), bound.saturating_add(share.capacity / 50));
        }
        moved || self.debt > 0
    }

    fn enforce(&mut self, now: Timestamp, allowance: Allowance, error_bound: u64) {
        self.enforced = Some((allowance, error_bound));
        (self.moved_since, self.store_told) = (true, now);
    }

    /// The store decided without what it was told: it lost that, or never had it. Returns whether it is to be
    /// told again, and not because the decision was before what is still on its way.
    pub(in super::super) fn tell_store_again(&mut self, now: Timestamp) -> bool {
        let on_its_way = self.store_told <= now && now.since(self.store_told) < ARRIVES;
        if self.enforced.is_none() || on_its_way {
            return false;
        }
        (self.moved_since, self.store_told) = (true, now);
        true
    }

    /// Returns what each other region, and the siblings under the own one's name, told beyond what is charged
    /// already, as far as it is believed.
    fn charge(&mut self, now: Timestamp, here: DaemonContext<'_>) -> SmallVec<[(RegionId, u64); 4]> {
        let limit = self.rule.limit;
        let capacity = limit.capacity(self.rule.algorithm);
        let Some(period) = self.period(0) else { return SmallVec::new() };
        let siblings = if here.shared_store { 0 } else { self.elsewhere(here, period) };
        let others = period.told.iter().filter(|(id, _)| *id != Regions::OWN);
        let others = others.map(|(id, told)| (id, told.counts.net()));
        let mut told: SmallVec<[(RegionId, u64); 4]> =
            std::iter::once((Regions::OWN, siblings)).chain(others).collect();
        // A late report has refilled in part, and the part of it that is not believed never is.
        let is_late = self.shared_level.catches_up();
        for (id, permits) in &mut told {
            let (left, total) = (self.left_of_charges(now, *id), *permits);
            let charged = self.charged_for(*id);
            charged.note_back(now, total, left, limit);
            let more = total.saturating_sub(charged.counted);
            let believed = charged.plausible.believe(now, more, limit, capacity);
            *permits = charged.pay(believed);
            // Otherwise what is not believed yet may be once more has refilled.
            let counted = charged.counted.saturating_add(believed);
            charged.counted = if is_late { counted.max(total) } else { counted };
        }
        told
    }

    /// Returns what the own store still holds as used of what it was charged for a region.
    fn left_of_charges(&self, now: Timestamp, region: RegionId) -> u64 {
        let (store, limit) = (&self.shared_level.store, self.rule.limit);
        match region {
            Regions::OWN => store.in_use(now, limit),
            _ => store.of_other(now, region, limit),
        }
    }

    /// Of a bucket without windows: what the own store holds as used for the own region, and for others.
    pub(in super::super) fn level_by_region(&self, now: Timestamp) -> (u64, Vec<(RegionId, u64)>) {
        let (store, limit) = (&self.shared_level.store, self.rule.limit);
        let others = store.of_others(now, limit);
        let own = others.iter().fold(store.in_use_up(now, limit), |own, (_, used)| own.saturating_sub(*used));
        (own, others)
    }

    /// True while the store is to be told something that it was not told yet.
    pub(in super::super) const fn has_news_for_store(&self) -> bool {
        self.moved_since || self.lost.has_news()
    }

    /// The next thing that the store must be told; asked until there is no more. A store that is left the
    /// allowances of the last daemon is told only what to charge.
    pub(in super::super) fn effect(&mut self, leaves_allowances: bool) -> Option<Effect> {
        let permits = std::mem::take(&mut self.debt);
        if permits > 0 {
            return Some(Effect::Debit { key: self.key.clone(), permits, own: self.own.limit() });
        }
        if let Some(known) = self.lost.take() {
            return Some(Effect::Restore { key: self.key.clone(), known, own: self.own.limit() });
        }
        self.queued = false;
        if leaves_allowances || !std::mem::take(&mut self.moved_since) {
            return None;
        }
        let (view, error_bound) = self.enforced?;
        Some(Effect::View { key: self.key.clone(), view, error_bound })
    }

    /// Returns how often a bucket without windows is looked at while it is asked for.
    fn pause(&self) -> Span {
        Span((self.rule.limit.window.0 / LOOKS_PER_WINDOW).clamp(20_000, 500_000))
    }

    /// Permits that refill until a bucket without windows is looked at again.
    fn refilled_unseen(&self) -> u64 {
        u64::try_from(refill(self.rule.limit, self.pause()) / UNIT).unwrap_or(u64::MAX)
    }

    /// Returns when it should be looked at again if nothing happens.
    pub(in super::super) fn next_look(&self, now: Timestamp) -> Timestamp {
        let expiry = self.expiry();
        let room = self.has_uncounted(now).then_some(now + LOOKS_FOR_ROOM);
        if self.counting() != Counting::Window {
            // The part that is held back grows by itself, but shares move with time too.
            let active = self.told.is_some_and(|told| told.demand > 0) || self.demand_at(now) > 0;
            let again = active.then_some(now + self.pause());
            // Once more when all is there again: nobody looks between the end of its demand and its next
            // request.
            let full = self.changed + self.drained();
            let full = (now < full).then_some(full);
            return [Some(expiry), again, full, room, self.shared_level.next_instant()]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(expiry);
        }
        let window = self.window_at(now);
        let used = self.periods.last().is_some_and(|period| period.window + 2 >= window);
        let turn = if used { self.windows().end(window) } else { expiry };
        // A demand that fades must be told, though nothing happens.
        let pause = Span((self.rule.limit.window.0 / LOOKS_PER_WINDOW).clamp(10_000, 1_000_000));
        let fades = self.told.is_some_and(|told| told.demand > 0).then_some(now + pause);
        let soon = self.slides().filter(|_| used).map(|_| Timestamp(turn.0.saturating_sub(TURNS.0)));
        let soon = soon.filter(|soon| now < *soon);
        let asked = self.told.is_some_and(|told| told.demand > 0) || self.demand_at(now) > 0;
        let log = self.log_look(now, window).filter(|_| asked);
        let ended = self.demand_ends_at().filter(|at| now < *at);
        let ended = ended.filter(|_| self.told.is_some_and(|told| told.demand > IDLE));
        let excess = self.judges_overshoot_at();
        [Some(expiry), Some(turn), soon, fades, log, ended, excess, room, self.cut.next_instant(now)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(expiry)
    }

    /// From when on it may be forgotten: nothing that it knows can matter any more.
    pub(in super::super) fn expiry(&self) -> Timestamp {
        let limit = &self.rule.limit;
        if self.counting() == Counting::Window {
            let newest =
                self.window_at(self.changed).max(self.periods.last().map_or(0, |period| period.window));
            let over = self.windows().start(newest.saturating_add(3)) + Span::from_secs(1);
            // Its owner is remembered for its next burst.
            return over.max(self.changed + remembered(limit.window));
        }
        self.changed + self.drained().max(STILL)
    }

    /// After so long without any request, and with all news of others, a bucket without windows is full,
    /// twice over.
    pub(super) fn drained(&self) -> Span {
        drained(self.rule.limit)
    }
}

/// Returns how long a figure is good of which `still` permits count while so much is left of the window. A
/// store takes them as spread evenly, and would soon count a permit less than there is.
fn until_log_look(still: u64, left: u64, length: Span) -> Span {
    let permit = left / still.saturating_mul(2).max(1);
    Span(permit.clamp(log_pause(length).0, LOG_LOOK_MAX.0))
}

/// Returns how often what still counts of a log's window before is worked out anew at most.
fn log_pause(length: Span) -> Span {
    Span((length.0 / LOOKS_PER_LOG).clamp(1, LOG_PAUSE_MAX.0))
}
