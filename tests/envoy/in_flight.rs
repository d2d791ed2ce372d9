//! Requests in flight at a stock Envoy: `deploy/envoy/in-flight.yaml` as users get it.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::budgets::three_regions;
use super::redis_servers::Server;
use super::support::daemon::Daemon;
use super::support::{eventually, origin};
use super::{Front, front_of};

const IN_FLIGHT: &str = include_str!("../../deploy/envoy/in-flight.yaml");

fn rule(limit: u32, hold: &str, global: &str) -> String {
    format!(
        "[[rules]]\nname = \"exports\"\nper = [\"user\"]\nalgorithm = \"concurrency\"\nlimit = {limit}\n\
         hold = \"{hold}\"\n{global}"
    )
}

/// Places that are held of a user's.
fn held(daemon: &Daemon, user: &str) -> u64 {
    daemon.get(&format!("/v1/buckets?rule=exports&user={user}")).json()["used"].as_u64().unwrap_or_default()
}

/// Sends `count` requests at the same time, each of which takes so long, and returns their statuses.
fn at_once(front: &Front, user: &str, count: usize, millis: u64) -> Vec<u16> {
    let path = format!("/slow/{millis}");
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..count).map(|_| scope.spawn(|| front.get(user, &path).status)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|one| **one == status).count()
}

/// As many pass as there are places, and each place is free again when its stream is done: also where others
/// were denied meanwhile, whose ends give nothing back.
fn places_are_held_while_requests_last(daemon: &Daemon) {
    let front = front_of(&[daemon.grpc], IN_FLIGHT);
    for turn in 0..5 {
        let statuses = at_once(&front, "ann", 9, 1_500);
        assert_eq!((count(&statuses, 200), count(&statuses, 429)), (3, 6), "turn {turn}: {statuses:?}");
        eventually("the places are free", || (held(daemon, "ann") == 0).then_some(()));
    }
    assert_eq!(front.get("bob", "/slow/0").status, 200, "another user has places of its own");
    let released = daemon.metric("tidegate_holds_total{event=\"released\"}");
    eventually("every place was given back once", || {
        (daemon.metric("tidegate_holds_total{event=\"released\"}") == Some(16.0)).then_some(())
    });
    assert_eq!(daemon.metric("tidegate_holds_total{event=\"gone\"}"), Some(0.0), "{released:?}");
    assert_eq!(daemon.metric("tidegate_requests_rejected_total{listener=\"rls\"}"), Some(0.0));
}

#[test]
fn a_stock_envoy_holds_places_while_requests_last() {
    places_are_held_while_requests_last(&Daemon::with_rules(&rule(3, "5m", "")));
}

#[test]
fn a_stock_envoy_holds_places_in_redis_while_requests_last() {
    let server = Server::start(&[]);
    let store = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntopology = \"single\"\ntimeout = \"1s\"\n",
        server.url()
    );
    places_are_held_while_requests_last(&Daemon::with(&rule(3, "5m", ""), &store, &[]));
}

/// Clients that leave before they were let in, in the middle or at once leave no place behind: it would be
/// taken for a whole hold.
fn those_who_leave_early_hold_nothing(daemon: &Daemon) {
    let front = front_of(&[daemon.grpc], IN_FLIGHT);
    assert_eq!(front.get("first", "/slow/0").status, 200);
    for millis in [0, 2, 15, 100] {
        let user = format!("left-after-{millis}");
        let head = format!("GET /slow/400 HTTP/1.1\r\nhost: x\r\nx-user: {user}\r\n\r\n");
        for _ in 0..60 {
            let mut socket = std::net::TcpStream::connect(front.addr).unwrap();
            socket.write_all(head.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(millis));
        }
        eventually(&format!("no place is held for {user}"), || (held(daemon, &user) == 0).then_some(()));
    }
}

#[test]
fn whoever_leaves_early_holds_no_place_in_memory() {
    those_who_leave_early_hold_nothing(&Daemon::with_rules(&rule(1_000, "5m", "")));
}

#[test]
fn whoever_leaves_early_holds_no_place_in_redis() {
    let server = Server::start(&[]);
    let store = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntopology = \"single\"\ntimeout = \"1s\"\n",
        server.url()
    );
    those_who_leave_early_hold_nothing(&Daemon::with(&rule(1_000, "5m", ""), &store, &[]));
}

#[test]
fn a_place_whose_end_never_came_is_free_after_its_hold() {
    let daemon = Daemon::with_rules(&rule(2, "3s", ""));
    let front = front_of(&[daemon.grpc], IN_FLIGHT);
    let addr = front.addr;
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                // Ends with its Envoy.
                let head = b"GET /slow/20000 HTTP/1.1\r\nhost: x\r\nx-user: ann\r\nconnection: close\r\n\r\n";
                super::http::raw(addr, head)
            })
        })
        .collect();
    eventually("both places are held", || (held(&daemon, "ann") == 2).then_some(()));
    let began = Instant::now();
    front.envoy.signal("KILL");
    let next = front_of(&[daemon.grpc], IN_FLIGHT);
    eventually("a place is free", || (next.get("ann", "/slow/0").status == 200).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(60));
    eventually("all are free", || (held(&daemon, "ann") == 0).then_some(()));
    drop(waiting);
}

/// Three regions share ten places under `escrow`, each behind an Envoy: a service that counts never sees more
/// than ten at once.
#[test]
fn never_more_than_the_limit_is_in_flight_over_three_regions_under_escrow() {
    let global = "[rules.global]\nmode = \"escrow\"\n";
    let daemons = three_regions(&rule(10, "20s", global), [const { String::new() }; 3]);
    let begun = Instant::now();
    while daemons.iter().any(|daemon| {
        let asked = serde_json::json!({ "attributes": { "user": "first" }, "cost": 1 });
        let lease = daemon.post("/v1/acquire", &asked).json()["lease"].clone();
        if lease.is_string() {
            daemon.post("/v1/release", &serde_json::json!({ "lease": lease }));
        }
        !lease.is_string()
    }) {
        assert!(begun.elapsed() < Duration::from_secs(90), "places are not lent");
        std::thread::sleep(Duration::from_millis(100));
    }
    let fronts = [0, 1, 2].map(|at: usize| front_of(&[daemons[at].grpc], IN_FLIGHT));
    let passed = AtomicUsize::new(0);
    let end = Instant::now() + Duration::from_secs(12);
    std::thread::scope(|scope| {
        for caller in 0..24_usize {
            let (front, passed) = (&fronts[caller % 3], &passed);
            scope.spawn(move || {
                while Instant::now() < end {
                    if front.get("ann", "/slow/500").status == 200 {
                        passed.fetch_add(1, Ordering::Relaxed);
                    } else {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            });
        }
    });
    let (most, passed) = (origin::most_at_once(), passed.into_inner());
    println!("{passed} requests passed, at most {most} of them at once");
    assert!(most <= 10 && passed >= 20, "{most} at once, {passed} passed");
}
