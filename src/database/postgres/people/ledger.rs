//! What operators changed, in `admin_changes`.

use sqlx::PgConnection;

use super::IdentityStore;
use crate::core::time::Timestamp;
use crate::core::written::format_moment;
use crate::engine::admin::{Change, ChangeRecord, ChangesAsked, Ledger};
use crate::engine::port::Later;

/// Id, moment in microseconds, actor, role, source, region, node, action, target, before, after, reason.
type LedgerRow = (
    i64,
    i64,
    String,
    String,
    Option<String>,
    String,
    String,
    String,
    String,
    Option<serde_json::Value>,
    Option<serde_json::Value>,
    Option<String>,
);

impl IdentityStore {
    /// Adds a record, in the transaction that the connection is in.
    pub(super) async fn insert_change(
        &self,
        connection: &mut PgConnection,
        change: &Change,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO admin_changes (actor, role, source, region, node, action, target, before, after, reason)
             VALUES ($1, $2, $3::text::inet, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(&change.actor.name)
        .bind(change.actor.role.name())
        .bind(change.actor.source.map(|address| address.to_string()))
        .bind(&self.region)
        .bind(&self.node)
        .bind(change.action)
        .bind(&change.target)
        .bind(&change.before)
        .bind(&change.after)
        .bind(&change.reason)
        .execute(connection)
        .await?;
        Ok(())
    }

    async fn add_change(&self, change: &Change) -> Result<(), String> {
        let added = self.database.asked(async {
            let mut connection = self.database.pool().acquire().await?;
            self.insert_change(&mut connection, change).await
        });
        added.await.map_err(|failure| failure.to_string())
    }

    async fn list_changes(&self, asked: &ChangesAsked) -> Result<Vec<ChangeRecord>, String> {
        let rows = sqlx::query_as::<_, LedgerRow>(
            "SELECT id, (extract(epoch FROM at) * 1000000)::bigint, actor, role, host(source), region, node, action,
                    target, before, after, reason
             FROM admin_changes
             WHERE ($1::text IS NULL OR target = $1) AND ($2::text IS NULL OR action = $2)
               AND ($3::bigint IS NULL OR id < $3)
             ORDER BY id DESC LIMIT $4",
        )
        .bind(&asked.target)
        .bind(&asked.action)
        .bind(asked.before.map(|id| i64::try_from(id).unwrap_or(i64::MAX)))
        .bind(i64::from(asked.limit))
        .fetch_all(self.database.pool());
        let rows = self.database.asked(rows).await.map_err(|failure| failure.to_string())?;
        Ok(rows.into_iter().map(record_of).collect())
    }
}

fn record_of(row: LedgerRow) -> ChangeRecord {
    let (id, at, actor, role, source, region, node, action, target, before, after, reason) = row;
    ChangeRecord {
        id: u64::try_from(id).unwrap_or(0),
        at: format_moment(Timestamp(u64::try_from(at).unwrap_or(0))),
        actor,
        role,
        source,
        region,
        node,
        action,
        target,
        before,
        after,
        reason,
    }
}

impl Ledger for IdentityStore {
    fn record<'a>(&'a self, change: &'a Change) -> Later<'a, Result<(), String>> {
        Box::pin(self.add_change(change))
    }

    fn changes<'a>(&'a self, asked: &'a ChangesAsked) -> Later<'a, Result<Vec<ChangeRecord>, String>> {
        Box::pin(self.list_changes(asked))
    }
}
