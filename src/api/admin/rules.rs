//! `GET /v1/rules` and `GET /v1/rules/{name}`: what is in force, in order of precedence. Read only.

use serde_json::json;

use super::{AdminRoute, Call};
use crate::api::Doors;
use crate::api::error::{Code, Refusal};
use crate::api::http::{Answered, Reply, reply};
use crate::engine::admin::Role;

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute {
        method: "GET",
        path: "/v1/rules",
        role: Role::Viewer,
        handler: |call| Box::pin(async move { Ok(all(call.doors)) }),
    },
    AdminRoute {
        method: "GET",
        path: "/v1/rules/{name}",
        role: Role::Viewer,
        handler: |call| Box::pin(async move { one(&call) }),
    },
];

/// Every rule, with the revision of the set.
fn all(doors: &Doors) -> Reply {
    let loaded = doors.engine.loaded();
    let rules: Vec<_> =
        loaded.set.rules().iter().map(|compiled| (doors.admin.rule_json)(&compiled.rule)).collect();
    reply::json(&json!({ "revision": loaded.revision, "rules": rules }))
}

/// One rule, named by the path.
fn one(call: &Call<'_>) -> Answered {
    let (doors, name) = (call.doors, call.param(0));
    let loaded = doors.engine.loaded();
    let compiled = loaded.set.rules().iter().find(|compiled| compiled.rule.name == name);
    let compiled = compiled.ok_or_else(|| no_rule(name))?;
    Ok(reply::json(&json!({ "revision": loaded.revision, "rule": (doors.admin.rule_json)(&compiled.rule) })))
}

/// There is no rule of this name.
pub(super) fn no_rule(name: &str) -> Refusal {
    let name: String = name.chars().take(64).collect();
    Refusal::new(Code::NoRule, format!("there is no rule {name:?}"))
}
