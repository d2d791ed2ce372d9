//! The commands: `vopr`, `check`, `meta`.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use rayon::prelude::*;
use tidegate::core::regions::escrow::EscrowSafety;

use super::case::{Case, Focus};
use super::kind::Kind;
use super::places::{self, PlacesCase};
use super::play::{Enforced, Summary, play};

/// Seeds that once failed.
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/seeds.txt");

/// Seeds that are named when many fail.
const FAILURES_TOLD: usize = 20;

/// How many random worlds.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each kind of worlds")]
pub(crate) struct Vopr {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them, or with `--seeds 1` the one to repeat.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Worlds of holders alone, whose places are lent between regions; their seeds draw other worlds, as
    /// those of all further kinds.
    #[arg(long, group = "kind")]
    places: bool,
    /// Worlds with one cut, of buckets under `gossip` and each `on_partition`.
    #[arg(long, group = "kind")]
    cuts: bool,
    /// Worlds that are quiet for long before anything happens, for what answers say of the others' use under
    /// `gossip`.
    #[arg(long, group = "kind")]
    bounds: bool,
    /// Worlds under `gossip` whose daemons count in memory and begin again within a window.
    #[arg(long, group = "kind")]
    restarts: bool,
    /// Worlds with fewer places in their tables than buckets in use.
    #[arg(long, group = "kind")]
    tables: bool,
    /// Worlds in which regions are added, removed and given other weights.
    #[arg(long, group = "kind")]
    joins: bool,
    /// Worlds in which costs are reported after the response.
    #[arg(long, group = "kind")]
    reports: bool,
    /// Worlds in which permits are reserved before a cost is known, and committed, lapse, or are lost.
    #[arg(long, group = "kind")]
    reservations: bool,
    /// Worlds of buckets without windows that hold much and refill slowly, or fast.
    #[arg(long, group = "kind")]
    levels: bool,
    /// Worlds of limits as people write them: windows of up to a month, users who travel, ask now and then,
    /// or spend all at once.
    #[arg(long, group = "kind")]
    people: bool,
    /// Worlds under `escrow` that are started for the first time, and lose daemons and disks.
    #[arg(long, group = "kind")]
    starts: bool,
    /// Worlds of sliding windows and logs under `escrow`, whose capacity is lent between regions.
    #[arg(long, group = "kind")]
    slides: bool,
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

/// The commit that this is, as far as git knows.
pub(super) fn commit() -> String {
    let asked = std::process::Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"])
        .output();
    let said = asked.ok().filter(|said| said.status.success());
    said.and_then(|said| String::from_utf8(said.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}

impl Vopr {
    fn kind(&self) -> Kind {
        let flags = [
            (self.places, Kind::Places),
            (self.cuts, Kind::Cuts),
            (self.bounds, Kind::Bounds),
            (self.restarts, Kind::Restarts),
            (self.tables, Kind::Tables),
            (self.joins, Kind::Joins),
            (self.reports, Kind::Reports),
            (self.reservations, Kind::Reservations),
            (self.levels, Kind::Levels),
            (self.people, Kind::People),
            (self.starts, Kind::Starts),
            (self.slides, Kind::Slides),
        ];
        flags.into_iter().find(|(is_set, _)| *is_set).map_or(Kind::Ordinary, |(_, kind)| kind)
    }

    /// Plays every seed.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let (kind, seeds) = (self.kind(), self.seed..self.seed.saturating_add(self.seeds));
        if self.verbose {
            for seed in seeds.clone() {
                writeln!(out, "{seed}: {}", kind.describe(seed))?;
            }
        }
        let sum = play_all(seeds.into_par_iter(), |seed| kind.play(seed))?;
        writeln!(
            out,
            "{} seeds: {} daemons, {} faults, {} frames, {} permits; no violation",
            self.seeds, sum.daemons, sum.faults, sum.frames, sum.admitted
        )?;
        Ok(())
    }
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
        play_all(seeds.into_par_iter(), |line| Kind::play_kept(SEEDS, line))?;
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
                        let played = places::play(&case, EscrowSafety::ALL, Some(Vec::new()));
                        played.map_err(|why| Kind::Places.failed(seed, &case.describe(), &why))
                    }
                    false => {
                        let case = Case::draw(seed, Focus::All);
                        let played = play(&case, Enforced::ALL, Some(Vec::new()));
                        played.map_err(|why| Kind::Ordinary.failed(seed, &case.describe(), &why))
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
