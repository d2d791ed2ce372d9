//! Reports and refunds of `escrow` rules: what a region owes, and what it can give back, in memory and in a
//! real Redis.

use std::sync::Arc;

use crate::redis_servers::Server;
use crate::redis_store::{settings, store};
use crate::rights::{SECOND, START, ask, ask_window, charge, charge_cost, escrowed, rights};
use tidegate::core::algorithm::{Algorithm, Counting};
use tidegate::core::regions::escrow::level::{LevelStep, RECOVERY_WINDOW};
use tidegate::core::regions::escrow::window::WindowStep;
use tidegate::core::regions::escrow::{Giving, Step, StepResult, Taking, moves_as};
use tidegate::core::request::{Cost, ReportedCost};
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Store;
use tidegate::store::MemoryStore;
use tidegate::store::redis::{RedisSettings, Topology};

/// A report burns the rights that the region has. The rest is paid with what comes or is minted next, before
/// anything is admitted again, and nothing goes to others meanwhile.
#[test]
fn what_is_owed_is_paid_with_the_next_rights_in_memory_and_in_redis() {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let settings =
        RedisSettings { clock: Some(Arc::clone(&clock)), ..settings(Topology::Single, vec![server.url()]) };
    let redis = store(settings, 1);
    let memory = MemoryStore::new(100).begun(START);
    let rule = escrowed("owing", Algorithm::FixedWindow, 500, 8, SECOND);
    let _ = charge(&redis, &rule, "first", 1, START);
    for store in [&memory as &dyn Store, &redis] {
        let at = |micros: u64| {
            let now = Timestamp::window_start((START + RECOVERY_WINDOW).window_index(SECOND) + 2, SECOND)
                + Span(micros);
            clock.set(now);
            now
        };
        let window = |micros: u64| at(micros).window_index(SECOND);
        let step = |micros: u64, step: WindowStep| {
            rights(store, &rule, "u", &ask_window(window(micros), step), at(micros)).unwrap()
        };
        let read = |micros: u64| rights(store, &rule, "u", &ask(Step::Read), at(micros)).unwrap();
        let admits = |micros: u64, cost: u64| charge(store, &rule, "u", cost, at(micros)).verdict.admitted;
        assert!(admits(0, 3));
        let report = Cost::Report(ReportedCost { permits: 30, debt_max: 100 });
        let told = charge_cost(store, &rule, "u", report, at(1));
        assert_eq!((told.verdict.admitted, told.verdict.remaining, told.reported), (false, 0, 30));
        // Eight were minted and are burnt; 25 are owed.
        let first = read(2);
        assert_eq!((first.used, first.free()), (8, 0));
        let to_session = first.ledger.session();
        let take =
            |permits| WindowStep::Take(Taking { from: "eu-west".into(), session: 1, to_session, permits });
        let give = || WindowStep::Give(Giving { to: "us-east".into(), session: 1, permits: 1 });
        let gave = |result: StepResult| result.ledger.given().count();
        // Ten come, and pay ten.
        assert_eq!(step(3, take(10)).free(), 0);
        assert!(!admits(4, 1));
        assert_eq!(gave(step(5, give())), 0);
        // The next window mints eight, which pay; so does the one after it, of which one permit is left.
        assert!(!admits(1_000_000, 1));
        assert_eq!(read(1_000_001).free(), 0);
        assert_eq!(gave(step(1_000_002, give())), 0);
        let owing = charge_cost(store, &rule, "u", Cost::Peek, at(1_000_003)).verdict;
        assert_eq!((owing.admitted, owing.retry), (false, Some(Span(999_997))));
        assert!(admits(2_000_000, 1) && !admits(2_000_001, 1));
        assert!(admits(3_000_000, 8) && !admits(3_000_001, 1));
    }
}

/// What a region charged it can give back, whoever lent it; nothing that it gave away itself.
#[test]
fn a_refund_gives_back_all_that_was_charged_here_or_is_refused_in_memory_and_in_redis() {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let settings =
        RedisSettings { clock: Some(Arc::clone(&clock)), ..settings(Topology::Single, vec![server.url()]) };
    let redis = store(settings, 1);
    let window = Span::from_secs(600);
    let _ = charge(&redis, &escrowed("first", Algorithm::Gcra, 500, 8, window), "u", 1, START);
    let now = START + Span::from_secs(3_000);
    clock.set(now);
    for algorithm in Algorithm::OF_COSTS {
        let rule = escrowed(&format!("back{algorithm:?}"), algorithm, 500, 8, window);
        let memory = MemoryStore::new(100).begun(START);
        for store in [&memory as &dyn Store, &redis] {
            let refund = |permits| {
                let told = charge_cost(store, &rule, "u", Cost::Refund(permits), now);
                (told.verdict.admitted, told.returned, told.used)
            };
            assert_eq!(refund(1), (false, 0, 0), "{algorithm:?}");
            assert!(charge(store, &rule, "u", 5, now).verdict.admitted, "{algorithm:?}");
            assert_eq!(refund(6), (false, 0, 5), "{algorithm:?}");
            assert_eq!(refund(2), (true, 2, 3), "{algorithm:?}");
            let from = || Giving { to: "us-east".into(), session: 1, permits: 3 };
            let step = |step: &dyn Fn(Taking) -> Step| {
                let to_session = rights(store, &rule, "u", &ask(Step::Read), now).unwrap().ledger.session();
                let taking = Taking { from: "eu-west".into(), session: 1, to_session, permits: 2 };
                rights(store, &rule, "u", &ask(step(taking)), now).unwrap()
            };
            match moves_as(algorithm) {
                Counting::Window => {
                    let window = now.window_index(window);
                    step(&|taking| Step::Window { window, step: WindowStep::Take(taking) });
                    assert!(charge(store, &rule, "u", 7, now).verdict.admitted);
                    assert_eq!(refund(10), (true, 10, 0));
                    step(&|_| Step::Window { window, step: WindowStep::Give(from()) });
                }
                Counting::Level => {
                    // Two come, and one of the three in use stays.
                    step(&|taking| Step::Level(LevelStep::Take { taking, keep: 0 }));
                    assert!(charge(store, &rule, "u", 7, now).verdict.admitted);
                    assert_eq!(refund(8), (true, 8, 0), "{algorithm:?}");
                    step(&|_| Step::Level(LevelStep::Give(from())));
                    assert_eq!(refund(1), (false, 0, 3), "{algorithm:?}: charged for the other region");
                    assert!(charge(store, &rule, "u", 2, now).verdict.admitted);
                    assert_eq!(refund(3), (false, 0, 5), "{algorithm:?}");
                    assert_eq!(refund(2), (true, 2, 3), "{algorithm:?}");
                }
                Counting::Concurrency => assert_eq!(refund(3), (true, 3, 0), "{algorithm:?}"),
            }
            assert!(!refund(1).0, "{algorithm:?}");
        }
    }
}
