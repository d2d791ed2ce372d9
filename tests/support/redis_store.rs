//! Stores, rules and keys for tests of the store in Redis.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::calendar::{Calendar, CalendarName, CalendarPeriod};
pub use tidegate::core::key::Key;
use tidegate::core::key::Shape;
use tidegate::core::rule::{Global, Mode, OnFailure, Rule};
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::core::wire::RuleName;
use tidegate::store::redis::{LeaseSettings, RedisSettings, RedisStore, Topology};
use tidegate::telemetry::Metrics;

/// The runtime of one test process.
pub fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime starts")
    });
    &RUNTIME
}

/// Settings that a busy test machine can keep: the deadline is long where it is not what is tested.
pub fn settings(topology: Topology, nodes: Vec<String>) -> RedisSettings {
    RedisSettings {
        topology,
        nodes,
        timeout: Duration::from_secs(2),
        lease: LeaseSettings { permits_max: 0, ttl: Duration::from_millis(200) },
        ..RedisSettings::default()
    }
}

pub fn store(settings: RedisSettings, live: usize) -> RedisStore {
    store_with(settings, live, &Metrics::new())
}

pub fn store_with(settings: RedisSettings, live: usize, metrics: &Arc<Metrics>) -> RedisStore {
    let live = Arc::new(AtomicUsize::new(live));
    runtime().block_on(RedisStore::start(settings, live, metrics)).expect("the store starts")
}

pub fn compiled(name: &str, algorithm: Algorithm, limit: Limit, shape: u32) -> Compiled {
    let rule = Rule {
        per: vec!["user".to_owned()],
        burst: limit.burst,
        calendar: limit.calendar,
        ..Rule::new(name, algorithm, limit.permits, limit.window)
    };
    let named = RuleName { domain: rule.domain.clone(), name: rule.name.clone() };
    Compiled { rule, named: Arc::new(named), number: 0, shape: Shape(shape), limit }
}

/// Windows of a calendar, which lasts as long as the test.
pub fn calendar(period: CalendarPeriod, time_zone: &str, starts_on: u8) -> &'static Calendar {
    let name = CalendarName { period, time_zone: time_zone.to_owned(), starts_on };
    Box::leak(Box::new(Calendar::new(name).unwrap()))
}

pub fn with_policy(mut rule: Compiled, policy: OnFailure) -> Compiled {
    rule.rule.on_failure = Some(policy);
    rule
}

pub fn gossip() -> Global {
    Global::new(Mode::Gossip)
}

pub fn per_second(permits: u32) -> Limit {
    Limit { calendar: None, permits, window: Span::from_secs(1), burst: permits, queue: 0 }
}

pub fn key(rule: &Compiled, user: &str) -> Key {
    Key::new(rule.shape, [user])
}
