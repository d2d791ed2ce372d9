//! The schema: `migrations/`, built into the binary and applied in order.
//!
//! Many daemons may do it at once: the first takes a lock, the others wait for it and find nothing to do.
//! Daemons of an older version keep running meanwhile: a migration only adds, or raises
//! `schema_compatibility.oldest_version`.

use std::sync::LazyLock;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection as _, Executor as _, SqlSafeStr as _};

use super::{Database, Failure, SERVER_VERSION_MIN};

/// Longest time for all migrations: some rewrite tables.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../migrations/", $name)))),*]
    };
}

/// All of `migrations/`. Sqlx has a macro that reads the folder, for which a driver of PostgreSQL with TLS is
/// built once more: a tenth of the whole build.
const FILES: [(&str, &str); 17] = files! {
    "0001_rules.sql"
    "0002_identities.sql"
    "0003_audit.sql"
    "0004_identity_changes.sql"
    "0010_audit.sql"
    "0020_audit_sums.sql"
    "0021_usage_questions.sql"
    "0030_concurrency.sql"
    "0040_usage_denied.sql"
    "0050_usage_key.sql"
    "0051_audit_committed.sql"
    "0060_audit_cause.sql"
    "0070_audit_request.sql"
    "0080_audit_outcomes.sql"
    "0081_last_seen.sql"
    "0082_archive_age.sql"
    "0083_audit_diverted.sql"
};

static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migration = |(name, sql): (&'static str, &'static str)| {
        let (version, rest) = name.split_once('_')?;
        let description = rest.strip_suffix(".sql")?.replace('_', " ");
        let kind = MigrationType::Simple;
        Some(Migration::new(version.parse().ok()?, description.into(), kind, sql.into_sql_str(), false))
    };
    Migrator::with_migrations(FILES.into_iter().filter_map(migration).collect())
});

/// The outcome of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The version that was there; `None` for an empty database.
    pub before: Option<i64>,
    /// The version that is there now.
    pub after: i64,
}

/// The newest migration that this build knows.
#[must_use]
pub fn newest() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Brings the schema to this build's version.
///
/// # Errors
/// The server is away or too old, or the schema is newer than this build.
pub async fn run(database: &Database) -> Result<Migrated, Failure> {
    let mut connection = database.connect().await?;
    let name = database.name().to_owned();
    let work = async {
        let version: i32 = database
            .within(
                sqlx::query_scalar("SELECT current_setting('server_version_num')::int")
                    .fetch_one(&mut connection),
            )
            .await?;
        if version < SERVER_VERSION_MIN {
            return Err(Failure::ServerTooOld { name: name.clone(), major: version / 10_000 });
        }
        // A table that a running daemon reads is waited for, and only so long; the migration is then tried
        // anew.
        let read = |error: &sqlx::Error| Failure::of(error, &name, DEADLINE);
        connection.execute("SET lock_timeout = '60s'").await.map_err(|error| read(&error))?;
        let before = version_of(&mut connection).await.map_err(|error| read(&error))?;
        MIGRATIONS.run_direct(None, &mut connection, false).await.map_err(|error| match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => read(&error),
            MigrateError::VersionMissing(version) => Failure::SchemaTooNew { name: name.clone(), version },
            MigrateError::VersionMismatch(version) => Failure::Other {
                name: name.clone(),
                why: format!(
                    "migration {version} was applied in another form: this database belongs to another build"
                ),
            },
            other => Failure::Other { name: name.clone(), why: other.to_string() },
        })?;
        Ok(Migrated { before, after: newest() })
    };
    let done = match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => Err(Failure::Slow { name: database.name().to_owned(), after: DEADLINE }),
    };
    // Closing gives the lock back where the work broke off.
    let _ = tokio::time::timeout(Duration::from_secs(1), connection.close()).await;
    done
}

async fn version_of(connection: &mut sqlx::PgConnection) -> Result<Option<i64>, sqlx::Error> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(None);
    }
    sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations").fetch_one(&mut *connection).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_gaps_in_what_they_are_called() {
        let versions: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert!(versions.is_sorted() && versions.first() == Some(&1), "{versions:?}");
        assert_eq!(newest(), *versions.last().unwrap());
    }

    #[tokio::test]
    async fn the_schema_is_the_folder_as_sqlx_reads_it() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"));
        let read = Migrator::new(folder).await.unwrap();
        let shown = |migrator: &Migrator| -> Vec<String> {
            let all = migrator.iter();
            all.map(|one| format!("{} {} {:?} {:x?}", one.version, one.description, one.no_tx, one.checksum))
                .collect()
        };
        assert_eq!(shown(&MIGRATIONS), shown(&read));
    }
}
