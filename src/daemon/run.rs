//! `tidegate serve`: a daemon and the signals that steer it.

use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigSource, Daemon, RulesSource, Setup, Stopping, raise_open_files, supervisor};
use crate::config::{Config, StandIn};

/// Reasons why a daemon did not run.
#[derive(Debug)]
pub enum RunError {
    /// Its configuration or rules are wrong: every problem a line.
    Configuration(String),
    /// It could not start or go on.
    Failed(anyhow::Error),
}

/// Runs a daemon until SIGTERM or SIGINT, a second of which ends it sooner; SIGHUP reads configuration, rules
/// and certificates again, as a change of their files does. `config` is what `source` gives now.
///
/// # Errors
/// What kept it from starting.
pub fn run(config: &Config, source: ConfigSource) -> Result<(), RunError> {
    // A first set of rules that is wrong stops the start: nothing is in force that could go on.
    super::rules_of(config).map_err(|problems| RunError::Configuration(problems.join("\n")))?;
    raise_open_files();
    let setup = Setup::of(config).map_err(|error| RunError::Configuration(format!("{error:#}")))?;
    run_setup(setup, Some((config.clone(), source)))
}

/// Runs a daemon that stands in for Envoy's rate limit service. SIGHUP reads its rules again.
///
/// # Errors
/// What kept it from starting.
pub fn run_stand_in(config: &Config, stand_in: StandIn) -> Result<(), RunError> {
    raise_open_files();
    let setup = Setup::of(config).map_err(|error| RunError::Configuration(format!("{error:#}")))?;
    // Its rules are its own.
    let setup = Setup { rules: RulesSource::Nothing, stand_in: Some(stand_in), ..setup };
    run_setup(setup, None)
}

/// `followed`: the configuration, and where it is read again.
fn run_setup(setup: Setup, followed: Option<(Config, ConfigSource)>) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")
        .map_err(RunError::Failed)?;
    let ended = runtime.block_on(serve(setup, followed)).map_err(RunError::Failed);
    runtime.shutdown_timeout(Duration::from_millis(500));
    ended
}

async fn serve(setup: Setup, followed: Option<(Config, ConfigSource)>) -> anyhow::Result<()> {
    // Before anything listens: a signal that arrives early must not kill the process.
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut daemon = Daemon::start(setup).await?;
    if let Some((config, source)) = followed {
        daemon.follow(source, config);
    }
    supervisor::tell(supervisor::READY);
    let alone = loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break true,
            _ = hangup.recv() => {
                supervisor::tell(supervisor::RELOADING);
                // A daemon that is to end does not wait for a disk or a database.
                tokio::select! {
                    biased;
                    _ = terminate.recv() => break false,
                    _ = interrupt.recv() => break true,
                    () = daemon.reload() => supervisor::tell(supervisor::READY),
                }
            }
        }
    };
    supervisor::tell(supervisor::STOPPING);
    let stopping = Stopping { alone, ..Stopping::default() };
    let hurry = stopping.hurry.clone();
    let mut stopped = std::pin::pin!(daemon.stop(stopping));
    loop {
        tokio::select! {
            biased;
            () = stopped.as_mut() => return Ok(()),
            _ = terminate.recv() => hurry.cancel(),
            _ = interrupt.recv() => hurry.cancel(),
        }
    }
}
