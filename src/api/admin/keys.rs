//! `/v1/keys…`: API keys. A key is shown once, when it is made; from then on by its public name.

use serde::Deserialize;
use serde_json::json;

use super::people::{
    OverridesBody, body, filter, given, limits, moment, moment_if, name, name_if, note, refusal,
};
use super::{AdminCall, AdminRoute};
use crate::api::http::{Answered, reply};
use crate::engine::admin::Role;
use crate::engine::identity::register::{KeyChange, KeyDraft};

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute { method: "GET", path: "/v1/keys", role: Role::Viewer, handler: |call| Box::pin(list(call)) },
    AdminRoute {
        method: "POST",
        path: "/v1/keys",
        role: Role::Admin,
        handler: |call| Box::pin(create(call)),
    },
    AdminRoute {
        method: "GET",
        path: "/v1/keys/{id}",
        role: Role::Viewer,
        handler: |call| Box::pin(show(call)),
    },
    AdminRoute {
        method: "PATCH",
        path: "/v1/keys/{id}",
        role: Role::Admin,
        handler: |call| Box::pin(change(call)),
    },
    AdminRoute {
        method: "DELETE",
        path: "/v1/keys/{id}",
        role: Role::Operator,
        handler: |call| Box::pin(revoke(call)),
    },
    AdminRoute {
        method: "POST",
        path: "/v1/keys/{id}/revoke",
        role: Role::Operator,
        handler: |call| Box::pin(revoke(call)),
    },
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DraftBody {
    user: Option<String>,
    tier: Option<String>,
    #[serde(default)]
    overrides: OverridesBody,
    #[serde(alias = "expires")]
    expires_at: Option<String>,
    #[serde(default)]
    note: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    #[serde(default, deserialize_with = "given")]
    tier: Option<Option<String>>,
    overrides: Option<OverridesBody>,
    active: Option<bool>,
    #[serde(default, deserialize_with = "given", alias = "expires")]
    expires_at: Option<Option<String>>,
    note: Option<String>,
    reason: Option<String>,
}

async fn list(call: AdminCall<'_>) -> Answered {
    let filter = filter(&call, &["user", "tier"])?;
    let limit = filter.limit;
    let keys = call.doors.admin.register.keys(filter).await.map_err(refusal)?;
    let full = u32::try_from(keys.len()).is_ok_and(|len| len == limit);
    let next = keys.last().filter(|_| full).map(|key| key.id.clone());
    Ok(reply::json(&json!({ "keys": keys, "next": next })))
}

async fn show(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    let key = call.doors.admin.register.key(&id).await.map_err(refusal)?;
    Ok(reply::json(&json!({ "key": key })))
}

async fn create(call: AdminCall<'_>) -> Answered {
    let written: DraftBody = body(&call)?;
    let draft = KeyDraft {
        user: name_if("user", written.user)?,
        tier: name_if("tier", written.tier)?,
        overrides: limits(call.doors, written.overrides)?,
        expires: moment_if(call.doors, "expires_at", written.expires_at)?,
        note: note("note", written.note)?,
    };
    let (key, secret) = call.doors.admin.register.make_key(&call.actor, draft).await.map_err(refusal)?;
    Ok(reply::json(&json!({ "key": key, "secret": secret })))
}

async fn change(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    let written: ChangeBody = body(&call)?;
    let expires = match written.expires_at {
        None => None,
        Some(None) => Some(None),
        Some(Some(text)) => Some(Some(moment(call.doors, "expires_at", &text)?)),
    };
    let change = KeyChange {
        tier: written.tier.map(|tier| name_if("tier", tier)).transpose()?,
        overrides: written.overrides.map(|own| limits(call.doors, own)).transpose()?,
        active: written.active,
        expires,
        note: written.note.map(|text| note("note", text)).transpose()?,
        revoke: false,
        action: "key.set",
        reason: written.reason.map(|reason| note("reason", reason)).transpose()?,
    };
    write(&call, &id, change).await
}

async fn revoke(call: AdminCall<'_>) -> Answered {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RevokeBody {
        reason: Option<String>,
    }
    let id = name("id", call.param(0))?;
    let reason = body::<RevokeBody>(&call)?.reason.map(|reason| note("reason", reason)).transpose()?;
    let change = KeyChange { revoke: true, action: "key.revoke", reason, ..KeyChange::default() };
    write(&call, &id, change).await
}

async fn write(call: &AdminCall<'_>, id: &str, change: KeyChange) -> Answered {
    let key = call.doors.admin.register.change_key(&call.actor, id, change).await.map_err(refusal)?;
    Ok(reply::json(&json!({ "key": key })))
}
