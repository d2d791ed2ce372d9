//! Writes a decision's JSON, the one text that is written for every request.
//!
//! Says exactly what [`DecisionJson`] says when serde writes it, which a property test holds; but in a few
//! long pieces instead of a hundred short ones, since a batch spends most of its time here.

use crate::api::wire::{DecisionJson, GlobalJson, PenaltyJson, RuleOutcomeJson};
use crate::core::rule::Mode;

/// Appends the decision.
pub(super) fn write(into: &mut Vec<u8>, decision: &DecisionJson<'_>) {
    into.extend_from_slice(if decision.allowed {
        b"{\"allowed\":true,\"domain\":"
    } else {
        b"{\"allowed\":false,\"domain\":"
    });
    text(into, decision.domain);
    into.extend_from_slice(b",\"cost\":");
    into.extend_from_slice(itoa::Buffer::new().format(decision.cost).as_bytes());
    into.extend_from_slice(b",\"region\":");
    text(into, decision.region);
    into.extend_from_slice(degraded(decision.degraded));
    if let Some(rule) = decision.rule {
        into.extend_from_slice(b",\"rule\":");
        text(into, rule);
    }
    if let Some(limit) = decision.limit {
        number(into, b",\"limit\":", u64::from(limit));
    }
    if let Some(remaining) = decision.remaining {
        number(into, b",\"remaining\":", remaining);
    }
    if let Some(reset_ms) = decision.reset_ms {
        number(into, b",\"reset_ms\":", reset_ms);
    }
    retry(into, decision.retry_after_ms);
    cause(into, decision.cause);
    number(into, b",\"delay_ms\":", decision.delay_ms);
    number(into, b",\"status\":", u64::from(decision.status));
    if let Some(message) = decision.message {
        into.extend_from_slice(b",\"message\":");
        text(into, message);
    }
    use_instead(into, decision.use_instead);
    into.extend_from_slice(b",\"rules\":[");
    for (index, one) in decision.rules.iter().enumerate() {
        if index > 0 {
            into.push(b',');
        }
        ruled(into, &one);
    }
    into.push(b']');
    if let Some(reservation) = &decision.reservation {
        into.extend_from_slice(b",\"reservation\":");
        text(into, reservation);
    }
    if let Some(lease) = &decision.lease {
        into.extend_from_slice(b",\"lease\":");
        text(into, lease);
    }
    if let Some(expires_ms) = decision.expires_ms {
        number(into, b",\"expires_ms\":", expires_ms);
    }
    into.push(b'}');
}

fn ruled(into: &mut Vec<u8>, ruled: &RuleOutcomeJson<'_>) {
    into.extend_from_slice(b"{\"rule\":");
    text(into, ruled.rule);
    into.extend_from_slice(if ruled.allowed { b",\"allowed\":true" } else { b",\"allowed\":false" });
    if ruled.shadow {
        into.extend_from_slice(b",\"shadow\":true");
    }
    number(into, b",\"limit\":", u64::from(ruled.limit));
    if let Some(unit) = ruled.unit {
        into.extend_from_slice(b",\"unit\":");
        text(into, unit);
    }
    if let Some(cost) = ruled.cost {
        into.extend_from_slice(b",\"cost\":");
        into.extend_from_slice(itoa::Buffer::new().format(cost).as_bytes());
    }
    number(into, b",\"window_ms\":", ruled.window_ms);
    number(into, b",\"remaining\":", ruled.remaining);
    number(into, b",\"reset_ms\":", ruled.reset_ms);
    retry(into, ruled.retry_after_ms);
    cause(into, ruled.cause);
    use_instead(into, ruled.use_instead);
    into.extend_from_slice(degraded(ruled.degraded));
    if let Some(PenaltyJson { ends_ms, multiplier, begun }) = &ruled.penalty {
        number(into, b",\"penalty\":{\"ends_ms\":", *ends_ms);
        number(into, b",\"multiplier\":", u64::from(*multiplier));
        if *begun {
            into.extend_from_slice(b",\"begun\":true");
        }
        into.push(b'}');
    }
    if ruled.warning {
        into.extend_from_slice(b",\"warning\":true");
    }
    if let Some(GlobalJson { mode, believed_used, used_here, error_bound }) = &ruled.global {
        into.extend_from_slice(match mode {
            Mode::Gossip => b",\"global\":{\"mode\":\"gossip\"",
            Mode::Split => b",\"global\":{\"mode\":\"split\"",
            Mode::Escrow => b",\"global\":{\"mode\":\"escrow\"",
        });
        match believed_used {
            Some(used) => number(into, b",\"believed_used\":", *used),
            None => into.extend_from_slice(b",\"believed_used\":null"),
        }
        if let Some(used) = used_here {
            number(into, b",\"used_here\":", *used);
        }
        number(into, b",\"error_bound\":", *error_bound);
        into.push(b'}');
    }
    into.push(b'}');
}

const fn degraded(degraded: bool) -> &'static [u8] {
    if degraded { b",\"degraded\":true" } else { b",\"degraded\":false" }
}

fn retry(into: &mut Vec<u8>, retry_after_ms: Option<u64>) {
    match retry_after_ms {
        Some(millis) => number(into, b",\"retry_after_ms\":", millis),
        None => into.extend_from_slice(b",\"retry_after_ms\":null"),
    }
}

fn cause(into: &mut Vec<u8>, cause: Option<&'static str>) {
    if let Some(cause) = cause {
        into.extend_from_slice(b",\"cause\":");
        text(into, cause);
    }
}

fn use_instead(into: &mut Vec<u8>, named: Option<&str>) {
    if let Some(named) = named {
        into.extend_from_slice(b",\"use\":");
        text(into, named);
    }
}

fn number(into: &mut Vec<u8>, name: &[u8], number: u64) {
    into.extend_from_slice(name);
    into.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn text(into: &mut Vec<u8>, text: &str) {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        into.push(b'"');
        into.extend_from_slice(text.as_bytes());
        into.push(b'"');
    } else {
        // Strings alone always become JSON.
        let _ = serde_json::to_writer(into, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::answer::AnswerOptions;
    use crate::core::decision::{AnswerGuards, Decision, Leased, RuleOutcome, Worldwide};
    use crate::core::denial_cause::DenialCause;
    use crate::core::hold::{HeldPlaces, Holder, Lease};
    use crate::core::key::BucketValues;
    use crate::core::penalty::Penalty;
    use crate::core::request::{Attributes, Cost, Request};
    use crate::core::rule::Action;
    use crate::core::time::{Span, Timestamp};
    use crate::core::wire::RuleName;
    use proptest::prelude::*;
    use smallvec::smallvec;
    use std::sync::Arc;

    fn ruled() -> impl Strategy<Value = RuleOutcome> {
        let mode = prop_oneof![Just(Mode::Gossip), Just(Mode::Split), Just(Mode::Escrow)];
        let global = (mode, any::<Option<u64>>(), any::<Option<u64>>(), any::<u64>()).prop_map(
            |(mode, believed_used, used_here, error_bound)| Worldwide {
                mode,
                believed_used,
                used_here,
                error_bound,
            },
        );
        let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let flags = (any::<bool>(), any::<bool>(), any::<bool>());
        (".{0,20}", flags, numbers, proptest::option::of(any::<u64>()), proptest::option::of(global))
            .prop_map(
                |(
                    rule,
                    (allowed, shadow, degraded),
                    (limit, window, remaining, reset, delay),
                    retry,
                    global,
                )| RuleOutcome {
                    rule: rule.into(),
                    action: Action::Reject,
                    allowed,
                    shadow,
                    limit,
                    window: Span(window),
                    remaining,
                    reset: Span(reset),
                    more: Span(reset),
                    retry: retry.map(Span),
                    cause: DenialCause::ALL.get(usize::try_from(limit % 13).unwrap()).copied(),
                    delay: Span(delay),
                    degraded,
                    global,
                    answer: (limit % 2 == 0).then(|| {
                        let unit = Some("tokens".to_owned());
                        let use_instead = (limit % 4 == 0).then(|| "small \"1\"".to_owned());
                        Arc::new(AnswerOptions { unit, use_instead, ..AnswerOptions::default() })
                    }),
                    partition: None,
                    priced: (limit % 3 == 0).then_some(i64::from(limit) - 7),
                    penalty: (limit % 5 < 2).then_some(Penalty {
                        left: Span(reset),
                        multiplier: limit,
                        begun: limit % 5 == 0,
                    }),
                    warning: limit % 7 == 0,
                    beyond: None,
                },
            )
    }

    proptest! {
        #[test]
        fn the_text_is_the_one_that_serde_writes(
            rules in proptest::collection::vec(ruled(), 0..4),
            domain in ".{1,20}",
            message in proptest::option::of(".{0,40}"),
            allowed: bool,
            cost: i64,
            status: u16,
            tightest in proptest::option::of(0..4_usize),
            held in proptest::option::of((".{0,9}", any::<u64>())),
        ) {
            let lease = held.map(|(rule, hold)| {
                let rule = Arc::new(RuleName { domain: domain.clone(), name: rule });
                let held = smallvec![HeldPlaces { rule, own_limit: None, price: None, kind: None, values: BucketValues::default(), reserved: None }];
                Box::new(Leased { lease: Lease { holder: Holder([7; 16]), held }, hold: Span(hold), made: Timestamp::default(), held_before: None })
            });
            let decision = Decision {
                lease,
                guards: AnswerGuards::default(),
                allowed, rules, tightest, status, message: message.map(Into::into),
            };
            let request =
                Request::new(&domain, Attributes::new(), Cost::from_signed(cost));
            let json = DecisionJson::new(&request, &decision, "eu-west");
            let mut ours = Vec::new();
            write(&mut ours, &json);
            prop_assert_eq!(String::from_utf8(ours).unwrap(), serde_json::to_string(&json).unwrap());
        }
    }
}
