//! What this daemon does by itself while Redis does not answer: each rule's failure policy.
//!
//! `local` enforces this daemon's share, the limit divided by the region's live daemons, starting from the same share of
//! what the region had last used. What it admits is kept until it has been charged in Redis.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::super::rights::is_escrowed;
use super::call::Bucket;
use super::slots::Slot;
use crate::core::algorithm::{Algorithm, Limit, State, Verdict};
use crate::core::hold::{Hold, HoldStep, Holder};
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::rule::OnFailure;
use crate::core::time::{Span, Timestamp};
use crate::engine::port::{Charge, Counted, Intent};

/// Buckets looked at, at most, to make room for one or in one sweep.
const LOOKED_AT_MAX: usize = 64;
const SWEPT_MAX: usize = 20_000;
/// Holders of one bucket that are told to Redis when it is back. More are not counted there, and counted as untold.
const HOLDERS_MAX: usize = 1_000;

/// Decides from memory.
#[derive(Debug)]
pub(super) struct Fallback {
    table: Mutex<HashMap<Key, Entry, RandomState>>,
    keys_max: usize,
    policy: OnFailure,
    live: Arc<AtomicUsize>,
    /// The servers' time less this daemon's, in microseconds, as last heard.
    offset: AtomicI64,
}

/// A bucket as far as this daemon knows it.
#[derive(Debug, Clone)]
struct Entry {
    /// The region's, as Redis last told.
    known: Option<State>,
    limit: Limit,
    /// This daemon's own while Redis is away.
    own: Option<Own>,
}

#[derive(Debug, Clone)]
struct Own {
    state: State,
    share: Limit,
    /// Admitted and not yet charged in Redis.
    owed: u64,
    bucket: Bucket,
    slot: Slot,
}

/// What one bucket owes Redis.
#[derive(Debug, Clone)]
pub(super) struct Owed {
    /// The bucket's key in this process.
    pub(super) key: Key,
    /// Where it lies in Redis.
    pub(super) slot: Slot,
    /// The same in Redis.
    pub(super) bucket: Bucket,
    /// What was admitted without Redis and still matters.
    pub(super) permits: u64,
    /// Of `concurrency`, who holds it, at most [`HOLDERS_MAX`].
    pub(super) holders: Vec<(Holder, u64)>,
    /// How many more hold it.
    pub(super) untold: usize,
}

/// A charge that Redis did not answer, with its bucket there.
pub(super) struct Unanswered<'a> {
    pub(super) charge: &'a Charge<'a>,
    pub(super) bucket: &'a Bucket,
    pub(super) slot: Slot,
}

/// How the policies decided.
#[derive(Debug)]
pub(super) struct Policies {
    /// Whether everything enforced passes.
    pub(super) admitted: bool,
    /// One for each charge.
    pub(super) counted: SmallVec<[Counted; 2]>,
}

impl Fallback {
    pub(super) fn new(policy: OnFailure, live: Arc<AtomicUsize>, keys_max: usize) -> Self {
        Self { table: Mutex::default(), keys_max, policy, live, offset: AtomicI64::new(0) }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Entry, RandomState>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The servers' time when it is `now` here.
    pub(super) fn server_time(&self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.offset.load(Ordering::Relaxed)))
    }

    /// Takes in what Redis said of a bucket. Gives back what the bucket owes, if it owes: the caller charges it.
    pub(super) fn learn(
        &self,
        key: &Key,
        limit: Limit,
        state: Option<State>,
        server: Timestamp,
        now: Timestamp,
    ) -> Option<Owed> {
        let offset = i64::try_from(server.0).unwrap_or(i64::MAX) - i64::try_from(now.0).unwrap_or(i64::MAX);
        self.offset.store(offset, Ordering::Relaxed);
        let mut table = self.table();
        if let Some(entry) = table.get_mut(key) {
            entry.known = state;
            entry.limit = limit;
            let own = entry.own.take()?;
            return owed(key, own, server);
        }
        let state = state?;
        if table.len() < self.keys_max || make_room(&mut table, server) {
            table.insert(key.clone(), Entry { known: Some(state), limit, own: None });
        }
        None
    }

    /// Forgets a bucket.
    pub(super) fn forget(&self, key: &Key) {
        self.table().remove(key);
    }

    /// Decides charges by their policies, as one: all that are enforced pass, or none is counted.
    ///
    /// `others_admit` says whether what Redis did answer passes; only then is anything counted.
    pub(super) fn decide(
        &self,
        charges: &[Unanswered<'_>],
        intent: Intent,
        now: Timestamp,
        others_admit: bool,
    ) -> Policies {
        let now = self.server_time(now);
        let live = u32::try_from(self.live.load(Ordering::Relaxed).max(1)).unwrap_or(u32::MAX);
        let mut table = self.table();
        let mut trial: SmallVec<[(usize, Entry); 2]> = SmallVec::new();
        let mut policies = Policies { admitted: others_admit, counted: SmallVec::new() };
        for (index, unanswered) in charges.iter().enumerate() {
            let charge = unanswered.charge;
            let policy = charge.rule.rule.on_failure.unwrap_or(self.policy);
            let policy = if is_escrowed(charge.rule) { OnFailure::Closed } else { policy };
            let counted = match policy {
                OnFailure::Open => passed(charge),
                OnFailure::Closed => refused(charge),
                OnFailure::Local => {
                    let tried = trial
                        .iter()
                        .rev()
                        .find(|(at, _)| charges.get(*at).is_some_and(|other| other.charge.key == charge.key));
                    let mut entry = tried.map(|(_, entry)| entry.clone()).unwrap_or_else(|| {
                        table.get(charge.key).cloned().unwrap_or(Entry {
                            known: None,
                            limit: charge.limit,
                            own: None,
                        })
                    });
                    let counted = entry.charge(unanswered, live, now);
                    trial.push((index, entry));
                    counted
                }
            };
            policies.admitted &= counted.verdict.admitted || !charge.enforced;
            policies.counted.push(counted);
        }
        if policies.admitted && intent == Intent::Charge {
            for (index, entry) in trial {
                let Some(unanswered) = charges.get(index) else { continue };
                let key = unanswered.charge.key;
                if table.contains_key(key) || table.len() < self.keys_max || make_room(&mut table, now) {
                    table.insert(key.clone(), entry);
                }
            }
        }
        policies
    }

    /// All that is owed for slots of which `back` says that they are answered again.
    pub(super) fn collect(&self, now: Timestamp, back: impl Fn(Slot) -> bool) -> Vec<Owed> {
        let now = self.server_time(now);
        let mut table = self.table();
        let mut all = Vec::new();
        for (key, entry) in table.iter_mut() {
            if entry.own.as_ref().is_some_and(|own| back(own.slot)) {
                all.extend(entry.own.take().and_then(|own| owed(key, own, now)));
            }
            if all.len() >= SWEPT_MAX {
                break;
            }
        }
        all
    }

    /// Owes again what could not be charged.
    pub(super) fn owe(&self, owed: &Owed, now: Timestamp) {
        let now = self.server_time(now);
        let mut table = self.table();
        let Some(entry) = table.get_mut(&owed.key) else { return };
        let live = u32::try_from(self.live.load(Ordering::Relaxed).max(1)).unwrap_or(u32::MAX);
        let share = share(owed.bucket.limit, live);
        let own = entry.own.get_or_insert_with(|| Own {
            state: State::new(owed.bucket.algorithm),
            share,
            owed: 0,
            bucket: owed.bucket.clone(),
            slot: owed.slot,
        });
        for (holder, places) in &owed.holders {
            let hold = Hold { step: HoldStep::Acquire, holder: *holder, places: *places };
            own.state.step(&own.share, now, &hold);
        }
        if owed.holders.is_empty() {
            own.state.take(&own.share, now, owed.permits);
        }
        own.owed = own.owed.saturating_add(owed.permits);
    }

    /// Forgets what no longer matters.
    pub(super) fn sweep(&self, now: Timestamp) {
        let now = self.server_time(now);
        let mut looked_at = 0;
        self.table().retain(|_, entry| {
            looked_at += 1;
            looked_at > SWEPT_MAX || !entry.is_spent(now)
        });
    }

    /// Buckets known, and the most there may be.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.table().len(), self.keys_max)
    }
}

/// A daemon's share of a limit: at least one permit, so that no limit becomes a ban. With more daemons than permits all of
/// them together may so admit one each.
fn share(limit: Limit, live: u32) -> Limit {
    let part = |permits: u32| if permits == 0 { 0 } else { (permits / live).max(1) };
    Limit { permits: part(limit.permits), burst: part(limit.burst), queue: limit.queue / live, ..limit }
}

fn owed(key: &Key, own: Own, now: Timestamp) -> Option<Owed> {
    // What has drained or left its window meanwhile no longer matters to Redis either.
    let mut permits = own.owed.min(own.state.used(&own.share, now));
    let mut holders = own.state.holders(now);
    let untold = holders.len().saturating_sub(HOLDERS_MAX);
    holders.truncate(HOLDERS_MAX);
    if own.bucket.algorithm == Algorithm::Concurrency {
        permits = holders.iter().map(|(_, places)| places).sum();
    }
    let owed = || Owed { key: key.clone(), slot: own.slot, bucket: own.bucket, permits, holders, untold };
    (permits > 0).then(owed)
}

/// Drops a few buckets that this daemon only knows of, or that no longer matter.
fn make_room(table: &mut HashMap<Key, Entry, RandomState>, now: Timestamp) -> bool {
    let spent = |entry: &Entry| entry.own.is_none() || entry.is_spent(now);
    let gone: Vec<Key> = table
        .iter()
        .take(LOOKED_AT_MAX)
        .filter(|(_, entry)| spent(entry))
        .map(|(key, _)| key.clone())
        .take(8)
        .collect();
    for key in &gone {
        table.remove(key);
    }
    !gone.is_empty()
}

impl Entry {
    fn is_spent(&self, now: Timestamp) -> bool {
        let known = self.known.as_ref().is_none_or(|state| state.expiry(&self.limit) <= now);
        let own = self.own.as_ref().is_none_or(|own| own.state.expiry(&own.share) <= now);
        known && own
    }

    fn charge(&mut self, unanswered: &Unanswered<'_>, live: u32, now: Timestamp) -> Counted {
        let charge = unanswered.charge;
        let share = share(charge.limit, live);
        let known = self.known.as_ref();
        let own = self.own.get_or_insert_with(|| {
            let mut state = State::new(unanswered.bucket.algorithm);
            let used = known.map_or(0, |known| known.used(&charge.limit, now));
            state.take(&share, now, used.div_ceil(u64::from(live)));
            Own { state, share, owed: 0, bucket: unanswered.bucket.clone(), slot: unanswered.slot }
        });
        own.share = share;
        let mut returned = 0;
        let verdict = match charge.cost {
            Cost::Refund(permits) => {
                returned = own.state.refund(&share, now, permits);
                own.owed = own.owed.saturating_sub(returned);
                Verdict { admitted: true, retry: None, ..own.state.check(&share, None, now, 0) }
            }
            Cost::Hold(hold) => {
                let verdict = own.state.check_hold(&share, now, &hold);
                if verdict.admitted {
                    returned = own.state.step(&share, now, &hold);
                    own.owed = match hold.step {
                        HoldStep::Acquire => own.owed.saturating_add(returned),
                        HoldStep::Renew => own.owed,
                        HoldStep::Release => own.owed.saturating_sub(returned),
                    };
                }
                verdict
            }
            cost => {
                let verdict = own.state.check(&share, None, now, cost.taken());
                if verdict.admitted && cost.taken() > 0 {
                    own.state.take(&share, now, cost.taken());
                    own.owed = own.owed.saturating_add(cost.taken());
                }
                verdict
            }
        };
        Counted {
            verdict,
            view: None,
            error_bound: 0,
            used: own.state.used(&share, now),
            returned,
            degraded: true,
        }
    }
}

fn passed(charge: &Charge<'_>) -> Counted {
    answer(Verdict {
        admitted: true,
        remaining: u64::from(charge.limit.permits),
        reset: Span::ZERO,
        retry: None,
        delay: Span::ZERO,
    })
}

/// Until Redis is back nobody knows when it would pass: a second is soon enough to ask again.
fn refused(charge: &Charge<'_>) -> Counted {
    let admitted = matches!(charge.cost, Cost::Refund(_) | Cost::Hold(Hold { step: HoldStep::Release, .. }));
    let retry = Span::from_secs(1);
    answer(Verdict {
        admitted,
        remaining: 0,
        reset: retry,
        retry: (!admitted).then_some(retry),
        delay: Span::ZERO,
    })
}

const fn answer(verdict: Verdict) -> Counted {
    Counted { verdict, view: None, error_bound: 0, used: 0, returned: 0, degraded: true }
}
