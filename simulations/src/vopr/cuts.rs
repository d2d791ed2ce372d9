//! Worlds with one cut: a bucket under `gossip` and each `on_partition`, asked for more than there is. The
//! judge sees what clients see: how much is admitted by the clock on the wall, in the cut and after it, and
//! what each answer says of the whole world.

use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::GossipSafety;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;

use super::play::Summary;
use crate::model::Model;
use crate::model::daemons::World;
use crate::number::{float, index, place};
use crate::pattern::Pattern;
use crate::plan::{Demand, Plan, Region, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

const STEP: Span = Span::from_millis(5);
const SECOND: u64 = 200;
/// Until the cut, and from its end on.
const BEFORE: u64 = 3 * SECOND;
const AFTER: u64 = 9 * SECOND;
/// A cut is noticed after eight intervals, or 450 ms, and the slowest way.
const NOTICED: u64 = SECOND;
/// So soon after its end everything is as it was.
const HEALED: u64 = 3 * SECOND;
const USER: u64 = 0;

/// The fate of the last region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Cut,
    Deaf,
    Mute,
    /// Its daemon stands still, and answers nobody.
    Stopped,
}

/// The source of demand, twice the rate in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Even,
    /// All in one region.
    One(usize),
    /// Four fifths in one region, in the next after so many steps.
    Moves(u64),
    /// The last region asks for a whole burst at once every so many steps and rests between; the others ask
    /// for the whole rate all the time.
    Bursts(u64),
}

/// A world with a cut.
#[derive(Debug, Clone)]
pub(crate) struct CutsCase {
    pub(crate) seed: u64,
    plan: Plan,
    fault: Fault,
    load: Load,
    /// Length of the cut, in steps.
    lasts: u64,
}

impl CutsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 31);
        let regions = index(dice.between(2, 4));
        let buckets =
            [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket, Algorithm::FixedWindow];
        let policies = [
            OnPartition::Share,
            OnPartition::Share,
            OnPartition::Deny,
            OnPartition::Freeze,
            OnPartition::LastKnown,
            OnPartition::Ignore,
        ];
        let limit = u32::try_from(dice.between(60, 1_500)).unwrap_or(60);
        let rule = RulePlan {
            limit,
            window: Span::from_secs(1),
            algorithm: dice.pick(&buckets).copied().unwrap_or(Algorithm::TokenBucket),
            burst: u32::try_from(u64::from(limit) * dice.between(2, 20) / 10).unwrap_or(limit),
            on_partition: dice.pick(&policies).copied().unwrap_or_default(),
            wait: Span::ZERO,
        };
        let most = *dice.pick(&[10_000, 40_000, 120_000]).unwrap_or(&40_000);
        let way = |dice: &mut Dice| Span(dice.between(most / 2, most));
        let delay = (0..regions).map(|_| (0..regions).map(|_| way(&mut dice)).collect()).collect();
        let loss = dice.unit() * dice.unit() * 0.03;
        let weather = Weather { delay, jitter: 0.1, loss, double: 0.0, reorder: 0.0 };
        let mut plan = Plan {
            name: format!("cuts {seed}"),
            about: String::new(),
            regions: (0..regions).map(Region::numbered).collect(),
            rule,
            weather,
            demand: Demand {
                pattern: Pattern::balanced(regions),
                users: 1,
                zipf: 1.0,
                cost: 1,
                retry: false,
            },
            faults: Vec::new(),
            ways: Vec::new(),
            length: Span::from_secs(10),
            step: STEP,
            seed,
            interval: Span::from_millis(50),
            shared_store: dice.chance(0.3),
            cluster: false,
            gateway: crate::plan::GatewayKind::Direct,
            database: false,
            keys_max: 100,
            store_keys_max: None,
            suppresses_reports: dice.chance(0.7),
        };
        for region in &mut plan.regions {
            region.ahead = i64::try_from(dice.below(4_000)).unwrap_or(0) - 2_000;
        }
        let mut bursts = Dice::new(seed, 33);
        let every = SECOND * bursts.between(12, 30) / 10;
        let rests = bursts.chance(0.15).then_some(Load::Bursts(every));
        Self {
            seed,
            plan,
            fault: *dice
                .pick(&[Fault::Cut, Fault::Cut, Fault::Deaf, Fault::Mute, Fault::Stopped])
                .unwrap_or(&Fault::Cut),
            load: rests.unwrap_or(match dice.below(4) {
                0 => Load::One(index(dice.below(place(regions)))),
                1 => Load::Moves(SECOND * dice.between(7, 40) / 10),
                _ => Load::Even,
            }),
            lasts: SECOND * dice.between(3, 20),
        }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        let rule = &self.plan.rule;
        format!(
            "{} regions, {} a second and a burst of {} by {:?}, {:?}, {:?} for {} s, {:?}, longest way {} ms, loss {:.1} %{}",
            self.plan.regions.len(),
            rule.limit,
            rule.burst,
            rule.algorithm,
            rule.on_partition,
            self.fault,
            self.lasts / SECOND,
            self.load,
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0,
            if self.plan.suppresses_reports { ", report suppression" } else { "" }
        )
    }

    fn is_fixed_window(&self) -> bool {
        self.plan.rule.algorithm == Algorithm::FixedWindow
    }

    /// Returns what a region is asked for in a step, on average.
    fn demand(&self, region: usize, step: u64) -> f64 {
        let regions = self.plan.regions.len();
        let limit = f64::from(self.plan.rule.limit);
        let part = match self.load {
            Load::Bursts(every) if region + 1 == regions => {
                let asks = step.is_multiple_of(every.max(1));
                return if asks { f64::from(self.plan.rule.burst) } else { 0.0 };
            }
            Load::Bursts(_) => 0.5 / float(place(regions - 1)),
            Load::Even => 1.0 / float(place(regions)),
            Load::One(one) => f64::from(u8::from(one == region)),
            Load::Moves(every) if index(step / every.max(1)) % regions == region => 0.8,
            Load::Moves(_) => 0.2 / float(place(regions - 1)),
        };
        2.0 * limit / float(SECOND) * part
    }
}

/// A bucket for the whole world, that nothing is hidden from.
struct Curve {
    level: f64,
    deepest: f64,
}

struct Game<'c> {
    case: &'c CutsCase,
    world: World,
    dice: Dice,
    /// Permits admitted in each step, by region.
    admitted: Vec<Vec<u64>>,
    asked: Vec<Vec<u64>>,
}

/// Plays a case.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &CutsCase, care: GossipSafety) -> Result<Summary, String> {
    let mut world = World::new(&case.plan, Way::Gossip).map_err(|error| format!("{error:#}"))?;
    world.set_care(care);
    let mut game =
        Game { case, world, dice: Dice::new(case.seed, 32), admitted: Vec::new(), asked: Vec::new() };
    let last = case.plan.regions.len() - 1;
    let (cut, heal) = (BEFORE, BEFORE + case.lasts);
    for step in 0..heal + AFTER {
        if step == cut || step == heal {
            game.fault(last, step == cut);
        }
        game.turn(step)?;
    }
    game.judge(cut, heal).map_err(|why| format!("{why}; by second and region {:?}", game.by_second()))?;
    Ok(Summary {
        daemons: place(game.world.daemons().len()),
        frames: game.world.traffic().frames,
        admitted: game.admitted.iter().flatten().sum(),
        faults: 1,
    })
}

impl Game<'_> {
    fn fault(&mut self, last: usize, broken: bool) {
        match self.case.fault {
            Fault::Cut => self.world.network_mut().cut(&[last], true, true, broken),
            Fault::Deaf => self.world.network_mut().cut(&[last], true, false, broken),
            Fault::Mute => self.world.network_mut().cut(&[last], false, true, broken),
            Fault::Stopped => {
                if let Some(daemon) = self.world.daemons_mut().get_mut(last) {
                    daemon.alive = !broken;
                }
            }
        }
    }

    fn turn(&mut self, step: u64) -> Result<(), String> {
        let regions = self.case.plan.regions.len();
        let (mut admitted, mut asked) = (vec![0; regions], vec![0; regions]);
        let first = index(self.dice.below(place(regions)));
        for region in (0..regions).map(|region| (region + first) % regions) {
            let count = self.dice.poisson(self.case.demand(region, step));
            for _ in 0..count {
                let fits = self.world.ask_daemon(region, USER, 1).is_some();
                if let (Some(admitted), Some(asked)) = (admitted.get_mut(region), asked.get_mut(region)) {
                    *admitted += u64::from(fits);
                    *asked += u64::from(self.world.daemons().get(region).is_some_and(|daemon| daemon.alive));
                }
            }
        }
        self.admitted.push(admitted);
        self.asked.push(asked);
        self.world.step(STEP);
        Ok(())
    }

    fn judge(&self, cut: u64, heal: u64) -> Result<(), String> {
        let rule = &self.case.plan.rule;
        let (limit, burst) = (f64::from(rule.limit), f64::from(rule.burst));
        let all = 0..self.case.plan.regions.len();
        let last = self.case.plan.regions.len() - 1;
        let (from, to) = (cut + NOTICED, heal);
        let inside = |regions: std::ops::Range<usize>, share: f64, what: &str| {
            let deepest = self.deepest((from, to), regions, limit * share, burst * share);
            // Chance, and what is under way when the cut is noticed.
            let most = (burst * 0.03 + limit * 0.03).max(3.0);
            if deepest > most {
                Err(format!("{what} went {deepest:.0} permits above the curve of the limit in a cut"))
            } else {
                Ok(())
            }
        };
        let sum = |regions: std::ops::Range<usize>, (from, to): (u64, u64)| {
            let steps = self.admitted.iter().take(index(to)).skip(index(from));
            steps.map(|step| step[regions.clone()].iter().sum::<u64>()).sum::<u64>()
        };
        let asked = |regions: std::ops::Range<usize>, (from, to): (u64, u64)| {
            let steps = self.asked.iter().take(index(to)).skip(index(from));
            steps.map(|step| step[regions.clone()].iter().sum::<u64>()).sum::<u64>()
        };
        // Both sides notice a cut in one direction.
        let is_cut = self.case.fault != Fault::Stopped;
        match rule.on_partition {
            OnPartition::Share | OnPartition::Freeze
                if rule.on_partition == OnPartition::Share || !self.case.is_fixed_window() =>
            {
                inside(all.clone(), 1.0, "the world")?;
                let share = float(place(last)) / float(place(last + 1));
                for (side, share) in [(0..last, share), (last..last + 1, 1.0 - share)] {
                    let want = self.due((from, to), side.clone(), limit * share, burst * share);
                    let got = float(sum(side.clone(), (from, to)));
                    let slack = 3.0 * want.sqrt() + limit * 0.3;
                    let kept =
                        if matches!(self.case.load, Load::Moves(_) | Load::Bursts(_)) { 0.8 } else { 0.93 };
                    if got < want * kept - slack && is_cut {
                        return Err(format!(
                            "regions {side:?} were given {got} of the {want:.0} that their share had for them"
                        ));
                    }
                }
            }
            OnPartition::Deny if is_cut => {
                let leaked = sum(all.clone(), (from, to));
                if leaked > 0 {
                    return Err(format!("{leaked} permits were admitted in a cut in which nothing may be"));
                }
            }
            OnPartition::LastKnown if self.case.load == Load::Even => inside(all.clone(), 1.0, "the world")?,
            OnPartition::LastKnown | OnPartition::Ignore => {
                inside(0..last, 1.0, "one side")?;
                inside(last..last + 1, 1.0, "the region that is cut off")?;
            }
            _ => {}
        }
        if rule.on_partition != OnPartition::Ignore && rule.on_partition != OnPartition::LastKnown {
            let span = (heal + HEALED, heal + AFTER);
            let want = float(asked(all.clone(), span)).min(limit * float(span.1 - span.0) / float(SECOND));
            let got = float(sum(all.clone(), span));
            let enough = if matches!(self.case.load, Load::Moves(_) | Load::Bursts(_)) { 0.8 } else { 0.95 };
            if got < enough * want - 3.0 {
                return Err(format!(
                    "from three seconds after the cut on {got} of {want:.0} permits were admitted"
                ));
            }
            let most = limit * float(span.1 - span.0) / float(SECOND) + burst;
            if got > most * 1.02 {
                return Err(format!(
                    "from three seconds after the cut on {got} permits were admitted where {most:.0} are the most"
                ));
            }
        }
        Ok(())
    }

    /// Returns what a bucket of such a size would have given these regions in a time, had it been empty when
    /// that began: what it holds while more is asked of it later cannot be asked for now.
    fn due(&self, (from, to): (u64, u64), regions: std::ops::Range<usize>, limit: f64, burst: f64) -> f64 {
        let (mut level, mut given) = (0.0_f64, 0.0);
        for (step, asked) in (0..to).zip(&self.asked).skip(index(from)) {
            level = if !self.case.is_fixed_window() {
                (level + limit / float(SECOND)).min(burst)
            } else if step % SECOND == 0 {
                limit
            } else {
                level
            };
            let taken = level.min(float(asked[regions.clone()].iter().sum()));
            (level, given) = (level - taken, given + taken);
        }
        given
    }

    fn by_second(&self) -> Vec<Vec<u64>> {
        let sum = |steps: &[Vec<u64>]| {
            (0..self.case.plan.regions.len()).map(|at| steps.iter().map(|step| step[at]).sum()).collect()
        };
        self.admitted.chunks(index(SECOND)).map(sum).collect()
    }

    /// Returns how far what these regions admitted in a time went above an arrival curve that begins with it.
    fn deepest(
        &self,
        (from, to): (u64, u64),
        regions: std::ops::Range<usize>,
        limit: f64,
        burst: f64,
    ) -> f64 {
        let per_step = limit / float(SECOND);
        let mut curve = Curve { level: burst, deepest: 0.0 };
        if self.case.is_fixed_window() {
            // Two windows beside each other may both be used at once.
            curve.level = 2.0 * limit;
        }
        let most = curve.level;
        for step in self.admitted.iter().take(index(to)).skip(index(from)) {
            let admitted: u64 = step[regions.clone()].iter().sum();
            curve.level = (curve.level + per_step).min(most) - float(admitted);
            curve.deepest = curve.deepest.max(-curve.level);
        }
        curve.deepest
    }
}
