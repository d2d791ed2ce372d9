//! `GET /v1/me`: who asks, as the record of changes would name it, and what it may do.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::{AdminCall, AdminRoute};
use crate::api::reply::{self, Answered};
use crate::engine::admin::Role;

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/me",
    role: Role::Viewer,
    handler: |call| Box::pin(async move { show(&call) }),
}];

fn show(call: &AdminCall<'_>) -> Answered {
    Ok(reply::json(&MeJson { name: &call.actor.name, role: call.actor.role.name() }))
}

/// The one who asks.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Me"))]
pub(in crate::api) struct MeJson<'a> {
    /// The token's name; `local` where none was needed.
    name: &'a str,
    /// The role: each may do what those before it may.
    #[cfg_attr(test, schemars(extend("enum" = Role::ALL.map(|(name, _)| name))))]
    role: &'static str,
}
