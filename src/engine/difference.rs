//! The lines by which two written rules differ: the command line and the admin routes show the same ones.

use serde_json::{Map, Value};

/// Longest value shown in a line, in characters.
const VALUE_CHARS_MAX: usize = 60;

/// The fields that differ, a line each. What is no object, such as null, has no fields: of what is gone no
/// line is told.
#[must_use]
pub fn differences(before: &Value, after: &Value) -> Vec<String> {
    let (before, after) = (flat(before), flat(after));
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let line = |name: &String| match (before.get(name), after.get(name)) {
        (Some(old), Some(new)) if old != new => Some(format!("{name}: {} → {}", shown(old), shown(new))),
        (Some(old), None) => {
            Some(format!("{name}: {} → (default)", shown(old))).filter(|_| !after.is_empty())
        }
        (None, Some(new)) => Some(format!("{name}: {}", shown(new))),
        _ => None,
    };
    names.into_iter().filter_map(line).collect()
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= VALUE_CHARS_MAX {
        return text;
    }
    let cut: String = text.chars().take(VALUE_CHARS_MAX).collect();
    format!("{cut}…")
}

/// Fields by their whole name: those of tables, such as `global`, one by one, so that a line shows what
/// differs and no more.
fn flat(document: &Value) -> Map<String, Value> {
    fn add(into: &mut Map<String, Value>, name: String, value: &Value) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (field, value) in fields {
                    add(into, format!("{name}.{field}"), value);
                }
            }
            value => drop(into.insert(name, value.clone())),
        }
    }
    let mut flat = Map::new();
    for (name, value) in document.as_object().into_iter().flatten() {
        add(&mut flat, name.clone(), value);
    }
    flat
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_tells_old_and_new() {
        let before = json!({ "name": "r", "limit": 1, "status": 429 });
        let after = json!({ "name": "r", "limit": 2, "window": "1s" });
        assert_eq!(
            differences(&before, &after),
            ["limit: 1 → 2", "status: 429 → (default)", "window: \"1s\""]
        );
        let shares = json!({ "ap-south": 1, "eu-west": 2, "us-east": 3 });
        let with = json!({ "global": { "minimums": { "ap-south": 25 }, "mode": "split", "shares": shares } });
        let without = json!({ "global": { "mode": "split", "shares": shares } });
        assert_eq!(differences(&with, &without), ["global.minimums.ap-south: 25 → (default)"]);
        assert!(differences(&after, &after).is_empty());
        assert!(differences(&after, &Value::Null).is_empty(), "of what is gone no line is told");
        assert_eq!(differences(&Value::Null, &json!({ "name": "r" })), ["name: \"r\""]);
    }
}
