//! A decision inside the process: match, bucket, decide, and put into words. Prints nanoseconds (median of
//! rounds).
//!
//! `cargo bench --bench decide` measures; `tests/bench/instructions` counts instructions with callgrind,
//! which runs this with `--count RULES N`, where in the place of RULES the windows of one rule may stand:
//! `window`, `hour`, `day` or `month`; or `level` for a user within a team within an organisation, `levels` for
//! each of the three; or of one rule by windows `report` for a cost that is reported, `reserve` for one that is
//! reserved and then committed.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout, reason = "a benchmark")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tidegate::core::algorithm::Algorithm;
use tidegate::core::calendar::{Calendar, CalendarName, CalendarPeriod};
use tidegate::core::regions::NodeName;
use tidegate::core::request::{Attributes, Cost, Request};
use tidegate::core::reservation::{ReservationId, ReservedCost, TTL_DEFAULT};
use tidegate::core::reservation_terms::OnLapse;
use tidegate::core::rule::{Condition, Pattern, Rule};
use tidegate::core::time::Span;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Answer;
use tidegate::store::memory::MemoryStore;
use tidegate::telemetry::Metrics;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const DECISIONS: usize = 200_000;

fn rule(name: String, path: Option<String>) -> Rule {
    let condition = |path| Condition { attribute: "path".to_owned(), any_of: vec![Pattern::Exact(path)] };
    Rule {
        conditions: path.map(condition).into_iter().collect(),
        per: vec!["user".to_owned()],
        ..Rule::new(name, Algorithm::Gcra, u32::MAX, Span::from_secs(1))
    }
}

fn engine(rules: Vec<Rule>) -> Engine {
    let name = NodeName { region: "bench".to_owned(), node: "bench-1".to_owned() };
    let engine = Engine::new(name, Clock::System, Arc::new(MemoryStore::new(4_000_000)), Metrics::new());
    engine.load(rules, Vec::new(), false).unwrap();
    engine
}

/// As many rules as asked for, one of which matches a request for `/api/0`.
fn one_of(count: usize) -> Vec<Rule> {
    (0..count).map(|index| rule(format!("rule-{index}"), Some(format!("/api/{index}")))).collect()
}

/// As many rules as asked for, all of which match.
fn all_of(count: usize) -> Vec<Rule> {
    (0..count).map(|index| rule(format!("rule-{index}"), None)).collect()
}

/// The last so many of three levels: an organisation, its teams, their people.
fn levels(count: usize) -> Vec<Rule> {
    const PER: [&str; 3] = ["org", "team", "user"];
    let level = |depth: usize| Rule {
        per: PER.iter().take(depth).map(|name| (*name).to_owned()).collect(),
        ..rule(format!("level-{depth}"), None)
    };
    (1..=PER.len()).rev().take(count).map(level).collect()
}

/// One rule that counts by windows of one length, or of a calendar.
fn windows(word: &str) -> Vec<Rule> {
    let mut rule = rule("rule-0".to_owned(), Some("/api/0".to_owned()));
    rule.algorithm = Algorithm::FixedWindow;
    let (period, starts_on) = match word {
        "hour" => (CalendarPeriod::Hour, 0),
        "day" => (CalendarPeriod::Day, 0),
        "month" => (CalendarPeriod::Month, 31),
        _ => return vec![Rule { window: Span::from_secs(86_400), ..rule }],
    };
    let name = CalendarName { period, time_zone: "Europe/Berlin".to_owned(), starts_on };
    let calendar: &Calendar = Box::leak(Box::new(Calendar::new(name).unwrap()));
    vec![Rule { window: calendar.longest(), calendar: Some(calendar), ..rule }]
}

fn request(user: &str, cost: Cost) -> Request<'_> {
    let attributes: Attributes<'_> =
        [("user", user), ("path", "/api/0"), ("org", "acme"), ("team", "search")].into_iter().collect();
    Request::new("default", attributes, cost)
}

fn decide(engine: &Engine, user: &str) -> bool {
    charge(engine, user, Cost::Take(1))
}

fn charge(engine: &Engine, user: &str, cost: Cost) -> bool {
    match engine.decide(std::slice::from_ref(&request(user, cost))) {
        Answer::Now(decisions) => decisions[0].allowed,
        Answer::Later(_) => unreachable!("memory answers at once"),
    }
}

/// Reserves four permits, of which three are used then.
fn reserve_and_commit(engine: &Engine, user: &str, id: u128) -> bool {
    let id = ReservationId(id.to_be_bytes());
    let reserved = ReservedCost { id, permits: 4, ttl: TTL_DEFAULT, on_lapse: OnLapse::Release };
    let Answer::Now(mut decisions) =
        engine.decide(std::slice::from_ref(&request(user, Cost::Reserve(reserved))))
    else {
        unreachable!("memory answers at once")
    };
    let (reservation, _) = engine.reservation(&mut decisions).unwrap();
    let committed = pin!(engine.commit(&reservation, 3)).poll(&mut Context::from_waker(Waker::noop()));
    matches!(committed, Poll::Ready(Ok(committed)) if committed.committed)
}

/// Users in an order that caches cannot foresee.
fn users(count: usize) -> Vec<String> {
    let mut users: Vec<_> = (0..count).map(|index| format!("u_{index}")).collect();
    let mut seed = 1_u64;
    for index in (1..users.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        users.swap(index, (seed >> 33) as usize % (index + 1));
    }
    users
}

fn measure(engine: &Engine, users: &[String], threads: usize) -> f64 {
    for user in users {
        assert!(decide(engine, user));
    }
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let started = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    scope.spawn(move || {
                        let offset = (round * DECISIONS + thread * users.len() / threads) % users.len();
                        for user in users.iter().cycle().skip(offset).take(DECISIONS) {
                            assert!(decide(engine, user));
                        }
                    });
                }
            });
            started.elapsed().as_nanos() as f64 / DECISIONS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Callgrind counts the instructions of this function alone.
#[inline(never)]
fn counted(engine: &Engine, what: &str, decisions: usize) {
    for id in 1..=decisions {
        assert!(match what {
            "report" => charge(engine, "u_42", Cost::report(1)),
            "reserve" => reserve_and_commit(engine, "u_42", id as u128),
            _ => decide(engine, "u_42"),
        });
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--count") {
        let what = arguments[at + 1].as_str();
        let decisions: usize = arguments[at + 2].parse().unwrap();
        let engine = engine(match what {
            "level" => levels(1),
            "levels" => levels(3),
            _ => what.parse().map_or_else(|_| windows(what), one_of),
        });
        return counted(&engine, what, decisions);
    }
    println!("{:<44} {:>10} {:>14}", "ns a decision (per thread)", "1 thread", "2 threads");
    let show = |what: &str, engine: &Engine, users: &[String]| {
        println!("{what:<44} {:>10.0} {:>14.0}", measure(engine, users, 1), measure(engine, users, 2));
    };
    let (hot, many) = (users(1), users(1_000_000));
    let warm = users(1_000);
    for count in [1, 10, 1_000, 10_000] {
        let engine = engine(one_of(count));
        show(&format!("1 of {count} rules matches, hot key"), &engine, &hot);
        show(&format!("1 of {count} rules matches, 1,000 keys"), &engine, &warm);
    }
    for word in ["window", "hour", "day", "month"] {
        show(&format!("1 rule by {word}, 1,000 keys"), &engine(windows(word)), &warm);
    }
    for count in [1, 3] {
        show(&format!("{count} of organisation, team and user, 1,000 keys"), &engine(levels(count)), &warm);
    }
    let single = engine(one_of(1));
    show("1 rule, a million keys at random", &single, &many);
    for count in [2, 5, 10] {
        show(&format!("all of {count} rules match, 1,000 keys"), &engine(all_of(count)), &warm);
    }
}
