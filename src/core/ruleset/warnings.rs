//! Mistakes that a set of rules may hold and still be valid: a rule that no request can reach, an option
//! without effect.
//!
//! A set with warnings takes effect. They are told by `tidegate rules validate`, the log, `/readyz` and a
//! metric.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::RuleSet;
use super::pattern::Glob;
use crate::algorithm::{Algorithm, Counting};
use crate::request::{API_KEY, PATH};
use crate::reservation_terms::ReservationTerms;
use crate::rule::{Action, Condition, Mode, Pattern, Rule};
use crate::time::Span;
use crate::uri;
use crate::written::format_span;

/// Most pairs of rules that are compared in one set. Beyond it rules are taken to be reachable, so that a set
/// of a hundred thousand rules is looked at in some hundredths of a second.
const PAIRS_MAX: usize = 2_000_000;
/// Times that gateways wait for an answer, by the files in `deploy`.
const SHIPPED_WAITS: [(&str, Span); 4] = [
    ("Caddy", Span::from_millis(250)),
    ("nginx", Span::from_secs(10)),
    ("Envoy", Span::from_secs(10)),
    ("HAProxy", Span::from_secs(10)),
];
/// Attributes that gateways send by these names. Names are told apart by case.
const USUAL_NAMES: [&str; 7] = ["api_key", "host", "ip", "method", "path", "tier", "user"];

/// Something that its operator can hardly have meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The rule; `None`: the set as a whole.
    pub rule: Option<String>,
    /// A sentence on what is odd, and what to write instead.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Some(rule) => write!(f, "rule {rule:?}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl RuleSet {
    /// Returns what is odd about these rules, in their order of precedence; empty if nothing is.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings_of(true)
    }

    /// The same. `normal`: paths and hosts come to rules in one form, rather than as they were sent.
    #[must_use]
    pub fn warnings_of(&self, normal: bool) -> Vec<Warning> {
        if self.rules().is_empty() {
            let text = "there are no rules, so every request passes".to_owned();
            return vec![Warning { rule: None, text }];
        }
        let rules: Vec<&Rule> =
            self.rules().iter().map(|compiled| &compiled.rule).filter(|rule| rule.enabled).collect();
        let mut pairs = PAIRS_MAX;
        let mut earlier = Earlier::default();
        let mut warnings = Vec::new();
        // An `allow` without a group exempts whatever its place in the order.
        let exempting: Vec<&Rule> = rules.iter().copied().filter(|rule| exempts(rule)).collect();
        for rule in rules {
            let warn = |text: String| Warning { rule: Some(rule.name.clone()), text };
            if let Some(by) = earlier.hides(rule, &mut pairs) {
                let group = rule.group.as_deref().unwrap_or_default();
                warnings.push(warn(format!(
                    "no request reaches it: {by:?} comes first in group {group:?} and matches whatever this rule matches"
                )));
            } else if rule.action.counts()
                && let Some(by) = first(&exempting, rule, &mut pairs)
            {
                warnings.push(warn(format!(
                    "no request reaches it: {by:?} allows whatever this rule matches, uncounted"
                )));
            }
            let written = rule.conditions.iter().flat_map(|condition| unmet(condition, normal));
            warnings.extend(written.map(&warn));
            warnings.extend(unmet_prices(rule, normal).into_iter().map(&warn));
            warnings.extend(odd_names(rule, normal).into_iter().map(&warn));
            warnings.extend(idle_delay(rule).map(&warn));
            warnings.extend(kept_reservations(rule).map(&warn));
            earlier.add(rule);
        }
        warnings.extend(self.limits_of_others());
        warnings
    }

    /// Says of rules that judge a bucket by a limit of somebody's own, although others share that bucket.
    fn limits_of_others(&self) -> Vec<Warning> {
        let users = self.users.values().map(|user| ("user", user.id.as_str(), &user.overrides));
        let keys = self.keys.values().map(|key| (API_KEY, key.id.as_str(), &key.overrides));
        let mut owners: BTreeMap<(&str, &str), (&str, usize)> = BTreeMap::new();
        for (kind, owner, limits) in users.chain(keys) {
            for own in limits {
                let known = owners.entry((own.rule.as_str(), kind));
                let (first, _) = known.and_modify(|(_, others)| *others += 1).or_insert((owner, 0));
                // The same one each time, whatever the order of the table.
                *first = owner.min(*first);
            }
        }
        let odd = owners.into_iter().filter_map(|((rule, kind), (owner, others))| {
            let rule = &self.by_name(rule)?.rule;
            (rule.action.counts() && !knows_owners(rule)).then(|| {
                let others = match others {
                    0 => String::new(),
                    1 => " and another".to_owned(),
                    _ => format!(" and {others} others"),
                };
                let per = if rule.per.is_empty() { "nothing".to_owned() } else { rule.per.join(" and ") };
                let text = format!(
                    "{kind} {owner:?}{others}: a limit of one's own holds only for requests with this {kind}, and here against what \
                     all have used who share the bucket, since the rule counts by {per}; count by {kind}, or write a rule that \
                     matches those who are meant"
                );
                Warning { rule: Some(rule.name.clone()), text }
            })
        });
        odd.collect()
    }

    /// Returns what gateways need for these rules, which nobody sees here: told where rules are checked, not
    /// where they are in force.
    #[must_use]
    pub fn advice(&self) -> Vec<Warning> {
        let enabled = self.rules().iter().map(|compiled| &compiled.rule).filter(|rule| rule.enabled);
        let waiting = enabled.filter_map(|rule| {
            let holds = rule.answer.as_ref().is_some_and(|answer| answer.holds_delay);
            let waits = rule.global.as_ref().is_some_and(|global| global.wait > Span::ZERO);
            let option = if holds { "delay = \"hold\"" } else { "wait" };
            let delay = if holds { rule.max_delay } else { Span::ZERO };
            let beyond = beyond_shipped(delay.max(rule.global.as_ref().map_or(Span::ZERO, |global| global.wait)));
            let text = format!(
                "each answer that {option} holds back is an open call of its gateway: let its timeout be longer (Envoy's \
                 timeout, proxy_read_timeout of nginx, timeout server of HAProxy, response_header_timeout of Caddy: 10 s \
                 as shipped, 250 ms at Caddy), and raise max_requests of Envoy's circuit_breakers, beyond which it \
                 lets every request pass; a dozen of one bucket wait{beyond}"
            );
            (holds || waits).then(|| Warning { rule: Some(rule.name.clone()), text })
        });
        waiting.collect()
    }
}

/// Says which gateways wait no longer than `held` unless their timeout is raised; empty where all do.
fn beyond_shipped(held: Span) -> String {
    let shorter = SHIPPED_WAITS.iter().filter(|(_, wait)| *wait <= held);
    let named: Vec<String> =
        shorter.map(|(gateway, wait)| format!("{gateway} for {}", format_span(*wait))).collect();
    if named.is_empty() {
        return String::new();
    }
    format!(
        ". This rule holds answers for up to {}; as shipped waits {}",
        format_span(held),
        named.join(", ")
    )
}

/// Says that a leaky bucket's queue is shorter than its longest delay, so that no request has that delay.
fn idle_delay(rule: &Rule) -> Option<String> {
    let throttles = rule.action == Action::Throttle && rule.algorithm == Algorithm::LeakyBucket;
    let (queued, limit) = (u128::from(rule.burst), u128::from(rule.limit));
    let drains_in = queued * u128::from(rule.window.micros()) / limit.max(1);
    let longest = u128::from(rule.max_delay.micros());
    let is_shorter = throttles && rule.calendar.is_none() && limit > 0 && drains_in < longest;
    is_shorter.then(|| {
        format!(
            "a leaky_bucket queues its burst, and no more: with burst = {queued} no request is delayed for as long as \
             max_delay says; raise burst to {}",
            (longest * limit).div_ceil(u128::from(rule.window.micros()).max(1))
        )
    })
}

/// Says that what a reservation does not use is not all given back: other regions' levels were charged for
/// what they sent.
fn kept_reservations(rule: &Rule) -> Option<String> {
    let is_escrowed = rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow);
    let is_level = rule.action.counts() && rule.algorithm.counting() == Counting::Level;
    (is_escrowed && is_level && rule.reservations != ReservationTerms::default()).then(|| {
        "it has terms for reservations, and under escrow a commit of less, a cancel or a refund gives back none of \
         what other regions sent: write algorithm = \"fixed_window\", \"sliding_window\" or \"sliding_log\""
            .to_owned()
    })
}

/// True if the buckets of a rule are those of users or keys, or if it is for some of them.
fn knows_owners(rule: &Rule) -> bool {
    let names = rule.per.iter().chain(rule.conditions.iter().map(|condition| &condition.attribute));
    names.map(String::as_str).any(|name| name == "user" || name == API_KEY)
}

/// Says of names that they are spelled otherwise than the attributes which gateways send.
fn odd_names(rule: &Rule, normal: bool) -> Vec<String> {
    let names = rule.per.iter().chain(rule.conditions.iter().map(|condition| &condition.attribute));
    let named: BTreeSet<&str> = names.map(String::as_str).filter(|_| normal).collect();
    let odd = named.into_iter().filter_map(|name| {
        let is_usual = |usual: &&str| *usual != name && usual.eq_ignore_ascii_case(name);
        let usual = USUAL_NAMES.into_iter().find(is_usual)?;
        Some(format!(
            "only a request with an attribute {name:?} meets it, and gateways send {usual:?}: write {usual:?}"
        ))
    });
    odd.collect()
}

/// Says why no request has a text as the value of one attribute, or only requests in one odd spelling.
type WhyUnmet = fn(&str) -> Option<String>;

/// Returns what knows the values of this attribute, if anything does.
fn unmet_values(attribute: &str, normal: bool) -> Option<WhyUnmet> {
    match attribute {
        PATH if normal => Some(unmet_path),
        "host" if normal => Some(unmet_host),
        "method" => Some(unmet_method),
        _ => None,
    }
}

/// Says why no requests meet a condition as it is written, or only those in one odd spelling; a sentence for
/// each such value.
fn unmet(condition: &Condition, normal: bool) -> Vec<String> {
    let Some(why) = unmet_values(&condition.attribute, normal) else { return Vec::new() };
    let texts = condition.any_of.iter().filter_map(|pattern| match pattern {
        Pattern::Exact(text) | Pattern::Glob(text) => Some(text),
        Pattern::Network(_) => None,
    });
    let name = &condition.attribute;
    texts.filter_map(|text| Some(format!("{name} = {text:?}: {}", why(text)?))).collect()
}

/// The same of the values that have prices of their own, which requests must have letter by letter.
fn unmet_prices(rule: &Rule, normal: bool) -> Vec<String> {
    let prices = rule.price.iter().flat_map(|prices| &prices.by_attribute);
    let unmet = prices.filter_map(|price| {
        let (name, value) = (price.attribute.as_str(), price.value.as_str());
        let is_pattern = match name {
            PATH => is_regular_expression(value) || without_parameters(value).is_some(),
            "ip" => value.contains('/'),
            _ => false,
        };
        let why = if is_pattern || value.contains('*') {
            let sentence = "only a request with this very text has this price, since prices know no patterns: write each value with its price";
            Some(sentence.to_owned())
        } else {
            unmet_values(name, normal).and_then(|why| why(value))
        };
        Some(format!("price of {name} = {value:?}: {}", why?))
    });
    unmet.collect()
}

fn is_regular_expression(path: &str) -> bool {
    path.starts_with('^') || path.ends_with('$')
}

/// Returns a path with a `*` for each segment that some router would take for a parameter, if it has one.
fn without_parameters(path: &str) -> Option<String> {
    let is_parameter = |segment: &str| {
        let within = |first: char, last: char| {
            segment.len() > 2 && segment.starts_with(first) && segment.ends_with(last)
        };
        let named = segment.strip_prefix(':').and_then(|name| name.chars().next());
        within('{', '}') || within('<', '>') || named.is_some_and(char::is_alphabetic)
    };
    let segments = path.split('/').map(|segment| if is_parameter(segment) { "*" } else { segment });
    let starred = segments.collect::<Vec<&str>>().join("/");
    (starred != path).then_some(starred)
}

fn unmet_path(text: &str) -> Option<String> {
    if is_regular_expression(text) {
        let known = "`*` stands for any run of characters, and all else for itself";
        return Some(format!("no request meets it, since rules know no regular expressions: {known}"));
    }
    if let Some(end) = text.find(['?', '#']) {
        let path = text.get(..end).unwrap_or_default();
        return Some(format!(
            "no request meets it, since rules see paths without their queries: write {path:?}"
        ));
    }
    if let Some(starred) = without_parameters(text) {
        return Some(format!(
            "only requests with this very text meet it, since rules know no parameters in paths: write {starred:?}"
        ));
    }
    // Names of methods, such as `orders.create`, have no slash at all; a single word is none.
    let is_relative = text.contains('/') || text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_relative && !text.starts_with(['/', '*', '\\']) && !text.contains("://") && !text.is_empty() {
        let absolute = format!("/{text}");
        return Some(format!(
            "only requests whose gateway leaves the first slash out meet it: write {absolute:?}"
        ));
    }
    let (written, normal) = (uri::letters(text), uri::path(text));
    (written != normal).then(|| {
        format!("only requests that spell it so meet it, since rules see paths in one form: write {normal:?}")
    })
}

fn unmet_host(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if text.contains('/') {
        let rest = lower.split_once("://").map_or(lower.as_str(), |(_, rest)| rest);
        let host = rest.split('/').next().unwrap_or_default();
        return Some(format!("no request meets it, since no host has a slash: write {host:?}"));
    }
    // A star among the colons of an IPv6 address is no port.
    if lower.contains('*') && lower.matches(':').count() > 1 {
        return None;
    }
    let bare = lower.strip_suffix(":*").filter(|bare| !bare.is_empty() && *bare != "*");
    let normal = bare.map_or_else(|| uri::host(&lower).into_owned(), str::to_owned);
    (normal != lower).then(|| {
        format!(
            "no request meets it, since rules see hosts without port and dot at their end: write {normal:?}"
        )
    })
}

fn unmet_method(text: &str) -> Option<String> {
    let several = |sign: char| sign == ',' || sign == '|' || sign.is_ascii_whitespace();
    if text.contains(several) {
        let each: Vec<String> =
            text.split(several).filter(|word| !word.is_empty()).map(str::to_ascii_uppercase).collect();
        return Some(format!("no request meets it, since a request has one method: write {each:?}"));
    }
    text.bytes().any(|byte| byte.is_ascii_lowercase()).then(|| {
        let upper = text.to_ascii_uppercase();
        format!("no request meets it, since methods come in upper case: write {upper:?}")
    })
}

/// Rules of higher precedence that have a group, by domain and group.
#[derive(Default)]
struct Earlier<'r>(std::collections::HashMap<(&'r str, &'r str), Vec<&'r Rule>>);

impl<'r> Earlier<'r> {
    fn add(&mut self, rule: &'r Rule) {
        if let Some(group) = &rule.group {
            self.0.entry((&rule.domain, group)).or_default().push(rule);
        }
    }

    /// The name of a rule that decides this one's group wherever this one matches.
    fn hides(&self, rule: &Rule, pairs: &mut usize) -> Option<&'r str> {
        let group = rule.group.as_deref()?;
        first(self.0.get(&(rule.domain.as_str(), group))?, rule, pairs)
    }
}

fn exempts(rule: &Rule) -> bool {
    rule.action == Action::Allow && rule.group.is_none()
}

/// The first of `others` that matches whatever `rule` matches.
fn first<'r>(others: &[&'r Rule], rule: &Rule, pairs: &mut usize) -> Option<&'r str> {
    let looked = others.len().min(*pairs);
    *pairs -= looked;
    others.iter().take(looked).find(|other| covers(other, rule)).map(|other| other.name.as_str())
}

/// True if `wide` takes part wherever `narrow` does.
fn covers(wide: &Rule, narrow: &Rule) -> bool {
    // Only acquisitions ask rules that hold places.
    let holds = |rule: &Rule| rule.action.counts() && rule.algorithm == Algorithm::Concurrency;
    wide.domain == narrow.domain
        && (!holds(wide) || holds(narrow))
        && (!wide.exact || narrow.exact && named(wide) == named(narrow))
        && wide.conditions.iter().all(|condition| implied(condition, narrow))
        && wide.per.iter().all(|name| {
            narrow.per.contains(name) || narrow.conditions.iter().any(|known| known.attribute == *name)
        })
}

fn named(rule: &Rule) -> BTreeSet<&str> {
    let conditions = rule.conditions.iter().map(|condition| condition.attribute.as_str());
    conditions.chain(rule.per.iter().map(String::as_str)).collect()
}

/// True if `condition` holds wherever `rule` matches.
fn implied(condition: &Condition, rule: &Rule) -> bool {
    let present =
        condition.any_of.iter().any(|pattern| matches!(pattern, Pattern::Glob(text) if text == "*"));
    if present && rule.per.contains(&condition.attribute) {
        return true;
    }
    let mut same = rule.conditions.iter().filter(|known| known.attribute == condition.attribute);
    same.any(|known| {
        known.any_of.iter().all(|narrow| condition.any_of.iter().any(|wide| holds_for(wide, narrow)))
    })
}

/// True if `wide` matches every value that `narrow` matches.
fn holds_for(wide: &Pattern, narrow: &Pattern) -> bool {
    match (wide, narrow) {
        (Pattern::Glob(wide), _) if wide == "*" => true,
        // A star of `narrow` can only be matched by a star of `wide`, which also matches whatever stands
        // there instead.
        (Pattern::Glob(wide), Pattern::Exact(text) | Pattern::Glob(text)) => Glob::new(wide).matches(text),
        (Pattern::Network(wide), Pattern::Network(narrow)) => wide.contains(narrow),
        (wide, narrow) => wide == narrow,
    }
}
