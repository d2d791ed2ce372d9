//! `tidegate migrate`: brings PostgreSQL's schema to this version.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigFile, Ended, say, usage};
use crate::config::{Config, Flags};
use crate::daemon;

/// Brings the schema of PostgreSQL to this version. Safe to run from many machines at once, and while daemons
/// run.
#[derive(Debug, Args)]
pub(super) struct Migrate {
    #[command(flatten)]
    file: ConfigFile,
}

impl Migrate {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        let config = Config::load(self.file.config.as_deref(), super::environment(), &Flags::default())
            .map_err(usage)?;
        let migrated = daemon::migrate_database(&config)?;
        match migrated.before {
            Some(before) if before == migrated.after => {
                say(format_args!("Schema version {before}: nothing to do"))
            }
            Some(before) => say(format_args!("Schema version {before} → {}", migrated.after)),
            None => say(format_args!("Schema version {}: made", migrated.after)),
        }
        Ok(ExitCode::SUCCESS)
    }
}
