//! Random clusters under random faults, then peace: a safety phase and a liveness phase for each seed.
//!
//! After the faults end, every replica must know exactly what every daemon admitted; nothing may have been counted twice,
//! and no table may have outgrown its bound. Every twentieth seed also puts a sustained overload on regions that hear each
//! other: what they admit must add up to the limit. A failure names its seed.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{bail, ensure};
use clap::Args;
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;
use tidegate::core::worldwide::{NodeName, Policy};

use crate::dice::Dice;
use crate::network::Weather;
use crate::run;
use crate::world::{Plan, World, key};

const STEP: Span = Span::from_millis(5);
/// No window ends during a run, so that the truth stays comparable.
const WINDOW: Span = Span::from_secs(100_000);

/// How much to check.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// How many random clusters.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed; a failure names the one to repeat with `--seeds 1 --first N`.
    #[arg(long, default_value_t = 1)]
    first: u64,
}

/// Checks all seeds.
pub(crate) fn run(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    let (mut daemons, mut frames, mut admitted) = (0, 0, 0);
    for seed in settings.first..settings.first.saturating_add(settings.seeds) {
        let outcome = check(seed).map_err(|problem| problem.context(format!("seed {seed}")))?;
        if seed % 20 == 0 {
            run::hold(seed).map_err(|problem| problem.context(format!("seed {seed}")))?;
        }
        daemons += outcome.daemons;
        frames += outcome.frames;
        admitted += outcome.admitted;
    }
    writeln!(
        out,
        "{} seeds: {daemons} daemons, {frames} frames, {admitted} permits; every replica learned the truth, every limit was held",
        settings.seeds
    )?;
    Ok(())
}

struct Outcome {
    daemons: usize,
    frames: u64,
    admitted: u64,
}

fn check(seed: u64) -> anyhow::Result<Outcome> {
    let mut dice = Dice::new(seed, 9);
    let mut world = cluster(seed, &mut dice);
    let users = dice.between(1, 20);
    // What each region's daemons admitted, and whether a crash took some of it before it could be told.
    let mut truth = BTreeMap::<(String, u64), (u64, u64)>::new();
    let mut untold = BTreeMap::<(usize, u64), u64>::new();
    let steps = dice.between(200, 600);
    for _ in 0..steps {
        trouble(&mut world, &mut dice, &mut untold, &mut truth);
        for place in 0..world.daemons.len() {
            if world.daemons[place].alive && dice.chance(0.1) {
                let user = dice.below(users);
                if world.request(place, &key(user)) {
                    let region = world.daemons[place].name.region.clone();
                    truth.entry((region, user)).or_default().0 += 1;
                    *untold.entry((place, user)).or_default() += 1;
                }
            }
        }
        world.step(STEP);
        for daemon in &world.daemons {
            ensure!(
                daemon.replica.status(world.now).keys_len <= world.plan.keys_max,
                "a table outgrew its bound"
            );
        }
    }
    peace(&mut world);
    for _ in 0..800 {
        world.step(STEP);
    }
    compare(&world, &truth, users)?;
    ensure!(world.refused == 0, "{} honest frames were refused", world.refused);
    let admitted = truth.values().map(|(admitted, _)| admitted).sum();
    Ok(Outcome { daemons: world.daemons.len(), frames: world.network.frames, admitted })
}

fn cluster(seed: u64, dice: &mut Dice) -> World {
    let regions = dice.between(2, 4);
    let names: Vec<NodeName> = (0..regions)
        .flat_map(|region| {
            (0..dice.between(1, 3))
                .map(move |node| NodeName { region: format!("r{region}"), node: format!("n{node}") })
        })
        .collect();
    let delay = (0..names.len())
        .map(|_| (0..names.len()).map(|_| Span(dice.between(500, 120_000))).collect())
        .collect();
    let weather = Weather { delay, jitter: dice.unit(), loss: dice.unit() * 0.4, double: dice.unit() * 0.3 };
    let permits = u32::try_from(dice.between(1, 5_000)).unwrap_or(1);
    let plan = Plan {
        names,
        algorithm: Algorithm::FixedWindow,
        limit: Limit { permits, window: WINDOW, burst: permits, queue: 0 },
        on_partition: OnPartition::Ignore,
        interval: Span::from_millis(dice.between(10, 200)),
        policy: Policy::Tidegate,
        keys_max: 50,
        // The truth of every bucket is asked for, also of those that nobody need know.
        thrift: false,
    };
    World::new(plan, weather, seed)
}

/// Cuts, heals, crashes and restarts, now and then.
fn trouble(
    world: &mut World,
    dice: &mut Dice,
    untold: &mut BTreeMap<(usize, u64), u64>,
    truth: &mut BTreeMap<(String, u64), (u64, u64)>,
) {
    let daemons = world.daemons.len();
    if dice.chance(0.005) {
        for side in &mut world.network.side {
            *side = u8::from(dice.chance(0.4));
        }
    }
    if dice.chance(0.01) {
        world.network.side.fill(0);
    }
    if dice.chance(0.004) {
        let place = usize::try_from(dice.below(u64::try_from(daemons).unwrap_or(1))).unwrap_or(0);
        let region = world.daemons[place].name.region.clone();
        // Whatever it admitted may or may not have been told: from now on the truth is a range.
        for ((_, user), count) in untold.iter_mut().filter(|((owner, _), _)| *owner == place) {
            truth.entry((region.clone(), *user)).or_default().1 += std::mem::take(count);
        }
        world.restart(place);
    }
}

fn peace(world: &mut World) {
    world.network.side.fill(0);
    world.network.weather.loss = 0.0;
    for daemon in &mut world.daemons {
        daemon.alive = true;
    }
    world.meet();
}

/// Everyone must believe the same of every region, and that must be the truth: exactly, but for what a crash may have
/// taken with it.
fn compare(world: &World, truth: &BTreeMap<(String, u64), (u64, u64)>, users: u64) -> anyhow::Result<()> {
    let window = world.now.window_index(WINDOW);
    for user in 0..users {
        for daemon in &world.daemons {
            let Some((own, others)) = daemon.replica.admitted(&key(user), window) else { continue };
            let believed = others.into_iter().chain([(daemon.name.region.clone(), own)]);
            for (region, believed) in believed {
                let (admitted, doubtful) = truth.get(&(region.clone(), user)).copied().unwrap_or_default();
                if believed > admitted || believed < admitted - doubtful {
                    bail!(
                        "{} of {} believes that {region} admitted {believed} for user {user}; it was {admitted}, {doubtful} of it before a crash",
                        daemon.name.node,
                        daemon.name.region
                    );
                }
            }
        }
    }
    Ok(())
}
