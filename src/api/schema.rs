//! What the types that are read and written share in describing themselves: bounds that serde does not know,
//! in the words of JSON Schema.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use crate::core::denial_cause::DenialCause;
use crate::core::request::{ATTRIBUTES_MAX, TEXT_BYTES_MAX};

/// The names of the modes.
pub(super) const MODES: [&str; 3] = ["gossip", "split", "escrow"];
/// The reasons for which a rule denies.
pub(super) const CAUSES: [&str; DenialCause::ALL.len()] = DenialCause::WORDS;
/// The same, where there may be none.
pub(super) const CAUSES_OR_NULL: [Option<&str>; CAUSES.len() + 1] = {
    let mut words = [None; CAUSES.len() + 1];
    let mut place = 0;
    while place < CAUSES.len() {
        words[place] = Some(CAUSES[place]);
        place += 1;
    }
    words
};
/// How a store fares.
pub(super) const STORE_WORDS: [&str; 3] = ["ok", "degraded", "down"];

/// Adds the schema of a type, and of those that it is made of.
pub(super) fn add<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

/// Says the bounds of Rust's numbers in the words of JSON Schema, whose formats know no unsigned numbers.
pub(super) fn usual_bounds(schema: &mut Schema) {
    let format = schema.get("format").and_then(Value::as_str);
    if format.is_some_and(|format| format.starts_with("uint")) {
        if format == Some("uint32") && schema.get("maximum").is_none() {
            schema.insert("maximum".to_owned(), u32::MAX.into());
        }
        schema.remove("format");
    }
}

/// What may be absent is absent, and never null.
pub(super) fn never_null(schema: &mut Schema) {
    let required = schema.get("required").cloned().unwrap_or_default();
    let Some(Value::Object(fields)) = schema.get_mut("properties") else { return };
    for (name, field) in fields {
        let Some(field) = field.as_object_mut() else { continue };
        if required.as_array().is_some_and(|names| names.iter().any(|required| required == name)) {
            continue;
        }
        if let Some(Value::Array(types)) = field.get_mut("type") {
            types.retain(|word| word != "null");
            if let [only] = &types[..] {
                let only = only.clone();
                field.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(choices)) = field.get_mut("anyOf") {
            choices.retain(|choice| choice["type"] != "null");
            if let [Value::Object(only)] = &mut choices[..] {
                let only = std::mem::take(only);
                field.remove("anyOf");
                field.extend(only);
            }
        }
        if field.get("default").is_some_and(Value::is_null) {
            field.remove("default");
        }
    }
}

/// The bounds of attributes: their number, and the length of their names.
pub(super) fn attribute_names(schema: &mut Schema) {
    schema.insert("propertyNames".to_owned(), json!({ "minLength": 1, "maxLength": TEXT_BYTES_MAX }));
    schema.insert("maxProperties".to_owned(), ATTRIBUTES_MAX.into());
}

/// The bounds of headers that a rule adds to answers.
pub(super) fn answer_headers(schema: &mut Schema) {
    let value = json!({ "type": "string", "minLength": 1, "maxLength": TEXT_BYTES_MAX });
    schema.insert("additionalProperties".to_owned(), value);
    schema.insert("maxProperties".to_owned(), 16.into());
}
