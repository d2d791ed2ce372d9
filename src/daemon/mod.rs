//! Wires the layers of one daemon together: start, ready, reload, drain.
//!
//! Several daemons may live in one process (`demo` and tests do that): nothing here is global.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{Readiness, Servers, Shutdown};
use crate::config::Config;
use crate::database::events::EventCourier;
use crate::engine::Engine;
use crate::engine::tasks::Tasks;

mod admin_socket;
mod audit;
mod begin;
mod bound;
mod certificate_life;
mod configuration;
mod database_rules;
mod descriptors;
mod drain;
mod events;
mod file_changes;
mod file_people;
mod file_rules;
mod identity;
mod import;
mod kept;
mod listener_tls;
mod listeners;
mod marks;
mod noted;
mod noted_regions;
mod notices;
mod objects;
mod peer_certificates;
mod peer_rules;
mod problem_lines;
mod readiness;
mod redis_tls;
mod regions;
mod reload;
mod rulebook;
mod run;
mod schema;
mod setup;
mod shares;
mod stand_in;
mod start_check;
mod store;
mod supervisor;
mod tokens;
mod traces;
mod unfit;
mod upkeep;
mod warnings;
mod world;

pub use crate::api::make_token;
pub use crate::peer::{certificate, operator, present, renewal, revocation};
pub use admin_socket::AdminSocket;
pub use descriptors::raise_open_files;
pub use drain::Stopping;
pub use import::{Foreign, import_envoy, import_kong, import_limitador, import_nginx};
pub use objects::{FetchError, get_object, list_objects, put_object, remove_object};
pub use reload::{
    WrittenPeople, check_rules, check_rules_alone, read_rules, read_span, regions_of, rules_of,
};
pub use run::{RunError, run, run_stand_in};
pub use schema::migrate_database;
pub use setup::{DemoRegion, DemoRule, IdentitySetup, PeersSetup, RulesSource, Setup, demo_setup};
pub use start_check::{FileProblem, FileProblems, check_files};
pub use store::StoreSetup;

use audit::Remembering;
pub use audit::{ArchiveRun, Archived, archive_audit, archives_elsewhere};
use bound::Bound;
pub use configuration::{ConfigSource, ReadConfig};
use configuration::{Configuration, Drain};
use database_rules::DatabaseRules;
use identity::Identities;
use listener_tls::WatchedTls;
use listeners::Addresses;
use regions::Regions;
use reload::Reloader;
use store::Opened;
use traces::TraceExport;
use world::World;

/// A running daemon.
pub struct Daemon {
    engine: Arc<Engine>,
    store: Opened,
    addresses: Addresses,
    world: Option<World>,
    reloader: Arc<Reloader>,
    identities: Identities,
    listener_tls: Vec<WatchedTls>,
    stored: Option<Arc<DatabaseRules>>,
    audit: Option<Arc<Remembering>>,
    regions: Arc<Regions>,
    /// There once it follows a file.
    configuration: Option<Arc<Configuration>>,
    /// Carries events to the log and to their receiver.
    courier: EventCourier,
    /// Sends spans to the collector; `None` where none is configured.
    traces: Option<TraceExport>,
    readiness: Arc<watch::Sender<Readiness>>,
    /// The file that notes the weights of `split` rules. Beside it rights are left for the next process.
    shares: Option<PathBuf>,
    /// Time to serve on once it is to stop.
    drain: Arc<Drain>,
    /// Stops the listeners, before `stop` ends everything else.
    stop_servers: Shutdown,
    stop: CancellationToken,
    shared: Arc<Servers>,
    servers: Tasks,
    tasks: Tasks,
}

impl Daemon {
    /// Starts a daemon and returns once it answers. The future that starts it lives in a box, since it is
    /// large and every caller would carry it.
    ///
    /// # Errors
    /// A rule set that does not compile, an address that cannot be bound, a certificate that cannot be used.
    pub fn start(setup: Setup) -> impl Future<Output = anyhow::Result<Self>> + Send {
        Box::pin(Self::begin(setup))
    }

    fn announce(&self) {
        let text = |bound: &Option<Bound>| {
            bound.as_ref().map_or_else(|| "off".to_owned(), |bound| bound.text.clone())
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            region = %self.engine.name().region,
            node = %self.engine.name().node,
            http = %text(&self.addresses.http),
            grpc = %text(&self.addresses.grpc),
            resp = %text(&self.addresses.resp),
            metrics = %text(&self.addresses.watching),
            admin = %text(&self.addresses.owner),
            peer = %self.peer_address().map_or_else(|| "off".to_owned(), |address| address.to_string()),
            rules = self.engine.loaded().set.rules().len(),
            "serving"
        );
    }

    /// Its engine.
    #[must_use]
    pub const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns where HTTP is served, if over TCP.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.addresses.http.as_ref()?.address
    }

    /// Returns where gRPC is served, if over TCP.
    #[must_use]
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.addresses.grpc.as_ref()?.address
    }

    /// The UDP address that is bound for other daemons.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        Some(self.world.as_ref()?.address())
    }

    /// Follows a configuration, of which `in_force` is what the daemon was started with.
    pub fn follow(&mut self, source: ConfigSource, in_force: Config) {
        let reached = configuration::Reached {
            engine: Arc::clone(&self.engine),
            servers: Arc::clone(&self.shared),
            regions: Arc::clone(&self.regions),
            peers: self.world.as_ref().map(|world| Arc::clone(world.peers())),
            audit: self.audit.clone(),
            drain: Arc::clone(&self.drain),
        };
        let configuration = Arc::new(Configuration::new(source, in_force, reached));
        self.tasks.spawn_on("configuration", &self.stop, &configuration, Configuration::watch);
        self.configuration = Some(configuration);
    }

    /// Reads configuration, rules and certificates again. A problem is logged and counted, and the state
    /// before stays in force.
    pub async fn reload(&self) {
        // First, as rules may name regions that it lists.
        if let Some(configuration) = &self.configuration {
            configuration.again().await;
        }
        self.reloader.again().await;
        self.identities.reload.notify_one();
        if let Some(stored) = &self.stored {
            stored.look().await;
        }
        if let Some(world) = &self.world {
            world.reload_certificates().await;
        }
        for watched in &self.listener_tls {
            watched.reload().await;
        }
    }
}
