//! Worlds in which costs are reported after the response, by one region alone, by fixed shares, and
//! worldwide. The judge sees what clients see: each report is charged once and in full up to what a bucket
//! may owe, nothing is admitted while it owes, and what all regions admitted and charged together is what the
//! limit lets flow.

use std::collections::BTreeMap;

use serde_json::json;
use tidegate::core::algorithm::{Algorithm, Counting};
use tidegate::core::decision::Decision;
use tidegate::core::request::Cost;
use tidegate::core::time::{Span, Timestamp};

use super::play::Summary;
use super::whole::{Held, Play, SECOND, STEP, engines, weather};
use crate::number::{float, index, place};
use crate::plan::{Plan, Way};
use crate::virtual_world::Dice;

/// So long costs are reported.
const REPORTED: u64 = 3 * SECOND;
const USERS: u64 = 2;
/// The most that is reported in all of one user, in limits.
const LIMITS_MAX: u64 = 3;

/// A world of reports.
#[derive(Debug, Clone)]
pub(crate) struct ReportsCase {
    held: Held,
    plan: Plan,
    /// True if every call with a cost is a report.
    always: bool,
    /// The most that a bucket owes; `None`: not written.
    debt_max: Option<u32>,
    /// The most that one report has used.
    cost_max: u64,
}

impl ReportsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 75);
        let regions = index(dice.between(2, 3));
        let ways = [
            None,
            Some(Way::Split),
            Some(Way::Gossip),
            Some(Way::Gossip),
            Some(Way::Escrow),
            Some(Way::Escrow),
        ];
        let way = dice.pick(&ways).copied().flatten();
        let limit = u32::try_from(dice.between(12, 60)).unwrap_or(12);
        let levels = [Algorithm::FixedWindow, Algorithm::FixedWindow, Algorithm::TokenBucket];
        let held = Held {
            way,
            algorithm: dice.pick(&levels).copied().unwrap_or(Algorithm::FixedWindow),
            limit,
            burst: limit,
            window: Span::from_millis(*dice.pick(&[500, 1_000]).unwrap_or(&1_000)),
        };
        let weather = weather(&mut dice, regions, 0.03);
        let judged_exactly = matches!(way, None | Some(Way::Split));
        Self {
            held,
            plan: held.plan(seed, regions, weather),
            always: dice.chance(0.5),
            debt_max: match dice.below(3) {
                0 if judged_exactly => None,
                1 if judged_exactly => u32::try_from(dice.between(0, u64::from(limit) * 2)).ok(),
                _ => Some(1_000_000),
            },
            cost_max: u64::from(limit) * dice.between(2, 30) / 10,
        }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}, {} regions, reports of up to {} permits{}, debts of up to {:?}, longest way {} ms, loss {:.1} %",
            self.held.describe(),
            self.plan.regions.len(),
            self.cost_max,
            if self.always { " by every call with a cost" } else { "" },
            self.debt_max,
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0
        )
    }

    /// Returns what a region has for itself where nothing moves: permits, burst, and what it may owe.
    fn part(&self, region: usize) -> (u64, u64, u64) {
        let regions = self.plan.regions.len();
        let of = |all: u32| match self.held.way {
            None => u64::from(all),
            Some(_) => self.held.part(all, region, regions),
        };
        let permits = of(self.held.limit);
        let debt = match self.debt_max {
            None => permits,
            Some(max) => (u64::from(max) * permits).div_ceil(u64::from(self.held.limit)),
        };
        (permits, of(self.held.burst), debt)
    }
}

/// The use of a bucket, in permits times a window's microseconds, and since when.
#[derive(Debug, Clone, Copy)]
struct Owing {
    used: u64,
    at: Timestamp,
}

/// The least that a bucket must have in use now, the most that it admits, and the most beyond that that it
/// owes, each as [`Owing`] has it.
type Known = Option<[u64; 3]>;

struct Game<'c> {
    case: &'c ReportsCase,
    play: Play,
    /// By region and user, where a region counts for itself.
    owing: BTreeMap<(usize, u64), Owing>,
    /// By user, what was reported and what was admitted besides.
    reported: Vec<u64>,
    admitted: Vec<u64>,
}

/// Plays a case; `tells` is whether the other regions hear of what was charged.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &ReportsCase, tells: bool) -> Result<Summary, String> {
    let mut rule = case.held.written(&[]);
    if case.always {
        rule["charge"] = json!("always");
    }
    if let Some(max) = case.debt_max {
        rule["debt_max"] = json!(max);
    }
    let mut engines = engines(&case.plan, &rule);
    engines.tells = tells;
    let mut play = Play::new(&case.plan, case.held, engines)?;
    play.settle();
    let none = vec![0; index(USERS)];
    let mut game = Game { case, play, owing: BTreeMap::new(), reported: none.clone(), admitted: none };
    let window = case.held.window.0 / STEP.0;
    // Until one region alone has paid all that it may owe out of its own part, and some windows more.
    let steps = REPORTED + (LIMITS_MAX * place(case.plan.regions.len()) + 4) * window;
    for step in 0..steps / window * window {
        game.turn(step).map_err(|why| format!("{why}, {} ms after the start", step * STEP.0 / 1_000))?;
    }
    game.judge(steps / window)?;
    Ok(game.play.summary())
}

impl Game<'_> {
    fn turn(&mut self, step: u64) -> Result<(), String> {
        let regions = self.case.plan.regions.len();
        let whole = 3.0 * f64::from(self.case.held.limit) * float(STEP.0) / float(self.case.held.window.0);
        let first = index(self.play.dice.below(place(regions)));
        for region in (0..regions).map(|at| (at + first) % regions) {
            for user in 0..USERS {
                for _ in 0..self.play.dice.poisson(whole / float(place(regions))) {
                    self.client(region, user, step < REPORTED)?;
                }
            }
        }
        self.play.step();
        Ok(())
    }

    /// One client: it asks, and says afterwards what it used; or it pays at once.
    fn client(&mut self, region: usize, user: u64, reports: bool) -> Result<(), String> {
        let most = u64::from(self.case.held.limit) * LIMITS_MAX;
        let left = most.saturating_sub(self.reported[index(user)]);
        let afterwards = self.case.always || self.play.dice.chance(0.05);
        if !afterwards {
            return self.ask(region, user, Cost::Take(1));
        }
        let allowed = self.peek(region, user)?;
        if !reports {
            return if allowed { self.report(region, user, 1) } else { Ok(()) };
        }
        let used = self.play.dice.between(1, self.case.cost_max.max(1));
        // Some had begun before there was nothing left.
        let begun = self.play.dice.chance(0.02);
        if (allowed || begun) && left >= used {
            return self.report(region, user, used);
        }
        Ok(())
    }

    fn call(&mut self, region: usize, user: u64, cost: Cost) -> Result<Decision, String> {
        self.play.request(region, user, cost).ok_or_else(|| "nobody answers".to_owned())
    }

    /// One permit, as [`Owing`] counts.
    fn unit(&self) -> u64 {
        self.case.held.window.0
    }

    /// Returns what must be known of a region that counts for itself; `None` where regions share.
    fn known(&mut self, region: usize, user: u64) -> Known {
        if !matches!(self.case.held.way, None | Some(Way::Split)) {
            return None;
        }
        let ((permits, burst, debt), now) = (self.case.part(region), self.play.world.clock(region));
        let (window, unit) = (self.case.held.window, self.unit());
        let owing = self.owing.entry((region, user)).or_insert(Owing { used: 0, at: now });
        let (most, paid) = match self.case.held.algorithm {
            Algorithm::FixedWindow => {
                let ended = now.window_index(window) - owing.at.window_index(window);
                (permits, permits * ended * unit)
            }
            _ => (burst, permits * now.since(owing.at).0),
        };
        (owing.used, owing.at) = (owing.used.saturating_sub(paid), now);
        Some([owing.used, most * unit, debt * unit])
    }

    /// Holds an answer against what there must be left, where that is known.
    fn holds(&self, known: Known, needs: u64, decision: &Decision) -> Result<(), String> {
        let (Some([used, most, _]), unit) = (known, self.unit()) else { return Ok(()) };
        if decision.allowed == (used + needs * unit <= most) {
            return Ok(());
        }
        let (used, most) = (float(used) / float(unit), most / unit);
        let said = if decision.allowed { "admits" } else { "refuses" };
        Err(format!("a bucket with {used:.3} of {most} permits in use {said} {needs}"))
    }

    fn ask(&mut self, region: usize, user: u64, cost: Cost) -> Result<(), String> {
        let known = self.known(region, user);
        let decision = self.call(region, user, cost)?;
        self.holds(known, cost.taken(), &decision)?;
        if decision.allowed {
            self.admitted[index(user)] += cost.taken();
            self.add(region, user, cost.taken());
            if self.case.held.way == Some(Way::Escrow) && self.case.held.algorithm == Algorithm::FixedWindow {
                self.play.never_above(user, region)?;
            }
        }
        Ok(())
    }

    fn peek(&mut self, region: usize, user: u64) -> Result<bool, String> {
        let known = self.known(region, user);
        let decision = self.call(region, user, Cost::Peek)?;
        self.holds(known, 1, &decision)?;
        Ok(decision.allowed)
    }

    fn report(&mut self, region: usize, user: u64, permits: u64) -> Result<(), String> {
        let known = self.known(region, user);
        let cost = if self.case.always { Cost::Take(permits) } else { Cost::report(permits) };
        let decision = self.play.world.call(region, user, cost).ok_or_else(|| "nobody answers".to_owned())?;
        self.holds(known, permits, &decision)?;
        self.reported[index(user)] += permits;
        if let Some([used, most, debt]) = known {
            self.add(region, user, permits.min((most + debt).saturating_sub(used) / self.unit()));
        }
        Ok(())
    }

    fn add(&mut self, region: usize, user: u64, permits: u64) {
        let unit = self.unit();
        if let Some(owing) = self.owing.get_mut(&(region, user)) {
            owing.used += permits * unit;
        }
    }

    /// All debts are paid: what was admitted and what was charged is what the limit let flow in so many
    /// windows.
    fn judge(&self, windows: u64) -> Result<(), String> {
        if !matches!(self.case.held.way, Some(Way::Gossip | Way::Escrow)) {
            return Ok(());
        }
        let limit = u64::from(self.case.held.limit);
        let level = self.case.held.algorithm.counting() == Counting::Level;
        let flows = limit * windows + if level { u64::from(self.case.held.burst) } else { 0 };
        for user in 0..USERS {
            let (admitted, reported) = (self.admitted[index(user)], self.reported[index(user)]);
            let sum = admitted + reported;
            let slack = if self.case.held.way == Some(Way::Gossip) { flows / 50 + 3 * limit } else { 0 };
            if sum > flows + slack {
                return Err(format!(
                    "{admitted} permits admitted and {reported} reported of {flows} for user {user}"
                ));
            }
            if sum < flows / 2 {
                return Err(format!(
                    "only {admitted} permits admitted and {reported} reported of {flows} for user {user}"
                ));
            }
        }
        Ok(())
    }
}
