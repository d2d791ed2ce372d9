//! Bad days of a real Redis, with load running: in each of them answers keep coming in time, what is admitted
//! stays within a stated bound, and Redis enforces again soon after it can.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::redis_load::{Load, Policies, Story, ask, ask_now, quick};
use crate::redis_proxy::{CUT, Proxy, SWALLOW};
use crate::redis_servers::{Cluster, Server, command_at, now, until};
use crate::redis_store::{compiled, key, runtime, store, with_policy};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::rule::OnFailure;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Store;
use tidegate::store::redis::{RedisSettings, RedisStore, Topology};

/// Time for the load before the fault, and for the fault.
const CALM: Duration = Duration::from_millis(400);
const FAULT: Duration = Duration::from_millis(900);

fn single(server: &Server) -> Arc<RedisStore> {
    Arc::new(store(quick(Topology::Single, vec![server.url()]), 1))
}

fn daily(name: &str, permits: u32, algorithm: Algorithm) -> Arc<Compiled> {
    let limit = Limit { calendar: None, permits, window: Span::from_secs(86_400), burst: permits, queue: 0 };
    Arc::new(compiled(name, algorithm, limit, 8))
}

#[test]
fn each_policy_answers_while_redis_is_down_and_says_so() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::TokenBucket] {
        let mut server = Server::start(&[]);
        let store = store(quick(Topology::Single, vec![server.url()]), 2);
        let rule = |name, policy, shape| {
            let limit =
                Limit { calendar: None, permits: 10, window: Span::from_secs(86_400), burst: 10, queue: 0 };
            with_policy(compiled(name, algorithm, limit, shape), policy)
        };
        let open = rule("open", OnFailure::Open, 0);
        let closed = rule("closed", OnFailure::Closed, 8);
        let local = rule("local", OnFailure::Local, 16);
        for _ in 0..4 {
            assert!(!ask_now(&store, &local, "u").counted[0].degraded);
        }
        server.kill();
        let start = now();
        let ten = |rule| (0..10).filter(|_| ask_now(&store, rule, "u").admitted).count();
        assert_eq!((ten(&open), ten(&closed)), (10, 0));
        // Four of ten were used, so six are left for two daemons.
        assert_eq!(ten(&local), 3, "{algorithm:?}");
        assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
        assert!(ask_now(&store, &local, "u").counted[0].degraded);

        // Back and empty, Redis is told what was admitted meanwhile.
        let _server = server.restart();
        until("redis to decide again", Duration::from_secs(3), || {
            !ask_now(&store, &local, "u").counted[0].degraded
        });
        until("what was admitted meanwhile to be charged", Duration::from_secs(2), || {
            store.sweep(Clock::System.now());
            let key = key(&local, "u");
            let info =
                runtime().block_on(store.bucket(&local, &key, local.limit.into(), Clock::System.now()));
            info.is_some_and(|info| !info.degraded && info.used >= 3)
        });
    }
}

#[test]
fn a_killed_server_that_comes_back_empty_enforces_again_within_three_seconds() {
    let mut server = Server::start(&[]);
    let store = single(&server);
    let policies = Policies::new(130, Algorithm::TokenBucket);
    let load = Load::start(&store, &policies, 3);
    std::thread::sleep(CALM);
    load.fault(true);
    server.kill();
    std::thread::sleep(FAULT);
    let _server = server.restart();
    policies.enforced_again(&store, 3);
    load.fault(false);
    std::thread::sleep(CALM);
    assert!(load.finish(Story { lives: 2, ..Story::ONE_OUTAGE }) > 0);
}

#[test]
fn a_frozen_server_delays_nobody_beyond_the_deadline() {
    let server = Server::start(&[]);
    let store = single(&server);
    let policies = Policies::new(130, Algorithm::Gcra);
    let load = Load::start(&store, &policies, 3);
    std::thread::sleep(CALM);
    load.fault(true);
    server.signal("-STOP");
    std::thread::sleep(FAULT);
    server.signal("-CONT");
    policies.enforced_again(&store, 3);
    load.fault(false);
    std::thread::sleep(CALM);
    assert!(load.finish(Story::ONE_OUTAGE) > 0);
}

#[test]
fn a_flushed_script_cache_is_not_felt() {
    let server = Server::start(&[]);
    // Compiling the script takes Redis some milliseconds, and more than a decision's deadline where others
    // want the processor: what is asked here is that no decision is lost.
    let deadline = Duration::from_secs(2);
    let settings = RedisSettings { timeout: deadline, ..quick(Topology::Single, vec![server.url()]) };
    let store = Arc::new(store(settings, 1));
    let policies = Policies::new(130, Algorithm::FixedWindow);
    let load = Load::start(&store, &policies, 3).within(deadline);
    load.fault(true);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(40));
        server.command(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(load.finish(Story { outages: 0, ..Story::ONE_OUTAGE }), 0);
}

#[test]
fn a_full_server_leaves_decisions_to_the_policies() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let store = single(&server);
    let policies = Policies::new(130, Algorithm::SlidingLog);
    let load = Load::start(&store, &policies, 3);
    std::thread::sleep(CALM);
    load.fault(true);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    std::thread::sleep(FAULT);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    policies.enforced_again(&store, 3);
    load.fault(false);
    std::thread::sleep(CALM);
    assert!(load.finish(Story::ONE_OUTAGE) > 0);
}

#[test]
fn a_slow_or_black_holed_server_delays_nobody_beyond_the_deadline() {
    for fault in [100, SWALLOW] {
        let server = Server::start(&[]);
        let proxy = Proxy::start(server.port);
        let store = Arc::new(store(quick(Topology::Single, vec![proxy.url()]), 1));
        let policies = Policies::new(130, Algorithm::SlidingWindow);
        let load = Load::start(&store, &policies, 3);
        std::thread::sleep(CALM);
        load.fault(true);
        proxy.delay_ms.store(fault, Ordering::Relaxed);
        std::thread::sleep(FAULT);
        proxy.delay_ms.store(0, Ordering::Relaxed);
        policies.enforced_again(&store, 3);
        load.fault(false);
        std::thread::sleep(CALM);
        assert!(load.finish(Story::ONE_OUTAGE) > 0);
    }
}

/// The server is asked, charges and answers, but no answer arrives, or half of one.
#[test]
fn replies_that_are_lost_or_cut_short_are_charged_and_never_admitted_twice() {
    for fault in [SWALLOW, CUT] {
        let server = Server::start(&[]);
        let proxy = Proxy::start(server.port);
        let store = Arc::new(store(quick(Topology::Single, vec![proxy.url()]), 1));
        let policies = Policies::new(130, Algorithm::FixedWindow);
        let load = Load::start(&store, &policies, 3);
        std::thread::sleep(CALM / 4);
        load.fault(true);
        proxy.reply_ms.store(fault, Ordering::Relaxed);
        std::thread::sleep(FAULT);
        proxy.reply_ms.store(0, Ordering::Relaxed);
        policies.enforced_again(&store, 3);
        load.fault(false);
        std::thread::sleep(CALM);
        assert!(load.finish(Story::ONE_OUTAGE) > 0);
    }
}

/// One of three servers of a ring: the keys of the two others are not felt to miss it.
#[test]
fn a_black_holed_server_of_a_ring_is_felt_by_its_own_keys_only() {
    let servers = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let proxy = Proxy::start(servers[0].port);
    let urls = vec![proxy.url(), servers[1].url(), servers[2].url()];
    let store = Arc::new(store(quick(Topology::Ring, urls), 1));
    let policies = Policies::new(5, Algorithm::FixedWindow);
    let load = Load::start(&store, &policies, 24);
    std::thread::sleep(CALM);
    load.fault(true);
    proxy.delay_ms.store(SWALLOW, Ordering::Relaxed);
    until("the breaker to open", Duration::from_secs(2), || {
        store.health().servers.iter().any(|server| server.breaker == Some("open"))
    });
    let holds = |user: &usize| servers[0].command(&["EXISTS", &format!("tg:{{user=u{user}}}:closed")]);
    let own = (0..24).filter(|user| holds(user).is_some_and(|answer| answer.contains(":1"))).count();
    let rule = &policies.0[2];
    // One answer that is late on a busy machine says nothing: three in a row do.
    let asked = |user: &usize| (0..3).all(|_| ask_now(&store, rule, &format!("u{user}")).counted[0].degraded);
    let degraded = (0..24).filter(asked).count();
    assert!(own > 0 && degraded <= own, "{degraded} degraded, {own} lie on the server that is away");
    std::thread::sleep(FAULT);
    proxy.delay_ms.store(0, Ordering::Relaxed);
    policies.enforced_again(&store, 24);
    load.fault(false);
    assert!(load.finish(Story::ONE_OUTAGE) > 0);
}

/// Members of a cluster that are primaries and believe that all is well, but for one.
fn primaries(cluster: &Cluster, but: usize) -> usize {
    let others = cluster.servers.iter().enumerate().filter(|(index, _)| *index != but);
    let says = |port: u16, words: &[&str], what: &str| {
        command_at(port, words).is_some_and(|answer| answer.contains(what))
    };
    let well = |port: u16| says(port, &["CLUSTER", "INFO"], "state:ok") && says(port, &["ROLE"], "master");
    others.filter(|(_, server)| well(server.port)).count()
}

#[test]
fn a_cluster_survives_a_frozen_and_a_killed_primary() {
    let mut cluster = Cluster::start();
    let store = Arc::new(store(quick(Topology::Cluster, cluster.urls()), 1));
    let policies = Policies::new(10, Algorithm::FixedWindow);
    let load = Load::start(&store, &policies, 12);
    std::thread::sleep(CALM);

    let frozen = cluster.primary_of("tg:{user=u0}:local");
    load.fault(true);
    cluster.servers[frozen].signal("-STOP");
    until("a replica to take over from the frozen one", Duration::from_secs(15), || {
        primaries(&cluster, frozen) == 3
    });
    policies.enforced_again(&store, 12);
    load.fault(false);
    cluster.servers[frozen].signal("-CONT");
    cluster.wait_until_well(6);

    let killed = cluster.primary_of("tg:{user=u1}:local");
    load.fault(true);
    cluster.servers[killed].kill();
    until("a replica to take over from the killed one", Duration::from_secs(15), || {
        primaries(&cluster, killed) == 3
    });
    policies.enforced_again(&store, 12);
    load.fault(false);
    // A primary's newest charges may be lost with it: what it had answered within about a millisecond.
    assert!(load.finish(Story { lives: 1, outages: 2, unheard: 20 }) > 0);
}

#[test]
fn a_cluster_that_was_killed_and_comes_back_empty_enforces_again_within_three_seconds() {
    let mut cluster = Cluster::start();
    let store = Arc::new(store(quick(Topology::Cluster, cluster.urls()), 1));
    let policies = Policies::new(20, Algorithm::SlidingWindow);
    let load = Load::start(&store, &policies, 6);
    std::thread::sleep(CALM);
    load.fault(true);
    for server in &mut cluster.servers {
        server.kill();
    }
    std::thread::sleep(FAULT);
    // They still know each other, but no counter.
    cluster.servers = cluster.servers.drain(..).map(Server::restart_in_place).collect();
    cluster.wait_until_well(6);
    policies.enforced_again(&store, 6);
    load.fault(false);
    std::thread::sleep(CALM);
    assert!(load.finish(Story { lives: 2, ..Story::ONE_OUTAGE }) > 0);
}

#[test]
fn a_slot_that_moves_while_asked_for_loses_nothing() {
    let cluster = Cluster::start();
    // Nothing here is to be late: what is asked for while it moves waits for that.
    let patient =
        RedisSettings { timeout: Duration::from_secs(2), ..quick(Topology::Cluster, cluster.urls()) };
    let store = Arc::new(store(patient, 1));
    let rule = daily("r", 300, Algorithm::FixedWindow);
    let name = "tg:{user=u0}:r";
    let load = {
        let (store, rule) = (Arc::clone(&store), Arc::clone(&rule));
        runtime().spawn(async move {
            let (mut admitted, mut waits) = (0, Vec::new());
            for _ in 0..600 {
                let start = now();
                let outcome = ask(&store, &rule, "u0").await;
                waits.push(start.elapsed());
                assert!(!outcome.counted[0].degraded);
                admitted += usize::from(outcome.admitted);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            waits.sort_unstable();
            println!("p99 {:?}", waits[waits.len() * 99 / 100]);
            admitted
        })
    };
    let from = cluster.primary_of(name);
    let to = (0..6).find(|place| {
        *place != from
            && cluster.servers[*place].command(&["ROLE"]).is_some_and(|role| role.contains("master"))
    });
    let (from, to) = (&cluster.servers[from], &cluster.servers[to.expect("another primary")]);
    let id = |server: &Server| {
        let id = server.command(&["CLUSTER", "MYID"]).unwrap_or_default();
        id.lines().nth(1).unwrap_or_default().to_owned()
    };
    let slot = from.command(&["CLUSTER", "KEYSLOT", name]).unwrap_or_default();
    let slot = slot.trim().trim_start_matches(':').to_owned();
    std::thread::sleep(Duration::from_millis(150));
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    std::thread::sleep(Duration::from_millis(100));
    let moved = from.command(&["MIGRATE", "127.0.0.1", &to.port.to_string(), name, "0", "1000"]);
    assert!(moved.is_some_and(|answer| answer.contains("OK")));
    std::thread::sleep(Duration::from_millis(100));
    for server in [to, from] {
        server.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    assert_eq!(runtime().block_on(load).expect("no answer was degraded"), 300);
}
