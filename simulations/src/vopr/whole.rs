//! Worlds of daemons with whole engines, and the books of what they admitted: shared by the kinds of worlds
//! that judge what clients see of tables that fill, regions that join, and costs that are reported.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate::core::algorithm::Algorithm;
use tidegate::core::decision::Decision;
use tidegate::core::region_list::RegionList;
use tidegate::core::regions::escrow::EscrowSafety;
use tidegate::core::regions::split::StartSafety;
use tidegate::core::request::Cost;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::{Span, Timestamp};

use super::intervals::Intervals;
use super::play::Summary;
use crate::model::Model;
use crate::model::daemons::{Daemon, World};
use crate::model::engine::Engines;
use crate::model::shell::windowed;
use crate::number::{float, place, seconds};
use crate::pattern::Pattern;
use crate::plan::{Plan, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

pub(super) const STEP: Span = Span::from_millis(5);
pub(super) const SECOND: u64 = 200;
/// After so long daemons that begin have agreed and wait for nobody.
const SETTLED: u64 = 4 * SECOND;

/// A rule that is held in one way by all regions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// `None`: each region has the limit for itself.
    pub(super) way: Option<Way>,
    pub(super) algorithm: Algorithm,
    pub(super) limit: u32,
    pub(super) burst: u32,
    pub(super) window: Span,
}

impl Held {
    /// As a file would have it, with these weights of the regions.
    pub(super) fn written(&self, shares: &[(String, u32)]) -> Value {
        let mut rule = json!({
            "name": "per-user",
            "per": ["user"],
            "limit": self.limit,
            "window": tidegate::core::written::format_span(self.window),
            "algorithm": self.algorithm,
        });
        if !windowed(self.algorithm) {
            rule["burst"] = json!(self.burst);
        }
        if let Some(way) = self.way {
            rule["global"] = json!({ "mode": way.word() });
            if !shares.is_empty() {
                rule["global"]["shares"] = shares.iter().cloned().collect();
            }
        }
        rule
    }

    /// Returns what a region has of so many permits, where so many regions weigh the same: what does not
    /// divide goes to the first names.
    pub(super) fn part(&self, permits: u32, region: usize, regions: usize) -> u64 {
        let (each, left) = (u64::from(permits) / place(regions), u64::from(permits) % place(regions));
        each + u64::from(place(region) < left)
    }

    /// A world of so many regions, with one daemon and one store in each.
    pub(super) fn plan(&self, seed: u64, regions: usize, weather: Weather) -> Plan {
        let rule = RulePlan {
            limit: self.limit,
            window: self.window,
            algorithm: self.algorithm,
            burst: self.burst,
            on_partition: OnPartition::Share,
            wait: Span::ZERO,
        };
        let interval = Span::from_millis(50);
        let ordinary = Plan::ordinary(regions, rule, Pattern::balanced(regions), weather);
        Plan { step: STEP, seed, interval, ..ordinary }
    }

    /// In words, for who reads of a failure.
    pub(super) fn describe(&self) -> String {
        let way = self.way.map_or("each region by itself", Way::title);
        let (limit, burst, window) = (self.limit, self.burst, self.window.0 / 1_000);
        match windowed(self.algorithm) {
            true => format!("{way}, {limit} per {window} ms by {:?}", self.algorithm),
            false => format!("{way}, {limit} per {window} ms and a burst of {burst} by {:?}", self.algorithm),
        }
    }
}

/// Ways that are as long as half of the longest and more, with losses up to this part.
pub(super) fn weather(dice: &mut Dice, regions: usize, loss: f64) -> Weather {
    let most = *dice.pick(&[5_000, 40_000, 120_000]).unwrap_or(&40_000);
    let way = |dice: &mut Dice| Span(dice.between(most / 2, most));
    let delay = (0..regions).map(|_| (0..regions).map(|_| way(dice)).collect()).collect();
    let loss = if dice.chance(0.5) { dice.unit() * loss } else { 0.0 };
    Weather { delay, jitter: 0.1, loss, double: dice.unit() * 0.1, reorder: 0.0 }
}

/// The names of a plan's regions.
pub(super) fn names(plan: &Plan) -> Vec<String> {
    plan.regions.iter().map(|region| region.name.clone()).collect()
}

/// Engines that all hold the same rule and list all regions.
pub(super) fn engines(plan: &Plan, rule: &Value) -> Engines {
    let daemons = plan.regions.len();
    Engines {
        store_keys: 10_000,
        rooms: Vec::new(),
        rules: vec![rule.clone(); daemons],
        lists: vec![RegionList::of(names(plan)); daemons],
        keeps_stores: false,
        safety: EscrowSafety::ALL,
        agrees: true,
        starts: StartSafety::ALL,
        tells: true,
        disks: Vec::new(),
    }
}

/// The permits that are admitted in all, of a rule that counts without windows.
#[derive(Debug, Clone, Copy)]
struct Level {
    tokens: f64,
    since: Timestamp,
}

/// A world in progress, with what its clients were given.
pub(super) struct Play {
    pub(super) world: World,
    pub(super) dice: Dice,
    held: Held,
    /// By user and window, and in it by region.
    pub(super) admitted: BTreeMap<(u64, u64), Vec<u64>>,
    /// By user, where there are no windows.
    levels: BTreeMap<u64, Level>,
    /// Under `escrow` what slides is judged by the clock of each region, and what was wrong with it first:
    /// what left one region's window may be used in another's, whose clock is behind.
    intervals: Option<(Intervals, Option<String>)>,
    pub(super) faults: u64,
    sum: u64,
}

impl Play {
    pub(super) fn new(plan: &Plan, held: Held, engines: Engines) -> Result<Self, String> {
        let way = held.way.unwrap_or(Way::Split);
        let world = World::of_engines(plan, way, engines).map_err(|error| format!("{error:#}"))?;
        // A world without its rule admits everything, and would judge nothing.
        let refuses =
            |daemon: &Daemon| daemon.node.engine().is_some_and(|engine| engine.in_force().is_empty());
        if world.daemons().iter().any(refuses) {
            return Err("a daemon refuses the rule of this world".to_owned());
        }
        let dice = Dice::new(plan.seed, 72);
        let (admitted, levels) = (BTreeMap::new(), BTreeMap::new());
        let slides = way == Way::Escrow && Intervals::judges(held.algorithm);
        let intervals = slides.then(|| (Intervals::new(true, held.algorithm, held.window), None));
        Ok(Self { world, dice, held, admitted, levels, intervals, faults: 0, sum: 0 })
    }

    /// Nobody asks until the regions have agreed and have heard of each other.
    pub(super) fn settle(&mut self) {
        (0..SETTLED).for_each(|_| self.step());
    }

    /// One request to a region's daemon; `None` where nobody answers.
    pub(super) fn request(&mut self, region: usize, user: u64, cost: Cost) -> Option<Decision> {
        let decision = self.world.call(region, user, cost)?;
        if let (true, Cost::Take(permits)) = (decision.allowed, cost) {
            let window = match windowed(self.held.algorithm) {
                true => self.world.clock(region).window_index(self.held.window),
                false => 0,
            };
            let regions = self.world.plan.regions.len();
            let of_window = self.admitted.entry((user, window)).or_insert_with(|| vec![0; regions]);
            if let Some(admitted) = of_window.get_mut(region) {
                *admitted += permits;
            }
            self.sum += permits;
            if let Some((intervals, wrong)) = &mut self.intervals {
                let limit = u64::from(self.held.limit);
                let judged = intervals.admitted(&self.world, region, (user, permits), limit);
                *wrong = wrong.take().or(judged.err());
            }
            self.draw(user, permits);
        }
        Some(decision)
    }

    fn draw(&mut self, user: u64, permits: u64) {
        let (rate, burst) =
            (f64::from(self.held.limit) / seconds(self.held.window), f64::from(self.held.burst));
        let now = self.world.now();
        let level = self.levels.entry(user).or_insert(Level { tokens: burst, since: now });
        level.tokens = (level.tokens + rate * seconds(now.since(level.since))).min(burst) - float(permits);
        level.since = now;
    }

    /// Returns what all regions admitted of a user's bucket in a window.
    pub(super) fn of_window(&self, user: u64, window: u64) -> &[u64] {
        self.admitted.get(&(user, window)).map_or(&[], Vec::as_slice)
    }

    /// Returns how far all regions together went above a user's limit: in a window, or above the curve at
    /// this instant.
    pub(super) fn above(&self, user: u64, window: u64) -> f64 {
        if windowed(self.held.algorithm) {
            let sum: u64 = self.of_window(user, window).iter().sum();
            return float(sum) - f64::from(self.held.limit);
        }
        // Time moves in steps, and each region's clock rounds to a microsecond.
        let rate = f64::from(self.held.limit) / seconds(self.held.window);
        self.levels.get(&user).map_or(0.0, |level| -level.tokens - 1e-3 - rate * 1e-5)
    }

    /// Judges one user after an admission: no more is admitted than the limit.
    pub(super) fn never_above(&self, user: u64, region: usize) -> Result<(), String> {
        if let Some((_, wrong)) = &self.intervals {
            return wrong.clone().map_or(Ok(()), Err);
        }
        let window = match windowed(self.held.algorithm) {
            true => self.world.clock(region).window_index(self.held.window),
            false => 0,
        };
        let above = self.above(user, window);
        if above <= 0.0 {
            return Ok(());
        }
        let of = self.of_window(user, window);
        Err(format!("user {user} is {above:.3} permits above the limit in window {window}, by region {of:?}"))
    }

    pub(super) fn step(&mut self) {
        self.world.step(STEP);
        if let Some((intervals, _)) = &mut self.intervals {
            intervals.follow(&self.world);
        }
    }

    pub(super) fn summary(&self) -> Summary {
        Summary {
            daemons: place(self.world.daemons().len()),
            frames: self.world.traffic().frames,
            admitted: self.sum,
            faults: self.faults,
        }
    }
}
