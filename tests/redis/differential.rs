//! The same histories through the store in memory and through real Redis servers: every answer must be equal,
//! and so must what the buckets hold afterwards.

use std::sync::{Arc, LazyLock};

use crate::redis_servers::{Cluster, Server};
use crate::redis_store::{Key, calendar, compiled, key, runtime, settings, store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate::core::algorithm::{Algorithm, Allowance, LevelAllowance, Limit, WindowAllowance};
use tidegate::core::calendar::{Calendar, CalendarPeriod};
use tidegate::core::penalty::PenaltyTerms;
use tidegate::core::request::{Cost, ReportedCost};
use tidegate::core::reservation::{Commit, ReservationId, ReservedCost};
use tidegate::core::reservation_terms::OnLapse;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, ChargeResult, Intent, Outcome, Store};
use tidegate::store::MemoryStore;
use tidegate::store::redis::{RedisSettings, Topology};

/// Windows of calendars, in zones that set their clocks within the times that histories reach.
static CALENDARS: LazyLock<[&Calendar; 5]> = LazyLock::new(|| {
    [
        calendar(CalendarPeriod::Hour, "Australia/Lord_Howe", 0),
        calendar(CalendarPeriod::Day, "Europe/Berlin", 0),
        calendar(CalendarPeriod::Week, "America/New_York", 7),
        calendar(CalendarPeriod::Month, "Europe/Berlin", 31),
        calendar(CalendarPeriod::Quarter, "Asia/Kolkata", 15),
    ]
});

#[derive(Debug, Clone)]
struct Step {
    micros: i64,
    user: u8,
    charges: Vec<(usize, Cost, bool)>,
    intent: Intent,
    /// Gives one rule another limit from now on.
    reload: Option<(usize, Limit)>,
}

fn limits() -> impl Strategy<Value = Limit> {
    let permits = prop_oneof![
        6 => 1..20_u32, 2 => 20..5_000_u32, 1 => Just(0), 1 => prop_oneof![Just(u32::MAX), any::<u32>()]
    ];
    let window = prop_oneof![
        4 => 10_000..2_000_000_u64,
        2 => prop_oneof![Just(1_000_000), Just(60_000_000), Just(86_400_000_000_u64)],
        1 => Just(366 * 86_400 * 1_000_000_u64),
    ];
    let queue = prop_oneof![3 => Just(0_u32), 1 => 1..10_u32, 1 => any::<u32>()];
    (permits, window, 0..3_u8, queue).prop_map(|(permits, window, burst, queue)| Limit {
        calendar: None,
        permits,
        window: Span(window),
        burst: match burst {
            0 => permits,
            1 => permits.saturating_mul(2),
            _ => permits / 2,
        },
        queue,
    })
}

fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        8 => Just(Cost::Take(1)),
        4 => (1..12_u64).prop_map(Cost::Take),
        1 => prop_oneof![Just(u64::from(u32::MAX)), Just(u64::MAX), 1_000..100_000_u64].prop_map(Cost::Take),
        2 => Just(Cost::Peek),
        2 => (1..6_u64).prop_map(Cost::Refund),
        1 => Just(Cost::Refund(u64::MAX)),
        3 => (1..30_u64, 0..40_u32).prop_map(report),
        1 => (prop_oneof![Just(1_000_000_000), Just(u64::from(u32::MAX)), Just(u64::MAX)], any::<u32>())
            .prop_map(report),
    ]
}

/// Few ids, so that the same is reserved, committed and cancelled again and again.
fn reservations() -> impl Strategy<Value = Cost> {
    let id = (1..6_u8).prop_map(|id| ReservationId([id; 16]));
    let ttl = prop_oneof![1_000..2_000_000_u64, Just(600_000_000)].prop_map(Span);
    let permits = prop_oneof![6 => 1..12_u64, 1 => Just(u64::from(u32::MAX)), 1 => Just(u64::MAX)];
    let on_lapse = prop_oneof![2 => Just(OnLapse::Release), 1 => Just(OnLapse::Charge)];
    let actual = prop_oneof![8 => 0..15_u64, 1 => any::<u64>()];
    prop_oneof![
        3 => (id.clone(), permits, ttl, on_lapse)
            .prop_map(|(id, permits, ttl, on_lapse)| Cost::Reserve(ReservedCost { id, permits, ttl, on_lapse })),
        2 => (id, actual, 0..40_u32)
            .prop_map(|(id, actual, debt_max)| Cost::Commit(Commit { id, actual, debt_max })),
    ]
}

fn report((permits, debt_max): (u64, u32)) -> Cost {
    Cost::Report(ReportedCost { permits, debt_max })
}

fn steps(rules: usize, reserve: bool) -> impl Strategy<Value = Vec<Step>> {
    let costs = move || match reserve {
        false => costs().boxed(),
        true => prop_oneof![costs(), reservations()].boxed(),
    };
    let time = prop_oneof![
        4 => Just(0), 8 => 0..50_000_i64, 4 => 0..3_000_000_i64, 1 => -2_000_000..0_i64,
        1 => Just(70_000_000), 1 => Just(100_000_000_000), 1 => Just(-90_000_000_000),
        1 => 0..5_000_000_000_000_i64,
    ];
    let charge = (0..rules, costs(), prop_oneof![5 => Just(true), 1 => Just(false)]);
    let intent = prop_oneof![6 => Just(Intent::Charge), 1 => Just(Intent::Ask)];
    let step = (
        time,
        0..3_u8,
        proptest::collection::vec(charge, 1..5),
        intent,
        proptest::option::weighted(0.05, (0..rules, limits())),
    );
    let step = step.prop_map(|(micros, user, mut charges, intent, reload)| {
        // No decision reserves or commits the same twice in one bucket.
        let mut named: Vec<(usize, ReservationId)> = Vec::new();
        charges.retain(|(rule, cost, _)| {
            let id = match cost {
                Cost::Reserve(reserve) => reserve.id,
                Cost::Commit(commit) => commit.id,
                _ => return true,
            };
            let is_new = !named.contains(&(*rule, id));
            named.push((*rule, id));
            is_new
        });
        Step { micros, user, charges, intent, reload }
    });
    proptest::collection::vec(step, 1..60)
}

/// One rule in five counts by a calendar.
fn rules() -> impl Strategy<Value = (usize, Limit)> {
    let calendar = proptest::sample::select(CALENDARS.to_vec());
    let by_calendar = (limits(), calendar).prop_map(|(limit, calendar)| {
        (0, Limit { window: calendar.longest(), calendar: Some(calendar), ..limit })
    });
    prop_oneof![4 => (0..Algorithm::OF_COSTS.len(), limits()), 1 => by_calendar]
}

fn histories(reserve: bool) -> impl Strategy<Value = (Vec<(usize, Limit)>, Vec<Step>, bool)> {
    proptest::collection::vec(rules(), 1..6)
        .prop_flat_map(move |rules| (Just(rules.clone()), steps(rules.len(), reserve), any::<bool>()))
}

/// A reload that changes the window is another rule's, so that only the rest of the limit changes.
fn reloaded(rule: &mut Compiled, limit: Limit) {
    rule.limit = Limit { window: rule.limit.window, calendar: rule.limit.calendar, ..limit };
}

/// Makes every bucket in both stores, each with one permit in use and one commit noted.
fn fill(redis: &dyn Store, memory: &MemoryStore, clock: &Clock, rules: &[Compiled], now: u64) {
    clock.set(Timestamp(now));
    for (rule, user) in rules.iter().flat_map(|rule| ["u0", "u1", "u2"].map(|user| (rule, user))) {
        let key = key(rule, user);
        let limit = Limit { permits: 100, burst: 100, queue: 0, ..rule.limit };
        let commit = Cost::Commit(Commit { id: ReservationId([9; 16]), actual: 0, debt_max: 0 });
        for (cost, enforced) in [(Cost::Take(1), true), (commit, false)] {
            let charge = Charge {
                rule,
                key: &key,
                limit,
                share: None,
                whole: &rule.limit,
                first: None,
                cost,
                enforced,
            };
            let expected = memory.try_decide(&[charge], Intent::Charge, Timestamp(now));
            assert_eq!(Some(outcome(redis, &charge, Timestamp(now))), expected);
        }
    }
}

/// Where a decision charges one bucket twice, what each charge says was used depends on whether the bucket
/// was there before. What is used afterwards does not, and is compared too.
fn worded(mut outcome: Outcome, charges: &[(usize, Cost, bool)]) -> Outcome {
    for (counted, (rule, _, _)) in outcome.counted.iter_mut().zip(charges) {
        if charges.iter().filter(|(other, _, _)| other == rule).count() > 1 {
            counted.used = 0;
        }
    }
    outcome
}

/// Views come in the background, so the worldwide kind waits for them.
fn play(
    redis: &dyn Store,
    clock: &Clock,
    (turn, begun): (u32, &std::cell::Cell<usize>),
    (rules, steps, filled): &(Vec<(usize, Limit)>, Vec<Step>, bool),
) -> Result<(), TestCaseError> {
    let memory = MemoryStore::new(1_000_000);
    let mut rules: Vec<Compiled> = (0..)
        .zip(rules)
        .map(|(index, (algorithm, limit))| {
            let name = format!("r{turn}-{index}");
            let mut rule = compiled(&name, Algorithm::OF_COSTS[*algorithm], *limit, turn * 64 + index * 8);
            // A record that has expired is forgotten by the one store and kept by the other for a clock that
            // steps back.
            let punishes = (turn + index) % 2 == 0 && !*filled;
            rule.rule.penalty = punishes.then(|| Arc::new(terms(turn + index)));
            rule
        })
        .collect();
    let mut now = 1_790_000_000_000_000_u64;
    // What has expired may be forgotten, which the one store does when it makes a bucket and the other here
    // does not. A clock that steps back, or a rate that falls, would tell the two apart. So histories with
    // such steps begin with all buckets.
    if *filled {
        fill(redis, &memory, clock, &rules, now);
    }
    for (index, step) in steps.iter().enumerate() {
        now = if *filled { now.saturating_add_signed(step.micros) } else { now + step.micros.unsigned_abs() };
        clock.set(Timestamp(now));
        if let (true, Some((rule, limit))) = (*filled, step.reload) {
            reloaded(&mut rules[rule], limit);
        }
        let user = format!("u{}", step.user);
        let keys: Vec<Key> = rules.iter().map(|rule| key(rule, &user)).collect();
        let charges: Vec<Charge<'_>> = step
            .charges
            .iter()
            .map(|(rule, cost, enforced)| Charge {
                rule: &rules[*rule],
                key: &keys[*rule],
                limit: rules[*rule].limit,
                share: None,
                whole: &rules[*rule].limit,
                first: None,
                cost: *cost,
                // Nobody is asked before what was used is charged.
                enforced: *enforced && !matches!(cost, Cost::Commit(_)),
            })
            .collect();
        let expected =
            memory.try_decide(&charges, step.intent, Timestamp(now)).expect("memory does not wait");
        let found = runtime().block_on(redis.decide(&charges, step.intent, Timestamp(now)));
        let degraded = found.counted.iter().any(|counted| counted.degraded);
        assert!(!degraded, "a server did not answer in time, so nothing can be compared");
        let begins = |counted: &&ChargeResult| counted.penalty.is_some_and(|penalty| penalty.begun);
        begun.set(begun.get() + expected.counted.iter().filter(begins).count());
        let (found, expected) = (worded(found, &step.charges), worded(expected, &step.charges));
        prop_assert_eq!(&found, &expected, "step {} of {:?}", index, step);
        for (rule, key) in rules.iter().zip(&keys) {
            let expected = memory
                .info(rule, key, rule.limit.into(), Timestamp(now))
                .map_or((0, None), |info| (info.used, info.penalty));
            let found = runtime()
                .block_on(redis.bucket(rule, key, rule.limit.into(), Timestamp(now)))
                .map_or((0, None), |info| (info.used, info.penalty));
            prop_assert_eq!(
                found,
                expected,
                "use of {:?} at {} after step {}",
                (&rule.rule.name, rule.limit),
                now,
                index
            );
        }
    }
    Ok(())
}

/// A penalty that histories reach.
fn terms(number: u32) -> PenaltyTerms {
    PenaltyTerms {
        threshold: 1 + number / 2 % 3,
        window: Span([20_000, 2_000_000, 3_600_000_000][number as usize / 6 % 3]),
        cool_down: Span([10_000, 300_000, 60_000_000][number as usize / 4 % 3]),
        multipliers: [vec![1], vec![1, 2, 4], vec![3, 1, 1_000]][number as usize / 2 % 3].clone(),
    }
}

fn differ(settings: RedisSettings, histories_max: u32) {
    differ_in(settings, histories_max, false);
}

fn differ_in(settings: RedisSettings, histories_max: u32, reserve: bool) {
    let asked_for = std::env::var("TIDEGATE_HISTORIES").ok().and_then(|text| text.parse().ok());
    let histories_max = asked_for.unwrap_or(histories_max);
    let clock = Arc::new(Clock::Manual(0.into()));
    // Nothing is compared while a server waits for its processor.
    let timeout = std::time::Duration::from_secs(30);
    let settings = RedisSettings { clock: Some(Arc::clone(&clock)), timeout, ..settings };
    let redis = store(settings, 1);
    let (turn, begun) = (std::cell::Cell::new(0_u32), std::cell::Cell::new(0_usize));
    let told = std::cell::Cell::new(false);
    let config = Config {
        cases: histories_max,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&histories(reserve), |history| {
        turn.set(turn.get() + 1);
        let played = play(&redis, &clock, (turn.get(), &begun), &history);
        // Shorter histories that differ are looked for next, for longer than a test may take.
        if let Err(difference) = &played
            && !told.replace(true)
        {
            eprintln!("turn {}: {difference}\nof {history:?}", turn.get());
        }
        played
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    assert!(begun.get() > 0, "no penalty began in any of these histories");
}

#[test]
fn a_single_server_answers_like_the_memory_store() {
    let server = Server::start(&[]);
    differ(settings(Topology::Single, vec![server.url()]), 400);
}

#[test]
fn a_single_server_reserves_and_commits_like_the_memory_store() {
    let server = Server::start(&[]);
    differ_in(settings(Topology::Single, vec![server.url()]), 150, true);
}

#[test]
fn a_cluster_reserves_and_commits_like_the_memory_store() {
    let cluster = Cluster::start_patient();
    differ_in(settings(Topology::Cluster, cluster.urls()), 50, true);
}

#[test]
fn the_oldest_redis_and_valkey_answer_like_the_memory_store() {
    for program in [crate::redis_servers::OLDEST, crate::redis_servers::VALKEY] {
        let Some(program) = crate::redis_servers::other_program(program) else { continue };
        let server = Server::start_program(&program, &[]);
        differ(settings(Topology::Single, vec![server.url()]), 100);
    }
}

#[test]
fn a_cluster_answers_like_the_memory_store() {
    let cluster = Cluster::start_patient();
    differ(settings(Topology::Cluster, cluster.urls()), 120);
}

#[test]
fn a_ring_answers_like_the_memory_store() {
    let servers = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let urls = servers.iter().map(Server::url).collect();
    differ(settings(Topology::Ring, urls), 60);
}

fn outcome(store: &dyn Store, charge: &Charge<'_>, now: Timestamp) -> Outcome {
    runtime().block_on(store.decide(std::slice::from_ref(charge), Intent::Charge, now))
}

#[test]
fn what_the_world_leaves_is_enforced_like_in_the_memory_store() {
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(0.into()));
    let settings = settings(Topology::Single, vec![server.url()]);
    let redis = store(RedisSettings { clock: Some(Arc::clone(&clock)), ..settings }, 1);
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Gcra,
    ];
    let turn = std::cell::Cell::new(0_u32);
    let strategy = (
        0..6_usize,
        1..40_u32,
        (0..3_u64, 0..50_u32, 0..50_u32, 0..40_u64, 0..60_u64),
        // Whether a view was told, how long ago, and the first share.
        (
            any::<bool>(),
            prop_oneof![3 => Just(0), 1 => 0..66_000_000_u64, 1 => 0..100_000_000_u64],
            proptest::option::of(1..20_u32),
            // What was divided: this bucket, or one of another capacity.
            prop_oneof![2 => Just(0), 2 => 1..100_u32, 1 => any::<u32>()],
        ),
        proptest::collection::vec((0..400_000_u64, 1..6_u64, 0..4_u8), 1..25),
    );
    let config = Config { cases: 250, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let result = TestRunner::new(config).run(
        &strategy,
        |(kind, permits, view, (told, idle, first, capacity), steps)| {
            turn.set(turn.get() + 1);
            let memory = MemoryStore::new(1_000);
            let by_calendar = (kind == 0 && permits % 2 == 0).then(|| CALENDARS[permits as usize / 2 % 5]);
            let window = by_calendar.map_or(Span(1_000_000), Calendar::longest);
            let limit = Limit { permits, window, calendar: by_calendar, burst: permits, queue: 0 };
            let mut rule = compiled(&format!("w{}", turn.get()), algorithms[kind], limit, turn.get() * 8);
            rule.rule.global = Some(crate::redis_store::gossip());
            let key = key(&rule, "u");
            let (mut now, windows) = (1_790_000_000_000_000_u64, limit.windows());
            let (before, budget, next_budget, others, others_before) = view;
            if by_calendar.is_some() {
                // Shortly before one ends.
                now = windows.end(windows.index(Timestamp(now)) + u64::from(permits)).0 - 2_500_000;
            }
            // Where there are no windows, what is held back was said a moment ago.
            let view = if kind < 3 {
                let window = windows.index(Timestamp(now)) + 1 - before.min(2);
                Allowance::Window(WindowAllowance { window, budget, next_budget, others, others_before })
            } else {
                let since = Timestamp(now - before * 123_457);
                let (held_back, growth, held_back_max) = (others, next_budget, budget);
                Allowance::Level(LevelAllowance { since, held_back, growth, held_back_max, capacity })
            };
            clock.set(Timestamp(now));
            if told {
                memory.set_allowance(&rule, &key, view, 7, Timestamp(now));
                redis.set_allowance(&rule, &key, view, 7, Timestamp(now));
                crate::redis_servers::until(
                    "the view to be there",
                    std::time::Duration::from_secs(2),
                    || {
                        runtime()
                            .block_on(redis.bucket(&rule, &key, rule.limit.into(), Timestamp(now)))
                            .is_some_and(|info| info.error_bound == 7)
                    },
                );
            }
            now += idle;
            for (micros, permits, act) in steps {
                now += micros;
                clock.set(Timestamp(now));
                let cost = match act {
                    0 => report((permits * 7, 60)),
                    1 => Cost::Refund(permits),
                    _ => Cost::Take(permits),
                };
                let charge = Charge {
                    rule: &rule,
                    key: &key,
                    limit,
                    share: None,
                    whole: &rule.limit,
                    first,
                    cost,
                    enforced: true,
                };
                let expected = memory.try_decide(&[charge], Intent::Charge, Timestamp(now));
                prop_assert_eq!(Some(outcome(&redis, &charge, Timestamp(now))), expected);
            }
            Ok(())
        },
    );
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn small_limits_of_a_sliding_window_are_used_in_full_in_both_stores() {
    const WINDOWS: u64 = 30;
    let server = Server::start(&[]);
    let clock = Arc::new(Clock::Manual(0.into()));
    let settings = settings(Topology::Single, vec![server.url()]);
    let redis = store(RedisSettings { clock: Some(Arc::clone(&clock)), ..settings }, 1);
    let memory = MemoryStore::new(1_000);
    for permits in 1..=10_u32 {
        let limit = Limit { permits, window: Span(2_000_000), calendar: None, burst: permits, queue: 0 };
        let rule = compiled(&format!("small{permits}"), Algorithm::SlidingWindow, limit, permits * 8);
        let key = key(&rule, "u");
        let charge = Charge {
            rule: &rule,
            key: &key,
            limit,
            share: None,
            whole: &rule.limit,
            first: None,
            cost: Cost::Take(1),
            enforced: true,
        };
        let mut admitted = 0;
        for step in 0..WINDOWS * 23 {
            let now = Timestamp(1_790_000_000_000_000 + step * limit.window.0 / 23);
            clock.set(now);
            let expected = memory.try_decide(&[charge], Intent::Charge, now).expect("memory does not wait");
            assert_eq!(outcome(&redis, &charge, now), expected);
            admitted += u64::from(expected.admitted);
        }
        assert_eq!(admitted, u64::from(permits) * WINDOWS, "of a limit of {permits}");
    }
}
