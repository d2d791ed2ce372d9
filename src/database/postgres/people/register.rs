//! The port by which operators see and change identities, and the record that every change leaves in its own
//! transaction.

use std::slice;

use serde::Serialize;
use sqlx::PgConnection;

use super::IdentityStore;
use crate::core::identity::UserLimit;
use crate::database::postgres::Failure;
use crate::engine::admin::{Actor, Change, log};
use crate::engine::identity::register::{
    Filter, KeyChange, KeyDraft, KeyRecord, Register, RegisterError, Registered, TierRecord, UserChange,
    UserRecord,
};

impl Register for IdentityStore {
    fn users(&self, filter: Filter) -> Registered<'_, Vec<UserRecord>> {
        Box::pin(async move {
            let mut users = self.list_users(filter).await?;
            self.see_users(&mut users).await?;
            Ok(users)
        })
    }
    fn user<'a>(&'a self, id: &'a str) -> Registered<'a, UserRecord> {
        Box::pin(async move {
            let mut user = self.show_user(id).await?;
            self.see_users(slice::from_mut(&mut user)).await?;
            Ok(user)
        })
    }
    fn change_user<'a>(
        &'a self,
        actor: &'a Actor,
        id: &'a str,
        change: UserChange,
    ) -> Registered<'a, UserRecord> {
        Box::pin(async move {
            let mut user = self.write_user(actor, id, change).await?;
            // The change is made, whether this can be told or not.
            let _ = self.see_users(slice::from_mut(&mut user)).await;
            Ok(user)
        })
    }
    fn remove_user<'a>(&'a self, actor: &'a Actor, id: &'a str) -> Registered<'a, ()> {
        Box::pin(self.delete_user(actor, id))
    }
    fn keys(&self, filter: Filter) -> Registered<'_, Vec<KeyRecord>> {
        Box::pin(async move {
            let mut keys = self.list_keys(filter).await?;
            self.see_keys(&mut keys).await?;
            Ok(keys)
        })
    }
    fn key<'a>(&'a self, id: &'a str) -> Registered<'a, KeyRecord> {
        Box::pin(async move {
            let mut key = self.show_key(id).await?;
            self.see_keys(slice::from_mut(&mut key)).await?;
            Ok(key)
        })
    }
    fn make_key<'a>(&'a self, actor: &'a Actor, draft: KeyDraft) -> Registered<'a, (KeyRecord, String)> {
        Box::pin(self.insert_key(actor, draft))
    }
    fn change_key<'a>(
        &'a self,
        actor: &'a Actor,
        id: &'a str,
        change: KeyChange,
    ) -> Registered<'a, KeyRecord> {
        Box::pin(async move {
            let mut key = self.update_key(actor, id, change).await?;
            // As of a user.
            let _ = self.see_keys(slice::from_mut(&mut key)).await;
            Ok(key)
        })
    }
    fn tiers(&self) -> Registered<'_, Vec<TierRecord>> {
        Box::pin(self.list_tiers())
    }
    fn put_tier<'a>(&'a self, actor: &'a Actor, tier: TierRecord) -> Registered<'a, TierRecord> {
        Box::pin(self.write_tier(actor, tier))
    }
    fn remove_tier<'a>(&'a self, actor: &'a Actor, name: &'a str) -> Registered<'a, ()> {
        Box::pin(self.delete_tier(actor, name))
    }
}

/// The record of a change: of what, by whom, from what to what.
pub(super) struct Recorded<'r, T> {
    pub(super) actor: &'r Actor,
    pub(super) action: &'static str,
    pub(super) target: &'r str,
    pub(super) before: Option<&'r T>,
    pub(super) after: Option<&'r T>,
    pub(super) reason: Option<String>,
}

impl IdentityStore {
    /// Records a change in the transaction that makes it.
    pub(super) async fn record<T: Serialize + Sync>(
        &self,
        connection: &mut PgConnection,
        recorded: Recorded<'_, T>,
    ) -> Result<(), sqlx::Error> {
        let json = |value: Option<&T>| value.and_then(|value| serde_json::to_value(value).ok());
        let Recorded { actor, action, target, before, after, reason } = recorded;
        let change = Change {
            actor: actor.clone(),
            action,
            target: target.to_owned(),
            before: json(before),
            after: json(after),
            reason,
        };
        self.insert_change(connection, &change).await?;
        log(&change);
        Ok(())
    }
}

/// Somebody's own limits as they are kept.
pub(super) fn overrides_json(limits: &[UserLimit]) -> serde_json::Value {
    let own = |own: &UserLimit| {
        let value = serde_json::json!({ "limit": own.permits, "burst": own.burst });
        (own.rule.clone(), value)
    };
    serde_json::Value::Object(limits.iter().map(own).collect())
}

/// Returns what a failure means to an operator.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn refused(failure: Failure) -> RegisterError {
    let sentence = failure.to_string();
    if let Failure::Refused { constraint, .. } = &failure {
        return match constraint.as_deref() {
            Some("users_tier_fkey" | "api_keys_tier_fkey") => RegisterError::no_tier(),
            Some("api_keys_owner_fkey") => RegisterError::Refused(
                "user",
                "there is no such user: make it with `tidegate users set`".to_owned(),
            ),
            Some("users_block_ends_after_it_begins") => {
                RegisterError::Refused("until", "the block would end before it begins".to_owned())
            }
            _ => RegisterError::Refused("body", sentence),
        };
    }
    if failure.passes() { RegisterError::Away(sentence) } else { RegisterError::Failed(sentence) }
}
