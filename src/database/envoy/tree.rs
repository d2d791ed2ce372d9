//! The reference service's file as a tree: every field is read, or said not to be.

use serde_json::{Map, Value};

use super::meaning::{self, Wanted};

/// Deepest nesting, and most entries in one file.
const DEPTH_MAX: usize = 16;
const ENTRIES_MAX: usize = 100_000;

/// Why a text gives no rules at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {why}")]
pub struct Unread {
    /// The file.
    pub file: String,
    /// What was expected.
    pub why: String,
}

/// A file.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) domain: String,
    pub(super) descriptors: Vec<DescriptorEntry>,
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
    pub(super) shadow: bool,
    pub(super) shared: bool,
    pub(super) descriptors: Vec<DescriptorEntry>,
}

/// What is let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// So many in each window.
    Rate { requests: u32, window: &'static str },
    /// Everything.
    Unlimited,
}

impl Wanted {
    pub(super) fn fits(&self, value: &str) -> bool {
        match self {
            Self::Value(own) => own == value,
            Self::Prefix(prefix) => value.starts_with(prefix.as_str()),
            Self::Any => true,
        }
    }

    pub(super) const fn order(&self) -> u8 {
        match self {
            Self::Value(_) => 0,
            Self::Prefix(_) => 1,
            Self::Any => 2,
        }
    }
}

impl DescriptorEntry {
    /// Whether both are for the same values of the same key.
    pub(super) fn is_for_the_same(&self, other: &Self) -> bool {
        self.key == other.key && self.wanted == other.wanted
    }

    /// How a sentence names it.
    pub(super) fn shown(&self) -> String {
        match &self.wanted {
            Wanted::Value(value) => format!("the descriptor {}={value}", self.key),
            Wanted::Prefix(prefix) => format!("the descriptor {}={prefix}*", self.key),
            Wanted::Any => format!("the descriptor {}", self.key),
        }
    }

    /// Whether values that fit both find this one.
    pub(super) fn stands_before(&self, other: &Self) -> bool {
        let both = match (&self.wanted, &other.wanted) {
            (Wanted::Value(value), Wanted::Prefix(_) | Wanted::Any) => other.wanted.fits(value),
            (Wanted::Prefix(_), Wanted::Any) => true,
            _ => false,
        };
        both && self.key == other.key
    }
}

/// Reads a file.
pub(super) fn read(file: &str, text: &str) -> Result<Tree, Unread> {
    let unread = |why: String| Unread { file: file.to_owned(), why };
    let root: Value = serde_saphyr::from_str(text).map_err(|error| unread(format!("is no YAML: {error}")))?;
    let Value::Object(mut root) = root else {
        return Err(unread(
            "is no file of the Envoy rate limit service: a domain and descriptors are expected".to_owned(),
        ));
    };
    let mut reader = Reader { file, tree: Tree::default(), entries: 0 };
    let Some(domain) = root.remove("domain").and_then(|domain| reader.text("domain", domain)) else {
        return Err(unread("domain is missing, or is no text".to_owned()));
    };
    let descriptors = root.remove("descriptors");
    reader.tree.descriptors = reader.entries("descriptors", descriptors, DEPTH_MAX);
    reader.foreign("", &root);
    reader.tree.domain = domain;
    Ok(reader.tree)
}

struct Reader<'f> {
    file: &'f str,
    tree: Tree,
    entries: usize,
}

impl Reader<'_> {
    fn report(&mut self, place: &str, sentence: &str) {
        self.tree.inexact.push(format!("{}: {place}: {sentence}", self.file));
    }

    fn foreign(&mut self, place: &str, fields: &Map<String, Value>) {
        for field in fields.keys() {
            let place = if place.is_empty() { field.clone() } else { format!("{place}.{field}") };
            self.report(&place, "there is nothing like it here: left out");
        }
    }

    /// A text, or what YAML took for a number or a truth value.
    fn text(&mut self, place: &str, value: Value) -> Option<String> {
        match value {
            Value::String(text) if !text.is_empty() => Some(text),
            Value::Number(number) if number.is_f64() => {
                self.report(
                    place,
                    "is a number that is not whole, whose digits YAML does not keep: put it in quotes",
                );
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
            Some(Value::Bool(flag)) => flag,
            Some(_) => {
                self.report(place, "must be true or false: read as false");
                false
            }
        }
    }

    fn entries(&mut self, place: &str, list: Option<Value>, depth: usize) -> Vec<DescriptorEntry> {
        let list = match list {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.report(place, "must be a list: left out");
                return Vec::new();
            }
        };
        if depth == 0 {
            self.report(place, "is nested too deeply: left out");
            return Vec::new();
        }
        let mut entries: Vec<DescriptorEntry> = Vec::new();
        for (at, value) in list.into_iter().enumerate() {
            let place = format!("{place}[{at}]");
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                self.report(
                    &place,
                    "a file may have at most 100,000 descriptors: this and what follows is left out",
                );
                break;
            }
            let Some(entry) = self.entry(&place, value, depth) else { continue };
            if entries.iter().any(|own| own.is_for_the_same(&entry)) {
                self.report(&place, "stands there twice: the first counts");
                continue;
            }
            entries.push(entry);
        }
        entries
    }

    fn entry(&mut self, place: &str, value: Value, depth: usize) -> Option<DescriptorEntry> {
        let Value::Object(mut fields) = value else {
            self.report(place, "must be a descriptor with a key: left out");
            return None;
        };
        let key = fields.remove("key").and_then(|key| self.text(&format!("{place}.key"), key));
        let Some(key) = key else {
            self.report(place, "has no key: left out");
            return None;
        };
        let wanted = match fields.remove("value") {
            None | Some(Value::Null) => Wanted::Any,
            Some(Value::String(text)) if text.is_empty() => Wanted::Any,
            Some(value) => self.wanted(place, value)?,
        };
        if let Some(why) = meaning::never_met(&key, &wanted) {
            self.report(&format!("{place}.value"), &format!("{why}: its descriptor is left out"));
            return None;
        }
        if let Some(sentence) = meaning::means_more(&key) {
            self.tree.notes.push(format!("{}: {place}.key: {key:?} {sentence}", self.file));
        }
        let shadow = self.flag(&format!("{place}.shadow_mode"), fields.remove("shadow_mode"));
        let shared = self.flag(&format!("{place}.share_threshold"), fields.remove("share_threshold"));
        if shared && !matches!(wanted, Wanted::Prefix(_)) {
            self.report(
                &format!("{place}.share_threshold"),
                "needs a value that ends in *, or the reference service does not start: read as if it had one",
            );
        }
        let limit = fields.remove("rate_limit").filter(|limit| !limit.is_null());
        let limit = limit.and_then(|limit| self.amount(&format!("{place}.rate_limit"), limit));
        let descriptors =
            self.entries(&format!("{place}.descriptors"), fields.remove("descriptors"), depth - 1);
        // These only choose what is written into statistics.
        for statistics in ["detailed_metric", "value_to_metric"] {
            fields.remove(statistics);
        }
        self.foreign(place, &fields);
        Some(DescriptorEntry { key, wanted, limit, shadow, shared, descriptors })
    }

    fn wanted(&mut self, place: &str, value: Value) -> Option<Wanted> {
        let place = format!("{place}.value");
        let Some(text) = self.text(&place, value) else {
            self.report(&place, "must be a text: its descriptor is left out");
            return None;
        };
        match text.strip_suffix('*') {
            Some(prefix) if !prefix.contains('*') => Some(Wanted::Prefix(prefix.to_owned())),
            None if !text.contains('*') => Some(Wanted::Value(text)),
            _ => {
                self.report(
                    &place,
                    "has a * that means itself there, and any text here: its descriptor is left out",
                );
                None
            }
        }
    }

    fn amount(&mut self, place: &str, value: Value) -> Option<Amount> {
        let Value::Object(mut fields) = value else {
            self.report(place, "must be a unit and requests_per_unit: left out");
            return None;
        };
        let unlimited = self.flag(&format!("{place}.unlimited"), fields.remove("unlimited"));
        let unit = fields.remove("unit");
        let requests = fields.remove("requests_per_unit").map_or(Some(0), |requests| requests.as_u64());
        fields.remove("name");
        if fields.remove("replaces").is_some_and(|replaces| !replaces.is_null()) {
            let sentence = "a limit cannot take another one's place for one request here: both hold";
            self.report(&format!("{place}.replaces"), sentence);
        }
        self.foreign(place, &fields);
        if unlimited {
            if unit.is_some_and(|unit| !unit.is_null()) {
                self.report(
                    &format!("{place}.unit"),
                    "stands beside unlimited, or the reference service does not start: read as unlimited",
                );
            }
            return Some(Amount::Unlimited);
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
                self.report(
                    &format!("{place}.unit"),
                    "must be second, minute, hour, day, week, month or year: left out",
                );
                return None;
            }
        };
        let Some(requests) = requests.and_then(|requests| u32::try_from(requests).ok()) else {
            self.report(
                &format!("{place}.requests_per_unit"),
                "must be a whole number up to 4294967295: left out",
            );
            return None;
        };
        Some(Amount::Rate { requests, window })
    }
}
