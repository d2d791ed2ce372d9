//! Totals of rights run for a whole session. Beyond what five bytes hold, memory and Redis go on alike.

use std::sync::Arc;

use crate::redis_servers::Server;
use crate::redis_store::{compiled, settings, store};
use crate::rights::{Escrowed, SECOND, START, ask, ask_window, charge, decide, escrowed, rights, shown};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::hold::{Hold, HoldStep, Holder};
use tidegate::core::regions::escrow::level::{LevelStep, RECOVERY_WINDOW};
use tidegate::core::regions::escrow::places::PlacesStep;
use tidegate::core::regions::escrow::window::WindowStep;
use tidegate::core::regions::escrow::{Giving, Ledger, Step, StepRequest, StepResult, Taking};
use tidegate::core::request::Cost;
use tidegate::core::rule::{Global, Mode};
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{HeldLimit, Store};
use tidegate::store::MemoryStore;
use tidegate::store::redis::{RedisSettings, Topology};

/// The first total that five bytes do not hold.
const WIDE: u64 = 1 << 40;
/// A total as large as any that is exact in Redis.
const LARGEST: u64 = (1 << 53) - 1;

/// Carries out a step in both stores, each of which has a session of its own. Returns what both answered.
fn in_both(
    stores: [&dyn Store; 2],
    rule: &Escrowed,
    now: Timestamp,
    step: impl Fn(u64) -> StepRequest,
) -> StepResult {
    let [one, two] = stores.map(|store| {
        let own = rights(store, rule, "u", &ask(Step::Read), now).unwrap().ledger.session();
        rights(store, rule, "u", &step(own), now).unwrap()
    });
    assert_eq!(shown(&one), shown(&two));
    one
}

fn giving(permits: u64) -> Giving {
    Giving { to: "eu-west".to_owned(), session: 3, permits }
}

fn taking(to_session: u64, permits: u64) -> Taking {
    Taking { from: "us-east".to_owned(), session: 9, to_session, permits }
}

fn manual() -> (RedisSettings, Server, Arc<Clock>) {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let settings = settings(Topology::Single, vec![server.url()]);
    (RedisSettings { clock: Some(Arc::clone(&clock)), ..settings }, server, clock)
}

#[test]
fn regions_forward_to_each_other_for_ever() {
    let (settings, _server, clock) = manual();
    let redis = store(settings, 1);
    let (permits, part) = (4_000_000_000, 2_500_000_000_u64);
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        clock.set(START);
        let rule = escrowed(&format!("{algorithm:?}"), algorithm, permits, permits, SECOND);
        let _ = charge(&redis, &rule, "first", 1, START);
        let memory = MemoryStore::new(100).begun(START);
        let now = START + RECOVERY_WINDOW + SECOND;
        clock.set(now);
        let stores: [&dyn Store; 2] = [&memory, &redis];
        let is_level = algorithm == Algorithm::TokenBucket;
        let window = now.window_index(SECOND);
        let mut total = 0;
        // There and back again, until both totals have outgrown five bytes.
        while total < WIDE + 3 * part {
            let _ = in_both(stores, &rule, now, |_| match is_level {
                true => ask(Step::Level(LevelStep::Give(giving(part)))),
                false => ask_window(window, WindowStep::Give(giving(part))),
            });
            total += part;
            if is_level {
                let to = "eu-west".to_owned();
                let step = LevelStep::Acknowledge { to, session: 3, permits: total };
                let _ = in_both(stores, &rule, now, |_| ask(Step::Level(step.clone())));
            }
            let taken = in_both(stores, &rule, now, |own| match is_level {
                true => ask(Step::Level(LevelStep::Take { taking: taking(own, total), keep: 0 })),
                false => ask_window(window, WindowStep::Take(taking(own, total))),
            });
            let (given, came) = match &taken.ledger {
                Ledger::Level(ledger) => (ledger.forwarded[0].permits, ledger.taken[0].permits),
                Ledger::Window(ledger) => (ledger.given[0].permits, ledger.taken[0].permits),
                Ledger::Places(_) => panic!("{algorithm:?} lends no places"),
            };
            assert_eq!((given, came, taken.used), (total, total, 0), "{algorithm:?}");
        }
        if is_level {
            let take = |own| ask(Step::Level(LevelStep::Take { taking: taking(own, LARGEST), keep: 0 }));
            let Ledger::Level(ledger) = in_both(stores, &rule, now, take).ledger else { panic!("a level") };
            assert_eq!(ledger.taken[0].permits, LARGEST);
        }
        // What is counted is not disturbed by it.
        let one = charge(&memory, &rule, "u", 7, now);
        assert_eq!(one, charge(&redis, &rule, "u", 7, now));
        assert!(one.verdict.admitted, "{algorithm:?}");
    }
}

#[test]
fn regions_lend_to_each_other_for_ever() {
    let (settings, _server, clock) = manual();
    let redis = store(settings, 1);
    let length = Span::from_secs(4);
    let limit = Limit { calendar: None, permits: 12, window: length, burst: 12, queue: 0 };
    let mut rule = compiled("places", Algorithm::Concurrency, limit, 1);
    rule.rule.global = Some(Global::new(Mode::Escrow));
    let held = HeldLimit { limit, share: Some(5) };
    let rule = Escrowed { rule, held };
    let nobody = Hold { step: HoldStep::Renew, holder: Holder([9; 16]), places: 0 };
    let _ = decide(&redis, &rule, held, Cost::Hold(nobody), START);
    let memory = MemoryStore::new(100).begun(START);
    let now = START + length + SECOND;
    clock.set(now);
    let stores: [&dyn Store; 2] = [&memory, &redis];
    let places = |step| ask(Step::Places { heard: now, step });
    let back = |permits| {
        let giving = Giving { to: "us-east".to_owned(), session: 9, permits };
        places(PlacesStep::GiveBack(giving))
    };
    let moved = |result: StepResult| {
        let Ledger::Places(ledger) = result.ledger else { panic!("places") };
        (ledger.partners[0].given, ledger.partners[0].taken)
    };
    let take = |permits| move |own| places(PlacesStep::Take(taking(own, permits)));
    // First as near to it as five bytes go.
    assert_eq!(moved(in_both(stores, &rule, now, take(WIDE - 1))), (0, WIDE - 1));
    assert_eq!(moved(in_both(stores, &rule, now, |_| back(WIDE - 11))), (WIDE - 11, WIDE - 1));
    assert_eq!(moved(in_both(stores, &rule, now, take(WIDE + 5))), (WIDE - 11, WIDE + 5));
    assert_eq!(moved(in_both(stores, &rule, now, |_| back(12))), (WIDE + 1, WIDE + 5));
    let step = Hold { step: HoldStep::Acquire, holder: Holder([1; 16]), places: 3 };
    let outcomes = stores.map(|store| decide(store, &rule, held, Cost::Hold(step), now));
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(outcomes[0].admitted, "three of the four that are lent here");
    let (has, gave) = (Some(WIDE + 50), Some(WIDE + 5));
    let region = || "us-east".to_owned();
    let met = in_both(stores, &rule, now, |_| {
        places(PlacesStep::OpenSession { region: region(), session: 9, has, gave })
    });
    assert_eq!(moved(met), (WIDE + 50, WIDE + 5));
}
