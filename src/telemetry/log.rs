//! Logs: facts with fields, on standard error. INFO is life-cycle, WARN degraded but correct, ERROR someone must act;
//! nothing per request.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging for this process. `TIDEGATE_LOG` filters (default `info`); `json` makes each line one JSON object.
/// A second call changes nothing.
pub fn start(json: bool) {
    let filter =
        EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("warn,tidegate=info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let _ = if json { lines.json().try_init() } else { lines.with_target(false).try_init() };
}
