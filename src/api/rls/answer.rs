//! Envoy's `RateLimitResponse`, written straight into one buffer.
//!
//! Only what Envoy reads: the codes, the tightest rule of each descriptor, and for a denial `retry-after` and
//! the rule's text as the body. Envoy makes the `x-ratelimit-*` headers of it by itself.

use std::borrow::Cow;

use prost::bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use smallvec::SmallVec;

use super::in_flight;
use crate::api::headers::{X_CAUSE, X_DELAY, X_USE, counted, delay, retry_after};
use crate::api::problem;
use crate::core::decision::{Decision, RuleOutcome};
use crate::core::request::{Cost, Request};
use crate::core::time::Span;

pub(super) const CODE_OK: u64 = 1;
pub(super) const CODE_OVER_LIMIT: u64 = 2;
/// `response_headers_to_add`: to the answer that the client gets.
pub(super) const RESPONSE_HEADER: u32 = 3;
/// `request_headers_to_add`: to the request, on its way to the service.
const REQUEST_HEADER: u32 = 4;
/// Flag and length before a message.
pub(super) const PREFIX_BYTES: usize = 5;
/// Room for an answer with one descriptor.
const USUAL_BYTES: usize = 96;

/// True if a descriptor is over its limit. A peek is when nothing is left.
pub(super) fn over_limit(request: &Request<'_>, decision: &Decision) -> bool {
    let is_spent = |ruled: &RuleOutcome| ruled.remaining == 0 && ruled.beyond.is_none();
    let nothing_left = || match tightest(decision) {
        // It lets the request pass, so the others say.
        Some(ruled) if ruled.use_instead().is_some() => {
            let others = decision.rules.iter().filter(|ruled| counted(ruled) && !ruled.shadow);
            others.filter(|ruled| ruled.use_instead().is_none()).any(is_spent)
        }
        tightest => tightest.is_some_and(is_spent),
    };
    !decision.allowed || (request.cost == Cost::Peek && nothing_left())
}

/// The rule that the answer speaks of: the tightest, if it counts.
fn tightest(decision: &Decision) -> Option<&RuleOutcome> {
    decision.rules.get(decision.tightest?).filter(|ruled| counted(ruled))
}

/// Writes a message, with the prefix that gRPC puts before it.
pub(super) fn framed(answers: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut message = BytesMut::with_capacity(USUAL_BYTES.saturating_mul(answers.max(1)));
    message.put_bytes(0, PREFIX_BYTES);
    write(&mut message);
    let len = u32::try_from(message.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    if let Some(prefix) = message.get_mut(1..PREFIX_BYTES) {
        prefix.copy_from_slice(&len.to_be_bytes());
    }
    message.freeze()
}

/// The answer to a report, which has no other: a client that was answered is not denied afterwards.
pub(super) fn reported() -> Bytes {
    framed(1, |message| number(1, CODE_OK, message))
}

/// The answer to who reserves: the reservation by its text, or none where it is denied.
pub(super) fn reserved(reservation: Option<&str>) -> Bytes {
    framed(1, |message| {
        number(1, if reservation.is_some() { CODE_OK } else { CODE_OVER_LIMIT }, message);
        if let Some(text) = reservation.filter(|text| !text.is_empty()) {
            begin(2, text.len(), message);
            message.extend_from_slice(text.as_bytes());
        }
    })
}

/// The answer to a commit: whether it released what was reserved.
pub(super) fn committed(released: bool) -> Bytes {
    framed(1, |message| number(1, u64::from(released), message))
}

/// Writes the answer, with the prefix that gRPC puts before a message.
pub(super) fn encode(requests: &[Request<'_>], decisions: &[Decision]) -> Bytes {
    framed(decisions.len(), |message| decided(requests, decisions, message))
}

/// `RateLimitResponse`.
fn decided(requests: &[Request<'_>], decisions: &[Decision], message: &mut BytesMut) {
    let over = |(request, decision): (&Request<'_>, &Decision)| over_limit(request, decision);
    let any_over = requests.iter().zip(decisions).any(over);
    number(1, if any_over { CODE_OVER_LIMIT } else { CODE_OK }, message);
    for (request, decision) in requests.iter().zip(decisions) {
        status(request, decision, message);
    }
    if any_over {
        denial(decisions, message);
    } else {
        // For the client, and for the service behind Envoy: either may keep the delay, or use what is named.
        if let Some(millis) = decisions.iter().filter_map(delay).max() {
            header(RESPONSE_HEADER, X_DELAY, &millis.to_string(), message);
            header(REQUEST_HEADER, X_DELAY, &millis.to_string(), message);
        }
        if let Some(named) = use_instead(decisions) {
            header(RESPONSE_HEADER, X_USE, named, message);
            header(REQUEST_HEADER, X_USE, named, message);
        }
    }
    rule_headers(decisions, any_over, message);
    if any_over {
        body(decisions, message);
        return;
    }
    let lease = in_flight::lease_of(decisions);
    let texts = [("lease", lease.as_deref()), ("use", use_instead(decisions))];
    metadata(texts.into_iter().filter_map(|(name, text)| Some((name, text?))), message);
}

/// The thing to use instead, of a call that passes: the first descriptor's that has one.
fn use_instead(decisions: &[Decision]) -> Option<&str> {
    decisions.iter().find_map(Decision::use_instead)
}

/// `DescriptorStatus`.
fn status(request: &Request<'_>, decision: &Decision, message: &mut BytesMut) {
    let over = over_limit(request, decision);
    let ruled = tightest(decision).or_else(|| decision.rules.iter().find(|ruled| told_as(ruled).is_some()));
    let line = StatusLine {
        over,
        limit: ruled.map(|ruled| CurrentLimit {
            permits: ruled.limit,
            window: ruled.window,
            name: told_as(ruled).unwrap_or(&ruled.rule),
            reset: ruled.reset,
        }),
        remaining: ruled.map_or(0, |ruled| ruled.remaining),
    };
    write_status(&line, message);
}

/// The name by which its rule wants it told.
fn told_as(ruled: &RuleOutcome) -> Option<&str> {
    ruled.answer.as_ref()?.told_as.as_deref()
}

/// What a descriptor is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatusLine<'a> {
    /// Whether it is over its limit.
    pub(super) over: bool,
    /// Its limit.
    pub(super) limit: Option<CurrentLimit<'a>>,
    /// Permits left.
    pub(super) remaining: u64,
}

/// The limit of which a descriptor is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CurrentLimit<'a> {
    /// Permits per window.
    pub(super) permits: u32,
    /// The window.
    pub(super) window: Span,
    /// Its name.
    pub(super) name: &'a str,
    /// Until the window ends.
    pub(super) reset: Span,
}

/// Writes a `DescriptorStatus`.
pub(super) fn write_status(line: &StatusLine<'_>, message: &mut BytesMut) {
    let code = if line.over { CODE_OVER_LIMIT } else { CODE_OK };
    let remaining = line.remaining.min(u64::from(u32::MAX));
    let Some(limit) = &line.limit else {
        begin(2, number_len(code) + number_len(remaining), message);
        number(1, code, message);
        number(3, remaining, message);
        return;
    };
    let (permits, unit, name) = (u64::from(limit.permits), unit(limit.window), limit.name.as_bytes());
    let name_len = if name.is_empty() { 0 } else { bytes_len(name.len()) };
    let limit_len = number_len(permits) + number_len(unit) + name_len;
    // Envoy cuts off the part of a second: a client that comes back then would be a moment too early.
    let seconds = limit.reset.secs_up();
    let reset_len = number_len(seconds);
    let len = number_len(code) + bytes_len(limit_len) + number_len(remaining) + bytes_len(reset_len);
    begin(2, len, message);
    number(1, code, message);
    begin(2, limit_len, message);
    number(1, permits, message);
    number(2, unit, message);
    if !name.is_empty() {
        begin(3, name.len(), message);
        message.extend_from_slice(name);
    }
    number(3, remaining, message);
    begin(4, reset_len, message);
    number(1, seconds, message);
}

/// `retry-after` once every denying descriptor would pass.
fn denial(decisions: &[Decision], message: &mut BytesMut) {
    let denied = || decisions.iter().filter(|decision| !decision.allowed);
    let retry = denied().map(retry_after).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
    if let Some(seconds) = retry {
        header(RESPONSE_HEADER, "retry-after", &seconds.to_string(), message);
    }
    if let Some(cause) = denied().find_map(Decision::told_cause) {
        header(RESPONSE_HEADER, X_CAUSE, cause.as_str(), message);
    }
}

/// The rules' own headers, each name once: those of the denying rules, or of all where the call passes.
fn rule_headers(decisions: &[Decision], any_over: bool, message: &mut BytesMut) {
    let mut told: SmallVec<[&str; 4]> = SmallVec::new();
    for (name, value) in decisions.iter().filter(|one| one.allowed != any_over).flat_map(Decision::headers) {
        if !told.contains(&name) {
            told.push(name);
            header(RESPONSE_HEADER, name, value, message);
        }
    }
}

/// What the client reads: the first denying rule's text, or its problem document.
fn body(decisions: &[Decision], message: &mut BytesMut) {
    let text = decisions.iter().filter(|decision| !decision.allowed).find_map(|decision| {
        let document = problem::of_denial(decision, false, false)
            .map(|document| (Cow::Owned(document), Some(problem::PROBLEM_JSON)));
        let own = || Some((Cow::Borrowed(decision.message.as_deref()?.as_bytes()), decision.message_type()));
        document.or_else(own)
    });
    let Some((text, media_type)) = text else { return };
    if let Some(media_type) = media_type {
        header(RESPONSE_HEADER, "content-type", media_type, message);
    }
    begin(5, text.len(), message);
    message.extend_from_slice(&text);
}

/// `dynamic_metadata`, of these texts by name. None at all where there are none; a field that comes again is
/// merged with the one before, so each text is a message of its own.
fn metadata<'t>(texts: impl Iterator<Item = (&'static str, &'t str)>, message: &mut BytesMut) {
    for (name, text) in texts {
        let value_len = bytes_len(text.len());
        let entry_len = bytes_len(name.len()) + bytes_len(value_len);
        begin(6, bytes_len(entry_len), message);
        begin(1, entry_len, message);
        begin(1, name.len(), message);
        message.extend_from_slice(name.as_bytes());
        begin(2, value_len, message);
        begin(3, text.len(), message);
        message.extend_from_slice(text.as_bytes());
    }
}

/// `HeaderValue`, in one of the two lists of headers.
pub(super) fn header(list: u32, name: &str, value: &str, message: &mut BytesMut) {
    begin(list, bytes_len(name.len()) + bytes_len(value.len()), message);
    for (field, text) in [(1, name), (2, value)] {
        begin(field, text.len(), message);
        message.extend_from_slice(text.as_bytes());
    }
}

/// The unit whose length the window has; zero, UNKNOWN, where it has none's.
pub(super) fn unit(window: Span) -> u64 {
    match (window.micros() % 1_000_000, window.micros() / 1_000_000) {
        (0, 1) => 1,
        (0, 60) => 2,
        (0, 3_600) => 3,
        (0, 86_400) => 4,
        (0, 604_800) => 7,
        (0, 2_592_000) => 5,
        (0, 31_536_000) => 6,
        _ => 0,
    }
}

/// A number field; zero is left out, as protocol buffers do.
pub(super) fn number(field: u32, value: u64, message: &mut BytesMut) {
    if value != 0 {
        encode_key(field, WireType::Varint, message);
        encode_varint(value, message);
    }
}

/// What precedes `len` bytes of a field.
pub(super) fn begin(field: u32, len: usize, message: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, message);
    encode_varint(u64::try_from(len).unwrap_or(u64::MAX), message);
}

/// Bytes of a number field. All field numbers here take one byte.
pub(super) fn number_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value) }
}

/// Bytes of a field that holds `len` bytes.
pub(super) fn bytes_len(len: usize) -> usize {
    1 + encoded_len_varint(u64::try_from(len).unwrap_or(u64::MAX)) + len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::answer::AnswerOptions;
    use crate::core::decision::{AnswerGuards, Leased};
    use crate::core::denial_cause::DenialCause;
    use crate::core::hold::{HeldPlaces, Holder, Lease};
    use crate::core::key::BucketValues;
    use crate::core::request::Attributes;
    use crate::core::rule::Action;
    use crate::core::time::Timestamp;
    use crate::core::wire::RuleName;
    use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};
    use envoy_types::pb::google::protobuf::Duration;
    use envoy_types::pb::google::protobuf::value::Kind;
    use proptest::prelude::*;
    use prost::Message as _;
    use smallvec::smallvec;
    use std::sync::Arc;

    fn ruled(allowed: bool, remaining: u64) -> RuleOutcome {
        RuleOutcome {
            rule: "search".into(),
            action: Action::Reject,
            allowed,
            shadow: false,
            limit: 100,
            window: Span::from_secs(60),
            remaining,
            reset: Span(31_250_001),
            more: Span(31_250_001),
            retry: (!allowed).then_some(Span(1)),
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

    fn decision(ruled: RuleOutcome) -> Decision {
        let allowed = ruled.allowed;
        let message = (!allowed).then(|| "slow down".into());
        Decision {
            allowed,
            tightest: Some(0),
            status: 200,
            message,
            lease: None,
            guards: AnswerGuards::default(),
            rules: vec![ruled],
        }
    }

    fn request(cost: Cost) -> Request<'static> {
        Request::new("d", Attributes::new(), cost)
    }

    fn decoded(requests: &[Request<'_>], decisions: &[Decision]) -> RateLimitResponse {
        let bytes = encode(requests, decisions);
        let (prefix, message) = bytes.split_at(PREFIX_BYTES);
        assert_eq!(prefix[0], 0);
        assert_eq!(
            u32::from_be_bytes(prefix[1..].try_into().unwrap()),
            u32::try_from(message.len()).unwrap()
        );
        RateLimitResponse::decode(message).unwrap()
    }

    #[test]
    fn an_answer_says_what_envoy_reads() {
        let none = Decision {
            allowed: true,
            tightest: None,
            status: 200,
            message: None,
            lease: None,
            guards: AnswerGuards::default(),
            rules: vec![],
        };
        let requests = [request(Cost::Take(1)), request(Cost::Take(1)), request(Cost::Take(1))];
        let answer = decoded(&requests, &[none, decision(ruled(true, 7)), decision(ruled(false, 0))]);
        let status = |code, limit_remaining| DescriptorStatus {
            code,
            current_limit: Some(RateLimit { name: "search".into(), requests_per_unit: 100, unit: 2 }),
            limit_remaining,
            duration_until_reset: Some(Duration { seconds: 32, nanos: 0 }),
            quota: None,
        };
        let expected = RateLimitResponse {
            overall_code: 2,
            statuses: vec![DescriptorStatus { code: 1, ..Default::default() }, status(1, 7), status(2, 0)],
            response_headers_to_add: vec![HeaderValue {
                key: "retry-after".into(),
                value: "1".into(),
                ..Default::default()
            }],
            raw_body: b"slow down".to_vec(),
            ..Default::default()
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn a_rule_is_told_by_the_name_that_it_wants_also_where_it_only_logs() {
        let told = |name: &str, shadow| {
            let options = AnswerOptions { told_as: Some(name.to_owned()), ..AnswerOptions::default() };
            let ruled = RuleOutcome { answer: Some(Arc::new(options)), shadow, ..ruled(true, 7) };
            let own = Decision { tightest: (!shadow).then_some(0), ..decision(ruled) };
            decoded(&[request(Cost::Take(1))], &[own]).statuses.remove(0)
        };
        let limit = |name: &str| Some(RateLimit { name: name.into(), requests_per_unit: 100, unit: 2 });
        for shadow in [false, true] {
            assert_eq!((told("", shadow).current_limit, told("n", shadow).limit_remaining), (limit(""), 7));
        }
        assert_eq!(told("n", false).current_limit, limit("n"));
    }

    #[test]
    fn a_delay_goes_to_the_client_and_to_the_service() {
        let mut slow = ruled(true, 7);
        slow.delay = Span(250_000);
        let requests = [request(Cost::Take(1)), request(Cost::Take(1))];
        let answer = decoded(&requests, &[decision(ruled(true, 7)), decision(slow.clone())]);
        let expected = [HeaderValue { key: X_DELAY.into(), value: "250".into(), ..Default::default() }];
        assert_eq!(
            (&answer.response_headers_to_add[..], &answer.request_headers_to_add[..]),
            (&expected[..], &expected[..])
        );
        let answer = decoded(&requests, &[decision(ruled(false, 0)), decision(slow)]);
        assert_eq!(answer.request_headers_to_add, [], "a call that is denied is not delayed");
    }

    #[test]
    fn a_lease_is_told_as_metadata_unless_the_call_is_denied() {
        let x = "x".repeat(300);
        let held = HeldPlaces {
            rule: Arc::new(RuleName { domain: "d".into(), name: "r".into() }),
            own_limit: None,
            price: None,
            kind: None,
            values: BucketValues::new([x.as_str()]),
            reserved: None,
        };
        let leased = |allowed| {
            let lease = Lease { holder: Holder([7; 16]), held: smallvec![held.clone()] };
            let lease = Some(Box::new(Leased {
                lease,
                hold: Span::from_secs(30),
                made: Timestamp::default(),
                held_before: None,
            }));
            Decision { lease, ..decision(ruled(allowed, 3)) }
        };
        let requests = [request(Cost::Take(1)), request(Cost::Take(1))];
        let answer = decoded(&requests, &[leased(true), leased(true)]);
        let fields = answer.dynamic_metadata.unwrap().fields;
        let Some(Kind::StringValue(text)) = &fields["lease"].kind else { panic!("{fields:?}") };
        let lease = crate::api::wire::read_lease(text).unwrap();
        assert_eq!((lease.holder, lease.held.to_vec()), (Holder([7; 16]), vec![held.clone(), held.clone()]));
        assert_eq!(decoded(&requests, &[leased(true), leased(false)]).dynamic_metadata, None);
        assert_eq!(decoded(&requests[..1], &[decision(ruled(true, 3))]).dynamic_metadata, None);
    }

    #[test]
    fn a_thing_to_use_instead_is_told_in_headers_and_metadata_and_keeps_nobody_out() {
        let use_instead = Some("small-model".to_owned());
        let answer = Some(Arc::new(AnswerOptions { use_instead, ..AnswerOptions::default() }));
        let spent = RuleOutcome { answer, ..ruled(false, 0) };
        let passes = Decision { allowed: true, message: None, ..decision(spent) };
        let requests = [request(Cost::Take(1)), request(Cost::Take(1))];
        let answer = decoded(&requests, &[decision(ruled(true, 7)), passes.clone()]);
        assert_eq!((answer.overall_code, answer.statuses[1].code), (1, 1));
        let expected = [HeaderValue { key: X_USE.into(), value: "small-model".into(), ..Default::default() }];
        assert_eq!(
            (&answer.response_headers_to_add[..], &answer.request_headers_to_add[..]),
            (&expected[..], &expected[..])
        );
        let fields = answer.dynamic_metadata.unwrap().fields;
        let Some(Kind::StringValue(text)) = &fields["use"].kind else { panic!("{fields:?}") };
        assert_eq!((text.as_str(), fields.len()), ("small-model", 1));
        let answer = decoded(&requests, &[passes.clone(), decision(ruled(false, 0))]);
        assert_eq!((answer.overall_code, answer.request_headers_to_add.len()), (2, 0));
        assert_eq!(answer.dynamic_metadata, None, "another descriptor is denied");
        // Nor does it keep out who only looks, unless another rule has nothing left either.
        assert_eq!(decoded(&[request(Cost::Peek)], std::slice::from_ref(&passes)).overall_code, 1);
        let both = Decision { rules: vec![passes.rules[0].clone(), ruled(true, 0)], ..passes };
        assert_eq!(decoded(&[request(Cost::Peek)], &[both]).overall_code, 2);
    }

    #[test]
    fn a_peek_is_over_limit_when_nothing_is_left() {
        let codes = |remaining| {
            let answer = decoded(&[request(Cost::Peek)], &[decision(ruled(true, remaining))]);
            (answer.overall_code, answer.statuses[0].code)
        };
        assert_eq!((codes(1), codes(0)), ((1, 1), (2, 2)));
        assert_eq!(decoded(&[request(Cost::Take(1))], &[decision(ruled(true, 0))]).overall_code, 1);
    }

    #[test]
    fn a_cause_is_a_header_where_its_rule_wants_that() {
        let denied = |tells_cause| {
            let answer = Some(Arc::new(AnswerOptions { tells_cause, ..AnswerOptions::default() }));
            decision(RuleOutcome { cause: Some(DenialCause::Burnt), answer, ..ruled(false, 0) })
        };
        let names = |tells| {
            let answer = decoded(&[request(Cost::Take(1))], &[denied(tells)]);
            answer.response_headers_to_add.into_iter().map(|one| (one.key, one.value)).collect::<Vec<_>>()
        };
        let retry = ("retry-after".to_owned(), "1".to_owned());
        assert_eq!(names(false), std::slice::from_ref(&retry));
        assert_eq!(names(true), [retry, (X_CAUSE.to_owned(), "burnt".to_owned())]);
    }

    #[test]
    fn who_can_never_pass_is_not_told_to_come_back() {
        let mut never = ruled(false, 0);
        never.retry = None;
        let requests = [request(Cost::Take(1)), request(Cost::Take(1))];
        let answer = decoded(&requests, &[decision(ruled(false, 0)), decision(never)]);
        assert_eq!(answer.response_headers_to_add, []);
    }

    #[test]
    fn a_block_is_over_limit_without_a_limit() {
        let mut block = ruled(false, 0);
        block.action = Action::Block;
        let answer = decoded(&[request(Cost::Take(1))], &[decision(block)]);
        assert_eq!(answer.statuses, [DescriptorStatus { code: 2, ..Default::default() }]);
    }

    proptest! {
        #[test]
        fn any_decision_is_written_as_the_generated_types_read_it(
            name in ".{0,300}", limit: u32, window: u64, remaining: u64, reset: u64, allowed: bool,
        ) {
            let ruled = RuleOutcome {
                rule: name.as_str().into(), limit, window: Span(window), remaining, reset: Span(reset), ..ruled(allowed, 0)
            };
            let answer = decoded(&[request(Cost::Take(1))], &[decision(ruled)]);
            let status = &answer.statuses[0];
            prop_assert_eq!(&status.current_limit.as_ref().unwrap().name, &name);
            prop_assert_eq!(status.current_limit.as_ref().unwrap().requests_per_unit, limit);
            prop_assert_eq!(u64::from(status.limit_remaining), remaining.min(u64::from(u32::MAX)));
            let until = status.duration_until_reset.as_ref().unwrap();
            // As `retry-after`: in whole seconds, and never too early.
            prop_assert_eq!((u64::try_from(until.seconds).unwrap(), until.nanos), (reset.div_ceil(1_000_000), 0));
        }
    }
}
