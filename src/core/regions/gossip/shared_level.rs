//! The level of one bucket without windows, as every region knows it, and what the own region may take of it.
//!
//! Each region follows the same level, as it was at the *cut*: so long ago that all have heard what was told
//! then. It refills at the rule's rate, and what the regions told is taken out of it as of when they told it.
//! Both the level and the refill are divided by demand, so that the parts add up to one bucket. Since the cut
//! each region's part refills at its own rate, no higher than its part of the bucket, and what it admitted
//! itself is taken out. A level below zero is a debt: it is carried, and so the long-run rate is never
//! exceeded.
//!
//! While regions are cut off the level is in two parts, of which each side has one: it refills at that side's
//! part of the rate, no higher than that side's part of the bucket. Otherwise what the others use unheard
//! would be used on this side too. Their reports, when they are heard again, come out of their part; what is
//! left of it then is everybody's again.

mod delayed_levels;
mod late_reports;
mod own_store;

use std::collections::VecDeque;

use smallvec::SmallVec;

use self::delayed_levels::DelayedLevels;
pub(super) use self::delayed_levels::LevelReport;
use self::late_reports::LateReports;
use self::own_store::StoredLevel;
use super::partition::bit;
use super::refill::refill;
use crate::algorithm::{LevelAllowance, Limit};
use crate::regions::fair_share::{DivisionInput, RegionInput, ReportFigures, UNIT, budgets};
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};

/// Most reports of one region that wait for their instant. Full: the oldest is used early.
const WAITING_MAX: usize = 64;
/// Most instants at which the own count is remembered. Full: the oldest is forgotten, and what was admitted
/// then counts as admitted before the cut.
const OWN_MAX: usize = 64;
/// A bucket is at home in the region that alone asked for it in its last so many windows: what nobody asks
/// for is mostly kept there.
const HOME_WINDOWS: u64 = 16;
const HOME_PARTS: u64 = 9;
/// So many permits of a full bucket every other region keeps that has as many by its weight: with less than
/// one it would refuse whoever asks there now and then.
const AWAY_MIN: u64 = 2;
/// After so long without a report a region may have used what seemed to refill into a full bucket.
const UNHEARD: Span = Span::from_millis(450);
/// For no longer than this before a cut was noticed is guessed what the silent have used since they told
/// last.
const GUESSED_FOR_MAX: Span = Span::from_secs(1);
/// A request is looked at within so long: two looks of the task that drives the protocol.
const UNSEEN: Span = Span::from_millis(20);
/// One in so many permits of a bucket is too little for a message to the store.
pub(super) const LITTLE: u64 = 200;
/// For so long beyond the horizon a part of the level must last: until the next report is in force.
const AHEAD: Span = Span::from_millis(100);

/// And for no longer than so many times the bucket refills.
const REFILLS: u64 = 4;

/// The common knowledge of all regions about one bucket's level.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedLevel {
    delayed_reports: Vec<DelayedLevels>,
    /// Instant since which it is followed here.
    since: Timestamp,
    /// The part of this side that the reports in force leave, in millionths, as of `at`, the newest stamp of
    /// them; below zero is debt. In a cut the rest is in `apart`.
    level: i128,
    at: Timestamp,
    apart: Option<OtherSide>,
    late: LateReports,
    pub(super) store: StoredLevel,
    /// Permits that the own region had admitted in all, at instants since the cut before the present.
    own: VecDeque<(Timestamp, u64)>,
}

/// The part of the level that is kept for regions that are cut off.
#[derive(Debug, Clone, Copy, Default)]
struct OtherSide {
    /// The regions that this is of: a bit for each.
    regions: u64,
    /// The level that they may have left, in millionths, as of the same instant as the level of this side. It
    /// may lie above what their part of the bucket holds until they have told what they used.
    level: i128,
    /// Their part of the refill, in permits a window, and of the bucket, in millionths.
    rate: u64,
    most: i128,
}

impl OtherSide {
    /// Returns what is left of the limit for this side.
    fn rest(&self, share: LevelScope<'_>) -> Limit {
        let permits = u64::from(share.limit.permits).saturating_sub(self.rate);
        Limit { permits: u32::try_from(permits).unwrap_or(u32::MAX), ..share.limit }
    }

    /// Returns what is left of the bucket for this side, in millionths.
    fn room(&self, share: LevelScope<'_>) -> i128 {
        i128::from(share.capacity) * UNIT - self.most
    }
}

/// The own part of what all know of the bucket.
#[derive(Debug, Clone, Copy)]
struct OwnPart {
    /// Part of the level at the cut, in millionths.
    level: i128,
    /// Part of the refill, in permits a window.
    rate: u64,
    /// Part of the whole bucket, in millionths.
    most: i128,
}

/// The amount that is divided, and among whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct LevelScope<'a> {
    /// The rule's own limit, of which `permits` may be a part.
    pub(super) limit: Limit,
    /// The most permits that the bucket holds.
    pub(super) capacity: u64,
    /// Permits of the limit that are divided here: less if some are kept for regions that are cut off.
    pub(super) permits: u64,
    pub(super) parties: &'a [(RegionId, u64)],
    /// The regions that are cut off: a bit for each.
    pub(super) apart: u64,
    /// True if what others use shows that a level was higher than was assumed.
    pub(super) corrects: bool,
    pub(super) horizon: Span,
    pub(super) rounding_offset: u64,
    /// True if the store is told each change, because a cost waits for the last permits.
    pub(super) exact: bool,
}

impl LevelScope<'_> {
    /// Returns what this side's part of the bucket holds, in millionths.
    fn most(&self) -> i128 {
        self.of_this_side(i128::from(self.capacity) * UNIT)
    }

    /// This side's part of an amount.
    fn of_this_side(&self, amount: i128) -> i128 {
        amount * i128::from(self.permits) / i128::from(self.limit.permits.max(1))
    }

    /// Returns how the refill is divided: by demand alone.
    fn of_refill(&self, now: Timestamp) -> DivisionInput {
        division_by_demand(self.permits, (now, now + self.limit.window), self.rounding_offset)
    }

    /// Returns how so many permits of the level, or of the bucket, are divided. Permits that are too few to
    /// tell the store of come out of a slice.
    fn of_level(&self, permits: u64, now: Timestamp) -> DivisionInput {
        let lasts = lasts(self.limit, self.capacity, self.horizon);
        // A fraction of a permit in use takes a permit from who is told of little.
        let slice_min = if self.little() > 0 { self.little() + 2 } else { 1 };
        let ahead = Some(lasts);
        let division = division_by_demand(permits, (now, now + lasts), self.rounding_offset);
        DivisionInput { ahead, slice_min, whole: true, ..division }
    }

    /// Permits that are worth no message to the store: half a hundredth of the bucket.
    pub(super) const fn little(&self) -> u64 {
        self.capacity / LITTLE
    }

    /// Permits that the store is not told of.
    pub(super) const fn untold(&self) -> u64 {
        if self.exact { 0 } else { self.little() }
    }
}

impl SharedLevel {
    /// A full bucket.
    pub(super) fn full(capacity: u64, now: Timestamp) -> Self {
        let store = StoredLevel::unused(now);
        Self { since: now, level: i128::from(capacity) * UNIT, at: now, store, ..Self::default() }
    }

    /// It holds another number of permits at most: what is used of it stays used.
    pub(super) fn resize(&mut self, before: u64, after: u64) {
        let more = (i128::from(after) - i128::from(before)) * UNIT;
        let held = self.apart.map_or(0, |apart| apart.most).clamp(0, i128::from(before) * UNIT);
        let aside = more * held / (i128::from(before) * UNIT).max(1);
        self.level += more - aside;
        if let Some(apart) = &mut self.apart {
            apart.level += aside;
            apart.most += aside;
        }
    }

    /// This daemon stood still: what the others used meanwhile it hears all at once, when most of it has
    /// refilled.
    pub(super) fn stood_still(&mut self) {
        self.delayed_reports.iter_mut().skip(1).for_each(|delayed| delayed.missed = true);
    }

    /// True if something that is heard now may be of a time in which it could not be heard.
    pub(super) fn catches_up(&self) -> bool {
        self.apart.is_some()
            || self.late.may_come()
            || self.delayed_reports.iter().any(|delayed| delayed.missed)
    }

    /// Takes in a report. Returns whether it came too late to be used by all at once.
    pub(super) fn hear(
        &mut self,
        now: Timestamp,
        region: RegionId,
        statement: LevelReport,
        horizon: Span,
    ) -> bool {
        while self.delayed_reports.len() <= region {
            self.delayed_reports.push(DelayedLevels::new(self.since));
        }
        let Some(delayed) = self.delayed_reports.get_mut(region) else { return false };
        if delayed.newest().is_some_and(|known| known.stamp >= statement.account.stamp) {
            return false;
        }
        let at = statement.account.stamp + horizon;
        delayed.waiting.push_back((at, statement));
        if delayed.waiting.len() > WAITING_MAX
            && let Some((early, _)) = delayed.waiting.front_mut()
        {
            *early = Timestamp::default();
        }
        at < now
    }

    /// The own region had admitted so much in all by now.
    pub(super) fn admitted(&mut self, now: Timestamp, own: u64, horizon: Span) {
        // After a clock went back.
        while self.own.back().is_some_and(|(at, _)| *at > now) {
            self.own.pop_back();
        }
        while self.own.get(1).is_some_and(|(at, _)| *at + horizon <= now) || self.own.len() >= OWN_MAX {
            self.own.pop_front();
        }
        if self.own.back().is_none_or(|(at, known)| *known != own && *at < now) {
            self.own.push_back((now, own));
        }
    }

    /// The own region admitted `more` before this process began, the last of it by an instant: it is known
    /// from now on. Returns how much of it may be missing still: no more than the bucket holds, less what
    /// refilled since then. A part of a permit counts as one: it is not there until all of it has refilled.
    pub(super) fn former(
        &mut self,
        now: Timestamp,
        (more, until): (u64, Timestamp),
        limit: Limit,
        capacity: u64,
    ) -> u64 {
        if self.delayed_reports.is_empty() {
            self.delayed_reports.push(DelayedLevels::new(self.since));
        }
        if let Some(own) = self.delayed_reports.get_mut(Regions::OWN) {
            let waiting = own.waiting.iter_mut().map(|(_, statement)| &mut statement.account);
            let counts = waiting.chain(&mut own.in_force).map(|account| &mut account.admitted);
            counts.chain([&mut own.counted]).for_each(|count| *count = count.saturating_add(more));
        }
        self.own.iter_mut().for_each(|(_, own)| *own = own.saturating_add(more));
        let room = i128::from(capacity) * UNIT;
        let level = (self.level + refill(limit, now.since(self.at))).min(room);
        let left = level - refill(limit, now.since(until)).min(room);
        let drawn = permits_up(left).min(more);
        self.level -= i128::from(drawn) * UNIT;
        drawn
    }

    /// Takes out of the level what has come into force by `now`.
    pub(super) fn advance(&mut self, now: Timestamp, share: LevelScope<'_>) {
        loop {
            // Two reports of one instant are taken in the order of the parties: the same everywhere, as
            // numbers are not.
            let place = |id| share.parties.iter().position(|&(party, _)| party == id);
            let due = self.delayed_reports.iter().enumerate().filter_map(|(id, delayed)| {
                delayed.waiting.front().filter(|(at, _)| *at <= now).map(|(at, _)| (*at, place(id), id))
            });
            let Some((at, _, id)) = due.min() else { break };
            self.refill(cut(at, share), share);
            let Some(delayed) = self.delayed_reports.get_mut(id) else { break };
            let Some((_, statement)) = delayed.waiting.pop_front() else { break };
            let level = match &mut self.apart {
                Some(apart) if apart.regions & bit(id) != 0 => &mut apart.level,
                _ => &mut self.level,
            };
            let taken = delayed.takes((id, statement), *level, &mut self.late, share);
            *level -= taken.level;
            delayed.plausible = taken.plausible;
            delayed.missed &= !delayed.is_unheard(statement);
            let account = statement.account;
            if account.demand > 0 || account.admitted != delayed.counted {
                delayed.stirred = Some(account.stamp);
            }
            delayed.counted = if statement.past { account.admitted } else { taken.counted };
            delayed.in_force = Some(account);
        }
        let sided = self.apart.map_or(0, |apart| apart.regions);
        if sided != 0 || share.apart != 0 {
            let at = cut(now, share).max(self.at);
            self.refill(at, share);
            self.side(at, share);
        }
    }

    /// Time passes until `now`, for both parts of the level.
    fn refill(&mut self, now: Timestamp, share: LevelScope<'_>) {
        let span = now.since(self.at);
        if let Some(apart) = &mut self.apart {
            let full = self.level + refill(apart.rest(share), span) - apart.room(share);
            self.late.overflowed(full);
            let rate = Limit { permits: u32::try_from(apart.rate).unwrap_or(u32::MAX), ..share.limit };
            apart.level += refill(rate, span);
        }
        self.level = self.level_at(now, share);
        self.at = self.at.max(now);
        let aside = self.apart.map_or(0, |apart| apart.level.clamp(0, apart.most.max(0)));
        self.late.pass(self.at, i128::from(share.capacity) * UNIT, self.level + aside);
    }

    /// Regions are cut off, or heard again: the level is divided between the sides, or made one again.
    fn side(&mut self, now: Timestamp, share: LevelScope<'_>) {
        let kept = u64::from(share.limit.permits).saturating_sub(share.permits);
        let most = i128::from(share.capacity) * UNIT - share.most();
        if let Some(apart) = self.apart.as_mut().filter(|apart| apart.regions == share.apart) {
            (apart.rate, apart.most) = (kept, most);
            return;
        }
        if let Some(apart) = self.apart.take() {
            let level = self.late.settle(apart.level);
            self.level += level.min(apart.most);
            self.late.overflowed(level - apart.most);
            self.late.healed(now);
        }
        if share.apart == 0 {
            return;
        }
        // Probable use of the silent regions since they told last.
        let silent = self.delayed_reports.iter().enumerate().filter(|(id, _)| share.apart & bit(*id) != 0);
        let told = silent.filter_map(|(_, delayed)| delayed.in_force);
        let guessed = told.map(|told| i128::from(told.demand) * i128::from(now.since(told.stamp).0) / UNIT);
        let unheard = refill(share.limit, GUESSED_FOR_MAX).min(self.level.max(0));
        let level = self.level - guessed.sum::<i128>().min(unheard);
        let own = share.of_this_side(level);
        self.apart = Some(OtherSide { regions: share.apart, level: self.level - own, rate: kept, most });
        self.level = own;
        self.late.cut(share.apart);
    }

    fn level_at(&self, now: Timestamp, share: LevelScope<'_>) -> i128 {
        let (limit, most) = match &self.apart {
            Some(apart) => (apart.rest(share), apart.room(share)),
            None => (share.limit, i128::from(share.capacity) * UNIT),
        };
        (self.level + refill(limit, now.since(self.at))).min(most)
    }

    /// Returns what all regions are known to have in use, in permits.
    pub(super) fn used_by_all(&self, now: Timestamp, own: u64, share: LevelScope<'_>) -> u64 {
        let mut level = self.level_at(now, share);
        let apart = self.apart.unwrap_or_default();
        let rate = Limit { permits: u32::try_from(apart.rate).unwrap_or(u32::MAX), ..share.limit };
        let mut aside = apart.level + refill(rate, now.since(self.at));
        let mut late = self.late;
        for (id, delayed) in self.delayed_reports.iter().enumerate().skip(1) {
            let Some((_, statement)) = delayed.waiting.back() else { continue };
            let of = if apart.regions & bit(id) == 0 { &mut level } else { &mut aside };
            *of -= delayed.takes((id, *statement), *of, &mut late, share).level;
        }
        let counted = self.delayed_reports.first().map_or(0, |delayed| delayed.counted);
        level -= (i128::from(own) - i128::from(counted)) * UNIT;
        // A debt of those that are apart is not this side's for as long.
        level += aside.clamp(0, apart.most.max(0));
        u64::try_from((i128::from(share.capacity) * UNIT - level) / UNIT).unwrap_or(0)
    }

    /// Returns what each of these regions would have of the limit, by what it asked for last.
    pub(super) fn by_demand(
        &self,
        now: Timestamp,
        parties: &[(RegionId, u64)],
        limit: Limit,
        rounding_offset: u64,
    ) -> Vec<u64> {
        let inputs = self.inputs(now, false, None, parties);
        let (end, limit) = (now + limit.window, u64::from(limit.permits));
        budgets(division_by_demand(limit, (now, end), rounding_offset), &inputs).to_vec()
    }

    fn inputs(
        &self,
        now: Timestamp,
        arrived: bool,
        home: Option<(RegionId, u64)>,
        parties: &[(RegionId, u64)],
    ) -> SmallVec<[RegionInput; 4]> {
        let weights: u64 = parties.iter().map(|&(_, weight)| weight).fold(0, u64::saturating_add);
        let input = |&(id, weight): &(RegionId, u64)| {
            let delayed = self.delayed_reports.get(id);
            let known = delayed.and_then(|one| if arrived { one.newest() } else { one.in_force.as_ref() });
            let told = known.map(|known| ReportFigures { stamp: now, admitted: 0, demand: known.demand });
            let at_home = home.filter(|(home, _)| *home == id);
            let at_home = at_home.map_or(0, |(_, parts)| weights.saturating_mul(parts));
            RegionInput {
                weight,
                reserve: weight.saturating_add(at_home),
                told,
                before: 0,
                exact: None,
                lingering: 0,
                silent: false,
            }
        };
        parties.iter().map(input).collect()
    }

    /// The region that alone asked for the bucket lately, as all know it, and how many parts of it are kept
    /// there beside one that is divided by weight.
    fn home(&self, share: LevelScope<'_>) -> Option<(RegionId, u64)> {
        let stirred = |id: RegionId| self.delayed_reports.get(id).and_then(|delayed| delayed.stirred);
        let last = share.parties.iter().map(|&(id, _)| id).max_by_key(|&id| stirred(id))?;
        let since = stirred(last)?;
        let long = Span(share.limit.window.0.saturating_mul(HOME_WINDOWS));
        let alone =
            |&(id, _): &(RegionId, u64)| id == last || stirred(id).is_none_or(|other| other + long <= since);
        let weights: u64 = share.parties.iter().map(|&(_, weight)| weight).fold(0, u64::saturating_add);
        let away = share.parties.iter().filter(|&&(id, _)| id != last);
        let away = away.map(|&(_, weight)| part_of(share.capacity, weight, weights) / AWAY_MIN);
        let parts = away.filter(|parts| *parts > 0).map(|parts| parts - 1).fold(HOME_PARTS, u64::min);
        share.parties.iter().all(alone).then_some((last, parts))
    }

    /// Returns when the next report waits for its instant.
    pub(super) fn next_instant(&self) -> Option<Timestamp> {
        self.delayed_reports.iter().filter_map(|delayed| delayed.waiting.front().map(|(at, _)| *at)).min()
    }

    /// Returns what the own store must keep back for the others: nothing to be kept is `None`. `own` is what
    /// the own region admitted in all until now, and `renewed` how long it may take until this is asked
    /// again.
    pub(super) fn view(
        &self,
        now: Timestamp,
        own: u64,
        renewed: Span,
        share: LevelScope<'_>,
    ) -> Option<LevelAllowance> {
        if share.permits == 0 {
            // Nothing may be taken here, whatever the store has counted.
            let most = u32::try_from(share.capacity).unwrap_or(u32::MAX);
            return Some(LevelAllowance {
                since: now,
                held_back: u64::from(most),
                growth: 0,
                held_back_max: most,
                capacity: most,
            });
        }
        let counted = self.delayed_reports.first().map_or(0, |delayed| delayed.counted);
        let (in_force, arrived) = (self.part(now, false, share), self.part(now, true, share));
        let rate = in_force.rate;
        let part = OwnPart { level: in_force.level.min(arrived.level), ..in_force };
        let tokens = self.since_cut(now, own, counted, part, share);
        let free = i128::from(share.capacity) * UNIT - self.store.used(now, share.limit);
        let capacity = u32::try_from(share.capacity).unwrap_or(u32::MAX);
        // So that the store finds as many whole permits as there are: a part of one that refilled for the own
        // region makes none.
        let held = free.div_euclid(UNIT) - tokens.div_euclid(UNIT);
        let held = u64::try_from(held.max(0)).unwrap_or(u64::MAX);
        let growth = u64::from(share.limit.permits).saturating_sub(rate);
        if held == 0 && growth == 0 {
            return None;
        }
        // So what the store is not told of, being so little, lets no region take more than its part.
        let held = held.saturating_add(share.untold()).min(u64::from(capacity));
        let weights: u64 = share.parties.iter().map(|&(_, weight)| weight).sum::<u64>().max(1);
        let weight =
            share.parties.iter().find(|(id, _)| *id == Regions::OWN).map_or(0, |&(_, weight)| weight);
        // Without news it stays with the fixed share. Until it is looked at again it must not refill any
        // faster than its part: the store itself refills at the whole rate.
        let side = u64::try_from(share.most() / UNIT).unwrap_or(0);
        let kept = u128::from(side) * u128::from(weight) / u128::from(weights);
        let until =
            refill(Limit { permits: u32::try_from(growth).unwrap_or(u32::MAX), ..share.limit }, renewed);
        // Permits that may be taken at once stay there for those who ask only now and then.
        let own = Limit { permits: u32::try_from(rate).unwrap_or(u32::MAX), ..share.limit };
        let ready = (tokens + refill(own, renewed)).min(part.most).max(tokens);
        let ready = u64::from(capacity).saturating_sub(u64::try_from(ready / UNIT).unwrap_or(0));
        let grown = held.saturating_add(u64::try_from(until / UNIT).unwrap_or(u64::MAX)).min(ready).max(held);
        let most = share.capacity.saturating_sub(u64::try_from(kept).unwrap_or(share.capacity)).max(grown);
        let rests = rests(tokens, part, growth, share);
        Some(LevelAllowance {
            since: now,
            held_back: held,
            growth: if rests { 0 } else { u32::try_from(growth).unwrap_or(u32::MAX) },
            held_back_max: u32::try_from(most).unwrap_or(u32::MAX),
            capacity,
        })
    }

    /// True if any report waits for its instant.
    pub(super) fn awaits(&self) -> bool {
        self.delayed_reports.iter().any(|delayed| !delayed.waiting.is_empty())
    }

    /// The most that each region may use before it tells of it: its part of the level, and what that refills
    /// until then; with all that has arrived in force if so asked.
    pub(super) fn given(
        &self,
        now: Timestamp,
        arrived: bool,
        untold: Span,
        share: LevelScope<'_>,
    ) -> SmallVec<[(RegionId, u64); 4]> {
        let inputs = self.inputs(now, arrived, self.home(share), share.parties);
        let divide = |limit: u64| budgets(share.of_level(limit, now), &inputs);
        let level = u64::try_from(self.level_at(cut(now, share), share) / UNIT).unwrap_or(0);
        let levels = divide(level);
        let rates = budgets(share.of_refill(now), &inputs);
        let parts = share.parties.iter().zip(levels).zip(rates).map(|((&(id, _), level), rate)| {
            let rate = Limit { permits: u32::try_from(rate).unwrap_or(u32::MAX), ..share.limit };
            let refilled = u64::try_from(refill(rate, untold) / UNIT).unwrap_or(u64::MAX);
            (id, level.saturating_add(refilled).saturating_add(share.little() + 2))
        });
        parts.collect()
    }

    /// Returns what is left of the own part of the level at the cut: it refills at the own rate, no higher
    /// than the own part of the bucket, and all that was admitted since the last report in force is taken out
    /// of it.
    fn since_cut(
        &self,
        now: Timestamp,
        own: u64,
        counted: u64,
        part: OwnPart,
        share: LevelScope<'_>,
    ) -> i128 {
        let limit = Limit { permits: u32::try_from(part.rate).unwrap_or(u32::MAX), ..share.limit };
        // The level stays if the cut went back, with a longer horizon.
        let (mut at, mut known, mut level) = (cut(now, share).max(self.at), counted, part.level);
        for (time, admitted) in self.own.iter().copied().chain([(now, own)]) {
            if time > at {
                level = (level + refill(limit, time.since(at))).min(part.most.max(level));
                at = time;
            }
            level -= (i128::from(admitted) - i128::from(known)) * UNIT;
            known = admitted;
        }
        level
    }

    /// The own part of the level at the cut, of the refill and of the bucket.
    fn part(&self, now: Timestamp, arrived: bool, share: LevelScope<'_>) -> OwnPart {
        let mut level = self.level_at(cut(now, share), share);
        if arrived {
            let here =
                self.delayed_reports.iter().enumerate().skip(1).filter(|(id, _)| share.apart & bit(*id) == 0);
            let mut late = self.late;
            for (id, delayed) in here {
                let Some((_, statement)) = delayed.waiting.back() else { continue };
                level -= delayed.takes((id, *statement), level, &mut late, share).level;
            }
        }
        let inputs = self.inputs(now, arrived, self.home(share), share.parties);
        let own = share.parties.iter().position(|(id, _)| *id == Regions::OWN);
        let divide = |division: DivisionInput| {
            own.and_then(|own| budgets(division, &inputs).get(own).copied()).unwrap_or(0)
        };
        let rate = divide(share.of_refill(now));
        let level = match u64::try_from(level / UNIT) {
            Ok(whole) if level > 0 => i128::from(divide(share.of_level(whole, now))) * UNIT,
            _ => level * i128::from(rate) / i128::from(share.permits.max(1)),
        };
        let whole = u64::try_from(share.most() / UNIT).unwrap_or(0);
        let most = divide(share.of_level(whole, now));
        OwnPart { level, rate, most: i128::from(most) * UNIT }
    }

    /// The level at the cut, in permits; below zero is debt.
    #[cfg(test)]
    fn permits(&self, now: Timestamp, share: LevelScope<'_>) -> i128 {
        self.level_at(cut(now, share), share).div_euclid(UNIT)
    }
}

/// Returns the permits of an amount in millionths, a started one counted.
fn permits_up(amount: i128) -> u64 {
    u64::try_from((amount + UNIT - 1).div_euclid(UNIT)).unwrap_or(0)
}

/// For so long a part of the level must last: until the next report is in force. A part of a small bucket
/// lasts no longer than the bucket takes to refill several times: who asks for little would be given all of
/// it, and who begins to ask would find nothing, however little is used of the rate.
pub(super) fn lasts(limit: Limit, capacity: u64, horizon: Span) -> Span {
    let refill = u128::from(capacity) * u128::from(limit.window.0) / u128::from(limit.permits.max(1));
    let refills = Span(u64::try_from(refill).unwrap_or(u64::MAX).saturating_mul(REFILLS));
    refills.min(horizon + AHEAD)
}

/// A division of a limit by what is asked for from `start` to `end`, without slices.
const fn division_by_demand(
    limit: u64,
    (start, end): (Timestamp, Timestamp),
    rounding_offset: u64,
) -> DivisionInput {
    let (caution, ahead) = (1_000, None);
    DivisionInput {
        limit,
        start,
        end,
        cut: start,
        caution,
        rounding_offset,
        ahead,
        slice_min: 1,
        scarce: limit,
        whole: false,
        fading: 0,
    }
}

/// True if the store may refill at the whole rate until the next look. A full part refills no further, so
/// a region that asks only now and then finds it whole, however long ago that look was. Its first request
/// is looked at at once; what the store refills too fast until then must be too little to be told.
fn rests(tokens: i128, part: OwnPart, growth: u64, share: LevelScope<'_>) -> bool {
    let growth = Limit { permits: u32::try_from(growth).unwrap_or(u32::MAX), ..share.limit };
    let unseen = refill(growth, UNSEEN) / UNIT;
    tokens >= part.most && unseen <= i128::from(share.untold())
}

/// The part of `whole` that a weight has of all `weights`.
fn part_of(whole: u64, weight: u64, weights: u64) -> u64 {
    let part = u128::from(whole) * u128::from(weight) / u128::from(weights.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The instant of which all know what was told: as long ago as a report takes to be in force everywhere.
fn cut(now: Timestamp, share: LevelScope<'_>) -> Timestamp {
    Timestamp(now.0.saturating_sub(share.horizon.0))
}

#[cfg(test)]
mod tests;
