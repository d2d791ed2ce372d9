//! Rules as the API prints them: reading a printed rule gives the same rule again.

use std::collections::BTreeMap;

use serde::Serialize;

use super::calendar::WEEKDAYS;
use super::penalty::PenaltyDoc;

use crate::core::algorithm::{Algorithm, Counting};
use crate::core::calendar::{Calendar, CalendarName, CalendarPeriod};
use crate::core::price::PriceTable;
use crate::core::reservation_terms::{EstimateTerms, OnLapse};
use crate::core::rule::{Action, Charging, Debt, Global, Mode, OnFailure, OnPartition, Pattern, Rule};
use crate::core::time::Span;
use crate::core::written::format_span;

/// A rule in the shape of `rules.toml`, with every default spelled out. Options that do not apply are left
/// out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of the rule, which documents them")]
pub struct RuleDoc<'r> {
    pub name: &'r str,
    pub domain: &'r str,
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<&'r str>,
    pub action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calendar: Option<CalendarPeriod>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_on: Option<StartsOnDoc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<&'static str>,
    pub status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    pub exact: bool,
    pub enabled: bool,
    #[serde(skip_serializing_if = "is_one")]
    pub split_keys: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge: Option<Charging>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debt: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debt_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_at: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lapse: Option<OnLapse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateDoc<'r>>,
    pub per: &'r [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_type: Option<&'r str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub problem: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partition_key: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tell_cause: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_as: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_deny: Option<OnDenyDoc<'r>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<&'r str, &'r str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_admitted: BTreeMap<&'r str, &'r str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub price: BTreeMap<String, String>,
    #[serde(rename = "match")]
    pub conditions: BTreeMap<&'r str, MatchDoc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global: Option<GlobalDoc<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub penalty: Option<PenaltyDoc<'r>>,
}

/// The condition on one attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MatchDoc {
    /// This text, glob or network.
    One(String),
    /// Any of these.
    AnyOf(Vec<String>),
}

/// The worldwide side of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of the rule, which documents them")]
pub struct GlobalDoc<'r> {
    pub mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_partition: Option<OnPartition>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<&'r str, u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub minimums: BTreeMap<&'r str, u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
}

impl<'r> From<&'r Rule> for RuleDoc<'r> {
    fn from(rule: &'r Rule) -> Self {
        let counts = rule.action.counts();
        let holds = rule.algorithm == Algorithm::Concurrency;
        let buckets = rule.algorithm.counting() == Counting::Level;
        let calendar = rule.calendar.filter(|_| counts && !holds).map(Calendar::name);
        // A limit of zero has a burst of zero, which nobody may write.
        let burst = (counts && buckets && rule.burst > 0).then_some(rule.burst);
        let conditions =
            rule.conditions.iter().map(|one| (one.attribute.as_str(), MatchDoc::of(&one.any_of)));
        let answer = rule.answer.as_deref();
        Self {
            name: &rule.name,
            domain: &rule.domain,
            priority: rule.priority,
            group: rule.group.as_deref(),
            action: rule.action,
            algorithm: counts.then_some(rule.algorithm),
            limit: counts.then_some(rule.limit),
            window: (counts && !holds && calendar.is_none()).then(|| format_span(rule.window)),
            calendar: calendar.map(|calendar| calendar.period),
            time_zone: calendar.map(|calendar| calendar.time_zone.as_str()),
            starts_on: calendar.and_then(StartsOnDoc::of),
            hold: (counts && holds).then(|| format_span(rule.window)),
            burst,
            max_delay: (rule.action == Action::Throttle).then(|| format_span(rule.max_delay)),
            delay: answer.is_some_and(|answer| answer.holds_delay).then_some("hold"),
            status: rule.status,
            message: rule.message.as_deref(),
            on_failure: rule.on_failure,
            exact: rule.exact,
            enabled: rule.enabled,
            split_keys: rule.split_keys,
            charge: Some(rule.charge).filter(|charge| *charge != Charging::default()),
            debt: match rule.debt {
                Debt::Carry { .. } => None,
                Debt::Forgive => Some("forgive"),
                Debt::Window => Some("window"),
            },
            debt_max: match rule.debt {
                Debt::Carry { max } => max,
                Debt::Forgive | Debt::Window => None,
            },
            warn_at: rule.warn_at,
            on_lapse: Some(rule.reservations.on_lapse).filter(|then| *then != OnLapse::default()),
            estimate: EstimateDoc::of(&rule.reservations.estimate),
            per: &rule.per,
            unit: answer.and_then(|answer| answer.unit.as_deref()),
            message_type: answer.and_then(|answer| answer.message_type.as_deref()),
            problem: answer.is_some_and(|answer| answer.problem),
            partition_key: answer.is_some_and(|answer| answer.partition_key),
            tell_cause: answer.is_some_and(|answer| answer.tells_cause),
            told_as: answer.and_then(|answer| answer.told_as.as_deref()),
            on_deny: answer.and_then(|answer| Some(OnDenyDoc { instead: answer.use_instead.as_deref()? })),
            headers: answer.map(|answer| by_name(&answer.headers)).unwrap_or_default(),
            headers_admitted: answer.map(|answer| by_name(&answer.headers_admitted)).unwrap_or_default(),
            price: rule.price.as_deref().map(shown_prices).unwrap_or_default(),
            conditions: conditions.collect(),
            global: rule.global.as_ref().map(GlobalDoc::from),
            penalty: rule.penalty.as_deref().map(PenaltyDoc::from),
        }
    }
}

/// The answer of a rule in the place of a denial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OnDenyDoc<'r> {
    #[serde(rename = "use")]
    instead: &'r str,
}

/// The terms by which a rule's reservations are estimated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EstimateDoc<'r> {
    percentile: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u32>,
}

impl<'r> EstimateDoc<'r> {
    /// `None`: as where a rule says nothing of it.
    fn of(terms: &'r EstimateTerms) -> Option<Self> {
        let own = *terms != EstimateTerms::default();
        own.then_some(Self { percentile: terms.percentile, by: terms.by.as_deref(), first: terms.first })
    }
}

/// On which day a calendar's periods begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StartsOnDoc {
    /// A day of the week.
    Weekday(&'static str),
    /// A day of the month.
    Day(u8),
}

impl StartsOnDoc {
    /// `None`: on no day of its own, or on the usual one.
    fn of(calendar: &CalendarName) -> Option<Self> {
        let weekday = |day: u8| WEEKDAYS.iter().find(|(_, number)| *number == day);
        match (calendar.period, calendar.starts_on) {
            (_, 0 | 1) => None,
            (CalendarPeriod::Week, day) => weekday(day).map(|(name, _)| Self::Weekday(name)),
            (_, day) => Some(Self::Day(day)),
        }
    }
}

fn by_name(headers: &[(String, String)]) -> BTreeMap<&str, &str> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn shown_prices(prices: &PriceTable) -> BTreeMap<String, String> {
    let by_attribute = prices.by_attribute.iter();
    let shown = by_attribute.map(|one| (format!("{}={}", one.attribute, one.value), one.price.to_string()));
    shown.chain([("default".to_owned(), prices.default.to_string())]).collect()
}

impl MatchDoc {
    fn of(patterns: &[Pattern]) -> Self {
        let text = |pattern: &Pattern| match pattern {
            Pattern::Exact(text) | Pattern::Glob(text) => text.clone(),
            Pattern::Network(network) => network.to_string(),
        };
        match patterns {
            [one] => Self::One(text(one)),
            many => Self::AnyOf(many.iter().map(text).collect()),
        }
    }
}

impl<'r> From<&'r Global> for GlobalDoc<'r> {
    fn from(global: &'r Global) -> Self {
        fn by_region(numbers: &[(String, u32)]) -> BTreeMap<&str, u32> {
            numbers.iter().map(|(region, number)| (region.as_str(), *number)).collect()
        }
        let (shares, minimums) = (by_region(&global.shares), by_region(&global.minimums));
        let wait = (global.wait > Span::ZERO).then(|| format_span(global.wait));
        let on_partition = (global.mode == Mode::Gossip).then_some(global.on_partition);
        Self { mode: global.mode, on_partition, shares, minimums, wait }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_one(parts: &u32) -> bool {
    *parts == 1
}
