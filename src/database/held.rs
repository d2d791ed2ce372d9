//! A set of rules that is in force, held so that a change to a few of very many rules costs only those few:
//! each rule's text apart, ready to be joined into the bytes that are saved and handed to peers.

use std::collections::BTreeMap;

use serde_json::json;

use super::saved::{self, SET_BYTES_MAX, WrittenQuota};
use super::set::RuleDocs;
use super::stored::Version;

/// The texts of a set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    rules: Texts,
    /// Quotas of each rule that has any, joined by commas.
    quotas: Texts,
}

/// Texts in JSON, by rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Texts {
    texts: BTreeMap<Box<str>, Box<str>>,
    /// Bytes of all texts together, as they are saved.
    bytes: usize,
}

/// The texts that a change took the place of, so that it can be taken back.
#[derive(Debug)]
#[must_use = "a change that is refused must be taken back"]
pub struct Before {
    rules: Vec<(Box<str>, Option<Box<str>>)>,
    quotas: Vec<(Box<str>, Option<Box<str>>)>,
}

impl Texts {
    /// Puts this text in place of what the rule had, and hands that out.
    fn put(&mut self, rule: &str, text: Option<Box<str>>) -> Option<Box<str>> {
        self.bytes += text.as_ref().map_or(0, |text| text.len());
        let before = match text {
            Some(text) => self.texts.insert(rule.into(), text),
            None => self.texts.remove(rule),
        };
        self.bytes -= before.as_ref().map_or(0, |before| before.len());
        before
    }

    /// With the commas between them.
    fn len(&self) -> usize {
        self.bytes + self.texts.len().saturating_sub(1)
    }

    fn write(&self, out: &mut Vec<u8>) {
        for (place, text) in self.texts.values().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
}

impl Held {
    /// Holds this set.
    #[must_use]
    pub fn of(docs: &RuleDocs) -> Self {
        let mut held = Self::default();
        for name in docs.rules.keys() {
            held.rules.put(name, rule_text(docs, name));
        }
        for name in docs.quotas.keys() {
            held.quotas.put(name, quotas_text(docs, name));
        }
        held
    }

    /// Returns how many rules it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.texts.len()
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.texts.is_empty()
    }

    /// Puts in place of these rules and their quotas what `docs` has of them; what it lacks is gone.
    pub fn change(&mut self, names: &[String], docs: &RuleDocs) -> Before {
        let named = |name: &String| name.as_str().into();
        Before {
            rules: names
                .iter()
                .map(|name| (named(name), self.rules.put(name, rule_text(docs, name))))
                .collect(),
            quotas: names
                .iter()
                .map(|name| (named(name), self.quotas.put(name, quotas_text(docs, name))))
                .collect(),
        }
    }

    /// Takes the last change back.
    pub fn take_back(&mut self, before: Before) {
        // The last first: a name that was given twice gets what it had before both.
        for (name, text) in before.rules.into_iter().rev() {
            self.rules.put(&name, text);
        }
        for (name, text) in before.quotas.into_iter().rev() {
            self.quotas.put(&name, text);
        }
    }

    fn head(version: Version) -> String {
        format!(r#"{{"format":{},"version":{},"rules":["#, saved::FORMAT, json!(version))
    }

    /// Checks whether the set may be so long, without writing it out.
    ///
    /// # Errors
    /// A sentence: it is longer than a set may be.
    pub fn check_len(&self, version: Version) -> Result<(), String> {
        self.checked_len(version).map(drop)
    }

    fn checked_len(&self, version: Version) -> Result<usize, String> {
        let length =
            Self::head(version).len() + self.rules.len() + MIDDLE.len() + self.quotas.len() + TAIL.len();
        if length > SET_BYTES_MAX {
            let most = SET_BYTES_MAX >> 20;
            return Err(format!(
                "a set of rules has at most {most} MiB as JSON, and these {} rules have more: daemons could not hand it to each other",
                self.len()
            ));
        }
        Ok(length)
    }

    /// The set as bytes. Equal sets have equal bytes.
    ///
    /// # Errors
    /// As [`Self::check_len`].
    pub fn to_bytes(&self, version: Version) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(self.checked_len(version)?);
        out.extend_from_slice(Self::head(version).as_bytes());
        self.rules.write(&mut out);
        out.extend_from_slice(MIDDLE.as_bytes());
        self.quotas.write(&mut out);
        out.extend_from_slice(TAIL.as_bytes());
        Ok(out)
    }
}

const MIDDLE: &str = r#"],"quotas":["#;
const TAIL: &str = "]}";

fn rule_text(docs: &RuleDocs, name: &str) -> Option<Box<str>> {
    docs.rules.get(name).map(|document| document.to_string().into())
}

fn quotas_text(docs: &RuleDocs, name: &str) -> Option<Box<str>> {
    let quotas = docs.quotas.get(name)?.iter().map(|quota| {
        json!(WrittenQuota {
            rule: name.to_owned(),
            region: quota.region.clone(),
            weight: quota.weight,
            min_percent: quota.min_percent,
        })
    });
    let texts: Vec<String> = quotas.map(|quota| quota.to_string()).collect();
    (!texts.is_empty()).then(|| texts.join(",").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::stored::Stored;
    use crate::engine::rulebook::Quota;
    use serde_json::Value;

    fn rule(name: &str, limit: u32) -> (String, Value) {
        (name.to_owned(), json!({ "name": name, "limit": limit, "window": "1s" }))
    }

    fn docs(rules: &[(&str, u32)], quotas: &[(&str, u32)]) -> RuleDocs {
        let quota = |weight| vec![Quota { region: "eu".to_owned(), weight, min_percent: 0 }];
        RuleDocs {
            rules: rules.iter().map(|(name, limit)| rule(name, *limit)).collect(),
            quotas: quotas.iter().map(|(name, weight)| ((*name).to_owned(), quota(*weight))).collect(),
        }
    }

    const VERSION: Version = Version { generation: 1, revision: 7 };

    #[test]
    fn what_is_held_is_read_again() {
        for docs in [docs(&[], &[]), docs(&[("a", 1)], &[]), docs(&[("a", 1), ("b", 2)], &[("b", 3)])] {
            let bytes = Held::of(&docs).to_bytes(VERSION).unwrap();
            assert_eq!(saved::from_bytes(&bytes), Ok(Stored { version: VERSION, mark: None, docs }));
        }
    }

    #[test]
    fn a_set_that_was_changed_is_the_set_that_has_the_change() {
        let mut held = Held::of(&docs(&[("a", 1), ("b", 2), ("c", 3)], &[("a", 1), ("b", 1)]));
        let names = ["a", "b", "d"].map(str::to_owned);
        let first = held.clone();
        let before = held.change(&names, &docs(&[("b", 20), ("d", 4)], &[("d", 5)]));
        let after = Held::of(&docs(&[("b", 20), ("c", 3), ("d", 4)], &[("d", 5)]));
        assert_eq!(held, after);
        let bytes = held.to_bytes(VERSION).unwrap();
        assert_eq!((bytes.len(), held.to_bytes(VERSION)), (bytes.capacity(), after.to_bytes(VERSION)));
        held.take_back(before);
        assert_eq!(held, first);
    }

    #[test]
    fn a_set_that_is_too_long_to_be_handed_on_says_so() {
        let rules = Texts { bytes: SET_BYTES_MAX, ..Texts::default() };
        let held = Held { rules, ..Held::default() };
        assert_eq!(held.check_len(VERSION), held.to_bytes(VERSION).map(drop));
        assert!(held.to_bytes(VERSION).unwrap_err().contains("at most 64 MiB"));
    }
}
