//! `GET /v1/changes`: what operators changed besides rules and quotas, newest first: users, keys, tiers,
//! resets of buckets.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::{AdminCall, AdminRoute};
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered};
use crate::engine::admin::{CHANGES_MAX, ChangeRecord, ChangesAsked, Role};

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/changes",
    role: Role::Viewer,
    handler: |call| Box::pin(changes(call)),
}];

/// Records of an answer that does not say how many.
const CHANGES_DEFAULT: u32 = 50;

/// The changes by operators, newest first.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Changes"))]
pub(in crate::api) struct ChangesJson {
    /// The changes.
    changes: Vec<ChangeRecord>,
}

async fn changes(call: AdminCall<'_>) -> Answered {
    let mut asked = ChangesAsked { limit: CHANGES_DEFAULT, ..ChangesAsked::default() };
    for (name, value) in call.query()? {
        match name.as_str() {
            "target" => asked.target = Some(value),
            "action" => asked.action = Some(value),
            "before" => {
                let id =
                    value.parse().map_err(|_| Refusal::of_field("before", "must be the id of a change"))?;
                asked.before = Some(id);
            }
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=CHANGES_MAX).contains(limit));
                let message = format!("must be a number from 1 to {CHANGES_MAX}");
                asked.limit = limit.ok_or_else(|| Refusal::of_field("limit", message))?;
            }
            _ => {
                let message = "the query knows only `target`, `action`, `before` and `limit`";
                return Err(Refusal::of_field(name, message));
            }
        }
    }
    let changes = call.servers.admin.ledger.changes(&asked).await;
    let changes = changes.map_err(|why| Refusal::new(Code::Away, why))?;
    Ok(reply::json(&ChangesJson { changes }))
}
