//! One bucket of a worldwide limit, as the protocol follows it: what each region said, window by window.
//!
//! Knows nothing of links or of who owns it; [`super::replica`] asks it what to tell and what to enforce.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::algorithm::{Algorithm, View};
use super::super::time::{Span, Timestamp};
use super::super::wire::{COUNTS_MAX, Count, DEMAND_MAX};
use super::budget::Account;
use super::counts::{Counts, Merged};
use super::cut::{Cut, Ground, Reading};
use super::demand::Demand;
use super::partition::{Standing, most_of_silent, standing};
use super::regions::{RegionId, Regions};
use super::replica::Policy;
use super::{Effect, WorldKey, WorldRule};

/// Windows kept of one bucket: the one before, the current one, and the next for peers whose clocks are ahead.
const PERIODS_MAX: usize = 3;
/// A bucket without windows is forgotten when it has been still for this long and has drained.
const STILL: Span = Span::from_secs(60);

/// A demand is looked at again this many times in a window while nothing comes, so that what it no longer needs is freed.
const LOOKS_PER_WINDOW: u64 = 20;

/// What is known of one bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) key: WorldKey,
    pub(super) rule: Arc<WorldRule>,
    /// When this daemon began to count it.
    since: Timestamp,
    /// By window, ascending.
    periods: SmallVec<[Period; 1]>,
    demand: Demand,
    /// Daemons of the own region that count it too, with what they are asked for.
    pub(super) siblings: Vec<Sibling>,
    /// What was last told, and when.
    pub(super) told: Option<Telling>,
    /// Whether it waits to be told at the next cut.
    pub(super) waiting: bool,
    /// Whether its effect waits to be taken.
    pub(super) queued: bool,
    enforced: Option<(View, u64)>,
    cut: Cut,
    /// Where fractions of a permit tip over.
    lot: u64,
    debited: u64,
    debt: u64,
    changed: Timestamp,
}

/// Another daemon of the own region.
#[derive(Debug, Clone)]
pub(super) struct Sibling {
    pub(super) node: String,
    stamp: Timestamp,
    demand: u64,
}

/// What this daemon last told of a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Telling {
    pub(super) at: Timestamp,
    window: u64,
    net: u64,
    demand: u64,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Heard {
    /// Something in it was new.
    pub(super) changed: bool,
    /// There was no room for all of its counts.
    pub(super) full: bool,
    /// It came after the instant at which everyone should have used it.
    pub(super) late: bool,
}

#[derive(Debug)]
pub(super) struct Period {
    pub(super) window: u64,
    /// What the own region admitted, as far as is known here.
    pub(super) live: Counts,
    live_version: u32,
    /// What each region told; the own one's is what its owner told the others.
    told: Vec<Told>,
}

/// The newest that one region told.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    pub(super) stamp: Timestamp,
    pub(super) demand: u64,
    pub(super) counts: Counts,
    version: u32,
}

/// Who asks: what a bucket must know of the daemon that follows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) node: &'a str,
    /// When the process began.
    pub(super) started: Timestamp,
    /// Whether the daemons of this region share one store.
    pub(super) shared_store: bool,
    pub(super) regions: &'a Regions,
    /// After this long a report has reached everyone.
    pub(super) horizon: Span,
    pub(super) policy: Policy,
}

impl Bucket {
    pub(super) fn new(key: WorldKey, rule: Arc<WorldRule>, since: Timestamp) -> Self {
        let demand = Demand::new(rule.limit.window, rule.limit.permits);
        let lot = key.identity.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            key,
            rule,
            since,
            periods: SmallVec::new(),
            demand,
            siblings: Vec::new(),
            told: None,
            waiting: false,
            queued: false,
            enforced: None,
            cut: Cut::default(),
            lot,
            debited: 0,
            debt: 0,
            changed: since,
        }
    }

    /// Whether it counts by windows; the other algorithms are told by debits.
    pub(super) fn windowed(&self) -> bool {
        matches!(
            self.rule.algorithm,
            Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog
        )
    }

    /// The window that contains `now`; zero for algorithms without windows.
    pub(super) fn window_at(&self, now: Timestamp) -> u64 {
        if self.windowed() { now.window_index(self.rule.limit.window) } else { 0 }
    }

    /// Whether counts of this window still matter, or matter already.
    pub(super) fn speaks_of(&self, window: u64, now: Timestamp) -> bool {
        let current = self.window_at(now);
        if self.windowed() {
            window + 1 >= current && window <= current.saturating_add(1)
        } else {
            window == 0
        }
    }

    pub(super) fn period(&self, window: u64) -> Option<&Period> {
        self.periods.iter().find(|period| period.window == window)
    }

    pub(super) fn periods(&self) -> impl Iterator<Item = &Period> {
        self.periods.iter()
    }

    fn period_mut(&mut self, window: u64) -> Option<&mut Period> {
        let index = match self.periods.binary_search_by_key(&window, |period| period.window) {
            Ok(index) => index,
            Err(index) => {
                let full = self.periods.len() >= PERIODS_MAX;
                if full && index == 0 {
                    return None;
                }
                self.periods.insert(index, Period::new(window));
                if full {
                    self.periods.remove(0);
                    index - 1
                } else {
                    index
                }
            }
        };
        self.periods.get_mut(index)
    }

    /// What happened here.
    pub(super) fn count(&mut self, now: Timestamp, node: &str, touched: &super::Touched) {
        self.changed = now;
        self.demand.offered(now, touched.offered);
        let since = self.since;
        if let Some(period) = self.period_mut(touched.window)
            && touched.admitted | touched.returned != 0
        {
            period.live.add(node, since, touched.admitted, touched.returned);
            period.live_version = period.live_version.wrapping_add(1);
        }
    }

    /// What a sibling counted itself. Whether any of it was new.
    pub(super) fn hear_sibling(
        &mut self,
        now: Timestamp,
        node: &str,
        heard: &super::super::wire::Report,
    ) -> bool {
        self.changed = now;
        let full = self.siblings.len() >= COUNTS_MAX;
        match self.siblings.iter_mut().find(|sibling| sibling.node == node) {
            Some(sibling) if heard.stamp < sibling.stamp => {}
            Some(sibling) => {
                sibling.stamp = heard.stamp;
                sibling.demand = heard.demand.min(DEMAND_MAX);
            }
            None if full => {}
            None => self.siblings.push(Sibling {
                node: node.to_owned(),
                stamp: heard.stamp,
                demand: heard.demand.min(DEMAND_MAX),
            }),
        }
        let Some(period) = self.period_mut(heard.window) else { return false };
        let changed = period.live.merge_all(&heard.counts);
        if changed {
            period.live_version = period.live_version.wrapping_add(1);
        }
        changed
    }

    /// What a region's owner told.
    pub(super) fn hear_region(
        &mut self,
        now: Timestamp,
        region: RegionId,
        heard: &super::super::wire::Report,
        here: Here<'_>,
    ) -> Heard {
        self.changed = now;
        let Some(period) = self.period_mut(heard.window) else { return Heard::default() };
        let told = period.told_mut(region);
        let (mut changed, mut full) = (false, false);
        for count in &heard.counts {
            match told.counts.merge(count) {
                Merged::Changed => changed = true,
                Merged::Known => {}
                Merged::Full => full = true,
            }
        }
        if heard.stamp > told.stamp {
            changed |= told.demand != heard.demand;
            told.stamp = heard.stamp;
            told.demand = heard.demand.min(DEMAND_MAX);
        }
        if changed {
            told.version = told.version.wrapping_add(1);
        }
        if region == Regions::OWN && period.live.merge_all(&heard.counts) {
            period.live_version = period.live_version.wrapping_add(1);
        }
        let admitted = period.told_mut(region).counts.net();
        let account = Account { stamp: heard.stamp, admitted, demand: heard.demand };
        let late = self.read(now, region, heard.window, account, here);
        Heard { changed, full, late }
    }

    /// What the region is asked for, per second, in millionths.
    pub(super) fn demand_at(&self, now: Timestamp) -> u64 {
        let idle = Span(self.rule.limit.window.0.saturating_mul(2)).0.max(2_000_000);
        let fresh = self.siblings.iter().filter(|sibling| now.since(sibling.stamp).0 < idle);
        fresh.map(|sibling| sibling.demand).fold(self.demand.at(now), u64::saturating_add).min(DEMAND_MAX)
    }

    /// What this daemon alone is asked for.
    pub(super) fn own_demand_at(&self, now: Timestamp) -> u64 {
        self.demand.at(now).min(DEMAND_MAX)
    }

    /// Makes what is known now the thing that is told: of the window at `now`, and of the one before if it has changed
    /// since. Returns the windows to be told.
    pub(super) fn tell(&mut self, now: Timestamp, here: Here<'_>) -> SmallVec<[u64; 2]> {
        let window = self.window_at(now);
        let demand = self.demand_at(now);
        let mut windows = SmallVec::new();
        self.period_mut(window);
        for period in &mut self.periods {
            let current = period.window == window;
            let live = period.live.clone();
            let told = period.told_mut(Regions::OWN);
            if current || told.counts != live {
                told.counts = live;
                told.stamp = now;
                told.demand = demand;
                told.version = told.version.wrapping_add(1);
                windows.push(period.window);
            }
        }
        let net = self.own_net(window);
        self.told = Some(Telling { at: now, window, net, demand });
        self.read(now, Regions::OWN, window, Account { stamp: now, admitted: net, demand }, here);
        windows
    }

    /// Gives a report to the cut. Whether it came too late to be used by all at once.
    fn read(
        &mut self,
        now: Timestamp,
        region: RegionId,
        window: u64,
        account: Account,
        here: Here<'_>,
    ) -> bool {
        // The last word on a window that is over is no word on the demand of now.
        if !self.windowed() || account.stamp.window_index(self.rule.limit.window) != window {
            return false;
        }
        let standing = self.standing(window, here);
        let ground = self.ground(&standing, here);
        self.cut.hear(now, region, Reading { window, account }, ground)
    }

    fn standing(&self, window: u64, here: Here<'_>) -> Standing {
        let admitted =
            |id| self.period(window).and_then(|period| period.told(id)).map_or(0, |told| told.counts.net());
        standing(&self.rule, here.regions, admitted, |id| self.cut.settled(id))
    }

    fn ground<'a>(&self, standing: &'a Standing, here: Here<'_>) -> Ground<'a> {
        Ground {
            limit: standing.limit,
            window: self.rule.limit.window,
            horizon: here.horizon,
            parties: &standing.parties,
            silent: &standing.silent,
            whole: standing.whole,
            policy: here.policy,
            lot: self.lot,
        }
    }

    /// The same for a daemon that does not own the bucket: what it counted itself.
    pub(super) fn tell_owner(&mut self, now: Timestamp) -> SmallVec<[u64; 2]> {
        let window = self.window_at(now);
        let (net, demand) = (self.own_net(window), self.own_demand_at(now));
        self.told = Some(Telling { at: now, window, net, demand });
        self.periods.iter().map(|period| period.window).collect()
    }

    fn own_net(&self, window: u64) -> u64 {
        self.period(window).map_or(0, |period| period.live.net())
    }

    /// Whether there is anything to tell that was not told.
    pub(super) fn has_news(&self, now: Timestamp) -> bool {
        let Some(told) = self.told else { return true };
        let window = self.window_at(now);
        let before = self.period(told.window).map_or(told.net, |period| period.live.net());
        // Once a window also what has not changed: a demand that is only refused would be forgotten.
        let turned = window != told.window && (told.demand > 0 || self.own_net(window) != 0);
        before != told.net || turned || self.demand_moved(told, now, 10)
    }

    /// Whether it should not wait for the next cut: it is new, moves fast, or runs into its limit.
    pub(super) fn is_urgent(&self, now: Timestamp) -> bool {
        let Some(told) = self.told else { return true };
        let window = self.window_at(now);
        let known = if told.window == window { told.net } else { 0 };
        let grown = self.own_net(window).abs_diff(known);
        let limit = u64::from(self.rule.limit.permits);
        let budget = self.enforced.map_or(limit, |(view, _)| u64::from(view.budget));
        let near = self.own_net(window).saturating_mul(10) >= budget.saturating_mul(9);
        grown > (limit / 20).max(1) || (near && grown > limit / 50) || self.demand_moved(told, now, 20)
    }

    /// Whether the demand differs by more than `percent` and by more than chance would.
    fn demand_moved(&self, told: Telling, now: Timestamp, percent: u64) -> bool {
        let demand = self.demand_at(now);
        let moved = demand.abs_diff(told.demand);
        moved > told.demand.max(demand) / 100 * percent
            && moved > self.demand.noise(told.demand.max(demand)).saturating_mul(2)
    }

    /// What all other regions are known to have admitted in a window.
    fn others_in(&self, here: Here<'_>, window: u64) -> u64 {
        let Some(period) = self.period(window) else { return 0 };
        let regions = period.told.iter().skip(1).map(|told| told.counts.net()).fold(0, u64::saturating_add);
        regions.saturating_add(if here.shared_store { 0 } else { self.elsewhere(here, period) })
    }

    /// What the own region admitted but this daemon's own store cannot know.
    fn elsewhere(&self, here: Here<'_>, period: &Period) -> u64 {
        let unknown = |count: &&Count| count.node != here.node || count.since < here.started;
        let counts = period.live.entries().iter().filter(unknown);
        counts.fold(0, |sum: u64, count| sum.saturating_add(count.admitted.saturating_sub(count.returned)))
    }

    /// Works out what the store must be told. Whether it has changed.
    pub(super) fn look(&mut self, now: Timestamp, here: Here<'_>) -> bool {
        if !self.windowed() {
            let total = self.others_in(here, 0);
            self.debt = self.debt.saturating_add(total.saturating_sub(self.debited));
            self.debited = self.debited.max(total);
            return self.debt > 0;
        }
        let window = self.window_at(now);
        let limit = self.rule.limit.permits;
        let standing = self.standing(window, here);
        let ground = self.ground(&standing, here);
        self.cut.advance(now, ground);
        let siblings = match self.period(window) {
            Some(period) if !here.shared_store => self.elsewhere(here, period),
            _ => 0,
        };
        let own = Account { stamp: now, admitted: self.own_net(window), demand: self.demand_at(now) };
        let allowance = self.cut.allowance(own, ground);
        let view = View {
            window,
            budget: u32::try_from(allowance.now.saturating_sub(siblings)).unwrap_or(limit),
            next_budget: u32::try_from(allowance.next).unwrap_or(limit),
            others: self.others_in(here, window),
            others_before: self.others_in(here, window.saturating_sub(1)),
        };
        let plain = View { window, budget: limit, next_budget: limit, others: 0, others_before: 0 };
        let same = match self.enforced {
            None => view == plain,
            Some((enforced, _)) => enforced == view,
        };
        if !same {
            self.enforced = Some((view, self.error_bound(now, here.regions)));
        }
        !same
    }

    /// What the store must be told.
    pub(super) fn effect(&mut self) -> Option<Effect> {
        self.queued = false;
        if self.windowed() {
            let (view, error_bound) = self.enforced?;
            return Some(Effect::View { key: self.key.clone(), view, error_bound });
        }
        let permits = std::mem::take(&mut self.debt);
        (permits > 0).then(|| Effect::Debit { key: self.key.clone(), permits })
    }

    /// When it should be looked at again if nothing happens.
    pub(super) fn next_look(&self, now: Timestamp) -> Timestamp {
        let expiry = self.expiry();
        if !self.windowed() {
            return expiry;
        }
        let turn = Timestamp::window_start(self.window_at(now).saturating_add(1), self.rule.limit.window);
        // A demand that fades must be told, though nothing happens.
        let pause = Span((self.rule.limit.window.0 / LOOKS_PER_WINDOW).clamp(20_000, 1_000_000));
        let fades = self.told.is_some_and(|told| told.demand > 0).then_some(now + pause);
        [Some(expiry), Some(turn), fades, self.cut.next_instant(now)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(turn)
    }

    /// From when on it may be forgotten: nothing that it knows can matter any more.
    pub(super) fn expiry(&self) -> Timestamp {
        let limit = &self.rule.limit;
        if self.windowed() {
            let newest =
                self.window_at(self.changed).max(self.periods.last().map_or(0, |period| period.window));
            return Timestamp::window_start(newest.saturating_add(3), limit.window) + Span::from_secs(1);
        }
        let drained = u128::from(limit.burst.max(limit.permits)) * u128::from(limit.window.0)
            / u128::from(limit.permits.max(1));
        self.changed + Span(u64::try_from(drained).unwrap_or(u64::MAX).saturating_mul(2)).max(STILL)
    }

    /// How much would be missed if it were forgotten: the part of its limit in use, in thousandths.
    pub(super) fn pressure(&self) -> u64 {
        let Some(period) = self.periods.last() else { return 0 };
        let used = period
            .told
            .iter()
            .skip(1)
            .fold(period.live.net(), |sum, told| sum.saturating_add(told.counts.net()));
        used.saturating_mul(1_000) / u64::from(self.rule.limit.permits.max(1))
    }

    /// How far the worldwide count may lie above what is believed. Of a region that speaks: what it may have admitted
    /// since it told, going by the demand that it told and by what it was given. Of one that is cut off: all that the
    /// rule lets it admit on its own.
    pub(super) fn error_bound(&self, now: Timestamp, regions: &Regions) -> u64 {
        let window = self.window_at(now);
        let limit = u64::from(self.rule.limit.permits);
        let bounds = regions.iter().skip(1).map(|(id, region)| {
            let told = self.period(window).and_then(|period| period.told(id));
            let known = told.map_or(0, |told| told.counts.net());
            if region.cut_off {
                return most_of_silent(&self.rule, regions, id).saturating_sub(known);
            }
            let Some(told) = told else { return 0 };
            let asked = u128::from(told.demand) * u128::from(now.since(told.stamp).0) / 1_000_000_000_000;
            let likely = u64::try_from(asked + 2 * asked.isqrt()).unwrap_or(u64::MAX);
            let given = self.cut.given(id).filter(|&given| given > 0).unwrap_or(limit);
            likely.min(given.min(limit).saturating_sub(known))
        });
        bounds.fold(0, u64::saturating_add)
    }

    pub(super) const fn view(&self) -> Option<(View, u64)> {
        self.enforced
    }
}

impl Period {
    fn new(window: u64) -> Self {
        Self { window, live: Counts::default(), live_version: 0, told: Vec::new() }
    }

    fn told_mut(&mut self, region: RegionId) -> &mut Told {
        while self.told.len() <= region {
            self.told.push(Told::default());
        }
        &mut self.told[region]
    }

    pub(super) fn told(&self, region: RegionId) -> Option<&Told> {
        self.told.get(region).filter(|told| told.stamp > Timestamp::default())
    }

    /// Regions that have told anything.
    pub(super) fn tellers(&self) -> impl Iterator<Item = RegionId> {
        self.told.iter().enumerate().filter(|(_, told)| told.stamp > Timestamp::default()).map(|(id, _)| id)
    }

    /// The version of what `region` told (`None`: of what this daemon's region counted).
    pub(super) fn version(&self, region: Option<RegionId>) -> Option<u32> {
        match region {
            None => Some(self.live_version),
            Some(region) => self.told(region).map(|told| told.version),
        }
    }
}
