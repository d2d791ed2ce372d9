//! `split`: every region its share, whatever the others do.

use std::time::Duration;

use super::world::{Plan, Store, World, sums, windows};

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
        let admitted: Vec<_> = loads.iter().map(|load| load.of(window).admitted).collect();
        assert!(
            admitted.iter().zip([150, 90, 60]).all(|(admitted, share)| *admitted <= share),
            "{admitted:?}"
        );
        let used: u64 = sums(&loads, window..window + 1)[0].admitted;
        assert!(used >= 285, "{admitted:?}");
    }
}
