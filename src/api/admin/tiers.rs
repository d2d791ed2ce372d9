//! `/v1/tiers…`: the tiers that users and keys may have.

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::people::{RemovedJson, body, name, note, refusal};
use super::{AdminCall, AdminRoute};
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered};
use crate::engine::admin::Role;
use crate::engine::identity::register::TierRecord;

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute { method: "GET", path: "/v1/tiers", role: Role::Viewer, handler: |call| Box::pin(list(call)) },
    AdminRoute {
        method: "GET",
        path: "/v1/tiers/{name}",
        role: Role::Viewer,
        handler: |call| Box::pin(show(call)),
    },
    AdminRoute {
        method: "PUT",
        path: "/v1/tiers/{name}",
        role: Role::Operator,
        handler: |call| Box::pin(put(call)),
    },
    AdminRoute {
        method: "DELETE",
        path: "/v1/tiers/{name}",
        role: Role::Operator,
        handler: |call| Box::pin(remove(call)),
    },
];

/// A tier as an operator writes one.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct TierBody {
    /// As the path names the tier.
    #[cfg_attr(test, schemars(length(min = 1, max = crate::core::request::TEXT_BYTES_MAX)))]
    name: Option<String>,
    /// Its purpose.
    #[serde(default)]
    #[cfg_attr(test, schemars(length(max = super::people::NOTE_BYTES_MAX)))]
    description: String,
}

/// Every tier.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Tiers", deny_unknown_fields))]
pub(in crate::api) struct TiersJson {
    /// The tiers.
    tiers: Vec<TierRecord>,
}

/// One tier.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "OneTier", deny_unknown_fields))]
pub(in crate::api) struct OneTierJson {
    /// The tier.
    tier: TierRecord,
}

async fn list(call: AdminCall<'_>) -> Answered {
    let tiers = call.servers.admin.register.tiers().await.map_err(refusal)?;
    Ok(reply::json(&TiersJson { tiers }))
}

async fn show(call: AdminCall<'_>) -> Answered {
    let wanted = name("name", call.param(0))?;
    let tiers = call.servers.admin.register.tiers().await.map_err(refusal)?;
    let tier = tiers.into_iter().find(|tier| tier.name == wanted);
    let tier = tier.ok_or_else(|| Refusal::new(Code::NoTier, format!("there is no tier {wanted:?}")))?;
    Ok(reply::json(&OneTierJson { tier }))
}

async fn put(call: AdminCall<'_>) -> Answered {
    let own = name("name", call.param(0))?;
    let TierBody { name, description } = body(&call)?;
    if name.is_some_and(|name| name != own) {
        return Err(Refusal::of_field("name", "the path names another tier: tiers cannot be renamed"));
    }
    let tier = TierRecord { name: own, description: note("description", description)? };
    let tier = call.servers.admin.register.put_tier(&call.actor, tier).await.map_err(refusal)?;
    Ok(reply::json(&OneTierJson { tier }))
}

async fn remove(call: AdminCall<'_>) -> Answered {
    let own = name("name", call.param(0))?;
    call.servers.admin.register.remove_tier(&call.actor, &own).await.map_err(refusal)?;
    Ok(reply::json(&RemovedJson { removed: &own }))
}
