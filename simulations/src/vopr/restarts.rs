//! Worlds whose daemons count in memory under `gossip` and end and begin again within one window. The judge
//! sees what clients see: how much all lives of all regions admit together, beside what nobody can know.

use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::GossipSafety;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;

use super::play::Summary;
use crate::model::Model;
use crate::model::daemons::World;
use crate::model::shell::world_key;
use crate::number::{float, index, place};
use crate::pattern::Pattern;
use crate::plan::{Demand, Plan, Region, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

const STEP: Span = Span::from_millis(5);
const SECOND: u64 = 200;
/// The window that the run lies in, from its beginning on.
const WINDOW: Span = Span::from_secs(25);
const STEPS: u64 = 24 * SECOND;
/// After the last restart all of the limit must still find those who ask for it.
const LAST: u64 = 14 * SECOND;
/// So long a daemon that ends in good order has for its last words.
const FAREWELL: u64 = SECOND * 3 / 10;
const USER: u64 = 0;

/// A daemon that ends and begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Restart {
    region: usize,
    /// When nobody asks it any more, and when its next life begins.
    from: u64,
    to: u64,
    /// True if the daemon ends in good order and tells its last counts.
    ordered: bool,
}

/// A world of restarts.
#[derive(Debug, Clone)]
pub(crate) struct RestartsCase {
    pub(crate) seed: u64,
    plan: Plan,
    restarts: Vec<Restart>,
    /// Demand on each region in a step, on average.
    demand: Vec<f64>,
}

impl RestartsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 41);
        let regions = index(dice.between(2, 4));
        let limit = dice.between(100, 4_000);
        let windows = [Algorithm::FixedWindow, Algorithm::FixedWindow, Algorithm::SlidingWindow];
        let permits = u32::try_from(limit).unwrap_or(100);
        let rule = RulePlan {
            limit: permits,
            window: WINDOW,
            algorithm: dice.pick(&windows).copied().unwrap_or(Algorithm::FixedWindow),
            burst: permits,
            on_partition: OnPartition::Share,
            wait: Span::ZERO,
        };
        let most = *dice.pick(&[5_000, 40_000, 120_000]).unwrap_or(&40_000);
        let way = |dice: &mut Dice| Span(dice.between(most / 2, most));
        let delay = (0..regions).map(|_| (0..regions).map(|_| way(&mut dice)).collect()).collect();
        let loss = if dice.chance(0.5) { dice.unit() * 0.1 } else { 0.0 };
        let weather = Weather { delay, jitter: 0.1, loss, double: dice.unit() * 0.1, reorder: 0.0 };
        let plan = Plan {
            name: format!("restarts {seed}"),
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
            length: Span::from_secs(24),
            step: STEP,
            seed,
            interval: Span::from_millis(50),
            shared_store: false,
            cluster: false,
            gateway: crate::plan::GatewayKind::Direct,
            database: false,
            keys_max: 100,
            store_keys_max: None,
            suppresses_reports: dice.chance(0.7),
        };
        // One after the other, so that somebody is always there who knows.
        let (mut restarts, mut at) = (Vec::new(), 3 * SECOND);
        while restarts.len() < 3 {
            let from = at + dice.below(3 * SECOND);
            let ordered = dice.chance(0.4);
            let longest = if dice.chance(0.5) { SECOND / 5 } else { 3 * SECOND };
            let down = dice.below(longest);
            let to = from + down + if ordered { FAREWELL } else { 0 } + 1;
            if to > LAST {
                break;
            }
            restarts.push(Restart { region: index(dice.below(place(regions))), from, to, ordered });
            at = to + SECOND * 3 / 2;
        }
        // Twice the limit in all, from everywhere or mostly from one region.
        let alone = dice.chance(0.4).then(|| index(dice.below(place(regions))));
        let part = |region: usize| match alone {
            Some(one) if one == region => 0.9,
            Some(_) => 0.1 / float(place(regions - 1)),
            None => 1.0 / float(place(regions)),
        };
        let whole = 2.0 * float(limit) / float(STEPS);
        Self { seed, plan, restarts, demand: (0..regions).map(|region| whole * part(region)).collect() }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        let of = |one: &Restart| {
            let (from, down) = (float(one.from) / float(SECOND), float(one.to - one.from) / float(SECOND));
            let how = if one.ordered { "ends" } else { "dies" };
            format!("r{} {how} after {from:.2} s for {down:.2} s", one.region)
        };
        format!(
            "{} regions, {} by {:?}, longest way {} ms, loss {:.1} %{}: {}",
            self.plan.regions.len(),
            self.plan.rule.limit,
            self.plan.rule.algorithm,
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0,
            if self.plan.suppresses_reports { ", report suppression" } else { "" },
            self.restarts.iter().map(of).collect::<Vec<_>>().join(", ")
        )
    }
}

struct Game<'c> {
    case: &'c RestartsCase,
    world: World,
    dice: Dice,
    /// By region: what all its lives admitted, and what the present one did before it had heard of the
    /// others.
    admitted: Vec<u64>,
    unheard: Vec<u64>,
    asked: u64,
    /// By region: what lives took along, so that nobody will ever know it.
    lost: Vec<u64>,
    /// Permits that no other region knew of when a life was over, and that lives admitted before they had
    /// heard.
    excused: u64,
}

/// Plays a case.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &RestartsCase, care: GossipSafety) -> Result<Summary, String> {
    let mut world = World::new(&case.plan, Way::Gossip).map_err(|error| format!("{error:#}"))?;
    world.keep_to_shares();
    let regions = case.plan.regions.len();
    let mut game = Game {
        case,
        world,
        dice: Dice::new(case.seed, 42),
        admitted: vec![0; regions],
        unheard: vec![0; regions],
        asked: 0,
        lost: vec![0; regions],
        excused: 0,
    };
    for step in 0..STEPS {
        game.world.set_care(care);
        game.restarts(step)?;
        game.demand(step)?;
        game.world.step(STEP);
    }
    game.judge()?;
    Ok(Summary {
        daemons: place(regions),
        frames: game.world.traffic().frames,
        admitted: game.admitted.iter().sum(),
        faults: place(case.restarts.len()),
    })
}

impl Game<'_> {
    fn restarts(&mut self, step: u64) -> Result<(), String> {
        for one in &self.case.restarts {
            let over = if one.ordered { one.from + FAREWELL } else { one.from };
            if one.ordered && step == one.from {
                self.world.end(one.region);
            }
            if step == over {
                let untold = self.untold(one.region);
                if one.ordered && self.case.plan.weather.loss == 0.0 && untold > 0 {
                    return Err(format!("r{} ended and {untold} permits were told to nobody", one.region));
                }
                self.excused += untold;
                if let Some(lost) = self.lost.get_mut(one.region) {
                    *lost += untold;
                }
                self.world.kill(one.region);
            }
            if step == one.to {
                self.world.restart(one.region);
                if let Some(unheard) = self.unheard.get_mut(one.region) {
                    *unheard = 0;
                }
            }
        }
        Ok(())
    }

    /// Returns what a region's life admitted and no other knows.
    fn untold(&self, region: usize) -> u64 {
        let admitted = self.admitted.get(region).copied().unwrap_or(0);
        let Some(of) = self.world.daemons().get(region).map(|daemon| &daemon.name.region) else { return 0 };
        let others = self.world.daemons().iter().filter(|daemon| daemon.name.region != *of);
        let known = others.filter_map(|daemon| {
            let window = self.world.clock(daemon.region).window_index(WINDOW);
            let (_, known) = daemon.node.replica.admitted(&world_key(USER), window)?;
            known.into_iter().find(|(name, _)| name == of).map(|(_, permits)| permits)
        });
        let lost = self.lost.get(region).copied().unwrap_or(0);
        admitted.saturating_sub(lost + known.max().unwrap_or(0))
    }

    fn demand(&mut self, step: u64) -> Result<(), String> {
        let away = |region: usize, one: &Restart| one.region == region && (one.from..one.to).contains(&step);
        for (region, rate) in self.case.demand.iter().enumerate() {
            let count = self.dice.poisson(*rate);
            self.asked += count;
            if self.case.restarts.iter().any(|one| away(region, one)) {
                continue;
            }
            for _ in 0..count {
                if self.world.ask_daemon(region, USER, 1).is_some() {
                    self.count(region, step)?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, region: usize, step: u64) -> Result<(), String> {
        let begun = self.case.restarts.iter().any(|one| one.region == region && one.to <= step);
        let begins =
            self.world.daemons().get(region).is_some_and(|daemon| daemon.node.replica.is_beginning());
        if let Some(admitted) = self.admitted.get_mut(region) {
            *admitted += 1;
        }
        let (limit, regions) = (u64::from(self.case.plan.rule.limit), place(self.case.plan.regions.len()));
        if begun
            && begins
            && let Some(unheard) = self.unheard.get_mut(region)
        {
            *unheard += 1;
            self.excused += 1;
            if *unheard > limit / regions + 1 {
                return Err(format!(
                    "r{region} admitted {unheard} of {limit} before it had heard of the others"
                ));
            }
        }
        Ok(())
    }

    /// No more was admitted than there is, and all of it was of use.
    fn judge(&self) -> Result<(), String> {
        let (sum, limit) = (self.admitted.iter().sum::<u64>(), u64::from(self.case.plan.rule.limit));
        // The permits that may be used at once where budgets change, as in worlds without restarts.
        let slack = (limit / 100).max(4);
        if sum > limit + self.excused + slack {
            let (excused, of) = (self.excused, &self.admitted);
            return Err(format!(
                "{sum} of {limit} permits admitted, by region {of:?}; {excused} are excused"
            ));
        }
        if sum < limit * 9 / 10 {
            let of = &self.admitted;
            return Err(format!(
                "only {sum} of {limit} permits admitted of {} asked for, by region {of:?}",
                self.asked
            ));
        }
        Ok(())
    }
}
