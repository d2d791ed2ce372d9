//! What worldwide limits cost: one division of a limit among regions, and telling the protocol of a decision.
//!
//! `cargo bench --bench worldwide` prints nanoseconds of a quiet pass for 3, 5 and 50 regions: a division
//! where all wishes fit into the limit and one where they do not; and what a daemon spends on a hot bucket
//! each time it is told of decisions on it, while all regions ask steadily, and while every other region has
//! just told something new.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and prints what it found"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::regions::fair_share::{DivisionInput, RegionInput, ReportFigures, budgets};
use tidegate::core::regions::{NodeName, Replica, ReplicaConfig, StoreSeen, Touched, WorldKey, WorldRule};
use tidegate::core::rule::{Global, Mode};
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::{
    Amount, Counter, CrowdedRules, DecidedBy, Frame, Report, RuleName, Scope, Subject, rounded,
};

const REGIONS: [usize; 3] = [3, 5, 50];
const LONG_ENOUGH: Duration = Duration::from_millis(500);
const START: Timestamp = Timestamp(1_700_000_000_000_000);
const SECOND: Span = Span::from_secs(1);
const LIMIT: u32 = 1_000;

fn main() {
    println!(
        "{:>8} {:>14} {:>14} {:>14} {:>14}",
        "regions", "all fits", "too much", "told, steady", "told, moving"
    );
    for regions in REGIONS {
        let fits = divided(regions, u64::from(LIMIT) / 2);
        let too_much = divided(regions, u64::from(LIMIT) * 3);
        let steady = told(regions, false);
        let moving = told(regions, true);
        println!("{regions:>8} {fits:>11.0} ns {too_much:>11.0} ns {steady:>11.0} ns {moving:>11.0} ns");
    }
}

/// The quietest of many short passes, in nanoseconds for one of what a pass does `of` times.
fn quietest(of: u32, mut pass: impl FnMut()) -> f64 {
    let (begun, mut best) = (Instant::now(), Duration::MAX);
    while begun.elapsed() < LONG_ENOUGH {
        let at = Instant::now();
        pass();
        best = best.min(at.elapsed());
    }
    best.as_secs_f64() * 1e9 / f64::from(of)
}

/// One division among regions that ask for so much a second in all.
fn divided(regions: usize, demand: u64) -> f64 {
    let all = regions as u64;
    let inputs: Vec<RegionInput> = (0..all)
        .map(|k| {
            let part = demand * 1_000_000 / all;
            let stamp = START + Span::from_millis(100 + k % 50);
            let account = ReportFigures { stamp, admitted: 2 * k % 20, demand: part + part * (k % 3) / 3 };
            RegionInput {
                weight: 1 + k % 4,
                reserve: 1 + k % 4,
                told: Some(account),
                before: 300,
                exact: None,
                lingering: 0,
                silent: false,
            }
        })
        .collect();
    let (end, cut) = (START + SECOND, START + Span::from_millis(250));
    let mut rounding_offset = 0;
    quietest(100, || {
        for _ in 0..100 {
            rounding_offset = (rounding_offset + 7_919) % 1_000_000;
            let division = DivisionInput {
                limit: u64::from(LIMIT),
                start: START,
                end,
                cut,
                caution: 1_000,
                rounding_offset,
                ahead: Some(SECOND),
                slice_min: 1,
                scarce: u64::from(LIMIT) / 10,
                whole: false,
                fading: 0,
            };
            black_box(budgets(division, black_box(&inputs)));
        }
    })
}

/// A daemon is told of decisions on a bucket, a hundred times a second.
fn told(regions: usize, moving: bool) -> f64 {
    let mut daemon = Daemon::new(regions);
    daemon.others_tell(true);
    for _ in 0..50 {
        daemon.decide();
    }
    quietest(100, || {
        for turn in 0..100 {
            if moving && turn % 10 == 0 {
                daemon.others_tell(false);
            }
            daemon.decide();
        }
    })
}

/// One daemon, and the words of all others put into its ear.
struct Daemon {
    replica: Replica,
    now: Timestamp,
    regions: usize,
    seq: u64,
    key: WorldKey,
}

impl Daemon {
    fn new(regions: usize) -> Self {
        let name = RuleName { domain: "default".to_owned(), name: "search".to_owned() };
        let names: Vec<String> = (0..regions).map(|region| format!("region-{region:02}")).collect();
        let own = NodeName { region: "region-00".to_owned(), node: "a".to_owned() };
        let config = ReplicaConfig { regions: names, ..ReplicaConfig::new(own, START.0 / 1_000) };
        let mut replica = Replica::new(config);
        let rule = WorldRule {
            name: name.clone(),
            algorithm: Algorithm::FixedWindow,
            limit: Limit { calendar: None, permits: LIMIT, window: SECOND, burst: LIMIT, queue: 0 },
            global: Global::new(Mode::Gossip),
        };
        replica.handle_rules(START, 1, vec![rule]);
        let key = WorldKey { rule: name, identity: b"u_42".to_vec() };
        Self { replica, now: START, regions, seq: 0, key }
    }

    /// Every other region tells what it admitted and what it is asked for.
    fn others_tell(&mut self, named: bool) {
        self.seq += 1;
        let per_region = u64::from(LIMIT) * 2 / self.regions as u64;
        let moved = if self.seq.is_multiple_of(2) { 2 } else { 1 };
        for region in 1..self.regions {
            let from = NodeName { region: format!("region-{region:02}"), node: "a".to_owned() };
            let subject = || Subject {
                rule: self.key.rule.clone(),
                identity: self.key.identity.clone(),
                scope: Scope::Region(from.region.clone()),
                counters: vec![Counter { node: "a".into(), since: START }],
                decided_by: DecidedBy::Unknown,
            };
            let report = Report {
                key_id: 1,
                subject: named.then(subject),
                window: self.now.window_index(SECOND),
                stamp: self.now,
                amounts: std::iter::once(Amount { admitted: self.seq % 7, returned: 0 }).collect(),
                demand: rounded(per_region * moved * 1_000_000),
            };
            let frame = Frame {
                incarnation: 1,
                seq: self.seq,
                sent: self.now,
                seen: None,
                slowest: Span::from_millis(40),
                crowded: CrowdedRules::NONE,
                reports: vec![report],
            };
            self.replica.handle_frame(self.now, &from, frame).unwrap();
        }
    }

    /// Ten milliseconds later: some requests more.
    fn decide(&mut self) {
        self.now = self.now + Span::from_millis(10);
        let permits = u64::from(LIMIT) * 2 / self.regions as u64 / 100;
        let touched = Touched {
            key: self.key.clone(),
            window: self.now.window_index(SECOND),
            offered: permits + 1,
            admitted: permits / 2,
            returned: 0,
            refused: 0,
            largest: 1,
            own: None,
            store: StoreSeen::default(),
        };
        self.replica.handle_touched(self.now, &touched);
        self.replica.handle_timeout(self.now);
        while let Some(effect) = self.replica.poll_effect() {
            black_box(effect);
        }
    }
}
