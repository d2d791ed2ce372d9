//! Wires the layers of one daemon together: start, ready, reload, drain.
//!
//! Several daemons may live in one process (`demo` and tests do that): nothing here is global.

use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Admin, Guard, Listener, Readiness, Servers, Settings, Shutdown};
use crate::config::Config;
use crate::database::events::EventCourier;
use crate::database::postgres::Database;
use crate::engine::Engine;
use crate::engine::clock::Clock;
use crate::engine::rulebook::RuleBook;
use crate::engine::tasks::Tasks;
use crate::telemetry::Metrics;

mod admin_socket;
mod audit;
mod certificate_check;
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
mod noted;
mod notices;
mod peer_certificates;
mod peer_rules;
mod readiness;
mod redis_tls;
mod regions;
mod reload;
mod rulebook;
mod run;
mod schema;
mod setup;
mod shares;
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
pub use certificate_check::{CertificateProblems, check_certificates};
pub use descriptors::raise_open_files;
pub use drain::Stopping;
pub use import::{Foreign, import_envoy};
pub use reload::{
    WrittenPeople, check_rules, check_rules_alone, read_rules, read_span, regions_of, rules_of,
};
pub use run::{RunError, run};
pub use schema::migrate_database;
pub use setup::{DemoRegion, DemoRule, IdentitySetup, PeersSetup, RulesSource, Setup, demo_setup};
pub use store::StoreSetup;

use audit::Remembering;
pub use audit::{Archived, archive_audit, archives_elsewhere};
pub use configuration::{ConfigSource, ReadConfig};
use configuration::{Configuration, Drain};
use database_rules::DatabaseRules;
use file_rules::FileRules;
use identity::Identities;
use listener_tls::WatchedTls;
use regions::Regions;
use reload::Reloader;
use store::Opened;
use traces::TraceExport;
use world::World;

/// A running daemon.
pub struct Daemon {
    engine: Arc<Engine>,
    store: Opened,
    http: Option<Bound>,
    grpc: Option<Bound>,
    resp: Option<Bound>,
    /// The listener for those who watch.
    watching: Option<Bound>,
    /// The admin socket.
    owner: Option<Bound>,
    world: Option<World>,
    reloader: Arc<Reloader>,
    identities: Identities,
    listener_tls: Vec<WatchedTls>,
    stored: Option<Arc<DatabaseRules>>,
    audit: Option<Arc<Remembering>>,
    regions: Arc<Regions>,
    /// There once it follows a file.
    configuration: Option<Arc<Configuration>>,
    /// Carries events.
    courier: EventCourier,
    /// Sends spans.
    traces: Option<TraceExport>,
    readiness: Arc<watch::Sender<Readiness>>,
    /// Where the weights of `split` rules are noted. Beside it rights are left for the next process.
    shares: Option<PathBuf>,
    /// How long to serve on once it is to stop.
    drain: Arc<Drain>,
    /// Listeners first, then everything else.
    stop_servers: Shutdown,
    stop: CancellationToken,
    shared: Arc<Servers>,
    servers: Tasks,
    tasks: Tasks,
}

/// The address on which a server listens.
struct Bound {
    address: Option<SocketAddr>,
    text: String,
}

/// The same servers, which speak the Redis protocol as well.
///
/// # Errors
/// The file of passwords cannot be read, or has none.
fn resp_servers(
    servers: Servers,
    setup: &Setup,
    store: &Opened,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Servers> {
    let passwords = match &setup.resp_passwords {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("listen.resp_passwords: cannot read {}", file.display()))?;
            let passwords = api::Passwords::read(&text);
            anyhow::ensure!(
                !passwords.is_empty(),
                "listen.resp_passwords: {} has no password",
                file.display()
            );
            passwords
        }
        None => api::Passwords::default(),
    };
    let cells = store.cells(&setup.store, metrics);
    Ok(servers.with_resp(api::RespState::new(cells, passwords, metrics)))
}

impl Daemon {
    /// Starts a daemon and returns once it answers. What starts it lives in a box, since it is large and
    /// every caller would carry it.
    ///
    /// # Errors
    /// A rule set that does not compile, an address that cannot be bound, a certificate that cannot be used.
    pub fn start(setup: Setup) -> impl Future<Output = anyhow::Result<Self>> + Send {
        Box::pin(Self::begin(setup))
    }

    async fn begin(setup: Setup) -> anyhow::Result<Self> {
        let metrics = Metrics::new();
        let tasks = Tasks::new(Arc::clone(&metrics));
        let store = Opened::open(&setup.store, Clock::System.now(), &metrics, &tasks).await?;
        let counters = Arc::clone(&store.store);
        let notes = setup.shares.as_ref().filter(|_| setup.peers.is_some());
        let notes = notes.map(|shares| regions::file_of(shares, &setup.name.node));
        let changes =
            notes.as_ref().map(|path| regions::read(path, &setup.name)).transpose()?.unwrap_or_default();
        let held = setup.shares.as_ref().map(|path| shares::read(path, &setup.name)).transpose()?.flatten();
        let engine = Engine::new(setup.name.clone(), Clock::System, counters, Arc::clone(&metrics))
            .holding_back(setup.held_answers_max)
            .sharing(changes.over(&setup.regions), held)
            .agreeing(setup.peers.is_some())
            .born(std::hash::RandomState::new().build_hasher().finish())
            .lending(setup.peers.is_some())
            .with_tasks(tasks.clone());
        // It is taken away whether or not this process can use it.
        let left = setup.shares.as_ref().and_then(|shares| kept::take(shares, &setup.name));
        if let Some((left, memory)) = left.zip(store.memory()) {
            if engine.restore_shapes(left.shapes) {
                memory.take_back(left.store);
            } else {
                tracing::warn!(
                    "what the process before left of escrow rules names other rules here: it is burnt"
                );
            }
        }
        let traces = TraceExport::prepare(&setup, &metrics)?;
        let engine = engine.with_tracer(traces.as_ref().map(TraceExport::tracer));
        let engine = if setup.peers.is_some() { engine.among_others(!store.is_shared()) } else { engine };
        let database = setup.postgres.as_ref().map(Database::open).transpose()?;
        let (engine, audit) = Remembering::prepare(engine, setup.audit.as_ref(), database.as_ref());
        let engine = Arc::new(engine);
        engine.set_raw_values(!setup.normalize);
        let reloader = Arc::new(Reloader::new(Arc::clone(&engine), setup.rules.clone(), setup.shadow));
        reloader.first()?;
        reloader.publish(None);
        let stored = match (&setup.rules, &database) {
            (RulesSource::Database { saved, from_peers }, Some(database)) => {
                let kept = (saved.clone(), *from_peers);
                let rules = DatabaseRules::new(Arc::clone(&engine), database.clone(), setup.shadow, kept);
                rules.first().await;
                if rules.offer.borrow().is_none() {
                    engine.await_rules();
                }
                Some(Arc::new(rules))
            }
            _ => None,
        };

        let listed = (setup.regions.clone(), changes);
        let regions = Arc::new(Regions::new(&reloader, stored.as_ref(), notes, listed));

        let tokens = tokens::load(setup.admin_tokens.as_deref())?;
        let http_tls = WatchedTls::load(setup.http_tls.as_ref(), "http", &metrics)?;
        let grpc_tls = WatchedTls::load(setup.grpc_tls.as_ref(), "grpc", &metrics)?;
        let resp_tls = WatchedTls::load(setup.resp_tls.as_ref(), "resp", &metrics)?;
        let http = bind(setup.http.as_deref(), "HTTP", http_tls.as_ref()).await?;
        let grpc = bind(setup.grpc.as_deref(), "gRPC", grpc_tls.as_ref()).await?;
        let resp = bind(setup.resp.as_deref(), "the Redis protocol", resp_tls.as_ref()).await?;
        let metrics_listener = bind(setup.metrics.as_deref(), "metrics", None).await?;
        let owner = setup.admin_socket.open(http.as_ref().map(Bound::of).as_ref()).await?;
        let guard =
            Guard::new(tokens, &metrics).with(setup.admin_local, owner.as_ref().map(Listener::to_string));
        let guard = Arc::new(guard);
        if setup.admin_local {
            tracing::warn!(
                "admin.local: every user of this machine, and everybody whom a proxy on it lets through, may change rules and users"
            );
        }
        let (stop_servers, stop) = (Shutdown::default(), CancellationToken::new());
        let world = match &setup.peers {
            Some(peers) => Some(World::start(&setup, peers, &store, &engine, &stop, &tasks).await?),
            None => None,
        };
        if let Some(world) = &world {
            let (own, peers, ending) = (Arc::clone(&regions), Arc::clone(world.peers()), stop.clone());
            tasks.spawn("regions", &stop, move || Arc::clone(&own).run(Arc::clone(&peers), ending.clone()));
        }
        if let Some(traces) = &traces {
            traces.start(&stop, &tasks);
        }
        let audit = audit.map(|audit| Arc::new(audit.start(&engine, &stop, &tasks)));
        let courier =
            EventCourier::start(&engine, setup.events.as_ref().map(events::courier), &stop, &tasks)?;
        let (own, ending) = (Arc::clone(&engine), stop.clone());
        tasks.spawn("events_breakers", &stop, move || {
            events::watch_breakers(Arc::clone(&own), ending.clone())
        });
        if let Some(watched) = store.watched_tls(setup.redis_tls.as_ref(), &engine) {
            let ending = stop.clone();
            tasks.spawn("redis_tls", &stop, move || Arc::clone(&watched).watch(ending.clone()));
        }
        let shelf = store.shelf();
        let ledger = identity::ledger(&setup, database.as_ref());
        let kept = identity::Kept { database: database.as_ref(), shelf, ledger: &ledger };
        let identities = Identities::start(&setup, &reloader, kept, &stop, &tasks)?;
        let (own, alone, ending) = (Arc::clone(&engine), world.is_none(), stop.clone());
        tasks.spawn("upkeep", &stop, move || upkeep::run(Arc::clone(&own), alone, ending.clone()));
        if matches!(setup.rules, RulesSource::File(_)) {
            let (own, ending) = (Arc::clone(&reloader), stop.clone());
            tasks.spawn("rules_file", &stop, move || Arc::clone(&own).watch(ending.clone()));
        }
        let (own, ending) = (Arc::clone(&engine), stop.clone());
        tasks.spawn("rule_warnings", &stop, move || warnings::watch(Arc::clone(&own), ending.clone()));
        if let Some(stored) = &stored {
            let (own, ending) = (Arc::clone(stored), stop.clone());
            tasks.spawn("rules_database", &stop, move || Arc::clone(&own).follow(ending.clone()));
            let (own, ending) = (Arc::clone(stored), stop.clone());
            tasks.spawn("rules_save", &stop, move || Arc::clone(&own).save(ending.clone()));
            if let Some(world) = &world {
                let (own, peers, ending) = (Arc::clone(stored), Arc::clone(world.peers()), stop.clone());
                tasks.spawn("rules_peers", &stop, move || {
                    peer_rules::run(Arc::clone(&own), Arc::clone(&peers), ending.clone())
                });
            }
        }
        let listener_tls: Vec<WatchedTls> = http_tls.into_iter().chain(grpc_tls).chain(resp_tls).collect();
        for watched in listener_tls.clone() {
            let (own, ending) = (Arc::clone(&engine), stop.clone());
            tasks.spawn("listener_tls", &stop, move || {
                watched.clone().watch(Arc::clone(&own), ending.clone())
            });
        }
        if let Some(path) = setup.admin_tokens.clone() {
            let (guard, ending) = (Arc::clone(&guard), stop.clone());
            tasks.spawn("admin_tokens", &stop, move || {
                tokens::watch(path.clone(), Arc::clone(&guard), ending.clone())
            });
        }

        let (readiness, ready) = watch::channel(Readiness::Starting);
        let settings = Settings {
            trusted_proxies: setup.trusted_proxies,
            ipv6_prefix: setup.ipv6_prefix,
            credentials: setup.credentials.clone(),
            normalize: setup.normalize,
            origin: setup.origin,
            record_queries: setup.audit.as_ref().is_some_and(|audit| audit.queries),
            connections_max: descriptors::connections_max(setup.connections_max),
            address_connections_max: setup.address_connections_max,
            http_refunds: setup.http_refunds,
            drain: drain::DRAIN_SERVERS,
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
            regions: Arc::clone(&regions) as _,
            rules,
            ledger,
            history: audit.as_deref().map(Remembering::history),
        };
        let shared = Servers::new(Arc::clone(&engine), settings, ready, admin);
        let shared = match &identities.tokens {
            Some(tokens) => shared.with_tokens(Arc::clone(tokens)),
            None => shared,
        };
        let shared = match &resp {
            Some(_) => Arc::new(resp_servers(shared, &setup, &store, &metrics)?),
            None => Arc::new(shared),
        };
        // Of their own, since they end before the other tasks do; one that ends too early is missed like
        // those.
        let servers = tasks.apart();
        let http = http.map(|listener| {
            let (bound, listener) = (Bound::of(&listener), Arc::new(listener));
            let (shared, ending) = (Arc::clone(&shared), stop_servers.clone());
            servers.spawn("listen_http", &stop_servers.stop, move || {
                api::serve_http(Arc::clone(&listener), Arc::clone(&shared), ending.clone())
            });
            bound
        });
        let grpc = grpc.map(|listener| {
            let (bound, listener) = (Bound::of(&listener), Arc::new(listener));
            let (shared, ending) = (Arc::clone(&shared), stop_servers.clone());
            servers.spawn("listen_grpc", &stop_servers.stop, move || {
                api::serve_grpc(Arc::clone(&listener), Arc::clone(&shared), ending.clone())
            });
            bound
        });
        let resp = resp.map(|listener| {
            let (bound, listener) = (Bound::of(&listener), Arc::new(listener));
            let (shared, ending) = (Arc::clone(&shared), stop_servers.clone());
            servers.spawn("listen_resp", &stop_servers.stop, move || {
                api::serve_resp(Arc::clone(&listener), Arc::clone(&shared), ending.clone())
            });
            bound
        });
        let watching = metrics_listener.map(|listener| {
            let (bound, listener) = (Bound::of(&listener), Arc::new(listener));
            let (shared, ending) = (Arc::clone(&shared), stop_servers.clone());
            servers.spawn("listen_metrics", &stop_servers.stop, move || {
                api::serve_metrics(Arc::clone(&listener), Arc::clone(&shared), ending.clone())
            });
            bound
        });
        let owner = owner.map(|listener| {
            let (bound, listener) = (Bound::of(&listener), Arc::new(listener));
            let (shared, ending) = (Arc::clone(&shared), stop_servers.clone());
            servers.spawn("listen_admin", &stop_servers.stop, move || {
                api::serve_owner(Arc::clone(&listener), Arc::clone(&shared), ending.clone())
            });
            bound
        });
        let readiness = Arc::new(readiness);
        // Without any rules gateways should ask another daemon.
        let rules = stored.as_ref().map(|stored| stored.offer.subscribe());
        let follow = readiness::Follow { readiness: Arc::clone(&readiness), rules, tasks: tasks.clone() };
        follow.once();
        let ending = stop.clone();
        tasks.spawn("readiness", &stop, move || follow.clone().run(ending.clone()));
        let daemon = Self {
            stored,
            engine,
            store,
            http,
            grpc,
            resp,
            watching,
            owner,
            world,
            reloader,
            identities,
            listener_tls,
            audit,
            regions,
            configuration: None,
            courier,
            traces,
            readiness,
            shares: setup.shares,
            drain: Arc::new(Drain::new(setup.drain)),
            stop_servers,
            stop,
            shared,
            servers,
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
            resp = %text(&self.resp),
            metrics = %text(&self.watching),
            admin = %text(&self.owner),
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
        let (own, ending) = (Arc::clone(&configuration), self.stop.clone());
        self.tasks.spawn("configuration", &self.stop, move || Arc::clone(&own).watch(ending.clone()));
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

impl Bound {
    fn of(listener: &Listener) -> Self {
        Self { address: listener.local_addr(), text: listener.to_string() }
    }
}

async fn bind(
    address: Option<&str>,
    what: &str,
    tls: Option<&WatchedTls>,
) -> anyhow::Result<Option<Listener>> {
    let Some(address) = address else { return Ok(None) };
    let listener =
        Listener::bind(address).await.with_context(|| format!("cannot listen on {address} for {what}"))?;
    Ok(Some(listener.with_tls(tls.map(|watched| Arc::clone(&watched.tls)))))
}
