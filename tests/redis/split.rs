//! Keys that are split over sub-keys: never more than the limit, hardly less, over all servers of a cluster.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::redis_servers::{Cluster, Server, until};
use crate::redis_store::{Key, compiled, key, runtime, settings, store, store_with};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::request::{Cost, ReportedCost};
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Outcome, Store};
use tidegate::store::redis::{LeaseSettings, RedisSettings, RedisStore, Topology};
use tidegate::telemetry::Metrics;

fn split(name: &str, algorithm: Algorithm, permits: u32, parts: u32, shape: u32) -> Compiled {
    let limit = Limit { calendar: None, permits, window: Span::from_secs(86_400), burst: permits, queue: 0 };
    let mut rule = compiled(name, algorithm, limit, shape);
    rule.rule.split_keys = parts;
    rule
}

async fn decide(store: &RedisStore, charges: &[Charge<'_>], intent: Intent, now: Timestamp) -> Outcome {
    match store.try_decide(charges, intent, now) {
        Some(outcome) => outcome,
        None => store.decide(charges, intent, now).await,
    }
}

async fn ask(store: &RedisStore, rule: &Compiled, cost: Cost) -> Outcome {
    let key = key(rule, "u");
    let charge = Charge {
        rule,
        key: &key,
        limit: rule.limit,
        share: None,
        whole: &rule.limit,
        first: None,
        cost,
        enforced: true,
    };
    decide(store, &[charge], Intent::Charge, Clock::System.now()).await
}

fn ask_now(store: &RedisStore, rule: &Compiled, cost: Cost) -> Outcome {
    runtime().block_on(ask(store, rule, cost))
}

fn info(store: &RedisStore, rule: &Compiled, key: &Key) -> (u64, u64) {
    let info = runtime().block_on(store.bucket(rule, key, rule.limit.into(), Clock::System.now()));
    info.map_or((0, u64::from(rule.limit.permits)), |info| (info.used, info.verdict.remaining))
}

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::TokenBucket,
    Algorithm::Gcra,
];

/// With the clock standing still: whatever is asked, at most the limit is admitted, and what a request of
/// cost `c` is denied for is less than `c` permits in each part.
#[test]
fn a_split_key_never_admits_more_than_its_limit_and_strands_less_than_a_cost_in_each_part() {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(1_790_000_000_000_000.into()));
    let settings = settings(Topology::Single, vec![server.url()]);
    let store = store(RedisSettings { clock: Some(clock), ..settings }, 1);
    let turn = std::cell::Cell::new(0_u32);
    let costs = prop_oneof![
        6 => Just(Cost::Take(1)), 3 => (2..6_u64).prop_map(Cost::Take),
        1 => (1..4_u64).prop_map(Cost::Refund), 1 => Just(Cost::Peek),
    ];
    let strategy = (0..ALGORITHMS.len(), 2..9_u32, 1..80_u32, proptest::collection::vec(costs, 1..120));
    let config = Config { cases: 120, failure_persistence: None, ..Config::default() };
    let stranded_most = std::cell::Cell::new(0);
    let result = TestRunner::new(config).run(&strategy, |(kind, parts, permits, costs)| {
        turn.set(turn.get() + 1);
        let permits = permits.max(parts);
        let rule = split(&format!("r{}", turn.get()), ALGORITHMS[kind], permits, parts, turn.get() * 8);
        let own = key(&rule, "u");
        let mut used = 0_u64;
        for cost in costs {
            let counted = ask_now(&store, &rule, cost).counted[0];
            let left = u64::from(permits) - used;
            match cost {
                Cost::Take(wanted) if counted.verdict.admitted => used += wanted,
                Cost::Take(wanted) => {
                    prop_assert!(left <= u64::from(parts) * (wanted - 1), "denied {wanted} with {left} left");
                    prop_assert_eq!(counted.verdict.remaining, left, "a denial has asked them all");
                    stranded_most.set(stranded_most.get().max(left));
                }
                Cost::Refund(wanted) => {
                    prop_assert_eq!(counted.returned, wanted.min(used));
                    used -= counted.returned;
                }
                Cost::Peek | Cost::Hold(_) | Cost::Report(_) | Cost::Reserve(_) | Cost::Commit(_) => {
                    prop_assert_eq!(counted.verdict.admitted, left > 0)
                }
            }
            prop_assert!(used <= u64::from(permits), "{} of {}", used, permits);
            prop_assert_eq!(info(&store, &rule, &own), (used, u64::from(permits) - used));
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    println!("stranded at most {} permits, by costs up to 5 in up to 8 parts", stranded_most.get());
    assert!(stranded_most.get() > 0, "the bound was put to the test");
}

#[test]
fn a_report_fills_every_part_before_anything_is_owed() {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(1_790_000_000_000_000.into()));
    let settings = settings(Topology::Single, vec![server.url()]);
    let store = store(RedisSettings { clock: Some(clock), ..settings }, 1);
    for (algorithm, number) in ALGORITHMS.iter().zip(1..) {
        for parts in [3, 4] {
            let rule =
                split(&format!("s{number}-{parts}"), *algorithm, 1_000, parts, number * 64 + parts * 8);
            let own = key(&rule, "u");
            let report = Cost::Report(ReportedCost { permits: 400, debt_max: 1_000 });
            for turn in 1..=3_u64 {
                let asked = ask_now(&store, &rule, Cost::Peek);
                assert!(asked.admitted, "request {turn} with {algorithm:?} in {parts} parts");
                let told = ask_now(&store, &rule, report);
                assert_eq!((told.admitted, told.counted[0].reported), (turn < 3, 400), "{algorithm:?}");
                assert_eq!(info(&store, &rule, &own).0, turn * 400, "{algorithm:?}");
            }
            assert!(!ask_now(&store, &rule, Cost::Peek).admitted, "{algorithm:?} in {parts} parts");
            assert!(!ask_now(&store, &rule, Cost::Take(1)).admitted, "{algorithm:?} in {parts} parts");
            // Whatever comes, each part owes its part of the most, and the answer says what was charged.
            let huge = Cost::Report(ReportedCost { permits: u64::MAX, debt_max: 1_000 });
            assert_eq!(ask_now(&store, &rule, huge).counted[0].reported, 800, "{algorithm:?}");
            assert_eq!(info(&store, &rule, &own).0, 2_000, "{algorithm:?}");
        }
    }
}

#[test]
fn several_rules_with_split_keys_are_charged_all_or_none() {
    let server = Server::start(&[]);
    let store = store(settings(Topology::Single, vec![server.url()]), 1);
    let (wide, tight) =
        (split("wide", Algorithm::FixedWindow, 40, 4, 8), split("tight", Algorithm::SlidingLog, 7, 3, 16));
    let plain = split("plain", Algorithm::TokenBucket, 40, 1, 24);
    let shadow = split("shadow", Algorithm::FixedWindow, 4, 4, 32);
    let rules = [&wide, &tight, &plain, &shadow];
    let keys: Vec<Key> = rules.iter().map(|rule| key(rule, "u")).collect();
    let charges: Vec<Charge<'_>> = (rules.iter().zip(&keys))
        .map(|(rule, key)| Charge {
            rule,
            key,
            limit: rule.limit,
            share: None,
            whole: &rule.limit,
            first: None,
            cost: Cost::Take(1),
            enforced: rule.rule.name != "shadow",
        })
        .collect();
    let (mut admitted, mut shadowed) = (0, 0);
    for _ in 0..20 {
        let outcome = runtime().block_on(decide(&store, &charges, Intent::Charge, Clock::System.now()));
        assert_eq!(outcome.counted.len(), 4);
        admitted += u64::from(outcome.admitted);
        shadowed += u64::from(outcome.admitted && outcome.counted[3].verdict.admitted);
    }
    assert_eq!((admitted, shadowed), (7, 4), "the tightest decides, and the shadow counts to its own limit");
    until("what denied requests had taken to go back", Duration::from_secs(2), || {
        rules.iter().zip(&keys).zip([7, 7, 7, 4]).all(|((rule, key), used)| info(&store, rule, key).0 == used)
    });
    for (rule, key) in rules.iter().zip(&keys) {
        assert_eq!(runtime().block_on(store.reset(rule, key)), Some(true));
        assert_eq!(info(&store, rule, key).0, 0, "all parts are forgotten");
    }
}

/// From many tasks of two daemons, with and without permits drawn ahead, over a real cluster.
#[test]
fn a_split_key_is_borne_by_every_primary_and_its_limit_is_exact() {
    let cluster = Cluster::start();
    for (index, lease) in (1..).zip([0, 500]) {
        let lease = LeaseSettings { permits_max: lease, ttl: Duration::from_millis(200) };
        let settings = RedisSettings { lease, ..settings(Topology::Cluster, cluster.urls()) };
        let metrics = Metrics::new();
        let daemons: Vec<Arc<RedisStore>> =
            (0..2).map(|_| Arc::new(store_with(settings.clone(), 2, &metrics))).collect();
        let rule = Arc::new(split(&format!("r{index}"), Algorithm::FixedWindow, 10_007, 6, index * 8));
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let (store, rule) = (Arc::clone(&daemons[task % 2]), Arc::clone(&rule));
                runtime().spawn(async move {
                    let mut admitted = 0_u64;
                    for _ in 0..900 {
                        admitted += u64::from(ask(&store, &rule, Cost::Take(1)).await.admitted);
                    }
                    admitted
                })
            })
            .collect();
        let admitted: u64 = tasks.into_iter().map(|task| runtime().block_on(task).expect("it ends")).sum();
        let stranded = 10_007 - admitted.min(10_007);
        println!("{admitted} of 10,007 admitted, {stranded} stranded, leases of {}", lease.permits_max);
        assert!(admitted <= 10_007, "{admitted}");
        for store in &daemons {
            runtime().block_on(store.drain());
        }
        // A daemon that draws nothing ahead finds whatever is left.
        let lease = LeaseSettings { permits_max: 0, ..lease };
        let other = store_with(RedisSettings { lease, ..settings.clone() }, 2, &metrics);
        let mut late = 0;
        while ask_now(&other, &rule, Cost::Take(1)).admitted {
            late += 1;
        }
        assert_eq!(admitted + late, 10_007, "once leases are back, nothing is stranded");

        let pattern = format!("tg:*r{index}");
        let holders: HashSet<u16> = cluster
            .servers
            .iter()
            .filter(|server| server.command(&["ROLE"]).is_some_and(|role| role.contains("master")))
            .filter(|server| server.command(&["KEYS", &pattern]).is_some_and(|keys| keys.contains("#")))
            .map(|server| server.port)
            .collect();
        assert_eq!(holders.len(), 3, "each primary bears a part");
    }
}

/// A server that is away takes its parts along and no more: the others go on.
#[test]
fn a_split_key_outlives_one_of_its_servers() {
    let mut servers = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let urls = servers.iter().map(Server::url).collect();
    let settings = RedisSettings { timeout: Duration::from_millis(200), ..settings(Topology::Ring, urls) };
    let store = store(settings, 1);
    let mut rule = split("r", Algorithm::FixedWindow, 600, 12, 8);
    rule.rule.on_failure = Some(tidegate::core::rule::OnFailure::Closed);
    assert!(ask_now(&store, &rule, Cost::Take(1)).admitted);
    let holds = |server: &Server| server.command(&["KEYS", "*"]).is_some_and(|keys| keys.contains("tg:"));
    // Which part lies where depends on the ports that were free, so a few dozen may be needed to reach every
    // server.
    for _ in 0..300 {
        ask_now(&store, &rule, Cost::Take(1));
        if servers.iter().all(holds) {
            break;
        }
    }
    let keys: Vec<_> = servers.iter().map(|server| server.command(&["KEYS", "*"])).collect();
    assert!(servers.iter().all(holds), "every server bears a part: {keys:?}");
    servers[0].kill();
    until("the breaker to open", Duration::from_secs(5), || {
        ask_now(&store, &rule, Cost::Take(1));
        store.health().servers.iter().any(|server| server.breaker == Some("open"))
    });
    let admitted = (0..40).filter(|_| ask_now(&store, &rule, Cost::Take(1)).admitted).count();
    assert_eq!(admitted, 40, "the parts of the others pass, though the rule is closed on failure");
}
