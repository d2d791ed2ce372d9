//! Several regions on one virtual clock with a network that loses, doubles, delays and reorders, and stores
//! that forget.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::super::algorithm::{Counting, Limit};
use super::super::super::rule::Global;
use super::super::super::wire::rights::{
    CountedLimit, LevelTotals, MovedTotals, PlacesTotals, RightKind, RightsFrame, Statement, Total, Transfer,
    WindowTotals,
};
use super::super::super::wire::{DEMAND_MAX, OwnLimit};
use super::*;

mod calendar;
mod few;
mod honest;
mod levels;
mod own;

const START: Timestamp = Timestamp(1_700_000_000_000_000);
const TICK: Span = Span::from_millis(10);

/// What the network does, in thousandths.
#[derive(Debug, Clone, Copy)]
struct Weather {
    owd: Span,
    jitter: Span,
    loss: u64,
    doubled: u64,
}

const CALM: Weather = Weather { owd: Span::from_millis(40), jitter: Span::ZERO, loss: 0, doubled: 0 };

struct TestedRegion {
    name: NodeName,
    machine: Escrow,
    vault: ReferenceStore,
    ahead: i64,
    sessions: u64,
    cut_off: bool,
    asks: Vec<StepRequest>,
}

struct EscrowWorld {
    now: Timestamp,
    regions: Vec<TestedRegion>,
    limit: Limit,
    flights: Vec<(Timestamp, usize, usize, RightsFrame)>,
    weather: Weather,
    dice: u64,
    safety: EscrowSafety,
    admitted: BTreeMap<u64, u64>,
    offered: u64,
    events: Vec<Event>,
    tallies: Vec<Touched>,
    /// The store answers a tick later, and decides meanwhile.
    slow: bool,
    algorithm: Algorithm,
    /// By which limit requests are decided, where that is not the rule's.
    own: Option<OwnLimit>,
    /// Without windows: what a bucket for the whole world would hold, in permits a window, as of when.
    reference: (i128, Timestamp),
}

fn key() -> WorldKey {
    WorldKey { rule: rule_name(), identity: b"\x01u".to_vec() }
}

fn rule_name() -> RuleName {
    RuleName { domain: "default".into(), name: "r".into() }
}

impl EscrowWorld {
    fn new(count: usize, permits: u32, weather: Weather, safety: EscrowSafety) -> Self {
        Self::of(Algorithm::FixedWindow, count, permits, weather, safety)
    }

    fn of(algorithm: Algorithm, count: usize, permits: u32, weather: Weather, safety: EscrowSafety) -> Self {
        let limit = Limit { calendar: None, permits, window: Span::from_secs(1), burst: permits, queue: 0 };
        Self::held_to(limit, algorithm, count, weather, safety)
    }

    fn held_to(
        limit: Limit,
        algorithm: Algorithm,
        count: usize,
        weather: Weather,
        safety: EscrowSafety,
    ) -> Self {
        let mut world = Self {
            now: START,
            regions: Vec::new(),
            limit,
            flights: Vec::new(),
            weather,
            dice: 1,
            safety,
            admitted: BTreeMap::new(),
            offered: 0,
            events: Vec::new(),
            tallies: Vec::new(),
            slow: false,
            algorithm,
            own: None,
            reference: (i128::from(limit.burst) * 1_000_000, START),
        };
        for place in 0..count {
            let name = NodeName { region: format!("r{place}"), node: "n".into() };
            let machine = world.machine(&name, count);
            let vault = world.vault(place, count, 1, Timestamp(0));
            world.regions.push(TestedRegion {
                name,
                machine,
                vault,
                ahead: 0,
                sessions: 1,
                cut_off: false,
                asks: Vec::new(),
            });
            world.tallies.push(nothing());
        }
        for place in 0..count {
            world.meet(place);
        }
        world
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|place| format!("r{place}")).collect()
    }

    fn machine(&self, name: &NodeName, count: usize) -> Escrow {
        let config = EscrowConfig {
            regions: RegionList::of(Self::names(count)),
            safety: self.safety,
            ..EscrowConfig::new(name.clone())
        };
        let mut machine = Escrow::new(config);
        let global = Global::new(Mode::Escrow);
        let rule = WorldRule { name: rule_name(), algorithm: self.algorithm, limit: self.limit, global };
        machine.handle_rules(self.now, &[rule]);
        machine
    }

    fn vault(&self, place: usize, count: usize, session: u64, begun: Timestamp) -> ReferenceStore {
        let weights = Weights::new(&[], &[], &Self::names(count));
        let minted = weights.of(u64::from(self.limit.permits), &format!("r{place}"));
        if self.algorithm.counting() == Counting::Level {
            let part =
                |whole: u32| u32::try_from(weights.of(u64::from(whole), &format!("r{place}"))).unwrap();
            let limit =
                Limit { permits: part(self.limit.permits), burst: part(self.limit.burst), ..self.limit };
            let terms = level::LevelTerms { algorithm: self.algorithm, limit, begun, safety: self.safety };
            return ReferenceStore::level(terms, self.now);
        }
        ReferenceStore::new(session, begun, self.limit.windows(), minted, self.safety)
    }

    fn meet(&mut self, place: usize) {
        let members: Vec<Member> = self
            .regions
            .iter()
            .map(|region| Member { name: region.name.clone(), live: true, draining: false })
            .collect();
        let rtt = self.weather.owd + self.weather.owd;
        let now = self.clock(place);
        let region = &mut self.regions[place];
        region.machine.handle_members(now, &members);
        for member in &members {
            region.machine.handle_link(now, &member.name, rtt);
        }
    }

    fn clock(&self, place: usize) -> Timestamp {
        Timestamp(self.now.0.saturating_add_signed(self.regions[place].ahead))
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % sides.max(1)
    }

    fn request(&mut self, place: usize, cost: u64) -> bool {
        let now = self.clock(place);
        self.hold_to(place, self.own);
        let admitted = self.regions[place].vault.decide(now, cost);
        if let Some(window) = admitted {
            *self.admitted.entry(window).or_default() += cost;
            self.refill();
            self.reference.0 -= i128::from(cost) * 1_000_000;
        }
        self.offered += cost;
        let level = self.algorithm.counting() == Counting::Level;
        let tally = &mut self.tallies[place];
        let window = if level { 0 } else { self.limit.windows().index(now) };
        tally.window = window.max(tally.window);
        tally.offered += cost;
        tally.own = self.own;
        if admitted.is_some() {
            tally.admitted += cost;
        } else {
            tally.refused = tally.refused.max(cost);
        }
        admitted.is_some()
    }

    /// So many requests for one permit at each of so many ticks.
    fn press(&mut self, place: usize, each: usize, ticks: usize) {
        for _ in 0..ticks {
            for _ in 0..each {
                self.request(place, 1);
            }
            self.tick();
        }
    }

    /// A transfer of so many permits in all comes from a region, whatever it holds.
    fn send(&mut self, from: usize, to: usize, permits: u64) {
        let now = self.clock(to);
        let ledger = |place: usize| self.regions[place].vault.balance(now).ledger;
        let transfer = Transfer {
            rule: rule_name(),
            identity: key().identity,
            kind: ledger(to).kind(),
            session: ledger(from).session(),
            to_session: ledger(to).session(),
            permits,
            limit: CountedLimit::default(),
        };
        let frame = RightsFrame { sent: now, statements: Vec::new(), transfers: vec![transfer] };
        let from = self.regions[from].name.clone();
        assert_eq!(self.regions[to].machine.handle_frame(now, &from, frame), Ok(()));
        self.pump(to);
    }

    fn refill(&mut self) {
        let (held, at) = self.reference;
        let refilled = i128::from(self.now.since(at).0) * i128::from(self.limit.permits);
        let most = i128::from(self.limit.burst) * 1_000_000;
        self.reference = ((held + refilled).min(most), self.now);
    }

    /// The daemon and its store begin anew and remember nothing.
    fn crash(&mut self, place: usize) {
        let count = self.regions.len();
        let now = self.clock(place);
        let name = self.regions[place].name.clone();
        let machine = self.machine(&name, count);
        let session = self.regions[place].sessions + 1;
        let vault = self.vault(place, count, session, now);
        let region = &mut self.regions[place];
        (region.machine, region.vault, region.sessions) = (machine, vault, session);
        self.tallies[place] = nothing();
        self.meet(place);
    }

    fn tick(&mut self) {
        self.now = self.now + TICK;
        let mut landed = Vec::new();
        self.flights.retain(|flight| {
            let lands = flight.0 <= self.now;
            if lands {
                landed.push(flight.clone());
            }
            !lands
        });
        landed.sort_by_key(|flight| flight.0);
        for (_, from, to, frame) in landed {
            let (now, name) = (self.clock(to), self.regions[from].name.clone());
            self.regions[to].machine.handle_frame(now, &name, frame).unwrap();
            self.pump(to);
        }
        for place in 0..self.regions.len() {
            let now = self.clock(place);
            let touched = std::mem::replace(&mut self.tallies[place], nothing());
            let region = &mut self.regions[place];
            for ask in std::mem::take(&mut region.asks) {
                let balance = region.vault.carry_out(now, &ask);
                region.machine.handle_balance(now, &ask.key, balance);
            }
            let machine = &mut region.machine;
            if touched.offered > 0 {
                machine.handle_touched(now, &touched);
            }
            machine.handle_timeout(now);
            self.pump(place);
        }
    }

    fn pump(&mut self, place: usize) {
        let now = self.clock(place);
        while let Some(ask) = self.regions[place].machine.poll_ask() {
            if self.slow {
                self.regions[place].asks.push(ask);
                continue;
            }
            self.hold_to(place, ask.own);
            let region = &mut self.regions[place];
            let balance = region.vault.carry_out(now, &ask);
            region.machine.handle_balance(now, &ask.key, balance);
        }
        while let Some(event) = self.regions[place].machine.poll_event() {
            self.events.push(event);
        }
        while let Some((to, frame)) = self.regions[place].machine.poll_transmit(now) {
            let to = self.regions.iter().position(|region| region.name == to).unwrap();
            let copies = 1 + u64::from(self.roll(1_000) < self.weather.doubled);
            for _ in 0..copies {
                let cut = self.regions[place].cut_off != self.regions[to].cut_off;
                let lost = self.roll(1_000) < self.weather.loss || cut;
                let delay = self.weather.owd + Span(self.roll(self.weather.jitter.0 + 1));
                if !lost {
                    self.flights.push((self.now + delay, place, to, frame.clone()));
                }
            }
        }
    }

    /// Nothing is anywhere that was not minted: what is taken was given, and all budgets fit the limit.
    fn check(&self) -> Result<(), String> {
        let limit = u64::from(self.limit.permits);
        if self.algorithm.counting() == Counting::Level {
            if self.reference.0 < 0 {
                return Err(format!("{} millionths above the arrival curve", -self.reference.0));
            }
        } else if let Some((window, used)) = self.admitted.iter().find(|(_, used)| **used > limit) {
            return Err(format!("{used} of {limit} in window {window}"));
        }
        let clocks = (0..self.regions.len()).map(|place| self.clock(place));
        let balances: Vec<StepResult> =
            self.regions.iter().zip(clocks).map(|(region, now)| region.vault.balance(now)).collect();
        for (one, balance) in balances.iter().enumerate() {
            for taken in balance.ledger.taken() {
                let Some(giver) = self.regions.iter().position(|region| region.name.region == taken.region)
                else {
                    return Err(format!("taken from nowhere: {}", taken.region));
                };
                let other = &balances[giver].ledger;
                if other.kind() != balance.ledger.kind() || other.session() != taken.session {
                    continue;
                }
                let given = other.given_to(&self.regions[one].name.region, balance.ledger.session());
                if taken.permits > given {
                    return Err(format!("{} taken of {given} given", taken.permits));
                }
            }
        }
        Ok(())
    }

    /// Permits admitted in whole windows after the first, of those that could have been.
    fn used(&self, windows: u64) -> u64 {
        self.admitted.values().sum::<u64>() / windows.max(1)
    }
}

fn nothing() -> Touched {
    Touched {
        key: key(),
        window: 0,
        offered: 0,
        admitted: 0,
        returned: 0,
        refused: 0,
        largest: 1,
        own: None,
        without_allowance: false,
    }
}

#[test]
fn rights_move_to_where_the_demand_is() {
    let mut world = EscrowWorld::new(3, 1_000, CALM, EscrowSafety::ALL);
    world.press(1, 20, 500);
    assert_eq!(world.check(), Ok(()));
    assert!(world.used(5) >= 990, "{}: {:?}", world.used(5), world.admitted);
    assert!(world.events.iter().any(|event| matches!(event, Event::Gave { to, .. } if to == "r1")));
}

#[test]
fn balanced_overload_moves_next_to_nothing() {
    let mut world = EscrowWorld::new(3, 999, CALM, EscrowSafety::ALL);
    for _ in 0..500 {
        for place in 0..3 {
            for _ in 0..30 {
                world.request(place, 1);
            }
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(world.used(5) >= 995, "{:?}", world.admitted);
    let moved: u64 = world
        .events
        .iter()
        .map(|event| if let Event::Gave { permits, .. } = event { *permits } else { 0 })
        .sum();
    assert!(moved < 300, "{moved}");
}

#[test]
fn a_world_without_rights_is_known_to_be_dry_once_a_window() {
    let mut world = EscrowWorld::new(3, 90, CALM, EscrowSafety::ALL);
    for _ in 0..400 {
        for place in 0..3 {
            world.request(place, 1);
            world.request(place, 1);
        }
        world.tick();
    }
    let dry = world.events.iter().filter(|event| matches!(event, Event::Dry { .. })).count();
    // Each of three regions, in each of four windows and the one under way.
    assert!((9..=15).contains(&dry), "{dry}");
    let lone = {
        let mut world = EscrowWorld::new(3, 90, CALM, EscrowSafety::ALL);
        for _ in 0..400 {
            world.request(0, 1);
            world.tick();
        }
        world.events.iter().filter(|event| matches!(event, Event::Dry { .. })).count()
    };
    assert!(lone <= 4, "{lone}");
}

#[test]
fn an_idle_bucket_says_nothing() {
    let mut world = EscrowWorld::new(3, 1_000, CALM, EscrowSafety::ALL);
    for _ in 0..300 {
        world.request(0, 1);
        world.tick();
    }
    let frames: u64 = world.regions.iter().map(|region| region.machine.tally().entries_out).sum();
    assert_eq!(frames, 0);
}

#[test]
fn a_limit_smaller_than_the_number_of_regions_is_used_wherever_it_is_wanted() {
    let mut world = EscrowWorld::new(5, 2, CALM, EscrowSafety::ALL);
    for step in 0..500 {
        if step % 10 == 0 {
            world.request(4, 1);
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(world.admitted.values().sum::<u64>() >= 8, "{:?}", world.admitted);
}

#[test]
fn a_cost_larger_than_a_share_gathers_its_rights() {
    let mut world = EscrowWorld::new(3, 99, CALM, EscrowSafety::ALL);
    let mut admitted = 0;
    for step in 0..500 {
        if step % 20 == 0 {
            admitted += u64::from(world.request(2, 80));
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(admitted >= 4, "{admitted}: {:?}", world.admitted);
}

#[test]
fn a_region_that_forgets_burns_its_rights_and_may_be_given_others() {
    let mut world = EscrowWorld::new(3, 900, CALM, EscrowSafety::ALL);
    for step in 0..600 {
        for _ in 0..10 {
            world.request(1, 1);
        }
        if step == 230 {
            world.crash(1);
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    let windows: Vec<u64> = world.admitted.values().copied().collect();
    assert!(windows[5] >= 890, "{windows:?}");
    // What it had left was burnt, yet the others gave to its new memory what they had.
    assert!(windows[2] < 900 && windows[3] > 100, "{windows:?}");
}

#[test]
fn a_region_that_is_cut_off_spends_what_it_holds_and_comes_back() {
    let mut world = EscrowWorld::new(3, 900, CALM, EscrowSafety::ALL);
    for step in 0..900 {
        for place in 0..3 {
            for _ in 0..5 {
                world.request(place, 1);
            }
        }
        world.regions[0].cut_off = (300..600).contains(&step);
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(world.admitted.values().skip(1).all(|used| *used >= 880), "{:?}", world.admitted);
}

#[test]
fn closed_windows_are_counted_worldwide() {
    let mut world = EscrowWorld::new(3, 300, CALM, EscrowSafety::ALL);
    for _ in 0..500 {
        for place in 0..3 {
            world.request(place, 2);
        }
        world.tick();
    }
    let closed: Vec<(u64, u64)> = world
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Closed { window, used, .. } => Some((*window, *used)),
            _ => None,
        })
        .collect();
    assert!(closed.len() >= 6, "{closed:?}");
    assert!(
        closed.iter().all(|(window, used)| world.admitted.get(window) == Some(used)),
        "{closed:?} {:?}",
        world.admitted
    );
}

#[test]
fn no_number_that_another_region_says_is_too_large() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        numbers_are_bounded(EscrowWorld::of(algorithm, 3, u32::MAX, CALM, EscrowSafety::ALL));
    }
}

fn numbers_are_bounded(mut world: EscrowWorld) {
    let level = world.algorithm.counting() == Counting::Level;
    let total = |permits| vec![Total { region: "r1".into(), session: START.0, permits }];
    for step in 0..100 {
        world.request(1, 1);
        world.tick();
        let most = [0, 1, u64::MAX / 2, u64::MAX][step % 4];
        let said = Statement {
            rule: rule_name(),
            identity: key().identity,
            stamp: Timestamp(world.now.0 + 1),
            session: 1 + u64::try_from(step / 50).unwrap_or(0),
            free: most,
            demand: DEMAND_MAX,
            wanted: u64::MAX >> (step % 64),
            totals: if level {
                MovedTotals::Level(LevelTotals { settled: total(most), kept: total(u64::MAX) })
            } else {
                let window = world.now.window_index(world.limit.window);
                let (taken, given) = (total(most), total(u64::MAX));
                MovedTotals::Window(WindowTotals { window, taken, given, closed: None })
            },
            limit: CountedLimit::default(),
        };
        let frame = RightsFrame { sent: world.now, statements: vec![said], transfers: Vec::new() };
        let from = world.regions[0].name.clone();
        assert_eq!(world.regions[1].machine.handle_frame(world.now, &from, frame), Ok(()));
        world.pump(1);
    }
}

#[derive(Debug, Clone)]
enum Act {
    Requests { place: usize, count: u8, cost: u64 },
    Ticks(u8),
    Crash(usize),
    CutOff(usize, bool),
    Clock(usize, i64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => (0..5_usize, 1..60_u8, prop_oneof![4 => Just(1_u64), 1 => 1..40_u64])
            .prop_map(|(place, count, cost)| Act::Requests { place, count, cost }),
        8 => (1..12_u8).prop_map(Act::Ticks),
        1 => (0..5_usize).prop_map(Act::Crash),
        1 => (0..5_usize, any::<bool>()).prop_map(|(place, cut)| Act::CutOff(place, cut)),
        1 => (0..5_usize, -1_500_000..1_500_000_i64).prop_map(|(place, ahead)| Act::Clock(place, ahead)),
    ];
    proptest::collection::vec(act, 20..160)
}

fn weathers() -> impl Strategy<Value = Weather> {
    (1_000..150_000_u64, 0..900_000_u64, 0..300_u64, 0..500_u64).prop_map(|(owd, jitter, loss, doubled)| {
        Weather { owd: Span(owd), jitter: Span(jitter), loss, doubled }
    })
}

/// Plays a history. Why it is wrong, if it is.
fn play(mut world: EscrowWorld, acts: &[Act]) -> Result<(), String> {
    let count = world.regions.len();
    for act in acts {
        match act {
            Act::Requests { place, count: times, cost } => {
                for _ in 0..*times {
                    world.request(place % count, *cost);
                }
            }
            Act::Ticks(ticks) => {
                for _ in 0..*ticks {
                    world.tick();
                    world.check()?;
                }
            }
            Act::Crash(place) => world.crash(place % count),
            Act::CutOff(place, cut) => world.regions[place % count].cut_off = *cut,
            // Without windows permits come by the clock: one that jumps brings some that are not due.
            Act::Clock(..) if world.algorithm.counting() == Counting::Level => {}
            // A clock may be set at any time, but not back over a crash by more than the margin.
            Act::Clock(place, ahead) => {
                let place = place % count;
                world.regions[place].ahead = (*ahead).clamp(-400_000, 400_000);
            }
        }
        world.check()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_history_admits_more_than_the_limit_or_creates_a_right(
        count in 2..6_usize,
        permits in 1..200_u32,
        weather in weathers(),
        acts in acts(),
    ) {
        prop_assert_eq!(play(EscrowWorld::new(count, permits, weather, EscrowSafety::ALL), &acts), Ok(()));
    }

    #[test]
    fn no_history_takes_buckets_above_their_arrival_curve(
        count in 2..6_usize,
        permits in 1..200_u32,
        algorithm in proptest::sample::select(vec![Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra]),
        weather in weathers(),
        acts in acts(),
    ) {
        prop_assert_eq!(play(EscrowWorld::of(algorithm, count, permits, weather, EscrowSafety::ALL), &acts), Ok(()));
    }
}

/// Demand that jumps between regions, a bad network and stores that forget. Why it goes wrong, if it does.
fn torment(algorithm: Algorithm, seed: u64, safety: EscrowSafety) -> Result<(), String> {
    let weather =
        Weather { owd: Span::from_millis(20), jitter: Span::from_millis(900), loss: 50, doubled: 500 };
    let mut world = EscrowWorld::of(algorithm, 3, 60, weather, safety);
    world.dice = seed;
    world.slow = seed.is_multiple_of(2);
    for step in 0..400_usize {
        let busy = (step / 40 + usize::try_from(seed).unwrap_or(0)) % 3;
        // A bucket without windows is full, and so can be too full, only after nobody has asked for a while.
        let (alone, silent) = if seed % 4 < 2 { (40, 80) } else { (20, 180) };
        for place in 0..3 {
            let count = match (algorithm.counting() == Counting::Level, step % (silent + 20)) {
                (false, _) if place != busy => world.roll(3),
                (true, at) if at < alone && place != busy => 0,
                (true, at) if (alone..silent).contains(&at) => 0,
                _ => 8,
            };
            for _ in 0..count {
                world.request(place, 1);
            }
        }
        // More than its capacity, which it gathers for while nobody asks.
        if algorithm.counting() == Counting::Level && step % (silent + 20) == alone {
            world.request(busy, 45);
        }
        if world.roll(100) == 0 {
            let place = world.roll(3);
            world.crash(usize::try_from(place).unwrap_or(0));
        }
        world.tick();
        world.check()?;
    }
    Ok(())
}

#[test]
fn without_any_one_safety_rule_some_history_goes_wrong() {
    for (name, safety) in EscrowSafety::WITHOUT_ONE {
        let level = safety.lacks_one_of_levels();
        let algorithm = if level { Algorithm::TokenBucket } else { Algorithm::FixedWindow };
        assert!((0..100).any(|seed| torment(algorithm, seed, safety).is_err()), "{name} could be left out");
    }
    for seed in 0..20 {
        for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
            assert_eq!(torment(algorithm, seed, EscrowSafety::ALL), Ok(()), "seed {seed}");
        }
    }
}
