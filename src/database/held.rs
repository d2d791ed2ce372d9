//! A set of rules that is in force, held so that a change to a few of very many rules costs only those few: each rule's
//! text apart, ready to be joined into the bytes that are saved and handed to peers.

use std::collections::BTreeMap;

use serde_json::json;

use super::postgres::rules::Version;
use super::saved::{self, SET_BYTES_MAX, WrittenQuota};
use super::set::RuleDocs;
use crate::engine::rulebook::Quota;

/// The texts of a set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// In JSON, by name.
    rules: BTreeMap<Box<str>, Box<str>>,
    /// By rule.
    quotas: BTreeMap<String, Vec<Quota>>,
    /// Of all rules' texts together.
    bytes: usize,
}

impl Held {
    /// Holds this set.
    #[must_use]
    pub fn of(docs: &RuleDocs) -> Self {
        let mut held = Self::default();
        held.put(docs);
        held
    }

    /// How many rules it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Puts in place of these rules and their quotas what `docs` has of them; what it lacks is gone.
    pub fn change(&mut self, names: &[String], docs: &RuleDocs) {
        for name in names {
            if let Some(gone) = self.rules.remove(name.as_str()) {
                self.bytes -= gone.len();
            }
            self.quotas.remove(name);
        }
        self.put(docs);
    }

    fn put(&mut self, docs: &RuleDocs) {
        for (name, document) in &docs.rules {
            let text = document.to_string();
            self.bytes += text.len();
            self.rules.insert(name.as_str().into(), text.into());
        }
        self.quotas.extend(docs.quotas.iter().map(|(rule, quotas)| (rule.clone(), quotas.clone())));
    }

    /// The set as bytes. Equal sets have equal bytes.
    ///
    /// # Errors
    /// A sentence: it is longer than a set may be.
    pub fn to_bytes(&self, version: Version) -> Result<Vec<u8>, String> {
        let quotas = self.quotas.iter().flat_map(|(rule, quotas)| {
            quotas.iter().map(move |quota| WrittenQuota {
                rule: rule.clone(),
                region: quota.region.clone(),
                weight: quota.weight,
                min_percent: quota.min_percent,
            })
        });
        let quotas = json!(quotas.collect::<Vec<_>>()).to_string();
        let head = format!(r#"{{"format":{},"version":{},"rules":["#, saved::FORMAT, json!(version));
        let length = head.len() + self.bytes + self.rules.len() + quotas.len() + 16;
        if length > SET_BYTES_MAX {
            let most = SET_BYTES_MAX >> 20;
            return Err(format!(
                "a set of rules has at most {most} MiB as JSON, and these {} rules have more: daemons could not hand it to each other",
                self.rules.len()
            ));
        }
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(head.as_bytes());
        for (place, text) in self.rules.values().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(format!(r#"],"quotas":{quotas}}}"#).as_bytes());
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::postgres::rules::Stored;
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
        held.change(&names, &docs(&[("b", 20), ("d", 4)], &[("d", 5)]));
        let after = Held::of(&docs(&[("b", 20), ("c", 3), ("d", 4)], &[("d", 5)]));
        assert_eq!(held, after);
        assert_eq!(held.to_bytes(VERSION), after.to_bytes(VERSION));
    }

    #[test]
    fn a_set_that_is_too_long_to_be_handed_on_says_so() {
        let held = Held { bytes: SET_BYTES_MAX, ..Held::default() };
        assert!(held.to_bytes(VERSION).unwrap_err().contains("at most 64 MiB"));
    }
}
