//! Each rule that keeps a promise is switched off in turn: something must go wrong, or no judge looks at what
//! it is for.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use rayon::prelude::*;
use tidegate::core::regions::GossipSafety;
use tidegate::core::regions::escrow::EscrowSafety;

use super::bounds::{self, BoundsCase};
use super::case::{Case, Focus};
use super::cuts::{self, CutsCase};
use super::joins::{self, JoinsCase};
use super::levels::{self, LevelsCase};
use super::places::{self, PlacesCase};
use super::play::{Enforced, play};
use super::reports::{self, ReportsCase};
use super::reservations::{self, ReservationsCase};
use super::restarts::{self, RestartsCase};
use super::starts::{self, Kept, StartsCase};
use super::tables::{self, TablesCase};
use crate::model::duties::Duties;
use crate::virtual_world::switches;

/// By rule, a seed whose world noticed that it was off.
const NOTICED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/mutations.txt");

/// How long to look for a violation.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mutate {
    /// Most seeds for each rule that is switched off.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// Only the rules that matter to places.
    #[arg(long)]
    places: bool,
    /// Also where a kept seed is known to notice.
    #[arg(long)]
    afresh: bool,
}

/// A rule switched off, and what goes wrong with it in the world of a seed, if anything.
struct Mutation {
    name: String,
    places: bool,
    wrong: Box<dyn Fn(u64) -> Option<String> + Send + Sync>,
}

impl Mutation {
    fn new(name: String, wrong: impl Fn(u64) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { name, places: false, wrong: Box::new(wrong) }
    }
}

/// All that can be switched off.
fn mutations() -> Vec<Mutation> {
    let rights = |focus| {
        move |(rule, safety)| {
            Mutation::new(format!("without {rule}"), ordinary(focus, Enforced { safety, ..Enforced::ALL }))
        }
    };
    let windows = switches::OF_WINDOWS.map(rights(Focus::Rights));
    let escrow = windows.into_iter().chain(switches::OF_LEVELS.map(rights(Focus::Levels)));
    let sliding = switches::OF_SLIDING.map(|(rule, safety)| {
        let enforced = Enforced { safety, ..Enforced::ALL };
        Mutation::new(format!("sliding without {rule}"), ordinary(Focus::Sliding, enforced))
    });
    let waits = switches::OF_WAITS.map(|(rule, safety)| {
        let enforced = Enforced { safety, ..Enforced::ALL };
        Mutation::new(format!("waits without {rule}"), ordinary(Focus::Waits, enforced))
    });
    let denial = switches::OF_DENIAL.map(|(rule, care)| {
        let enforced = Enforced { care, ..Enforced::ALL };
        Mutation::new(format!("deny without {rule}"), ordinary(Focus::Denial, enforced))
    });
    let places = switches::OF_PLACES.map(|(rule, safety)| {
        let wrong = move |seed| places::play(&PlacesCase::draw(seed), safety, None).err();
        Mutation { places: true, ..Mutation::new(format!("places without {rule}"), wrong) }
    });
    let in_sight = ("lends_only_in_sight", EscrowSafety { lends_only_in_sight: false, ..EscrowSafety::ALL });
    let capacity = switches::OF_PLACES.into_iter().chain([in_sight]).map(|(rule, safety)| {
        let wrong = move |seed| places::play(&PlacesCase::sliding(seed), safety, None).err();
        Mutation { places: true, ..Mutation::new(format!("capacity without {rule}"), wrong) }
    });
    let gossip = switches::OF_CUTS.map(|(rule, care)| {
        let wrong = move |seed| match care.hears_former {
            true => cuts::play(&CutsCase::draw(seed), care).err(),
            false => restarts::play(&RestartsCase::draw(seed), care).err(),
        };
        Mutation::new(format!("gossip without {rule}"), wrong)
    });
    let bounds = switches::OF_BOUNDS.map(|(rule, care)| {
        Mutation::new(format!("bounds without {rule}"), move |seed| {
            let case = BoundsCase::draw(seed);
            // Few worlds matter to it, and the others need not be played.
            let matters = rule != "leaves_allowances" || case.begins_again_beside_redis();
            if matters { bounds::play(&case, care).err() } else { None }
        })
    });
    let full = |care, safety| move |seed| tables::play(&TablesCase::draw(seed), care, safety).err();
    let shares = switches::OF_FULL_TABLES
        .map(|(rule, care)| Mutation::new(format!("tables without {rule}"), full(care, EscrowSafety::ALL)));
    let kept = switches::OF_FULL_STORES.map(|(rule, safety)| {
        Mutation::new(format!("tables without {rule}"), full(GossipSafety::ALL, safety))
    });
    let agrees = Mutation::new("joins without agrees".to_owned(), |seed| {
        joins::play(&JoinsCase::draw(seed), false).err()
    });
    let all = escrow.chain(places).chain(capacity).chain(gossip).chain(bounds).chain(shares).chain(kept);
    let tells = Mutation::new("reports without tells".to_owned(), |seed| {
        reports::play(&ReportsCase::draw(seed), false).err()
    });
    let releases = Mutation::new("reservations without releases".to_owned(), |seed| {
        reservations::play(&ReservationsCase::draw(seed), false).err()
    });
    let safe = |safety| Enforced { safety, ..Enforced::ALL };
    let carries_debt = false;
    let large = [
        (
            "forwarded_stays_charged",
            safe(EscrowSafety { forwarded_stays_charged: false, ..EscrowSafety::ALL }),
        ),
        ("takes_are_cumulative", safe(EscrowSafety { takes_are_cumulative: false, ..EscrowSafety::ALL })),
        ("carries_debt", Enforced { duties: Duties { carries_debt, ..Duties::ALL }, ..Enforced::ALL }),
    ]
    .map(|(rule, rules)| {
        let wrong = move |seed| levels::play(&LevelsCase::draw(seed), rules).err();
        Mutation::new(format!("levels without {rule}"), wrong)
    });
    let duty = |name: &str, focus, duties| {
        Mutation::new(name.to_owned(), ordinary(focus, Enforced { duties, ..Enforced::ALL }))
    };
    let duties = [
        duty("gossip without common_instants", Focus::All, Duties { common_instants: false, ..Duties::ALL }),
        duty("deny without keeps_to_budget", Focus::Denial, Duties { keeps_to_budget: false, ..Duties::ALL }),
        duty("split without waits_for_others", Focus::All, Duties { waits_for_others: false, ..Duties::ALL }),
        duty(
            "split without waits_for_what_was_spent",
            Focus::All,
            Duties { waits_for_what_was_spent: false, ..Duties::ALL },
        ),
        duty("without mints_its_share", Focus::Rights, Duties { mints_its_share: false, ..Duties::ALL }),
    ];
    let start = |rule: &str, kept: Kept| {
        let wrong = move |seed| starts::play(&StartsCase::draw(seed), kept).err();
        Mutation::new(format!("starts without {rule}"), wrong)
    };
    let firsts = switches::OF_STARTS.map(|(rule, starts)| start(rule, Kept { starts, ..Kept::ALL }));
    let kept = switches::OF_KEPT_STORES.map(|(rule, safety)| start(rule, Kept { safety, ..Kept::ALL }));
    let marks = switches::OF_MARKS.map(|(rule, safety)| start(rule, Kept { safety, ..Kept::ALL }));
    let once = start("taken_once", Kept { taken_once: false, ..Kept::ALL });
    let starts = firsts.into_iter().chain(kept).chain(marks).chain([once]);
    all.chain([agrees, tells, releases])
        .chain(starts)
        .chain(duties)
        .chain(sliding)
        .chain(waits)
        .chain(denial)
        .chain(large)
        .collect()
}

fn ordinary(focus: Focus, rules: Enforced) -> impl Fn(u64) -> Option<String> + Send + Sync + 'static {
    move |seed| play(&Case::draw(seed, focus), rules, None).err()
}

/// The kept seeds, by rule.
fn noticed() -> anyhow::Result<BTreeMap<String, u64>> {
    let text =
        std::fs::read_to_string(Path::new(NOTICED)).with_context(|| format!("{NOTICED} cannot be read"))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (seed, rule) = line.split_once(' ').unwrap_or((line, ""));
            let seed = seed.parse::<u64>().with_context(|| format!("{NOTICED}: {line:?} has no seed"))?;
            Ok((rule.to_owned(), seed))
        })
        .collect()
}

impl Mutate {
    /// The first seed in which something goes wrong, and what. A few at once, in order: a core that began in
    /// the middle of all would play seeds that no one needs.
    fn first(&self, mutation: &Mutation) -> Option<(u64, String)> {
        let at_once = u64::try_from(rayon::current_num_threads()).unwrap_or(1).max(1) * 8;
        (0..self.seeds.div_ceil(at_once)).find_map(|turn| {
            let from = turn * at_once + 1;
            let seeds = from..(from + at_once).min(self.seeds + 1);
            seeds.into_par_iter().find_map_first(|seed| (mutation.wrong)(seed).map(|why| (seed, why)))
        })
    }

    /// Switches off each safety rule in turn: something must go wrong. In the world of the kept seed, or else
    /// in that of any other.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let mutations: Vec<Mutation> =
            mutations().into_iter().filter(|mutation| mutation.places || !self.places).collect();
        let kept = if self.afresh { BTreeMap::new() } else { noticed()? };
        let again = |mutation: &Mutation| {
            let seed = *kept.get(&mutation.name)?;
            (mutation.wrong)(seed).map(|why| (seed, why))
        };
        let noticed: Vec<_> = mutations.par_iter().map(again).collect();
        let mut unnoticed = Vec::new();
        for (mutation, noticed) in mutations.iter().zip(noticed) {
            match noticed.or_else(|| self.first(mutation)) {
                Some((seed, why)) => writeln!(out, "{}: seed {seed}: {why}", mutation.name)?,
                None => unnoticed.push(mutation.name.as_str()),
            }
        }
        if !unnoticed.is_empty() {
            bail!("{} seeds did not notice that these rules were off: {}", self.seeds, unnoticed.join(", "));
        }
        writeln!(out, "each of {} safety rules is needed", mutations.len())?;
        Ok(())
    }
}
