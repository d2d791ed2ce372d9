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
use super::pool::{Pool, Share};
use super::regions::{RegionId, Regions};
use super::replica::Policy;
use super::{Effect, WorldKey, WorldRule};

/// Windows kept of one bucket: the one before, the current one, and the next for peers whose clocks are ahead.
const PERIODS_MAX: usize = 3;
/// A bucket without windows is forgotten when it has been still for this long and has drained.
const STILL: Span = Span::from_secs(60);
/// One with windows is remembered for 16 of them, at least [`STILL`] and at most this long.
const REMEMBERED_MAX: Span = Span::from_secs(300);

/// A demand is looked at again this many times in a window while nothing comes, so that what it no longer needs is freed.
const LOOKS_PER_WINDOW: u64 = 50;

/// What is in use is told again after this long, also where nothing has changed that others would not guess.
const REMINDED: Span = Span::from_secs(1);

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
    /// Without windows: the common level.
    pool: Pool,
    /// What each other region is charged for so far, by [`RegionId`]; the own one's place is for what the store itself
    /// counted of its siblings.
    charged: SmallVec<[u64; 4]>,
    /// What the store counted itself so far.
    stored: u64,
    debt: u64,
    /// The newest window of which it was looked at how much it was above the limit.
    audited: u64,
    /// Whether `enforced` has changed since the store was told.
    moved_since: bool,
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

/// What makes a worldwide count uncertain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// News is on its way.
    Lag,
    /// A region that has told has not been heard of this bucket for too long.
    Stale,
    /// A region is cut off.
    Partition,
    /// Regions do not tell of buckets that are far from their limit.
    Untold,
}

impl Doubt {
    /// As operators read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lag => "lag",
            Self::Stale => "stale",
            Self::Partition => "partition",
            Self::Untold => "untold",
        }
    }
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
    /// It was newer than what is known, and still a count in it was smaller: that count was passed over.
    pub(super) backwards: bool,
    /// It told of more than any region can have admitted: nothing of it was taken.
    pub(super) beyond: bool,
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
    /// Whether nothing is told of buckets far from their limit.
    pub(super) thrift: bool,
    /// Whether there is so much to tell that only what others would guess wrong is told.
    pub(super) busy: bool,
}

impl Bucket {
    pub(super) fn new(key: WorldKey, rule: Arc<WorldRule>, since: Timestamp) -> Self {
        let demand = Demand::new(rule.limit.window, rule.limit.permits);
        let pool = Pool::full(rule.limit.capacity(rule.algorithm), since);
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
            pool,
            charged: SmallVec::new(),
            stored: 0,
            debt: 0,
            audited: 0,
            moved_since: false,
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
        if self.is_beyond(region, heard) {
            return Heard { beyond: true, ..Heard::default() };
        }
        self.changed = now;
        let Some(period) = self.period_mut(heard.window) else { return Heard::default() };
        let told = period.told_mut(region);
        let (mut changed, mut full, mut backwards) = (false, false, false);
        for count in &heard.counts {
            backwards |= heard.stamp > told.stamp && told.counts.runs_backwards(count);
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
        Heard { changed, full, late, backwards, beyond: false }
    }

    /// Whether a report tells of more than a region can have admitted. In a window that is the limit, twice over where a
    /// reload has just lowered it; without windows what the bucket held, and what has refilled since the region told last.
    fn is_beyond(&self, region: RegionId, heard: &super::super::wire::Report) -> bool {
        let net = heard.counts.iter().map(|count| count.admitted.saturating_sub(count.returned));
        let net = net.fold(0, u64::saturating_add);
        let limit = &self.rule.limit;
        if self.windowed() {
            return net > u64::from(limit.permits).saturating_mul(2);
        }
        let Some(told) = self.period(0).and_then(|period| period.told(region)) else { return false };
        let refilled = u128::from(limit.permits) * u128::from(heard.stamp.since(told.stamp).0)
            / u128::from(limit.window.0.max(1));
        let most =
            limit.capacity(self.rule.algorithm).saturating_add(u64::try_from(refilled).unwrap_or(u64::MAX));
        net > told.counts.net().saturating_add(most.saturating_mul(2))
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
        if !self.windowed() {
            return self.pool.hear(now, region, account, here.horizon);
        }
        if account.stamp.window_index(self.rule.limit.window) != window {
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

    /// Whether there is anything to tell that was not told, and that the others would not guess.
    pub(super) fn has_news(&self, now: Timestamp, here: Here<'_>) -> bool {
        if here.thrift && self.is_cold(now, here) {
            return false;
        }
        let Some(told) = self.told else { return true };
        let window = self.window_at(now);
        let before = self.period(told.window).map_or(told.net, |period| period.live.net());
        if !here.busy {
            // Once a window also what has not changed: a demand that is only refused would be forgotten.
            let turned = window != told.window && (told.demand > 0 || self.own_net(window) != 0);
            return before != told.net || turned || self.demand_moved(told, now, 10);
        }
        let rested = now.since(told.at) >= REMINDED;
        let ended =
            window != told.window && before.abs_diff(told.net) > u64::from(self.rule.limit.permits) / 100;
        let asked = told.demand > 0 || self.own_net(window) != told.net;
        (rested && asked) || ended || self.guessed_wrong(told, now) || self.demand_moved(told, now, 10)
    }

    /// Whether what the others extrapolate from what they were told is off by more than chance.
    fn guessed_wrong(&self, told: Telling, now: Timestamp) -> bool {
        let window = self.window_at(now);
        let (known, from) = if told.window == window {
            (told.net, told.at)
        } else {
            (0, Timestamp::window_start(window, self.rule.limit.window))
        };
        let asked = u128::from(told.demand) * u128::from(now.since(from).0) / 1_000_000_000_000;
        let asked = u64::try_from(asked).unwrap_or(u64::MAX);
        let limit = u64::from(self.rule.limit.permits);
        let given = self.cut.given(Regions::OWN).unwrap_or(limit);
        let guessed = known.max(known.saturating_add(asked).min(given));
        self.own_net(window).abs_diff(guessed) > limit / 100 + asked.isqrt()
    }

    /// Whether it is so far from its limit that nobody need hear of it: even if every region did as much, the limit
    /// would hold. Once somebody has told of it, those with a fiftieth of the limit tell too.
    fn is_cold(&self, now: Timestamp, here: Here<'_>) -> bool {
        let limit = u64::from(self.rule.limit.permits);
        let window = self.window_at(now);
        let spoken = self.told.is_some_and(|told| told.window + 2 >= window)
            || self.periods.iter().any(|period| period.tellers().any(|region| region != Regions::OWN));
        let quiet = Self::quiet_below(limit, here.regions.len(), spoken);
        let rest = if self.windowed() {
            Timestamp::window_start(window + 1, self.rule.limit.window).since(now).0
        } else {
            self.rule.limit.window.0
        };
        let demand = self.demand_at(now);
        if self.told.is_some_and(|told| told.demand / 2 > demand) {
            // What others still believe of it must be taken back.
            return false;
        }
        let asked = u128::from(demand) * u128::from(rest) / 1_000_000_000_000;
        let told = if self.windowed() { 0 } else { self.told.map_or(0, |told| told.net) };
        let net = self.own_net(window).saturating_sub(told);
        net.saturating_add(u64::try_from(asked).unwrap_or(u64::MAX)) <= quiet
    }

    /// So much a region may use or ask for without telling.
    fn quiet_below(limit: u64, regions: usize, spoken: bool) -> u64 {
        let regions = u64::try_from(regions).unwrap_or(u64::MAX);
        if spoken { limit / 50 } else { limit / regions.max(5) }
    }

    /// Whether it should not wait for the next cut: it is new, moves fast, or runs into its limit.
    pub(super) fn is_urgent(&self, now: Timestamp, here: Here<'_>) -> bool {
        let Some(told) = self.told else { return true };
        let window = self.window_at(now);
        if self.demand_moved(told, now, 20) {
            return true;
        }
        if here.busy && self.windowed() {
            return self.guessed_wrong(told, now);
        }
        let known = if told.window == window { told.net } else { 0 };
        let grown = self.own_net(window).abs_diff(known);
        let limit = u64::from(self.rule.limit.permits);
        let budget = self.enforced.map_or(limit, |(view, _)| u64::from(view.budget));
        let near = self.own_net(window).saturating_mul(10) >= budget.saturating_mul(9);
        grown > (limit / 20).max(1) || (near && grown > limit / 50)
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
            return self.look_at_level(now, here);
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
            self.enforced = Some((view, self.error_bound(now, here).0));
            self.moved_since = true;
        }
        !same
    }

    /// The same for a bucket without windows: what to charge for others, and what to hold back for them.
    fn look_at_level(&mut self, now: Timestamp, here: Here<'_>) -> bool {
        let debt = self.charge(here);
        self.debt = self.debt.saturating_add(debt);
        let own = self.own_net(0);
        let siblings = match self.period(0) {
            Some(period) if !here.shared_store => self.elsewhere(here, period),
            _ => 0,
        };
        let stored = own.saturating_sub(siblings);
        let more = i128::from(stored) - i128::from(self.stored) + i128::from(debt);
        self.stored = stored;
        // What is kept for regions that are cut off is not known to have been admitted: their counts are in the level.
        let standing = standing(&self.rule, here.regions, |_| 0, |_| None);
        let share = Share {
            limit: self.rule.limit,
            capacity: self.rule.limit.capacity(self.rule.algorithm),
            permits: standing.limit,
            parties: &standing.parties,
            horizon: here.horizon,
            tip: self.lot % 1_000_000,
        };
        self.pool.stored(now, more, share);
        self.pool.advance(now, share);
        let view = match here.policy {
            Policy::Sum => None,
            _ => self.pool.view(now, own, share),
        };
        let view = view.unwrap_or(View { window: now.0, ..View::default() });
        let (at, limit) = (|view: &View| view.held(&self.rule.limit, now), &self.rule.limit);
        let before = self.enforced.map(|(view, _)| view).unwrap_or_default();
        // A hundredth of the bucket is worth no message to the store.
        let little = u128::from((share.capacity / 100).max(1)) * u128::from(limit.window.0.max(1));
        let moved = at(&view).abs_diff(at(&before)) >= little
            || view.next_budget.abs_diff(before.next_budget) > limit.permits / 50
            || (view.others == 0 && before.others > 0);
        if moved {
            self.enforced = Some((view, self.error_bound(now, here).0));
            self.moved_since = true;
        }
        moved || self.debt > 0
    }

    /// What other regions told beyond what is charged already. Nobody can admit more than a bucket and what has refilled:
    /// of a count that jumps farther only so much is charged.
    fn charge(&mut self, here: Here<'_>) -> u64 {
        let capacity = self.rule.limit.capacity(self.rule.algorithm);
        let Some(period) = self.period(0) else { return 0 };
        let siblings = if here.shared_store { 0 } else { self.elsewhere(here, period) };
        let mut totals: SmallVec<[u64; 4]> = period.told.iter().map(|told| told.counts.net()).collect();
        match totals.first_mut() {
            Some(own) => *own = siblings,
            None => totals.push(siblings),
        }
        let mut debt = 0_u64;
        for (id, total) in totals.into_iter().enumerate() {
            while self.charged.len() <= id {
                self.charged.push(0);
            }
            let Some(charged) = self.charged.get_mut(id) else { continue };
            debt = debt.saturating_add(total.saturating_sub(*charged).min(capacity.saturating_mul(2)));
            *charged = total.max(*charged);
        }
        debt
    }

    /// What the store must be told; asked until there is no more.
    pub(super) fn effect(&mut self) -> Option<Effect> {
        let permits = std::mem::take(&mut self.debt);
        if permits > 0 {
            return Some(Effect::Debit { key: self.key.clone(), permits });
        }
        self.queued = false;
        if !std::mem::take(&mut self.moved_since) {
            return None;
        }
        let (view, error_bound) = self.enforced?;
        Some(Effect::View { key: self.key.clone(), view, error_bound })
    }

    /// When it should be looked at again if nothing happens.
    pub(super) fn next_look(&self, now: Timestamp) -> Timestamp {
        let expiry = self.expiry();
        if !self.windowed() {
            // What is held back grows by itself, but shares move with time too.
            let active = self.told.is_some_and(|told| told.demand > 0) || self.demand_at(now) > 0;
            let pause = Span((self.rule.limit.window.0 / LOOKS_PER_WINDOW).clamp(20_000, 500_000));
            let again = active.then_some(now + pause);
            return [Some(expiry), again, self.pool.next_instant()]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(expiry);
        }
        let window = self.window_at(now);
        let used = self.periods.last().is_some_and(|period| period.window + 2 >= window);
        let turn = if used { Timestamp::window_start(window + 1, self.rule.limit.window) } else { expiry };
        // A demand that fades must be told, though nothing happens.
        let pause = Span((self.rule.limit.window.0 / LOOKS_PER_WINDOW).clamp(10_000, 1_000_000));
        let fades = self.told.is_some_and(|told| told.demand > 0).then_some(now + pause);
        [Some(expiry), Some(turn), fades, self.cut.next_instant(now)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(expiry)
    }

    /// From when on it may be forgotten: nothing that it knows can matter any more.
    pub(super) fn expiry(&self) -> Timestamp {
        let limit = &self.rule.limit;
        if self.windowed() {
            let newest =
                self.window_at(self.changed).max(self.periods.last().map_or(0, |period| period.window));
            let over = Timestamp::window_start(newest.saturating_add(3), limit.window) + Span::from_secs(1);
            // Whose it was is remembered for its next burst.
            let remembered = Span(limit.window.0.saturating_mul(16)).max(STILL).min(REMEMBERED_MAX);
            return over.max(self.changed + remembered);
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

    /// How far the worldwide count may lie above what is believed, and what most of that is due to. Of a region that
    /// speaks: what it may have admitted since it told, going by the demand that it told and by what it was given. Of one
    /// that is cut off: all that the rule lets it admit on its own. Of one that told nothing: what need not be told.
    pub(super) fn error_bound(&self, now: Timestamp, here: Here<'_>) -> (u64, Doubt) {
        let limit = self.rule.limit.capacity(self.rule.algorithm);
        let (mut sum, mut most) = (0_u64, (0, Doubt::Lag));
        for (id, region) in here.regions.iter().skip(1) {
            let (bound, doubt) = self.error_of(now, here, id, region.cut_off, limit);
            sum = sum.saturating_add(bound);
            if bound > most.0 {
                most = (bound, doubt);
            }
        }
        (sum, most.1)
    }

    fn error_of(
        &self,
        now: Timestamp,
        here: Here<'_>,
        id: RegionId,
        cut_off: bool,
        limit: u64,
    ) -> (u64, Doubt) {
        let told = self.period(self.window_at(now)).and_then(|period| period.told(id));
        let known = if self.windowed() { told.map_or(0, |told| told.counts.net()) } else { 0 };
        if cut_off {
            return (most_of_silent(&self.rule, here.regions, id).saturating_sub(known), Doubt::Partition);
        }
        let Some(told) = told else {
            let spoken = self.told.is_some();
            let quiet = Self::quiet_below(u64::from(self.rule.limit.permits), here.regions.len(), spoken);
            return (if here.thrift { quiet } else { 0 }, Doubt::Untold);
        };
        let asked = u128::from(told.demand) * u128::from(now.since(told.stamp).0) / 1_000_000_000_000;
        let likely = u64::try_from(asked + 2 * asked.isqrt()).unwrap_or(u64::MAX);
        let given = self.cut.given(id).filter(|&given| given > 0).unwrap_or(limit);
        let stale = now.since(told.stamp) > REMINDED + here.horizon && told.demand > 0;
        (likely.min(given.min(limit).saturating_sub(known)), if stale { Doubt::Stale } else { Doubt::Lag })
    }

    /// Permits that the closed windows not yet looked at had above the limit, by what all regions told in the end.
    pub(super) fn overshoot(&mut self, now: Timestamp) -> u64 {
        if !self.windowed() {
            return 0;
        }
        let closed = self.window_at(now).saturating_sub(2);
        let limit = u64::from(self.rule.limit.permits);
        let audited = self.audited;
        self.audited = audited.max(closed);
        let due = self.periods.iter().filter(|period| period.window > audited && period.window <= closed);
        let above = due.map(|period| {
            let others = period.told.iter().skip(1).map(|told| told.counts.net());
            others.fold(period.live.net(), u64::saturating_add).saturating_sub(limit)
        });
        above.fold(0, u64::saturating_add)
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
