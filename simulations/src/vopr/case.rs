//! The choices of a seed: the world, what happens to it, and who asks for what.

use tidegate::core::algorithm::Algorithm;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;
use tidegate::core::wire::OwnLimit;

use super::arrivals::Arrivals;
use crate::model::node::OwnLimits;
use crate::model::shell::windowed;
use crate::number::index;
use crate::pattern::Pattern;
use crate::plan::{Demand, Plan, Region, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

/// The time by which a step moves.
pub(crate) const STEP: Span = Span::from_millis(5);
/// A window that does not end during a run, so that all that was counted stays comparable.
const ENDLESS: Span = Span::from_secs(100_000);

/// In so long a larger share of a bucket without windows has come into force, if it refills in a few seconds.
const LONG: Span = Span::from_secs(90);

/// A world and its fate.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) way: Way,
    /// Steps with faults, and steps of peace after them.
    pub(crate) safety_steps: u64,
    pub(crate) liveness_steps: u64,
    /// For so long nothing happens in between.
    pub(crate) silence: Span,
    pub(crate) faults: FaultRates,
    /// Requests of each daemon in one step, on average, while it is busy.
    pub(crate) eagerness: f64,
    pub(crate) cost_max: u64,
    /// Users' own limits to begin with.
    pub(crate) own: OwnLimits,
    /// Clients that ask, and when; `None`: daemons are idle, busy or flooded by chance.
    pub(super) arrivals: Option<Arrivals>,
    /// Time that a request waits for rights; zero: it does not.
    pub(super) wait: Span,
    /// Nothing is lost or late and clocks agree: what the theory promises must hold exactly.
    pub(crate) calm: bool,
}

/// The probabilities of what may happen in a step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FaultRates {
    pub(crate) cut: f64,
    pub(crate) crash: f64,
    pub(crate) store_lost: f64,
    pub(crate) clock: f64,
    pub(crate) reload: f64,
    /// Probability of a reload that brings another limit.
    pub(crate) limit: f64,
    /// Probability of a user's own limit that changes, or of a daemon that hears of those of all.
    pub(crate) own: f64,
    /// Farthest that a clock is ever off, in microseconds.
    pub(crate) clock_max: u64,
}

/// The kind of world that is to be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Focus {
    /// Anything.
    All,
    /// Rights that move inside windows.
    Rights,
    /// Rights of buckets without windows.
    Levels,
    /// Sliding buckets, whose rights do not move.
    Sliding,
    /// Rights that requests wait for.
    Waits,
    /// Regions that admit nothing while one is cut off.
    Denial,
}

impl Case {
    /// The case of a seed.
    pub(crate) fn draw(seed: u64, focus: Focus) -> Self {
        Self::fourth(seed, focus)
    }

    /// The same under a name that stays, whatever is drawn later.
    pub(crate) fn fourth(seed: u64, focus: Focus) -> Self {
        Self::third(seed, focus).with_shapes(focus)
    }

    /// The same as it was drawn before [`Self::with_shapes`].
    pub(crate) fn third(seed: u64, focus: Focus) -> Self {
        Self::second(seed, focus).with_own()
    }

    /// The same as it was drawn before [`Self::with_own`].
    pub(crate) fn second(seed: u64, focus: Focus) -> Self {
        Self::first(seed, focus).with_more()
    }

    /// The same as it was drawn before [`Self::with_more`]: what older seeds mean.
    pub(crate) fn first(seed: u64, focus: Focus) -> Self {
        let mut dice = Dice::new(seed, 11);
        let way = match (focus, dice.below(100)) {
            (Focus::Rights | Focus::Levels | Focus::Sliding | Focus::Waits, _) => Way::Escrow,
            (Focus::Denial, _) => Way::Gossip,
            (_, 0..45) => Way::Escrow,
            (_, 45..85) => Way::Gossip,
            _ => Way::Split,
        };
        let regions = index(dice.between(2, 5));
        let calm = focus == Focus::All && way == Way::Gossip && dice.chance(0.3);
        let rule = rule(&mut dice, way, focus, calm);
        let shared_store = dice.chance(0.5);
        let weather = weather(&mut dice, regions, calm);
        let bucket = !windowed(rule.algorithm);
        let forgets = dice.chance(0.8);
        let reloads = way != Way::Escrow && !calm && dice.chance(0.8);
        let clock_max = match way {
            _ if calm || bucket => 0,
            // Nothing about exactness depends on clocks, but for one margin: a memory that is lost must not
            // have been ahead of the next one by more than a second.
            Way::Escrow if forgets => 400_000,
            // And another: a share that grows takes clocks for less than two seconds apart.
            Way::Split if reloads => 900_000,
            Way::Escrow | Way::Split => 3_000_000,
            _ => 20_000,
        };
        let mut plan = plan(&mut dice, seed, (regions, rule, weather));
        plan.shared_store = shared_store;
        for region in &mut plan.regions {
            region.daemons = if dice.chance(0.7) { 1 } else { index(dice.between(2, 3)) };
            if way != Way::Gossip && dice.chance(0.5) {
                region.weight = u32::try_from(dice.between(0, 5)).unwrap_or(1);
            }
            let ahead = i64::try_from(dice.below(clock_max + 1)).unwrap_or(0);
            region.ahead = if dice.chance(0.5) { ahead } else { -ahead };
            region.drift_ppm =
                if clock_max > 0 { i64::try_from(dice.between(0, 400)).unwrap_or(0) - 200 } else { 0 };
        }
        if plan.regions.iter().all(|region| region.weight == 0) {
            plan.regions.iter_mut().for_each(|region| region.weight = 1);
        }
        let rate = |dice: &mut Dice, most: f64| if calm { 0.0 } else { dice.unit() * most };
        let faults = FaultRates {
            // Some worlds hang together all the time, so that what only a cut explains is noticed in them.
            cut: if dice.chance(0.8) { rate(&mut dice, 0.01) } else { 0.0 },
            crash: if forgets { rate(&mut dice, 0.008) } else { 0.0 },
            store_lost: if forgets { rate(&mut dice, 0.005) } else { 0.0 },
            clock: if clock_max > 0 { rate(&mut dice, 0.003) } else { 0.0 },
            reload: if reloads { rate(&mut dice, 0.004) } else { 0.0 },
            limit: if way == Way::Gossip || !bucket { dice.unit() * 0.5 } else { 0.0 },
            own: 0.0,
            clock_max,
        };
        Self {
            seed,
            way,
            safety_steps: dice.between(300, 1_000),
            liveness_steps: match way {
                // A share that grows waits for a window that no clock has reached.
                Way::Split => 1_100,
                // A memory that begins while its clock is ahead burns for that much longer once the clock is
                // set right.
                Way::Escrow if forgets && !bucket => 800,
                _ => 600,
            },
            silence: Span::ZERO,
            faults,
            eagerness: dice.unit() * dice.unit() * 6.0,
            cost_max: match focus {
                // Costs that are larger than a region's share of a burst.
                Focus::Levels if dice.chance(0.6) => {
                    u64::from(plan.rule.burst) * dice.between(3, 10) / 10 + 1
                }
                _ if dice.chance(0.7) => 1,
                _ => dice.between(2, 30),
            },
            own: OwnLimits::new(),
            arrivals: None,
            wait: Span::ZERO,
            calm,
            plan,
        }
    }

    /// With what is drawn since the first of the seeds were kept: shares and limits that change under
    /// `escrow`, clocks that are off where there are no windows, and buckets of which little is told.
    fn with_more(mut self) -> Self {
        let mut dice = Dice::new(self.seed, 13);
        let bucket = !windowed(self.plan.rule.algorithm);
        match self.way {
            Way::Escrow if dice.chance(0.5) => {
                self.faults.reload = dice.unit() * 0.004;
                self.faults.limit = if bucket || dice.chance(0.5) { 0.0 } else { dice.unit() * 0.5 };
                self.liveness_steps = self.liveness_steps.max(1_100);
                // Without windows a share grows when all that was on its way has come.
                // And it takes clocks for less than two seconds apart.
                self.faults.clock_max = self.faults.clock_max.min(900_000);
                for region in &mut self.plan.regions {
                    region.ahead = region.ahead.clamp(-900_000, 900_000);
                }
                self.silence = if bucket && dice.chance(0.1) { LONG } else { Span::ZERO };
            }
            Way::Gossip => self.plan.suppresses_reports = dice.chance(0.5),
            _ => {}
        }
        if bucket && !self.calm && dice.chance(0.5) {
            self.faults.clock_max = if self.way == Way::Gossip { 20_000 } else { 400_000 };
            self.faults.clock = dice.unit() * 0.003;
            for region in &mut self.plan.regions {
                let ahead = i64::try_from(dice.below(self.faults.clock_max + 1)).unwrap_or(0);
                region.ahead = if dice.chance(0.5) { ahead } else { -ahead };
                region.drift_ppm = i64::try_from(dice.between(0, 400)).unwrap_or(0) - 200;
            }
        }
        self
    }

    /// With what is drawn since the second: users with limits of their own, which change while all runs.
    /// Without windows a curve is judged that does not change, but under `gossip`.
    fn with_own(mut self) -> Self {
        let mut dice = Dice::new(self.seed, 17);
        if dice.chance(0.5) {
            return self;
        }
        let bucket = !windowed(self.plan.rule.algorithm);
        for user in 0..self.plan.demand.users {
            if dice.chance(0.6) {
                self.own.insert(user, own_limit(&mut dice, bucket));
            }
        }
        if !self.calm && (!bucket || self.way == Way::Gossip) && dice.chance(0.6) {
            self.faults.own = dice.unit() * 0.01;
        }
        self
    }

    /// With what is drawn since the third: demand that comes and goes by families of patterns, sliding
    /// algorithms where regions have shares, requests that wait for rights, and regions that deny all while
    /// one is cut off.
    fn with_shapes(mut self, focus: Focus) -> Self {
        let mut dice = Dice::new(self.seed, 19);
        if dice.chance(0.6) {
            let daemons = self.plan.regions.iter().map(|region| region.daemons).sum();
            self.arrivals = Some(Arrivals::draw(&mut dice, daemons, self.plan.demand.users));
        }
        let fixed = self.plan.rule.algorithm == Algorithm::FixedWindow;
        let drawn = dice.unit();
        match (focus, self.way) {
            (Focus::Sliding, _) => self.slide(&mut dice),
            (Focus::All, Way::Escrow | Way::Split) if fixed && drawn < 0.4 => self.slide(&mut dice),
            (Focus::Waits, _) => self.wait = Span::from_millis(dice.between(5, 150) * 10),
            (Focus::All, Way::Escrow) if fixed && drawn < 0.7 => {
                self.wait = Span::from_millis(dice.between(5, 150) * 10);
            }
            (Focus::Denial, _) => self.plan.rule.on_partition = OnPartition::Deny,
            (Focus::All, Way::Gossip) if !self.calm && drawn < 0.3 => {
                self.plan.rule.on_partition = OnPartition::Deny;
            }
            _ => {}
        }
        self
    }

    /// Takes a sliding algorithm.
    fn slide(&mut self, dice: &mut Dice) {
        let algorithms = [Algorithm::SlidingWindow, Algorithm::SlidingLog];
        self.plan.rule.algorithm = dice.pick(&algorithms).copied().unwrap_or(Algorithm::SlidingLog);
        // A larger share waits for two windows by a clock that is not set meanwhile. Under `split` a store
        // may forget what was over when its clock goes back.
        if self.way == Way::Split || self.faults.reload > 0.0 {
            self.faults.clock = 0.0;
        }
        // A memory that begins is closed for two windows and a second, and a share grows after two windows.
        let closed = self.plan.rule.window.0 * 2 + Span::from_secs(4).0;
        self.liveness_steps = self.liveness_steps.max(closed / STEP.0 + 1);
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        let rule = &self.plan.rule;
        let more = match (&self.arrivals, self.wait) {
            (Some(arrivals), Span::ZERO) => format!(", {}", arrivals.describe()),
            (Some(arrivals), wait) => format!(", {}, waits of {} ms", arrivals.describe(), wait.0 / 1_000),
            (None, Span::ZERO) => String::new(),
            (None, wait) => format!(", waits of {} ms", wait.0 / 1_000),
        };
        format!(
            "{}, {} regions with {} daemons, {} per {} ms by {:?}{}, longest way {} ms, loss {:.0} %{}{}{}{}{more}",
            self.way.title(),
            self.plan.regions.len(),
            self.plan.regions.iter().map(|region| region.daemons).sum::<usize>(),
            rule.limit,
            rule.window.0 / 1_000,
            rule.algorithm,
            if rule.on_partition == OnPartition::Deny { ", Deny" } else { "" },
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0,
            if self.calm { ", calm" } else { "" },
            if self.faults.reload > 0.0 { ", reloads" } else { "" },
            if self.faults.clock > 0.0 { ", clocks" } else { "" },
            match (self.plan.suppresses_reports, self.own.is_empty()) {
                (true, true) => ", report suppression",
                (true, false) => ", report suppression, own limits",
                (false, true) => "",
                (false, false) => ", own limits",
            }
        )
    }

    /// Returns whether windows end during the run.
    pub(crate) fn endless(&self) -> bool {
        self.plan.rule.window == ENDLESS
    }
}

/// A limit between one permit and ten thousand; small ones are the hard ones.
pub(super) fn limit(dice: &mut Dice) -> u32 {
    let limit = match dice.below(4) {
        0 => dice.between(1, 6),
        1 => dice.between(6, 60),
        2 => dice.between(60, 1_000),
        _ => dice.between(1_000, 10_000),
    };
    u32::try_from(limit).unwrap_or(1)
}

/// A user's own.
pub(super) fn own_limit(dice: &mut Dice, bucket: bool) -> OwnLimit {
    let permits = limit(dice);
    let burst = if bucket { u32::try_from(dice.between(1, 2_000)).unwrap_or(1) } else { permits };
    OwnLimit { permits, burst, queue: 0 }
}

fn rule(dice: &mut Dice, way: Way, focus: Focus, calm: bool) -> RulePlan {
    let limit = limit(dice);
    let endless = way == Way::Gossip && focus != Focus::Denial && !calm && dice.chance(0.4);
    let window = if endless { ENDLESS } else { Span::from_millis(dice.between(20, 200) * 10) };
    let any = matches!(focus, Focus::All | Focus::Denial);
    let bucket = focus == Focus::Levels || any && !endless && !calm && dice.chance(0.4);
    let buckets = [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket];
    let windows = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];
    let algorithm = match way {
        Way::Escrow if bucket => dice.pick(&buckets[..2]).copied(),
        _ if bucket => dice.pick(&buckets).copied(),
        Way::Gossip => dice.pick(&windows).copied(),
        _ => None,
    };
    let algorithm = algorithm.unwrap_or(Algorithm::FixedWindow);
    let on_partition = [OnPartition::Ignore, OnPartition::Share, OnPartition::Freeze, OnPartition::LastKnown];
    RulePlan {
        limit,
        window,
        algorithm,
        burst: if bucket { u32::try_from(dice.between(1, 2_000)).unwrap_or(1) } else { limit },
        on_partition: dice.pick(&on_partition).copied().unwrap_or_default(),
        wait: Span::from_millis(100),
    }
}

fn weather(dice: &mut Dice, regions: usize, calm: bool) -> Weather {
    let most = *dice.pick(&[5_000, 50_000, 150_000]).unwrap_or(&50_000);
    let row = |dice: &mut Dice| (0..regions).map(|_| Span(dice.between(500, most))).collect();
    let delay = (0..regions).map(|_| row(dice)).collect();
    if calm {
        return Weather { delay, jitter: 0.05, loss: 0.0, double: 0.0, reorder: 0.0 };
    }
    Weather {
        delay,
        jitter: dice.unit(),
        loss: dice.unit() * dice.unit() * 0.5,
        double: dice.unit() * 0.3,
        reorder: dice.unit() * 0.3,
    }
}

fn plan(dice: &mut Dice, seed: u64, (regions, rule, weather): (usize, RulePlan, Weather)) -> Plan {
    // The arrivals are drawn in `play`: patterns are for measuring.
    let pattern = Pattern::balanced(regions);
    Plan {
        name: format!("seed {seed}"),
        about: String::new(),
        regions: (0..regions).map(Region::numbered).collect(),
        rule,
        weather,
        demand: Demand { pattern, users: dice.between(1, 6), zipf: 1.0, cost: 1, retry: false },
        faults: Vec::new(),
        ways: Vec::new(),
        length: Span::from_secs(10),
        step: STEP,
        seed,
        interval: Span::from_millis(dice.between(10, 200)),
        shared_store: false,
        cluster: false,
        gateway: crate::plan::GatewayKind::Direct,
        database: false,
        keys_max: 50,
        store_keys_max: None,
        // The truth of every bucket is asked for in the end, also of those that nobody need know.
        suppresses_reports: false,
    }
}
