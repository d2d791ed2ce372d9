//! Users as operators see and change them.

use sqlx::PgConnection;

use super::IdentityStore;
use super::register::{Recorded, overrides_json, refused};
use super::rows::{UserRow, date, limits, moment};
use crate::engine::admin::Actor;
use crate::engine::identity::register::{
    BlockRecord, Filter, PAGE_MAX, RegisterError, UserChange, UserRecord,
};

impl UserRow {
    fn record(self) -> UserRecord {
        let (reason, until) = (self.blocked_reason, self.blocked_until.map(moment));
        UserRecord {
            overrides: limits(&self.overrides),
            id: self.id,
            tier: self.tier,
            blocked: self.blocked_at.map(|since| BlockRecord { reason, until, since: Some(moment(since)) }),
            created_at: Some(moment(self.created_at)),
            updated_at: Some(moment(self.updated_at)),
            // Beside the row, and no part of what a change is recorded as.
            last_seen_at: None,
        }
    }
}

impl IdentityStore {
    pub(super) async fn list_users(&self, filter: Filter) -> Result<Vec<UserRecord>, RegisterError> {
        let rows = sqlx::query_as::<_, UserRow>(
            "SELECT id, tier, overrides, blocked_at, blocked_reason, blocked_until, created_at, updated_at
             FROM users
             WHERE ($1::text IS NULL OR id > $1) AND ($2::text IS NULL OR tier = $2)
               AND ($3::bool IS NULL
                    OR (blocked_at IS NOT NULL AND (blocked_until IS NULL OR blocked_until > now())) = $3)
               AND ($4::text IS NULL OR strpos(lower(id), lower($4)) > 0)
             ORDER BY id LIMIT $5",
        )
        .bind(filter.after)
        .bind(filter.tier)
        .bind(filter.blocked)
        .bind(filter.search)
        .bind(i64::from(filter.limit.min(PAGE_MAX)))
        .fetch_all(self.database.pool());
        let rows = self.database.asked(rows).await.map_err(refused)?;
        Ok(rows.into_iter().map(UserRow::record).collect())
    }

    pub(super) async fn show_user(&self, id: &str) -> Result<UserRecord, RegisterError> {
        let found = self.database.asked(async {
            let mut connection = self.database.pool().acquire().await?;
            find(&mut connection, id).await
        });
        found.await.map_err(refused)?.ok_or_else(|| nobody(id))
    }

    pub(super) async fn write_user(
        &self,
        actor: &Actor,
        id: &str,
        change: UserChange,
    ) -> Result<UserRecord, RegisterError> {
        let written = self.database.asked(async {
            let mut transaction = self.database.pool().begin().await?;
            let connection: &mut PgConnection = &mut transaction;
            let before = find(connection, id).await?;
            sqlx::query("INSERT INTO users (id) VALUES ($1) ON CONFLICT DO NOTHING")
                .bind(id)
                .execute(&mut *connection)
                .await?;
            let block = change.blocked.clone().flatten();
            sqlx::query(
                "UPDATE users SET
                     tier = CASE WHEN $2 THEN $3 ELSE tier END,
                     overrides = coalesce($4, overrides),
                     blocked_at = CASE WHEN NOT $5 THEN blocked_at WHEN $6 THEN now() END,
                     blocked_reason = CASE WHEN NOT $5 THEN blocked_reason WHEN $6 THEN $7 END,
                     blocked_until = CASE WHEN NOT $5 THEN blocked_until WHEN $6 THEN $8::timestamptz END,
                     updated_at = now()
                 WHERE id = $1",
            )
            .bind(id)
            .bind(change.tier.is_some())
            .bind(change.tier.clone().flatten())
            .bind(change.overrides.as_deref().map(overrides_json))
            .bind(change.blocked.is_some())
            .bind(block.is_some())
            .bind(block.as_ref().and_then(|block| block.reason.clone()))
            .bind(block.as_ref().and_then(|block| block.until).map(date))
            .execute(&mut *connection)
            .await?;
            let after = find(connection, id).await?;
            let recorded = Recorded {
                actor,
                action: change.action,
                target: id,
                before: before.as_ref(),
                after: after.as_ref(),
                reason: change.reason.clone(),
            };
            self.record(connection, recorded).await?;
            transaction.commit().await?;
            Ok(after)
        });
        written.await.map_err(refused)?.ok_or_else(|| nobody(id))
    }

    pub(super) async fn delete_user(&self, actor: &Actor, id: &str) -> Result<(), RegisterError> {
        let deleted = self.database.asked(async {
            let mut transaction = self.database.pool().begin().await?;
            let connection: &mut PgConnection = &mut transaction;
            let before = find(connection, id).await?;
            if before.is_some() {
                sqlx::query("DELETE FROM users WHERE id = $1").bind(id).execute(&mut *connection).await?;
                let before = before.as_ref();
                let recorded =
                    Recorded { actor, action: "user.remove", target: id, before, after: None, reason: None };
                self.record(connection, recorded).await?;
            }
            transaction.commit().await?;
            Ok(before.is_some())
        });
        if deleted.await.map_err(refused)? { Ok(()) } else { Err(nobody(id)) }
    }
}

async fn find(connection: &mut PgConnection, id: &str) -> Result<Option<UserRecord>, sqlx::Error> {
    let row = sqlx::query_as::<_, UserRow>(
        "SELECT id, tier, overrides, blocked_at, blocked_reason, blocked_until, created_at, updated_at
         FROM users WHERE id = $1",
    );
    Ok(row.bind(id).fetch_optional(connection).await?.map(UserRow::record))
}

fn nobody(id: &str) -> RegisterError {
    RegisterError::Nobody("user", id.to_owned())
}
