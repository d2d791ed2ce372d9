//! A store that forgot a part of what its region used: it was emptied, restored from an older copy, or failed
//! over before all was copied.
//!
//! Budgets are measured against the store's own count. A store that counts less than its region used would
//! use the difference again, and as a budget is never less than what was used, again and again up to the
//! whole limit. The daemons know what they told: the store is told to count at least that much.

use super::{DaemonContext, GossipBucket};
use crate::algorithm::{Algorithm, Counting, RegionUse};
use crate::regions::StoreSeen;
use crate::regions::membership::Regions;
use crate::time::{Span, Timestamp};
use crate::wire::Amount;

/// A count that stays too small for so long was lost: what a daemon of the own region gave back, and has not
/// told the others yet, is told within a fifth of it, however little is left.
const LOST_AFTER: Span = Span::from_millis(500);
/// The same where nobody else counts in the store: what is given back is known as soon as it is answered.
const LOST_AFTER_ALONE: Span = Span::from_millis(50);

/// The suspicions of this daemon about its store's memory of one bucket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LostStore {
    /// Instant since which all answers showed less than the region used, in one window.
    short: Option<(Timestamp, u64)>,
    /// The use that the store is to be told next.
    restore: Option<RegionUse>,
}

impl LostStore {
    pub(super) const fn take(&mut self) -> Option<RegionUse> {
        self.restore.take()
    }

    pub(super) const fn has_news(&self) -> bool {
        self.restore.is_some()
    }
}

impl GossipBucket {
    /// Looks whether the store's answers show less than what the own region used in the window. Returns
    /// whether the store is to be told of it.
    pub(in super::super) fn note_store(
        &mut self,
        now: Timestamp,
        (window, seen): (u64, StoreSeen),
        here: DaemonContext<'_>,
    ) -> bool {
        let Some(used) = seen.used.filter(|_| window == self.window_at(now)) else { return false };
        let (known, least) = self.known_use(now, window, here);
        if used >= least {
            self.lost.short = None;
            return false;
        }
        let since = self.lost.short.filter(|(_, of)| *of == window).map_or(now, |(since, _)| since.min(now));
        self.lost.short = Some((since, window));
        let patience = if here.daemons(Regions::OWN) > 1 { LOST_AFTER } else { LOST_AFTER_ALONE };
        let forgot = seen.without_allowance && self.enforced.is_some();
        if !forgot && now.since(since) < patience {
            return false;
        }
        self.lost.short = None;
        self.lost.restore = Some(known);
        true
    }

    /// Returns what the store should count, and the least of it that its answers must show.
    fn known_use(&self, now: Timestamp, window: u64, here: DaemonContext<'_>) -> (RegionUse, u64) {
        let (limit, algorithm) = (self.rule.limit, self.rule.algorithm);
        if self.counting() != Counting::Window {
            let used = self.shared_level.store.in_use(now, limit);
            // Charges for others are on their way, and little has drained since the answer.
            let slack = (limit.capacity(algorithm) / 100).max(2);
            let told = self.shared_level.store.in_use_up(now, limit);
            return (RegionUse { used: told, ..RegionUse::default() }, used.saturating_sub(slack));
        }
        let in_store = |window: u64| {
            let period = self.period(window);
            let elsewhere = period.filter(|_| !here.shared_store).map_or(0, |of| self.elsewhere(here, of));
            self.own_net(window).saturating_sub(elsewhere)
        };
        let used = in_store(window);
        match algorithm {
            Algorithm::SlidingWindow => {
                let before = in_store(window.saturating_sub(1));
                let (start, length) = (self.windows().start(window), limit.window.0.max(1));
                let left = length - now.since(start).0.min(length);
                let fading = u128::from(before) * u128::from(left) / u128::from(length);
                let least = used.saturating_add(u64::try_from(fading).unwrap_or(u64::MAX));
                (RegionUse { window, used, before }, least.saturating_sub(1))
            }
            Algorithm::SlidingLog => {
                let lingering = self.lingering(now, window);
                let own = lingering.iter().find(|(id, _)| *id == Regions::OWN).map_or(0, |(_, own)| *own);
                (RegionUse { window, used: used.saturating_add(own), before: 0 }, used)
            }
            _ => (RegionUse { window, used, before: 0 }, used),
        }
    }

    /// An operator reset the bucket: all regions give back what the own one used of it, as far as it counts.
    pub(in super::super) fn forget_use(&mut self, now: Timestamp, here: DaemonContext<'_>) {
        let level = self.counting() != Counting::Window;
        let most = if level { self.shared_level.store.in_use(now, self.rule.limit) } else { u64::MAX };
        for period in &mut self.periods {
            // Nobody was told of that.
            period.unplaced = Amount::default();
            let returned = period.live.net().min(most);
            if returned > 0 {
                period.note(Amount { admitted: 0, returned });
            }
        }
        self.place_counts(now, here);
        self.changed = now;
        self.lost = LostStore::default();
        if level {
            self.shared_level.store.empty(now);
        }
        self.unsettle();
    }
}
