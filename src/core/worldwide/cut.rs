//! Common cuts: what every region told of one bucket, used by all of them at the same instant.
//!
//! A report counts only once it can have reached everyone, its stamp plus the horizon. Then all regions divide the limit by
//! the same reports and get the same answer. What arrived sooner may only shrink a budget, never raise it.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::super::time::{Span, Timestamp};
use super::budget::{Account, Estate, Stake, budgets, common_cut};
use super::by_region::ByRegion;
use super::regions::{RegionId, Regions};
use super::replica::Policy;

/// Most reports of one region that wait for their instant. Full: the oldest is used early.
const WAITING_MAX: usize = 64;
/// A region is in play for this many windows after it was last asked for anything.
const IN_PLAY: u64 = 2;
/// A bucket is at home in the region that alone asked for it in its last so many windows.
const HOME_WINDOWS: u64 = 16;
/// Nine tenths of what nobody asks for lie at home, for the burst that comes from there again.
const HOME_PARTS: u64 = 9;
/// A budget grows only if all cuts of this time allow it: when several regions start at once their first words come one
/// by one and are still rough, and the first to be heard must not get it all.
const GROWTH_DELAY: Span = Span::from_millis(10);
/// A region is taken to want a quarter of a standard deviation more than it asks for, in thousandths. What is kept for chance is
/// missing where more is asked for than there is: a whole one costs a hundredth of the limit with five regions, none at all
/// lets a budget shrink below what chance has used meanwhile.
const CAUTION: u64 = 250;
/// Most cuts remembered. Full: the oldest is forgotten, and a budget may grow a little early.
const STEPS_MAX: usize = 32;

/// One report, as a cut uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// The window of its stamp.
    pub(super) window: u64,
    pub(super) account: Account,
}

/// What a division is made on: the same in every region that can reach the same others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ground<'a> {
    /// What is left to divide after what is kept for regions that are cut off.
    pub(super) limit: u64,
    pub(super) window: Span,
    pub(super) horizon: Span,
    /// The regions that take part, by name, with their weights.
    pub(super) parties: &'a [(RegionId, u64)],
    /// Those of them that are silent: their last words stand.
    pub(super) silent: &'a [RegionId],
    /// Whether all regions take part and speak.
    pub(super) whole: bool,
    pub(super) policy: Policy,
    /// Where fractions tip over for this bucket.
    pub(super) lot: u64,
}

/// What each region was given, by [`RegionId`]; nothing for one that had no part in it, and so decided on the sum. Small:
/// every bucket keeps several, with a place for each region of the world.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Parts(SmallVec<[u32; 4]>);

impl Parts {
    /// Stands for no part.
    const NONE: u32 = u32::MAX;

    fn get(&self, region: RegionId) -> Option<u64> {
        self.0.get(region).filter(|part| **part != Self::NONE).map(|part| u64::from(*part))
    }

    /// More than any limit is as good as the largest.
    fn set(&mut self, region: RegionId, part: u64) {
        if self.0.len() <= region {
            self.0.resize(region + 1, Self::NONE);
        }
        if let Some(place) = self.0.get_mut(region) {
            *place = u32::try_from(part).unwrap_or(u32::MAX).min(Self::NONE - 1);
        }
    }

    fn sum(&self) -> u64 {
        self.0.iter().filter(|part| **part != Self::NONE).map(|part| u64::from(*part)).sum()
    }

    /// Of each region the smaller part, where both have one.
    fn lower(&mut self, other: &Self) {
        for (part, other) in self.0.iter_mut().zip(&other.0) {
            *part = (*part).min(*other);
        }
    }
}

/// What the own region may admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    pub(super) now: u64,
    /// In the window after this one.
    pub(super) next: u64,
}

/// The reports of all regions on one bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Cut {
    registers: ByRegion<Register>,
    /// Reports of all regions that wait for their instant.
    waiting: usize,
    /// The window that `before` speaks of.
    window: u64,
    /// What the last cut of this window gave.
    before: Parts,
    /// Whether that was more than the limit: more was admitted already.
    over: bool,
    /// What the last cut gave in which all could be heard and any was in play.
    settled: Parts,
    /// The cuts of the last [`GROWTH_DELAY`] and the one before, the newest last.
    steps: VecDeque<Step>,
    /// What the own region may admit until something changes.
    lasting: Option<Allowance>,
}

/// One cut.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    at: Timestamp,
    window: u64,
    /// What it gave each region.
    parts: Parts,
    /// What each region could use of it, with what [`GROWTH_DELAY`] held back.
    usable: Parts,
    /// What it gave the own region of the window after.
    next: u64,
}

#[derive(Debug, Clone, Default)]
struct Register {
    in_force: Option<Reading>,
    waiting: VecDeque<(Timestamp, Reading)>,
    /// The last window in which a report in force, or a report at all, showed that something was asked for.
    stirred: Option<u64>,
    stirred_told: Option<u64>,
}

impl Register {
    fn newest(&self) -> Option<&Reading> {
        self.waiting.back().map(|(_, reading)| reading).or(self.in_force.as_ref())
    }
}

/// Which reports a division uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Those whose instant has come: the same everywhere.
    InForce,
    /// All that have arrived, and what the own region did until now.
    Arrived(Account),
}

impl Cut {
    /// Takes in a report; older ones than those known do nothing. Whether it came too late to be used by all at once.
    pub(super) fn hear(
        &mut self,
        now: Timestamp,
        region: RegionId,
        reading: Reading,
        ground: Ground<'_>,
    ) -> bool {
        let register = self.registers.of(region);
        let stamp = reading.account.stamp;
        if register.in_force.is_some_and(|known| known.account.stamp >= stamp) {
            return false;
        }
        let place = register.waiting.partition_point(|(_, known)| known.account.stamp < stamp);
        if register.waiting.get(place).is_some_and(|(_, known)| known.account.stamp == stamp) {
            return false;
        }
        if stirs(&reading, ground.window) {
            register.stirred_told = register.stirred_told.max(Some(reading.window));
        }
        let at = stamp + ground.horizon;
        register.waiting.insert(place, (at, reading));
        self.waiting += 1;
        self.lasting = None;
        if register.waiting.len() > WAITING_MAX
            && let Some((_, early)) = register.waiting.pop_front()
        {
            self.waiting -= 1;
            register.use_from_now(early, ground.window);
        }
        at < now
    }

    /// Brings the cut up to `now`: report after report in the order of their instants, so that every region takes the same
    /// steps, however coarse its ticks.
    pub(super) fn advance(&mut self, now: Timestamp, ground: Ground<'_>) {
        while self.waiting > 0 {
            let due = self.registers.iter().filter_map(|(id, register)| {
                register.waiting.front().filter(|(at, _)| *at <= now).map(|(at, _)| (*at, id))
            });
            let due: SmallVec<[(Timestamp, RegionId); 4]> = due.collect();
            let Some(at) = due.iter().map(|(at, _)| *at).min() else { break };
            self.turn(at, ground);
            // All reports of one instant at once: each region would number them in an order of its own.
            for (_, id) in due.into_iter().filter(|(of, _)| *of == at) {
                if let Some(register) = self.registers.get_mut(id)
                    && let Some((_, reading)) = register.waiting.pop_front()
                {
                    self.waiting -= 1;
                    register.use_from_now(reading, ground.window);
                }
            }
            self.settle(at, ground);
        }
        self.turn(now, ground);
    }

    /// Begins a new window if `at` lies in one.
    fn turn(&mut self, at: Timestamp, ground: Ground<'_>) {
        let window = at.window_index(ground.window);
        if window > self.window {
            self.window = window;
            self.before = Parts::default();
            self.settle(at, ground);
        }
    }

    fn settle(&mut self, at: Timestamp, ground: Ground<'_>) {
        self.lasting = None;
        self.before = self.divide(Known::InForce, self.window, ground);
        self.over = self.before.sum() > ground.limit;
        if ground.whole && self.any_in_play(Known::InForce, self.window, ground) {
            self.settled.clone_from(&self.before);
        }
        let next = self.divide(Known::InForce, self.window + 1, ground);
        let next = next.get(Regions::OWN).unwrap_or(ground.limit);
        let mut usable = self.before.clone();
        let recent = self.steps.partition_point(|step| step.at + GROWTH_DELAY <= at).saturating_sub(1);
        for step in self.steps.iter().skip(recent).filter(|step| step.window == self.window) {
            usable.lower(&step.parts);
        }
        self.steps.push_back(Step { at, window: self.window, parts: self.before.clone(), usable, next });
        while self.steps.get(1).is_some_and(|second| second.at + GROWTH_DELAY <= at)
            || self.steps.len() > STEPS_MAX
        {
            self.steps.pop_front();
        }
    }

    /// What the cuts let a region use in this window: less than the last one gave it while that has not lasted.
    fn usable(&self, region: RegionId) -> Option<u64> {
        let mut steps = self.steps.iter().rev().filter(|step| step.window == self.window);
        steps.find_map(|step| step.usable.get(region))
    }

    /// When the next report waits for its instant, or a budget may grow.
    pub(super) fn next_instant(&self, now: Timestamp) -> Option<Timestamp> {
        let waiting = (self.waiting > 0).then(|| self.registers.iter()).into_iter().flatten();
        let reports = waiting.filter_map(|(_, register)| register.waiting.front().map(|(at, _)| *at));
        let growth = self.steps.iter().skip(1).map(|step| step.at + GROWTH_DELAY).filter(|at| *at > now);
        reports.chain(growth).min()
    }

    /// What the last cut gave a region in this window.
    pub(super) fn given(&self, region: RegionId) -> Option<u64> {
        self.before.get(region)
    }

    /// What a region was given when all could still be heard.
    pub(super) fn settled(&self, region: RegionId) -> Option<u64> {
        if self.settled.0.is_empty() { None } else { Some(self.settled.get(region).unwrap_or(0)) }
    }

    /// What the own region may admit in the window at `now`, and in the next. `own` is what it did until now, whether or
    /// not it told.
    pub(super) fn allowance(&mut self, own: Account, ground: Ground<'_>) -> Allowance {
        let allowance = Allowance {
            now: self.in_window(own, self.window, ground),
            next: self.in_window(own, self.window + 1, ground),
        };
        let lasts = ground.whole && ground.policy != Policy::Sum && self.is_settled(own.stamp);
        self.lasting = lasts.then_some(allowance);
        allowance
    }

    /// What was last found, where nothing but time has passed since that could change it: the usual case, and so what a
    /// decision costs does not depend on the number of regions.
    pub(super) fn lasting(&self, window: u64) -> Option<Allowance> {
        self.lasting.filter(|_| self.window == window)
    }

    /// Rules or regions have changed: all is worked out anew.
    pub(super) fn unsettle(&mut self) {
        self.lasting = None;
    }

    /// Whether every region divides by the very reports that it has, and nothing is held back.
    fn is_settled(&self, now: Timestamp) -> bool {
        let held_back = self.steps.back().is_some_and(|step| step.at + GROWTH_DELAY > now);
        self.waiting == 0 && !self.over && !held_back && !self.steps.is_empty()
    }

    fn in_window(&self, own: Account, window: u64, ground: Ground<'_>) -> u64 {
        let now = own.stamp;
        if ground.policy == Policy::Sum {
            return self.left_by_others(now, window, ground);
        }
        let part = |known| self.divide(known, window, ground).get(Regions::OWN).unwrap_or(ground.limit);
        match self.in_force(now, window) {
            // What has arrived is what is in force. No other region is taken to have used more than it was given, and what
            // each wants is what it told: to divide once more could only give more.
            Some(in_force) if self.is_settled(now) => in_force,
            in_force => in_force.unwrap_or_else(|| part(Known::InForce)).min(part(Known::Arrived(own))),
        }
    }

    /// The least that the cuts of the last [`GROWTH_DELAY`] gave for a window.
    fn in_force(&self, now: Timestamp, window: u64) -> Option<u64> {
        let of_window = |step: &Step| match step.window {
            current if current == window => step.parts.get(Regions::OWN),
            before if before + 1 == window => Some(step.next),
            _ => None,
        };
        let newest_old = self.steps.partition_point(|step| step.at + GROWTH_DELAY <= now).saturating_sub(1);
        self.steps.iter().skip(newest_old).filter_map(of_window).min()
    }

    /// The limit less what the others have probably admitted by now.
    fn left_by_others(&self, now: Timestamp, window: u64, ground: Ground<'_>) -> u64 {
        let used = ground.parties.iter().filter(|(id, _)| *id != Regions::OWN).map(|&(id, _)| {
            let Some(reading) = self.registers.get(id).and_then(Register::newest) else { return 0 };
            if reading.window != window {
                return 0;
            }
            let since = now.since(reading.account.stamp).0;
            let asked = u128::from(reading.account.demand) * u128::from(since) / 1_000_000_000_000;
            let guessed = reading.account.admitted.saturating_add(u64::try_from(asked).unwrap_or(u64::MAX));
            let at_most = if ground.policy == Policy::Sum { 0 } else { self.given(id).unwrap_or(0) };
            reading.account.admitted.max(guessed.min(at_most))
        });
        ground.limit.saturating_sub(used.fold(0, u64::saturating_add))
    }

    fn any_in_play(&self, known: Known, window: u64, ground: Ground<'_>) -> bool {
        ground.parties.iter().any(|&(id, _)| self.in_play(known, id, window, ground))
    }

    /// The region that alone asked for the bucket lately, as all know it. What nobody asks for is mostly kept there: the
    /// sum stays the limit, so this costs no accuracy, and a burst from home finds nearly all of it at once.
    fn home(&self, ground: Ground<'_>) -> Option<RegionId> {
        let stirred = |id: RegionId| self.registers.get(id).and_then(|register| register.stirred);
        let last = ground.parties.iter().map(|&(id, _)| id).max_by_key(|&id| stirred(id))?;
        let since = stirred(last)?;
        let alone = |&(id, _): &(RegionId, u64)| {
            id == last || stirred(id).is_none_or(|other| other + HOME_WINDOWS <= since)
        };
        ground.parties.iter().all(alone).then_some(last)
    }

    /// Whether a region was asked for anything lately.
    fn in_play(&self, known: Known, region: RegionId, window: u64, ground: Ground<'_>) -> bool {
        let Some(register) = self.registers.get(region) else { return false };
        let stirred = match known {
            Known::InForce => register.stirred,
            Known::Arrived(_) => register.stirred_told,
        };
        let window = match register.newest() {
            Some(last) if ground.silent.contains(&region) => last.window.min(window),
            _ => window,
        };
        stirred.is_some_and(|stirred| stirred + IN_PLAY >= window)
    }

    /// Divides the limit of a window. By [`RegionId`].
    fn divide(&self, known: Known, window: u64, ground: Ground<'_>) -> Parts {
        let start = Timestamp::window_start(window, ground.window);
        let home = if ground.policy == Policy::Tidegate { self.home(ground) } else { None };
        let weights: u64 = ground.parties.iter().map(|&(_, weight)| weight).fold(0, u64::saturating_add);
        let stakes: SmallVec<[Stake; 4]> = ground
            .parties
            .iter()
            .map(|&(id, weight)| {
                let register = self.registers.get(id);
                let reading = match known {
                    Known::InForce => register.and_then(|register| register.in_force),
                    Known::Arrived(_) => register.and_then(Register::newest).copied(),
                };
                let before = if window == self.window { self.usable(id) } else { None };
                let before = before.unwrap_or(ground.limit);
                let told = reading.map(|reading| Account {
                    admitted: if reading.window == window { reading.account.admitted } else { 0 },
                    ..reading.account
                });
                let at_home = if home == Some(id) { weights.saturating_mul(HOME_PARTS) } else { 0 };
                let exact = match known {
                    Known::Arrived(own) if id == Regions::OWN && window == self.window => Some(own.admitted),
                    _ => None,
                };
                Stake { weight, reserve: weight.saturating_add(at_home), told, before, exact }
            })
            .collect();
        let estate = Estate {
            limit: ground.limit,
            start,
            end: start + ground.window,
            cut: match known {
                Known::InForce => common_cut(start, ground.horizon, &stakes),
                Known::Arrived(own) => own.stamp.max(start),
            },
            caution: CAUTION,
            tip: ground.lot.wrapping_add(window.wrapping_mul(0x9e37_79b9)) % 1_000_000,
        };
        let mut by_id = Parts::default();
        for (&(id, _), budget) in ground.parties.iter().zip(budgets(estate, &stakes)) {
            by_id.set(id, budget);
        }
        by_id
    }
}

impl Register {
    fn use_from_now(&mut self, reading: Reading, window: Span) {
        if stirs(&reading, window) {
            self.stirred = self.stirred.max(Some(reading.window));
        }
        self.in_force = Some(reading);
    }
}

/// Whether a report shows that something was asked for: half a permit a window, or anything admitted.
fn stirs(reading: &Reading, window: Span) -> bool {
    let in_window = u128::from(reading.account.demand) * u128::from(window.0) / 1_000_000;
    reading.account.admitted > 0 || in_window >= 500_000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Span = Span::from_secs(1);
    const START: Timestamp = Timestamp(1_700_000_000_000_000);
    const PARTIES: [(RegionId, u64); 3] = [(0, 1), (1, 1), (2, 1)];

    fn ground(limit: u64, policy: Policy) -> Ground<'static> {
        let horizon = Span::from_millis(60);
        Ground {
            limit,
            window: WINDOW,
            horizon,
            parties: &PARTIES,
            silent: &[],
            whole: true,
            policy,
            lot: 77,
        }
    }

    fn reading(at: Timestamp, admitted: u64, per_second: u64) -> Reading {
        let account = Account { stamp: at, admitted, demand: per_second * 1_000_000 };
        Reading { window: at.window_index(WINDOW), account }
    }

    /// A region that does nothing.
    fn still(at: Timestamp) -> Account {
        Account { stamp: at, admitted: 0, demand: 0 }
    }

    /// Hears every report after a delay of its own (below the horizon) and looks at its own pace.
    fn follow(
        reports: &[(RegionId, Reading)],
        delays: &[u64],
        tick: u64,
        end: Timestamp,
        policy: Policy,
    ) -> Vec<u32> {
        let mut cut = Cut::default();
        let mut arrivals: Vec<_> = reports
            .iter()
            .zip(delays.iter().cycle())
            .map(|(&(region, reading), &delay)| {
                (reading.account.stamp + Span::from_millis(delay), region, reading)
            })
            .collect();
        arrivals.sort_by_key(|&(at, region, reading)| (at, region, reading.account.stamp));
        let mut arrivals = arrivals.into_iter().peekable();
        let mut now = START;
        while now < end {
            now = (now + Span::from_millis(tick)).min(end);
            while let Some((at, region, reading)) = arrivals.next_if(|(at, ..)| *at <= now) {
                cut.hear(at, region, reading, ground(100, policy));
            }
            cut.advance(now, ground(100, policy));
        }
        cut.before.0.to_vec()
    }

    proptest! {
        /// Every region numbers itself first.
        #[test]
        fn regions_that_number_the_others_in_other_orders_divide_alike(
            limit in 1_u64..400,
            history in proptest::collection::vec((0_usize..3, 0_u64..3, 0_u64..8, 0_u64..3_000), 1..60),
        ) {
            let given = |own: usize| {
                let id = |place: usize| (place + 3 - own) % 3;
                let parties = [0, 1, 2].map(|place| (id(place), 1));
                let ground = Ground { parties: &parties, ..ground(limit, Policy::Tidegate) };
                let (mut cut, mut at, mut admitted) = (Cut::default(), START, [0; 3]);
                for &(place, pause, more, demand) in &history {
                    at = at + Span::from_millis(pause * 5);
                    admitted[place] += more;
                    cut.hear(at, id(place), reading(at, admitted[place], demand), ground);
                }
                cut.advance(at + Span::from_millis(100), ground);
                [0, 1, 2].map(|place| cut.given(id(place)))
            };
            prop_assert_eq!(given(0), given(1));
            prop_assert_eq!(given(0), given(2));
        }
    }

    proptest! {
        #[test]
        fn all_regions_divide_alike_whatever_came_first_and_however_they_tick(
            steps in proptest::collection::vec((0..3_usize, 2..90_u64, 0..60_u64, 0..400_u64), 1..60),
            delays in proptest::collection::vec(proptest::collection::vec(0..59_u64, 1..20), 3),
            ticks in proptest::collection::vec(1..40_u64, 3),
        ) {
            let mut at = START;
            let reports: Vec<_> = steps
                .into_iter()
                .map(|(region, step, admitted, demand)| {
                    at = at + Span::from_millis(step);
                    (region, reading(at, admitted, demand))
                })
                .collect();
            let end = at + Span::from_millis(61);
            for policy in [Policy::Tidegate, Policy::Cut] {
                let views: Vec<_> =
                    delays.iter().zip(&ticks).map(|(delays, &tick)| follow(&reports, delays, tick, end, policy)).collect();
                for view in &views {
                    prop_assert_eq!(view, &views[0]);
                    let sum: u32 = view.iter().sum();
                    // More than the limit only if more has probably been admitted already.
                    prop_assert!(view.is_empty() || (100..=300).contains(&sum), "{:?}", view);
                }
            }
        }
    }

    #[test]
    fn a_region_that_asks_alone_has_the_whole_limit() {
        let mut cut = Cut::default();
        let ground = ground(100, Policy::Tidegate);
        cut.hear(START, 0, reading(START, 1, 500), ground);
        let later = START + Span::from_millis(200);
        cut.advance(later, ground);
        assert_eq!(cut.allowance(still(later), ground), Allowance { now: 100, next: 100 });
    }

    #[test]
    fn a_region_that_is_new_has_its_part_of_what_nobody_asks_for() {
        let mut cut = Cut::default();
        let ground = ground(100, Policy::Cut);
        cut.hear(START, 1, reading(START, 40, 0), ground);
        let later = START + Span::from_millis(100);
        cut.advance(later, ground);
        assert_eq!(cut.allowance(still(later), ground).now, 20);
    }

    #[test]
    fn what_nobody_asks_for_lies_mostly_where_the_bucket_is_at_home() {
        let mut cut = Cut::default();
        let ground = ground(100, Policy::Tidegate);
        cut.hear(START, 0, reading(START, 1, 1), ground);
        let later = START + Span::from_millis(100);
        cut.advance(later, ground);
        assert!(cut.allowance(still(later), ground).now >= 90);
        // Many windows later another region asks: it is at home in neither.
        let at = START + Span::from_secs(3);
        cut.hear(at, 1, reading(at, 1, 1), ground);
        let later = at + Span::from_millis(100);
        cut.advance(later, ground);
        assert!(cut.allowance(still(later), ground).now <= 40);
    }

    #[test]
    fn several_regions_that_start_at_once_never_get_more_than_the_limit() {
        // Their first words come one by one: for some milliseconds each cut knows of one of them only.
        for policy in [Policy::Tidegate, Policy::Cut] {
            let mut views = [Cut::default(), Cut::default(), Cut::default()];
            let ground = ground(90, policy);
            for step in 0..200_u64 {
                let now = START + Span::from_millis(step);
                for (own, cut) in views.iter_mut().enumerate() {
                    for region in 0..3_usize {
                        let begun = u64::try_from(region).unwrap() * 6;
                        let at = |told: u64| START + Span::from_millis(begun + told);
                        for told in [0, 20, 40] {
                            let delay = if region == own { 0 } else { 50 };
                            if now == at(told) + Span::from_millis(delay) {
                                let id = (region + 3 - own) % 3;
                                cut.hear(now, id, reading(at(told), 0, 100 + told * 40), ground);
                            }
                        }
                    }
                    cut.advance(now, ground);
                }
                let budgets = views.iter_mut().map(|cut| cut.allowance(still(now), ground).now);
                let sum: u64 = budgets.sum();
                assert!(sum <= 90 + 3, "{sum} at {step} ms");
            }
        }
    }

    #[test]
    fn what_lasts_is_what_would_be_found_anew() {
        let mut cut = Cut::default();
        let ground = ground(100, Policy::Tidegate);
        for region in [0, 1, 2] {
            cut.hear(START, region, reading(START, 0, 20 + 70 * region as u64), ground);
        }
        let at = |ms| START + Span::from_millis(ms);
        cut.advance(at(61), ground);
        // What the last cut gave may be held back yet.
        cut.allowance(still(at(61)), ground);
        assert_eq!(cut.lasting(cut.window), None);
        cut.advance(at(100), ground);
        let found = cut.allowance(Account { admitted: 7, ..still(at(100)) }, ground);
        assert_eq!(cut.lasting(cut.window), Some(found));
        assert_eq!(cut.lasting(cut.window + 1), None);
        assert_eq!(cut.allowance(Account { admitted: 11, ..still(at(900)) }, ground), found);
        cut.hear(at(910), 1, reading(at(905), 30, 500), ground);
        assert_eq!(cut.lasting(cut.window), None);
    }

    #[test]
    fn two_regions_that_want_too_much_get_half_each_also_in_the_next_window() {
        let mut cut = Cut::default();
        let ground = ground(100, Policy::Tidegate);
        for region in [0, 1] {
            cut.hear(START, region, reading(START, 0, 500), ground);
        }
        let later = START + Span::from_millis(100);
        cut.advance(later, ground);
        assert_eq!(cut.allowance(still(later), ground), Allowance { now: 50, next: 50 });
    }

    #[test]
    fn what_has_arrived_shrinks_a_budget_at_once_and_raises_it_only_when_all_have_it() {
        let mut cut = Cut::default();
        let ground = ground(100, Policy::Tidegate);
        cut.hear(START, 0, reading(START, 0, 100), ground);
        let later = START + Span::from_millis(100);
        cut.advance(later, ground);
        cut.hear(later, 1, reading(later, 0, 500), ground);
        assert_eq!(cut.allowance(still(later), ground).now, 50);
        let after = later + Span::from_millis(70);
        cut.advance(after, ground);
        cut.hear(after, 1, reading(after, 10, 0), ground);
        assert_eq!(cut.allowance(still(after), ground).now, 50);
        let last = after + Span::from_millis(60);
        cut.advance(last, ground);
        assert_eq!(cut.allowance(still(last), ground).now, 50);
        let last = last + GROWTH_DELAY;
        cut.advance(last, ground);
        assert!(cut.allowance(still(last), ground).now >= 60, "{:?}", cut.allowance(still(last), ground));
    }

    #[test]
    fn a_region_that_has_not_asked_for_two_windows_is_out_of_play() {
        let mut cut = Cut::default();
        let ground = ground(100, Policy::Tidegate);
        for region in [0, 1] {
            cut.hear(START, region, reading(START, 0, 500), ground);
        }
        let mut at = START;
        for _ in 0..3 {
            at = at + WINDOW;
            cut.hear(at, 0, reading(at, 0, 500), ground);
            cut.hear(at, 1, reading(at, 0, 0), ground);
            cut.advance(at + Span::from_millis(60), ground);
        }
        assert_eq!(cut.allowance(still(at + Span::from_millis(60)), ground).now, 100);
    }
}
