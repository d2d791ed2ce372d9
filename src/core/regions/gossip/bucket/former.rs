//! The counts of a region's former life, which other regions know and a process that has just begun does not.

use smallvec::SmallVec;

use super::{DaemonContext, GossipBucket, ReceivedReport};
use crate::algorithm::Counting;
use crate::regions::gossip::counts::{Count, TakenIn};
use crate::regions::membership::Regions;
use crate::time::Timestamp;

impl GossipBucket {
    /// Takes in what another region was told by this one. Only counts that began before this process are
    /// taken: of those that go on, whoever counts knows more.
    pub(in super::super) fn hear_former(
        &mut self,
        now: Timestamp,
        heard: &ReceivedReport,
        here: DaemonContext<'_>,
    ) -> TakenIn {
        let former = heard.counts.iter().filter(|count| count.counter.since < here.started);
        let former: SmallVec<[Count; 1]> = former.cloned().collect();
        let before = self.own_net(heard.window);
        let Some(period) = self.period_mut(heard.window) else { return TakenIn::default() };
        let taken = period.hear_own(&former, here);
        if !taken.changed {
            return taken;
        }
        self.changed = now;
        self.unsettle();
        let more = self.own_net(heard.window).saturating_sub(before);
        if self.counting() != Counting::Window {
            self.draw_former(now, more, heard.stamp, here);
        }
        self.place_counts(now, here);
        taken
    }

    /// Without windows: the own region admitted `more` in its former life, the last of it by `until`. The
    /// level knows of it, and so does a store that outlived the process; one in memory is charged for what
    /// cannot have refilled since.
    fn draw_former(&mut self, now: Timestamp, more: u64, until: Timestamp, here: DaemonContext<'_>) {
        let (limit, capacity) = (self.rule.limit, self.rule.limit.capacity(self.rule.algorithm));
        let drawn = self.shared_level.former(now, (more, until), limit, capacity);
        if here.shared_store {
            self.stored = self.stored.saturating_add(more);
            self.shared_level.store.add(now, i128::from(drawn), limit);
        } else {
            let charged = self.charged_for(Regions::OWN);
            charged.counted = charged.counted.saturating_add(more.saturating_sub(drawn));
        }
    }

    /// True if the own region admitted anything that the others were not told, however little.
    pub(in super::super) fn has_untold(&self, now: Timestamp) -> bool {
        let window = self.window_at(now);
        let told = self.told.map_or((window, 0), |told| (told.window, told.net));
        let of = |window| if window == told.0 { told.1 } else { 0 };
        [told.0, window].into_iter().any(|window| self.own_net(window) != of(window))
    }
}
