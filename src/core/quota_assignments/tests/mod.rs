//! Gateways that behave as Envoy 1.40 was seen to, over networks that hold bytes back, break and lose.

mod client;
mod played;
mod usage;
mod world;

use std::sync::Arc;

use super::{BucketAssignments, MARGIN, QuotaTable, QuotaTerms, RightsLeft, TTL, divide};
use crate::time::{Span, Timestamp};
use proptest::prelude::*;

proptest! {
    #[test]
    fn an_amount_is_worth_what_is_asked(permits in 0_u64..100_000, seconds in 2_u64..17) {
        if let Some(terms) = QuotaTerms::amount(permits) {
            let worst = terms.worst(Span::from_secs(seconds));
            prop_assert!(worst == permits || permits < 4 && worst <= permits, "{terms:?}");
            prop_assert!(terms.is_amount());
        } else {
            prop_assert!(permits < 2);
        }
    }

    #[test]
    fn an_amount_and_a_rate_are_told_apart_by_their_tokens(permits in 4_u64..20_000, rate in 0_u64..20_000) {
        let (amount, rate) = (QuotaTerms::amount(permits).unwrap(), QuotaTerms::of_rate(rate));
        let tokens = |terms: QuotaTerms| (terms.max_tokens, terms.tokens_per_fill);
        prop_assert!(tokens(amount) != tokens(rate) && !rate.is_amount());
    }

    #[test]
    fn terms_that_differ_are_told_apart_by_their_tokens(a in 0_u64..20_000, b in 0_u64..20_000) {
        let (before, after) = (QuotaTerms::of_rate(a), QuotaTerms::of_rate(b));
        let tokens = |terms: QuotaTerms| (terms.max_tokens, terms.tokens_per_fill);
        prop_assert!(tokens(before) != tokens(after) || before == after);
    }

    #[test]
    fn no_stream_has_more_than_it_needs_and_all_together_what_there_is(
        whole in 0_u64..100_000, needs in proptest::collection::vec(0_u64..50_000, 0..9)
    ) {
        let level = divide::level(whole, &mut needs.clone());
        let given: u64 = needs.iter().map(|need| (*need).min(level)).sum();
        prop_assert!(given <= whole);
        let missing = needs.iter().any(|need| *need > level);
        prop_assert!(!missing || whole - given < 9, "{given} of {whole}");
    }
}

#[test]
fn an_assignment_outlives_two_lost_reports() {
    assert!(TTL >= Span::from_secs(2 * 5 + 1) && MARGIN > Span::ZERO);
}

#[test]
fn buckets_that_nobody_can_spend_of_give_way_to_others_before_their_window_ends() {
    let now = Timestamp(1_800_000_000_000_000);
    let mut table = QuotaTable::new(2);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| Arc::<[u8]>::from(name.as_bytes()));
    for name in [&a, &b] {
        table.join(1, name, now).unwrap();
        table.enter(name, now + Span::from_secs(86_400 * 30), now);
    }
    assert!(table.join(1, &c, now).is_err(), "both are in use");
    table.leave(1, &a, now);
    table.join(1, &c, now).unwrap();
    assert!(table.get(&a).is_none() && table.get(&b).is_some());
    assert!(table.join(1, &d, now).is_err() && table.len() == 2);
}

#[test]
fn the_bucket_gives_way_that_may_be_spent_of_for_the_shortest_time() {
    const MANY: u64 = 200;
    let begins = Timestamp(1_800_000_000_000_000);
    // Of a window that has just begun nothing is assigned.
    let (at, ends) = (begins + Span::from_secs(10), begins + Span::from_secs(86_400));
    let left = RightsLeft { permits: 900, begins, ends, may_grow: false };
    let named = |number: u64| Arc::<[u8]>::from(format!("{number:06}").as_bytes());
    let mut table = QuotaTable::new(200);
    for number in 0..MANY {
        let name = named(number);
        table.join(number, &name, at).unwrap();
        table.enter(&name, ends, at);
        // Those whose names come first may be delivered, and spent of, for a while.
        if number < MANY / 2 {
            let bucket = table.get(&name).unwrap();
            let plan = bucket.plan(number, left, at).unwrap();
            assert!(bucket.assign(number, plan, true, at).is_some());
            bucket.written(number, at);
        }
        table.leave(number, &name, at);
    }
    assert_eq!(table.len(), 200);
    let mut come = |seconds: u64, first: u64| {
        let now = at + Span::from_secs(seconds);
        (first..).take_while(|number| table.join(*number, &named(*number), now).is_ok()).count()
    };
    assert_eq!(come(1, 1_000), 100, "as many as nobody can spend of");
    assert_eq!(come(149, 2_000), 0);
    assert_eq!(come(151, 3_000), 100);
    // Pairs are bounded as well.
    assert!(
        table.join(9, &named(1_000), at + Span::from_secs(152)).is_err(),
        "there is no room for the pair"
    );
    table.leave(1_000, &named(1_000), at + Span::from_secs(152));
    assert_eq!(table.len(), 199, "nothing of it has to be remembered");
}

#[test]
fn nothing_is_assigned_before_what_is_carried_into_a_window_is_charged() {
    let (begins, stream) = (Timestamp(1_800_000_000_000_000), 7);
    let left = |index: u64| {
        let begins = begins + Span::from_secs(60 * index);
        RightsLeft { permits: 900, begins, ends: begins + Span::from_secs(60), may_grow: false }
    };
    let mut bucket = BucketAssignments::default();
    bucket.join(stream);
    bucket.enter(left(0).ends, begins);
    let at = begins + Span::from_secs(40);
    let plan = bucket.plan(stream, left(0), at).unwrap();
    assert!(bucket.assign(stream, plan, true, at).is_some());
    // It is not known when the assignment came, so it may be spent in the next window as well.
    let next = left(1).begins + Span::from_secs(5);
    let carried = bucket.turn(next);
    bucket.enter(left(1).ends, next);
    bucket.join(8);
    assert!(carried > 0 && bucket.plan(8, left(1), next).is_none());
    bucket.carried(carried);
    assert!(bucket.plan(8, left(1), next).is_some());
}

#[test]
fn a_receipt_is_overdue_only_where_an_assignment_is_under_way() {
    let (begins, stream) = (Timestamp(1_800_000_000_000_000), 7);
    let left = RightsLeft { permits: 900, begins, ends: begins + Span::from_secs(3_600), may_grow: false };
    let at = |millis: u64| begins + Span::from_millis(10_000 + millis);
    let mut bucket = BucketAssignments::default();
    bucket.join(stream);
    bucket.enter(left.ends, at(0));
    assert!(!bucket.is_overdue(stream, at(60_000)), "nothing was sent");
    let plan = bucket.plan(stream, left, at(0)).unwrap();
    assert!(bucket.assign(stream, plan, true, at(0)).is_some());
    bucket.written(stream, at(10));
    assert!(!bucket.is_overdue(stream, at(7_400)));
    assert!(bucket.is_overdue(stream, at(7_500)));
    bucket.received(stream, at(9), at(7_000));
    assert!(bucket.is_overdue(stream, at(7_500)), "a PING from before proves nothing");
    bucket.received(stream, at(20), at(7_100));
    assert!(!bucket.is_overdue(stream, at(60_000)));
}
