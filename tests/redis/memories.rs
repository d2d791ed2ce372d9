//! Memories of a Redis under `escrow`: what a server lost is burnt, and what it kept is not minted again.

use std::time::Duration;

use crate::redis_servers::{Server, command_at, until};
use crate::redis_store::{runtime, settings, store};
use crate::rights::{ask, ask_window, charge, escrowed, rights};
use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::escrow::level::LevelStep;
use tidegate::core::regions::escrow::window::WindowStep;
use tidegate::core::regions::escrow::{Giving, Ledger, Step, Taking};
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Answer, Store};
use tidegate::store::redis::Topology;

/// Until the beginning of a window of two seconds, with a little of it passed.
fn fresh_window(length: Span) {
    let clock = Clock::System;
    until("a window begins", Duration::from_secs(5), || clock.now().0 % length.0 < 300_000);
}

#[test]
fn a_redis_that_lost_its_data_burns_what_it_may_have_admitted() {
    let window = Span::from_secs(3);
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, window);
    let server = Server::start(&["--save", "", "--appendonly", "no"]);
    let redis = store(settings(Topology::Single, vec![server.url()]), 1);
    let clock = Clock::System;
    // It has to run for a moment before it knows a whole window.
    until("it mints", Duration::from_secs(10), || {
        charge(&redis, &rule, "u", 1, clock.now()).verdict.admitted
    });
    fresh_window(window);
    assert!(charge(&redis, &rule, "v", 8, clock.now()).verdict.admitted);
    let _server = server.restart();
    let before = clock.now().window_index(window);
    until("it answers again", Duration::from_secs(10), || {
        !charge(&redis, &rule, "v", 1, clock.now()).degraded
    });
    let mut refused = 0;
    while clock.now().window_index(window) == before {
        refused += u64::from(!charge(&redis, &rule, "v", 1, clock.now()).verdict.admitted);
        std::thread::sleep(Duration::from_millis(20));
        if clock.now().window_index(window) == before {
            assert!(
                !charge(&redis, &rule, "w", 1, clock.now()).verdict.admitted
                    || clock.now().window_index(window) != before
            );
        }
    }
    assert!(refused > 0);
    until("it mints again", Duration::from_secs(10), || {
        charge(&redis, &rule, "v", 1, clock.now()).verdict.admitted
    });
}

#[test]
fn a_promoted_replica_burns_what_it_may_not_have_heard_of() {
    let window = Span::from_secs(3);
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, window);
    let primary = Server::start(&[]);
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
    until("the replica follows", Duration::from_secs(10), || {
        replica.command(&["INFO", "replication"]).is_some_and(|info| info.contains("master_link_status:up"))
    });
    let clock = Clock::System;
    let before = store(settings(Topology::Single, vec![primary.url()]), 1);
    until("it mints", Duration::from_secs(10), || {
        charge(&before, &rule, "u", 1, clock.now()).verdict.admitted
    });
    fresh_window(window);
    assert!(charge(&before, &rule, "v", 5, clock.now()).verdict.admitted);
    command_at(replica.port, &["REPLICAOF", "NO", "ONE"]);
    let after = store(settings(Topology::Single, vec![replica.url()]), 1);
    let index = clock.now().window_index(window);
    let counted = charge(&after, &rule, "v", 1, clock.now());
    let other = charge(&after, &rule, "never seen", 1, clock.now());
    if clock.now().window_index(window) == index {
        assert!(!counted.degraded && !counted.verdict.admitted, "{counted:?}");
        assert!(!other.degraded && !other.verdict.admitted, "{other:?}");
    }
    until("it mints", Duration::from_secs(10), || {
        charge(&after, &rule, "v", 1, clock.now()).verdict.admitted
    });
}

/// The name of a server's time as a primary.
fn replication_id(server: &Server) -> String {
    let info = server.command(&["INFO", "replication"]).unwrap_or_default();
    let id = info.lines().find_map(|line| line.strip_prefix("master_replid:"));
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// A first replica follows this server, so Redis names its time as a primary anew.
fn first_replica(server: &Server) -> Server {
    let before = replication_id(server);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    until("the primary has another id", Duration::from_secs(10), || {
        let now = replication_id(server);
        !now.is_empty() && now != before
    });
    replica
}

#[test]
fn a_primary_that_is_named_anew_mints_nothing_twice() {
    let window = Span::from_secs(8);
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, window);
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let redis = store(settings(Topology::Single, vec![server.url()]), 1);
    let clock = Clock::System;
    until("it mints", Duration::from_secs(20), || {
        charge(&redis, &rule, "u", 1, clock.now()).verdict.admitted
    });
    until("a window begins", Duration::from_secs(10), || clock.now().0 % window.0 < 300_000);
    let index = clock.now().window_index(window);
    assert!(charge(&redis, &rule, "v", 2, clock.now()).verdict.admitted);
    let give = Giving { to: "eu-west".into(), session: 1, permits: 5 };
    let given = rights(&redis, &rule, "v", &ask_window(index, WindowStep::Give(give)), clock.now()).unwrap();
    assert_eq!(given.free(), 1);
    let _replica = first_replica(&server);
    // Under the new name nothing is said to have been given, and what was given is not here any more.
    let after = rights(&redis, &rule, "v", &ask(Step::Read), clock.now()).unwrap();
    let two = charge(&redis, &rule, "v", 2, clock.now());
    let one = charge(&redis, &rule, "v", 1, clock.now());
    let more = charge(&redis, &rule, "v", 1, clock.now());
    if clock.now().window_index(window) == index {
        assert_eq!(after.free(), 1);
        let Ledger::Window(ledger) = after.ledger else { panic!("a ledger of windows") };
        assert_eq!((ledger.minted, ledger.given.len()), (3, 0));
        assert!(!two.verdict.admitted && one.verdict.admitted && !more.verdict.admitted);
    }
    until("it mints", Duration::from_secs(20), || {
        charge(&redis, &rule, "v", 8, clock.now()).verdict.admitted
    });
}

#[test]
fn a_primary_that_is_named_anew_keeps_what_it_forwarded_of_a_level() {
    let rule = escrowed("r", Algorithm::Gcra, 40, 40, Span::from_secs(1));
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let redis = store(settings(Topology::Single, vec![server.url()]), 1);
    let clock = Clock::System;
    let forwarded = || {
        let read = rights(&redis, &rule, "v", &ask(Step::Read), clock.now());
        let Some(Ledger::Level(ledger)) = read.map(|read| read.ledger) else { return None };
        Some((ledger.session, ledger.forwarded))
    };
    // The store names its memory after a second, when it has room for a quarter of what it may hold.
    until("it forwards", Duration::from_secs(20), || {
        let give = Giving { to: "eu-west".into(), session: 1, permits: 5 };
        let _ = rights(&redis, &rule, "v", &ask(Step::Level(LevelStep::Give(give))), clock.now());
        forwarded().is_some_and(|(_, forwarded)| !forwarded.is_empty())
    });
    let before = forwarded();
    let _replica = first_replica(&server);
    assert_eq!(forwarded(), before);
}

#[test]
fn what_other_regions_send_to_a_level_of_a_new_memory_is_used_once() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        let rule = escrowed("r", algorithm, 40, 40, Span::from_secs(86_400));
        let server = Server::start(&[]);
        let redis = store(settings(Topology::Single, vec![server.url()]), 1);
        let clock = Clock::System;
        let mut session = None;
        until("it names its memory", Duration::from_secs(20), || {
            let read = rights(&redis, &rule, "v", &ask(Step::Read), clock.now());
            session = read.map(|read| read.ledger.session());
            session.is_some()
        });
        let to_session = session.unwrap();
        for permits in [0, 3, 6, 10] {
            let came = if permits == 10 { 4 } else { permits.min(3) };
            let taking = Taking { from: "eu-west".into(), session: 1, to_session, permits };
            let take = ask(Step::Level(LevelStep::Take { taking, keep: 0 }));
            for _ in 0..2 {
                let taken = rights(&redis, &rule, "v", &take, clock.now());
                assert_eq!(taken.map(|taken| taken.free()), Some(came), "{algorithm:?}: {permits}");
            }
            let admitted = (0..6).filter(|_| charge(&redis, &rule, "v", 1, clock.now()).verdict.admitted);
            assert_eq!(u64::try_from(admitted.count()).unwrap(), came, "{algorithm:?}: {permits}");
        }
    }
}

#[test]
fn a_redis_that_was_flushed_burns_what_it_may_have_admitted() {
    let window = Span::from_secs(6);
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, window);
    let server = Server::start(&[]);
    let redis = store(settings(Topology::Single, vec![server.url()]), 1);
    let clock = Clock::System;
    until("it mints", Duration::from_secs(20), || {
        charge(&redis, &rule, "u", 1, clock.now()).verdict.admitted
    });
    until("a window begins", Duration::from_secs(10), || clock.now().0 % window.0 < 300_000);
    let index = clock.now().window_index(window);
    let session = |user: &str| {
        let result = rights(&redis, &rule, user, &ask(Step::Read), clock.now());
        result.map(|result| result.ledger.session())
    };
    assert!(charge(&redis, &rule, "v", 8, clock.now()).verdict.admitted);
    let before = session("v");
    assert!(before.is_some());
    server.command(&["FLUSHALL"]).unwrap();
    let users = ["v", "w"].map(|user| charge(&redis, &rule, user, 1, clock.now()));
    let after = session("v");
    if clock.now().window_index(window) == index {
        for counted in users {
            assert!(!counted.degraded && !counted.verdict.admitted, "{counted:?}");
        }
        assert!(
            after.is_some() && after != before,
            "what others had sent to the memory before is not for this one"
        );
    }
    until("it mints again", Duration::from_secs(20), || {
        charge(&redis, &rule, "v", 1, clock.now()).verdict.admitted
    });
}

#[test]
fn a_redis_that_was_there_before_anything_was_spent_mints_the_window_in_progress() {
    let window = Span::from_secs(1_000_000);
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, window);
    let server = Server::start(&[]);
    let open = || store(settings(Topology::Single, vec![server.url()]), 1);
    let clock = Clock::System;
    let admits = |redis: &dyn Store, user: &str, cost| {
        let counted = charge(redis, &rule, user, cost, clock.now());
        assert!(!counted.degraded, "{counted:?}");
        counted.verdict.admitted
    };
    let redis = open();
    let answer = |answer: Answer<'_, Option<bool>>| runtime().block_on(answer.get());
    assert_eq!(answer(redis.is_new()), Some(true));
    assert!(runtime().block_on(redis.begin_first(7).get()));
    assert!(admits(&redis, "u", 8) && !admits(&redis, "u", 1), "its share, and no more");
    // A daemon that comes later finds the mark, and knows as much.
    let later = open();
    assert_eq!(answer(later.is_new()), Some(false));
    assert!(!admits(&later, "u", 1) && admits(&later, "v", 8));
    assert!(!runtime().block_on(later.begin_first(8).get()), "another start is not the first");
    server.command(&["FLUSHALL"]).unwrap();
    for redis in [&redis, &later] {
        assert!(!admits(redis, "u", 1) && !admits(redis, "w", 1), "what was flushed is not minted again");
    }
    assert!(!runtime().block_on(redis.begin_first(7).get()), "once in a process");
}
