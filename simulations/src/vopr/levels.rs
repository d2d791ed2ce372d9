//! Buckets without windows that hold much and refill slowly, or fast: limits and bursts of up to four
//! thousand million permits, windows of up to a month, in all three modes and by whole engines. The judge
//! sees what clients see: all regions together stay below the arrival curve, exactly under `split` and
//! `escrow`, and if all are asked alike they use what it lets flow.

use tidegate::core::algorithm::Algorithm;
use tidegate::core::request::Cost;
use tidegate::core::time::Span;

use super::arrivals::Arrivals;
use super::play::{Enforced, Summary};
use super::whole::{Held, Play, SECOND, STEP, engines, weather};
use crate::number::{float, index, len, place, seconds, whole};
use crate::plan::{Plan, Way};
use crate::virtual_world::Dice;

/// So long demand lasts.
const STEPS: u64 = 8 * SECOND;
/// So many requests reach a region in a step, on average.
const REQUESTS: f64 = 1.0;
/// The part of its burst that a `gossip` bucket may be in debt, beside what refills while news is on its way
/// and a request of each region.
const DEBT: f64 = 0.1;
/// The part of what the curve lets flow that is used if all regions are asked alike.
const USED: f64 = 0.9;

/// The faults, from one step to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    Cut(usize, u64, u64),
    /// A daemon with its store in memory begins again.
    Restart(usize, u64),
}

/// A world of large buckets.
#[derive(Debug, Clone)]
pub(crate) struct LevelsCase {
    held: Held,
    plan: Plan,
    fault: Fault,
    /// Clients that ask, and when; `None`: all regions alike.
    arrivals: Option<Arrivals>,
    /// Demand in all, in multiples of what the curve lets flow.
    load: f64,
    cost_max: u64,
}

/// From `least` to `most`, every order of magnitude as often.
pub(super) fn of_any_size(dice: &mut Dice, least: f64, most: f64) -> u64 {
    whole(least * (most / least).powf(dice.unit()))
}

impl LevelsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 81);
        let regions = index(dice.between(2, 5));
        let algorithms = [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket];
        let permits = |dice: &mut Dice, least: f64| {
            u32::try_from(of_any_size(dice, least, f64::from(u32::MAX))).unwrap_or(u32::MAX)
        };
        let held = Held {
            way: dice.pick(&[Way::Split, Way::Gossip, Way::Escrow, Way::Escrow]).copied(),
            algorithm: dice.pick(&algorithms).copied().unwrap_or(Algorithm::TokenBucket),
            limit: permits(&mut dice, 1_000.0),
            burst: permits(&mut dice, 100.0),
            window: Span::from_secs(of_any_size(&mut dice, 1.0, 30.0 * 86_400.0)),
        };
        let weather = weather(&mut dice, regions, 0.05);
        let mut plan = held.plan(seed, regions, weather);
        for region in &mut plan.regions {
            region.ahead = i64::try_from(dice.below(40_000)).unwrap_or(0) - 20_000;
        }
        let fault = match dice.below(3) {
            0 if held.way != Some(Way::Gossip) => {
                let from = dice.below(STEPS * 3 / 4);
                Fault::Cut(index(dice.below(place(regions))), from, from + dice.between(20, 2 * SECOND))
            }
            // Under the other modes a bucket that is lost begins full again, or is not known for a moment.
            1 if held.way == Some(Way::Escrow) => {
                Fault::Restart(index(dice.below(place(regions))), dice.below(STEPS * 3 / 4))
            }
            _ => Fault::Nothing,
        };
        let arrivals = dice.chance(0.6).then(|| Arrivals::draw(&mut dice, regions, 1));
        let load = 0.5 + dice.unit() * 3.0;
        let mut case = Self { held, plan, fault, arrivals, load, cost_max: 1 };
        let each = load * case.flows() / (float(STEPS) * REQUESTS * len(regions));
        // A cost above a region's share of the burst would have to gather.
        let most = u64::from(held.burst) / place(regions) / 8;
        case.cost_max = whole(each * 2.0 - 1.0).min(most).max(1);
        case
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}, {} regions asked for {:.1} times that{}, costs of up to {}, {:?}, longest way {} ms, loss {:.1} %",
            self.held.describe(),
            self.plan.regions.len(),
            self.load,
            self.arrivals.as_ref().map_or(String::new(), |arrivals| format!(" in {}", arrivals.describe())),
            self.cost_max,
            self.fault,
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0
        )
    }

    fn rate(&self) -> f64 {
        f64::from(self.held.limit) / seconds(self.held.window)
    }

    /// Returns what the curve lets flow while demand lasts.
    fn flows(&self) -> f64 {
        f64::from(self.held.burst) + self.rate() * seconds(STEP) * float(STEPS)
    }
}

struct Game<'c> {
    case: &'c LevelsCase,
    play: Play,
    asked: u64,
    admitted: u64,
}

/// Plays a case.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &LevelsCase, rules: Enforced) -> Result<Summary, String> {
    let mut engines = engines(&case.plan, &case.held.written(&[]));
    engines.safety = rules.safety;
    let mut play = Play::new(&case.plan, case.held, engines)?;
    play.world.set_duties(rules.duties);
    play.settle();
    let mut game = Game { case, play, asked: 0, admitted: 0 };
    for step in 0..STEPS {
        game.fault(step);
        game.turn(step).map_err(|why| format!("{why}, {} ms after the start", step * STEP.0 / 1_000))?;
    }
    game.judge()?;
    Ok(game.play.summary())
}

impl Game<'_> {
    fn fault(&mut self, step: u64) {
        match self.case.fault {
            Fault::Cut(region, from, to) if step == from || step == to => {
                self.play.world.network_mut().cut(&[region], true, true, step == from);
                self.play.faults += 1;
            }
            Fault::Restart(region, at) if step == at => {
                self.play.world.restart(region);
                self.play.faults += 1;
            }
            _ => {}
        }
    }

    fn turn(&mut self, step: u64) -> Result<(), String> {
        let regions = self.case.plan.regions.len();
        // A limit that is small for its window is asked for less often.
        let each = self.case.load * self.case.flows() / (float(STEPS) * len(regions));
        let often = (each / (float(self.case.cost_max + 1) / 2.0)).min(20.0);
        let first = index(self.play.dice.below(place(regions)));
        for region in (0..regions).map(|at| (at + first) % regions) {
            let times = self.case.arrivals.as_ref().map_or(1.0, |arrivals| arrivals.of(region, step));
            for _ in 0..self.play.dice.poisson(often * times) {
                let cost = self.play.dice.between(1, self.case.cost_max);
                self.request(region, cost)?;
            }
        }
        self.play.step();
        Ok(())
    }

    fn request(&mut self, region: usize, cost: u64) -> Result<(), String> {
        let Some(decision) = self.play.request(region, 0, Cost::Take(cost)) else { return Ok(()) };
        if decision.rules.is_empty() {
            return Err("no rule applied".to_owned());
        }
        self.asked += cost;
        if !decision.allowed {
            return Ok(());
        }
        self.admitted += cost;
        if self.case.held.way != Some(Way::Gossip) {
            return self.play.never_above(0, region);
        }
        let way = seconds(self.case.plan.weather.longest());
        let (burst, regions) = (f64::from(self.case.held.burst), len(self.case.plan.regions.len()));
        let on_its_way = self.case.rate() * (3.0 * way + 0.2);
        let above = self.play.above(0, 0) - regions * float(self.case.cost_max);
        if above > DEBT * burst + on_its_way {
            return Err(format!("the bucket is {above:.0} permits in debt, of a burst of {burst:.0}"));
        }
        Ok(())
    }

    /// Checks that all that flows is used if nothing breaks and all are asked alike.
    fn judge(&self) -> Result<(), String> {
        let way = seconds(self.case.plan.weather.longest());
        // A burst that refills before the next request comes, or before permits have come from afar, is not
        // used whole.
        let lasts = self.case.rate() * (4.0 * way + 0.2) <= f64::from(self.case.held.burst);
        if self.case.arrivals.is_some() || self.case.fault != Fault::Nothing || !lasts {
            return Ok(());
        }
        let due = self.case.flows().min(float(self.asked));
        let regions = len(self.case.plan.regions.len());
        let slack = regions * float(self.case.cost_max);
        if float(self.admitted) < USED * due - slack {
            return Err(format!(
                "only {} of {due:.0} permits admitted of {} asked for",
                self.admitted, self.asked
            ));
        }
        Ok(())
    }
}
