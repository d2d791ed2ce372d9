//! Rate-limit headers, wherever HTTP carries the answer.
//!
//! `X-RateLimit-*` as most clients know them, for the tightest rule; `RateLimit-Policy` and `RateLimit` as in
//! draft-ietf-httpapi-ratelimit-headers-10, one item for each rule that is enforced. A request that no rule
//! counted gets none.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::core::answer::PartitionKey;
use crate::core::decision::{Decision, RuleOutcome};
use crate::core::request::Cost;
use crate::core::rule::Action;
use crate::core::time::{Span, Timestamp};

static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static X_COST: HeaderName = HeaderName::from_static("x-ratelimit-cost");
/// The reason why a request was denied, by rules that want that told.
pub(super) const X_CAUSE: &str = "x-ratelimit-cause";
/// The thing to use instead of what was asked for, of a request that passes.
pub(super) const X_USE: &str = "x-tidegate-use";
/// Milliseconds for which `throttle` has the gateway hold the request back.
pub(super) const X_DELAY: &str = "x-ratelimit-delay-ms";
static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// Largest integer of a structured field (RFC 9651).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// True if this rule counted the request: `allow` and `block` count nothing.
pub(super) const fn counted(ruled: &RuleOutcome) -> bool {
    !matches!(ruled.action, Action::Allow | Action::Block)
}

/// Whole seconds until a denied request may be tried again, at least 1; `None` when it may pass now or never
/// can.
///
/// The algorithm makes it (`Verdict::retry`). The store alters it: for a penalty (`core/penalty.rs`), for
/// rights on their way or a recovery (`store/rights.rs`; of Redis `batch/replay.rs`), for reservations
/// (`store/slot.rs`), for split keys and remembered denials (`store/redis/policy`). The failure policy makes
/// it where the store has no answer or no room (`policy/fallback.rs`, `store/slot.rs`). Then
/// `engine/decide.rs` makes or shortens it for a first share, makes it where the regions have not agreed yet,
/// drops it where no wait would help, and takes that of the rule that denies longest. Identities that are
/// refused have their own (`engine/refusal.rs`), and so has a daemon that is not ready (`reply.rs`).
pub(super) fn retry_after(decision: &Decision) -> Option<u64> {
    if decision.allowed {
        return None;
    }
    let retry = decision.rules.get(decision.tightest?)?.retry?;
    Some(retry.secs_up().max(1))
}

/// Milliseconds for which an admitted request is to be held back, if any are left.
pub(super) fn delay(decision: &Decision) -> Option<u64> {
    Some(decision.delay().millis_up()).filter(|millis| *millis > 0)
}

/// Adds the headers of this decision.
pub(super) fn add(headers: &mut HeaderMap, decision: &Decision, cost: Cost, now: Timestamp) {
    if let Some(seconds) = retry_after(decision) {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    for (name, value) in decision.headers() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.entry(name).or_insert(value);
        }
    }
    if let Some(cause) = decision.told_cause() {
        headers.insert(HeaderName::from_static(X_CAUSE), HeaderValue::from_static(cause.as_str()));
    }
    if let Some(Ok(named)) = decision.use_instead().map(HeaderValue::try_from) {
        headers.insert(HeaderName::from_static(X_USE), named);
    }
    if let Some(millis) = delay(decision) {
        headers.insert(HeaderName::from_static(X_DELAY), HeaderValue::from(millis));
    }
    let tightest = decision.tightest.and_then(|index| decision.rules.get(index));
    let Some(tightest) = tightest.filter(|ruled| counted(ruled)) else { return };
    let reset = Span((now + tightest.reset).micros()).secs_up();
    headers.insert(&X_LIMIT, HeaderValue::from(tightest.limit));
    headers.insert(&X_REMAINING, HeaderValue::from(tightest.remaining));
    headers.insert(&X_RESET, HeaderValue::from(reset));
    headers.insert(&X_COST, HeaderValue::from(cost.to_signed()));
    let (mut policy, mut status) = (String::with_capacity(64), String::with_capacity(64));
    for ruled in decision.rules.iter().filter(|ruled| counted(ruled) && !ruled.shadow) {
        push_item(&mut policy, &mut status, ruled);
    }
    for (name, text) in [(&POLICY, policy), (&STATUS, status)] {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
}

/// `"name";q=100;w=60` and `"name";r=0;t=32`.
fn push_item(policy: &mut String, status: &mut String, ruled: &RuleOutcome) {
    for text in [&mut *policy, &mut *status] {
        if !text.is_empty() {
            text.push_str(", ");
        }
        push_name(text, &ruled.rule);
    }
    // Writing to a string cannot fail.
    let _ = write!(policy, ";q={}", ruled.limit);
    let window = ruled.window.micros();
    // The draft's window is a whole number of seconds, and may be left out. Places that are held at once have
    // a unit and no window.
    let options = ruled.answer.as_deref();
    if let Some(unit) = options.and_then(|options| options.unit.as_deref()) {
        policy.push_str(";qu=");
        push_name(policy, unit);
    } else if window == 0 {
        policy.push_str(";qu=\"concurrent-requests\"");
    }
    if window > 0 && window.is_multiple_of(1_000_000) {
        let _ = write!(policy, ";w={}", window / 1_000_000);
    }
    let _ =
        write!(status, ";r={};t={}", ruled.remaining.min(INTEGER_MAX), ruled.more.secs_up().min(INTEGER_MAX));
    if let Some(PartitionKey(bytes)) = &ruled.partition {
        for text in [policy, status] {
            let _ = write!(text, ";pk=:{}:", STANDARD.encode(bytes));
        }
    }
}

/// The name as a string of a structured field, which holds printable ASCII alone; anything else becomes `_`.
fn push_name(text: &mut String, name: &str) {
    text.push('"');
    for character in name.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            ' '..='~' => text.push(character),
            _ => text.push('_'),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::answer::AnswerOptions;
    use crate::core::decision::AnswerGuards;
    use proptest::prelude::*;

    fn ruled(name: &str, remaining: u64) -> RuleOutcome {
        RuleOutcome {
            rule: name.into(),
            action: Action::Reject,
            allowed: true,
            shadow: false,
            limit: 100,
            window: Span::from_secs(60),
            remaining,
            reset: Span(31_250_000),
            more: Span(31_250_000),
            retry: None,
            cause: None,
            delay: Span::ZERO,
            degraded: false,
            global: None,
            answer: None,
            partition: None,
            priced: None,
            penalty: None,
            warning: false,
            beyond: None,
        }
    }

    fn allowed(rules: Vec<RuleOutcome>) -> Decision {
        Decision {
            allowed: true,
            tightest: Some(0),
            status: 200,
            message: None,
            lease: None,
            guards: AnswerGuards::default(),
            rules,
        }
    }

    fn text(decision: &Decision) -> String {
        let mut headers = HeaderMap::new();
        add(&mut headers, decision, Cost::Take(2), Timestamp(1_700_000_000_500_000));
        let mut lines: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines.join("\n")
    }

    #[test]
    fn an_allowed_request_learns_its_limit() {
        let expected = "ratelimit-policy: \"search\";q=100;w=60\nratelimit: \"search\";r=7;t=32\n\
            x-ratelimit-cost: 2\nx-ratelimit-limit: 100\nx-ratelimit-remaining: 7\nx-ratelimit-reset: 1700000032";
        assert_eq!(text(&allowed(vec![ruled("search", 7)])), expected);
    }

    #[test]
    fn a_denied_request_learns_when_to_come_back() {
        let mut rule = ruled("search", 0);
        rule.allowed = false;
        rule.retry = Some(Span(1));
        let mut decision = allowed(vec![rule]);
        decision.allowed = false;
        assert!(text(&decision).starts_with("ratelimit-policy"));
        assert!(text(&decision).contains("retry-after: 1\n"));
        decision.rules[0].retry = None;
        assert!(!text(&decision).contains("retry-after"));
    }

    #[test]
    fn every_enforced_rule_has_an_item_and_shadow_rules_have_none() {
        let (mut shadow, mut block) = (ruled("shadow", 1), ruled("exempt", 1));
        shadow.shadow = true;
        block.action = Action::Allow;
        let text = text(&allowed(vec![ruled("a", 1), shadow, block, ruled("b", 2)]));
        assert!(text.contains("ratelimit: \"a\";r=1;t=32, \"b\";r=2;t=32"), "{text}");
    }

    #[test]
    fn a_request_that_no_rule_counted_gets_no_headers() {
        let mut decision = allowed(vec![]);
        decision.tightest = None;
        assert_eq!(text(&decision), "");
        let mut block = ruled("block", 0);
        block.action = Action::Block;
        decision = Decision { allowed: false, status: 403, ..allowed(vec![block]) };
        assert_eq!(text(&decision), "");
    }

    #[test]
    fn a_delay_that_is_left_is_told_and_none_of_a_denial() {
        let mut rule = ruled("a", 1);
        rule.delay = Span(250_001);
        let mut decision = allowed(vec![rule]);
        assert!(text(&decision).contains("x-ratelimit-delay-ms: 251\n"));
        decision.was_held(Span(200_001));
        assert!(text(&decision).contains("x-ratelimit-delay-ms: 50\n"));
        decision.was_held(Span(50_000));
        assert!(!text(&decision).contains("delay"));
        decision.rules[0].delay = Span(1);
        decision.allowed = false;
        assert!(!text(&decision).contains("delay"));
    }

    #[test]
    fn a_thing_to_use_instead_is_told_of_a_request_that_passes() {
        let mut rule = ruled("budget", 0);
        rule.allowed = false;
        let use_instead = Some("small-model".to_owned());
        rule.answer = Some(std::sync::Arc::new(AnswerOptions { use_instead, ..AnswerOptions::default() }));
        let mut decision = allowed(vec![rule]);
        assert!(text(&decision).contains("x-tidegate-use: small-model"), "{}", text(&decision));
        decision.allowed = false;
        assert!(!text(&decision).contains("x-tidegate-use"), "another rule denies it");
        decision.allowed = true;
        decision.rules[0].shadow = true;
        assert!(!text(&decision).contains("x-tidegate-use"), "it only logs");
    }

    #[test]
    fn a_window_of_broken_seconds_is_left_out() {
        let mut rule = ruled("a", 1);
        rule.window = Span::from_millis(1_500);
        assert!(text(&allowed(vec![rule])).starts_with("ratelimit-policy: \"a\";q=100\n"));
    }

    #[test]
    fn what_is_held_at_once_says_so_and_has_no_window() {
        let mut rule = ruled("a", 1);
        rule.window = Span::ZERO;
        let policy = "ratelimit-policy: \"a\";q=100;qu=\"concurrent-requests\"\n";
        assert!(text(&allowed(vec![rule])).starts_with(policy));
    }

    #[test]
    fn a_unit_and_a_partition_key_are_parameters_of_their_items() {
        let mut rule = ruled("a", 1);
        let unit = Some("tokens".to_owned());
        rule.answer = Some(std::sync::Arc::new(AnswerOptions { unit, ..AnswerOptions::default() }));
        rule.partition = Some(PartitionKey([7; 12]));
        let text = text(&allowed(vec![rule]));
        assert!(
            text.contains("ratelimit-policy: \"a\";q=100;qu=\"tokens\";w=60;pk=:BwcHBwcHBwcHBwcH:\n"),
            "{text}"
        );
        assert!(text.contains("ratelimit: \"a\";r=1;t=32;pk=:BwcHBwcHBwcHBwcH:\n"), "{text}");
    }

    #[test]
    fn names_are_quoted_as_structured_fields_want() {
        let text = text(&allowed(vec![ruled("a\"b\\c\r\n\u{e9}", 1)]));
        assert!(text.contains(r#"ratelimit: "a\"b\\c___";r=1"#), "{text}");
    }

    proptest! {
        #[test]
        fn any_name_makes_a_header(name in ".*") {
            let decision = allowed(vec![ruled(&name, 1)]);
            prop_assert!(text(&decision).contains("ratelimit-policy: "));
        }
    }
}
