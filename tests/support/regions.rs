//! Regions of one daemon each in time that only the test moves: whole engines over stores of any kind, and
//! between them the protocol over a network that always takes one way.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::core::regions::{Effect, Member, NodeName, Replica, ReplicaConfig};
use tidegate::core::request::{Cost, Request};
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::Frame;
use tidegate::database::document;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Store;
use tidegate::engine::world::WorldPort as _;
use tidegate::telemetry::Metrics;
use tokio::runtime::Runtime;

/// An instant at which a window begins.
pub const START: Timestamp = Timestamp(1_800_000_000_000_000);
/// How often each daemon looks at what was asked.
const TICK: Span = Span::from_millis(10);
/// One way between two regions.
const WAY: Span = Span::from_millis(75);

/// One region's daemon.
struct Region {
    name: NodeName,
    engine: Engine,
    replica: Replica,
}

/// All regions.
pub struct World {
    now: Timestamp,
    /// What the stores go by.
    clock: Arc<Clock>,
    regions: Vec<Region>,
    flying: Vec<(Timestamp, usize, NodeName, Frame)>,
    runtime: Runtime,
    /// How long what a store is told takes to be there.
    patience: Duration,
}

impl World {
    /// One region for each store, all of them under `limit` permits a second.
    pub fn new(
        algorithm: &str,
        limit: u32,
        stores: Vec<Arc<dyn Store>>,
        time: (Arc<Clock>, Duration),
    ) -> Self {
        Self::with_window(algorithm, (limit, "1s"), stores, time)
    }

    /// The same with another window.
    pub fn with_window(
        algorithm: &str,
        (limit, window): (u32, &str),
        stores: Vec<Arc<dyn Store>>,
        (clock, patience): (Arc<Clock>, Duration),
    ) -> Self {
        let rule = format!(
            "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"{algorithm}\"\nlimit = {limit}\nwindow = \"{window}\"\n\
             [rules.global]\nmode = \"gossip\"\n"
        );
        let names: Vec<NodeName> = (0..stores.len())
            .map(|at| NodeName { region: format!("region-{at}"), node: "1".to_owned() })
            .collect();
        let members: Vec<Member> = names
            .iter()
            .map(|name| Member { name: name.clone(), live: true, draining: false, sees_capacity: true })
            .collect();
        let region = |(store, name): (Arc<dyn Store>, &NodeName)| {
            let clock = Clock::Manual(START.0.into());
            let engine = Engine::new(name.clone(), clock, store, Metrics::new()).among_others(true);
            let read = document::from_toml("rules.toml", &rule, &[]).unwrap();
            engine.load(read.rules, Vec::new(), false).unwrap();
            let mut replica = Replica::new(ReplicaConfig::new(name.clone(), START.0 / 1_000));
            let (revision, rules) = engine.world_rules();
            replica.handle_rules(START, revision, rules);
            replica.handle_members(START, &members);
            for other in names.iter().filter(|other| *other != name) {
                replica.handle_link(START, other, WAY + WAY);
            }
            Region { name: name.clone(), engine, replica }
        };
        let regions = stores.into_iter().zip(&names).map(region).collect();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut world = Self { now: START, clock, regions, flying: Vec::new(), runtime, patience };
        // Until the clocks and ways of the others are known, and nothing that came late is left.
        world.run(Span::from_secs(12));
        world
    }

    /// Asks for one permit so often in one region. Returns how often it was admitted.
    pub fn ask(&self, region: usize, times: u32) -> u32 {
        let asked = [Request::new("default", [("user", "ann")].into_iter().collect(), Cost::Take(1))];
        let region = &self.regions[region];
        region.engine.set_now(self.now);
        let admitted = |_| {
            let decisions = self.runtime.block_on(region.engine.decide(&asked).get());
            u32::from(decisions[0].allowed)
        };
        (0..times).map(admitted).sum()
    }

    /// When one region's next request for so many permits may be asked again; `None` if it is admitted.
    pub fn retry(&self, region: usize, permits: u64) -> Option<Option<Span>> {
        let asked = [Request::new("default", [("user", "ann")].into_iter().collect(), Cost::Take(permits))];
        let region = &self.regions[region];
        region.engine.set_now(self.now);
        let decisions = self.runtime.block_on(region.engine.decide(&asked).get());
        (!decisions[0].allowed).then(|| decisions[0].rules[0].retry)
    }

    /// The same in every region before any daemon looks at it. Returns how often it was admitted in all of
    /// them.
    pub fn burst(&self, times: u32) -> u32 {
        (0..self.regions.len()).map(|region| self.ask(region, times)).sum()
    }

    /// Lets time pass.
    pub fn run(&mut self, length: Span) {
        let end = self.now + length;
        while self.now < end {
            self.now = self.now + TICK;
            self.clock.set(self.now);
            let (landed, flying) =
                std::mem::take(&mut self.flying).into_iter().partition(|(at, ..)| *at <= self.now);
            self.flying = flying;
            for (_, to, from, frame) in landed {
                self.regions[to].replica.handle_frame(self.now, &from, frame).unwrap();
            }
            for at in 0..self.regions.len() {
                self.look(at);
            }
        }
    }

    /// One region's daemon takes in what was asked, and carries out what the protocol wants.
    fn look(&mut self, at: usize) {
        let Region { name, engine, replica } = &mut self.regions[at];
        engine.set_now(self.now);
        let mut touched = Vec::new();
        engine.drain_touched(&mut touched);
        for touched in touched {
            replica.handle_touched(self.now, &touched);
        }
        replica.handle_timeout(self.now);
        engine.elsewhere(replica.elsewhere());
        let mut told = false;
        while let Some(effect) = replica.poll_effect() {
            told |= matches!(effect, Effect::View { .. } | Effect::Debit { .. } | Effect::Restore { .. });
            self.runtime.block_on(async { engine.apply(&effect) });
        }
        let mut frames = Vec::new();
        while let Some((to, frame)) = replica.poll_transmit(self.now) {
            frames.push((to, frame));
        }
        let name = name.clone();
        for (to, frame) in frames {
            let to = self.regions.iter().position(|region| region.name == to).unwrap();
            self.flying.push((self.now + WAY, to, name.clone(), frame));
        }
        if told && !self.patience.is_zero() {
            std::thread::sleep(self.patience);
        }
    }
}

/// Five regions that ask at one instant for what nobody used for long are admitted the limit at most, and
/// once more after some windows without any request.
pub fn burst_together(world: &mut World, limit: u32) {
    let most = limit.max(5);
    let first = world.burst(50);
    assert!(first <= most, "{first} of {limit} in a bucket that nobody used for long");
    assert!(first >= 5, "each region has one permit at least, and {first} were admitted");
    world.run(Span::from_secs(5));
    let again = world.burst(50);
    assert!(again <= most, "{again} of {limit} after five windows");
}

/// Where one region alone used a bucket, it finds nine tenths of what is free at once, after some windows
/// without any request too.
pub fn burst_at_home(world: &mut World, limit: u32) {
    burst_at_home_of(world, limit, limit / 10);
}

/// The same where the home asked for `cost` permits ten times a second.
pub fn burst_at_home_of(world: &mut World, limit: u32, cost: u32) {
    for _ in 0..160 {
        world.ask(2, cost);
        world.run(Span::from_millis(100));
    }
    world.run(Span::from_secs(5));
    let home = world.ask(2, limit);
    assert!(home >= limit * 9 / 10, "{home} of {limit} at home");
    let others: u32 = [0, 1, 3, 4].map(|region| world.ask(region, 50)).iter().sum();
    assert!(home + others <= limit, "{home} at home and {others} elsewhere");
}

/// Who is refused by a region's first share alone is told to ask again soon, and is admitted then, however
/// long the window is. What the limit can never admit is refused for good.
pub fn asks_again_soon(world: &mut World, limit: u32) {
    let soon = Some(Some(Span::from_secs(1)));
    let whole = u64::from(limit);
    assert_eq!(world.retry(1, whole + 1), Some(None), "above the limit");
    // More than the share of a bucket that nobody has used.
    assert_eq!(world.retry(1, whole / 2), soon);
    let share = world.ask(1, limit);
    assert!(share < limit / 2, "{share} of {limit} at first");
    assert_eq!(world.retry(1, 1), soon);
    world.run(Span::from_secs(1));
    let later = world.ask(1, limit);
    assert!(share + later >= limit * 8 / 10, "{share} of {limit} at first, and {later} after a second");
}
