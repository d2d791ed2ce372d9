//! The region's store: counters in Redis, shared by all daemons of the region.
//!
//! A decision is split into parts, one for each slot that it touches ([`servers::plan`]). Each part is one
//! atomic script call ([`batch::call`], `lua/decide.lua`), joined with others for the same node (in a cluster
//! for the same slot) and sent there ([`servers::dispatcher`], [`servers::topology`], [`servers::node`]). Its
//! reply is replayed by the machines of the store in memory ([`batch::replay`]). Each rule's failure policy
//! answers if no answer comes in time ([`policy::fallback`]).
//!
//! Four rooms, each importing only those before it: [`client`], [`batch`], [`servers`], [`policy`].

mod batch;
mod client;
mod health;
mod policy;
#[cfg(test)]
mod sample;
mod servers;
mod settings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use self::batch::call::{Action, Item, Part, pack_view};
use self::batch::names::Name;
use self::client::dial::SharedTls;
use self::policy::background::BACKGROUND_MAX;
use self::policy::daemons::Daemons;
use self::policy::decide::{BACKGROUND_PATIENCE, Core};
use self::policy::fallback::{AllowanceWord, Fallback};
use self::policy::first_start::Marking;
use self::policy::lease::Leases;
use self::policy::registry::Registry;
use self::policy::unwritten::Unwritten;
use self::servers::dispatcher::Dispatcher;
use self::servers::metrics::StoreMetrics;
use self::servers::node::{Common, Node};
use self::servers::plan::bucket_of;
use self::servers::topology::Places;
use super::cells::MemoryCells;
use super::escrowed::is_escrowed;
use crate::core::algorithm::{Allowance, Counting, Limit, RegionUse};
use crate::core::key::Key;
use crate::core::regions::escrow::{StepRequest, StepResult};
use crate::core::request::Cost;
use crate::core::rule::OnFailure;
use crate::core::ruleset::Compiled;
use crate::core::time::Timestamp;
use crate::engine::clock::{Deadline, Stopwatch};
use crate::engine::port::{Answer, BucketInfo, Charge, HeldLimit, Intent, Later, Outcome, Store, StoreLen};
use crate::engine::status::StoreHealth;
use crate::telemetry::Metrics;

pub use self::client::dial::RedisTls;
pub use self::policy::cells::RedisCells;
pub use self::policy::shelf::RedisShelf;
pub use self::settings::{LeaseSettings, RedisSettings, StartError, Topology};

/// Time that a start waits for Redis before the daemon begins without it.
const START_MAX: Duration = Duration::from_secs(2);

/// The SHA-1 under which Redis knows the script that decides, for measuring it by other means.
#[must_use]
pub fn script_hash() -> &'static str {
    &batch::scripts::DECIDE.hash
}

/// Counters in Redis.
#[derive(Debug)]
pub struct RedisStore {
    core: Arc<Core>,
    tls: SharedTls,
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.core.stop.cancel();
    }
}

impl RedisStore {
    /// Has connections from now on use these certificates. Open connections stay as they are.
    ///
    /// # Errors
    /// Why they cannot be used; those before stay in force.
    pub fn replace_tls(&self, tls: &RedisTls) -> Result<(), StartError> {
        self.tls.store(Some(client::dial::secured(tls).map_err(StartError::Tls)?));
        Ok(())
    }

    /// Connects and begins. `live` is the number of live daemons of this region, kept current by the caller.
    ///
    /// The store starts all the same if no server answers within two seconds; failure policies answer until
    /// one does.
    ///
    /// # Errors
    /// When the settings contradict themselves, or a server answers that cannot do what is needed.
    pub async fn start(
        settings: RedisSettings,
        live: Arc<AtomicUsize>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let started = Stopwatch::start();
        let trouble = Arc::new(Notify::new());
        let tls = (settings.tls != RedisTls::default()).then(|| client::dial::secured(&settings.tls));
        let tls: SharedTls = Arc::new(ArcSwapOption::new(tls.transpose().map_err(StartError::Tls)?));
        let common = Common {
            trouble: Arc::clone(&trouble),
            started,
            timeout: settings.timeout,
            keys_max: settings.server_keys_max,
            tls: Arc::clone(&tls),
            stop: stop.clone(),
            tasks: settings.tasks.clone(),
        };
        let places = Places::new(&settings, common)?;
        let metrics = Arc::new(StoreMetrics::new(metrics));
        let daemons = Arc::new(Daemons::new(live));
        let dispatcher = Dispatcher::new(Arc::clone(&places), Arc::clone(&metrics), settings.clock.clone());
        let name = &settings.name;
        let registry = Registry::new(name, settings.topology, &places.listed(), Arc::clone(&daemons));
        let core = Arc::new(Core {
            dispatcher,
            registry,
            fallback: Fallback::new(settings.on_failure, Arc::clone(&daemons), settings.keys_max),
            leases: Leases::new(settings.lease.permits_max, settings.lease.ttl),
            daemons,
            started,
            metrics,
            timeout: settings.timeout,
            background: Arc::new(Semaphore::new(BACKGROUND_MAX)),
            turns: AtomicU32::new(0),
            unwritten: Unwritten::default(),
            marking: Marking::default(),
            stop_noting: stop.child_token(),
            runtime: Handle::current(),
            stop: stop.clone(),
        });
        let store = Self { core, tls };
        store.first_look(&places, settings.topology).await?;
        store.core.registry.beat(&store.core.dispatcher).await;
        store.start_tasks(&settings, &places, trouble);
        Ok(store)
    }

    fn start_tasks(&self, settings: &RedisSettings, places: &Arc<Places>, trouble: Arc<Notify>) {
        let (tasks, stop) = (&settings.tasks, &self.core.stop);
        // Not the store itself: with it the tasks would keep alive what ends them.
        let core = Arc::clone(&self.core);
        tasks.spawn("redis_registry", &core.stop_noting.clone(), move || Arc::clone(&core).note_itself());
        if settings.topology == Topology::Sentinel {
            let (places, ending) = (Arc::clone(places), stop.clone());
            tasks.spawn("redis_sentinels", stop, move || Arc::clone(&places).listen(ending.clone()));
        }
        let (places, ending) = (Arc::clone(places), stop.clone());
        tasks.spawn("redis_topology", stop, move || {
            Arc::clone(&places).watch(ending.clone(), Arc::clone(&trouble))
        });
        let core = Arc::clone(&self.core);
        tasks.spawn("redis_leases", stop, move || Arc::clone(&core).return_leases());
    }

    async fn first_look(&self, places: &Arc<Places>, topology: Topology) -> Result<(), StartError> {
        let deadline = Deadline::after(START_MAX);
        for node in places.witnesses() {
            if !reached(&node, deadline).await? {
                tracing::warn!(node = %node.address, "redis does not answer; starting without it");
            } else if topology != Topology::Sentinel {
                servers::inspect::identify(&node, topology).await?;
            }
        }
        if topology == Topology::Sentinel {
            places.try_sentinels().await?;
        }
        while places.look().await.is_err() && !deadline.left().is_zero() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let map = places.map().clone();
        for node in map.nodes() {
            if reached(node, deadline).await?
                && let Some(inspected) = places.inspect(node, &map).await
            {
                inspected?;
            }
        }
        Ok(())
    }

    /// Gives back every permit that was drawn ahead, and tells the other daemons that this one goes. For a
    /// daemon that drains.
    pub async fn drain(&self) {
        let now = self.core.started.elapsed();
        let leftovers = self.core.leases.sweep(now, true);
        // No denial waits until it is each one's turn.
        leftovers.iter().for_each(|leftover| self.core.leases.went_back(&leftover.key, false, now));
        for leftover in leftovers {
            let Some(part) = self.core.leftover(&leftover) else { continue };
            let deadline = Deadline::after(self.core.timeout * BACKGROUND_PATIENCE);
            let answer = self.core.dispatcher.ask(Arc::new(part), deadline).await;
            self.core.returned(leftover.permits, answer);
        }
        // Last: a server that does not answer must not keep permits from going back to the others.
        self.core.stop_noting.cancel();
        self.core.registry.leave(&self.core.dispatcher).await;
    }

    /// Counters whose limits callers bring. `stand_in` counts while Redis is away; without one calls are
    /// refused then.
    #[must_use]
    pub fn cells(&self, stand_in: Option<MemoryCells>) -> RedisCells {
        RedisCells::new(Arc::clone(&self.core), stand_in)
    }

    /// Returns where the region's daemons keep facts for each other.
    #[must_use]
    pub fn shelf(&self) -> RedisShelf {
        RedisShelf::new(Arc::clone(&self.core))
    }
}

/// Checks whether there is a connection in time; an error where the server refuses this user.
async fn reached(node: &Node, deadline: Deadline) -> Result<bool, StartError> {
    let connected = node.connected(deadline.left()).await;
    match node.notes.refusal() {
        Some(why) if !connected => Err(StartError::Forbidden(node.address.clone(), why)),
        _ => Ok(connected),
    }
}

/// Does something to one bucket, whatever it answers.
fn plain_part(rule: &Compiled, key: &Key, limit: &Limit, action: Action, permits: u64) -> Part {
    let (cost, share, first) = (Cost::Take(permits), None, None);
    let charge = Charge { rule, key, limit: *limit, share, whole: limit, first, cost, enforced: false };
    let (slot, bucket) = bucket_of(&charge);
    let item = Item::put(cost);
    Part { slot, action, buckets: SmallVec::from_iter([bucket]), charges: SmallVec::from_iter([item]) }
}

impl Store for RedisStore {
    fn answers_at_once(&self) -> bool {
        false
    }

    fn try_decide(&self, charges: &[Charge<'_>], intent: Intent, _: Timestamp) -> Option<Outcome> {
        match (charges, intent) {
            ([charge], Intent::Charge) => self.core.decide_from_leases(charge),
            _ => None,
        }
    }

    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], intent: Intent, now: Timestamp) -> Later<'a, Outcome> {
        Box::pin(self.core.decide_whole(charges, intent, now))
    }

    fn in_one_step(&self, charges: &[Charge<'_>]) -> bool {
        let split = charges.iter().any(|charge| batch::names::parts_of(&charge.rule.rule) > 1);
        !split && (charges.len() < 2 || self.core.planned(charges, Intent::Charge).len() < 2)
    }

    fn bucket<'a>(
        &'a self,
        rule: &'a Compiled,
        key: &'a Key,
        held: HeldLimit,
        now: Timestamp,
    ) -> Later<'a, Option<BucketInfo>> {
        Box::pin(self.core.bucket_whole(rule, key, held, now))
    }

    fn set_allowance(
        &self,
        rule: &Compiled,
        key: &Key,
        allowance: Allowance,
        error_bound: u64,
        now: Timestamp,
    ) {
        let name = batch::names::bucket(&rule.rule, key, rule.rule.windows());
        let window = (rule.counting() != Counting::Level).then_some(rule.rule.window);
        let kept = Allowance::kept_for(window);
        let word = AllowanceWord { allowance, error_bound, kept };
        self.core.fallback.tell(key, &rule.limit, word, now);
        let view = Name { key: batch::names::view(&name.key), slot: name.slot };
        self.core.write_allowance(key, view, pack_view(&allowance, error_bound), kept.to_std());
    }

    fn reset<'a>(&'a self, rule: &'a Compiled, key: &'a Key) -> Later<'a, Option<bool>> {
        Box::pin(self.core.reset_whole(rule, key))
    }

    fn rights<'a>(
        &'a self,
        rule: &'a Compiled,
        key: &'a Key,
        held: HeldLimit,
        ask: &'a StepRequest,
        _: Timestamp,
    ) -> Answer<'a, Option<StepResult>> {
        if !is_escrowed(rule) {
            return Answer::Now(None);
        }
        Answer::Later(Box::pin(async move {
            let call = batch::rights::StepCall::new(rule, key, held, ask)?;
            let deadline = Deadline::after(self.core.timeout * BACKGROUND_PATIENCE);
            self.core.dispatcher.rights(&call, deadline).await
        }))
    }

    fn restore(&self, rule: &Compiled, key: &Key, limit: Limit, known: RegionUse, _: Timestamp) {
        self.core.undo(plain_part(rule, key, &limit, Action::Restore(known), 0));
    }

    fn debit(&self, rule: &Compiled, key: &Key, limit: Limit, permits: u64, _: Timestamp) {
        if rule.counting() != Counting::Level || permits == 0 {
            return;
        }
        self.core.undo(plain_part(rule, key, &limit, Action::Put, permits));
    }

    fn sweep(&self, now: Timestamp) {
        let core = &self.core;
        let map = core.dispatcher.places().map();
        core.metrics.breakers(map.nodes().iter().map(|node| node.phase()));
        core.metrics.servers(map.nodes());
        core.metrics.daemons(core.daemons.count());
        for node in map.nodes().iter().chain(core.dispatcher.places().advisers()) {
            node.review();
        }
        // More than can be under way would only be owed again.
        let most = core.background.available_permits();
        for owed in core.fallback.collect(now, most, |slot| core.has_room(slot)) {
            core.pay(owed, now);
        }
        core.write_again();
        core.fallback.sweep(now);
    }

    fn is_new(&self) -> Answer<'_, Option<bool>> {
        Answer::Later(Box::pin(self.core.marking.is_absent(&self.core.dispatcher)))
    }

    fn begin_first(&self, start: u64) -> Answer<'_, bool> {
        Answer::Later(Box::pin(self.core.marking.mark(&self.core.dispatcher, start)))
    }

    fn policy(&self, rule: &Compiled) -> OnFailure {
        self.core.fallback.policy_of(rule)
    }

    fn health(&self) -> StoreHealth {
        health::of(self.core.dispatcher.places(), &self.core.daemons)
    }

    fn len(&self) -> StoreLen {
        self.core.fallback.len()
    }
}
