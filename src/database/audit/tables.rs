//! The tables of sums, by minute, hour and day, and those of API keys: how sums are added to them.

use sqlx::PgConnection;

use super::deliver_error::read;
use super::seconds;
use super::sum_columns::{added_counts, array, counts};
use super::totals::add_totals;
use crate::core::audit::usage::{Usage, UsageKey, coarser};
use crate::core::time::Span;
use crate::database::postgres::{Database, Failure};

/// Most sums in one statement.
const STATEMENT_SUMS_MAX: usize = 20_000;

macro_rules! add_to {
    ($table:literal) => {
        concat!(
            "INSERT INTO ", $table, " AS own (region, bucket, rule, user_id, path, allowed, throttled, denied, blocked, \
                 cost, latency) \
             SELECT $1, to_timestamp(second), rule, user_id, path, allowed, throttled, denied, blocked, cost, \
                 latency::bigint[] \
             FROM unnest($2::double precision[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], \
                 $8::bigint[], $9::bigint[], $10::bigint[], $11::text[]) \
                 AS fresh (second, rule, user_id, path, allowed, throttled, denied, blocked, cost, latency) \
             ON CONFLICT (bucket, region, rule, user_id, path) DO UPDATE SET ", added_counts!(), ", \
                 latency = tidegate_join_counts(own.latency, excluded.latency)"
        )
    };
}

/// Sums of days go in one: the database keeps `usage_denied` by them, whose rows must come after all of
/// theirs.
const DAYS: &str = add_to!("usage_day");

/// The three tables of sums, and how long a step of each is.
const TABLES: [(&str, Span); 3] = [
    (add_to!("usage_minute"), Span::from_secs(60)),
    (add_to!("usage_hour"), Span::from_secs(3_600)),
    (DAYS, Span::from_secs(86_400)),
];

/// Sums of API keys by day, without latencies.
const ADD_KEYS: &str = concat!(
    "INSERT INTO usage_key AS own (region, bucket, rule, key_id, allowed, throttled, denied, blocked, cost) \
     SELECT $1, to_timestamp(second), rule, key_id, allowed, throttled, denied, blocked, cost \
     FROM unnest($2::double precision[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], \
         $8::bigint[], $9::bigint[]) \
         AS fresh (second, rule, key_id, allowed, throttled, denied, blocked, cost) \
     ON CONFLICT (bucket, region, rule, key_id) DO UPDATE SET ",
    added_counts!()
);

/// Adds sorted sums of minutes to all three, and to the totals of everything; those of keys to theirs.
pub(super) async fn add_sums(
    database: &Database,
    connection: &mut PgConnection,
    region: &str,
    sums: Vec<(UsageKey, Usage)>,
) -> Result<(), Failure> {
    let (of_keys, minutes): (Vec<_>, Vec<_>) = sums.into_iter().partition(|(key, _)| key.is_of_key());
    for (statement, step) in TABLES {
        let coarse = if step == Span::from_secs(60) { None } else { Some(coarser(&minutes, step)) };
        let all = coarse.as_deref().unwrap_or(&minutes);
        let most = if statement == DAYS { all.len().max(1) } else { STATEMENT_SUMS_MAX };
        for some in all.chunks(most) {
            add_some(database, connection, statement, region, some).await?;
        }
    }
    read(database, add_totals(connection, region, &minutes).await)?;
    for some in of_keys.chunks(STATEMENT_SUMS_MAX) {
        read(database, add_keys(connection, region, some).await)?;
    }
    Ok(())
}

async fn add_keys(
    connection: &mut PgConnection,
    region: &str,
    sums: &[(UsageKey, Usage)],
) -> Result<(), sqlx::Error> {
    let [allowed, throttled, denied, blocked] = counts(sums.iter().map(|(_, usage)| usage));
    sqlx::query(ADD_KEYS)
        .bind(region)
        .bind(sums.iter().map(|(key, _)| seconds(key.minute)).collect::<Vec<_>>())
        .bind(sums.iter().map(|(key, _)| key.rule.as_str()).collect::<Vec<_>>())
        .bind(sums.iter().map(|(key, _)| key.key.as_str()).collect::<Vec<_>>())
        .bind(allowed)
        .bind(throttled)
        .bind(denied)
        .bind(blocked)
        .bind(sums.iter().map(|(_, usage)| usage.cost).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

async fn add_some(
    database: &Database,
    connection: &mut PgConnection,
    statement: &'static str,
    region: &str,
    sums: &[(UsageKey, Usage)],
) -> Result<(), Failure> {
    let [allowed, throttled, denied, blocked] = counts(sums.iter().map(|(_, usage)| usage));
    let latencies: Vec<String> = sums.iter().map(|(_, usage)| array(&usage.latency)).collect();
    let added = sqlx::query(statement)
        .bind(region)
        .bind(sums.iter().map(|(key, _)| seconds(key.minute)).collect::<Vec<_>>())
        .bind(sums.iter().map(|(key, _)| key.rule.as_str()).collect::<Vec<_>>())
        .bind(sums.iter().map(|(key, _)| key.user.as_str()).collect::<Vec<_>>())
        .bind(sums.iter().map(|(key, _)| key.path.as_str()).collect::<Vec<_>>())
        .bind(allowed)
        .bind(throttled)
        .bind(denied)
        .bind(blocked)
        .bind(sums.iter().map(|(_, usage)| usage.cost).collect::<Vec<_>>())
        .bind(latencies)
        .execute(connection);
    read(database, added.await)?;
    Ok(())
}
