//! The failure policy of each rule: this daemon decides by itself where Redis does not answer in time or has
//! no room.
//!
//! `local` enforces this daemon's share, the limit divided by the region's live daemons, starting from the
//! same share of what the region had last used. Permits that it admits are kept until they have been charged
//! in Redis. A key that finds no room shares a stand-in with others: nothing is admitted uncounted.

mod entry;
mod stand_in;
mod told;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use self::entry::{Entry, Own, share};
use self::stand_in::{StandIn, StandIns};
use crate::core::algorithm::{Limit, State, Verdict};
use crate::core::hold::{Hold, HoldStep};
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::rule::OnFailure;
use crate::core::ruleset::Compiled;
use crate::core::table::{Table, TablePlace};
use crate::core::time::{Span, Timestamp};
use crate::engine::port::{Charge, ChargeResult, Intent, StoreLen};
use crate::store::escrowed::is_escrowed;
use crate::store::redis::client::slots::ClusterSlot;
use crate::store::redis::policy::daemons::Daemons;
use crate::store::redis::servers::plan::Unanswered;
use crate::store::slot::refunds_whole;
use crate::store::spread::Spread;

pub(in crate::store::redis) use self::entry::{Owed, reserved_again};
pub(in crate::store::redis) use self::told::{
    AllowanceWord, BucketBefore, Confirmed, Elapsed, Forgotten, ToldAllowance,
};

/// Entries of each table that one sweep looks at.
const SWEEP_ENTRIES: usize = 256;
/// By so much at most the instants of answers differ that come out of order.
const STEPPED_BACK: Span = Span::from_secs(1);
/// Debtors looked at in one collection.
const DEBTORS_LOOKED_AT: usize = 20_000;

/// Decides from memory.
#[derive(Debug)]
pub(in crate::store::redis) struct Fallback {
    shelves: Box<[Mutex<FallbackSlot>]>,
    spread: Spread,
    /// Locked only after shelves, never before, so that no two wait for each other.
    stand_ins: Mutex<StandIns>,
    keys_max: usize,
    policy: OnFailure,
    daemons: Arc<Daemons>,
    /// The servers' time less this daemon's, in microseconds, as last heard.
    offset: AtomicI64,
    /// Instant at which a server last did not answer, by the servers' time.
    trouble: AtomicU64,
    /// Keys that wait to have their debts charged.
    debtors: AtomicUsize,
    /// Charges that found no room since the start.
    full: AtomicU64,
    full_told: AtomicBool,
}

/// A part of the keys.
#[derive(Debug)]
struct FallbackSlot {
    entries: Table<Entry>,
    /// Keys that owe, each at least once.
    debtors: VecDeque<Key>,
    evicted: u64,
}

/// The decisions of the policies.
#[derive(Debug)]
pub(in crate::store::redis) struct Policies {
    /// True if everything that is enforced passes.
    pub(in crate::store::redis) admitted: bool,
    /// Results in the order of the charges, one for each.
    pub(in crate::store::redis) counted: SmallVec<[ChargeResult; 2]>,
}

/// One charge as `local` tries it, before it is known whether all pass.
struct Trial<'a> {
    unanswered: &'a Unanswered<'a>,
    shelf: usize,
    hash: u64,
    kept: Kept,
    entry: Entry,
}

/// The place that keeps a trial's bucket.
#[derive(Clone, Copy)]
enum Kept {
    /// In its shelf's table; `made` for this decision.
    Here { place: TablePlace, made: bool },
    /// Nowhere: it was only asked about.
    Nowhere,
    /// It found no room.
    InStandIn(StandIn),
}

/// One decision while its charges are tried: what is locked for it, and what was tried so far.
struct Trying<'a> {
    shelves: LockedShelves<'a>,
    stand_ins: MutexGuard<'a, StandIns>,
    trials: SmallVec<[Trial<'a>; 2]>,
    intent: Intent,
    daemons: u32,
    now: Timestamp,
}

/// Shelves by their index, locked.
type LockedShelves<'s> = SmallVec<[(usize, MutexGuard<'s, FallbackSlot>); 2]>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fallback {
    pub(in crate::store::redis) fn new(policy: OnFailure, daemons: Arc<Daemons>, keys_max: usize) -> Self {
        let spread = Spread::new(keys_max.max(1));
        let shelf = |keys_max| {
            Mutex::new(FallbackSlot { entries: Table::new(keys_max), debtors: VecDeque::new(), evicted: 0 })
        };
        Self {
            shelves: spread.capacities(keys_max.max(1)).map(shelf).collect(),
            spread,
            stand_ins: Mutex::default(),
            keys_max: keys_max.max(1),
            policy,
            daemons,
            offset: AtomicI64::new(0),
            trouble: AtomicU64::new(0),
            debtors: AtomicUsize::new(0),
            full: AtomicU64::new(0),
            full_told: AtomicBool::new(false),
        }
    }

    /// The servers' time when it is `now` here.
    pub(in crate::store::redis) fn server_time(&self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.offset.load(Ordering::Relaxed)))
    }

    /// Takes in the servers' time, as told when it was `now` here.
    pub(in crate::store::redis) fn hear_time(&self, server: Timestamp, now: Timestamp) {
        let offset = i64::try_from(server.0).unwrap_or(i64::MAX) - i64::try_from(now.0).unwrap_or(i64::MAX);
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Takes in what Redis said of a bucket at `server`. Gives back what the bucket owes, if it owes: the
    /// caller charges it.
    pub(in crate::store::redis) fn learn(
        &self,
        key: &Key,
        limit: Limit,
        state: Option<State>,
        server: Timestamp,
    ) -> Option<Owed> {
        let (index, hash) = self.spread.place(key);
        let mut shelf = self.shelves.get(index).map(locked)?;
        let shelf = &mut *shelf;
        let place = match shelf.entries.find(hash, key.bytes()) {
            Some(place) => place,
            None => {
                state.as_ref()?;
                let inserted = shelf.entries.insert(hash, key.bytes(), Entry::default(), server, |_| false);
                let inserted = inserted.ok()?;
                shelf.evicted += u64::from(inserted.evicted);
                inserted.place
            }
        };
        let entry = shelf.entries.get_mut(place)?;
        // Answers come out of order; a clock that was set back is believed.
        if server >= entry.known_at || server + STEPPED_BACK < entry.known_at {
            (entry.known, entry.known_at, entry.unsure) = (state, server, false);
        }
        let own = entry.own.take();
        let (expiry, weight) = entry.rating(&limit, server);
        shelf.entries.rate(place, expiry, weight);
        own?.settle(key, server)
    }

    /// Remembers what Redis is to be told of the other regions, until it would forget it.
    pub(in crate::store::redis) fn tell(
        &self,
        key: &Key,
        limit: &Limit,
        word: AllowanceWord,
        now: Timestamp,
    ) {
        let now = self.server_time(now);
        let (index, hash) = self.spread.place(key);
        let Some(mut shelf) = self.shelves.get(index).map(locked) else { return };
        let shelf = &mut *shelf;
        let place = match shelf.entries.find(hash, key.bytes()) {
            Some(place) => place,
            None => {
                let Ok(made) = shelf.entries.insert(hash, key.bytes(), Entry::default(), now, |_| false)
                else {
                    return;
                };
                shelf.evicted += u64::from(made.evicted);
                made.place
            }
        };
        let Some(entry) = shelf.entries.get_mut(place) else { return };
        let confirmed = entry.told.as_ref().and_then(|told| told.confirmed);
        let AllowanceWord { allowance, error_bound, kept } = word;
        let told = ToldAllowance { allowance, error_bound, until: now + kept, confirmed };
        entry.told = Some(Box::new(told));
        let (expiry, weight) = entry.rating(limit, now);
        shelf.entries.rate(place, expiry, weight);
    }

    /// A server did not answer at `now`, and may have lost what it said before.
    pub(in crate::store::redis) fn note_trouble(&self, now: Timestamp) {
        self.trouble.fetch_max(self.server_time(now).0, Ordering::Relaxed);
    }

    /// Redis could not be told what the world leaves of a bucket: it may have lost the bucket too.
    pub(in crate::store::redis) fn doubt(&self, key: &Key) {
        let (index, hash) = self.spread.place(key);
        let Some(mut shelf) = self.shelves.get(index).map(locked) else { return };
        if let Some(place) = shelf.entries.find(hash, key.bytes())
            && let Some(entry) = shelf.entries.get_mut(place)
        {
            entry.unsure = true;
        }
    }

    /// Redis has what it was told of a bucket. Where the write was sent while an earlier one held, and found
    /// nothing there, Redis has lost what it had, the bucket with it.
    pub(in crate::store::redis) fn confirm(
        &self,
        key: &Key,
        confirmed: Confirmed,
        sent: Duration,
        was_there: bool,
    ) {
        let (index, hash) = self.spread.place(key);
        let Some(mut shelf) = self.shelves.get(index).map(locked) else { return };
        if let Some(place) = shelf.entries.find(hash, key.bytes())
            && let Some(entry) = shelf.entries.get_mut(place)
            && let Some(told) = entry.told.as_mut()
        {
            let (before, times) = (told.confirmed, Elapsed { sent, now: confirmed.from });
            told.confirmed = Some(confirmed.after(before));
            entry.unsure |= !was_there && before.is_some_and(|before| before.holds(times));
        }
    }

    /// Returns what Redis has forgotten of a bucket, as an answer shows it: the allowance that it had
    /// confirmed is gone, or the bucket is older than it was.
    pub(in crate::store::redis) fn forgotten(
        &self,
        key: &Key,
        limit: &Limit,
        before: BucketBefore,
        times: Elapsed,
    ) -> Option<Forgotten> {
        let (index, hash) = self.spread.place(key);
        let shelf = self.shelves.get(index).map(locked)?;
        let entry = shelf.entries.get(shelf.entries.find(hash, key.bytes())?)?;
        let confirmed = entry.told.as_ref().and_then(|told| told.confirmed);
        let is_gone = !before.has_allowance && confirmed.is_some_and(|confirmed| confirmed.holds(times));
        let known = entry.known.as_ref().filter(|known| known.used(limit, before.now) > 0);
        // An allowance that could not be written says the same as an answer that did not come.
        let trouble = match entry.unsure {
            true => before.now,
            false => Timestamp(self.trouble.load(Ordering::Relaxed)),
        };
        let is_older = || known.is_some_and(|known| before.is_older_than(known, entry.known_at, trouble));
        if !is_gone && !is_older() {
            return None;
        }
        let used = entry.known.as_ref().map(|known| known.region_use(limit, before.now));
        Some(Forgotten { used: used.filter(|known| known.used > 0), told: entry.told.as_deref().copied() })
    }

    /// Forgets a bucket.
    pub(in crate::store::redis) fn forget(&self, key: &Key) {
        let (index, hash) = self.spread.place(key);
        let Some(mut shelf) = self.shelves.get(index).map(locked) else { return };
        if let Some(place) = shelf.entries.find(hash, key.bytes()) {
            shelf.entries.remove(place);
        }
    }

    /// Decides charges by their policies, as one: all that are enforced pass, or none is counted.
    ///
    /// `others_admit` says whether what Redis did answer passes; only then is anything counted.
    pub(in crate::store::redis) fn decide(
        &self,
        charges: &[Unanswered<'_>],
        intent: Intent,
        now: Timestamp,
        others_admit: bool,
    ) -> Policies {
        let (asked, now) = (now, self.server_time(now));
        let daemons = self.daemons.count();
        let mut trying = Trying {
            shelves: self.lock(charges),
            stand_ins: locked(&self.stand_ins),
            trials: SmallVec::new(),
            intent,
            daemons,
            now,
        };
        let mut policies = Policies { admitted: others_admit, counted: SmallVec::new() };
        for unanswered in charges {
            let charge = unanswered.charge;
            let counted = match self.policy_of(charge.rule) {
                OnFailure::Open => passed(charge),
                OnFailure::Closed => refused(charge),
                OnFailure::Local => self.try_local(unanswered, &mut trying),
            };
            policies.admitted &= counted.verdict.admitted || !charge.enforced;
            policies.counted.push(counted);
        }
        self.end_trials(trying, policies.admitted && intent == Intent::Charge);
        if !policies.admitted && intent == Intent::Charge {
            self.report(charges, asked);
        }
        policies
    }

    /// Charges this daemon's share on trial, if it fits.
    fn try_local<'a>(&self, unanswered: &'a Unanswered<'a>, trying: &mut Trying<'a>) -> ChargeResult {
        let charge = unanswered.charge;
        let Some(mut trial) = self.begin(unanswered, trying) else { return refused(charge) };
        let before = match trial.kept {
            Kept::InStandIn(_) => 0,
            _ if trying.stand_ins.is_empty() => 0,
            _ => trying.stand_ins.used(StandIn::of(charge.key.shape(), trial.hash), trying.now),
        };
        let counted = trial.entry.charge(unanswered, trying.daemons, before, trying.now);
        trying.trials.push(trial);
        counted
    }

    /// Keeps what was tried if it counts, and unlocks what was locked for it.
    fn end_trials(&self, trying: Trying<'_>, counts: bool) {
        let Trying { mut shelves, mut stand_ins, trials, now, .. } = trying;
        // In their order: of one key charged twice the last trial holds both.
        for trial in trials {
            let Some((_, shelf)) = shelves.iter_mut().find(|(index, _)| *index == trial.shelf) else {
                continue;
            };
            match (trial.kept, counts) {
                (Kept::InStandIn(name), true) => stand_ins.put(name, trial.entry),
                (Kept::Here { place, .. }, true) => self.keep(shelf, place, trial, now),
                (Kept::Here { place, made: true }, false) => drop(shelf.entries.remove(place)),
                _ => {}
            }
        }
    }

    /// Charges what was reported by a decision that is denied: it has happened.
    fn report(&self, charges: &[Unanswered<'_>], now: Timestamp) {
        for unanswered in charges.iter().filter(|unanswered| unanswered.charge.cost.is_report()) {
            // Nobody is asked, so nothing is denied.
            let charge = Charge { enforced: false, ..*unanswered.charge };
            let alone = Unanswered { charge: &charge, bucket: unanswered.bucket, slot: unanswered.slot };
            self.decide(&[alone], Intent::Charge, now, true);
        }
    }

    /// The policy of a rule.
    pub(in crate::store::redis) fn policy_of(&self, rule: &Compiled) -> OnFailure {
        if is_escrowed(rule) {
            return OnFailure::Closed;
        }
        rule.rule.on_failure.unwrap_or(self.policy)
    }

    /// Locks what `local` charges lie in, in one order for everyone, so that no two decisions wait for each
    /// other.
    fn lock(&self, charges: &[Unanswered<'_>]) -> LockedShelves<'_> {
        let local = charges.iter().filter(|own| self.policy_of(own.charge.rule) == OnFailure::Local);
        let mut wanted: SmallVec<[usize; 4]> = local.map(|own| self.spread.place(own.charge.key).0).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.into_iter().filter_map(|index| Some((index, self.shelves.get(index).map(locked)?))).collect()
    }

    /// The bucket that a charge is tried on; `None` where there is no room for it at all.
    fn begin<'a>(&self, unanswered: &'a Unanswered<'a>, trying: &mut Trying<'a>) -> Option<Trial<'a>> {
        let Trying { shelves, stand_ins, trials, intent, now, .. } = trying;
        let now = *now;
        let key = unanswered.charge.key;
        let (index, hash) = self.spread.place(key);
        let trial = |kept, entry| Some(Trial { unanswered, shelf: index, hash, kept, entry });
        if let Some(same) = trials.iter().rev().find(|other| other.unanswered.charge.key == key) {
            let kept = match same.kept {
                Kept::Here { place, .. } => Kept::Here { place, made: false },
                kept => kept,
            };
            return trial(kept, same.entry.clone());
        }
        let (_, shelf) = shelves.iter_mut().find(|(own, _)| *own == index)?;
        if let Some(place) = shelf.entries.find(hash, key.bytes()) {
            let entry = shelf.entries.get(place).cloned().unwrap_or_default();
            return trial(Kept::Here { place, made: false }, entry);
        }
        if *intent == Intent::Ask {
            return trial(Kept::Nowhere, Entry::default());
        }
        let pinned = |place: TablePlace| {
            trials.iter().any(|other| {
                other.shelf == index && matches!(other.kept, Kept::Here { place: own, .. } if own == place)
            })
        };
        match shelf.entries.insert(hash, key.bytes(), Entry::default(), now, pinned) {
            Ok(inserted) => {
                shelf.evicted += u64::from(inserted.evicted);
                trial(Kept::Here { place: inserted.place, made: true }, Entry::default())
            }
            Err(_) => {
                self.note_full();
                let name = StandIn::of(key.shape(), hash);
                // What an earlier charge of this decision took from it counts too.
                let same = |other: &&Trial<'_>| matches!(other.kept, Kept::InStandIn(own) if own == name);
                let entry = trials.iter().rev().find(same).map(|other| other.entry.clone());
                trial(Kept::InStandIn(name), entry.or_else(|| stand_ins.get(name, now))?)
            }
        }
    }

    fn keep(&self, shelf: &mut FallbackSlot, place: TablePlace, trial: Trial<'_>, now: Timestamp) {
        let Trial { unanswered, mut entry, .. } = trial;
        if let Some(own) = entry.own.as_mut().filter(|own| own.owes() && !own.listed) {
            own.listed = true;
            shelf.debtors.push_back(unanswered.charge.key.clone());
            self.debtors.fetch_add(1, Ordering::Relaxed);
        }
        let (expiry, weight) = entry.rating(&unanswered.charge.limit, now);
        if let Some(kept) = shelf.entries.get_mut(place) {
            *kept = entry;
            shelf.entries.rate(place, expiry, weight);
        }
    }

    fn note_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
        if !self.full_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                keys_max = self.keys_max,
                "redis does not answer, and this daemon counts as many keys by itself as store.max_keys allows: keys that find no room share their limit with others"
            );
        }
    }

    /// True if any key owes.
    pub(in crate::store::redis) fn owes(&self) -> bool {
        self.debtors.load(Ordering::Relaxed) > 0
    }

    /// Returns what a key owes, which then owes nothing: the caller charges it, or owes it again.
    pub(in crate::store::redis) fn settle(&self, key: &Key, now: Timestamp) -> Option<Owed> {
        let now = self.server_time(now);
        let (index, hash) = self.spread.place(key);
        let mut shelf = self.shelves.get(index).map(locked)?;
        let place = shelf.entries.find(hash, key.bytes())?;
        shelf.entries.get_mut(place)?.own.as_mut()?.settle(key, now)
    }

    /// Returns what is owed for slots of which `back` says that they are answered again: that of `most` keys
    /// at most.
    pub(in crate::store::redis) fn collect(
        &self,
        now: Timestamp,
        most: usize,
        back: impl Fn(ClusterSlot) -> bool,
    ) -> Vec<Owed> {
        let now = self.server_time(now);
        let mut all = Vec::new();
        let mut looked_at = 0;
        for shelf in &self.shelves {
            if !self.owes() || looked_at >= DEBTORS_LOOKED_AT {
                break;
            }
            let mut shelf = locked(shelf);
            for _ in 0..shelf.debtors.len() {
                if all.len() >= most || looked_at >= DEBTORS_LOOKED_AT {
                    return all;
                }
                looked_at += 1;
                let Some(key) = shelf.debtors.pop_front() else { break };
                let (_, hash) = self.spread.place(&key);
                let place = shelf.entries.find(hash, key.bytes());
                let own = place.and_then(|place| shelf.entries.get_mut(place)?.own.as_mut());
                match own.filter(|own| own.listed) {
                    Some(own) if !back(own.slot) => shelf.debtors.push_back(key),
                    own => {
                        self.debtors.fetch_sub(1, Ordering::Relaxed);
                        all.extend(own.and_then(|own| {
                            own.listed = false;
                            own.settle(&key, now)
                        }));
                    }
                }
            }
        }
        all
    }

    /// Owes again what could not be charged.
    pub(in crate::store::redis) fn owe(&self, owed: &Owed, now: Timestamp) {
        let now = self.server_time(now);
        let (index, hash) = self.spread.place(&owed.key);
        let Some(mut shelf) = self.shelves.get(index).map(locked) else { return };
        let shelf = &mut *shelf;
        let Some(place) = shelf.entries.find(hash, owed.key.bytes()) else { return };
        let Some(entry) = shelf.entries.get_mut(place) else { return };
        let own = entry.own.get_or_insert_with(|| Box::new(forgotten(owed, self.daemons.count(), now)));
        own.owed = own.owed.saturating_add(owed.permits);
        own.reserve_again(&owed.reserved);
        if !std::mem::replace(&mut own.listed, true) {
            shelf.debtors.push_back(owed.key.clone());
            self.debtors.fetch_add(1, Ordering::Relaxed);
        }
        let (expiry, weight) = entry.rating(&owed.bucket.limit, now);
        shelf.entries.rate(place, expiry, weight);
    }

    /// Forgets what no longer matters.
    pub(in crate::store::redis) fn sweep(&self, now: Timestamp) {
        let now = self.server_time(now);
        let mut keys = 0;
        for shelf in &self.shelves {
            let mut shelf = locked(shelf);
            shelf.entries.sweep(now, SWEEP_ENTRIES);
            keys += shelf.entries.len();
        }
        locked(&self.stand_ins).sweep(now);
        if keys < self.keys_max / 10 * 9 {
            self.full_told.store(false, Ordering::Relaxed);
        }
    }

    /// Returns how full it is.
    pub(in crate::store::redis) fn len(&self) -> StoreLen {
        let full = self.full.load(Ordering::Relaxed);
        let mut len = StoreLen { keys_max: self.keys_max, full, ..StoreLen::default() };
        for shelf in &self.shelves {
            let shelf = locked(shelf);
            len.keys += shelf.entries.len();
            len.evicted += shelf.evicted;
        }
        len
    }
}

/// Returns what a daemon counted by itself, as far as a debt tells of it.
fn forgotten(owed: &Owed, daemons: u32, now: Timestamp) -> Own {
    let share = share(owed.bucket.limit, daemons);
    let mut state = State::new(owed.bucket.algorithm);
    for (holder, places) in &owed.holders {
        let hold = Hold { step: HoldStep::Acquire, holder: *holder, places: *places };
        state.step(&share, now, &hold);
    }
    if owed.holders.is_empty() {
        state.take(&share, now, owed.permits);
    }
    let (bucket, slot, debt_max) = (owed.bucket.clone(), owed.slot, owed.debt_max);
    Own { state, share, owed: 0, debt_max, notes: None, listed: false, bucket, slot }
}

pub(in crate::store::redis) fn passed(charge: &Charge<'_>) -> ChargeResult {
    degraded_result(Verdict {
        admitted: true,
        remaining: u64::from(charge.limit.permits),
        reset: Span::ZERO,
        retry: None,
        delay: Span::ZERO,
    })
}

/// Nobody knows when it would pass until Redis is back: a second is soon enough to ask again.
fn refused(charge: &Charge<'_>) -> ChargeResult {
    let admitted = match charge.cost {
        Cost::Refund(_) => !refunds_whole(charge.rule),
        Cost::Commit(_) | Cost::Hold(Hold { step: HoldStep::Release, .. }) => true,
        _ => false,
    };
    let retry = Span::from_secs(1);
    degraded_result(Verdict {
        admitted,
        remaining: 0,
        reset: retry,
        retry: (!admitted).then_some(retry),
        delay: Span::ZERO,
    })
}

const fn degraded_result(verdict: Verdict) -> ChargeResult {
    ChargeResult {
        verdict,
        view: None,
        error_bound: 0,
        used: 0,
        returned: 0,
        reported: 0,
        uncharged: 0,
        paid: 0,
        owed: 0,
        lapsed: 0,
        reservation: None,
        penalty: None,
        degraded: true,
    }
}
