//! Reading the named values of one table, each by the type that is expected of it.

use super::words::same_meaning;
use super::{At, Problems, TreeEntry, TreeNode, Value, parse_span, suggestion};
use crate::time::Span;

/// The entries of one table. Every reading method returns `None` for what is absent and for what is wrong;
/// the latter is reported. Fields that were never asked for are unknown, which [`Fields::finish`] reports.
#[derive(Debug)]
pub struct Fields<'n> {
    entries: &'n [TreeEntry],
    /// Place of the table in its text, for messages about missing names.
    pub at: &'n At,
    known: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// Opens a table.
    pub fn open(node: &'n TreeNode, problems: &mut Problems<'_>) -> Option<Self> {
        match &node.value {
            Value::Table(entries) => Some(Self { entries, at: &node.at, known: Vec::new() }),
            other => {
                problems.report(&node.at, format!("expected a table, found {}", other.kind()));
                None
            }
        }
    }

    /// A table without entries.
    #[must_use]
    pub const fn none(at: &'n At) -> Self {
        Self { entries: &[], at, known: Vec::new() }
    }

    /// The entry of this key, whatever it holds.
    pub fn take(&mut self, key: &'static str) -> Option<&'n TreeEntry> {
        self.known.push(key);
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// True if the key is there, without reading it.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// A text of 1 to `len_max` bytes.
    pub fn text(
        &mut self,
        key: &'static str,
        len_max: usize,
        problems: &mut Problems<'_>,
    ) -> Option<&'n str> {
        self.take(key).and_then(|entry| text(&entry.node, key, len_max, problems))
    }

    /// A whole number within these bounds.
    pub fn integer(
        &mut self,
        key: &'static str,
        min: i64,
        max: i64,
        problems: &mut Problems<'_>,
    ) -> Option<i64> {
        self.take(key).and_then(|entry| integer(&entry.node, key, min, max, problems))
    }

    /// A whole number that fits `u32`, at least `min`.
    pub fn count(&mut self, key: &'static str, min: u32, problems: &mut Problems<'_>) -> Option<u32> {
        let number = self.integer(key, i64::from(min), i64::from(u32::MAX), problems)?;
        u32::try_from(number).ok()
    }

    /// A number within these bounds, whole or not.
    pub fn number(
        &mut self,
        key: &'static str,
        min: f64,
        max: f64,
        problems: &mut Problems<'_>,
    ) -> Option<f64> {
        let node = &self.take(key)?.node;
        let number = match &node.value {
            Value::Fraction(number) => Some(*number),
            Value::Integer(number) => i32::try_from(*number).ok().map(f64::from),
            Value::Loose(text) => text.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| (min..=max).contains(number));
        if number.is_none() {
            problems.report(&node.at, format!("{key} must be a number from {min} to {max}"));
        }
        number
    }

    /// True or false.
    pub fn boolean(&mut self, key: &'static str, problems: &mut Problems<'_>) -> Option<bool> {
        let node = &self.take(key)?.node;
        match &node.value {
            Value::Boolean(value) => return Some(*value),
            Value::Loose(text) if text == "true" => return Some(true),
            Value::Loose(text) if text == "false" => return Some(false),
            Value::Loose(text) => {
                problems.report(&node.at, format!("{key} must be true or false, not {text:?}"))
            }
            other => problems.report(&node.at, format!("{key} must be true or false, not {}", other.kind())),
        }
        None
    }

    /// A duration within these bounds.
    pub fn span(
        &mut self,
        key: &'static str,
        min: Span,
        max: Span,
        problems: &mut Problems<'_>,
    ) -> Option<Span> {
        let node = &self.take(key)?.node;
        let (Value::Text(text) | Value::Loose(text)) = &node.value else {
            let kind = node.value.kind();
            problems.report(
                &node.at,
                format!("{key} must be a duration in quotes such as \"100ms\", not {kind}"),
            );
            return None;
        };
        let Some(span) = parse_span(text) else {
            let hint = "a number and a unit (ms, s, m, h, d, w), such as \"100ms\" or \"1h\"";
            problems.report(&node.at, format!("{key} must be {hint}, not {text:?}"));
            return None;
        };
        if span < min || span > max {
            let (min, max) = (super::format_span(min), super::format_span(max));
            problems.report(&node.at, format!("{key} must be from {min} to {max}, not {text}"));
            return None;
        }
        Some(span)
    }

    /// One of these words.
    pub fn word<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, T)],
        problems: &mut Problems<'_>,
    ) -> Option<T> {
        let node = &self.take(key)?.node;
        let listed = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let (Value::Text(text) | Value::Loose(text)) = &node.value else {
            problems
                .report(&node.at, format!("{key} must be one of {}, not {}", listed(), node.value.kind()));
            return None;
        };
        if let Some((_, meant)) = words.iter().find(|(word, _)| word == text) {
            return Some(*meant);
        }
        let known = || words.iter().map(|(word, _)| *word);
        let near = same_meaning(text, known()).or_else(|| suggestion(text, known()));
        let near = near.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
        problems.report(&node.at, format!("{key} must be one of {}, not {text:?}{near}", listed()));
        None
    }

    /// A list of texts of 1 to `len_max` bytes without repetition. From outside: separated by commas.
    pub fn texts(
        &mut self,
        key: &'static str,
        len_max: usize,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<String>> {
        let node = &self.take(key)?.node;
        let mut texts: Vec<String> = Vec::new();
        match &node.value {
            Value::Loose(list) => {
                texts.extend(
                    list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned),
                );
            }
            Value::List(items) => {
                for item in items {
                    let Some(text) = text(item, key, len_max, problems) else { continue };
                    if texts.iter().any(|other| other == text) {
                        problems.report(&item.at, format!("{key} names {text:?} twice"));
                    }
                    texts.push(text.to_owned());
                }
            }
            other => {
                problems.report(&node.at, format!("{key} must be a list of texts, not {}", other.kind()));
                return None;
            }
        }
        Some(texts)
    }

    /// A table within.
    pub fn table(&mut self, key: &'static str, problems: &mut Problems<'_>) -> Option<Self> {
        self.take(key).and_then(|entry| Fields::open(&entry.node, problems))
    }

    /// A list of anything.
    pub fn list(&mut self, key: &'static str, problems: &mut Problems<'_>) -> Option<&'n [TreeNode]> {
        let node = &self.take(key)?.node;
        if let Value::List(items) = &node.value {
            return Some(items);
        }
        // In TOML one pair of brackets too few.
        let heading = match (&node.value, &node.at) {
            (Value::Table(_), At::Offset(_)) => format!(": write [[{key}]] above each entry"),
            _ => String::new(),
        };
        problems.report(&node.at, format!("{key} must be a list, not {}{heading}", node.value.kind()));
        None
    }

    /// Refuses a key, if it is there, with this sentence.
    pub fn refuse(&mut self, key: &'static str, sentence: &str, problems: &mut Problems<'_>) {
        if let Some(entry) = self.take(key) {
            problems.report(&entry.at, sentence);
        }
    }

    /// Entries in order, where the keys are the writer's own names.
    #[must_use]
    pub const fn entries(&self) -> &'n [TreeEntry] {
        self.entries
    }

    /// Reports every key that was never asked for.
    pub fn finish(self, problems: &mut Problems<'_>) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&entry.key.as_str())) {
            let near = suggestion(&entry.key, self.known.iter().copied());
            let near = near.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
            problems.report(&entry.at, format!("unknown key {:?}{near}", shortened(&entry.key)));
        }
    }
}

/// A text of 1 to `len_max` bytes.
pub fn text<'n>(
    node: &'n TreeNode,
    what: &str,
    len_max: usize,
    problems: &mut Problems<'_>,
) -> Option<&'n str> {
    let (Value::Text(text) | Value::Loose(text)) = &node.value else {
        problems.report(&node.at, format!("{what} must be a text in quotes, not {}", node.value.kind()));
        return None;
    };
    if text.is_empty() || text.len() > len_max {
        let len = text.len();
        problems.report(&node.at, format!("{what} must have 1 to {len_max} bytes, not {len}"));
        return None;
    }
    Some(text)
}

/// A whole number within these bounds.
pub fn integer(node: &TreeNode, what: &str, min: i64, max: i64, problems: &mut Problems<'_>) -> Option<i64> {
    let number = match &node.value {
        Value::Integer(number) => Some(*number),
        Value::Loose(text) => text.replace('_', "").parse().ok(),
        _ => None,
    };
    match number {
        Some(number) if (min..=max).contains(&number) => return Some(number),
        Some(number) => {
            problems.report(&node.at, format!("{what} must be from {min} to {max}, not {number}"))
        }
        None => {
            let kind = match &node.value {
                Value::Loose(text) => format!("{text:?}"),
                other => other.kind().to_owned(),
            };
            problems
                .report(&node.at, format!("{what} must be a whole number from {min} to {max}, not {kind}"));
        }
    }
    None
}

fn shortened(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    text.chars().take(SHOWN_MAX).collect()
}
