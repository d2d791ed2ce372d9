//! `/v1/keys…`: API keys. A key is shown once, when it is made; from then on by its public name.

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::people::{
    OverridesBody, ReasonBody, body, filter, given, last_seen, limits, moment, moment_if, name, name_if,
    note, refusal,
};
use super::{AdminCall, AdminRoute};
use crate::api::reply::{self, Answered};
use crate::engine::admin::Role;
use crate::engine::identity::register::{KeyChange, KeyDraft, KeyRecord};
use crate::engine::identity::{Kind, NameRef};

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

/// An API key that is to be made.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(rename = "KeyDraft"))]
pub(in crate::api) struct DraftBody {
    /// Whose it is; null: nobody's.
    #[cfg_attr(test, schemars(length(min = 1, max = crate::core::request::TEXT_BYTES_MAX)))]
    user: Option<String>,
    /// The key's own tier; null: the user's.
    #[cfg_attr(test, schemars(length(min = 1, max = crate::core::request::TEXT_BYTES_MAX)))]
    tier: Option<String>,
    /// Limits of the key's own, by the name of a rule that counts.
    #[serde(default)]
    overrides: OverridesBody,
    /// A point in time (RFC 3339) or a length of time from now. It must lie ahead.
    #[serde(alias = "expires")]
    #[cfg_attr(test, schemars(extend("examples" = ["24h", "2199-12-01T00:00:00Z"])))]
    expires_at: Option<String>,
    /// The note of its operator.
    #[serde(default)]
    #[cfg_attr(test, schemars(length(max = super::people::NOTE_BYTES_MAX)))]
    note: String,
}

/// The changes of an API key. Absent fields stay.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(rename = "KeyBody"))]
pub(in crate::api) struct ChangeBody {
    /// The key's own tier; null: the user's.
    #[serde(default, deserialize_with = "given")]
    #[cfg_attr(test, schemars(length(min = 1, max = crate::core::request::TEXT_BYTES_MAX)))]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    tier: Option<Option<String>>,
    /// Limits of the key's own, by the name of a rule that counts.
    overrides: Option<OverridesBody>,
    /// True if it may be used.
    active: Option<bool>,
    /// A point in time (RFC 3339) or a length of time from now. It must lie ahead; null: it does not expire.
    #[serde(default, deserialize_with = "given", alias = "expires")]
    #[cfg_attr(test, schemars(extend("examples" = ["24h", "2199-12-01T00:00:00Z"])))]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    expires_at: Option<Option<String>>,
    /// The note of its operator.
    #[cfg_attr(test, schemars(length(max = super::people::NOTE_BYTES_MAX)))]
    note: Option<String>,
    /// Why; it is kept in the record of changes.
    #[cfg_attr(test, schemars(length(max = super::people::NOTE_BYTES_MAX)))]
    reason: Option<String>,
}

/// API keys, by name.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Keys", deny_unknown_fields))]
pub(in crate::api) struct KeysJson {
    /// The keys.
    keys: Vec<KeyRecord>,
    /// The `after` that gives those that follow; null: there are none.
    next: Option<String>,
}

/// One API key.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "OneKey", deny_unknown_fields))]
pub(in crate::api) struct OneKeyJson {
    /// The key.
    key: KeyRecord,
}

/// An API key that was just made.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "MadeKey", deny_unknown_fields))]
pub(in crate::api) struct MadeKeyJson {
    /// The key, as it is shown from now on.
    key: KeyRecord,
    /// The whole key. It is shown this once.
    secret: String,
}

async fn list(call: AdminCall<'_>) -> Answered {
    let filter = filter(&call, &["user", "tier", "revoked", "search"])?;
    let limit = filter.limit;
    let mut keys = call.servers.admin.register.keys(filter).await.map_err(refusal)?;
    keys.iter_mut().for_each(|key| see(&call, key));
    let full = u32::try_from(keys.len()).is_ok_and(|len| len == limit);
    let next = keys.last().filter(|_| full).map(|key| key.id.clone());
    Ok(reply::json(&KeysJson { keys, next }))
}

async fn show(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    let mut key = call.servers.admin.register.key(&id).await.map_err(refusal)?;
    see(&call, &mut key);
    Ok(reply::json(&OneKeyJson { key }))
}

async fn create(call: AdminCall<'_>) -> Answered {
    let written: DraftBody = body(&call)?;
    let draft = KeyDraft {
        user: name_if("user", written.user)?,
        tier: name_if("tier", written.tier)?,
        overrides: limits(call.servers, written.overrides)?,
        expires: moment_if(call.servers, "expires_at", written.expires_at)?,
        note: note("note", written.note)?,
    };
    let (key, secret) = call.servers.admin.register.make_key(&call.actor, draft).await.map_err(refusal)?;
    Ok(reply::json(&MadeKeyJson { key, secret }))
}

async fn change(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    let written: ChangeBody = body(&call)?;
    let expires = match written.expires_at {
        None => None,
        Some(None) => Some(None),
        Some(Some(text)) => Some(Some(moment(call.servers, "expires_at", &text)?)),
    };
    let change = KeyChange {
        tier: written.tier.map(|tier| name_if("tier", tier)).transpose()?,
        overrides: written.overrides.map(|own| limits(call.servers, own)).transpose()?,
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
    let id = name("id", call.param(0))?;
    let reason = ReasonBody::read(&call)?;
    let change = KeyChange { revoke: true, action: "key.revoke", reason, ..KeyChange::default() };
    write(&call, &id, change).await
}

async fn write(call: &AdminCall<'_>, id: &str, change: KeyChange) -> Answered {
    let mut key = call.servers.admin.register.change_key(&call.actor, id, change).await.map_err(refusal)?;
    see(call, &mut key);
    Ok(reply::json(&OneKeyJson { key }))
}

fn see(call: &AdminCall<'_>, key: &mut KeyRecord) {
    key.last_seen_at = last_seen(call, NameRef { kind: Kind::Key, id: &key.id }, key.last_seen_at);
}
