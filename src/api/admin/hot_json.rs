//! The JSON of the present: who asks most, and why somebody is limited. Field order is the order on the wire.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::audit_json::DecidedJson;
use crate::api::wire::{BucketWorldJson, DecisionJson, PenaltyJson};
use crate::core::denial_cause::DenialCause;
use crate::core::hot::{HotBucket, HotSums};
use crate::core::regions::NodeName;
use crate::core::request::Request;
use crate::core::rule::Mode;
use crate::core::time::{Span, Timestamp};
use crate::core::written::format_moment;
use crate::engine::history::Decided;
use crate::engine::hot::{HotBy, HotRow, HotRuleRow, HotView};
use crate::engine::why::{Why, WhyBucket};

/// The clients that asked most of late, as one daemon counted them. Counts halve every 30 seconds.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Hot"))]
pub(super) struct HotJson<'a> {
    /// The region of the daemon that answers.
    region: &'a str,
    /// Its own name.
    node: &'a str,
    /// The order of rows.
    #[cfg_attr(test, schemars(extend("enum" = HotBy::ALL.map(|(name, _)| name))))]
    by: &'static str,
    /// The time that the counts speak of, halved as they are: a count divided by it is a rate.
    span_ms: u64,
    /// Everything that this daemon decided.
    all: HotSumsJson,
    /// The heaviest buckets.
    buckets: Vec<HotRowJson<'a>>,
    /// The heaviest rules.
    rules: Vec<HotRuleJson<'a>>,
}

/// The counts of late.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "HotSums"))]
pub(super) struct HotSumsJson {
    /// Requests, once for each rule that decided one.
    requests: u64,
    /// Those that were denied.
    denied: u64,
    /// Permits charged.
    cost: u64,
}

impl From<HotSums> for HotSumsJson {
    fn from(HotSums { requests, denied, cost }: HotSums) -> Self {
        Self { requests, denied, cost }
    }
}

/// One bucket that is asked for often.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "HotBucket"))]
pub(super) struct HotRowJson<'a> {
    /// The rule.
    rule: &'a str,
    /// The rule's domain.
    domain: &'a str,
    /// Whose it is: the values of the rule's `per`; empty where they are longer than 512 bytes. Of an API key
    /// of others its fingerprint, of a path nothing of its query.
    identity: BTreeMap<&'a str, &'a str>,
    /// True if the values were too long to be kept.
    #[serde(skip_serializing_if = "is_false")]
    long: bool,
    /// True if denials are only logged.
    shadow: bool,
    /// Requests.
    requests: u64,
    /// Those that were denied.
    denied: u64,
    /// Permits charged.
    cost: u64,
    /// The part of everything that this is, by the order of rows: 0 to 1.
    #[cfg_attr(test, schemars(range(min = 0, max = 1)))]
    share: f64,
    /// Requests that may be missing because they came before the bucket had a place among the counted.
    missed_max: u64,
    /// Since when it has a place, RFC 3339.
    since: String,
    /// The first of its newest run of denials, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_since: Option<String>,
    /// Its newest denial, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_last: Option<String>,
}

/// The decisions of one rule.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "HotRule"))]
pub(super) struct HotRuleJson<'a> {
    /// The rule.
    rule: &'a str,
    /// Its domain.
    domain: &'a str,
    /// True if denials are only logged.
    shadow: bool,
    /// Requests.
    requests: u64,
    /// Those that were denied.
    denied: u64,
    /// Permits charged.
    cost: u64,
    /// The part of everything that this is, by the order of rows: 0 to 1.
    #[cfg_attr(test, schemars(range(min = 0, max = 1)))]
    share: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// A part of a whole, to four digits.
#[expect(clippy::cast_precision_loss, reason = "four digits are told")]
fn part(value: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    ((value.min(whole) as f64 / whole as f64) * 10_000.0).round() / 10_000.0
}

impl<'a> HotJson<'a> {
    pub(super) fn new(view: &'a HotView, by: HotBy, name: &'a NodeName) -> Self {
        let all = by.of(&view.all);
        Self {
            region: &name.region,
            node: &name.node,
            by: by.as_str(),
            span_ms: view.span.millis_up(),
            all: view.all.into(),
            buckets: view
                .buckets
                .iter()
                .map(|row| HotRowJson::new(row, part(by.of(&row.bucket.sums), all)))
                .collect(),
            rules: view.rules.iter().map(|row| HotRuleJson::new(row, part(by.of(&row.sums), all))).collect(),
        }
    }
}

impl<'a> HotRowJson<'a> {
    fn new(row: &'a HotRow, share: f64) -> Self {
        let HotSums { requests, denied, cost } = row.bucket.sums;
        let run = row.bucket.run.as_ref();
        Self {
            rule: &row.rule,
            domain: &row.domain,
            identity: named(&row.identity),
            long: row.bucket.is_long,
            shadow: row.shadow,
            requests,
            denied,
            cost,
            share,
            missed_max: row.bucket.missed_max,
            since: format_moment(row.bucket.since),
            denied_since: run.map(|run| format_moment(run.first)),
            denied_last: run.map(|run| format_moment(run.last)),
        }
    }
}

impl<'a> HotRuleJson<'a> {
    fn new(row: &'a HotRuleRow, share: f64) -> Self {
        let HotSums { requests, denied, cost } = row.sums;
        Self { rule: &row.rule, domain: &row.domain, shadow: row.shadow, requests, denied, cost, share }
    }
}

fn named(identity: &[(String, String)]) -> BTreeMap<&str, &str> {
    identity.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// The reasons for which a client is limited, or that it is not.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Why"))]
pub(super) struct WhyJson<'a> {
    /// The region of the daemon that answers.
    region: &'a str,
    /// Its own name.
    node: &'a str,
    /// When this was looked at, RFC 3339.
    at: String,
    /// True if the request would be denied now, or another bucket of the client denies.
    limited: bool,
    /// The answer as it would be now.
    decision: DecisionJson<'a>,
    /// The buckets that decide it, and others of the same client that were denied lately; at most 20.
    buckets: Vec<WhyBucketJson<'a>>,
    /// The newest denials that the audit log has; absent without one, or where it does not answer at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Vec<DecidedJson<'a>>>,
}

/// One bucket of the client.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "WhyBucket"))]
pub(super) struct WhyBucketJson<'a> {
    /// The rule.
    rule: &'a str,
    /// The rule's domain.
    domain: &'a str,
    /// Whose it is: the values of the rule's `per`.
    identity: BTreeMap<&'a str, &'a str>,
    /// The mode in which regions hold its limit together; absent: each counts for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "String", extend("enum" = crate::api::schema::MODES)))]
    mode: Option<Mode>,
    /// True if denials are only logged.
    shadow: bool,
    /// True if the request would be counted here. False: its denials of late named it.
    matches: bool,
    /// True if it says no now: to the request, or to one permit where the request is not counted here.
    denies: bool,
    /// The thing that its rule names to use instead: its no denies nobody then. Absent: none.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    use_instead: Option<&'a str>,
    /// Permits per window.
    limit: u32,
    /// The window; 0: none, as of `concurrency` rules.
    window_ms: u64,
    /// Permits in use in this region; of a bucket without windows under `gossip` in all of them, as far as
    /// they told.
    used: u64,
    /// Permits left.
    remaining: u64,
    /// Until it is unused again, or its window ends.
    reset_ms: u64,
    /// Until the request could pass: 0 when it may now, null when it never can. Where the request is not
    /// counted here and the bucket denies, as `reset_ms`.
    retry_after_ms: Option<u64>,
    /// Why it denies the request; absent when it does not, and where the request is not counted here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "String", extend("enum" = crate::api::schema::CAUSES)))]
    cause: Option<&'static str>,
    /// True if the store did not answer, so that the daemon tells only what it knows by itself.
    degraded: bool,
    /// The penalty that shuts the client out; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<PenaltyJson>,
    /// Permits by region, as far as they have told each other: this one's, and those of the others.
    used_by: BTreeMap<&'a str, u64>,
    /// The part that the world leaves this region; absent before anything was heard of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    world: Option<BucketWorldJson<'a>>,
    /// The counts that this daemon has of it of late; absent where it has no place among the counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    lately: Option<LatelyJson>,
}

/// The counts of a bucket of late, of one daemon. Counts halve every 30 seconds: they tell how busy the last
/// minute or so was, and are no sums.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Lately"))]
pub(super) struct LatelyJson {
    /// Requests.
    requests: u64,
    /// Those that were denied.
    denied: u64,
    /// Permits charged.
    cost: u64,
    /// Since when it is counted, RFC 3339.
    since: String,
    /// The first of its newest run of denials: they followed each other within its window, or a minute.
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_since: Option<String>,
    /// Its newest denial, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_last: Option<String>,
}

impl LatelyJson {
    fn new(bucket: &HotBucket) -> Self {
        let HotSums { requests, denied, cost } = bucket.sums;
        Self {
            requests,
            denied,
            cost,
            since: format_moment(bucket.since),
            denied_since: bucket.run.map(|run| format_moment(run.first)),
            denied_last: bucket.run.map(|run| format_moment(run.last)),
        }
    }
}

impl<'a> WhyJson<'a> {
    pub(super) fn new(
        request: &'a Request<'_>,
        why: &'a Why,
        records: Option<&'a [Decided]>,
        (name, at): (&'a NodeName, Timestamp),
    ) -> Self {
        let denies = |bucket: &WhyBucket| bucket.denies && !bucket.shadow;
        Self {
            region: &name.region,
            node: &name.node,
            at: format_moment(at),
            limited: !why.decision.allowed || why.buckets.iter().any(denies),
            decision: DecisionJson::new(request, &why.decision, &name.region),
            buckets: why.buckets.iter().map(WhyBucketJson::new).collect(),
            records: records.map(|rows| rows.iter().map(DecidedJson::new).collect()),
        }
    }
}

impl<'a> WhyBucketJson<'a> {
    fn new(bucket: &'a WhyBucket) -> Self {
        let status = &bucket.status;
        Self {
            rule: &status.rule,
            domain: &bucket.domain,
            identity: named(&status.identity),
            mode: status.mode,
            shadow: bucket.shadow,
            matches: bucket.matches,
            denies: bucket.denies,
            use_instead: bucket.use_instead.as_deref(),
            limit: status.limit,
            window_ms: status.window.millis_up(),
            used: status.used,
            remaining: status.remaining,
            reset_ms: status.reset.millis_up(),
            retry_after_ms: bucket.retry.map(Span::millis_up),
            cause: bucket.cause.map(DenialCause::as_str),
            degraded: status.degraded,
            penalty: status.penalty.as_ref().map(PenaltyJson::new),
            used_by: bucket.used_by.iter().map(|(region, used)| (region.as_str(), *used)).collect(),
            world: BucketWorldJson::of(status),
            lately: bucket.hot.as_ref().map(LatelyJson::new),
        }
    }
}
