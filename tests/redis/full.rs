//! More keys than there is room for: in this daemon while Redis is away, and in Redis itself.

use std::sync::Arc;
use std::time::Duration;

use crate::redis_load::{ask, ask_now, quick};
use crate::redis_servers::{Server, until};
use crate::redis_store::{compiled, key, runtime, settings, store, store_with, with_policy};
use crate::support::daemon::Daemon;
use crate::support::eventually;
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::rule::OnFailure;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Store;
use tidegate::engine::status::StoreState;
use tidegate::store::redis::{RedisSettings, RedisStore, Topology};
use tidegate::telemetry::Metrics;

fn daily(name: &str, permits: u32, shape: u32) -> Compiled {
    let limit = Limit { calendar: None, permits, window: Span::from_secs(86_400), burst: permits, queue: 0 };
    with_policy(compiled(name, Algorithm::FixedWindow, limit, shape), OnFailure::Local)
}

/// A store whose Redis is gone, and that has noticed.
fn alone(keys_max: usize) -> RedisStore {
    let mut server = Server::start(&[]);
    let store = store(RedisSettings { keys_max, ..quick(Topology::Single, vec![server.url()]) }, 1);
    server.kill();
    until("the store to notice", Duration::from_secs(5), || {
        store.health().servers.iter().all(|server| server.breaker == Some("open"))
    });
    store
}

fn admitted(store: &RedisStore, rule: &Compiled, user: &str, times: usize) -> usize {
    (0..times).filter(|_| ask_now(store, rule, user).admitted).count()
}

#[test]
fn a_policy_that_evicts_is_told_while_it_lasts_whenever_it_was_set() {
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let store = store(settings(Topology::Single, vec![server.url()]), 1);
    let told =
        || store.health().problems.iter().any(|problem| problem.contains("maxmemory-policy is allkeys-lru"));
    assert!(!told());
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    until("the trouble", Duration::from_secs(10), told);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    until("the end of it", Duration::from_secs(15), || !told());
}

#[test]
fn while_redis_is_away_every_key_is_counted_however_many_there_are() {
    let store = alone(10_000_000);
    let rule = daily("r", 10, 8);
    for user in 0..130_000 {
        assert!(ask_now(&store, &rule, &format!("u{user}")).admitted);
    }
    for user in (0..130_000).step_by(1_000).chain(129_900..130_000) {
        assert_eq!(admitted(&store, &rule, &format!("u{user}"), 31), 9, "u{user}");
    }
    assert_eq!((store.len().keys, store.len().full), (130_000, 0));
}

#[test]
fn a_key_that_finds_no_room_shares_a_limit_and_none_that_was_counted_is_forgotten() {
    let store = alone(2_000);
    let rule = daily("r", 10, 8);
    for user in 0..1_000 {
        assert_eq!(admitted(&store, &rule, &format!("u{user}"), 12), 10);
    }
    for user in 1_000..20_000 {
        ask_now(&store, &rule, &format!("u{user}"));
    }
    let len = store.len();
    assert!(len.keys <= 2_000 && len.full > 10_000, "{len:?}");
    for user in (0..1_000).step_by(10) {
        assert_eq!(admitted(&store, &rule, &format!("u{user}"), 5), 0, "it was at its limit and is still");
    }
    // At most 64 groups of ten permits each are left for all the others together.
    let late: usize = (30_000..32_000).map(|user| admitted(&store, &rule, &format!("u{user}"), 11)).sum();
    assert!(late <= 64 * 10, "{late} admitted to keys without room");
    // Another rule's keys are not held to what these have used.
    let other = daily("other", 10, 16);
    assert_eq!(admitted(&store, &other, "somebody", 31), 10);
}

const RULES: &str = r#"
[[rules]]
name = "per-user"
per = ["user"]
algorithm = "fixed_window"
limit = 100
window = "365d"
"#;

fn daemon_on(server: &Server) -> Daemon {
    let config = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\nnodes = [\"{}\"]\ntimeout = \"500ms\"\n",
        server.url()
    );
    Daemon::with(RULES, &config, &[])
}

/// The bound that an operator writes holds for what a daemon counts by itself, too.
#[test]
fn a_daemon_counts_no_more_keys_by_itself_than_it_may_hold() {
    const KEYS_MAX: usize = 2_000;
    let mut server = Server::start(&[]);
    let config = format!(
        "[store]\nbackend = \"redis\"\nmax_keys = {KEYS_MAX}\n[store.redis]\ntopology = \"single\"\nnodes = [\"{}\"]\n\
         timeout = \"500ms\"\n",
        server.url()
    );
    let daemon = Daemon::with(&format!("{RULES}on_failure = \"local\"\n"), &config, &[]);
    server.kill();
    eventually("the store is told to be down", || {
        (daemon.get("/readyz").json()["store"] == "down").then_some(())
    });
    let admitted: usize = (0..6)
        .map(|batch| {
            let checks: Vec<_> = (0..1_000)
                .map(
                    |n| serde_json::json!({ "attributes": { "user": format!("u{batch}-{n}") }, "cost": 100 }),
                )
                .collect();
            let reply = daemon.post("/v1/check", &serde_json::json!({ "checks": checks })).json();
            let decisions = reply["decisions"].as_array().unwrap();
            decisions.iter().filter(|decision| decision["allowed"] == true).count()
        })
        .sum();
    // Those without room share a limit among so many of them.
    assert!((KEYS_MAX / 2..=KEYS_MAX + 64).contains(&admitted), "{admitted} of 6000");
    eventually("it is told", || {
        let keys = daemon.metric("tidegate_keys").filter(|keys| *keys > 1_000.0)?;
        assert!(keys <= KEYS_MAX as f64, "{keys}");
        daemon.metric("tidegate_keys_full_total").filter(|full| *full > 3_000.0)
    });
    assert_eq!(daemon.log().matches("keys_max=2000").count(), 1, "{}", daemon.log());
}

/// What a daemon tells of a trouble of its server while it lasts, and afterwards.
fn is_told(daemon: &Daemon, kind: &str, sentence: &str, heal: impl FnOnce()) {
    let gauge = format!("tidegate_store_trouble{{kind=\"{kind}\"}}");
    assert_eq!(daemon.metric(&gauge), Some(0.0), "it is there from the start");
    let told = eventually("it is told", || {
        let answer = daemon.check(&[("user", "somebody new")]);
        let ready = daemon.get("/readyz").json();
        let problems = ready["store_problems"].to_string();
        let told = answer["degraded"] == true && ready["store"] == "degraded" && problems.contains(sentence);
        (told && daemon.metric(&gauge) == Some(1.0)).then_some(problems)
    });
    assert!(told.contains("127.0.0.1:"), "the server is named: {told}");
    assert!(daemon.run(&["regions"]).out.contains(sentence));
    let checked = daemon.run(&["check", "user=somebody new"]);
    assert!(checked.out.contains("degraded"), "{checked:?}");
    assert_eq!(daemon.log().matches(&format!(" {sentence}")).count(), 1, "{}", daemon.log());
    heal();
    eventually("it is over", || (daemon.get("/readyz").json()["store"] == "ok").then_some(()));
    eventually("its end is logged", || daemon.log().contains(&format!("over: {sentence}")).then_some(()));
}

#[test]
fn a_full_server_is_told_everywhere_until_it_has_room() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let daemon = daemon_on(&server);
    assert_eq!(daemon.get("/readyz").json()["store"], "ok");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    is_told(&daemon, "full", "redis has no memory left", || {
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    });
    assert!(
        daemon.metric(&format!("tidegate_store_memory_used_bytes{{server=\"127.0.0.1:{}\"}}", server.port))
            > Some(0.0)
    );
}

#[test]
fn rights_that_are_taken_while_it_runs_are_told_everywhere_until_they_are_back() {
    let server = Server::start(&[]);
    let daemon = daemon_on(&server);
    server.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
    is_told(&daemon, "forbidden", "redis refuses this user what decisions need", || {
        server.command(&["ACL", "SETUSER", "default", "+evalsha", "+eval"]);
    });
}

/// Each of many users asks once, of either daemon.
fn flood(stores: &[Arc<RedisStore>; 2], rule: &Arc<Compiled>, users: std::ops::Range<usize>) {
    let users: Vec<usize> = users.collect();
    for some in users.chunks(256) {
        let asked = some.iter().map(|user| {
            let (store, rule, user) =
                (Arc::clone(&stores[user % 2]), Arc::clone(rule), format!("flood {user}"));
            runtime().spawn(async move { ask(&store, &rule, &user).await.admitted })
        });
        let asked: Vec<_> = asked.collect();
        for asked in asked {
            runtime().block_on(asked).expect("it is answered");
        }
    }
}

#[test]
fn a_flood_of_distinct_keys_neither_fills_redis_nor_frees_who_is_at_the_limit() {
    let server = Server::start(&["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"]);
    let metrics = Metrics::new();
    let stores =
        [(); 2].map(|()| Arc::new(store_with(settings(Topology::Single, vec![server.url()]), 1, &metrics)));
    until("each to know of the other", Duration::from_secs(20), || {
        stores.iter().all(|store| store.health().daemons == Some(2))
    });
    let rule = Arc::new(daily("r", 100, 8));
    let both = |user: &str, times: usize| -> usize {
        stores.iter().map(|store| admitted(store, &rule, user, times)).sum()
    };
    assert_eq!(both("early", 20), 40);
    assert_eq!(both("done", 70), 100);

    flood(&stores, &rule, 0..30_000);
    assert!(stores.iter().all(|store| store.health().state == StoreState::Degraded));
    let problems = stores[0].health().problems.join(" ");
    assert!(problems.contains("takes no new keys"), "{problems}");
    assert!(
        !ask_now(&stores[0], &rule, "early").counted[0].degraded,
        "a key that is there is not felt to miss anything"
    );
    assert_eq!(both("done", 10), 0, "who was at the limit still is");
    let mut late = both("late", 80);
    assert!((2..=100).contains(&late), "{late} admitted of 100");
    flood(&stores, &rule, 30_000..40_000);
    late += both("late", 80);
    assert!(late <= 100, "{late} admitted of 100");
    assert_eq!(both("early", 70), 59);
    for store in &stores {
        store.sweep(Clock::System.now());
    }
    let text = metrics.render();
    let value = |line: &str| -> f64 {
        let found = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {line} in {text}"))
    };
    assert_eq!(value("tidegate_store_errors_total{kind=\"full\"}"), 0.0, "it was never at maxmemory");
    assert!(value("tidegate_store_errors_total{kind=\"crowded\"}") > 0.0);
    assert!(value("tidegate_store_trouble{kind=\"crowded\"}") > 0.0);

    // With room again, Redis is told what was admitted meanwhile, and decides.
    server.command(&["CONFIG", "SET", "maxmemory", "400mb"]);
    let used = || {
        let key = key(&rule, "late");
        let info = runtime().block_on(stores[0].bucket(&rule, &key, rule.limit.into(), Clock::System.now()));
        info.filter(|info| !info.degraded).map_or(0, |info| info.used)
    };
    until("redis to be told of it", Duration::from_secs(60), || {
        for store in &stores {
            store.sweep(Clock::System.now());
        }
        used() >= late as u64
    });
    late += both("late", 80);
    assert_eq!(late, 100, "what is left of the limit, and no more");
}
