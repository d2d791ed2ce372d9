//! The permits that regions which are cut off admit under `on_partition = "deny"`, held against what the
//! network let through: nothing, once a region could know.
//!
//! A region takes another one for cut off when it has heard nothing of it for half a second or eight
//! intervals and the slowest way, or no answer for two intervals more. The manual excepts windows that began
//! before that, and the first moment of a bucket in which its region has not looked at it yet. Nor is a store
//! judged that has lost what it was told.

use std::collections::BTreeMap;

use tidegate::core::time::{Span, Timestamp};

use crate::model::daemons::World;
use crate::model::shell::windowed;
use crate::number::{part, place};

/// A daemon has looked at a bucket so soon after it was first asked for: some hundredths of a second.
const LOOKED_AT: Span = Span::from_millis(100);
/// A daemon that begins waits longer for its first answer.
const FIRST_ANSWER: Span = Span::from_secs(1);

/// So improbable that so many heartbeats are lost one after the other does not happen in any world.
const SELDOM: f64 = 1e-7;

/// The regions that are cut off, and since when.
#[derive(Debug)]
pub(super) struct Denial {
    /// By sender and receiver: since when nothing gets through.
    blocked: Vec<Vec<Option<Timestamp>>>,
    /// By daemon: from when on it can be judged, as it began or lost its store.
    judged: Vec<Timestamp>,
    /// By daemon and user.
    asked: BTreeMap<(usize, u64), Asked>,
}

/// A bucket that a daemon was asked for while its region had to know.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// Since when the region had to know.
    known: Timestamp,
    first: Timestamp,
}

impl Denial {
    pub(super) fn new(world: &World) -> Self {
        let regions = world.plan.regions.len();
        Self {
            blocked: vec![vec![None; regions]; regions],
            // All daemons begin with the world.
            judged: vec![world.now() + FIRST_ANSWER; world.daemons().len()],
            asked: BTreeMap::new(),
        }
    }

    /// Takes in what the network lets through.
    pub(super) fn follow(&mut self, world: &World) {
        for (from, row) in self.blocked.iter_mut().enumerate() {
            for (to, since) in row.iter_mut().enumerate() {
                let blocked = from != to && world.network().is_blocked(from, to);
                *since = if blocked { since.or(Some(world.now())) } else { None };
            }
        }
    }

    /// A daemon of a region began again or ended, or its store was lost: others may speak for its buckets
    /// now.
    pub(super) fn began(&mut self, world: &World, region: usize) {
        for (at, daemon) in world.daemons().iter().enumerate() {
            if daemon.region == region {
                self.asked.retain(|(of, _), _| *of != at);
                if let Some(judged) = self.judged.get_mut(at) {
                    *judged = world.now() + FIRST_ANSWER;
                }
            }
        }
    }

    /// So long after nothing gets through a region knows.
    fn noticed(world: &World) -> Span {
        let interval = world.plan.interval;
        let silence = Span(interval.0 * 8).max(Span::from_millis(450));
        let weather = &world.plan.weather;
        // Messages that were on their way come first, by whatever detour, and then their answers: those with
        // one of the next heartbeats that is not lost.
        let way = part(weather.longest(), 2.0 * (4.0 + weather.jitter));
        let heartbeat = Span(interval.0 * 2).max(Span::from_millis(50));
        let answers = if weather.loss > 0.0 { SELDOM.ln() / weather.loss.ln() } else { 0.0 };
        silence + heartbeat + way + part(heartbeat, answers) + Span::from_millis(100)
    }

    /// Since when a daemon must know that its region is cut off.
    fn since(&self, world: &World, at: usize) -> Option<Timestamp> {
        let region = world.daemons().get(at)?.region;
        let regions = 0..world.plan.regions.len();
        let of =
            |from: usize, to: usize| self.blocked.get(from).and_then(|row| row.get(to)).copied().flatten();
        let cut = regions.flat_map(|other| [of(other, region), of(region, other)]).flatten().min()?;
        let judged = self.judged.get(at).copied().unwrap_or_default();
        Some(cut.max(judged) + Self::noticed(world)).filter(|since| *since <= world.now())
    }

    /// Judges an answer of a daemon.
    ///
    /// # Errors
    /// When it admits what it had to deny.
    pub(super) fn answered(
        &mut self,
        world: &World,
        at: usize,
        user: u64,
        admitted: bool,
    ) -> Result<(), String> {
        let Some(since) = self.since(world, at) else {
            self.asked.retain(|(of, _), _| *of != at);
            return Ok(());
        };
        let Some(daemon) = world.daemons().get(at) else { return Ok(()) };
        let asked = Asked { known: since, first: world.now() };
        let Asked { known, first } = *self
            .asked
            .entry((at, user))
            .and_modify(|before| {
                if before.known != since {
                    *before = asked;
                }
            })
            .or_insert(asked);
        // One of several daemons speaks for a bucket, and hears of it with the next report.
        let daemons = world.plan.regions.get(daemon.region).map_or(1, |region| region.daemons);
        let told = Span(world.plan.interval.0 * 4 * place(daemons.saturating_sub(1)));
        let begun = match windowed(world.plan.rule.algorithm) {
            true => {
                let now = world.clock(daemon.region);
                let window = world.plan.rule.window;
                let passed = now.since(Timestamp::window_start(now.window_index(window), window));
                Timestamp(world.now().0.saturating_sub(passed.0))
            }
            false => world.now(),
        };
        if admitted && begun >= known && world.now().since(first) > LOOKED_AT + told {
            return Err(format!(
                "{} of {} admits user {user} under deny, cut off so that it must know since {} ms, {} ms after it was first asked for it since then",
                daemon.name.node,
                daemon.name.region,
                world.now().since(known).0 / 1_000,
                world.now().since(first).0 / 1_000,
            ));
        }
        Ok(())
    }
}
