//! Changes of regions, as members tell them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::core::region_list::RegionChanges;
use tidegate::core::time::Timestamp;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(changes) = RegionChanges::read(text) {
        assert_eq!(RegionChanges::read(&changes.text()), Some(changes));
    }
    let now = Timestamp(u64::MAX / 2);
    let mut known = RegionChanges::default();
    for order in RegionChanges::read_orders(text).into_iter().flatten() {
        known.hear(now, order, |_| false);
    }
    // The changes that it tells on are read as those that it knows.
    let mut again = RegionChanges::default();
    for order in RegionChanges::read_orders(&known.orders()).expect("it was written here") {
        again.hear(now, order, |_| false);
    }
    if known.orders().len() < 40_000 {
        assert_eq!(known, again);
    }
});
