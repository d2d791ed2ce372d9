//! `GET /v1/rules` and `GET /v1/rules/{name}`: what is in force, in order of precedence. Read only.

use percent_encoding::percent_decode_str;
use serde_json::json;

use super::{Answered, Reply, reply};
use crate::api::Doors;
use crate::api::error::{Code, Refusal};

/// Every rule, with the revision of the set.
pub(super) fn all(doors: &Doors) -> Reply {
    let loaded = doors.engine.loaded();
    let rules: Vec<_> = loaded.set.rules().iter().map(|compiled| (doors.rule_json)(&compiled.rule)).collect();
    reply::json(&json!({ "revision": loaded.revision, "rules": rules }))
}

/// One rule, named by a percent-encoded segment of the path.
pub(super) fn one(doors: &Doors, segment: &str) -> Answered {
    let name = percent_decode_str(segment)
        .decode_utf8()
        .map_err(|_| Refusal::of_field("name", "the rule's name is not UTF-8"))?;
    let loaded = doors.engine.loaded();
    let compiled = loaded.set.rules().iter().find(|compiled| compiled.rule.name == name);
    let compiled = compiled.ok_or_else(|| no_rule(&name))?;
    Ok(reply::json(&json!({ "revision": loaded.revision, "rule": (doors.rule_json)(&compiled.rule) })))
}

/// There is no rule of this name.
pub(super) fn no_rule(name: &str) -> Refusal {
    let name: String = name.chars().take(64).collect();
    Refusal::new(Code::NoRule, format!("there is no rule {name:?}"))
}
