//! The way of records: from the queue in memory into the spool, and from there into the database.
//!
//! Three tasks that never wait for each other. One empties the queue into a file of the spool, about once a
//! second or when a storm fills it; the next delivers the oldest file until the database has it; the last
//! adds up what was delivered, the more rarely the longer that takes. Sums of decisions without records go
//! the same way as batches of their own, by the same rhythm. A few batches wait in memory instead while the
//! spool cannot be written; what finds no room there either is dropped and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::Counter;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::deliver::{Delivered, Deliverer};
use super::deliver_error::DeliverError;
use super::segment::Batch;
use super::spool::{ReadError, Segment, Spool, SpoolError};
use super::step::Steps;
use super::sums::{Summer, Unsummed};
use crate::core::audit::{DistinctMax, Records, pieces, write_sums};
use crate::core::regions::NodeName;
use crate::database::batch_id::BatchId;
use crate::database::postgres::{Database, Failure};
use crate::engine::audit::{Queue, TakenRecords};
use crate::engine::clock::{Deadline, Stopwatch};
use crate::engine::tasks::Tasks;
use crate::telemetry::Metrics;

/// Batches that wait in memory while the spool cannot be written. Full: the newest is dropped and counted.
const HELD_MAX: usize = 8;
/// Most records of one batch: even a database that is slow takes them in time.
const BATCH_ROWS_MAX: usize = 10_000;
/// Most sums of one batch, alike.
const BATCH_SUMS_MAX: usize = 5_000;
/// First wait after a failure; each further one is twice as long.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest wait between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Attempts for a batch that the database takes exception to, before it is set aside.
const REFUSALS_MAX: u32 = 8;
/// Attempts for a file that cannot be read, before it is set aside: about ten seconds.
const READS_MAX: u32 = 7;

/// Shortest and longest pause between two writings of sums; in between, a pause is so many times as long as
/// the writing.
const SUMS_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
const SUMS_PAUSE_FACTOR: u32 = 20;
/// Time between two looks of a daemon for sums that others owe.
const SWEEP: Duration = Duration::from_secs(60);
/// Rows that nobody has added up for so long belong to a daemon that is gone.
const ABANDONED: Duration = Duration::from_secs(600);

/// The parts that a pipeline is made of.
#[derive(Debug)]
pub struct PipelineSetup {
    /// Daemon whose decisions these are, named in every row.
    pub node: NodeName,
    /// Begin of this process, in milliseconds since the epoch.
    pub incarnation: u64,
    /// Queue in memory that decisions leave their records in.
    pub queue: Arc<Queue>,
    /// Folder in which batches wait for the database.
    pub spool: Arc<Spool>,
    /// Database that takes the records and their sums.
    pub database: Database,
    /// Time in which records are collected into one batch.
    pub flush: Duration,
    /// Bounds on the users and paths that get sums of their own.
    pub distinct: DistinctMax,
    /// Hook by which tests end the work after a step.
    pub steps: Steps,
    /// Metrics that count what becomes of the records.
    pub metrics: Arc<Metrics>,
}

/// The running tasks.
#[derive(Debug)]
pub struct Pipeline {
    shared: Arc<PipelineShared>,
}

struct PipelineShared {
    node: NodeName,
    incarnation: u64,
    sequence: AtomicU64,
    queue: Arc<Queue>,
    spool: Arc<Spool>,
    held: Mutex<VecDeque<Batch>>,
    changed: Notify,
    unsummed: Unsummed,
    /// Time since sums of decisions without records were taken.
    sums_taken: Mutex<Stopwatch>,
    arrived: Notify,
    /// Sums are to be written now.
    hurry: Notify,
    draining: AtomicBool,
    counts: Counts,
    metrics: Arc<Metrics>,
}

struct Counts {
    spool_full: Counter,
    spool_failed: Counter,
    damaged: Counter,
    unreadable: Counter,
    removed: Counter,
    refused: Counter,
    delivered: Counter,
    repeated: Counter,
    failed: Counter,
}

impl std::fmt::Debug for PipelineShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("spool", &self.spool).finish_non_exhaustive()
    }
}

impl Counts {
    fn new(metrics: &Metrics) -> Self {
        let dropped = |reason| metrics.counter("audit_dropped_total", "reason", reason);
        let batches = |outcome| metrics.counter("audit_batches_total", "outcome", outcome);
        Self {
            spool_full: dropped("spool_full"),
            spool_failed: dropped("spool_failed"),
            damaged: dropped("damaged"),
            unreadable: dropped("unreadable"),
            removed: dropped("removed"),
            refused: dropped("refused"),
            delivered: batches("delivered"),
            repeated: batches("repeated"),
            failed: batches("failed"),
        }
    }
}

impl Pipeline {
    /// Starts the tasks. They end soon after `stop`; what is not delivered by then waits in the spool for the
    /// next start.
    pub fn start(setup: PipelineSetup, stop: &CancellationToken, tasks: &Tasks) -> Self {
        let shared = Arc::new(PipelineShared {
            node: setup.node,
            incarnation: setup.incarnation,
            sequence: AtomicU64::new(1),
            queue: setup.queue,
            spool: setup.spool,
            held: Mutex::default(),
            changed: Notify::new(),
            unsummed: Unsummed::new(setup.distinct),
            sums_taken: Mutex::new(Stopwatch::start()),
            arrived: Notify::new(),
            hurry: Notify::new(),
            draining: AtomicBool::new(false),
            counts: Counts::new(&setup.metrics),
            metrics: setup.metrics,
        });
        let (own, flush, ending) = (Arc::clone(&shared), setup.flush, stop.clone());
        tasks.spawn("audit_spool", stop, move || collect(Arc::clone(&own), flush, ending.clone()));
        let (own, database, steps) = (Arc::clone(&shared), setup.database.clone(), setup.steps.clone());
        let ending = stop.clone();
        tasks.spawn("audit_sums", stop, move || {
            let (node, unsummed) = (own.node.clone(), own.unsummed.clone());
            let summer = Summer::new(database.clone(), node, unsummed, steps.clone());
            add_up(Arc::clone(&own), summer, ending.clone())
        });
        let (own, database, steps) = (Arc::clone(&shared), setup.database, setup.steps);
        let ending = stop.clone();
        tasks.spawn("audit_delivery", stop, move || {
            let deliverer = Deliverer::new(database.clone(), own.unsummed.clone(), steps.clone());
            Courier::new(Arc::clone(&own), deliverer).run(ending.clone())
        });
        Self { shared }
    }

    /// Empties the queue into the spool and waits until everything is delivered and added up, at most until
    /// the deadline.
    pub async fn drain(&self, deadline: Deadline) {
        self.shared.draining.store(true, Ordering::Relaxed);
        self.shared.hurry.notify_one();
        let everything = async {
            self.shared.collect_once(true).await;
            while !(self.shared.is_delivered() && self.shared.unsummed.is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if deadline.wait(everything).await.is_err() && !self.shared.is_delivered() {
            let bytes = self.shared.spool.bytes();
            tracing::warn!(
                bytes,
                "not everything is in the database yet: the rest waits in the spool for the next start"
            );
        }
    }
}

async fn collect(shared: Arc<PipelineShared>, flush: Duration, stop: CancellationToken) {
    let mut unwritable = false;
    loop {
        let last = tokio::select! {
            biased;
            () = stop.cancelled() => true,
            () = shared.queue.urgent() => false,
            () = tokio::time::sleep(flush) => false,
        };
        match shared.collect_once(last).await {
            Some(Err(error)) if !unwritable => {
                unwritable = true;
                tracing::warn!("records of decisions wait in memory only: {error}");
            }
            Some(Ok(())) if unwritable => {
                unwritable = false;
                tracing::info!("records of decisions are spooled again");
            }
            _ => {}
        }
        if last {
            return;
        }
    }
}

/// Adds up what has arrived: at once in calm times, and ever more at a time when there is much of it.
async fn add_up(shared: Arc<PipelineShared>, mut summer: Summer, stop: CancellationToken) {
    let (mut pause, mut failing) = (Duration::ZERO, false);
    let mut sweep = Deadline::after(SWEEP);
    loop {
        let due = async {
            if failing {
                tokio::time::sleep(pause).await;
            } else if !shared.draining.load(Ordering::Relaxed) {
                let _ = tokio::time::timeout(pause, shared.hurry.notified()).await;
            }
            if shared.unsummed.is_empty() {
                tokio::select! {
                    () = shared.arrived.notified() => {}
                    () = tokio::time::sleep(sweep.left()) => {}
                }
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = due => {}
        }
        let abandoned = sweep.left().is_zero().then_some(ABANDONED);
        let watch = Stopwatch::start();
        let written = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            written = summer.write(abandoned) => written,
        };
        gauge(&shared.metrics.audit_unsummed, u64::try_from(shared.unsummed.len()).unwrap_or(u64::MAX));
        if abandoned.is_some() {
            sweep = Deadline::after(SWEEP);
        }
        match written {
            Ok(()) => {
                pause = (watch.elapsed() * SUMS_PAUSE_FACTOR).clamp(SUMS_PAUSE.0, SUMS_PAUSE.1);
                failing = false;
            }
            Err(error) => {
                pause = (pause * 2).clamp(RETRY_FIRST, RETRY_MAX);
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!("sums of decisions are behind: {error}");
                }
            }
        }
    }
}

impl PipelineShared {
    /// True if the database has everything.
    fn is_delivered(&self) -> bool {
        self.spool.is_empty() && self.held().is_empty()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, VecDeque<Batch>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes batches of what waits in memory: of all of it, or of the sums only where they are due. `None`:
    /// there was nothing; else how the spool liked the last.
    async fn collect_once(self: &Arc<Self>, everything: bool) -> Option<Result<(), SpoolError>> {
        gauge(&self.metrics.audit_queue, self.queue.len());
        let takes_sums = everything || self.sums_are_due();
        let TakenRecords { bytes, .. } = self.queue.take();
        let mut last = None;
        for piece in pieces(&bytes, BATCH_ROWS_MAX) {
            let rows = u32::try_from(Records::of(piece).count()).unwrap_or(u32::MAX);
            last = Some(self.put_or_hold(rows, piece.to_vec(), Vec::new()).await);
        }
        if takes_sums {
            let own = Arc::clone(self);
            let written = spawn_blocking(move || -> Vec<Vec<u8>> {
                own.queue.take_sums().chunks(BATCH_SUMS_MAX).map(write_sums).collect()
            });
            for sums in written.await.unwrap_or_default() {
                last = Some(self.put_or_hold(0, Vec::new(), sums).await);
            }
            *self.sums_taken() = Stopwatch::start();
        }
        last
    }

    /// True if sums of decisions without records are to go on: the more rarely the longer the database takes
    /// for them, and hardly at all while it is behind, so that they do not fill the spool in the place of
    /// records; but sooner where so many wait that further names would find no sum of their own.
    fn sums_are_due(&self) -> bool {
        let waited = self.sums_taken().elapsed();
        let pause = self.unsummed.last_writing() * SUMS_PAUSE_FACTOR;
        let has_room = || self.spool.is_half_empty() && self.held().is_empty();
        waited >= SUMS_PAUSE.1
            || self.is_delivered() && waited >= pause
            || self.queue.is_crowded() && has_room()
    }

    fn sums_taken(&self) -> std::sync::MutexGuard<'_, Stopwatch> {
        self.sums_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a batch, which waits in memory where the spool does not take it.
    async fn put_or_hold(
        self: &Arc<Self>,
        rows: u32,
        bytes: Vec<u8>,
        sums: Vec<u8>,
    ) -> Result<(), SpoolError> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let id = BatchId { incarnation: self.incarnation, sequence };
        let batch = Batch { id, node: self.node.clone(), rows, bytes, sums };
        let put = self.put(batch).await.map_err(|refused| {
            let (batch, error) = *refused;
            self.hold(batch, &error);
            error
        });
        self.changed.notify_one();
        put
    }

    /// Puts a batch into the spool, or gives it back.
    async fn put(self: &Arc<Self>, batch: Batch) -> Result<(), Box<(Batch, SpoolError)>> {
        let own = Arc::clone(self);
        let put = spawn_blocking(move || own.spool.put(&batch).map_err(|error| Box::new((batch, error))));
        // The runtime ends: so does the process.
        let put = put.await.unwrap_or(Ok(()));
        gauge(&self.metrics.audit_spooled_bytes, self.spool.bytes());
        put
    }

    /// Shows how many records wait in memory because the spool does not take them.
    fn show_held(&self, held: &VecDeque<Batch>) {
        gauge(&self.metrics.audit_held, held.iter().map(|batch| u64::from(batch.rows.max(1))).sum());
    }

    fn hold(&self, batch: Batch, error: &SpoolError) {
        let mut held = self.held();
        if held.len() < HELD_MAX {
            held.push_back(batch);
            self.show_held(&held);
            return;
        }
        let counter = match error {
            SpoolError::Full { .. } => &self.counts.spool_full,
            SpoolError::Disk { .. } | SpoolError::Ended(_) => &self.counts.spool_failed,
        };
        counter.increment(batch.decisions());
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn gauge(gauge: &metrics::Gauge, value: u64) {
    gauge.set(value as f64);
}

/// The source of a batch.
enum Source {
    Spool(Segment),
    Memory,
}

/// The task that delivers.
struct Courier {
    shared: Arc<PipelineShared>,
    deliverer: Deliverer,
    /// Number of times that the database took exception to the batch at hand.
    refusals: u32,
    /// Number of times that the oldest file could not be read.
    unread: u32,
    failing: bool,
}

/// The next batch to deliver, or none.
enum Next {
    Batch(Batch, Source),
    Nothing,
    /// The oldest file cannot be read just now.
    Later,
}

impl Courier {
    const fn new(shared: Arc<PipelineShared>, deliverer: Deliverer) -> Self {
        Self { shared, deliverer, refusals: 0, unread: 0, failing: false }
    }

    async fn run(mut self, stop: CancellationToken) {
        let mut wait = RETRY_FIRST;
        loop {
            let delivered = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                delivered = self.everything() => delivered,
            };
            let retry = if delivered { Duration::from_secs(60) } else { wait };
            wait = if delivered { RETRY_FIRST } else { (wait * 2).min(RETRY_MAX) };
            let shared = Arc::clone(&self.shared);
            let news = async {
                if delivered {
                    shared.changed.notified().await;
                } else {
                    // New batches do not make a database come back.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = news => {}
                () = tokio::time::sleep(retry) => {}
            }
        }
    }

    /// Delivers until nothing waits. `false`: the database does not take the oldest now.
    async fn everything(&mut self) -> bool {
        loop {
            let (batch, source) = match self.next().await {
                Next::Batch(batch, source) => (batch, source),
                Next::Nothing => return true,
                Next::Later => return false,
            };
            match self.deliverer.deliver(&batch).await {
                Ok(delivered) => self.arrived(&batch, delivered, source).await,
                Err(error) => {
                    if !self.failed(batch, &source, &error).await {
                        return false;
                    }
                }
            }
        }
    }

    async fn next(&mut self) -> Next {
        // In its own order: what waits in memory came when the spool could take no more.
        while let Some(segment) = self.shared.spool.oldest() {
            let shared = Arc::clone(&self.shared);
            match spawn_blocking(move || shared.spool.read(segment)).await {
                Ok(Ok(batch)) => {
                    self.unread = 0;
                    return Next::Batch(batch, Source::Spool(segment));
                }
                Ok(Err(error)) => {
                    if !self.unreadable(segment, &error).await {
                        return Next::Later;
                    }
                }
                Err(_) => return Next::Later,
            }
        }
        let batch = self.shared.held().front().cloned();
        batch.map_or(Next::Nothing, |batch| Next::Batch(batch, Source::Memory))
    }

    /// Takes in that a file was not read. `false`: it is worth another attempt.
    async fn unreadable(&mut self, segment: Segment, error: &ReadError) -> bool {
        let shared = Arc::clone(&self.shared);
        // One at least, where nobody knows how many.
        let known = segment.decisions.max(1);
        match error {
            ReadError::Damaged { rows, .. } => {
                shared.counts.damaged.increment(*rows);
                tracing::error!(rows, "a batch of records is lost: {error}; it was set aside");
            }
            ReadError::Removed { .. } => {
                shared.counts.removed.increment(known);
                tracing::error!(rows = known, "a batch of records is lost: {error}");
            }
            ReadError::Disk { .. } => {
                self.unread += 1;
                if self.unread < READS_MAX {
                    if self.unread == 1 {
                        tracing::warn!("a batch of records cannot be read, and is tried again: {error}");
                    }
                    return false;
                }
                shared.counts.unreadable.increment(known);
                let BatchId { incarnation, sequence } = segment.id;
                tracing::error!(
                    rows = known,
                    "a batch of records is lost: {error}; it was set aside as {incarnation:016x}-{sequence:016x}.unreadable"
                );
                let own = Arc::clone(&shared);
                let _ = spawn_blocking(move || own.spool.set_aside(segment, "unreadable")).await;
            }
        }
        self.unread = 0;
        gauge(&shared.metrics.audit_spooled_bytes, shared.spool.bytes());
        true
    }

    async fn arrived(&mut self, batch: &Batch, delivered: Delivered, source: Source) {
        let shared = &self.shared;
        match delivered {
            Delivered::Now => shared.counts.delivered.increment(1),
            Delivered::Before => shared.counts.repeated.increment(1),
        }
        shared.metrics.audit_rows.increment(u64::from(batch.rows));
        gauge(&shared.metrics.audit_unsummed, u64::try_from(shared.unsummed.len()).unwrap_or(u64::MAX));
        shared.metrics.audit_merged.absolute(shared.unsummed.merged().saturating_add(shared.queue.merged()));
        shared.arrived.notify_one();
        if shared.unsummed.is_full() {
            shared.hurry.notify_one();
        }
        self.done(batch, source).await;
        self.refusals = 0;
        if std::mem::take(&mut self.failing) {
            let waiting = self.shared.spool.bytes();
            tracing::info!(waiting, "records of decisions reach the database again");
        }
    }

    async fn done(&self, batch: &Batch, source: Source) {
        match source {
            Source::Spool(segment) => {
                let shared = Arc::clone(&self.shared);
                let _ = spawn_blocking(move || shared.spool.remove(segment)).await;
                gauge(&self.shared.metrics.audit_spooled_bytes, self.shared.spool.bytes());
            }
            Source::Memory => {
                let mut held = self.shared.held();
                if held.front().is_some_and(|front| front.id == batch.id) {
                    held.pop_front();
                }
                self.shared.show_held(&held);
            }
        }
    }

    /// Returns whether to go on with the next batch.
    async fn failed(&mut self, batch: Batch, source: &Source, error: &DeliverError) -> bool {
        self.shared.counts.failed.increment(1);
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!("records of decisions wait in the spool: {error}");
        }
        let refused = matches!(error, DeliverError::Database(failure) if is_refusal(failure));
        if refused {
            self.refusals += 1;
            if self.refusals >= REFUSALS_MAX {
                self.refusals = 0;
                self.give_up(&batch, source, error).await;
                return true;
            }
        } else if matches!(source, Source::Memory) {
            // The spool may have room by now, where it is safer.
            let id = batch.id;
            if self.shared.put(batch).await.is_ok() {
                let mut held = self.shared.held();
                held.retain(|held| held.id != id);
                self.shared.show_held(&held);
            }
        }
        false
    }

    async fn give_up(&self, batch: &Batch, source: &Source, error: &DeliverError) {
        self.shared.counts.refused.increment(batch.decisions());
        let BatchId { incarnation, sequence } = batch.id;
        tracing::error!(
            rows = batch.decisions(),
            "a batch of records was set aside as {incarnation:016x}-{sequence:016x}.refused: {error}. Rename it to .batch to have it tried again at the next start"
        );
        match source {
            Source::Spool(segment) => {
                let (shared, segment) = (Arc::clone(&self.shared), *segment);
                let _ = spawn_blocking(move || shared.spool.set_aside(segment, "refused")).await;
            }
            Source::Memory => {
                let mut held = self.shared.held();
                held.retain(|held| held.id != batch.id);
                self.shared.show_held(&held);
            }
        }
    }
}

/// True if the batch itself is what the database does not like.
const fn is_refusal(failure: &Failure) -> bool {
    !failure.passes()
}
