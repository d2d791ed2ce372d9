//! `tidegate serve`: runs the daemon until it is told to stop.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::{ConfigFile, Ended, Failure, usage};
use crate::config::{Config, Flags};
use crate::daemon::{self, ConfigSource};
use crate::telemetry::log;

/// Runs the daemon. Without any file it works in memory, on loopback, with no rules and no peers.
///
/// SIGHUP reads configuration, rules and certificates again, as a change of their files does. SIGTERM turns
/// unready, serves until gateways have noticed (listen.drain), and leaves; a second one leaves at once.
#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    file: ConfigFile,
    /// The rules file, read again whenever it changes.
    #[arg(long)]
    rules: Option<String>,
    /// This daemon's region. With certificates it must be the one they name.
    #[arg(long)]
    region: Option<String>,
    /// This daemon's name in its region [default: the host name].
    #[arg(long)]
    node: Option<String>,
    /// Address of the HTTP port, or unix:/path [default: 127.0.0.1:8080].
    #[arg(long)]
    http: Option<String>,
    /// Address of the gRPC port for Envoy, or unix:/path [default: 127.0.0.1:8081].
    #[arg(long)]
    grpc: Option<String>,
    /// UDP address for other daemons [default: 127.0.0.1:7946].
    #[arg(long)]
    peer: Option<String>,
    /// A daemon to join through; may be repeated. Needs certificates: see `tidegate cert`.
    #[arg(long)]
    join: Vec<String>,
    /// Brings PostgreSQL's schema to this version first.
    #[arg(long)]
    migrate: bool,
    /// Logs one JSON object a line.
    #[arg(long)]
    log_json: bool,
}

impl Serve {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        log::start(self.log_json).map_err(Failure::Usage)?;
        let ended = self.run_logged();
        log::flush();
        ended
    }

    fn run_logged(self) -> Ended {
        let flags = Flags {
            rules: self.rules,
            region: self.region,
            node: self.node,
            http: self.http,
            grpc: self.grpc,
            peer: self.peer,
            join: self.join,
        };
        let config =
            Config::load(self.file.config.as_deref(), super::environment(), &flags).map_err(usage)?;
        if self.migrate {
            let migrated = daemon::migrate_database(&config)?;
            tracing::info!(before = migrated.before, after = migrated.after, "schema of PostgreSQL");
        }
        let path = self.file.config;
        let source = ConfigSource {
            path: path.clone(),
            read: Arc::new(move || Config::load(path.as_deref(), super::environment(), &flags)),
        };
        daemon::run(&config, source).map(|()| ExitCode::SUCCESS).map_err(|failure| match failure {
            daemon::RunError::Configuration(problems) => Failure::Usage(problems),
            daemon::RunError::Failed(error) => Failure::Failed(error),
        })
    }
}
