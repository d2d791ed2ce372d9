//! Rules for tests.

use crate::core::algorithm::Algorithm;
use crate::core::rule::{Action, DOMAIN_DEFAULT, PRIORITY_DEFAULT, Rule};
use crate::core::time::Span;

/// A rule that counts users: 10 a minute.
pub(super) fn rule(name: &str, algorithm: Algorithm) -> Rule {
    Rule {
        name: name.to_owned(),
        domain: DOMAIN_DEFAULT.to_owned(),
        conditions: Vec::new(),
        per: vec!["user".to_owned()],
        algorithm,
        limit: 10,
        window: Span::from_secs(60),
        burst: 10,
        group: None,
        priority: PRIORITY_DEFAULT,
        action: Action::Reject,
        max_delay: Span::ZERO,
        status: 429,
        message: None,
        on_failure: None,
        exact: false,
        enabled: true,
        global: None,
        split_keys: 1,
    }
}
