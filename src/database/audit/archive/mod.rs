//! Old months leave the database: written as Parquet to the archive, read back and compared, and only then
//! dropped.
//!
//! One daemon at a time, by a lock of the database's. The month, at any moment in between, is either still in
//! the database, and everything is done again over the same file, or it is gone and noted in
//! `audit_archives`. Records that a spool delivers for a month that has left make the month anew and leave
//! later as another part.

mod columns;
mod place;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use parquet::errors::ParquetError;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};
use tokio::task::spawn_blocking;

use self::columns::{COLUMNS, Cells, ColumnsWriter, GROUP_ROWS, Kind, Sum};
use super::settings::Settings;
use super::step::{ArchiveStep, Ended, Steps};
use crate::core::time::Timestamp;
use crate::database::postgres::{Database, Failure};
use crate::database::private;

pub use self::place::{ArchivePlace, PlaceError};

/// Longest wait for the next row, or for any other answer of the database.
const DEADLINE: Duration = Duration::from_secs(120);

/// A file of the archive: of a month that has left, or would, or one that was removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archived {
    /// Month of the decisions in it, as `2026-08`.
    pub month: String,
    /// Location of the file in the archive.
    pub location: String,
    /// Rows; of a month that has not left yet: about how many.
    pub rows: u64,
    /// Size of the file; of a month that has not left yet: of its table with indexes.
    pub bytes: u64,
}

/// Reasons why a month stays.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// None is configured.
    #[error(
        "no archive is configured: name it in audit.archive, such as \"file:///var/lib/tidegate/archive\""
    )]
    Nowhere,
    /// Somebody else archives now.
    #[error(
        "a daemon or another `tidegate audit archive` archives now, or PostgreSQL still ends the work of one that was killed: nothing was done here"
    )]
    Elsewhere,
    /// The archive does not do what it should.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The database does not do what it should.
    #[error(transparent)]
    Database(#[from] Failure),
    /// The archive gave back something else than went there.
    #[error(
        "{location} does not hold what was written: {rows_read} of {rows} rows, or a checksum that differs. The month stays in the database"
    )]
    Different {
        /// Location of the file in the archive that was read back.
        location: String,
        /// Rows that the database gave and the file should hold.
        rows: u64,
        /// Rows that were found when the file was read back.
        rows_read: u64,
    },
    /// The archive gave back no file of its kind.
    #[error("{location} was read back and is damaged: {why}. The month stays in the database")]
    Damaged {
        /// Location of the file in the archive that was read back.
        location: String,
        /// Reason for which it cannot be read as a file of the archive.
        why: String,
    },
    /// Rows came while the month was written.
    #[error("rows of {month} arrived while it was archived: it is done again later")]
    Changed {
        /// Month to which rows were added, as `2026-08`.
        month: String,
    },
    /// Some decisions of the month are not in the sums yet.
    #[error("not everything of {month} is in the sums by minute, hour and day yet: it is archived later")]
    Unsummed {
        /// Month whose sums are not whole yet, as `2026-08`.
        month: String,
    },
    /// The file cannot be written here, or what came back cannot be read.
    #[error("{}: {why}", path.display())]
    File {
        /// Local file on its way to the archive or back.
        path: PathBuf,
        /// Reason for which it cannot be written or read.
        why: String,
    },
    /// A test ended it.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// A file that is old enough to be removed.
struct Old {
    part: i32,
    file: Archived,
}

/// A month that is due.
struct Due {
    table: String,
    month: String,
    rows: i64,
    bytes: i64,
}

/// Archives every month that ended longer ago than what is retained. With `dry_run` only says which.
///
/// # Errors
/// Why a month stays; those before it have left.
pub async fn run(
    database: &Database,
    settings: &Settings,
    now: Timestamp,
    dry_run: bool,
) -> Result<Vec<Archived>, ArchiveError> {
    let mut run = Run::begin(database, settings).await?;
    let done = run.all(now, dry_run).await;
    run.end().await;
    done
}

/// Removes files of the archive whose decisions are older than the archive keeps them. With `dry_run` only
/// says which. Files of another archive than the one that is configured now stay.
///
/// # Errors
/// Why a file stays; those before it are removed.
pub async fn remove_old(
    database: &Database,
    settings: &Settings,
    now: Timestamp,
    dry_run: bool,
) -> Result<Vec<Archived>, ArchiveError> {
    let mut run = Run::begin(database, settings).await?;
    let done = run.remove_old(now, dry_run).await;
    run.end().await;
    done
}

struct Run<'a> {
    database: &'a Database,
    settings: &'a Settings,
    steps: &'a Steps,
    place: ArchivePlace,
    connection: PgConnection,
}

/// Waits for the database, at most [`DEADLINE`].
async fn wait<T>(
    database: &Database,
    call: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => answer.map_err(|error| Failure::of(&error, database.name(), DEADLINE)),
        Err(_) => Err(Failure::Slow { name: database.name().to_owned(), after: DEADLINE }),
    }
}

impl<'a> Run<'a> {
    async fn begin(database: &'a Database, settings: &'a Settings) -> Result<Self, ArchiveError> {
        let url = settings.archive.as_deref().ok_or(ArchiveError::Nowhere)?;
        let place = ArchivePlace::open(url)?;
        let mut connection = database.connect().await?;
        wait(database, connection.execute("SET lock_timeout = '10s'")).await?;
        Ok(Self { database, settings, steps: &settings.steps, place, connection })
    }

    /// Gives back the lock, by closing the connection that has it.
    async fn end(self) {
        let _ = tokio::time::timeout(Duration::from_secs(1), self.connection.close()).await;
    }

    /// Takes the lock by which one archives at a time.
    async fn lock(&mut self) -> Result<(), ArchiveError> {
        let lock = sqlx::query_scalar("SELECT pg_try_advisory_lock(hashtext('tidegate_audit_archive'))");
        let alone: bool = wait(self.database, lock.fetch_one(&mut self.connection)).await?;
        if alone { Ok(()) } else { Err(ArchiveError::Elsewhere) }
    }

    async fn remove_old(&mut self, now: Timestamp, dry_run: bool) -> Result<Vec<Archived>, ArchiveError> {
        let mut old = self.old(now).await?;
        if !dry_run && !old.is_empty() {
            self.lock().await?;
            // Somebody else may have removed some meanwhile.
            old = self.old(now).await?;
            for one in &old {
                self.remove(one).await?;
            }
        }
        Ok(old.into_iter().map(|old| old.file).collect())
    }

    /// Removes a file, and then notes it: a file that is gone and not noted is removed once more.
    async fn remove(&mut self, old: &Old) -> Result<(), ArchiveError> {
        let Some(name) = self.place.name_of(&old.file.location) else { return Ok(()) };
        self.place.remove(name).await?;
        self.steps.done(ArchiveStep::FileRemoved)?;
        let noted = sqlx::query(
            "UPDATE audit_archives SET removed_at = now() WHERE month = ($1 || '-01')::date AND part = $2",
        );
        let noted = noted.bind(&old.file.month).bind(old.part).execute(&mut self.connection);
        wait(self.database, noted).await?;
        Ok(())
    }

    async fn old(&mut self, now: Timestamp) -> Result<Vec<Old>, Failure> {
        let before = Timestamp(now.micros().saturating_sub(self.settings.retain_archive.micros()));
        let query = sqlx::query_as::<_, (String, i32, String, i64, i64)>(
            "SELECT to_char(month, 'YYYY-MM'), part, location, rows, bytes FROM audit_archives \
             WHERE removed_at IS NULL AND starts_with(location, $2) \
                 AND (month + interval '1 month') AT TIME ZONE 'UTC' <= to_timestamp($1::double precision) \
             ORDER BY month, part",
        );
        let query = query.bind(super::seconds(before)).bind(self.place.location(""));
        let rows = wait(self.database, query.fetch_all(&mut self.connection)).await?;
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        let old = |(month, part, location, rows, bytes)| {
            let file = Archived { month, location, rows: unsigned(rows), bytes: unsigned(bytes) };
            Old { part, file }
        };
        Ok(rows.into_iter().map(old).collect())
    }

    async fn all(&mut self, now: Timestamp, dry_run: bool) -> Result<Vec<Archived>, ArchiveError> {
        let due = self.due(now).await?;
        let mut archived = Vec::new();
        if dry_run {
            for due in due {
                let name = self.name(&due).await?.0;
                archived.push(Archived {
                    location: self.place.location(&name),
                    month: due.month,
                    rows: due.rows.try_into().unwrap_or(0),
                    bytes: due.bytes.try_into().unwrap_or(0),
                });
            }
            return Ok(archived);
        }
        self.lock().await?;
        for due in self.due(now).await? {
            archived.push(self.one(&due).await?);
        }
        Ok(archived)
    }

    async fn due(&mut self, now: Timestamp) -> Result<Vec<Due>, Failure> {
        let before = Timestamp(now.micros().saturating_sub(self.settings.retain.micros()));
        let query = sqlx::query_as::<_, (String, String, i64, i64)>(
            "SELECT name, to_char(month, 'YYYY-MM'), rows_about, bytes FROM audit_partitions \
             WHERE (month + interval '1 month') AT TIME ZONE 'UTC' <= to_timestamp($1::double precision) \
             ORDER BY month",
        );
        let rows = query.bind(super::seconds(before)).fetch_all(&mut self.connection);
        let rows = wait(self.database, rows).await?;
        let due = |(table, month, rows, bytes)| Due { table, month, rows, bytes };
        Ok(rows.into_iter().map(due).collect())
    }

    /// The name of the file, and which part of the month it is.
    async fn name(&mut self, due: &Due) -> Result<(String, i32), Failure> {
        let query =
            "SELECT coalesce(max(part), 0) + 1 FROM audit_archives WHERE to_char(month, 'YYYY-MM') = $1";
        let part = sqlx::query_scalar(query).bind(&due.month).fetch_one(&mut self.connection);
        let part: i32 = wait(self.database, part).await?;
        let month = &due.month;
        let name = if part == 1 { month.clone() } else { format!("{month}-part{part}") };
        Ok((format!("audit_log/{name}.parquet"), part))
    }

    async fn one(&mut self, due: &Due) -> Result<Archived, ArchiveError> {
        let (name, part) = self.name(due).await?;
        let scratch = Scratch::new(&self.settings.scratch, &due.month)?;
        let written = self.export(due, &scratch).await?;
        self.steps.done(ArchiveStep::PartitionExported)?;
        let bytes = self.place.put(&name, &scratch.path).await?;
        self.steps.done(ArchiveStep::ArchiveUploaded)?;
        self.verify(&name, &scratch, &written).await?;
        self.steps.done(ArchiveStep::ArchiveVerified)?;
        let archived = Archived {
            month: due.month.clone(),
            location: self.place.location(&name),
            rows: written.rows,
            bytes,
        };
        self.drop(due, part, &archived, &written.checksum).await?;
        Ok(archived)
    }

    /// Writes the month into a file here.
    async fn export(&mut self, due: &Due, scratch: &Scratch) -> Result<Sum, ArchiveError> {
        let fail = |error: ParquetError| scratch.fail(error);
        let mut writer = ColumnsWriter::new(scratch.create()?).map_err(fail)?;
        // All from one moment, so that what is counted later can be compared.
        let query = sqlx::query(
            "SELECT (extract(epoch FROM at) * 1000000)::bigint, region, node, domain, rule, user_id, key_id, \
                 address::text, path, method, outcome, cost, count, permits, status::bigint, retry_after_ms, \
                 latency_us, weight::bigint, cause, request_id \
             FROM audit_log \
             WHERE at >= ($1 || '-01')::date::timestamp AT TIME ZONE 'UTC' \
                 AND at < (($1 || '-01')::date + interval '1 month') AT TIME ZONE 'UTC' \
             ORDER BY at",
        );
        let mut rows = query.bind(&due.month).fetch(&mut self.connection);
        let (mut group, mut len) = (columns::empty(), 0);
        while let Some(row) = wait(self.database, rows.try_next()).await? {
            for (place, (cells, (_, kind))) in group.iter_mut().zip(COLUMNS).enumerate() {
                let read = match kind {
                    Kind::Moment | Kind::Number => row.try_get(place).map(|number| cells.push_number(number)),
                    Kind::Text => row.try_get(place).map(|text| cells.push_text(text)),
                };
                read.map_err(|error| Failure::of(&error, self.database.name(), DEADLINE))?;
            }
            len += 1;
            if len == GROUP_ROWS {
                let full = std::mem::replace(&mut group, columns::empty());
                writer = write(writer, full, std::mem::take(&mut len)).await.map_err(fail)?;
            }
        }
        if len > 0 {
            writer = write(writer, group, len).await.map_err(fail)?;
        }
        writer.finish().map_err(fail)
    }

    /// Fetches the file back and compares.
    async fn verify(&self, name: &str, scratch: &Scratch, written: &Sum) -> Result<(), ArchiveError> {
        let mut file = scratch.create()?;
        self.place.get(name, &mut file).await?;
        let path = scratch.path.clone();
        let read = spawn_blocking(move || columns::read(File::open(path)?)).await;
        let read = match read {
            Ok(read) => read.map_err(|error| ArchiveError::Damaged {
                location: self.place.location(name),
                why: error.to_string(),
            })?,
            // A file so damaged that its reader gave up.
            Err(_) => Sum { rows: 0, checksum: String::new() },
        };
        if read == *written {
            return Ok(());
        }
        let location = self.place.location(name);
        Err(ArchiveError::Different { location, rows: written.rows, rows_read: read.rows })
    }

    /// Drops the month and notes where it is, in one.
    async fn drop(
        &mut self,
        due: &Due,
        part: i32,
        archived: &Archived,
        checksum: &str,
    ) -> Result<(), ArchiveError> {
        let (database, node) = (self.database, &self.settings.node);
        let mut transaction = wait(database, self.connection.begin()).await?;
        let count = sqlx::query_scalar("SELECT tidegate_close_audit_partition($1)").bind(&due.table);
        let rows: i64 = wait(database, count.fetch_one(&mut *transaction)).await?;
        self.steps.done(ArchiveStep::PartitionLocked)?;
        if u64::try_from(rows).ok() != Some(archived.rows) {
            return Err(ArchiveError::Changed { month: due.month.clone() });
        }
        // Sums that memory has lost are made from the rows; nobody may add rows now.
        let unsummed = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM audit_batches WHERE NOT summed \
                 AND first_at < (($1 || '-01')::date + interval '1 month') AT TIME ZONE 'UTC' \
                 AND last_at >= ($1 || '-01')::date::timestamp AT TIME ZONE 'UTC')",
        );
        let unsummed: bool = wait(database, unsummed.bind(&due.month).fetch_one(&mut *transaction)).await?;
        if unsummed {
            return Err(ArchiveError::Unsummed { month: due.month.clone() });
        }
        let dropped = sqlx::query("SELECT tidegate_drop_audit_partition($1)").bind(&due.table);
        wait(database, dropped.execute(&mut *transaction)).await?;
        self.steps.done(ArchiveStep::PartitionDropped)?;
        let noted = sqlx::query(
            "INSERT INTO audit_archives (month, part, location, rows, bytes, checksum, region, node) \
             VALUES (($1 || '-01')::date, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(&due.month)
        .bind(part)
        .bind(&archived.location)
        .bind(rows)
        .bind(i64::try_from(archived.bytes).unwrap_or(i64::MAX))
        .bind(checksum)
        .bind(&node.region)
        .bind(&node.node);
        wait(database, noted.execute(&mut *transaction)).await?;
        wait(database, transaction.commit()).await?;
        self.steps.done(ArchiveStep::ArchiveCommitted)?;
        Ok(())
    }
}

/// Compresses a row group off the runtime's threads.
async fn write(
    mut writer: ColumnsWriter,
    group: Vec<Cells>,
    rows: usize,
) -> Result<ColumnsWriter, ParquetError> {
    let written = spawn_blocking(move || writer.group(rows, &group).map(|()| writer));
    written.await.map_err(|error| ParquetError::General(error.to_string()))?
}

/// A file of this machine's that is gone afterwards.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(folder: &Path, month: &str) -> Result<Self, ArchiveError> {
        let made = private::create_folder(folder);
        let path = folder.join(format!("archive-{month}-{}.parquet.part", std::process::id()));
        made.map_err(|error| ArchiveError::File { path: folder.to_owned(), why: error.to_string() })?;
        Ok(Self { path })
    }

    fn create(&self) -> Result<File, ArchiveError> {
        private::create(&self.path).map_err(|error| self.fail(error))
    }

    fn fail(&self, error: impl std::fmt::Display) -> ArchiveError {
        ArchiveError::File { path: self.path.clone(), why: error.to_string() }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
