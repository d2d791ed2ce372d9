//! Everything that was decided in a region, by minute, hour and day: what "decisions over time" is read from.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::seconds;
use super::sum_columns::{added_counts, array, counts};
use crate::core::audit::usage::{Usage, UsageKey};
use crate::core::time::{Span, Timestamp};

const STEPS: [(&str, Span); 3] =
    [("minute", Span::from_secs(60)), ("hour", Span::from_secs(3_600)), ("day", Span::from_secs(86_400))];

const ADD: &str = concat!(
    "INSERT INTO usage_total AS own (region, step, bucket, allowed, throttled, denied, blocked, cost, latency) \
     SELECT $1, step, to_timestamp(second), allowed, throttled, denied, blocked, cost, latency::bigint[] \
     FROM unnest($2::text[], $3::double precision[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], \
         $8::bigint[], $9::text[]) \
         AS fresh (step, second, allowed, throttled, denied, blocked, cost, latency) \
     ON CONFLICT (step, bucket, region) DO UPDATE SET ",
    added_counts!(),
    ", latency = tidegate_join_counts(own.latency, excluded.latency)"
);

/// Adds the rules' totals of these minutes to the totals of everything.
pub(super) async fn add_totals(
    connection: &mut PgConnection,
    region: &str,
    minutes: &[(UsageKey, Usage)],
) -> Result<(), sqlx::Error> {
    let mut totals: BTreeMap<(&str, Timestamp), Usage> = BTreeMap::new();
    for (key, usage) in minutes.iter().filter(|(key, _)| key.is_total()) {
        for (name, step) in STEPS {
            let bucket = Timestamp::window_start(key.minute.window_index(step), step);
            totals.entry((name, bucket)).or_default().merge(usage);
        }
    }
    let [allowed, throttled, denied, blocked] = counts(totals.values());
    sqlx::query(ADD)
        .bind(region)
        .bind(totals.keys().map(|(step, _)| *step).collect::<Vec<_>>())
        .bind(totals.keys().map(|(_, bucket)| seconds(*bucket)).collect::<Vec<_>>())
        .bind(allowed)
        .bind(throttled)
        .bind(denied)
        .bind(blocked)
        .bind(totals.values().map(|total| total.cost).collect::<Vec<_>>())
        .bind(totals.values().map(|total| array(&total.latency)).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}
