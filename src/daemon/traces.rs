//! Sends spans to a collector by OTLP over HTTP: in batches, each within a deadline, a few times at most.
//! Spans that are not taken then are counted and gone. Nobody waits for it but the end of the daemon, for a
//! moment.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use metrics::Counter;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::setup::Setup;
use super::store::StoreSetup;
use crate::config;
use crate::engine::clock::{Clock, Deadline};
use crate::engine::tasks::Tasks;
use crate::telemetry::Metrics;
use crate::telemetry::traces::{TraceResource, Tracer, TracerSetup, encode, rejected};

/// Longest time for the last spans when the daemon drains; the rest is lost.
pub(super) const DRAIN: Duration = Duration::from_secs(1);
/// Most attempts to send a batch before it is given up.
const ATTEMPTS_MAX: u32 = 3;
/// First and longest wait after a failure; each wait is twice as long as the one before.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1_024;
/// Most causes of failures that are told apart, until spans are taken again.
const CAUSES_MAX: usize = 16;
/// The end of the address of every collector.
const PATH: &str = "/v1/traces";

/// The sender of one daemon's spans.
pub(super) struct TraceExport {
    shared: Arc<TraceExporter>,
}

struct TraceExporter {
    tracer: Arc<Tracer>,
    client: reqwest::Client,
    url: String,
    resource: TraceResource,
    /// The batch that is being sent. One at a time sends.
    batch: tokio::sync::Mutex<Option<TraceBatch>>,
    /// Causes of failures that the log has told.
    told: Mutex<BTreeSet<String>>,
    counts: TraceCounts,
}

struct TraceBatch {
    spans: u64,
    body: Bytes,
    attempts: u32,
}

struct TraceCounts {
    delivered: Counter,
    refused: Counter,
    undelivered: Counter,
    exports: Counter,
    failures: Counter,
}

impl TraceCounts {
    fn new(metrics: &Metrics) -> Self {
        let spans = |outcome| metrics.counter("trace_spans_total", "outcome", outcome);
        let exports = |outcome| metrics.counter("trace_exports_total", "outcome", outcome);
        // The tracer counts these, and there may be none.
        spans("queue_full").increment(0);
        Self {
            delivered: spans("delivered"),
            refused: spans("refused"),
            undelivered: spans("undelivered"),
            exports: exports("delivered"),
            failures: exports("failed"),
        }
    }
}

/// Reasons why a batch was not taken.
enum NotTaken {
    /// It may be taken later.
    Yet(String),
    /// It never will be.
    Ever(String),
}

impl TraceExport {
    /// Returns what the configuration asks for; `None` where it asks for none. The counters exist all the
    /// same.
    ///
    /// # Errors
    /// No client can be made, or the system gives no randomness.
    pub(super) fn prepare(setup: &Setup, metrics: &Metrics) -> anyhow::Result<Option<Self>> {
        let counts = TraceCounts::new(metrics);
        let Some(traces) = &setup.traces else { return Ok(None) };
        let mut key = [0; 16];
        SystemRandom::new().fill(&mut key).ok().context("traces: the system gives no randomness")?;
        let (low, high) = (u128::from_ne_bytes(key) & u128::from(u64::MAX), u128::from_ne_bytes(key) >> 64);
        let half = |half| u64::try_from(half).unwrap_or_default();
        let tracer = TracerSetup {
            key: (half(low), half(high)),
            sample_millionths: traces.sample.0,
            store: match setup.store {
                StoreSetup::Memory { .. } => "memory",
                StoreSetup::Redis(_) => "redis",
            },
            now: || Clock::System.now(),
        };
        // Headers may be secrets, which go nowhere else.
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        let client = client.timeout(traces.timeout.to_std()).default_headers(headers(traces)?);
        let client = client.build().context("traces.endpoint: no client can be made")?;
        let shared = TraceExporter {
            tracer: Tracer::new(tracer, metrics),
            client,
            url: url(&traces.endpoint),
            resource: TraceResource {
                service: traces.service_name.clone(),
                region: setup.name.region.clone(),
                node: setup.name.node.clone(),
            },
            batch: tokio::sync::Mutex::default(),
            told: Mutex::default(),
            counts,
        };
        Ok(Some(Self { shared: Arc::new(shared) }))
    }

    /// The tracer that takes spans.
    pub(super) fn tracer(&self) -> Arc<Tracer> {
        Arc::clone(&self.shared.tracer)
    }

    /// Starts sending, until `stop`.
    pub(super) fn start(&self, stop: &CancellationToken, tasks: &Tasks) {
        tasks.spawn_on("traces", stop, &self.shared, send_on);
    }

    /// Sends what waits, at most until the deadline.
    pub(super) async fn drain(&self, deadline: Deadline) {
        let all = async { while self.shared.has_some().await && self.shared.send_next().await.is_ok() {} };
        let _ = deadline.wait(all).await;
        let held =
            self.shared.batch.try_lock().map_or(0, |held| held.as_ref().map_or(0, |batch| batch.spans));
        let left = u64::try_from(self.shared.tracer.waiting()).unwrap_or(u64::MAX).saturating_add(held);
        if left > 0 {
            tracing::warn!(spans = left, "spans are lost: the collector did not take them before the end");
        }
    }
}

fn headers(traces: &config::Traces) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION"))));
    for (name, value) in &traces.headers {
        let mut value = HeaderValue::from_str(value).context("traces.headers")?;
        value.set_sensitive(true);
        headers.insert(HeaderName::try_from(name).context("traces.headers")?, value);
    }
    Ok(headers)
}

/// The address that spans are posted to.
fn url(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    if endpoint.ends_with(PATH) { endpoint.to_owned() } else { format!("{endpoint}{PATH}") }
}

async fn send_on(shared: Arc<TraceExporter>, stop: CancellationToken) {
    let mut wait = RETRY.0;
    let sending = async {
        loop {
            if !shared.has_batch().await {
                shared.tracer.collected().await;
            }
            if shared.send_next().await.is_ok() {
                wait = RETRY.0;
            } else {
                sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
            }
        }
    };
    let _: Option<()> = stop.run_until_cancelled(sending).await;
}

impl TraceExporter {
    async fn has_batch(&self) -> bool {
        self.batch.lock().await.is_some()
    }

    async fn has_some(&self) -> bool {
        self.has_batch().await || self.tracer.waiting() > 0
    }

    /// Sends the batch that was not taken yet, or the next one. A batch that will not be taken is given up.
    async fn send_next(&self) -> Result<(), ()> {
        let mut held = self.batch.lock().await;
        let Some(batch) = held.take().or_else(|| self.next_batch()) else { return Ok(()) };
        // The batch stays here while it is sent, for whoever sends it if this is given up.
        let batch = held.insert(batch);
        batch.attempts += 1;
        let cause = match self.post(batch.body.clone()).await {
            Ok(answer) => {
                self.taken(batch.spans, rejected(&answer));
                *held = None;
                return Ok(());
            }
            Err(NotTaken::Yet(cause)) => {
                if batch.attempts >= ATTEMPTS_MAX {
                    self.counts.undelivered.increment(batch.spans);
                    *held = None;
                }
                cause
            }
            Err(NotTaken::Ever(cause)) => {
                self.counts.refused.increment(batch.spans);
                *held = None;
                cause
            }
        };
        self.counts.failures.increment(1);
        self.tell(cause);
        Err(())
    }

    fn next_batch(&self) -> Option<TraceBatch> {
        let spans = self.tracer.take();
        let many = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let batch = || TraceBatch { spans: many, body: encode(&self.resource, spans).into(), attempts: 0 };
        (many > 0).then(batch)
    }

    async fn post(&self, body: Bytes) -> Result<Vec<u8>, NotTaken> {
        let failed =
            |error: reqwest::Error| NotTaken::Yet(format!("{:#}", anyhow::Error::new(error.without_url())));
        let mut answer = self.client.post(&self.url).body(body).send().await.map_err(failed)?;
        let status = answer.status();
        if !status.is_success() {
            let cause = format!("it answers {status}");
            // These alone are worth another attempt, as OTLP has it.
            let later = matches!(status.as_u16(), 408 | 429 | 502 | 503 | 504);
            return Err(if later { NotTaken::Yet(cause) } else { NotTaken::Ever(cause) });
        }
        let mut read = Vec::new();
        // The spans were taken, whatever becomes of the rest of the answer.
        while let Ok(Some(part)) = answer.chunk().await {
            read.extend_from_slice(&part);
            if read.len() > ANSWER_BYTES_MAX {
                break;
            }
        }
        Ok(read)
    }

    fn taken(&self, spans: u64, rejected: Option<(u64, String)>) {
        self.counts.exports.increment(1);
        let (refused, why) = rejected.unwrap_or_default();
        let refused = refused.min(spans);
        self.counts.refused.increment(refused);
        self.counts.delivered.increment(spans - refused);
        if refused > 0 {
            self.tell(format!("it refuses some spans: {why}"));
            return;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut *told).is_empty() {
            tracing::info!("the collector takes spans again");
        }
    }

    /// Logs a failure, each cause once until spans are taken again.
    fn tell(&self, cause: String) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < CAUSES_MAX && !told.contains(&cause) {
            tracing::warn!("the collector of traces takes no spans: {cause}");
            told.insert(cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_to_the_path_of_the_protocol() {
        for (endpoint, expected) in [
            ("http://h:4318", "http://h:4318/v1/traces"),
            ("http://h:4318/", "http://h:4318/v1/traces"),
            ("https://h/otlp", "https://h/otlp/v1/traces"),
            ("https://h/v1/traces", "https://h/v1/traces"),
        ] {
            assert_eq!(url(endpoint), expected);
        }
    }
}
