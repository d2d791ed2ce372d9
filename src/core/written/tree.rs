//! The tree itself, from TOML, from JSON, or from a value given outside of any file.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::At;

/// A number that is not written as a whole one, as `1.0` and `1e9` are not.
const FRACTION: &str = "a number with a point or an exponent";

/// One value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeNode {
    /// Value as it was read, without its place.
    pub value: Value,
    /// Place of the value, for messages about it.
    pub at: At,
}

/// A written value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A text from the environment or the command line, which may stand for a number, a truth value or a
    /// list.
    Loose(String),
    /// A whole number.
    Integer(i64),
    /// A number that is not whole.
    Fraction(f64),
    /// True or false.
    Boolean(bool),
    /// A list.
    List(Vec<TreeNode>),
    /// Named values.
    Table(Vec<TreeEntry>),
    /// Anything else, by its kind: nothing here is written so.
    Other(&'static str),
}

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeEntry {
    /// Name of the entry in its table.
    pub key: String,
    /// Place of the name, for messages about unknown names.
    pub at: At,
    /// Value of the entry, with its own place.
    pub node: TreeNode,
}

impl Value {
    /// Returns what it is, in words.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Loose(_) => "a text",
            Self::Integer(_) => "a number",
            Self::Fraction(_) => FRACTION,
            Self::Boolean(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

impl TreeNode {
    /// A table without entries.
    #[must_use]
    pub const fn empty(at: At) -> Self {
        Self { value: Value::Table(Vec::new()), at }
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// Where and why the text is no TOML.
    pub fn from_toml(text: &str) -> Result<Self, (At, String)> {
        match DeTable::parse(text) {
            Ok(table) => {
                Ok(Self { at: At::Offset(table.span().start), value: from_toml_table(table.get_ref()) })
            }
            Err(error) => {
                let at = At::Offset(error.span().map_or(0, |span| span.start));
                let wrong = error.message().trim().replace('\n', ", ");
                let other = other_format(text);
                let other = other.map(|other| format!(": this reads like {other}, and TOML is wanted"));
                Err((at, wrong + &other.unwrap_or_default()))
            }
        }
    }

    /// Takes a JSON value; places are paths of fields below `path`.
    #[must_use]
    pub fn from_json(json: &serde_json::Value, path: &str) -> Self {
        use serde_json::Value as Json;
        let value = match json {
            Json::Null => Value::Other("null"),
            Json::Bool(value) => Value::Boolean(*value),
            Json::Number(number) => from_json_number(number),
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(items) => {
                let item = |(place, item)| Self::from_json(item, &format!("{path}[{place}]"));
                Value::List(items.iter().enumerate().map(item).collect())
            }
            Json::Object(entries) => {
                Value::Table(entries.iter().map(|(key, value)| from_json_entry(key, value, path)).collect())
            }
        };
        Self { value, at: At::Field(path.to_owned()) }
    }

    /// Puts a text from outside at this path of keys, over what was there.
    ///
    /// # Errors
    /// The key on the way that holds no table.
    pub fn overlay<'k>(&mut self, path: &[&'k str], outside: &str, text: &str) -> Result<(), &'k str> {
        let at = At::Outside(outside.to_owned());
        let Some((key, rest)) = path.split_first() else {
            *self = Self { value: Value::Loose(text.to_owned()), at };
            return Ok(());
        };
        let Value::Table(entries) = &mut self.value else { return Err(key) };
        let place = entries.iter().position(|entry| entry.key == *key).unwrap_or_else(|| {
            let entry = TreeEntry { key: (*key).to_owned(), at: at.clone(), node: Self::empty(at.clone()) };
            entries.push(entry);
            entries.len() - 1
        });
        match entries.get_mut(place) {
            Some(entry) => {
                if rest.is_empty() {
                    entry.at = at;
                }
                entry.node.overlay(rest, outside, text)
            }
            None => Ok(()),
        }
    }
}

/// Returns what a text that is no TOML seems to be instead.
fn other_format(text: &str) -> Option<&'static str> {
    let meant = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let mut lines = text.lines().map(str::trim).filter(meant);
    let first = lines.next()?;
    let yaml = |line: &str| {
        let key = line.strip_prefix("- ").unwrap_or(line).split_once(':').map_or("", |(key, _)| key);
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        line == "---" || (!key.is_empty() && key.chars().all(is_word))
    };
    // A list of JSON begins like a heading of TOML.
    let in_list =
        || first.strip_prefix('[').map(str::trim).and_then(|rest| rest.chars().next().or(Some('{')));
    match first {
        _ if first.starts_with('{') || in_list() == Some('{') => Some("JSON"),
        _ if yaml(first) => Some("YAML"),
        _ => None,
    }
}

/// A number is whole or not as it was written, as in TOML: `5.0` is not.
fn from_json_number(number: &serde_json::Number) -> Value {
    let fraction = || number.as_f64().filter(|_| number.is_f64()).map(Value::Fraction);
    let whole = number.as_i64().map(Value::Integer);
    whole.or_else(fraction).unwrap_or(Value::Other("a number that is too large"))
}

fn from_json_entry(key: &str, value: &serde_json::Value, path: &str) -> TreeEntry {
    let own = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    TreeEntry { key: key.to_owned(), at: At::Field(own.clone()), node: TreeNode::from_json(value, &own) }
}

fn from_toml_table(table: &DeTable<'_>) -> Value {
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let key_text: &std::borrow::Cow<'_, str> = key.get_ref();
        (
            key.span().start,
            TreeEntry { key: key_text.to_string(), at: At::Offset(key.span().start), node: from_toml(value) },
        )
    };
    let mut entries: Vec<(usize, TreeEntry)> = table.iter().map(entry).collect();
    entries.sort_by_key(|(offset, _)| *offset);
    Value::Table(entries.into_iter().map(|(_, entry)| entry).collect())
}

fn from_toml(spanned: &Spanned<DeValue<'_>>) -> TreeNode {
    let value = match spanned.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("a number that is too large"), Value::Integer),
        DeValue::Float(number) => number.as_str().parse().map_or(Value::Other(FRACTION), Value::Fraction),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(_) => Value::Other("a date or time"),
        DeValue::Array(items) => Value::List(items.iter().map(from_toml).collect()),
        DeValue::Table(table) => from_toml_table(table),
    };
    TreeNode { value, at: At::Offset(spanned.span().start) }
}
