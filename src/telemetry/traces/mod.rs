//! Spans on their way to a collector of traces: which are told, what they are named, and the bounded queue
//! that nobody waits for. Code that is measured opens a span; when it is dropped it has ended.
//!
//! Absent a configuration there is no [`Tracer`], and who would open a span finds none.

mod messages;
mod otlp;
mod parent;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::Counter;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Metrics;
use crate::core::time::Timestamp;

pub use otlp::{TraceResource, encode, rejected};
pub use parent::TraceParent;

/// Spans that wait in memory. One that ends then is dropped and counted.
const WAITING_MAX: usize = 4_096;
/// Most spans that are sent at once.
const BATCH_SPANS_MAX: usize = 512;
/// Time for which spans are collected before they are sent.
const FLUSH: Duration = Duration::from_secs(1);
/// Longest text of a span, in bytes; the rest is cut off.
const TEXT_BYTES_MAX: usize = 1_024;
/// Bits of a trace's id that decide whether it is sampled, as collectors and other services decide it.
const SAMPLED_BITS: u32 = 56;
const MILLION: u128 = 1_000_000;

/// The parties to what a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpanKind {
    /// Nobody else.
    #[default]
    Internal,
    /// Somebody asked this daemon.
    Server,
    /// This daemon asked somebody.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// Yes or no.
    Bool(bool),
    /// A number.
    Number(i64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(cut(text))
    }
}

/// A text as far as it may be told.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text.get(..end).unwrap_or_default().to_owned()
}

impl From<bool> for AttributeValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpanRecord {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    name: Cow<'static, str>,
    kind: SpanKind,
    from: Timestamp,
    to: Timestamp,
    attributes: Vec<(&'static str, AttributeValue)>,
    error: Option<String>,
}

/// The setup of a tracer.
#[derive(Debug, Clone, Copy)]
pub struct TracerSetup {
    /// Random: the ids of spans are made from it.
    pub key: (u64, u64),
    /// Decisions in a million that are told without a sampled parent.
    pub sample_millionths: u32,
    /// The store of the buckets, as spans name it.
    pub store: &'static str,
    /// Clock of the daemon, from which spans take their begin and end.
    pub now: fn() -> Timestamp,
}

/// Takes spans.
pub struct Tracer {
    setup: TracerSetup,
    /// Traces whose number is below this are told without a sampled parent.
    sampled_below: u64,
    named: AtomicU64,
    waiting: Mutex<VecDeque<SpanRecord>>,
    arrived: Notify,
    /// Notified when a whole batch of spans waits.
    enough: Notify,
    full: Counter,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("setup", &self.setup).finish_non_exhaustive()
    }
}

impl Tracer {
    /// Takes spans from now on. Spans that find no room are counted.
    #[must_use]
    pub fn new(setup: TracerSetup, metrics: &Metrics) -> Arc<Self> {
        let below = (u128::from(setup.sample_millionths) << SAMPLED_BITS) / MILLION;
        Arc::new(Self {
            setup,
            sampled_below: u64::try_from(below).unwrap_or(u64::MAX),
            named: AtomicU64::new(0),
            waiting: Mutex::default(),
            arrived: Notify::new(),
            enough: Notify::new(),
            full: metrics.counter("trace_spans_total", "outcome", "queue_full"),
        })
    }

    /// Returns what keeps buckets.
    #[must_use]
    pub const fn store(&self) -> &'static str {
        self.setup.store
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.setup.now)()
    }

    /// Opens the span of a decision, if its caller records its own, or if it belongs to the sample.
    pub fn decision(
        self: &Arc<Self>,
        parent: Option<TraceParent>,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Option<OpenSpan> {
        let is_sampled = parent.is_some_and(|parent| parent.sampled);
        if !is_sampled && self.sampled_below == 0 {
            return None;
        }
        let trace = parent.map_or_else(|| self.id(), |parent| parent.trace);
        if !is_sampled && number_of(&trace) >= self.sampled_below {
            return None;
        }
        Some(self.begin(trace, parent, name(), SpanKind::Server))
    }

    /// Opens a span that is told whatever the sample says: of what happens seldom.
    pub fn open(
        self: &Arc<Self>,
        parent: Option<TraceParent>,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
    ) -> OpenSpan {
        let trace = parent.map_or_else(|| self.id(), |parent| parent.trace);
        self.begin(trace, parent, name.into(), kind)
    }

    fn begin(
        self: &Arc<Self>,
        trace: [u8; 16],
        parent: Option<TraceParent>,
        name: Cow<'static, str>,
        kind: SpanKind,
    ) -> OpenSpan {
        let [id, _] = halves(self.id());
        let parent = parent.map(|parent| parent.span);
        let span = SpanRecord { trace, id, parent, name, kind, from: self.now(), ..SpanRecord::default() };
        OpenSpan { tracer: Arc::clone(self), span }
    }

    /// An id that no other process makes, and that is not zero.
    fn id(&self) -> [u8; 16] {
        let mut hasher = SipHasher13::new_with_keys(self.setup.key.0, self.setup.key.1);
        std::hash::Hasher::write_u64(&mut hasher, self.named.fetch_add(1, Ordering::Relaxed));
        let mut id = hasher.finish128().as_bytes();
        let [first, _] = halves(id);
        if first == [0; 8] {
            id[0] = 1;
        }
        id
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<SpanRecord>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, span: SpanRecord) {
        let mut waiting = self.lock();
        if waiting.len() >= WAITING_MAX {
            self.full.increment(1);
            return;
        }
        waiting.push_back(span);
        let many = waiting.len();
        drop(waiting);
        if many == 1 {
            self.arrived.notify_one();
        } else if many == BATCH_SPANS_MAX {
            self.enough.notify_one();
        }
    }

    /// Returns how many spans wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().len()
    }

    /// Hands over the oldest that wait, as many as are sent at once.
    #[must_use]
    pub fn take(&self) -> Vec<SpanRecord> {
        let mut waiting = self.lock();
        let many = waiting.len().min(BATCH_SPANS_MAX);
        waiting.drain(..many).collect()
    }

    /// Waits until spans have been collected for a while, or are as many as are sent at once.
    pub async fn collected(&self) {
        while self.waiting() == 0 {
            self.arrived.notified().await;
        }
        let enough = async {
            while self.waiting() < BATCH_SPANS_MAX {
                self.enough.notified().await;
            }
        };
        let _ = timeout(FLUSH, enough).await;
    }
}

fn halves(id: [u8; 16]) -> [[u8; 8]; 2] {
    let (first, second) = id.split_at(8);
    [first, second].map(|half| half.first_chunk().copied().unwrap_or_default())
}

/// The number of a trace, of [`SAMPLED_BITS`] bits.
fn number_of(trace: &[u8; 16]) -> u64 {
    let [_, last] = halves(*trace);
    u64::from_be_bytes(last) & ((1 << SAMPLED_BITS) - 1)
}

/// A span of what is under way. It ends when it is dropped, and is told then.
#[derive(Debug)]
pub struct OpenSpan {
    tracer: Arc<Tracer>,
    span: SpanRecord,
}

impl OpenSpan {
    /// The same span, which began then.
    #[must_use]
    pub fn since(mut self, from: Timestamp) -> Self {
        self.span.from = from;
        self
    }

    /// Says something of it.
    pub fn set(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        self.span.attributes.push((name, value.into()));
    }

    /// Says that what it is about has failed.
    pub fn fail(&mut self, why: &str) {
        self.span.error = Some(cut(why));
    }

    /// Returns who takes it.
    #[must_use]
    pub const fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let mut span = std::mem::take(&mut self.span);
        // The clock may have been set back meanwhile.
        span.to = self.tracer.now().max(span.from);
        self.tracer.push(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(sample_millionths: u32) -> Arc<Tracer> {
        let setup = TracerSetup { key: (1, 2), sample_millionths, store: "memory", now: || Timestamp(7) };
        Tracer::new(setup, &Metrics::new())
    }

    fn parent(sampled: bool) -> TraceParent {
        TraceParent { trace: [0xab; 16], span: [3; 8], sampled }
    }

    #[test]
    fn without_a_sample_only_callers_that_record_are_told() {
        let tracer = tracer(0);
        assert!(tracer.decision(None, || "x".into()).is_none());
        assert!(tracer.decision(Some(parent(false)), || "x".into()).is_none());
        drop(tracer.decision(Some(parent(true)), || "x".into()).unwrap());
        let [span] = &tracer.take()[..] else { panic!("one span") };
        assert_eq!((span.trace, span.parent, span.to), ([0xab; 16], Some([3; 8]), Timestamp(7)));
        assert_ne!(span.id, [0; 8]);
    }

    #[test]
    fn a_sample_takes_its_part_and_the_same_of_every_trace() {
        let tracer = tracer(250_000);
        let told = (0..4_000).filter(|_| tracer.decision(None, || "x".into()).is_some()).count();
        assert!((850..1_150).contains(&told), "{told}");
        let mut low = parent(false);
        low.trace[9] = 1;
        assert!(tracer.decision(Some(low), || "x".into()).is_some());
        assert!(tracer.decision(Some(parent(false)), || "x".into()).is_none());
    }

    #[test]
    fn ids_differ() {
        let tracer = tracer(0);
        let ids: std::collections::BTreeSet<_> = (0..10_000).map(|_| halves(tracer.id())[0]).collect();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn a_full_queue_keeps_the_oldest_and_hands_them_over_in_batches() {
        let tracer = tracer(0);
        for number in 0..WAITING_MAX as u64 + 10 {
            tracer.open(None, "x", SpanKind::Internal).set("number", number);
        }
        assert_eq!(tracer.waiting(), WAITING_MAX);
        let first = tracer.take();
        assert_eq!((first.len(), tracer.waiting()), (BATCH_SPANS_MAX, WAITING_MAX - BATCH_SPANS_MAX));
        assert_eq!(first[0].attributes, [("number", AttributeValue::Number(0))]);
    }

    #[tokio::test]
    async fn spans_are_collected_for_a_while_unless_they_are_many() {
        let tracer = tracer(0);
        assert!(timeout(FLUSH / 10, tracer.collected()).await.is_err(), "there is none");
        drop(tracer.open(None, "x", SpanKind::Internal));
        assert!(timeout(FLUSH / 10, tracer.collected()).await.is_err());
        tracer.collected().await;
        (0..BATCH_SPANS_MAX).for_each(|_| drop(tracer.open(None, "x", SpanKind::Internal)));
        timeout(FLUSH / 2, tracer.collected()).await.unwrap();
    }

    #[test]
    fn a_text_is_cut_between_letters() {
        let AttributeValue::Text(text) = AttributeValue::from("ä".repeat(2_000).as_str()) else { panic!() };
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        let AttributeValue::Text(text) = AttributeValue::from(format!("x{}", "ä".repeat(2_000)).as_str())
        else {
            panic!()
        };
        assert_eq!(text.len(), TEXT_BYTES_MAX - 1);
    }
}
