//! `/v1/users…`: users, their tiers, limits of their own, and blocks.

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::people::{
    OverridesBody, ReasonBody, RemovedJson, body, filter, given, last_seen, limits, moment_if, name, name_if,
    note, refusal,
};
use super::{AdminCall, AdminRoute};
use crate::api::error::Refusal;
use crate::api::reply::{self, Answered};
use crate::core::identity::Block;
use crate::engine::admin::Role;
use crate::engine::identity::register::{UserChange, UserRecord};
use crate::engine::identity::{Kind, NameRef};

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute { method: "GET", path: "/v1/users", role: Role::Viewer, handler: |call| Box::pin(list(call)) },
    AdminRoute {
        method: "GET",
        path: "/v1/users/{id}",
        role: Role::Viewer,
        handler: |call| Box::pin(show(call)),
    },
    AdminRoute {
        method: "PUT",
        path: "/v1/users/{id}",
        role: Role::Operator,
        handler: |call| Box::pin(change(call, true)),
    },
    AdminRoute {
        method: "PATCH",
        path: "/v1/users/{id}",
        role: Role::Operator,
        handler: |call| Box::pin(change(call, false)),
    },
    AdminRoute {
        method: "DELETE",
        path: "/v1/users/{id}",
        role: Role::Operator,
        handler: |call| Box::pin(remove(call)),
    },
    AdminRoute {
        method: "POST",
        path: "/v1/users/{id}/block",
        role: Role::Operator,
        handler: |call| Box::pin(block(call)),
    },
    AdminRoute {
        method: "POST",
        path: "/v1/users/{id}/unblock",
        role: Role::Operator,
        handler: |call| Box::pin(unblock(call)),
    },
];

/// A user as an operator writes one. Absent fields stay with `PATCH` and go with `PUT`; a block stays with
/// both.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct UserBody {
    /// As the path names the user.
    #[cfg_attr(test, schemars(length(min = 1, max = crate::core::request::TEXT_BYTES_MAX)))]
    id: Option<String>,
    /// The user's tier; null: none.
    #[serde(default, deserialize_with = "given")]
    #[cfg_attr(test, schemars(length(min = 1, max = crate::core::request::TEXT_BYTES_MAX)))]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    tier: Option<Option<String>>,
    /// Limits of the user's own, by the name of a rule that counts.
    overrides: Option<OverridesBody>,
    /// A block; null lifts it.
    #[serde(default, deserialize_with = "given")]
    #[cfg_attr(test, schemars(with = "Option<BlockBody>"))]
    blocked: Option<Option<BlockBody>>,
    /// Why; it is kept in the record of changes.
    #[cfg_attr(test, schemars(length(max = super::people::NOTE_BYTES_MAX)))]
    reason: Option<String>,
}

/// A block as an operator writes one.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct BlockBody {
    /// Why, in the operator's words.
    #[cfg_attr(test, schemars(length(max = super::people::NOTE_BYTES_MAX)))]
    reason: Option<String>,
    /// A point in time (RFC 3339) or a length of time from now. It must lie ahead.
    #[cfg_attr(test, schemars(extend("examples" = ["24h", "2199-12-01T00:00:00Z"])))]
    until: Option<String>,
}

/// Users, by name.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Users", deny_unknown_fields))]
pub(in crate::api) struct UsersJson {
    /// The users.
    users: Vec<UserRecord>,
    /// The `after` that gives those that follow; null: there are none.
    next: Option<String>,
}

/// One user.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "OneUser", deny_unknown_fields))]
pub(in crate::api) struct OneUserJson<'a> {
    /// The user.
    user: &'a UserRecord,
}

impl BlockBody {
    fn block(self, call: &AdminCall<'_>) -> Result<Block, Refusal> {
        let reason = self.reason.map(|reason| note("reason", reason)).transpose()?;
        Ok(Block { reason, until: moment_if(call.servers, "until", self.until)? })
    }
}

async fn list(call: AdminCall<'_>) -> Answered {
    let filter = filter(&call, &["tier", "blocked", "search"])?;
    let limit = filter.limit;
    let mut users = call.servers.admin.register.users(filter).await.map_err(refusal)?;
    users.iter_mut().for_each(|user| see(&call, user));
    let full = u32::try_from(users.len()).is_ok_and(|len| len == limit);
    let next = users.last().filter(|_| full).map(|user| user.id.clone());
    Ok(reply::json(&UsersJson { users, next }))
}

async fn show(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    answer(&call, call.servers.admin.register.user(&id).await.map_err(refusal)?)
}

async fn change(call: AdminCall<'_>, whole: bool) -> Answered {
    let id = name("id", call.param(0))?;
    let written: UserBody = body(&call)?;
    if written.id.as_ref().is_some_and(|own| *own != id) {
        return Err(Refusal::of_field("id", "the path names another user: users cannot be renamed"));
    }
    let tier = written.tier.map(|tier| name_if("tier", tier)).transpose()?;
    let overrides = written.overrides.map(|own| limits(call.servers, own)).transpose()?;
    let blocked = match written.blocked {
        None => None,
        Some(None) => Some(None),
        Some(Some(block)) => Some(Some(block.block(&call)?)),
    };
    let change = UserChange {
        tier: tier.or(whole.then_some(None)),
        overrides: overrides.or(whole.then(Vec::new)),
        blocked,
        action: "user.set",
        reason: written.reason.map(|reason| note("reason", reason)).transpose()?,
    };
    write(&call, &id, change).await
}

async fn block(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    let block = body::<BlockBody>(&call)?.block(&call)?;
    let reason = block.reason.clone();
    let change =
        UserChange { blocked: Some(Some(block)), action: "user.block", reason, ..UserChange::default() };
    write(&call, &id, change).await
}

async fn unblock(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    let reason = ReasonBody::read(&call)?;
    // A user who is not known is not blocked, and is not made for that.
    call.servers.admin.register.user(&id).await.map_err(refusal)?;
    let change = UserChange { blocked: Some(None), action: "user.unblock", reason, ..UserChange::default() };
    write(&call, &id, change).await
}

async fn remove(call: AdminCall<'_>) -> Answered {
    let id = name("id", call.param(0))?;
    call.servers.admin.register.remove_user(&call.actor, &id).await.map_err(refusal)?;
    Ok(reply::json(&RemovedJson { removed: &id }))
}

async fn write(call: &AdminCall<'_>, id: &str, change: UserChange) -> Answered {
    let written = call.servers.admin.register.change_user(&call.actor, id, change).await;
    answer(call, written.map_err(refusal)?)
}

fn answer(call: &AdminCall<'_>, mut user: UserRecord) -> Answered {
    see(call, &mut user);
    Ok(reply::json(&OneUserJson { user: &user }))
}

fn see(call: &AdminCall<'_>, user: &mut UserRecord) {
    user.last_seen_at = last_seen(call, NameRef { kind: Kind::User, id: &user.id }, user.last_seen_at);
}
