//! Rules as the admin routes show them, and what a change of them came to.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

#[cfg(test)]
use super::rule_bodies::RuleBody;
use crate::core::rule::Mode;
use crate::engine::difference::differences;
use crate::engine::rulebook::{Revision, RuleChange};

/// The rules in force, in order of precedence.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "RuleSet", deny_unknown_fields))]
pub(in crate::api) struct RuleSetJson {
    /// The revision of the set.
    pub(in crate::api) revision: u64,
    /// The rules.
    #[cfg_attr(test, schemars(with = "Vec<RuleBody>"))]
    pub(in crate::api) rules: Vec<Value>,
}

/// One rule.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "OneRule", deny_unknown_fields))]
pub(in crate::api) struct OneRuleJson {
    /// The revision of the set.
    pub(in crate::api) revision: u64,
    /// The rule.
    #[cfg_attr(test, schemars(with = "RuleBody"))]
    pub(in crate::api) rule: Value,
}

/// The outcome of a change.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Changed", deny_unknown_fields))]
pub(in crate::api) struct ChangedJson {
    /// The revision that holds it; for a dry run, and where nothing changed, the one that was there.
    pub(in crate::api) revision: u64,
    /// True if nothing was changed, and the caller only asked.
    pub(in crate::api) dry_run: bool,
    /// The changes.
    pub(in crate::api) changes: Vec<RuleChangeJson>,
}

/// One rule, or one region's quota of it, before and after.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "RuleChange", deny_unknown_fields))]
pub(in crate::api) struct RuleChangeJson {
    /// `rule` or `quota`.
    #[cfg_attr(test, schemars(extend("enum" = ["rule", "quota"])))]
    kind: &'static str,
    /// The rule.
    rule: String,
    /// The region, of a quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    /// As it was; null: it was not there.
    #[cfg_attr(test, schemars(with = "Option<serde_json::Map<String, Value>>"))]
    before: Option<Value>,
    /// As it is; null: it is gone.
    #[cfg_attr(test, schemars(with = "Option<serde_json::Map<String, Value>>"))]
    after: Option<Value>,
    /// The fields that differ, a line each, as in `limit: 30 → 31`; none where it is gone.
    differences: Vec<String>,
}

impl From<RuleChange> for RuleChangeJson {
    fn from(RuleChange { kind, rule, region, before, after }: RuleChange) -> Self {
        let (was, is) = (before.as_ref().unwrap_or(&Value::Null), after.as_ref().unwrap_or(&Value::Null));
        let differences = differences(was, is);
        Self { kind, rule, region, before, after, differences }
    }
}

/// Revisions of the rules, newest first.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "History", deny_unknown_fields))]
pub(in crate::api) struct HistoryJson {
    /// The revision in force.
    pub(in crate::api) revision: u64,
    /// The revisions.
    pub(in crate::api) history: Vec<RevisionJson>,
}

/// One revision of the rules.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Revision", deny_unknown_fields))]
pub(in crate::api) struct RevisionJson {
    /// Its number.
    revision: u64,
    /// When, RFC 3339 in UTC.
    at: String,
    /// Who: a token's name, or a role of the database.
    actor: String,
    /// From which address.
    source: Option<String>,
    /// What: `put`, `delete`, `replace`, `rollback`, `quotas`, `sql`, `file`.
    action: String,
    /// Why.
    reason: Option<String>,
    /// How many rules and quotas it changed.
    changes_total: u64,
    /// What it changed; the first of them where they are very many.
    changes: Vec<RuleChangeJson>,
}

impl From<Revision> for RevisionJson {
    fn from(told: Revision) -> Self {
        let Revision { revision, at, actor, source, action, reason, changes_total, changes } = told;
        let changes = changes.into_iter().map(RuleChangeJson::from).collect();
        Self { revision, at, actor, source, action, reason, changes_total, changes }
    }
}

/// The shares of regions in a worldwide rule's limit.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Quotas", deny_unknown_fields))]
pub(in crate::api) struct QuotasJson<'a> {
    /// The revision of the set.
    pub(in crate::api) revision: u64,
    /// The rule.
    pub(in crate::api) rule: &'a str,
    /// The mode in which the limit is held.
    #[cfg_attr(test, schemars(with = "String", extend("enum" = crate::api::schema::MODES)))]
    pub(in crate::api) mode: Mode,
    /// Permits per window, worldwide.
    pub(in crate::api) limit: u32,
    /// The weight of each region among the others.
    pub(in crate::api) shares: BTreeMap<String, u64>,
    /// In percent of the limit: no share is below its minimum.
    pub(in crate::api) minimums: BTreeMap<String, u64>,
    /// The shares in permits.
    pub(in crate::api) permits: BTreeMap<String, u64>,
}
