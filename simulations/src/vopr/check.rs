//! The invariants, and the books that they are held against.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::core::algorithm::{Algorithm, Counting};
use tidegate::core::regions::escrow::{Ledger, StepResult};
use tidegate::core::rule::Mode;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::rights::RightKind;

use super::case::{Case, STEP};
use super::intervals::Intervals;
use super::play::{Game, Truth};
use super::serves::everyone_serves;
use crate::model::Model;
use crate::model::daemons::{Daemon, World};
use crate::model::shell::{mode, windowed, world_key};
use crate::number::{float, place, seconds};
use crate::plan::Way;

/// Steps between two looks at what is dear to look at.
const LOOK_STEPS: u64 = 10;
/// Looks for which all must have had the same horizon before their budgets have to add up: two seconds.
const AGREED_LOOKS: u64 = 40;
/// Messages under way at once, at most, for each daemon: an endless flood would pass any number.
const FLYING_MAX: usize = 2_000;
/// Reports that may wait for one peer: more than there are users and windows.
const BACKLOG_MAX: usize = 500;
/// So many times over a bucket must have refilled in the quiet at the end before it has to be full again.
const REFILLS: u128 = 30;

/// A user whom nobody knows, so that the rule's limit holds.
const NOBODY: u64 = u64::MAX;
/// For so long after a user's own limit was changed regions that are not asked may not have heard of it.
const ON_ITS_WAY: Span = Span::from_secs(5);
/// Permits that were lent of a larger limit may be used for so long and two windows more.
const LENT: Span = Span::from_secs(62);

/// The permits that were really admitted.
#[derive(Debug)]
pub(crate) struct Books {
    /// By user: the largest limit that any daemon holds now. Whom nobody knows has [`NOBODY`]'s.
    limits: BTreeMap<u64, u64>,
    /// Larger ones that were held until then.
    before: Vec<(Timestamp, u64, u64)>,
    /// When the operators last gave a user another limit, or none.
    given: BTreeMap<u64, Timestamp>,
    /// For so long after one was held it may still be, elsewhere.
    lasts: Span,
    clock_max: Span,
    exact: bool,
    windowed: bool,
    /// By region, user and window: what was admitted, and how much of it a crash may have taken along untold.
    pub(crate) truth: Truth,
    /// By daemon: what may be untold yet.
    untold: BTreeMap<(usize, u64, u64), (usize, u64)>,
    /// By user and window: what all stores remember to have admitted, and the largest limit that was in
    /// force.
    pub(super) world: BTreeMap<(u64, u64), (u64, u64)>,
    /// Permits that stores forgot, by region, user and window.
    forgotten: BTreeMap<(usize, u64, u64), u64>,
    /// Regions that have lost a store.
    lost: BTreeSet<usize>,
    levels: BTreeMap<u64, (f64, Timestamp)>,
    /// Permits in a second, and at once, by user.
    curves: BTreeMap<u64, (f64, f64)>,
    /// Intervals of sliding buckets that have shares.
    intervals: Option<Intervals>,
}

/// Returns whether a bucket that is lost begins full again, so that a lost store is a burst more that the
/// books cannot tell from an error: `split` without windows.
pub(crate) fn starts_full(case: &Case) -> bool {
    case.way == Way::Split && !windowed(case.plan.rule.algorithm)
}

impl Books {
    pub(crate) fn new(case: &Case) -> Self {
        let rule = &case.plan.rule;
        let fastest = case.plan.regions.iter().map(|region| region.drift_ppm).max().unwrap_or(0).max(0);
        let drift = 1.0 + float(fastest.unsigned_abs()) / 1e6;
        let windowed = windowed(rule.algorithm);
        let users = || (0..case.plan.demand.users).chain([NOBODY]);
        let own = |user: &u64| case.own.get(user);
        let limit = |user| u64::from(own(&user).map_or(rule.limit, |own| own.permits));
        let curve = |user| {
            let (permits, burst) =
                own(&user).map_or((rule.limit, rule.burst), |own| (own.permits, own.burst));
            (f64::from(permits) / seconds(rule.window) * drift, f64::from(burst))
        };
        Self {
            limits: users().map(|user| (user, limit(user))).collect(),
            before: Vec::new(),
            given: BTreeMap::new(),
            lasts: match case.way {
                Way::Escrow if Intervals::judges(rule.algorithm) => LENT,
                _ if case.faults.own > 0.0 => ON_ITS_WAY,
                _ => Span::ZERO,
            },
            clock_max: Span(case.faults.clock_max),
            // A bucket that is lost with its daemon begins full again, unless rights are burnt.
            exact: match case.way {
                Way::Gossip => false,
                Way::Split => windowed || case.faults.crash == 0.0,
                _ => true,
            },
            windowed,
            truth: Truth::new(),
            untold: BTreeMap::new(),
            world: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            lost: BTreeSet::new(),
            levels: BTreeMap::new(),
            curves: users().map(|user| (user, curve(user))).collect(),
            intervals: (case.way != Way::Gossip && Intervals::judges(rule.algorithm))
                .then(|| Intervals::new(case.way != Way::Split, rule.algorithm, rule.window)),
        }
    }

    /// Time has passed, or a clock was set.
    pub(crate) fn follow(&mut self, world: &World) {
        if let Some(intervals) = &mut self.intervals {
            intervals.follow(world);
        }
    }

    /// Takes note of an admission, and judges it.
    pub(crate) fn admitted(
        &mut self,
        world: &World,
        (at, region): (usize, usize),
        user: u64,
        (window, cost): (u64, u64),
    ) -> Result<(), String> {
        self.truth.entry((region, user, window)).or_default().0 += cost;
        let untold = self.untold.entry((at, user, window)).or_insert((region, 0));
        untold.1 += cost;
        if !self.windowed {
            return self.arrival_curve(world.now(), user, cost);
        }
        let length = world.plan.rule.window;
        let two_back = Timestamp(world.now().0.saturating_sub(length.0 * 2));
        let counts =
            if self.intervals.is_some() { two_back } else { Timestamp::window_start(window, length) };
        let most = self.largest_since(user, counts);
        if let Some(intervals) = &mut self.intervals {
            self.world.entry((user, window)).or_default().0 += cost;
            return intervals.admitted(world, region, (user, cost), most);
        }
        let (sum, limit) = self.world.entry((user, window)).or_default();
        *sum += cost;
        *limit = most.max(*limit);
        if self.exact && *sum > *limit {
            let (sum, limit) = (*sum, *limit);
            let of = |region| self.truth.get(&(region, user, window)).map_or(0, |&(admitted, _)| admitted);
            let by_region: Vec<u64> = (0..world.plan.regions.len()).map(of).collect();
            return Err(format!(
                "{sum} permits admitted of {limit} in window {window} of user {user}, by region {by_region:?}"
            ));
        }
        Ok(())
    }

    /// The operators gave a user another limit. A region that is not asked may not have heard of it, and goes
    /// by the rule's.
    pub(crate) fn gave(&mut self, world: &World, user: u64) {
        self.given.insert(user, world.now());
        self.before.push((world.now(), user, world.largest_limit(NOBODY)));
    }

    /// Daemons have other rules now, or know of other limits of users.
    pub(crate) fn reloaded(&mut self, world: &World) {
        for (user, at) in &self.given {
            if *at + self.lasts >= world.now() {
                self.before.push((world.now(), *user, world.largest_limit(NOBODY)));
            }
        }
        for (user, limit) in &mut self.limits {
            let now = world.largest_limit(*user);
            if now < *limit {
                self.before.push((world.now(), *user, *limit));
            }
            *limit = now;
        }
    }

    fn known(&self, user: u64) -> u64 {
        if self.limits.contains_key(&user) { user } else { NOBODY }
    }

    /// The largest limit that was held for a user at any time since an instant by any region's clock: rights
    /// that were minted under it are there until their window ends.
    fn largest_since(&self, user: u64, start: Timestamp) -> u64 {
        let user = self.known(user);
        let since = Timestamp(start.0.saturating_sub(self.clock_max.0 * 2 + self.lasts.0));
        let before = self.before.iter().filter(|(until, of, _)| *until >= since && *of == user);
        let now = self.limits.get(&user).copied().unwrap_or(0);
        before.map(|(.., limit)| *limit).max().unwrap_or(0).max(now)
    }

    /// Permits in a second, and at once.
    fn curve(&self, user: u64) -> (f64, f64) {
        self.curves.get(&self.known(user)).copied().unwrap_or_default()
    }

    /// A region's store forgot everything: what it had admitted of its share it may admit again, except where
    /// rights are burnt instead.
    pub(crate) fn lost_store(&mut self, case: &Case, region: usize) {
        self.lost.insert(region);
        if case.way == Way::Split {
            self.forgets(region, u64::MAX);
            if let Some(intervals) = &mut self.intervals {
                intervals.forget(region);
            }
        }
    }

    /// A region's clock goes back: its store may have forgotten every window that was over.
    pub(crate) fn clock_back(&mut self, case: &Case, region: usize, before: Timestamp) {
        if case.way == Way::Split {
            self.forgets(region, before.window_index(case.plan.rule.window));
        }
    }

    /// A region's clock goes ahead: of a bucket without windows it has now what would have refilled in that
    /// time, its whole share of it at most.
    pub(crate) fn clock_ahead(&mut self, by: Span) {
        if self.windowed {
            return;
        }
        let users: Vec<u64> = self.levels.keys().copied().collect();
        for user in users {
            let (rate, burst) = self.curve(user);
            if let Some((tokens, _)) = self.levels.get_mut(&user) {
                *tokens = (*tokens + rate * seconds(by)).min(burst);
            }
        }
    }

    /// The permits that a region admitted before this window count no longer.
    fn forgets(&mut self, region: usize, end: u64) {
        let admitted = self.truth.range((region, 0, 0)..(region + 1, 0, 0));
        for (&(_, user, window), &(admitted, _)) in admitted.filter(|((.., window), _)| *window < end) {
            let forgotten = self.forgotten.entry((region, user, window)).or_default();
            if let Some((sum, _)) = self.world.get_mut(&(user, window)) {
                *sum -= admitted - *forgotten;
            }
            *forgotten = admitted;
        }
    }

    fn arrival_curve(&mut self, now: Timestamp, user: u64, cost: u64) -> Result<(), String> {
        let (rate, burst) = self.curve(user);
        let (tokens, since) = self.levels.entry(user).or_insert((burst, now));
        *tokens = (*tokens + rate * seconds(now.since(*since))).min(burst) - float(cost);
        *since = now;
        // Time moves in steps, and each region's clock rounds to a microsecond.
        let slack = 1e-3 + rate * 1e-5;
        if self.exact && *tokens < -slack {
            return Err(format!("user {user} is {:.3} permits above the arrival curve", -*tokens));
        }
        Ok(())
    }

    /// A daemon is gone, and with it what it had not told.
    pub(crate) fn lost_daemon(&mut self, at: usize) {
        let lost: Vec<_> =
            self.untold.range((at, 0, 0)..(at + 1, 0, 0)).map(|(name, count)| (*name, *count)).collect();
        for ((_, user, window), (region, count)) in lost {
            self.truth.entry((region, user, window)).or_default().1 += count;
            self.untold.remove(&(at, user, window));
        }
    }

    /// The latest that a region's clock ever showed, where that matters to what is judged; zero otherwise.
    fn latest_shown(&self, region: usize) -> Timestamp {
        self.intervals.as_ref().map_or(Timestamp(0), |intervals| intervals.latest_shown(region))
    }

    pub(crate) fn admitted_in_all(&self) -> u64 {
        self.truth.values().map(|(admitted, _)| admitted).sum()
    }
}

/// Checks what must hold after every step.
pub(crate) fn at_a_step(game: &mut Game<'_>, step: u64) -> Result<(), String> {
    match game.case.way {
        Way::Escrow => rights(game)?,
        Way::Split => shares(game)?,
        _ => {}
    }
    if step.is_multiple_of(LOOK_STEPS) {
        bounds(game)?;
        if game.case.calm {
            game.agreed_looks = if horizons_agree(game) { game.agreed_looks + 1 } else { 0 };
            if game.agreed_looks > AGREED_LOOKS {
                budgets(game)?;
            } else {
                game.late_before = game.world.late_reports();
            }
        }
    }
    Ok(())
}

/// No right is created or doubled: what was taken was given, and all that may be spent in a window fits its
/// limit. Without windows, all that lies in levels and may be under way fits the burst.
fn rights(game: &Game<'_>) -> Result<(), String> {
    let world = &game.world;
    let names: Vec<&str> = world.plan.regions.iter().map(|region| region.name.as_str()).collect();
    let changes = game.case.faults.reload > 0.0 || game.case.faults.own > 0.0;
    for user in game.users() {
        let key = world_key(user);
        let balances: Vec<Option<StepResult>> = (0..names.len())
            .map(|region| {
                let daemon = world.daemons().iter().find(|daemon| daemon.region == region)?;
                // By a clock that was set back more of what slides counts, of which nothing is left.
                let now = world.clock(region).max(game.books.latest_shown(region));
                daemon.node.books.rights(|vaults| vaults.balance(&key, now))
            })
            .collect();
        let level = world.plan.rule.algorithm.counting() == Counting::Level;
        let newest = balances.iter().flatten().map(|balance| balance.ledger.kind()).max();
        let mut budgets = 0;
        for (one, balance) in balances.iter().enumerate() {
            let Some(balance) = balance else { continue };
            budgets += match &balance.ledger {
                // The rights that one keeps of another's are charged there. The others take no more than the
                // share at once of what was under way when a share shrank.
                Ledger::Level(ledger) => {
                    let charged = ledger.charged();
                    let charged = if changes { charged.min(ledger.minted) } else { charged };
                    (balance.free() + charged).saturating_sub(ledger.kept())
                }
                ledger if Some(ledger.kind()) == newest => ledger.budget(),
                _ => 0,
            };
            // A share that has just shrunk may have more used already.
            if balance.used > balance.ledger.budget() && !changes {
                return Err(format!(
                    "{} used {} of {} rights",
                    names[one],
                    balance.used,
                    balance.ledger.budget()
                ));
            }
            for taken in balance.ledger.taken() {
                let Some(giver) = names.iter().position(|name| *name == taken.region) else {
                    return Err(format!("rights came from nowhere: {}", taken.region));
                };
                let Some(other) = balances.get(giver).and_then(Option::as_ref).map(|other| &other.ledger)
                else {
                    continue;
                };
                if other.kind() != balance.ledger.kind() || other.session() != taken.session {
                    continue;
                }
                // It was borrowed from a memory that is lost, and the next one has not counted it.
                let places = balance.ledger.as_places().and_then(|places| places.partner(taken.region));
                if places.is_some_and(|partner| partner.is_uncounted) {
                    continue;
                }
                let given = other.given_to(names[one], balance.ledger.session());
                if taken.permits > given {
                    return Err(format!(
                        "{} took {} of {given} rights that {} gave",
                        names[one], taken.permits, names[giver]
                    ));
                }
            }
        }
        let newest = match newest {
            Some(RightKind::Window(window)) => window,
            Some(RightKind::Level | RightKind::Places) | None => 0,
        };
        let start = Timestamp::window_start(newest, world.plan.rule.window);
        let burst = || game.case.own.get(&user).map_or(world.plan.rule.burst, |own| own.burst);
        let most = if level { u64::from(burst()) } else { game.books.largest_since(user, start) };
        if budgets > most {
            return Err(format!("budgets of user {user} add up to {budgets} of {most}"));
        }
    }
    Ok(())
}

/// Shares never add up to more than the limit, in the middle of any change.
fn shares(game: &Game<'_>) -> Result<(), String> {
    let world = &game.world;
    let of_region = |region: usize| {
        let daemons = world.daemons().iter().filter(|daemon| daemon.region == region && daemon.alive);
        daemons
            .filter_map(|daemon| daemon.node.share())
            .map(|limit| u64::from(limit.permits))
            .max()
            .unwrap_or(0)
    };
    let sum: u64 = (0..world.plan.regions.len()).map(of_region).sum();
    let limit = world.largest_limit(NOBODY);
    if sum > limit {
        return Err(format!("shares add up to {sum} of {limit}"));
    }
    Ok(())
}

/// Tables and queues stay within their bounds.
fn bounds(game: &Game<'_>) -> Result<(), String> {
    let world = &game.world;
    let flying = world.network().flying().len();
    if flying > FLYING_MAX * world.daemons().len() {
        return Err(format!("{flying} messages are under way"));
    }
    for daemon in world.daemons().iter().filter(|daemon| daemon.alive) {
        let now = world.clock(daemon.region);
        let keys = match game.case.way {
            Way::Escrow => {
                let status = daemon.node.escrow.status(now);
                if status.backlog > BACKLOG_MAX * world.daemons().len() {
                    return Err(format!("{} statements wait", status.backlog));
                }
                status.keys_len
            }
            _ => {
                let status = daemon.node.replica.status(now);
                if let Some(peer) = status.peers.iter().find(|peer| peer.backlog > BACKLOG_MAX) {
                    return Err(format!("{} reports wait for {}", peer.backlog, peer.name.node));
                }
                status.keys_len
            }
        };
        if keys > world.plan.keys_max {
            return Err(format!("{keys} buckets are followed; the bound is {}", world.plan.keys_max));
        }
    }
    Ok(())
}

/// Returns whether all wait equally long before they use a report: what the lemma below takes for granted.
fn horizons_agree(game: &Game<'_>) -> bool {
    let world = &game.world;
    let horizon = |at: usize| {
        let daemon = world.daemons().get(at)?;
        Some(daemon.node.replica.status(world.clock(daemon.region)).horizon)
    };
    let first = horizon(0);
    (1..world.daemons().len()).all(|at| horizon(at) == first)
}

/// Checks that, if every report came in time, the budgets of a window add up to the limit, or to what was
/// admitted before anyone could know (Lemma 1). Each region acts on a cut at a tick of its own, so between
/// two ticks those of before and after may stand beside each other: what is too much at one look must be gone
/// at the next. For a `sliding_log` each region reckons what still counts of the window before by what it has
/// heard by then, so there they may differ by a twentieth.
fn budgets(game: &mut Game<'_>) -> Result<(), String> {
    let before = std::mem::take(&mut game.over_budget);
    let world = &game.world;
    if world.late_reports() > game.late_before || world.daemons().len() > world.plan.regions.len() {
        return Ok(());
    }
    for user in game.users() {
        let limit = world.largest_limit(user);
        let key = world_key(user);
        let views = world.daemons().iter().filter_map(|daemon| {
            let now = world.clock(daemon.region);
            daemon.node.replica.bucket(now, &key)?.view?.as_window().copied()
        });
        let views: Vec<_> = views.collect();
        let Some(window) = views.iter().map(|view| view.window).max() else { continue };
        if views.len() < world.daemons().len() || views.iter().any(|view| view.window != window) {
            continue;
        }
        let sum: u64 = views.iter().map(|view| u64::from(view.budget)).sum();
        let admitted = game.books.world.get(&(user, window)).map_or(0, |&(admitted, _)| admitted);
        let differ = match world.plan.rule.algorithm {
            Algorithm::SlidingLog => limit / 20 + place(world.plan.regions.len()),
            _ => 0,
        };
        let sum = sum.saturating_sub(differ);
        if sum > limit.max(admitted) && !before.contains(&user) {
            game.over_budget.push(user);
        } else if sum > limit.max(admitted) {
            let budgets: Vec<u32> = views.iter().map(|view| view.budget).collect();
            return Err(format!(
                "budgets {budgets:?} of user {user} add up to {sum} of {limit}; {admitted} are admitted"
            ));
        }
    }
    Ok(())
}

/// Checks what must hold once there has been peace for a while.
pub(crate) fn at_the_end(game: &mut Game<'_>) -> Result<(), String> {
    if game.world.refused() > 0 {
        return Err(format!("{} honest frames were refused", game.world.refused()));
    }
    if game.case.way == Way::Gossip {
        all_are_heard(game)?;
        if game.case.endless() || !windowed(game.case.plan.rule.algorithm) {
            counts_are_true(game)?;
        }
    }
    refilled_serves(game)?;
    everyone_serves(game)
}

fn all_are_heard(game: &Game<'_>) -> Result<(), String> {
    let world = &game.world;
    for daemon in world.daemons() {
        let status = daemon.node.replica.status(world.clock(daemon.region));
        if let Some(region) = status.regions.iter().find(|region| region.cut_off) {
            return Err(format!(
                "{} of {} still takes {} for cut off",
                daemon.name.node, daemon.name.region, region.name
            ));
        }
    }
    Ok(())
}

/// Everyone believes the same of every region, and that is the truth: exactly, but for what a crash may have
/// taken along, and where little is told within the error bound.
fn counts_are_true(game: &Game<'_>) -> Result<(), String> {
    let world = &game.world;
    let names: BTreeMap<&str, usize> =
        world.plan.regions.iter().enumerate().map(|(at, region)| (region.name.as_str(), at)).collect();
    for user in game.users() {
        for daemon in world.daemons() {
            let window = match windowed(world.plan.rule.algorithm) {
                true => world.clock(daemon.region).window_index(world.plan.rule.window),
                false => 0,
            };
            let Some((own, others)) = daemon.node.admitted(user, window) else { continue };
            let key = world_key(user);
            if world.plan.suppresses_reports && !daemon.node.replica.speaks_for(&key) {
                // Its speaker need not know of it.
                continue;
            }
            let bound = daemon.node.replica.bucket(world.clock(daemon.region), &key);
            let bound = bound.map_or(0, |bucket| bucket.error_bound);
            let (mut missing, mut known) = (0, Vec::new());
            for (region, believed) in others.into_iter().chain([(daemon.name.region.clone(), own)]) {
                let place = names.get(region.as_str()).copied().unwrap_or(usize::MAX);
                let (admitted, doubtful) =
                    game.books.truth.get(&(place, user, window)).copied().unwrap_or_default();
                // The store knows what the own region admitted, if its daemons share one.
                if !(world.plan.shared_store && region == daemon.name.region) {
                    missing += admitted.saturating_sub(believed + doubtful);
                }
                known.push((region.clone(), believed, admitted));
                if believed > admitted || (believed + doubtful < admitted && !world.plan.suppresses_reports) {
                    return Err(format!(
                        "{} of {} believes that {region} admitted {believed} for user {user}; it was {admitted}, {doubtful} of it before a crash",
                        daemon.name.node, daemon.name.region
                    ));
                }
            }
            if missing > bound {
                return Err(format!(
                    "{} of {} misses {missing} permits of user {user} with an error bound of {bound}: {known:?}",
                    daemon.name.node, daemon.name.region
                ));
            }
        }
    }
    Ok(())
}

/// A bucket without windows that had time to refill many times over serves every region again, whatever was
/// lost: under `gossip` where no region was cut off, as debts are bounded by what the stores that were lost
/// let through.
fn refilled_serves(game: &mut Game<'_>) -> Result<(), String> {
    let case = game.case;
    if windowed(case.plan.rule.algorithm) || (case.way == Way::Gossip && case.faults.cut > 0.0) {
        return Ok(());
    }
    let quiet = STEP.0 * case.liveness_steps * 2 / 3;
    // Daemons that share a store may hold different shares for a while, and what one with a larger share
    // keeps as in doubt of a lost memory may be all that a smaller one has: so those with smaller shares ask
    // first.
    let mut order: Vec<usize> = (0..game.world.daemons().len()).collect();
    let burst = |at: &usize| game.world.daemons().get(*at)?.node.share().map(|share| share.burst);
    order.sort_by_key(burst);
    for at in order {
        for user in game.users() {
            let Some(daemon) = game.world.daemons().get(at) else { continue };
            let limit = daemon.node.limit(user);
            // A memory that was lost may have three quarters of what its region holds under way.
            let (part, spare) = daemon
                .node
                .part_of(limit, game.world.clock(daemon.region))
                .map_or((limit, 1), |part| (part, 4));
            let refills = u128::from(part.permits) * u128::from(quiet) / u128::from(part.window.0.max(1));
            let enough = u64::from(part.burst) >= 4 * spare * daemons(game);
            if refills < REFILLS * u128::from(part.burst) || !enough {
                continue;
            }
            // The manual excepts a daemon that does not hold the larger share yet: what another one of its
            // region keeps as in doubt of a lost memory may be all that it has.
            let larger = |other: &Daemon| {
                let burst = |daemon: &Daemon| daemon.node.share().map(|share| share.burst);
                other.region == daemon.region && burst(other) > burst(daemon)
            };
            let lost = game.books.lost.contains(&daemon.region);
            if mode(case.way) == Mode::Escrow && lost && game.world.daemons().iter().any(larger) {
                continue;
            }
            let mut served = game.request(at, user, 1)?;
            if !served && game.case.faults.own > 0.0 {
                // By its first request since the user's limit changed a region learns which one it divides.
                (0..4).for_each(|_| game.world.step(STEP));
                served = game.request(at, user, 1)?;
            }
            if !served {
                return Err(format!("daemon {at} refuses user {user}, whose bucket must be full again"));
            }
        }
    }
    Ok(())
}

pub(super) fn daemons(game: &Game<'_>) -> u64 {
    place(game.world.daemons().len())
}
