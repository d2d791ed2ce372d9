//! A daemon's whole engine with its store in memory, where it matters how the engine reads rules, whom it
//! takes for the regions, what it does where there is no room, and what is reported afterwards. The few lines
//! around it are the peer task's in the daemon.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use serde_json::Value;
use tidegate::core::decision::Decision;
use tidegate::core::region_list::RegionList;
use tidegate::core::regions::escrow::{EscrowSafety, StepRequest, StepResult};
use tidegate::core::regions::gossip::uncertainty::OtherStores;
use tidegate::core::regions::split::{Saved, StartSafety, WeightsStatement};
use tidegate::core::regions::{Effect, NodeName, Touched, WorldRule};
use tidegate::core::request::{Cost, Request};
use tidegate::core::reservation::{Reservation, ReservationId, ReservedCost};
use tidegate::core::reservation_terms::OnLapse;
use tidegate::core::rule::Rule;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::RuleName;
use tidegate::database::document;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Answer, Store as _, StoreLen};
use tidegate::engine::reserve::{CommitRefused, Committed};
use tidegate::engine::world::WorldPort;
use tidegate::store::{KeptStore, MemoryStore};
use tidegate::telemetry::Metrics;

use super::marks::MarksDisk;
use super::shell::user_name;
use crate::number::place;

/// Answer of a store in memory.
fn at_once<T>(answer: impl Future<Output = T>) -> Option<T> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// The part of a world that only whole engines know.
#[derive(Debug, Clone)]
pub(crate) struct Engines {
    /// Most buckets in each store.
    pub(crate) store_keys: usize,
    /// By daemon: most buckets that it follows; where there is none, as many as the plan says.
    pub(crate) rooms: Vec<usize>,
    /// By daemon: the rule that its operators want now, as a file would have it.
    pub(crate) rules: Vec<Value>,
    /// By daemon: the regions that it lists when it is started next.
    pub(crate) lists: Vec<RegionList>,
    /// True if stores outlive their daemons, as Redis does.
    pub(crate) keeps_stores: bool,
    /// Rules of `escrow` that the stores keep.
    pub(crate) safety: EscrowSafety,
    /// True if nothing is spent before all regions have said the same. Only simulations have it otherwise.
    pub(crate) agrees: bool,
    /// The rules of a first start that daemons keep.
    pub(crate) starts: StartSafety,
    /// True if the others are told what was reported. Only simulations have it otherwise.
    pub(crate) tells: bool,
    /// By daemon: the disk where it notes what it spends; where there is none, it notes nothing.
    pub(crate) disks: Vec<Arc<MarksDisk>>,
}

/// One daemon's engine.
#[derive(Debug)]
pub(crate) struct DaemonEngine {
    engine: Engine,
    store: Arc<MemoryStore>,
    regions: RegionList,
    tells: bool,
    /// Note on its disk of the shares that it holds.
    noted: Option<Saved>,
    /// The newest rule that it did not refuse.
    in_force: String,
    /// True once its store knows of a first start.
    begun: bool,
}

impl DaemonEngine {
    /// An engine that begins, with what an earlier process noted.
    pub(crate) fn new(
        (name, at): (&NodeName, usize),
        engines: &Engines,
        store: Arc<MemoryStore>,
        noted: Option<Saved>,
        now: Timestamp,
    ) -> Self {
        let regions = engines.lists.get(at).cloned().unwrap_or_default();
        if let Some(disk) = engines.disks.get(at) {
            disk.begin(&store, now);
        }
        let engine = Engine::new(name.clone(), Clock::Manual(now.0.into()), store.clone(), Metrics::new())
            .sharing(regions.clone(), noted.clone())
            .agreeing(engines.agrees)
            .born(now.0.wrapping_mul(64).wrapping_add(place(at)))
            .with_start_safety(engines.starts)
            .lending(true)
            .among_others(!engines.keeps_stores);
        Self { engine, store, regions, tells: engines.tells, noted, in_force: String::new(), begun: false }
    }

    /// Loads the operators' rule. One that it refuses leaves the rules before in force.
    pub(crate) fn load(&mut self, engines: &Engines, at: usize, now: Timestamp) {
        self.engine.set_now(now);
        let Some(rule) = engines.rules.get(at) else { return };
        let read = document::rule_from_json(rule, &self.regions.nameable());
        if read.is_ok_and(|rule: Rule| self.engine.load(vec![rule], Vec::new(), false).is_ok()) {
            self.in_force = rule.to_string();
        }
    }

    /// The newest rule that it did not refuse.
    pub(crate) fn in_force(&self) -> &str {
        &self.in_force
    }

    /// The worldwide rules in force.
    pub(crate) fn rules(&self) -> Vec<WorldRule> {
        self.engine.world_rules().1
    }

    /// Decides one request.
    pub(crate) fn decide(&self, user: u64, cost: Cost, now: Timestamp) -> Option<Decision> {
        self.engine.set_now(now);
        let name = user_name(user);
        let request = Request::new("default", [("user", name.as_str())].into_iter().collect(), cost);
        match self.engine.decide(std::slice::from_ref(&request)) {
            Answer::Now(decisions) => decisions.into_iter().next(),
            Answer::Later(_) => None,
        }
    }

    /// Reserves permits for so long; with the token where that is allowed.
    pub(crate) fn reserve(
        &self,
        user: u64,
        (id, permits, ttl): (ReservationId, u64, Span),
        now: Timestamp,
    ) -> Option<(Decision, Option<Reservation>)> {
        // The engine puts in its place what the rule says.
        let cost = Cost::Reserve(ReservedCost { id, permits, ttl, on_lapse: OnLapse::Release });
        let mut decision = self.decide(user, cost, now)?;
        let made = self.engine.reservation(std::slice::from_mut(&mut decision));
        Some((decision, made.map(|made| made.reservation)))
    }

    /// Says what a reservation has used. A store in memory answers at once.
    pub(crate) fn commit(
        &self,
        reservation: &Reservation,
        actual: u64,
        now: Timestamp,
    ) -> Option<Result<Committed, CommitRefused>> {
        self.engine.set_now(now);
        at_once(self.engine.commit(reservation, actual))
    }

    /// Takes out what was decided since this was last asked, in an order that does not depend on chance.
    pub(crate) fn drain(&self, now: Timestamp) -> Vec<Touched> {
        self.engine.set_now(now);
        let mut touched = Vec::new();
        self.engine.drain_touched(&mut touched);
        touched.sort_by(|one, other| (&one.key, one.window).cmp(&(&other.key, other.window)));
        if !self.tells {
            touched.iter_mut().for_each(|touched| touched.admitted = 0);
        }
        touched
    }

    /// Tells the engine what the protocol between regions says.
    pub(crate) fn follow(
        &self,
        elsewhere: OtherStores,
        (crowded, regions): (Option<&[RuleName]>, usize),
        now: Timestamp,
    ) {
        self.engine.set_now(now);
        if let Some(rules) = crowded {
            WorldPort::crowded(&self.engine, rules, regions);
        }
        WorldPort::elsewhere(&self.engine, elsewhere);
    }

    pub(crate) fn apply(&self, effect: &Effect) {
        self.engine.apply(effect);
    }

    pub(crate) fn rights(&self, ask: &StepRequest, now: Timestamp) -> Option<StepResult> {
        self.engine.set_now(now);
        match self.engine.rights(ask) {
            Answer::Now(balance) => balance,
            Answer::Later(_) => None,
        }
    }

    /// Takes in what the other daemons say of the weights they hold, notes its own, and says them.
    pub(crate) fn agree(
        &mut self,
        words: &[(NodeName, Option<WeightsStatement>)],
        now: Timestamp,
    ) -> WeightsStatement {
        self.engine.set_now(now);
        at_once(self.engine.ask_store());
        self.engine.follow_shares(words.iter().cloned());
        let (held, word) = self.engine.shares_saved();
        if !std::mem::replace(&mut self.begun, self.engine.is_first()) && self.begun {
            at_once(self.engine.begin_first());
        }
        self.engine.shares_are_saved(&held);
        self.noted = Some(held);
        word
    }

    /// Ends in good order: what it leaves to its next process of the rights in its store.
    pub(crate) fn leave(&self) -> Option<KeptStore> {
        let (shapes, next) = self.engine.escrow_shapes();
        let kept = self.store.keep(shapes.into_iter().map(|(_, shape)| shape), next, self.engine.now());
        // As it is written and read.
        serde_json::from_value(serde_json::to_value(kept).ok()?).ok()
    }

    /// Begins with what the process before has left.
    pub(crate) fn take_back(&self, kept: KeptStore) {
        self.store.take_back(kept);
    }

    /// Returns what it noted on its disk.
    pub(crate) fn noted(&self) -> Option<Saved> {
        self.noted.clone()
    }

    /// The regions that it lists.
    pub(crate) const fn regions(&self) -> &RegionList {
        &self.regions
    }

    /// Other regions are listed from now on.
    pub(crate) fn relist(&mut self, regions: RegionList, now: Timestamp) {
        self.engine.set_now(now);
        self.engine.set_regions(regions.clone());
        self.regions = regions;
    }

    /// Returns how full its store is.
    pub(crate) fn store_len(&self) -> StoreLen {
        self.store.len()
    }

    pub(crate) fn sweep(&self, now: Timestamp) {
        self.store.sweep(now);
        self.store.carry_marks_on(now);
    }
}
