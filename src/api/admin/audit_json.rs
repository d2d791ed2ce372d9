//! The JSON of the past: decisions as they are remembered, and sums of them. Field order is the order on the
//! wire.

use serde::Serialize;

use crate::core::written::format_moment;
use crate::engine::history::{Decided, UsageRow};
use crate::engine::status::BucketStatus;

/// `GET /v1/audit`.
#[derive(Debug, Serialize)]
pub(super) struct AuditJson<'a> {
    /// Newest first.
    pub(super) decisions: Vec<DecidedJson<'a>>,
    /// What to give as `after` for those that follow; absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// One decision.
#[derive(Debug, Serialize)]
pub(super) struct DecidedJson<'a> {
    at: String,
    region: &'a str,
    node: &'a str,
    domain: &'a str,
    rule: Option<&'a str>,
    user: Option<&'a str>,
    api_key: Option<&'a str>,
    ip: Option<&'a str>,
    path: Option<&'a str>,
    method: Option<&'a str>,
    outcome: &'a str,
    cost: i64,
    count: Option<i64>,
    limit: Option<i64>,
    status: i64,
    retry_after_ms: Option<i64>,
    latency_us: Option<i64>,
    /// How many decisions it stands for.
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

/// `GET /v1/usage`.
#[derive(Debug, Serialize)]
pub(super) struct UsageJson<'a> {
    pub(super) by: &'static str,
    pub(super) group: &'static str,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) rows: Vec<UsageRowJson<'a>>,
    /// What each rule that counts by user alone leaves the user that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quotas: Option<Vec<QuotaJson<'a>>>,
    /// Whether more rules apply to the user than `quotas` tells.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) quotas_more: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// One sum.
#[derive(Debug, Serialize)]
pub(super) struct UsageRowJson<'a> {
    /// Where the step of time begins, if rows are steps of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<&'a str>,
    allowed: u64,
    denied: u64,
    cost: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<LatencyJson>,
}

#[derive(Debug, Serialize)]
struct LatencyJson {
    p50: u64,
    p95: u64,
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
            path: named("path"),
            region: named("region"),
            allowed: row.allowed,
            denied: row.denied,
            cost: row.cost,
            latency_us: latency,
        }
    }
}

/// What a rule leaves a user now, in the region that answers.
#[derive(Debug, Serialize)]
pub(super) struct QuotaJson<'a> {
    rule: &'a str,
    domain: &'a str,
    limit: u32,
    window_ms: u64,
    used: u64,
    remaining: u64,
    reset_ms: u64,
}

impl<'a> QuotaJson<'a> {
    pub(super) fn new((domain, bucket): &'a (String, BucketStatus)) -> Self {
        Self {
            rule: &bucket.rule,
            domain,
            limit: bucket.limit,
            window_ms: bucket.window.millis_up(),
            used: bucket.used,
            remaining: bucket.remaining,
            reset_ms: bucket.reset.millis_up(),
        }
    }
}
