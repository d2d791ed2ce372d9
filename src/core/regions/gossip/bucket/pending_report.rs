//! The time to tell of a bucket: whether there is anything to tell, and how soon.

use super::{DaemonContext, GossipBucket, LastReport, Period};
use crate::algorithm::Counting;
use crate::regions::gossip::counts::Counts;
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};

/// A bucket in use is told again after this long, also where nothing has changed that others would not guess.
pub(super) const REMINDED: Span = Span::from_secs(1);

impl GossipBucket {
    /// True if there is anything to tell that was not told, and that the others would not guess.
    pub(in super::super) fn has_pending_report(&self, now: Timestamp, here: DaemonContext<'_>) -> bool {
        if self.has_unmet_news(now) || self.has_given_back(here) {
            return true;
        }
        if here.suppresses_reports && self.is_below_report_threshold(now, here) {
            return false;
        }
        let Some(told) = self.told else { return true };
        let window = self.window_at(now);
        let before = self.period(told.window).map_or(told.net, |period| period.live.net());
        let rested = now.since(told.at) >= REMINDED;
        // A demand that is refused is told however small it is: nobody gives to a region that says nothing.
        if self.near_limit && told.demand == 0 && self.demand_at(now) > 0 {
            return true;
        }
        if !here.busy {
            // Once a window also what has not changed: a demand that is only refused would be forgotten.
            let turned = window != told.window && (told.demand > 0 || self.own_net(window) != 0);
            // A demand of few requests may end within what chance explains: the others would go on to keep a
            // part of the limit for it.
            let faded = rested && told.demand / 2 > self.demand_at(now);
            return before != told.net || turned || faded || self.demand_moved(told, now, 10, 2);
        }
        let ended =
            window != told.window && before.abs_diff(told.net) > u64::from(self.rule.limit.permits) / 100;
        let asked = told.demand > 0 || self.own_net(window) != told.net;
        (rested && asked) || ended || self.guessed_wrong(told, now) || self.demand_moved(told, now, 10, 4)
    }

    /// True if something went back that this daemon has not told: more than was admitted beside it. Others
    /// hold it for used, and a daemon that shares the store takes the store for one that has forgotten it.
    fn has_given_back(&self, here: DaemonContext<'_>) -> bool {
        let gives = |period: &Period| period.live.entries().iter().any(|count| count.amount.returned > 0);
        if !self.periods.iter().any(gives) {
            return false;
        }
        if !here.regions.owned_by(here.node, &self.key) {
            return self.periods.iter().any(|period| period.here.falls_below(period.owner_told));
        }
        self.periods.iter().any(|period| match period.told(Regions::OWN) {
            Some(told) => period.live.falls_below(&told.counts),
            None => period.live.falls_below(&Counts::default()),
        })
    }

    /// True if what the others extrapolate from what they were told is off by more than chance.
    fn guessed_wrong(&self, told: LastReport, now: Timestamp) -> bool {
        if self.counting() != Counting::Window {
            // Nothing is guessed of a level: permits that were not told are missing in everybody's.
            return self.own_net(0).abs_diff(told.net) > self.whole() / 20;
        }
        let window = self.window_at(now);
        let (known, from) =
            if told.window == window { (told.net, told.at) } else { (0, self.windows().start(window)) };
        let asked = u128::from(told.demand) * u128::from(now.since(from).0) / 1_000_000_000_000;
        let asked = u64::try_from(asked).unwrap_or(u64::MAX);
        let limit = u64::from(self.rule.limit.permits);
        let given = self.cut.given(Regions::OWN).unwrap_or(limit);
        let guessed = known.max(known.saturating_add(asked).min(given));
        self.own_net(window).abs_diff(guessed) > limit * 3 / 100 + 2 * asked.isqrt() + 1
    }

    /// True if the bucket is so far from its limit that nobody need hear of it: even if every region did as
    /// much, the limit would hold. When another region has told of the bucket, a fiftieth of the limit is
    /// enough to tell. A region that would soon be refused always tells: the others give nothing to one that
    /// is silent.
    ///
    /// For a bucket without windows its capacity takes the place of the limit, and demand is measured over
    /// the time in which that refills. Permits that were not reported are missing in the own part until they
    /// are.
    fn is_below_report_threshold(&self, now: Timestamp, here: DaemonContext<'_>) -> bool {
        if self.near_limit {
            return false;
        }
        let window = self.window_at(now);
        let spoken = self.has_spoken(window)
            || self.periods.iter().any(|period| period.tellers().any(|region| region != Regions::OWN));
        // Each daemon of a region may be quiet about its part: together no more than the region may.
        let quiet = self.quiet_of(Regions::OWN, here, spoken);
        let limit = &self.rule.limit;
        let rest = match self.counting() {
            Counting::Window => self.windows().end(window).since(now).0,
            Counting::Level | Counting::Concurrency => {
                limit.window.0.saturating_mul(self.whole()) / u64::from(limit.permits.max(1))
            }
        };
        let demand = self.demand_at(now);
        if self.told.is_some_and(|told| told.demand / 2 > demand) {
            // The others still believe more of it: that must be taken back.
            return false;
        }
        let asked = u128::from(demand) * u128::from(rest) / 1_000_000_000_000;
        let told = match self.counting() {
            Counting::Window => 0,
            Counting::Level | Counting::Concurrency => self.told.map_or(0, |told| told.net),
        };
        let net = self.own_net(window).saturating_sub(told);
        net.saturating_add(u64::try_from(asked).unwrap_or(u64::MAX)) <= quiet
    }

    /// True if the own region will soon be refused what it asks for.
    pub(in super::super) const fn is_near_limit(&self) -> bool {
        self.near_limit
    }

    /// True if this daemon told of it lately, so that others who have heard of it tell more.
    pub(super) fn has_spoken(&self, window: u64) -> bool {
        self.told.is_some_and(|told| told.window + 2 >= window)
    }

    /// So much each daemon of a region may use or ask for without telling.
    pub(super) fn quiet_of(&self, region: RegionId, here: DaemonContext<'_>, spoken: bool) -> u64 {
        let regions = u64::try_from(here.regions.listed_len()).unwrap_or(u64::MAX);
        let parts = if spoken { 50 } else { regions.max(5) };
        self.whole() / parts / here.daemons(region)
    }

    /// True if it should not wait for the next cut: it is new, moves fast, runs into its limit, or was
    /// refused what others leave unused.
    pub(in super::super) fn is_urgent(&self, now: Timestamp, here: DaemonContext<'_>) -> bool {
        let Some(told) = self.told else { return true };
        let window = self.window_at(now);
        // A sibling measures the store by what it has heard.
        if here.daemons(Regions::OWN) > 1 && self.has_given_back(here) {
            return true;
        }
        if self.has_unmet_news(now) || self.demand_moved(told, now, 20, if here.busy { 4 } else { 2 }) {
            return true;
        }
        if here.busy && self.counting() == Counting::Window {
            return self.guessed_wrong(told, now);
        }
        let known = if told.window == window { told.net } else { 0 };
        let grown = self.own_net(window).abs_diff(known);
        if grown > 0 && self.is_spent(now) {
            return true;
        }
        let limit = self.whole();
        // The least of a level that is not told is admitted twice.
        let budget = self.enforced.and_then(|(view, _)| view.as_window().map(|view| u64::from(view.budget)));
        let near = self.counting() != Counting::Window
            || self.own_net(window).saturating_mul(10) >= budget.unwrap_or(limit).saturating_mul(9);
        grown > (limit / 20).max(1) || (near && grown > limit / 50)
    }

    /// Returns what a change is measured by: the limit of a window, or what a smaller bucket holds.
    fn whole(&self) -> u64 {
        let permits = u64::from(self.rule.limit.permits);
        match self.counting() {
            Counting::Window => permits,
            Counting::Level | Counting::Concurrency => {
                permits.min(self.rule.limit.capacity(self.rule.algorithm))
            }
        }
    }

    /// True if the demand differs by more than `percent` and by more than so many standard deviations of
    /// chance.
    fn demand_moved(&self, told: LastReport, now: Timestamp, percent: u64, sigmas: u64) -> bool {
        let demand = self.demand_at(now);
        let moved = demand.abs_diff(told.demand);
        moved > told.demand.max(demand) / 100 * percent
            && moved > self.demand.noise(told.demand.max(demand)).saturating_mul(sigmas)
    }
}
