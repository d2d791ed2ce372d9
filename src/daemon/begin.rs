//! The start of a daemon, step by step: what the process before left, the engine, its rules, its addresses,
//! its tasks, and at last the servers.

use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::audit::{Prepared, Remembering};
use super::configuration::Drain;
use super::database_rules::{DatabaseRules, SavedRules};
use super::file_rules::FileRules;
use super::identity::{self, Identities};
use super::listeners::Listeners;
use super::marks::MarksKeeper;
use super::noted_regions;
use super::regions::{ListedRegions, Regions};
use super::reload::{self, Reloader};
use super::setup::{RulesSource, Setup};
use super::stand_in::StandIn;
use super::store::Opened;
use super::traces::TraceExport;
use super::world::World;
use super::{
    Daemon, descriptors, drain, events, kept, marks, peer_rules, readiness, shares, tokens, upkeep, warnings,
};
use crate::api::{self, Admin, Guard, Readiness, Servers, Settings, Shutdown};
use crate::core::key::Shape;
use crate::core::region_list::RegionChanges;
use crate::core::regions::escrow::window::marks::RememberedMarks;
use crate::core::time::Timestamp;
use crate::database::events::EventCourier;
use crate::database::postgres::Database;
use crate::engine::Engine;
use crate::engine::clock::Clock;
use crate::engine::rulebook::RuleBook;
use crate::engine::tasks::Tasks;
use crate::store::MarkNotes;
use crate::telemetry::Metrics;

impl Daemon {
    /// Starts all of a daemon, in the order in which one part needs another.
    pub(super) async fn begin(setup: Setup) -> anyhow::Result<Self> {
        let metrics = Metrics::new();
        let tasks = Tasks::new(Arc::clone(&metrics));
        let Middle { store, engine, traces, database, audit, notes, changes } =
            Middle::begin(&setup, &metrics, &tasks).await?;
        let reloader = Arc::new(Reloader::new(Arc::clone(&engine), setup.rules.clone(), setup.shadow));
        reloader.first()?;
        reloader.publish(None);
        let stored = rules_of_database(&setup, &engine, database.as_ref()).await;
        let listed = ListedRegions { configured: setup.regions.clone(), changes };
        let regions = Arc::new(Regions::new(&reloader, stored.as_ref(), notes, listed));

        let tokens = tokens::load(setup.admin_tokens.as_deref())?;
        let listeners = Listeners::bind(&setup, &metrics).await?;
        let guard = Arc::new(Guard::new(tokens, &metrics).with(setup.admin_local, listeners.owner()));
        warn_of_local_admin(&setup);
        let (stop_servers, stop) = (Shutdown::default(), CancellationToken::new());
        let world = world(&setup, &store, &engine, &stop, &tasks).await?;
        let parts = Parts { setup: &setup, engine: &engine, store: &store, world: world.as_ref() };
        parts.follow_regions(&regions, &stop, &tasks);
        traces.iter().for_each(|traces| traces.start(&stop, &tasks));
        let audit = audit.map(|audit| Arc::new(audit.start(&engine, &stop, &tasks)));
        let courier =
            EventCourier::start(&engine, setup.events.as_ref().map(events::courier), &stop, &tasks)?;
        let ledger = identity::ledger(&setup, database.as_ref());
        let kept = identity::Kept { database: database.as_ref(), shelf: store.shelf(), ledger: &ledger };
        let identities = Identities::start(&setup, &reloader, kept, &stop, &tasks)?;
        parts.keep_up(&stop, &tasks);
        parts.keep_marks(&stop, &tasks);
        parts.follow_rules(&reloader, stored.as_ref(), &stop, &tasks);
        parts.watch_secrets(&listeners, &guard, &stop, &tasks);
        let stand_in = stand_in(&setup, &engine, &metrics, &stop, &tasks).await?;

        let (readiness, ready) = watch::channel(Readiness::Starting);
        let admin = Admin {
            guard,
            rule_json: Arc::new(reload::rule_json),
            register: Arc::clone(&identities.register),
            regions: Arc::clone(&regions) as _,
            rules: book_of(stored.as_ref(), &reloader),
            ledger,
            history: audit.as_deref().map(Remembering::history),
        };
        let shared = Servers::new(Arc::clone(&engine), settings(&setup), ready, admin);
        let shared = speaking(shared, &setup, &store, &identities, stand_in.as_ref(), &metrics)?;
        let shared = Arc::new(shared);
        // Tasks apart, since servers end before the other tasks do; one that ends too early is missed like
        // those.
        let servers = tasks.apart();
        let listener_tls = listeners.tls.clone();
        let addresses = listeners.serve(&shared, &servers, &stop_servers);
        let readiness = Arc::new(readiness);
        follow_readiness(&readiness, stored.as_ref(), stand_in.as_ref(), &stop, &tasks);
        let daemon = Self {
            stored,
            engine,
            store,
            addresses,
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
}

/// The middle of a daemon, before it has any rules.
struct Middle {
    store: Opened,
    engine: Arc<Engine>,
    traces: Option<TraceExport>,
    database: Option<Database>,
    audit: Option<Prepared>,
    /// File that notes which regions operators change; `None`: nothing outlives the process.
    notes: Option<PathBuf>,
    /// The changes that an earlier process noted there.
    changes: RegionChanges,
}

impl Middle {
    async fn begin(setup: &Setup, metrics: &Arc<Metrics>, tasks: &Tasks) -> anyhow::Result<Self> {
        let store = Opened::open(&setup.store, Clock::System.now(), metrics, tasks).await?;
        let notes = setup.shares.as_ref().filter(|_| setup.peers.is_some());
        let notes = notes.map(|shares| noted_regions::file_of(shares, &setup.name.node));
        let changes = notes
            .as_ref()
            .map(|path| noted_regions::read(path, &setup.name))
            .transpose()?
            .unwrap_or_default();
        let engine = engine(setup, &store, &changes, metrics, tasks)?;
        let traces = TraceExport::prepare(setup, metrics)?;
        let engine = engine.with_tracer(traces.as_ref().map(TraceExport::tracer));
        let database = setup.postgres.as_ref().map(Database::open).transpose()?;
        let (engine, audit) = Remembering::prepare(engine, setup.audit.as_ref(), database.as_ref());
        engine.set_raw_values(!setup.normalize);
        Ok(Self { store, engine: Arc::new(engine), traces, database, audit, notes, changes })
    }
}

fn warn_of_local_admin(setup: &Setup) {
    if setup.admin_local {
        tracing::warn!(
            "admin.local: every user of this machine, and everybody whom a proxy on it lets through, may change rules and users"
        );
    }
}

/// Makes the engine, with what the process before left of its rights.
fn engine(
    setup: &Setup,
    store: &Opened,
    changes: &RegionChanges,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
) -> anyhow::Result<Engine> {
    let held = setup.shares.as_ref().map(|path| shares::read(path, &setup.name)).transpose()?.flatten();
    let engine =
        Engine::new(setup.name.clone(), Clock::System, Arc::clone(&store.store), Arc::clone(metrics))
            .holding_back(setup.held_answers_max)
            .sharing(changes.over(&setup.regions), held)
            .agreeing(setup.peers.is_some())
            .born(std::hash::RandomState::new().build_hasher().finish())
            .lending(setup.peers.is_some())
            .with_tasks(tasks.clone());
    take_up(setup, store, &engine)?;
    Ok(if setup.peers.is_some() { engine.among_others(!store.is_shared()) } else { engine })
}

/// Goes on with what the process before left of its rights, or at least noted. It is taken away whether or
/// not this process can use it.
fn take_up(setup: &Setup, store: &Opened, engine: &Engine) -> anyhow::Result<()> {
    let Some(shares) = &setup.shares else { return Ok(()) };
    let claim = match store.memory() {
        Some(_) => marks::claim(shares, &setup.name)?,
        None => None,
    };
    let left = kept::take(shares, &setup.name);
    let Some(memory) = store.memory() else { return marks::forget(shares, &setup.name) };
    let left_at = left.as_ref().map_or(Timestamp(0), |left| left.marks);
    let (file, known) = marks::begin(shares, &setup.name, claim, left_at, engine.now())?.unzip();
    let known: RememberedMarks = known.unwrap_or_default();
    let shapes = match &left {
        Some(left) => with_shapes(left.shapes.clone(), known.shapes()),
        None => Some(known.shapes()),
    };
    if !shapes.is_some_and(|shapes| engine.restore_shapes(shapes)) {
        tracing::warn!("what the process before left of escrow rules names other rules here: it is burnt");
        // It holds what is to be taken away.
        drop(file);
        return marks::forget(shares, &setup.name);
    }
    if let Some(file) = file {
        let notes: Arc<dyn MarkNotes> = Arc::clone(&file) as _;
        memory.keep_marks(&notes, &known);
        store.note_in(file);
    }
    if let Some(left) = left {
        memory.take_back(left.store);
    }
    Ok(())
}

/// The numbers of rules that two files of one process name. `None`: they are of two.
fn with_shapes(
    (mut names, next): (Vec<(String, Shape)>, u32),
    (others, next_other): (Vec<(String, Shape)>, u32),
) -> Option<(Vec<(String, Shape)>, u32)> {
    for (name, shape) in others {
        let same = |(known, number): &(String, Shape)| (*known == name, *number == shape);
        match names.iter().map(same).find(|same| *same != (false, false)) {
            None => names.push((name, shape)),
            Some((true, true)) => {}
            Some(_) => return None,
        }
    }
    Some((names, next.max(next_other)))
}

/// Brings the rules of the database into force, or those that were saved beside it. `None`: rules are in a
/// file.
async fn rules_of_database(
    setup: &Setup,
    engine: &Arc<Engine>,
    database: Option<&Database>,
) -> Option<Arc<DatabaseRules>> {
    let RulesSource::Database { saved, from_peers } = &setup.rules else { return None };
    let kept = SavedRules { saved: saved.clone(), from_peers: *from_peers };
    let rules = DatabaseRules::new(Arc::clone(engine), database?.clone(), setup.shadow, kept);
    rules.first().await;
    if rules.offer.borrow().is_none() {
        engine.await_rules();
    }
    Some(Arc::new(rules))
}

/// Joins the other daemons, where that is wanted.
async fn world(
    setup: &Setup,
    store: &Opened,
    engine: &Arc<Engine>,
    stop: &CancellationToken,
    tasks: &Tasks,
) -> anyhow::Result<Option<World>> {
    let Some(peers) = &setup.peers else { return Ok(None) };
    World::start(setup, peers, store, engine, stop, tasks).await.map(Some)
}

/// Returns where rules are read and written.
fn book_of(stored: Option<&Arc<DatabaseRules>>, reloader: &Arc<Reloader>) -> Arc<dyn RuleBook> {
    match stored {
        Some(stored) => Arc::clone(stored) as _,
        None => Arc::new(FileRules(Arc::clone(reloader))),
    }
}

/// Says whether the daemon is ready, from now on.
fn follow_readiness(
    readiness: &Arc<watch::Sender<Readiness>>,
    stored: Option<&Arc<DatabaseRules>>,
    stand_in: Option<&Arc<StandIn>>,
    stop: &CancellationToken,
    tasks: &Tasks,
) {
    let follow = readiness::Follow {
        readiness: Arc::clone(readiness),
        // Without any rules gateways should ask another daemon.
        rules: stored.map(|stored| stored.offer.subscribe()),
        stand_in: stand_in.map(|own| own.healthy()),
        tasks: tasks.clone(),
    };
    follow.once();
    let ending = stop.clone();
    tasks.spawn("readiness", stop, move || follow.clone().run(ending.clone()));
}

/// The same servers, which also read tokens, stand in for Envoy's service and speak the Redis protocol,
/// as far as that is wanted.
///
/// # Errors
/// As [`with_resp`].
fn speaking(
    servers: Servers,
    setup: &Setup,
    store: &Opened,
    identities: &Identities,
    stand_in: Option<&Arc<StandIn>>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Servers> {
    let servers = match &identities.tokens {
        Some(tokens) => servers.with_tokens(Arc::clone(tokens)),
        None => servers,
    };
    let servers = match stand_in {
        Some(own) => servers.with_service(Arc::clone(own.service())),
        None => servers,
    };
    match &setup.resp {
        Some(_) => with_resp(servers, setup, store, metrics),
        None => Ok(servers),
    }
}

/// Starts what answers as Envoy's own rate limit service does, where that is wanted.
async fn stand_in(
    setup: &Setup,
    engine: &Arc<Engine>,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
    tasks: &Tasks,
) -> anyhow::Result<Option<Arc<StandIn>>> {
    let Some(wanted) = &setup.stand_in else { return Ok(None) };
    let own = StandIn::new(wanted.clone(), engine, metrics);
    own.start(stop, tasks).await?;
    Ok(Some(own))
}

/// The same servers, which speak the Redis protocol as well.
///
/// # Errors
/// The file of passwords cannot be read, or has none.
fn with_resp(
    servers: Servers,
    setup: &Setup,
    store: &Opened,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Servers> {
    let passwords = passwords(setup.resp_passwords.as_deref())?;
    let cells = store.cells(&setup.store, metrics);
    Ok(servers.with_resp(api::RespState::new(cells, passwords, metrics)))
}

/// Reads the passwords that clients of the Redis protocol may show; none without a file.
///
/// # Errors
/// The file cannot be read, or has no password.
pub(super) fn passwords(file: Option<&Path>) -> anyhow::Result<api::Passwords> {
    let Some(file) = file else { return Ok(api::Passwords::default()) };
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("listen.resp_passwords: cannot read {}", file.display()))?;
    let passwords = api::Passwords::read(&text);
    anyhow::ensure!(!passwords.is_empty(), "listen.resp_passwords: {} has no password", file.display());
    Ok(passwords)
}

/// Returns how the servers answer.
fn settings(setup: &Setup) -> Settings {
    Settings {
        trusted_proxies: setup.trusted_proxies,
        ipv6_prefix: setup.ipv6_prefix,
        credentials: setup.credentials.clone(),
        normalize: setup.normalize,
        origin: setup.origin,
        record_queries: setup.audit.as_ref().is_some_and(|audit| audit.queries),
        connections_max: descriptors::connections_max(
            setup.connections_max,
            2 + u64::from(setup.resp.is_some()),
        ),
        address_connections_max: setup.address_connections_max,
        http_refunds: setup.http_refunds,
        drain: drain::DRAIN_SERVERS,
        ..Settings::default()
    }
}

/// The parts of a daemon that its tasks work on.
struct Parts<'d> {
    setup: &'d Setup,
    engine: &'d Arc<Engine>,
    store: &'d Opened,
    world: Option<&'d World>,
}

impl Parts<'_> {
    /// Starts what follows the list of regions, where there are others.
    fn follow_regions(&self, regions: &Arc<Regions>, stop: &CancellationToken, tasks: &Tasks) {
        if let Some(world) = self.world {
            let peers = Arc::clone(world.peers());
            tasks.spawn_on("regions", stop, regions, move |own, ending| own.run(Arc::clone(&peers), ending));
        }
    }

    /// Starts what keeps the engine and its store in order.
    fn keep_up(&self, stop: &CancellationToken, tasks: &Tasks) {
        tasks.spawn_on("events_breakers", stop, self.engine, events::watch_breakers);
        let alone = self.world.is_none();
        tasks.spawn_on("upkeep", stop, self.engine, move |own, ending| upkeep::run(own, alone, ending));
        // A stand-in says by itself that it waits for its first rules.
        let awaits_rules = self.setup.stand_in.is_some();
        tasks.spawn_on("rule_warnings", stop, self.engine, move |own, ending| {
            warnings::watch(own, awaits_rules, ending)
        });
    }

    /// Starts what keeps the notes of what is spent of `escrow` rules.
    fn keep_marks(&self, stop: &CancellationToken, tasks: &Tasks) {
        let Some((file, memory)) = self.store.marks().zip(self.store.memory()) else { return };
        let (file, memory) = (Arc::clone(file), Arc::clone(memory));
        let keeper = MarksKeeper { file, memory, engine: Arc::clone(self.engine) };
        tasks.spawn_on("marks", stop, &Arc::new(keeper), MarksKeeper::run);
    }

    /// Starts what follows the rules where they are written, and what other regions say of them.
    fn follow_rules(
        &self,
        reloader: &Arc<Reloader>,
        stored: Option<&Arc<DatabaseRules>>,
        stop: &CancellationToken,
        tasks: &Tasks,
    ) {
        if matches!(self.setup.rules, RulesSource::File(_)) {
            tasks.spawn_on("rules_file", stop, reloader, Reloader::watch);
        }
        let Some(stored) = stored else { return };
        tasks.spawn_on("rules_database", stop, stored, DatabaseRules::follow);
        tasks.spawn_on("rules_save", stop, stored, DatabaseRules::save);
        if let Some(world) = self.world {
            let peers = Arc::clone(world.peers());
            tasks.spawn_on("rules_peers", stop, stored, move |own, ending| {
                peer_rules::run(own, Arc::clone(&peers), ending)
            });
        }
    }

    /// Starts what looks whether certificates and tokens were replaced.
    fn watch_secrets(
        &self,
        listeners: &Listeners,
        guard: &Arc<Guard>,
        stop: &CancellationToken,
        tasks: &Tasks,
    ) {
        if let Some(watched) = self.store.watched_tls(self.setup.redis_tls.as_ref(), self.engine) {
            tasks.spawn_on("redis_tls", stop, &watched, |own, ending| own.watch(ending));
        }
        for watched in listeners.tls.clone() {
            tasks.spawn_on("listener_tls", stop, self.engine, move |own, ending| {
                watched.clone().watch(own, ending)
            });
        }
        if let Some(path) = self.setup.admin_tokens.clone() {
            tasks.spawn_on("admin_tokens", stop, guard, move |own, ending| {
                tokens::watch(path.clone(), own, ending)
            });
        }
    }
}
