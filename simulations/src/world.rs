//! Several daemons on one virtual clock: each a replica and a store, with a network between them.

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::rule::{Global, Mode, OnPartition};
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::RuleName;
use tidegate::core::worldwide::{Member, NodeName, Policy, Replica, ReplicaConfig, WorldKey, WorldRule};

use crate::network::{Network, Weather};
use crate::store::Store;

/// When virtual time begins.
pub(crate) const START: Timestamp = Timestamp(1_700_000_000_000_000);
/// How often a daemon tells its replica what was decided, and lets it act.
const TICK: Span = Span::from_millis(10);

/// What the daemons are and hold.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Daemons by region.
    pub(crate) names: Vec<NodeName>,
    pub(crate) algorithm: Algorithm,
    pub(crate) limit: Limit,
    pub(crate) on_partition: OnPartition,
    pub(crate) interval: Span,
    pub(crate) policy: Policy,
    pub(crate) keys_max: usize,
    /// Whether only what others would guess wrong is told.
    pub(crate) thrift: bool,
}

/// One daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) name: NodeName,
    pub(crate) replica: Replica,
    pub(crate) store: Store,
    /// How far its clock is ahead of the true time.
    pub(crate) ahead: Span,
    pub(crate) alive: bool,
    next_tick: Timestamp,
}

/// Daemons, network and time.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) plan: Plan,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) network: Network,
    /// Frames that a replica refused.
    pub(crate) refused: u64,
}

/// The one rule's bucket of a user.
pub(crate) fn key(user: u64) -> WorldKey {
    WorldKey { rule: rule_name(), identity: format!("\u{6}u{user:05}").into_bytes() }
}

fn rule_name() -> RuleName {
    RuleName { domain: "default".to_owned(), name: "per-user".to_owned() }
}

impl World {
    pub(crate) fn new(plan: Plan, weather: Weather, seed: u64) -> Self {
        let mut world =
            Self { now: START, daemons: Vec::new(), network: Network::new(weather, seed), plan, refused: 0 };
        for (place, name) in world.plan.names.clone().into_iter().enumerate() {
            // Daemons do not tick in step.
            let step = Span(u64::try_from(place).unwrap_or(0) * 3_700 % TICK.0);
            let daemon = world.daemon(name, Span::ZERO, START + step);
            world.daemons.push(daemon);
        }
        world.meet();
        world
    }

    fn daemon(&self, name: NodeName, ahead: Span, next_tick: Timestamp) -> Daemon {
        let mut regions: Vec<String> = self.plan.names.iter().map(|name| name.region.clone()).collect();
        regions.dedup();
        let config = ReplicaConfig {
            regions,
            interval: self.plan.interval,
            keys_max: self.plan.keys_max,
            policy: self.plan.policy,
            thrift: self.plan.thrift,
            ..ReplicaConfig::new(name.clone(), (self.now + ahead).0 / 1_000)
        };
        let mut replica = Replica::new(config);
        let global = Global { on_partition: self.plan.on_partition, ..Global::new(Mode::Gossip) };
        let rule =
            WorldRule { name: rule_name(), algorithm: self.plan.algorithm, limit: self.plan.limit, global };
        replica.handle_rules(self.now + ahead, 1, vec![rule]);
        Daemon { name, replica, store: Store::new(self.plan.algorithm), ahead, alive: true, next_tick }
    }

    /// Starts a daemon anew, with nothing in memory.
    pub(crate) fn restart(&mut self, place: usize) {
        let Some(old) = self.daemons.get(place) else { return };
        let daemon = self.daemon(old.name.clone(), old.ahead, old.next_tick.max(self.now));
        if let Some(old) = self.daemons.get_mut(place) {
            *old = daemon;
        }
        self.meet();
    }

    /// Everyone alive learns who is alive.
    pub(crate) fn meet(&mut self) {
        let member = |daemon: &Daemon| Member {
            name: daemon.name.clone(),
            incarnation: 1,
            live: daemon.alive,
            draining: false,
        };
        let members: Vec<Member> = self.daemons.iter().map(member).collect();
        for (place, daemon) in self.daemons.iter_mut().enumerate() {
            daemon.replica.handle_members(self.now + daemon.ahead, &members);
            for (other, member) in members.iter().enumerate().filter(|(other, _)| *other != place) {
                let delay = self.network.weather.delay.get(place).and_then(|row| row.get(other)).copied();
                let delay = delay.unwrap_or_default();
                daemon.replica.handle_link(self.now + daemon.ahead, &member.name, delay + delay);
            }
        }
    }

    /// What a daemon's clock shows.
    pub(crate) fn clock(&self, place: usize) -> Timestamp {
        self.now + self.daemons.get(place).map_or(Span::ZERO, |daemon| daemon.ahead)
    }

    /// One request of one permit. Whether it was admitted.
    pub(crate) fn request(&mut self, place: usize, key: &WorldKey) -> bool {
        let (now, limit) = (self.now, self.plan.limit);
        self.daemons.get_mut(place).is_some_and(|daemon| daemon.store.decide(key, &limit, now + daemon.ahead))
    }

    /// Moves time on by one step and lets everything happen that is due.
    pub(crate) fn step(&mut self, step: Span) {
        self.now = self.now + step;
        while let Some(flight) = self.network.landed(self.now) {
            let Some(from) = self.daemons.get(flight.from).map(|daemon| daemon.name.clone()) else {
                continue;
            };
            let Some(daemon) = self.daemons.get_mut(flight.to).filter(|daemon| daemon.alive) else {
                continue;
            };
            let refused = daemon.replica.handle_frame(self.now + daemon.ahead, &from, flight.frame).is_err();
            self.refused += u64::from(refused);
            self.pump(flight.to);
        }
        for place in 0..self.daemons.len() {
            let Some(daemon) = self.daemons.get_mut(place) else { continue };
            if !daemon.alive || self.now < daemon.next_tick {
                continue;
            }
            daemon.next_tick = daemon.next_tick.max(self.now - TICK) + TICK;
            let now = self.now + daemon.ahead;
            for touched in daemon.store.drain() {
                daemon.replica.handle_touched(now, &touched);
            }
            daemon.replica.handle_timeout(now);
            self.pump(place);
        }
    }

    fn pump(&mut self, place: usize) {
        let Some(daemon) = self.daemons.get_mut(place) else { return };
        while let Some(effect) = daemon.replica.poll_effect() {
            daemon.store.apply(effect, &self.plan.limit, self.now + daemon.ahead);
        }
        while let Some((to, frame)) = daemon.replica.poll_transmit(self.now + daemon.ahead) {
            if let Some(to) = self.plan.names.iter().position(|name| *name == to) {
                self.network.send(self.now, place, to, &frame);
            }
        }
    }
}
