//! Rules of the Envoy reference rate limit service, read as ours: `tidegate rules import --from envoy`.
//!
//! There a request's descriptor walks down a tree, at each level to the entry with its value, else to one
//! whose value ends in `*` and fits, else to the entry without a value; the limit where it ends is the one
//! that holds, if there is one. Here each such end is a rule with `exact`, the ends of one sequence of keys
//! are a group in the order of that walk, and where the walk ends at an entry without a limit that stands
//! before one with a limit, a rule that allows stands before it.

mod service;
mod tree;
mod xds;

use std::collections::{BTreeMap, HashMap};

use self::tree::{Amount, DescriptorEntry, Purpose};
use super::imported::meaning::{self, Wanted};
use super::imported::{Imported, ImportedRule, Remarks, Unread};

pub use self::service::rules_of_texts;
pub use self::xds::{Accept, MakeTls, XdsClient, XdsNews, XdsSettings};

/// The end of a walk, and what then holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct End {
    path: Vec<PathEntry>,
    /// Amount, and whether it only counts; `None`: nothing is counted.
    limit: Option<(Amount, bool)>,
    /// Name that the limit itself has in the file.
    name: String,
}

/// One entry of a descriptor on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PathEntry {
    key: String,
    wanted: Wanted,
    /// True if all values that fit share one bucket.
    shared: bool,
    /// Its place among its siblings, for those with `*`: the first that fits is taken.
    place: usize,
}

impl PathEntry {
    /// The order in which a walk tries entries.
    fn rank(&self) -> (u8, usize, &str) {
        match &self.wanted {
            Wanted::Value(value) => (0, 0, value),
            Wanted::Glob(text) => (1, self.place, text),
            Wanted::Any => (2, 0, ""),
        }
    }
}

/// Reads files, each by the name that sentences give it and its text. Files of one domain are one tree, as
/// the reference service merges them.
///
/// # Errors
/// Every text that is no such file at all.
pub fn import(files: &[(String, String)]) -> Result<Imported, Vec<Unread>> {
    let (mut remarks, mut unread) = (Remarks::default(), Vec::new());
    let mut domains: Vec<Domain> = Vec::new();
    for (file, text) in files {
        match tree::read(file, text, Purpose::Rules) {
            Ok(tree) => {
                remarks.inexact.extend(tree.inexact);
                remarks.notes.extend(tree.notes);
                let same = domains.iter_mut().find(|domain| domain.name == tree.domain);
                match same {
                    Some(domain) => domain.merge(file, tree.descriptors, &mut remarks.inexact),
                    None => domains.push(Domain {
                        name: tree.domain,
                        files: file.clone(),
                        descriptors: tree.descriptors,
                    }),
                }
            }
            Err(problem) => unread.push(problem),
        }
    }
    if !unread.is_empty() {
        return Err(unread);
    }
    let mut rules = Vec::new();
    for domain in &domains {
        rules.extend(rules_of(domain, &mut remarks.inexact));
    }
    Ok(remarks.with(rules))
}

/// A domain, of one file or several.
struct Domain {
    name: String,
    files: String,
    descriptors: Vec<DescriptorEntry>,
}

impl Domain {
    /// Adds a further file's descriptors. The reference service refuses one that stands in two files.
    fn merge(&mut self, file: &str, descriptors: Vec<DescriptorEntry>, inexact: &mut Vec<String>) {
        for entry in descriptors {
            if self.descriptors.iter().any(|own| own.is_for_the_same(&entry)) {
                inexact.push(format!(
                    "{file}: {} of domain {} stands in {} too: the first counts",
                    entry.shown(),
                    self.name,
                    self.files
                ));
            } else {
                self.descriptors.push(entry);
            }
        }
        self.files.push_str(", ");
        self.files.push_str(file);
    }
}

fn rules_of(domain: &Domain, inexact: &mut Vec<String>) -> Vec<ImportedRule> {
    let file = &domain.files;
    let mut ends = Vec::new();
    walk(&domain.descriptors, &mut Vec::new(), &mut ends);
    let mut orders: HashMap<Vec<String>, Vec<String>> = HashMap::new();
    let mut groups: BTreeMap<Vec<String>, Vec<End>> = BTreeMap::new();
    for end in ends {
        let keys: Vec<String> = end.path.iter().map(|step| step.key.clone()).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            inexact.push(format!(
                "{file}: a descriptor with the same key twice ({}): left out",
                keys.join(", ")
            ));
            continue;
        }
        let first = orders.entry(sorted).or_insert_with(|| keys.clone());
        if *first != keys && !groups.contains_key(&keys) {
            inexact.push(format!(
                "{file}: ({}) and ({}) differ only in their order, which makes no difference here: both limits hold for both",
                first.join(", "),
                keys.join(", ")
            ));
        }
        groups.entry(keys).or_default().push(end);
    }
    let mut rules = Vec::new();
    for (keys, mut ends) in groups {
        ends.sort_by(|a, b| ranks(a).cmp(&ranks(b)));
        ends.dedup_by(|later, first| ranks(later) == ranks(first));
        let group = (ends.len() > 1).then(|| format!("{}: {}", domain.name, keys.join(", ")));
        for (place, end) in (0..).zip(&ends) {
            rules.push(rule(&domain.name, end, group.clone(), place));
        }
    }
    rules
}

fn ranks(end: &End) -> Vec<(u8, usize, &str)> {
    end.path.iter().map(PathEntry::rank).collect()
}

/// Collects the ends below these siblings.
fn walk(siblings: &[DescriptorEntry], path: &mut Vec<PathEntry>, ends: &mut Vec<End>) {
    for (place, entry) in siblings.iter().enumerate() {
        path.push(step(entry, place));
        if let Some(amount) = entry.limit {
            ends.push(End {
                path: path.clone(),
                limit: Some((amount, entry.shadow)),
                name: entry.name.clone(),
            });
        }
        walk(&entry.descriptors, path, ends);
        // Siblings that are tried only after this entry, and would be found by a walk that this entry ends.
        for later in siblings.iter().filter(|later| entry.stands_before(later)) {
            let mut hidden = Vec::new();
            walk(std::slice::from_ref(later), &mut Vec::new(), &mut hidden);
            for end in hidden {
                let rest = end.path.get(1..).unwrap_or_default();
                if !covers(entry, rest) {
                    let path = path.iter().chain(rest).cloned().collect();
                    ends.push(End { path, limit: None, name: String::new() });
                }
            }
        }
        path.pop();
    }
}

fn step(entry: &DescriptorEntry, place: usize) -> PathEntry {
    let shared = entry.shared || matches!(entry.wanted, Wanted::Value(_));
    PathEntry { key: entry.key.clone(), wanted: entry.wanted.clone(), shared, place }
}

/// True if a walk from this entry along `rest` ends at a limit.
fn covers(entry: &DescriptorEntry, rest: &[PathEntry]) -> bool {
    let Some((first, rest)) = rest.split_first() else { return entry.limit.is_some() };
    let of_key = || entry.descriptors.iter().filter(|own| own.key == first.key);
    let next = match &first.wanted {
        Wanted::Value(value) => {
            of_key().filter(|own| own.wanted.fits(value)).min_by_key(|own| own.wanted.order())
        }
        Wanted::Glob(_) | Wanted::Any => of_key().find(|own| own.wanted == Wanted::Any),
    };
    next.is_some_and(|next| covers(next, rest))
}

fn rule(domain: &str, end: &End, group: Option<String>, place: u32) -> ImportedRule {
    let attribute = |key: &str| meaning::attribute(key).to_owned();
    let counted = match end.limit {
        Some((Amount::Rate { requests, window }, shadow)) => Some((requests, window, shadow)),
        Some((Amount::Unlimited, _)) | None => None,
    };
    let mut conditions = BTreeMap::new();
    let mut per = Vec::new();
    let mut name = domain.to_owned();
    for step in &end.path {
        let value = match &step.wanted {
            Wanted::Value(value) | Wanted::Glob(value) => Some(value.clone()),
            // Attributes that `per` names must be there; a rule that counts nothing has no `per`.
            Wanted::Any => counted.is_none().then(|| "*".to_owned()),
        };
        name.push('.');
        name.push_str(&step.key);
        if let Some(value) = value.as_ref().filter(|value| *value != "*") {
            name.push('_');
            name.push_str(value);
        }
        conditions.extend(value.map(|value| (attribute(&step.key), vec![value])));
        if counted.is_some() && !step.shared {
            per.push(attribute(&step.key));
        }
    }
    ImportedRule {
        name,
        domain: Some(domain.to_owned()),
        per,
        algorithm: counted.map(|_| "fixed_window"),
        limit: counted.map(|(requests, ..)| requests),
        window: counted.map(|(_, window, _)| window.into()),
        // That service adds a request's hits whatever is left, and each of its windows begins at zero.
        charge: counted.map(|_| "always"),
        debt: counted.map(|_| "window"),
        priority: group.as_ref().map(|_| 100 + place),
        group,
        action: match counted {
            None => Some("allow"),
            Some((.., true)) => Some("log_only"),
            Some(_) => None,
        },
        // That service tells a limit's own name, which most have none of.
        told_as: counted.map(|_| end.name.clone()),
        exact: true,
        conditions,
        ..ImportedRule::default()
    }
}

#[cfg(test)]
mod tests;
