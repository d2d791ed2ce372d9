//! From rows to sums: exactly once, and later than the rows. A row counts for as many decisions as its weight
//! says; decisions without a row come as sums ([`super::deliver`]).
//!
//! A task that delivers a batch leaves what it adds up to in [`Unsummed`]. A [`Summer`] writes that down now
//! and then, in one transaction with the note that these batches are in the sums. Memory is only the short
//! way: a batch whose sums were lost, by a death or a failure, is found by its missing note and added up anew
//! from its rows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};
use tokio::task::spawn_blocking;

use super::copy;
use super::deliver_error::{DeliverError, read};
use super::segment::Batch;
use super::step::{ArchiveStep, Steps};
use super::tables::add_sums;
use crate::core::audit::usage::{Sums, Usage, UsageKey, joined};
use crate::core::audit::{Distinct, DistinctMax, Outcome, Record, Records, read_sums};
use crate::core::regions::NodeName;
use crate::core::time::Timestamp;
use crate::database::postgres::{Database, Failure};

/// Most sums in memory, some 40 MB. Batches beyond are added up from their rows, later.
const SUMS_MAX: usize = 200_000;
/// Most batches that are added up from their rows at once.
const ADOPTED_MAX: i64 = 20;

/// The batches that were delivered and are not in the sums yet. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Unsummed(Arc<SumsShared>);

#[derive(Debug, Default)]
struct SumsShared {
    waiting: Mutex<Waiting>,
    distinct: Mutex<Distinct>,
    /// Batches of this daemon may wait in the database whose sums are not here.
    elsewhere: AtomicBool,
    writing: AtomicBool,
    /// Microseconds that the last writing of sums that a batch brought itself has taken.
    writing_micros: AtomicU64,
}

/// Sums of the batches beside them, and of no other.
#[derive(Debug, Default)]
struct Waiting {
    sums: Sums,
    batches: Vec<i64>,
}

impl Unsummed {
    /// Nothing yet, and so many users, paths and keys with sums of their own.
    #[must_use]
    pub fn new(max: DistinctMax) -> Self {
        let distinct = Mutex::new(Distinct::new(max));
        Self(Arc::new(SumsShared { distinct, ..SumsShared::default() }))
    }

    fn distinct(&self) -> std::sync::MutexGuard<'_, Distinct> {
        self.0.distinct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whose user, path or key has no sum of its own, since the start.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.distinct().merged()
    }

    /// The sums that a batch brings itself, and those of its records if they are wanted; sorted.
    pub(super) fn sums_of(&self, batch: &Batch, with_records: bool) -> Vec<(UsageKey, Usage)> {
        // Bytes that are no sums were no batch either.
        let mut brought = read_sums(&batch.sums).unwrap_or_default();
        let mut distinct = self.distinct();
        for (key, usage) in &mut brought {
            key.minute = copy::stored_at(key.minute);
            distinct.bound_sum(key, usage.allowed.saturating_add(usage.denied));
        }
        if with_records {
            let mut sums = Sums::default();
            add_up(&mut sums, batch, &mut distinct);
            brought.extend(sums.into_sorted());
        }
        drop(distinct);
        // Those that share the name of the others are one sum now.
        joined(&brought)
    }

    /// Notes how long the database took for the sums that a batch brought.
    pub(super) fn note_writing(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.writing_micros.store(micros, Ordering::Relaxed);
    }

    /// The time that the database took last for the sums that a batch brought.
    pub(super) fn last_writing(&self) -> Duration {
        Duration::from_micros(self.0.writing_micros.load(Ordering::Relaxed))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds up a batch that has arrived under this number.
    pub(super) fn add(&self, number: i64, batch: &Batch) {
        let mut waiting = self.lock();
        if waiting.sums.len() >= SUMS_MAX {
            drop(waiting);
            self.look_elsewhere();
            return;
        }
        add_up(&mut waiting.sums, batch, &mut self.distinct());
        waiting.batches.push(number);
    }

    /// Says that batches of this daemon may wait in the database whose sums are not here.
    pub(super) fn look_elsewhere(&self) {
        self.0.elsewhere.store(true, Ordering::Relaxed);
    }

    /// Sums that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().sums.len()
    }

    /// True if so many wait that they should be written before their time.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= SUMS_MAX
    }

    /// True if everything is in the sums, as far as is known here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let waits = !self.lock().batches.is_empty();
        let flag = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        !waits && !flag(&self.0.elsewhere) && !flag(&self.0.writing)
    }
}

fn add_up(sums: &mut Sums, batch: &Batch, distinct: &mut Distinct) {
    for mut record in Records::of(&batch.bytes) {
        record.at = copy::stored_at(record.at);
        distinct.bound(&mut record);
        sums.add(&record);
    }
}

/// Writes sums.
#[derive(Debug)]
pub struct Summer {
    database: Database,
    node: NodeName,
    unsummed: Unsummed,
    connection: Option<PgConnection>,
    steps: Steps,
}

impl Summer {
    /// One that writes what waits in `unsummed`, and what earlier processes of this node left. Does not
    /// connect yet.
    #[must_use]
    pub fn new(database: Database, node: NodeName, unsummed: Unsummed, steps: Steps) -> Self {
        unsummed.look_elsewhere();
        Self { database, node, unsummed, connection: None, steps }
    }

    /// Writes everything that waits; with `abandoned`, also what any daemon left lying for longer than that.
    ///
    /// # Errors
    /// What is not in the sums yet. It is not lost: another call finds it.
    pub async fn write(&mut self, abandoned: Option<Duration>) -> Result<(), DeliverError> {
        self.unsummed.0.writing.store(true, Ordering::Relaxed);
        let written = self.attempt(abandoned).await;
        if written.is_err() {
            self.connection = None;
            self.unsummed.look_elsewhere();
        }
        self.unsummed.0.writing.store(false, Ordering::Relaxed);
        written
    }

    async fn attempt(&mut self, abandoned: Option<Duration>) -> Result<(), DeliverError> {
        let Waiting { sums, batches } = std::mem::take(&mut *self.unsummed.lock());
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let mut fresh = self.database.connect().await?;
                // A crash of the server undoes sums together with their note: they are added up anew.
                let limits = "SET statement_timeout = '55s'; SET lock_timeout = '10s'; \
                              SET idle_in_transaction_session_timeout = '60s'; SET synchronous_commit = off";
                read(&self.database, fresh.execute(limits).await)?;
                none.insert(fresh)
            }
        };
        let writer = SumsWriter { database: &self.database, steps: &self.steps, unsummed: &self.unsummed };
        if !batches.is_empty() {
            let sorted = spawn_blocking(move || sums.into_sorted()).await.unwrap_or_default();
            if !writer.add(connection, &self.node.region, &batches, sorted).await? {
                self.unsummed.look_elsewhere();
            }
        }
        if self.unsummed.0.elsewhere.swap(false, Ordering::Relaxed) {
            let here = self.unsummed.lock().batches.clone();
            while writer.adopt(connection, Whose::Node(&self.node), &here).await? {}
        }
        if let Some(age) = abandoned {
            while writer.adopt(connection, Whose::Abandoned(age), &[]).await? {}
        }
        Ok(())
    }
}

/// The batches that are to be added up from their rows.
#[derive(Clone, Copy)]
enum Whose<'a> {
    Node(&'a NodeName),
    /// Anybody's who has not done it himself for so long.
    Abandoned(Duration),
}

/// Batches whose sums are missing, of one region at a time, since sums are by region.
macro_rules! unsummed {
    ($lock:literal) => {
        concat!(
            "SELECT number, region FROM audit_batches WHERE NOT summed AND number <> ALL ($1) ",
            "AND ($2::text IS NULL OR region = $2) AND ($3::text IS NULL OR node = $3) ",
            "AND at <= now() - $4 * interval '1 second' ORDER BY region, number LIMIT $5 FOR UPDATE",
            $lock
        )
    };
}

/// Waits for whoever has one: it may be an attempt of this daemon whose connection was cut, and which is
/// about to be undone.
const OWN: &str = unsummed!("");
/// The batches that another daemon holds are left to it: it is adding them up.
const ABANDONED: &str = unsummed!(" SKIP LOCKED");

struct SumsWriter<'a> {
    database: &'a Database,
    steps: &'a Steps,
    unsummed: &'a Unsummed,
}

impl SumsWriter<'_> {
    /// Adds the sums of these batches, unless somebody else has added one of them meanwhile: then nothing,
    /// and `false`.
    async fn add(
        &self,
        connection: &mut PgConnection,
        region: &str,
        batches: &[i64],
        sums: Vec<(UsageKey, Usage)>,
    ) -> Result<bool, DeliverError> {
        let mut transaction = read(self.database, connection.begin().await)?;
        let noted = self.note(&mut transaction, batches).await?;
        if usize::try_from(noted).ok() != Some(batches.len()) {
            read(self.database, transaction.rollback().await)?;
            return Ok(false);
        }
        self.steps.done(ArchiveStep::BatchesMarked)?;
        add_sums(self.database, &mut transaction, region, sums).await?;
        self.steps.done(ArchiveStep::UsageAdded)?;
        read(self.database, transaction.commit().await)?;
        self.steps.done(ArchiveStep::SumsCommitted)?;
        Ok(true)
    }

    async fn note(&self, connection: &mut PgConnection, batches: &[i64]) -> Result<u64, Failure> {
        let note = "UPDATE audit_batches SET summed = true WHERE number = ANY ($1) AND NOT summed";
        let noted = sqlx::query(note).bind(batches).execute(connection).await;
        Ok(read(self.database, noted)?.rows_affected())
    }

    /// Adds up some batches from their rows, those that are in memory `here` excepted. `false`: there were
    /// none.
    async fn adopt(
        &self,
        connection: &mut PgConnection,
        whose: Whose<'_>,
        here: &[i64],
    ) -> Result<bool, DeliverError> {
        let mut transaction = read(self.database, connection.begin().await)?;
        let (region, node, seconds, question) = match whose {
            Whose::Node(node) => (Some(&node.region), Some(&node.node), 0.0, OWN),
            Whose::Abandoned(age) => (None, None, age.as_secs_f64(), ABANDONED),
        };
        let found = sqlx::query_as::<_, (i64, String)>(question)
            .bind(here)
            .bind(region)
            .bind(node)
            .bind(seconds)
            .bind(ADOPTED_MAX)
            .fetch_all(&mut *transaction)
            .await;
        let mut found = read(self.database, found)?;
        let Some(region) = found.first().map(|(_, region)| region.clone()) else {
            read(self.database, transaction.rollback().await)?;
            return Ok(false);
        };
        found.retain(|(_, of)| *of == region);
        let batches: Vec<i64> = found.into_iter().map(|(number, _)| number).collect();
        let sums = self.sums_of_rows(&mut transaction, &batches).await?;
        self.note(&mut transaction, &batches).await?;
        self.steps.done(ArchiveStep::BatchesMarked)?;
        add_sums(self.database, &mut transaction, &region, sums).await?;
        self.steps.done(ArchiveStep::UsageAdded)?;
        read(self.database, transaction.commit().await)?;
        self.steps.done(ArchiveStep::SumsCommitted)?;
        Ok(true)
    }

    async fn sums_of_rows(
        &self,
        connection: &mut PgConnection,
        batches: &[i64],
    ) -> Result<Vec<(UsageKey, Usage)>, Failure> {
        let mut rows = sqlx::query(
            "SELECT (extract(epoch FROM at) * 1000000)::bigint AS at, rule, user_id, key_id, path, outcome, cost, \
                 latency_us, weight::bigint AS weight \
             FROM audit_log WHERE batch = ANY ($1) \
                 AND at >= (SELECT min(first_at) FROM audit_batches WHERE number = ANY ($1)) \
                 AND at <= (SELECT max(last_at) FROM audit_batches WHERE number = ANY ($1))",
        )
        .bind(batches)
        .fetch(connection);
        let mut sums = Sums::default();
        while let Some(row) = read(self.database, rows.try_next().await)? {
            read(self.database, add_row(&mut sums, &row, self.unsummed))?;
        }
        Ok(sums.into_sorted())
    }
}

fn add_row(sums: &mut Sums, row: &PgRow, unsummed: &Unsummed) -> Result<(), sqlx::Error> {
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    let small = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
    let latency: Option<i64> = row.try_get("latency_us")?;
    let mut record = Record {
        at: Timestamp(unsigned(row.try_get("at")?)),
        domain: "",
        rule: row.try_get("rule")?,
        user: row.try_get("user_id")?,
        key: row.try_get("key_id")?,
        address: None,
        path: row.try_get("path")?,
        method: None,
        outcome: Outcome::from_text(row.try_get("outcome")?).unwrap_or(Outcome::Allowed),
        cost: row.try_get("cost")?,
        count: 0,
        limit: 0,
        status: 0,
        retry_ms: None,
        cause: None,
        request_id: None,
        latency_us: small(latency.unwrap_or(0)),
        weight: small(row.try_get("weight")?),
    };
    unsummed.distinct().bound(&mut record);
    sums.add(&record);
    Ok(())
}
