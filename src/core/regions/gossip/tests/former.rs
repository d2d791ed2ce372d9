//! A daemon that begins again hears from the others what it admitted in its former life.

use super::*;

/// The daemon dies and begins again.
fn restart(cluster: &mut GossipCluster, who: &NodeName, rule: &WorldRule) {
    cluster.run(Span::from_millis(300));
    cluster.start(who, rule);
    cluster.meet();
}

#[test]
fn what_a_former_life_used_of_a_window_is_used_whatever_is_lost_on_the_way() {
    let (rule, window) = minute();
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let rule = WorldRule { algorithm, ..rule.clone() };
        let (a, b) = (name("a", "1"), name("b", "1"));
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
        (cluster.weather().loss, cluster.weather().double) = (0.3, 0.3);
        cluster.admit(&a, "u", window, 600);
        cluster.admit(&b, "u", window, 100);
        restart(&mut cluster, &a, &rule);
        // Some come before anything was heard.
        cluster.admit(&a, "u", window, 7);
        cluster.run(Span::from_secs(2));
        assert_eq!(cluster.believed(&a, "u", window), regions(&[("a", 607), ("b", 100)]), "{algorithm:?}");
        let budget = cluster.views(&a)[&key("u")].as_window().unwrap().budget;
        assert!((7..=300).contains(&budget), "{algorithm:?}: {budget}");
        for who in [&b, &name("c", "1")] {
            assert_eq!(
                cluster.believed(who, "u", window),
                regions(&[("a", 607), ("b", 100)]),
                "{algorithm:?}"
            );
        }
        // And once more, with nothing in between.
        restart(&mut cluster, &a, &rule);
        cluster.run(Span::from_secs(2));
        assert_eq!(cluster.believed(&a, "u", window), regions(&[("a", 607), ("b", 100)]), "{algorithm:?}");
    }
}

#[test]
fn what_is_lost_of_it_is_said_again_though_there_is_news_meanwhile() {
    let (rule, window) = minute();
    let (a, b) = (name("a", "1"), name("b", "1"));
    for seed in 0..10 {
        let mut cluster = GossipCluster::seeded(seed, &[("a", "1"), ("b", "1")], &rule);
        cluster.admit(&a, "u", window, 600);
        restart(&mut cluster, &a, &rule);
        cluster.weather().loss = 0.7;
        for _ in 0..50 {
            cluster.admit(&a, "u", window, 1);
            cluster.run(Span::from_millis(20));
        }
        cluster.weather().loss = 0.0;
        cluster.run(Span::from_secs(2));
        for who in [&a, &b] {
            assert_eq!(cluster.believed(who, "u", window), regions(&[("a", 650)]), "{who:?}, seed {seed}");
        }
    }
}

#[test]
fn what_a_former_life_drew_from_a_level_is_charged_once_less_what_refilled() {
    // One permit in ten milliseconds.
    let rule = rule(Algorithm::TokenBucket, 1_000, Span::from_secs(10), OnPartition::default());
    let a = name("a", "1");
    for shared_store in [false, true] {
        let mut cluster = GossipCluster::new(&[], &rule);
        cluster.shared_store = shared_store;
        ["a", "b"].iter().for_each(|region| cluster.start(&name(region, "1"), &rule));
        cluster.meet();
        cluster.admit(&a, "u", 0, 600);
        restart(&mut cluster, &a, &rule);
        cluster.admit(&a, "u", 0, 10);
        cluster.run(Span::from_secs(1));
        let charged = cluster.debits(&a);
        if shared_store {
            assert_eq!(charged, 0, "its store knows");
        } else {
            assert!((500..=600).contains(&charged), "{charged}");
        }
        assert_eq!(cluster.believed(&a, "u", 0), regions(&[("a", 610)]));
        assert_eq!(cluster.believed(&name("b", "1"), "u", 0), regions(&[("a", 610)]));
        // Not again, whatever is said again.
        cluster.run(Span::from_secs(5));
        assert_eq!(cluster.debits(&a), charged);
        assert_eq!(cluster.debits(&name("b", "1")), 610);
    }
}

#[test]
fn of_a_long_former_life_no_more_is_charged_than_the_bucket_holds() {
    let rule = rule(Algorithm::Gcra, 100, Span::from_secs(10), OnPartition::default());
    let a = name("a", "1");
    for (pause, least, most) in [(Span::from_millis(50), 80, 100), (Span::from_secs(8), 5, 20)] {
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
        for _ in 0..50 {
            cluster.admit(&a, "u", 0, 10);
            cluster.run(Span::from_secs(1));
        }
        cluster.run(pause);
        cluster.start(&a, &rule);
        cluster.meet();
        cluster.run(Span::from_millis(200));
        let charged = cluster.debits(&a);
        assert!((least..=most).contains(&charged), "{charged} after {pause:?}");
        // It goes on at the rate.
        for _ in 0..10 {
            cluster.admit(&a, "u", 0, 10);
            cluster.run(Span::from_secs(1));
        }
        let held = cluster.views(&a).get(&key("u")).map_or(0, |view| level(view).held_back);
        assert!(held < 60, "{held} held back after {pause:?}");
    }
}

#[test]
fn of_counts_that_go_on_another_region_is_not_believed() {
    let (rule, window) = minute();
    let mut config = ReplicaConfig::new(name("a", "1"), START.0 / 1_000);
    config.regions = ["a", "b"].map(str::to_owned).to_vec();
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![rule]);
    let mut own = report(Scope::Region("a".to_owned()), "1", START);
    replica.handle_frame(START, &name("b", "1"), frame(vec![own.clone()])).unwrap();
    assert_eq!(replica.admitted(&key("u"), window).map_or(0, |(own, _)| own), 0);
    let former = Counter { node: "1".into(), since: Timestamp(START.0 - 1) };
    if let Some(subject) = &mut own.subject {
        subject.counters = vec![former];
    }
    let next = Frame { seq: 2, ..frame(vec![own]) };
    replica.handle_frame(START, &name("b", "1"), next).unwrap();
    assert_eq!(replica.admitted(&key("u"), window).map_or(0, |(own, _)| own), 5);
}

#[test]
fn a_daemon_that_ends_in_good_order_tells_what_it_would_not_tell_otherwise() {
    let (rule, window) = minute();
    let (a, b) = (name("a", "1"), name("b", "1"));
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
        let rule = WorldRule { algorithm, ..rule.clone() };
        let window = if algorithm == Algorithm::FixedWindow { window } else { 0 };
        let mut cluster = GossipCluster::new(&[], &rule);
        cluster.suppresses_reports = true;
        [&a, &b].into_iter().for_each(|who| cluster.start(who, &rule));
        cluster.meet();
        cluster.run(Span::from_millis(200));
        let little = key("little");
        cluster.touch(
            &a,
            &Touched {
                key: little,
                window,
                offered: 0,
                admitted: 20,
                returned: 0,
                refused: 0,
                largest: 1,
                own: None,
                store: StoreSeen::default(),
            },
        );
        cluster.admit(&a, "much", window, 900);
        cluster.run(Span::from_secs(2));
        assert_eq!(cluster.believed(&b, "little", window), regions(&[]), "{algorithm:?}");
        cluster.admit(&a, "much", window, 1);
        let now = cluster.now();
        let ending = cluster.replica_mut(&a);
        ending.handle_end(now);
        assert!(!ending.has_told_all());
        cluster.pump(&a);
        // At one instant or another: it goes on reminding the others of what is much used.
        let told_all = (0..40).any(|_| {
            cluster.run(TICK);
            cluster.replica(&a).has_told_all()
        });
        assert!(told_all, "{algorithm:?}");
        assert_eq!(cluster.believed(&b, "little", window), regions(&[("a", 20)]), "{algorithm:?}");
        assert_eq!(cluster.believed(&b, "much", window), regions(&[("a", 901)]), "{algorithm:?}");
    }
}

#[test]
fn until_the_others_had_time_to_say_what_it_used_a_daemon_keeps_to_its_share() {
    let (rule, _) = minute();
    for (cut, shared_store, least, most) in [
        (None, false, 300, 1_200),
        // One does not answer.
        (Some("c"), false, 3_000, 3_020),
        (None, true, 0, 0),
    ] {
        let mut cluster = GossipCluster::new(&[("b", "1"), ("c", "1")], &rule);
        cluster.run(Span::from_secs(1));
        cut.iter().for_each(|region| cluster.cut(&[region]));
        let config = ReplicaConfig::new(name("a", "1"), cluster.now().0 / 1_000);
        let regions = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut replica = Replica::new(ReplicaConfig { regions, shared_store, ..config });
        replica.handle_rules(cluster.now(), 1, vec![rule.clone()]);
        let held = if shared_store { vec![] } else { vec![rule.name.clone()] };
        assert_eq!(replica.poll_crowded(), Some(held.clone()));
        let a = name("a", "1");
        cluster.insert(&a, replica);
        cluster.meet();
        let began = cluster.now();
        let mut free = held.is_empty().then_some(began);
        while free.is_none() && cluster.now().since(began) < Span::from_secs(5) {
            cluster.run(TICK);
            match cluster.replica_mut(&a).poll_crowded() {
                Some(held) if held.is_empty() => free = Some(cluster.now()),
                other => assert_eq!(other, None),
            }
        }
        let millis = free.unwrap().since(began).0 / 1_000;
        assert!((least..=most).contains(&millis), "free after {millis} ms without {cut:?}");
    }
}

#[test]
fn a_store_that_outlives_its_daemon_keeps_its_allowances_until_the_others_know_of_the_next_one() {
    let (rule, window) = minute();
    let (a, b) = (name("a", "1"), name("b", "1"));
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.shared_store = true;
    [&a, &b].iter().for_each(|who| cluster.start(who, &rule));
    cluster.meet();
    cluster.run(Span::from_secs(1));
    cluster.admit(&a, "u", window, 600);
    cluster.run(Span::from_secs(1));
    let told = cluster.views(&b)[&key("u")];
    cluster.start(&b, &rule);
    cluster.meet();
    // Its region goes on asking, by what the store was told before.
    cluster.admit(&b, "u", window, 3);
    cluster.run(Span::from_millis(10));
    assert_eq!(cluster.views(&b).get(&key("u")), None, "the store was told {told:?}, and nothing since");
    cluster.run(Span::from_secs(1));
    assert_eq!(cluster.believed(&b, "u", window), regions(&[("a", 600), ("b", 3)]));
    let budget = cluster.views(&b)[&key("u")].as_window().unwrap().budget;
    assert!(budget <= 400, "{budget}");
}

#[test]
fn a_new_daemon_does_not_wait_for_a_region_that_is_cut_off() {
    let (rule, window) = minute();
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.shared_store = true;
    ["a", "b", "c"].iter().for_each(|region| cluster.start(&name(region, "1"), &rule));
    cluster.meet();
    cluster.cut(&["a"]);
    cluster.run(Span::from_secs(2));
    let b = name("b", "1");
    cluster.start(&b, &rule);
    cluster.meet();
    cluster.admit(&b, "u", window, 3);
    cluster.run(Span::from_millis(1_500));
    assert!(cluster.views(&b).contains_key(&key("u")), "its store is told in less than three seconds");
}

#[test]
fn a_daemon_that_begins_often_knows_of_all_its_lives() {
    let (rule, window) = minute();
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let rule = WorldRule { algorithm, ..rule.clone() };
        let (a, b) = (name("a", "1"), name("b", "1"));
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
        for life in 1..=20 {
            cluster.admit(&a, "u", window, 30);
            restart(&mut cluster, &a, &rule);
            cluster.run(Span::from_millis(700));
            let known = regions(&[("a", 30 * life)]);
            assert_eq!(cluster.believed(&a, "u", window), known, "{algorithm:?} after {life}");
            assert_eq!(cluster.believed(&b, "u", window), known, "{algorithm:?} after {life}");
        }
        // Its store is new and knows of none of them.
        cluster.touch(&a, &touched("u", window, 1, 0));
        cluster.run(Span::from_secs(1));
        let budget = window_of(&cluster.views(&a)[&key("u")]).budget;
        assert!(budget <= 400, "{algorithm:?}: {budget} beside 600 of 1000");
    }
}

#[test]
fn daemons_that_are_replaced_under_new_names_are_counted_however_many() {
    let day = Span::from_secs(86_400);
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
        for shared_store in [false, true] {
            let rule = rule(algorithm, 1_000, day, OnPartition::default());
            let window = if algorithm == Algorithm::FixedWindow { START.window_index(day) } else { 0 };
            let (mut pod, b) = (name("a", "pod-0"), name("b", "1"));
            let mut cluster = GossipCluster::new(&[], &rule);
            cluster.shared_store = shared_store;
            [&pod, &b].into_iter().for_each(|who| cluster.start(who, &rule));
            cluster.meet();
            cluster.run(Span::from_millis(1_500));
            for life in 1..=70 {
                cluster.admit(&pod, "u", window, 5);
                cluster.run(Span::from_millis(300));
                cluster.remove(&pod);
                pod = name("a", &format!("pod-{life}"));
                cluster.start(&pod, &rule);
                cluster.meet();
                cluster.run(Span::from_millis(1_500));
            }
            cluster.admit(&pod, "u", window, 400);
            cluster.run(Span::from_secs(1));
            let known = regions(&[("a", 750)]);
            for who in [&pod, &b] {
                let said = format!("{algorithm:?}, shared {shared_store}: {who:?}");
                assert_eq!(cluster.believed(who, "u", window), known, "{said}");
                assert_eq!(cluster.replica(who).tally.uncounted, 0, "{said}");
                assert!(cluster.replica(who).crowded.is_empty(), "{said}");
            }
            if algorithm == Algorithm::FixedWindow {
                let budget = window_of(&cluster.views(&b)[&key("u")]).budget;
                assert!(budget <= 250, "shared {shared_store}: {budget} beside 750 of 1000");
            }
        }
    }
}
