//! Requests that wait for rights on their way, as `wait` of an `escrow` rule has them: asked again each
//! hundredth of a second until they are admitted, the time is over, or the daemon knows that no region has
//! rights left.
//!
//! A client that waits is admitted or told to go in the time that was promised, and nobody waits where all
//! regions have been dry for longer than the news of it takes.

use std::collections::BTreeMap;

use tidegate::core::regions::escrow::StepResult;
use tidegate::core::time::{Span, Timestamp};

use super::play::Game;
use crate::model::shell::world_key;
use crate::number::{part, place};

/// Between two tries, in steps: as in the daemon.
const PAUSE: u64 = 2;
/// Requests that wait at one daemon at once; the next is refused.
const WAITING_MAX: usize = 20;

/// A request that waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    at: usize,
    user: u64,
    cost: u64,
    since: Timestamp,
}

/// The clients that wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waiting: Vec<Waiting>,
    /// By user: since when no region has rights left, and in which window.
    dry: BTreeMap<u64, (u64, Timestamp)>,
    /// Since when the network and the daemons are whole.
    peace: Option<Timestamp>,
    /// Number of those admitted who have waited.
    pub(super) admitted: u64,
    pub(super) told_to_go: u64,
}

/// Intervals after which a region speaks of a bucket again that it is asked for, whatever has changed.
const SPEAKS_AGAIN: u64 = 20;

impl Waits {
    /// Nothing breaks from here on.
    pub(super) const fn at_peace(&mut self, now: Timestamp) {
        self.peace = Some(now);
    }
}

impl Game<'_> {
    /// One request, which waits if it may.
    pub(super) fn request_or_wait(&mut self, at: usize, user: u64, cost: u64) -> Result<(), String> {
        if self.request(at, user, cost)? || self.case.wait == Span::ZERO {
            return Ok(());
        }
        let waiting = self.waits.waiting.iter().filter(|waiting| waiting.at == at).count();
        if waiting < WAITING_MAX && self.world.may_wait(at, user, cost) {
            self.waits.waiting.push(Waiting { at, user, cost, since: self.world.now() });
        }
        Ok(())
    }

    /// Asks again for all who wait.
    pub(super) fn ask_again(&mut self, step: u64) -> Result<(), String> {
        if self.case.wait == Span::ZERO {
            return Ok(());
        }
        self.note_who_is_dry();
        if !step.is_multiple_of(PAUSE) {
            return Ok(());
        }
        for waiting in std::mem::take(&mut self.waits.waiting) {
            let Waiting { at, user, cost, since } = waiting;
            let waited = self.world.now().since(since);
            if waited > self.case.wait + Span(super::case::STEP.0 * PAUSE) {
                return Err(format!("user {user} still waits after {} ms", waited.0 / 1_000));
            }
            let admitted = self.world.ask_again(at, user, cost);
            self.note_answer((at, user, cost), admitted)?;
            if admitted.is_some() {
                self.waits.admitted += 1;
            } else if waited >= self.case.wait || !self.world.may_wait(at, user, cost) {
                self.waits.told_to_go += 1;
            } else {
                self.nobody_has_any(&waiting)?;
                self.waits.waiting.push(waiting);
            }
        }
        Ok(())
    }

    /// Notes whose buckets no region has rights of.
    fn note_who_is_dry(&mut self) {
        let Some(peace) = self.waits.peace else { return };
        let world = &self.world;
        // One of several daemons of a region alone is told what other regions have.
        if world.daemons().len() > world.plan.regions.len() {
            return;
        }
        for user in 0..self.case.plan.demand.users {
            let key = world_key(user);
            let balance = |region: usize| {
                let daemon = world.daemons().iter().find(|daemon| daemon.region == region)?;
                daemon.node.books.rights(|vaults| vaults.balance(&key, world.clock(region)))
            };
            let all: Option<Vec<_>> = (0..world.plan.regions.len()).map(balance).collect();
            let Some(all) = all else { continue };
            let of = |balance: &StepResult| balance.ledger.as_window().map_or(0, |ledger| ledger.window);
            let window = all.iter().map(of).max().unwrap_or(0);
            let present = (0..all.len())
                .all(|region| world.clock(region).window_index(world.plan.rule.window) == window);
            let dry = present
                && Timestamp::window_start(window, world.plan.rule.window) > peace
                && all.iter().all(|balance| of(balance) == window && balance.free() == 0);
            match (dry, self.waits.dry.get(&user)) {
                (true, Some((of, _))) if *of == window => {}
                (true, _) => {
                    self.waits.dry.insert(user, (window, world.now()));
                }
                (false, _) => {
                    self.waits.dry.remove(&user);
                }
            }
        }
    }

    /// Nobody waits where no region has had any rights for longer than the news of it takes.
    fn nobody_has_any(&self, waiting: &Waiting) -> Result<(), String> {
        let Some((window, since)) = self.waits.dry.get(&waiting.user) else { return Ok(()) };
        let weather = &self.world.plan.weather;
        let way = part(weather.longest(), 1.0 + weather.jitter);
        // A region need not tell what it has used up since it last spoke of it, until it speaks again anyway.
        let interval = self.world.plan.interval.0;
        let news = Span(way.0 * 3 + interval * 5 + (interval * SPEAKS_AGAIN).max(1_000_000));
        let dry = self.world.now().since(*since);
        if dry > news {
            return Err(format!(
                "user {} has waited for {} ms at daemon {} of {}, and no region has had rights of window {window} for {} ms",
                waiting.user,
                self.world.now().since(waiting.since).0 / 1_000,
                waiting.at,
                place(self.world.daemons().len()),
                dry.0 / 1_000,
            ));
        }
        Ok(())
    }
}
