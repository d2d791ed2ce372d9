//! How exactly real daemons hold a limit under demand that moves, as figures to read: nothing is judged, so
//! it runs only when asked for, on a quiet machine and best against an optimised build: `cargo test
//! --workspace --profile quick --test worldwide figures -- --ignored --nocapture`. `TIDEGATE_FIGURES` may
//! narrow it to some patterns (`anti saw`), `TIDEGATE_FIGURES_RUNS` says how many runs of each (3).

use std::f64::consts::TAU;
use std::time::{Duration, Instant};

use tidegate::core::algorithm::{Algorithm, Limit, State};
use tidegate::core::time::{Span, Timestamp};

use super::load::{Ask, Load};
use super::world::{Plan, Store, World, rules, sums, window};

const LIMIT: u64 = 1_000;
const MEASURED: u64 = 20;
/// Windows at the beginning that are not measured.
const SKIPPED: u64 = 3;

/// What each of three regions is asked for `at` so many seconds, in multiples of the limit.
pub(super) type Demand = fn(at: f64) -> [f64; 3];

pub(super) const PATTERNS: [(&str, Demand); 4] = [
    ("even", |_| [2.0 / 3.0; 3]),
    ("anti", |at| {
        let wave = 0.5 + (at / 3.1 * TAU).sin() / 2.0;
        [2.0 * wave, 2.0 * (1.0 - wave), 0.0]
    }),
    ("saw", |at| {
        let mut load = [0.2; 3];
        load[(at / 0.7) as usize % 3] = 1.6;
        load
    }),
    ("lunch", |at| {
        let (now, handed) = ((at / 4.0) as usize, ((at / 4.0).fract() * 2.0 - 1.0).max(0.0));
        let mut load = [0.0; 3];
        load[now % 3] += 1.8 * (1.0 - handed);
        load[(now + 1) % 3] += 1.8 * handed;
        load
    }),
];

/// One run. All in percent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) over_mean: f64,
    pub(super) over_max: f64,
    pub(super) used: f64,
    /// How long this machine kept the load from running, at worst.
    stall: Duration,
}

pub(super) fn run(world: &World, demand: Demand, algorithm: Algorithm, measured: u64) -> Run {
    let permits = world.plan.limit;
    let loads = world.load(0.0, &[1, 1, 1]);
    let begun = Instant::now();
    let first = window() + SKIPPED;
    while window() < first + measured {
        for (load, part) in loads.iter().zip(demand(begun.elapsed().as_secs_f64())) {
            load.set_rate((part * permits as f64) as u64);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for load in &loads {
        load.set_rate(0);
    }
    std::thread::sleep(Duration::from_millis(300));
    let seen = sums(&loads, first..first + measured);
    let stall = seen.iter().map(|window| window.stall).max().unwrap_or_default();
    if algorithm == Algorithm::SlidingLog {
        return Run { stall, ..of_intervals(&loads, first, permits) };
    }
    let over = |admitted: u64| (admitted as f64 / permits as f64 - 1.0).max(0.0) * 100.0;
    let overs = seen.iter().map(|window| over(window.admitted));
    let could: u64 = seen.iter().map(|window| window.asked.min(permits)).sum();
    let did: u64 = seen.iter().map(|window| window.admitted.min(permits)).sum();
    Run {
        over_mean: overs.clone().sum::<f64>() / seen.len() as f64,
        over_max: overs.fold(0.0, f64::max),
        used: did as f64 / could.max(1) as f64 * 100.0,
        stall,
    }
}

/// Of every interval as long as the window: what was surely admitted in it, asked and answered. And how much
/// of what one log for the whole world would have admitted was.
fn of_intervals(loads: &[Load], first: u64, permits: u64) -> Run {
    let mut asks: Vec<Ask> = loads.iter().flat_map(Load::asks).collect();
    asks.sort_by_key(|ask| ask.sent);
    let (from, length) = (Duration::from_secs(first), Duration::from_secs(1));
    let limit =
        Limit { calendar: None, permits: permits as u32, window: Span::from_secs(1), burst: 0, queue: 0 };
    let (mut perfect, mut could) = (State::new(Algorithm::SlidingLog), 0);
    for ask in &asks {
        let at = Timestamp(ask.sent.as_micros() as u64);
        if perfect.check(&limit, None, at, 1).admitted {
            perfect.take(&limit, at, 1);
            could += u64::from(ask.sent >= from);
        }
    }
    let admitted: Vec<&Ask> = asks.iter().filter(|ask| ask.admitted).collect();
    let did = admitted.iter().filter(|ask| ask.sent >= from).count();
    let overs: Vec<f64> = admitted
        .iter()
        .enumerate()
        .filter(|(_, last)| last.answered >= from)
        .map(|(place, last)| {
            // Nothing takes as long to answer as so many requests need to be sent.
            let near = &admitted[place.saturating_sub(3_000)..(place + 500).min(admitted.len())];
            let surely = |ask: &&&Ask| ask.sent + length > last.answered && ask.answered <= last.answered;
            (near.iter().filter(surely).count() as f64 / permits as f64 - 1.0).max(0.0) * 100.0
        })
        .collect();
    Run {
        over_mean: overs.iter().sum::<f64>() / overs.len().max(1) as f64,
        over_max: overs.iter().copied().fold(0.0, f64::max),
        used: did.min(could as usize) as f64 / could.max(1) as f64 * 100.0,
        stall: Duration::ZERO,
    }
}

#[test]
#[ignore = "prints figures, judges nothing, and takes a quarter of an hour"]
fn figures_of_moving_demand() {
    let setting = |name: &str| std::env::var(name).ok();
    let wanted = setting("TIDEGATE_FIGURES");
    let runs = setting("TIDEGATE_FIGURES_RUNS").and_then(|runs| runs.parse().ok()).unwrap_or(3_usize).max(1);
    eprintln!(
        "algorithm     rtt  pattern  used %  over mean %  over max %  stall ms   (medians of {runs} runs)"
    );
    for (algorithm, word) in
        [(Algorithm::FixedWindow, "fixed_window"), (Algorithm::SlidingLog, "sliding_log")]
    {
        for rtt in [150, 250] {
            let plan = Plan {
                regions: 3,
                rtt: Duration::from_millis(rtt),
                store: Store::Memory,
                limit: LIMIT,
                global: "mode = \"gossip\"",
            };
            let world = World::with_rules(plan, &rules(plan, word));
            for (name, demand) in PATTERNS {
                if wanted.as_ref().is_some_and(|wanted| !wanted.split(' ').any(|word| word == name)) {
                    continue;
                }
                let seen: Vec<Run> = (0..runs).map(|_| run(&world, demand, algorithm, MEASURED)).collect();
                let median = |of: fn(&Run) -> f64| {
                    let mut values: Vec<f64> = seen.iter().map(of).collect();
                    values.sort_by(f64::total_cmp);
                    values[values.len() / 2]
                };
                let (used, mean, worst) =
                    (median(|run| run.used), median(|run| run.over_mean), median(|run| run.over_max));
                let stall = median(|run| run.stall.as_secs_f64() * 1e3);
                eprintln!(
                    "{word:<13} {rtt}  {name:<7} {used:>7.2}  {mean:>11.3}  {worst:>10.2}  {stall:>8.0}   {seen:.2?}"
                );
            }
        }
    }
}
