//! Lookups for decisions: many names in one question.

use std::sync::Arc;

use super::IdentityStore;
use super::rows::{KeyRow, UserRow};
use crate::database::postgres::Failure;
use crate::engine::identity::{Fact, IdentityName, Kind, Source, Unreachable};
use crate::engine::port::Later;

impl Source for IdentityStore {
    fn load<'a>(
        &'a self,
        names: &'a [IdentityName],
    ) -> Later<'a, Result<Vec<(IdentityName, Fact)>, Unreachable>> {
        Box::pin(async move {
            let of = |kind| -> Vec<String> {
                let mine = names.iter().filter(|name| name.kind == kind);
                mine.map(|name| name.id.to_string()).collect()
            };
            let mut facts = Vec::with_capacity(names.len());
            let users = self.users_of(of(Kind::User)).await.map_err(unreachable)?;
            facts.extend(users.into_iter().map(|user| {
                let user = user.fact();
                let name = IdentityName { kind: Kind::User, id: user.id.as_str().into() };
                (name, Fact::User(Some(Arc::new(user))))
            }));
            let keys = self.keys_of(of(Kind::Key)).await.map_err(unreachable)?;
            facts.extend(keys.into_iter().filter_map(KeyRow::fact).map(|key| {
                let name = IdentityName { kind: Kind::Key, id: key.id.as_str().into() };
                (name, Fact::Key(Some(Arc::new(key))))
            }));
            Ok(facts)
        })
    }
}

impl IdentityStore {
    async fn users_of(&self, mut ids: Vec<String>) -> Result<Vec<UserRow>, Failure> {
        // PostgreSQL has no text with NUL in it, so neither has it such a user.
        ids.retain(|id| !id.contains('\0'));
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query_as(
            "SELECT id, tier, overrides, blocked_at, blocked_reason, blocked_until, created_at, updated_at
             FROM users WHERE id = ANY($1)",
        );
        self.database.within(rows.bind(ids).fetch_all(self.database.pool())).await
    }

    async fn keys_of(&self, ids: Vec<String>) -> Result<Vec<KeyRow>, Failure> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query_as(
            "SELECT id, hash, salt, owner, tier, overrides, active, note, expires_at, created_at, created_by,
                    revoked_at, revoked_by
             FROM api_keys WHERE id = ANY($1)",
        );
        self.database.within(rows.bind(ids).fetch_all(self.database.pool())).await
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreachable(failure: Failure) -> Unreachable {
    Unreachable(failure.to_string())
}
