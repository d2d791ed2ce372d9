//! The same history of holders through the store in memory and through real Redis servers: every answer must
//! be equal.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::hold::{Hold, HoldStep, Holder};
use tidegate::core::request::Cost;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Outcome, Store};
use tidegate::store::MemoryStore;
use tidegate::store::redis::{RedisSettings, Topology};

use super::redis_servers::{Cluster, Server};
use super::redis_store::{compiled, key, runtime, settings, store};

const HOLD: u64 = 3_000_000;
const START: u64 = 1_790_000_000_000_000;

/// What one of six holders does after some time, and how many places a lowered or raised limit has then.
#[derive(Debug, Clone)]
struct Act {
    later: i64,
    step: HoldStep,
    who: u8,
    places: u64,
    permits: u32,
    intent: Intent,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let later = prop_oneof![4 => Just(0), 8 => 0..900_000_i64, 1 => Just(4_000_000), 1 => -5_000_000..0_i64];
    let step =
        prop_oneof![4 => Just(HoldStep::Acquire), 1 => Just(HoldStep::Renew), 2 => Just(HoldStep::Release)];
    let permits = prop_oneof![8 => Just(6_u32), 1 => 0..9_u32];
    let intent = prop_oneof![6 => Just(Intent::Charge), 1 => Just(Intent::Ask)];
    let places = prop_oneof![6 => 1..4_u64, 1 => 0..9_u64];
    let act = (later, step, 1..7_u8, places, permits, intent).prop_map(
        |(later, step, who, places, permits, intent)| Act { later, step, who, places, permits, intent },
    );
    proptest::collection::vec(act, 1..50)
}

fn limit(permits: u32) -> Limit {
    Limit { calendar: None, permits, window: Span(HOLD), burst: permits, queue: 0 }
}

fn both(
    redis: &dyn Store,
    memory: &MemoryStore,
    charges: &[Charge<'_>],
    intent: Intent,
    now: Timestamp,
) -> (Outcome, Outcome) {
    let told = runtime().block_on(redis.decide(charges, intent, now));
    (told, memory.try_decide(charges, intent, now).unwrap())
}

/// A bucket of holders beside one that counts charges, which often denies.
fn differ(settings: RedisSettings, cases: u32) {
    let clock = Arc::new(Clock::Manual(0.into()));
    let redis = store(RedisSettings { clock: Some(Arc::clone(&clock)), ..settings }, 1);
    let turn = std::cell::Cell::new(0_u32);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let result = TestRunner::new(config).run(&acts(), |history| {
        turn.set(turn.get() + 1);
        let memory = MemoryStore::new(1_000);
        let held = compiled(&format!("h{}", turn.get()), Algorithm::Concurrency, limit(6), turn.get() * 16);
        let rate =
            compiled(&format!("r{}", turn.get()), Algorithm::FixedWindow, limit(9), turn.get() * 16 + 8);
        let (place, window) = (key(&held, "u"), key(&rate, "u"));
        let mut now = START;
        for act in history {
            now = now.saturating_add_signed(act.later);
            clock.set(Timestamp(now));
            let hold = Hold { step: act.step, holder: Holder([act.who; 16]), places: act.places };
            // Who asks for no place only asks, as the engine has it.
            let asks = act.step == HoldStep::Acquire && act.places == 0;
            let cost = if asks { Cost::Peek } else { Cost::Hold(hold) };
            let enforced = act.step == HoldStep::Acquire;
            let own = Charge {
                rule: &held,
                key: &place,
                limit: limit(act.permits),
                share: None,
                whole: &held.limit,
                first: None,
                cost,
                enforced,
            };
            let beside = Charge {
                rule: &rate,
                key: &window,
                limit: limit(9),
                share: None,
                whole: &rate.limit,
                first: None,
                cost: cost.charged(),
                enforced,
            };
            let (told, expected) = both(&redis, &memory, &[own, beside], act.intent, Timestamp(now));
            prop_assert_eq!(told, expected, "{:?}", act);
            let peek = Charge { cost: Cost::Peek, ..own };
            let (told, expected) = both(&redis, &memory, &[peek], Intent::Ask, Timestamp(now));
            prop_assert_eq!(told, expected, "peek after {:?}", act);
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn a_single_server_answers_like_the_memory_store() {
    let server = Server::start(&[]);
    differ(settings(Topology::Single, vec![server.url()]), 250);
}

#[test]
fn a_cluster_answers_like_the_memory_store() {
    let cluster = Cluster::start_patient();
    differ(settings(Topology::Cluster, cluster.urls()), 60);
}

fn acquire(store: &dyn Store, charges: &[(&Compiled, &str)], who: u8) -> bool {
    let keys: Vec<_> = charges.iter().map(|(rule, user)| key(rule, user)).collect();
    let hold = Hold { step: HoldStep::Acquire, holder: Holder([who; 16]), places: 1 };
    let charges: Vec<Charge<'_>> = charges
        .iter()
        .zip(&keys)
        .map(|((rule, _), key)| Charge {
            rule,
            key,
            limit: rule.limit,
            share: None,
            whole: &rule.limit,
            first: None,
            cost: Cost::Hold(hold),
            enforced: true,
        })
        .collect();
    runtime().block_on(store.decide(&charges, Intent::Charge, Timestamp(START))).admitted
}

fn used(store: &dyn Store, rule: &Compiled, user: &str) -> u64 {
    let key = key(rule, user);
    runtime()
        .block_on(store.bucket(rule, &key, rule.limit.into(), Timestamp(START)))
        .map_or(0, |info| info.used)
}

/// Over several slots it is reserved everywhere, and given back where another denies; who held before keeps
/// its place.
fn all_or_nothing(store: &dyn Store) {
    let rule = |name: &str, permits, shape| {
        let limit = Limit { calendar: None, permits, window: Span::from_secs(60), burst: permits, queue: 0 };
        compiled(name, Algorithm::Concurrency, limit, shape)
    };
    let (wide, narrow) = (rule("wide", 9, 8), rule("narrow", 1, 16));
    assert!(acquire(store, &[(&wide, "a")], 1));
    assert!(acquire(store, &[(&wide, "a"), (&narrow, "b")], 2));
    for who in [1, 3] {
        assert!(!acquire(store, &[(&wide, "a"), (&narrow, "b")], who));
    }
    super::support::eventually("what was reserved is given back, and nothing else", || {
        ((used(store, &wide, "a"), used(store, &narrow, "b")) == (2, 1)).then_some(())
    });
    assert!(acquire(store, &[(&wide, "a"), (&narrow, "b")], 2), "who holds all of it holds it still");
}

#[test]
fn places_of_several_identities_are_held_all_or_none() {
    all_or_nothing(&MemoryStore::new(1_000));
    let cluster = Cluster::start_patient();
    all_or_nothing(&store(settings(Topology::Cluster, cluster.urls()), 1));
}

#[test]
fn a_key_goes_with_its_last_holder_or_when_the_last_hold_ends() {
    let server = Server::start(&[]);
    let store = store(settings(Topology::Single, vec![server.url()]), 1);
    let limit = Limit { calendar: None, permits: 5, window: Span::from_millis(1_000), burst: 5, queue: 0 };
    let rule = compiled("brief", Algorithm::Concurrency, limit, 8);
    let exists = || server.command(&["EXISTS", "tg:{user=u}:brief"]).unwrap().contains('1');
    assert!(acquire(&store, &[(&rule, "u")], 1) && exists());
    super::support::eventually("the key expires by itself", || (!exists()).then_some(()));
    assert!(acquire(&store, &[(&rule, "u")], 2) && exists());
    let hold = Hold { step: HoldStep::Release, holder: Holder([2; 16]), places: 0 };
    let own = key(&rule, "u");
    let charge = Charge {
        rule: &rule,
        key: &own,
        limit,
        share: None,
        whole: &rule.limit,
        first: None,
        cost: Cost::Hold(hold),
        enforced: false,
    };
    let outcome = runtime().block_on(store.decide(&[charge], Intent::Charge, Timestamp(START)));
    assert_eq!(outcome.counted[0].returned, 1);
    assert!(!exists());
}
