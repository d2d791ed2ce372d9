//! `tidegate migrate`, and the same at the start of a daemon.

use anyhow::{Context, bail};

use crate::config::Config;
use crate::database::postgres::{Database, Failure, Migrated, PostgresSettings, migrate};

/// What the configuration says of the database.
pub(super) fn settings(config: &Config) -> Option<PostgresSettings> {
    let postgres = config.postgres.as_ref()?;
    Some(PostgresSettings {
        url: postgres.url.clone(),
        timeout: postgres.timeout.to_std(),
        connections: postgres.connections.into(),
        application: format!("tidegate {}/{}", config.region, config.node),
    })
}

/// Brings the schema of the configured database to this build's version. Blocks.
///
/// # Errors
/// No database is configured, or it cannot be migrated, with what to do.
pub fn migrate_database(config: &Config) -> anyhow::Result<Migrated> {
    let Some(settings) = settings(config) else {
        bail!("no database is configured: name it in [postgres] url, or in TIDEGATE_POSTGRES__URL");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")?;
    let migrated: Result<Migrated, Failure> =
        runtime.block_on(async { migrate::run(&Database::open(&settings)?).await });
    Ok(migrated?)
}
