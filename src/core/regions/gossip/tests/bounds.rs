//! What others say, how often daemons come and go, and clocks that are set: none of it stops a daemon, or
//! fills it.

use super::*;
use crate::algorithm::Counting;

const HOUR: Span = Span::from_secs(3_600);

fn told_by_b(at: Timestamp, key_id: u64, user: &str, window: u64, admitted: u64) -> Report {
    let good = report(Scope::Region("b".to_owned()), "1", at);
    let subject = good.subject.map(|subject| Subject { identity: key(user).identity, ..subject });
    Report {
        key_id,
        subject,
        window,
        amounts: std::iter::once(Amount { admitted, returned: 0 }).collect(),
        ..good
    }
}

fn listening(keys_max: usize, rule: WorldRule) -> Replica {
    let mut config = ReplicaConfig::new(name("a", "1"), 1);
    config.regions = ["a", "b"].map(str::to_owned).to_vec();
    config.keys_max = keys_max;
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![rule]);
    replica
}

#[test]
fn of_a_bucket_without_windows_the_first_claim_is_believed_no_further_than_any_other() {
    let rule = rule(Algorithm::TokenBucket, 100, Span::from_secs(1), OnPartition::default());
    let mut replica = listening(100, rule);
    let claim = told_by_b(START, 1, "u", 0, 100_000_000_000);
    assert_eq!(replica.handle_frame(START, &name("b", "1"), frame(vec![claim])), Ok(()));
    let mut charged = 0;
    while let Some(effect) = replica.poll_effect() {
        if let Effect::Debit { permits, .. } = effect {
            charged += permits;
        }
    }
    assert_eq!(charged, 200, "twice what the bucket holds");
    assert_eq!(replica.tally().beyond, 1);
}

#[test]
fn a_daemon_that_is_told_of_a_link_before_all_else_has_missed_nobody_since_1970() {
    let rule = rule(Algorithm::TokenBucket, 10, Span::from_secs(1), OnPartition::default());
    let mut config = ReplicaConfig::new(name("a", "1"), 1);
    config.regions = ["a", "b", "c"].map(str::to_owned).to_vec();
    let mut replica = Replica::new(config);
    replica.handle_link(START, &name("b", "1"), Span::from_millis(20));
    assert_eq!(replica.elsewhere().silence, Span::ZERO);
    let soon = START + Span::from_millis(10);
    replica.handle_rules(soon, 1, vec![rule]);
    replica.handle_timeout(soon);
    assert!(replica.elsewhere().silence <= Span::from_millis(10), "{:?}", replica.elsewhere());
}

#[test]
fn buckets_that_only_others_ask_for_make_room_for_those_that_are_asked_for_here() {
    let (rule, window) = minute();
    let mut replica = listening(200, rule);
    let claims = (0..200).map(|user| told_by_b(START, user + 1, &format!("theirs{user}"), window, 1_000));
    assert_eq!(replica.handle_frame(START, &name("b", "1"), frame(claims.collect())), Ok(()));
    assert_eq!(replica.status(START).keys_len, 200);
    let ours = (0..100).map(|user| format!("ours{user}"));
    let followed = ours.filter(|user| {
        let touched = Touched {
            key: key(user),
            window,
            offered: 1,
            admitted: 1,
            returned: 0,
            refused: 0,
            largest: 1,
            own: None,
            store: StoreSeen::default(),
        };
        replica.handle_touched(START, &touched);
        replica.bucket(START, &key(user)).is_some()
    });
    assert_eq!(followed.count(), 100);
}

#[test]
fn a_daemon_is_spoken_with_however_many_came_and_went_before_it() {
    let (rule, _) = minute();
    let mut replica = listening(100, rule);
    let member =
        |node: &str, live| Member { name: name("b", node), live, draining: false, sees_capacity: true };
    for n in 0..LINKS_MAX + 10 {
        let node = format!("n{n}");
        replica.handle_members(START, &[member(&node, true)]);
        let peers = replica.status(START).peers;
        assert!(peers.len() <= LINKS_MAX && peers.iter().any(|peer| peer.live && peer.name.node == node));
        replica.handle_members(START, &[member(&node, false)]);
    }
    // As many as there is room for stay: no newcomer takes the place of one that is there.
    let all: Vec<Member> = (0..LINKS_MAX + 10).map(|n| member(&format!("n{n}"), true)).collect();
    replica.handle_members(START, &all);
    assert_eq!(replica.status(START).peers.iter().filter(|peer| peer.live).count(), LINKS_MAX);
}

#[test]
fn a_clock_that_is_set_back_stops_nobody_from_telling() {
    let rule = rule(Algorithm::FixedWindow, 1_000, HOUR, OnPartition::default());
    let window = START.window_index(HOUR);
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.admit(&name("a", "1"), "u", window, 30);
    cluster.run(Span::from_millis(300));
    cluster.set_clocks(Timestamp(cluster.now().0 - 8_000_000));
    cluster.run(Span::from_millis(300));
    cluster.admit(&name("a", "1"), "u", window, 5);
    cluster.run(Span::from_millis(300));
    assert_eq!(cluster.believed(&name("b", "1"), "u", window), regions(&[("a", 35)]));
    let status = cluster.replica(&name("b", "1")).status(cluster.now());
    assert!(status.regions.iter().all(|region| !region.cut_off));
}

#[test]
fn a_larger_burst_is_there_at_once() {
    let minutely = |burst| {
        let plain = rule(Algorithm::TokenBucket, 1, Span::from_secs(60), OnPartition::default());
        WorldRule { limit: Limit { burst, ..plain.limit }, ..plain }
    };
    let a = name("a", "1");
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &minutely(10));
    cluster.admit(&a, "u", 0, 1);
    cluster.run(Span::from_millis(500));
    let now = cluster.now();
    for replica in cluster.replicas_mut() {
        replica.handle_rules(now, 2, vec![minutely(1_000)]);
    }
    cluster.admit(&a, "u", 0, 1);
    cluster.run(Span::from_millis(500));
    let held = cluster.views(&a).get(&key("u")).map_or(0, |view| level(view).held_back);
    assert!(held < 600, "{held} of a thousand are kept for others, where two were used");
}

/// Returns what a view of a bucket without windows holds back for others at `now`, where the window is a
/// second.
fn held(view: &Allowance, now: Timestamp) -> u64 {
    let view = level(view);
    let more = u64::from(view.growth) * now.since(view.since).0 / 1_000_000;
    u64::from(view.held_back_max).min(view.held_back + more)
}

#[test]
fn a_bucket_that_is_asked_for_now_and_then_is_always_there_though_nobody_is_told() {
    for (permits, burst) in [(100, 20), (100, 100), (10, 50), (1_000, 8)] {
        let plain = rule(Algorithm::TokenBucket, permits, Span::from_secs(1), OnPartition::default());
        let rule = WorldRule { limit: Limit { burst, ..plain.limit }, ..plain };
        let mut cluster = GossipCluster::new(&[], &rule);
        cluster.suppresses_reports = true;
        let a = name("a", "1");
        for region in ["a", "b", "c"] {
            cluster.start(&name(region, "1"), &rule);
        }
        cluster.meet();
        for turn in 0..300 {
            // All that it used has refilled.
            cluster.run(Span::from_millis(300));
            let held = cluster.views(&a).get(&key("u")).map_or(0, |view| held(view, cluster.now()));
            assert!(
                held < u64::from(burst),
                "{permits}/s, {burst}: request {turn} is refused, {held} are held back"
            );
            cluster.admit(&a, "u", 0, 1);
        }
    }
}

/// Of ten regions one uses two fifths of a limit of so many a second, and then another asks for a fiftieth as
/// well. How much of that it gets.
fn served_beside_a_home(algorithm: Algorithm, permits: u32, user: &str) -> (u64, u64) {
    let second = Span::from_secs(1);
    let rule = rule(algorithm, permits, second, OnPartition::default());
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.suppresses_reports = true;
    let all: Vec<NodeName> = (0..10).map(|place| name(&format!("r{place}"), "1")).collect();
    for who in &all {
        cluster.start(who, &rule);
    }
    cluster.meet();
    let (a, b) = (&all[0], &all[1]);
    let (mut admitted, mut asked) = (0, 0);
    for tick in 0..30_u64 * 50 {
        cluster.run(Span::from_millis(20));
        let window =
            if algorithm.counting() == Counting::Level { 0 } else { cluster.now().window_index(second) };
        cluster.admit(b, user, window, u64::from(permits) * 2 / 5 / 50);
        if tick < 20 * 50 || tick * u64::from(permits) % 2_500 != 0 {
            continue;
        }
        let view = cluster.views(a).get(&key(user));
        let fits = view.is_none_or(|view| {
            if algorithm.counting() == Counting::Level {
                return held(view, cluster.now()) < u64::from(permits);
            }
            let own = cluster.replica(a).admitted(&key(user), window).map_or(0, |(own, _)| own);
            let view = window_of(view);
            own < u64::from(if view.window == window { view.budget } else { view.next_budget })
        });
        let admits = u64::from(fits);
        (admitted, asked) = (admitted + admits, asked + 1);
        let key = key(user);
        cluster.touch(
            a,
            &Touched {
                key,
                window,
                offered: 1,
                admitted: admits,
                returned: 0,
                refused: 1 - admits,
                largest: 1,
                own: None,
                store: StoreSeen::default(),
            },
        );
    }
    (admitted, asked)
}

#[test]
fn a_region_that_asks_for_little_of_what_is_at_home_elsewhere_is_not_held_to_less() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
        for (permits, user) in [(500, "u"), (125, "w")] {
            let (admitted, asked) = served_beside_a_home(algorithm, permits, user);
            // The first are refused until the others have heard of it.
            assert!(admitted + 2 >= asked, "{algorithm:?} {permits}/s {user}: {admitted} of {asked}");
        }
    }
}

#[test]
fn a_rule_is_crowded_while_buckets_in_use_find_no_room() {
    let (rule, window) = minute();
    let (name_of_rule, limit) = (rule.name.clone(), u64::from(rule.limit.permits));
    let mut config = ReplicaConfig::new(name("a", "1"), 1);
    config.keys_max = 10;
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![rule]);
    assert_eq!(replica.poll_crowded(), Some(Vec::new()), "new rules: none of them is");
    let uses = |replica: &mut Replica, now, user: usize, admitted| {
        let key = key(&format!("u{user}"));
        let touched = Touched {
            key,
            window,
            offered: admitted,
            admitted,
            returned: 0,
            refused: 0,
            largest: 1,
            own: None,
            store: StoreSeen::default(),
        };
        replica.handle_touched(now, &touched);
        replica.poll_crowded()
    };
    for user in 0..30 {
        assert_eq!(
            uses(&mut replica, START, user, limit / 50),
            None,
            "what is far from its limit may be forgotten"
        );
    }
    for user in 0..30 {
        uses(&mut replica, START, user, limit);
    }
    let soon = START + Span::from_secs(1);
    assert_eq!(uses(&mut replica, soon, 40, 1), None, "it was told already");
    replica.handle_timeout(soon + Span::from_secs(9));
    assert_eq!(replica.poll_crowded(), None);
    let later = soon + Span::from_secs(10);
    assert!(replica.poll_timeout().is_some_and(|at| at <= later));
    replica.handle_timeout(later);
    assert_eq!(replica.poll_crowded(), Some(Vec::new()));
    assert_eq!(uses(&mut replica, later, 41, 1), Some(vec![name_of_rule]));
}

#[test]
fn a_demand_of_few_requests_that_ended_is_taken_back_so_that_the_others_find_their_part() {
    // Much refills at once, and little of it is held: so few requests want all that the bucket holds.
    let rule = WorldRule {
        limit: Limit { calendar: None, permits: 9_000, window: Span::from_millis(720), burst: 52, queue: 0 },
        ..rule(Algorithm::LeakyBucket, 9_000, Span::from_millis(720), OnPartition::default())
    };
    let asking: Vec<NodeName> = ["b", "c", "d"].iter().map(|region| name(region, "1")).collect();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")], &rule);
    cluster.set_one_way_delay(Span::from_millis(250));
    cluster.admit(&name("a", "1"), "u", 0, 1);
    cluster.run(Span::from_secs(1));
    for _ in 0..3 {
        for who in &asking {
            cluster.admit(who, "u", 0, 1);
        }
        cluster.run(Span::from_millis(150));
    }
    cluster.run(Span::from_secs(4));
    // A quarter for each of four regions, of which nobody asks for anything.
    let held = cluster.views(&name("a", "1")).get(&key("u")).map_or(0, |view| level(view).held_back);
    assert!(held <= 39, "{held} of 52 are kept for those who asked last four seconds ago");
}
