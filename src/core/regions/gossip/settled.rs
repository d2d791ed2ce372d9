//! Agreement of the regions: whether all divide by the same reports, as far as can be seen from here. They do
//! if all that was told for long came in time.
//!
//! Only then is it known what the others were given. A report that is lost shows when a later frame has come,
//! and one that is late when it comes, so what was found once is held against the links for a while.

use super::replica::Replica;
use super::uncertainty::{OtherStores, OwnStore};
use crate::regions::membership::Regions;
use crate::time::{Span, Timestamp};

/// For so long after something came late or was lost, regions may divide by other reports than this one.
const SETTLES: Span = Span::from_secs(10);
/// A link on which nothing comes for so long beyond a heartbeat is doubted: much sooner than its region
/// counts as cut off.
const QUIET_LINK: Span = Span::from_millis(50);
/// A daemon that was not told the time for so long has stood still.
const STOOD_STILL: Span = Span::from_millis(200);

impl Replica {
    /// Returns what answers must know of the stores beside the own one: how many may admit the same limits,
    /// and whether for long all that was told came in time. To be told after each other call, and each time
    /// that time has passed.
    #[must_use]
    pub fn elsewhere(&self) -> OtherStores {
        let here = self.standpoint();
        let regions = here.regions.by_name();
        let stores = regions.map(|id| match (here.shared_store, id) {
            (true, Regions::OWN) => 0,
            (true, _) => 1,
            (false, Regions::OWN) => here.daemons(id) - 1,
            (false, _) => here.daemons(id),
        });
        OtherStores {
            stores: stores.fold(0, u64::saturating_add),
            regions: u64::try_from(here.regions.listed_len()).unwrap_or(u64::MAX),
            settled: here.settled,
            own_store: OwnStore::Lasting,
            silence: here.silence,
            cut_off: here.regions.iter().any(|(_, region)| region.cut_off),
        }
    }

    /// Something came late or was lost, or regions may take others for cut off: for a while it is not known
    /// by what they divide.
    pub(super) fn unsettle(&mut self, now: Timestamp) {
        self.unsettled = now + SETTLES;
    }

    pub(super) fn is_settled(&self) -> bool {
        !self.config.safety.doubts_what_is_late || self.unsettled <= self.newest
    }

    /// Notes whether this daemon has stood still until `now`.
    pub(super) fn goes_on(&mut self, now: Timestamp) {
        if self.newest + STOOD_STILL < now {
            self.stood_until = now;
        }
    }

    /// The longest that a region was not heard, or did not hear this daemon.
    fn silence(&self, now: Timestamp) -> Span {
        let others = self.regions.iter().skip(1).filter(|(_, region)| !region.left);
        others.map(|(_, region)| now.since(region.spoken_with())).max().unwrap_or(Span::ZERO)
    }

    /// Works out anew how long a report takes, and whether all links carry what they should.
    pub(super) fn measure(&mut self, now: Timestamp) {
        let horizon = self.horizon(now);
        let before = std::mem::replace(&mut self.horizon, horizon);
        let patience = self.heartbeat() + self.horizon + QUIET_LINK;
        let mut others = self.links.iter().filter(|link| link.region != Regions::OWN && link.live);
        if self.horizon > before
            || !self.regions.are_whole()
            || !others.all(|link| link.is_sound(now, patience, self.heartbeat()))
        {
            self.unsettle(now);
        }
        let silence = self.silence(now);
        // The use of every other region that was not heard drains at the rate of one limit, as everything
        // else.
        let others = u64::try_from(self.regions.listed_len()).unwrap_or(u64::MAX).saturating_sub(1).max(1);
        let drained = now.since(self.measured).0 / others;
        let before = Span(self.silence.0.saturating_sub(drained));
        self.silence = if self.is_settled() { silence } else { before.max(silence) };
        self.measured = now;
    }
}
