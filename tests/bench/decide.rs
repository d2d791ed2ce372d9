//! A decision inside the process: match, bucket, decide, and put into words. Prints nanoseconds (median of
//! rounds).
//!
//! `cargo bench --bench decide` measures; `tests/bench/instructions` counts instructions with callgrind,
//! which runs this with `--count RULES N`, where in the place of RULES the windows of one rule may stand:
//! `window`, `hour`, `day` or `month`; or `level` for a user within a team within an organisation, `levels`
//! for each of the three; `unnamed` for one rule and a question with two attributes that it does not name; or
//! of one rule by windows `report` for a cost that is reported, `reserve` for one that is reserved and then
//! committed.

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

/// Makes the attributes of a question.
type Brought = for<'a> fn(&'a str) -> Attributes<'a>;

/// The attributes that one rule looks at.
fn user_and_path(user: &str) -> Attributes<'_> {
    [("user", user), ("path", "/api/0")].into_iter().collect()
}

/// The attributes that levels look at.
fn user_and_team(user: &str) -> Attributes<'_> {
    [("user", user), ("path", "/api/0"), ("org", "acme"), ("team", "search")].into_iter().collect()
}

/// An engine, and the attributes of what it is asked.
struct Asked {
    engine: Engine,
    brought: Brought,
}

fn rule(name: String, path: Option<String>) -> Rule {
    let condition = |path| Condition { attribute: "path".to_owned(), any_of: vec![Pattern::Exact(path)] };
    Rule {
        conditions: path.map(condition).into_iter().collect(),
        per: vec!["user".to_owned()],
        ..Rule::new(name, Algorithm::Gcra, u32::MAX, Span::from_secs(1))
    }
}

fn engine(rules: Vec<Rule>, brought: Brought) -> Asked {
    let name = NodeName { region: "bench".to_owned(), node: "bench-1".to_owned() };
    let engine = Engine::new(name, Clock::System, Arc::new(MemoryStore::new(4_000_000)), Metrics::new());
    engine.load(rules, Vec::new(), false).unwrap();
    Asked { engine, brought }
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

impl Asked {
    fn request<'a>(&self, user: &'a str, cost: Cost) -> Request<'a> {
        Request::new("default", (self.brought)(user), cost)
    }

    fn decide(&self, user: &str) -> bool {
        self.charge(user, Cost::Take(1))
    }

    fn charge(&self, user: &str, cost: Cost) -> bool {
        match self.engine.decide(std::slice::from_ref(&self.request(user, cost))) {
            Answer::Now(decisions) => decisions[0].allowed,
            Answer::Later(_) => unreachable!("memory answers at once"),
        }
    }

    /// Reserves four permits, of which three are used then.
    fn reserve_and_commit(&self, user: &str, id: u128) -> bool {
        let id = ReservationId(id.to_be_bytes());
        let reserved = ReservedCost { id, permits: 4, ttl: TTL_DEFAULT, on_lapse: OnLapse::Release };
        let request = self.request(user, Cost::Reserve(reserved));
        let Answer::Now(mut decisions) = self.engine.decide(std::slice::from_ref(&request)) else {
            unreachable!("memory answers at once")
        };
        let reservation = self.engine.reservation(&mut decisions).unwrap().reservation;
        let mut context = Context::from_waker(Waker::noop());
        let committed = pin!(self.engine.commit(&reservation, 3)).poll(&mut context);
        matches!(committed, Poll::Ready(Ok(committed)) if committed.committed)
    }
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

fn measure(asked: &Asked, users: &[String], threads: usize) -> f64 {
    for user in users {
        assert!(asked.decide(user));
    }
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let started = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    scope.spawn(move || {
                        let offset = (round * DECISIONS + thread * users.len() / threads) % users.len();
                        for user in users.iter().cycle().skip(offset).take(DECISIONS) {
                            assert!(asked.decide(user));
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
fn counted(asked: &Asked, what: &str, decisions: usize) {
    for id in 1..=decisions {
        assert!(match what {
            "report" => asked.charge("u_42", Cost::report(1)),
            "reserve" => asked.reserve_and_commit("u_42", id as u128),
            _ => asked.decide("u_42"),
        });
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--count") {
        let what = arguments[at + 1].as_str();
        let decisions: usize = arguments[at + 2].parse().unwrap();
        let asked = match what {
            "level" => engine(levels(1), user_and_team),
            "levels" => engine(levels(3), user_and_team),
            "unnamed" => engine(one_of(1), user_and_team),
            _ => engine(what.parse().map_or_else(|_| windows(what), one_of), user_and_path),
        };
        return counted(&asked, what, decisions);
    }
    println!("{:<44} {:>10} {:>14}", "ns a decision (per thread)", "1 thread", "2 threads");
    let show = |what: &str, asked: &Asked, users: &[String]| {
        println!("{what:<44} {:>10.0} {:>14.0}", measure(asked, users, 1), measure(asked, users, 2));
    };
    let (hot, many) = (users(1), users(1_000_000));
    let warm = users(1_000);
    for count in [1, 10, 1_000, 10_000] {
        let asked = engine(one_of(count), user_and_path);
        show(&format!("1 of {count} rules matches, hot key"), &asked, &hot);
        show(&format!("1 of {count} rules matches, 1,000 keys"), &asked, &warm);
    }
    for word in ["window", "hour", "day", "month"] {
        show(&format!("1 rule by {word}, 1,000 keys"), &engine(windows(word), user_and_path), &warm);
    }
    for count in [1, 3] {
        show(
            &format!("{count} of organisation, team and user, 1,000 keys"),
            &engine(levels(count), user_and_team),
            &warm,
        );
    }
    let single = engine(one_of(1), user_and_path);
    show("1 rule, a million keys at random", &single, &many);
    for count in [2, 5, 10] {
        show(
            &format!("all of {count} rules match, 1,000 keys"),
            &engine(all_of(count), user_and_path),
            &warm,
        );
    }
}
