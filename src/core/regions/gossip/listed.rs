//! Regions that come and go while a daemon runs.

use super::link::GossipLink;
use super::replica::Replica;
use crate::time::Timestamp;

impl Replica {
    /// Other regions share limits from now on; none: whoever is seen. [`Self::handle_members`] must follow.
    /// What a region has told of a window counts in it, also once it is listed no more.
    pub fn handle_regions(&mut self, now: Timestamp, regions: &[String]) {
        self.begin(now);
        self.config.regions = regions.to_vec();
        self.regions.set_listed(now, regions);
        for region in 0..self.regions.len() {
            if !self.regions.takes_part(self.regions.name(region)) {
                self.links.iter_mut().filter(|link| link.region == region).for_each(GossipLink::forget);
            }
        }
        self.unsettle(now);
        self.crowd_changed = true;
        self.look_at_all(now);
    }
}
