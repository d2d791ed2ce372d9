//! The commands: `vopr`, `check`, `meta`, `mutate`.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use rayon::prelude::*;
use tidegate::core::worldwide::Care;
use tidegate::core::worldwide::escrow::Safety;

use super::bounds::{self, BoundsCase};
use super::case::{Case, Focus};
use super::cuts::{self, CutsCase};
use super::places::{self, PlacesCase};
use super::play::{Summary, play};
use super::restarts::{self, RestartsCase};

/// Seeds that once failed.
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/seeds.txt");

/// Seeds that are named when many fail.
const FAILURES_TOLD: usize = 20;

/// How many random worlds.
#[derive(Debug, Clone, Args)]
pub(crate) struct Vopr {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them, or with `--seeds 1` the one to repeat.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Worlds of holders alone, whose places are lent between regions; their seeds draw other worlds.
    #[arg(long)]
    places: bool,
    /// Worlds with one cut, of buckets under `gossip` and each `on_partition`; their seeds draw other worlds.
    #[arg(long, conflicts_with = "places")]
    cuts: bool,
    /// Worlds that are quiet for long before anything happens, for what answers say of the others' use under `gossip`; their seeds
    /// draw other worlds.
    #[arg(long, conflicts_with_all = ["places", "cuts"])]
    bounds: bool,
    /// Worlds under `gossip` whose daemons count in memory and begin again within a window; their seeds draw other worlds.
    #[arg(long, conflicts_with_all = ["places", "cuts", "bounds"])]
    restarts: bool,
    /// Says what each seed drew.
    #[arg(long)]
    verbose: bool,
}

/// Seeds that once failed, and scenario files that must be readable.
#[derive(Debug, Clone, Args)]
pub(crate) struct Check {}

/// How many seeds are run twice.
#[derive(Debug, Clone, Args)]
pub(crate) struct Meta {
    /// How many seeds.
    #[arg(long, default_value_t = 50)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Worlds of holders alone.
    #[arg(long)]
    places: bool,
}

/// How long to look for a violation.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mutate {
    /// Most seeds for each rule that is switched off.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// Only the rules that matter to places.
    #[arg(long)]
    places: bool,
}

fn failure(case: &Case, why: &str) -> anyhow::Error {
    failed((case.seed, ""), &case.describe(), why)
}

fn failure_of_places(case: &PlacesCase, why: &str) -> anyhow::Error {
    failed((case.seed, " --places"), &case.describe(), why)
}

fn failed((seed, flag): (u64, &str), world: &str, why: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "seed {seed} at commit {}: {why}\n  {world}\n  again: sim vopr{flag} --seeds 1 --seed {seed}",
        commit()
    )
}

/// The commit that this is, as far as git knows.
fn commit() -> String {
    let asked = std::process::Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"])
        .output();
    let said = asked.ok().filter(|said| said.status.success());
    said.and_then(|said| String::from_utf8(said.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}

impl Vopr {
    /// Plays every seed.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let seeds = self.seed..self.seed.saturating_add(self.seeds);
        if self.verbose {
            for seed in seeds.clone() {
                let world = match (self.places, self.cuts, self.bounds) {
                    (true, ..) => PlacesCase::draw(seed).describe(),
                    (_, true, _) => CutsCase::draw(seed).describe(),
                    (.., true) => BoundsCase::draw(seed).describe(),
                    _ if self.restarts => RestartsCase::draw(seed).describe(),
                    _ => Case::draw(seed, Focus::All).describe(),
                };
                writeln!(out, "{seed}: {world}")?;
            }
        }
        let seeds = seeds.into_par_iter();
        let play = match (self.places, self.cuts, self.bounds) {
            (true, ..) => play_places,
            (_, true, _) => play_cuts,
            (.., true) => play_bounds,
            _ if self.restarts => play_restarts,
            _ => play_one,
        };
        let sum = play_all(seeds, play)?;
        writeln!(
            out,
            "{} seeds: {} daemons, {} faults, {} frames, {} permits; no violation",
            self.seeds, sum.daemons, sum.faults, sum.frames, sum.admitted
        )?;
        Ok(())
    }
}

fn play_one(seed: u64) -> anyhow::Result<Summary> {
    play_case(&Case::draw(seed, Focus::All))
}

fn play_case(case: &Case) -> anyhow::Result<Summary> {
    play(case, Safety::ALL, None).map(|(summary, _)| summary).map_err(|why| failure(case, &why))
}

/// Plays the world of a line of the kept seeds.
fn play_kept(line: &str) -> anyhow::Result<Summary> {
    let (kind, seed) = line.split_once(' ').unwrap_or(("", line));
    let seed = seed.parse::<u64>().with_context(|| format!("{SEEDS}: {line:?} is no seed"))?;
    match kind {
        "" => play_case(&Case::draw(seed, Focus::All)),
        "third" => play_case(&Case::third(seed, Focus::All)),
        "second" => play_case(&Case::second(seed, Focus::All)),
        "first" => play_case(&Case::first(seed, Focus::All)),
        "places" => play_places(seed),
        "bounds" => play_bounds(seed),
        "restarts" => play_restarts(seed),
        other => bail!("{SEEDS}: {other:?} is no kind of seed"),
    }
}

fn play_places(seed: u64) -> anyhow::Result<Summary> {
    let case = PlacesCase::draw(seed);
    let played = places::play(&case, Safety::ALL, None).map(|(summary, _)| summary);
    played.map_err(|why| failure_of_places(&case, &why))
}

fn play_cuts(seed: u64) -> anyhow::Result<Summary> {
    let case = CutsCase::draw(seed);
    cuts::play(&case, Care::ALL).map_err(|why| failed((seed, " --cuts"), &case.describe(), &why))
}

fn play_bounds(seed: u64) -> anyhow::Result<Summary> {
    let case = BoundsCase::draw(seed);
    bounds::play(&case, Care::ALL).map_err(|why| failed((seed, " --bounds"), &case.describe(), &why))
}

fn play_restarts(seed: u64) -> anyhow::Result<Summary> {
    let case = RestartsCase::draw(seed);
    restarts::play(&case, Care::ALL).map_err(|why| failed((seed, " --restarts"), &case.describe(), &why))
}

/// Plays every seed, also after one has failed: in a long run the others are worth knowing.
fn play_all<S: Send>(
    seeds: impl ParallelIterator<Item = S>,
    play: impl Fn(S) -> anyhow::Result<Summary> + Sync,
) -> anyhow::Result<Summary> {
    let played = |seed: S| match play(seed) {
        Ok(summary) => (summary, Vec::new()),
        Err(why) => (Summary::default(), vec![format!("{why:#}")]),
    };
    let (sum, failed) = seeds.map(played).reduce(Default::default, |(sum, mut failed), (more, why)| {
        failed.extend(why);
        (sum.and(more), failed)
    });
    match failed.len() {
        0 => Ok(sum),
        count => {
            let told = failed.iter().take(FAILURES_TOLD).map(String::as_str).collect::<Vec<_>>();
            bail!("{count} seeds failed\n{}", told.join("\n"))
        }
    }
}

impl Check {
    /// Plays the seeds that are kept, and reads every scenario.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let text =
            std::fs::read_to_string(Path::new(SEEDS)).with_context(|| format!("{SEEDS} cannot be read"))?;
        let seeds: Vec<&str> = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or("").trim())
            .filter(|line| !line.is_empty())
            .collect();
        let count = seeds.len();
        play_all(seeds.into_par_iter(), play_kept)?;
        let scenarios = crate::run::all()?;
        for file in &scenarios {
            crate::run::load(file)?;
        }
        writeln!(out, "{count} kept seeds: no violation; {} scenarios can be read", scenarios.len())?;
        Ok(())
    }
}

impl Meta {
    /// Plays every seed twice and compares all that happened, byte for byte.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let seeds = self.seed..self.seed.saturating_add(self.seeds);
        let bytes: usize = seeds
            .into_par_iter()
            .map(|seed| {
                let once = || match self.places {
                    true => {
                        let case = PlacesCase::draw(seed);
                        let played = places::play(&case, Safety::ALL, Some(Vec::new()));
                        played.map_err(|why| failure_of_places(&case, &why))
                    }
                    false => {
                        let case = Case::draw(seed, Focus::All);
                        play(&case, Safety::ALL, Some(Vec::new())).map_err(|why| failure(&case, &why))
                    }
                };
                let (one, other) = (once()?.1.unwrap_or_default(), once()?.1.unwrap_or_default());
                if one == other {
                    return Ok(one.len());
                }
                let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
                let line =
                    one.get(..same).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count() + 1;
                bail!("seed {seed} at commit {}: two runs differ from line {line} on", commit())
            })
            .try_reduce(|| 0, |a, b| Ok(a + b))?;
        writeln!(out, "{} seeds, each run twice: {bytes} bytes of history, all alike", self.seeds)?;
        Ok(())
    }
}

impl Mutate {
    /// The first seed in which something goes wrong, and what. A few at once, in order: a core that began in the middle of
    /// all would play seeds that no one needs.
    fn first(&self, wrong: impl Fn(u64) -> Option<String> + Sync) -> Option<(u64, String)> {
        let at_once = u64::try_from(rayon::current_num_threads()).unwrap_or(1).max(1) * 8;
        (0..self.seeds.div_ceil(at_once)).find_map(|turn| {
            let from = turn * at_once + 1;
            let seeds = from..(from + at_once).min(self.seeds + 1);
            seeds.into_par_iter().find_map_first(|seed| wrong(seed).map(|why| (seed, why)))
        })
    }

    /// Switches off each safety rule in turn: something must go wrong.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let mut unnoticed = Vec::new();
        for (rule, safety) in Safety::WITHOUT_ONE.into_iter().filter(|_| !self.places) {
            let focus = if safety.lacks_one_of_levels() { Focus::Levels } else { Focus::Rights };
            let found = self.first(|seed| play(&Case::draw(seed, focus), safety, None).err());
            match found {
                Some((seed, why)) => writeln!(out, "without {rule}: seed {seed}: {why}")?,
                None => unnoticed.push(rule),
            }
        }
        for (rule, safety) in Safety::WITHOUT_ONE_OF_PLACES {
            let found = self.first(|seed| places::play(&PlacesCase::draw(seed), safety, None).err());
            match found {
                Some((seed, why)) => writeln!(out, "places without {rule}: seed {seed}: {why}")?,
                None => unnoticed.push(rule),
            }
        }
        for (rule, care) in Care::WITHOUT_ONE.into_iter().filter(|_| !self.places) {
            let found = self.first(|seed| match care.hears_former {
                true => cuts::play(&CutsCase::draw(seed), care).err(),
                false => restarts::play(&RestartsCase::draw(seed), care).err(),
            });
            match found {
                Some((seed, why)) => writeln!(out, "gossip without {rule}: seed {seed}: {why}")?,
                None => unnoticed.push(rule),
            }
        }
        for (rule, care) in Care::WITHOUT_ONE_OF_BOUNDS.into_iter().filter(|_| !self.places) {
            let found = self.first(|seed| bounds::play(&BoundsCase::draw(seed), care).err());
            match found {
                Some((seed, why)) => writeln!(out, "bounds without {rule}: seed {seed}: {why}")?,
                None => unnoticed.push(rule),
            }
        }
        if !unnoticed.is_empty() {
            bail!("{} seeds did not notice that these rules were off: {}", self.seeds, unnoticed.join(", "));
        }
        let care = Care::WITHOUT_ONE.len() + Care::WITHOUT_ONE_OF_BOUNDS.len();
        let others = if self.places { 0 } else { Safety::WITHOUT_ONE.len() + care };
        let rules = others + Safety::WITHOUT_ONE_OF_PLACES.len();
        writeln!(out, "each of {rules} safety rules is needed")?;
        Ok(())
    }
}
