//! Rules for tests.

use crate::core::algorithm::Algorithm;
use crate::core::rule::Rule;
use crate::core::time::Span;

/// A rule that counts users: 10 a minute.
pub(super) fn rule(name: &str, algorithm: Algorithm) -> Rule {
    Rule { per: vec!["user".to_owned()], ..Rule::new(name, algorithm, 10, Span::from_secs(60)) }
}
