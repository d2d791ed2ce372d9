//! Worlds that are quiet for long, until all regions agree on everything; then demand jumps, in cold buckets
//! and in hot ones, and something may break. The promise that is judged is that no answer says less of the
//! world's use than it may be.

use tidegate::core::algorithm::{Algorithm, Counting};
use tidegate::core::regions::GossipSafety;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::{Span, Timestamp};

use super::play::Summary;
use super::witness::Witness;
use crate::model::daemons::World;
use crate::model::{Model, START};
use crate::number::{float, index, place};
use crate::pattern::Pattern;
use crate::plan::{Demand, Plan, Region, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

const STEP: Span = Span::from_millis(5);
const SECOND: u64 = 200;
/// Until what came late at the start is forgotten.
const QUIET: u64 = 12 * SECOND;
const PLAYED: u64 = 8 * SECOND;
const USERS: u64 = 3;

/// The one fault of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    Cut {
        inward: bool,
        outward: bool,
    },
    /// A daemon stands still, and answers nobody.
    Stopped,
    Restarted,
    /// A clock is set ahead or back, by so many milliseconds.
    Clock(i64),
    /// A fifth of all that is sent is lost.
    Storm,
}

/// A world that is quiet for long.
#[derive(Debug, Clone)]
pub(crate) struct BoundsCase {
    pub(crate) seed: u64,
    plan: Plan,
    fault: Fault,
    /// The region that it befalls, and when, and for how long, in steps.
    region: usize,
    at: u64,
    lasts: u64,
    /// When a window turns just after a daemon beside its Redis began again, in steps: from then on its
    /// region, which asked for little, asks for much.
    turn: Option<u64>,
}

impl BoundsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 41);
        let regions = index(dice.between(2, 5));
        let algorithms = [
            Algorithm::FixedWindow,
            Algorithm::FixedWindow,
            Algorithm::FixedWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket,
            Algorithm::Gcra,
            Algorithm::LeakyBucket,
        ];
        let policies = [
            OnPartition::Share,
            OnPartition::Share,
            OnPartition::Deny,
            OnPartition::Freeze,
            OnPartition::LastKnown,
            OnPartition::Ignore,
        ];
        let limit = match dice.below(4) {
            0 => dice.between(1, 20),
            1 => dice.between(20, 200),
            _ => dice.between(200, 2_000),
        };
        let limit = u32::try_from(limit).unwrap_or(1);
        let window = *dice.pick(&[200, 1_000, 1_000, 3_000, 20_000]).unwrap_or(&1_000);
        let rule = RulePlan {
            limit,
            window: Span::from_millis(window),
            algorithm: dice.pick(&algorithms).copied().unwrap_or(Algorithm::FixedWindow),
            burst: u32::try_from(u64::from(limit) * dice.between(2, 20) / 10).unwrap_or(limit).max(1),
            on_partition: dice.pick(&policies).copied().unwrap_or_default(),
            wait: Span::ZERO,
        };
        let most = *dice.pick(&[5_000, 40_000, 120_000]).unwrap_or(&40_000);
        let way = |dice: &mut Dice| Span(dice.between(most / 2, most));
        let delay = (0..regions).map(|_| (0..regions).map(|_| way(&mut dice)).collect()).collect();
        let loss = if dice.chance(0.3) { dice.unit() * dice.unit() * 0.05 } else { 0.0 };
        let jitter = if dice.chance(0.5) { 0.1 } else { 0.0 };
        let weather = Weather { delay, jitter, loss, double: 0.0, reorder: 0.0 };
        let mut plan = Plan {
            name: format!("bounds {seed}"),
            about: String::new(),
            regions: (0..regions).map(Region::numbered).collect(),
            rule,
            weather,
            demand: Demand {
                pattern: Pattern::balanced(regions),
                users: USERS,
                zipf: 1.0,
                cost: 1,
                retry: false,
            },
            faults: Vec::new(),
            ways: Vec::new(),
            length: Span::from_secs(20),
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
            region.ahead = i64::try_from(dice.below(16_000)).unwrap_or(0) - 8_000;
            if plan.shared_store && dice.chance(0.3) {
                region.daemons = 2;
            }
        }
        let off = i64::try_from(dice.between(30, 3_000)).unwrap_or(0);
        let ways = [(true, true), (true, false), (false, true)];
        let (inward, outward) = *dice.pick(&ways).unwrap_or(&(true, true));
        let fault = match dice.below(10) {
            0..5 => Fault::Nothing,
            5..7 => Fault::Cut { inward, outward },
            7 => Fault::Stopped,
            8 if dice.chance(0.5) => Fault::Storm,
            8 => Fault::Clock(if dice.chance(0.5) { off } else { -off }),
            _ => Fault::Restarted,
        };
        let (region, at) = (index(dice.below(place(regions))), QUIET + dice.below(PLAYED / 2));
        let lasts = dice.between(SECOND / 10, 3 * SECOND);
        let mut case = Self { seed, plan, fault, region, at, lasts, turn: None };
        // Dice of their own, so that all else is drawn as it was before.
        let mut turns = Dice::new(seed, 83);
        let far = fault == Fault::Restarted && case.plan.shared_store && regions == 2;
        if far && case.plan.rule.algorithm.counting() == Counting::Window {
            case.begins_before_a_turn(&mut turns);
        }
        case
    }

    /// True where a daemon begins again, just before a window turns, and its store goes on.
    pub(crate) const fn begins_again_beside_redis(&self) -> bool {
        self.turn.is_some()
    }

    /// The daemon begins again so little before a window turns, and so far from the other region, that nobody
    /// there can know of it before it uses what it may have of that window.
    fn begins_before_a_turn(&mut self, dice: &mut Dice) {
        let steps = dice.between(1, 4);
        for way in self.plan.weather.delay.iter_mut().flatten() {
            *way = Span(dice.between(80_000, 120_000));
        }
        let window = self.plan.rule.window;
        let index = (START + Span(self.at * STEP.0)).window_index(window);
        let end = Timestamp::window_start(index + 1, window).since(START).0 / STEP.0;
        self.at = end.saturating_sub(steps).max(QUIET);
        self.turn = Some(end);
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        let rule = &self.plan.rule;
        format!(
            "{} regions, {} per {} ms and a burst of {} by {:?}, {:?}, {:?} of region {} at {} ms for {} ms, longest way {} ms, \
             jitter {}, loss {:.1} %{}{}",
            self.plan.regions.len(),
            rule.limit,
            rule.window.0 / 1_000,
            rule.burst,
            rule.algorithm,
            rule.on_partition,
            self.fault,
            self.region,
            self.at * STEP.0 / 1_000,
            self.lasts * STEP.0 / 1_000,
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.jitter,
            self.plan.weather.loss * 100.0,
            if self.plan.suppresses_reports { ", report suppression" } else { "" },
            if self.plan.shared_store { ", shared stores" } else { "" }
        )
    }
}

struct Game<'c> {
    case: &'c BoundsCase,
    world: World,
    dice: Dice,
    witness: Witness,
    /// Requests in a step, by daemon and user.
    eager: Vec<[f64; 3]>,
    admitted: u64,
    care: GossipSafety,
}

/// Plays a case.
///
/// # Errors
/// The first answer that says too little.
pub(crate) fn play(case: &BoundsCase, care: GossipSafety) -> Result<Summary, String> {
    let mut world = World::new(&case.plan, Way::Gossip).map_err(|error| format!("{error:#}"))?;
    world.set_care(care);
    let mut game = Game {
        case,
        eager: vec![[0.0; 3]; world.daemons().len()],
        witness: Witness::new(&case.plan),
        world,
        dice: Dice::new(case.seed, 42),
        admitted: 0,
        care,
    };
    for step in 0..QUIET + PLAYED {
        if step == case.at {
            game.fault(true);
        }
        if step == case.at + case.lasts {
            game.fault(false);
        }
        game.turn(step).map_err(|why| format!("{why}, {} ms after the start", step * STEP.0 / 1_000))?;
    }
    Ok(Summary {
        daemons: place(game.world.daemons().len()),
        frames: game.world.traffic().frames,
        admitted: game.admitted,
        faults: u64::from(case.fault != Fault::Nothing),
    })
}

impl Game<'_> {
    fn fault(&mut self, broken: bool) {
        let region = self.case.region;
        let of_region = self.world.daemons().iter().position(|daemon| daemon.region == region);
        match self.case.fault {
            Fault::Nothing => {}
            Fault::Cut { inward, outward } => {
                self.world.network_mut().cut(&[region], inward, outward, broken)
            }
            Fault::Stopped => {
                if let Some(daemon) = of_region.and_then(|at| self.world.daemons_mut().get_mut(at)) {
                    daemon.alive = !broken;
                }
                self.world.note_loss();
            }
            Fault::Restarted if broken => {
                let Some(at) = of_region else { return };
                let lost = self.world.restart(at);
                self.world.set_care(self.care);
                self.witness.restarted(&self.world, region, lost);
            }
            Fault::Restarted => {}
            Fault::Clock(off) => {
                let by = if broken { off * 1_000 } else { off * -1_000 };
                let before = self.world.clock(region);
                self.world.step_clock(region, by);
                // The others learn of it by its next report.
                self.world.note_loss();
                if by < 0 {
                    self.witness.clock_set_back(&self.world, before, self.world.clock(region));
                }
            }
            Fault::Storm => {
                let calm = self.case.plan.weather.loss;
                self.world.network_mut().weather.loss = if broken { 0.2 } else { calm };
            }
        }
    }

    fn turn(&mut self, step: u64) -> Result<(), String> {
        let limit = float(u64::from(self.case.plan.rule.limit));
        let per_step = limit * float(STEP.0) / float(self.case.plan.rule.window.0);
        let moods = [0.0, 0.0, 0.0, 0.1, 0.5, 1.0, 3.0, 10.0];
        if self.case.turn.is_some_and(|turn| [turn.saturating_sub(SECOND), turn].contains(&step)) {
            let (own, others) = if self.case.turn == Some(step) { (10.0, 3.0) } else { (0.1, 3.0) };
            for (daemon, eager) in self.world.daemons().iter().zip(&mut self.eager) {
                *eager = [if daemon.region == self.case.region { own } else { others }; 3];
            }
        }
        for at in 0..self.world.daemons().len() {
            for user in 0..USERS {
                let mut eager = self.eager.get(at).map_or(0.0, |eager| eager[index(user)]);
                let quiet = step < QUIET;
                // Everything changes every second or so, and sometimes all of it at once.
                if self.dice.chance(if quiet { 0.002 } else { 0.005 }) {
                    let most = if quiet { 5 } else { moods.len() };
                    eager = moods.get(..most).and_then(|moods| self.dice.pick(moods)).copied().unwrap_or(0.0);
                }
                if !quiet && step.is_multiple_of(SECOND) && self.dice.chance(0.4) {
                    eager = 10.0;
                }
                if let Some(kept) = self.eager.get_mut(at) {
                    kept[index(user)] = eager;
                }
                for _ in 0..self.dice.poisson(eager * per_step) {
                    self.request(at, user);
                }
            }
        }
        self.witness.judge(&self.world, 0..USERS)?;
        self.world.step(STEP);
        self.witness.judge(&self.world, 0..USERS)
    }

    fn request(&mut self, at: usize, user: u64) {
        if let Some(window) = self.world.ask_daemon(at, user, 1) {
            let region = self.world.daemons().get(at).map_or(0, |daemon| daemon.region);
            self.witness.admitted(&self.world, region, user, (window, 1));
            self.admitted += 1;
        }
    }
}
