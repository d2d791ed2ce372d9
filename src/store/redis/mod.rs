//! The region's store: counters in Redis, shared by all daemons of the region.
//!
//! A decision is split into parts, one for each slot that it touches ([`plan`]); each part is one atomic script call
//! ([`call`], `lua/decide.lua`), joined with others for the same slot ([`lanes`]), sent to the node that serves the slot
//! ([`topology`], [`node`]), and its reply is put into words by the machines of the store in memory ([`replay`]). Where no
//! answer comes in time, each rule's failure policy answers ([`fallback`]).

mod breaker;
mod call;
mod failure;
mod fallback;
mod lanes;
mod lease;
mod meter;
mod names;
mod node;
mod plan;
mod replay;
mod ring;
#[cfg(test)]
mod sample;
mod scripts;
mod slots;
mod topology;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use self::breaker::Phase;
use self::call::{Action, Bucket, Item, Part, pack_view};
use self::failure::Failure;
use self::fallback::{Fallback, Owed};
use self::lanes::Lanes;
use self::lease::{Advice, Drawn, Leases, Leftover};
use self::meter::{Leased, Meter};
use self::node::Common;
use self::plan::{Planned, bucket_of};
use self::replay::Answered;
use self::topology::Places;
use crate::core::algorithm::{Algorithm, View};
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::rule::OnFailure;
use crate::core::ruleset::Compiled;
use crate::core::time::Timestamp;
use crate::engine::clock::{Clock, Deadline, Stopwatch};
use crate::engine::port::{BucketInfo, Charge, Counted, Intent, Later, Outcome, Store, StoreLen};
use crate::telemetry::Metrics;

/// Calls in the background at once: what is given back, charged later, or told of the world. More: the oldest matter is
/// kept where it can be, and is counted as lost where it cannot.
const BACKGROUND_MAX: usize = 1_024;
/// For a call in the background, in decisions' timeouts.
const BACKGROUND_PATIENCE: u32 = 10;
/// How often leases that have ended are looked for.
const RETURN_EVERY: Duration = Duration::from_millis(50);
/// How long a start waits for Redis before the daemon begins without it.
const START_MAX: Duration = Duration::from_secs(2);
/// Oldest server that the scripts and commands need.
const VERSION_MIN: (u32, u32) = (6, 2);

/// The SHA-1 under which Redis knows the script that decides, for measuring it by other means.
#[must_use]
pub fn script_hash() -> &'static str {
    &scripts::DECIDE.hash
}

/// How the servers are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Redis Cluster.
    #[default]
    Cluster,
    /// Independent servers; a consistent-hash ring places the keys.
    Ring,
    /// One primary, named by sentinels.
    Sentinel,
    /// One server.
    Single,
}

/// Permits drawn ahead for hot keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Permits drawn at once at most; zero: never.
    pub permits_max: u32,
    /// How long permits are kept before they go back.
    pub ttl: Duration,
}

/// What a [`RedisStore`] is started with.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// How the servers are arranged.
    pub topology: Topology,
    /// `redis://user:password@host:port`, or `rediss://` for TLS: the server, the ring's servers, some of the cluster's, or
    /// the sentinels.
    pub nodes: Vec<String>,
    /// What the sentinels call the primary; the other topologies do not read it.
    pub sentinel_master: String,
    /// For one decision, everything included.
    pub timeout: Duration,
    /// For rules that name no policy of their own.
    pub on_failure: OnFailure,
    /// Permits drawn ahead.
    pub lease: LeaseSettings,
    /// Most buckets that this daemon keeps in mind for when Redis is away.
    pub keys_max: usize,
    /// A clock in place of the servers' `TIME`, for tests; buckets then live for a minute whatever they hold.
    pub clock: Option<Arc<Clock>>,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            topology: Topology::Cluster,
            nodes: Vec::new(),
            sentinel_master: "tidegate".to_owned(),
            timeout: Duration::from_millis(20),
            on_failure: OnFailure::Local,
            lease: LeaseSettings { permits_max: 1_000, ttl: Duration::from_millis(200) },
            keys_max: 100_000,
            clock: None,
        }
    }
}

/// Why a store could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No address was given.
    #[error("store.redis.nodes is empty: name at least one server")]
    NoNodes,
    /// More than one server for `single`.
    #[error("store.redis.topology \"single\" takes one node; \"ring\" or \"cluster\" takes several")]
    TooManyNodes,
    /// An address cannot be read.
    #[error("store.redis.nodes: \"{0}\": {1}")]
    Address(String, String),
    /// A server is too old.
    #[error("{0} runs Redis {1}; Tidegate needs Redis 6.2 or later, or Valkey")]
    TooOld(String, String),
    /// A server is no cluster member.
    #[error(
        "{0} is not part of a Redis Cluster; use topology \"single\" or \"ring\", or start it with cluster-enabled yes"
    )]
    NoCluster(String),
    /// A cluster member where none may be.
    #[error("{0} is part of a Redis Cluster; use topology \"cluster\"")]
    IsCluster(String),
    /// The user or password is refused.
    #[error("{0} refuses this user: {1}")]
    Forbidden(String, String),
}

/// Health of one server, as this daemon sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHealth {
    /// `host:port`.
    pub address: String,
    /// Whether decisions are sent to it: `closed` yes, `half_open` a few, `open` no.
    pub breaker: &'static str,
}

/// Counters in Redis.
#[derive(Debug)]
pub struct RedisStore {
    core: Arc<Core>,
}

/// What decisions and background calls share.
#[derive(Debug)]
struct Core {
    lanes: Arc<Lanes>,
    fallback: Fallback,
    leases: Leases,
    live: Arc<AtomicUsize>,
    started: Stopwatch,
    meter: Arc<Meter>,
    timeout: Duration,
    background: Arc<Semaphore>,
    /// Views and debits come from callers outside any runtime.
    runtime: Handle,
    stop: CancellationToken,
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.core.stop.cancel();
    }
}

impl RedisStore {
    /// Connects and begins. `live` is the number of live daemons of this region, kept current by the caller.
    ///
    /// Where no server answers within two seconds the store starts all the same, and failure policies answer until one does.
    ///
    /// # Errors
    /// When the settings contradict themselves, or a server answers that cannot do what is needed.
    pub async fn start(
        settings: RedisSettings,
        live: Arc<AtomicUsize>,
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let started = Stopwatch::start();
        let trouble = Arc::new(Notify::new());
        let common =
            Common { trouble: Arc::clone(&trouble), started, timeout: settings.timeout, stop: stop.clone() };
        let places = Places::new(settings.topology, &settings.sentinel_master, &settings.nodes, common)?;
        let meter = Arc::new(Meter::new(metrics));
        let lanes = Lanes::new(Arc::clone(&places), Arc::clone(&meter), settings.clock.clone());
        let core = Arc::new(Core {
            lanes,
            fallback: Fallback::new(settings.on_failure, Arc::clone(&live), settings.keys_max),
            leases: Leases::new(settings.lease.permits_max, settings.lease.ttl),
            live,
            started,
            meter,
            timeout: settings.timeout,
            background: Arc::new(Semaphore::new(BACKGROUND_MAX)),
            runtime: Handle::current(),
            stop: stop.clone(),
        });
        let store = Self { core };
        store.first_look(&places, settings.topology).await?;
        tokio::spawn(Arc::clone(&places).watch(stop, trouble));
        tokio::spawn(Arc::clone(&store.core).return_leases());
        Ok(store)
    }

    async fn first_look(&self, places: &Arc<Places>, topology: Topology) -> Result<(), StartError> {
        let deadline = Deadline::after(START_MAX);
        for node in places.witnesses() {
            if !node.connected(deadline.left()).await {
                tracing::warn!(node = %node.address, "redis does not answer; starting without it");
                continue;
            }
            if topology != Topology::Sentinel {
                check_server(&node, topology).await?;
            }
        }
        while places.look().await.is_err() && !deadline.left().is_zero() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for node in places.map().nodes().to_vec() {
            if node.connected(deadline.left()).await && topology == Topology::Sentinel {
                check_server(&node, topology).await?;
            }
        }
        Ok(())
    }

    /// Gives back every permit that was drawn ahead. For a daemon that drains.
    pub async fn drain(&self) {
        let now = self.core.started.elapsed();
        for leftover in self.core.leases.sweep(now, true) {
            let Some(part) = self.core.leftover(&leftover) else { continue };
            let deadline = Deadline::after(self.core.timeout * BACKGROUND_PATIENCE);
            let answer = self.core.lanes.ask(Arc::new(part), deadline).await;
            self.core.returned(leftover.permits, answer.is_ok());
        }
    }

    /// The servers that hold counters, and whether they are asked.
    #[must_use]
    pub fn health(&self) -> Vec<NodeHealth> {
        let word = |phase| match phase {
            Phase::Closed => "closed",
            Phase::HalfOpen => "half_open",
            Phase::Open => "open",
        };
        let map = self.core.lanes.places().map();
        let health = |node: &Arc<node::Node>| NodeHealth {
            address: node.address.clone(),
            breaker: word(node.phase()),
        };
        map.nodes().iter().map(health).collect()
    }
}

/// Whether a server can do what is needed.
async fn check_server(node: &node::Node, topology: Topology) -> Result<(), StartError> {
    let text = match node.upkeep(redis::cmd("INFO").arg("server"), START_MAX).await {
        Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Err(Failure::Forbidden(why)) => return Err(StartError::Forbidden(node.address.clone(), why)),
        // Not allowed to ask: then the operator has to know.
        _ => return Ok(()),
    };
    let field = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    if let Some(version) = field("redis_version") {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0_u32));
        let version_found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version_found < VERSION_MIN {
            return Err(StartError::TooOld(node.address.clone(), version.to_owned()));
        }
    }
    let clustered = field("redis_mode") == Some("cluster");
    match (topology, clustered) {
        (Topology::Cluster, false) => Err(StartError::NoCluster(node.address.clone())),
        (Topology::Single | Topology::Ring | Topology::Sentinel, true) => {
            Err(StartError::IsCluster(node.address.clone()))
        }
        _ => Ok(()),
    }
}

impl Core {
    async fn decide(self: &Arc<Self>, charges: &[Charge<'_>], intent: Intent, now: Timestamp) -> Outcome {
        if charges.is_empty() {
            return Outcome { admitted: true, counted: SmallVec::new() };
        }
        let deadline = Deadline::after(self.timeout);
        let planned = {
            let map = self.lanes.places().map();
            plan::split(charges, intent, self.lanes.places().joins_slots().then_some(&map))
        };
        let sent = self.started.elapsed();
        let answers = self.ask_all(&planned, deadline).await;
        let outcome = self.conclude(charges, &planned, answers, intent, now);
        if let ([charge], [counted], Intent::Charge) = (charges, outcome.counted.as_slice(), intent)
            && !counted.degraded
        {
            self.leases.denied(charge, counted, sent);
        }
        outcome
    }

    /// Asks all parts at once.
    async fn ask_all(
        self: &Arc<Self>,
        planned: &[Planned],
        deadline: Deadline,
    ) -> SmallVec<[Result<Answered, Failure>; 1]> {
        let mut answers = SmallVec::new();
        if let [only] = planned {
            answers.push(self.lanes.ask(Arc::clone(&only.part), deadline).await);
            return answers;
        }
        let asked: Vec<_> = planned
            .iter()
            .map(|planned| {
                let (lanes, part) = (Arc::clone(&self.lanes), Arc::clone(&planned.part));
                tokio::spawn(async move { lanes.ask(part, deadline).await })
            })
            .collect();
        for answer in asked {
            answers.push(answer.await.unwrap_or(Err(Failure::Timeout)));
        }
        answers
    }

    /// Makes one outcome of the parts' answers; policies answer for those that have none.
    fn conclude(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        planned: &[Planned],
        answers: SmallVec<[Result<Answered, Failure>; 1]>,
        intent: Intent,
        now: Timestamp,
    ) -> Outcome {
        let mut counted: SmallVec<[Option<Counted>; 2]> = charges.iter().map(|_| None).collect();
        let mut admitted = true;
        let mut missing = Vec::new();
        let mut missing_places: SmallVec<[usize; 2]> = SmallVec::new();
        for (planned, answer) in planned.iter().zip(&answers) {
            match answer {
                Ok(answered) => {
                    admitted &= answered.admitted;
                    self.learn(charges, planned, answered, now);
                    for (place, charged) in planned.places.iter().zip(&answered.charges) {
                        if let Some(slot) = counted.get_mut(*place) {
                            *slot = Some(charged.counted);
                        }
                    }
                }
                Err(_) => {
                    missing.extend(plan::unanswered(planned, charges));
                    missing_places.extend(planned.places.iter().copied());
                }
            }
        }
        if !missing.is_empty() {
            let policies = self.fallback.decide(&missing, intent, now, admitted);
            admitted = policies.admitted;
            for (place, answer) in missing_places.iter().zip(policies.counted) {
                if let Some(slot) = counted.get_mut(*place) {
                    *slot = Some(answer);
                }
            }
        }
        if !admitted && intent == Intent::Charge {
            for (planned, answer) in planned.iter().zip(&answers) {
                let Ok(answered) = answer else { continue };
                if !answered.admitted {
                    continue;
                }
                for (place, item) in planned.places.iter().zip(&planned.part.charges) {
                    if let Some(Some(counted)) = counted.get_mut(*place) {
                        plan::untaken(counted, item.cost);
                    }
                }
                if let Some(undo) = plan::undo(&planned.part, answered) {
                    self.undo(undo);
                }
            }
        }
        Outcome { admitted, counted: counted.into_iter().flatten().collect() }
    }

    /// Remembers what Redis said, for when it is away, and charges what was admitted while it was.
    fn learn(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        planned: &Planned,
        answered: &Answered,
        now: Timestamp,
    ) {
        for (place, charged) in planned.places.iter().zip(&answered.charges) {
            let Some(charge) = charges.get(*place) else { continue };
            let state = charged.state.clone();
            if let Some(owed) = self.fallback.learn(charge.key, charge.limit, state, answered.now, now) {
                self.pay(owed, now);
            }
        }
    }

    /// Has a part carried out in the background, and says whether it was.
    fn in_background<F>(self: &Arc<Self>, part: Part, after: F) -> bool
    where
        F: FnOnce(&Arc<Self>, Result<Answered, Failure>) + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.background).try_acquire_owned() else { return false };
        let core = Arc::clone(self);
        self.runtime.spawn(async move {
            let deadline = Deadline::after(core.timeout * BACKGROUND_PATIENCE);
            let answer = core.lanes.ask(Arc::new(part), deadline).await;
            after(&core, answer);
            drop(permit);
        });
        true
    }

    /// Decides from memory, if one charge is all and permits were drawn for it or its denial is remembered.
    fn decide_from_lease(self: &Arc<Self>, charge: &Charge<'_>) -> Option<Outcome> {
        let now = self.started.elapsed();
        let (advice, draw) = self.leases.check(charge, now);
        if let Some(permits) = draw {
            self.draw(charge, permits, now);
        }
        let Advice::Answer(counted) = advice else { return None };
        let admitted = counted.verdict.admitted;
        if admitted {
            self.meter.leased(Leased::Used, charge.cost.taken());
        }
        Some(Outcome { admitted, counted: SmallVec::from_iter([counted]) })
    }

    /// Draws permits ahead, in the background: half of what is free at most, shared by the region's daemons.
    fn draw(self: &Arc<Self>, charge: &Charge<'_>, permits: u64, sent: Duration) {
        let live = self.live.load(std::sync::atomic::Ordering::Relaxed).max(1);
        let share = u8::try_from(live.saturating_mul(2)).unwrap_or(u8::MAX);
        let (slot, bucket) = bucket_of(charge);
        let item = Item { bucket: 0, cost: Cost::Take(permits), enforced: false, lease: Some(share) };
        let buckets = SmallVec::from_iter([bucket.clone()]);
        let part = Part { slot, action: Action::Charge, buckets, charges: SmallVec::from_iter([item]) };
        let key = charge.key.clone();
        let own_key = key.clone();
        let after = move |core: &Arc<Self>, answer: Result<Answered, Failure>| {
            let drawn = answer.ok().and_then(|answered| {
                let charged = answered.charges.into_iter().next()?;
                core.meter.leased(Leased::Drawn, charged.leased);
                let (permits, state, server) = (charged.leased, charged.state?, answered.now);
                Some(Drawn { permits, state, server, sent, bucket, slot })
            });
            if let Some(leftover) = core.leases.drawn(&key, drawn) {
                core.give_back(leftover);
            }
        };
        if !self.in_background(part, after) {
            self.leases.drawn(&own_key, None);
        }
    }

    async fn return_leases(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(RETURN_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            for leftover in self.leases.sweep(self.started.elapsed(), false) {
                self.give_back(leftover);
            }
        }
    }

    /// The part that gives leased permits back; `None` if it is too late.
    fn leftover(&self, leftover: &Leftover) -> Option<Part> {
        if leftover.lost {
            self.meter.leased(Leased::Lost, leftover.permits);
            return None;
        }
        let cost = Cost::Refund(leftover.permits);
        let item = Item { bucket: 0, cost, enforced: false, lease: None };
        Some(Part {
            slot: leftover.slot,
            action: Action::Put,
            buckets: SmallVec::from_iter([leftover.bucket.clone()]),
            charges: SmallVec::from_iter([item]),
        })
    }

    fn returned(&self, permits: u64, done: bool) {
        self.meter.leased(if done { Leased::Returned } else { Leased::Lost }, permits);
    }

    fn give_back(self: &Arc<Self>, leftover: Leftover) {
        let permits = leftover.permits;
        let Some(part) = self.leftover(&leftover) else { return };
        let after = move |core: &Arc<Self>, answer: Result<Answered, Failure>| {
            core.returned(permits, answer.is_ok());
        };
        if !self.in_background(part, after) {
            self.returned(permits, false);
        }
    }

    /// Gives back what a denied decision took. Lost, it stays charged: too strict by that much, never too lax.
    fn undo(self: &Arc<Self>, part: Part) {
        let after = |core: &Arc<Self>, answer: Result<Answered, Failure>| {
            if answer.is_err() {
                core.meter.undo_lost();
            }
        };
        if !self.in_background(part, after) {
            self.meter.undo_lost();
        }
    }

    /// Charges what was admitted without Redis.
    fn pay(self: &Arc<Self>, owed: Owed, now: Timestamp) {
        let item = Item { bucket: 0, cost: Cost::Take(owed.permits), enforced: false, lease: None };
        let part = Part {
            slot: owed.slot,
            action: Action::Put,
            buckets: SmallVec::from_iter([owed.bucket.clone()]),
            charges: SmallVec::from_iter([item]),
        };
        let later = owed.clone();
        let after = move |core: &Arc<Self>, answer: Result<Answered, Failure>| {
            if answer.is_err_and(|failure| !failure.is_uncertain()) {
                core.fallback.owe(&owed, now);
            }
        };
        if !self.in_background(part, after) {
            self.fallback.owe(&later, now);
        }
    }

    /// Writes what the world leaves of a bucket where all daemons of the region read it.
    fn write_view(self: &Arc<Self>, key: Vec<u8>, slot: slots::Slot, value: Vec<u8>, ttl: Duration) {
        let Ok(permit) = Arc::clone(&self.background).try_acquire_owned() else { return };
        let core = Arc::clone(self);
        self.runtime.spawn(async move {
            let deadline = Deadline::after(core.timeout * BACKGROUND_PATIENCE);
            let mut command = redis::cmd("SET");
            command
                .arg(key)
                .arg(value)
                .arg("PX")
                .arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1));
            // Lost, it does not matter: the next view says the same and more.
            let _ = core.lanes.plain(&command, slot, deadline).await;
            drop(permit);
        });
    }
}

impl Store for RedisStore {
    fn try_decide(&self, charges: &[Charge<'_>], intent: Intent, _: Timestamp) -> Option<Outcome> {
        match (charges, intent) {
            ([charge], Intent::Charge) => self.core.decide_from_lease(charge),
            _ => None,
        }
    }

    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], intent: Intent, now: Timestamp) -> Later<'a, Outcome> {
        Box::pin(self.core.decide(charges, intent, now))
    }

    fn bucket<'a>(&'a self, rule: &'a Compiled, key: &'a Key, _: Timestamp) -> Later<'a, Option<BucketInfo>> {
        Box::pin(async move {
            let charge = Charge { rule, key, limit: rule.limit, cost: Cost::Peek, enforced: true };
            let (slot, bucket) = bucket_of(&charge);
            let item = Item { bucket: 0, cost: Cost::Peek, enforced: true, lease: None };
            let buckets: SmallVec<[Bucket; 2]> = SmallVec::from_iter([bucket]);
            let part = Part { slot, action: Action::Ask, buckets, charges: SmallVec::from_iter([item]) };
            let deadline = Deadline::after(self.core.timeout);
            let answered = self.core.lanes.ask(Arc::new(part), deadline).await.ok()?;
            let charged = answered.charges.first()?;
            let counted = &charged.counted;
            let log = rule.rule.algorithm == Algorithm::SlidingLog && counted.used > 0;
            (charged.existed || log || counted.view.is_some()).then_some(BucketInfo {
                used: counted.used,
                verdict: counted.verdict,
                view: counted.view,
                error_bound: counted.error_bound,
            })
        })
    }

    /// Redis names buckets by their rules, so this does nothing: see [`Store::set_view_of`].
    fn set_view(&self, _: &Key, _: View, _: u64, _: Timestamp) {}

    fn set_view_of(&self, rule: &Compiled, key: &Key, view: View, error_bound: u64, _: Timestamp) {
        let name = names::bucket(&rule.rule, key, rule.rule.window);
        // It speaks of its window and the next.
        let ttl = rule.rule.window.to_std() * 3;
        self.core.write_view(names::view(&name.key), name.slot, pack_view(&view, error_bound), ttl);
    }

    fn reset<'a>(&'a self, rule: &'a Compiled, key: &'a Key) -> Later<'a, Option<bool>> {
        Box::pin(async move {
            let name = names::bucket(&rule.rule, key, rule.rule.window);
            let mut command = redis::cmd("DEL");
            command.arg(&name.key);
            self.core.fallback.forget(key);
            // Permits that were drawn are forgotten with the bucket that they were charged to.
            self.core.leases.forget(key, self.core.started.elapsed());
            let deadline = Deadline::after(self.core.timeout * BACKGROUND_PATIENCE);
            match self.core.lanes.plain(&command, name.slot, deadline).await {
                Ok(Value::Int(gone)) => Some(gone > 0),
                _ => None,
            }
        })
    }

    fn debit(&self, rule: &Compiled, key: &Key, permits: u64, _: Timestamp) {
        let takes_debts =
            matches!(rule.rule.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra);
        if !takes_debts || permits == 0 {
            return;
        }
        let cost = Cost::Take(permits);
        let (slot, bucket) = bucket_of(&Charge { rule, key, limit: rule.limit, cost, enforced: false });
        let item = Item { bucket: 0, cost, enforced: false, lease: None };
        let buckets = SmallVec::from_iter([bucket]);
        let part = Part { slot, action: Action::Put, buckets, charges: SmallVec::from_iter([item]) };
        self.core.undo(part);
    }

    fn sweep(&self, now: Timestamp) {
        let core = &self.core;
        let map = core.lanes.places().map();
        core.meter.breakers(map.nodes().iter().map(|node| node.phase()));
        let back = |slot| map.node(slot).is_some_and(|node| node.phase() == Phase::Closed);
        for owed in core.fallback.collect(now, back) {
            core.pay(owed, now);
        }
        core.fallback.sweep(now);
    }

    fn len(&self) -> StoreLen {
        let (keys, keys_max) = self.core.fallback.len();
        StoreLen { keys, keys_max, ..StoreLen::default() }
    }
}
