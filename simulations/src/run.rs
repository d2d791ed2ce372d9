//! Runs demand patterns and prints how well the limit was held and used.

use std::io::Write;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;
use tidegate::core::worldwide::{NodeName, Policy, WorldKey};

use crate::dice::Dice;
use crate::measure::{Bucket, Figures, Measure};
use crate::network::Weather;
use crate::pattern::{NAMES, Pattern};
use crate::world::{Plan, START, World, key};

const STEP: Span = Span::from_millis(1);
/// Windows at the beginning that are not measured.
const SKIPPED: u64 = 2;

/// What to simulate.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Regions, of one daemon each.
    #[arg(long, default_value_t = 3)]
    regions: usize,
    /// Round trip of the largest pair; the others take 50 to 100 % of it.
    #[arg(long, default_value = "80ms", value_parser = span)]
    rtt: Span,
    /// Permits per window.
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// The window.
    #[arg(long, default_value = "1s", value_parser = span)]
    window: Span,
    /// Demand: bal0.9, bal3, one2, skew2, mov0.9, onoff3, sync10, walk1.5, lone, …
    #[arg(long, default_value = "bal3")]
    pattern: String,
    /// How it is counted: `fixed_window`, or `token_bucket`, `gcra`, `leaky_bucket` with a burst of one window. For those
    /// the first column is the deepest debt of one bucket for all in percent of its burst, and the second by how much the
    /// whole run exceeded the rate.
    #[arg(long, default_value = "fixed_window", value_parser = algorithm)]
    algorithm: Algorithm,
    /// So many buckets, each asked for by the pattern; the figures are means over them, and the worst of all.
    #[arg(long, default_value_t = 1)]
    keys: u64,
    /// Percent of frames lost.
    #[arg(long, default_value_t = 1.0)]
    loss: f64,
    /// Percent of the delay that may come on top.
    #[arg(long, default_value_t = 10.0)]
    jitter: f64,
    /// Largest difference between clocks.
    #[arg(long, default_value = "0ms", value_parser = span)]
    skew: Span,
    /// Virtual seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Chooses everything that looks random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Between two reports.
    #[arg(long, default_value = "50ms", value_parser = span)]
    interval: Span,
    /// How budgets are worked out.
    #[arg(long, value_enum, default_value_t = Way::Tidegate)]
    policy: Way,
    /// Tell everything at once, not only what others would guess wrong.
    #[arg(long)]
    chatty: bool,
    /// The last region is cut off in the middle third of the run.
    #[arg(long)]
    cut: bool,
    /// What the rule does meanwhile: share, freeze, last_known, ignore, deny.
    #[arg(long, default_value = "share", value_parser = on_partition)]
    on_partition: OnPartition,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Way {
    Naive,
    Cca,
    Tidegate,
}

/// One pattern.
pub(crate) fn one(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    head(settings, out)?;
    line(settings, out).map(|_| ())
}

/// A sustained overload on a random cluster that loses nothing: the limit must be used and held, but for the first windows.
pub(crate) fn hold(seed: u64) -> anyhow::Result<()> {
    let mut dice = Dice::new(seed, 4);
    let settings = Settings {
        regions: usize::try_from(dice.between(2, 5))?,
        rtt: Span::from_millis(dice.between(1, 250)),
        limit: u32::try_from(dice.between(20, 2_000))?,
        window: Span::from_secs(1),
        pattern: ["bal2", "bal3", "bal10"]
            .get(usize::try_from(dice.below(3))?)
            .map_or("bal3", |name| name)
            .to_owned(),
        algorithm: Algorithm::FixedWindow,
        keys: 1,
        loss: 0.0,
        jitter: 10.0,
        skew: Span::ZERO,
        seconds: 15,
        seed,
        interval: Span::from_millis(dice.between(20, 100)),
        policy: Way::Tidegate,
        chatty: false,
        cut: false,
        on_partition: OnPartition::Share,
    };
    let (figures, _) = simulate(&settings)?;
    // One permit of rounding is all that a small limit may be off by.
    let slack = 0.5 + 100.0 / f64::from(settings.limit);
    ensure!(figures.over_max <= slack, "{} % above the limit: {settings:?}", figures.over_max);
    ensure!(figures.used >= 97.0, "only {} % used: {settings:?}", figures.used);
    Ok(())
}

/// All patterns.
pub(crate) fn all(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    head(settings, out)?;
    let mut sum = Figures { used_min: 100.0, ..Figures::default() };
    for name in NAMES {
        let figures = line(&Settings { pattern: name.to_owned(), ..settings.clone() }, out)?;
        let parts = f64::from(u32::try_from(NAMES.len())?);
        sum.over_max = sum.over_max.max(figures.over_max);
        sum.over_mean += figures.over_mean / parts;
        sum.used += figures.used / parts;
        sum.used_min = sum.used_min.min(figures.used_min);
        sum.wrongly_refused += figures.wrongly_refused / parts;
    }
    print(out, "all", sum, "")
}

fn head(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    let Settings { regions, rtt, limit, window, loss, seconds, seed, interval, policy, .. } = settings;
    writeln!(
        out,
        "{regions} regions, RTT {} ms, {limit} per {} ms, loss {loss} %, interval {} ms, {seconds} s, seed {seed}, {policy:?}",
        rtt.0 / 1_000,
        window.0 / 1_000,
        interval.0 / 1_000,
    )?;
    writeln!(
        out,
        "{:<8} {:>9} {:>9} {:>8} {:>8} {:>9} {:>10} {:>10} {:>6}",
        "pattern",
        "over max%",
        "over mean",
        "use %",
        "use min",
        "refused%*",
        "msg/s link",
        "B/s link",
        "late"
    )?;
    Ok(())
}

fn line(settings: &Settings, out: &mut impl Write) -> anyhow::Result<Figures> {
    let (figures, traffic) = simulate(settings)?;
    print(out, &settings.pattern, figures, &traffic)?;
    Ok(figures)
}

fn print(out: &mut impl Write, name: &str, figures: Figures, traffic: &str) -> anyhow::Result<()> {
    writeln!(
        out,
        "{name:<8} {:>9.1} {:>9.3} {:>8.2} {:>8.1} {:>9.2} {traffic}",
        figures.over_max, figures.over_mean, figures.used, figures.used_min, figures.wrongly_refused
    )?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "spans of a simulation are short")]
fn simulate(settings: &Settings) -> anyhow::Result<(Figures, String)> {
    ensure!((1..=50).contains(&settings.regions), "--regions takes 1 to 50");
    ensure!(settings.window.0 >= 10_000, "--window is at least 10ms");
    let regions = settings.regions;
    let mut pattern = Pattern::parse(&settings.pattern, regions)
        .with_context(|| format!("no pattern is called {}", settings.pattern))?;
    let mut world = world(settings);
    let mut dice = Dice::new(settings.seed, 2);
    ensure!((1..=100_000).contains(&settings.keys), "--keys takes 1 to 100000");
    let users: Vec<WorldKey> = (0..settings.keys).map(|user| key(user + 1)).collect();
    let mut measures: Vec<Measure> = users.iter().map(|_| Measure::default()).collect();
    let mut bucket = Bucket::full(settings.limit, window_of(settings));
    let window = settings.window;
    let step = STEP.0 as f64 / window.0 as f64;
    let steps = settings.seconds * 1_000;
    for at in 0..steps {
        if settings.cut {
            let side = u8::from((steps / 3..steps * 2 / 3).contains(&at));
            if let Some(last) = world.network.side.last_mut() {
                *last = side;
            }
        }
        pattern.advance(&mut dice, step);
        // Who comes first within a step must not always be the same.
        let first = usize::try_from(dice.below(u64::try_from(regions)?))?;
        for place in (0..regions).map(|place| (place + first) % regions) {
            let load = pattern.load(place, regions, at as f64 * step);
            for _ in 0..dice.poisson(load * f64::from(settings.limit) * step * settings.keys as f64) {
                let user = usize::try_from(dice.below(settings.keys))?;
                let (Some(user), Some(measure)) = (users.get(user), measures.get_mut(user)) else { continue };
                let admitted = world.request(place, user);
                // The window by the region's own clock: what the skew itself moves across an edge is no overshoot.
                let window = world.clock(place).window_index(window);
                measure.note(window, settings.limit, admitted);
                bucket.note(at, admitted);
            }
        }
        world.step(STEP);
    }
    let first = START.window_index(window) + SKIPPED;
    let end = world.now.window_index(window);
    let links = (regions * (regions - 1)).max(1);
    let per = |count: u64| count as f64 / settings.seconds as f64 / links as f64;
    let late: u64 = world.daemons.iter().map(|daemon| daemon.replica.tally().late).sum();
    let traffic = format!("{:>10.1} {:>10.0} {late:>6}", per(world.network.frames), per(world.network.bytes));
    let figures = mean(measures.iter().map(|measure| measure.figures(first, end, settings.limit)));
    if settings.algorithm == Algorithm::FixedWindow {
        return Ok((figures, traffic));
    }
    Ok((bucket.figures(steps), traffic))
}

fn world(settings: &Settings) -> World {
    let names = (0..settings.regions)
        .map(|place| NodeName { region: format!("region-{place}"), node: "n1".to_owned() })
        .collect();
    let policy = match settings.policy {
        Way::Naive => Policy::Sum,
        Way::Cca => Policy::Cut,
        Way::Tidegate => Policy::Tidegate,
    };
    let plan = Plan {
        names,
        algorithm: settings.algorithm,
        limit: Limit { permits: settings.limit, window: settings.window, burst: settings.limit, queue: 0 },
        on_partition: settings.on_partition,
        interval: settings.interval,
        policy,
        keys_max: 200_000,
        thrift: !settings.chatty,
    };
    let mut dice = Dice::new(settings.seed, 3);
    let delay = delays(settings.regions, settings.rtt, &mut dice);
    let weather =
        Weather { delay, jitter: settings.jitter / 100.0, loss: settings.loss / 100.0, double: 0.0 };
    let mut world = World::new(plan, weather, settings.seed);
    for daemon in &mut world.daemons {
        daemon.ahead = Span(dice.between(0, settings.skew.0));
    }
    world
}

/// One-way delays: the first pair takes the whole, the others half of it and more.
fn delays(regions: usize, rtt: Span, dice: &mut Dice) -> Vec<Vec<Span>> {
    let mut parts = vec![vec![0; regions]; regions];
    for (one, row) in parts.iter_mut().enumerate() {
        for (other, part) in row.iter_mut().enumerate().take(one) {
            *part = if (one, other) == (1, 0) { 1_000 } else { dice.between(500, 1_000) };
        }
    }
    let part =
        |one: usize, other: usize| parts.get(one.max(other)).and_then(|row| row.get(one.min(other))).copied();
    let delay = |one, other| Span(rtt.0 / 2 * part(one, other).unwrap_or(0) / 1_000);
    (0..regions).map(|one| (0..regions).map(|other| delay(one, other)).collect()).collect()
}

/// Reads `80ms`, `1s` or `5m`.
fn span(text: &str) -> Result<Span, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no length of time"))?;
    let unit = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(format!("{text:?} lacks a unit: us, ms, s, m or h")),
    };
    Ok(Span(number.saturating_mul(unit)))
}

/// The means, and the worst of the worst.
fn mean(all: impl ExactSizeIterator<Item = Figures>) -> Figures {
    let parts = f64::from(u32::try_from(all.len()).unwrap_or(u32::MAX)).max(1.0);
    all.fold(Figures { used_min: 100.0, ..Figures::default() }, |sum, one| Figures {
        over_max: sum.over_max.max(one.over_max),
        over_mean: sum.over_mean + one.over_mean / parts,
        used: sum.used + one.used / parts,
        used_min: sum.used_min.min(one.used_min),
        wrongly_refused: sum.wrongly_refused + one.wrongly_refused / parts,
    })
}

fn window_of(settings: &Settings) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "windows of a simulation are short")]
    let window = settings.window.0 as f64;
    window / 1_000.0
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    Ok(match text {
        "fixed_window" => Algorithm::FixedWindow,
        "token_bucket" => Algorithm::TokenBucket,
        "gcra" => Algorithm::Gcra,
        "leaky_bucket" => Algorithm::LeakyBucket,
        _ => return Err(format!("{text:?} is none of fixed_window, token_bucket, gcra, leaky_bucket")),
    })
}

fn on_partition(text: &str) -> Result<OnPartition, String> {
    Ok(match text {
        "share" => OnPartition::Share,
        "freeze" => OnPartition::Freeze,
        "last_known" => OnPartition::LastKnown,
        "ignore" => OnPartition::Ignore,
        "deny" => OnPartition::Deny,
        _ => return Err(format!("{text:?} is none of share, freeze, last_known, ignore, deny")),
    })
}
