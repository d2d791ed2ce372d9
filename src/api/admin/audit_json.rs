//! The JSON of the past: decisions as they are remembered, and sums of them. Field order is the order on the
//! wire.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::wire::used_worldwide;
use crate::core::written::format_moment;
use crate::engine::history::{Decided, UsageRow};
use crate::engine::status::BucketStatus;

/// Single decisions.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Audit"))]
pub(super) struct AuditJson<'a> {
    /// Newest first.
    pub(super) decisions: Vec<DecidedJson<'a>>,
    /// The `after` that gives those that follow; absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// One decision.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Decided"))]
pub(super) struct DecidedJson<'a> {
    /// When, RFC 3339.
    at: String,
    /// The region that decided.
    region: &'a str,
    /// The daemon that decided.
    node: &'a str,
    /// The request's domain.
    domain: &'a str,
    /// The rule that decided; null: none.
    rule: Option<&'a str>,
    /// Whose request it was.
    user: Option<&'a str>,
    /// The API key that it came with, by its public name or its fingerprint.
    api_key: Option<&'a str>,
    /// The client's address.
    ip: Option<&'a str>,
    /// The request's path.
    path: Option<&'a str>,
    /// The request's method.
    method: Option<&'a str>,
    /// `allowed`; `throttled`: it passed after a delay; `denied` by a limit; `blocked` by a rule that blocks,
    /// or since a user is blocked or a key does not hold; `shadow_denied`: it passed, and a rule that only
    /// logs would have denied it; `diverted`: it passed, and was told to use something else, as the rule says
    /// that had nothing left for it; or `committed`: what a reservation used.
    outcome: &'a str,
    /// Why the rule said no; null where it did not, and in rows of versions that did not write it down.
    #[cfg_attr(test, schemars(extend("enum" = crate::api::schema::CAUSES_OR_NULL)))]
    cause: Option<&'a str>,
    /// The name that its gateway gave the request; null: none.
    request_id: Option<&'a str>,
    /// Permits asked for.
    cost: i64,
    /// Permits in use after it.
    count: Option<i64>,
    /// The rule's limit.
    limit: Option<i64>,
    /// The status that the gateway was told.
    status: i64,
    /// Until the request could have passed.
    retry_after_ms: Option<i64>,
    /// The time that the decision took.
    latency_us: Option<i64>,
    /// The number of decisions that it stands for: 1, but for the row of denials beyond `denied_rows_max`,
    /// and samples of earlier versions.
    weight: i64,
}

impl<'a> DecidedJson<'a> {
    pub(super) fn new(row: &'a Decided) -> Self {
        Self {
            at: format_moment(row.at),
            region: &row.region,
            node: &row.node,
            domain: &row.domain,
            rule: row.rule.as_deref(),
            user: row.user.as_deref(),
            api_key: row.key.as_deref(),
            ip: row.address.as_deref(),
            path: row.path.as_deref(),
            method: row.method.as_deref(),
            outcome: &row.outcome,
            cause: row.cause.as_deref(),
            request_id: row.request_id.as_deref(),
            cost: row.cost,
            count: row.count,
            limit: row.limit,
            status: row.status,
            retry_after_ms: row.retry_after_ms,
            latency_us: row.latency_us,
            weight: row.weight,
        }
    }
}

/// Sums of decisions.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Usage"))]
pub(super) struct UsageJson<'a> {
    /// The step of time: `minute`, `hour`, `day` or `month`.
    pub(super) by: &'static str,
    /// The group of which a row is the sum: `time`, `rule`, `user`, `key`, `path` or `region`.
    pub(super) group: &'static str,
    /// From when on, RFC 3339.
    pub(super) from: String,
    /// Until when, RFC 3339.
    pub(super) to: String,
    /// The part of the allowed decisions that `/v1/audit` shows one by one; the sums count all of them.
    /// Absent: this daemon has no database and remembers no decisions, so there are no sums.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allowed_sample: Option<f64>,
    /// Rules of which this daemon records every decision.
    pub(super) exact_rules: &'a [String],
    /// The sums.
    pub(super) rows: Vec<UsageRowJson<'a>>,
    /// The permits that each rule which counts by user or key alone leaves the one that was asked for, from
    /// the buckets: exact. Of a key also those of its user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quotas: Option<Vec<QuotaJson<'a>>>,
    /// True if more rules apply than `quotas` tells.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) quotas_more: bool,
    /// The user whom the key belongs to that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<&'a str>,
    /// Why every request of the user or key is refused now, whatever is left: `user_blocked`, `key_revoked`,
    /// `key_expired` or `key_inactive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<&'static str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// One sum.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "UsageRow"))]
pub(super) struct UsageRowJson<'a> {
    /// The begin of the step of time, if rows are steps of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// Which rule, if rows are rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    /// Which user, if rows are users.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    /// Which API key, if rows are keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// Which path, if rows are paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    /// Which region, if rows are regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<&'a str>,
    /// Decisions that let a request pass.
    allowed: u64,
    /// Those of `allowed` that passed after a delay.
    throttled: u64,
    /// Decisions that refused one.
    denied: u64,
    /// Those of `denied` that were blocked rather than over a limit.
    blocked: u64,
    /// Permits that were charged.
    cost: i64,
    /// The time that decisions took; absent where that was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<LatencyJson>,
}

/// The time that decisions took, in microseconds.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Latency"))]
struct LatencyJson {
    /// Half of them took at most so long.
    p50: u64,
    /// 95 of 100 took at most so long.
    p95: u64,
    /// 99 of 100 took at most so long.
    p99: u64,
}

impl<'a> UsageRowJson<'a> {
    pub(super) fn new(row: &'a UsageRow, group: &str) -> Self {
        let named = |wanted: &str| row.name.as_deref().filter(|_| group == wanted);
        let latency = row.latency.as_ref().and_then(|latency| {
            let [p50, p95, p99] = [500, 950, 990].map(|per_mille| latency.percentile(per_mille));
            Some(LatencyJson { p50: p50?, p95: p95?, p99: p99? })
        });
        Self {
            at: row.at.map(format_moment),
            rule: named("rule"),
            user: named("user"),
            key: named("key"),
            path: named("path"),
            region: named("region"),
            allowed: row.allowed,
            throttled: row.throttled,
            denied: row.denied,
            blocked: row.blocked,
            cost: row.cost,
            latency_us: latency,
        }
    }
}

/// The permits that a rule leaves a user or key now, in the region that answers.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "ClientQuota"))]
pub(super) struct QuotaJson<'a> {
    /// The rule.
    rule: &'a str,
    /// Its domain.
    domain: &'a str,
    /// Whose bucket it is: the values of the rule's `per`.
    identity: BTreeMap<&'a str, &'a str>,
    /// Permits per window.
    limit: u32,
    /// The window; of a calendar the length of the present one, of `concurrency` rules 0: they have none.
    window_ms: u64,
    /// Permits in use, as this region counted them.
    used: u64,
    /// Permits that all regions are known to have in use; absent where the rule is not worldwide. Null:
    /// nobody tells, as under `escrow` and `split`, or nothing was heard yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<u64>"))]
    used_worldwide: Option<Option<u64>>,
    /// Permits left.
    remaining: u64,
    /// Until its bucket is unused again, or its window ends.
    reset_ms: u64,
    /// When that is, RFC 3339; null: it is unused.
    resets_at: Option<String>,
    /// True if the store did not answer, so that the daemon tells only what it knows by itself.
    degraded: bool,
}

impl<'a> QuotaJson<'a> {
    pub(super) fn new((domain, bucket): &'a (String, BucketStatus)) -> Self {
        Self {
            rule: &bucket.rule,
            domain,
            identity: bucket.identity.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            limit: bucket.limit,
            window_ms: bucket.window.millis_up(),
            used: bucket.used,
            used_worldwide: bucket.mode.map(|_| used_worldwide(bucket)),
            remaining: bucket.remaining,
            reset_ms: bucket.reset.millis_up(),
            resets_at: bucket.reset_at.map(format_moment),
            degraded: bucket.degraded,
        }
    }
}
