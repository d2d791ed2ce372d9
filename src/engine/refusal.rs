//! The answer to one who may not ask at all: a blocked user, or a key that does not hold.

use std::sync::Arc;

use super::identity::IdentityRefused;
use crate::core::decision::{AnswerGuards, Decision, RuleOutcome};
use crate::core::denial_cause::DenialCause;
use crate::core::rule::Action;
use crate::core::time::Span;

/// Status of that answer.
const REFUSED_STATUS: u16 = 403;

/// The answer to one who may not ask at all.
pub(super) fn refusal(refused: &IdentityRefused) -> Decision {
    let ruled = RuleOutcome {
        rule: refused.why.name().into(),
        action: Action::Block,
        allowed: false,
        shadow: false,
        limit: 0,
        window: Span::ZERO,
        remaining: 0,
        reset: Span::ZERO,
        more: Span::ZERO,
        retry: refused.retry,
        cause: Some(DenialCause::Blocked),
        delay: Span::ZERO,
        degraded: false,
        global: None,
        answer: None,
        partition: None,
        priced: None,
        penalty: None,
        warning: false,
    };
    Decision {
        allowed: false,
        rules: vec![ruled],
        tightest: Some(0),
        status: REFUSED_STATUS,
        message: Some(Arc::clone(&refused.message)),
        lease: None,
        guards: AnswerGuards::default(),
    }
}
