//! Rows as they come, and what they mean.

use std::collections::BTreeMap;

use serde::Deserialize;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::types::Json;
use sqlx::{FromRow, Postgres, Row as _};
use time::{OffsetDateTime, PrimitiveDateTime};

use crate::core::identity::{ApiKey, Block, User, UserLimit};
use crate::core::time::Timestamp;

/// `{"rule": {"limit": 500, "burst": 600}}`, as far as it can be read: somebody may have written it by hand.
pub(super) type Overrides = Json<BTreeMap<String, serde_json::Value>>;

/// 2000-01-01, from which PostgreSQL counts, in microseconds since the epoch.
const POSTGRES_EPOCH: i128 = 946_684_800_000_000;

/// An instant of a row that anybody may have written. `infinity`, and what else lies beyond the calendar, is
/// the calendar's end: the database's own type fails there, and the row would never be read.
#[derive(Debug)]
struct Instant(OffsetDateTime);

impl sqlx::Type<Postgres> for Instant {
    fn type_info() -> PgTypeInfo {
        <OffsetDateTime as sqlx::Type<Postgres>>::type_info()
    }
}

impl<'r> sqlx::Decode<'r, Postgres> for Instant {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Text => <OffsetDateTime as sqlx::Decode<Postgres>>::decode(value).map(Self),
            PgValueFormat::Binary => <i64 as sqlx::Decode<Postgres>>::decode(value).map(Self::of),
        }
    }
}

impl Instant {
    /// The instant so many microseconds after [`POSTGRES_EPOCH`].
    fn of(micros: i64) -> Self {
        let end = if micros < 0 { PrimitiveDateTime::MIN } else { PrimitiveDateTime::MAX };
        let nanos = (i128::from(micros) + POSTGRES_EPOCH) * 1_000;
        Self(OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or_else(|_| end.assume_utc()))
    }

    fn read(row: &PgRow, column: &str) -> sqlx::Result<OffsetDateTime> {
        row.try_get::<Self, _>(column).map(|at| at.0)
    }

    fn read_if_any(row: &PgRow, column: &str) -> sqlx::Result<Option<OffsetDateTime>> {
        row.try_get::<Option<Self>, _>(column).map(|at| at.map(|at| at.0))
    }
}

#[derive(Debug)]
pub(super) struct UserRow {
    pub(super) id: String,
    pub(super) tier: Option<String>,
    pub(super) overrides: Overrides,
    pub(super) blocked_at: Option<OffsetDateTime>,
    pub(super) blocked_reason: Option<String>,
    pub(super) blocked_until: Option<OffsetDateTime>,
    pub(super) created_at: OffsetDateTime,
    pub(super) updated_at: OffsetDateTime,
}

impl FromRow<'_, PgRow> for UserRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            tier: row.try_get("tier")?,
            overrides: row.try_get("overrides")?,
            blocked_at: Instant::read_if_any(row, "blocked_at")?,
            blocked_reason: row.try_get("blocked_reason")?,
            blocked_until: Instant::read_if_any(row, "blocked_until")?,
            created_at: Instant::read(row, "created_at")?,
            updated_at: Instant::read(row, "updated_at")?,
        })
    }
}

#[derive(Debug)]
pub(super) struct KeyRow {
    pub(super) id: String,
    pub(super) hash: Vec<u8>,
    pub(super) salt: Option<Vec<u8>>,
    pub(super) owner: Option<String>,
    pub(super) tier: Option<String>,
    pub(super) overrides: Overrides,
    pub(super) active: bool,
    pub(super) note: String,
    pub(super) expires_at: Option<OffsetDateTime>,
    pub(super) created_at: OffsetDateTime,
    pub(super) created_by: String,
    pub(super) revoked_at: Option<OffsetDateTime>,
    pub(super) revoked_by: Option<String>,
}

impl FromRow<'_, PgRow> for KeyRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            hash: row.try_get("hash")?,
            salt: row.try_get("salt")?,
            owner: row.try_get("owner")?,
            tier: row.try_get("tier")?,
            overrides: row.try_get("overrides")?,
            active: row.try_get("active")?,
            note: row.try_get("note")?,
            expires_at: Instant::read_if_any(row, "expires_at")?,
            created_at: Instant::read(row, "created_at")?,
            created_by: row.try_get("created_by")?,
            revoked_at: Instant::read_if_any(row, "revoked_at")?,
            revoked_by: row.try_get("revoked_by")?,
        })
    }
}

/// Microseconds since the epoch; what lies before it is the epoch.
pub(super) fn moment(at: OffsetDateTime) -> Timestamp {
    Timestamp(u64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(0))
}

/// The other way round; what lies beyond the calendar is its end.
pub(super) fn date(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.micros()) * 1_000)
        .unwrap_or_else(|_| PrimitiveDateTime::MAX.assume_utc())
}

/// Returns what can be read of somebody's own limits.
pub(super) fn limits(overrides: &Overrides) -> Vec<UserLimit> {
    #[derive(Deserialize)]
    struct Own {
        limit: u32,
        burst: Option<u32>,
    }
    let limit = |(rule, own): (&String, &serde_json::Value)| {
        let own = Own::deserialize(own).ok()?;
        Some(UserLimit { rule: rule.clone(), permits: own.limit, burst: own.burst.unwrap_or(own.limit) })
    };
    overrides.iter().filter_map(limit).collect()
}

impl UserRow {
    /// Returns what decisions need of it.
    pub(super) fn fact(self) -> User {
        let blocked = self
            .blocked_at
            .map(|_| Block { reason: self.blocked_reason, until: self.blocked_until.map(moment) });
        User { overrides: limits(&self.overrides), id: self.id, tier: self.tier, blocked }
    }
}

impl KeyRow {
    /// Returns what decisions need of it; `None` for a row that no key of ours can match.
    pub(super) fn fact(self) -> Option<ApiKey> {
        Some(ApiKey {
            salt: self.salt?.try_into().ok()?,
            hash: self.hash.try_into().ok()?,
            overrides: limits(&self.overrides),
            id: self.id,
            user: self.owner,
            tier: self.tier,
            active: self.active,
            expires: self.expires_at.map(moment),
            revoked: self.revoked_at.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_limits_are_read_as_far_as_they_can_be() {
        let json = serde_json::json!({
            "a": { "limit": 5 }, "b": { "limit": 6, "burst": 9 }, "c": { "limit": "many" }, "d": 7, "e": { "limit": -1 },
        });
        let read = limits(&serde_json::from_value(json).map(Json).unwrap());
        let read: Vec<_> = read.iter().map(|own| (own.rule.as_str(), own.permits, own.burst)).collect();
        assert_eq!(read, [("a", 5, 5), ("b", 6, 9)]);
    }

    #[test]
    fn moments_and_dates_are_the_same() {
        let now = Timestamp(1_800_000_000_123_456);
        assert_eq!(moment(date(now)), now);
        assert_eq!(moment(OffsetDateTime::UNIX_EPOCH - time::Duration::DAY), Timestamp(0));
        assert_eq!(date(Timestamp(u64::MAX)).year(), 9999);
    }

    #[test]
    fn what_lies_beyond_the_calendar_is_its_end() {
        assert_eq!(Instant::of(0).0.unix_timestamp(), 946_684_800);
        assert_eq!(moment(Instant::of(1_500_000).0), Timestamp(946_684_801_500_000));
        // `infinity` and `-infinity`, as PostgreSQL sends them.
        assert_eq!(Instant::of(i64::MAX).0.year(), 9999);
        assert_eq!(moment(Instant::of(i64::MIN).0), Timestamp(0));
    }
}
