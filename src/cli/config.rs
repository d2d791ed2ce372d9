//! `tidegate config`: what would run.

use std::process::ExitCode;

use clap::Subcommand;

use super::{ConfigFile, Ended, Failure, say, usage};
use crate::config::{Config as Settings, Flags, Source};
use crate::daemon;
use crate::engine::clock::Clock;
use crate::telemetry::log;

/// Looks at the daemon's configuration.
#[derive(Debug, Subcommand)]
pub(super) enum Config {
    /// Prints what would run, or every problem with file:line:column (exit code 2). Reads the rules file as
    /// well, and the files of certificates, tokens, keys, secrets and passwords that are here (exit code 1
    /// where the daemon would refuse them); names those that are not.
    Check {
        #[command(flatten)]
        file: ConfigFile,
        /// The rules file, in place of the configured one.
        #[arg(long)]
        rules: Option<String>,
    },
}

impl Config {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        let Self::Check { file, rules } = self;
        let flags = Flags { rules, ..Flags::default() };
        let settings = Settings::load(file.config.as_deref(), super::environment(), &flags).map_err(usage)?;
        log::filter().map_err(Failure::Usage)?;
        let files = daemon::check_files(&settings, Clock::System.now());
        let rules = daemon::rules_of(&settings).map_err(|problems| Failure::Usage(problems.join("\n")))?;
        say(settings.to_toml().trim_end());
        if settings.rules.source == Source::Postgres {
            say("\n# Rules are in PostgreSQL, which was not asked");
        } else {
            say(format_args!("\n# Rules that would be in force: {}", rules.len()));
        }
        for problem in &files.missing {
            say(format_args!("# Not on this machine: {}", problem.text));
        }
        if !files.wrong.is_empty() {
            let problems: Vec<&str> = files.wrong.iter().map(|problem| problem.text.as_str()).collect();
            let problems = problems.join("\n");
            return Err(Failure::Failed(anyhow::anyhow!("the daemon would not start:\n{problems}")));
        }
        Ok(ExitCode::SUCCESS)
    }
}
