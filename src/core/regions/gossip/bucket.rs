//! One bucket of a worldwide limit, as the protocol follows it: what each region said, window by window.
//!
//! Knows nothing of links or of who owns it; [`super::replica`] asks it what to tell and what to enforce.

use std::sync::Arc;

use smallvec::SmallVec;

use super::allocation::LargestAllocation;
use super::common_cuts::{CommonCuts, DivisionScope, WindowReport};
use super::counts::{Count, Counts, Merged, settled_first};
use super::own_key_ids::KeyIds;
use super::own_limit::Own;
use super::partition::{PartitionPlan, plan};
use super::plausibility::BELIEVED_TIMES;
use super::shared_level::{LevelReport, SharedLevel};
use crate::algorithm::{Algorithm, Allowance, Counting, Limit};
use crate::calendar::Windows;
use crate::regions::by_region::ByRegion;
use crate::regions::demand::Demand;
use crate::regions::fair_share::ReportFigures;
use crate::regions::membership::{RegionId, Regions};
use crate::regions::{WorldKey, WorldRule};
use crate::time::{Span, Timestamp};
use crate::wire::{Amount, DEMAND_MAX, OwnLimit, rounded};

mod count_history;
mod daemon_context;
mod debited;
mod error_bound;
mod former;
mod lost_store;
mod overshoot;
mod own_region;
mod pending_report;
mod recompute;
mod unmet;

use error_bound::KnownSince;
use unmet::Unmet;

use count_history::CountHistory;
use daemon_context::AHEAD_MIN;
pub(super) use daemon_context::DaemonContext;
use debited::Debited;
pub use error_bound::UncertaintyCause;
use lost_store::LostStore;
use overshoot::Overshoot;

/// Windows kept of one bucket: the one before, the current one, and the next for peers whose clocks are
/// ahead.
const PERIODS_MAX: usize = 3;
/// A report that comes so long after its window, or before it, is only late or early.
const LATELY: Span = Span::from_secs(10);
/// A demand that has ended is no more than this, in millionths of a permit a second: less than half a permit
/// until the next division, however far that looks ahead, so the last permits are not kept for it.
pub(super) const IDLE: u64 = 200_000;
/// A count without windows that began so much earlier than the bucket here, and the horizon, tells of the
/// past.
const JOINING: Span = Span::from_secs(1);

/// The facts known of one bucket.
#[derive(Debug)]
pub(super) struct GossipBucket {
    pub(super) key: WorldKey,
    /// With the bucket's own limit in place of the rule's, where it has one.
    pub(super) rule: Arc<WorldRule>,
    own: Own,
    /// Instant at which this daemon began to count it.
    pub(super) since: Timestamp,
    /// Instant under which it counts: the same, or later where an earlier count of its own is settled.
    counts_since: Timestamp,
    /// Windows that still count, by window, ascending.
    periods: SmallVec<[Period; 1]>,
    demand: Demand,
    unmet: Unmet,
    /// Daemons of the own region that count it too, with what they are asked for.
    pub(super) siblings: Vec<SiblingReport>,
    /// The last report, and when it was told.
    pub(super) told: Option<LastReport>,
    /// Instant since which all regions know of it.
    known_since: KnownSince,
    /// Without windows: the most that each region may have used lately without telling.
    given: LargestAllocation,
    /// True if it waits to be told at the next cut.
    pub(super) waiting: bool,
    /// True if its effect waits to be taken.
    pub(super) queued: bool,
    enforced: Option<(Allowance, u64)>,
    cut: CommonCuts,
    /// Decides where fractions of a permit tip over, for this bucket.
    rounding_seed: u64,
    /// The level that all regions share, of an algorithm without windows.
    shared_level: SharedLevel,
    /// The store's charges for each region, by [`RegionId`]; the own one's place is for its siblings.
    charged: SmallVec<[Debited; 4]>,
    /// Permits that the store counted itself so far.
    stored: u64,
    debt: u64,
    /// True if the own region will soon be refused. With windows, it would have used more than three quarters
    /// of its budget by then. Without windows, no more is left than it used without telling.
    near_limit: bool,
    /// True if `enforced` has changed since the store was told.
    moved_since: bool,
    /// Instant at which the store was last told it, or will be at once.
    store_told: Timestamp,
    lost: LostStore,
    changed: Timestamp,
    /// Under which key ids it is told.
    own_key_ids: KeyIds,
}

/// A report on one window of a bucket.
#[derive(Debug)]
pub(super) struct ReceivedReport {
    pub(super) window: u64,
    pub(super) stamp: Timestamp,
    pub(super) counts: SmallVec<[Count; 1]>,
    pub(super) demand: u64,
}

/// Another daemon of the own region.
#[derive(Debug, Clone)]
pub(super) struct SiblingReport {
    pub(super) node: String,
    stamp: Timestamp,
    demand: u64,
}

/// The newest report of this daemon on a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastReport {
    pub(super) at: Timestamp,
    window: u64,
    net: u64,
    demand: u64,
}

/// The outcome of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ReportOutcome {
    /// True if something in the report was new.
    pub(super) changed: bool,
    /// There was no room for all of its counts.
    pub(super) full: bool,
    /// It came after the instant at which everyone should have used it.
    pub(super) late: bool,
    /// It was newer than what is known, and still a count in it was smaller: that count was passed over.
    pub(super) backwards: bool,
    /// It told of more than a region is believed to have admitted: it counts for no more than that.
    pub(super) beyond: bool,
}

#[derive(Debug)]
pub(super) struct Period {
    pub(super) window: u64,
    /// Permits that the own region admitted, as far as is known here.
    pub(super) live: Counts,
    live_version: u32,
    /// This daemon's own count in it, and as much of that as it told its region's owner.
    here: Amount,
    owner_told: Amount,
    /// The part of this daemon's own count that found no room in `live`.
    unplaced: Amount,
    /// True if a count of another daemon of the own region found no room in it.
    full: bool,
    overshoot: Overshoot,
    /// Reports of each region; the own one's is what its owner told the others.
    told: ByRegion<RegionReport>,
}

/// The newest that one region told.
#[derive(Debug, Clone, Default)]
pub(super) struct RegionReport {
    pub(super) stamp: Timestamp,
    /// The stamp of the newest report that told of more than those before it.
    pub(super) grown: Timestamp,
    pub(super) demand: u64,
    pub(super) counts: Counts,
    version: u32,
    /// True if there was no room for all that the newest report told.
    full: bool,
    /// Growth of its count, where a window is not over at its end: of a `sliding_log`.
    trail: Option<Box<CountHistory>>,
}

impl GossipBucket {
    pub(super) fn new(key: WorldKey, rule: Arc<WorldRule>, since: Timestamp) -> Self {
        let demand = Demand::new(rule.limit.window, rule.limit.permits);
        let shared_level = SharedLevel::full(rule.limit.capacity(rule.algorithm), since);
        let rounding_seed = key.identity.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            key,
            rule,
            own: Own::default(),
            since,
            counts_since: since,
            periods: SmallVec::new(),
            demand,
            unmet: Unmet::default(),
            siblings: Vec::new(),
            told: None,
            known_since: KnownSince::default(),
            given: LargestAllocation::default(),
            waiting: false,
            queued: false,
            enforced: None,
            store_told: Timestamp::default(),
            lost: LostStore::default(),
            cut: CommonCuts::default(),
            rounding_seed,
            shared_level,
            charged: SmallVec::new(),
            stored: 0,
            debt: 0,
            near_limit: false,
            moved_since: false,
            changed: since,
            own_key_ids: KeyIds::default(),
        }
    }

    /// Returns what it counts. Places are counted by no `gossip` rule.
    pub(super) fn counting(&self) -> Counting {
        self.rule.counting()
    }

    /// Returns how long a window is whose end is not the end of what was admitted in it: of a `sliding_log`.
    fn slides(&self) -> Option<Span> {
        (self.rule.algorithm == Algorithm::SlidingLog).then_some(self.rule.limit.window)
    }

    pub(super) fn windows(&self) -> Windows {
        self.rule.limit.windows()
    }

    /// The window that contains `now`; zero for algorithms without windows.
    pub(super) fn window_at(&self, now: Timestamp) -> u64 {
        match self.counting() {
            Counting::Window => self.windows().index(now),
            Counting::Level | Counting::Concurrency => 0,
        }
    }

    /// True if counts of this window still matter, or matter already.
    pub(super) fn speaks_of(&self, window: u64, now: Timestamp) -> bool {
        let current = self.window_at(now);
        match self.counting() {
            Counting::Window => window.saturating_add(1) >= current && window <= current.saturating_add(1),
            Counting::Level | Counting::Concurrency => window == 0,
        }
    }

    /// True if this window was over a short time ago, or begins soon: so late, or so early, honest reports
    /// come.
    pub(super) fn was_lately(&self, window: u64, now: Timestamp) -> bool {
        let (begins, ends) = (self.windows().start(window), self.windows().end(window));
        self.counting() == Counting::Window && now.since(ends) <= LATELY && begins.since(now) <= LATELY
    }

    pub(super) fn period(&self, window: u64) -> Option<&Period> {
        self.periods.iter().find(|period| period.window == window)
    }

    /// Returns whose it is, what is known of a window, and under which key ids it is told.
    pub(super) fn tell_of(&mut self, window: u64) -> Option<(&WorldKey, &Own, &Period, &mut KeyIds)> {
        let period = self.periods.iter().find(|period| period.window == window)?;
        Some((&self.key, &self.own, period, &mut self.own_key_ids))
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

    /// Returns what a region's owner told.
    pub(super) fn hear_region(
        &mut self,
        now: Timestamp,
        region: RegionId,
        heard: &ReceivedReport,
        here: DaemonContext<'_>,
    ) -> ReportOutcome {
        let past = self.counting() != Counting::Window
            && self.period(0).and_then(|period| period.told(region)).is_none()
            && heard.counts.iter().any(|count| count.counter.since + here.horizon + JOINING < self.since);
        self.changed = now;
        self.known_since.note(heard.stamp.min(now), self.agreed_for());
        let slides = self.slides();
        let Some(period) = self.period_mut(heard.window) else { return ReportOutcome::default() };
        let told = period.told_mut(region);
        let (mut changed, mut full, mut backwards) = (false, false, false);
        for count in settled_first(&heard.counts) {
            backwards |= heard.stamp > told.stamp && told.counts.runs_backwards(count);
            match told.counts.merge(count) {
                Merged::Changed => (changed, told.grown) = (true, told.grown.max(heard.stamp)),
                Merged::Known => {}
                // A sibling counts its own region itself.
                Merged::Full => full |= region != Regions::OWN,
            }
        }
        if heard.stamp >= told.stamp {
            told.full = full;
        }
        if heard.stamp > told.stamp {
            changed |= told.demand != heard.demand;
            told.stamp = heard.stamp;
            told.demand = heard.demand.min(DEMAND_MAX);
            if let Some(length) = slides {
                told.note(heard.window, length);
            }
        }
        if changed {
            told.version = told.version.wrapping_add(1);
        }
        let admitted = told.counts.net();
        if region == Regions::OWN {
            full |= period.hear_own(&heard.counts, here).full;
            self.place_counts(now, here);
        }
        let beyond = !past && self.is_beyond(now, region, admitted);
        if past {
            self.charged_for(region).counted = admitted;
        }
        let account = ReportFigures { stamp: heard.stamp, admitted, demand: heard.demand };
        let late = self.give_to_cut(now, region, heard.window, LevelReport { account, past }, here);
        ReportOutcome { changed, full, late, backwards, beyond }
    }

    /// Returns what the store was charged for a region.
    fn charged_for(&mut self, region: RegionId) -> &mut Debited {
        if self.charged.len() <= region {
            self.charged.resize(region + 1, Debited::new(self.since));
        }
        &mut self.charged[region]
    }

    /// True if a region told of more than it is believed to have admitted. The own store knows what its
    /// region admits without windows, so nothing has to be believed.
    fn is_beyond(&self, now: Timestamp, region: RegionId, admitted: u64) -> bool {
        if self.counting() == Counting::Window {
            return self.believed(admitted) < admitted;
        }
        if region == Regions::OWN {
            return false;
        }
        let mut charged = self.charged.get(region).copied().unwrap_or(Debited::new(self.since));
        let more = admitted.saturating_sub(charged.counted);
        charged.plausible.believe(now, more, self.rule.limit, self.rule.limit.capacity(self.rule.algorithm))
            < more
    }

    /// Returns what all other regions told that they admitted in a period, as far as it is believed.
    pub(super) fn told_by_others(&self, period: &Period) -> u64 {
        let others = period.told.iter().filter(|(id, _)| *id != Regions::OWN);
        others.map(|(_, told)| self.believed(told.counts.net())).fold(0, u64::saturating_add)
    }

    /// Returns the part of what a region told of a window that is believed: a region whose store was lost, or
    /// whose limit a reload has just lowered, may have admitted more than the limit, and one that lies may
    /// say anything. In a bucket without windows it is believed bit by bit, as `plausibility.rs` has it.
    fn believed(&self, net: u64) -> u64 {
        match self.counting() {
            Counting::Window => {
                let most = self.rule.limit.permits.max(self.own.before());
                net.min(u64::from(most).saturating_mul(BELIEVED_TIMES))
            }
            Counting::Level | Counting::Concurrency => net,
        }
    }

    /// Returns what the region is asked for, per second, in millionths.
    pub(super) fn demand_at(&self, now: Timestamp) -> u64 {
        let idle = Span(self.rule.limit.window.0.saturating_mul(2)).0.max(2_000_000);
        let fresh = self.siblings.iter().filter(|sibling| now.since(sibling.stamp).0 < idle);
        let own = self.own_demand_at(now);
        fresh.map(|sibling| sibling.demand).fold(own, u64::saturating_add).min(DEMAND_MAX)
    }

    /// Returns what this daemon alone is asked for.
    pub(super) fn own_demand_at(&self, now: Timestamp) -> u64 {
        let ended = self.demand_ends_at().is_some_and(|at| at <= now);
        let most = if ended { IDLE } else { DEMAND_MAX };
        self.demand.at(now).min(most).max(self.unmet.at(now)).min(DEMAND_MAX)
    }

    /// Returns from when on no permit is claimed for the next second, if nothing is asked for before. A
    /// window that is no longer than that is divided to its end.
    pub(super) fn demand_ends_at(&self) -> Option<Timestamp> {
        let looks_ahead = self.counting() == Counting::Window && self.rule.limit.window > AHEAD_MIN;
        self.demand.ends_at().filter(|_| looks_ahead)
    }

    /// Makes what is known now the thing that is told: of the window at `now`, and of the one before if it
    /// has changed since. Returns the windows to be told.
    pub(super) fn tell(&mut self, now: Timestamp, here: DaemonContext<'_>) -> SmallVec<[u64; 2]> {
        let window = self.window_at(now);
        let demand = rounded(self.demand_at(now));
        let mut windows = SmallVec::new();
        let slides = self.slides();
        self.period_mut(window);
        for period in &mut self.periods {
            let (index, current) = (period.window, period.window == window);
            let live = period.live.clone();
            let told = period.told_mut(Regions::OWN);
            if current || told.counts != live {
                told.counts = live;
                told.stamp = now;
                told.demand = demand;
                told.version = told.version.wrapping_add(1);
                if let Some(length) = slides {
                    told.note(index, length);
                }
                windows.push(index);
            }
        }
        let net = self.own_net(window);
        self.known_since.note(now, self.agreed_for());
        self.told = Some(LastReport { at: now, window, net, demand });
        let account = ReportFigures { stamp: now, admitted: net, demand };
        self.give_to_cut(now, Regions::OWN, window, LevelReport { account, past: false }, here);
        windows
    }

    /// Gives a report to the cut. Returns whether it came too late to be used by all at once.
    fn give_to_cut(
        &mut self,
        now: Timestamp,
        region: RegionId,
        window: u64,
        statement: LevelReport,
        here: DaemonContext<'_>,
    ) -> bool {
        if self.counting() != Counting::Window {
            return self.shared_level.hear(now, region, statement, here.horizon);
        }
        let account =
            ReportFigures { admitted: self.believed(statement.account.admitted), ..statement.account };
        // The last word on a window that is over is no word on the demand of now.
        if self.windows().index(account.stamp) != window {
            return false;
        }
        let plan = self.plan(window, here);
        let scope = self.scope(&plan, here, &[]);
        self.cut.hear(now, region, WindowReport { window, account }, scope)
    }

    fn plan(&self, window: u64, here: DaemonContext<'_>) -> PartitionPlan {
        let admitted = |id| {
            self.period(window)
                .and_then(|period| period.told(id))
                .map_or(0, |told| self.believed(told.counts.net()))
        };
        plan(&self.rule, here.regions, admitted, |id| self.cut.settled(id))
    }

    fn scope<'a>(
        &self,
        plan: &'a PartitionPlan,
        here: DaemonContext<'_>,
        lingering: &'a [(RegionId, u64)],
    ) -> DivisionScope<'a> {
        DivisionScope {
            limit: plan.limit,
            windows: self.windows(),
            horizon: here.horizon,
            ahead: here.ahead(),
            parties: &plan.parties,
            silent: &plan.silent,
            whole: plan.whole,
            policy: here.policy,
            rounding_seed: self.rounding_seed,
            lingering,
            fades: self.rule.algorithm == Algorithm::SlidingWindow,
        }
    }

    /// Takes in by which limit `region` decides requests for it. Returns whether another is in force now:
    /// then it has to [`Self::follow`].
    pub(super) fn hear_limit(
        &mut self,
        times: (Timestamp, Timestamp),
        region: RegionId,
        own: Option<OwnLimit>,
        rule: &Limit,
    ) -> bool {
        let (limit, from) = (self.own.limit(), self.own.from());
        self.own.hear(times, region, own, (rule, &self.rule.limit));
        let changed = limit != self.own.limit();
        if changed || from != self.own.from() {
            // It is said with the name, so the bucket has to be named anew.
            self.own_key_ids = KeyIds::default();
        }
        if changed {
            self.told = None;
        }
        changed
    }

    /// True if it has, or had, another limit than its rule's.
    pub(super) const fn has_own_limit(&self) -> bool {
        self.own.is_known()
    }

    /// The limit by which it is decided, where that is not the rule's.
    pub(super) fn own_limit(&self) -> Option<OwnLimit> {
        self.own.limit()
    }

    /// Another rule is in force, or other regions are there: everything is worked out anew.
    pub(super) fn unsettle(&mut self) {
        self.cut.unsettle();
    }

    /// This daemon stood still for longer than it takes to be heard by others.
    pub(super) fn stood_still(&mut self) {
        self.shared_level.stood_still();
    }

    /// The clock went back to `now`.
    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        if let Some(told) = &mut self.told {
            told.at = told.at.min(now);
        }
        self.known_since = KnownSince::default();
        self.changed = self.changed.min(now);
        self.own.clock_went_back(now);
        self.unmet.clock_went_back(now);
        self.unsettle();
    }

    /// The same for a daemon that does not own the bucket: what it counted itself.
    pub(super) fn tell_owner(&mut self, now: Timestamp) -> SmallVec<[u64; 2]> {
        let window = self.window_at(now);
        let (net, demand) = (self.own_net(window), rounded(self.own_demand_at(now)));
        self.told = Some(LastReport { at: now, window, net, demand });
        let said = |period: &mut Period| {
            period.owner_told = period.here;
            period.window
        };
        self.periods.iter_mut().map(said).collect()
    }

    fn own_net(&self, window: u64) -> u64 {
        self.period(window).map_or(0, |period| period.live.net())
    }

    /// Returns how much would be missed if it were forgotten: the part of its limit in use, in thousandths.
    /// Nobody here misses what only others ask for, whatever they say of it.
    pub(super) fn retention_priority(&self, now: Timestamp) -> u64 {
        if self.own_net(self.window_at(now)) == 0 && self.demand_at(now) == 0 {
            return 0;
        }
        self.in_use(now)
    }

    /// The part of its limit that all regions have in use now, in thousandths. Nothing is in use when a
    /// window has just begun, so what was in use in the one before counts as well: the same is asked for
    /// again.
    pub(super) fn in_use(&self, now: Timestamp) -> u64 {
        let used_in = |period: &Period| period.live.net().saturating_add(self.told_by_others(period));
        let (used, whole) = match self.counting() {
            Counting::Window => {
                let window = self.window_at(now);
                let lately = self.periods.iter().filter(|period| period.window <= window);
                let lately = lately.filter(|period| period.window + 1 >= window);
                (lately.map(used_in).max().unwrap_or(0), u64::from(self.rule.limit.permits))
            }
            Counting::Level | Counting::Concurrency => (
                self.shared_level.store.in_use(now, self.rule.limit),
                self.rule.limit.capacity(self.rule.algorithm),
            ),
        };
        used.saturating_mul(1_000) / whole.max(1)
    }

    /// Another version of its rule is in force, which counts in the same way.
    pub(super) fn follow(&mut self, rule: Arc<WorldRule>) {
        let capacity = |rule: &WorldRule| rule.limit.capacity(rule.algorithm);
        self.shared_level.resize(capacity(&self.rule), capacity(&rule));
        self.rule = rule;
        self.unsettle();
    }

    /// Its rule is in force again: nobody told of it meanwhile, and the store may have forgotten its
    /// allowance.
    pub(super) fn come_back(&mut self, rule: Arc<WorldRule>) {
        (self.waiting, self.queued, self.told, self.enforced) = (false, false, None, None);
        self.own_key_ids = KeyIds::default();
        self.stood_still();
        self.follow(rule);
    }

    pub(super) const fn view(&self) -> Option<(Allowance, u64)> {
        self.enforced
    }
}

impl RegionReport {
    /// Remembers how the count of `window` has grown.
    fn note(&mut self, window: u64, length: Span) {
        let start = Timestamp::window_start(window, length);
        self.trail.get_or_insert_default().note(start, length, self.stamp, self.counts.net());
    }

    /// Returns what of its count still lies in an interval as long as the window, once so much of the next
    /// one has passed.
    fn lingering(&self, passed: u64, length: Span) -> u64 {
        let gone = self.trail.as_ref().map_or(0, |trail| trail.at(passed, length));
        self.counts.net().saturating_sub(gone)
    }
}

impl Period {
    fn new(window: u64) -> Self {
        let (live, told) = (Counts::default(), ByRegion::default());
        let (here, owner_told, unplaced) = (Amount::default(), Amount::default(), Amount::default());
        let overshoot = Overshoot::default();
        Self { window, live, live_version: 0, here, owner_told, unplaced, full: false, overshoot, told }
    }

    fn told_mut(&mut self, region: RegionId) -> &mut RegionReport {
        self.told.of(region)
    }

    pub(super) fn told(&self, region: RegionId) -> Option<&RegionReport> {
        self.told.get(region).filter(|told| told.stamp > Timestamp::default())
    }

    /// Regions that have told anything.
    pub(super) fn tellers(&self) -> impl Iterator<Item = RegionId> {
        self.told.iter().filter(|(_, told)| told.stamp > Timestamp::default()).map(|(id, _)| id)
    }

    /// The version of what `region` told (`None`: of what this daemon's region counted).
    pub(super) fn version(&self, region: Option<RegionId>) -> Option<u32> {
        match region {
            None => Some(self.live_version),
            Some(region) => self.told(region).map(|told| told.version),
        }
    }
}
