//! What the memory store promises, seen through the port.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use proptest::prelude::*;

use super::MemoryStore;
use crate::core::algorithm::{Algorithm, Allowance, Limit, State, WindowAllowance};
use crate::core::key::{Key, Shape};
use crate::core::regions::escrow::RECOVERY_MARGIN;
use crate::core::request::{Cost, ReportedCost};
use crate::core::rule::{Global, Mode, OnFailure, Rule};
use crate::core::ruleset::Compiled;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::RuleName;
use crate::engine::port::{Charge, ChargeResult, Intent, Outcome, Store};

const NOW: Timestamp = Timestamp(1_790_000_000_000_000);
const MINUTE: Span = Span(60_000_000);

fn rule(algorithm: Algorithm, limit: u32, window: Span) -> Compiled {
    let rule = Rule { per: vec!["user".into()], ..Rule::new("rule", algorithm, limit, window) };
    let limit = Limit { calendar: None, permits: limit, window, burst: limit, queue: 0 };
    let named = RuleName { domain: rule.domain.clone(), name: rule.name.clone() };
    Compiled { rule, named: Arc::new(named), number: 0, shape: Shape(1), limit }
}

fn minute(limit: u32) -> Compiled {
    rule(Algorithm::FixedWindow, limit, MINUTE)
}

fn key(user: impl ToString) -> Key {
    Key::new(Shape(1), [user.to_string().as_str()])
}

fn charge<'a>(rule: &'a Compiled, key: &'a Key, cost: i64) -> Charge<'a> {
    Charge {
        rule,
        key,
        limit: rule.limit,
        share: None,
        whole: &rule.limit,
        first: None,
        cost: Cost::from_signed(cost),
        enforced: true,
    }
}

fn decide(store: &MemoryStore, charges: &[Charge<'_>], now: Timestamp) -> Outcome {
    let outcome = store.try_decide(charges, Intent::Charge, now).unwrap();
    assert_eq!(outcome.counted.len(), charges.len());
    outcome
}

#[test]
fn a_client_that_a_clock_a_year_ahead_counted_is_free_in_two_windows_however_often_it_asks() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::Gcra] {
        let (store, rule, key) = (MemoryStore::new(100), rule(algorithm, 10, MINUTE), key("u"));
        let now = Timestamp(1_700_000_000_000_000);
        let ahead = now + Span::from_secs(31_536_000);
        let report = Cost::Report(ReportedCost { permits: 1_000, debt_max: 10 });
        decide(&store, &[Charge { cost: report, ..charge(&rule, &key, 0) }], ahead);
        let seconds = (0..300).find(|second| {
            let at = now + Span::from_secs(*second);
            decide(&store, &[charge(&rule, &key, 1)], at).admitted
        });
        // A full window, and what it owes besides.
        assert!(seconds.is_some_and(|seconds| (1..=180).contains(&seconds)), "{algorithm:?}: {seconds:?}");
    }
}

#[test]
fn what_is_owed_is_kept_as_long_as_a_lowered_limit_takes_to_pay_it() {
    let debtors = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Gcra,
    ];
    for (algorithm, asked) in debtors.into_iter().flat_map(|one| [(one, Cost::Take(1)), (one, Cost::Peek)]) {
        let (store, key) = (MemoryStore::new(100), key("u"));
        let (before, lower) = (rule(algorithm, 100, MINUTE), rule(algorithm, 20, MINUTE));
        let report = Cost::Report(ReportedCost { permits: 400, debt_max: 1_000 });
        decide(&store, &[Charge { cost: report, ..charge(&before, &key, 0) }], NOW);
        assert!(!decide(&store, &[Charge { cost: asked, ..charge(&lower, &key, 0) }], NOW).admitted);
        let later = NOW + Span::from_secs(60 * 10);
        store.sweep(later);
        let counted = decide(&store, &[charge(&lower, &key, 1)], later);
        assert!(!counted.admitted, "{algorithm:?} {asked:?}: at 20 a minute it owes for 15 minutes");
    }
}

fn one(store: &MemoryStore, rule: &Compiled, key: &Key, cost: i64, now: Timestamp) -> ChargeResult {
    decide(store, &[charge(rule, key, cost)], now).counted[0]
}

fn used(store: &MemoryStore, rule: &Compiled, key: &Key) -> u64 {
    store.info(rule, key, rule.limit.into(), NOW).map_or(0, |info| info.used)
}

#[test]
fn a_worldwide_bucket_gives_back_all_that_is_asked_for_or_refuses() {
    let windows = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];
    let all = &Algorithm::OF_COSTS[..];
    let modes = [(Mode::Gossip, &windows[..]), (Mode::Split, all), (Mode::Escrow, all)];
    for (mode, algorithm) in modes.iter().flat_map(|(mode, of)| of.iter().map(|one| (*mode, *one))) {
        let (store, mut rule, key) = (MemoryStore::new(100), rule(algorithm, 100, MINUTE), key("u"));
        rule.rule.global = Some(Global::new(mode));
        one(&store, &rule, &key, 10, NOW);
        let refused = one(&store, &rule, &key, -40, NOW);
        assert!(!refused.verdict.admitted, "{mode:?} {algorithm:?}: another region charged the rest");
        assert_eq!((refused.verdict.retry, refused.returned), (None, 0), "{mode:?} {algorithm:?}");
        assert_eq!(used(&store, &rule, &key), 10, "{mode:?} {algorithm:?}");
        let done = one(&store, &rule, &key, -10, NOW);
        assert_eq!((done.verdict.admitted, done.returned), (true, 10), "{mode:?} {algorithm:?}");
    }
}

#[test]
fn a_level_that_has_begun_to_drain_gives_back_what_was_charged_to_it() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        for mode in [Mode::Split, Mode::Escrow] {
            let (store, mut rule, key) = (MemoryStore::new(100), rule(algorithm, 100, MINUTE), key("u"));
            rule.rule.global = Some(Global::new(mode));
            one(&store, &rule, &key, 10, NOW);
            let soon = NOW + Span::from_millis(50);
            assert!(!one(&store, &rule, &key, -11, soon).verdict.admitted, "{mode:?} {algorithm:?}");
            let done = one(&store, &rule, &key, -10, soon).verdict;
            assert_eq!((done.admitted, done.remaining), (true, 100), "{mode:?} {algorithm:?}");
        }
    }
}

#[test]
fn of_what_was_taken_down_for_the_next_process_nothing_is_given_back() {
    let (store, mut rule, key) = (MemoryStore::new(100), rule(Algorithm::FixedWindow, 100, MINUTE), key("u"));
    rule.rule.global = Some(Global::new(Mode::Escrow));
    one(&store, &rule, &key, 10, NOW);
    let _ = store.keep(std::iter::empty(), 1, NOW);
    let refused = one(&store, &rule, &key, -10, NOW);
    assert!(!refused.verdict.admitted && refused.verdict.retry.is_some(), "{refused:?}");
}

#[test]
fn where_one_bucket_denies_none_is_charged() {
    let store = MemoryStore::new(100);
    let (wide, narrow) = (minute(100), minute(1));
    let (a, b) = (key("a"), key("b"));
    let both = [charge(&wide, &a, 1), charge(&narrow, &b, 1)];
    assert!(decide(&store, &both, NOW).admitted);
    let denied = decide(&store, &both, NOW);
    assert!(!denied.admitted);
    assert_eq!((used(&store, &wide, &a), used(&store, &narrow, &b)), (1, 1));
    assert!(denied.counted[0].verdict.admitted && !denied.counted[1].verdict.admitted);
    assert_eq!(denied.counted[0].verdict.remaining, 99);
}

#[test]
fn one_bucket_charged_twice_in_a_decision_counts_both() {
    let store = MemoryStore::new(100);
    let (rule, a) = (minute(3), key("a"));
    assert!(!decide(&store, &[charge(&rule, &a, 2), charge(&rule, &a, 2)], NOW).admitted);
    assert_eq!(store.len().keys, 0);
    let both = decide(&store, &[charge(&rule, &a, 2), charge(&rule, &a, 1)], NOW);
    assert!(both.admitted);
    assert_eq!(both.counted[1].verdict.remaining, 0);
    assert_eq!(used(&store, &rule, &a), 3);
}

#[test]
fn a_shadow_charge_never_denies_and_counts_only_what_fits() {
    let store = MemoryStore::new(100);
    let (real, shadow) = (minute(10), minute(1));
    let (a, b) = (key("a"), key("b"));
    let charges = [charge(&real, &a, 1), Charge { enforced: false, ..charge(&shadow, &b, 1) }];
    for _ in 0..3 {
        assert!(decide(&store, &charges, NOW).admitted);
    }
    assert_eq!((used(&store, &real, &a), used(&store, &shadow, &b)), (3, 1));
    assert!(decide(&store, &charges[1..], NOW).admitted);
}

#[test]
fn a_peek_a_refund_and_a_question_make_no_bucket() {
    let store = MemoryStore::new(100);
    let (rule, a) = (minute(5), key("a"));
    assert_eq!(one(&store, &rule, &a, 0, NOW).verdict.remaining, 5);
    assert_eq!(one(&store, &rule, &a, -3, NOW).returned, 0);
    let asked = store.try_decide(&[charge(&rule, &a, 2)], Intent::Ask, NOW).unwrap();
    assert!(asked.admitted);
    assert_eq!(asked.counted[0].verdict.remaining, 3);
    assert_eq!(store.len().keys, 0);
}

#[test]
fn a_refund_gives_back_what_is_used_and_no_more() {
    let store = MemoryStore::new(100);
    let (rule, a) = (minute(5), key("a"));
    one(&store, &rule, &a, 4, NOW);
    let refund = one(&store, &rule, &a, -1, NOW);
    assert_eq!((refund.returned, refund.used, refund.verdict.remaining), (1, 3, 2));
    assert_eq!(one(&store, &rule, &a, -9, NOW).returned, 3);
    assert_eq!(one(&store, &rule, &a, 0, NOW).verdict.remaining, 5);
}

#[test]
fn a_view_that_came_before_the_bucket_is_enforced() {
    let store = MemoryStore::new(100);
    let mut rule = minute(10);
    let a = key("a");
    let window = NOW.window_index(MINUTE);
    let view = WindowAllowance { window, budget: 2, next_budget: 3, others: 8, others_before: 0 };
    let view = Allowance::Window(view);
    store.set_allowance(&rule, &a, view, 4, NOW);
    assert_eq!(
        one(&store, &rule, &a, 0, NOW).verdict.remaining,
        10,
        "a rule of this region alone has no view"
    );
    rule.rule.global = Some(Global::new(Mode::Gossip));
    let counted = one(&store, &rule, &a, 2, NOW);
    assert!(counted.verdict.admitted);
    assert_eq!((counted.verdict.remaining, counted.view, counted.error_bound), (0, Some(view), 4));
    assert!(!one(&store, &rule, &a, 1, NOW).verdict.admitted);
    // Swept in time, but not before the daemon has forgotten the bucket.
    for _ in 0..8 {
        store.sweep(NOW + MINUTE);
    }
    assert_eq!(one(&store, &rule, &a, 0, NOW + MINUTE).verdict.remaining, 3);
    for _ in 0..8 {
        store.sweep(NOW + Span(7 * MINUTE.0));
    }
    assert!(store.info(&rule, &a, rule.limit.into(), NOW).is_some());
    for _ in 0..8 {
        store.sweep(NOW + Span(10 * MINUTE.0));
    }
    assert_eq!(store.info(&rule, &a, rule.limit.into(), NOW), None);
}

#[test]
fn where_no_view_speaks_of_now_a_region_keeps_to_its_first_share() {
    let store = MemoryStore::new(100);
    let mut rule = minute(100);
    rule.rule.global = Some(Global::new(Mode::Gossip));
    let a = key("a");
    let ask = |cost, minutes| {
        let held = Charge { first: Some(20), ..charge(&rule, &a, cost) };
        decide(&store, &[held], NOW + Span(minutes * MINUTE.0)).counted[0]
    };
    let counted = ask(15, 0);
    assert_eq!((counted.verdict.admitted, counted.verdict.remaining, counted.view), (true, 5, None));
    assert!(!ask(6, 0).verdict.admitted);
    // What was told long ago holds on, though it is not told of any window of now.
    let window = NOW.window_index(MINUTE);
    let view = WindowAllowance { window, budget: 100, next_budget: 90, ..WindowAllowance::default() };
    let view = Allowance::Window(view);
    store.set_allowance(&rule, &a, view, 4, NOW);
    assert_eq!(ask(0, 5).verdict.remaining, 90);
    assert_eq!(ask(0, 6).verdict.remaining, 20);
    assert_eq!(one(&store, &rule, &a, 0, NOW + Span(6 * MINUTE.0)).verdict.remaining, 100);
}

#[test]
fn a_debt_from_elsewhere_makes_the_bucket_it_is_owed_by() {
    let store = MemoryStore::new(100);
    let (bucket, a) = (rule(Algorithm::TokenBucket, 60, MINUTE), key("a"));
    store.debit(&bucket, &a, bucket.limit, 90, NOW);
    let counted = one(&store, &bucket, &a, 1, NOW);
    assert_eq!((counted.verdict.admitted, counted.used), (false, 90));
    assert_eq!(counted.verdict.retry, Some(Span::from_secs(31)));
    store.debit(&minute(5), &key("b"), minute(5).limit, 7, NOW);
    assert_eq!(store.len().keys, 1);
}

#[test]
fn a_flood_of_new_keys_never_frees_a_bucket_at_its_limit() {
    for keys_max in [100, 5_000] {
        let store = MemoryStore::new(keys_max);
        let rule = minute(1);
        let loose = minute(1_000);
        let victims: Vec<Key> = (0..keys_max / 20).map(|user| key(format!("victim {user}"))).collect();
        for victim in &victims {
            assert!(one(&store, &rule, victim, 1, NOW).verdict.admitted);
        }
        for user in 0..keys_max * 10 {
            assert!(one(&store, &loose, &key(user), 1, NOW).verdict.admitted);
        }
        let len = store.len();
        assert!(len.keys <= keys_max && len.evicted > 0, "{len:?}");
        for victim in &victims {
            assert!(!one(&store, &rule, victim, 1, NOW).verdict.admitted);
        }
    }
}

#[test]
fn where_every_bucket_is_at_its_limit_the_failure_policy_answers_and_is_counted() {
    let store = MemoryStore::new(50);
    let open = minute(1);
    let mut closed = minute(1);
    closed.rule.on_failure = Some(OnFailure::Closed);
    for user in 0..50 {
        one(&store, &open, &key(user), 1, NOW);
    }
    let passed = one(&store, &open, &key("new"), 1, NOW);
    assert!(passed.degraded && passed.verdict.admitted);
    let refused = one(&store, &closed, &key("new"), 1, NOW);
    assert!(refused.degraded && !refused.verdict.admitted);
    // A closed one denies the whole, and nothing stays charged.
    let seen = key(7);
    let next = NOW + MINUTE;
    let new = key("new");
    let both = [charge(&open, &seen, 1), charge(&closed, &new, 1)];
    let outcome = store.try_decide(&both, Intent::Charge, NOW).unwrap();
    assert!(!outcome.admitted);
    assert_eq!(store.len().full, 2);
    assert!(decide(&store, &both, next).admitted, "room comes as buckets expire");
    assert_eq!(store.len().keys_max, 50);
}

#[test]
fn newcomers_for_whom_there_is_no_room_share_a_bucket_of_their_rule() {
    let store = MemoryStore::new(50);
    let rule = minute(1);
    for user in 0..50 {
        one(&store, &rule, &key(user), 1, NOW);
    }
    let new = |now: Timestamp, user: usize| one(&store, &rule, &key(format!("new {user}")), 1, now);
    let passed = (0..2_000).filter(|user| new(NOW, *user).verdict.admitted).count();
    // Each part of the keys has a bucket of its own.
    assert!((1..=50).contains(&passed), "{passed}");
    let same = (0..20).filter(|_| new(NOW, 7).verdict.admitted).count();
    assert_eq!(same, 0);
    let (used, other) = (key(3), key("newest"));
    let both = [charge(&rule, &used, 1), charge(&rule, &other, 1)];
    assert!(!store.try_decide(&both, Intent::Charge, NOW).unwrap().admitted);
}

#[test]
fn a_decision_that_finds_no_room_for_one_bucket_leaves_no_other_behind() {
    let store = MemoryStore::new(50);
    let open = minute(1);
    let mut closed = minute(1);
    closed.rule.on_failure = Some(OnFailure::Closed);
    for user in 0..49 {
        one(&store, &open, &key(user), 1, NOW);
    }
    let (a, b) = (key("a"), key("b"));
    let outcome = decide(&store, &[charge(&open, &a, 1), charge(&closed, &b, 1)], NOW);
    assert!(!outcome.admitted);
    assert!(outcome.counted[1].degraded);
    assert_eq!(store.len().keys, 49);
    assert!(one(&store, &open, &a, 1, NOW).verdict.admitted);
}

#[test]
fn expired_buckets_are_swept() {
    let store = MemoryStore::new(10_000);
    let rule = minute(3);
    for user in 0..5_000 {
        one(&store, &rule, &key(user), 1, NOW);
    }
    let end = NOW + MINUTE;
    for _ in 0..40 {
        store.sweep(end);
    }
    assert_eq!(store.len().keys, 0);
    assert_eq!(store.len().evicted, 0);
}

#[test]
fn a_reset_bucket_counts_from_zero() {
    let store = MemoryStore::new(100);
    let (rule, a) = (minute(1), key("a"));
    one(&store, &rule, &a, 1, NOW);
    assert!(store.reset(&a));
    assert!(!store.reset(&a));
    assert!(one(&store, &rule, &a, 1, NOW).verdict.admitted);
}

#[test]
fn a_panic_while_deciding_does_not_take_the_store_down() {
    let store = MemoryStore::new(100);
    let (rule, a) = (minute(2), key("a"));
    one(&store, &rule, &a, 1, NOW);
    std::thread::scope(|scope| {
        let poison = scope.spawn(|| {
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| store.poison(&a)));
        });
        poison.join().unwrap();
    });
    assert!(one(&store, &rule, &a, 1, NOW).verdict.admitted);
    assert!(!one(&store, &rule, &a, 1, NOW).verdict.admitted);
}

#[test]
fn all_or_nothing_holds_under_threads() {
    let store = MemoryStore::new(100_000);
    let (shared, own) = (minute(20_000), minute(6_000));
    let everyone = key("everyone");
    let users: Vec<Key> = (0..4).map(|user| key(format!("user {user}"))).collect();
    let admitted: Vec<u64> = std::thread::scope(|scope| {
        let ask = |turn: usize| {
            let (store, shared, own, everyone, users) = (&store, &shared, &own, &everyone, &users);
            move || {
                let mut admitted = 0;
                for step in 0..10_000 {
                    let user = &users[(turn + step) % users.len()];
                    let forth = [charge(shared, everyone, 1), charge(own, user, 1)];
                    let back = [charge(own, user, 1), charge(shared, everyone, 1)];
                    let outcome = decide(store, if step % 2 == 0 { &forth } else { &back }, NOW);
                    admitted += u64::from(outcome.admitted);
                }
                admitted
            }
        };
        let threads: Vec<_> = (0..3).map(|turn| scope.spawn(ask(turn))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let admitted: u64 = admitted.iter().sum();
    assert_eq!(admitted, 20_000);
    assert_eq!(used(&store, &shared, &everyone), admitted);
    let by_user: u64 = users.iter().map(|user| used(&store, &own, user)).sum();
    assert_eq!(by_user, admitted);
}

#[test]
fn one_hot_bucket_admits_its_limit_exactly_under_threads() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::Gcra] {
        let (store, rule, a) = (MemoryStore::new(1_000), rule(algorithm, 5_000, MINUTE), key("a"));
        let admitted: usize = std::thread::scope(|scope| {
            let ask = || (0..4_000).filter(|_| one(&store, &rule, &a, 1, NOW).verdict.admitted).count();
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 5_000, "{algorithm:?}");
    }
}

#[test]
fn a_new_memory_admits_nothing_of_a_sliding_bucket_while_what_it_cannot_know_still_counts() {
    let margin = RECOVERY_MARGIN;
    for (algorithm, closed) in
        [(Algorithm::SlidingLog, MINUTE + margin), (Algorithm::SlidingWindow, MINUTE + MINUTE + margin)]
    {
        let mut rule = rule(algorithm, 5, MINUTE);
        rule.rule.global = Some(Global::new(Mode::Escrow));
        let (store, a) = (MemoryStore::new(100).begun(NOW), key("a"));
        let admitted = |at| one(&store, &rule, &a, 1, at).verdict.admitted;
        let last = NOW + Span(closed.0 - 1);
        assert!(!admitted(NOW) && !admitted(last), "{algorithm:?}");
        assert!(admitted(NOW + closed), "{algorithm:?}");
    }
}

proptest! {
    /// A plain map of states, asked one after the other on a copy that is kept only if all agree.
    #[test]
    fn it_decides_as_a_plain_map_of_states_does(
        decisions in proptest::collection::vec(
            (proptest::collection::vec((0..12_usize, -3..6_i64, any::<bool>()), 1..5), 0..20_000_000_u64), 1..60),
    ) {
        let store = MemoryStore::new(5_000);
        let rules: Vec<Compiled> =
            Algorithm::OF_COSTS.iter().map(|algorithm| rule(*algorithm, 7, Span::from_secs(30))).collect();
        let keys: Vec<Key> = (0..12).map(key).collect();
        let mut states: HashMap<usize, State> = HashMap::new();
        let mut now = NOW;
        for (asked, later) in decisions {
            now = now + Span(later);
            // Refunds within a decision that also takes from the same bucket have no order to compare.
            let charges: Vec<Charge<'_>> = asked
                .iter()
                .map(|(which, cost, enforced)| {
                    let cost = if asked.len() > 1 { (*cost).max(1) } else { *cost };
                    Charge { enforced: *enforced, ..charge(&rules[which % 6], &keys[*which], cost) }
                })
                .collect();
            let mut copy = states.clone();
            let mut admitted = true;
            for (charge, (which, ..)) in charges.iter().zip(&asked) {
                let state = copy.entry(*which).or_insert_with(|| State::new(charge.rule.rule.algorithm));
                let limit = &charge.limit;
                let fits = state.check(limit, None, now, charge.cost.taken()).admitted;
                match charge.cost {
                    Cost::Refund(permits) => { state.refund(limit, now, permits); }
                    Cost::Take(permits) if fits => state.take(limit, now, permits),
                    _ => admitted &= fits || !charge.enforced,
                }
            }
            if admitted {
                states = copy;
            }
            let outcome = decide(&store, &charges, now);
            prop_assert_eq!(outcome.admitted, admitted);
            for (charge, (which, ..)) in charges.iter().zip(&asked) {
                let expected = states.get(which).map_or(0, |state| state.used(&charge.limit, now));
                prop_assert_eq!(store.info(charge.rule, charge.key, charge.held(), now).map_or(0, |info| info.used), expected);
            }
        }
    }
}
