//! `sim patterns`: every demand pattern, or one, with flags instead of a file; a line of figures each.

use std::io::Write;

use anyhow::{Context, ensure};
use clap::Args;
use rayon::prelude::*;
use tidegate::core::algorithm::Algorithm;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;

use crate::drive::{Outcome, drive};
use crate::pattern::{NAMES, Pattern};
use crate::plan::{Fault, FaultKind, Plan, RulePlan, Way};
use crate::report::table;
use crate::virtual_world::{Dice, Weather};

/// What to simulate.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Regions, of one daemon each.
    #[arg(long, default_value_t = 3)]
    pub(crate) regions: usize,
    /// Round trip of the largest pair; the others take 50 to 100 % of it.
    #[arg(long, default_value = "80ms", value_parser = span)]
    pub(crate) rtt: Span,
    /// Permits per window.
    #[arg(long, default_value_t = 100)]
    pub(crate) limit: u32,
    /// The window.
    #[arg(long, default_value = "1s", value_parser = span)]
    pub(crate) window: Span,
    /// `fixed_window`, `sliding_window`, `sliding_log`, `token_bucket`, `leaky_bucket` or `gcra`.
    #[arg(long, default_value = "fixed_window", value_parser = algorithm)]
    pub(crate) algorithm: Algorithm,
    /// Capacity of a bucket; the limit unless given.
    #[arg(long)]
    pub(crate) burst: Option<u32>,
    /// One pattern alone: bal0.9, bal3, one2, skew2, mov0.9, onoff3, sync10, walk1.5, surge5, lone, …
    #[arg(long)]
    pub(crate) pattern: Option<String>,
    /// Percent of frames lost.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) loss: f64,
    /// Percent of the delay that may come on top.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) jitter: f64,
    /// Largest difference between clocks.
    #[arg(long, default_value = "0ms", value_parser = span)]
    pub(crate) skew: Span,
    /// Virtual seconds.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Chooses everything that looks random.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Between two reports.
    #[arg(long, default_value = "50ms", value_parser = span)]
    pub(crate) interval: Span,
    /// How the limit is held: gossip, gossip-cut, split, escrow, escrow-wait, central, naive-10s,
    /// naive-100ms.
    #[arg(long, default_value = "gossip", value_parser = way)]
    pub(crate) way: Way,
    /// The last region is cut off in the middle third of the run.
    #[arg(long)]
    pub(crate) cut: bool,
    /// What the rule does meanwhile: share, freeze, `last_known`, ignore, deny.
    #[arg(long, default_value = "share", value_parser = on_partition)]
    pub(crate) on_partition: OnPartition,
}

/// All patterns, or the one named.
pub(crate) fn run(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    ensure!((1..=50).contains(&settings.regions), "--regions takes 1 to 50");
    ensure!(settings.window.0 >= 10_000, "--window is at least 10ms");
    let names: Vec<&str> =
        settings.pattern.as_deref().map_or_else(|| NAMES.to_vec(), |pattern| vec![pattern]);
    let run = |name: &&str| -> anyhow::Result<(String, Outcome)> {
        Ok(((*name).to_owned(), drive(&plan(settings, name)?, settings.way)?))
    };
    let outcomes: Vec<_> = names.par_iter().map(run).collect::<anyhow::Result<_>>()?;
    writeln!(out, "{}", heading(settings))?;
    table::patterns(&outcomes, crate::model::shell::windowed(settings.algorithm), out)?;
    Ok(())
}

fn heading(settings: &Settings) -> String {
    let Settings { limit, window, rtt, regions, loss, jitter, skew, interval, way, seed, .. } = settings;
    format!(
        "{}: {limit} per {} ms, {regions} regions, rtt {} ms, jitter {jitter} %, loss {loss} %, skew {} ms, interval {} ms, seed {seed}",
        way.title(),
        window.0 / 1_000,
        rtt.0 / 1_000,
        skew.0 / 1_000,
        interval.0 / 1_000,
    )
}

fn plan(settings: &Settings, name: &str) -> anyhow::Result<Plan> {
    let pattern = Pattern::parse(name, settings.regions, settings.window)
        .with_context(|| format!("no pattern is called {name}: a kind ({}) and a load", Pattern::words()))?;
    let mut dice = Dice::new(settings.seed, 3);
    let mut weather = Weather::spread(settings.regions, settings.rtt, &mut dice);
    (weather.loss, weather.jitter) = (settings.loss / 100.0, settings.jitter / 100.0);
    let rule = RulePlan {
        limit: settings.limit,
        window: settings.window,
        algorithm: settings.algorithm,
        burst: settings.burst.unwrap_or(settings.limit),
        on_partition: settings.on_partition,
        wait: Span(settings.rtt.0 * 4 / 5),
    };
    let mut plan = Plan::ordinary(settings.regions, rule, pattern, weather);
    plan.length = Span::from_secs(settings.seconds);
    (plan.seed, plan.interval) = (settings.seed, settings.interval);
    for region in &mut plan.regions {
        region.ahead = i64::try_from(dice.between(0, settings.skew.0)).unwrap_or(0);
    }
    if settings.cut {
        let third = Span(plan.length.0 / 3);
        let kind = FaultKind::Cut { regions: vec![settings.regions - 1], inward: true, outward: true };
        plan.faults.push(Fault { at: third, lasts: third, kind });
    }
    Ok(plan)
}

/// Reads `80ms`, `1s` or `5m`.
pub(crate) fn span(text: &str) -> Result<Span, String> {
    tidegate::core::written::parse_span(text)
        .ok_or_else(|| format!("{text:?} is no length of time: a number and ms, s, m or h"))
}

fn way(text: &str) -> Result<Way, String> {
    let known = Way::WORDS.map(|(word, _)| word).join(", ");
    let found = Way::WORDS.iter().find(|(word, _)| *word == text);
    found.map(|(_, way)| *way).ok_or_else(|| format!("{text:?} is none of {known}"))
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| format!("{text:?} is no algorithm"))
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
