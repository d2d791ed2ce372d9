//! A compiled set of rules: which rules decide a request, in time that does not grow with their number.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::algorithm::{Algorithm, Limit};
use super::key::{Key, Shape};
use super::request::{LimitOverride, Request};
use super::rule::{Action, Global, OnFailure, Rule};

/// Gives every shape its number, for as long as the process lives.
#[derive(Debug, Default)]
pub struct Shapes {
    known: HashMap<String, Shape>,
}

/// A rule made ready: everything that a decision needs, nothing left to interpret.
#[derive(Debug)]
pub struct Compiled {
    /// The rule as written.
    pub rule: Rule,
    /// Its place in [`RuleSet::rules`], which is the order of precedence: priority, then name.
    pub index: u32,
    /// What its buckets are named by.
    pub shape: Shape,
    /// Its limit, ready for [`super::algorithm::State::check`] (with `queue` set for `throttle`).
    pub limit: Limit,
}

/// A rule that decides a request, and the bucket it counts in.
#[derive(Debug, Clone)]
pub struct Match<'s> {
    /// The rule.
    pub rule: &'s Compiled,
    /// Its bucket; `None` for `allow` and `block`, which count nothing.
    pub key: Option<Key>,
    /// The limit in force for this request (the rule's own or the request's override).
    pub limit: Limit,
}

/// The rules that decide one request: at most one of each group, in order of precedence.
pub type Matches<'s> = SmallVec<[Match<'s>; 2]>;

/// Why a rule takes part in a decision or not, for `explain`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It decides its group.
    Decides,
    /// It matches, but this rule of the same group comes first.
    Outranked(String),
    /// It matches, but this `allow` rule exempts the request.
    Exempted(String),
    /// The request lacks an attribute that `match` or `per` names.
    Lacks(String),
    /// This attribute's value is not what `match` asks for.
    Differs {
        /// The attribute.
        attribute: String,
        /// What the request brought.
        value: String,
    },
    /// `exact` is set and the request carries this attribute besides.
    Surplus(String),
    /// It is switched off.
    Disabled,
}

/// An immutable set of rules.
#[derive(Debug)]
pub struct RuleSet {
    rules: Vec<Arc<Compiled>>,
}
