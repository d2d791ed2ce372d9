//! The two tasks that carry events: one empties the queue into the log and the spool, the other sends the
//! oldest batch of the spool until the receiver has taken it.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use metrics::{Counter, Gauge};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::body::{batch_body, signature};
use super::spool::{EventBatch, EventSpool, EventSpoolError};
use crate::core::event::EventRecord;
use crate::core::regions::NodeName;
use crate::core::time::{Span, Timestamp};
use crate::database::batch_id::BatchId;
use crate::engine::Engine;
use crate::engine::clock::Deadline;
use crate::engine::tasks::Tasks;

/// Time for which events are collected before they are written.
const FLUSH: Duration = Duration::from_millis(100);
/// Most events of one batch.
const BATCH_EVENTS_MAX: usize = 100;
/// Most lines that one flush writes to the log; of the rest only the number is told.
const LINES_MAX: usize = 20;
/// Batches that wait in memory while the spool cannot be written.
const HELD_MAX: usize = 8;
/// First and longest wait after a failure; each wait is twice as long as the one before.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// Attempts in a row to read a batch, before it is set aside: about ten seconds.
const READS_MAX: u32 = 7;
/// Shortest secret, in bytes: what can be guessed signs nothing.
const SECRET_BYTES_MIN: usize = 16;

/// The setup of the courier that sends events.
#[derive(Debug, Clone)]
pub struct EventCourierSetup {
    /// URL of the receiver that takes the events.
    pub url: String,
    /// The file of the secret that signs them.
    pub secret: PathBuf,
    /// Folder in which batches wait for the receiver.
    pub spool: PathBuf,
    /// Most bytes that may wait in the spool.
    pub spool_max_bytes: u64,
    /// Longest time for one attempt to deliver a batch.
    pub timeout: Duration,
    /// Time for which a batch is sent again and again.
    pub keep: Span,
}

/// The running tasks.
#[derive(Debug)]
pub struct EventCourier {
    shared: Arc<EventCourierShared>,
}

#[derive(Debug)]
struct EventCourierShared {
    engine: Arc<Engine>,
    /// Receiver and spool; `None`: events are only logged.
    sending: Option<Sending>,
    /// Batches that the spool did not take, oldest first. All are newer than those in it.
    held: Mutex<VecDeque<EventBatch>>,
    /// One at a time empties the queue.
    collecting: tokio::sync::Mutex<()>,
    incarnation: u64,
    sequence: AtomicU64,
    changed: Notify,
    counts: EventCounts,
}

#[derive(Debug)]
struct Sending {
    setup: EventCourierSetup,
    spool: EventSpool,
    client: reqwest::Client,
    secret: Mutex<Vec<u8>>,
    /// Attempts in a row to read the oldest batch.
    unread: AtomicU32,
}

#[derive(Debug)]
struct EventCounts {
    spool_full: Counter,
    spool_failed: Counter,
    expired: Counter,
    damaged: Counter,
    delivered: Counter,
    failed: Counter,
    spooled: Gauge,
}

/// The bytes that sign events: a file's text, or what is encoded in base64 behind `whsec_`.
///
/// # Errors
/// The file cannot be read, or holds too little.
pub fn read_secret(path: &Path) -> anyhow::Result<Vec<u8>> {
    let at = || format!("events.secret: {}", path.display());
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", at()))?;
    let text = text.trim();
    let secret = match text.strip_prefix("whsec_") {
        Some(encoded) => {
            STANDARD.decode(encoded).with_context(|| format!("{}: no base64 stands behind whsec_", at()))?
        }
        None => text.as_bytes().to_vec(),
    };
    if secret.len() < SECRET_BYTES_MIN {
        bail!("{}: a secret has at least {SECRET_BYTES_MIN} bytes, and this one has {}", at(), secret.len());
    }
    Ok(secret)
}

impl EventCourier {
    /// Starts the tasks. They end soon after `stop`; what is not delivered by then waits in the spool for the
    /// next start. Without a `setup` events are only logged.
    ///
    /// # Errors
    /// The secret cannot be read.
    pub fn start(
        engine: &Arc<Engine>,
        setup: Option<EventCourierSetup>,
        stop: &CancellationToken,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        let metrics = engine.metrics();
        let dropped = |reason| metrics.counter("events_dropped_total", "reason", reason);
        let batches = |outcome| metrics.counter("events_batches_total", "outcome", outcome);
        let counts = EventCounts {
            spool_full: dropped("spool_full"),
            spool_failed: dropped("spool_failed"),
            expired: dropped("expired"),
            damaged: dropped("damaged"),
            delivered: batches("delivered"),
            failed: batches("failed"),
            spooled: metrics.plain_gauge("events_spooled_bytes"),
        };
        let shared = Arc::new(EventCourierShared {
            engine: Arc::clone(engine),
            sending: setup.map(Sending::new).transpose()?,
            held: Mutex::default(),
            collecting: tokio::sync::Mutex::default(),
            incarnation: engine.now().micros() / 1_000,
            sequence: AtomicU64::new(1),
            changed: Notify::new(),
            counts,
        });
        shared.show();
        tasks.spawn_on("events_spool", stop, &shared, collect);
        if shared.sending.is_some() {
            tasks.spawn_on("events_delivery", stop, &shared, deliver);
        }
        Ok(Self { shared })
    }

    /// Empties the queue into the spool, and waits until everything is delivered, at most until the deadline.
    pub async fn drain(&self, deadline: Deadline) {
        self.shared.collect_once().await;
        let everything = async {
            while !self.shared.is_delivered() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if deadline.wait(everything).await.is_err() {
            tracing::warn!(
                "not every event is delivered yet: the rest waits in the spool for the next start"
            );
        }
    }
}

impl Sending {
    fn new(setup: EventCourierSetup) -> anyhow::Result<Self> {
        let secret = read_secret(&setup.secret)?;
        // A receiver that has moved is a change for its operator: what is signed goes nowhere else.
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        let client = client.timeout(setup.timeout).build().context("events.url: no client can be made")?;
        let spool = EventSpool::open(&setup.spool, setup.spool_max_bytes);
        Ok(Self { setup, spool, client, secret: Mutex::new(secret), unread: AtomicU32::new(0) })
    }

    /// The secret as its file has it now; where that cannot be read, as it was.
    fn secret(&self) -> Vec<u8> {
        let mut known = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        match read_secret(&self.setup.secret) {
            Ok(secret) => *known = secret,
            Err(error) => tracing::warn!("the secret before is used on: {error:#}"),
        }
        known.clone()
    }
}

async fn collect(shared: Arc<EventCourierShared>, stop: CancellationToken) {
    loop {
        let last = tokio::select! {
            biased;
            () = stop.cancelled() => true,
            () = shared.engine.events().arrived() => {
                tokio::select! {
                    () = stop.cancelled() => true,
                    () = tokio::time::sleep(FLUSH) => false,
                }
            }
        };
        shared.collect_once().await;
        if last {
            return;
        }
    }
}

async fn deliver(shared: Arc<EventCourierShared>, stop: CancellationToken) {
    let (mut wait, mut failing) = (RETRY.0, false);
    loop {
        let sent = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            sent = shared.send_oldest() => sent,
        };
        let pause = async {
            match sent {
                Ok(true) => {}
                Ok(false) => shared.changed.notified().await,
                Err(_) => tokio::time::sleep(wait).await,
            }
        };
        match &sent {
            Ok(true) if std::mem::take(&mut failing) => tracing::info!("events are delivered again"),
            Err(error) if !std::mem::replace(&mut failing, true) => {
                tracing::warn!("events wait in the spool: {error}");
            }
            _ => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = pause => {}
        }
        wait = if sent.is_ok() { RETRY.0 } else { (wait * 2).min(RETRY.1) };
    }
}

impl EventCourierShared {
    fn held(&self) -> MutexGuard<'_, VecDeque<EventBatch>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_delivered(&self) -> bool {
        self.sending.as_ref().is_none_or(|sending| sending.spool.is_empty() && self.held().is_empty())
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    fn show(&self) {
        if let Some(sending) = &self.sending {
            self.counts.spooled.set(sending.spool.bytes() as f64);
        }
    }

    fn name_of(&self, id: BatchId) -> String {
        let NodeName { region, node } = self.engine.name();
        let BatchId { incarnation, sequence } = id;
        format!("{region}/{node}/{incarnation:x}-{sequence:x}")
    }

    /// Logs what waits in the queue, and puts it into the spool.
    async fn collect_once(self: &Arc<Self>) {
        let _alone = self.collecting.lock().await;
        let events = self.engine.events().take();
        log(&events);
        if self.sending.is_none() {
            return;
        }
        for some in events.chunks(BATCH_EVENTS_MAX) {
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
            let id = BatchId { incarnation: self.incarnation, sequence };
            self.held().push_back(EventBatch {
                id,
                at: self.engine.now(),
                events: u32::try_from(some.len()).unwrap_or(u32::MAX),
                body: batch_body(&self.name_of(id), self.engine.name(), some),
            });
        }
        let own = Arc::clone(self);
        // The runtime ends: so does the process.
        let _ = spawn_blocking(move || own.spool_held()).await;
        self.show();
        self.changed.notify_one();
    }

    /// Puts what is held into the spool, oldest first. Blocks.
    fn spool_held(&self) {
        let Some(sending) = &self.sending else { return };
        loop {
            let Some(batch) = self.held().front().cloned() else { return };
            let Err(error) = sending.spool.put(&batch) else {
                self.forget_held(batch.id);
                continue;
            };
            tracing::warn!("events wait in memory only: {error}");
            let mut held = self.held();
            while held.len() > HELD_MAX {
                let newest = held.pop_back().map_or(0, |batch| u64::from(batch.events));
                let counter = match error {
                    EventSpoolError::Full { .. } => &self.counts.spool_full,
                    EventSpoolError::Disk { .. } => &self.counts.spool_failed,
                };
                counter.increment(newest);
            }
            return;
        }
    }

    /// Sends the oldest batch. `Ok(false)`: there is none.
    async fn send_oldest(self: &Arc<Self>) -> Result<bool, String> {
        let Some(sending) = &self.sending else { return Ok(false) };
        let own = Arc::clone(self);
        let read = spawn_blocking(move || own.sending.as_ref().map(|sending| sending.spool.oldest())).await;
        let (batch, spooled) = match read {
            Ok(Some(Ok(Some(batch)))) => {
                sending.unread.store(0, Ordering::Relaxed);
                (batch, true)
            }
            Ok(Some(Ok(None))) => match self.held().front().cloned() {
                Some(batch) => (batch, false),
                None => return Ok(false),
            },
            Ok(Some(Err(error))) => return self.unreadable(&error).await,
            Ok(None) | Err(_) => return Ok(false),
        };
        if self.engine.now().since(batch.at) > sending.setup.keep {
            self.counts.expired.increment(u64::from(batch.events));
            let events = batch.events;
            tracing::warn!(events, "events are given up: the receiver did not take them within events.keep");
        } else if let Err(error) = self.send(sending, &batch).await {
            self.counts.failed.increment(1);
            return Err(error);
        } else {
            self.counts.delivered.increment(1);
        }
        self.done(&batch, spooled).await;
        Ok(true)
    }

    async fn unreadable(self: &Arc<Self>, error: &io::Error) -> Result<bool, String> {
        let lost = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound);
        if !lost {
            let Some(sending) = &self.sending else { return Ok(false) };
            if sending.unread.fetch_add(1, Ordering::Relaxed) + 1 < READS_MAX {
                return Err(format!("the oldest cannot be read: {error}"));
            }
            sending.unread.store(0, Ordering::Relaxed);
            self.counts.damaged.increment(1);
            tracing::error!("a batch of events is set aside in the spool: it cannot be read: {error}");
            let own = Arc::clone(self);
            let aside = move || own.sending.as_ref().map(|sending| sending.spool.set_oldest_aside());
            let _ = spawn_blocking(aside).await;
            self.show();
            return Ok(true);
        }
        // Nobody knows how many it held.
        self.counts.damaged.increment(1);
        tracing::error!("a batch of events is lost: it was damaged or removed");
        self.remove_oldest().await;
        Ok(true)
    }

    async fn done(self: &Arc<Self>, batch: &EventBatch, spooled: bool) {
        if spooled {
            self.remove_oldest().await;
            return;
        }
        self.forget_held(batch.id);
    }

    /// Forgets a batch that is held, if it is the oldest.
    fn forget_held(&self, id: BatchId) {
        let mut held = self.held();
        if held.front().is_some_and(|front| front.id == id) {
            held.pop_front();
        }
    }

    async fn remove_oldest(self: &Arc<Self>) {
        let own = Arc::clone(self);
        let remove = move || own.sending.as_ref().map(|sending| sending.spool.remove_oldest());
        let _ = spawn_blocking(remove).await;
        self.show();
    }

    async fn send(self: &Arc<Self>, sending: &Sending, batch: &EventBatch) -> Result<(), String> {
        let own = Arc::clone(self);
        let secret = spawn_blocking(move || own.sending.as_ref().map(Sending::secret)).await;
        let secret = secret.ok().flatten().unwrap_or_default();
        let id = self.name_of(batch.id);
        let seconds = seconds(self.engine.now());
        let request = sending
            .client
            .post(&sending.setup.url)
            .header("content-type", "application/json")
            .header("user-agent", concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &id)
            .header("webhook-timestamp", seconds.to_string())
            .header("webhook-signature", signature(&secret, &id, seconds, &batch.body))
            .body(batch.body.clone());
        let answer =
            request.send().await.map_err(|error| format!("{}", anyhow::Error::new(error.without_url())))?;
        let status = answer.status();
        if status.is_success() { Ok(()) } else { Err(format!("the receiver answers {status}")) }
    }
}

const fn seconds(at: Timestamp) -> u64 {
    at.micros() / 1_000_000
}

/// One line an event, and no more than [`LINES_MAX`] at once.
fn log(events: &[EventRecord]) {
    for event in events.iter().take(LINES_MAX) {
        let rule = event.rule.as_ref().map_or("", |(_, name)| name.as_str());
        let subject = event.subject.as_deref().unwrap_or_default();
        let kind = event.kind.as_str();
        // The log leaves out whose event it is: logs are read by more people than the event.
        tracing::info!(kind, rule, subject, "event: {}", event.text);
    }
    if let Some(more) = events.len().checked_sub(LINES_MAX).filter(|more| *more > 0) {
        tracing::info!(more, "further events are not logged");
    }
}
