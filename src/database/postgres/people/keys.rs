//! API keys as operators see, make and change them.

use sqlx::PgConnection;

use super::IdentityStore;
use super::register::{Recorded, overrides_json, refused};
use super::rows::{KeyRow, date, limits, moment};
use crate::engine::admin::Actor;
use crate::engine::identity::register::{Filter, KeyChange, KeyDraft, KeyRecord, PAGE_MAX, RegisterError};
use crate::engine::identity::secret::new_key;

impl KeyRow {
    fn record(self) -> KeyRecord {
        KeyRecord {
            overrides: limits(&self.overrides),
            id: self.id,
            user: self.owner,
            tier: self.tier,
            active: self.active,
            note: self.note,
            expires_at: self.expires_at.map(moment),
            created_at: Some(moment(self.created_at)),
            created_by: Some(self.created_by),
            revoked_at: self.revoked_at.map(moment),
            revoked_by: self.revoked_by,
            // Beside the row, and no part of what a change is recorded as.
            last_seen_at: None,
        }
    }
}

impl IdentityStore {
    pub(super) async fn list_keys(&self, filter: Filter) -> Result<Vec<KeyRecord>, RegisterError> {
        let rows = sqlx::query_as::<_, KeyRow>(
            "SELECT id, hash, salt, owner, tier, overrides, active, note, expires_at, created_at, created_by,
                    revoked_at, revoked_by
             FROM api_keys
             WHERE ($1::text IS NULL OR id > $1) AND ($2::text IS NULL OR owner = $2)
               AND ($3::text IS NULL OR tier = $3)
               AND ($4::bool IS NULL OR (revoked_at IS NOT NULL) = $4)
               AND ($5::text IS NULL OR strpos(lower(id), lower($5)) > 0 OR strpos(lower(owner), lower($5)) > 0
                    OR strpos(lower(note), lower($5)) > 0)
             ORDER BY id LIMIT $6",
        )
        .bind(filter.after)
        .bind(filter.user)
        .bind(filter.tier)
        .bind(filter.revoked)
        .bind(filter.search)
        .bind(i64::from(filter.limit.min(PAGE_MAX)))
        .fetch_all(self.database.pool());
        let rows = self.database.asked(rows).await.map_err(refused)?;
        Ok(rows.into_iter().map(KeyRow::record).collect())
    }

    pub(super) async fn show_key(&self, id: &str) -> Result<KeyRecord, RegisterError> {
        let found = self.database.asked(async {
            let mut connection = self.database.pool().acquire().await?;
            find(&mut connection, id).await
        });
        found.await.map_err(refused)?.ok_or_else(|| nobody(id))
    }

    pub(super) async fn insert_key(
        &self,
        actor: &Actor,
        draft: KeyDraft,
    ) -> Result<(KeyRecord, String), RegisterError> {
        let new = new_key().map_err(|error| RegisterError::Failed(error.to_string()))?;
        let made = self.database.asked(async {
            let mut transaction = self.database.pool().begin().await?;
            let connection: &mut PgConnection = &mut transaction;
            sqlx::query(
                "INSERT INTO api_keys (id, hash, salt, owner, tier, overrides, note, expires_at, created_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            )
            .bind(&new.id)
            .bind(&new.hash[..])
            .bind(&new.salt[..])
            .bind(&draft.user)
            .bind(&draft.tier)
            .bind(overrides_json(&draft.overrides))
            .bind(&draft.note)
            .bind(draft.expires.map(date))
            .bind(&actor.name)
            .execute(&mut *connection)
            .await?;
            let after = find(connection, &new.id).await?;
            let (target, after_made) = (new.id.as_str(), after.as_ref());
            let recorded = Recorded {
                actor,
                action: "key.create",
                target,
                before: None,
                after: after_made,
                reason: None,
            };
            self.record(connection, recorded).await?;
            transaction.commit().await?;
            Ok(after)
        });
        let made = made.await.map_err(refused)?.ok_or_else(|| nobody(&new.id))?;
        Ok((made, new.text))
    }

    pub(super) async fn update_key(
        &self,
        actor: &Actor,
        id: &str,
        change: KeyChange,
    ) -> Result<KeyRecord, RegisterError> {
        let written = self.database.asked(async {
            let mut transaction = self.database.pool().begin().await?;
            let connection: &mut PgConnection = &mut transaction;
            let Some(before) = find(connection, id).await? else { return Ok(None) };
            sqlx::query(
                "UPDATE api_keys SET
                     tier = CASE WHEN $2 THEN $3 ELSE tier END,
                     overrides = coalesce($4, overrides),
                     note = coalesce($5, note),
                     expires_at = CASE WHEN $6 THEN $7::timestamptz ELSE expires_at END,
                     active = CASE WHEN $9 OR revoked_at IS NOT NULL THEN false ELSE coalesce($8, active) END,
                     revoked_at = CASE WHEN $9 THEN coalesce(revoked_at, now()) ELSE revoked_at END,
                     revoked_by = CASE WHEN $9 THEN coalesce(revoked_by, $10) ELSE revoked_by END,
                     updated_at = now()
                 WHERE id = $1",
            )
            .bind(id)
            .bind(change.tier.is_some())
            .bind(change.tier.clone().flatten())
            .bind(change.overrides.as_deref().map(overrides_json))
            .bind(&change.note)
            .bind(change.expires.is_some())
            .bind(change.expires.flatten().map(date))
            .bind(change.active)
            .bind(change.revoke)
            .bind(&actor.name)
            .execute(&mut *connection)
            .await?;
            let after = find(connection, id).await?;
            let recorded = Recorded {
                actor,
                action: change.action,
                target: id,
                before: Some(&before),
                after: after.as_ref(),
                reason: change.reason.clone(),
            };
            self.record(connection, recorded).await?;
            transaction.commit().await?;
            Ok(after)
        });
        written.await.map_err(refused)?.ok_or_else(|| nobody(id))
    }
}

async fn find(connection: &mut PgConnection, id: &str) -> Result<Option<KeyRecord>, sqlx::Error> {
    let row = sqlx::query_as::<_, KeyRow>(
        "SELECT id, hash, salt, owner, tier, overrides, active, note, expires_at, created_at, created_by,
                revoked_at, revoked_by
         FROM api_keys WHERE id = $1",
    );
    Ok(row.bind(id).fetch_optional(connection).await?.map(KeyRow::record))
}

fn nobody(id: &str) -> RegisterError {
    RegisterError::Nobody("API key", id.to_owned())
}
