//! From a batch to the database, exactly once.
//!
//! One transaction notes the batch's id and copies its rows; the sums follow ([`super::sums`]). Sums that the
//! batch brings itself, of decisions without rows, are added in that transaction: no row would tell them
//! again. The id tells whether an earlier attempt arrived, even if its answer was lost. Each attempt has a
//! connection that is thrown away when anything goes wrong with it.

use std::collections::BTreeSet;

use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::task::spawn_blocking;

use super::deliver_error::{DEADLINE, DeliverError, read};
use super::segment::Batch;
use super::step::{ArchiveStep, Steps};
use super::sums::Unsummed;
use super::tables::add_sums;
use super::{copy, seconds};
use crate::core::audit::Records;
use crate::core::time::{Span, Timestamp};
use crate::database::postgres::{Database, Failure};
use crate::engine::clock::Stopwatch;

/// Days whose month is known to be there; more are asked for anew.
const DAYS_MAX: usize = 64;
const DAY: Span = Span::from_secs(86_400);

/// The outcome of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// Its rows are there now.
    Now,
    /// They were there already: an earlier attempt arrived.
    Before,
}

/// Writes batches, one after the other.
#[derive(Debug)]
pub struct Deliverer {
    database: Database,
    connection: Option<PgConnection>,
    days: BTreeSet<Timestamp>,
    unsummed: Unsummed,
    steps: Steps,
}

impl Deliverer {
    /// One that writes to this database, and leaves in `unsummed` what is to be added to the sums. Does not
    /// connect yet.
    #[must_use]
    pub const fn new(database: Database, unsummed: Unsummed, steps: Steps) -> Self {
        Self { database, connection: None, days: BTreeSet::new(), unsummed, steps }
    }

    /// Writes a batch, or finds that it was written before.
    ///
    /// # Errors
    /// It is not known to have arrived; try again with the same batch.
    pub async fn deliver(&mut self, batch: &Batch) -> Result<Delivered, DeliverError> {
        let attempt = tokio::time::timeout(DEADLINE, self.attempt(batch)).await;
        let slow = || Failure::Slow { name: self.database.name().to_owned(), after: DEADLINE }.into();
        let outcome = attempt.unwrap_or_else(|_| Err(slow()));
        if outcome.is_err() {
            // A transaction that is half said on it is of no use, and what was known of partitions may be
            // why.
            self.connection = None;
            self.days.clear();
        }
        outcome
    }

    async fn attempt(&mut self, batch: &Batch) -> Result<Delivered, DeliverError> {
        self.database.still_fits().await?;
        let span = Extent::of(batch);
        // Without rows there is nothing to add up later.
        let is_summed = span.is_scattered() || batch.rows == 0;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connected(&self.database).await?),
        };
        // A partition that is made takes locks, which must not last as long as the copying.
        for day in span.days.difference(&self.days) {
            let made = sqlx::query("SELECT tidegate_audit_partition(to_timestamp($1::double precision))")
                .bind(seconds(*day))
                .execute(&mut *connection);
            read(&self.database, made.await)?;
        }
        if self.days.len() > DAYS_MAX {
            self.days.clear();
        }
        self.days.extend(&span.days);

        let mut transaction = read(&self.database, connection.begin().await)?;
        self.steps.done(ArchiveStep::BatchBegun)?;
        let noted = note_batch(&mut transaction, batch, &span, is_summed).await;
        let Some(number) = read(&self.database, noted)? else {
            read(&self.database, transaction.rollback().await)?;
            // The other attempt knew whether its sums are there, too.
            self.unsummed.look_elsewhere();
            return Ok(Delivered::Before);
        };
        self.steps.done(ArchiveStep::BatchNoted)?;
        if batch.rows > 0 {
            let own = batch.clone();
            let rows = spawn_blocking(move || copy::rows(&own.node, number, Records::of(&own.bytes)));
            copy_rows(&self.database, &mut transaction, rows.await.unwrap_or_default()).await?;
        }
        self.steps.done(ArchiveStep::RowsCopied)?;
        if is_summed || !batch.sums.is_empty() {
            let (own, region, unsummed) = (batch.clone(), &batch.node.region, self.unsummed.clone());
            let sums = spawn_blocking(move || unsummed.sums_of(&own, is_summed)).await.unwrap_or_default();
            let watch = Stopwatch::start();
            add_sums(&self.database, &mut transaction, region, sums).await?;
            self.unsummed.note_writing(watch.elapsed());
        }
        read(&self.database, transaction.commit().await)?;
        self.steps.done(ArchiveStep::BatchCommitted)?;
        if !is_summed {
            let (own, unsummed) = (batch.clone(), self.unsummed.clone());
            let _ = spawn_blocking(move || unsummed.add(number, &own)).await;
        }
        Ok(Delivered::Now)
    }
}

/// The time in which a batch's decisions were made.
struct Extent {
    first: Timestamp,
    last: Timestamp,
    /// Days of the decisions; the tables of their months must be there.
    days: BTreeSet<Timestamp>,
}

impl Extent {
    fn of(batch: &Batch) -> Self {
        let mut extent = Self { first: Timestamp(u64::MAX), last: Timestamp(0), days: BTreeSet::new() };
        let mut day = None;
        for at in Records::of(&batch.bytes).map(|record| copy::stored_at(record.at)) {
            extent.first = extent.first.min(at);
            extent.last = extent.last.max(at);
            let index = at.window_index(DAY);
            if day.replace(index) != Some(index) {
                extent.days.insert(Timestamp::window_start(index, DAY));
            }
        }
        extent.first = extent.first.min(extent.last);
        extent
    }

    /// The clock jumped: its rows could hardly be found again by their time, so that its sums are written
    /// with them.
    fn is_scattered(&self) -> bool {
        self.last.since(self.first) > DAY
    }
}

/// A connection on which nothing takes longer than an attempt may.
async fn connected(database: &Database) -> Result<PgConnection, Failure> {
    let mut fresh = database.connect().await?;
    let limits = "SET statement_timeout = '55s'; SET lock_timeout = '10s'; \
                  SET idle_in_transaction_session_timeout = '60s'";
    read(database, fresh.execute(limits).await)?;
    Ok(fresh)
}

/// Notes a batch, and whether its sums come with it. Returns its number; `None` if it was noted before.
async fn note_batch(
    connection: &mut PgConnection,
    batch: &Batch,
    span: &Extent,
    is_summed: bool,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar::<_, i64>(
        "INSERT INTO audit_batches (region, node, incarnation, sequence, rows, first_at, last_at, summed) \
         VALUES ($1, $2, $3, $4, $5, to_timestamp($6::double precision), to_timestamp($7::double precision), $8) \
         ON CONFLICT DO NOTHING RETURNING number",
    )
    .bind(&batch.node.region)
    .bind(&batch.node.node)
    .bind(i64::try_from(batch.id.incarnation).unwrap_or(i64::MAX))
    .bind(i64::try_from(batch.id.sequence).unwrap_or(i64::MAX))
    .bind(i32::try_from(batch.rows).unwrap_or(i32::MAX))
    .bind(seconds(span.first))
    .bind(seconds(span.last + Span::from_secs(1)))
    .bind(is_summed)
    .fetch_optional(connection)
    .await
}

async fn copy_rows(database: &Database, connection: &mut PgConnection, rows: Vec<u8>) -> Result<(), Failure> {
    let mut copying = read(database, connection.copy_in_raw(copy::STATEMENT).await)?;
    read(database, copying.send(rows).await)?;
    read(database, copying.finish().await)?;
    Ok(())
}
