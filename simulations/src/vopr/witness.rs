//! The permits that all regions really used of each bucket, held against what every daemon would answer at
//! that instant: under `gossip` never more than it believes and its error bound together.
//!
//! Not held against it are what the manual excepts: a time in which regions held other limits, a Redis that
//! lost its data, a daemon that began again with its memory until the others have heard it, one with Redis
//! that began again while regions did not hear each other, half a second after the first loss in ten seconds,
//! and regions of several daemons with a memory each.

use std::collections::{BTreeMap, VecDeque};

use tidegate::core::algorithm::{Algorithm, Counting, Limit};
use tidegate::core::time::{Span, Timestamp};

use crate::model::daemons::World;
use crate::model::shell::windowed;
use crate::number::{float, seconds};
use crate::plan::Plan;

/// Clocks differ by no more than this where windows are compared.
const CLOCKS: Span = Span::from_millis(50);
/// So long after the first loss in ten seconds a region may not know of it, and so not know what another one
/// gave itself.
const UNNOTICED: Span = Span::from_millis(500);
/// The bound of a daemon that was just started allows for a silence of this length before its start.
const HEARD_WITHIN: Span = Span::from_secs(1);

#[derive(Debug)]
pub(crate) struct Witness {
    algorithm: Algorithm,
    window: Span,
    /// By user and window, and in it by region.
    admitted: BTreeMap<(u64, u64), Vec<u64>>,
    /// By user, the oldest first.
    log: BTreeMap<u64, VecDeque<(Timestamp, u64)>>,
    /// By user: what a bucket for the whole world would hold as used.
    levels: BTreeMap<u64, (f64, Timestamp)>,
    /// By region: when a daemon with a store in its memory began again.
    restarted: Vec<Vec<Timestamp>>,
    /// By region: when a daemon with Redis began again last while another region was silent. It does not know
    /// for how long.
    began_in_silence: Vec<Option<Timestamp>>,
    /// When something happened last, or ends, in which the manual promises nothing.
    excepted: Option<Timestamp>,
    judges: bool,
}

impl Witness {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            algorithm: plan.rule.algorithm,
            window: plan.rule.window,
            admitted: BTreeMap::new(),
            log: BTreeMap::new(),
            levels: BTreeMap::new(),
            restarted: vec![Vec::new(); plan.regions.len()],
            began_in_silence: vec![None; plan.regions.len()],
            excepted: None,
            judges: plan.shared_store || plan.regions.iter().all(|region| region.daemons <= 1),
        }
    }

    /// A region admitted something of a user's bucket, in a window by its own clock.
    pub(crate) fn admitted(&mut self, world: &World, region: usize, user: u64, (window, cost): (u64, u64)) {
        let of_window =
            self.admitted.entry((user, window)).or_insert_with(|| vec![0; world.plan.regions.len()]);
        if let Some(admitted) = of_window.get_mut(region) {
            *admitted += cost;
        }
        match self.algorithm {
            Algorithm::SlidingLog => {
                let log = self.log.entry(user).or_default();
                log.push_back((world.now(), cost));
                while log.front().is_some_and(|(at, _)| *at + self.window <= world.now()) {
                    log.pop_front();
                }
            }
            algorithm if algorithm.counting() == Counting::Level => {
                let rate = rate(world, user);
                let (used, since) = self.levels.entry(user).or_insert((0.0, world.now()));
                *used = (*used - rate * seconds(world.now().since(*since))).max(0.0) + float(cost);
                *since = world.now();
            }
            _ => {}
        }
    }

    /// A daemon began again; `lost` is whether a store that daemons share was lost with it.
    pub(crate) fn restarted(&mut self, world: &World, region: usize, lost: bool) {
        if world.plan.shared_store {
            if lost {
                self.excepted = self.excepted.max(Some(world.now()));
            } else if !windowed(self.algorithm) && is_silent(world, region) {
                let began = self.began_in_silence.get_mut(region);
                began.into_iter().for_each(|began| *began = Some(world.now()));
            }
        } else if let Some(restarted) = self.restarted.get_mut(region) {
            restarted.push(world.now());
        }
    }

    /// A region's clock was set back. Until it has caught up its store counts on in the window that it had
    /// reached, and its answers speak of that one; a log may have forgotten what had left its interval.
    pub(crate) fn clock_set_back(&mut self, world: &World, before: Timestamp, after: Timestamp) {
        let forgets = match self.algorithm {
            Algorithm::SlidingLog => before.since(after) > CLOCKS,
            algorithm => {
                windowed(algorithm) && before.window_index(self.window) != after.window_index(self.window)
            }
        };
        if forgets {
            self.excepted = self.excepted.max(Some(world.now() + before.since(after)));
        }
    }

    /// A region's store lost everything while its daemons went on.
    pub(crate) fn lost_store(&mut self, world: &World) {
        self.excepted = self.excepted.max(Some(world.now()));
    }

    /// Holds every daemon's answer against the truth.
    ///
    /// # Errors
    /// The first that says too little.
    pub(crate) fn judge(&mut self, world: &World, users: std::ops::Range<u64>) -> Result<(), String> {
        for user in users.clone() {
            let wanted = world.limit(user);
            if world.daemons().iter().any(|daemon| daemon.node.limit(user) != wanted) {
                self.excepted = self.excepted.max(Some(world.now()));
            }
        }
        // Permits that a larger limit admitted last longer than a bucket of the new one takes to fill.
        let in_debt = self.algorithm.counting() == Counting::Level && self.excepted.is_some();
        if !self.judges || in_debt {
            return Ok(());
        }
        for at in 0..world.daemons().len() {
            let Some(daemon) = world.daemons().get(at).filter(|daemon| daemon.alive) else { continue };
            let (now, region) = (world.clock(daemon.region), daemon.region);
            let reach = self.reach(world, now);
            if !self.promises(world, region, Timestamp(world.now().0.saturating_sub(reach.0))) {
                continue;
            }
            for user in users.clone() {
                let Some((believed, bound)) = daemon.node.believes(user, now) else { continue };
                let truth = self.truth(world, user, now);
                if truth > believed.saturating_add(bound) {
                    let window = now.window_index(self.window);
                    let by_region = self.admitted.get(&(user, window));
                    return Err(format!(
                        "{} of {} believes that {believed} permits of user {user} are used and at most {bound} more; \
                         {truth} are, {} ms into the window, by region {by_region:?}",
                        daemon.name.node,
                        daemon.name.region,
                        now.since(Timestamp::window_start(window, self.window)).0 / 1_000,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns how long ago something still counts.
    fn reach(&self, world: &World, now: Timestamp) -> Span {
        if !windowed(self.algorithm) {
            let refill = |limit: Limit| {
                u128::from(limit.capacity(self.algorithm)) * u128::from(self.window.0)
                    / u128::from(limit.permits.max(1))
            };
            let users = world.own.keys().map(|user| world.limit(*user));
            let refill = users.chain([world.rule.limit()]).map(refill).max().unwrap_or(0);
            // A debt lasts longer than a full bucket.
            return Span(u64::try_from(refill).unwrap_or(u64::MAX).saturating_mul(4)) + CLOCKS;
        }
        let begun = Timestamp::window_start(now.window_index(self.window), self.window);
        let slides = self.algorithm != Algorithm::FixedWindow;
        now.since(begun) + CLOCKS + if slides { self.window } else { Span::ZERO }
    }

    /// Returns whether the manual promises that a region's bound is one, after all that happened since an
    /// instant.
    fn promises(&self, world: &World, region: usize, since: Timestamp) -> bool {
        if self.excepted.is_some_and(|at| at >= since) {
            return false;
        }
        if self.began_in_silence.get(region).copied().flatten().is_some_and(|at| at >= since) {
            return false;
        }
        if world.network().first_loss().is_some_and(|at| world.now().since(at) <= UNNOTICED) {
            return false;
        }
        self.restarted.iter().enumerate().all(|(other, restarted)| {
            let mut late = restarted.iter().filter(|at| **at >= since);
            match (late.next(), late.next()) {
                (None, _) => true,
                (Some(at), None) => other == region || world.heard_from(region, other) > *at,
                _ => false,
            }
        })
    }

    fn truth(&self, world: &World, user: u64, now: Timestamp) -> u64 {
        let window = now.window_index(self.window);
        let of_window = |window| self.admitted.get(&(user, window)).map_or(0, |all| all.iter().sum::<u64>());
        match self.algorithm {
            Algorithm::SlidingLog => {
                let log = self.log.get(&user).into_iter().flatten();
                // Each region forgets by its own clock.
                let since = world.now().0.saturating_sub(self.window.0.saturating_sub(CLOCKS.0));
                log.filter(|(at, _)| at.0 > since).map(|(_, cost)| cost).sum()
            }
            Algorithm::SlidingWindow => {
                let left = Timestamp::window_start(window + 1, self.window).since(now).0;
                let before = u128::from(of_window(window.saturating_sub(1))) * u128::from(left)
                    / u128::from(self.window.0);
                of_window(window) + u64::try_from(before).unwrap_or(u64::MAX)
            }
            algorithm if algorithm.counting() == Counting::Level => {
                let Some((used, since)) = self.levels.get(&user) else { return 0 };
                let used = (used - rate(world, user) * seconds(world.now().since(*since))).max(0.0);
                // Each clock runs a little differently, and a permit that has begun to drain is one.
                let slack = 1.0 + used / 200.0;
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not below zero")]
                let whole = (used - slack).max(0.0) as u64;
                whole
            }
            _ => of_window(window),
        }
    }
}

/// Returns whether another region was not heard by this one for long, or did not hear it.
fn is_silent(world: &World, region: usize) -> bool {
    let others = (0..world.plan.regions.len()).filter(|other| *other != region);
    let heard = others.map(|other| world.heard_from(region, other).min(world.heard_from(other, region)));
    heard.min().is_some_and(|heard| world.now().since(heard) > HEARD_WITHIN)
}

fn rate(world: &World, user: u64) -> f64 {
    f64::from(world.limit(user).permits) / seconds(world.plan.rule.window)
}
