//! Common cuts: what every region told of one bucket, used by all of them at the same instant.
//!
//! A report counts only once it can have reached everyone, its stamp plus the horizon. Then all regions
//! divide the limit by the same reports and get the same answer. A report that arrived sooner may only shrink
//! a budget, never raise it: not even what another report has shrunk, for until the later one is used the
//! others may use what the earlier one gives them.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::allocation::{Allocation, COMING_MEMORY, GIVEN_MEMORY, LargestAllocation};
use super::replica_config::Policy;
use crate::calendar::Windows;
use crate::regions::by_region::ByRegion;
use crate::regions::fair_share::{DivisionInput, RegionInput, ReportFigures, budgets, common_cut};
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};

/// Most reports of one region that wait for their instant. Full: the oldest is used early.
const WAITING_MAX: usize = 64;
/// A region is in play for this many windows after it was last asked for anything.
const IN_PLAY: u64 = 2;
/// A bucket is at home in the region that alone asked for it in its last so many windows.
const HOME_WINDOWS: u64 = 16;
/// Nine tenths of what nobody asks for lie at home, for the burst that comes from there again.
const HOME_PARTS: u64 = 9;
/// While more than one of so many permits of the limit is left, a first request finds something everywhere.
const SCARCE: u64 = 10;
/// A budget grows only if all cuts of this time allow it: when several regions start at once their first
/// words come one by one and are still rough, and the first to be heard must not get it all. This is as long
/// as clocks that agree may differ: nobody uses what has grown before all know of the cut.
pub(super) const GROWTH_DELAY: Span = Span::from_millis(20);
/// A region is taken to want a quarter of a standard deviation more than it asks for, in thousandths. Permits
/// that are kept for chance are missing where more is asked for than there is: a whole deviation costs a
/// hundredth of the limit with five regions, none at all lets a budget shrink below what chance has used
/// meanwhile.
const CAUTION: u64 = 250;
/// Most cuts remembered. Full: the oldest is forgotten, and a budget may grow a little early.
const STEPS_MAX: usize = 32;

/// One report, as a cut uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowReport {
    /// Window that the report's stamp lies in.
    pub(super) window: u64,
    pub(super) account: ReportFigures,
}

/// The basis of a division: the same in every region that can reach the same others.
#[derive(Debug, Clone, Copy)]
pub(super) struct DivisionScope<'a> {
    /// The permits to divide after some are kept for regions that are cut off.
    pub(super) limit: u64,
    pub(super) windows: Windows,
    pub(super) horizon: Span,
    /// For so long a demand counts that has not lasted.
    pub(super) ahead: Span,
    /// The regions that take part, by name, with their weights.
    pub(super) parties: &'a [(RegionId, u64)],
    /// Regions among them that are silent: their last words stand.
    pub(super) silent: &'a [RegionId],
    /// True if all regions take part and speak.
    pub(super) whole: bool,
    pub(super) policy: Policy,
    /// Decides where fractions tip over for this bucket.
    pub(super) rounding_seed: u64,
    /// Permits that regions admitted in the window before and that still count: of a `sliding_log`.
    pub(super) lingering: &'a [(RegionId, u64)],
    /// True if a part of what was admitted in the window before still counts: of a `sliding_window`.
    pub(super) fades: bool,
}

/// The permits that the own region may admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowBudgets {
    pub(super) now: u64,
    /// In the window after this one.
    pub(super) next: u64,
}

/// The reports of all regions on one bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct CommonCuts {
    delayed_reports: ByRegion<DelayedReports>,
    /// Reports of all regions that wait for their instant.
    waiting: usize,
    /// The window that `before` speaks of.
    window: u64,
    /// Permits that the last cut of this window gave.
    before: Allocation,
    /// The same of the window before.
    ended: Allocation,
    /// Permits admitted in the window before, that of `ended`.
    ended_with: u64,
    /// The most that each region may hold in this window, and in the next one.
    most: LargestAllocation,
    to_come: LargestAllocation,
    /// True if that was more than the limit: more was admitted already.
    over: bool,
    /// Permits that the last cut gave in which all could be heard and any was in play.
    settled: Allocation,
    /// The cuts of the last [`GROWTH_DELAY`] and the one before, the newest last.
    steps: VecDeque<CutRecord>,
    /// Permits that the own region may admit until something changes.
    lasting: Option<WindowBudgets>,
    /// Rules or regions have changed since the last cut, which was made in another scope.
    outdated: bool,
    /// Permits that all reports that had arrived gave when last looked at.
    foreseen: Option<ExpectedBudgets>,
    /// The same before later reports arrived, until the first of those is used.
    expected: VecDeque<(Timestamp, ExpectedBudgets)>,
}

/// The permits that the reports which have arrived will give the own region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExpectedBudgets {
    window: u64,
    /// Instant at which the last of them is used.
    at: Timestamp,
    allowance: WindowBudgets,
}

impl ExpectedBudgets {
    fn of(&self, window: u64) -> Option<u64> {
        match window.checked_sub(self.window) {
            Some(0) => Some(self.allowance.now),
            Some(1) => Some(self.allowance.next),
            _ => None,
        }
    }
}

/// One cut.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CutRecord {
    at: Timestamp,
    window: u64,
    /// Permits that the cut gave each region.
    parts: Allocation,
    /// Permits of it that each region could use, with what [`GROWTH_DELAY`] held back.
    usable: Allocation,
    /// Permits that it gave the own region of the window after.
    next: u64,
}

#[derive(Debug, Clone, Default)]
struct DelayedReports {
    in_force: Option<WindowReport>,
    waiting: VecDeque<(Timestamp, WindowReport)>,
    /// The last window in which a report in force, or a report at all, showed that something was asked for.
    stirred: Option<u64>,
    stirred_told: Option<u64>,
}

impl DelayedReports {
    fn newest(&self) -> Option<&WindowReport> {
        self.waiting.back().map(|(_, report)| report).or(self.in_force.as_ref())
    }

    /// The report that a division uses.
    fn report(&self, known: ReportsUsed) -> Option<&WindowReport> {
        match known {
            ReportsUsed::InForce => self.in_force.as_ref(),
            ReportsUsed::Arrived(_) => self.newest(),
        }
    }
}

/// The reports that a division uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportsUsed {
    /// Reports whose instant has come: the same everywhere.
    InForce,
    /// All that have arrived, and what the own region did until now.
    Arrived(ReportFigures),
}

impl CommonCuts {
    /// Takes in a report; older ones than those known do nothing. Returns whether it came too late to be used
    /// by all at once.
    pub(super) fn hear(
        &mut self,
        now: Timestamp,
        region: RegionId,
        report: WindowReport,
        scope: DivisionScope<'_>,
    ) -> bool {
        let delayed = self.delayed_reports.of(region);
        let stamp = report.account.stamp;
        if delayed.in_force.is_some_and(|known| known.account.stamp >= stamp) {
            return false;
        }
        let place = delayed.waiting.partition_point(|(_, known)| known.account.stamp < stamp);
        if delayed.waiting.get(place).is_some_and(|(_, known)| known.account.stamp == stamp) {
            return false;
        }
        if stirs(&report, scope.windows) {
            delayed.stirred_told = delayed.stirred_told.max(Some(report.window));
        }
        let at = stamp + scope.horizon;
        delayed.waiting.insert(place, (at, report));
        self.waiting += 1;
        self.lasting = None;
        let foreseen = self.foreseen.take().filter(|before| at > now.max(before.at));
        self.expected.extend(foreseen.map(|before| (at, before)));
        if self.expected.len() > STEPS_MAX {
            self.expected.pop_front();
        }
        if delayed.waiting.len() > WAITING_MAX
            && let Some((_, early)) = delayed.waiting.pop_front()
        {
            self.waiting -= 1;
            delayed.use_from_now(early, scope.windows);
        }
        at < now
    }

    /// Brings the cut up to `now`: report after report in the order of their instants, so that every region
    /// takes the same steps, however coarse its ticks.
    pub(super) fn advance(&mut self, now: Timestamp, scope: DivisionScope<'_>) {
        while self.waiting > 0 {
            let due = self.delayed_reports.iter().filter_map(|(id, delayed)| {
                delayed.waiting.front().filter(|(at, _)| *at <= now).map(|(at, _)| (*at, id))
            });
            let due: SmallVec<[(Timestamp, RegionId); 4]> = due.collect();
            let Some(at) = due.iter().map(|(at, _)| *at).min() else { break };
            self.turn(at, scope);
            // All reports of one instant at once: each region would number them in an order of its own.
            for (_, id) in due.into_iter().filter(|(of, _)| *of == at) {
                if let Some(delayed) = self.delayed_reports.get_mut(id)
                    && let Some((_, report)) = delayed.waiting.pop_front()
                {
                    self.waiting -= 1;
                    delayed.use_from_now(report, scope.windows);
                }
            }
            self.settle(at, scope);
        }
        self.turn(now, scope);
    }

    /// Begins a new window if `at` lies in one.
    fn turn(&mut self, at: Timestamp, scope: DivisionScope<'_>) {
        let window = scope.windows.index(at);
        if window > self.window {
            let follows = self.window + 1 == window;
            // The reports in force decide, so that all regions take the same.
            self.ended_with = if follows { self.admitted(ReportsUsed::InForce) } else { 0 };
            self.window = window;
            self.ended = std::mem::take(&mut self.before);
            self.most = LargestAllocation::begin(at, &self.to_come, follows);
            self.settle(at, scope);
        }
    }

    fn settle(&mut self, at: Timestamp, scope: DivisionScope<'_>) {
        (self.lasting, self.outdated) = (None, false);
        self.before = self.divide(ReportsUsed::InForce, self.window, scope);
        self.over = self.before.sum() > scope.limit;
        if scope.whole && self.any_in_play(ReportsUsed::InForce, self.window, scope) {
            self.settled.clone_from(&self.before);
        }
        self.most.note(at, &self.before, GIVEN_MEMORY);
        let next = self.divide(ReportsUsed::InForce, self.window + 1, scope);
        self.to_come.note(at, &next, COMING_MEMORY);
        let next = next.get(Regions::OWN).unwrap_or(scope.limit);
        let mut usable = self.before.clone();
        let recent = self.steps.partition_point(|step| step.at + GROWTH_DELAY <= at).saturating_sub(1);
        for step in self.steps.iter().skip(recent).filter(|step| step.window == self.window) {
            usable.lower(&step.parts);
        }
        self.steps.push_back(CutRecord { at, window: self.window, parts: self.before.clone(), usable, next });
        while self.steps.get(1).is_some_and(|second| second.at + GROWTH_DELAY <= at)
            || self.steps.len() > STEPS_MAX
        {
            self.steps.pop_front();
        }
    }

    /// Returns what the cuts let a region use in this window: less than the last one gave it while that has
    /// not lasted.
    fn usable(&self, region: RegionId) -> Option<u64> {
        let mut steps = self.steps.iter().rev().filter(|step| step.window == self.window);
        steps.find_map(|step| step.usable.get(region))
    }

    /// Returns when the next report waits for its instant, or a budget may grow.
    pub(super) fn next_instant(&self, now: Timestamp) -> Option<Timestamp> {
        let waiting = (self.waiting > 0).then(|| self.delayed_reports.iter()).into_iter().flatten();
        let reports = waiting.filter_map(|(_, delayed)| delayed.waiting.front().map(|(at, _)| *at));
        let growth = self.steps.iter().skip(1).map(|step| step.at + GROWTH_DELAY).filter(|at| *at > now);
        reports.chain(growth).min()
    }

    /// Returns what the last cut gave a region in this window.
    pub(super) fn given(&self, region: RegionId) -> Option<u64> {
        self.before.get(region)
    }

    /// The most that a region may hold in this window since it told last; nothing where that is not known.
    pub(super) fn most_of(&self, region: RegionId) -> Option<u64> {
        self.most.of(region)
    }

    /// The same of the window after this one.
    pub(super) fn most_to_come(&self, region: RegionId) -> Option<u64> {
        self.to_come.of(region)
    }

    /// Returns what a region was given when all could still be heard.
    pub(super) fn settled(&self, region: RegionId) -> Option<u64> {
        if self.settled.0.is_empty() { None } else { Some(self.settled.get(region).unwrap_or(0)) }
    }

    /// Returns what the own region may admit in the window at `now`, and in the next. `own` is what it did
    /// until now, whether or not it told.
    pub(super) fn allowance(&mut self, own: ReportFigures, scope: DivisionScope<'_>) -> WindowBudgets {
        let settled = self.is_settled(own.stamp);
        let windows = (self.window, self.window + 1);
        let allowance = if scope.policy == Policy::Sum {
            let left = |window| self.left_by_others(own.stamp, window, scope);
            WindowBudgets { now: left(windows.0), next: left(windows.1) }
        } else {
            let now = self.foreseen(own, windows.0, scope, settled);
            let foreseen = WindowBudgets { now, next: self.foreseen(own, windows.1, scope, settled) };
            self.expected.retain(|(until, _)| *until > own.stamp);
            let at = self.delayed_reports.iter().filter_map(|(_, delayed)| delayed.waiting.back());
            let at = at.map(|(at, _)| *at).fold(own.stamp, Timestamp::max);
            self.foreseen = Some(ExpectedBudgets { window: self.window, at, allowance: foreseen });
            let least = |window| self.in_window(own.stamp, window, scope, foreseen);
            WindowBudgets { now: least(windows.0), next: least(windows.1) }
        };
        let lasts = scope.whole && scope.policy != Policy::Sum && settled && scope.lingering.is_empty();
        self.lasting = lasts.then_some(allowance);
        allowance
    }

    /// Returns what was last found, where nothing but time has passed since that could change it: the usual
    /// case, and so what a decision costs does not depend on the number of regions.
    pub(super) fn lasting(&self, window: u64) -> Option<WindowBudgets> {
        self.lasting.filter(|_| self.window == window)
    }

    /// Rules or regions have changed: all is worked out anew.
    pub(super) fn unsettle(&mut self) {
        (self.lasting, self.outdated) = (None, true);
    }

    /// Makes the cut anew where it was made in another scope: no report need come before a budget grows that
    /// this scope leaves more.
    pub(super) fn renew(&mut self, now: Timestamp, scope: DivisionScope<'_>) {
        if self.outdated && !self.steps.is_empty() {
            self.settle(now, scope);
        }
    }

    /// True if every region divides by the very reports that it has, and nothing is held back.
    fn is_settled(&self, now: Timestamp) -> bool {
        let held_back = self.steps.back().is_some_and(|step| step.at + GROWTH_DELAY > now);
        self.waiting == 0 && !self.over && !self.outdated && !held_back && !self.steps.is_empty()
    }

    /// Returns what all reports that have arrived give the own region of a window.
    fn foreseen(&mut self, own: ReportFigures, window: u64, scope: DivisionScope<'_>, settled: bool) -> u64 {
        let now = own.stamp;
        if let Some(in_force) = self.in_force(now, window).filter(|_| settled) {
            // The reports that have arrived are those in force. No other region is taken to have used more
            // than it was given, and what each wants is what it told: to divide once more could only give
            // more.
            return in_force;
        }
        let arrived = self.divide(ReportsUsed::Arrived(own), window, scope);
        // A clock that is a little ahead uses them sooner.
        if window == self.window {
            self.most.note(now, &arrived, GIVEN_MEMORY);
        }
        arrived.get(Regions::OWN).unwrap_or(scope.limit)
    }

    /// Returns what the own region may admit of a window: the least of what is in force now and of what will
    /// be.
    fn in_window(
        &self,
        now: Timestamp,
        window: u64,
        scope: DivisionScope<'_>,
        foreseen: WindowBudgets,
    ) -> u64 {
        let foreseen = if window == self.window { foreseen.now } else { foreseen.next };
        let expected =
            self.expected.iter().filter_map(|(_, before)| before.of(window)).fold(foreseen, u64::min);
        let in_force = self.in_force(now, window);
        let divided =
            || self.divide(ReportsUsed::InForce, window, scope).get(Regions::OWN).unwrap_or(scope.limit);
        in_force.unwrap_or_else(divided).min(expected)
    }

    /// The least that the cuts of the last [`GROWTH_DELAY`] gave for a window.
    fn in_force(&self, now: Timestamp, window: u64) -> Option<u64> {
        let of_window = |step: &CutRecord| match step.window {
            current if current == window => step.parts.get(Regions::OWN),
            before if before + 1 == window => Some(step.next),
            _ => None,
        };
        let newest_old = self.steps.partition_point(|step| step.at + GROWTH_DELAY <= now).saturating_sub(1);
        self.steps.iter().skip(newest_old).filter_map(of_window).min()
    }

    /// The limit less what the others have probably admitted by now.
    fn left_by_others(&self, now: Timestamp, window: u64, scope: DivisionScope<'_>) -> u64 {
        let used = scope.parties.iter().filter(|(id, _)| *id != Regions::OWN).map(|&(id, _)| {
            let Some(report) = self.delayed_reports.get(id).and_then(DelayedReports::newest) else {
                return 0;
            };
            if report.window != window {
                return 0;
            }
            let since = now.since(report.account.stamp).0;
            let asked = u128::from(report.account.demand) * u128::from(since) / 1_000_000_000_000;
            let guessed = report.account.admitted.saturating_add(u64::try_from(asked).unwrap_or(u64::MAX));
            let at_most = if scope.policy == Policy::Sum { 0 } else { self.given(id).unwrap_or(0) };
            report.account.admitted.max(guessed.min(at_most))
        });
        scope.limit.saturating_sub(used.fold(0, u64::saturating_add))
    }

    fn any_in_play(&self, known: ReportsUsed, window: u64, scope: DivisionScope<'_>) -> bool {
        scope.parties.iter().any(|&(id, _)| self.in_play(known, id, window, scope))
    }

    /// The region that alone asked for the bucket lately, as all know it. Most of the permits that nobody
    /// asks for are kept there: the sum stays the limit, so this costs no accuracy, and a burst from home
    /// finds nearly all of them at once.
    fn home(&self, scope: DivisionScope<'_>) -> Option<RegionId> {
        let stirred = |id: RegionId| self.delayed_reports.get(id).and_then(|delayed| delayed.stirred);
        let last = scope.parties.iter().map(|&(id, _)| id).max_by_key(|&id| stirred(id))?;
        let since = stirred(last)?;
        let alone = |&(id, _): &(RegionId, u64)| {
            id == last || stirred(id).is_none_or(|other| other + HOME_WINDOWS <= since)
        };
        scope.parties.iter().all(alone).then_some(last)
    }

    /// True if a region was asked for anything lately.
    fn in_play(&self, known: ReportsUsed, region: RegionId, window: u64, scope: DivisionScope<'_>) -> bool {
        let Some(delayed) = self.delayed_reports.get(region) else { return false };
        let stirred = match known {
            ReportsUsed::InForce => delayed.stirred,
            ReportsUsed::Arrived(_) => delayed.stirred_told,
        };
        let window = match delayed.newest() {
            Some(last) if scope.silent.contains(&region) => last.window.min(window),
            _ => window,
        };
        stirred.is_some_and(|stirred| stirred + IN_PLAY >= window)
    }

    /// Returns what all regions told that they admitted in this window.
    fn admitted(&self, known: ReportsUsed) -> u64 {
        let reports = self.delayed_reports.iter().filter_map(|(_, delayed)| delayed.report(known));
        let of_window = reports.filter(|report| report.window == self.window);
        of_window.map(|report| report.account.admitted).fold(0, u64::saturating_add)
    }

    /// Returns what the window before fills of the limit at `cut`, as a store works it out, but for what was
    /// told last of it.
    fn fading(
        &self,
        known: ReportsUsed,
        window: u64,
        (start, cut, end): (Timestamp, Timestamp, Timestamp),
        scope: DivisionScope<'_>,
    ) -> u64 {
        if !scope.fades {
            return 0;
        }
        let before = if window == self.window { self.ended_with } else { self.admitted(known) };
        let part = u128::from(before) * u128::from(end.since(cut).0) / u128::from(end.since(start).0.max(1));
        u64::try_from(part).unwrap_or(u64::MAX).min(scope.limit)
    }

    /// Divides the limit of a window. By [`RegionId`].
    fn divide(&self, known: ReportsUsed, window: u64, scope: DivisionScope<'_>) -> Allocation {
        let start = scope.windows.start(window);
        let home = if scope.policy == Policy::Tidegate { self.home(scope) } else { None };
        let weights: u64 = scope.parties.iter().map(|&(_, weight)| weight).fold(0, u64::saturating_add);
        let inputs: SmallVec<[RegionInput; 4]> = scope
            .parties
            .iter()
            .map(|&(id, weight)| {
                let delayed = self.delayed_reports.get(id);
                let report = delayed.and_then(|delayed| delayed.report(known)).copied();
                let lingering = scope.lingering.iter().find(|(of, _)| *of == id && window == self.window);
                let lingering = lingering.map_or(0, |(_, permits)| *permits);
                let before = if window == self.window { self.usable(id) } else { None };
                // The turn of a window gives nothing back if permits of the window before still count.
                let ended = if lingering > 0 { self.ended.get(id) } else { None };
                let before = before.or(ended).unwrap_or(scope.limit);
                let told = report.map(|report| ReportFigures {
                    admitted: if report.window == window { report.account.admitted } else { 0 },
                    ..report.account
                });
                let at_home = if home == Some(id) { weights.saturating_mul(HOME_PARTS) } else { 0 };
                let exact = match known {
                    ReportsUsed::Arrived(own) if id == Regions::OWN && window == self.window => {
                        Some(own.admitted)
                    }
                    _ => None,
                };
                let reserve = weight.saturating_add(at_home);
                let silent = scope.silent.contains(&id);
                RegionInput { weight, reserve, told, before, exact, lingering, silent }
            })
            .collect();
        let end = scope.windows.end(window);
        let cut = match known {
            ReportsUsed::InForce => common_cut(start, scope.horizon, &inputs),
            ReportsUsed::Arrived(own) => own.stamp.max(start),
        };
        let division = DivisionInput {
            limit: scope.limit,
            start,
            end,
            cut,
            ahead: Some(scope.ahead),
            slice_min: 1,
            scarce: scope.limit / SCARCE,
            whole: end.since(cut) > scope.ahead,
            fading: self.fading(known, window, (start, end.min(cut.max(start)), end), scope),
            caution: CAUTION,
            rounding_offset: scope.rounding_seed.wrapping_add(window.wrapping_mul(0x9e37_79b9)) % 1_000_000,
        };
        let mut by_id = Allocation::default();
        for (&(id, _), budget) in scope.parties.iter().zip(budgets(division, &inputs)) {
            by_id.set(id, budget);
        }
        by_id
    }
}

impl DelayedReports {
    fn use_from_now(&mut self, report: WindowReport, windows: Windows) {
        if stirs(&report, windows) {
            self.stirred = self.stirred.max(Some(report.window));
        }
        self.in_force = Some(report);
    }
}

/// True if a report shows that something was asked for: half a permit a window, or anything admitted.
fn stirs(report: &WindowReport, windows: Windows) -> bool {
    let in_window = u128::from(report.account.demand) * u128::from(windows.length().0) / 1_000_000;
    report.account.admitted > 0 || in_window >= 500_000
}

#[cfg(test)]
mod tests;
