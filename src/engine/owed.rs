//! Buckets of `gossip` rules that owe although the world may have room: a report found only its region's part
//! free. The other regions hear of a debt as it is paid, and it is paid by whoever asks next. Where nobody
//! does, this daemon asks by itself, for nothing, while its region's part grows.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::Notify;

use super::Engine;
use super::decide::TakenCost;
use super::port::{Charge, ChargeResult, Intent};
use crate::core::algorithm::{Algorithm, Limit};
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::rule::Mode;
use crate::core::ruleset::Match;
use crate::core::time::{Span, Timestamp};

/// The times between a report and the looks that follow it, each from the one before. Regions that have room
/// have left it by the last.
const LOOKS: [Span; 7] = [
    Span::from_millis(50),
    Span::from_millis(100),
    Span::from_millis(200),
    Span::from_millis(400),
    Span::from_millis(800),
    Span::from_millis(1_600),
    Span::from_millis(3_200),
];
/// Most buckets that are looked at. What they owe beyond that is told when somebody asks.
const OWED_MAX: usize = 1_024;
/// Most buckets of one round, so that a flood of reports holds up no other upkeep.
const ROUND_MAX: usize = 64;

/// The buckets that owe, by name.
#[derive(Debug, Default)]
pub(super) struct OwedBuckets {
    waiting: Mutex<Waiting>,
    noted: Notify,
}

type Waiting = HashMap<Key, OwedBucket, RandomState>;

/// One of them, and the limits that it is held to.
#[derive(Debug, Clone)]
struct OwedBucket {
    rule: String,
    limit: Limit,
    whole: Limit,
    share: Option<u32>,
    /// Looks that were taken.
    looks: usize,
    next: Timestamp,
}

impl OwedBuckets {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a bucket among them for its next look; false where there is no room.
    fn put(&self, key: Key, mut owed: OwedBucket, now: Timestamp) -> bool {
        let Some(wait) = LOOKS.get(owed.looks) else { return true };
        owed.next = now + *wait;
        let mut waiting = self.waiting();
        if waiting.len() >= OWED_MAX && !waiting.contains_key(&key) {
            return false;
        }
        waiting.insert(key, owed);
        drop(waiting);
        self.noted.notify_one();
        true
    }

    /// Takes those whose look is due.
    fn due(&self, now: Timestamp) -> Vec<(Key, OwedBucket)> {
        let mut waiting = self.waiting();
        let mut left = ROUND_MAX;
        let is_due = |_: &Key, owed: &mut OwedBucket| {
            // A clock that was set back by more than the longest wait is not waited for.
            let due = owed.next <= now || owed.next.since(now) > Span::from_secs(10);
            let taken = due && left > 0;
            left -= usize::from(taken);
            taken
        };
        waiting.extract_if(is_due).collect()
    }

    /// Returns the instant of the next look.
    fn next(&self) -> Option<Timestamp> {
        self.waiting().values().map(|owed| owed.next).min()
    }
}

impl Engine {
    /// Notes a bucket in which a report left a debt that the other regions have not heard of.
    pub(super) fn note_owed(&self, found: &Match<'_>, key: &Key, counted: &ChargeResult, now: Timestamp) {
        if counted.owed <= 0 || counted.degraded || key.shape() != found.rule.shape {
            return;
        }
        let is_gossip = found.rule.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Gossip);
        let by_windows =
            matches!(found.rule.rule.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow);
        if !is_gossip || !by_windows {
            return;
        }
        let owed = OwedBucket {
            rule: found.rule.rule.name.clone(),
            limit: found.limit,
            whole: found.whole,
            share: found.share,
            looks: 0,
            next: now,
        };
        if !self.owed.put(key.clone(), owed, now) {
            self.metrics.tallies_dropped.increment(1);
        }
    }

    /// Waits until a bucket that owes is to be looked at.
    pub async fn owed_is_due(&self) {
        loop {
            match self.owed.next() {
                Some(next) => {
                    let wait = next.since(self.clock.now()).to_std().min(Duration::from_secs(5));
                    return tokio::time::sleep(wait).await;
                }
                None => self.owed.noted.notified().await,
            }
        }
    }

    /// Looks at the buckets whose turn it is, so that they pay what they owe as far as the world has room.
    pub async fn pay_owed(&self) {
        for (key, mut owed) in self.owed.due(self.clock.now()) {
            let loaded = self.loaded.load_full();
            let rule = loaded.set.by_name(&owed.rule).filter(|rule| rule.shape == key.shape());
            let Some(rule) = rule else { continue };
            let now = self.clock.now();
            let charge = Charge {
                rule,
                key: &key,
                limit: owed.limit,
                share: owed.share,
                whole: &owed.whole,
                first: loaded.first_of(rule, &owed.limit, self.regions_known()),
                cost: Cost::Peek,
                enforced: true,
            };
            let charges = [charge];
            let outcome = match self.store.try_decide(&charges, Intent::Charge, now) {
                Some(outcome) => outcome,
                None => self.store.decide(&charges, Intent::Charge, now).await,
            };
            let Some(counted) = outcome.counted.first() else { continue };
            let found = Match {
                rule,
                key: None,
                limit: owed.limit,
                share: owed.share,
                whole: owed.whole,
                own_limit: None,
            };
            let taken = TakenCost { cost: Cost::Peek, charged: outcome.admitted };
            self.tally(&found, &key, taken, counted, now);
            if !counted.verdict.admitted {
                owed.looks += 1;
                self.owed.put(key, owed, now);
            }
        }
    }
}
