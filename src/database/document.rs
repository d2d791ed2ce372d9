//! Rules as they are written: one shape for `rules.toml` and for the JSON of the API.
//!
//! A document is read as a whole. Every problem is told at once, with its place and what was expected, and a
//! document with any problem gives no rules at all.

mod answer;
mod calendar;
mod penalty;
mod people;
mod reserve;
mod rule;
mod shown;

#[cfg(test)]
mod oddities;
#[cfg(test)]
mod other_words;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::core::algorithm::Counting;
use crate::core::identity::{ApiKey, User, UserLimit};
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::rule::Rule;
use crate::core::ruleset::People;
use crate::core::written::{At, Fields, Problem, Problems, TreeEntry, TreeNode, integer, suggestion, text};

pub use self::shown::{GlobalDoc, MatchDoc, RuleDoc};

/// A document that was read without a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its rules, in the order of the document.
    pub rules: Vec<Rule>,
    /// Its users, in the order of the document.
    pub users: Vec<User>,
    /// Its API keys, in the order of the document.
    pub keys: Vec<ApiKey>,
    /// Its tiers, in the order of the document.
    pub tiers: Vec<String>,
    /// Names the text: equal for equal texts, on every machine and in every build. Zero for JSON.
    pub hash: u64,
}

impl Loaded {
    /// Returns who is written down beside the rules.
    #[must_use]
    pub fn people(&self) -> People {
        People { users: self.users.clone(), keys: self.keys.clone() }
    }
}

/// Reads `rules.toml`.
///
/// `file` is how problems name it. `regions` are those that may hold shares; empty if they are not known.
///
/// # Errors
/// Every problem, in the order of the text; a text that is no TOML has one.
pub fn from_toml(file: &str, text: &str, regions: &[String]) -> Result<Loaded, Vec<Problem>> {
    let mut problems = Problems::new(file, text);
    let root = TreeNode::from_toml(text).map_err(|(at, message)| {
        problems.report(&at, message);
    });
    let read = root.ok().and_then(|root| read_set(&root, regions, &mut problems));
    match read {
        Some(loaded) if problems.is_empty() => Ok(Loaded { hash: hash(text.as_bytes()), ..loaded }),
        _ => Err(problems.into_list()),
    }
}

/// Reads a whole set in JSON: `{"rules": […], "tiers": […], "users": […]}`, each of them optional.
///
/// # Errors
/// Every problem, with the path of its field.
pub fn from_json(json: &serde_json::Value, regions: &[String]) -> Result<Loaded, Vec<Problem>> {
    let mut problems = Problems::new("", "");
    match read_set(&TreeNode::from_json(json, ""), regions, &mut problems) {
        Some(loaded) if problems.is_empty() => Ok(loaded),
        _ => Err(problems.into_list()),
    }
}

/// Reads one rule in JSON.
///
/// # Errors
/// Every problem, with the path of its field.
pub fn rule_from_json(json: &serde_json::Value, regions: &[String]) -> Result<Rule, Vec<Problem>> {
    named_rule_from_json(json, "", regions)
}

/// The same; problems stand at fields below `place`.
///
/// # Errors
/// Every problem, with the path of its field.
pub fn named_rule_from_json(
    json: &serde_json::Value,
    place: &str,
    regions: &[String],
) -> Result<Rule, Vec<Problem>> {
    let mut problems = Problems::new("", "");
    match rule::read(&TreeNode::from_json(json, place), regions, &mut problems) {
        Some(rule) if problems.is_empty() => Ok(rule),
        _ => Err(problems.into_list()),
    }
}

/// The name of a text; see [`Loaded::hash`].
#[must_use]
pub fn hash(text: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(text);
    hasher.finish()
}

fn read_set(root: &TreeNode, regions: &[String], problems: &mut Problems<'_>) -> Option<Loaded> {
    let mut fields = Fields::open(root, problems)?;
    let rules = read_rules(fields.list("rules", problems).unwrap_or_default(), regions, problems);
    let tiers = read_tiers(fields.list("tiers", problems).unwrap_or_default(), problems);
    let users = read_users(fields.list("users", problems).unwrap_or_default(), &rules, &tiers, problems);
    let known = people::KnownNames { rules: &rules, tiers: &tiers };
    let keys = people::keys(fields.list("keys", problems).unwrap_or_default(), known, problems);
    fields.finish(problems);
    Some(Loaded { rules, users, keys, tiers, hash: 0 })
}

fn read_rules(nodes: &[TreeNode], regions: &[String], problems: &mut Problems<'_>) -> Vec<Rule> {
    let mut unique = Unique::new("rule name");
    let mut rules = Vec::with_capacity(nodes.len());
    for node in nodes {
        if let Some(entry) = entry(node, "name") {
            unique.check(&entry.node, problems);
        }
        rules.extend(rule::read(node, regions, problems));
    }
    rules
}

fn read_tiers(nodes: &[TreeNode], problems: &mut Problems<'_>) -> Vec<String> {
    let mut unique = Unique::new("tier");
    let mut tiers = Vec::new();
    for node in nodes {
        let Some(mut fields) = Fields::open(node, problems) else { continue };
        if let Some(entry) = entry(node, "name") {
            unique.check(&entry.node, problems);
        }
        if !fields.has("name") {
            problems.report(fields.at, "name is missing: a tier needs one");
        }
        fields.text("description", TEXT_BYTES_MAX, problems);
        tiers.extend(fields.text("name", TEXT_BYTES_MAX, problems).map(str::to_owned));
        fields.finish(problems);
    }
    tiers
}

fn read_users(
    nodes: &[TreeNode],
    rules: &[Rule],
    tiers: &[String],
    problems: &mut Problems<'_>,
) -> Vec<User> {
    let by_name: HashMap<&str, &Rule> = rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
    let mut unique = Unique::new("user id");
    let mut users = Vec::new();
    for node in nodes {
        let Some(mut fields) = Fields::open(node, problems) else { continue };
        if let Some(entry) = entry(node, "id") {
            unique.check(&entry.node, problems);
        }
        if !fields.has("id") {
            problems.report(fields.at, "id is missing: a user needs one");
        }
        let id = fields.text("id", TEXT_BYTES_MAX, problems);
        let tier = read_tier(&mut fields, tiers, problems);
        let overrides = fields.table("overrides", problems).map_or_else(Vec::new, |own| {
            own.entries().iter().filter_map(|entry| read_override(entry, &by_name, problems)).collect()
        });
        let blocked = people::block(&mut fields, problems);
        fields.finish(problems);
        users.extend(id.map(|id| User { id: id.to_owned(), tier, overrides, blocked }));
    }
    users
}

/// The user's tier, which must be one of the document's where it lists any.
fn read_tier(fields: &mut Fields<'_>, tiers: &[String], problems: &mut Problems<'_>) -> Option<String> {
    let node = &fields.take("tier")?.node;
    let tier = text(node, "tier", TEXT_BYTES_MAX, problems)?;
    if !tiers.is_empty() && tiers.iter().all(|known| known != tier) {
        let near = suggestion(tier, tiers.iter().map(String::as_str));
        let near = near.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
        problems.report(&node.at, format!("tier {tier:?} is not listed under [[tiers]]{near}"));
    }
    Some(tier.to_owned())
}

fn read_override(
    entry: &TreeEntry,
    rules: &HashMap<&str, &Rule>,
    problems: &mut Problems<'_>,
) -> Option<UserLimit> {
    let mut fields = Fields::open(&entry.node, problems)?;
    let limit = fields.take("limit").map(|own| &own.node);
    let burst = fields.count("burst", 1, problems);
    let rule = rules.get(entry.key.as_str());
    match rule {
        None => {
            let near = suggestion(&entry.key, rules.keys().copied());
            let near = near.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
            problems.report(&entry.at, format!("there is no rule {:?} to override{near}", entry.key));
        }
        Some(rule) if !rule.action.counts() => {
            problems.report(&entry.at, format!("rule {:?} does not count, so it has no limit", entry.key));
        }
        Some(rule) if rule.algorithm.counting() == Counting::Window && fields.has("burst") => {
            let sentence = format!("burst has no effect on rule {:?}, which counts in windows", entry.key);
            problems.report(&entry.at, sentence);
        }
        Some(_) => {}
    }
    let max = rule.map_or(u32::MAX, |rule| rule::limit_max(rule.algorithm));
    let permits = match limit {
        Some(node) => integer(node, "limit", 0, i64::from(max), problems),
        None => {
            problems.report(fields.at, "limit is missing: an override needs one");
            None
        }
    };
    fields.finish(problems);
    let permits = u32::try_from(permits?).ok()?;
    Some(UserLimit { rule: entry.key.clone(), permits, burst: burst.unwrap_or(permits) })
}

/// An entry of a table, before the table is read.
fn entry<'n>(node: &'n TreeNode, key: &str) -> Option<&'n TreeEntry> {
    match &node.value {
        crate::core::written::Value::Table(entries) => entries.iter().find(|entry| entry.key == key),
        _ => None,
    }
}

/// Texts that may be used once.
struct Unique<'n> {
    what: &'static str,
    seen: HashMap<&'n str, &'n At>,
}

impl<'n> Unique<'n> {
    fn new(what: &'static str) -> Self {
        Self { what, seen: HashMap::new() }
    }

    fn check(&mut self, node: &'n TreeNode, problems: &mut Problems<'_>) {
        let crate::core::written::Value::Text(text) = &node.value else { return };
        if let Some(first) = self.seen.insert(text, &node.at) {
            let where_first =
                problems.line(first).map(|line| format!(" (first on line {line})")).unwrap_or_default();
            problems.report(&node.at, format!("{} {text:?} is used twice{where_first}", self.what));
        }
    }
}
