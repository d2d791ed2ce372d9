//! One report of several limits, and how it is paid back.

use super::lost_store::TestedStore;
use super::*;

const WINDOW: Span = Span::from_secs(4);
const WINDOWS: usize = 14;

/// Two regions; 450 of a limit of 100 are reported in the first, then both ask for all that they can get.
/// Returns what each admitted in each window.
fn played(algorithm: Algorithm, shared_store: bool) -> [Vec<u64>; 2] {
    let rule = rule(algorithm, 100, WINDOW, OnPartition::default());
    let names = ["east", "west"].map(|region| name(region, "1"));
    let mut cluster = GossipCluster::new(&[], &rule);
    (cluster.shared_store, cluster.suppresses_reports) = (shared_store, true);
    names.iter().for_each(|who| cluster.start(who, &rule));
    cluster.meet();
    cluster.run(Span::from_secs(4));
    let mut stores = names.each_ref().map(|who| TestedStore::of(&rule, who, "u"));
    stores.iter_mut().for_each(|store| {
        store.ask(&mut cluster, 1);
    });
    let start = cluster.now();
    let next = Timestamp::window_start(start.window_index(WINDOW) + 1, WINDOW);
    cluster.run(next.since(start) + Span::from_millis(200));
    stores[0].report(&mut cluster, 450);
    let mut admitted = [vec![0; WINDOWS], vec![0; WINDOWS]];
    let first = cluster.now().window_index(WINDOW);
    for tick in 0..WINDOWS * 400 {
        let window = usize::try_from(cluster.now().window_index(WINDOW) - first).unwrap();
        for (store, admitted) in stores.iter_mut().zip(&mut admitted) {
            if tick >= 50 && tick.is_multiple_of(8) {
                for _ in 0..10 {
                    if let Some(admitted) = admitted.get_mut(window) {
                        *admitted += store.ask(&mut cluster, 1);
                    }
                }
            }
        }
        cluster.run(Span::from_millis(10));
        stores.iter_mut().for_each(|store| store.hear(&mut cluster));
    }
    admitted
}

#[test]
fn what_one_report_owes_is_paid_back_and_nobody_is_shut_out_for_it() {
    for shared_store in [false, true] {
        for algorithm in
            [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket, Algorithm::Gcra]
        {
            let [east, west] = played(algorithm, shared_store);
            let burst = if algorithm.counting() == Counting::Level { 100 } else { 0 };
            let (all, fair) = (450 + east.iter().chain(&west).sum::<u64>(), 1_400 + burst);
            assert!(all * 100 <= fair * 104, "{algorithm:?}: {all} of {fair} were used");
            assert!(all * 100 >= fair * 90, "{algorithm:?}: only {all} of {fair} were used");
            let last: u64 = east.iter().rev().take(5).sum();
            assert!(last > 40, "{algorithm:?}: the region that owed gets its part again: {east:?}");
        }
    }
}

#[test]
fn what_another_region_gives_back_of_a_level_pays_for_its_next_until_it_has_refilled() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        for (window, least, most) in [(Span::from_secs(86_400), 60, 61), (Span::from_secs(10), 85, 110)] {
            let rule = rule(algorithm, 100, window, OnPartition::default());
            let (a, b) = (name("a", "1"), name("b", "1"));
            let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
            cluster.run(Span::from_secs(1));
            cluster.admit(&a, "u", 0, 60);
            cluster.run(Span::from_millis(200));
            assert_eq!(cluster.debits(&b), 60);
            cluster.touch(&a, &Touched { returned: 60, ..touched("u", 0, 0, 0) });
            cluster.run(Span::from_secs(3));
            assert_eq!(cluster.believed(&b, "u", 0), regions(&[]));
            cluster.admit(&a, "u", 0, 60);
            cluster.run(Span::from_secs(1));
            let charged = cluster.debits(&b);
            assert!((least..=most).contains(&charged), "{algorithm:?} in {window:?}: {charged}");
        }
    }
}
