//! Notices of what a decision has just crossed: a share of the limit that its rule warns of, and penalties
//! that began. Each is counted, and told as an event. So are requests that a `block` rule denies, once a
//! minute.
//!
//! The first charge in a window after which this daemon finds a bucket used beyond `warn_at` warns of it. It
//! need not be the charge that crossed the line: permits may have been drawn ahead, or another daemon may
//! have charged them. A daemon that was restarted warns once more.

use std::hash::BuildHasher as _;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use metrics::Counter;

use super::Engine;
use super::hot::shown_identity;
use super::loaded::{Loaded, Side};
use super::port::ChargeResult;
use crate::core::decision::RuleOutcome;
use crate::core::event::{EventKind, EventRecord};
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::rule::Mode;
use crate::core::ruleset::Match;
use crate::core::table::Table;
use crate::core::time::{Span, Timestamp};
use crate::telemetry::Metrics;

/// Tables of buckets that were warned of, each locked for one look.
const TABLES: usize = 16;
/// Buckets that are remembered as warned of in one window, in all tables together. One that finds no room may
/// be warned of again.
const WARNED_MAX: usize = 65_536;
/// A rule that blocks is told again after this.
const BLOCK_AGAIN: Span = Span::from_secs(60);

/// The buckets that were warned of, each with its window.
#[derive(Debug)]
pub(super) struct Warned {
    tables: [Mutex<Table<u64>>; TABLES],
    hasher: RandomState,
    /// Crossings that found no room, or made another one lose its own.
    forgotten: Counter,
}

impl Warned {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let tables = std::array::from_fn(|_| Mutex::new(Table::new(WARNED_MAX / TABLES)));
        let forgotten = metrics.warnings_forgotten.clone();
        Self { tables, hasher: RandomState::default(), forgotten }
    }

    /// Remembers that a bucket is warned of in this window. `false`: it was before.
    fn note(&self, key: &Key, window: u64, (now, ends): (Timestamp, Timestamp)) -> bool {
        let hash = self.hasher.hash_one(key);
        let place = usize::try_from(hash >> 32).unwrap_or(0) % TABLES;
        let Some(table) = self.tables.get(place) else { return false };
        // A look that panicked has at worst not noted.
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = table.find(hash, key.bytes());
        if known.and_then(|place| table.get(place)) == Some(&window) {
            return false;
        }
        let place = known.or_else(|| {
            let made = table.insert(hash, key.bytes(), window, now, |_| false);
            if made.as_ref().map_or(true, |inserted| inserted.evicted) {
                self.forgotten.increment(1);
            }
            made.ok().map(|inserted| inserted.place)
        });
        if let Some(place) = place {
            if let Some(known) = table.get_mut(place) {
                *known = window;
            }
            table.rate(place, ends, 0);
        }
        true
    }
}

impl Engine {
    /// Counts what this charge crossed, and says so in its answer.
    pub(super) fn note_crossings(
        &self,
        loaded: &Loaded,
        found: &Match<'_>,
        (cost, counted): (Cost, &ChargeResult),
        ruled: &mut RuleOutcome,
        now: Timestamp,
    ) {
        if found.rule.rule.warn_at.is_none() && ruled.penalty.is_none() {
            return;
        }
        let (Some(side), Some(key)) = (loaded.side(found.rule), &found.key) else { return };
        if let (Some(counter), Some(penalty)) = (&side.penalties, ruled.penalty.filter(|one| one.begun)) {
            counter.increment(1);
            let numbers =
                vec![("multiplier", u64::from(penalty.multiplier)), ("ends_ms", penalty.left.millis_up())];
            let text = format!("a client is shut out for {} s", penalty.left.secs_up());
            self.events.tell(of_rule(EventKind::Penalty, (found, Some(key)), numbers, text, now));
        }
        let (Some(counter), Some(percent)) = (&side.warnings, found.rule.rule.warn_at) else { return };
        let charges = !matches!(cost, Cost::Peek | Cost::Refund(_));
        if !charges || ruled.degraded {
            return;
        }
        let (used, limit) = in_use(found, counted, ruled);
        if used > 0 && u128::from(used) * 100 >= u128::from(limit) * u128::from(percent) {
            let windows = found.limit.windows();
            let window = windows.index(now);
            if self.warned.note(key, window, (now, windows.end(window))) {
                ruled.warning = true;
                counter.increment(1);
                let numbers = vec![("used", used), ("limit", limit), ("warn_at", u64::from(percent))];
                let text = format!("{used} of {limit} are used, at least {percent} %");
                self.events.tell(of_rule(EventKind::Warning, (found, Some(key)), numbers, text, now));
            }
        }
    }

    /// Tells that a `block` rule denies, at most once in [`BLOCK_AGAIN`] for each rule.
    pub(super) fn note_block(&self, side: &Side, found: &Match<'_>, now: Timestamp) {
        let before = side.block_told.load(Ordering::Relaxed);
        if before > 0 && now.since(Timestamp(before)) < BLOCK_AGAIN {
            return;
        }
        let taken = side.block_told.compare_exchange(before, now.0, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_ok() {
            let text = "a block rule denies requests".to_owned();
            self.events.tell(of_rule(EventKind::Block, (found, None), Vec::new(), text, now));
        }
    }
}

fn of_rule(
    kind: EventKind,
    (found, key): (&Match<'_>, Option<&Key>),
    numbers: Vec<(&'static str, u64)>,
    text: String,
    at: Timestamp,
) -> EventRecord {
    let rule = &found.rule.rule;
    let identity = key.map(|key| shown_identity(found.rule, key)).unwrap_or_default();
    let rule = Some((rule.domain.clone(), rule.name.clone()));
    EventRecord { kind, at, rule, identity, subject: None, numbers, text }
}

/// Permits in use, and the limit that they are compared with: under `gossip` of all regions together, as far
/// as is known here; under `split` of the region's share; under `escrow` by this region of the whole limit.
fn in_use(found: &Match<'_>, counted: &ChargeResult, ruled: &RuleOutcome) -> (u64, u64) {
    let algorithm = found.rule.rule.algorithm;
    match ruled.global.filter(|global| global.mode == Mode::Gossip) {
        Some(global) => (global.believed_used.unwrap_or_default(), found.whole.capacity(algorithm)),
        None => (counted.used, found.limit.capacity(algorithm)),
    }
}
