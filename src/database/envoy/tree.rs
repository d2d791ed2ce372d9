//! The reference service's file as a tree: every field is read, or said not to be.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::core::envoy::glob_fits;
use crate::database::imported::meaning::{self, Wanted};
use crate::database::imported::{self, Unread};

/// Deepest nesting, and most entries in one file.
const DEPTH_MAX: usize = 16;
const ENTRIES_MAX: usize = 100_000;

/// A file.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) domain: String,
    pub(super) descriptors: Vec<DescriptorEntry>,
    /// Faults, and what could not be expressed: a sentence each.
    pub(super) inexact: Vec<String>,
    /// Keys that mean more here than there: a sentence each.
    pub(super) notes: Vec<String>,
}

/// One entry of the tree.
#[derive(Debug)]
pub(super) struct DescriptorEntry {
    pub(super) key: String,
    pub(super) wanted: Wanted,
    pub(super) limit: Option<Amount>,
    /// The limit's own name; may be empty.
    pub(super) name: String,
    /// The names of limits that do not hold beside this one.
    pub(super) replaces: Vec<String>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    pub(super) shared: bool,
    pub(super) detailed: bool,
    pub(super) value_to_metric: bool,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) descriptors: Vec<DescriptorEntry>,
}

/// The amount of requests that is let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// So many in each window.
    Rate { requests: u32, window: &'static str },
    /// Everything.
    Unlimited,
}

/// A limit with its name, and the names of those that it replaces.
type NamedAmount = (Amount, String, Vec<String>);

impl Wanted {
    pub(super) fn fits(&self, value: &str) -> bool {
        match self {
            Self::Value(own) => own == value,
            Self::Glob(text) => glob_fits(text, value),
            Self::Any => true,
        }
    }

    pub(super) const fn order(&self) -> u8 {
        match self {
            Self::Value(_) => 0,
            Self::Glob(_) => 1,
            Self::Any => 2,
        }
    }
}

impl DescriptorEntry {
    /// True if both are for the same values of the same key.
    pub(super) fn is_for_the_same(&self, other: &Self) -> bool {
        self.key == other.key && self.wanted == other.wanted
    }

    /// Returns how a sentence names it.
    pub(super) fn shown(&self) -> String {
        match &self.wanted {
            Wanted::Value(text) | Wanted::Glob(text) => format!("the descriptor {}={text}", self.key),
            Wanted::Any => format!("the descriptor {}", self.key),
        }
    }

    /// True if values that fit both find this one.
    pub(super) fn stands_before(&self, other: &Self) -> bool {
        let both = match (&self.wanted, &other.wanted) {
            (Wanted::Value(value), Wanted::Glob(_) | Wanted::Any) => other.wanted.fits(value),
            (Wanted::Glob(_), Wanted::Any) => true,
            _ => false,
        };
        both && self.key == other.key
    }
}

/// The purpose for which a tree is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Rules in the shape of `rules.toml`: what these cannot say is reported.
    Rules,
    /// The rules of the service itself: every report refuses the tree.
    Service,
}

/// Reads a file.
pub(super) fn read(file: &str, text: &str, purpose: Purpose) -> Result<Tree, Unread> {
    of_value(file, imported::yaml(file, text)?, purpose)
}

/// Reads what a file holds.
pub(super) fn of_value(file: &str, root: Value, purpose: Purpose) -> Result<Tree, Unread> {
    let unread = |why: &str| Unread { place: file.to_owned(), why: why.to_owned() };
    let Value::Object(mut root) = root else {
        return Err(unread(
            "is no file of the Envoy rate limit service: a domain and descriptors are expected",
        ));
    };
    let mut reader = Reader { file, purpose, tree: Tree::default(), entries: 0 };
    let Some(domain) = root.remove("domain").and_then(|domain| reader.text("domain", domain)) else {
        return Err(unread("domain is missing, or is no text"));
    };
    let descriptors = root.remove("descriptors");
    reader.tree.descriptors = reader.entries("descriptors", descriptors, DEPTH_MAX);
    reader.foreign("", &root);
    reader.tree.domain = domain;
    Ok(reader.tree)
}

struct Reader<'f> {
    file: &'f str,
    purpose: Purpose,
    tree: Tree,
    entries: usize,
}

/// The fate of a faulty part if the rest is read all the same.
const LEFT_OUT: &str = "left out";
const DESCRIPTOR_LEFT_OUT: &str = "its descriptor is left out";

impl Reader<'_> {
    /// Reports a fault, and what becomes of it where it refuses nothing.
    fn report(&mut self, place: &str, fault: &str, then: &str) {
        let file = self.file;
        self.tree.inexact.push(match self.purpose {
            Purpose::Rules => format!("{file}: {place}: {fault}: {then}"),
            Purpose::Service => format!("{file}: {place}: {fault}"),
        });
    }

    /// Reports what only rules in the shape of `rules.toml` cannot say.
    fn inexpressible(&mut self, place: &str, fault: &str, then: &str) {
        if self.purpose == Purpose::Rules {
            self.report(place, fault, then);
        }
    }

    fn foreign(&mut self, place: &str, fields: &Map<String, Value>) {
        for field in fields.keys() {
            let place = if place.is_empty() { field.clone() } else { format!("{place}.{field}") };
            let fault = match self.purpose {
                Purpose::Rules => "there is nothing like it here",
                Purpose::Service => "is no key that the service knows",
            };
            self.report(&place, fault, LEFT_OUT);
        }
    }

    /// A text, or what YAML took for a number or a truth value.
    fn text(&mut self, place: &str, value: Value) -> Option<String> {
        match value {
            Value::String(text) if !text.is_empty() => Some(text),
            Value::Number(number) if number.is_f64() => {
                let fault = "is a number that is not whole, whose digits YAML does not keep";
                self.report(place, fault, "put it in quotes");
                None
            }
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(value) => Some(value.to_string()),
            _ => None,
        }
    }

    fn flag(&mut self, place: &str, value: Option<Value>) -> bool {
        match value {
            None | Some(Value::Null) => false,
            Some(value) => imported::truth(&value).unwrap_or_else(|| {
                self.report(place, "must be true or false", "read as false");
                false
            }),
        }
    }

    fn entries(&mut self, place: &str, list: Option<Value>, depth: usize) -> Vec<DescriptorEntry> {
        let list = match list {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.report(place, "must be a list", LEFT_OUT);
                return Vec::new();
            }
        };
        if depth == 0 {
            self.report(place, "is nested too deeply", LEFT_OUT);
            return Vec::new();
        }
        let mut entries: Vec<DescriptorEntry> = Vec::new();
        let mut seen = HashSet::new();
        for (at, value) in list.into_iter().enumerate() {
            let place = format!("{place}[{at}]");
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                self.report(
                    &place,
                    "a file may have at most 100,000 descriptors",
                    "this and what follows is left out",
                );
                break;
            }
            let Some(entry) = self.entry(&place, value, depth) else { continue };
            if !seen.insert((entry.key.clone(), entry.wanted.clone())) {
                self.report(&place, "stands there twice", "the first counts");
                continue;
            }
            entries.push(entry);
        }
        entries
    }

    fn entry(&mut self, place: &str, value: Value, depth: usize) -> Option<DescriptorEntry> {
        let Value::Object(mut fields) = value else {
            self.report(place, "must be a descriptor with a key", LEFT_OUT);
            return None;
        };
        let key = fields.remove("key").and_then(|key| self.text(&format!("{place}.key"), key));
        let Some(key) = key else {
            self.report(place, "has no key", LEFT_OUT);
            return None;
        };
        let wanted = match fields.remove("value") {
            None | Some(Value::Null) => Wanted::Any,
            Some(Value::String(text)) if text.is_empty() => Wanted::Any,
            Some(value) => self.wanted(place, value)?,
        };
        if self.purpose == Purpose::Rules {
            if let Some(why) = meaning::never_met(&key, &wanted) {
                self.report(&format!("{place}.value"), &why, DESCRIPTOR_LEFT_OUT);
                return None;
            }
            if let Some(sentence) = meaning::means_more(&key) {
                self.tree.notes.push(format!("{}: {place}.key: {key:?} {sentence}", self.file));
            }
        }
        let [shadow, quota, shared, detailed, value_to_metric] = self.flags(place, &mut fields, &wanted);
        let metadata = self.metadata(&format!("{place}.metadata"), fields.remove("metadata"));
        let limit = fields.remove("rate_limit").filter(|limit| !limit.is_null());
        let limit = limit.and_then(|limit| self.amount(&format!("{place}.rate_limit"), limit));
        let (limit, name, replaces) = match limit {
            Some((amount, name, replaces)) => (Some(amount), name, replaces),
            None => (None, String::new(), Vec::new()),
        };
        let descriptors =
            self.entries(&format!("{place}.descriptors"), fields.remove("descriptors"), depth - 1);
        self.foreign(place, &fields);
        Some(DescriptorEntry {
            key,
            wanted,
            limit,
            name,
            replaces,
            shadow,
            quota,
            shared,
            detailed,
            value_to_metric,
            metadata,
            descriptors,
        })
    }

    /// Reads the fields of an entry that are true or false, in the order of [`DescriptorEntry`].
    fn flags(&mut self, place: &str, fields: &mut Map<String, Value>, wanted: &Wanted) -> [bool; 5] {
        let mut flag = |name: &str| self.flag(&format!("{place}.{name}"), fields.remove(name));
        let flags = ["shadow_mode", "quota_mode", "share_threshold", "detailed_metric", "value_to_metric"]
            .map(&mut flag);
        let [_, quota, shared, ..] = flags;
        if quota {
            let fault = "there is nothing like it here";
            self.inexpressible(&format!("{place}.quota_mode"), fault, "the limit denies by itself");
        }
        if shared && !matches!(wanted, Wanted::Glob(_)) {
            self.report(
                &format!("{place}.share_threshold"),
                "needs a value with a *, or the reference service does not start",
                "read as if it had one",
            );
        }
        flags
    }

    fn metadata(&mut self, place: &str, value: Option<Value>) -> Option<Map<String, Value>> {
        match value? {
            Value::Null => None,
            Value::Object(table) => {
                self.inexpressible(place, "there is nothing like it here", LEFT_OUT);
                Some(table)
            }
            _ => {
                self.report(place, "must be a table", LEFT_OUT);
                None
            }
        }
    }

    fn wanted(&mut self, place: &str, value: Value) -> Option<Wanted> {
        let place = format!("{place}.value");
        let Some(text) = self.text(&place, value) else {
            self.report(&place, "must be a text", DESCRIPTOR_LEFT_OUT);
            return None;
        };
        Some(if text.contains('*') { Wanted::Glob(text) } else { Wanted::Value(text) })
    }

    fn amount(&mut self, place: &str, value: Value) -> Option<NamedAmount> {
        let Value::Object(mut fields) = value else {
            self.report(place, "must be a unit and requests_per_unit", LEFT_OUT);
            return None;
        };
        let unlimited = self.flag(&format!("{place}.unlimited"), fields.remove("unlimited"));
        let unit = fields.remove("unit").filter(|unit| !unit.is_null());
        let requests = fields.remove("requests_per_unit").map_or(Some(0), |requests| requests.as_u64());
        let name = match fields.remove("name") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(name)) if name.is_empty() => name,
            Some(name) => self.text(&format!("{place}.name"), name).unwrap_or_default(),
        };
        let replaces = self.replaces(&format!("{place}.replaces"), fields.remove("replaces"), &name);
        self.foreign(place, &fields);
        let named = |amount| (amount, name, replaces);
        if unlimited {
            if unit.is_some() {
                self.report(
                    &format!("{place}.unit"),
                    "stands beside unlimited, or the reference service does not start",
                    "read as unlimited",
                );
            }
            return Some(named(Amount::Unlimited));
        }
        let unit = unit.and_then(|unit| self.text(&format!("{place}.unit"), unit)).unwrap_or_default();
        let window = match unit.to_ascii_lowercase().as_str() {
            "second" => "1s",
            "minute" => "1m",
            "hour" => "1h",
            "day" => "1d",
            "week" => "1w",
            "month" => "30d",
            "year" => "365d",
            _ => {
                let fault = "must be second, minute, hour, day, week, month or year";
                self.report(&format!("{place}.unit"), fault, LEFT_OUT);
                return None;
            }
        };
        let Some(requests) = requests.and_then(|requests| u32::try_from(requests).ok()) else {
            let fault = "must be a whole number up to 4294967295";
            self.report(&format!("{place}.requests_per_unit"), fault, LEFT_OUT);
            return None;
        };
        Some(named(Amount::Rate { requests, window }))
    }

    fn replaces(&mut self, place: &str, value: Option<Value>, own: &str) -> Vec<String> {
        let list = match value {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.report(place, "must be a list of names", LEFT_OUT);
                return Vec::new();
            }
        };
        if !list.is_empty() {
            let fault = "a limit cannot take another one's place for one request here";
            self.inexpressible(place, fault, "both hold");
        }
        let mut names = Vec::new();
        for (at, entry) in list.into_iter().enumerate() {
            let place = format!("{place}[{at}]");
            let name = match entry {
                Value::Object(mut fields) => fields.remove("name").and_then(|name| self.text(&place, name)),
                _ => None,
            };
            match name {
                Some(name) if name != own => names.push(name),
                Some(_) => self.report(&place, "names its own limit", LEFT_OUT),
                None => self.report(&place, "must have the name of a limit", LEFT_OUT),
            }
        }
        names
    }
}
