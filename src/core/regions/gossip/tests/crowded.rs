//! Regions without room for all buckets in use: what the others leave them, and until when.

use super::*;
use crate::wire::CROWDED_MAX;

/// Longer than a rule stays crowded, and until the others have heard that it is not.
const OVER: Span = Span::from_millis(10_500);

fn three(rule: &WorldRule) -> (GossipCluster, NodeName, NodeName) {
    let cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], rule);
    (cluster, name("a", "1"), name("b", "1"))
}

fn crowd(cluster: &mut GossipCluster, who: &NodeName, rule: &WorldRule) {
    let now = cluster.now();
    cluster.replica_mut(who).crowd(now, rule.name.clone());
}

#[test]
fn a_region_without_room_is_left_its_share_of_a_window_until_it_has_room_again() {
    let (rule, window) = minute();
    let (mut cluster, a, b) = three(&rule);
    let budget = |cluster: &GossipCluster| window_of(&cluster.views(&a)[&key("u")]).budget;
    cluster.admit(&a, "u", window, 100);
    cluster.run(Span::from_millis(500));
    let alone = budget(&cluster);
    assert!(alone > 900, "nobody else asks for it: {alone}");
    crowd(&mut cluster, &b, &rule);
    cluster.run(Span::from_millis(300));
    let left = budget(&cluster);
    assert!((600..=667).contains(&left), "a third of the limit is kept for the one without room: {left}");
    cluster.run(OVER);
    cluster.admit(&a, "u", window, 1);
    cluster.run(Span::from_millis(300));
    assert!(budget(&cluster) > 900, "{}", budget(&cluster));
}

#[test]
fn a_region_that_told_of_more_than_its_share_is_left_that() {
    let (rule, window) = minute();
    let (mut cluster, a, b) = three(&rule);
    cluster.admit(&b, "u", window, 500);
    cluster.admit(&a, "u", window, 10);
    cluster.run(Span::from_millis(500));
    crowd(&mut cluster, &b, &rule);
    cluster.run(Span::from_millis(300));
    let left = window_of(&cluster.views(&a)[&key("u")]).budget;
    assert!(left <= 500, "{left}");
}

#[test]
fn a_region_without_room_is_left_its_share_of_a_level_until_it_has_room_again() {
    let second = Span::from_secs(1);
    let rule = rule(Algorithm::TokenBucket, 900, second, OnPartition::default());
    let (mut cluster, a, b) = three(&rule);
    // In permits, of the 900 that a full bucket holds.
    let held_back = |cluster: &GossipCluster| {
        let view = level(&cluster.views(&a)[&key("u")]);
        let grown = u64::from(view.growth) * cluster.now().since(view.since).0 / second.0;
        (view.held_back + grown).min(u64::from(view.held_back_max))
    };
    let uses = |cluster: &mut GossipCluster, length: u64| {
        for _ in 0..length {
            cluster.admit(&a, "u", 0, 2);
            cluster.run(TICK);
        }
    };
    uses(&mut cluster, 100);
    let alone = held_back(&cluster);
    assert!(alone < 250, "nobody else asks for it: {alone}");
    crowd(&mut cluster, &b, &rule);
    uses(&mut cluster, 100);
    let held = held_back(&cluster);
    assert!((300..600).contains(&held), "a third of the bucket is kept for the one without room: {held}");
    cluster.run(OVER);
    uses(&mut cluster, 300);
    assert!(held_back(&cluster) < 250, "{}", held_back(&cluster));
}

#[test]
fn who_is_gone_is_left_nothing_for_want_of_room() {
    let (rule, window) = minute();
    let (mut cluster, a, b) = three(&rule);
    let c = name("c", "1");
    cluster.admit(&a, "u", window, 100);
    crowd(&mut cluster, &b, &rule);
    cluster.run(Span::from_millis(300));
    let crowded = |cluster: &GossipCluster, region: &str| {
        let regions = &cluster.replica(&c).regions;
        regions.is_crowded(regions.find(region).unwrap(), &rule.name)
    };
    assert!(crowded(&cluster, "b") && !crowded(&cluster, "a"));
    cluster.kill(&b);
    cluster.run(Span::from_millis(500));
    assert!(!crowded(&cluster, "b"));
}

#[test]
fn who_says_another_thing_in_each_frame_makes_buckets_be_looked_at_twice_a_second_at_most() {
    let (rule, window) = minute();
    let (mut cluster, a, b) = three(&rule);
    cluster.admit(&a, "u", window, 100);
    cluster.run(Span::from_millis(700));
    let mut looks = 0;
    let says = |crowded, seq| Frame {
        incarnation: cluster.now().0,
        seq,
        sent: cluster.now(),
        crowded,
        ..frame(Vec::new())
    };
    let frames: Vec<Frame> = (1..=200)
        .map(|seq| says(if seq % 2 == 0 { CrowdedRules::All } else { CrowdedRules::NONE }, seq))
        .collect();
    let began = cluster.now();
    let replica = cluster.replica_mut(&a);
    let mut left = replica.shares_left;
    for (number, frame) in (0..).zip(frames) {
        let now = began + Span::from_millis(number * 5);
        replica.handle_frame(now, &b, frame).unwrap();
        replica.handle_timeout(now);
        looks += u32::from(replica.shares_left != left);
        left = replica.shares_left;
    }
    assert!((1..=3).contains(&looks), "{looks} in a second");
}

#[test]
fn more_rules_than_a_frame_names_are_all_rules() {
    let (rule, _) = minute();
    let mut replica = Replica::new(ReplicaConfig::new(name("a", "1"), 1));
    for number in 0..=CROWDED_MAX {
        assert!(matches!(replica.crowded_here(), CrowdedRules::Named(names) if names.len() == number));
        replica.crowd(START, RuleName { name: format!("r{number}"), ..rule.name.clone() });
    }
    assert_eq!(replica.crowded_here(), CrowdedRules::All);
    let mut long = Replica::new(ReplicaConfig::new(name("a", "1"), 1));
    long.crowd(START, RuleName { name: "n".repeat(1_000), ..rule.name });
    assert_eq!(long.crowded_here(), CrowdedRules::All, "a frame is one datagram");
}

#[test]
fn more_daemons_of_a_region_than_are_counted_make_it_keep_to_its_share() {
    let (rule, window) = minute();
    let mut config = ReplicaConfig::new(name("a", "own"), START.0 / 1_000);
    (config.shared_store, config.regions) = (true, ["a", "b"].map(str::to_owned).to_vec());
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![rule.clone()]);
    let siblings: Vec<NodeName> = (0..64).map(|n| name("a", &format!("n{n}"))).collect();
    let all = siblings.iter().cloned().chain([name("a", "own"), name("b", "1")]);
    let member = |name| Member { name, live: true, draining: false, sees_capacity: true };
    replica.handle_members(START, &all.map(member).collect::<Vec<_>>());
    for sibling in &siblings {
        let told = frame(vec![report(Scope::Node, &sibling.node, START)]);
        replica.handle_frame(START, sibling, told).unwrap();
    }
    let own = |replica: &Replica| replica.admitted(&key("u"), window).map_or(0, |(own, _)| own);
    assert_eq!((own(&replica), replica.tally.uncounted), (64 * 5, 0));
    assert!(replica.crowded.is_empty());
    replica.handle_touched(START, &touched("u", window, 7, 7));
    assert_eq!((own(&replica), replica.tally.uncounted), (64 * 5, 1));
    assert!(replica.crowded.contains_key(&rule.name));
    // As long as that counts, and no longer.
    let (mut now, end) = (START, rule.limit.windows().end(window));
    while now < end {
        replica.handle_timeout(now);
        assert!(replica.crowded.contains_key(&rule.name), "{}", now.since(START).0);
        now = now + Span::from_millis(500);
    }
    now = now + rule.limit.window + Span::from_secs(30);
    replica.handle_timeout(now);
    replica.handle_timeout(now + Span::from_secs(11));
    assert!(replica.crowded.is_empty());
}

#[test]
fn what_found_no_room_is_counted_as_soon_as_there_is_some() {
    let (rule, window) = minute();
    let mut config = ReplicaConfig::new(name("a", "own"), START.0 / 1_000);
    config.shared_store = true;
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![rule]);
    let siblings: Vec<NodeName> = (0..64).map(|n| name("a", &format!("n{n}"))).collect();
    let member = |name| Member { name, live: true, draining: false, sees_capacity: true };
    let own = Some(name("a", "own"));
    let all: Vec<Member> = siblings.iter().cloned().chain(own.clone()).map(member).collect();
    replica.handle_members(START, &all);
    for sibling in &siblings {
        let told = frame(vec![report(Scope::Node, &sibling.node, START)]);
        replica.handle_frame(START, sibling, told).unwrap();
    }
    replica.handle_touched(START, &touched("u", window, 7, 7));
    assert_eq!(replica.tally.uncounted, 1);
    let left: Vec<Member> = own.into_iter().map(member).collect();
    replica.handle_members(START, &left);
    let soon = START + Span::from_secs(1);
    replica.handle_touched(soon, &touched("u", window, 1, 1));
    assert_eq!(replica.admitted(&key("u"), window).map_or(0, |(own, _)| own), 64 * 5 + 8);
    assert_eq!(replica.tally.uncounted, 1);
}
