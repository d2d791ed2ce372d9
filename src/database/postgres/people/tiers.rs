//! Tiers as operators see and change them.

use sqlx::PgConnection;

use super::IdentityStore;
use super::register::{Recorded, refused};
use crate::database::postgres::Failure;
use crate::engine::admin::Actor;
use crate::engine::identity::register::{HOLDERS_NAMED, RegisterError, TierRecord};

/// Most tiers shown.
const TIERS_MAX: i64 = 10_000;

impl IdentityStore {
    pub(super) async fn list_tiers(&self) -> Result<Vec<TierRecord>, RegisterError> {
        let rows = sqlx::query_as::<_, (String, String)>(
            "SELECT name, description FROM tiers ORDER BY name LIMIT $1",
        );
        let rows = rows.bind(TIERS_MAX).fetch_all(self.database.pool());
        let rows = self.database.asked(rows).await.map_err(refused)?;
        Ok(rows.into_iter().map(|(name, description)| TierRecord { name, description }).collect())
    }

    pub(super) async fn write_tier(
        &self,
        actor: &Actor,
        tier: TierRecord,
    ) -> Result<TierRecord, RegisterError> {
        let written = self.database.asked(async {
            let mut transaction = self.database.pool().begin().await?;
            let connection: &mut PgConnection = &mut transaction;
            let before = find(connection, &tier.name).await?;
            sqlx::query(
                "INSERT INTO tiers (name, description) VALUES ($1, $2)
                 ON CONFLICT (name) DO UPDATE SET description = excluded.description, updated_at = now()",
            )
            .bind(&tier.name)
            .bind(&tier.description)
            .execute(&mut *connection)
            .await?;
            let (target, before, after) = (tier.name.as_str(), before.as_ref(), Some(&tier));
            let recorded = Recorded { actor, action: "tier.set", target, before, after, reason: None };
            self.record(connection, recorded).await?;
            transaction.commit().await
        });
        written.await.map_err(refused)?;
        Ok(tier)
    }

    pub(super) async fn delete_tier(&self, actor: &Actor, name: &str) -> Result<(), RegisterError> {
        let deleted = self.database.asked(async {
            let mut transaction = self.database.pool().begin().await?;
            let connection: &mut PgConnection = &mut transaction;
            let before = find(connection, name).await?;
            if before.is_some() {
                sqlx::query("DELETE FROM tiers WHERE name = $1").bind(name).execute(&mut *connection).await?;
                let before = before.as_ref();
                let recorded = Recorded {
                    actor,
                    action: "tier.remove",
                    target: name,
                    before,
                    after: None,
                    reason: None,
                };
                self.record(connection, recorded).await?;
            }
            transaction.commit().await?;
            Ok(before.is_some())
        });
        match deleted.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(RegisterError::Nobody("tier", name.to_owned())),
            Err(failure) if is_held(&failure) => Err(self.holders(name).await),
            Err(failure) => Err(refused(failure)),
        }
    }

    /// Returns why a tier cannot be removed: who has it.
    async fn holders(&self, name: &str) -> RegisterError {
        let mut ids = [Vec::new(), Vec::new()];
        let tables = [
            "SELECT id FROM users WHERE tier = $1 ORDER BY id LIMIT $2",
            "SELECT id FROM api_keys WHERE tier = $1 ORDER BY id LIMIT $2",
        ];
        for (ids, table) in ids.iter_mut().zip(tables) {
            let most = i64::try_from(HOLDERS_NAMED + 1).unwrap_or(i64::MAX);
            let rows = sqlx::query_scalar(table).bind(name).bind(most).fetch_all(self.database.pool());
            match self.database.asked(rows).await {
                Ok(found) => *ids = found,
                Err(failure) => return refused(failure),
            }
        }
        RegisterError::tier_in_use(name, &ids[0], &ids[1])
    }
}

/// True if a tier could not be removed because somebody has it.
fn is_held(failure: &Failure) -> bool {
    let Failure::Refused { constraint, .. } = failure else { return false };
    matches!(constraint.as_deref(), Some("users_tier_fkey" | "api_keys_tier_fkey"))
}

async fn find(connection: &mut PgConnection, name: &str) -> Result<Option<TierRecord>, sqlx::Error> {
    let row = sqlx::query_as::<_, (String, String)>("SELECT name, description FROM tiers WHERE name = $1");
    let row = row.bind(name).fetch_optional(connection).await?;
    Ok(row.map(|(name, description)| TierRecord { name, description }))
}
