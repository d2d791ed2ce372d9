//! Looks after the tables of the audit log: months made ahead, what is old removed, old months to the
//! archive.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::archive::{self, ArchiveError};
use super::seconds;
use super::settings::Settings;
use crate::core::time::{Span, Timestamp};
use crate::database::postgres::{Database, Failure};
use crate::engine::clock::Clock;
use crate::telemetry::Metrics;

/// Time between two looks for old rows.
const PERIOD: Duration = Duration::from_secs(3_600);
/// Time until it looks again after a failure.
const RETRY: Duration = Duration::from_secs(60);
/// Months made ahead: this one and so many further.
const AHEAD: u64 = 2;
/// Shorter than every month: steps of it skip none.
const MONTH: Span = Span::from_secs(27 * 86_400);
/// Time for which a batch's id is remembered at least: no batch waits longer in a spool without people
/// noticing.
const BATCHES_KEPT: Span = Span::from_secs(35 * 86_400);

/// Rows that one statement forgets, and statements for one table at a time.
const FORGOTTEN_AT_ONCE: u64 = 20_000;
const ROUNDS_MAX: u32 = 50;

macro_rules! old {
    ($table:literal, $which:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE ctid = ANY (ARRAY(SELECT ctid FROM ",
            $table,
            " WHERE bucket < to_timestamp($1::double precision)",
            $which,
            " LIMIT 20000))"
        )
    };
}

const OLD_HOURS: &str = old!("usage_hour", "");
/// The database keeps `usage_denied` by them.
const OLD_DAYS: &str = old!("usage_day", "");
const OLD_KEYS: &str = old!("usage_key", "");
const OLD_TOTALS: &str = old!("usage_total", " AND step <> 'minute'");

/// Looks after the tables.
#[derive(Debug)]
pub struct RetentionJob {
    database: Database,
    settings: Settings,
    metrics: Arc<Metrics>,
}

impl RetentionJob {
    /// One for these tables.
    #[must_use]
    pub const fn new(database: Database, settings: Settings, metrics: Arc<Metrics>) -> Self {
        Self { database, settings, metrics }
    }

    /// Looks now and then until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut failing = false;
        loop {
            let now = Clock::System.now();
            let done = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                done = self.once(now) => done,
            };
            let wait = if done.is_ok() { PERIOD } else { RETRY };
            match done {
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!("the tables of the audit log are not looked after: {error}");
                }
                Ok(()) => failing = false,
                Err(_) => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Looks once.
    ///
    /// # Errors
    /// What could not be done; it is tried again.
    pub async fn once(&self, now: Timestamp) -> Result<(), ArchiveError> {
        self.make_ahead(now).await?;
        self.forget(now).await?;
        if self.settings.archive.is_none() {
            return Ok(());
        }
        let archived = match archive::run(&self.database, &self.settings, now, false).await {
            // One daemon at a time does it for all.
            Err(ArchiveError::Elsewhere) => return Ok(()),
            archived => archived?,
        };
        for archived in archived {
            self.metrics.audit_archived_rows.increment(archived.rows);
            let archive::Archived { month, location, rows, bytes } = archived;
            tracing::info!(month, location, rows, bytes, "a month of the audit log is in the archive");
        }
        let removed = match archive::remove_old(&self.database, &self.settings, now, false).await {
            Err(ArchiveError::Elsewhere) => return Ok(()),
            removed => removed?,
        };
        for archive::Archived { month, location, rows, bytes } in removed {
            tracing::info!(
                month,
                location,
                rows,
                bytes,
                "a month of the audit log left the archive, old enough"
            );
        }
        Ok(())
    }

    /// Makes the partitions of this month and the next ones.
    async fn make_ahead(&self, now: Timestamp) -> Result<(), Failure> {
        for months in 0..=AHEAD + 1 {
            let moment = now + Span(MONTH.micros() * months);
            let made = sqlx::query("SELECT tidegate_audit_partition(to_timestamp($1::double precision))")
                .bind(seconds(moment))
                .execute(self.database.pool());
            self.database.within(made).await?;
        }
        Ok(())
    }

    /// Forgets ids of batches and sums that are old, a bounded part at a time.
    async fn forget(&self, now: Timestamp) -> Result<(), Failure> {
        let before = |kept: Span| seconds(Timestamp(now.micros().saturating_sub(kept.micros())));
        let batches = sqlx::query(
            "DELETE FROM audit_batches WHERE ctid = ANY (ARRAY(SELECT ctid FROM audit_batches \
             WHERE at < to_timestamp($1::double precision) AND summed LIMIT 50000))",
        )
        .bind(before(self.settings.retain.max(BATCHES_KEPT)))
        .execute(self.database.pool());
        self.database.within(batches).await?;
        let totals = sqlx::query(
            "DELETE FROM usage_total WHERE step = 'minute' AND ctid = ANY (ARRAY(SELECT ctid FROM usage_total \
             WHERE step = 'minute' AND bucket < to_timestamp($1::double precision) LIMIT 50000))",
        )
        .bind(before(self.settings.retain))
        .execute(self.database.pool());
        self.database.within(totals).await?;
        let minutes = sqlx::query(
            "DELETE FROM usage_minute WHERE ctid = ANY (ARRAY(SELECT ctid FROM usage_minute \
             WHERE bucket < to_timestamp($1::double precision) LIMIT 50000))",
        )
        .bind(before(self.settings.retain))
        .execute(self.database.pool());
        self.database.within(minutes).await?;
        for statement in [OLD_HOURS, OLD_DAYS, OLD_KEYS, OLD_TOTALS] {
            for _ in 0..ROUNDS_MAX {
                let old = sqlx::query(statement).bind(before(self.settings.retain_sums));
                let forgotten = self.database.within(old.execute(self.database.pool())).await?;
                if forgotten.rows_affected() < FORGOTTEN_AT_ONCE {
                    break;
                }
            }
        }
        Ok(())
    }
}
