//! Cuts, and by what both sides divide while they last.

use super::*;

/// The regions that a daemon takes for cut off.
pub(super) fn cut_off(cluster: &GossipCluster, who: &str) -> Vec<String> {
    let status = cluster.replica(&name(who, "1")).status(cluster.now());
    status.regions.into_iter().filter(|region| region.cut_off).map(|region| region.name).collect()
}

#[test]
fn of_a_cut_in_one_direction_both_sides_know() {
    let (rule, _) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
    cluster.run(Span::from_secs(2));
    cluster.mute("a");
    cluster.run(Span::from_secs(1));
    assert_eq!(cut_off(&cluster, "b"), ["a"]);
    assert_eq!(
        cut_off(&cluster, "a"),
        ["b", "c"],
        "nobody hears it, so nobody leaves it more than its share"
    );
    cluster.mend();
    cluster.run(Span::from_secs(1));
    assert_eq!((cut_off(&cluster, "a"), cut_off(&cluster, "b")), (Vec::new(), Vec::new()));
}

#[test]
fn a_cut_that_is_over_leaves_a_region_that_alone_asks_all_again_though_nothing_more_is_told() {
    let day = Span::from_secs(86_400);
    let window = START.window_index(day);
    let algorithms = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];
    for (algorithm, pause) in algorithms.into_iter().flat_map(|of| [50, 200, 1_000].map(|ms| (of, ms))) {
        let rule = rule(algorithm, 1_000, day, OnPartition::default());
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
        let a = name("a", "1");
        cluster.cut(&["c"]);
        cluster.run(Span::from_secs(3));
        cluster.admit(&a, "u", window, 600);
        cluster.run(Span::from_millis(pause));
        let budget = |cluster: &GossipCluster| window_of(&cluster.views(&a)[&key("u")]).budget;
        assert!(budget(&cluster) <= 667, "{algorithm:?}, {pause} ms: {} in the cut", budget(&cluster));
        cluster.mend();
        cluster.run(Span::from_secs(2));
        assert!(budget(&cluster) > 900, "{algorithm:?}, {pause} ms: {} after it", budget(&cluster));
    }
}

#[test]
fn a_region_that_is_heard_again_is_cut_off_no_more_while_its_silence_still_counts_in_bounds() {
    let (rule, _) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
    cluster.run(Span::from_secs(2));
    cluster.cut(&["c"]);
    cluster.run(Span::from_millis(1_600));
    let known = |cluster: &GossipCluster| cluster.replica(&name("a", "1")).elsewhere();
    assert!(known(&cluster).cut_off);
    cluster.mend();
    cluster.run(Span::from_millis(300));
    let after = known(&cluster);
    assert!(!after.cut_off && after.silence > Span::from_secs(1), "{after:?}");
}

#[test]
fn where_frames_are_lost_now_and_then_nobody_is_cut_off() {
    let (rule, _) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.weather().loss = 0.05;
    for _ in 0..300 {
        cluster.run(Span::from_millis(100));
        assert_eq!((cut_off(&cluster, "a"), cut_off(&cluster, "b")), (Vec::new(), Vec::new()));
    }
}

#[test]
fn a_region_that_never_answered_is_cut_off_though_it_is_heard() {
    let (rule, _) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.mute("a");
    cluster.run(Span::from_secs(3));
    assert_eq!(
        (cut_off(&cluster, "a"), cut_off(&cluster, "b")),
        (vec!["b".to_owned()], vec!["a".to_owned()])
    );
}

#[test]
fn a_region_that_is_cut_off_stays_so_until_it_is_heard_though_its_daemon_is_seen_to_begin() {
    let (rule, _) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.cut(&["a"]);
    let (a, b) = (name("a", "1"), name("b", "1"));
    let former = cluster.remove(&a);
    cluster.start(&b, &rule);
    let told = |cluster: &mut GossipCluster, live| {
        let members = [(&a, live), (&b, true)].map(|(name, live)| Member {
            name: name.clone(),
            live,
            draining: false,
            sees_capacity: true,
        });
        let now = cluster.now();
        cluster.replica_mut(&b).handle_members(now, &members);
    };
    told(&mut cluster, false);
    cluster.run(Span::from_secs(2));
    assert_eq!(cut_off(&cluster, "b"), ["a"]);
    told(&mut cluster, true);
    for _ in 0..10 {
        cluster.run(Span::from_millis(100));
        assert_eq!(cut_off(&cluster, "b"), ["a"], "membership sees a daemon that no frame has come from");
    }
    cluster.mend();
    cluster.insert(&a, former);
    cluster.run(Span::from_secs(1));
    assert!(cut_off(&cluster, "a").is_empty() && cut_off(&cluster, "b").is_empty());
}

#[test]
fn once_a_cut_is_noticed_the_next_window_begins_with_what_the_rule_says() {
    let second = Span::from_secs(1);
    let rule = rule(Algorithm::FixedWindow, 90, second, OnPartition::Deny);
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    let both = [name("a", "1"), name("b", "1")];
    for _ in 0..300 {
        let window = cluster.now().window_index(second);
        both.iter().for_each(|who| cluster.touch(who, &touched("u", window, 1, 0)));
        cluster.run(TICK);
    }
    cluster.cut(&["b"]);
    // Nothing is asked for any more, so nothing is told after the cut was noticed.
    cluster.run(Span::from_millis(700));
    for who in &both {
        let view = cluster.views(who)[&key("u")];
        assert_eq!(window_of(&view).next_budget, 0, "{who:?} {view:?}");
    }
}

#[test]
fn a_region_that_nobody_hears_keeps_its_share_however_the_others_divide_theirs() {
    let second = Span::from_secs(1);
    let rule = rule(Algorithm::FixedWindow, 120, second, OnPartition::Share);
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")], &rule);
    // Of the others one is asked for much and two for little: it gets most of what the three have.
    let asked = |cluster: &mut GossipCluster| {
        let window = cluster.now().window_index(second);
        for (region, offered) in [("a", 2), ("b", 0), ("c", 0), ("d", 1)] {
            let who = name(region, "1");
            let left =
                cluster.views(&who).get(&key("u")).map_or(30, |view| u64::from(window_of(view).budget));
            let used = cluster.now().since(Timestamp::window_start(window, second)).0 / TICK.0 * offered;
            let admitted = if used < left { offered } else { 0 };
            cluster.touch(&who, &touched("u", window, offered, admitted));
        }
        cluster.run(TICK);
    };
    (0..200).for_each(|_| asked(&mut cluster));
    cluster.mute("d");
    for step in 0..400 {
        asked(&mut cluster);
        let now = cluster.now().since(Timestamp::window_start(cluster.now().window_index(second), second));
        if step > 200 && now > Span::from_millis(100) {
            let budget =
                |region: &str| cluster.views(&name(region, "1"))[&key("u")].as_window().unwrap().budget;
            assert!(budget("a") > 60, "{}", budget("a"));
            assert_eq!(budget("d"), 30, "at {now:?}");
        }
    }
}

#[test]
fn what_waited_for_a_daemon_that_stood_still_does_not_make_ways_longer() {
    let (rule, _) = minute();
    let (a, b) = (name("a", "1"), name("b", "1"));
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.run(Span::from_secs(2));
    let mut stopped = cluster.remove(&b);
    let before = stopped.horizon(cluster.now());
    let mut waiting = Vec::new();
    for _ in 0..40 {
        let now = cluster.now() + Span::from_millis(100);
        cluster.set_clocks(now);
        let speaker = cluster.replica_mut(&a);
        speaker.handle_timeout(now);
        while let Some((_, frame)) = speaker.poll_transmit(now) {
            waiting.push(frame);
        }
    }
    assert!(waiting.len() > 10, "{}", waiting.len());
    // It goes on; the acknowledgement of what it sent before it stood still has waited as well.
    for frame in waiting {
        stopped.handle_frame(cluster.now(), &a, frame).unwrap();
    }
    stopped.handle_link(cluster.now(), &a, Span::from_millis(500));
    assert_eq!(stopped.horizon(cluster.now()), before);
}

/// Returns what `a` may admit while `b` is cut off; all three regions wanted more than their share before,
/// `a` most.
fn budget_in_a_cut(on_partition: OnPartition) -> u32 {
    let second = Span::from_secs(1);
    let rule = rule(Algorithm::FixedWindow, 90, second, on_partition);
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
    let demand = [(name("a", "1"), 5), (name("b", "1"), 1)];
    let run = |cluster: &mut GossipCluster, steps: u64| {
        for _ in 0..steps {
            let window = cluster.now().window_index(second);
            for (who, offered) in &demand {
                cluster.touch(who, &touched("u", window, *offered, 0));
            }
            cluster.run(TICK);
        }
    };
    run(&mut cluster, 250);
    cluster.cut(&["b"]);
    run(&mut cluster, 450);
    let cut_off = window_of(&cluster.views(&name("a", "1"))[&key("u")]).budget;
    cluster.mend();
    run(&mut cluster, 250);
    let healed = window_of(&cluster.views(&name("a", "1"))[&key("u")]).budget;
    assert!((44..=46).contains(&healed), "{on_partition:?} healed to {healed}");
    cut_off
}

#[test]
fn a_cut_off_region_keeps_what_the_rule_says() {
    assert_eq!(budget_in_a_cut(OnPartition::Share), 60);
    assert_eq!(budget_in_a_cut(OnPartition::Ignore), 90);
    assert_eq!(budget_in_a_cut(OnPartition::Deny), 0);
    let frozen = budget_in_a_cut(OnPartition::Freeze);
    assert!((44..=46).contains(&frozen), "{frozen}");
    let last_known = budget_in_a_cut(OnPartition::LastKnown);
    assert!((44..=46).contains(&last_known), "{last_known}");
}

#[test]
fn a_store_that_forgot_what_it_was_told_is_told_again_when_it_decides_without() {
    let minute = Span::from_secs(60);
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow] {
        let rule = rule(algorithm, 100, minute, OnPartition::Deny);
        let window = if algorithm == Algorithm::FixedWindow { START.window_index(minute) } else { 0 };
        let a = name("a", "1");
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
        let ask = |cluster: &mut GossipCluster, without_allowance: bool| {
            let store = StoreSeen { without_allowance, ..StoreSeen::default() };
            cluster.touch(&a, &Touched { store, refused: 1, ..touched("u", window, 1, 0) });
            cluster.forget_view(&a, "u")
        };
        cluster.run(Span::from_secs(1));
        cluster.cut(&["a"]);
        let mut told = None;
        for _ in 0..300 {
            told = ask(&mut cluster, false).or(told);
            cluster.run(TICK);
        }
        assert!(told.is_some(), "{algorithm:?}");
        assert_eq!(ask(&mut cluster, false), None, "nothing is new, and the store seems to have it");
        assert_eq!(ask(&mut cluster, true), told, "{algorithm:?}");
        assert_eq!(ask(&mut cluster, true), None, "it is on its way");
        cluster.run(Span::from_millis(100));
        assert_eq!(ask(&mut cluster, true), told, "{algorithm:?}");
        // A clock that was set back does not keep it from being told.
        cluster.set_clocks(Timestamp(cluster.now().0 - 50_000));
        assert_eq!(ask(&mut cluster, true), told, "{algorithm:?}");
    }
}
