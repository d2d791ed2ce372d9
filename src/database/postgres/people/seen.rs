//! When users and keys were last seen: written down for many at once, and read beside their rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::IdentityStore;
use super::register::refused;
use super::rows::{date, moment};
use crate::database::postgres::Failure;
use crate::engine::identity::Kind;
use crate::engine::identity::register::{KeyRecord, RegisterError, UserRecord};
use crate::engine::identity::sightings::{Sighting, Sightings};

/// Time between two writings.
const EVERY: Duration = Duration::from_secs(5);
/// Most names of one writing: more wait for the next.
const NAMES_MAX: usize = 10_000;
/// Longest time for the last writing, when the daemon stops.
const LAST: Duration = Duration::from_millis(400);

/// In the order of names, so that daemons that write at once do not wait for each other in a circle. A row
/// that another daemon wrote half a minute ago is left as it is.
macro_rules! write_seen {
    ($seen:literal, $own:literal) => {
        concat!(
            "INSERT INTO ", $seen, " AS own (id, at) \
             SELECT fresh.id, fresh.at FROM unnest($1::text[], $2::timestamptz[]) AS fresh (id, at) \
                 JOIN ", $own, " AS known ON known.id = fresh.id ORDER BY fresh.id \
             ON CONFLICT (id) DO UPDATE SET at = excluded.at WHERE own.at < excluded.at - interval '30 seconds'"
        )
    };
}

impl IdentityStore {
    /// Writes down when users and keys were last seen, now and then until `stop`.
    pub async fn write_seen(self: Arc<Self>, sightings: Arc<Sightings>, stop: CancellationToken) {
        let mut failing = false;
        loop {
            let stopped = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = tokio::time::sleep(EVERY) => false,
            };
            if stopped {
                let _ = tokio::time::timeout(LAST, self.write_some(&sightings)).await;
                return;
            }
            match self.write_some(&sightings).await {
                Ok(()) => failing = false,
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!("when users and keys were last seen is not written down: {error}");
                }
                Err(_) => {}
            }
        }
    }

    async fn write_some(&self, sightings: &Sightings) -> Result<(), Failure> {
        let mut taken = sightings.take(NAMES_MAX);
        if taken.is_empty() {
            return Ok(());
        }
        taken.sort_unstable();
        let written = self.write_taken(&taken).await;
        if written.is_err() {
            sightings.give_back(taken);
        }
        written
    }

    async fn write_taken(&self, taken: &[Sighting]) -> Result<(), Failure> {
        for (kind, statement) in [
            (Kind::User, write_seen!("user_seen", "users")),
            (Kind::Key, write_seen!("key_seen", "api_keys")),
        ] {
            // PostgreSQL has no text with NUL in it, so neither has it such a user.
            let own = taken.iter().filter(|(name, _)| name.kind == kind && !name.id.contains('\0'));
            let (ids, moments): (Vec<&str>, Vec<_>) = own.map(|(name, at)| (&*name.id, date(*at))).unzip();
            if !ids.is_empty() {
                let write = sqlx::query(statement).bind(ids).bind(moments).execute(self.database.pool());
                self.database.within(write).await?;
            }
        }
        Ok(())
    }

    /// Fills in when these users were last seen.
    pub(super) async fn see_users(&self, users: &mut [UserRecord]) -> Result<(), RegisterError> {
        let ids = users.iter().map(|user| user.id.clone()).collect();
        let mut seen = self.seen("SELECT id, at FROM user_seen WHERE id = ANY ($1)", ids).await?;
        users.iter_mut().for_each(|user| user.last_seen_at = seen.remove(&user.id).map(moment));
        Ok(())
    }

    /// Fills in when these keys were last seen.
    pub(super) async fn see_keys(&self, keys: &mut [KeyRecord]) -> Result<(), RegisterError> {
        let ids = keys.iter().map(|key| key.id.clone()).collect();
        let mut seen = self.seen("SELECT id, at FROM key_seen WHERE id = ANY ($1)", ids).await?;
        keys.iter_mut().for_each(|key| key.last_seen_at = seen.remove(&key.id).map(moment));
        Ok(())
    }

    async fn seen(
        &self,
        question: &'static str,
        ids: Vec<String>,
    ) -> Result<HashMap<String, time::OffsetDateTime>, RegisterError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = sqlx::query_as::<_, (String, time::OffsetDateTime)>(question).bind(ids);
        let rows = self.database.asked(rows.fetch_all(self.database.pool())).await.map_err(refused)?;
        Ok(rows.into_iter().collect())
    }
}
