//! From a batch to the database, exactly once.
//!
//! One transaction notes the batch's id, copies its rows and adds them to the sums. Whether an earlier attempt arrived,
//! even if its answer was lost, the id tells. Each attempt has a connection that is thrown away when anything goes wrong
//! with it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection};

use super::segment::Batch;
use super::step::{Ended, Step, Steps};
use super::{copy, seconds};
use crate::core::audit::Records;
use crate::core::audit::usage::{Usage, UsageKey, coarser, sum};
use crate::core::time::{Span, Timestamp};
use crate::database::postgres::{Database, Failure};

/// Longest time for one batch.
const DEADLINE: Duration = Duration::from_secs(60);
/// Days whose month is known to be there; more are asked for anew.
const DAYS_MAX: usize = 64;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// Its rows are there now.
    Now,
    /// They were there already: an earlier attempt arrived.
    Before,
}

/// Why a batch was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// The database did not take it.
    #[error(transparent)]
    Database(#[from] Failure),
    /// A test ended it.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Writes batches, one after the other.
#[derive(Debug)]
pub struct Deliverer {
    database: Database,
    connection: Option<PgConnection>,
    days: BTreeSet<Timestamp>,
    steps: Steps,
}

impl Deliverer {
    /// One that writes to this database. Does not connect yet.
    #[must_use]
    pub const fn new(database: Database, steps: Steps) -> Self {
        Self { database, connection: None, days: BTreeSet::new(), steps }
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
            // What is half said on it is of no use, and what was known of partitions may be why.
            self.connection = None;
            self.days.clear();
        }
        outcome
    }

    async fn attempt(&mut self, batch: &Batch) -> Result<Delivered, DeliverError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let mut fresh = self.database.connect().await?;
                let limits = "SET statement_timeout = '55s'; SET lock_timeout = '10s'; \
                              SET idle_in_transaction_session_timeout = '60s'";
                read(&self.database, fresh.execute(limits).await)?;
                none.insert(fresh)
            }
        };
        // A partition that is made takes locks, which must not last as long as the copying.
        for day in days_of(batch).difference(&self.days) {
            let made = sqlx::query("SELECT tidegate_audit_partition(to_timestamp($1::double precision))")
                .bind(seconds(*day))
                .execute(&mut *connection);
            read(&self.database, made.await)?;
        }
        if self.days.len() > DAYS_MAX {
            self.days.clear();
        }
        self.days.extend(days_of(batch));

        let mut transaction = read(&self.database, connection.begin().await)?;
        self.steps.done(Step::BatchBegun)?;
        let noted = sqlx::query(
            "INSERT INTO audit_batches (region, node, incarnation, sequence, rows) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT DO NOTHING",
        )
        .bind(&batch.node.region)
        .bind(&batch.node.node)
        .bind(i64::try_from(batch.id.incarnation).unwrap_or(i64::MAX))
        .bind(i64::try_from(batch.id.sequence).unwrap_or(i64::MAX))
        .bind(i32::try_from(batch.rows).unwrap_or(i32::MAX))
        .execute(&mut *transaction)
        .await;
        if read(&self.database, noted)?.rows_affected() == 0 {
            read(&self.database, transaction.rollback().await)?;
            return Ok(Delivered::Before);
        }
        self.steps.done(Step::BatchNoted)?;
        copy_rows(&self.database, &mut transaction, batch).await?;
        self.steps.done(Step::RowsCopied)?;
        add_usage(&self.database, &mut transaction, batch).await?;
        self.steps.done(Step::UsageAdded)?;
        read(&self.database, transaction.commit().await)?;
        self.steps.done(Step::BatchCommitted)?;
        Ok(Delivered::Now)
    }
}

/// The days that a batch has rows in: their months must be there.
fn days_of(batch: &Batch) -> BTreeSet<Timestamp> {
    let day = Span::from_secs(86_400);
    let days: BTreeSet<u64> =
        Records::of(&batch.bytes).map(|record| copy::stored_at(record.at).window_index(day)).collect();
    days.into_iter().map(|index| Timestamp::window_start(index, day)).collect()
}

fn read<T>(database: &Database, result: Result<T, sqlx::Error>) -> Result<T, Failure> {
    result.map_err(|error| Failure::of(&error, database.name(), DEADLINE))
}

async fn copy_rows(database: &Database, connection: &mut PgConnection, batch: &Batch) -> Result<(), Failure> {
    let rows = copy::rows(&batch.node, Records::of(&batch.bytes));
    let mut copying = read(database, connection.copy_in_raw(copy::STATEMENT).await)?;
    read(database, copying.send(rows).await)?;
    read(database, copying.finish().await)?;
    Ok(())
}

macro_rules! add_to {
    ($table:literal) => {
        concat!(
            "INSERT INTO ", $table, " AS own (region, bucket, rule, user_id, path, allowed, denied, cost, latency) \
             SELECT $1, to_timestamp(second), rule, user_id, path, allowed, denied, cost, latency::bigint[] \
             FROM unnest($2::double precision[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], \
                 $8::bigint[], $9::text[]) \
                 AS fresh (second, rule, user_id, path, allowed, denied, cost, latency) \
             ON CONFLICT (bucket, region, rule, user_id, path) DO UPDATE SET \
                 allowed = own.allowed + excluded.allowed, denied = own.denied + excluded.denied, \
                 cost = own.cost + excluded.cost, \
                 latency = tidegate_add_counts(own.latency, excluded.latency)"
        )
    };
}

/// The three tables of sums, and how long a step of each is.
const TABLES: [(&str, Span); 3] = [
    (add_to!("usage_minute"), Span::from_secs(60)),
    (add_to!("usage_hour"), Span::from_secs(3_600)),
    (add_to!("usage_day"), Span::from_secs(86_400)),
];

async fn add_usage(database: &Database, connection: &mut PgConnection, batch: &Batch) -> Result<(), Failure> {
    let stored = Records::of(&batch.bytes).map(|mut record| {
        record.at = copy::stored_at(record.at);
        record
    });
    let minutes = sum(stored);
    for (statement, step) in TABLES {
        let sums = if step == Span::from_secs(60) { minutes.clone() } else { coarser(&minutes, step) };
        add_sums(database, connection, statement, &batch.node.region, &sums).await?;
    }
    Ok(())
}

async fn add_sums(
    database: &Database,
    connection: &mut PgConnection,
    statement: &'static str,
    region: &str,
    sums: &BTreeMap<UsageKey, Usage>,
) -> Result<(), Failure> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let latencies: Vec<String> = sums.values().map(|usage| array(usage.latency.counts())).collect();
    let added = sqlx::query(statement)
        .bind(region)
        .bind(sums.keys().map(|key| seconds(key.minute)).collect::<Vec<_>>())
        .bind(sums.keys().map(|key| key.rule.as_str()).collect::<Vec<_>>())
        .bind(sums.keys().map(|key| key.user.as_str()).collect::<Vec<_>>())
        .bind(sums.keys().map(|key| key.path.as_str()).collect::<Vec<_>>())
        .bind(sums.values().map(|usage| signed(usage.allowed)).collect::<Vec<_>>())
        .bind(sums.values().map(|usage| signed(usage.denied)).collect::<Vec<_>>())
        .bind(sums.values().map(|usage| usage.cost).collect::<Vec<_>>())
        .bind(latencies)
        .execute(connection);
    read(database, added.await)?;
    Ok(())
}

/// Numbers as PostgreSQL writes an array.
fn array(numbers: &[u64]) -> String {
    let mut text = String::with_capacity(2 + 3 * numbers.len());
    text.push('{');
    for (index, number) in numbers.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(itoa::Buffer::new().format(*number));
    }
    text.push('}');
    text
}
