//! Changing `rules.toml` as a careful person would: only what changes, with every comment, order and layout
//! kept.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value as Json};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::database::saved;
use crate::database::set::RuleDocs;
use crate::engine::rulebook::RuleChange;

/// The order in which a new rule's fields are written; others follow.
const ORDER: [&str; 15] = [
    "id",
    "name",
    "domain",
    "match",
    "per",
    "algorithm",
    "limit",
    "window",
    "calendar",
    "time_zone",
    "starts_on",
    "burst",
    "group",
    "priority",
    "action",
];

/// The rules of a text that was read without problems, as documents.
///
/// # Errors
/// The text is no TOML.
pub fn docs(text: &str) -> Result<RuleDocs, String> {
    let root: Json = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let mut docs = RuleDocs::default();
    for rule in root.get("rules").and_then(Json::as_array).into_iter().flatten() {
        if let Some(name) = rule.get("name").and_then(Json::as_str) {
            docs.rules.insert(name.to_owned(), rule.clone());
        }
    }
    Ok(docs)
}

/// The place of one entry of a list of tables, such as a user.
#[derive(Debug, Clone, Copy)]
pub struct EntryName<'a> {
    /// Name of the list.
    pub list: &'a str,
    /// Field that tells the entries of the list apart.
    pub key: &'a str,
    /// Value of that field.
    pub name: &'a str,
}

/// One entry of a list of tables: makes it say the same as `after`, adds it, or takes it out.
///
/// # Errors
/// The text is written in a way that cannot be changed piecewise.
pub fn rewrite_entry(
    text: &str,
    entry: EntryName<'_>,
    after: Option<&Map<String, Json>>,
) -> Result<String, String> {
    let EntryName { list, key, name } = entry;
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    let item = document.entry(list).or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    if item.as_array().is_some_and(Array::is_empty) {
        *item = Item::ArrayOfTables(ArrayOfTables::new());
    }
    let Some(tables) = item.as_array_of_tables_mut() else {
        return Err(format!("{list} are written as a list in brackets: write each as a [[{list}]] table"));
    };
    let place = tables.iter().position(|table| table.get(key).and_then(Item::as_str) == Some(name));
    match (place, after) {
        (Some(place), None) => {
            tables.remove(place);
        }
        (Some(place), Some(after)) => {
            if let Some(table) = tables.get_mut(place) {
                update(table, after);
            }
        }
        (None, Some(after)) => tables.push(new_table(after)),
        (None, None) => {}
    }
    Ok(document.to_string())
}

/// Carries out changes of rules on a text.
///
/// # Errors
/// The text is written in a way that cannot be changed piecewise.
pub fn rewrite(text: &str, changes: &[RuleChange]) -> Result<String, String> {
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    let item = document.entry("rules").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    if item.as_array().is_some_and(Array::is_empty) {
        *item = Item::ArrayOfTables(ArrayOfTables::new());
    }
    let Some(tables) = item.as_array_of_tables_mut() else {
        return Err("the rules are written as a list in brackets: write each as a [[rules]] table".to_owned());
    };
    let name = |table: &Table| table.get("name").and_then(Item::as_str).map(str::to_owned);
    let places: HashMap<String, usize> =
        tables.iter().enumerate().filter_map(|(place, table)| Some((name(table)?, place))).collect();
    let mut gone = HashSet::new();
    for change in changes.iter().filter(|change| change.region.is_none()) {
        match (places.get(&change.rule), &change.after) {
            (Some(_), None) => {
                gone.insert(change.rule.as_str());
            }
            (Some(place), Some(Json::Object(after))) => {
                if let Some(table) = tables.get_mut(*place) {
                    update(table, after);
                }
            }
            (None, Some(Json::Object(after))) => tables.push(new_table(after)),
            (None, None) | (_, Some(_)) => {}
        }
    }
    tables.retain(|table| name(table).is_none_or(|name| !gone.contains(name.as_str())));
    Ok(document.to_string())
}

/// Makes a table say the same as `after`, and leaves alone what does already.
fn update(table: &mut dyn TableLike, after: &Map<String, Json>) {
    let gone: Vec<String> =
        table.iter().map(|(key, _)| key.to_owned()).filter(|key| !after.contains_key(key)).collect();
    for key in gone {
        table.remove(&key);
    }
    for (key, json) in after {
        match (table.get_mut(key), json) {
            (Some(item), Json::Object(fields)) if item.is_table_like() => {
                if let Some(inner) = item.as_table_like_mut() {
                    update(inner, fields);
                }
            }
            (Some(item), json) => {
                let Some(mut fresh) = value(json) else { continue };
                let before = item.as_value().map(|old| (plain(old), old.decor().clone()));
                if before.as_ref().is_some_and(|(old, _)| *old == plain(&fresh)) {
                    continue;
                }
                if let Some((_, decor)) = before {
                    *fresh.decor_mut() = decor;
                }
                *item = Item::Value(fresh);
            }
            (None, json) => {
                if let Some(fresh) = value(json) {
                    table.insert(key, Item::Value(fresh));
                }
            }
        }
    }
}

/// A value without its layout, to compare.
fn plain(value: &Value) -> String {
    fn bare(value: &Value) -> Value {
        match value {
            Value::Array(items) => Value::Array(items.iter().map(bare).collect()),
            Value::InlineTable(table) => {
                Value::InlineTable(table.iter().map(|(key, value)| (key, bare(value))).collect())
            }
            Value::String(text) => Value::from(text.value().as_str()),
            Value::Integer(number) => Value::from(*number.value()),
            Value::Float(number) => Value::from(*number.value()),
            Value::Boolean(truth) => Value::from(*truth.value()),
            Value::Datetime(time) => Value::from(*time.value()),
        }
    }
    bare(value).to_string()
}

fn new_table(fields: &Map<String, Json>) -> Table {
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    let known = ORDER.iter().filter_map(|key| fields.get_key_value(*key));
    let rest = fields.iter().filter(|(key, _)| !ORDER.contains(&key.as_str()));
    for (key, json) in known.chain(rest) {
        if let Some(value) = value(json) {
            table.insert(key, Item::Value(value));
        }
    }
    table
}

/// A value as TOML; `None` for null, which TOML does not have.
fn value(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Value::from(whole),
            None => Value::from(number.as_f64()?),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().filter_map(value).collect()),
        Json::Object(fields) => {
            let entries = fields.iter().filter_map(|(key, json)| Some((key.as_str(), value(json)?)));
            Value::InlineTable(entries.collect::<InlineTable>())
        }
    })
}

/// Replaces the file in one step: a reader sees the old text or the new one. Blocks.
///
/// # Errors
/// What the system says.
pub fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    // Behind a link its target is replaced, and the link stays.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mode = std::fs::metadata(&path).map(|metadata| metadata.permissions());
    saved::write(&path, text.as_bytes())?;
    if let Ok(mode) = mode {
        std::fs::set_permissions(&path, mode)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = r#"# Ours.

# Searching is dear.
[[rules]]
name = "search"    # unique
limit = 100  # a minute's worth
window = "1m"
match = { path = "/search*" }
[rules.global]     # worldwide
mode = "split"
shares = { eu = 1, us = 2 }

# To go.
[[rules]]
name = "old"
limit = 1
window = "1s"

[[tiers]]
name = "pro"       # paying
"#;

    fn change(rule: &str, after: Option<Json>) -> RuleChange {
        RuleChange { kind: "rule", rule: rule.to_owned(), region: None, before: None, after }
    }

    #[test]
    fn only_what_changes_changes_and_comments_stay() {
        let mut search = docs(TEXT).unwrap().rules["search"].clone();
        search["limit"] = json!(200);
        search["global"]["shares"] = json!({ "eu": 3, "us": 2, "ap": 1 });
        search.as_object_mut().unwrap().remove("match");
        let fresh =
            json!({ "window": "1s", "per": ["user"], "limit": 5, "name": "new", "match": { "tier": "pro" } });
        let text =
            rewrite(TEXT, &[change("search", Some(search)), change("old", None), change("new", Some(fresh))]);
        let expected = TEXT
            .replace("limit = 100", "limit = 200")
            .replace("match = { path = \"/search*\" }\n", "")
            .replace("{ eu = 1, us = 2 }", "{ eu = 3, us = 2 , ap = 1 }")
            .replace("\n# To go.\n[[rules]]\nname = \"old\"\nlimit = 1\nwindow = \"1s\"\n", "");
        let text = text.unwrap();
        for line in expected.lines().filter(|line| !line.contains("shares")) {
            assert!(text.contains(line), "{line:?} is not in:\n{text}");
        }
        let read = docs(&text).unwrap();
        assert_eq!(read.rules["search"]["global"]["shares"], json!({ "eu": 3, "us": 2, "ap": 1 }));
        assert_eq!(read.rules.keys().collect::<Vec<_>>(), ["new", "search"]);
        assert!(!text.contains("To go"), "{text}");
        assert!(text.contains("\n[[rules]]\nname = \"new\"\n"), "{text}");
    }

    #[test]
    fn an_empty_file_gets_its_first_rule_and_loses_it_again() {
        let first =
            rewrite("", &[change("r", Some(json!({ "name": "r", "limit": 1, "window": "1s" })))]).unwrap();
        assert_eq!(first.trim(), "[[rules]]\nname = \"r\"\nlimit = 1\nwindow = \"1s\"");
        assert_eq!(rewrite(&first, &[change("r", None)]).unwrap().trim(), "");
        assert!(
            rewrite("rules = [{ name = \"r\" }]", &[change("r", None)]).unwrap_err().contains("[[rules]]")
        );
    }

    #[test]
    fn changing_nothing_changes_no_byte() {
        let rules = docs(TEXT).unwrap().rules;
        let changes: Vec<_> = rules.iter().map(|(name, rule)| change(name, Some(rule.clone()))).collect();
        assert_eq!(rewrite(TEXT, &changes).unwrap(), TEXT);
    }

    #[test]
    fn the_file_behind_a_link_is_replaced_and_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("real.toml"), folder.path().join("rules.toml"));
        std::fs::write(&file, "a").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, "b").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "b");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    }
}
