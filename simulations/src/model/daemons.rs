//! The product: daemons on one virtual clock, each with clocks, stores and replicas of its own, and a network between.

use anyhow::Context;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::Frame;
use tidegate::core::worldwide::{Member, NodeName, Policy, Replica, ReplicaConfig, frame_bytes};

use super::shell::{RuleInForce, Store, Tallies, windowed};
use super::{Answer, Ask, Late, Model, START};
use crate::dice::Dice;
use crate::network::{Network, Traffic};
use crate::number::{index, place};
use crate::plan::{FaultKind, Plan, Way};

/// How often a daemon tells its replica what was decided, and lets it act: as in the daemon.
const TICK: Span = Span::from_millis(10);
/// How often a store forgets what has expired: as in the daemon.
const SWEEP: Span = Span::from_secs(1);

/// One daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) name: NodeName,
    pub(crate) region: usize,
    pub(crate) replica: Replica,
    pub(crate) store: Store,
    pub(crate) tallies: Tallies,
    pub(crate) alive: bool,
    next_tick: Timestamp,
    next_sweep: Timestamp,
}

/// A clock that is off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    ahead: i64,
    drift_ppm: i64,
}

/// Daemons, network and time.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) plan: Plan,
    pub(crate) way: Way,
    pub(crate) rule: RuleInForce,
    pub(crate) daemons: Vec<Daemon>,
    /// By region.
    pub(crate) clocks: Vec<Clock>,
    pub(crate) network: Network<Frame>,
    /// When the newest frame that region `to` has from region `from` was sent.
    heard: Vec<Vec<Timestamp>>,
    /// Frames that a replica refused.
    pub(crate) refused: u64,
    /// Rule sets so far.
    revision: u64,
    dice: Dice,
    answered: Vec<Late>,
}

impl Clock {
    fn read(self, now: Timestamp) -> Timestamp {
        let run = i64::try_from(now.since(START).0).unwrap_or(i64::MAX);
        let off = self.ahead.saturating_add(run.saturating_mul(self.drift_ppm) / 1_000_000);
        Timestamp(now.0.saturating_add_signed(off))
    }
}

impl World {
    pub(crate) fn new(plan: &Plan, way: Way) -> anyhow::Result<Self> {
        let rule = RuleInForce::new(plan, way)
            .with_context(|| format!("{} cannot be simulated by this version", way.title()))?;
        let nodes: Vec<usize> = plan
            .regions
            .iter()
            .enumerate()
            .flat_map(|(region, plan)| std::iter::repeat_n(region, plan.daemons.max(1)))
            .collect();
        let clock = |region: &crate::plan::Region| Clock { ahead: region.ahead, drift_ppm: region.drift_ppm };
        let mut world = Self {
            now: START,
            way,
            rule,
            daemons: Vec::new(),
            clocks: plan.regions.iter().map(clock).collect(),
            network: Network::new(plan.weather.clone(), nodes.clone(), plan.seed),
            heard: vec![vec![START; plan.regions.len()]; plan.regions.len()],
            refused: 0,
            revision: 1,
            dice: Dice::new(plan.seed, 5),
            answered: Vec::new(),
            plan: plan.clone(),
        };
        for (at, &region) in nodes.iter().enumerate() {
            let daemon = world.begin(at, region);
            world.daemons.push(daemon);
        }
        world.meet();
        Ok(world)
    }

    /// A daemon that starts now. With a store of its own it starts empty; else it joins its region's.
    fn begin(&self, at: usize, region: usize) -> Daemon {
        let first = self.plan.regions.iter().take(region).map(|region| region.daemons.max(1)).sum::<usize>();
        let region_name = self.plan.regions.get(region).map(|region| region.name.clone()).unwrap_or_default();
        let name = NodeName { region: region_name, node: format!("n{}", at - first) };
        let now = self.clock(region);
        let config = ReplicaConfig {
            regions: self.plan.regions.iter().map(|region| region.name.clone()).collect(),
            interval: self.plan.interval,
            keys_max: self.plan.keys_max,
            shared_store: self.plan.shared_store,
            policy: if self.way == Way::GossipCut { Policy::Cut } else { Policy::Tidegate },
            ..ReplicaConfig::new(name.clone(), now.0 / 1_000)
        };
        let mut replica = Replica::new(config);
        replica.handle_rules(now, self.revision, self.rule.world_rule().into_iter().collect());
        let siblings = self.daemons.iter().find(|daemon| daemon.region == region);
        let store = match siblings.filter(|_| self.plan.shared_store) {
            Some(sibling) => sibling.store.clone(),
            None => Store::new(&self.plan),
        };
        // Daemons do not tick in step.
        let step = Span(place(at) * 3_700 % TICK.0);
        let (next_tick, next_sweep) = (self.now + step, self.now + SWEEP);
        Daemon {
            name,
            region,
            replica,
            store,
            tallies: Tallies::default(),
            alive: true,
            next_tick,
            next_sweep,
        }
    }

    /// What a region's clock shows.
    pub(crate) fn clock(&self, region: usize) -> Timestamp {
        self.clocks.get(region).map_or(self.now, |clock| clock.read(self.now))
    }

    /// The daemons of a region that are alive, by place.
    pub(crate) fn alive(&self, region: usize) -> Vec<usize> {
        (0..self.daemons.len())
            .filter(|&at| self.daemons.get(at).is_some_and(|one| one.region == region && one.alive))
            .collect()
    }

    /// The place of a region's daemon.
    pub(crate) fn place_of(&self, region: usize, daemon: usize) -> Option<usize> {
        (0..self.daemons.len())
            .filter(|&at| self.daemons.get(at).is_some_and(|one| one.region == region))
            .nth(daemon)
    }

    /// Ends a daemon without a word.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(daemon) = self.daemons.get_mut(at) {
            daemon.alive = false;
        }
        self.meet();
    }

    /// Starts a daemon anew, with nothing in memory.
    pub(crate) fn restart(&mut self, at: usize) {
        let Some(region) = self.daemons.get(at).map(|daemon| daemon.region) else { return };
        let keeps = self.plan.shared_store;
        let store = self.daemons.get(at).map(|daemon| daemon.store.clone());
        let mut daemon = self.begin(at, region);
        if let Some(store) = store.filter(|_| keeps) {
            daemon.store = store;
        }
        if let Some(old) = self.daemons.get_mut(at) {
            *old = daemon;
        }
        self.meet();
    }

    /// A region's store loses everything. A store in a daemon's memory is lost with the daemon.
    pub(crate) fn lose_store(&mut self, region: usize) {
        if !self.plan.shared_store {
            for at in self.alive(region) {
                self.restart(at);
            }
            return;
        }
        let store = Store::new(&self.plan);
        for daemon in self.daemons.iter_mut().filter(|daemon| daemon.region == region) {
            daemon.store = store.clone();
        }
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
        let regions: Vec<usize> = self.daemons.iter().map(|daemon| daemon.region).collect();
        for (at, &region) in regions.iter().enumerate() {
            let now = self.clock(region);
            let Some(daemon) = self.daemons.get_mut(at).filter(|daemon| daemon.alive) else { continue };
            daemon.replica.handle_members(now, &members);
            for ((other, member), &target) in members.iter().enumerate().zip(&regions) {
                if other != at {
                    let there = self.network.delay(region, target);
                    let back = self.network.delay(target, region);
                    daemon.replica.handle_link(now, &member.name, there + back);
                }
            }
        }
    }

    /// Everyone is told of a rule set in which the limit is another one.
    pub(crate) fn set_limit(&mut self, limit: u32) -> anyhow::Result<()> {
        self.plan.rule.limit = limit;
        self.rule = RuleInForce::new(&self.plan, self.way)?;
        self.revision += 1;
        for at in 0..self.daemons.len() {
            let Some(now) = self.daemons.get(at).map(|daemon| self.clock(daemon.region)) else { continue };
            if let Some(daemon) = self.daemons.get_mut(at) {
                daemon.replica.handle_rules(
                    now,
                    self.revision,
                    self.rule.world_rule().into_iter().collect(),
                );
            }
        }
        Ok(())
    }

    /// Moves a clock.
    pub(crate) fn step_clock(&mut self, region: usize, by: i64) {
        if let Some(clock) = self.clocks.get_mut(region) {
            clock.ahead = clock.ahead.saturating_add(by);
        }
    }

    /// A request to one daemon.
    pub(crate) fn ask_daemon(&mut self, at: usize, user: u64, cost: u64) -> Answer {
        let Some(now) = self.daemons.get(at).map(|daemon| self.clock(daemon.region)) else {
            return Answer::Refused;
        };
        let Some(daemon) = self.daemons.get_mut(at).filter(|daemon| daemon.alive) else {
            return Answer::Refused;
        };
        if daemon.store.decide(&self.rule, user, cost, now, &mut daemon.tallies) {
            let window = if windowed(self.plan.rule.algorithm) { self.plan.rule.window } else { Span(1) };
            Answer::Admitted { window: now.window_index(window) }
        } else {
            Answer::Refused
        }
    }

    /// Everything that arrives by `end`.
    fn receive(&mut self, end: Timestamp) {
        while let Some(flight) = self.network.landed(end) {
            self.now = self.now.max(flight.at);
            let Some((from, source)) =
                self.daemons.get(flight.from).map(|daemon| (daemon.name.clone(), daemon.region))
            else {
                continue;
            };
            let Some(region) = self.daemons.get(flight.to).map(|daemon| daemon.region) else { continue };
            let now = self.clock(region);
            let Some(daemon) = self.daemons.get_mut(flight.to).filter(|daemon| daemon.alive) else {
                continue;
            };
            if let Some(newest) = self.heard.get_mut(region).and_then(|row| row.get_mut(source)) {
                *newest = (*newest).max(flight.sent);
            }
            let refused = daemon.replica.handle_frame(now, &from, flight.message).is_err();
            self.refused += u64::from(refused);
            self.pump(flight.to);
        }
        self.now = end;
    }

    fn tick(&mut self, at: usize) {
        let Some(region) = self.daemons.get(at).map(|daemon| daemon.region) else { return };
        let now = self.clock(region);
        let true_now = self.now;
        let Some(daemon) = self.daemons.get_mut(at) else { return };
        if !daemon.alive || true_now < daemon.next_tick {
            return;
        }
        daemon.next_tick = daemon.next_tick.max(true_now - TICK) + TICK;
        for touched in daemon.tallies.drain() {
            daemon.replica.handle_touched(now, &touched);
        }
        daemon.replica.handle_timeout(now);
        if true_now >= daemon.next_sweep {
            daemon.next_sweep = true_now + SWEEP;
            daemon.store.sweep(now);
        }
        self.pump(at);
    }

    fn pump(&mut self, at: usize) {
        let Some(region) = self.daemons.get(at).map(|daemon| daemon.region) else { return };
        let now = self.clock(region);
        let Some(daemon) = self.daemons.get_mut(at) else { return };
        while let Some(effect) = daemon.replica.poll_effect() {
            daemon.store.apply(&self.rule, &effect, now);
        }
        while let Some((to, frame)) = daemon.replica.poll_transmit(now) {
            // Names are found by counting: there are few daemons.
            let Some(to) = self
                .plan
                .regions
                .iter()
                .position(|region| region.name == to.region)
                .and_then(|region| Some((region, to.node.get(1..)?.parse::<usize>().ok()?)))
                .map(|(region, node)| {
                    self.plan.regions.iter().take(region).map(|region| region.daemons.max(1)).sum::<usize>()
                        + node
                })
            else {
                continue;
            };
            self.network.send(self.now, at, to, frame_bytes(&frame), &frame);
        }
    }
}

impl Model for World {
    fn ask(&mut self, ask: Ask) -> Answer {
        let alive = self.alive(ask.region);
        let choice = match alive.len() {
            0 => return Answer::Refused,
            1 => 0,
            several => index(self.dice.below(place(several))),
        };
        let Some(&at) = alive.get(choice) else { return Answer::Refused };
        self.ask_daemon(at, ask.user, ask.cost)
    }

    fn step(&mut self, step: Span) {
        self.receive(self.now + step);
        for at in 0..self.daemons.len() {
            self.tick(at);
        }
    }

    fn late(&mut self) -> Vec<Late> {
        std::mem::take(&mut self.answered)
    }

    fn fault(&mut self, fault: &FaultKind, broken: bool) {
        match fault {
            FaultKind::Cut { regions, inward, outward } => {
                self.network.cut(regions, *inward, *outward, broken);
            }
            FaultKind::Crash { region, daemon } => match (self.place_of(*region, *daemon), broken) {
                (Some(at), true) => self.kill(at),
                (Some(at), false) => self.restart(at),
                (None, _) => {}
            },
            FaultKind::StoreLost { region } if broken => self.lose_store(*region),
            FaultKind::StoreLost { .. } => {}
            FaultKind::ClockStep { region, by } => {
                self.step_clock(*region, if broken { *by } else { by.saturating_neg() });
            }
            FaultKind::Limit(limit) if broken => {
                // A limit that was read once can be read again.
                let _ = self.set_limit(*limit);
            }
            FaultKind::Limit(_) => {}
            FaultKind::Storm { loss, jitter } => {
                let calm = &self.plan.weather;
                let (loss, jitter) = if broken { (*loss, *jitter) } else { (calm.loss, calm.jitter) };
                (self.network.weather.loss, self.network.weather.jitter) = (loss, jitter);
            }
        }
    }

    fn traffic(&self) -> Traffic {
        self.network.traffic
    }

    fn lag(&self) -> Span {
        let oldest = self.heard.iter().enumerate().flat_map(|(to, row)| {
            row.iter().enumerate().filter(move |(from, _)| *from != to).map(|(_, &sent)| sent)
        });
        oldest.min().map_or(Span::ZERO, |sent| self.now.since(sent))
    }

    fn late_reports(&self) -> u64 {
        self.daemons.iter().map(|daemon| daemon.replica.tally().late).sum()
    }
}
