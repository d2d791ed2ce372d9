//! Gateways that behave as Envoy 1.40 was seen to, over networks that hold bytes back, break and lose.

mod client;
mod played;
mod world;

use super::{MARGIN, QuotaTerms, TTL, divide};
use crate::time::Span;
use proptest::prelude::*;

proptest! {
    #[test]
    fn terms_are_worth_no_more_than_asked(permits in 0_u64..100_000, seconds in 2_u64..17) {
        let during = Span::from_secs(seconds);
        if let Some(terms) = QuotaTerms::worth(permits, during) {
            prop_assert!(terms.worst(during) <= permits);
            prop_assert!(terms.fill_interval >= 1 && terms.tokens_per_fill >= 1 && terms.max_tokens >= 1);
            // Rounding to whole tokens takes a permit a second, and slow rates a fill.
            prop_assert!(terms.worst(during) + permits / 4 + 2 * seconds + 12 > permits, "{terms:?}");
        } else {
            prop_assert!(permits < 2);
        }
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
