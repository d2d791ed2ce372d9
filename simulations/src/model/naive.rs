//! The baseline that many build first: every region decides on its own count plus the last known counts of
//! the others, which all tell each other now and then.

use std::collections::BTreeMap;

use tidegate::core::algorithm::{Limit, State};
use tidegate::core::time::{Span, Timestamp};

use super::{Answer, Ask, Late, Model, START};
use crate::number::place;
use crate::plan::{FaultKind, Plan};
use crate::virtual_world::Network;
use crate::virtual_world::network::Traffic;

/// The bytes of one count in a message.
const COUNT_BYTES: usize = 20;

/// Regions that add up what they know.
#[derive(Debug)]
pub(crate) struct Naive {
    now: Timestamp,
    limit: Limit,
    plan: Plan,
    interval: Span,
    regions: Vec<Region>,
    network: Network<Report>,
}

/// User, window, count: those of the sender.
type Report = Vec<(u64, u64, u64)>;

#[derive(Debug)]
struct Region {
    /// Window of each user, and the own count in it. Without windows: a bucket that the others' counts are
    /// charged to as they are heard of.
    own: BTreeMap<u64, (u64, u64)>,
    levels: BTreeMap<u64, State>,
    /// By region and user: what it last said.
    others: BTreeMap<(usize, u64), (u64, u64)>,
    next_report: Timestamp,
    heard: BTreeMap<usize, Timestamp>,
}

impl Naive {
    pub(crate) fn new(plan: &Plan, interval: Span) -> Self {
        let count = plan.regions.len();
        let region = |at: usize| Region {
            own: BTreeMap::new(),
            levels: BTreeMap::new(),
            others: BTreeMap::new(),
            // Regions do not report in step.
            next_report: START + Span(interval.0 * place(at) / place(count.max(1))),
            heard: BTreeMap::new(),
        };
        Self {
            now: START,
            limit: super::shell::limit(&plan.rule),
            interval,
            regions: (0..count).map(region).collect(),
            network: Network::new(plan.weather.clone(), plan.seed).with_each_region(),
            plan: plan.clone(),
        }
    }

    fn windowed(&self) -> bool {
        super::shell::windowed(self.plan.rule.algorithm)
    }

    fn report(&mut self, from: usize) {
        let windowed = self.windowed();
        let Some(region) = self.regions.get_mut(from) else { return };
        region.next_report = region.next_report + self.interval;
        let report: Report =
            region.own.iter().map(|(&user, &(window, count))| (user, window, count)).collect();
        if !windowed {
            // Without windows an increment is told, and told once.
            region.own.clear();
        }
        for to in (0..self.regions.len()).filter(|&to| to != from) {
            self.network.send(self.now, from, to, report.len() * COUNT_BYTES, &report);
        }
    }

    fn hear(&mut self, from: usize, to: usize, report: Report) {
        let (now, windowed, algorithm) = (self.now, self.windowed(), self.plan.rule.algorithm);
        let Some(region) = self.regions.get_mut(to) else { return };
        region.heard.insert(from, now);
        for (user, window, count) in report {
            if windowed {
                let known = region.others.entry((from, user)).or_default();
                *known = (*known).max((window, count));
            } else {
                let level = region.levels.entry(user).or_insert_with(|| State::new(algorithm));
                level.debit(&self.limit, now, count);
            }
        }
    }
}

impl Model for Naive {
    fn ask(&mut self, ask: Ask) -> Answer {
        let window = self.now.window_index(self.limit.window);
        let (windowed, algorithm, count) = (self.windowed(), self.plan.rule.algorithm, self.regions.len());
        let Some(region) = self.regions.get_mut(ask.region) else { return Answer::Refused };
        let own = region.own.entry(ask.user).or_default();
        let admitted = if windowed {
            if own.0 != window {
                *own = (window, 0);
            }
            let others: u64 = (0..count)
                .filter_map(|other| region.others.get(&(other, ask.user)))
                .filter(|known| known.0 == window)
                .map(|known| known.1)
                .sum();
            own.1 + others + ask.cost <= u64::from(self.limit.permits)
        } else {
            let level = region.levels.entry(ask.user).or_insert_with(|| State::new(algorithm));
            let admitted = level.check(&self.limit, None, self.now, ask.cost).admitted;
            if admitted {
                level.take(&self.limit, self.now, ask.cost);
            }
            admitted
        };
        own.1 += if admitted { ask.cost } else { 0 };
        if admitted { Answer::Admitted { window } } else { Answer::Refused }
    }

    fn step(&mut self, step: Span) {
        let end = self.now + step;
        while let Some(flight) = self.network.landed(end) {
            self.now = flight.at.max(self.now);
            self.hear(flight.from, flight.to, flight.message);
        }
        self.now = end;
        for from in 0..self.regions.len() {
            if self.regions.get(from).is_some_and(|region| region.next_report <= end) {
                self.report(from);
            }
        }
    }

    fn late(&mut self) -> Vec<Late> {
        Vec::new()
    }

    fn fault(&mut self, fault: &FaultKind, broken: bool) {
        match fault {
            FaultKind::Cut { regions, inward, outward } => {
                self.network.cut(regions, *inward, *outward, broken);
            }
            FaultKind::StoreLost { region } | FaultKind::Crash { region, .. } if broken => {
                if let Some(region) = self.regions.get_mut(*region) {
                    region.own.clear();
                    region.levels.clear();
                    region.others.clear();
                }
            }
            FaultKind::Limit(permits) => {
                self.limit.permits = if broken { *permits } else { self.plan.rule.limit };
            }
            _ => {}
        }
    }

    fn traffic(&self) -> Traffic {
        self.network.traffic
    }

    fn lag(&self) -> Span {
        let ages = self.regions.iter().flat_map(|region| region.heard.values());
        ages.map(|&heard| self.now.since(heard)).max().unwrap_or_default()
    }

    fn late_reports(&self) -> u64 {
        0
    }
}
