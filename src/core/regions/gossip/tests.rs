//! Replicas of several regions in the virtual world.

use std::collections::BTreeMap;

use super::*;
use crate::algorithm::{Algorithm, Allowance, Counting, LevelAllowance, Limit, RegionUse, WindowAllowance};
use crate::regions::{Effect, Member, NodeName, Refused, StoreSeen, Touched, WorldKey, WorldRule};
use crate::rule::{Global, Mode, OnPartition};
use crate::time::{Span, Timestamp};
use crate::virtual_world::{Dice, TICK};
use crate::wire::{
    Amount, Counter, CrowdedRules, DecidedBy, Frame, Report, RuleName, Scope, Subject, WireVersion, compact,
};

mod bounds;
mod calendar;
mod cluster;
mod crowded;
mod cuts;
mod debts;
mod doubt;
mod former;
mod journeys;
mod last_permits;
mod late_rules;
mod listed;
mod lost_store;
mod own;
mod restarts;

use cluster::GossipCluster;

const START: Timestamp = Timestamp(1_700_000_000_000_000);

fn name(region: &str, node: &str) -> NodeName {
    NodeName { region: region.to_owned(), node: node.to_owned() }
}

/// Returns what an allowance says of windows.
fn window_of(view: &Allowance) -> &WindowAllowance {
    view.as_window().expect("it counts by windows")
}

/// Returns what an allowance holds back of a level.
fn level(view: &Allowance) -> &LevelAllowance {
    view.as_level().expect("it counts by a level")
}

fn rule(algorithm: Algorithm, permits: u32, window: Span, on_partition: OnPartition) -> WorldRule {
    WorldRule {
        name: RuleName { domain: "d".to_owned(), name: "r".to_owned() },
        algorithm,
        limit: Limit { calendar: None, permits, window, burst: permits, queue: 0 },
        global: Global { on_partition, ..Global::new(Mode::Gossip) },
    }
}

fn key(user: &str) -> WorldKey {
    WorldKey {
        rule: RuleName { domain: "d".to_owned(), name: "r".to_owned() },
        identity: user.as_bytes().to_vec(),
    }
}

fn touched(user: &str, window: u64, offered: u64, admitted: u64) -> Touched {
    Touched {
        key: key(user),
        window,
        offered,
        admitted,
        returned: 0,
        refused: 0,
        largest: 1,
        own: None,
        store: StoreSeen::default(),
    }
}

fn minute() -> (WorldRule, u64) {
    let window = Span::from_secs(60);
    (rule(Algorithm::FixedWindow, 1_000, window, OnPartition::default()), START.window_index(window))
}

fn regions(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected.iter().map(|(region, admitted)| ((*region).to_owned(), *admitted)).collect()
}

#[test]
fn every_region_learns_what_the_others_admitted() {
    let (rule, window) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
    cluster.admit(&name("a", "1"), "u", window, 30);
    cluster.admit(&name("b", "1"), "u", window, 12);
    cluster.run(Span::from_millis(300));
    for region in ["a", "b", "c"] {
        assert_eq!(
            cluster.believed(&name(region, "1"), "u", window),
            regions(&[("a", 30), ("b", 12)]),
            "{region}"
        );
    }
    let view = window_of(&cluster.views(&name("c", "1"))[&key("u")]);
    assert_eq!((view.window, view.others), (window, 42));
}

#[test]
fn of_daemons_that_share_a_store_one_charges_it_for_the_others() {
    let rule = rule(Algorithm::TokenBucket, 1_000, Span::from_secs(1), OnPartition::default());
    let (a, siblings) = (name("a", "1"), [name("b", "1"), name("b", "2")]);
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.shared_store = true;
    siblings.iter().chain([&a]).for_each(|who| cluster.start(who, &rule));
    cluster.meet();
    for who in &siblings {
        cluster.admit(who, "u", 0, 1);
    }
    cluster.admit(&a, "u", 0, 100);
    cluster.run(Span::from_millis(300));
    for who in &siblings {
        assert_eq!(cluster.believed(who, "u", 0)["a"], 100, "both know of it");
    }
    assert_eq!(siblings.iter().map(|who| cluster.debits(who)).sum::<u64>(), 100);
}

#[test]
fn nothing_that_daemons_of_one_region_tell_each_other_of_their_store_is_beyond_its_limit() {
    let rule = rule(Algorithm::TokenBucket, 100, Span::from_secs(1), OnPartition::default());
    let (a, siblings) = (name("a", "1"), [name("b", "1"), name("b", "2")]);
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.shared_store = true;
    siblings.iter().chain([&a]).for_each(|who| cluster.start(who, &rule));
    cluster.meet();
    for _ in 0..50 {
        siblings.iter().for_each(|who| cluster.admit(who, "u", 0, 5));
        cluster.run(Span::from_millis(100));
    }
    for who in siblings.iter().chain([&a]) {
        assert_eq!(cluster.replica(who).tally().beyond, 0, "{who:?}");
    }
}

#[test]
fn a_region_is_heard_whole_and_believed_for_twice_the_limit() {
    let (rule, window) = minute();
    let (a, b) = (name("a", "1"), name("b", "1"));
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    for (admitted, believed) in [(1_500, 1_500), (500, 2_000), (3_000, 2_000)] {
        cluster.admit(&a, "u", window, admitted);
        cluster.run(Span::from_millis(300));
        assert_eq!(window_of(&cluster.views(&b)[&key("u")]).others, believed);
    }
    assert_eq!(cluster.believed(&b, "u", window), regions(&[("a", 5_000)]));
    assert!(cluster.replica(&b).tally().beyond > 0);
}

#[test]
fn regions_that_begin_again_at_once_have_no_more_of_a_tiny_limit_than_there_is() {
    let second = Span::from_secs(1);
    for limit in 1..=6 {
        let rule = rule(Algorithm::FixedWindow, limit, second, OnPartition::default());
        let names = [name("a", "1"), name("b", "1"), name("c", "1")];
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
        let ask = |cluster: &mut GossipCluster, who: &NodeName| {
            let window = cluster.now().window_index(second);
            let touched = Touched { refused: 1, ..touched("u", window, 1, 0) };
            cluster.touch(who, &touched);
            window
        };
        // One after the other, so that each was alone for long.
        for who in &names {
            ask(&mut cluster, who);
            cluster.run(Span::from_secs(5));
        }
        for who in &names {
            let window = ask(&mut cluster, who);
            assert_eq!(window_of(&cluster.views(who)[&key("u")]).window, window);
        }
        let budgets = names.iter().map(|who| window_of(&cluster.views(who)[&key("u")]).budget);
        assert!(budgets.sum::<u32>() <= limit, "of {limit}");
    }
}

#[test]
fn a_bucket_is_named_until_that_was_understood_and_again_to_whoever_has_forgotten() {
    let (rule, window) = minute();
    let (a, b) = (name("a", "1"), name("b", "1"));
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    // What goes out to b in the next second: reports with names, and without.
    let told = |cluster: &mut GossipCluster| {
        let mut told = (0, 0);
        for _ in 0..100 {
            cluster.admit(&a, "u", window, 1);
            for frame in cluster.under_way_from(&a) {
                let named = frame.reports.iter().filter(|report| report.subject.is_some()).count();
                told = (told.0 + named, told.1 + frame.reports.len() - named);
            }
            cluster.run(TICK);
        }
        told
    };
    let (named, known) = told(&mut cluster);
    assert!(named > 0 && known > 0);
    // But for a frame whose acknowledgement came late and that counts as lost.
    let mostly_known = |(named, known): (usize, usize)| named * 2 < known;
    assert!(mostly_known(told(&mut cluster)));
    cluster.start(&b, &rule);
    cluster.meet();
    let (named, known) = told(&mut cluster);
    assert!(named > 0 && known > 0);
    assert!(cluster.replica(&b).tally().unnamed > 0);
    assert!(mostly_known(told(&mut cluster)));
    cluster.run(Span::from_millis(300));
    assert_eq!(cluster.believed(&b, "u", window), regions(&[("a", 400)]));
}

#[test]
fn counts_survive_loss_duplication_and_reordering() {
    let (rule, window) = minute();
    for seed in 0..10 {
        let mut cluster = GossipCluster::seeded(seed, &[("a", "1"), ("b", "1"), ("c", "1")], &rule);
        let mut dice = Dice::new(seed, 2);
        let weather = cluster.weather();
        (weather.loss, weather.double, weather.reorder) = (0.4, 0.4, 0.4);
        for _ in 0..100 {
            let region = dice.pick(&["a", "b", "c"]).unwrap();
            cluster.admit(&name(region, "1"), "u", window, 1);
            cluster.run(Span::from_millis(20));
        }
        cluster.run(Span::from_secs(4));
        let truth = cluster.believed(&name("a", "1"), "u", window);
        assert_eq!(truth.values().sum::<u64>(), 100, "seed {seed}");
        assert_eq!(cluster.believed(&name("b", "1"), "u", window), truth, "seed {seed}");
        assert_eq!(cluster.believed(&name("c", "1"), "u", window), truth, "seed {seed}");
    }
}

#[test]
fn a_restarted_daemon_adds_to_what_its_former_self_admitted() {
    let (rule, window) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.admit(&name("a", "1"), "u", window, 30);
    cluster.run(Span::from_millis(300));
    cluster.start(&name("a", "1"), &rule);
    cluster.meet();
    cluster.admit(&name("a", "1"), "u", window, 5);
    cluster.run(Span::from_millis(300));
    assert_eq!(cluster.believed(&name("b", "1"), "u", window), regions(&[("a", 35)]));
}

#[test]
fn within_a_region_one_daemon_speaks_for_all_and_each_hears_of_the_others() {
    let (rule, window) = minute();
    let mut cluster =
        GossipCluster::new(&[("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")], &rule);
    for (node, permits) in [("1", 10), ("2", 20), ("3", 30)] {
        cluster.admit(&name("a", node), "u", window, permits);
    }
    cluster.admit(&name("b", "1"), "u", window, 7);
    cluster.admit(&name("b", "2"), "u", window, 8);
    cluster.run(Span::from_secs(1));
    for who in [name("a", "1"), name("a", "2"), name("a", "3"), name("b", "1"), name("b", "2")] {
        assert_eq!(cluster.believed(&who, "u", window), regions(&[("a", 60), ("b", 15)]), "{who:?}");
    }
    let speakers: Vec<_> = cluster.replicas().filter(|(_, replica)| replica.tally().reports_in > 0).collect();
    assert_eq!(speakers.len(), 5);
}

#[test]
fn what_a_daemon_hears_that_is_taken_for_the_owner_the_owner_hears_too() {
    let (rule, window) = minute();
    for (unseen, user) in
        ["1", "2"].into_iter().flat_map(|node| ["u", "v", "w", "x"].map(|user| (node, user)))
    {
        let mut cluster = GossipCluster::new(&[], &rule);
        cluster.suppresses_reports = true;
        for (region, node) in [("a", "1"), ("a", "2"), ("b", "1")] {
            cluster.start(&name(region, node), &rule);
        }
        cluster.meet();
        let teller = name("b", "1");
        let members = [("a", "1"), ("a", "2"), ("b", "1")].map(|(region, node)| Member {
            name: name(region, node),
            live: (region, node) != ("a", unseen),
            draining: false,
            sees_capacity: true,
        });
        cluster.replica_mut(&teller).handle_members(START, &members);
        cluster.admit(&teller, user, window, 500);
        cluster.run(Span::from_millis(500));
        cluster.remove(&teller);
        cluster.meet();
        cluster.run(Span::from_millis(500));
        let owners = [name("a", "1"), name("a", "2")].into_iter().filter(|who| {
            let replica = &cluster.replica(who);
            replica
                .keys
                .find(&key(user))
                .and_then(|id| replica.keys.get(id))
                .is_some_and(|own| replica.owns(own))
        });
        let owners: Vec<_> = owners.collect();
        assert_eq!(owners.len(), 1, "{user}, {unseen} not seen");
        assert_eq!(
            cluster.believed(&owners[0], user, window),
            regions(&[("b", 500)]),
            "{user}, {unseen} not seen"
        );
    }
}

#[test]
fn when_an_owner_dies_or_comes_nothing_is_lost_or_doubled() {
    let (rule, window) = minute();
    let nodes = [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2"), ("b", "3")];
    for user in ["u", "v", "w", "x"] {
        let mut cluster = GossipCluster::new(&nodes, &rule);
        for (region, node) in nodes {
            cluster.admit(&name(region, node), user, window, 10);
        }
        cluster.run(Span::from_secs(1));
        let gone = [name("a", "1"), name("b", "2")];
        for who in &gone {
            cluster.remove(who);
        }
        cluster.meet();
        for who in [name("a", "2"), name("a", "3"), name("b", "1")] {
            cluster.admit(&who, user, window, 1);
        }
        cluster.run(Span::from_secs(2));
        for who in [name("a", "2"), name("a", "3"), name("b", "1"), name("b", "3")] {
            assert_eq!(
                cluster.believed(&who, user, window),
                regions(&[("a", 32), ("b", 31)]),
                "{user} {who:?}"
            );
        }
        cluster.start(&gone[0], &rule);
        cluster.meet();
        cluster.admit(&gone[0], user, window, 100);
        cluster.run(Span::from_secs(2));
        assert_eq!(
            cluster.believed(&name("b", "1"), user, window),
            regions(&[("a", 132), ("b", 31)]),
            "{user}"
        );
    }
}

#[test]
fn what_is_given_back_is_given_back_everywhere() {
    let (rule, window) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.admit(&name("a", "1"), "u", window, 30);
    cluster.run(Span::from_millis(200));
    cluster.touch(&name("a", "1"), &Touched { returned: 10, ..touched("u", window, 0, 0) });
    cluster.run(Span::from_millis(200));
    assert_eq!(cluster.believed(&name("b", "1"), "u", window), regions(&[("a", 20)]));
}

#[test]
fn a_bucket_without_windows_is_charged_once_for_what_others_admitted() {
    let rule = rule(Algorithm::TokenBucket, 100, Span::from_secs(1), OnPartition::default());
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
    (cluster.weather().loss, cluster.weather().double) = (0.3, 0.3);
    for _ in 0..50 {
        cluster.admit(&name("a", "1"), "u", 0, 2);
        cluster.run(Span::from_millis(30));
    }
    // The last of it is told whatever is lost.
    cluster.run(Span::from_millis(500));
    cluster.start(&name("a", "1"), &rule);
    cluster.meet();
    cluster.admit(&name("a", "1"), "u", 0, 7);
    cluster.admit(&name("b", "1"), "u", 0, 5);
    cluster.run(Span::from_secs(4));
    assert_eq!(cluster.debits(&name("b", "1")), 107);
    assert_eq!(cluster.debits(&name("c", "1")), 112);
}

#[test]
fn the_table_of_buckets_stays_within_its_bound() {
    let (rule, window) = minute();
    let mut config = ReplicaConfig::new(name("a", "1"), 1);
    config.keys_max = 100;
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![rule]);
    for n in 0..5_000 {
        let touched = touched(&format!("u{n}"), window, 1, 1);
        replica.handle_touched(START, &touched);
    }
    let status = replica.status(START);
    assert_eq!((status.keys_len, status.tally.dropped_keys), (100, 4_900));
    replica.handle_timeout(START + Span::from_secs(600));
    assert_eq!(replica.status(START + Span::from_secs(600)).keys_len, 0);
}

fn frame(reports: Vec<Report>) -> Frame {
    Frame {
        incarnation: 1,
        seq: 1,
        sent: START,
        seen: None,
        slowest: Span::ZERO,
        crowded: CrowdedRules::NONE,
        reports,
    }
}

fn report(scope: Scope, node: &str, stamp: Timestamp) -> Report {
    let WorldKey { rule, identity } = key("u");
    let counters = vec![Counter { node: node.into(), since: START }];
    Report {
        key_id: 1,
        subject: Some(Subject { rule, identity, scope, counters, decided_by: DecidedBy::Unknown }),
        window: minute().1,
        stamp,
        amounts: std::iter::once(Amount { admitted: 5, returned: 0 }).collect(),
        demand: 0,
    }
}

#[test]
fn a_frame_that_says_what_its_sender_may_not_say_is_refused_whole() {
    let mut config = ReplicaConfig::new(name("a", "1"), 1);
    config.regions = ["a", "b"].map(str::to_owned).to_vec();
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![minute().0]);
    let far = START + Span::from_secs(11);
    let region = |name: &str| Scope::Region(name.to_owned());
    let good = report(region("b"), "1", START);
    let cases = [
        (name("c", "1"), vec![report(region("c"), "1", START)], Refused::UnknownRegion),
        (name("b", "1"), vec![good.clone(), report(region("c"), "1", START)], Refused::Foreign),
        (name("b", "1"), vec![good.clone(), report(Scope::Node, "1", START)], Refused::Foreign),
        (name("a", "2"), vec![report(Scope::Node, "1", START)], Refused::Foreign),
        (name("b", "1"), vec![good.clone(), report(region("b"), "1", far)], Refused::Future),
        (name("b", "1"), vec![good.clone(); 257], Refused::TooLarge),
        (name("a", "1"), vec![], Refused::OwnName),
    ];
    for (from, reports, refused) in cases {
        assert_eq!(replica.handle_frame(START, &from, frame(reports)), Err(refused));
        assert_eq!(replica.bucket(START, &key("u")), None, "{refused}");
    }
    assert_eq!(replica.handle_frame(START, &name("b", "1"), frame(vec![good])), Ok(()));
    assert_eq!(replica.bucket(START, &key("u")).unwrap().others, [("b".to_owned(), 5)]);
}

#[test]
fn the_other_side_of_a_cut_is_told_everything_once_it_heals() {
    let (rule, window) = minute();
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
    cluster.run(Span::from_secs(1));
    cluster.cut(&["a"]);
    for n in 0..200 {
        cluster.admit(&name("a", "1"), &format!("u{n}"), window, 3);
    }
    cluster.run(Span::from_secs(3));
    let cut_off = |cluster: &GossipCluster, who: &str| -> Vec<String> {
        let status = cluster.replica(&name(who, "1")).status(cluster.now());
        status.regions.into_iter().filter(|region| region.cut_off).map(|region| region.name).collect()
    };
    assert_eq!(cut_off(&cluster, "b"), ["a"]);
    assert_eq!(cut_off(&cluster, "a"), ["b", "c"]);
    assert_eq!(cluster.believed(&name("b", "1"), "u7", window), regions(&[]));
    cluster.mend();
    cluster.run(Span::from_secs(1));
    assert_eq!(cut_off(&cluster, "b"), [""; 0]);
    for n in 0..200 {
        assert_eq!(cluster.believed(&name("b", "1"), &format!("u{n}"), window), regions(&[("a", 3)]), "{n}");
    }
}

#[test]
fn a_lone_region_is_never_told_to_hold_back() {
    let rule = rule(Algorithm::FixedWindow, 100, Span::from_secs(1), OnPartition::default());
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
    for _ in 0..300 {
        let window = cluster.now().window_index(Span::from_secs(1));
        cluster.admit(&name("a", "1"), "u", window, 1);
        cluster.run(TICK);
    }
    let view = cluster.views(&name("a", "1")).get(&key("u"));
    assert!(view.is_none_or(|view| window_of(view).budget >= 90), "{view:?}");
}

#[test]
fn regions_that_all_want_more_share_the_limit_exactly() {
    let second = Span::from_secs(1);
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let rule = rule(algorithm, 100, second, OnPartition::default());
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1"), ("c", "1")], &rule);
        let names = cluster.names();
        for step in 0..400 {
            let window = cluster.now().window_index(second);
            for who in &names {
                // Thirty are admitted at the beginning of each window, the rest is refused.
                let admitted = u64::from(step % 100 < 10) * 3;
                cluster.touch(who, &touched("u", window, 3, admitted));
            }
            cluster.run(TICK);
        }
        let budgets: Vec<u32> =
            names.iter().map(|who| window_of(&cluster.views(who)[&key("u")]).budget).collect();
        assert_eq!(budgets.iter().sum::<u32>(), 100, "{budgets:?}");
        assert!(budgets.iter().all(|budget| (33..=34).contains(budget)), "{budgets:?}");
        let next: Vec<u32> =
            names.iter().map(|who| window_of(&cluster.views(who)[&key("u")]).next_budget).collect();
        assert_eq!(next.iter().sum::<u32>(), 100, "{next:?}");
    }
}

#[test]
fn a_region_whose_daemons_went_in_good_order_keeps_nothing() {
    let rule = rule(Algorithm::FixedWindow, 90, Span::from_secs(1), OnPartition::Share);
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    cluster.run(Span::from_secs(1));
    let member = |region: &str, live, draining| Member {
        name: name(region, "1"),
        live,
        draining,
        sees_capacity: true,
    };
    let hears = |cluster: &mut GossipCluster, b: Member| {
        let now = cluster.now();
        let replica = cluster.replica_mut(&name("a", "1"));
        replica.handle_members(now, &[member("a", true, false), b]);
    };
    hears(&mut cluster, member("b", true, true));
    // Its last words come when it has said that it goes.
    cluster.run(Span::from_millis(300));
    cluster.remove(&name("b", "1"));
    cluster.run(Span::from_secs(2));
    let left = |cluster: &GossipCluster| {
        let status = cluster.replica(&name("a", "1")).status(cluster.now());
        status.regions[0].left && !status.regions[0].cut_off
    };
    assert!(left(&cluster), "before membership knows that it is gone");
    hears(&mut cluster, member("b", false, true));
    cluster.run(Span::from_secs(5));
    assert!(left(&cluster));
}

#[test]
fn a_daemon_that_begins_to_count_a_bucket_hears_what_was_said_before() {
    let (rule, window) = minute();
    for user in ["u", "v", "w"] {
        let mut cluster = GossipCluster::new(&[("a", "1"), ("a", "2"), ("a", "3"), ("b", "1")], &rule);
        cluster.admit(&name("b", "1"), user, window, 9);
        cluster.run(Span::from_secs(1));
        for node in ["1", "2", "3"] {
            cluster.admit(&name("a", node), user, window, 1);
            cluster.run(Span::from_secs(1));
            assert_eq!(cluster.believed(&name("a", node), user, window)["b"], 9, "{user} {node}");
        }
    }
}
