//! Rules and quotas in the shape in which they are written, as the OpenAPI document describes them.
//! `database/document` and the admin routes read them.

#![expect(dead_code, reason = "the types describe JSON that is read and written elsewhere")]

use std::collections::BTreeMap;

use schemars::JsonSchema;

use crate::api::schema::{MODES, answer_headers, never_null};
use crate::core::request::TEXT_BYTES_MAX;

/// A rule in the shape of `rules.toml`; what is left out has its default.
///
/// `database/document` reads and writes it; this type describes it.
#[derive(JsonSchema)]
#[schemars(
    rename = "Rule",
    transform = never_null,
    description = "A rule in the shape of rules.toml; what is left out has its default."
)]
pub(in crate::api) struct RuleBody {
    /// The name, unique among the rules.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    name: String,
    /// The domain whose requests it decides; `default` unless said.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    domain: Option<String>,
    /// The conditions on attributes: a text, a glob or a network, or a list of which one must hold.
    #[serde(rename = "match")]
    matches: Option<BTreeMap<String, MatchBody>>,
    /// The attributes whose values have a bucket each.
    #[schemars(inner(length(min = 1, max = TEXT_BYTES_MAX)), extend("uniqueItems" = true))]
    per: Option<Vec<String>>,
    /// The algorithm by which it counts; `sliding_window` unless said.
    #[schemars(extend("enum" = [
        "fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra", "concurrency"
    ]))]
    algorithm: Option<String>,
    /// Permits per window; places of a `concurrency` rule.
    limit: Option<u32>,
    /// The window, or the time in which an empty bucket refills.
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m|h|d|w)$"), extend("examples" = ["100ms", "1m"]))]
    window: Option<String>,
    /// Windows as people name them, in the place of `window`: each counts from zero.
    #[schemars(extend("enum" = ["hour", "day", "week", "month", "quarter", "year"]))]
    calendar: Option<String>,
    /// The zone whose clock a calendar goes by, by its IANA name; `UTC` unless said.
    #[schemars(length(min = 1, max = 64), extend("examples" = ["Europe/Berlin"]))]
    time_zone: Option<String>,
    /// On which day a calendar's week (`monday` unless said), month, quarter or year (1 unless said) begins.
    starts_on: Option<StartsOnBody>,
    /// The time for which a place of a `concurrency` rule is held without renewing.
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m|h|d|w)$"), extend("examples" = ["30s"]))]
    hold: Option<String>,
    /// Permits at once, of an algorithm with buckets; the limit unless said.
    burst: Option<u32>,
    /// Only the first matching rule of a group decides.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    group: Option<String>,
    /// Rules with a smaller number come first; 100 unless said.
    #[schemars(range(min = i32::MIN, max = i32::MAX))]
    priority: Option<i32>,
    /// The action on a request that it decides; `reject` unless said.
    #[schemars(extend("enum" = ["reject", "throttle", "log_only", "allow", "block"]))]
    action: Option<String>,
    /// The longest delay that `throttle` asks for.
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m|h|d|w)$"), extend("examples" = ["100ms", "1m"]))]
    max_delay: Option<String>,
    /// Headers of a denial, by name.
    #[schemars(transform = answer_headers)]
    headers: Option<BTreeMap<String, String>>,
    /// Headers of the answer to a request that passes.
    #[schemars(transform = answer_headers)]
    headers_admitted: Option<BTreeMap<String, String>>,
    /// The media type of `message`, where that is not plain text. A message of a JSON type must be JSON.
    #[schemars(length(min = 1, max = 128), extend("examples" = ["application/json"]))]
    message_type: Option<String>,
    /// True if the text of a denial is a problem document (RFC 9457), whatever a client accepts.
    problem: Option<bool>,
    /// True if answers name the bucket, by a hash.
    partition_key: Option<bool>,
    /// True if a denial says its cause in the header `X-RateLimit-Cause`.
    tell_cause: Option<bool>,
    /// The name by which Envoy is told of the limit, in place of the rule's; may be empty.
    #[schemars(length(max = TEXT_BYTES_MAX))]
    told_as: Option<String>,
    /// The answer to a request that the limit has no room for, in the place of a denial.
    on_deny: Option<RuleOnDenyBody>,
    /// The unit that the limit counts, where that is not requests.
    #[schemars(regex(pattern = "^[a-z0-9_-]{1,32}$"))]
    unit: Option<String>,
    /// Permits for one unit of cost, by default and by attribute=value.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 256))]
    price: Option<BTreeMap<String, PriceBody>>,
    /// The side that keeps the delay of throttle: the gateway, by x-ratelimit-delay-ms, or the daemon, which
    /// holds its answer back.
    #[schemars(extend("enum" = ["header", "hold"]))]
    delay: Option<String>,
    /// The HTTP status of a denial; 429 unless said, 403 of `block`.
    #[schemars(range(min = 400, max = 599))]
    status: Option<u16>,
    /// The text of a denial.
    #[schemars(length(min = 1, max = 4_096))]
    message: Option<String>,
    /// The policy while its store cannot answer.
    #[schemars(extend("enum" = ["local", "open", "closed"]))]
    on_failure: Option<String>,
    /// Which calls are charged: those that are admitted, or all, in full and whatever is left.
    #[schemars(extend("enum" = ["admitted", "always"]))]
    charge: Option<String>,
    /// The fate of reports beyond the limit: owed, forgotten at once, or forgotten with their window.
    #[schemars(extend("enum" = ["carry", "forgive", "window"]))]
    debt: Option<String>,
    /// The most permits that one bucket owes; the limit unless said.
    debt_max: Option<u32>,
    /// The share of the limit in use, in percent, from which on a bucket is warned of.
    #[schemars(range(min = 1, max = 100))]
    warn_at: Option<u8>,
    /// The penalty of clients that are denied too often.
    penalty: Option<PenaltyBody>,
    /// The fate of permits whose reservation lapses: they are free again, or stay charged.
    #[schemars(extend("enum" = ["release", "charge"]))]
    on_lapse: Option<String>,
    /// The amount of a reservation whose caller names none.
    estimate: Option<RuleEstimateBody>,
    /// True if it matches only requests without attributes that it does not name.
    exact: Option<bool>,
    /// True if it decides at all.
    enabled: Option<bool>,
    /// The way in which all regions hold the limit together; absent: each region enforces it on its own.
    global: Option<RuleGlobalBody>,
    /// Into how many parts each key is split, for keys that are asked very often.
    #[schemars(range(min = 1, max = 64))]
    split_keys: Option<u32>,
}

/// The amount of reservations, by what the last ones used.
#[derive(JsonSchema)]
#[schemars(rename = "RuleEstimate", deny_unknown_fields, transform = never_null)]
pub(in crate::api) struct RuleEstimateBody {
    /// The percentile of the last hundred; 90 unless said.
    #[schemars(range(min = 1, max = 100))]
    percentile: Option<u8>,
    /// The attribute whose values have estimates of their own.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    by: Option<String>,
    /// The amount before ten costs are known; a tenth of the limit unless said.
    #[schemars(range(min = 1, max = u32::MAX))]
    first: Option<u32>,
}

/// The answer in the place of a denial: the request passes, uncharged by this rule, and is told to use
/// something else.
#[derive(JsonSchema)]
#[schemars(rename = "RuleOnDeny", deny_unknown_fields)]
pub(in crate::api) struct RuleOnDenyBody {
    /// The thing to use instead, such as a cheaper model: printable ASCII.
    #[serde(rename = "use")]
    #[schemars(length(min = 1, max = 256))]
    instead: String,
}

/// On which day a period begins.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(in crate::api) enum StartsOnBody {
    /// Of a month, a quarter or a year: the day of its first month, or that month's last one.
    Day(#[schemars(range(min = 1, max = 31))] u8),
    /// Of a week.
    Weekday(
        #[schemars(extend("enum" = [
            "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"
        ]))]
        String,
    ),
}

/// The penalty of clients that are denied too often.
#[derive(JsonSchema)]
#[schemars(rename = "RulePenalty", transform = never_null)]
pub(in crate::api) struct PenaltyBody {
    /// Denials within the window that begin a penalty.
    #[schemars(range(min = 1, max = 1_000_000))]
    threshold: u32,
    /// The time within which denials are counted, and after a penalty the time in which the next one takes
    /// the next multiplier.
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m|h|d|w)$"), extend("examples" = ["10m"]))]
    window: String,
    /// The length of the first penalty before it is multiplied; the rule's window unless said.
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m|h|d|w)$"), extend("examples" = ["1m"]))]
    cool_down: Option<String>,
    /// By what the cool-down is multiplied, penalty by penalty; 1, 2, 4, 8 unless said.
    #[schemars(length(min = 1, max = 16), inner(range(min = 1, max = 1_000_000)))]
    multipliers: Option<Vec<u32>>,
}

/// The condition on one attribute.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(in crate::api) enum MatchBody {
    /// This text, glob or network.
    One(#[schemars(length(min = 1, max = TEXT_BYTES_MAX))] String),
    /// Any of these.
    AnyOf(#[schemars(length(min = 1), inner(length(min = 1, max = TEXT_BYTES_MAX)))] Vec<String>),
}

/// Permits for one unit of cost.
#[derive(JsonSchema)]
#[schemars(rename = "Price", untagged)]
pub(in crate::api) enum PriceBody {
    /// As a number.
    Number(#[schemars(range(min = 0.000_001, max = 1_000_000))] f64),
    /// As a text.
    Text(#[schemars(regex(pattern = "^[0-9]+([.][0-9]{1,6})?$"))] String),
}

/// The way in which all regions hold a limit together.
#[derive(JsonSchema)]
#[schemars(rename = "RuleGlobal", deny_unknown_fields, transform = never_null)]
pub(in crate::api) struct RuleGlobalBody {
    /// The mode in which the limit is held.
    #[schemars(extend("enum" = MODES))]
    mode: Option<String>,
    /// The weight of each region among the others.
    shares: Option<BTreeMap<String, u32>>,
    /// A region's share is never below this part of the limit, in percent.
    #[schemars(extend("additionalProperties" = { "type": "integer", "minimum": 0, "maximum": 100 }))]
    minimums: Option<BTreeMap<String, u8>>,
    /// The policy of a `gossip` rule while a region is cut off.
    #[schemars(extend("enum" = ["share", "freeze", "last_known", "ignore", "deny"]))]
    on_partition: Option<String>,
    /// A duration of at most 5s, such as "200ms".
    wait: Option<String>,
}

/// Every rule that is to be in force.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::api) struct RuleSetBody {
    /// The revision that the change was made for; another one refuses it.
    revision: Option<u64>,
    /// The rules, and no others.
    rules: Vec<RuleBody>,
}

/// Which revision to go back to.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::api) struct RollbackBody {
    /// The revision.
    revision: u64,
}

/// The shares that regions are to have.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = never_null)]
pub(in crate::api) struct QuotasBody {
    /// The revision that the change was made for; another one refuses it.
    revision: Option<u64>,
    /// The weight of each region among the others.
    shares: BTreeMap<String, u32>,
    /// In percent of the limit: no share is below its minimum.
    #[schemars(extend("additionalProperties" = { "type": "integer", "minimum": 0, "maximum": 100 }))]
    minimums: Option<BTreeMap<String, u8>>,
}
