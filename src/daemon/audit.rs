//! The way of the records of decisions: from the engine's queue through the spool into the database, and
//! later the archive.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::core::audit::DistinctMax;
use crate::core::regions::NodeName;
pub use crate::database::audit::archive::Archived;
use crate::database::audit::archive::{self, ArchiveError};
use crate::database::audit::{Past, Pipeline, PipelineSetup, RetentionJob, Settings, Spool, Steps};
use crate::database::postgres::Database;
use crate::engine::Engine;
use crate::engine::audit::{Queue, Sampling};
use crate::engine::clock::{Clock, Deadline};
use crate::engine::history::{History, Recorded};
use crate::engine::tasks::Tasks;

/// Time for which records are collected before they are written.
const FLUSH: Duration = Duration::from_millis(500);
/// Longest time for the last records when the daemon drains; the rest waits in the spool.
const DRAIN: Duration = Duration::from_secs(1);

/// The queue is there, and nobody reads it yet.
pub(super) struct Prepared {
    queue: Arc<Queue>,
    database: Database,
    audit: config::Audit,
}

/// The running pipeline.
pub(super) struct Remembering {
    pipeline: Pipeline,
    past: Past,
    queue: Arc<Queue>,
}

impl Remembering {
    /// Gives the engine a queue, where decisions are to be remembered.
    pub(super) fn prepare(
        engine: Engine,
        audit: Option<&config::Audit>,
        database: Option<&Database>,
    ) -> (Engine, Option<Prepared>) {
        let (Some(audit), Some(database)) = (audit, database) else { return (engine, None) };
        let queue = Queue::sampling(sampling(audit), engine.metrics());
        let prepared =
            Prepared { queue: Arc::clone(&queue), database: database.clone(), audit: audit.clone() };
        (engine.with_audit(queue), Some(prepared))
    }

    /// Returns what is remembered, for whoever asks.
    pub(super) fn history(&self) -> Arc<dyn History> {
        Arc::new(self.past.clone())
    }

    /// Other decisions are recorded from now on.
    pub(super) fn set_sampling(&self, audit: &config::Audit) {
        self.queue.set_sampling(sampling(audit));
        self.past.set_recorded(recorded(audit));
    }

    /// Delivers what can be delivered soon.
    pub(super) async fn drain(&self) {
        self.pipeline.drain(Deadline::after(DRAIN)).await;
    }
}

impl Prepared {
    /// Starts the tasks.
    pub(super) fn start(self, engine: &Engine, stop: &CancellationToken, tasks: &Tasks) -> Remembering {
        let metrics = Arc::clone(engine.metrics());
        let steps = Steps::default();
        let spool = Arc::new(Spool::open(&self.audit.spool, self.audit.spool_max_bytes, steps.clone()));
        let waiting = spool.len();
        if waiting > 0 {
            tracing::info!(waiting, bytes = spool.bytes(), "batches of an earlier run are delivered first");
        }
        let retention = RetentionJob::new(
            self.database.clone(),
            settings(&self.audit, engine.name().clone(), steps.clone()),
            Arc::clone(&metrics),
        );
        tasks.spawn_on("audit_tables", stop, &Arc::new(retention), RetentionJob::run);
        let setup = PipelineSetup {
            node: engine.name().clone(),
            incarnation: engine.now().micros() / 1_000,
            queue: Arc::clone(&self.queue),
            spool,
            database: self.database.clone(),
            flush: FLUSH,
            distinct: DistinctMax {
                users: usize::try_from(self.audit.users_max).unwrap_or(usize::MAX),
                paths: usize::try_from(self.audit.paths_max).unwrap_or(usize::MAX),
                keys: usize::try_from(self.audit.keys_max).unwrap_or(usize::MAX),
            },
            steps,
            metrics,
        };
        let past = Past::new(self.database, recorded(&self.audit));
        Remembering { pipeline: Pipeline::start(setup, stop, tasks), past, queue: self.queue }
    }
}

/// Returns which decisions the configuration has recorded.
fn sampling(audit: &config::Audit) -> Sampling {
    Sampling {
        allowed_one_in: audit.allowed_sample.0,
        denied_one_in: audit.denied_sample.0,
        denied_rows_max: audit.denied_rows_max,
        exact_rules: audit.exact.clone(),
    }
}

/// Returns which allowed decisions the configuration has recorded.
fn recorded(audit: &config::Audit) -> Recorded {
    Recorded { allowed_one_in: audit.allowed_sample.0, exact_rules: audit.exact.clone() }
}

/// Returns what the configuration says of partitions and the archive.
fn settings(audit: &config::Audit, node: NodeName, steps: Steps) -> Settings {
    Settings {
        node,
        retain: audit.retain,
        retain_sums: audit.retain_sums,
        archive: audit.archive.clone(),
        retain_archive: audit.retain_archive,
        scratch: audit.spool.clone(),
        steps,
    }
}

/// The work of a run on the archive, or what it would be.
#[derive(Debug)]
pub struct ArchiveRun {
    /// Months that left the database for it.
    pub archived: Vec<Archived>,
    /// Files that were old enough to be removed from it.
    pub removed: Vec<Archived>,
}

/// Moves old months to the archive now and removes what is too old there, or says which would go. Blocks.
///
/// # Errors
/// No database or archive is configured, or a month has to stay.
pub fn archive_audit(config: &config::Config, dry_run: bool) -> anyhow::Result<ArchiveRun> {
    let (Some(postgres), Some(audit)) = (super::schema::settings(config), &config.audit) else {
        bail!("no database is configured: name it in [postgres] url, or in TIDEGATE_POSTGRES__URL");
    };
    let node = NodeName { region: config.region.clone(), node: config.node.clone() };
    let settings = settings(audit, node, Steps::default());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("the runtime did not start")?;
    let done: Result<_, ArchiveError> = runtime.block_on(async {
        let (database, now) = (Database::open(&postgres)?, Clock::System.now());
        let archived = archive::run(&database, &settings, now, dry_run).await?;
        let removed = archive::remove_old(&database, &settings, now, dry_run).await?;
        Ok(ArchiveRun { archived, removed })
    });
    Ok(done?)
}

/// Says whether nothing was archived since somebody else archives.
#[must_use]
pub fn archives_elsewhere(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ArchiveError::Elsewhere))
}
