//! Rights in both stores: the same steps do the same in memory, in a real Redis and in the smallest store
//! there can be, and what a store has forgotten it burns.

use std::sync::Arc;

use crate::redis_servers::Server;
use crate::redis_store::{calendar, compiled, key, runtime, settings, store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate::core::algorithm::{Algorithm, Counting, Limit};
use tidegate::core::calendar::{CalendarPeriod, Windows};
use tidegate::core::hold::{Hold, HoldStep, Holder};
use tidegate::core::regions::WorldKey;
use tidegate::core::regions::escrow::level::{LevelStep, LevelTerms, RECOVERY_WINDOW};
use tidegate::core::regions::escrow::places::{self, Margins, PlacesStep};
use tidegate::core::regions::escrow::window::WindowStep;
use tidegate::core::regions::escrow::{
    EscrowSafety, Giving, Ledger, Step, StepRequest, StepResult, Taking, moves_as,
};
use tidegate::core::request::{Cost, ReportedCost};
use tidegate::core::reservation::{Commit, ReservationId, ReservedCost};
use tidegate::core::reservation_terms::OnLapse;
use tidegate::core::rule::{Global, Mode};
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::RuleName;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, ChargeResult, HeldLimit, Intent, Outcome, Store};
use tidegate::store::MemoryStore;
use tidegate::store::redis::{RedisSettings, Topology};

#[path = "../../simulations/src/virtual_world/reference_store.rs"]
#[expect(dead_code, reason = "simulations use the rest")]
mod reference_store;

pub(crate) use reference_store::ReferenceStore;

pub const START: Timestamp = Timestamp(1_790_000_000_000_000);
pub const SECOND: Span = Span::from_secs(1);

/// A rule and what this region is held to of its limit.
pub struct Escrowed {
    pub rule: Compiled,
    pub held: HeldLimit,
}

/// A rule of which this region mints `minted` of `permits`.
pub fn escrowed(
    name: &str,
    algorithm: Algorithm,
    permits: u32,
    minted: u32,
    windows: impl Into<Windows>,
) -> Escrowed {
    let windows = windows.into();
    let (permits, share) = match algorithm {
        Algorithm::FixedWindow => (permits, Some(minted)),
        // What slides is held to this, as of a daemon without peers.
        _ => (minted, None),
    };
    let (window, calendar) = (windows.length(), windows.calendar());
    let limit = Limit { permits, window, calendar, burst: permits, queue: 0 };
    let mut rule = compiled(name, algorithm, limit, 1);
    rule.rule.global = Some(Global::new(Mode::Escrow));
    Escrowed { rule, held: HeldLimit { limit, share } }
}

pub fn charge(store: &dyn Store, rule: &Escrowed, user: &str, cost: u64, now: Timestamp) -> ChargeResult {
    charge_cost(store, rule, user, Cost::Take(cost), now)
}

pub fn charge_cost(
    store: &dyn Store,
    escrowed: &Escrowed,
    user: &str,
    cost: Cost,
    now: Timestamp,
) -> ChargeResult {
    let Escrowed { rule, held: HeldLimit { limit, share } } = escrowed;
    let key = key(rule, user);
    // Nobody is asked before what was used is charged.
    let enforced = !matches!(cost, Cost::Commit(_));
    let charge =
        Charge { rule, key: &key, limit: *limit, share: *share, whole: limit, first: None, cost, enforced };
    let charges = [charge];
    let outcome = match store.try_decide(&charges, Intent::Charge, now) {
        Some(outcome) => outcome,
        None => runtime().block_on(store.decide(&charges, Intent::Charge, now)),
    };
    assert_eq!(outcome.admitted, outcome.counted[0].verdict.admitted || !enforced);
    outcome.counted[0]
}

pub fn ask(step: Step) -> StepRequest {
    let rule = RuleName { domain: "default".into(), name: "r".into() };
    StepRequest { key: WorldKey { rule, identity: Vec::new() }, step, own: None }
}

/// A step on rights of a window.
pub fn ask_window(window: u64, step: WindowStep) -> StepRequest {
    ask(Step::Window { window, step })
}

pub fn rights(
    store: &dyn Store,
    escrowed: &Escrowed,
    user: &str,
    ask: &StepRequest,
    now: Timestamp,
) -> Option<StepResult> {
    let key = key(&escrowed.rule, user);
    runtime().block_on(store.rights(&escrowed.rule, &key, escrowed.held, ask, now).get())
}

#[derive(Debug, Clone)]
enum Act {
    Charge(u64),
    Report(u64, u32),
    Refund(u64),
    Reserve(u8, u64, Span),
    Commit(u8, u64),
    Read,
    Give { to: usize, session: u64, permits: u64 },
    Take { from: usize, session: u64, fenced: bool, late: bool, permits: u64, keep: u64 },
    Acknowledge { to: usize, session: u64, permits: u64 },
    Pass(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (1..6_u64).prop_map(Act::Charge),
        1 => (6..18_u64).prop_map(Act::Charge),
        1 => (1..25_u64, 0..40_u32).prop_map(|(permits, debt_max)| Act::Report(permits, debt_max)),
        2 => (1..8_u64).prop_map(Act::Refund),
        1 => (1..4_u8, 1..9_u64, 1..3_000_000_u64)
            .prop_map(|(id, permits, ttl)| Act::Reserve(id, permits, Span(ttl))),
        1 => (1..4_u8, 0..12_u64).prop_map(|(id, actual)| Act::Commit(id, actual)),
        2 => Just(Act::Read),
        3 => (0..2_usize, 1..3_u64, 0..9_u64).prop_map(|(to, session, permits)| Act::Give { to, session, permits }),
        4 => (0..2_usize, 1..3_u64, any::<bool>(), any::<bool>(), (0..12_u64, 0..20_u64)).prop_map(
            |(from, session, fenced, late, (permits, keep))| {
                Act::Take { from, session, fenced, late: late && fenced, permits, keep: keep.saturating_sub(8) }
            }
        ),
        2 => (0..2_usize, 1..3_u64, 0..9_u64).prop_map(|(to, session, permits)| Act::Acknowledge { to, session, permits }),
        2 => (0..900_000_u64).prop_map(Act::Pass),
        1 => (0..6_000_000_u64).prop_map(Act::Pass),
    ];
    proptest::collection::vec(act, 1..60)
}

const REGIONS: [&str; 2] = ["eu-west", "us-east"];

/// The step of an act: of a level where there is no `window`, which knows none that comes late.
fn step_of(act: &Act, own: u64, window: Option<u64>) -> Option<StepRequest> {
    Some(match act {
        Act::Read => ask(Step::Read),
        Act::Give { to, session, permits } => {
            let giving = Giving { to: REGIONS[*to].to_owned(), session: *session, permits: *permits };
            match window {
                Some(window) => ask_window(window, WindowStep::Give(giving)),
                None => ask(Step::Level(LevelStep::Give(giving))),
            }
        }
        Act::Take { from, session, fenced, late, permits, keep } => {
            let from = REGIONS[*from].to_owned();
            let to_session = own + u64::from(*fenced && !*late);
            let taking = Taking { from, session: *session, to_session, permits: *permits };
            match window {
                Some(window) => ask_window(window - u64::from(*late), WindowStep::Take(taking)),
                None => ask(Step::Level(LevelStep::Take { taking, keep: *keep })),
            }
        }
        Act::Acknowledge { .. } if window.is_some() => return None,
        Act::Acknowledge { to, session, permits } => {
            let (to, session, permits) = (REGIONS[*to].to_owned(), *session, *permits);
            ask(Step::Level(LevelStep::Acknowledge { to, session, permits }))
        }
        Act::Charge(_)
        | Act::Report(..)
        | Act::Refund(_)
        | Act::Reserve(..)
        | Act::Commit(..)
        | Act::Pass(_) => return None,
    })
}

/// All that must be equal whatever the store calls its own memory.
pub fn shown(balance: &StepResult) -> String {
    let mut ledger = balance.ledger.clone();
    match &mut ledger {
        Ledger::Window(ledger) => {
            ledger.session = 0;
            ledger.given.sort();
            ledger.taken.sort();
        }
        Ledger::Level(ledger) => {
            ledger.session = 0;
            ledger.forwarded.sort();
            ledger.taken.sort();
            if let Some(kept) = &mut ledger.kept {
                kept.totals.sort();
            }
        }
        Ledger::Places(ledger) => {
            ledger.session = 0;
            ledger.partners.sort();
        }
    }
    format!("{ledger:?} {}", balance.used)
}

#[test]
fn the_same_steps_do_the_same_in_memory_and_in_redis() {
    the_same_steps_do_the_same(Algorithm::FixedWindow, SECOND.into(), 150);
}

#[test]
fn the_same_steps_on_windows_of_a_calendar_do_the_same_in_memory_and_in_redis() {
    for calendar in [
        calendar(CalendarPeriod::Hour, "Asia/Kolkata", 0),
        calendar(CalendarPeriod::Day, "Europe/Berlin", 0),
        calendar(CalendarPeriod::Month, "America/New_York", 31),
    ] {
        the_same_steps_do_the_same(Algorithm::FixedWindow, calendar.into(), 80);
    }
}

#[test]
fn the_same_steps_on_a_level_do_the_same_in_memory_and_in_redis() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        the_same_steps_do_the_same(algorithm, SECOND.into(), 100);
    }
}

fn the_same_steps_do_the_same(algorithm: Algorithm, windows: Windows, cases: u32) {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let settings =
        RedisSettings { clock: Some(Arc::clone(&clock)), ..settings(Topology::Single, vec![server.url()]) };
    let redis = store(settings, 1);
    // Room for all that may be taken: the store never admits above the limit itself.
    let rule = escrowed("r", algorithm, 500, 8, windows);
    // Redis began shortly before this, as far as this clock says.
    let _ = charge(&redis, &rule, "first", 1, START);
    let begin = START + RECOVERY_WINDOW;
    let users = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let play = |acts: Vec<Act>| {
        users.set(users.get() + 1);
        let user = format!("u{}", users.get());
        let memory = MemoryStore::new(100).begun(START);
        let terms = LevelTerms { algorithm, limit: rule.held.limit, begun: START, safety: EscrowSafety::ALL };
        let mut vault = if algorithm.counting() == Counting::Level {
            ReferenceStore::level(terms, begin)
        } else {
            ReferenceStore::new(7, START, SECOND, 8, EscrowSafety::ALL)
        };
        // The smallest store knows no calendars.
        let (mut now, mut reported) = (begin, windows.calendar().is_some());
        for act in &acts {
            clock.set(now);
            match act {
                Act::Pass(micros) => now = now + Span(micros * (windows.length().0 / SECOND.0)),
                Act::Report(permits, debt_max) => {
                    let cost = Cost::Report(ReportedCost { permits: *permits, debt_max: *debt_max });
                    let one = charge_cost(&memory, &rule, &user, cost, now);
                    prop_assert_eq!(one, charge_cost(&redis, &rule, &user, cost, now));
                    // The smallest store knows no reports.
                    reported = true;
                }
                Act::Refund(permits) => {
                    let one = charge_cost(&memory, &rule, &user, Cost::Refund(*permits), now);
                    prop_assert_eq!(one, charge_cost(&redis, &rule, &user, Cost::Refund(*permits), now));
                    let windows = algorithm.counting() != Counting::Level;
                    let all = if one.verdict.admitted { *permits } else { 0 };
                    prop_assert!(!windows || one.returned == all);
                    // Nor refunds.
                    reported = true;
                }
                Act::Reserve(..) | Act::Commit(..) => {
                    let id = |id: u8| ReservationId([id; 16]);
                    let cost = match *act {
                        Act::Reserve(name, permits, ttl) => {
                            let on_lapse = if name % 2 == 0 { OnLapse::Charge } else { OnLapse::Release };
                            Cost::Reserve(ReservedCost { id: id(name), permits, ttl, on_lapse })
                        }
                        Act::Commit(name, actual) => {
                            Cost::Commit(Commit { id: id(name), actual, debt_max: 20 })
                        }
                        _ => continue,
                    };
                    let one = charge_cost(&memory, &rule, &user, cost, now);
                    prop_assert_eq!(one, charge_cost(&redis, &rule, &user, cost, now));
                    // Nor reservations.
                    reported = true;
                }
                Act::Charge(cost) => {
                    let one = charge(&memory, &rule, &user, *cost, now);
                    let two = charge(&redis, &rule, &user, *cost, now);
                    prop_assert_eq!(one, two);
                    if reported {
                        continue;
                    }
                    prop_assert_eq!(vault.decide(now, *cost).is_some(), one.verdict.admitted);
                    if algorithm.counting() != Counting::Level {
                        // What the others may have used is worked out from this.
                        let held = vault.balance(now).ledger.budget();
                        prop_assert_eq!(one.used + one.verdict.remaining, held);
                    }
                }
                _ => {
                    let level = algorithm.counting() == Counting::Level;
                    let window = (!level).then(|| windows.index(now));
                    let read = ask(Step::Read);
                    let sessions = [&memory as &dyn Store, &redis]
                        .map(|store| rights(store, &rule, &user, &read, now).unwrap().ledger.session());
                    if step_of(act, 0, window).is_none() {
                        continue;
                    }
                    let step = |own| step_of(act, own, window).unwrap();
                    let one = rights(&memory, &rule, &user, &step(sessions[0]), now).unwrap();
                    let two = rights(&redis, &rule, &user, &step(sessions[1]), now).unwrap();
                    prop_assert_eq!(shown(&one), shown(&two));
                    if reported {
                        // What is used of a window's rights is never more than there are.
                        prop_assert!(
                            algorithm.counting() == Counting::Level || one.used <= one.ledger.budget()
                        );
                        continue;
                    }
                    let own = vault.balance(now).ledger.session();
                    let three = vault.carry_out(now, &step(own)).unwrap();
                    prop_assert_eq!((three.ledger.budget(), three.used), (one.ledger.budget(), one.used));
                }
            }
        }
        Ok(())
    };
    for acts in once_differed() {
        play(acts).unwrap();
    }
    runner.run(&acts(), play).unwrap();
}

/// Histories after which stores once answered differently.
fn once_differed() -> [Vec<Act>; 1] {
    let take = |permits| Act::Take { from: 0, session: 1, fenced: false, late: false, permits, keep: 0 };
    // A reservation lapses when less is in use than the others took.
    let given = Act::Give { to: 0, session: 1, permits: 6 };
    let reserved = Act::Reserve(1, 2, Span(1));
    [vec![
        given,
        Act::Report(1, 0),
        take(1),
        Act::Read,
        reserved,
        take(2),
        Act::Pass(625_001),
        Act::Charge(3),
    ]]
}

#[test]
fn a_step_of_another_way_to_count_changes_nothing_in_any_store() {
    let server = Server::start(&[]);
    let redis = store(settings(Topology::Single, vec![server.url()]), 1);
    let memory = MemoryStore::new(100);
    let now = Clock::System.now();
    let giving = || Giving { to: "eu-west".into(), session: 1, permits: 1 };
    let window = now.window_index(SECOND);
    let steps = [
        (Counting::Window, ask_window(window, WindowStep::Give(giving()))),
        (Counting::Level, ask(Step::Level(LevelStep::Give(giving())))),
        (Counting::Concurrency, ask(Step::Places { heard: now, step: PlacesStep::Give(giving()) })),
    ];
    for algorithm in
        [Algorithm::FixedWindow, Algorithm::Gcra, Algorithm::Concurrency, Algorithm::SlidingWindow]
    {
        let rule = escrowed(&format!("{algorithm:?}"), algorithm, 20, 8, SECOND);
        for (counting, step) in &steps {
            if *counting == moves_as(algorithm) {
                continue;
            }
            for store in [&memory as &dyn Store, &redis] {
                assert_eq!(rights(store, &rule, "u", step, now), None, "{algorithm:?} and {counting:?}");
            }
        }
    }
}

#[derive(Debug, Clone)]
pub enum Lending {
    Hold { step: HoldStep, who: u8, places: u64, own_limit: bool },
    Read,
    Give { to: usize, session: u64, permits: u64, back: bool },
    Take { from: usize, session: u64, fenced: bool, late: u64, permits: u64 },
    Meet { region: usize, session: u64, has: Option<u64>, gave: Option<u64>, late: u64 },
    Vouch { all: bool },
    Pass(u64),
}

pub fn lendings() -> impl Strategy<Value = Vec<Lending>> {
    let step =
        prop_oneof![5 => Just(HoldStep::Acquire), 1 => Just(HoldStep::Renew), 2 => Just(HoldStep::Release)];
    let late = prop_oneof![4 => Just(0_u64), 1 => 0..90_000_000_u64];
    let total = || proptest::option::weighted(0.7, 0..9_u64);
    let pass = prop_oneof![6 => 0..900_000_u64, 2 => 0..40_000_000_u64, 1 => 60_000_000..70_000_000_u64];
    let act = prop_oneof![
        8 => (step, 1..7_u8, 1..4_u64, proptest::bool::weighted(0.1))
            .prop_map(|(step, who, places, own_limit)| Lending::Hold { step, who, places, own_limit }),
        1 => Just(Lending::Read),
        4 => (0..2_usize, 1..3_u64, 0..7_u64, proptest::bool::weighted(0.3))
            .prop_map(|(to, session, permits, back)| Lending::Give { to, session, permits, back }),
        4 => (0..2_usize, 1..3_u64, proptest::bool::weighted(0.1), late.clone(), 0..12_u64).prop_map(
            |(from, session, fenced, late, permits)| Lending::Take { from, session, fenced, late, permits }
        ),
        4 => (0..2_usize, 1..3_u64, total(), total(), late)
            .prop_map(|(region, session, has, gave, late)| Lending::Meet { region, session, has, gave, late }),
        1 => any::<bool>().prop_map(|all| Lending::Vouch { all }),
        3 => pass.prop_map(Lending::Pass),
    ];
    proptest::collection::vec(act, 1..60)
}

pub fn lending_step(act: &Lending, own: u64, now: Timestamp) -> Option<StepRequest> {
    let name = |region: &usize| REGIONS[*region].to_owned();
    let places = |late: u64, step| ask(Step::Places { heard: Timestamp(now.0 - late), step });
    Some(match act {
        Lending::Hold { .. } | Lending::Pass(_) => return None,
        Lending::Read => ask(Step::Read),
        Lending::Give { to, session, permits, back } => {
            let (to, session, permits) = (name(to), *session, *permits);
            let giving = Giving { to, session, permits };
            places(0, if *back { PlacesStep::GiveBack(giving) } else { PlacesStep::Give(giving) })
        }
        Lending::Take { from, session, fenced, late, permits } => {
            let to_session = own + u64::from(*fenced);
            let (from, session, permits) = (name(from), *session, *permits);
            places(*late, PlacesStep::Take(Taking { from, session, to_session, permits }))
        }
        Lending::Meet { region, session, has, gave, late } => {
            let (region, session) = (name(region), *session);
            places(*late, PlacesStep::OpenSession { region, session, has: *has, gave: *gave })
        }
        Lending::Vouch { all } => {
            let regions = if *all { REGIONS.map(str::to_owned).to_vec() } else { vec![name(&0)] };
            places(0, PlacesStep::ConfirmRecovery { regions })
        }
    })
}

fn hold(store: &dyn Store, escrowed: &Escrowed, held: HeldLimit, hold: Hold, now: Timestamp) -> Outcome {
    decide(store, escrowed, held, Cost::Hold(hold), now)
}

pub fn decide(
    store: &dyn Store,
    escrowed: &Escrowed,
    held: HeldLimit,
    cost: Cost,
    now: Timestamp,
) -> Outcome {
    let rule = &escrowed.rule;
    let key = key(rule, "u");
    let charge = Charge {
        rule,
        key: &key,
        limit: held.limit,
        share: held.share,
        whole: &rule.limit,
        first: None,
        cost,
        enforced: !matches!(cost, Cost::Commit(_)),
    };
    match store.try_decide(&[charge], Intent::Charge, now) {
        Some(outcome) => outcome,
        None => runtime().block_on(store.decide(&[charge], Intent::Charge, now)),
    }
}

#[test]
fn the_same_steps_on_places_do_the_same_in_memory_and_in_every_server() {
    places_do_the_same(&Server::start(&[]), 150);
    for program in [crate::redis_servers::OLDEST, crate::redis_servers::VALKEY] {
        let Some(program) = crate::redis_servers::other_program(program) else { continue };
        places_do_the_same(&Server::start_program(&program, &[]), 50);
    }
}

fn places_do_the_same(server: &Server, cases: u32) {
    let length = Span::from_secs(4);
    let share = 5;
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let settings =
        RedisSettings { clock: Some(Arc::clone(&clock)), ..settings(Topology::Single, vec![server.url()]) };
    let redis = store(settings, 1);
    let turn = std::cell::Cell::new(0);
    let limit = Limit { calendar: None, permits: 12, window: length, burst: 12, queue: 0 };
    let held = HeldLimit { limit, share: Some(share) };
    let rule_of = |turn: u32| {
        let mut rule = compiled(&format!("p{turn}"), Algorithm::Concurrency, limit, turn * 16);
        rule.rule.global = Some(Global::new(Mode::Escrow));
        Escrowed { rule, held }
    };
    // Redis began shortly before this, as far as this clock says.
    let nobody = Hold { step: HoldStep::Renew, holder: Holder([9; 16]), places: 0 };
    let _ = hold(&redis, &rule_of(0), held, nobody, START);
    let begin = START + length + SECOND;
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&lendings(), |acts| {
        turn.set(turn.get() + 1);
        let rule = rule_of(turn.get());
        let memory = MemoryStore::new(100).begun(START);
        let terms = places::PlacesTerms {
            share: u64::from(share),
            hold: length,
            begun: START,
            margins: Margins::USUAL,
            safety: EscrowSafety::ALL,
        };
        let mut vault = ReferenceStore::places(Algorithm::Concurrency, limit, terms);
        let (mut now, mut own_limits) = (begin, false);
        for act in &acts {
            clock.set(now);
            match act {
                Lending::Pass(micros) => now = now + Span(*micros),
                Lending::Hold { step, who, places, own_limit } => {
                    let step = Hold { step: *step, holder: Holder([*who; 16]), places: *places };
                    let held = match *own_limit {
                        true => HeldLimit { limit: Limit { permits: 6, burst: 6, ..limit }, share: Some(2) },
                        false => held,
                    };
                    own_limits |= *own_limit;
                    let one = hold(&memory, &rule, held, step, now);
                    prop_assert_eq!(&one, &hold(&redis, &rule, held, step, now), "{:?}", act);
                    // The smallest store knows no limits of users.
                    if !own_limits && step.step != HoldStep::Release {
                        prop_assert_eq!(vault.step(now, &step).0, one.admitted, "{:?}", act);
                    } else {
                        let _ = vault.step(now, &step);
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
                    if !own_limits {
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
fn a_store_burns_the_window_in_which_it_began() {
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, SECOND);
    let begun = Timestamp(START.0 + 500_000);
    let store = MemoryStore::new(100).begun(begun);
    let admitted = |at: u64| charge(&store, &rule, "u", 1, Timestamp(START.0 + at)).verdict.admitted;
    assert_eq!([600_000, 1_100_000, 2_100_000].map(admitted), [false, false, true]);
    // What others give to its new memory may be spent all the same.
    let late = MemoryStore::new(100).begun(begun);
    let now = Timestamp(START.0 + 700_000);
    let window = now.window_index(SECOND);
    let session = rights(&late, &rule, "u", &ask(Step::Read), now).unwrap().ledger.session();
    let take = Taking { from: "eu-west".into(), session: 1, to_session: session, permits: 2 };
    let take = ask_window(window, WindowStep::Take(take));
    assert!(!charge(&late, &rule, "u", 1, now).verdict.admitted);
    assert_eq!(rights(&late, &rule, "u", &take, now).unwrap().free(), 2);
    assert!(charge(&late, &rule, "u", 2, now).verdict.admitted);
    assert!(!charge(&late, &rule, "u", 1, now).verdict.admitted);
}

#[test]
fn a_level_is_full_when_its_store_begins_and_a_slide_waits_until_the_past_is_past() {
    for (algorithm, waits) in [
        (Algorithm::TokenBucket, 110_000),
        (Algorithm::Gcra, 110_000),
        (Algorithm::LeakyBucket, 110_000),
        (Algorithm::SlidingWindow, 3_100_000),
        (Algorithm::SlidingLog, 3_100_000),
    ] {
        let rule = escrowed("r", algorithm, 10, 10, SECOND);
        let store = MemoryStore::new(100).begun(START);
        let admitted = |at: u64| charge(&store, &rule, "u", 1, Timestamp(START.0 + at)).verdict.admitted;
        assert!(!admitted(10_000), "{algorithm:?}");
        assert!(admitted(waits), "{algorithm:?}");
    }
}

#[test]
fn for_a_minute_a_store_keeps_room_for_what_the_one_before_may_have_forwarded() {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let settings =
        RedisSettings { clock: Some(Arc::clone(&clock)), ..settings(Topology::Single, vec![server.url()]) };
    let redis = store(settings, 1);
    let memory = MemoryStore::new(100).begun(START);
    let rule = escrowed("r", Algorithm::Gcra, 40, 40, SECOND);
    let _ = charge(&redis, &rule, "first", 1, START);
    for (after, remaining) in [(Span::from_secs(20), 9), (RECOVERY_WINDOW, 39)] {
        let now = START + after;
        clock.set(now);
        for store in [&memory as &dyn Store, &redis] {
            assert_eq!(charge(store, &rule, "u", 1, now).verdict.remaining, remaining);
        }
    }
    // Others, who would forward to it, are told of a memory once its name cannot be that of an earlier one.
    let young = MemoryStore::new(100).begun(START);
    let read = ask(Step::Read);
    assert_eq!(rights(&young, &rule, "u", &read, START + Span::from_millis(900)), None);
    assert!(rights(&young, &rule, "u", &read, START + Span::from_millis(1_100)).is_some());
}

#[test]
fn a_store_without_room_denies_and_forgets_nothing() {
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, Span::from_secs(60));
    let now = Timestamp(START.0 + 600_000_000);
    let store = MemoryStore::new(4).begun(START);
    let admitted: Vec<bool> =
        (0..40).map(|user| charge(&store, &rule, &format!("u{user}"), 8, now).verdict.admitted).collect();
    assert_eq!(admitted.iter().filter(|admitted| **admitted).count(), 4);
    for user in 0..4 {
        assert!(!charge(&store, &rule, &format!("u{user}"), 1, now).verdict.admitted);
    }
}

#[test]
fn a_clock_that_steps_back_admits_nothing_twice() {
    let rule = escrowed("r", Algorithm::FixedWindow, 20, 8, SECOND);
    let store = MemoryStore::new(100).begun(START);
    let later = Timestamp(START.0 + 20_300_000);
    let window = later.window_index(SECOND);
    let give = Giving { to: "eu-west".into(), session: 1, permits: 5 };
    let give = ask_window(window, WindowStep::Give(give));
    assert_eq!(rights(&store, &rule, "u", &give, later).unwrap().free(), 3);
    assert!(charge(&store, &rule, "u", 3, later).verdict.admitted);
    let earlier = Timestamp(START.0 + 18_000_000);
    assert!(!charge(&store, &rule, "u", 1, earlier).verdict.admitted);
    store.sweep(Timestamp(START.0 + 90_000_000));
    assert!(!charge(&store, &rule, "u", 9, later).verdict.admitted);
}
