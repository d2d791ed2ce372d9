//! Waiting for rights on their way: `wait` of an `escrow` rule.
//!
//! A request that finds its region dry while another region is believed to hold rights is held back for a
//! moment instead of being refused. The only wait of a decision that another region ends; it is off unless a
//! rule asks for it, never longer than the rule says, and never where everyone is dry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::Counter;

use super::Engine;
use super::clock::Deadline;
use super::pace::WaitingRoom;
use super::port::{Charge, ChargeResult, Intent, Outcome};
use super::world::Tally;
use crate::core::algorithm::Algorithm;
use crate::core::key::Key;
use crate::core::regions::WorldKey;
use crate::core::regions::escrow::{dry_mark, slides};
use crate::core::rule::Mode;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::OwnLimit;
use crate::telemetry::Metrics;

/// Requests that may wait at once, each of which is an open call of its gateway; see [`super::pace`]. More
/// are refused at once, and counted.
const WAITERS_MAX: usize = 128;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// Buckets known to be dry everywhere. Full: all are forgotten, and a request may wait in vain.
const DRY_MAX: usize = 65_536;

/// The requests that wait, and the buckets for which that is no use.
#[derive(Debug)]
pub(super) struct Waits {
    room: Arc<WaitingRoom>,
    /// By bucket: the window, or the second, up to which no region has rights left; see [`dry_mark`].
    dry: Mutex<HashMap<Key, u64, foldhash::fast::RandomState>>,
    /// Waits that ended with rights, without, or did not begin for want of room.
    ended: [Counter; 3],
}

impl Waits {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let ended = ["admitted", "refused", "full"]
            .map(|outcome| metrics.counter("rights_waits_total", "outcome", outcome));
        Self { room: WaitingRoom::new(WAITERS_MAX), dry: Mutex::default(), ended }
    }

    pub(super) fn is_dry(&self, key: &Key, window: u64) -> bool {
        let dry = self.dry.lock().unwrap_or_else(PoisonError::into_inner);
        dry.get(key).is_some_and(|since| *since >= window)
    }

    fn note(&self, key: Key, window: u64) {
        let mut dry = self.dry.lock().unwrap_or_else(PoisonError::into_inner);
        if dry.len() >= DRY_MAX && !dry.contains_key(&key) {
            dry.clear();
        }
        dry.insert(key, window);
    }
}

/// Returns what was denied only for want of rights, if that is all: how long to wait for them.
fn patience(waits: &Waits, charges: &[Charge<'_>], outcome: &Outcome, now: Timestamp) -> Option<Span> {
    // A report has been charged: asked again, it would be charged twice.
    if outcome.admitted || charges.iter().any(|charge| charge.cost.is_report()) {
        return None;
    }
    let mut least: Option<Span> = None;
    let denied = charges
        .iter()
        .zip(&outcome.counted)
        .filter(|(charge, counted)| charge.enforced && !counted.verdict.admitted);
    for (charge, counted) in denied {
        let rule = &charge.rule.rule;
        let wait = rule.global.as_ref().filter(|global| global.mode == Mode::Escrow)?.wait;
        let moves_windows = rule.algorithm == Algorithm::FixedWindow || slides(rule.algorithm);
        let moves = moves_windows && charge.key.shape() == charge.rule.shape;
        let fits = charge.cost.taken() <= u64::from(charge.limit.permits);
        let window = dry_mark(rule.algorithm, charge.limit.windows(), now);
        if wait == Span::ZERO || !moves || !fits || counted.degraded || waits.is_dry(charge.key, window) {
            return None;
        }
        least = Some(least.map_or(wait, |least| least.min(wait)));
    }
    least
}

impl Engine {
    /// Returns how long a denied decision should wait for rights; `None` if it should not.
    pub(super) fn hope(&self, charges: &[Charge<'_>], outcome: &Outcome, now: Timestamp) -> Option<Span> {
        patience(&self.waits, charges, outcome, now)
    }

    /// Waits for rights, at most `most`, and decides again. The last outcome, and when it was.
    pub(super) async fn wait_for_rights(
        &self,
        charges: &[Charge<'_>],
        denied: Outcome,
        most: Span,
    ) -> (Outcome, Timestamp) {
        let mut now = self.clock.now();
        let [admitted, refused, full] = &self.waits.ended;
        let refused_for = |counted: &ChargeResult| !counted.verdict.admitted;
        let scarce = charges.iter().zip(&denied.counted).find(|(_, counted)| refused_for(counted));
        let place = scarce.and_then(|(charge, _)| self.waits.room.place(charge.key));
        let (Some(_place), Some(_room)) = (place, self.waits.room.enter()) else {
            full.increment(1);
            return (denied, now);
        };
        // The protocol must hear of it now, not when the wait is over.
        for (charge, _) in charges.iter().zip(&denied.counted).filter(|(_, counted)| refused_for(counted)) {
            let window = charge.limit.windows().index(now);
            let (limit, is_own) = (Some(OwnLimit::of(charge.whole)), *charge.whole != charge.rule.limit);
            let refused = charge.cost.taken();
            let thirst = Tally { window, refused, limit, is_own, ..Tally::default() };
            self.tallies.add(charge.key, thirst);
        }
        let deadline = Deadline::after(most.to_std());
        let mut outcome = denied;
        while !deadline.left().is_zero() {
            tokio::time::sleep(PAUSE.min(deadline.left())).await;
            now = self.clock.now();
            outcome = self.store.decide(charges, Intent::Charge, now).await;
            if outcome.admitted {
                admitted.increment(1);
                return (outcome, now);
            }
            if self.hope(charges, &outcome, now).is_none() {
                break;
            }
        }
        refused.increment(1);
        (outcome, now)
    }

    /// No region has rights of this bucket left in a window: nobody needs to wait for any.
    pub(super) fn note_dry(&self, key: &WorldKey, window: u64) {
        if let Some((_, key)) = self.loaded.load().local_key(key) {
            self.waits.note(key, window);
        }
    }
}
