//! The requests of gateways, as they are described to them. `http/question.rs` reads the bytes into types of
//! its own, which borrow from them: who changes a field or a bound there changes it here.

#![expect(dead_code, reason = "the types describe JSON that is read and written elsewhere")]

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::DecisionJson;
use crate::api::schema::{attribute_names, never_null};
use crate::core::request::TEXT_BYTES_MAX;

/// One request, as a gateway asks about it.
#[derive(JsonSchema)]
#[schemars(rename = "Check", deny_unknown_fields, transform = never_null)]
pub(in crate::api) struct CheckJson {
    /// Which rules are asked; `default` unless said.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    domain: Option<String>,
    /// The attributes of the request, by name. A value beyond 1,024 bytes counts by its beginning and a hash.
    #[schemars(transform = attribute_names)]
    attributes: BTreeMap<String, String>,
    /// Permits asked for; 1 unless said. 0 only asks, a negative cost gives permits back.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    cost: Option<i64>,
}

/// A use that happened already.
#[derive(JsonSchema)]
#[schemars(rename = "Report", deny_unknown_fields, transform = never_null)]
pub(in crate::api) struct ReportJson {
    /// Which rules are charged; `default` unless said.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    domain: Option<String>,
    /// The attributes of the request, by name. A value beyond 1,024 bytes counts by its beginning and a hash.
    #[schemars(transform = attribute_names)]
    attributes: BTreeMap<String, String>,
    /// Permits used. All of them are charged, whatever is left; what exceeds the limit is owed. 0 only asks.
    #[schemars(range(min = 0, max = i64::MAX))]
    cost: i64,
    /// Names the report among those of one domain and attributes: sent twice by one id it is charged once.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    id: Option<String>,
}

/// One request that holds places of `concurrency` rules.
#[derive(JsonSchema)]
#[schemars(rename = "Acquisition", deny_unknown_fields, transform = never_null)]
pub(in crate::api) struct AcquisitionJson {
    /// Which rules are asked; `default` unless said.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    domain: Option<String>,
    /// The attributes of the request, by name. A value beyond 1,024 bytes counts by its beginning and a hash.
    #[schemars(transform = attribute_names)]
    attributes: BTreeMap<String, String>,
    /// Places that it holds, and permits that rules without holders charge; 1 unless said. 0 only asks.
    #[schemars(range(min = 0, max = i64::MAX))]
    cost: Option<i64>,
    /// Names the request among those of one domain and attributes: acquiring twice by one id holds once.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    id: Option<String>,
}

/// Permits that are reserved before their use is known.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = never_null)]
pub(in crate::api) struct ReserveBody {
    /// Which rules are asked; `default` unless said.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    domain: Option<String>,
    /// The attributes of the request, by name. A value beyond 1,024 bytes counts by its beginning and a hash.
    #[schemars(transform = attribute_names)]
    attributes: BTreeMap<String, String>,
    /// Permits to reserve; unless said, as many as the rules estimate, which `cost` of the answer says.
    #[schemars(range(min = 1, max = i64::MAX))]
    amount: Option<i64>,
    /// Such as 30s or 5m; 60s unless said, at most the window and ten minutes.
    ttl: Option<String>,
    /// Names the request among those of one domain and attributes: reserving twice by one id reserves once.
    #[schemars(length(min = 1, max = TEXT_BYTES_MAX))]
    id: Option<String>,
}

/// One check, or up to 1,000.
#[derive(JsonSchema)]
#[schemars(rename = "CheckBody", untagged)]
pub(in crate::api) enum CheckBodyJson {
    /// One check.
    One(CheckJson),
    /// Several checks.
    Batch(ChecksJson),
}

/// Several checks, decided in order.
#[derive(JsonSchema)]
#[schemars(rename = "Checks", deny_unknown_fields)]
pub(in crate::api) struct ChecksJson {
    /// The checks.
    #[schemars(length(min = 1, max = 1_000))]
    checks: Vec<CheckJson>,
}

/// One decision, or one for each check.
#[expect(clippy::large_enum_variant, reason = "it describes an answer, and is never made")]
#[derive(JsonSchema)]
#[schemars(rename = "CheckAnswer", untagged)]
pub(in crate::api) enum CheckAnswerJson<'a> {
    /// Of one check.
    One(DecisionJson<'a>),
    /// Of several checks.
    Batch(DecisionsJson<'a>),
}

/// One decision for each check, in their order.
#[derive(JsonSchema)]
#[schemars(rename = "Decisions", deny_unknown_fields)]
pub(in crate::api) struct DecisionsJson<'a> {
    /// The decisions.
    decisions: Vec<DecisionJson<'a>>,
}
