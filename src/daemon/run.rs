//! `tidegate serve`: a daemon and the signals that steer it.

use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::{Daemon, Setup};
use crate::config::Config;

/// Why a daemon did not run.
#[derive(Debug)]
pub enum RunError {
    /// Its configuration or rules are wrong: every problem a line.
    Configuration(String),
    /// It could not start or go on.
    Failed(anyhow::Error),
}

/// Runs a daemon until SIGTERM or SIGINT; SIGHUP reads rules and certificates again.
///
/// # Errors
/// What kept it from starting.
pub fn run(config: &Config) -> Result<(), RunError> {
    // A first set of rules that is wrong stops the start: nothing is in force that could go on.
    super::rules_of(config).map_err(|problems| RunError::Configuration(problems.join("\n")))?;
    let setup = Setup::of(config).map_err(|error| RunError::Configuration(format!("{error:#}")))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")
        .map_err(RunError::Failed)?;
    let ended = runtime.block_on(serve(setup)).map_err(RunError::Failed);
    runtime.shutdown_timeout(Duration::from_millis(500));
    ended
}

async fn serve(setup: Setup) -> anyhow::Result<()> {
    // Before anything listens: a signal that arrives early must not kill the process.
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let daemon = Daemon::start(setup).await?;
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => daemon.reload().await,
        }
    }
    daemon.drain().await;
    Ok(())
}
