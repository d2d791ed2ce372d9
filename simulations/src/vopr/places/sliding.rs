//! Permits that sliding windows and logs admit in a world whose regions lend each other capacity, and what is
//! judged of them: by the clock of each region, what all of them count never exceeds the limit.

use tidegate::core::algorithm::Algorithm;
use tidegate::core::time::{Span, Timestamp};

use super::check::GATHER_STEPS;
use super::{STEP, World};
use crate::number::index;

/// Permits that a region admitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admission {
    user: usize,
    at: Timestamp,
    cost: u64,
    /// True if the store that admitted it is lost.
    pub(super) is_forgotten: bool,
}

impl World<'_> {
    /// One request in a region. Whether it was admitted.
    pub(super) fn charge(&mut self, at: usize, user: usize, cost: u64) -> bool {
        let now = self.world.clock(at);
        if !self.is_alive(at) {
            return false;
        }
        let Some(region) = self.region_mut(at) else { return false };
        let admitted = region.vaults.get_mut(user).is_some_and(|vault| vault.decide(now, cost).is_some());
        if let Some(tally) = region.tallies.get_mut(user) {
            tally.offered += cost;
            if admitted {
                tally.admitted += cost;
            } else {
                tally.refused = tally.refused.max(cost);
            }
        }
        if admitted {
            region.admitted.push(Admission { user, at: now, cost, is_forgotten: false });
            self.admitted += cost;
        }
        self.note(format_args!("r{at} {cost} permits for u{user}: {admitted}"));
        admitted
    }

    /// A daemon whose version does not see what is lent decides by its region's share.
    pub(super) fn ask_older(&mut self, at: usize) {
        let older = self.case.older.filter(|(region, until)| *region == at && self.steps < *until);
        if older.is_none() || !self.dice.chance(self.case.eagerness.min(1.0)) {
            return;
        }
        let (now, user) = (self.world.clock(at), index(self.dice.below(self.case.users)));
        let Some(region) = self.region_mut(at) else { return };
        if region.vaults.get_mut(user).is_some_and(|vault| vault.decide_blindly(now, 1)) {
            region.admitted.push(Admission { user, at: now, cost: 1, is_forgotten: false });
            self.note(format_args!("r{at} 1 permit for u{user}, by an older daemon"));
        }
    }

    /// The older daemon has ended for so long that nobody remembers it.
    pub(super) fn end_older(&mut self) {
        let Some((at, _)) = self.case.older.filter(|(_, until)| *until == self.steps) else { return };
        if let Some(seat) = self.world.daemons.get_mut(at) {
            seat.node.older = None;
        }
        self.world.meet();
    }

    /// Somebody gives back what was admitted last, or a part of it.
    pub(super) fn refund(&mut self, at: usize) {
        let known = |one: &&Admission| !one.is_forgotten;
        let last = self.region(at).and_then(|region| region.admitted.iter().rev().find(known)).copied();
        let Some(last) = last.filter(|_| self.is_alive(at)) else { return };
        if !self.dice.chance(0.02) {
            return;
        }
        let (now, permits) = (self.world.clock(at), self.dice.between(1, last.cost));
        let Some(region) = self.region_mut(at) else { return };
        let mut back = region.vaults.get_mut(last.user).map_or(0, |vault| vault.refund(now, permits));
        let of_user = |one: &&mut Admission| one.user == last.user && !one.is_forgotten;
        for one in region.admitted.iter_mut().rev().filter(of_user) {
            let part = back.min(one.cost);
            (one.cost, back) = (one.cost - part, back - part);
        }
    }

    /// Permits of a user that a region counts, by the latest that its clock ever showed.
    fn counts(&self, at: usize, user: usize) -> u64 {
        let Some(region) = self.region(at) else { return 0 };
        let (window, now) = (self.case.hold, region.latest);
        let of_user = || region.admitted.iter().filter(|one| one.user == user);
        if self.case.algorithm == Algorithm::SlidingLog {
            return of_user().filter(|one| now.since(one.at) < window).map(|one| one.cost).sum();
        }
        let index = now.window_index(window);
        let of = |wanted: u64| -> u64 {
            of_user().filter(|one| one.at.window_index(window) == wanted).map(|one| one.cost).sum()
        };
        let left = Timestamp::window_start(index + 1, window).since(now).0;
        let fading = u128::from(of(index - 1)) * u128::from(left) / u128::from(window.0);
        of(index) + u64::try_from(fading).unwrap_or(u64::MAX)
    }

    /// All regions together count no more than the limit. Of a sliding window each rounds its fading part
    /// down; and where all clocks agree no window admits more than the limit.
    pub(super) fn judge_what_slides(&mut self) -> Result<(), String> {
        let (counts, agree) = (self.case.counts(), self.case.clock == 0.0);
        for at in 0..self.regions().len() {
            let now = self.world.clock(at);
            if let Some(region) = self.region_mut(at) {
                region.latest = region.latest.max(now);
                let latest = region.latest;
                region.admitted.retain(|one| one.cost > 0 && latest.since(one.at) < counts);
            }
        }
        for user in 0..self.users() {
            let regions = 0..self.regions().len();
            let counted: Vec<u64> = regions.clone().map(|at| self.counts(at, user)).collect();
            let sum: u64 = counted.iter().sum();
            if sum > u64::from(self.case.limit) {
                return Err(format!(
                    "{sum} permits of {} count, by region {counted:?}, of user {user}",
                    self.case.limit
                ));
            }
            let window = self.world.now.window_index(self.case.hold);
            let in_window =
                |one: &&Admission| one.user == user && one.at.window_index(self.case.hold) == window;
            let admitted = |at| -> u64 {
                let region = self.region(at);
                region.map_or(0, |region| region.admitted.iter().filter(in_window).map(|one| one.cost).sum())
            };
            let sum: u64 = regions.map(admitted).sum();
            if agree && sum > u64::from(self.case.limit) {
                return Err(format!("{sum} permits of {} admitted in window {window}", self.case.limit));
            }
        }
        Ok(())
    }

    /// After peace and silence each region in turn can use the limit, whatever its share.
    pub(super) fn everyone_is_admitted(&mut self) -> Result<(), String> {
        let limit = u64::from(self.case.limit);
        let fades = Span(self.case.counts().0 * 2).0 / STEP.0;
        let judged = self.case.hold.0 * 2 / STEP.0;
        for at in 0..self.regions().len() {
            for user in 0..self.users() {
                let mut admitted = 0;
                for step in 0..GATHER_STEPS + fades + judged {
                    for _ in 0..limit.div_ceil(10).max(1) {
                        let served = self.charge(at, user, 1);
                        admitted += u64::from(served && step >= GATHER_STEPS + fades);
                    }
                    self.step()?;
                }
                if admitted < limit {
                    return Err(format!(
                        "r{at} admitted {admitted} of user {user}, for whom nobody else asks, in two windows \
                         of {limit}: {}",
                        self.places_of(user)
                    ));
                }
            }
        }
        Ok(())
    }
}
