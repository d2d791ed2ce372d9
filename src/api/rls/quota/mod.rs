//! Envoy's rate limit quota service: gateways that decide by themselves, of permits that were taken before.
//!
//! [`crate::core::quota_assignments`] says what is assigned and when it is spent. Here are the streams: each
//! has a task that reads reports, asks the engine what is left, takes the permits of an assignment like any
//! check, and sends it. What a stream holds is in one table of the daemon, because streams share the permits
//! of a bucket.

mod receipts;
mod stream;
mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use h2::RecvStream;
use metrics::{Counter, Gauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::question::Questions;
use super::{Line, Respond, check_head, refuse};
use crate::api::Servers;
use crate::api::client_identity::ClientIdentity;
use crate::api::error::{Code, Refusal};
use crate::core::quota_assignments::{QuotaTable, WINDOW_LEAST};
use crate::core::request::{Attributes, Cost, Request};
use crate::core::time::{Span, Timestamp};
use crate::engine::assignable::Assignable;
use crate::telemetry::Metrics;

pub(super) use receipts::{Pings, Receipts};
use stream::serve;

/// The one call of the service.
pub(super) const STREAM_RATE_LIMIT_QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// Open streams, over all connections.
const STREAMS_MAX: usize = 20_000;
/// Pairs of a stream and a bucket, over all streams.
const PAIRS_MAX: usize = 250_000;
/// Windows that are ended before others are let at the table.
const TURNS_AT_ONCE: usize = 1_000;
/// Longest pause between two looks at windows that end.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Begins a stream.
pub(super) fn begin(line: &Line, request: http::Request<RecvStream>, respond: Respond) {
    let servers = &line.servers;
    let begun = check_head(&request).and_then(|()| servers.knows_rules()).and_then(|()| {
        let sentence = "as many streams of quotas are open as may be";
        servers.quotas.place().ok_or_else(|| Refusal::new(Code::Overloaded, sentence))
    });
    match begun {
        Ok(place) => {
            line.receipts.begin();
            let body = request.into_body();
            drop(tokio::spawn(serve(line.call(), Arc::clone(&line.receipts), body, respond, place)));
        }
        Err(refusal) => refuse(servers, respond, &refusal),
    }
}

/// All streams of a daemon.
pub(in crate::api) struct QuotaStreams {
    table: Mutex<QuotaTable>,
    ids: AtomicU64,
    places: Arc<Semaphore>,
    metrics: QuotaMetrics,
}

struct QuotaMetrics {
    streams: Gauge,
    buckets: Gauge,
    actions: [Counter; 4],
    taken: Counter,
    carried: Counter,
    refused: [Counter; 3],
    lost: [Counter; 3],
}

/// The place of one stream.
pub(super) struct StreamPlace {
    id: u64,
    open: Gauge,
    _place: OwnedSemaphorePermit,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.open.decrement(1);
    }
}

impl QuotaStreams {
    pub(in crate::api) fn new(metrics: &Metrics) -> Self {
        let actions = ["tokens", "deny", "allow", "abandon"];
        let permits = |event| metrics.counter("quota_permits_total", "event", event);
        let metrics = QuotaMetrics {
            streams: metrics.plain_gauge("quota_streams"),
            buckets: metrics.plain_gauge("quota_buckets"),
            actions: actions.map(|kind| metrics.counter("quota_actions_total", "kind", kind)),
            taken: permits("taken"),
            carried: permits("carried"),
            refused: ["rule", "full", "store"]
                .map(|reason| metrics.counter("quota_refused_total", "reason", reason)),
            lost: ["ended", "receipt", "refused"]
                .map(|reason| metrics.counter("quota_streams_lost_total", "reason", reason)),
        };
        let table = Mutex::new(QuotaTable::new(PAIRS_MAX));
        Self { table, ids: AtomicU64::new(0), places: Arc::new(Semaphore::new(STREAMS_MAX)), metrics }
    }

    /// A place for a stream; `None` where as many are open as may be.
    pub(super) fn place(&self) -> Option<StreamPlace> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        self.metrics.streams.increment(1);
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        Some(StreamPlace { id, open: self.metrics.streams.clone(), _place: place })
    }

    fn table(&self) -> MutexGuard<'_, QuotaTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells how many buckets are remembered.
    fn count_buckets(&self, table: &QuotaTable) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        self.metrics.buckets.set(table.len() as f64);
    }
}

/// The name of a bucket in the table: its domain and its pairs, each text behind its length.
fn name_of(domain: &str, pairs: &[(&str, &str)]) -> Arc<[u8]> {
    let mut name = Vec::with_capacity(64);
    let texts = std::iter::once(domain).chain(pairs.iter().flat_map(|(key, value)| [*key, *value]));
    for text in texts {
        name.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        name.extend_from_slice(text.as_bytes());
    }
    name.into()
}

/// The texts that such a name was made of.
fn texts_of(mut name: &[u8]) -> Vec<&str> {
    let mut texts = Vec::new();
    while let Some((len, rest)) = name.split_first_chunk() {
        let len = usize::try_from(u32::from_be_bytes(*len)).unwrap_or(usize::MAX);
        let Some((text, rest)) = rest.split_at_checked(len) else { break };
        texts.push(std::str::from_utf8(text).unwrap_or_default());
        name = rest;
    }
    texts
}

/// The question of a bucket, in the form that rules know.
fn question_of<'n>(name: &'n [u8]) -> Questions<'n> {
    let texts = texts_of(name);
    let (domain, pairs) = texts.split_first().map_or(("", &[][..]), |(domain, pairs)| (*domain, pairs));
    let pairs = pairs.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?)));
    let attributes: Attributes<'n> = pairs.collect();
    std::iter::once(Request::new(domain, attributes, Cost::Peek)).collect()
}

/// Ends the windows of buckets when they are over, and charges to the next what may still be spent of them.
/// Goes on for ever.
pub(in crate::api) async fn turn_windows(servers: &Servers) {
    let quotas = &servers.quotas;
    loop {
        let (now, next) = (servers.engine.now(), quotas.table().next_end());
        let until = next.map_or(Span::from_secs(1), |next| next.since(now)).to_std();
        tokio::time::sleep(until.min(LOOK_EVERY)).await;
        turn(servers).await;
    }
}

/// The same once, for windows that are over now.
async fn turn(servers: &Servers) {
    loop {
        let forced = {
            let mut table = servers.quotas.table();
            let forced = table.turn(servers.engine.now(), TURNS_AT_ONCE);
            servers.quotas.count_buckets(&table);
            let is_over = table.next_end().is_none_or(|next| next > servers.engine.now());
            (forced, is_over)
        };
        for (name, permits) in forced.0 {
            charge(servers, &name, permits).await;
            // A lost stream may still spend in further windows, also where no stream is left.
            let ends = window_end(servers, &name).await;
            let more = servers.quotas.table().enter(&name, ends, servers.engine.now());
            charge(servers, &name, more).await;
        }
        if forced.1 {
            return;
        }
    }
}

/// Returns when the window ends that the rules of a bucket count in now.
async fn window_end(servers: &Servers, name: &[u8]) -> Timestamp {
    let questions = question_of(name);
    let identity = ClientIdentity::read(servers, &questions);
    let questions = identity.put(questions);
    let now = servers.engine.now();
    let Some(question) = questions.first() else { return now + WINDOW_LEAST };
    match servers.engine.rights_left(question).await {
        Assignable::Left(left) => left.ends,
        _ => now + WINDOW_LEAST,
    }
}

/// Charges permits that may be spent in this window whatever is left of it.
async fn charge(servers: &Servers, name: &[u8], permits: u64) {
    if permits == 0 {
        return;
    }
    servers.quotas.metrics.carried.increment(permits);
    let questions = question_of(name);
    let identity = ClientIdentity::read(servers, &questions);
    let questions = identity.put(questions);
    if let Some(question) = questions.first() {
        servers.engine.charge_spent(question, permits).await;
    }
    if let Some(bucket) = servers.quotas.table().get(name) {
        bucket.carried(permits);
    }
}

/// Reads a report of what was used as a stranger wrote it.
#[cfg(feature = "fuzzing")]
pub(in crate::api) fn fuzzed(message: &[u8]) {
    let Ok(reports) = wire::decode(message) else { return };
    assert!(reports.rows.len() <= wire::ROWS_MAX, "a report has a bound");
    for row in &reports.rows {
        // What a bucket is called by says all of its pairs, and nothing else.
        let name = name_of(reports.domain, &row.pairs);
        let pairs = row.pairs.iter().flat_map(|(key, value)| [*key, *value]);
        let texts: Vec<&str> = std::iter::once(reports.domain).chain(pairs).collect();
        assert_eq!(texts_of(&name), texts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_named_by_its_domain_and_pairs() {
        let name = name_of("web", &[("a", "1"), ("b", "")]);
        assert_eq!(texts_of(&name), ["web", "a", "1", "b", ""]);
        assert_ne!(name, name_of("web", &[("a", "1b"), ("", "")]));
        let questions = question_of(&name);
        assert_eq!(questions[0].domain, "web");
        assert_eq!(questions[0].attributes.as_slice(), [("a", "1"), ("b", "")]);
    }
}
