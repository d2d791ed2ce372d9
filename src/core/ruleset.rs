//! A compiled set of rules: which rules decide a request, in time that does not grow with their number.
//!
//! Compiling sorts the rules, gives each its shape and builds one index for each domain. Nothing is
//! interpreted per request, and a set never changes: a reload makes another, which shares with it what stayed
//! ([`RuleSet::changed`]).

mod change;
mod domain;
mod domains;
mod index;
mod names;
mod network;
mod pattern;
mod seen;
mod shape;
mod splice;
mod trie;
mod warnings;

#[cfg(test)]
mod readings_tests;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use self::domains::Domains;
use self::names::{ByName, Numbers};
use self::seen::SeenAttributes;
use self::splice::precedence;
use super::algorithm::{Algorithm, Counting, Limit};
use super::calendar::Windows;
use super::identity::{ApiKey, User, Who};
use super::key::{Key, Shape};
use super::request::{LimitOverride, PATH, Request};
use super::rule::{Action, Rule};
use super::rule_name::RuleName;
use super::time::Span;

pub use self::shape::{OVERRIDE_WINDOWS, Shapes};
pub use self::warnings::Warning;

/// A rule made ready: everything that a decision needs, nothing left to interpret.
#[derive(Debug)]
pub struct Compiled {
    /// The rule as its operator wrote it, already checked.
    pub rule: Rule,
    /// Its domain and name, for those who name it in what they hand out.
    pub named: Arc<RuleName>,
    /// Its number, below [`RuleSet::numbers`]. It stays while the rule of this name does, from one set to the
    /// next that is made of it by [`RuleSet::changed`].
    pub number: u32,
    /// Shape of the keys that name its buckets.
    pub shape: Shape,
    /// Its limit, ready for [`super::algorithm::State::check`] (with `queue` set for `throttle`).
    pub limit: Limit,
}

impl Compiled {
    fn new(rule: Rule, number: u32, shape: Shape) -> Self {
        let limit = limit_of(&rule, rule.limit, rule.burst, rule.windows());
        let named = RuleName { domain: rule.domain.clone(), name: rule.name.clone() };
        Self { rule, named: Arc::new(named), number, shape, limit }
    }

    /// Returns what its buckets count.
    #[must_use]
    pub const fn counting(&self) -> Counting {
        self.rule.algorithm.counting()
    }
}

/// A rule that decides a request, and the bucket it counts in.
#[derive(Debug, Clone)]
pub struct Match<'s> {
    /// Rule that takes part in the decision.
    pub rule: &'s Compiled,
    /// Its bucket; `None` for `allow` and `block`, which count nothing. Its shape is the rule's, or another
    /// where the request brings a limit with another window.
    pub key: Option<Key>,
    /// The limit in force: the request's own, else the user's own, else the rule's.
    pub limit: Limit,
    /// Permits of `limit` that are this region's own, in each window or as places, where rights to all of it
    /// move between regions. `None`: this region is held to `limit` alone. No rule set knows of regions: it
    /// says `None`.
    pub share: Option<u32>,
    /// The same as `limit` in all regions together; a worldwide rule may hold this one to less.
    pub whole: Limit,
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

/// Reasons why a rule takes part in a decision or not, for `explain`.
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
        /// Name of the attribute that `match` asks for.
        attribute: String,
        /// Value that the request brought for it.
        value: String,
    },
    /// `exact` is set and the request carries this attribute besides.
    Surplus(String),
    /// It is switched off.
    Disabled,
    /// It matches, but counts holders, and the request asks to hold nothing.
    HoldsOnly,
}

impl Reason {
    /// True if the request is one that the rule is for.
    #[must_use]
    pub const fn matches(&self) -> bool {
        matches!(self, Self::Decides | Self::Outranked(_) | Self::Exempted(_) | Self::HoldsOnly)
    }
}

/// Reasons why rules do not make a set.
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
        /// Id of the user whose own limit is wrong.
        user: String,
        /// Name of the rule that no set holds.
        rule: String,
    },
    /// Two API keys have this name.
    #[error("two API keys have the id \"{0}\"")]
    DuplicateKey(String),
    /// A key's own limit names no rule.
    #[error("API key \"{key}\" has a limit of its own for rule \"{rule}\", which does not exist")]
    UnknownRuleOfKey {
        /// Public name of the key whose own limit is wrong.
        key: String,
        /// Name of the rule that no set holds.
        rule: String,
    },
    /// Every shape number was used. Only a restart gives new ones.
    #[error("too many different rules since the start: restart the daemon")]
    ShapesSpent,
}

/// The text in place of a rule's name if a request's own limit counts it alone.
const UNRULED: &str = "descriptor";

/// An immutable set of rules.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// In order of precedence: priority, then name.
    rules: Vec<Arc<Compiled>>,
    /// Rules among them that have a worldwide side, in the same order.
    worldwide: Vec<Arc<Compiled>>,
    by_name: ByName,
    numbers: Numbers,
    /// Counts requests with a limit of their own where no rule does.
    unruled: Option<Arc<Compiled>>,
    domains: Domains,
    users: HashMap<Box<str>, Arc<User>, FixedState>,
    keys: HashMap<Box<str>, Arc<ApiKey>, FixedState>,
}

/// The users and keys that are written beside the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct People {
    /// Users of the set; two with one id are a conflict.
    pub users: Vec<User>,
    /// API keys of the set; two with one id are a conflict.
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
        rules.sort_by(|a, b| precedence(a).cmp(&precedence(b)));
        let mut set = Self::default();
        let mut conflicts = Vec::new();
        shapes.begin();
        for rule in rules {
            let Some(shape) = shapes.of(&rule) else {
                conflicts.push(Conflict::ShapesSpent);
                break;
            };
            let compiled = Arc::new(Compiled::new(rule, set.numbers.take(), shape));
            if let Err(name) = set.by_name.insert(&compiled) {
                conflicts.push(Conflict::DuplicateName(name));
            }
            set.rules.push(compiled);
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
        set.unruled = unruled(shapes);
        shapes.end(set.rules.len());
        set.worldwide = set.rules.iter().filter(|compiled| compiled.rule.global.is_some()).cloned().collect();
        set.domains = Domains::of(&set.rules);
        Ok(set)
    }

    fn add_user(&mut self, user: User, conflicts: &mut Vec<Conflict>) {
        for own in user.overrides.iter().filter(|own| self.by_name.get(&own.rule).is_none()) {
            conflicts.push(Conflict::UnknownRule { user: user.id.clone(), rule: own.rule.clone() });
        }
        let id: Box<str> = user.id.as_str().into();
        if let Some(twice) = self.users.insert(id, Arc::new(user)) {
            conflicts.push(Conflict::DuplicateUser(twice.id.clone()));
        }
    }

    fn add_key(&mut self, key: ApiKey, conflicts: &mut Vec<Conflict>) {
        for own in key.overrides.iter().filter(|own| self.by_name.get(&own.rule).is_none()) {
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

    /// The domains that have rules, in no order.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.names()
    }

    /// True if any rule has this domain.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.get(domain).is_some()
    }

    /// Returns those that have a worldwide side, in the same order.
    #[must_use]
    pub fn worldwide(&self) -> &[Arc<Compiled>] {
        &self.worldwide
    }

    /// Every rule's number is below this one.
    #[must_use]
    pub fn numbers(&self) -> usize {
        self.numbers.bound()
    }

    /// The rule of this domain and name.
    #[must_use]
    pub fn get(&self, domain: &str, name: &str) -> Option<&Arc<Compiled>> {
        self.by_name(name).filter(|compiled| compiled.rule.domain == domain)
    }

    /// The rule of this name, which is unique over all domains.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Arc<Compiled>> {
        self.by_name.get(name)
    }

    /// Returns which rules decide this request.
    ///
    /// In a group the first rule by precedence that matches decides; a rule without a group decides by
    /// itself. An `allow` without a group that matches leaves only itself and every deciding `block`.
    #[must_use]
    pub fn matches(&self, request: &Request<'_>) -> Matches<'_> {
        self.matches_of(request, &self.who(request))
    }

    /// The same for a request of `who`, whoever is written down beside the rules.
    #[must_use]
    pub fn matches_of(&self, request: &Request<'_>, who: &Who<'_>) -> Matches<'_> {
        let mut matches = Matches::new();
        self.match_into(request, who, &mut matches);
        matches
    }

    /// The same, appended to `matches`. Each reading has its own rules decide, where the origin may read the
    /// path in several ways: each rule and bucket once, and an `allow` exempts from the rules of its own
    /// reading alone.
    pub fn match_into<'s>(&'s self, request: &Request<'_>, who: &Who<'_>, matches: &mut Matches<'s>) {
        let before = matches.len();
        if let Some(domain) = self.domains.get(request.domain) {
            let mut seen = SeenAttributes::default();
            seen.read(&domain.names, request, who);
            domain.match_into(&mut seen, who, request.limit, |found| matches.push(found));
            if !request.forms.paths.is_empty() {
                domain.match_readings(request, who, None, |found| add(matches, before, found));
            }
        }
        if let (true, Some(own)) = (matches.len() == before, request.limit) {
            matches.extend(self.unruled_match(request, own));
        }
    }

    /// Appends which rules decide it where `who` shows `credential` in the place of the request's own. Rules
    /// that decide it already stand behind `from`, and are not there twice.
    pub fn match_credential<'s>(
        &'s self,
        request: &Request<'_>,
        (credential, who): (&str, &Who<'_>),
        from: usize,
        matches: &mut Matches<'s>,
    ) {
        if let Some(domain) = self.domains.get(request.domain) {
            domain.match_readings(request, who, Some(credential), |found| add(matches, from, found));
        }
    }

    /// Returns what counts a request with a limit of its own that no rule counts.
    fn unruled_match(&self, request: &Request<'_>, own: LimitOverride) -> Option<Match<'_>> {
        let (rule, descriptor) = (self.unruled.as_ref()?, request.forms.descriptor?);
        let (shape, window) = shape::overridden(rule.shape, rule.rule.windows(), own.window);
        let limit = limit_of(&rule.rule, own.permits, own.permits, window);
        let key = Key::new(shape, [request.domain, descriptor]);
        Some(Match { rule, key: Some(key), limit, share: None, whole: limit, own_limit: None })
    }

    /// Every rule of the request's domain in order of precedence, and why it takes part or not. Not for the
    /// common path.
    #[must_use]
    pub fn explain(&self, request: &Request<'_>) -> Vec<(&Compiled, Reason)> {
        self.explain_of(request, &self.who(request))
    }

    /// The same for a request of `who`.
    #[must_use]
    pub fn explain_of(&self, request: &Request<'_>, who: &Who<'_>) -> Vec<(&Compiled, Reason)> {
        let Some(domain) = self.domains.get(request.domain) else { return Vec::new() };
        let mut seen = SeenAttributes::default();
        seen.read(&domain.names, request, who);
        let mut reasons = domain.reasons(&mut seen);
        // A rule takes part where it does in any reading of the path.
        for path in &request.forms.paths {
            seen.replace(&domain.names, PATH, path);
            for (reason, other) in reasons.iter_mut().zip(domain.reasons(&mut seen)) {
                if other == Reason::Decides || (other.matches() && !reason.matches()) {
                    *reason = other;
                }
            }
        }
        domain.selectors.iter().map(|selector| &*selector.compiled).zip(reasons).collect()
    }

    /// The bucket of rule `name` for this request, whether or not the rule would decide it; `None` if there
    /// is no such rule or the request lacks an attribute that its `per` names.
    #[must_use]
    pub fn bucket(&self, name: &str, request: &Request<'_>) -> Option<Match<'_>> {
        self.bucket_of(name, request, &self.who(request))
    }

    /// The same for a request of `who`.
    #[must_use]
    pub fn bucket_of(&self, name: &str, request: &Request<'_>, who: &Who<'_>) -> Option<Match<'_>> {
        let compiled = self.by_name(name)?;
        let domain = self.domains.get(&compiled.rule.domain)?;
        let selector = domain.selector_of(&compiled.rule)?;
        let mut seen = SeenAttributes::default();
        seen.read(&domain.names, request, who);
        selector.identifies(&mut seen).then(|| selector.matched(&seen, who, None))
    }

    /// True if anybody is written down beside the rules.
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

/// Appends a match unless the same bucket of the same rule stands behind `from` already.
fn add<'s>(matches: &mut Matches<'s>, from: usize, found: Match<'s>) {
    let is_same = |own: &Match<'_>| own.rule.number == found.rule.number && own.key == found.key;
    if !matches.iter().skip(from).any(is_same) {
        matches.push(found);
    }
}

/// Returns what counts requests with a limit of their own where no rule does, as Envoy's reference service
/// counts: one bucket for each domain and descriptor. Its domain is empty, as no rule's can be.
fn unruled(shapes: &mut Shapes) -> Option<Arc<Compiled>> {
    let mut rule = Rule::new(UNRULED, Algorithm::FixedWindow, 1, Span::from_secs(1));
    rule.domain = String::new();
    rule.per = ["domain", "descriptor"].map(str::to_owned).into();
    let shape = shapes.of(&rule)?;
    Some(Arc::new(Compiled::new(rule, u32::MAX, shape)))
}

/// The limit in the form that buckets check. A throttled rule queues what drains within its longest delay, at
/// least one.
fn limit_of(rule: &Rule, permits: u32, burst: u32, windows: Windows) -> Limit {
    let (window, calendar) = (windows.length(), windows.calendar());
    let queue = match rule.action {
        Action::Throttle if permits > 0 => {
            let drained = u128::from(permits) * u128::from(rule.max_delay.micros());
            let drained = drained / u128::from(window.micros().max(1));
            u32::try_from(drained).unwrap_or(u32::MAX).max(1)
        }
        _ => 0,
    };
    Limit { permits, window, calendar, burst, queue }
}
