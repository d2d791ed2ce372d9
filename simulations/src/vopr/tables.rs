//! Worlds with fewer places in their tables than buckets in use, in all three modes. The judge sees what
//! clients see: what all regions admit together, what one that has no room is held to, and that a bucket at
//! its limit is never forgotten. Nothing is judged of the windows in which regions begin or cease to keep to
//! their shares and the others cannot know of it yet.

use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::GossipSafety;
use tidegate::core::regions::escrow::EscrowSafety;
use tidegate::core::request::Cost;
use tidegate::core::time::{Span, Timestamp};

use super::play::Summary;
use super::whole::{Held, Play, SECOND, STEP, engines, weather};
use crate::number::{float, index, place};
use crate::plan::{Plan, Way};
use crate::virtual_world::Dice;

/// So long demand lasts.
const STEPS: u64 = 7 * SECOND;
/// Until daemons of all regions have heard whose tables are full, and no reports of before are in force.
const HEARD: Span = Span::from_secs(1);

/// A world whose tables are small.
#[derive(Debug, Clone)]
pub(crate) struct TablesCase {
    held: Held,
    plan: Plan,
    users: u64,
    /// Most buckets in each store.
    store_keys: usize,
    /// Requests of each user in each region in a step, on average.
    demand: Vec<Vec<f64>>,
    /// By region: most buckets that its daemon follows.
    rooms: Vec<usize>,
}

impl TablesCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 71);
        let regions = index(dice.between(2, 4));
        let way = *dice
            .pick(&[Way::Gossip, Way::Gossip, Way::Gossip, Way::Escrow, Way::Escrow, Way::Split])
            .unwrap_or(&Way::Gossip);
        let algorithms: &[Algorithm] = match way {
            Way::Gossip => &[Algorithm::FixedWindow],
            Way::Escrow => &[Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::Gcra],
            _ => &[Algorithm::FixedWindow],
        };
        let limit = u32::try_from(dice.between(4, 40)).unwrap_or(4);
        let held = Held {
            way: Some(way),
            algorithm: dice.pick(algorithms).copied().unwrap_or(Algorithm::FixedWindow),
            limit,
            burst: u32::try_from(u64::from(limit) * dice.between(5, 20) / 10).unwrap_or(limit).max(1),
            window: Span::from_millis(*dice.pick(&[500, 1_000, 2_000]).unwrap_or(&1_000)),
        };
        let users = dice.between(6, 30);
        let weather = weather(&mut dice, regions, 0.05);
        let mut plan = held.plan(seed, regions, weather);
        plan.keys_max = index(dice.between(1, users * 5 / 4));
        let roomy = way == Way::Gossip || dice.chance(0.4);
        let store_keys = if roomy { 10_000 } else { index(dice.between(1, users * 5 / 4)) };
        let alike = dice.chance(0.6);
        let per_step = float(u64::from(limit)) * float(STEP.0) / float(held.window.0);
        let mut part = |alike: bool| match dice.below(4) {
            0 if !alike => 0.0,
            1 => dice.unit(),
            _ => 1.0 + dice.unit() * 3.0,
        };
        let of_user: Vec<f64> = (0..users).map(|_| part(true)).collect();
        let one = |user: &f64| user * per_step / float(place(regions));
        let demand = (0..regions)
            .map(|_| match alike {
                true => of_user.iter().map(one).collect(),
                false => (0..users).map(|_| one(&part(false))).collect(),
            })
            .collect();
        let same = dice.chance(0.6);
        let room = |dice: &mut Dice| index(dice.between(1, users * 3 / 2));
        let rooms = (0..regions).map(|_| if same { plan.keys_max } else { room(&mut dice) }).collect();
        Self { held, plan, users, store_keys, demand, rooms }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}, {} regions asked for {} users, {:?} followed, {} stored, longest way {} ms, loss {:.1} %",
            self.held.describe(),
            self.plan.regions.len(),
            self.users,
            self.rooms,
            self.store_keys,
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0
        )
    }
}

/// The knowledge of one region's answers.
#[derive(Debug, Clone, Default)]
struct Answered {
    /// Since when its answers name its share as the limit.
    keeps: Option<Timestamp>,
    /// When its answers first said whether they do, and each time that this changed.
    changes: Vec<Timestamp>,
    /// By user: the window in which its bucket had nothing left.
    at_limit: Vec<u64>,
}

struct Game<'c> {
    case: &'c TablesCase,
    play: Play,
    regions: Vec<Answered>,
}

/// Plays a case with these rules in force.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &TablesCase, care: GossipSafety, safety: EscrowSafety) -> Result<Summary, String> {
    let rule = case.held.written(&[]);
    let mut engines = engines(&case.plan, &rule);
    engines.store_keys = case.store_keys;
    engines.rooms.clone_from(&case.rooms);
    engines.safety = safety;
    let mut play = Play::new(&case.plan, case.held, engines)?;
    play.world.set_care(care);
    play.settle();
    let region = Answered { keeps: None, changes: Vec::new(), at_limit: vec![0; index(case.users)] };
    let regions = vec![region; case.plan.regions.len()];
    let mut game = Game { case, play, regions };
    for step in 0..STEPS {
        game.turn().map_err(|why| format!("{why}, {} ms after the start", step * STEP.0 / 1_000))?;
    }
    game.judge()?;
    Ok(game.play.summary())
}

impl Game<'_> {
    fn turn(&mut self) -> Result<(), String> {
        let first = index(self.play.dice.below(place(self.regions.len())));
        for region in (0..self.regions.len()).map(|at| (at + first) % self.case.plan.regions.len()) {
            for user in 0..self.case.users {
                let mean = self.case.demand.get(region).and_then(|of| of.get(index(user))).copied();
                for _ in 0..self.play.dice.poisson(mean.unwrap_or(0.0)) {
                    self.request(region, user)?;
                }
            }
        }
        self.play.step();
        for (daemon, most) in self.play.world.daemons().iter().zip(self.case.rooms.iter().copied()) {
            let followed = match self.case.held.way {
                Some(Way::Escrow) => daemon.node.escrow.keys_len(),
                _ => daemon.node.replica.keys_len(),
            };
            if followed > most {
                return Err(format!("{} follows {followed} of {most} buckets", daemon.name.region));
            }
        }
        Ok(())
    }

    fn request(&mut self, region: usize, user: u64) -> Result<(), String> {
        let Some(decision) = self.play.request(region, user, Cost::Take(1)) else { return Ok(()) };
        let Some(ruled) = decision.rules.first() else { return Err("no rule applied".to_owned()) };
        let (now, window) = (self.play.world.now(), self.window());
        let Some(of) = self.regions.get_mut(region) else { return Ok(()) };
        if self.case.held.way == Some(Way::Gossip) {
            let keeps = ruled.limit < self.case.held.limit;
            if of.changes.is_empty() || keeps != of.keeps.is_some() {
                of.changes.push(now);
            }
            of.keeps = if keeps { of.keeps.or(Some(now)) } else { None };
        }
        let Some(at_limit) = of.at_limit.get_mut(index(user)) else { return Ok(()) };
        if !decision.allowed && ruled.remaining == 0 && !ruled.degraded {
            *at_limit = window;
        }
        if decision.allowed
            && self.case.held.way == Some(Way::Split)
            && *at_limit == window
            && !ruled.degraded
        {
            return Err(format!(
                "region {region} admits user {user} again in window {window}, which had nothing left"
            ));
        }
        match self.case.held.way {
            Some(Way::Escrow) => self.play.never_above(user, region)?,
            Some(Way::Split) if !self.has_forgotten() => self.play.never_above(user, region)?,
            Some(Way::Gossip) => self.keeps_to_its_share(region, user)?,
            _ => {}
        }
        Ok(())
    }

    fn window(&self) -> u64 {
        self.play.world.now().window_index(self.case.held.window)
    }

    /// Returns whether a store had to forget a bucket, or to answer without one.
    fn has_forgotten(&self) -> bool {
        let stores = self.play.world.daemons().iter().filter_map(|daemon| daemon.node.engine.as_ref());
        stores.map(|engine| engine.store_len()).any(|len| len.evicted + len.full > 0)
    }

    /// A region that names its share as the limit since before a window began admits no more than that in it.
    fn keeps_to_its_share(&self, region: usize, user: u64) -> Result<(), String> {
        let window = self.window();
        let began = Timestamp::window_start(window, self.case.held.window);
        let keeps = self.regions.get(region).and_then(|of| of.keeps);
        if keeps.is_none_or(|since| since >= began) {
            return Ok(());
        }
        let admitted = self.play.of_window(user, window).get(region).copied().unwrap_or(0);
        let regions = self.regions.len();
        // The permits that do not divide go to the names that sort first.
        let share = self.case.held.part(self.case.held.limit, region, regions);
        if admitted > share {
            return Err(format!("region {region} admits {admitted} of a share of {share} to user {user}"));
        }
        Ok(())
    }

    /// All regions together keep the limit, although they cannot tell each other of all buckets: in each
    /// window in which every one of them kept to its share all the time, or never did.
    fn judge(&self) -> Result<(), String> {
        if self.case.held.way != Some(Way::Gossip) {
            return Ok(());
        }
        let window = self.case.held.window;
        for (&(user, of), by_region) in &self.play.admitted {
            let heard = Timestamp(Timestamp::window_start(of, window).0.saturating_sub(HEARD.0));
            let ends = Timestamp::window_start(of + 1, window);
            let changes = self.regions.iter().flat_map(|region| &region.changes);
            if changes.into_iter().any(|&at| heard <= at && at < ends) {
                continue;
            }
            let (sum, limit) = (by_region.iter().sum::<u64>(), u64::from(self.case.held.limit));
            let slack = (limit / 20).max(place(by_region.len()));
            if sum > limit + slack {
                return Err(format!(
                    "{sum} of {limit} permits admitted to user {user} in window {of}, by region {by_region:?}"
                ));
            }
        }
        Ok(())
    }
}
