//! The rules of Envoy's rate limit service, found and judged as that service does it.
//!
//! A descriptor walks down a tree: at each level to the entry with its value, else to the first pattern that
//! fits, else to the entry without a value. The limit where all of it is walked is the one that holds. Each
//! limit counts by a rule of ours, which a request names by [`RULE`]; so texts stay texts, and the order of
//! entries matters as it does there.

mod settings;
mod statistics;
#[cfg(test)]
mod tests;
mod votes;

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use serde_json::{Map, Value};
use smallvec::SmallVec;

use crate::algorithm::Algorithm;
use crate::request::TEXT_BYTES_MAX;
use crate::rule::{Charging, Condition, Debt, Global, Pattern, Rule};
use crate::time::Span;

pub use self::settings::ServiceSettings;
pub use self::statistics::{Hits, near_limit};
pub use self::votes::{Vote, VoteKind, is_over, merge_metadata};

/// The attribute by which a request names the rule that counts it.
pub const RULE: &str = "tidegate_rule";
/// The attribute that names the bucket of a limit that its caller brings.
pub const CALLER_LIMIT: &str = "descriptor";
/// Room for a number that tells rules of one name apart, in bytes.
const NUMBER_BYTES: usize = 24;

/// An entry of the tree as it is written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ServiceEntry {
    /// Key that the descriptor must have at this level.
    pub key: String,
    /// The values that it is for.
    pub value: EntryValue,
    /// The limit of a descriptor that ends here.
    pub limit: Option<EntryLimit>,
    /// True if the limit only counts and never denies.
    pub shadow: bool,
    /// True if the limit is one of several quotas, which deny together.
    pub quota: bool,
    /// True if all values that fit a pattern share one bucket.
    pub shared: bool,
    /// True if statistics show the values of requests, at every level.
    pub detailed: bool,
    /// True if statistics show the value of a request at this level.
    pub value_to_metric: bool,
    /// Metadata that an answer tells of a descriptor that passes.
    pub metadata: Option<Map<String, Value>>,
    /// The entries of the next level.
    pub entries: Vec<ServiceEntry>,
}

/// The values that an entry is for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EntryValue {
    /// Whichever no other entry is for; each is counted apart.
    #[default]
    Any,
    /// This one.
    Exact(String),
    /// Values that this text fits, in which `*` stands for any run of characters.
    Glob(String),
}

/// A limit as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryLimit {
    /// Permits and window of the limit; `None` lets everything pass.
    pub rate: Option<LimitRate>,
    /// The name that answers tell; may be empty.
    pub name: String,
    /// The names of limits that do not hold beside this one.
    pub replaces: Vec<String>,
}

/// So many in each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRate {
    /// Permits that pass in each window.
    pub permits: u32,
    /// The window, which begins with the epoch.
    pub window: Span,
}

/// A limit that descriptors find.
#[derive(Debug, Clone, PartialEq)]
pub struct DescriptorLimit {
    /// Its place among all limits of the set.
    pub place: usize,
    /// Domain whose descriptors the limit is for.
    pub domain: String,
    /// The name of the rule that counts it.
    pub rule: String,
    /// The name that answers tell; may be empty.
    pub name: String,
    /// Permits and window of the limit; `None` lets everything pass.
    pub rate: Option<LimitRate>,
    /// True if the limit only counts and never denies.
    pub shadow: bool,
    /// True if it is one of several quotas, which deny together.
    pub quota: bool,
    /// The names of limits that do not hold beside this one.
    pub replaces: Vec<String>,
    /// Metadata that an answer tells if it lets a descriptor pass.
    pub metadata: Option<Map<String, Value>>,
    /// Its name in statistics where values of requests are not shown.
    pub statistics: String,
    /// By level, whether statistics show the value of the request; empty: nowhere.
    real_values: Box<[bool]>,
    /// By level, the value that is shown elsewhere.
    steps: Box<[Option<String>]>,
    keys: Vec<String>,
}

/// Everything that is in force.
#[derive(Debug, Default)]
pub struct ServiceRules {
    domains: HashMap<String, DescriptorLevel, FixedState>,
    limits: Vec<Arc<DescriptorLimit>>,
    replacing: bool,
}

/// Entries of one level.
#[derive(Debug, Default)]
struct DescriptorLevel {
    exact: HashMap<String, HashMap<String, DescriptorNode, FixedState>, FixedState>,
    globs: Vec<(String, ValueGlob, DescriptorNode)>,
    any: HashMap<String, DescriptorNode, FixedState>,
}

#[derive(Debug)]
struct DescriptorNode {
    limit: Option<Arc<DescriptorLimit>>,
    /// The text in the place of each value that fits.
    shared: Option<String>,
    below: Option<Box<DescriptorLevel>>,
}

/// A text with `*`, by its pieces.
#[derive(Debug)]
struct ValueGlob(Vec<String>);

/// Names and values by which a descriptor is counted.
pub type CountedEntries<'a> = SmallVec<[(&'a str, &'a str); 8]>;

/// The limit that a descriptor finds, or why there is none.
#[derive(Debug, PartialEq)]
pub enum LimitFound<'r> {
    /// Its domain has no rules.
    NoDomain,
    /// No limit is for it.
    Nothing,
    /// This limit.
    Limit(&'r Arc<DescriptorLimit>),
}

impl ValueGlob {
    fn new(text: &str) -> Self {
        Self(text.split('*').map(str::to_owned).collect())
    }

    /// True where the pieces stand in the value one after the other, the first at its beginning and the last
    /// at its end, and none over another.
    fn fits(&self, value: &str) -> bool {
        let Some((first, others)) = self.0.split_first() else { return false };
        let Some(mut rest) = value.strip_prefix(first.as_str()) else { return false };
        let Some((last, middle)) = others.split_last() else { return rest.is_empty() };
        for piece in middle {
            let Some((_, after)) = rest.split_once(piece.as_str()) else { return false };
            rest = after;
        }
        rest.ends_with(last.as_str())
    }
}

/// Returns whether a value fits a text in which `*` stands for any run of characters.
#[must_use]
pub fn glob_fits(text: &str, value: &str) -> bool {
    ValueGlob::new(text).fits(value)
}

impl DescriptorLevel {
    fn find(&self, key: &str, value: &str) -> Option<&DescriptorNode> {
        if let Some(node) = self.exact.get(key).and_then(|values| values.get(value)) {
            return Some(node);
        }
        let glob = self.globs.iter().find(|(own, glob, _)| own == key && glob.fits(value));
        glob.map(|(.., node)| node).or_else(|| self.any.get(key))
    }
}

impl ServiceRules {
    /// Makes the rules of these domains, each of which has one tree.
    #[must_use]
    pub fn new(domains: Vec<(String, Vec<ServiceEntry>)>) -> Self {
        let mut made = Self::default();
        let mut names = HashMap::default();
        for (domain, entries) in domains {
            let mut path = LimitPath { domain: &domain, steps: Vec::new() };
            let level = made.level(entries, &mut path, &mut names);
            made.domains.insert(domain, level);
        }
        made
    }

    fn level(
        &mut self,
        entries: Vec<ServiceEntry>,
        path: &mut LimitPath<'_>,
        names: &mut HashMap<String, u32, FixedState>,
    ) -> DescriptorLevel {
        let mut level = DescriptorLevel::default();
        for mut entry in entries {
            let below = std::mem::take(&mut entry.entries);
            path.steps.push(entry);
            let limit = path.limit(self.limits.len(), names).map(Arc::new);
            if let Some(limit) = &limit {
                self.replacing |= !limit.replaces.is_empty();
                self.limits.push(Arc::clone(limit));
            }
            let below = (!below.is_empty()).then(|| Box::new(self.level(below, path, names)));
            let Some(entry) = path.steps.pop() else { continue };
            let shared = match &entry.value {
                EntryValue::Glob(text) if entry.shared => Some(text.clone()),
                _ => None,
            };
            let node = DescriptorNode { limit, shared, below };
            match entry.value {
                EntryValue::Any => drop(level.any.insert(entry.key, node)),
                EntryValue::Exact(value) => {
                    level.exact.entry(entry.key).or_default().insert(value, node);
                }
                EntryValue::Glob(text) => level.globs.push((entry.key, ValueGlob::new(&text), node)),
            }
        }
        level
    }

    /// Returns whether the domain has rules.
    #[must_use]
    pub fn knows(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns whether some limit takes the place of others.
    #[must_use]
    pub const fn replaces(&self) -> bool {
        self.replacing
    }

    /// Every limit, by its place.
    #[must_use]
    pub fn limits(&self) -> &[Arc<DescriptorLimit>] {
        &self.limits
    }

    /// Finds the limit of a descriptor, and writes down by what it is counted.
    pub fn find<'a, 'r: 'a>(
        &'r self,
        domain: &str,
        entries: &[(&'a str, &'a str)],
        counted: &mut CountedEntries<'a>,
    ) -> LimitFound<'r> {
        let Some(mut level) = self.domains.get(domain) else { return LimitFound::NoDomain };
        let Some(((last, last_value), before)) = entries.split_last() else { return LimitFound::Nothing };
        for (key, value) in before {
            let Some(node) = level.find(key, value) else { return LimitFound::Nothing };
            let Some(below) = &node.below else { return LimitFound::Nothing };
            counted.push((key, node.shared.as_deref().unwrap_or(value)));
            level = below;
        }
        let Some(node) = level.find(last, last_value) else { return LimitFound::Nothing };
        counted.push((last, node.shared.as_deref().unwrap_or(last_value)));
        node.limit.as_ref().map_or(LimitFound::Nothing, LimitFound::Limit)
    }

    /// The rules of ours that count these limits. `domain` names a domain to them, and `global` says how a
    /// limit is held worldwide, by its rule's name.
    #[must_use]
    pub fn counting_rules(
        &self,
        domain: impl Fn(&str) -> String,
        global: impl Fn(&str) -> Option<Global>,
    ) -> Vec<Rule> {
        let counted = |name: &str, domain: &str, rate: LimitRate, per: Vec<String>| {
            let global = global(name);
            let named =
                Condition { attribute: RULE.to_owned(), any_of: vec![Pattern::Exact(name.to_owned())] };
            Rule {
                domain: domain.to_owned(),
                conditions: vec![named],
                per,
                charge: Charging::Always,
                // Regions that share a limit each know what exceeds their own part of it, and nothing else.
                debt: if global.is_some() { Debt::Forgive } else { Debt::Window },
                global,
                ..Rule::new(name, Algorithm::FixedWindow, rate.permits, rate.window)
            }
        };
        let limits = self.limits.iter().filter_map(|limit| {
            let own = domain(&limit.domain);
            Some(counted(&limit.rule, &own, limit.rate?, limit.keys.clone()))
        });
        let callers = self.domains.keys().map(|own| {
            let rate = LimitRate { permits: u32::MAX, window: Span::from_secs(3_600) };
            counted(&caller_rule(own), &domain(own), rate, vec![CALLER_LIMIT.to_owned()])
        });
        let mut rules: Vec<Rule> = limits.chain(callers).collect();
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        rules
    }
}

/// The name of the rule that counts limits which callers bring.
#[must_use]
pub fn caller_rule(domain: &str) -> String {
    format!("{}: limits of callers", beginning(domain))
}

/// Returns as much of a text as a name has room for.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX - NUMBER_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// The way to an entry.
struct LimitPath<'d> {
    domain: &'d str,
    steps: Vec<ServiceEntry>,
}

impl LimitPath<'_> {
    fn limit(&self, place: usize, names: &mut HashMap<String, u32, FixedState>) -> Option<DescriptorLimit> {
        let last = self.steps.last()?;
        let EntryLimit { rate, name, replaces } = last.limit.clone()?;
        let wanted = beginning(&self.name()).to_owned();
        let times = names.entry(wanted.clone()).or_insert(0);
        *times += 1;
        let rule = if *times == 1 { wanted } else { format!("{wanted} ({times})") };
        let all = self.steps.iter().any(|step| step.detailed);
        let real_values: Box<[bool]> = self.steps.iter().map(|step| all || step.value_to_metric).collect();
        let real_values = if real_values.contains(&true) { real_values } else { Box::default() };
        let mut keys: Vec<String> = vec![];
        for step in self.steps.iter().filter(|step| !step.key.is_empty()) {
            if !keys.contains(&step.key) {
                keys.push(step.key.clone());
            }
        }
        let (shadow, quota, metadata) = (last.shadow, last.quota, last.metadata.clone());
        Some(DescriptorLimit {
            place,
            domain: self.domain.to_owned(),
            rule,
            name,
            rate,
            shadow,
            quota,
            replaces,
            metadata,
            statistics: statistics::name(self.domain, self.steps.iter().map(ServiceEntry::shown)),
            real_values,
            steps: self.steps.iter().map(|step| step.shown().1.map(str::to_owned)).collect(),
            keys,
        })
    }

    /// The domain, then each key with the value that it is for.
    fn name(&self) -> String {
        let mut name = self.domain.to_owned();
        for (key, value) in self.steps.iter().map(ServiceEntry::shown) {
            name.push('.');
            name.push_str(key);
            if let Some(value) = value {
                name.push('_');
                name.push_str(value);
            }
        }
        name
    }
}

impl ServiceEntry {
    /// The key, and the value that names show.
    fn shown(&self) -> (&str, Option<&str>) {
        let value = match &self.value {
            EntryValue::Any => None,
            EntryValue::Exact(value) | EntryValue::Glob(value) => Some(value.as_str()),
        };
        (&self.key, value)
    }
}
