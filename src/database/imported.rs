//! Rules that come of another rate limiter's files, whichever it is, and what was left out of them.

pub(super) mod meaning;
#[cfg(test)]
pub(super) mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::core::algorithm::WINDOW_MAX;

/// The result of files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// The rules, in the shape of `rules.toml`.
    pub rules: Vec<ImportedRule>,
    /// Parts that could not be expressed, or not exactly: a sentence each, with its place.
    pub inexact: Vec<String>,
    /// Attributes that mean more here, or have to be sent: a sentence each, with its place.
    pub notes: Vec<String>,
}

/// A rule in the shape of `rules.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "the fields are those of the rule, which documents them")]
pub struct ImportedRule {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub per: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calendar: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debt: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_as: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    #[serde(rename = "match", skip_serializing_if = "BTreeMap::is_empty", serialize_with = "shortest")]
    pub conditions: BTreeMap<String, Vec<String>>,
}

/// The fault for which a text gives no rules at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct Unread {
    /// File as it was named, with its line where that is known.
    pub place: String,
    /// A sentence on what was expected.
    pub why: String,
}

/// Remarks that reading makes besides its rules: a sentence each, with its place.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    pub(super) inexact: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Remarks {
    /// Says what could not be expressed, or not exactly.
    pub(super) fn left_out(&mut self, place: &str, why: impl std::fmt::Display) {
        self.inexact.push(format!("{place}: {why}"));
    }

    /// Says, once, what an attribute means or who has to send it.
    pub(super) fn note(&mut self, place: &str, text: impl std::fmt::Display) {
        let note = format!("{place}: {text}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Hands the rules over, with names that differ.
    pub(super) fn with(self, mut rules: Vec<ImportedRule>) -> Imported {
        tell_apart(&mut rules);
        Imported { rules, inexact: self.inexact, notes: self.notes }
    }
}

/// Returns rules, of one import or several, as TOML. Their names differ.
///
/// # Errors
/// A rule that cannot be written.
pub fn to_toml(mut rules: Vec<ImportedRule>) -> Result<String, toml::ser::Error> {
    #[derive(Serialize)]
    struct Document {
        rules: Vec<ImportedRule>,
    }
    tell_apart(&mut rules);
    toml::to_string(&Document { rules })
}

/// Numbers the rules whose names others have already.
fn tell_apart(rules: &mut [ImportedRule]) {
    let mut names = HashSet::new();
    for rule in rules {
        let own = rule.name.clone();
        let mut next = 2;
        while !names.insert(rule.name.clone()) {
            rule.name = format!("{own}-{next}");
            next += 1;
        }
    }
}

/// Writes one value as a text, several as a list.
fn shortest<S: Serializer>(
    conditions: &BTreeMap<String, Vec<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum AnyOf<'a> {
        One(&'a str),
        Several(&'a [String]),
    }
    serializer.collect_map(conditions.iter().map(|(name, values)| match values.as_slice() {
        [one] => (name, AnyOf::One(one)),
        several => (name, AnyOf::Several(several)),
    }))
}

/// Reads YAML, or the JSON that is a part of it. A text such as `on` or `n` stays one, as for whoever reads
/// it into a text: [`truth`] reads it as a truth value.
pub(super) fn yaml(file: &str, text: &str) -> Result<Value, Unread> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| Unread { place: file.to_owned(), why: format!("is no YAML: {error}") })
}

/// Returns a whole number, also where it is written as 5.0.
pub(super) fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64()?.to_string().parse().ok())
}

/// Returns a truth value, also where it is one of the words that YAML once had.
pub(super) fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(*truth),
        Value::String(word) => match word.to_ascii_lowercase().as_str() {
            "y" | "yes" | "on" => Some(true),
            "n" | "no" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a text, or what YAML took for a number or a truth value.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// Returns a window as rules say it; `None`: none is as short or as long.
pub(super) fn window(seconds: u64) -> Option<Cow<'static, str>> {
    if seconds == 0 || seconds > WINDOW_MAX.secs_up() {
        return None;
    }
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let (unit, length) = units.into_iter().find(|(_, length)| seconds.is_multiple_of(*length))?;
    Some(format!("{}{unit}", seconds / length).into())
}

/// Says why a text is no value that a rule can compare with, or is one that means more there.
pub(super) fn not_plain(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        Some("is an empty text, and rules compare with no such value")
    } else if text.contains('*') {
        Some("has a *, which rules read as any run of characters")
    } else {
        None
    }
}
