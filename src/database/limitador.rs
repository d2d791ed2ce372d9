//! Limits of Limitador, read as ours: `tidegate rules import --from limitador`.
//!
//! There a request is held to every limit of its namespace whose conditions its descriptors meet and whose
//! variables they have. Here each limit is a rule. Where a condition excludes values, a rule that allows
//! these stands before it in a group of both: so the excluded requests are counted by neither.

mod condition;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use self::condition::{DescriptorKey, KeyTest};
use super::imported::meaning::{self, Wanted};
use super::imported::{self, Imported, ImportedRule, Remarks, Unread};

/// Most limits in one file.
const LIMITS_MAX: usize = 100_000;
/// The end of a sentence on a limit that cannot be said.
const LEFT_OUT: &str = "the limit is left out";

/// Reads files, each by the name that sentences give it and its text.
///
/// # Errors
/// Every text that is no such file at all.
pub fn import(files: &[(String, String)]) -> Result<Imported, Vec<Unread>> {
    let (mut remarks, mut unread) = (Remarks::default(), Vec::new());
    let (mut rules, mut seen) = (Vec::new(), Vec::new());
    for (file, text) in files {
        let (list, limits) = match limits_of(file, text) {
            Ok(read) => read,
            Err(problem) => {
                unread.push(problem);
                continue;
            }
        };
        if limits.len() > LIMITS_MAX {
            remarks.left_out(file, "a file may have at most 100,000 limits: the rest is left out");
        }
        let mut reader = LimitadorReader { file, noted: BTreeSet::new(), remarks: &mut remarks };
        let before = rules.len();
        for (at, written) in limits.into_iter().take(LIMITS_MAX).enumerate() {
            let place = format!("{file}: {list}[{at}]");
            let Some(limit) = reader.limit(&place, written) else { continue };
            if let Some((first, _)) = seen.iter().find(|(_, other)| limit.is_the_same(other)) {
                reader.remarks.left_out(
                    &place,
                    format_args!("has the namespace, seconds, conditions and variables of {first}, whose counters it would share: {LEFT_OUT}"),
                );
                continue;
            }
            rules.extend(limit.rules(seen.len() + 1));
            seen.push((place, limit));
        }
        if rules.len() > before {
            reader.note_counting();
        }
    }
    if unread.is_empty() { Ok(remarks.with(rules)) } else { Err(unread) }
}

/// Returns the limits of a file, and the path of their list: Limitador's own, or the operator's resource.
fn limits_of(file: &str, text: &str) -> Result<(&'static str, Vec<Value>), Unread> {
    let mut root = imported::yaml(file, text)?;
    let listed = root.pointer_mut("/spec/limits").map(Value::take);
    match (root, listed) {
        (Value::Array(limits), _) => Ok(("limits", limits)),
        (_, Some(Value::Array(limits))) => Ok(("spec.limits", limits)),
        _ => Err(Unread {
            place: file.to_owned(),
            why: "is no file of Limitador: a list of limits is expected, or a resource of the kind Limitador with \
                  spec.limits"
                .to_owned(),
        }),
    }
}

/// A limit as rules can say it.
#[derive(Debug)]
struct LimitadorLimit {
    namespace: String,
    name: Option<String>,
    max_value: u32,
    seconds: u64,
    /// Its conditions and variables as they are written, by which Limitador tells limits apart.
    written: [BTreeSet<String>; 2],
    per: Vec<String>,
    /// Patterns that an attribute has to meet, each key by one list.
    wanted: BTreeMap<String, Vec<String>>,
    /// Patterns that it must not meet.
    excluded: BTreeMap<String, Vec<String>>,
}

impl LimitadorLimit {
    /// True if Limitador takes both for one limit.
    fn is_the_same(&self, other: &Self) -> bool {
        (&self.namespace, self.seconds, &self.written) == (&other.namespace, other.seconds, &other.written)
    }

    fn rules(&self, ordinal: usize) -> Vec<ImportedRule> {
        let domain = Some(self.namespace.clone());
        let name = self.name.clone().unwrap_or_else(|| self.described());
        let group = (!self.excluded.is_empty()).then(|| format!("limitador {ordinal}"));
        let mut rules = Vec::new();
        for (attribute, values) in &self.excluded {
            let mut conditions = self.wanted.clone();
            conditions.insert(attribute.clone(), values.clone());
            rules.push(ImportedRule {
                name: format!("{name}.not-limited"),
                domain: domain.clone(),
                action: Some("allow"),
                conditions,
                ..ImportedRule::default()
            });
        }
        rules.push(ImportedRule {
            name,
            domain,
            per: self.per.clone(),
            algorithm: Some("fixed_window"),
            limit: Some(self.max_value),
            window: imported::window(self.seconds),
            conditions: self.wanted.clone(),
            ..ImportedRule::default()
        });
        for (priority, rule) in (100..).zip(&mut rules) {
            rule.group.clone_from(&group);
            rule.priority = group.as_ref().map(|_| priority);
        }
        rules
    }

    /// Returns a name for a limit without one: its namespace, what it is for and by what it counts.
    fn described(&self) -> String {
        let mut name = self.namespace.clone();
        for (attribute, values) in &self.wanted {
            let values = values.join("|");
            name.push_str(&if values == "*" {
                format!(".{attribute}")
            } else {
                format!(".{attribute}_{values}")
            });
        }
        for attribute in self.per.iter().filter(|name| !self.wanted.contains_key(*name)) {
            name.push('.');
            name.push_str(attribute);
        }
        name
    }
}

struct LimitadorReader<'r> {
    file: &'r str,
    /// Attributes of ours that were named already.
    noted: BTreeSet<String>,
    remarks: &'r mut Remarks,
}

impl LimitadorReader<'_> {
    fn note_counting(&mut self) {
        self.remarks.note(
            self.file,
            "windows begin with the clock here, and with the first request that they count there: either way no window has \
             more than the limit",
        );
        self.remarks.note(
            self.file,
            "a rule counts every descriptor of a request that meets it, by itself; Limitador counts the request once: have the \
             gateway send one descriptor",
        );
    }

    fn limit(&mut self, place: &str, written: Value) -> Option<LimitadorLimit> {
        let Value::Object(mut fields) = written else {
            self.remarks.left_out(place, format_args!("must be a table: {LEFT_OUT}"));
            return None;
        };
        let text = |fields: &mut Map<String, Value>, name: &str| imported::text(&fields.remove(name)?);
        let namespace = text(&mut fields, "namespace");
        if namespace.is_none() {
            self.faulty(place, "namespace", "must be a text");
        }
        let max_value = self.max_value(place, &mut fields);
        let seconds = self.seconds(place, &mut fields);
        let (name, id) = (text(&mut fields, "name"), text(&mut fields, "id"));
        let conditions = self.texts(&format!("{place}.conditions"), fields.remove("conditions"));
        let variables = self.texts(&format!("{place}.variables"), fields.remove("variables"));
        for field in fields.keys() {
            self.remarks.left_out(
                &format!("{place}.{field}"),
                "there is nothing like it here: the limit is read without it",
            );
        }
        let (conditions, variables) = (conditions?, variables?);
        let written = [&conditions, &variables]
            .map(|texts| texts.iter().map(|(_, text)| text.clone()).collect::<BTreeSet<_>>());
        let (tests, variables) = (self.conditions(conditions), self.variables(variables));
        let (tests, variables) = (tests?, variables?);
        self.check_descriptors(place, &tests, &variables)?;
        let mut limit = LimitadorLimit {
            namespace: namespace?,
            name: name.or(id),
            max_value: max_value?,
            seconds: seconds?,
            written,
            per: Vec::new(),
            wanted: BTreeMap::new(),
            excluded: BTreeMap::new(),
        };
        for key in variables {
            let attribute = self.attribute(place, &key.name);
            if !limit.per.contains(&attribute) {
                limit.per.push(attribute);
            }
        }
        for test in tests {
            self.add(place, &mut limit, test)?;
        }
        Some(limit)
    }

    fn max_value(&mut self, place: &str, fields: &mut Map<String, Value>) -> Option<u32> {
        let max_value = fields.remove("max_value").and_then(|value| imported::whole(&value));
        let max_value = max_value.and_then(|value| u32::try_from(value).ok());
        if max_value.is_none() {
            self.faulty(place, "max_value", "must be a whole number up to 4294967295");
        }
        max_value
    }

    fn seconds(&mut self, place: &str, fields: &mut Map<String, Value>) -> Option<u64> {
        let seconds = fields.remove("seconds").and_then(|value| imported::whole(&value));
        let seconds = seconds.filter(|seconds| imported::window(*seconds).is_some());
        if seconds.is_none() {
            self.faulty(place, "seconds", "must be a whole number from 1 to 31622400 (366 days)");
        }
        seconds
    }

    fn faulty(&mut self, place: &str, field: &str, why: &str) {
        self.remarks.left_out(&format!("{place}.{field}"), format_args!("{why}: {LEFT_OUT}"));
    }

    /// Reads conditions; `None`: one of them cannot be said, so the limit without it would hold for more.
    fn conditions(&mut self, texts: Vec<(String, String)>) -> Option<Vec<KeyTest>> {
        let mut tests = Vec::new();
        for (place, written) in texts {
            match condition::read(&written) {
                Ok(read) => tests.extend(read),
                Err(why) => {
                    self.remarks.left_out(&place, format_args!("{written} {why}: {LEFT_OUT}"));
                    return None;
                }
            }
        }
        Some(tests)
    }

    fn variables(&mut self, texts: Vec<(String, String)>) -> Option<Vec<DescriptorKey>> {
        let mut keys = Vec::new();
        for (place, written) in texts {
            let Some(key) = condition::read_key(&written) else {
                self.remarks.left_out(
                    &place,
                    format_args!(
                        "{written} is no key of a descriptor, and rules count by nothing else: {LEFT_OUT}"
                    ),
                );
                return None;
            };
            keys.push(key);
        }
        Some(keys)
    }

    /// Returns the texts of a list, each with its place.
    fn texts(&mut self, place: &str, list: Option<Value>) -> Option<Vec<(String, String)>> {
        let list = match list {
            None | Some(Value::Null) => return Some(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.remarks.left_out(place, format_args!("must be a list of texts: {LEFT_OUT}"));
                return None;
            }
        };
        let mut texts = Vec::new();
        for (at, value) in list.into_iter().enumerate() {
            let place = format!("{place}[{at}]");
            let Value::String(text) = value else {
                self.remarks.left_out(&place, format_args!("must be a text: {LEFT_OUT}"));
                return None;
            };
            texts.push((place, text));
        }
        Some(texts)
    }

    /// Rules see each descriptor by itself, and not its place among the others.
    fn check_descriptors(
        &mut self,
        place: &str,
        tests: &[KeyTest],
        variables: &[DescriptorKey],
    ) -> Option<()> {
        let named = tests.iter().map(|test| &test.key).chain(variables);
        let named: BTreeSet<Option<usize>> = named.map(|key| key.descriptor).collect();
        if named.len() > 1 {
            let why = "names several descriptors of a request, and rules see each of them by itself";
            self.remarks.left_out(place, format_args!("{why}: {LEFT_OUT}"));
            return None;
        }
        match named.first() {
            Some(None) => self.remarks.note(
                self.file,
                "keys without descriptors[0] are read as Limitador did before its version 2: newer ones hold such limits for \
                 no request",
            ),
            Some(Some(place_of)) if *place_of > 0 => self.remarks.left_out(
                place,
                format_args!("holds for every descriptor that has these keys here, not for descriptors[{place_of}] alone"),
            ),
            _ => {}
        }
        Some(())
    }

    fn attribute(&mut self, place: &str, key: &str) -> String {
        let attribute = meaning::attribute(key).to_owned();
        if let Some(sentence) = meaning::means_more(key)
            && self.noted.insert(attribute.clone())
        {
            self.remarks.note(place, format_args!("{key:?} {sentence}"));
        }
        attribute
    }

    /// Adds a condition to a limit; `None`: both together cannot be said.
    fn add(&mut self, place: &str, limit: &mut LimitadorLimit, test: KeyTest) -> Option<()> {
        let key = &test.key.name;
        let attribute = self.attribute(place, key);
        let mut patterns = Vec::new();
        for wanted in &test.any_of {
            if let Some(why) = meaning::never_met(key, wanted) {
                let shown = wanted.pattern();
                self.remarks.left_out(place, format_args!("{key}: {shown:?} {why}: {LEFT_OUT}"));
                return None;
            }
            patterns.push(wanted.pattern().to_owned());
        }
        let any = || vec![Wanted::Any.pattern().to_owned()];
        if test.excluded {
            if patterns != any() {
                // A comparison with a key that is not there is never true.
                limit.wanted.entry(attribute.clone()).or_insert_with(any);
            }
            let excluded = limit.excluded.entry(attribute).or_default();
            excluded.extend(
                patterns.into_iter().filter(|pattern| !excluded.contains(pattern)).collect::<Vec<_>>(),
            );
            return Some(());
        }
        let own = limit.wanted.entry(attribute).or_insert_with(any);
        if *own == any() {
            *own = patterns;
        } else if patterns != any() && *own != patterns {
            let why = "two conditions hold for it, and rules have one for each key";
            self.remarks.left_out(place, format_args!("{key}: {why}: {LEFT_OUT}"));
            return None;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
