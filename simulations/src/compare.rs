//! `sim compare`: the tables of the design's results page, measured again, each figure beside the one given
//! there.
//!
//! The given figures are in `figures/`, as they were taken from that page. Conditions are its own: reports
//! every 100 ms, jitter 10 %, loss 1 %, clocks up to 3 ms apart, the first two windows left out.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use rayon::prelude::*;
use tidegate::core::algorithm::Algorithm;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;

use crate::BadInput;
use crate::drive::{Outcome, drive};
use crate::measure::Figures;
use crate::number::{len, whole};
use crate::pattern::{MOVING, Pattern, TABLE};
use crate::plan::{Plan, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

const SUMMARY: &str = include_str!("../figures/summary.csv");
const BUCKETS: &str = include_str!("../figures/buckets.csv");
const PATTERNS: &str = include_str!("../figures/patterns.csv");
/// The word for the rows of demand that moves.
const MOVING_ROWS: &str = "moving";
/// The words for the rows of a `sliding_log` and of a `sliding_window`.
const LOG_ROWS: &str = "logs";
const SLIDING_ROWS: &str = "sliding";
/// Largest difference from true time of a clock.
const SKEW: u64 = 3_000;

/// What to measure again.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Tables of these limits: 100/s, 1000/s, 100k/min, 100/h (takes long), and `buckets`; `moving` is 1000/s
    /// under demand that moves in ways that the page does not have, and `logs` and `sliding` a `sliding_log`
    /// and a `sliding_window` of 1000/s under all patterns.
    #[arg(long, value_delimiter = ',', default_value = "100/s,1000/s,100k/min,buckets,moving,logs,sliding")]
    limits: Vec<String>,
    /// Only these ways.
    #[arg(long, value_delimiter = ',')]
    ways: Vec<String>,
    /// Only so many regions.
    #[arg(long)]
    regions: Option<usize>,
    /// Only this round trip, in ms; one that the page does not have is measured alone.
    #[arg(long, value_delimiter = ',')]
    rtt: Vec<u64>,
    /// Every pattern by itself too.
    #[arg(long)]
    patterns: bool,
    /// How many times as long as usual (60 windows of a second, 8 of a minute, 6 of an hour) is measured.
    #[arg(long, default_value_t = 1.0)]
    long: f64,
    /// Chooses everything that looks random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, from that one on: the mean of all, and the worst.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
}

/// One row of the page.
#[derive(Debug, Clone)]
struct Row {
    limit: String,
    regions: usize,
    rtt: u64,
    way: Way,
    rule: RulePlan,
    /// As given, in the order of the columns.
    given: Vec<String>,
}

/// One row, measured.
#[derive(Debug, Clone, Default)]
struct Measured {
    over_max: f64,
    /// Without the two patterns in which everything begins at once.
    over_steady: f64,
    over_mean: f64,
    used: f64,
    used_worst: f64,
    worst: String,
    frames: f64,
    bytes: f64,
    delay: f64,
    falsely_denied: f64,
}

/// Measures the tables again and prints them.
pub(crate) fn run(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    let known = Way::WORDS.map(|(word, _)| word);
    if let Some(unknown) = settings.ways.iter().find(|word| !known.contains(&word.as_str())) {
        return Err(BadInput(format!("{unknown} is no way; there are {}", known.join(", "))).into());
    }
    for limit in &settings.limits {
        let rows = match limit.as_str() {
            "buckets" => buckets()?,
            MOVING_ROWS => moving(MOVING_ROWS, Algorithm::FixedWindow),
            LOG_ROWS => moving(LOG_ROWS, Algorithm::SlidingLog),
            SLIDING_ROWS => moving(SLIDING_ROWS, Algorithm::SlidingWindow),
            _ => windows(limit)?,
        };
        let rows = chosen(rows, settings);
        if rows.is_empty() {
            return Err(
                BadInput(format!("no table has {limit} with these regions, round trips and ways")).into()
            );
        }
        let measured: Vec<(Row, Measured, Vec<Outcome>)> = rows
            .into_par_iter()
            .map(|row| {
                let outcomes = measure(&row, settings)?;
                let measured = sum(&row, &outcomes);
                Ok((row, measured, outcomes))
            })
            .collect::<anyhow::Result<_>>()?;
        writeln!(out, "### {}\n", if limit == "buckets" { "token buckets" } else { limit })?;
        if limit == "buckets" {
            print_buckets(&measured, out)?
        } else {
            print(&measured, out)?
        }
        if settings.patterns || [MOVING_ROWS, LOG_ROWS, SLIDING_ROWS].contains(&limit.as_str()) {
            print_patterns(&measured, out)?;
        }
    }
    Ok(())
}

/// Rows without a page beside them: three regions, 1000/s.
fn moving(limit: &str, algorithm: Algorithm) -> Vec<Row> {
    let row = |way: Way, rtt: u64| Row {
        limit: limit.to_owned(),
        regions: 3,
        rtt,
        way,
        rule: RulePlan {
            limit: 1_000,
            window: Span::from_secs(1),
            algorithm,
            burst: 1_000,
            on_partition: OnPartition::Share,
            wait: Span(rtt * 800),
        },
        given: Vec::new(),
    };
    let ways = [Way::Gossip, Way::Escrow];
    ways.iter().flat_map(|way| [20, 80, 150, 250].map(|rtt| row(*way, rtt))).collect()
}

fn lines(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().skip(1).map(|line| line.split(',').collect())
}

fn way_of(word: &str) -> anyhow::Result<Way> {
    let found = Way::WORDS.iter().find(|(known, _)| *known == word);
    found.map(|(_, way)| *way).with_context(|| format!("{word} is no way"))
}

fn windows(limit: &str) -> anyhow::Result<Vec<Row>> {
    let (permits, window) = match limit {
        "100/s" => (100, 1),
        "1000/s" => (1_000, 1),
        "100k/min" => (100_000, 60),
        "100/h" => (100, 3_600),
        _ => return Ok(Vec::new()),
    };
    let row = |line: Vec<&str>| -> anyhow::Result<Row> {
        let rtt: u64 = line[2].parse()?;
        let rule = RulePlan {
            limit: permits,
            window: Span::from_secs(window),
            algorithm: Algorithm::FixedWindow,
            burst: permits,
            on_partition: OnPartition::Share,
            wait: Span(rtt * 800),
        };
        let given = line[4..].iter().map(|&text| text.to_owned()).collect();
        Ok(Row {
            limit: limit.to_owned(),
            regions: line[1].parse()?,
            rtt,
            way: way_of(line[3])?,
            rule,
            given,
        })
    };
    lines(SUMMARY).filter(|line| line.len() == 12 && line[0] == limit).map(row).collect()
}

fn buckets() -> anyhow::Result<Vec<Row>> {
    let row = |line: Vec<&str>| -> anyhow::Result<Row> {
        let permits: u32 = line[1].parse()?;
        let burst = f64::from(permits) * line[2].parse::<f64>()?;
        let rtt: u64 = line[3].parse()?;
        let rule = RulePlan {
            limit: permits,
            window: Span::from_secs(1),
            algorithm: Algorithm::TokenBucket,
            burst: u32::try_from(whole(burst))?,
            on_partition: OnPartition::Share,
            wait: Span(rtt * 800),
        };
        let given = line[5..].iter().map(|&text| text.to_owned()).collect();
        let limit = format!("{permits}/s, B = {} s", line[2]);
        Ok(Row { limit, regions: line[0].parse()?, rtt, way: way_of(line[4])?, rule, given })
    };
    lines(BUCKETS).filter(|line| line.len() == 12).map(row).collect()
}

fn chosen(mut rows: Vec<Row>, settings: &Settings) -> Vec<Row> {
    // A round trip that the page lacks is measured with nothing beside it.
    let lacking: Vec<Row> = settings
        .rtt
        .iter()
        .filter(|rtt| !rows.iter().any(|row| row.rtt == **rtt))
        .flat_map(|&rtt| {
            let model = rows.first().map_or(0, |row| row.rtt);
            rows.iter()
                .filter(move |row| row.rtt == model)
                .map(move |row| Row { rtt, given: Vec::new(), ..row.clone() })
                .collect::<Vec<_>>()
        })
        .collect();
    rows.extend(lacking);
    rows.retain(|row| {
        (settings.rtt.is_empty() || settings.rtt.contains(&row.rtt))
            && settings.regions.is_none_or(|regions| regions == row.regions)
            && (settings.ways.is_empty() || settings.ways.iter().any(|word| word == row.way.word()))
    });
    rows
}

/// The patterns of a row.
fn names(row: &Row) -> Vec<&'static str> {
    match row.limit.as_str() {
        MOVING_ROWS => MOVING.to_vec(),
        LOG_ROWS | SLIDING_ROWS => [&TABLE[..], &MOVING].concat(),
        _ => TABLE.to_vec(),
    }
}

fn measure(row: &Row, settings: &Settings) -> anyhow::Result<Vec<Outcome>> {
    let of = |name: &&str| {
        let seeds = settings.seed..settings.seed.saturating_add(settings.seeds.max(1));
        let outcomes = seeds.map(|seed| drive(&plan(row, name, settings, seed)?, row.way));
        together(outcomes.collect::<anyhow::Result<_>>()?).context("a seed")
    };
    names(row).par_iter().map(of).collect()
}

/// The mean of several runs, and their worst.
fn together(outcomes: Vec<Outcome>) -> Option<Outcome> {
    let count = len(outcomes.len());
    let mean = |of: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / count;
    let figures = Figures {
        over_max: outcomes.iter().map(|one| one.figures.over_max).fold(0.0, f64::max),
        over_mean: mean(&|one| one.figures.over_mean),
        used: mean(&|one| one.figures.used),
        used_min: outcomes.iter().map(|one| one.figures.used_min).fold(100.0, f64::min),
        falsely_denied: mean(&|one| one.figures.falsely_denied),
        delay: mean(&|one| one.figures.delay),
        over_permits: outcomes.iter().map(|one| one.figures.over_permits).sum(),
    };
    let (frames, bytes) = (mean(&|one| one.frames), mean(&|one| one.bytes));
    let (frames_all, bytes_all) = (mean(&|one| one.frames_all), mean(&|one| one.bytes_all));
    let first = outcomes.into_iter().next()?;
    Some(Outcome { figures, frames, bytes, frames_all, bytes_all, ..first })
}

fn plan(row: &Row, name: &str, settings: &Settings, seed: u64) -> anyhow::Result<Plan> {
    let pattern = Pattern::parse(name, row.regions, row.rule.window).context("a pattern of the table")?;
    let mut dice = Dice::new(seed, 3);
    let weather = Weather::spread(row.regions, Span::from_millis(row.rtt), &mut dice);
    let mut plan = Plan::ordinary(row.regions, row.rule.clone(), pattern, weather);
    let (windows, step) = match row.rule.window.0 {
        0..10_000_000 => (60.0, 1),
        10_000_000..1_000_000_000 => (8.0, 2),
        _ => (6.0, 50),
    };
    plan.step = Span::from_millis(step);
    plan.length = Span(row.rule.window.0 * whole(windows * settings.long).max(4));
    plan.seed = seed;
    for region in &mut plan.regions {
        region.ahead =
            i64::try_from(dice.between(0, 2 * SKEW)).unwrap_or(0) - i64::try_from(SKEW).unwrap_or(0);
    }
    Ok(plan)
}

fn sum(row: &Row, outcomes: &[Outcome]) -> Measured {
    let mut sum = Measured { used_worst: 100.0, ..Measured::default() };
    let count = len(outcomes.len());
    for (name, outcome) in names(row).iter().zip(outcomes) {
        let figures = &outcome.figures;
        sum.over_max = sum.over_max.max(figures.over_max);
        if !matches!(*name, "onoff3" | "sync10") {
            sum.over_steady = sum.over_steady.max(figures.over_max);
        }
        sum.over_mean += figures.over_mean / count;
        sum.used += figures.used / count;
        if figures.used < sum.used_worst {
            (sum.used_worst, sum.worst) = (figures.used, (*name).to_owned());
        }
        sum.frames += outcome.frames_all / count;
        sum.bytes += outcome.bytes_all / count;
        sum.delay += figures.delay / count;
        sum.falsely_denied += figures.falsely_denied / count;
    }
    if row.rule.algorithm == Algorithm::TokenBucket {
        // On the page this column is the worst of all patterns.
        sum.over_mean = outcomes.iter().map(|one| one.figures.over_mean).fold(0.0, f64::max);
    }
    sum
}

/// A figure beside the one given.
fn beside(measured: f64, digits: usize, given: Option<&String>) -> String {
    let given = given.map_or_else(|| "-".to_owned(), Clone::clone);
    format!("{measured:.digits$} ({given})")
}

fn print(rows: &[(Row, Measured, Vec<Outcome>)], out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "| R | RTT | way | over max % | over mean % | use mean % | use worst % | false denials % | msg/s | kB/s | extra ms |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for (row, sum, _) in rows {
        let given = |place: usize| row.given.get(place);
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {}, {} | {:.3} | {} | {} | {} |",
            row.regions,
            row.rtt,
            row.way.title(),
            beside(sum.over_max, 1, given(0)),
            beside(sum.over_mean, 3, given(1)),
            beside(sum.used, 2, given(2)),
            sum.worst,
            beside(sum.used_worst, 1, given(3)),
            sum.falsely_denied,
            beside(sum.frames, 1, given(5)),
            beside(sum.bytes / 1e3, 1, given(6)),
            beside(sum.delay, 1, given(7)),
        )?;
    }
    writeln!(out)?;
    Ok(())
}

fn print_buckets(rows: &[(Row, Measured, Vec<Outcome>)], out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "| R | bucket | RTT | way | burst debt max % of B | without onoff, sync | long-run over % | use mean % | use worst % | false denials % |\n|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for (row, sum, _) in rows {
        let given = |place: usize| row.given.get(place);
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {}, {} | {:.3} |",
            row.regions,
            row.limit,
            row.rtt,
            row.way.title(),
            beside(sum.over_max, 0, given(0)),
            beside(sum.over_steady, 1, given(1)),
            beside(sum.over_mean, 2, given(3)),
            beside(sum.used, 2, given(4)),
            sum.worst,
            beside(sum.used_worst, 1, given(5)),
            sum.falsely_denied,
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// Per pattern: overshoot max / mean / use, and what was given.
fn print_patterns(rows: &[(Row, Measured, Vec<Outcome>)], out: &mut impl Write) -> anyhow::Result<()> {
    for (row, _, outcomes) in rows {
        writeln!(out, "{}, {} regions, {} ms, {}:", row.limit, row.regions, row.rtt, row.way.title())?;
        for (name, outcome) in names(row).iter().zip(outcomes) {
            let names =
                [row.limit.as_str(), &row.regions.to_string(), &row.rtt.to_string(), row.way.word(), name];
            let given = lines(PATTERNS).find(|line| line.get(..5) == Some(&names));
            let given = given.map_or_else(|| "-".to_owned(), |line| line[5..].join("/"));
            let figures = &outcome.figures;
            writeln!(
                out,
                "  {name:<8} {:.1}/{:.3}/{:.2}, false denials {:.3} %  ({given})",
                figures.over_max, figures.over_mean, figures.used, figures.falsely_denied
            )?;
        }
    }
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns that change, and one that does not. All of the table would take too long for every run of the
    /// tests.
    const PATTERNS: [&str; 6] = ["bal2", "skew2", "mov0.9", "mov2", "onoff3", "walk1.5"];

    /// Twelve windows of 1000/s over three regions, 150 ms apart, with every pattern.
    fn measured(way: Way) -> Vec<Figures> {
        measured_of(way, windows("1000/s").unwrap())
    }

    fn measured_of(way: Way, rows: Vec<Row>) -> Vec<Figures> {
        PATTERNS.par_iter().map(|name| measured_under(name, &rows, (way, 150), 0.2)).collect()
    }

    /// The row of this way and round trip under one pattern.
    fn measured_under(name: &str, rows: &[Row], (way, rtt): (Way, u64), long: f64) -> Figures {
        let settings = Settings {
            limits: Vec::new(),
            ways: vec![way.word().to_owned()],
            regions: Some(3),
            rtt: vec![rtt],
            patterns: false,
            long,
            seed: 1,
            seeds: 1,
        };
        let rows = chosen(rows.to_vec(), &settings);
        let [row] = rows.as_slice() else { panic!("one row, not {rows:?}") };
        drive(&plan(row, name, &settings, 1).unwrap(), row.way).unwrap().figures
    }

    fn mean(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
        figures.iter().map(of).sum::<f64>() / len(figures.len())
    }

    #[test]
    fn gossip_is_nearly_exact_and_uses_the_limit() {
        let figures = measured(Way::Gossip);
        assert!(mean(&figures, |one| one.used) >= 98.5, "{figures:#?}");
        assert!(mean(&figures, |one| one.over_mean) <= 0.05, "{figures:#?}");
    }

    /// Demand that shifts all the time is where a limit is left unused: what one region does not need any
    /// more another can use only once it has been told. Escrow uses as much on the same demand, so it is no
    /// more than the distance costs.
    #[test]
    fn gossip_uses_the_limit_where_demand_moves_smoothly() {
        let rows = moving(MOVING_ROWS, Algorithm::FixedWindow);
        let of = |(name, rtt)| (name, rtt, measured_under(name, &rows, (Way::Gossip, rtt), 0.5));
        let all = ["anti2", "saw2", "lunch1.8"].map(|name| [(name, 150), (name, 250)]);
        let figures: Vec<_> = all.concat().into_par_iter().map(of).collect();
        for (name, rtt, figures) in &figures {
            let least = if *rtt == 150 { 99.0 } else { 98.0 };
            assert!(figures.used >= least, "{name} at {rtt} ms: {figures:#?}");
            assert!(figures.over_mean <= 0.05, "{name} at {rtt} ms: {figures:#?}");
        }
    }

    #[test]
    fn gossip_keeps_a_sliding_log_to_its_limit_in_every_interval() {
        let figures = measured_of(Way::Gossip, moving(LOG_ROWS, Algorithm::SlidingLog));
        assert!(mean(&figures, |one| one.over_mean) <= 0.02, "{figures:#?}");
        assert!(figures.iter().all(|one| one.over_max <= 5.0), "{figures:#?}");
        assert!(mean(&figures, |one| one.used) >= 93.0, "{figures:#?}");
    }

    #[test]
    fn escrow_is_exact_and_uses_the_limit() {
        let figures = measured(Way::Escrow);
        assert!(mean(&figures, |one| one.used) >= 98.5, "{figures:#?}");
        assert!(figures.iter().all(|one| one.over_permits == 0), "{figures:#?}");
    }

    #[test]
    fn escrow_uses_what_slides_wherever_it_is_asked_for() {
        for (rows, algorithm) in [(LOG_ROWS, Algorithm::SlidingLog), (SLIDING_ROWS, Algorithm::SlidingWindow)]
        {
            let figures = measured_of(Way::Escrow, moving(rows, algorithm));
            assert!(mean(&figures, |one| one.used) >= 96.0, "{algorithm:?}: {figures:#?}");
            let over = figures.iter().map(|one| one.over_max).fold(0.0, f64::max);
            assert!(over == 0.0, "{algorithm:?}: {figures:#?}");
        }
    }
}
