//! Regions that are listed, and listed no more, while daemons run.

use super::cuts::cut_off;
use super::*;

fn list(cluster: &mut GossipCluster, names: &[&str]) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let now = cluster.now();
    for replica in cluster.replicas_mut() {
        replica.handle_regions(now, &names);
    }
    cluster.meet();
}

#[test]
fn a_region_that_is_removed_is_not_waited_for_and_counts_again_once_it_is_listed() {
    let (rule, window) = minute();
    let all = ["a", "b", "c"];
    let mut cluster = GossipCluster::new(&all.map(|region| (region, "1")), &rule);
    list(&mut cluster, &all);
    cluster.admit(&name("c", "1"), "u", window, 30);
    cluster.run(Span::from_secs(1));
    let lost = cluster.remove(&name("c", "1"));
    cluster.meet();
    cluster.run(Span::from_secs(2));
    assert_eq!(cut_off(&cluster, "a"), ["c"]);
    list(&mut cluster, &["a", "b"]);
    cluster.run(Span::from_secs(1));
    assert!(cut_off(&cluster, "a").is_empty() && cut_off(&cluster, "b").is_empty());
    assert_eq!(cluster.replica(&name("a", "1")).regions_len(), 2);
    assert_eq!(
        cluster.believed(&name("a", "1"), "u", window),
        regions(&[("c", 30)]),
        "what it admitted in this window still counts"
    );
    cluster.admit(&name("a", "1"), "v", window, 1);
    cluster.run(Span::from_secs(1));
    let (own, others) = cluster.replica(&name("a", "1")).admitted(&key("v"), window).unwrap();
    assert_eq!((own, others), (1, vec![("b".to_owned(), 0)]), "it is told of no more where nothing counts");

    for region in ["a", "b"] {
        let now = cluster.now().window_index(Span::from_secs(60));
        cluster.touch(&name(region, "1"), &touched("u", now, 10, 0));
    }
    cluster.run(Span::from_millis(500));
    let budgets = ["a", "b"].map(|region| window_of(&cluster.views(&name(region, "1"))[&key("u")]).budget);
    assert!((900..=970).contains(&budgets.iter().sum::<u32>()), "{budgets:?}");

    // It comes back, and is not heard before it is listed.
    cluster.insert(&name("c", "1"), lost);
    cluster.meet();
    let now = cluster.now();
    let c = cluster.replica_mut(&name("c", "1"));
    c.handle_timeout(now);
    let (to, frame) = c.poll_transmit(now).expect("it speaks");
    let refused = cluster.replica_mut(&to).handle_frame(now, &name("c", "1"), frame);
    assert_eq!(refused, Err(Refused::UnknownRegion));
    while cluster.replica_mut(&name("c", "1")).poll_transmit(now).is_some() {}
    list(&mut cluster, &all);
    cluster.run(Span::from_secs(1));
    cluster.admit(&name("c", "1"), "u", window, 5);
    cluster.run(Span::from_secs(1));
    for region in all {
        assert!(cut_off(&cluster, region).is_empty(), "{region}");
        assert_eq!(cluster.believed(&name(region, "1"), "u", window), regions(&[("c", 35)]), "{region}");
    }
}

#[test]
fn what_a_removed_region_used_of_the_running_window_is_not_free_again() {
    use OnPartition::{Deny, Freeze, Ignore, LastKnown, Share};
    let (minute, window) = minute();
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        for on_partition in [Share, Freeze, LastKnown, Ignore, Deny] {
            let mut rule = WorldRule { algorithm, ..minute.clone() };
            rule.global.on_partition = on_partition;
            let all = ["a", "b", "c"];
            let mut cluster = GossipCluster::new(&all.map(|region| (region, "1")), &rule);
            list(&mut cluster, &all);
            let (a, b, c) = (name("a", "1"), name("b", "1"), name("c", "1"));
            cluster.admit(&c, "u", window, 600);
            cluster.run(Span::from_secs(1));
            cluster.remove(&c);
            cluster.meet();
            cluster.run(Span::from_secs(2));
            list(&mut cluster, &["a", "b"]);
            let mut used = [0, 0];
            for _ in 0..100 {
                for (who, used) in [&a, &b].into_iter().zip(&mut used) {
                    let view = cluster.views(who).get(&key("u")).map(|view| window_of(view).budget);
                    let admitted = u64::from(view.is_some_and(|budget| *used + 10 <= budget)) * 10;
                    *used += u32::try_from(admitted).unwrap();
                    let asked = touched("u", window, 10, admitted);
                    cluster.touch(who, &Touched { refused: 10 - admitted, ..asked });
                }
                cluster.run(Span::from_millis(30));
            }
            let sum = used.iter().sum::<u32>();
            assert!(
                (300..=400).contains(&sum),
                "{algorithm:?} {on_partition:?}: {used:?} beside 600 of 1000"
            );
        }
    }
}

#[test]
fn a_region_that_begins_last_leaves_all_to_one_that_alone_is_asked() {
    let day = Span::from_secs(86_400);
    let window = START.window_index(day);
    let algorithms = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];
    for (algorithm, pause) in algorithms.into_iter().flat_map(|of| [50, 100, 200, 300].map(|ms| (of, ms))) {
        let rule = rule(algorithm, 1_000, day, OnPartition::default());
        let mut cluster = GossipCluster::new(&[], &rule);
        (cluster.suppresses_reports, cluster.shared_store) = (true, true);
        let a = name("a", "1");
        cluster.start(&a, &rule);
        list(&mut cluster, &["a", "b", "c"]);
        cluster.run(Span::from_millis(300));
        cluster.start(&name("b", "1"), &rule);
        list(&mut cluster, &["a", "b", "c"]);
        for permits in [1, 399, 1, 399] {
            cluster.admit(&a, "u", window, permits);
            cluster.run(Span::from_millis(pause));
            for _ in 0..4 {
                cluster.touch(&a, &touched("u", window, 1, 0));
                cluster.run(Span::from_millis(25));
            }
        }
        cluster.start(&name("c", "1"), &rule);
        list(&mut cluster, &["a", "b", "c"]);
        cluster.run(Span::from_secs(1));
        let budget = window_of(&cluster.views(&a)[&key("u")]).budget;
        assert!(budget > 900, "{algorithm:?}, {pause} ms: {budget}");
    }
}

#[test]
fn where_nobody_lists_regions_any_more_whoever_is_seen_counts() {
    let (rule, window) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    list(&mut cluster, &["a"]);
    assert_eq!(cluster.replica(&name("a", "1")).regions_len(), 1);
    list(&mut cluster, &[]);
    cluster.admit(&name("b", "1"), "u", window, 7);
    cluster.run(Span::from_secs(1));
    assert_eq!(cluster.believed(&name("a", "1"), "u", window), regions(&[("b", 7)]));
}
