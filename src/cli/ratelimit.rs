//! `tidegate ratelimit`: a daemon that stands in for Envoy's rate limit service.

use std::process::ExitCode;

use clap::Args;

use super::{Ended, Failure};
use crate::config;
use crate::daemon;
use crate::telemetry::log;

/// Stands in for Envoy's rate limit service: reads its environment and its rules, and answers as it does.
///
/// The environment is that of envoyproxy/ratelimit, and TIDEGATE_GLOBAL_MODE=gossip, split or escrow holds
/// its limits worldwide. Arguments are ignored, as that service ignores them. A binary that is called
/// `ratelimit` does the same.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(super) struct Ratelimit {
    /// Ignored.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    ignored: Vec<String>,
}

impl Ratelimit {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        run_ratelimit()
    }
}

/// Returns whether the program was called by the name of that service.
pub(super) fn is_called_so(program: &std::ffi::OsStr) -> bool {
    std::path::Path::new(program).file_name().is_some_and(|name| name == "ratelimit")
}

/// Runs the stand-in by the environment.
pub(super) fn run_ratelimit() -> Ended {
    let read = config::stand_in(super::environment());
    let (config, stand_in) = read.map_err(|problems| Failure::Usage(problems.join("\n")))?;
    log::start_at(stand_in.log_json, stand_in.log_level.as_deref()).map_err(Failure::Usage)?;
    let ended = daemon::run_stand_in(&config, stand_in);
    log::flush();
    ended.map(|()| ExitCode::SUCCESS).map_err(|failure| match failure {
        daemon::RunError::Configuration(problems) => Failure::Usage(problems),
        daemon::RunError::Failed(error) => Failure::Failed(error),
    })
}
