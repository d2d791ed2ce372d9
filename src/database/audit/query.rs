//! Questions of operators on the past, as SQL.
//!
//! Statements are planned anew for each question: what is asked for decides which index helps, and a plan
//! that fits all questions fits none.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::seconds;
use crate::core::audit::{Histogram, Outcome, storable};
use crate::core::denial_cause::DenialCause;
use crate::core::time::{Span, Timestamp};
use crate::database::postgres::Database;
use crate::engine::history::{
    Decided, DecisionsAsked, Group, History, HistoryError, Recorded, StepOfTime, UsageAsked, UsageRow,
};
use crate::engine::port::Later;

/// The end of the month that holds the moment before this one. The months are those of UTC, whatever zone the
/// session is in.
macro_rules! month_after {
    ($second:literal) => {
        concat!(
            "(date_trunc('month', (to_timestamp(",
            $second,
            "::double precision) - interval '1 microsecond') AT TIME ZONE 'UTC') + interval '1 month') \
             AT TIME ZONE 'UTC'"
        )
    };
}

/// Sums of one table. Latencies are added up only for the rows that are shown, not for every user or path;
/// and all at once, since adding arrays one by one takes ten times as long.
///
/// Rows of `$table` that have the same time by `$shown` are one; `$until` ends the last step of time.
macro_rules! usage_of {
    ($table:expr, "month") => {
        usage_of!($table, "month", "date_trunc('month', bucket, 'UTC')", month_after!("$2"))
    };
    ($table:expr, $step:literal) => {
        usage_of!($table, $step, "bucket", "to_timestamp($2::double precision)")
    };
    ($table:expr, $step:literal, $shown:expr, $until:expr) => {
        concat!(
            "WITH chosen AS MATERIALIZED ( \
                 SELECT CASE WHEN $4 = 'time' THEN extract(epoch FROM ",
            $shown,
            ")::bigint ELSE 0 END AS second, \
                     CASE $4 WHEN 'rule' THEN rule WHEN 'user' THEN user_id \
                         WHEN 'path' THEN path WHEN 'region' THEN region ELSE '' END AS name, \
                     allowed, throttled, denied, blocked, cost, \
                     CASE WHEN $4 NOT IN ('user', 'path') THEN latency END AS latency \
                 FROM ",
            $table,
            " WHERE bucket >= date_trunc('",
            $step,
            "', to_timestamp($1::double precision), 'UTC') \
                     AND bucket < ",
            $until,
            " \
                     AND CASE $3 WHEN 'user' THEN user_id <> '' WHEN 'path' THEN path <> '' \
                         ELSE user_id = '' AND path = '' END \
                     AND ($5::text IS NULL OR rule = $5) \
                     AND ($6::text IS NULL OR user_id = $6) \
                     AND ($7::text IS NULL OR path = $7) \
                     AND ($8::text IS NULL OR region = $8)), \
             sums AS ( \
                 SELECT second, name, sum(allowed)::bigint AS allowed, sum(throttled)::bigint AS throttled, \
                     sum(denied)::bigint AS denied, sum(blocked)::bigint AS blocked, sum(cost)::bigint AS cost \
                 FROM chosen GROUP BY 1, 2 \
                 ORDER BY second DESC, sum(denied) DESC, sum(allowed) DESC, name LIMIT $9), \
             counts AS ( \
                 SELECT second, name, place, sum(n)::bigint AS n \
                 FROM chosen JOIN sums USING (second, name), tidegate_counts(chosen.latency) GROUP BY 1, 2, 3), \
             latencies AS ( \
                 SELECT second, name, array_agg((place << 48) + n) AS latency FROM counts GROUP BY 1, 2) \
             SELECT CASE WHEN $4 = 'time' THEN second END AS second, \
                 CASE WHEN $4 <> 'time' THEN name END AS name, allowed, throttled, denied, blocked, cost, latency \
             FROM sums LEFT JOIN latencies USING (second, name) \
             ORDER BY sums.second DESC, denied DESC, allowed DESC, sums.name"
        )
    };
}

/// Sums of API keys, which have no latencies: read once and not kept meanwhile, since a year of every key is
/// many rows.
macro_rules! keys_by {
    ("month") => {
        keys_by!("month", "date_trunc('month', bucket, 'UTC')", month_after!("$2"))
    };
    ("day") => {
        keys_by!("day", "bucket", "to_timestamp($2::double precision)")
    };
    ($step:literal, $shown:expr, $until:expr) => {
        concat!(
            "SELECT CASE WHEN $3 = 'time' THEN extract(epoch FROM ",
            $shown,
            ")::bigint END AS second, \
                 CASE $3 WHEN 'rule' THEN rule WHEN 'key' THEN key_id WHEN 'region' THEN region END AS name, \
                 sum(allowed)::bigint AS allowed, sum(throttled)::bigint AS throttled, \
                 sum(denied)::bigint AS denied, sum(blocked)::bigint AS blocked, sum(cost)::bigint AS cost, \
                 NULL::bigint[] AS latency \
             FROM usage_key WHERE bucket >= date_trunc('",
            $step,
            "', to_timestamp($1::double precision), 'UTC') AND bucket < ",
            $until,
            " AND ($4::text IS NULL OR rule = $4) AND ($5::text IS NULL OR key_id = $5) \
                 AND ($6::text IS NULL OR region = $6) \
             GROUP BY 1, 2 ORDER BY 1 DESC, sum(denied) DESC, sum(allowed) DESC, 2 LIMIT $7"
        )
    };
}

/// Everything that was decided, in the shape of a table of sums.
macro_rules! total_of {
    ($kept:literal, $step:tt) => {
        usage_of!(
            concat!(
                "(SELECT bucket, region, '' AS rule, '' AS user_id, '' AS path, allowed, throttled, denied, blocked, \
                     cost, latency \
                 FROM usage_total WHERE step = '",
                $kept,
                "') AS total"
            ),
            $step
        )
    };
}

/// Users by how often a rule denied them, with all that their sums hold, from the sums of those few: the
/// function of the database tells of the steps alone in which they were denied.
macro_rules! most_denied {
    ($table:literal, $kept:literal, $until:expr) => {
        concat!(
            "SELECT NULL::bigint AS second, most.name, parts.allowed, parts.throttled, most.denied, parts.blocked, \
                 parts.cost, NULL::bigint[] AS latency \
             FROM tidegate_most_denied('",
            $kept,
            "', $2, date_trunc($1, to_timestamp($3::double precision), 'UTC'), ",
            $until,
            ", $5, $6) WITH ORDINALITY AS most (name, allowed, denied, cost, place), \
             LATERAL (SELECT coalesce(sum(own.allowed), 0)::bigint AS allowed, \
                     coalesce(sum(own.throttled), 0)::bigint AS throttled, \
                     coalesce(sum(own.blocked), 0)::bigint AS blocked, \
                     coalesce(sum(own.cost), 0)::bigint AS cost \
                 FROM ",
            $table,
            " AS own WHERE own.user_id = most.name AND own.user_id <> '' AND own.rule = $2 AND own.path = '' \
                     AND own.bucket >= date_trunc($1, to_timestamp($3::double precision), 'UTC') \
                     AND own.bucket < ",
            $until,
            " AND ($5::text IS NULL OR own.region = $5)) AS parts \
             ORDER BY most.place"
        )
    };
}

/// The past, as PostgreSQL remembers it.
#[derive(Debug, Clone)]
pub struct Past {
    database: Database,
    recorded: Arc<ArcSwap<Recorded>>,
}

impl Past {
    /// Asks this database, which has these decisions.
    #[must_use]
    pub fn new(database: Database, recorded: Recorded) -> Self {
        Self { database, recorded: Arc::new(ArcSwap::from_pointee(recorded)) }
    }

    /// From now on it has these decisions.
    pub fn set_recorded(&self, recorded: Recorded) {
        self.recorded.store(Arc::new(recorded));
    }

    async fn rows(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<PgRow>, HistoryError> {
        let rows = self.database.asked(query.persistent(false).fetch_all(self.database.pool())).await;
        rows.map_err(|failure| HistoryError(failure.to_string()))
    }

    async fn sums(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<UsageRow>, HistoryError> {
        let rows = self.rows(query).await?;
        let read: Result<Vec<UsageRow>, sqlx::Error> = rows.iter().map(usage_row).collect();
        read.map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &sqlx::Error) -> HistoryError {
        HistoryError(format!(
            "PostgreSQL at {} holds rows that cannot be read: {error}",
            self.database.name()
        ))
    }
}

impl History for Past {
    fn decisions<'a>(&'a self, asked: &'a DecisionsAsked) -> Later<'a, Result<Vec<Decided>, HistoryError>> {
        Box::pin(async move {
            let (to, skip) = match asked.after {
                // The moment itself again, without what was shown of it.
                Some(cursor) => (cursor.at + Span(1), cursor.shown),
                None => (asked.to, 0),
            };
            // One alone is compared as such: an index then gives its rows in their order.
            let only = if let [only] = &*asked.outcomes { Some(*only) } else { None };
            let outcomes: Vec<&str> = asked.outcomes.iter().copied().map(Outcome::as_str).collect();
            let query = sqlx::query(DECISIONS)
                .bind(micros(asked.from))
                .bind(micros(to))
                .bind(stored(&asked.user))
                .bind(stored(&asked.key))
                .bind(asked.address.map(network))
                .bind(stored(&asked.rule))
                .bind(stored(&asked.region))
                .bind(only.map(Outcome::as_str))
                .bind(i64::from(asked.limit))
                .bind(i64::from(skip))
                .bind(asked.cause.map(DenialCause::as_str))
                .bind(stored(&asked.request_id))
                .bind(only.is_none().then_some(outcomes).filter(|outcomes| !outcomes.is_empty()));
            let rows = self.rows(query).await?;
            let read: Result<Vec<Decided>, sqlx::Error> = rows.iter().map(decided).collect();
            read.map_err(|error| self.unreadable(&error))
        })
    }

    fn recorded(&self) -> Arc<Recorded> {
        self.recorded.load_full()
    }

    fn usage<'a>(&'a self, asked: &'a UsageAsked) -> Later<'a, Result<Vec<UsageRow>, HistoryError>> {
        Box::pin(async move {
            let Some(mut listed) = self.most_denied(asked).await? else { return self.added_up(asked).await };
            // An index leads to those who were denied. Where they are few the others are added up: the most
            // admitted follow.
            if listed.len() < usize::try_from(asked.limit).unwrap_or(usize::MAX) {
                let everybody = self.added_up(asked).await?;
                listed.extend(everybody.into_iter().filter(|row| row.denied == 0));
            }
            Ok(listed)
        })
    }
}

impl Past {
    /// Whom a rule denied most, read off an index; `None` where the question is another.
    async fn most_denied(&self, asked: &UsageAsked) -> Result<Option<Vec<UsageRow>>, HistoryError> {
        let (Group::User, None, None, Some(rule)) = (asked.group, &asked.user, &asked.path, &asked.rule)
        else {
            return Ok(None);
        };
        let query = sqlx::query(match asked.by {
            StepOfTime::Minute => return Ok(None),
            StepOfTime::Month => most_denied!("usage_day", "day", month_after!("$4")),
            StepOfTime::Day => most_denied!("usage_day", "day", "to_timestamp($4::double precision)"),
            StepOfTime::Hour => most_denied!("usage_hour", "hour", "to_timestamp($4::double precision)"),
        });
        let query = query
            .bind(asked.by.as_str())
            .bind(storable(rule))
            .bind(seconds(asked.from))
            .bind(seconds(asked.to))
            .bind(stored(&asked.region))
            .bind(i64::from(asked.limit));
        self.sums(query).await.map(Some)
    }

    /// Sums of whatever a row is of, added up.
    async fn added_up(&self, asked: &UsageAsked) -> Result<Vec<UsageRow>, HistoryError> {
        let group = Group::ALL.iter().find(|(_, group)| *group == asked.group).map(|(name, _)| *name);
        let kind = SumsOf::of(asked);
        if kind == SumsOf::Keys {
            let months = asked.by == StepOfTime::Month;
            let query = sqlx::query(if months { keys_by!("month") } else { keys_by!("day") })
                .bind(seconds(asked.from))
                .bind(seconds(asked.to))
                .bind(group)
                .bind(stored(&asked.rule))
                .bind(stored(&asked.key))
                .bind(stored(&asked.region))
                .bind(i64::from(asked.limit));
            return self.sums(query).await;
        }
        let statement = match (kind, asked.by) {
            (SumsOf::Everything, StepOfTime::Minute) => total_of!("minute", "minute"),
            (SumsOf::Everything, StepOfTime::Hour) => total_of!("hour", "hour"),
            (SumsOf::Everything, StepOfTime::Day) => total_of!("day", "day"),
            (SumsOf::Everything, StepOfTime::Month) => total_of!("day", "month"),
            (_, StepOfTime::Minute) => usage_of!("usage_minute", "minute"),
            (_, StepOfTime::Hour) => usage_of!("usage_hour", "hour"),
            (_, StepOfTime::Day) => usage_of!("usage_day", "day"),
            (_, StepOfTime::Month) => usage_of!("usage_day", "month"),
        };
        let query = sqlx::query(statement)
            .bind(seconds(asked.from))
            .bind(seconds(asked.to))
            .bind(kind.column())
            .bind(group)
            .bind(stored(&asked.rule))
            .bind(stored(&asked.user))
            .bind(stored(&asked.path))
            .bind(stored(&asked.region))
            .bind(i64::from(asked.limit));
        self.sums(query).await
    }
}

/// The sums that answer a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SumsOf {
    /// Sums of all rules together.
    Everything,
    Rules,
    Users,
    Paths,
    Keys,
}

impl SumsOf {
    const fn of(asked: &UsageAsked) -> Self {
        match asked.group {
            Group::Key => Self::Keys,
            _ if asked.key.is_some() => Self::Keys,
            Group::User => Self::Users,
            _ if asked.user.is_some() => Self::Users,
            Group::Path => Self::Paths,
            _ if asked.path.is_some() => Self::Paths,
            Group::Time | Group::Region if asked.rule.is_none() => Self::Everything,
            _ => Self::Rules,
        }
    }

    /// The column that its rows fill.
    const fn column(self) -> &'static str {
        match self {
            Self::Users => "user",
            Self::Paths => "path",
            Self::Keys => "key",
            Self::Everything | Self::Rules => "total",
        }
    }
}

/// In the order of the column, which an index has, and not of the number that is made of it under the same
/// name.
const DECISIONS: &str = "SELECT (extract(epoch FROM at) * 1000000)::bigint AS at, region, node, domain, rule, user_id, \
         key_id, host(address) || CASE WHEN masklen(address) < CASE family(address) WHEN 4 THEN 32 ELSE 128 END \
             THEN '/' || masklen(address) ELSE '' END AS address, \
         path, method, outcome, cost, count, permits, status::bigint AS status, retry_after_ms, latency_us, \
         weight::bigint AS weight, cause, request_id \
     FROM audit_log \
     WHERE at >= 'epoch'::timestamptz + $1 * interval '1 microsecond' \
         AND at < 'epoch'::timestamptz + $2 * interval '1 microsecond' \
         AND ($3::text IS NULL OR user_id = $3) \
         AND ($4::text IS NULL OR key_id = $4) \
         AND ($5::inet IS NULL OR address && $5) \
         AND ($6::text IS NULL OR rule = $6) \
         AND ($7::text IS NULL OR region = $7) \
         AND ($8::text IS NULL OR outcome = $8) \
         AND ($11::text IS NULL OR cause = $11) \
         AND ($12::text IS NULL OR request_id = $12) \
         AND ($13::text[] IS NULL OR outcome = ANY ($13)) \
     ORDER BY audit_log.at DESC, region, node, tableoid, ctid \
     LIMIT $9 OFFSET $10";

fn micros(at: Timestamp) -> i64 {
    // The end of what `timestamptz` can say is far beyond; the end of what an interval can, too.
    i64::try_from(at.micros().min(253_402_300_800_000_000)).unwrap_or(0)
}

/// Returns what is looked for, as it would have been stored.
fn stored(text: &Option<String>) -> Option<Cow<'_, str>> {
    text.as_deref().map(storable)
}

fn network(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

fn decided(row: &PgRow) -> Result<Decided, sqlx::Error> {
    let at: i64 = row.try_get("at")?;
    Ok(Decided {
        at: Timestamp(u64::try_from(at).unwrap_or(0)),
        region: row.try_get("region")?,
        node: row.try_get("node")?,
        domain: row.try_get("domain")?,
        rule: row.try_get("rule")?,
        user: row.try_get("user_id")?,
        key: row.try_get("key_id")?,
        address: row.try_get("address")?,
        path: row.try_get("path")?,
        method: row.try_get("method")?,
        outcome: row.try_get("outcome")?,
        cost: row.try_get("cost")?,
        count: row.try_get("count")?,
        limit: row.try_get("permits")?,
        status: row.try_get("status")?,
        retry_after_ms: row.try_get("retry_after_ms")?,
        latency_us: row.try_get("latency_us")?,
        weight: row.try_get("weight")?,
        cause: row.try_get("cause")?,
        request_id: row.try_get("request_id")?,
    })
}

fn usage_row(row: &PgRow) -> Result<UsageRow, sqlx::Error> {
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    let second: Option<i64> = row.try_get("second")?;
    let counts: Option<Vec<i64>> = row.try_get("latency")?;
    Ok(UsageRow {
        at: second.map(|second| Timestamp(unsigned(second) * 1_000_000)),
        name: row.try_get("name")?,
        allowed: unsigned(row.try_get("allowed")?),
        throttled: unsigned(row.try_get("throttled")?),
        denied: unsigned(row.try_get("denied")?),
        blocked: unsigned(row.try_get("blocked")?),
        cost: row.try_get("cost")?,
        latency: counts.map(|counts| Histogram::from_packed(counts.into_iter().map(unsigned))),
    })
}
