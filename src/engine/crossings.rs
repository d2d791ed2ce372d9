//! What a decision has just crossed: a share of the limit that its rule warns of, and penalties that began.
//! Each is counted here.
//!
//! A warning is told by the level, not by the step: a bucket that is used beyond `warn_at` is warned of by the
//! first charge that this daemon sees so in a window. So nothing is missed where permits were drawn ahead or
//! another daemon charged them, and what a daemon had told before a restart it tells again.

use std::hash::BuildHasher as _;
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;

use super::Engine;
use super::loaded::Loaded;
use super::port::ChargeResult;
use crate::core::decision::RuleOutcome;
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::rule::Mode;
use crate::core::ruleset::Match;
use crate::core::table::Table;
use crate::core::time::Timestamp;

/// Tables of buckets that were warned of, each locked for one look.
const TABLES: usize = 16;
/// Buckets that are remembered as warned of in one window, in all tables together. One that finds no room may
/// be warned of again.
const WARNED_MAX: usize = 65_536;

/// The buckets that were warned of, each with its window.
#[derive(Debug)]
pub(super) struct Warned {
    tables: [Mutex<Table<u64>>; TABLES],
    hasher: RandomState,
}

impl Default for Warned {
    fn default() -> Self {
        let tables = std::array::from_fn(|_| Mutex::new(Table::new(WARNED_MAX / TABLES)));
        Self { tables, hasher: RandomState::default() }
    }
}

impl Warned {
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
        (found, key): (&Match<'_>, &Key),
        (cost, counted): (Cost, &ChargeResult),
        ruled: &mut RuleOutcome,
        now: Timestamp,
    ) {
        let Some(side) = loaded.side(found.rule) else { return };
        if let Some(counter) = side.penalties.as_ref().filter(|_| ruled.penalty.is_some_and(|one| one.begun))
        {
            counter.increment(1);
        }
        let (Some(counter), Some(percent)) = (&side.warnings, found.rule.rule.warn_at) else { return };
        let charges = !matches!(cost, Cost::Peek | Cost::Refund(_));
        if charges && !ruled.degraded && is_beyond(percent, found, counted, ruled) {
            let windows = found.limit.windows();
            let window = windows.index(now);
            if self.warned.note(key, window, (now, windows.end(window))) {
                ruled.warning = true;
                counter.increment(1);
            }
        }
    }
}

/// Whether at least so many percent of the limit are in use: under `gossip` of all regions together, as far as
/// is known here; under `split` of the region's share; under `escrow` by this region of the whole limit.
fn is_beyond(percent: u8, found: &Match<'_>, counted: &ChargeResult, ruled: &RuleOutcome) -> bool {
    let algorithm = found.rule.rule.algorithm;
    let gossiped = ruled.global.filter(|global| global.mode == Mode::Gossip);
    let (used, limit) = match gossiped {
        Some(global) => (global.believed_used, found.whole.capacity(algorithm)),
        None => (counted.used, found.limit.capacity(algorithm)),
    };
    used > 0 && u128::from(used) * 100 >= u128::from(limit) * u128::from(percent)
}
