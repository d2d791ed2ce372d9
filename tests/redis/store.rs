//! What the store in Redis promises beyond equal answers: several identities as one, coalescing, leases,
//! expiry, size, topologies, and clear words at the start.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::redis_servers::{Cluster, Server, free_port, now, until};
use crate::redis_store::{calendar, compiled, key, runtime, settings, store, store_with};
use tidegate::core::algorithm::{Algorithm, Counting, Limit};
use tidegate::core::calendar::CalendarPeriod;
use tidegate::core::request::{Cost, ReportedCost};
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::identity::Shelf;
use tidegate::engine::port::{Charge, Intent, Outcome, Store};
use tidegate::store::redis::{LeaseSettings, RedisSettings, RedisStore, StartError, Topology};
use tidegate::telemetry::Metrics;

fn daily(name: &str, algorithm: Algorithm, permits: u32, shape: u32) -> Compiled {
    let limit = Limit { calendar: None, permits, window: Span::from_secs(86_400), burst: permits, queue: 0 };
    compiled(name, algorithm, limit, shape)
}

fn used(store: &RedisStore, rule: &Compiled, user: &str) -> u64 {
    let key = key(rule, user);
    runtime()
        .block_on(store.bucket(rule, &key, rule.limit.into(), Clock::System.now()))
        .map_or(0, |info| info.used)
}

async fn take(store: &RedisStore, rule: &Compiled, user: &str, cost: u64) -> Outcome {
    charge(store, rule, user, Cost::Take(cost)).await
}

async fn charge(store: &RedisStore, rule: &Compiled, user: &str, cost: Cost) -> Outcome {
    let key = key(rule, user);
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
    let charges = std::slice::from_ref(&charge);
    let now = Clock::System.now();
    match store.try_decide(charges, Intent::Charge, now) {
        Some(outcome) => outcome,
        None => store.decide(charges, Intent::Charge, now).await,
    }
}

#[test]
fn several_identities_are_charged_all_or_none_over_the_slots_of_a_cluster() {
    let cluster = Cluster::start();
    let store = store(settings(Topology::Cluster, cluster.urls()), 1);
    for (index, algorithm) in
        (0..).zip([Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::SlidingLog])
    {
        let wide = daily(&format!("wide{index}"), algorithm, 50, index * 16);
        let tight = daily(&format!("tight{index}"), algorithm, 3, index * 16 + 8);
        let keys = [key(&wide, "a"), key(&tight, "b"), key(&wide, "c")];
        let charge = |rule, key| Charge {
            rule,
            key,
            limit: limit_of(rule),
            share: None,
            whole: &rule.limit,
            first: None,
            cost: Cost::Take(2),
            enforced: true,
        };
        let charges = [charge(&wide, &keys[0]), charge(&tight, &keys[1]), charge(&wide, &keys[2])];
        let admitted: Vec<bool> = (0..6)
            .map(|_| runtime().block_on(store.decide(&charges, Intent::Charge, Clock::System.now())).admitted)
            .collect();
        assert_eq!(admitted, [true, false, false, false, false, false]);
        until("what was reserved to go back", Duration::from_secs(2), || {
            used(&store, &wide, "a") == 2 && used(&store, &wide, "c") == 2
        });
        assert_eq!(used(&store, &tight, "b"), 2);
    }
}

/// Names the type for closures that cannot.
const fn limit_of(rule: &Compiled) -> Limit {
    rule.limit
}

fn calls(server: &Server) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default().to_owned();
    let calls = line.split("calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// Asks `checks` times for one key from `tasks` tasks, and counts what was admitted.
fn hammer(store: &Arc<RedisStore>, rule: &Arc<Compiled>, tasks: usize, checks: usize) -> usize {
    let task = |_| {
        let (store, rule) = (Arc::clone(store), Arc::clone(rule));
        runtime().spawn(async move {
            let mut admitted = 0;
            for turn in 0..checks {
                admitted += usize::from(take(&store, &rule, "hot", 1).await.admitted);
                if turn % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            admitted
        })
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    tasks.into_iter().map(|task| runtime().block_on(task).expect("it ends")).sum()
}

#[test]
fn checks_of_one_key_share_calls_and_are_counted_exactly() {
    let server = Server::start(&[]);
    let store = Arc::new(store(settings(Topology::Single, vec![server.url()]), 1));
    let rule = Arc::new(daily("r", Algorithm::FixedWindow, 5_000, 8));
    assert_eq!(hammer(&store, &rule, 64, 200), 5_000);
    assert_eq!(used(&store, &rule, "hot"), 5_000);
    let calls = calls(&server);
    assert!(calls < 12_800 / 4, "{calls} calls for 12,800 checks");
}

#[test]
fn leases_never_admit_more_than_the_limit_and_leave_nothing_behind() {
    let server = Server::start(&[]);
    let metrics = Metrics::new();
    for (index, algorithm) in
        (1..).zip([Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket, Algorithm::Gcra])
    {
        let lease = LeaseSettings { permits_max: 1_000, ttl: Duration::from_millis(200) };
        let settings = RedisSettings { lease, ..settings(Topology::Single, vec![server.url()]) };
        let daemons: Vec<Arc<RedisStore>> =
            (0..2).map(|_| Arc::new(store_with(settings.clone(), 2, &metrics))).collect();
        let rule = Arc::new(daily(&format!("r{index}"), algorithm, 200_000, index * 8));
        let start = now();
        let admitted: usize = std::thread::scope(|scope| {
            let runs: Vec<_> =
                daemons.iter().map(|store| scope.spawn(|| hammer(store, &rule, 8, 30_000))).collect();
            runs.into_iter().map(|run| run.join().expect("it ends")).sum()
        });
        // A level drains by 2.3 permits a second.
        let drained = (start.elapsed().as_secs_f64() * 200_000.0 / 86_400.0).ceil() as usize;
        assert!(admitted <= 200_000 + drained, "{admitted} by {algorithm:?}, {drained} drained");
        for store in &daemons {
            runtime().block_on(store.drain());
        }
        let settled = used(&daemons[0], &rule, "hot");
        // What was leased and not used is back.
        assert!(
            settled.abs_diff(admitted as u64) <= 2 + drained as u64,
            "{admitted} admitted, {settled} charged by {algorithm:?}"
        );
    }
    let text = metrics.render();
    assert!(text.contains("tidegate_lease_permits_total{event=\"used\"}"), "{text}");
}

#[test]
fn a_key_that_is_denied_is_denied_from_memory_until_it_may_pass() {
    let server = Server::start(&[]);
    let lease = LeaseSettings { permits_max: 100, ttl: Duration::from_millis(200) };
    let settings = RedisSettings { lease, ..settings(Topology::Single, vec![server.url()]) };
    let store = store(settings, 1);
    let limit = Limit { calendar: None, permits: 2, window: Span::from_millis(600), burst: 2, queue: 0 };
    let rule = compiled("r", Algorithm::Gcra, limit, 8);
    let ask = || runtime().block_on(take(&store, &rule, "u", 1));
    while ask().admitted {}
    let before = calls(&server);
    let (start, mut denied) = (now(), 0);
    while !ask().admitted {
        denied += 1;
    }
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    let made = calls(&server) - before;
    assert!(denied > 1_000 && made < 20, "{denied} denials took {made} calls");
}

#[test]
fn every_bucket_expires_by_itself_and_costs_at_most_100_bytes() {
    let server = Server::start(&[]);
    let store = store(settings(Topology::Single, vec![server.url()]), 1);
    for (index, algorithm) in (1..).zip([
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Gcra,
        Algorithm::SlidingLog,
    ]) {
        let limit =
            Limit { calendar: None, permits: 10, window: Span::from_millis(400), burst: 10, queue: 0 };
        let rule = compiled(&format!("r{index}"), algorithm, limit, index * 8);
        let name = format!("tg:{{user=u}}:r{index}");
        assert!(runtime().block_on(take(&store, &rule, "u", 3)).admitted);
        let number = |words: &[&str]| -> i64 {
            let answer = server.command(words).unwrap_or_default();
            answer.trim().trim_start_matches(':').parse().unwrap_or(-9)
        };
        let ttl = number(&["PTTL", &name]);
        assert!((1..=801).contains(&ttl), "{algorithm:?} lives for {ttl} ms");
        let bytes = number(&["MEMORY", "USAGE", &name, "SAMPLES", "0"]);
        let own = bytes - i64::try_from(name.len()).unwrap_or(0);
        println!("{algorithm:?}: {bytes} bytes with a name of {}", name.len());
        assert!(
            algorithm == Algorithm::SlidingLog || (1..=100).contains(&own),
            "{algorithm:?} costs {own} bytes"
        );
        until("it to expire", Duration::from_secs(2), || number(&["EXISTS", &name]) == 0);
    }
}

#[test]
fn what_is_owed_is_kept_as_long_as_a_lowered_limit_takes_to_pay_it() {
    let server = Server::start(&[]);
    let store = store(settings(Topology::Single, vec![server.url()]), 1);
    let window = Span::from_secs(10);
    let limit = |permits| Limit { calendar: None, permits, window, burst: permits, queue: 0 };
    for (index, algorithm) in (1..).zip([
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Gcra,
    ]) {
        let rule = |permits| compiled(&format!("r{index}"), algorithm, limit(permits), index * 8);
        let report = Cost::Report(ReportedCost { permits: 400, debt_max: 1_000 });
        for (user, asked) in [("denied", Cost::Take(1)), ("looked", Cost::Peek)] {
            runtime().block_on(charge(&store, &rule(100), user, report));
            let lives = || -> u64 {
                let answer = server.command(&["PTTL", &format!("tg:{{user={user}}}:r{index}")]);
                answer.unwrap_or_default().trim().trim_start_matches(':').parse().unwrap_or(0)
            };
            assert!(lives() <= 60_000, "{algorithm:?}: four windows pay it, not {} ms", lives());
            assert!(!runtime().block_on(charge(&store, &rule(20), user, asked)).admitted);
            assert!(lives() >= 130_000, "{algorithm:?} {user}: {} ms, and it owes fifteen windows", lives());
        }
        if algorithm.counting() == Counting::Level {
            // Full, and no more than that: what drains slower from now on is not forgotten either.
            let slower = Limit { permits: 10, ..limit(100) };
            let slower = compiled(&format!("r{index}"), algorithm, slower, index * 8);
            assert!(runtime().block_on(take(&store, &rule(100), "full", 100)).admitted);
            assert!(!runtime().block_on(take(&store, &slower, "full", 1)).admitted);
            let answer = server.command(&["PTTL", &format!("tg:{{user=full}}:r{index}")]).unwrap_or_default();
            let lives: u64 = answer.trim().trim_start_matches(':').parse().unwrap_or(0);
            assert!(lives >= 90_000, "{algorithm:?}: {lives} ms, and it takes ten windows to drain");
        }
    }
}

#[test]
fn a_bucket_of_a_calendar_expires_with_its_window_by_the_servers_own_clock() {
    let server = Server::start(&[]);
    let store = store(settings(Topology::Single, vec![server.url()]), 1);
    for (index, (period, zone, starts_on)) in (1..).zip([
        (CalendarPeriod::Hour, "Asia/Kolkata", 0),
        (CalendarPeriod::Day, "Europe/Berlin", 0),
        (CalendarPeriod::Month, "America/New_York", 31),
        (CalendarPeriod::Year, "UTC", 1),
    ]) {
        let calendar = calendar(period, zone, starts_on);
        let limit =
            Limit { permits: 10, window: calendar.longest(), calendar: Some(calendar), burst: 10, queue: 0 };
        let rule = compiled(&format!("c{index}"), Algorithm::FixedWindow, limit, index * 8);
        let counted = runtime().block_on(take(&store, &rule, "u", 3)).counted[0];
        let answer = server.command(&["PTTL", &format!("tg:{{user=u}}:c{index}")]).unwrap_or_default();
        let ttl: u64 = answer.trim().trim_start_matches(':').parse().unwrap();
        let left = counted.verdict.reset.millis_up();
        assert!(ttl <= left && left - ttl < 10_000, "{period:?}: {ttl} of {left}");
        let now = Clock::System.now();
        let end = limit.windows().end(limit.windows().index(now)).since(now).millis_up();
        assert!(left.abs_diff(end) < 10_000 || end < 10_000, "{period:?}: {left} of {end}");
        assert!(!runtime().block_on(take(&store, &rule, "u", 8)).admitted);
    }
}

#[test]
fn two_versions_of_a_rule_count_apart_and_a_bucket_can_be_reset() {
    let server = Server::start(&[]);
    let (one, other) = (
        store(settings(Topology::Single, vec![server.url()]), 1),
        store(settings(Topology::Single, vec![server.url()]), 1),
    );
    let old = daily("r", Algorithm::FixedWindow, 5, 8);
    let new = daily("r", Algorithm::TokenBucket, 5, 8);
    let log = daily("r", Algorithm::SlidingLog, 5, 8);
    for _ in 0..3 {
        assert!(runtime().block_on(take(&one, &old, "u", 1)).admitted);
        assert!(runtime().block_on(take(&other, &new, "u", 1)).admitted);
        assert!(runtime().block_on(take(&other, &log, "u", 1)).admitted);
    }
    assert_eq!((used(&one, &old, "u"), used(&other, &new, "u"), used(&other, &log, "u")), (3, 3, 3));
    assert_eq!(runtime().block_on(one.reset(&old, &key(&old, "u"))), Some(true));
    assert_eq!(used(&one, &old, "u"), 0);
}

#[test]
fn sentinels_name_the_primary_and_its_successor() {
    let primary = Server::start(&[]);
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    until("the replica to follow", Duration::from_secs(10), || {
        replica.command(&["ROLE"]).is_some_and(|role| role.contains("connected"))
    });
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("sentinel.conf");
    let sentinel_port = free_port();
    let text = format!(
        "port {sentinel_port}\nbind 127.0.0.1\nsentinel monitor tidegate 127.0.0.1 {port} 1\n\
         sentinel down-after-milliseconds tidegate 500\nsentinel failover-timeout tidegate 3000\nlogfile /dev/null\n"
    );
    std::fs::write(&file, text).expect("the file is written");
    let mut sentinel = std::process::Command::new("redis-server")
        .arg(&file)
        .arg("--sentinel")
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("a sentinel starts");
    until("the sentinel to know the replica", Duration::from_secs(15), || {
        let known = crate::redis_servers::command_at(sentinel_port, &["SENTINEL", "REPLICAS", "tidegate"]);
        known.is_some_and(|known| known.contains(&replica.port.to_string()))
    });
    let settings = settings(Topology::Sentinel, vec![format!("redis://127.0.0.1:{sentinel_port}")]);
    let store = store(RedisSettings { timeout: Duration::from_millis(50), ..settings }, 1);
    let rule = daily("r", Algorithm::FixedWindow, 100, 8);
    let degraded = || runtime().block_on(take(&store, &rule, "u", 1)).counted[0].degraded;
    assert!(!degraded());
    drop(primary);
    until("the successor to be asked", Duration::from_secs(20), || !degraded());
    until("one address to be known", Duration::from_secs(5), || {
        store.health().servers.iter().any(|node| node.address.ends_with(&replica.port.to_string()))
    });
    let _ = sentinel.kill();
    let _ = sentinel.wait();
}

#[test]
fn daemons_find_each_others_facts_on_the_shelf_until_a_change_bars_them() {
    let server = Server::start(&[]);
    let stores = [(); 2].map(|()| store(settings(Topology::Single, vec![server.url()]), 2));
    let [one, two] = stores.each_ref().map(RedisStore::shelf);
    let names: Vec<String> = ["1:user:u}{", "1:key:k"].map(str::to_owned).to_vec();
    let fact = |name: &str, text: &str| vec![(name.to_owned(), text.as_bytes().to_vec())];
    runtime().block_on(async {
        let minute = Duration::from_secs(60);
        assert_eq!(one.fetch(&names).await, [None, None]);
        one.keep(&fact(&names[0], "first"), minute).await;
        two.keep(&fact(&names[0], "second"), minute).await;
        assert_eq!(two.fetch(&names).await, [Some(b"first".to_vec()), None], "what lies there stays");
        one.bar(&names[..1], Duration::from_millis(300)).await;
        two.keep(&fact(&names[0], "outdated"), minute).await;
        assert_eq!(two.fetch(&names).await, [None, None], "what was read before the change stays away");
        tokio::time::sleep(Duration::from_millis(400)).await;
        two.keep(&fact(&names[0], "after"), Duration::from_millis(100)).await;
        assert_eq!(one.fetch(&names).await, [Some(b"after".to_vec()), None]);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(one.fetch(&names).await, [None, None], "nothing lies there for ever");
    });
}

#[test]
fn what_is_not_enough_is_refused_at_the_start_with_a_clear_sentence() {
    let single = Server::start(&[]);
    let metrics = Metrics::new();
    let start = |topology, nodes: Vec<String>| {
        let live = Arc::new(AtomicUsize::new(1));
        let error = runtime().block_on(RedisStore::start(settings(topology, nodes), live, &metrics));
        error.map(|_| ()).map_err(|error: StartError| error.to_string())
    };
    let error = |result: Result<(), String>| result.expect_err("it is refused");
    assert!(error(start(Topology::Cluster, vec![single.url()])).contains("not part of a Redis Cluster"));
    assert!(error(start(Topology::Single, vec![])).contains("nodes is empty"));
    assert!(error(start(Topology::Single, vec!["http://x".into()])).contains("http://x"));
    assert!(error(start(Topology::Single, vec![single.url(), single.url()])).contains("one node"));
    // A server that is not there is no reason not to start: the policies answer until it is.
    assert_eq!(start(Topology::Single, vec![format!("redis://127.0.0.1:{}", free_port())]), Ok(()));
}

/// Numbers of every size up to `bits`, always the same.
fn numbers(seed: u64, bits: u32) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((state >> (64 - bits)) >> ((state >> 3) % u64::from(bits)))
    })
}

fn evaluated(server: &Server, body: &str, arguments: &[String]) -> Vec<String> {
    let number = include_str!("../../lua/number.lua");
    let script = format!("{number}\n{body}");
    let mut words = vec!["EVAL", &script, "0"];
    words.extend(arguments.iter().map(String::as_str));
    let answer = server.command(&words).expect("the server answers");
    let lines = answer.lines().filter(|line| !line.starts_with(['*', '$']));
    lines.map(str::to_owned).collect()
}

#[test]
fn whole_numbers_in_scripts_are_exact_up_to_what_limits_need() {
    let server = Server::start(&[]);
    let (mut a, mut b, mut c) = (numbers(1, 45), numbers(2, 52), numbers(3, 45));
    for _ in 0..20 {
        let (mut arguments, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            let (x, y, z) = (a.next().unwrap(), b.next().unwrap(), c.next().unwrap());
            let (x, z) = (x.min(z), x.max(z).max(1));
            let product = u128::from(x) * u128::from(y);
            arguments.extend([x, y, z].map(|number| number.to_string()));
            expected.push(format!("{} {}", product / u128::from(z), product % u128::from(z)));
        }
        let body = "local out = {} for i = 1, #ARGV, 3 do \
                    local q, r = multiply_divide(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])) \
                    out[#out + 1] = string.format('%.0f %.0f', q, r) end return out";
        assert_eq!(evaluated(&server, body, &arguments), expected);
    }
}
