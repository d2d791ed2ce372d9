//! The kinds of worlds that a seed may draw, and how each is played.

use anyhow::{Context, bail};
use tidegate::core::regions::GossipSafety;
use tidegate::core::regions::escrow::EscrowSafety;

use super::bounds::{self, BoundsCase};
use super::case::{Case, Focus};
use super::command::commit;
use super::cuts::{self, CutsCase};
use super::joins::{self, JoinsCase};
use super::levels::{self, LevelsCase};
use super::people::{self, PeopleCase};
use super::places::{self, PlacesCase};
use super::play::{Enforced, Summary, play};
use super::reports::{self, ReportsCase};
use super::reservations::{self, ReservationsCase};
use super::restarts::{self, RestartsCase};
use super::starts::{self, Kept, StartsCase};
use super::tables::{self, TablesCase};

/// The cases that a seed draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ordinary,
    Places,
    Cuts,
    Bounds,
    Restarts,
    Tables,
    Joins,
    Reports,
    Reservations,
    Levels,
    People,
    Starts,
    Slides,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Ordinary,
        Self::Places,
        Self::Cuts,
        Self::Bounds,
        Self::Restarts,
        Self::Tables,
        Self::Joins,
        Self::Reports,
        Self::Reservations,
        Self::Levels,
        Self::People,
        Self::Starts,
        Self::Slides,
    ];

    /// Its word among the kept seeds, and behind `--` as a flag.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ordinary => "",
            Self::Places => "places",
            Self::Cuts => "cuts",
            Self::Bounds => "bounds",
            Self::Restarts => "restarts",
            Self::Tables => "tables",
            Self::Joins => "joins",
            Self::Reports => "reports",
            Self::Reservations => "reservations",
            Self::Levels => "levels",
            Self::People => "people",
            Self::Starts => "starts",
            Self::Slides => "slides",
        }
    }

    pub(super) fn describe(self, seed: u64) -> String {
        match self {
            Self::Ordinary => Case::draw(seed, Focus::All).describe(),
            Self::Places => PlacesCase::draw(seed).describe(),
            Self::Cuts => CutsCase::draw(seed).describe(),
            Self::Bounds => BoundsCase::draw(seed).describe(),
            Self::Restarts => RestartsCase::draw(seed).describe(),
            Self::Tables => TablesCase::draw(seed).describe(),
            Self::Joins => JoinsCase::draw(seed).describe(),
            Self::Reports => ReportsCase::draw(seed).describe(),
            Self::Reservations => ReservationsCase::draw(seed).describe(),
            Self::Levels => LevelsCase::draw(seed).describe(),
            Self::People => PeopleCase::draw(seed).describe(),
            Self::Starts => StartsCase::draw(seed).describe(),
            Self::Slides => PlacesCase::sliding(seed).describe(),
        }
    }

    /// Plays a seed with all rules in force.
    pub(super) fn play(self, seed: u64) -> anyhow::Result<Summary> {
        let played = match self {
            Self::Ordinary => return play_case(&Case::draw(seed, Focus::All)),
            Self::Places => {
                places::play(&PlacesCase::draw(seed), EscrowSafety::ALL, None).map(|(sum, _)| sum)
            }
            Self::Slides => {
                places::play(&PlacesCase::sliding(seed), EscrowSafety::ALL, None).map(|(sum, _)| sum)
            }
            Self::Cuts => cuts::play(&CutsCase::draw(seed), GossipSafety::ALL),
            Self::Bounds => bounds::play(&BoundsCase::draw(seed), GossipSafety::ALL),
            Self::Restarts => restarts::play(&RestartsCase::draw(seed), GossipSafety::ALL),
            Self::Tables => tables::play(&TablesCase::draw(seed), GossipSafety::ALL, EscrowSafety::ALL),
            Self::Joins => joins::play(&JoinsCase::draw(seed), true),
            Self::Reports => reports::play(&ReportsCase::draw(seed), true),
            Self::Reservations => reservations::play(&ReservationsCase::draw(seed), true),
            Self::Levels => levels::play(&LevelsCase::draw(seed), Enforced::ALL),
            Self::People => people::play(&PeopleCase::draw(seed)),
            Self::Starts => starts::play(&StartsCase::draw(seed), Kept::ALL),
        };
        played.map_err(|why| self.failed(seed, &self.describe(seed), &why))
    }

    /// The world of this seed did what it must not do.
    pub(super) fn failed(self, seed: u64, world: &str, why: &str) -> anyhow::Error {
        let flag = if self == Self::Ordinary { String::new() } else { format!(" --{}", self.word()) };
        anyhow::anyhow!(
            "seed {seed} at commit {}: {why}\n  {world}\n  again: sim vopr{flag} --seeds 1 --seed {seed}",
            commit()
        )
    }

    /// Plays the world of a line of the kept seeds in `file`.
    pub(super) fn play_kept(file: &str, line: &str) -> anyhow::Result<Summary> {
        let (word, seed) = line.split_once(' ').unwrap_or(("", line));
        let seed = seed.parse::<u64>().with_context(|| format!("{file}: {line:?} is no seed"))?;
        match (word, Self::ALL.into_iter().find(|kind| kind.word() == word)) {
            (_, Some(kind)) => kind.play(seed),
            ("fourth", None) => play_case(&Case::fourth(seed, Focus::All)),
            ("third", None) => play_case(&Case::third(seed, Focus::All)),
            ("second", None) => play_case(&Case::second(seed, Focus::All)),
            ("first", None) => play_case(&Case::first(seed, Focus::All)),
            (other, None) => bail!("{file}: {other:?} is no kind of seed"),
        }
    }
}

fn play_case(case: &Case) -> anyhow::Result<Summary> {
    let played = play(case, Enforced::ALL, None).map(|(summary, _)| summary);
    played.map_err(|why| Kind::Ordinary.failed(case.seed, &case.describe(), &why))
}
