//! Limits as people write them: windows from a second to a month, limits of any size, users who ask now and
//! then, who travel, or who spend all at once, first starts, and daemons that end and forget meanwhile. Whole
//! engines answer.
//!
//! Three numbers are counted: permits above a limit, false denials (a refusal while the world had room), and
//! untrue waits (who waits as told, alone, is refused again, or a refusal while the world has room says more
//! than a round trip).

mod parts;
mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::Args;
use rayon::prelude::*;
use tidegate::core::algorithm::Algorithm;
use tidegate::core::denial_cause::DenialCause;
use tidegate::core::request::Cost;
use tidegate::core::time::{Span, Timestamp};

use self::parts::{RefusedRequest, Requests, news};
use self::truth::{ROUND_TRIP, TrueUse, says_too_long};
use super::levels::of_any_size;
use super::play::Summary;
use super::whole::{Held, Play, engines, weather};
use crate::model::Model;
use crate::model::shell::{limit as limit_of, windowed};
use crate::number::{float, index, part, place, whole};
use crate::plan::{Plan, Way};
use crate::virtual_world::Dice;

/// The time by which a step moves around requests, and between them.
const STEP: Span = Span::from_millis(20);
const STRIDE: Span = Span::from_millis(100);
/// For so long after a request time moves in small steps.
const NEAR: Span = Span::from_secs(2);
/// No world lasts longer.
const LASTS_MAX: Span = Span::from_secs(1_200);
/// A wait that is longer is not waited for.
const WAITED_MAX: Span = Span::from_secs(60);
/// So many refusals of a world are waited for.
const PROBES_MAX: u64 = 6;
/// Regions that have just met are given so long to agree.
const SETTLED: Span = Span::from_secs(4);
const DAY: f64 = 86_400.0;

/// The behaviours of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// A user asks up to fifty times in a region, and later in another one.
    Journeys,
    /// Users ask now and then, from anywhere; the first one most.
    Sparse,
    /// A user spends the whole limit at once, and then some.
    Bursts,
}

/// The faults, and when they happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// A daemon with its store in memory ends in good order, and begins again.
    Restart(usize, Span),
    /// The same without a word.
    Crash(usize, Span),
    /// A region's store loses everything.
    StoreLost(usize, Span),
}

/// The lies that the judge is shown instead of the truth: it must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(not(test), expect(dead_code, reason = "tests show the judge something else than the truth"))]
pub(super) enum Altered {
    /// The truth.
    #[default]
    Nothing,
    /// Answers say half of the wait.
    HalfTheWait,
    /// Refusals say an hour.
    AnHour,
    /// Each region admits the limit for itself.
    EachByItself,
    /// Each region keeps to a fixed share.
    FixedShares,
}

/// One request to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    at: Span,
    user: u64,
    region: usize,
    cost: u64,
}

/// A world of people.
#[derive(Debug, Clone)]
pub(crate) struct PeopleCase {
    seed: u64,
    held: Held,
    plan: Plan,
    habit: Habit,
    trouble: Trouble,
    /// True if users ask before the regions have agreed for the first time.
    first_start: bool,
    asks: Vec<Ask>,
}

/// The observations in some worlds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    worlds: u64,
    asked: u64,
    refused: u64,
    /// Refusals while the world had room.
    false_denials: u64,
    /// Refusals while more than a tenth of the limit was free.
    with_a_tenth: u64,
    /// Refusals among them of no more than the region's part.
    within_its_part: u64,
    /// Refusals of a user's first request in a region of which a slice was left there.
    newcomers: u64,
    /// Refusals among them that name no cause but `used_up`.
    unexplained: u64,
    /// Refusals whose wait was not true.
    untrue: u64,
    /// Refusals that were waited for.
    waited: u64,
    admitted: u64,
    /// Permits above a limit, the worst instant of each bucket.
    above: u64,
}

impl Seen {
    const fn and(self, other: Self) -> Self {
        Self {
            worlds: self.worlds + other.worlds,
            asked: self.asked + other.asked,
            refused: self.refused + other.refused,
            false_denials: self.false_denials + other.false_denials,
            with_a_tenth: self.with_a_tenth + other.with_a_tenth,
            within_its_part: self.within_its_part + other.within_its_part,
            newcomers: self.newcomers + other.newcomers,
            unexplained: self.unexplained + other.unexplained,
            untrue: self.untrue + other.untrue,
            waited: self.waited + other.waited,
            admitted: self.admitted.saturating_add(other.admitted),
            above: self.above.saturating_add(other.above),
        }
    }
}

impl PeopleCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 91);
        let regions = *dice.pick(&[2, 3, 3, 3, 5, 10]).unwrap_or(&3);
        let algorithm = dice.pick(&Algorithm::OF_COSTS).copied().unwrap_or(Algorithm::FixedWindow);
        let most = match (algorithm, dice.below(3)) {
            (_, 0) => 100.0,
            (Algorithm::SlidingLog, _) => 1e6,
            (_, 1) => 1e6,
            _ => f64::from(u32::MAX),
        };
        let limit = u32::try_from(of_any_size(&mut dice, 1.0, most)).unwrap_or(u32::MAX);
        let held = Held {
            way: dice.pick(&[Way::Gossip, Way::Gossip, Way::Escrow, Way::Split]).copied(),
            algorithm,
            limit,
            burst: limit,
            window: Span::from_secs(of_any_size(&mut dice, 1.0, 31.0 * DAY)),
        };
        let weather = weather(&mut dice, regions, 0.01);
        let plan = held.plan(seed, regions, weather);
        let habit = *dice
            .pick(&[Habit::Journeys, Habit::Journeys, Habit::Sparse, Habit::Bursts])
            .unwrap_or(&Habit::Sparse);
        let asks = match habit {
            Habit::Journeys => journeys(&mut dice, limit, regions),
            Habit::Sparse => now_and_then(&mut dice, regions),
            Habit::Bursts => all_at_once(&mut dice, limit, regions),
        };
        let end = asks.last().map_or(Span::ZERO, |last| last.at);
        let (region, at) = (index(dice.below(place(regions))), part(end, dice.unit()));
        let trouble = match dice.below(8) {
            0 => Trouble::Restart(region, at),
            1 => Trouble::Crash(region, at),
            2 => Trouble::StoreLost(region, at),
            _ => Trouble::Nothing,
        };
        Self { seed, held, plan, habit, trouble, first_start: dice.chance(0.2), asks }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}, {} regions, {:?}, {} requests, {:?}{}, longest way {} ms, loss {:.1} %",
            self.held.describe(),
            self.plan.regions.len(),
            self.habit,
            self.asks.len(),
            self.trouble,
            if self.first_start { ", first start" } else { "" },
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0
        )
    }

    /// Nothing that a mode does not promise to bear happens.
    fn is_calm(&self) -> bool {
        self.trouble == Trouble::Nothing && !self.first_start && self.plan.weather.loss == 0.0
    }
}

/// Between two instants, short times as often as long ones.
fn some_time(dice: &mut Dice, least: f64, most: f64) -> Span {
    Span(of_any_size(dice, least * 1e6, most * 1e6))
}

fn sorted(mut asks: Vec<Ask>) -> Vec<Ask> {
    asks.retain(|ask| ask.at <= LASTS_MAX);
    asks.sort_unstable();
    asks
}

/// A few users, each one to fifty times in a region, then elsewhere.
fn journeys(dice: &mut Dice, limit: u32, regions: usize) -> Vec<Ask> {
    let mut asks = Vec::new();
    for user in 0..dice.between(1, 3) {
        let stays = dice.between(2, 6);
        let times: Vec<u64> = (0..stays).map(|_| dice.between(1, 50)).collect();
        let all = f64::from(limit) * some_part(dice);
        let cost = whole(all / float(times.iter().sum::<u64>())).max(1);
        let mut at = part(Span::from_secs(5), dice.unit());
        for times in times {
            let region = index(dice.below(place(regions)));
            for _ in 0..times {
                at = at + some_time(dice, 0.01, 0.3);
                asks.push(Ask { at, user, region, cost });
            }
            at = at + some_time(dice, 0.1, 600.0);
        }
    }
    sorted(asks)
}

/// Draws the part of the limit that is used: a hundredth as often as all of it.
fn some_part(dice: &mut Dice) -> f64 {
    0.01 * 120.0_f64.powf(dice.unit())
}

/// Users by Zipf, of which the first asks up to a hundred times an hour.
fn now_and_then(dice: &mut Dice, regions: usize) -> Vec<Ask> {
    let rate = 0.1 * 1_000.0_f64.powf(dice.unit());
    let mut asks = Vec::new();
    for user in 0..dice.between(5, 40) {
        let mean = rate / float(user + 1) * (float(LASTS_MAX.0) / 3.6e9);
        for _ in 0..dice.poisson(mean) {
            let (at, region) = (part(LASTS_MAX, dice.unit()), index(dice.below(place(regions))));
            asks.push(Ask { at, user, region, cost: 1 });
        }
    }
    sorted(asks)
}

/// A user spends the limit in a region in ten requests, and asks for a little more there and elsewhere.
fn all_at_once(dice: &mut Dice, limit: u32, regions: usize) -> Vec<Ask> {
    let mut asks = Vec::new();
    for user in 0..dice.between(1, 3) {
        let mut at = some_time(dice, 0.1, 60.0);
        let (region, cost) = (index(dice.below(place(regions))), u64::from(limit).div_ceil(10));
        for _ in 0..12 {
            at = at + some_time(dice, 0.001, 0.2);
            asks.push(Ask { at, user, region, cost });
        }
        for _ in 0..dice.between(1, 6) {
            at = at + some_time(dice, 0.1, 60.0);
            asks.push(Ask { at, user, region: index(dice.below(place(regions))), cost: 1 });
        }
    }
    sorted(asks)
}

/// A world in progress.
struct Game<'c> {
    case: &'c PeopleCase,
    play: Play,
    begun: Timestamp,
    altered: Altered,
    truth: BTreeMap<u64, TrueUse>,
    requests: BTreeMap<u64, Requests>,
    /// Regions and users who have asked there.
    known: BTreeSet<(usize, u64)>,
    /// Users whose bucket was above its limit by so much.
    above: BTreeMap<u64, u64>,
    troubled: bool,
    /// Daemons that are down, and until when.
    down: Option<(usize, Timestamp)>,
    seen: Seen,
}

/// Plays a seed. Plays a case and returns what was seen.
pub(super) fn look(case: &PeopleCase, altered: Altered) -> Result<Seen, String> {
    let shown = match altered {
        Altered::EachByItself => Held { way: None, ..case.held },
        Altered::FixedShares => Held { way: Some(Way::Split), ..case.held },
        _ => case.held,
    };
    let rule = shown.written(&[]);
    let play = Play::new(&case.plan, shown, engines(&case.plan, &rule))?;
    let begun = play.world.now();
    let seen = Seen { worlds: 1, ..Seen::default() };
    let (truth, requests, above) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let known = BTreeSet::new();
    let troubled = false;
    let mut game =
        Game { case, play, begun, altered, truth, requests, known, above, troubled, down: None, seen };
    game.run();
    game.seen.above = game.above.values().sum();
    Ok(game.seen)
}

impl Game<'_> {
    fn run(&mut self) {
        if !self.case.first_start {
            self.wait(SETTLED);
            self.begun = self.play.world.now();
        }
        let mut probes = 0;
        let mut late = Span::ZERO;
        for ask in &self.case.asks {
            self.pass_until(self.begun + ask.at + late);
            if let Some(retry) = self.request(ask.region, ask.user, ask.cost)
                && probes < PROBES_MAX
                && retry <= WAITED_MAX
            {
                probes += 1;
                let from = self.play.world.now();
                self.come_back(ask, retry);
                late = late + self.play.world.now().since(from);
            }
        }
    }

    /// Waits as told, while nobody asks for anything, and asks again.
    fn come_back(&mut self, ask: &Ask, retry: Span) {
        let told = if self.altered == Altered::HalfTheWait { Span(retry.0 / 2) } else { retry };
        self.wait(told);
        self.seen.waited += 1;
        // A request that is refused for want of an agreement or of a region is made again and again.
        if self.request(ask.region, ask.user, ask.cost).is_some() {
            self.seen.untrue += 1;
        }
    }

    /// Time passes, and what was to break breaks.
    fn pass_until(&mut self, until: Timestamp) {
        while self.play.world.now() < until {
            let left = until.since(self.play.world.now());
            let step = if left > NEAR { STRIDE } else { STEP };
            self.wait_for(step.min(left));
        }
    }

    fn wait(&mut self, length: Span) {
        self.pass_until(self.play.world.now() + length);
    }

    fn wait_for(&mut self, step: Span) {
        self.play.world.step(step);
        let now = self.play.world.now();
        if let Some((region, until)) = self.down
            && now >= until
        {
            self.play.world.restart(region);
            self.down = None;
        }
        let (region, at) = match self.case.trouble {
            Trouble::Nothing => return,
            Trouble::Restart(region, at) | Trouble::Crash(region, at) | Trouble::StoreLost(region, at) => {
                (region, at)
            }
        };
        if self.troubled || now < self.begun + at {
            return;
        }
        self.troubled = true;
        match self.case.trouble {
            Trouble::StoreLost(..) => self.play.world.lose_store(region),
            Trouble::Restart(..) => {
                self.play.world.end(region);
                self.play.world.kill(region);
                self.down = Some((region, now + Span::from_secs(1)));
            }
            Trouble::Nothing | Trouble::Crash(..) => {
                self.play.world.kill(region);
                self.down = Some((region, now + Span::from_secs(1)));
            }
        }
    }

    /// One request. When it was refused and may pass: how long to wait.
    fn request(&mut self, region: usize, user: u64, cost: u64) -> Option<Span> {
        let decision = self.play.request(region, user, Cost::Take(cost))?;
        let (at, now) = (self.play.world.now(), self.play.world.clock(region));
        let (algorithm, limit) = (self.case.held.algorithm, limit_of(&self.case.plan.rule));
        let truth = self.truth.entry(user).or_insert_with(|| TrueUse::new(algorithm, limit));
        let (is_first, regions) = (self.known.insert((region, user)), place(self.case.plan.regions.len()));
        let weather = &self.case.plan.weather;
        let news = news(weather.longest(), weather.jitter);
        let requests = self.requests.entry(user).or_default();
        let (capacity, used) = (truth.capacity(), truth.used(now));
        let (free, windowed) = (capacity.saturating_sub(used), windowed(algorithm));
        let refused = RefusedRequest { now: at, region, cost, free, capacity, windowed };
        let within = !requests.exceeds_its_part(refused, news, regions);
        requests.note(at, region, (cost, decision.allowed), news);
        self.seen.asked += 1;
        if decision.allowed {
            truth.admit(now, cost);
            self.seen.admitted = self.seen.admitted.saturating_add(cost);
            let above = truth.above(now, regions);
            let worst = self.above.entry(user).or_default();
            *worst = above.max(*worst);
            return None;
        }
        let retry = decision.rules.first().and_then(|ruled| ruled.retry);
        let retry = if self.altered == Altered::AnHour { Some(Span::from_secs(3_600)) } else { retry };
        self.seen.refused += 1;
        self.seen.untrue += u64::from(says_too_long(truth, now, cost, retry));
        if truth.has_room(now, cost) {
            self.seen.false_denials += 1;
            self.seen.unexplained += u64::from(decision.cause() == Some(DenialCause::UsedUp));
        }
        self.seen.with_a_tenth += u64::from(truth.has_a_tenth(now, cost));
        self.seen.within_its_part += u64::from(within && truth.has_a_tenth(now, cost));
        self.seen.newcomers += u64::from(is_first && truth.leaves_a_slice(now, cost, regions));
        retry.filter(|retry| !truth.has_room(now, cost) || *retry <= ROUND_TRIP)
    }
}

/// Plays a seed and holds it to what its mode promises.
pub(crate) fn play(case: &PeopleCase) -> Result<Summary, String> {
    let seen = look(case, Altered::Nothing)?;
    let exact = matches!(case.held.way, Some(Way::Split | Way::Escrow));
    // A store of `split` that is lost admits its share once more, as the manual says.
    let forgets = case.held.way == Some(Way::Split) && case.trouble != Trouble::Nothing;
    if exact && !forgets && seen.above > 0 {
        return Err(format!("{} permits above the limit", seen.above));
    }
    if case.held.way == Some(Way::Escrow) && case.is_calm() && seen.newcomers > 0 {
        return Err(format!(
            "{} users are refused at once where their region keeps a slice for them",
            seen.newcomers
        ));
    }
    if case.held.way == Some(Way::Gossip) && case.is_calm() {
        if seen.within_its_part > 0 {
            return Err(format!(
                "{} of {} requests are refused of what their region has for certain while more than a tenth \
                 of the limit is free",
                seen.within_its_part, seen.asked
            ));
        }
        if seen.untrue > 0 {
            return Err(format!("{} refusals say when to come back, and it is not true", seen.untrue));
        }
    }
    Ok(Summary {
        daemons: place(case.plan.regions.len()),
        frames: 0,
        admitted: seen.admitted,
        faults: u64::from(case.trouble != Trouble::Nothing),
    })
}

/// Counts overshoot, false denials and untrue waits in worlds of people, and prints them by mode, algorithm,
/// window and regions.
#[derive(Debug, Clone, Args)]
pub(crate) struct People {
    /// How many seeds.
    #[arg(long, default_value_t = 400)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only worlds in which nothing breaks or is lost, and the regions have met.
    #[arg(long)]
    calm: bool,
}

impl People {
    /// Plays every seed.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let seeds = self.seed..self.seed.saturating_add(self.seeds);
        let cases: Vec<PeopleCase> =
            seeds.map(PeopleCase::draw).filter(|case| !self.calm || case.is_calm()).collect();
        let seen: Vec<(&PeopleCase, Seen)> = cases
            .par_iter()
            .map(|case| match look(case, Altered::Nothing) {
                Ok(seen) => Ok((case, seen)),
                Err(why) => Err(anyhow::anyhow!("seed {}: {why}\n  {}", case.seed, case.describe())),
            })
            .collect::<anyhow::Result<_>>()?;
        let mode = |case: &PeopleCase| case.held.way.map_or("", Way::title).to_owned();
        table("mode", &seen, mode, out)?;
        table("mode and algorithm", &seen, |case| format!("{}, {:?}", mode(case), case.held.algorithm), out)?;
        table("mode and window", &seen, |case| format!("{}, {}", mode(case), length(case.held.window)), out)?;
        table(
            "mode and regions",
            &seen,
            |case| format!("{}, {} regions", mode(case), case.plan.regions.len()),
            out,
        )?;
        table("mode and users", &seen, |case| format!("{}, {:?}", mode(case), case.habit), out)?;
        table("mode and trouble", &seen, |case| format!("{}, {}", mode(case), trouble(case)), out)
    }
}

fn trouble(case: &PeopleCase) -> &'static str {
    match case.trouble {
        _ if case.first_start => "first start",
        Trouble::Nothing if case.plan.weather.loss > 0.0 => "packets lost",
        Trouble::Nothing => "none",
        Trouble::Restart(..) => "restart in order",
        Trouble::Crash(..) => "crash",
        Trouble::StoreLost(..) => "store lost",
    }
}

fn length(window: Span) -> &'static str {
    match window.0 / 1_000_000 {
        0..60 => "1 s to 1 min",
        60..3_600 => "1 min to 1 h",
        3_600..86_400 => "1 h to 1 d",
        _ => "1 d to 31 d",
    }
}

/// One row for each name that `of` gives.
fn table(
    title: &str,
    seen: &[(&PeopleCase, Seen)],
    of: impl Fn(&PeopleCase) -> String,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let names: BTreeSet<String> = seen.iter().map(|(case, _)| of(case)).collect();
    writeln!(
        out,
        "| {title} | worlds | requests | above, permits | above % | false denials | with a tenth free | \"used up\" | untrue waits of refusals |\n|---|---|---|---|---|---|---|---|---|"
    )?;
    for name in names {
        let sum = seen.iter().filter(|(case, _)| of(case) == name);
        let sum = sum.map(|(_, seen)| *seen).fold(Seen::default(), Seen::and);
        let percent = |part: u64, of: u64| if of == 0 { 0.0 } else { float(part) / float(of) * 100.0 };
        writeln!(
            out,
            "| {name} | {} | {} | {} | {:.4} | {} ({:.2} %) | {} ({:.2} %) | {} | {} of {} ({:.2} %) |",
            sum.worlds,
            sum.asked,
            sum.above,
            percent(sum.above, sum.admitted),
            sum.false_denials,
            percent(sum.false_denials, sum.asked),
            sum.with_a_tenth,
            percent(sum.with_a_tenth, sum.asked),
            sum.unexplained,
            sum.untrue,
            sum.refused,
            percent(sum.untrue, sum.refused),
        )?;
    }
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen in calm worlds of this mode and algorithm, whose windows outlast them.
    fn seen(way: Way, algorithm: Algorithm, altered: Altered) -> Seen {
        let cases = (1..4_000).map(PeopleCase::draw);
        let wanted = cases.filter(|case| {
            let held = &case.held;
            held.way == Some(way)
                && held.algorithm == algorithm
                && case.is_calm()
                && held.window > LASTS_MAX
                && held.limit > 20
                && case.habit != Habit::Sparse
                && case.plan.regions.len() <= 3
        });
        let looked = wanted.take(6).map(|case| look(&case, altered).unwrap());
        looked.fold(Seen::default(), Seen::and)
    }

    #[test]
    fn the_judge_notices_what_is_wrong_and_nothing_else() {
        let fixed = Algorithm::FixedWindow;
        let split = seen(Way::Split, fixed, Altered::Nothing);
        assert!(split.worlds > 3 && split.asked > 100, "{split:?}");
        assert_eq!(split.above, 0, "{split:?}");
        assert!(seen(Way::Split, fixed, Altered::EachByItself).above > 0, "each region admits the limit");
        assert!(
            seen(Way::Gossip, fixed, Altered::FixedShares).within_its_part > 0,
            "a share is less than there is"
        );
        assert!(
            seen(Way::Gossip, fixed, Altered::AnHour).untrue
                >= seen(Way::Gossip, fixed, Altered::Nothing).untrue
        );
        let levels = seen(Way::Split, Algorithm::Gcra, Altered::HalfTheWait);
        assert!(levels.waited == 0 || levels.untrue > 0, "{levels:?}");
    }

    #[test]
    fn the_same_seed_draws_and_shows_the_same() {
        let case = PeopleCase::draw(7);
        assert_eq!(look(&case, Altered::Nothing), look(&PeopleCase::draw(7), Altered::Nothing));
        assert!((1..200).any(|seed| PeopleCase::draw(seed).first_start));
    }
}
