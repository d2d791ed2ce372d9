//! Capacity of sliding windows and logs under `escrow`: the same steps do the same in memory, in a real Redis
//! and in the smallest store there can be.

use std::sync::Arc;

use crate::redis_servers::Server;
use crate::redis_store::{compiled, settings, store};
use crate::rights::{Escrowed, Lending, ReferenceStore, ask, decide, lending_step, lendings, rights, shown};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::hold::HoldStep;
use tidegate::core::regions::escrow::places::{self, Margins};
use tidegate::core::regions::escrow::{EscrowSafety, Step};
use tidegate::core::request::{Cost, ReportedCost};
use tidegate::core::reservation::{Commit, ReservationId, ReservedCost};
use tidegate::core::reservation_terms::OnLapse;
use tidegate::core::rule::{Global, Mode};
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{HeldLimit, Store};
use tidegate::store::MemoryStore;
use tidegate::store::redis::{RedisSettings, Topology};

const START: Timestamp = Timestamp(1_790_000_000_000_000);
const SECOND: Span = Span::from_secs(1);

#[test]
fn the_same_steps_on_what_slides_do_the_same_in_memory_and_in_every_server() {
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        capacity_does_the_same(&Server::start(&[]), algorithm, 120);
        for program in [crate::redis_servers::OLDEST, crate::redis_servers::VALKEY] {
            let Some(program) = crate::redis_servers::other_program(program) else { continue };
            capacity_does_the_same(&Server::start_program(&program, &[]), algorithm, 40);
        }
    }
}

/// Returns what an act of a holder stands for where permits are counted.
fn counted(step: HoldStep, who: u8, places: u64) -> Cost {
    match step {
        HoldStep::Acquire if who == 1 => Cost::Reserve(ReservedCost {
            id: ReservationId([who; 16]),
            permits: places,
            ttl: Span(300_000),
            on_lapse: OnLapse::Release,
        }),
        HoldStep::Acquire => Cost::Take(places),
        HoldStep::Renew if who == 1 => {
            Cost::Commit(Commit { id: ReservationId([who; 16]), actual: places + 1, debt_max: 5 })
        }
        HoldStep::Renew => Cost::Report(ReportedCost { permits: places * 4, debt_max: u32::from(who) * 3 }),
        HoldStep::Release if who == 1 => Cost::Peek,
        HoldStep::Release => Cost::Refund(places),
    }
}

fn capacity_does_the_same(server: &Server, algorithm: Algorithm, cases: u32) {
    let window = Span::from_secs(4);
    let share = 5;
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let settings =
        RedisSettings { clock: Some(Arc::clone(&clock)), ..settings(Topology::Single, vec![server.url()]) };
    let redis = store(settings, 1);
    let turn = std::cell::Cell::new(0);
    let limit = Limit { calendar: None, permits: 12, window, burst: 12, queue: 0 };
    let held = HeldLimit { limit, share: Some(share) };
    let rule_of = |turn: u32| {
        let mut rule = compiled(&format!("s{algorithm:?}{turn}"), algorithm, limit, turn * 16);
        rule.rule.global = Some(Global::new(Mode::Escrow));
        Escrowed { rule, held }
    };
    // Redis began shortly before this, as far as this clock says.
    let _ = decide(&redis, &rule_of(0), held, Cost::Peek, START);
    let hold = places::counted_for(algorithm, window);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&lendings(), |acts| {
        turn.set(turn.get() + 1);
        let rule = rule_of(turn.get());
        let memory = MemoryStore::new(100).begun(START);
        let terms = places::PlacesTerms {
            share: u64::from(share),
            hold,
            begun: START,
            margins: Margins::USUAL,
            safety: EscrowSafety::ALL,
        };
        let mut vault = ReferenceStore::places(algorithm, limit, terms);
        let (mut now, mut plain) = (START + hold + SECOND, true);
        for act in &acts {
            clock.set(now);
            match act {
                Lending::Pass(micros) => now = now + Span(*micros),
                Lending::Hold { step, who, places, own_limit } => {
                    let cost = counted(*step, *who, *places);
                    // A daemon without peers keeps its share.
                    let held = match *own_limit {
                        true => HeldLimit { limit: Limit { permits: 5, burst: 5, ..limit }, share: None },
                        false => held,
                    };
                    let one = decide(&memory, &rule, held, cost, now);
                    prop_assert_eq!(&one, &decide(&redis, &rule, held, cost, now), "{:?}", act);
                    // The smallest store knows costs alone.
                    plain &= matches!(cost, Cost::Take(_)) && !*own_limit;
                    if plain {
                        prop_assert_eq!(vault.decide(now, *places).is_some(), one.admitted, "{:?}", act);
                        let held = vault.balance(now).ledger.budget();
                        let counted = &one.counted[0];
                        prop_assert_eq!((counted.used + counted.verdict.remaining).min(held), held.min(12));
                    }
                }
                _ => {
                    let read = ask(Step::Read);
                    let sessions = [&memory as &dyn Store, &redis]
                        .map(|store| rights(store, &rule, "u", &read, now).unwrap().ledger.session());
                    let step = |own| lending_step(act, own, now).unwrap();
                    let one = rights(&memory, &rule, "u", &step(sessions[0]), now).unwrap();
                    let two = rights(&redis, &rule, "u", &step(sessions[1]), now).unwrap();
                    prop_assert_eq!(shown(&one), shown(&two), "{:?}", act);
                    let own = vault.carry_out(now, &read).unwrap().ledger.session();
                    let three = vault.carry_out(now, &step(own)).unwrap();
                    if plain {
                        prop_assert_eq!((three.ledger.budget(), three.used), (one.ledger.budget(), one.used));
                    }
                }
            }
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn what_slides_is_shut_in_both_stores_until_what_an_earlier_memory_admitted_counts_no_more() {
    for (number, algorithm) in (1..).zip([Algorithm::SlidingWindow, Algorithm::SlidingLog]) {
        let server = Server::start(&[]);
        let clock = Arc::new(Clock::Manual(START.0.into()));
        let settings = settings(Topology::Single, vec![server.url()]);
        let redis = store(RedisSettings { clock: Some(Arc::clone(&clock)), ..settings }, 1);
        let memory = MemoryStore::new(100).begun(START);
        let limit = Limit { calendar: None, permits: 12, window: SECOND, burst: 12, queue: 0 };
        let held = HeldLimit { limit, share: Some(5) };
        let mut rule = compiled(&format!("shut{algorithm:?}"), algorithm, limit, number * 16);
        rule.rule.global = Some(Global::new(Mode::Escrow));
        let rule = Escrowed { rule, held };
        let hold = places::counted_for(algorithm, SECOND);
        let closed = hold + SECOND;
        for store in [&redis as &dyn Store, &memory] {
            for (after, verdict) in [
                (Span::ZERO, (false, 0, Some(closed))),
                (Span(closed.0 - 1), (false, 0, Some(Span(1)))),
                // Then it owns nothing before the others have said what they have of it.
                (closed, (false, 0, Some(hold))),
                (Margins::USUAL.recall(hold), (true, 4, None)),
            ] {
                clock.set(START + after);
                let outcome = decide(store, &rule, held, Cost::Take(1), START + after);
                let told = outcome.counted[0].verdict;
                assert_eq!((told.admitted, told.remaining, told.retry), verdict, "{algorithm:?} {after:?}");
            }
        }
    }
}
