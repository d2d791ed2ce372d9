//! The error that a worldwide count may have now.

use super::pending_report::REMINDED;
use super::{DaemonContext, GossipBucket};
use crate::algorithm::{Algorithm, Counting};
use crate::regions::gossip::replica_config::Policy;
use crate::regions::gossip::uncertainty::unheard;
use crate::regions::membership::{Region, RegionId, Regions};
use crate::time::{Span, Timestamp};

/// So long beyond two of the longest ways, what was lost at first has been told again.
const HEARD: Span = Span::from_millis(200);
/// Clocks that agree differ by less than this, with the time between two looks: so soon before a window ends
/// others may admit in the next.
pub(super) const TURNS: Span = Span::from_millis(30);
/// A bucket without windows that nobody told of for so long is known to no one any more.
const LEVEL_KNOWN: Span = Span::from_secs(20);

/// A cause that makes a worldwide count uncertain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UncertaintyCause {
    /// News is on its way.
    Lag,
    /// A region that has told has not been heard of this bucket for too long.
    Stale,
    /// A region is cut off.
    Partition,
    /// Regions do not tell of buckets that are far from their limit.
    Untold,
    /// Something came late or was lost within the last seconds.
    Late,
    /// A region lacks room for all buckets in use of the rule, so it does not tell of each.
    Crowded,
}

impl UncertaintyCause {
    /// Returns the word that operators read.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lag => "lag",
            Self::Stale => "stale",
            Self::Partition => "partition",
            Self::Untold => "untold",
            Self::Late => "late",
            Self::Crowded => "crowded",
        }
    }
}

/// Reports on a bucket, from whichever region, without a long pause between them: all regions have heard of
/// it since they began, and so hold their stores to their parts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownSince {
    since: Timestamp,
    last: Timestamp,
}

impl KnownSince {
    /// Somebody told of the bucket. After a longer pause than `kept` a region may have forgotten it.
    pub(super) fn note(&mut self, at: Timestamp, kept: Span) {
        if self.last + kept < at {
            self.since = at;
        }
        self.last = self.last.max(at);
    }

    fn lasts(&self, now: Timestamp, kept: Span, heard: Span) -> bool {
        self.since > Timestamp::default() && self.since + heard < now && now <= self.last + kept
    }
}

impl GossipBucket {
    /// Returns how long after a report the stores of all regions still hold what it made them hold: a view of
    /// a window speaks of the next one too.
    pub(super) fn agreed_for(&self) -> Span {
        match self.counting() {
            Counting::Window => self.windows().shortest(),
            Counting::Level | Counting::Concurrency => LEVEL_KNOWN,
        }
    }

    /// True if any region tells of it.
    pub(in super::super) fn is_told_of(&self, now: Timestamp) -> bool {
        now <= self.known_since.last + self.agreed_for() + self.agreed_for()
    }

    /// Returns how far the worldwide count may lie above what is believed, and what most of that is due to.
    ///
    /// Regions divide by the same reports if all was told in time lately: then a region may have used since
    /// it told as much as it was given. Otherwise, and where a region may not know the bucket, its store may
    /// have admitted the whole limit, and once more if its process was followed by another one.
    pub(in super::super) fn error_bound(
        &self,
        now: Timestamp,
        here: DaemonContext<'_>,
    ) -> (u64, UncertaintyCause) {
        // While its own limit changes some regions hold the old one and some the new.
        let begun = self.windows().start(self.window_at(now));
        let before = match self.counting() {
            Counting::Window => u64::from(self.own.before_at(begun)),
            Counting::Level | Counting::Concurrency => 0,
        };
        let limit = self.rule.limit.capacity(self.rule.algorithm).max(before);
        let heard = here.horizon + here.horizon + HEARD;
        let settled = (here.settled || !here.safety.doubts_what_is_late)
            && here.policy != Policy::Sum
            && here.regions.owned_by(here.node, &self.key);
        let agreed = settled && self.known_since.lasts(now, self.agreed_for(), heard);
        let mut sum = if here.shared_store { 0 } else { self.uncounted_here(now, here, limit) };
        let mut most = (sum, UncertaintyCause::Untold);
        let window = self.window_at(now);
        // Permits admitted in the window before count in a sliding one.
        let slides = matches!(self.rule.algorithm, Algorithm::SlidingWindow | Algorithm::SlidingLog);
        let begun = now.since(self.windows().start(window)) <= heard;
        // An interval of a log knows no windows: what a region whose clock is ahead admits in the next one
        // counts in it.
        let ends = self.windows().end(window);
        let turns = self.rule.algorithm == Algorithm::SlidingLog && ends.since(now) <= TURNS;
        for (id, region) in here.regions.iter().skip(1) {
            let crowded = here.regions.is_crowded(id, &self.rule.name);
            let (mut bound, doubt) =
                if agreed && !crowded && here.daemons(id) == 1 && !self.began_again(now, id, here) {
                    self.since_told(now, here, id, limit)
                } else {
                    let doubt = match region.cut_off {
                        true => UncertaintyCause::Partition,
                        false if crowded => UncertaintyCause::Crowded,
                        false if settled => UncertaintyCause::Untold,
                        false => UncertaintyCause::Late,
                    };
                    (self.unknown_of(now, id, region, here, (window, limit)), doubt)
                };
            if turns && agreed {
                bound = bound.saturating_add(self.cut.most_to_come(id).unwrap_or(limit));
            }
            if slides && (!agreed || begun) {
                let before = window.saturating_sub(1);
                bound = bound.saturating_add(self.unknown_of(now, id, region, here, (before, limit)));
            }
            sum = sum.saturating_add(bound);
            if bound > most.0 {
                most = (bound, doubt);
            }
        }
        (sum, most.1)
    }

    /// Returns what a region may have used beyond what it told, held to its parts since then.
    fn since_told(
        &self,
        now: Timestamp,
        here: DaemonContext<'_>,
        id: RegionId,
        limit: u64,
    ) -> (u64, UncertaintyCause) {
        let told = self.period(self.window_at(now)).and_then(|period| period.told(id));
        let windows = self.counting() == Counting::Window;
        let quiet = if here.suppresses_reports { self.quiet_of(id, here, windows) } else { 0 };
        let newest = told.or_else(|| self.periods.iter().rev().find_map(|period| period.told(id)));
        let stale =
            newest.is_some_and(|told| now.since(told.stamp) > REMINDED + here.horizon && told.demand > 0);
        let doubt = if stale { UncertaintyCause::Stale } else { UncertaintyCause::Lag };
        if windows {
            let known = told.map_or(0, |told| self.believed(told.counts.net()));
            let given = match here.safety.counts_all_given {
                true => self.cut.most_of(id),
                false => self.cut.given(id),
            };
            let given = given.unwrap_or(limit);
            let bound = given.saturating_sub(known);
            return if bound < quiet { (quiet, UncertaintyCause::Untold) } else { (bound, doubt) };
        }
        let given = match here.safety.counts_all_given {
            true => self.given.of(id).unwrap_or(limit),
            false => 0,
        };
        (given.saturating_add(quiet), if quiet > given { UncertaintyCause::Untold } else { doubt })
    }

    /// All that the stores of a region can have admitted in a window, in each life, but for what it told.
    fn unknown_of(
        &self,
        now: Timestamp,
        id: RegionId,
        region: &Region,
        here: DaemonContext<'_>,
        (window, limit): (u64, u64),
    ) -> u64 {
        let told = self.period(window).and_then(|period| period.told(id));
        if region.left && told.is_none() {
            return 0;
        }
        let counters = told.map_or(&[][..], |told| told.counts.entries());
        let stores = if here.shared_store {
            1
        } else {
            let lives = |counted: usize| u64::try_from(counted).unwrap_or(u64::MAX).max(1);
            match self.lived_until(now, self.reborn(region, told, here), window) {
                Some(reborn) => {
                    let after = counters.iter().filter(|count| count.counter.since >= reborn).count();
                    lives(counters.len() - after).saturating_add(lives(after)).max(here.daemons(id) + 1)
                }
                None => lives(counters.len()).max(here.daemons(id)),
            }
        };
        if self.counting() != Counting::Window {
            return limit.saturating_add(unheard(&self.rule.limit, here.silence)).saturating_mul(stores);
        }
        let all = limit.saturating_mul(stores);
        all.saturating_sub(told.map_or(0, |told| self.believed(told.counts.net())))
    }

    /// True if a daemon of a region was, or may have been, followed by another process while its use still
    /// counts.
    fn began_again(&self, now: Timestamp, id: RegionId, here: DaemonContext<'_>) -> bool {
        let window = self.window_at(now);
        let told = self.period(window).and_then(|period| period.told(id));
        let reborn = here.regions.get(id).and_then(|region| self.reborn(region, told, here));
        self.lived_until(now, reborn, window).is_some()
    }

    /// Returns when the newest process of a region's daemons may have followed another one. Nobody has told
    /// this process what came before it: only a counter that is older than all that still counts shows that
    /// there was one process all the time.
    fn reborn(
        &self,
        region: &Region,
        told: Option<&super::RegionReport>,
        here: DaemonContext<'_>,
    ) -> Option<Timestamp> {
        if here.shared_store || region.reborn.is_some() {
            return region.reborn;
        }
        let counters = told.map_or(&[][..], |told| told.counts.entries());
        let newest = counters.iter().map(|count| count.counter.since).max();
        Some(newest.map_or(here.started, |since| since.min(here.started)))
    }

    /// Returns when a process began, if what was used before it still counts in a window.
    fn lived_until(&self, now: Timestamp, begun: Option<Timestamp>, window: u64) -> Option<Timestamp> {
        let counts = |at: &Timestamp| match self.counting() {
            Counting::Window => self.window_at(*at) >= window,
            Counting::Level | Counting::Concurrency => now < *at + self.drained(),
        };
        begun.filter(counts)
    }

    /// Returns what daemons of the own region whose stores this one does not share may have admitted, this
    /// one's former processes included, beyond what is known of them.
    fn uncounted_here(&self, now: Timestamp, here: DaemonContext<'_>, limit: u64) -> u64 {
        let window = self.window_at(now);
        let period = self.period(window);
        let counters = period.map_or(&[][..], |period| period.live.entries());
        let foreign = |count: &&crate::regions::gossip::counts::Count| {
            count.counter.node != *here.node || count.counter.since < here.started
        };
        let known = u64::try_from(counters.iter().filter(foreign).count()).unwrap_or(u64::MAX);
        let former = u64::from(self.lived_until(now, Some(here.started), window).is_some());
        let stores = known.max(here.daemons(Regions::OWN) - 1 + former);
        let all = limit.saturating_mul(stores);
        if self.counting() != Counting::Window {
            return all;
        }
        all.saturating_sub(period.map_or(0, |period| self.elsewhere(here, period)))
    }
}
