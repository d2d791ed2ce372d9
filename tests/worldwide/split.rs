//! `split`: every region its share, whatever the others do.

use std::time::Duration;

use super::world::{Plan, Store, World, windows};

#[test]
fn no_region_admits_more_than_its_share_with_or_without_the_others() {
    let global = "mode = \"split\"\nshares = { eu-west = 50, us-east = 30, ap-south = 20 }";
    let rtt = Duration::from_millis(80);
    let world = World::start(Plan { regions: 3, rtt, store: Store::Memory, limit: 300, global });
    let loads = world.load(3.0, &[1, 1, 1]);
    windows(1);
    let together = windows(3);
    world.cut(2);
    let apart = windows(3);
    for window in together.chain(apart) {
        let counts: Vec<_> =
            loads.iter().zip([150, 90, 60]).map(|(load, share)| (load.of(window), share)).collect();
        assert!(counts.iter().all(|(count, share)| count.admitted <= *share), "{counts:?}");
        // A machine that is slow asks a region for less than its share.
        let could: u64 = counts.iter().map(|(count, share)| count.asked.min(*share)).sum();
        let used: u64 = counts.iter().map(|(count, _)| count.admitted).sum();
        assert!(could > 0 && used >= could * 95 / 100, "{counts:?}");
    }
}
