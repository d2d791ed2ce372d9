//! Redis behind sentinels: what is refused at the start, what is told while it lasts, and a failover that
//! somebody planned.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::redis_load::ask;
use crate::redis_servers::{Sentinel, Server, until};
use crate::redis_store::{compiled, runtime, settings, store, with_policy};
use crate::support::daemon::Daemon;
use crate::support::{command, eventually};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::rule::OnFailure;
use tidegate::core::time::Span;
use tidegate::store::redis::{RedisSettings, RedisStore, Topology};
use tidegate::telemetry::Metrics;

fn refused(topology: Topology, url: String) -> String {
    let live = Arc::new(AtomicUsize::new(1));
    let metrics = Metrics::new();
    let started = RedisStore::start(settings(topology, vec![url]), live, &metrics);
    runtime().block_on(started).map(|_| ()).expect_err("it is refused").to_string()
}

fn replica_of(primary: &Server) -> Server {
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    until("the replica to follow", Duration::from_secs(20), || {
        let info = replica.command(&["INFO", "replication"]).unwrap_or_default();
        info.contains("master_link_status:up")
    });
    replica
}

#[test]
fn servers_that_cannot_be_what_is_asked_for_are_refused_with_a_sentence() {
    let primary = Server::start(&[]);
    let sentinel = Sentinel::start("mymaster", primary.port);
    let told = refused(Topology::Sentinel, sentinel.url());
    let expected = format!(
        "sentinel 127.0.0.1:{} knows no primary \"tidegate\"; it watches mymaster: set store.redis.sentinel_master",
        sentinel.port
    );
    assert_eq!(told, expected);
    let told = refused(Topology::Sentinel, primary.url());
    assert!(told.contains("is no sentinel"), "{told}");
    let replica = replica_of(&primary);
    let told = refused(Topology::Single, replica.url());
    assert!(told.contains(&format!("read-only replica of 127.0.0.1:{}", primary.port)), "{told}");
    assert!(refused(Topology::Ring, replica.url()).contains("read-only replica"));

    // A user of the command line reads the same and gets an exit code.
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"sentinel\"\nnodes = [\"{}\"]\n",
        sentinel.url()
    );
    std::fs::write(folder.path().join("tidegate.toml"), text).unwrap();
    let ran = command::run(
        folder.path(),
        &["serve", "--config", "tidegate.toml", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
    );
    assert!(ran.code == 1 && ran.err.contains(&expected), "{ran:?}");
}

/// Sentinels that do not answer at the start are no reason not to start, but are told until they do.
#[test]
fn sentinels_that_are_away_are_told_until_they_answer() {
    let primary = Server::start(&[]);
    let sentinel = Sentinel::start("tidegate", primary.port);
    sentinel.signal("-STOP");
    let config = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"sentinel\"\nnodes = [\"{}\"]\ntimeout = \"500ms\"\n",
        sentinel.url()
    );
    let daemon = Daemon::with("", &config, &[]);
    let ready = daemon.get("/readyz").json();
    assert_eq!(ready["store"], "down", "{ready}");
    let problems = ready["store_problems"].to_string();
    assert!(problems.contains("no sentinel names a primary"), "{problems}");
    eventually("the sentinel is told", || {
        let told = daemon.run(&["regions"]).out;
        (told.contains("redis does not answer") && daemon.log().contains("redis does not answer"))
            .then_some(())
    });
    sentinel.signal("-CONT");
    eventually("it heals", || (daemon.get("/readyz").json()["store"] == "ok").then_some(()));
}

/// Sentinels that ask for no password, or for another one, name a primary that asks for its own.
#[test]
fn the_primary_may_have_a_password_that_the_sentinels_do_not_have() {
    let primary = Server::start(&[]);
    let sentinel = Sentinel::start("tidegate", primary.port);
    // It keeps the connections that it has, and so begins no failover.
    until("the sentinel to be connected", Duration::from_secs(20), || {
        let clients = primary.command(&["CLIENT", "LIST"]).unwrap_or_default();
        clients.contains("-cmd") && clients.contains("-pubsub")
    });
    sentinel.command(&["SENTINEL", "SET", "tidegate", "auth-pass", "secret"]).unwrap();
    primary.command(&["CONFIG", "SET", "requirepass", "secret"]).unwrap();
    let rules = "[[rules]]\nname = \"two\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 2\n\
                 window = \"1d\"\n";
    let config = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"sentinel\"\nnodes = [\"{}\"]\n\
         sentinel_master_auth = \"secret\"\ntimeout = \"2s\"\n",
        sentinel.url()
    );
    let daemon = Daemon::with(rules, &config, &[]);
    eventually("the primary answers", || (daemon.get("/readyz").json()["store"] == "ok").then_some(()));
    assert_eq!(daemon.check(&[("user", "ann")])["remaining"], 1);
    assert!(!daemon.log().contains("secret"));
}

/// The old primary goes on answering while the replica already is one. Two daemons ask all the time; what
/// they would have charged to the wrong server must not be admitted twice: one permit too many for any user.
/// A starved machine may hear of a failover late, so each direction has another try.
#[test]
fn a_planned_failover_loses_next_to_nothing() {
    const USERS: usize = 10;
    const PERMITS: usize = 60;
    let primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let sentinel = Sentinel::start("tidegate", primary.port);
    let new = || {
        let settings = settings(Topology::Sentinel, vec![sentinel.url()]);
        Arc::new(store(RedisSettings { timeout: Duration::from_millis(200), ..settings }, 1))
    };
    let stores = [new(), new()];
    let mut kept = [false; 2];
    for (round, successor) in [&replica, &primary, &replica, &primary].into_iter().enumerate() {
        if kept == [true; 2] {
            break;
        }
        sentinel.knows("tidegate", successor.port);
        let limit = Limit {
            calendar: None,
            permits: PERMITS as u32,
            window: Span::from_secs(86_400),
            burst: 60,
            queue: 0,
        };
        let rule = compiled(&format!("r{round}"), Algorithm::FixedWindow, limit, 8 * round as u32);
        let rule = Arc::new(with_policy(rule, OnFailure::Closed));
        let tasks: Vec<_> = (0..USERS)
            .map(|user| {
                let (stores, rule) = (stores.clone(), Arc::clone(&rule));
                runtime().spawn(async move {
                    let (mut admitted, mut turns) = (0, 0);
                    // About ten a second, until nobody has any left.
                    while turns < 140 {
                        let outcome = ask(&stores[turns % 2], &rule, &format!("u{user}")).await;
                        admitted += usize::from(outcome.admitted);
                        turns += 1;
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    admitted
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(2_000));
        let answer = sentinel.command(&["SENTINEL", "FAILOVER", "tidegate"]);
        assert!(answer.as_ref().is_some_and(|answer| answer.contains("OK")), "{answer:?}");
        let admitted: Vec<usize> =
            tasks.into_iter().map(|task| runtime().block_on(task).expect("it ends")).collect();
        println!("round {round}: {admitted:?} of {PERMITS}");
        kept[round % 2] |= admitted.iter().all(|admitted| *admitted <= PERMITS + 1);
        assert!(admitted.iter().all(|admitted| *admitted <= PERMITS + 5), "{admitted:?}");
        assert!(
            admitted.iter().all(|admitted| *admitted >= PERMITS / 2),
            "it is enforced, not refused: {admitted:?}"
        );
        until("one address to be known", Duration::from_secs(20), || {
            stores.iter().all(|store| {
                let health = tidegate::engine::port::Store::health(&**store);
                health.servers.iter().any(|node| {
                    node.role == "primary" && node.address.ends_with(&format!(":{}", successor.port))
                })
            })
        });
    }
    assert_eq!(kept, [true; 2], "to the replica and back, nobody is given two too many");
}
