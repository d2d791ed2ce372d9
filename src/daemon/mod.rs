//! Wires the layers of one daemon together: start, ready, reload, drain.
//!
//! Several daemons may live in one process (`demo` and tests do that): nothing here is global.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Admin, Doors, Guard, Listener, Readiness, Settings};
use crate::database::postgres::Database;
use crate::engine::Engine;
use crate::engine::clock::Clock;
use crate::engine::rulebook::RuleBook;
use crate::telemetry::Metrics;

mod audit;
mod database_rules;
mod file_people;
mod file_rules;
mod identity;
mod import;
mod peer_rules;
mod reload;
mod rulebook;
mod run;
mod schema;
mod setup;
mod shares;
mod store;
mod tokens;
mod upkeep;
mod world;

pub use crate::api::make_token;
pub use crate::peer::certificate;
pub use identity::IdentitySetup;
pub use import::{Foreign, import_envoy};
pub use reload::{check_rules, read_rules, read_span, rules_of};
pub use run::{RunError, run};
pub use schema::migrate_database;
pub use setup::{DemoRegion, DemoRule, PeersSetup, RulesSource, Setup, demo_setup};
pub use store::StoreSetup;

use audit::Remembering;
pub use audit::{Archived, archive_audit};
use database_rules::DatabaseRules;
use file_rules::FileRules;
use identity::Identities;
use reload::Reloader;
use store::Opened;
use world::World;

/// Longest time for what is in flight when the daemon drains.
const DRAIN_DOORS: Duration = Duration::from_secs(7);
/// Longest time for telling the other daemons that this one leaves.
const DRAIN_PEERS: Duration = Duration::from_millis(1_500);
/// Longest time for giving back permits that were drawn ahead.
const DRAIN_STORE: Duration = Duration::from_millis(500);

/// A running daemon.
pub struct Daemon {
    engine: Arc<Engine>,
    store: Opened,
    http: Option<Bound>,
    grpc: Option<Bound>,
    world: Option<World>,
    reloader: Arc<Reloader>,
    identities: Identities,
    stored: Option<Arc<DatabaseRules>>,
    audit: Option<Remembering>,
    readiness: Arc<watch::Sender<Readiness>>,
    /// Doors first, then everything else.
    stop_doors: CancellationToken,
    stop: CancellationToken,
    doors: JoinSet<()>,
    tasks: JoinSet<()>,
}

/// Where a door was opened.
struct Bound {
    address: Option<SocketAddr>,
    text: String,
}

impl Daemon {
    /// Starts a daemon and returns once it answers.
    ///
    /// # Errors
    /// A rule set that does not compile, an address that cannot be bound, a certificate that cannot be used.
    pub async fn start(setup: Setup) -> anyhow::Result<Self> {
        let metrics = Metrics::new();
        let store = Opened::open(&setup.store, Clock::System.now(), &metrics).await?;
        let counters = Arc::clone(&store.store);
        let held = setup.shares.as_ref().map(|path| shares::read(path, &setup.name)).transpose()?.flatten();
        let engine = Engine::new(setup.name.clone(), Clock::System, counters, Arc::clone(&metrics))
            .sharing(setup.regions.clone(), held)
            .lending(setup.peers.is_some());
        let database = setup.postgres.as_ref().map(Database::open).transpose()?;
        let (engine, audit) = Remembering::prepare(engine, setup.audit.as_ref(), database.as_ref());
        let engine = Arc::new(engine);
        let reloader = Arc::new(Reloader::new(
            Arc::clone(&engine),
            setup.rules.clone(),
            setup.shadow,
            setup.regions.clone(),
        ));
        reloader.first()?;
        reloader.publish(None);
        let stored = match (&setup.rules, &database) {
            (RulesSource::Database(saved), Some(database)) => {
                let rules = DatabaseRules::new(
                    Arc::clone(&engine),
                    database.clone(),
                    setup.regions.clone(),
                    setup.shadow,
                    saved.clone(),
                );
                rules.first().await;
                Some(Arc::new(rules))
            }
            _ => None,
        };

        let tokens = tokens::load(setup.admin_tokens.as_deref())?;
        let guard = Arc::new(Guard::new(tokens, &metrics));

        let http = bind(setup.http.as_deref(), "HTTP").await?;
        let grpc = bind(setup.grpc.as_deref(), "gRPC").await?;
        let (stop_doors, stop) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let world = match &setup.peers {
            Some(peers) => Some(World::start(&setup, peers, &store, &engine, &stop, &mut tasks).await?),
            None => None,
        };
        let audit = audit.map(|audit| audit.start(&engine, &stop, &mut tasks));
        let shelf = store.shelf();
        let identities = Identities::start(&setup, &reloader, database.as_ref(), shelf, &stop, &mut tasks)?;
        tasks.spawn(upkeep::run(Arc::clone(&engine), world.is_none(), stop.clone()));
        tasks.spawn(Arc::clone(&reloader).watch(stop.clone()));
        if let Some(stored) = &stored {
            tasks.spawn(Arc::clone(stored).follow(stop.clone()));
            tasks.spawn(Arc::clone(stored).save(stop.clone()));
            if let Some(world) = &world {
                tasks.spawn(peer_rules::run(Arc::clone(stored), Arc::clone(world.peers()), stop.clone()));
            }
        }
        if let Some(path) = setup.admin_tokens.clone() {
            tasks.spawn(tokens::watch(path, Arc::clone(&guard), stop.clone()));
        }

        let (readiness, ready) = watch::channel(Readiness::Starting);
        let settings = Settings {
            trusted_proxies: setup.trusted_proxies,
            ipv6_prefix: setup.ipv6_prefix,
            drain: DRAIN_DOORS,
            ..Settings::default()
        };
        let rules: Arc<dyn RuleBook> = match &stored {
            Some(stored) => Arc::clone(stored) as _,
            None => Arc::new(FileRules(Arc::clone(&reloader))),
        };
        let admin = Admin {
            guard,
            rule_json: Arc::new(reload::rule_json),
            register: Arc::clone(&identities.register),
            regions: setup.regions.clone(),
            rules,
            history: audit.as_ref().map(Remembering::history),
        };
        let shared = Doors::new(Arc::clone(&engine), settings, ready, admin);
        let shared = Arc::new(match &identities.tokens {
            Some(tokens) => shared.with_tokens(Arc::clone(tokens)),
            None => shared,
        });
        let mut doors = JoinSet::new();
        let http = http.map(|listener| {
            let bound = Bound::of(&listener);
            doors.spawn(api::serve_http(listener, Arc::clone(&shared), stop_doors.clone()));
            bound
        });
        let grpc = grpc.map(|listener| {
            let bound = Bound::of(&listener);
            doors.spawn(api::serve_grpc(listener, Arc::clone(&shared), stop_doors.clone()));
            bound
        });
        let readiness = Arc::new(readiness);
        match &stored {
            // Without any rules gateways should ask another daemon.
            Some(stored) if stored.offer.borrow().is_none() => {
                tasks.spawn(serve_once_there(Arc::clone(&readiness), stored.offer.subscribe(), stop.clone()));
            }
            _ => {
                readiness.send_replace(Readiness::Serving);
            }
        }
        let daemon = Self {
            stored,
            engine,
            store,
            http,
            grpc,
            world,
            reloader,
            identities,
            audit,
            readiness,
            stop_doors,
            stop,
            doors,
            tasks,
        };
        daemon.announce();
        Ok(daemon)
    }

    fn announce(&self) {
        let text = |bound: &Option<Bound>| {
            bound.as_ref().map_or_else(|| "off".to_owned(), |bound| bound.text.clone())
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            region = %self.engine.name().region,
            node = %self.engine.name().node,
            http = %text(&self.http),
            grpc = %text(&self.grpc),
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

    /// Where HTTP is served, if over TCP.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.address
    }

    /// Where gRPC is served, if over TCP.
    #[must_use]
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref()?.address
    }

    /// The UDP address that is bound for other daemons.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        Some(self.world.as_ref()?.address())
    }

    /// Reads rules and certificates again. What is wrong is logged and counted, and what was in force stays.
    pub async fn reload(&self) {
        self.reloader.again().await;
        self.identities.reload.notify_one();
        if let Some(stored) = &self.stored {
            stored.look().await;
        }
        if let Some(world) = &self.world {
            world.reload_certificates().await;
        }
    }

    /// Stops accepting, finishes what is in flight, tells the other daemons, and ends, all within ten seconds.
    pub async fn drain(mut self) {
        tracing::info!("draining");
        self.readiness.send_replace(Readiness::Draining);
        self.stop_doors.cancel();
        let doors = async { while self.doors.join_next().await.is_some() {} };
        let leave = async {
            if let Some(world) = &self.world {
                let _ = timeout(DRAIN_PEERS, world.leave(DRAIN_PEERS)).await;
            }
        };
        if timeout(DRAIN_DOORS + Duration::from_millis(500), async { tokio::join!(doors, leave) })
            .await
            .is_err()
        {
            tracing::warn!("some connections did not finish in time and were closed");
        }
        // No decision draws ahead any more: what was drawn goes back.
        let _ = timeout(DRAIN_STORE, self.store.drain()).await;
        if let Some(audit) = &self.audit {
            audit.drain().await;
        }
        self.stop.cancel();
        let tasks = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(Duration::from_millis(500), tasks).await;
        if let Some(world) = self.world.take() {
            world.stop(Duration::from_millis(500)).await;
        }
        tracing::info!("stopped");
    }
}

/// Ready as soon as there is a set of rules.
async fn serve_once_there(
    readiness: Arc<watch::Sender<Readiness>>,
    mut rules: watch::Receiver<Option<database_rules::Offer>>,
    stop: CancellationToken,
) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        there = rules.wait_for(Option::is_some) => {
            if there.is_ok() {
                // Not where it drains already.
                readiness.send_if_modified(|state| {
                    let starting = *state == Readiness::Starting;
                    if starting {
                        *state = Readiness::Serving;
                    }
                    starting
                });
            }
        }
    }
}

impl Bound {
    fn of(listener: &Listener) -> Self {
        Self { address: listener.local_addr(), text: listener.to_string() }
    }
}

async fn bind(address: Option<&str>, what: &str) -> anyhow::Result<Option<Listener>> {
    let Some(address) = address else { return Ok(None) };
    let listener =
        Listener::bind(address).await.with_context(|| format!("cannot listen on {address} for {what}"))?;
    Ok(Some(listener))
}
