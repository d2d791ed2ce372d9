//! The place at which decisions leave their records: a bounded queue that a decision never waits for.
//!
//! Each thread writes bytes into a slot that it shares with few others; what reads them takes whole slots. A
//! record that finds its slot full is dropped, counted as such, and in the sums: a storm of denials slows
//! nothing down. Memory is made ready by who reads, as much as the last reading needed: a
//! record neither allocates nor touches a page for the first time.
//!
//! A decision without a record of its own is added to the sums of its slot, so that sums are exact whatever
//! part of the decisions is recorded. Only the first of a user, path or key since the last reading allocates.

mod sampling;

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use metrics::Counter;
use tokio::sync::Notify;

use crate::core::audit::usage::{Sums, SumsOfRecord, Usage, UsageKey, joined};
use crate::core::audit::{Outcome, Record};
use crate::core::decision::Decision;
use crate::core::denial_cause::DenialCause;
use crate::core::hold::ReservedFor;
use crate::core::identity::is_key_name;
use crate::core::request::{REQUEST_ID, Request};
use crate::core::rule_name::RuleName;
use crate::core::time::{Span, Timestamp};
use crate::engine::identity::secret::{FINGERPRINT_DIGITS, fingerprint};
use crate::telemetry::Metrics;

use sampling::Sampled;
pub use sampling::Sampling;

/// Slots; threads are dealt out over them.
const SLOTS: usize = 16;
/// Most bytes that wait in one slot, about ten thousand records. Full: records are dropped and counted.
pub const SLOT_BYTES_MAX: usize = 1 << 20;
/// A slot this full asks to be read before its time.
const SLOT_BYTES_URGENT: usize = SLOT_BYTES_MAX / 4;
/// Rules share so many counts of rows a second, each by the hash of its name: two in a storm may share one.
const ROW_COUNTS: usize = 1_024;
/// Most sums of one slot, some 4 MB. Users, paths and keys beyond share one.
const SLOT_SUMS_MAX: usize = 8_192;
/// Most rules of one slot whose denials without rows are kept apart. More: dropped and counted.
const UNLISTED_MAX: usize = 4_096;

/// On cache lines of its own, two of them because they are fetched in pairs: threads of other slots do not
/// slow it down.
#[derive(Default)]
#[repr(align(128))]
struct OwnLine(Mutex<Slot>);

impl OwnLine {
    fn lock(&self) -> std::sync::MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Slot {
    bytes: Vec<u8>,
    rows: u64,
    /// Denials without rows of their own, by rule, in the order of [`UNLISTED`].
    unlisted: [HashMap<String, Unlisted, RandomState>; UNLISTED.len()],
    /// Decisions without records, added up.
    sums: Sums,
}

/// Outcomes of decisions that may have no rows of their own.
const UNLISTED: [Outcome; 4] = [Outcome::Denied, Outcome::ShadowDenied, Outcome::Blocked, Outcome::Diverted];

/// Denials of one rule that are told by one record of them all.
#[derive(Debug)]
struct Unlisted {
    many: u64,
    /// Instant of the newest denial among them.
    at: Timestamp,
    domain: String,
    limit: u32,
    status: u16,
    latency_us: u32,
}

/// Records that were taken out of the queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TakenRecords {
    /// Records one after the other, as [`Record::write`] wrote them.
    pub bytes: Vec<u8>,
    /// Number of records that `bytes` holds.
    pub rows: u64,
}

impl TakenRecords {
    /// One record for all denials of a rule that have none of their own: of nobody, and of no path.
    fn tell_unlisted(&mut self, unlisted: [HashMap<String, Unlisted, RandomState>; UNLISTED.len()]) {
        for (all, outcome) in unlisted.into_iter().zip(UNLISTED) {
            for (rule, of) in all {
                let mut left = of.many;
                while left > 0 {
                    let weight = u32::try_from(left).unwrap_or(u32::MAX);
                    left -= u64::from(weight);
                    let record = Record {
                        at: of.at,
                        domain: &of.domain,
                        rule: Some(&*rule).filter(|rule| !rule.is_empty()),
                        user: None,
                        key: None,
                        address: None,
                        path: None,
                        method: None,
                        outcome,
                        cost: 0,
                        count: 0,
                        limit: of.limit,
                        status: of.status,
                        retry_ms: None,
                        cause: None,
                        request_id: None,
                        latency_us: of.latency_us,
                        weight,
                    };
                    record.write(&mut self.bytes);
                    self.rows += 1;
                }
            }
        }
    }
}

/// A request, and what a record says besides.
#[derive(Clone, Copy)]
pub(super) struct Question<'a, 'r> {
    pub(super) request: &'a Request<'r>,
    /// The user whom the key that it shows belongs to.
    pub(super) owner: Option<&'a str>,
}

/// The fate of a request's cost, whatever was decided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CostFate {
    /// It was taken if the request was admitted.
    Asked,
    /// It was charged: a report.
    Charged,
    /// It was taken before, and not again: a report or reservation that was sent again under its id.
    Repeated,
}

impl Question<'_, '_> {
    /// The user, and the API key as records name it.
    pub(super) fn client(&self) -> (Option<String>, Option<String>) {
        let given = |name| self.request.attribute(name);
        let user = given("user").or(self.owner).map(str::to_owned);
        (user, given("api_key").map(|key| key_name(key).as_str().to_owned()))
    }
}

/// Permits that a reservation used, and the rule by which that is remembered.
pub(super) struct CommittedCost<'a> {
    pub(super) rule: &'a RuleName,
    pub(super) reserved: &'a ReservedFor,
    /// Permits that the committed reservation really used.
    pub(super) actual: u64,
    /// Permits in use of the bucket after the commit.
    pub(super) used: u64,
    pub(super) limit: u32,
}

/// The queue between decisions and what remembers them.
pub struct Queue {
    slots: Vec<OwnLine>,
    sampled: ArcSwap<Sampled>,
    /// By the hash of a rule: the second (above) and its rows so far (the lower half).
    row_counts: Vec<AtomicU64>,
    unlisted: Counter,
    /// Names of decisions without records that found no sum of their own.
    merged: AtomicU64,
    urgent: Notify,
    asked: AtomicBool,
    dropped: Counter,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("sampled", &self.sampled).finish_non_exhaustive()
    }
}

impl Queue {
    /// A queue that takes every denied decision and one of each `one_in` allowed; 0: none of them.
    #[must_use]
    pub fn new(one_in: u32, metrics: &Metrics) -> Arc<Self> {
        let sampling = Sampling { allowed_one_in: one_in, denied_one_in: 1, ..Sampling::default() };
        Self::sampling(sampling, metrics)
    }

    /// A queue that takes these.
    #[must_use]
    pub fn sampling(sampling: Sampling, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..SLOTS).map(|_| OwnLine::default()).collect(),
            sampled: ArcSwap::from_pointee(Sampled::new(sampling)),
            row_counts: (0..ROW_COUNTS).map(|_| AtomicU64::new(0)).collect(),
            unlisted: metrics.audit_unlisted.clone(),
            merged: AtomicU64::new(0),
            urgent: Notify::new(),
            asked: AtomicBool::new(false),
            dropped: metrics.counter("audit_dropped_total", "reason", "queue_full"),
        })
    }

    /// Takes these from now on.
    pub fn set_sampling(&self, sampling: Sampling) {
        self.sampled.store(Arc::new(Sampled::new(sampling)));
    }

    /// True if a denial by this rule gets a row of its own in this second.
    fn has_row(&self, rule: &str, now: Timestamp, max: u32) -> bool {
        let max = u64::from(max);
        if max == 0 {
            return true;
        }
        let place = usize::try_from(FixedState::default().hash_one(rule)).unwrap_or(usize::MAX) % ROW_COUNTS;
        let count = &self.row_counts[place];
        let second = (now.micros() / 1_000_000) << 32;
        let known = count.load(Ordering::Relaxed);
        if known >> 32 << 32 == second {
            // Once there are enough nobody writes here any more, which a storm on many cores would wait for.
            return known - second < max && count.fetch_add(1, Ordering::Relaxed) - second < max;
        }
        // Two threads may both begin a second: then it has one row more.
        count.store(second | 1, Ordering::Relaxed);
        true
    }

    /// Adds a decision without a record to the sums.
    fn count(&self, record: &Record<'_>, of: SumsOfRecord) {
        let merged = self.slots[own_slot()].lock().sums.add_within(record, of, SLOT_SUMS_MAX);
        self.note_merged(merged);
    }

    fn note_merged(&self, merged: u64) {
        if merged > 0 {
            self.merged.fetch_add(merged, Ordering::Relaxed);
        }
    }

    /// Adds a denial to those of its rule that one record tells of, and to the sums of whoever asked.
    fn unlist(&self, record: &Record<'_>) {
        let rule = record.rule.unwrap_or_default();
        let mut slot = self.slots[own_slot()].lock();
        let merged = slot.sums.add_within(record, SumsOfRecord::Names, SLOT_SUMS_MAX);
        let place = UNLISTED.iter().position(|outcome| *outcome == record.outcome).unwrap_or(0);
        let unlisted = &mut slot.unlisted[place];
        let many = u64::from(record.weight);
        let is_kept = if let Some(known) = unlisted.get_mut(rule) {
            known.many = known.many.saturating_add(many);
            known.at = record.at;
            true
        } else if unlisted.len() < UNLISTED_MAX {
            let Record { at, limit, status, latency_us, .. } = *record;
            let domain = record.domain.to_owned();
            unlisted.insert(rule.to_owned(), Unlisted { many, at, domain, limit, status, latency_us });
            true
        } else {
            false
        };
        if !is_kept {
            slot.sums.add_within(record, SumsOfRecord::Rule, SLOT_SUMS_MAX);
        } else if record.outcome == Outcome::ShadowDenied {
            // It passed, and the one record knows no cost.
            let charge = Record { outcome: Outcome::Committed, ..*record };
            slot.sums.add_within(&charge, SumsOfRecord::Rule, SLOT_SUMS_MAX);
        }
        drop(slot);
        self.note_merged(merged);
        if is_kept { self.unlisted.increment(many) } else { self.dropped.increment(many) }
    }

    /// Records or counts what a reservation used, as its decision was: all are recorded where a rule takes
    /// part whose every decision is, else one in so many by chance.
    pub(super) fn tell_commit<'a>(
        &self,
        committed: &CommittedCost<'_>,
        rules: impl Iterator<Item = &'a str>,
        now: Timestamp,
    ) {
        let has_row = self.sampled.load().takes(Outcome::Committed, rules);
        let CommittedCost { rule, reserved, actual, used, limit } = *committed;
        let cost = i128::from(actual) - i128::from(reserved.permits);
        let record = Record {
            at: now,
            domain: &rule.domain,
            rule: Some(&rule.name),
            user: reserved.user.as_deref(),
            key: reserved.key.as_deref(),
            address: None,
            path: None,
            method: None,
            outcome: Outcome::Committed,
            cost: i64::try_from(cost).unwrap_or(if cost < 0 { i64::MIN } else { i64::MAX }),
            count: used,
            limit,
            status: 200,
            retry_ms: None,
            cause: None,
            request_id: None,
            latency_us: 0,
            weight: 1,
        };
        if has_row { self.push(&record) } else { self.count(&record, SumsOfRecord::All) }
    }

    /// Leaves a record. Never waits for more than another thread's record.
    pub fn push(&self, record: &Record<'_>) {
        let mut slot = self.slots[own_slot()].lock();
        if slot.bytes.len() >= SLOT_BYTES_MAX {
            let merged = slot.sums.add_within(record, SumsOfRecord::All, SLOT_SUMS_MAX);
            drop(slot);
            self.note_merged(merged);
            self.dropped.increment(1);
            return;
        }
        record.write(&mut slot.bytes);
        slot.rows += 1;
        let urgent = slot.bytes.len() >= SLOT_BYTES_URGENT;
        drop(slot);
        if urgent && !self.asked.swap(true, Ordering::Relaxed) {
            self.urgent.notify_one();
        }
    }

    /// Takes the sums of the decisions without records, sorted, and each once.
    #[must_use]
    pub fn take_sums(&self) -> Vec<(UsageKey, Usage)> {
        let taken = self.slots.iter().map(|slot| std::mem::take(&mut slot.lock().sums));
        joined(&taken.flat_map(Sums::into_sorted).collect::<Vec<_>>())
    }

    /// True if so many sums wait in a slot that they should be taken before their time.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.slots.iter().any(|slot| slot.lock().sums.len() >= SLOT_SUMS_MAX / 2)
    }

    /// Users, paths and keys of decisions without records that found no sum of their own, since the start.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.merged.load(Ordering::Relaxed)
    }

    /// Takes all records that wait.
    #[must_use]
    pub fn take(&self) -> TakenRecords {
        self.asked.store(false, Ordering::Relaxed);
        let mut taken = TakenRecords::default();
        for slot in &self.slots {
            let mut now = slot.lock();
            let len = now.bytes.len();
            let unlisted = std::mem::take(&mut now.unlisted);
            drop(now);
            taken.tell_unlisted(unlisted);
            if len == 0 {
                continue;
            }
            // The new buffer has room for as much as is waiting now, so that a storm finds room and the calm
            // after it keeps none.
            let mut fresh = Vec::new();
            fresh.resize(len.min(SLOT_BYTES_MAX), u8::MAX);
            fresh.clear();
            let mut slot = slot.lock();
            let bytes = std::mem::replace(&mut slot.bytes, fresh);
            let rows = std::mem::take(&mut slot.rows);
            drop(slot);
            taken.rows += rows;
            if taken.bytes.is_empty() {
                taken.bytes = bytes;
            } else {
                taken.bytes.extend_from_slice(&bytes);
            }
        }
        taken
    }

    /// Records that wait now.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.slots.iter().map(|slot| slot.lock().rows).sum()
    }

    /// True if none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns once a slot is so full that it should be read before its time.
    pub async fn urgent(&self) {
        self.urgent.notified().await;
    }

    /// Records what became of a request, if it is to be recorded, and counts it otherwise. `used`: permits in
    /// use after it under the rule of this index.
    pub(super) fn tell(
        &self,
        question: Question<'_, '_>,
        (decision, fate): (&Decision, CostFate),
        now: Timestamp,
        end: impl FnOnce() -> Timestamp,
        used: impl FnOnce(usize) -> u64,
    ) {
        let charged = fate == CostFate::Charged;
        let (outcome, index) = outcome_of(decision);
        let sampled = self.sampled.load();
        let is_sampled = sampled.takes(outcome, decision.rules.iter().map(|ruled| &*ruled.rule));
        let ruled = index.and_then(|index| decision.rules.get(index));
        let rule = ruled.map(|ruled| &*ruled.rule);
        let has_row = is_sampled
            && (matches!(outcome, Outcome::Allowed | Outcome::Throttled)
                || self.has_row(rule.unwrap_or_default(), now, sampled.denied_rows_max));
        let Question { request, owner } = question;
        let mut asked =
            AuditClient { user: owner, request_id: request.forms.request_id, ..AuditClient::default() };
        for (name, value) in request.attributes.iter() {
            match *name {
                "user" => asked.user = Some(value),
                "api_key" => asked.key = Some(key_name(value)),
                "ip" => asked.address = Some(value),
                // A query may hold secrets. It is remembered only where the server hands it on as such.
                "path" => asked.path = request.forms.target.or_else(|| value.split(['?', '#']).next()),
                "method" => asked.method = Some(value),
                REQUEST_ID => asked.request_id = Some(value),
                _ => {}
            }
        }
        let record = Record {
            at: now,
            domain: request.domain,
            rule,
            user: asked.user,
            key: asked.key.as_ref().map(KeyName::as_str),
            address: asked.address,
            path: asked.path,
            method: asked.method,
            request_id: asked.request_id,
            outcome,
            cost: if fate == CostFate::Repeated { 0 } else { request.cost.to_signed() },
            count: index.filter(|_| is_sampled).map_or(0, used),
            limit: ruled.map_or(0, |ruled| ruled.limit),
            status: decision.status,
            retry_ms: ruled
                .filter(|ruled| !ruled.allowed)
                .and_then(|ruled| ruled.retry)
                .map(|wait| wait.millis_up()),
            cause: ruled.and_then(|ruled| ruled.cause),
            latency_us: u32::try_from(end().since(now).micros()).unwrap_or(u32::MAX),
            weight: 1,
        };
        match (is_sampled, has_row) {
            (false, _) => self.count(&record, SumsOfRecord::All),
            (true, true) => self.push(&record),
            (true, false) => self.unlist(&record),
        }
        if charged && !outcome.takes_cost() {
            // Sums take no permits of such a decision, and these must be in them however many rows there are.
            let charge =
                Record { outcome: Outcome::Committed, status: 200, retry_ms: None, cause: None, ..record };
            if is_sampled { self.push(&charge) } else { self.count(&charge, SumsOfRecord::All) }
        }
    }
}

/// The outcome of a decision, and the rule that it is remembered under: of what passed that is the one which
/// would have denied, else the one which delayed it longest, else the tightest.
fn outcome_of(decision: &Decision) -> (Outcome, Option<usize>) {
    if !decision.allowed {
        let blocked = decision.cause() == Some(DenialCause::Blocked);
        return (if blocked { Outcome::Blocked } else { Outcome::Denied }, decision.tightest);
    }
    if decision.use_instead().is_some() {
        return (Outcome::Diverted, decision.tightest);
    }
    if let Some(index) = decision.rules.iter().position(|ruled| ruled.shadow && !ruled.allowed) {
        return (Outcome::ShadowDenied, Some(index));
    }
    let delay = decision.delay();
    if delay > Span::ZERO {
        let index = decision.rules.iter().position(|ruled| !ruled.shadow && ruled.delay == delay);
        return (Outcome::Throttled, index);
    }
    (Outcome::Allowed, decision.tightest)
}

/// The part of a record that says who asked, and for what.
#[derive(Default)]
struct AuditClient<'a> {
    user: Option<&'a str>,
    key: Option<KeyName<'a>>,
    address: Option<&'a str>,
    path: Option<&'a str>,
    method: Option<&'a str>,
    request_id: Option<&'a str>,
}

/// The name of a key in a record.
pub(super) enum KeyName<'a> {
    Given(&'a str),
    Made(String),
}

impl KeyName<'_> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Given(name) => name,
            Self::Made(name) => name,
        }
    }
}

/// The public name of a key of ours and a fingerprint stay what they are; anything else may be the secret
/// itself, and only its fingerprint is kept.
pub(super) fn key_name(value: &str) -> KeyName<'_> {
    if is_key_name(value) {
        return KeyName::Given(value);
    }
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if value.len() == FINGERPRINT_DIGITS && value.bytes().all(is_digit) {
        return KeyName::Given(value);
    }
    KeyName::Made(fingerprint(value.as_bytes()))
}

/// The slot of this thread.
fn own_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS);
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::audit::Records;

    fn record(user: &str) -> Record<'_> {
        Record {
            at: Timestamp(1),
            domain: "default",
            rule: None,
            user: Some(user),
            key: None,
            address: None,
            path: None,
            method: None,
            outcome: Outcome::Denied,
            cost: 1,
            count: 1,
            limit: 1,
            status: 429,
            retry_ms: None,
            cause: None,
            request_id: None,
            latency_us: 1,
            weight: 1,
        }
    }

    #[test]
    fn what_many_threads_push_is_taken_once_and_whole() {
        let queue = Queue::new(100, &Metrics::new());
        let taken: Vec<TakenRecords> = std::thread::scope(|scope| {
            for thread in 0..4 {
                let queue = &queue;
                scope.spawn(move || (0..5_000).for_each(|n| queue.push(&record(&format!("{thread}-{n}")))));
            }
            (0..200).map(|_| queue.take()).collect()
        });
        let mut users = std::collections::BTreeSet::new();
        for taken in taken.iter().chain([&queue.take()]) {
            let mut records = Records::of(&taken.bytes);
            users.extend(records.by_ref().map(|record| record.user.unwrap().to_owned()));
            assert!(records.is_whole());
        }
        assert_eq!(users.len(), 20_000);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let metrics = Metrics::new();
        let queue = Queue::new(0, &metrics);
        let user = "u".repeat(1_000);
        let pushed = 2 * SLOT_BYTES_MAX / 1_000;
        (0..pushed).for_each(|_| queue.push(&record(&user)));
        let taken = queue.take();
        assert!(taken.bytes.len() < SLOT_BYTES_MAX + 1_200, "{}", taken.bytes.len());
        let dropped = u64::try_from(pushed).unwrap() - taken.rows;
        assert!(dropped > 0);
        let line = format!("tidegate_audit_dropped_total{{reason=\"queue_full\"}} {dropped}");
        assert!(metrics.render().contains(&line), "{}", metrics.render());
        let sums = queue.take_sums();
        let denied = sums.iter().find(|(key, _)| key.is_total()).map(|(_, usage)| usage.denied);
        assert_eq!(denied, Some(dropped), "the sums have what has no record");
    }

    #[tokio::test]
    async fn a_queue_that_fills_up_asks_to_be_read() {
        let queue = Queue::new(0, &Metrics::new());
        let user = "u".repeat(1_000);
        (0..SLOT_BYTES_URGENT / 1_000 + 1).for_each(|_| queue.push(&record(&user)));
        tokio::time::timeout(std::time::Duration::from_secs(5), queue.urgent()).await.unwrap();
    }

    #[test]
    fn decisions_without_records_are_counted_in_bounded_memory_and_taken_once() {
        let queue = Queue::new(0, &Metrics::new());
        let allowed = |user: &str| {
            queue.count(&Record { outcome: Outcome::Allowed, ..record(user) }, SumsOfRecord::All);
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let allowed = &allowed;
                scope.spawn(move || (0..3_000).for_each(|n| allowed(&format!("u{}", n % 3))));
            }
        });
        let of = |sums: &[(UsageKey, Usage)], user: &str| -> u64 {
            sums.iter().filter(|(key, _)| key.user == user).map(|(_, usage)| usage.allowed).sum()
        };
        let taken = queue.take_sums();
        assert_eq!((of(&taken, ""), of(&taken, "u0"), queue.merged()), (12_000, 4_000, 0));
        assert_eq!(taken.len(), 4);
        assert!(queue.take_sums().is_empty() && queue.take().bytes.is_empty());

        (0..SLOT_SUMS_MAX + 10).for_each(|n| allowed(&format!("n{n}")));
        assert!(queue.is_crowded());
        let taken = queue.take_sums();
        assert_eq!(of(&taken, ""), u64::try_from(SLOT_SUMS_MAX + 10).unwrap());
        // The rule's own sum is one of them, and the others' comes beyond.
        assert_eq!((of(&taken, "*"), taken.len(), queue.merged()), (11, SLOT_SUMS_MAX + 1, 11));
        assert!(!queue.is_crowded());
    }

    #[test]
    fn a_secret_is_remembered_by_its_fingerprint_only() {
        assert_eq!(key_name("abc").as_str(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(key_name("ba7816bf8f01cfea414140de5dae2223").as_str(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(key_name("tgk_abcdefGHI012").as_str(), "tgk_abcdefGHI012");
        let whole = "tgk_abcdefGHI012_abcdefghijklmnopqrstuvwxyzABCDEF";
        assert!(!key_name(whole).as_str().contains("tgk_"));
    }

    #[test]
    fn denials_beyond_the_rows_of_a_second_are_told_by_one_record() {
        let metrics = Metrics::new();
        let sampling = Sampling { denied_one_in: 1, denied_rows_max: 3, ..Sampling::default() };
        let queue = Queue::sampling(sampling, &metrics);
        let second = |n: u64| Timestamp(n * 1_000_000 + 7);
        let deny = |rule: &'static str, at: Timestamp| {
            let record = Record { rule: Some(rule), at, ..record("ann") };
            if queue.has_row(rule, at, queue.sampled.load().denied_rows_max) {
                queue.push(&record)
            } else {
                queue.unlist(&record)
            }
        };
        (0..10).for_each(|_| deny("storm", second(5)));
        deny("calm", second(5));
        (0..2).for_each(|_| deny("storm", second(6)));
        let taken = queue.take();
        let all: Vec<_> = Records::of(&taken.bytes).collect();
        assert_eq!((taken.rows, all.len()), (7, 7));
        let storm = |of: &dyn Fn(&Record<'_>) -> bool| -> u32 {
            all.iter()
                .filter(|record| record.rule == Some("storm") && of(record))
                .map(|record| record.weight)
                .sum()
        };
        assert_eq!((storm(&|_| true), storm(&|record| record.user.is_none())), (12, 7));
        let sums = queue.take_sums();
        let names: Vec<_> = sums.iter().map(|(key, usage)| (&*key.user, usage.denied)).collect();
        assert_eq!(names, [("ann", 7)], "the record has the rule's, and these are hers");
        assert!(metrics.render().contains("tidegate_audit_unlisted_total 7"));
        assert!(queue.take().bytes.is_empty());
        let rules: Vec<_> = (0..=UNLISTED_MAX).map(|n| format!("r{n}")).collect();
        rules.iter().for_each(|rule| queue.unlist(&Record { rule: Some(rule), ..record("ann") }));
        let sums = queue.take_sums();
        let totals =
            sums.iter().filter(|(key, _)| key.is_total()).map(|(key, usage)| (&*key.rule, usage.denied));
        assert_eq!(totals.collect::<Vec<_>>(), [(&*rules[UNLISTED_MAX], 1)], "no record tells of it");
    }
}
