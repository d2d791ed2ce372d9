//! Users who travel: one asks now and then in one region, and then in another. Beside the regions one store
//! counts all that they admit: while it has room, a refusal is a false denial.

use super::*;
use crate::algorithm::{Counting, State};
use crate::regions::gossip::FirstShare;
use crate::regions::gossip::uncertainty::{BucketAnswer, ROUND_TRIP, has_room};

/// Worlds that are played.
const SEEDS: u64 = 16;

/// What a seed draws.
#[derive(Debug)]
struct Journey {
    regions: usize,
    rule: WorldRule,
    legs: Vec<Leg>,
}

/// Some requests in one region, and how long after them nobody asks.
#[derive(Debug)]
struct Leg {
    region: usize,
    requests: u64,
    pause: Span,
    gap: Span,
}

/// Between 10^low and 10^high.
fn log_uniform(dice: &mut Dice, low: f64, high: f64) -> f64 {
    10_f64.powf(low + (high - low) * dice.unit())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a span of a test")]
fn span(seconds: f64) -> Span {
    Span::from_millis((seconds * 1e3) as u64)
}

impl Journey {
    fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 29);
        let regions = usize::try_from(dice.between(2, 10)).unwrap();
        let algorithm = *dice.pick(&Algorithm::OF_COSTS).unwrap();
        let limit = match dice.below(4) {
            0 => dice.between(4, 12),
            1 => dice.between(13, 100),
            _ => dice.between(100, 2_000),
        };
        let window = span(log_uniform(&mut dice, 0.0, 6.427));
        let mut rule = rule(algorithm, u32::try_from(limit).unwrap(), window, OnPartition::default());
        if dice.chance(0.3) {
            let weights =
                (0..regions).map(|at| (format!("r{at}"), u32::try_from(dice.below(9)).unwrap() + 1));
            rule.global.shares = weights.collect();
        }
        let mut region = dice.below(10);
        let legs = (0..dice.between(2, 4)).map(|_| {
            region += dice.between(1, 9);
            Leg {
                region: usize::try_from(region).unwrap() % regions,
                requests: dice.between(1, 50),
                pause: span(log_uniform(&mut dice, -2.0, 0.3)),
                gap: span(log_uniform(&mut dice, -1.0, 2.778)),
            }
        });
        Self { regions, legs: legs.collect(), rule }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) admitted: bool,
    /// How many permits were free worldwide before.
    pub(super) free: u64,
    pub(super) retry: Option<Span>,
    /// True if the region believes that what it lacks is free elsewhere.
    pub(super) elsewhere: bool,
}

/// Regions with a store each, and one store that counts what all of them admit.
pub(super) struct World {
    pub(super) cluster: GossipCluster,
    rule: WorldRule,
    names: Vec<NodeName>,
    stores: Vec<State>,
    all: State,
}

impl World {
    pub(super) fn new(seed: u64, regions: usize, rule: &WorldRule) -> Self {
        let names: Vec<NodeName> = (0..regions).map(|at| name(&format!("r{at}"), "1")).collect();
        let mut cluster = GossipCluster::seeded(seed, &[], rule);
        cluster.suppresses_reports = true;
        names.iter().for_each(|name| cluster.start(name, rule));
        cluster.meet();
        let state = State::new(rule.algorithm);
        let stores = vec![state.clone(); regions];
        let mut world = Self { cluster, rule: rule.clone(), stores, names, all: state };
        world.run(Span::from_secs(4));
        world
    }

    /// Time passes, and stores are charged what they are told to.
    pub(super) fn run(&mut self, length: Span) {
        let end = self.cluster.now() + length;
        while self.cluster.now() < end {
            self.cluster.run(TICK);
            self.charge();
        }
    }

    fn charge(&mut self) {
        let now = self.cluster.now();
        for (who, store) in self.names.iter().zip(&mut self.stores) {
            let debits = self.cluster.take_debits(who);
            store.debit(&self.rule.limit, now, debits);
        }
    }

    pub(super) fn ask(&mut self, region: usize, cost: u64) -> Asked {
        let (now, who, limit) = (self.cluster.now(), self.names[region].clone(), self.rule.limit);
        let algorithm = self.rule.algorithm;
        self.charge();
        let told = self.cluster.views(&who).get(&key("u")).copied();
        let regions = u64::try_from(self.names.len()).unwrap();
        let first = FirstShare::new(&self.rule.global, &who.region).of(limit.capacity(algorithm), regions);
        let view = Allowance::in_force(told.as_ref(), first, algorithm, &limit, now);
        let verdict = self.stores[region].check(&limit, view.as_ref(), now, cost);
        let free = self.all.check(&limit, None, now, 0).remaining;
        let used = self.stores[region].used(&limit, now);
        let answered = BucketAnswer { used, remaining: verdict.remaining, view, error_bound: 0 };
        let mut retry = verdict.retry;
        let elsewhere = has_room(algorithm, &limit, &answered, cost, now);
        if elsewhere {
            retry = Some(retry.unwrap_or(ROUND_TRIP).min(ROUND_TRIP));
        }
        if verdict.admitted {
            self.stores[region].take(&limit, now, cost);
            self.all.take(&limit, now, cost);
        }
        let window = match algorithm.counting() {
            Counting::Window => limit.windows().index(now),
            Counting::Level | Counting::Concurrency => 0,
        };
        let told = Touched {
            refused: if verdict.admitted { 0 } else { cost },
            largest: cost,
            store: StoreSeen {
                without_allowance: !Allowance::is_told(view.as_ref(), told.as_ref()),
                ..StoreSeen::default()
            },
            ..touched("u", window, cost, if verdict.admitted { cost } else { 0 })
        };
        self.cluster.touch(&who, &told);
        Asked { admitted: verdict.admitted, free, retry, elsewhere }
    }

    /// Waits as a request was told, and asks again.
    pub(super) fn come_back(&mut self, region: usize, cost: u64, asked: Asked) -> Asked {
        self.run(asked.retry.unwrap_or(ROUND_TRIP) + Span::from_millis(10));
        self.ask(region, cost)
    }
}

/// Permits that may be free, and the region that came back as told finds none: the parts of a permit that
/// regions hold of a level, and of a window that slides what the past fills of each part.
fn lost_to_rounding(journey: &Journey) -> u64 {
    match journey.rule.algorithm {
        Algorithm::SlidingWindow => u64::try_from(journey.regions).unwrap(),
        algorithm if algorithm.counting() == Counting::Level => 1,
        _ => 0,
    }
}

/// Plays the journey of a seed. How many first requests were asked while the world had room for them, and
/// what went wrong.
fn play(seed: u64) -> (u64, Vec<String>) {
    let journey = Journey::draw(seed);
    let limit = u64::from(journey.rule.limit.permits);
    let regions = u64::try_from(journey.regions).unwrap();
    let rounding = lost_to_rounding(&journey);
    let mut world = World::new(seed, journey.regions, &journey.rule);
    let (mut firsts, mut wrong) = (0, Vec::new());
    let mut quiet = Span::ZERO;
    for leg in &journey.legs {
        // A store that was told of a level more than a minute ago keeps to its first share.
        let forgot = journey.rule.counting() == Counting::Level && quiet > Span::from_secs(60);
        for number in 0..leg.requests {
            let asked = world.ask(leg.region, 1);
            if asked.admitted && asked.free == 0 {
                wrong.push(format!("admitted beyond the limit in {leg:?}"));
            }
            if number == 0 && !forgot && asked.free > limit / 10 && asked.free >= regions {
                firsts += 1;
                if !asked.admitted {
                    wrong.push(format!("the first of {leg:?} is refused: {asked:?}"));
                }
            }
            if !asked.admitted && asked.free > 0 {
                if asked.free > rounding && asked.retry.is_none_or(|retry| retry > ROUND_TRIP) {
                    wrong.push(format!("told to come back late in {leg:?}: {asked:?}"));
                    break;
                }
                let again = world.come_back(leg.region, 1, asked);
                if !again.admitted && again.free > rounding {
                    wrong.push(format!("came back as told in {leg:?}: {asked:?}, then {again:?}"));
                }
            }
            world.run(leg.pause);
        }
        world.run(leg.gap);
        quiet = leg.gap;
    }
    if !wrong.is_empty() {
        wrong.insert(0, format!("seed {seed}: {journey:?}"));
    }
    (firsts, wrong)
}

#[test]
fn a_user_who_travels_finds_what_he_did_not_use() {
    let (mut firsts, mut wrong) = (0, Vec::new());
    for seed in 1..=SEEDS {
        let (asked, found) = play(seed);
        firsts += asked;
        wrong.extend(found);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(firsts >= SEEDS, "{firsts} first requests were judged");
}
