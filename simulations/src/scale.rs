//! `sim scale`: what fifty regions and ten million keys cost in memory, bytes, CPU time and error.
//!
//! Ten million buckets in fifty daemons are not simulated one by one. By Zipf's law nearly all of them are
//! asked for so rarely that they can never reach their limit: the most popular ranks, which can, are
//! simulated as they are, and of the rest one in a thousand, each standing for a thousand like it. Memory and
//! CPU time are measured on machines that really hold so many buckets.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::{StoreSeen, Touched};
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;

use crate::model::daemons::World;
use crate::model::shell::world_key;
use crate::model::{Model, START};
use crate::number::{float, index, len, place, seconds, whole};
use crate::pattern::Pattern;
use crate::plan::{Plan, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

/// So many windows before the present one are looked at for what was told: as many as daemons remember.
const WINDOWS_LOOKED_AT: u64 = 2;
/// The part of the tail that is simulated: one rank in so many.
const SAMPLED: u64 = 1_000;

/// The world to weigh.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Regions, of one daemon each.
    #[arg(long, default_value_t = 50)]
    regions: usize,
    /// Keys worldwide.
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// The exponent of Zipf's law.
    #[arg(long, default_value_t = 1.0)]
    zipf: f64,
    /// Requests a second worldwide, over all keys.
    #[arg(long, default_value_t = 1_000_000.0)]
    rate: f64,
    /// Permits per second of each key.
    #[arg(long, default_value_t = 1_000)]
    limit: u32,
    /// The most popular ranks, all of which are simulated.
    #[arg(long, default_value_t = 100)]
    head: u64,
    /// Virtual seconds.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Buckets that the machines are weighed with.
    #[arg(long, default_value_t = 100_000)]
    weighed: u64,
}

/// Weighs and measures.
pub(crate) fn run(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{} regions, {} keys, Zipf {}, {} requests a second, {} permits a second each",
        settings.regions, settings.keys, settings.zipf, settings.rate, settings.limit
    )?;
    // Both are kept until both are weighed: what one freed would be missing in what the other takes.
    let weighed = [weigh(settings, Way::Escrow, out)?, weigh(settings, Way::Gossip, out)?];
    drop(weighed);
    for way in [Way::Gossip, Way::Escrow] {
        spread(settings, way, out)?;
    }
    Ok(())
}

fn plan(settings: &Settings, regions: usize) -> Plan {
    let rule = RulePlan {
        limit: settings.limit,
        window: Span::from_secs(1),
        algorithm: Algorithm::FixedWindow,
        burst: settings.limit,
        on_partition: OnPartition::Share,
        wait: Span::from_millis(100),
    };
    let weather = Weather::spread(regions, Span::from_millis(250), &mut Dice::new(1, 3));
    let mut plan = Plan::ordinary(regions, rule, Pattern::balanced(regions), weather);
    plan.keys_max = index(settings.weighed.max(settings.head + settings.keys / SAMPLED) + 1);
    plan
}

/// One daemon that follows many buckets: bytes for each, and time for each decision that it is told of.
/// Returns its world.
fn weigh(settings: &Settings, way: Way, out: &mut impl Write) -> anyhow::Result<World> {
    let mut world = World::new(&plan(settings, settings.regions), way)?;
    let before = resident_bytes()?;
    let begun = cpu_seconds()?;
    for user in 0..settings.weighed {
        let touched = Touched {
            key: world_key(user),
            window: START.window_index(Span::from_secs(1)),
            offered: 1,
            admitted: 1,
            returned: 0,
            refused: 0,
            largest: 1,
            own: None,
            store: StoreSeen::default(),
        };
        if let Some(daemon) = world.daemons_mut().first_mut() {
            match way {
                Way::Gossip => daemon.node.replica.handle_touched(START, &touched),
                _ => daemon.node.escrow.handle_touched(START, &touched),
            }
        }
    }
    let spent = cpu_seconds()? - begun;
    let bytes = resident_bytes()?.saturating_sub(before);
    writeln!(
        out,
        "{}: {} buckets followed by one daemon: {} bytes each, {:.2} us of CPU time for the first decision of each",
        way.title(),
        settings.weighed,
        bytes / settings.weighed.max(1),
        spent / float(settings.weighed) * 1e6
    )?;
    Ok(world)
}

/// The permits that were asked for and admitted of one rank.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    asked: u64,
    admitted: u64,
}

/// The whole world, its tail sampled.
fn spread(settings: &Settings, way: Way, out: &mut impl Write) -> anyhow::Result<()> {
    let (keys, head) = (settings.keys, settings.head.min(settings.keys));
    let harmonic: f64 = (1..=keys).map(|rank| float(rank).powf(-settings.zipf)).sum();
    let tail: Vec<u64> = (head..keys).step_by(index(SAMPLED)).collect();
    let ranks: Vec<u64> = (0..head).chain(tail.iter().copied()).collect();
    let per_second = |rank: u64| settings.rate * float(rank + 1).powf(-settings.zipf) / harmonic;
    let able = (0..keys).take_while(|rank| per_second(*rank) >= f64::from(settings.limit)).count();
    let plan = plan(settings, settings.regions);
    let step = Span::from_millis(5);
    let begun = cpu_seconds()?;
    let mut world = World::new(&plan, way)?;
    let mut dice = Dice::new(1, 21);
    let mut windows = std::collections::BTreeMap::<(u64, u64), Tally>::new();
    let steps = Span::from_secs(settings.seconds).0 / step.0;
    let mut asked = 0_u64;
    for _ in 0..steps {
        let window = world.now().window_index(plan.rule.window);
        for &rank in &ranks {
            for _ in 0..dice.poisson(per_second(rank) * seconds(step)) {
                let at = index(dice.below(place(settings.regions)));
                let tally = windows.entry((rank, window)).or_default();
                tally.asked += 1;
                asked += 1;
                tally.admitted += u64::from(world.ask_daemon(at, rank, 1).is_some());
            }
        }
        world.step(step);
    }
    let spent = cpu_seconds()? - begun;
    let links = len(settings.regions * settings.regions.saturating_sub(1).max(1));
    let virtual_seconds = float(settings.seconds);
    let traffic = world.traffic();
    let last = world.now().window_index(plan.rule.window);
    let first = START.window_index(plan.rule.window) + 1;
    let limit = u64::from(settings.limit);
    let (mut over, mut could, mut did, mut worst) = (0_u64, 0_u64, 0_u64, 0.0_f64);
    for ((_, window), tally) in windows.iter().filter(|((_, window), _)| (first..last).contains(window)) {
        let _ = window;
        let possible = tally.asked.min(limit);
        (could, did) = (could + possible, did + tally.admitted.min(possible));
        over += tally.admitted.saturating_sub(limit);
        worst = worst.max(float(tally.admitted.saturating_sub(limit)) / float(limit) * 100.0);
    }
    writeln!(
        out,
        "{}: {able} of {keys} keys can reach their limit; {head} head keys and {} of the tail simulated for {} s:\n  overshoot {over} permits in all, worst {worst:.2} %; use {:.2} %; {:.1} messages/s and {:.1} kB/s per link; followed per daemon: {}; {:.2} s of CPU time per virtual second for all {} daemons, {:.2} us per decision",
        way.title(),
        tail.len(),
        settings.seconds,
        float(did) / float(could.max(1)) * 100.0,
        float(traffic.frames) / links / virtual_seconds,
        float(traffic.bytes) / links / virtual_seconds / 1e3,
        followed(&world, way),
        spent / virtual_seconds,
        settings.regions,
        spent / float(asked.max(1)) * 1e6
    )?;
    let tail_keys = keys.saturating_sub(head);
    if way == Way::Gossip {
        let told = told_of_tail(&world, head);
        writeln!(
            out,
            "  of the sampled tail {told} buckets are told of to others: about {} of {tail_keys}",
            whole(float(told) * float(SAMPLED))
        )?;
    }
    Ok(())
}

fn followed(world: &World, way: Way) -> usize {
    let daemons = world.daemons().iter();
    let keys = daemons.map(|daemon| {
        let now = world.clock(daemon.region);
        match way {
            Way::Gossip => daemon.node.replica.status(now).keys_len,
            _ => daemon.node.escrow.status(now).keys_len,
        }
    });
    keys.max().unwrap_or(0)
}

/// Buckets of the tail of which some daemon knows what others admitted in one of the last windows.
fn told_of_tail(world: &World, head: u64) -> u64 {
    let newest = world.now().window_index(world.plan.rule.window);
    let known = |user: &u64| {
        world.daemons().iter().any(|daemon| {
            let windows = newest.saturating_sub(WINDOWS_LOOKED_AT)..=newest;
            windows
                .filter_map(|window| daemon.node.admitted(*user, window))
                .any(|(_, others)| others.iter().any(|(_, count)| *count > 0))
        })
    };
    let last = head + 20_000_000;
    (head..last).step_by(index(SAMPLED)).take(10_000).filter(known).count().try_into().unwrap_or(u64::MAX)
}

fn resident_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("/proc/self/statm: this needs Linux")?;
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Ok(pages * 4_096)
}

/// CPU time of this process so far, in seconds.
fn cpu_seconds() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").context("/proc/self/stat: this needs Linux")?;
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let field = |at: usize| after_name.split_whitespace().nth(at).and_then(|ticks| ticks.parse::<u64>().ok());
    Ok(float(field(11).unwrap_or(0) + field(12).unwrap_or(0)) / 100.0)
}
