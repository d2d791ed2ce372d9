//! A compiled set of rules: which rules decide a request, in time that does not grow with their number.
//!
//! Compiling sorts the rules, gives each its shape and builds one index for each domain. Nothing is interpreted per
//! request, and a set never changes: a reload makes another.

mod domain;
mod index;
mod network;
mod pattern;
mod seen;
mod shape;
mod trie;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use self::domain::{Domain, Selector};
use self::seen::Seen;
use super::algorithm::Limit;
use super::identity::{ApiKey, Who};
use super::key::{Key, Shape};
use super::request::Request;
use super::rule::{Action, Rule, User};
use super::time::Span;

pub use self::shape::{OVERRIDE_WINDOWS, Shapes};

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

impl Compiled {
    /// The same rule with another limit: a user's own.
    #[must_use]
    pub fn with_limit(&self, limit: Limit) -> Self {
        Self { rule: self.rule.clone(), index: self.index, shape: self.shape, limit }
    }
}

/// A rule that decides a request, and the bucket it counts in.
#[derive(Debug, Clone)]
pub struct Match<'s> {
    /// The rule.
    pub rule: &'s Compiled,
    /// Its bucket; `None` for `allow` and `block`, which count nothing. Its shape is the rule's, or another where the
    /// request brings a limit with another window.
    pub key: Option<Key>,
    /// The limit in force: the request's own, else the user's own, else the rule's.
    pub limit: Limit,
    /// The permits of the limit in force in all regions, if it is the user's own.
    pub own_limit: Option<u32>,
}

/// The rules that decide one request: at most one of each group, in order of precedence.
pub type Matches<'s> = SmallVec<[Match<'s>; 2]>;

impl From<Vec<User>> for People {
    fn from(users: Vec<User>) -> Self {
        Self { users, keys: Vec::new() }
    }
}

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
    /// It matches, but counts holders, and the request asks to hold nothing.
    HoldsOnly,
}

/// Why rules do not make a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Two rules have this name.
    #[error("two rules are named \"{0}\"; names are unique in the whole set")]
    DuplicateName(String),
    /// Two users have this id.
    #[error("two users have the id \"{0}\"")]
    DuplicateUser(String),
    /// A user's own limit names no rule.
    #[error("user \"{user}\" has a limit of its own for rule \"{rule}\", which does not exist")]
    UnknownRule {
        /// The user.
        user: String,
        /// The missing rule.
        rule: String,
    },
    /// Two API keys have this name.
    #[error("two API keys have the id \"{0}\"")]
    DuplicateKey(String),
    /// A key's own limit names no rule.
    #[error("API key \"{key}\" has a limit of its own for rule \"{rule}\", which does not exist")]
    UnknownRuleOfKey {
        /// The key.
        key: String,
        /// The missing rule.
        rule: String,
    },
    /// Every shape number was used. Only a restart gives new ones.
    #[error("too many different rules since the start: restart the daemon")]
    ShapesSpent,
}

/// An immutable set of rules.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Vec<Arc<Compiled>>,
    by_name: HashMap<Box<str>, u32, FixedState>,
    domains: HashMap<Box<str>, Domain, FixedState>,
    users: HashMap<Box<str>, Arc<User>, FixedState>,
    keys: HashMap<Box<str>, Arc<ApiKey>, FixedState>,
}

/// Who is written down beside the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct People {
    /// Users.
    pub users: Vec<User>,
    /// API keys.
    pub keys: Vec<ApiKey>,
}

impl RuleSet {
    /// Makes a set of these rules. `shapes` remembers which rules kept their buckets.
    ///
    /// # Errors
    /// Every conflict between the rules; `shapes` then forgets nothing.
    pub fn compile(rules: Vec<Rule>, shapes: &mut Shapes) -> Result<Self, Vec<Conflict>> {
        Self::compile_with_users(rules, Vec::new(), shapes)
    }

    /// The same, with users who have a tier or limits of their own.
    ///
    /// # Errors
    /// Every conflict between rules and users.
    pub fn compile_with_users(
        rules: Vec<Rule>,
        users: Vec<User>,
        shapes: &mut Shapes,
    ) -> Result<Self, Vec<Conflict>> {
        Self::compile_with_people(rules, People { users, keys: Vec::new() }, shapes)
    }

    /// The same, with users and API keys.
    ///
    /// # Errors
    /// Every conflict between rules, users and keys.
    pub fn compile_with_people(
        mut rules: Vec<Rule>,
        people: People,
        shapes: &mut Shapes,
    ) -> Result<Self, Vec<Conflict>> {
        rules.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
        let mut set = Self::default();
        let mut conflicts = Vec::new();
        shapes.begin();
        for (index, rule) in (0..).zip(rules) {
            if set.by_name.insert(rule.name.as_str().into(), index).is_some() {
                conflicts.push(Conflict::DuplicateName(rule.name.clone()));
            }
            let Some(shape) = shapes.of(&rule) else {
                conflicts.push(Conflict::ShapesSpent);
                break;
            };
            let limit = limit_of(&rule, rule.limit, rule.burst, rule.window);
            set.rules.push(Arc::new(Compiled { rule, index, shape, limit }));
        }
        for user in people.users {
            set.add_user(user, &mut conflicts);
        }
        for key in people.keys {
            set.add_key(key, &mut conflicts);
        }
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        shapes.end(set.rules.len());
        set.domains = domains(&set.rules);
        Ok(set)
    }

    fn add_user(&mut self, user: User, conflicts: &mut Vec<Conflict>) {
        for own in user.overrides.iter().filter(|own| !self.by_name.contains_key(own.rule.as_str())) {
            conflicts.push(Conflict::UnknownRule { user: user.id.clone(), rule: own.rule.clone() });
        }
        let id: Box<str> = user.id.as_str().into();
        if let Some(twice) = self.users.insert(id, Arc::new(user)) {
            conflicts.push(Conflict::DuplicateUser(twice.id.clone()));
        }
    }

    fn add_key(&mut self, key: ApiKey, conflicts: &mut Vec<Conflict>) {
        for own in key.overrides.iter().filter(|own| !self.by_name.contains_key(own.rule.as_str())) {
            conflicts.push(Conflict::UnknownRuleOfKey { key: key.id.clone(), rule: own.rule.clone() });
        }
        let id: Box<str> = key.id.as_str().into();
        if let Some(twice) = self.keys.insert(id, Arc::new(key)) {
            conflicts.push(Conflict::DuplicateKey(twice.id.clone()));
        }
    }

    /// Every rule, in order of precedence.
    #[must_use]
    pub fn rules(&self) -> &[Arc<Compiled>] {
        &self.rules
    }

    /// The rule of this domain and name.
    #[must_use]
    pub fn get(&self, domain: &str, name: &str) -> Option<&Arc<Compiled>> {
        self.by_name(name).filter(|compiled| compiled.rule.domain == domain)
    }

    /// The rule of this name, which is unique over all domains.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Arc<Compiled>> {
        self.by_name.get(name).and_then(|index| self.at(*index))
    }

    fn at(&self, index: u32) -> Option<&Arc<Compiled>> {
        self.rules.get(usize::try_from(index).ok()?)
    }

    /// Which rules decide this request.
    ///
    /// In a group the first rule by precedence that matches decides; a rule without a group decides by itself. Where an
    /// `allow` without a group matches, only it and every deciding `block` are left.
    #[must_use]
    pub fn matches(&self, request: &Request<'_>) -> Matches<'_> {
        self.matches_of(request, &self.who(request))
    }

    /// The same for a request of `who`, whoever is written down beside the rules.
    #[must_use]
    pub fn matches_of(&self, request: &Request<'_>, who: &Who<'_>) -> Matches<'_> {
        // One place of return, so that the matches are written where the caller wants them.
        let mut matches = Matches::new();
        if let Some(domain) = self.domains.get(request.domain) {
            let mut seen = Seen::default();
            seen.read(&domain.names, request, who);
            let deciding = domain.deciding(&mut seen);
            for place in &deciding.places {
                if let Some(selector) = domain.selector(*place)
                    && deciding.keeps(*place, selector)
                {
                    matches.push(selector.matched(&seen, who, request.limit));
                }
            }
        }
        matches
    }

    /// Every rule of the request's domain in order of precedence, and why it takes part or not. Not for the common path.
    #[must_use]
    pub fn explain(&self, request: &Request<'_>) -> Vec<(&Compiled, Reason)> {
        self.explain_of(request, &self.who(request))
    }

    /// The same for a request of `who`.
    #[must_use]
    pub fn explain_of(&self, request: &Request<'_>, who: &Who<'_>) -> Vec<(&Compiled, Reason)> {
        let Some(domain) = self.domains.get(request.domain) else { return Vec::new() };
        let mut seen = Seen::default();
        seen.read(&domain.names, request, who);
        let deciding = domain.deciding(&mut seen);
        let explain = |(place, selector): (u32, &'_ Selector)| {
            let reason = selector.refusal(&mut seen, &domain.names);
            reason.unwrap_or_else(|| domain.standing(place, selector, &deciding))
        };
        let reasons: Vec<Reason> = (0..).zip(&domain.selectors).map(explain).collect();
        domain.selectors.iter().map(|selector| &*selector.compiled).zip(reasons).collect()
    }

    /// The bucket of rule `name` for this request, whether or not the rule would decide it; `None` if there is no such
    /// rule or the request lacks an attribute that its `per` names.
    #[must_use]
    pub fn bucket(&self, name: &str, request: &Request<'_>) -> Option<Match<'_>> {
        self.bucket_of(name, request, &self.who(request))
    }

    /// The same for a request of `who`.
    #[must_use]
    pub fn bucket_of(&self, name: &str, request: &Request<'_>, who: &Who<'_>) -> Option<Match<'_>> {
        let compiled = self.by_name(name)?;
        let domain = self.domains.get(compiled.rule.domain.as_str())?;
        // Both are in order of precedence.
        let place = domain.selectors.binary_search_by_key(&compiled.index, |own| own.compiled.index).ok()?;
        let selector = domain.selectors.get(place)?;
        let mut seen = Seen::default();
        seen.read(&domain.names, request, who);
        selector.identifies(&mut seen).then(|| selector.matched(&seen, who, None))
    }

    /// Whether anybody is written down beside the rules.
    #[must_use]
    pub fn knows_anybody(&self) -> bool {
        !self.users.is_empty() || !self.keys.is_empty()
    }

    /// The user of this id.
    #[must_use]
    pub fn user(&self, id: &str) -> Option<&Arc<User>> {
        if self.users.is_empty() { None } else { self.users.get(id) }
    }

    /// The API key of this public name.
    #[must_use]
    pub fn key(&self, id: &str) -> Option<&Arc<ApiKey>> {
        if self.keys.is_empty() { None } else { self.keys.get(id) }
    }

    fn who(&self, request: &Request<'_>) -> Who<'_> {
        if self.users.is_empty() {
            return Who::default();
        }
        let user = request.attribute("user").and_then(|id| self.users.get(id));
        user.map_or_else(Who::default, |user| Who::of_user(user))
    }
}

/// Sorts the rules into their domains and indexes them.
fn domains(rules: &[Arc<Compiled>]) -> HashMap<Box<str>, Domain, FixedState> {
    let mut by_domain: HashMap<&str, Vec<&Arc<Compiled>>, FixedState> = HashMap::default();
    for compiled in rules {
        by_domain.entry(&compiled.rule.domain).or_default().push(compiled);
    }
    by_domain.into_iter().map(|(name, rules)| (name.into(), Domain::new(&rules))).collect()
}

/// The limit in the form that buckets check. A throttled rule queues what drains within its longest delay, at least one.
fn limit_of(rule: &Rule, permits: u32, burst: u32, window: Span) -> Limit {
    let queue = match rule.action {
        Action::Throttle if permits > 0 => {
            let drained = u128::from(permits) * u128::from(rule.max_delay.micros());
            let drained = drained / u128::from(window.micros().max(1));
            u32::try_from(drained).unwrap_or(u32::MAX).max(1)
        }
        _ => 0,
    };
    Limit { permits, window, burst, queue }
}
