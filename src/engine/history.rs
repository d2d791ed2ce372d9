//! Questions of operators on the past: single decisions, and sums of them.

use std::sync::Arc;

use crate::core::audit::{Histogram, Outcome};
use crate::core::denial_cause::DenialCause;
use crate::core::time::Timestamp;

use super::port::Later;

/// Most rows of one answer.
pub const ROWS_MAX: u32 = 1_000;

/// The decisions to show, newest first. `None`: any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionsAsked {
    /// Only decisions from this instant on, which is included.
    pub from: Timestamp,
    /// Only decisions before this instant, which is not included.
    pub to: Timestamp,
    /// Only decisions on requests of this user.
    pub user: Option<String>,
    /// Only decisions on requests of this API key, by its public name or its fingerprint.
    pub key: Option<String>,
    /// Only decisions on requests from this address or its network.
    pub address: Option<std::net::IpAddr>,
    /// Only decisions that this rule made.
    pub rule: Option<String>,
    /// Only decisions of daemons of this region.
    pub region: Option<String>,
    /// Only decisions with one of these outcomes; none: with any.
    pub outcomes: Vec<Outcome>,
    /// Only denials for this cause; `None`: for any.
    pub cause: Option<DenialCause>,
    /// Only decisions on the request that its gateway named so.
    pub request_id: Option<String>,
    /// Most rows that one answer shows.
    pub limit: u32,
    /// After the last one of an earlier answer.
    pub after: Option<Cursor>,
}

/// The end of an answer: the moment of its last row, and how many rows of that very moment were shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Instant of the last row that was shown.
    pub at: Timestamp,
    /// Rows of it that were shown.
    pub shown: u32,
}

/// One decision as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in the record")]
pub struct Decided {
    pub at: Timestamp,
    pub region: String,
    pub node: String,
    pub domain: String,
    pub rule: Option<String>,
    pub user: Option<String>,
    pub key: Option<String>,
    pub address: Option<String>,
    pub path: Option<String>,
    pub method: Option<String>,
    pub outcome: String,
    pub cost: i64,
    pub count: Option<i64>,
    pub limit: Option<i64>,
    pub status: i64,
    pub retry_after_ms: Option<i64>,
    pub latency_us: Option<i64>,
    pub weight: i64,
    pub cause: Option<String>,
    pub request_id: Option<String>,
}

/// The length of one step of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOfTime {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day, in UTC.
    Day,
    /// A month, in UTC: the sum of its days.
    Month,
}

impl StepOfTime {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Minute, Self::Hour, Self::Day, Self::Month];

    /// Returns the spelling of the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }
}

/// The thing that each row of an answer is the sum of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// One step of time.
    Time,
    /// One rule.
    Rule,
    /// One user.
    User,
    /// One API key.
    Key,
    /// One path.
    Path,
    /// One region.
    Region,
}

impl Group {
    /// Every one, as the API spells it.
    pub const ALL: [(&'static str, Self); 6] = [
        ("time", Self::Time),
        ("rule", Self::Rule),
        ("user", Self::User),
        ("key", Self::Key),
        ("path", Self::Path),
        ("region", Self::Region),
    ];
}

/// The sums to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageAsked {
    /// Length of the steps into which time is cut.
    pub by: StepOfTime,
    /// From the step that holds this moment.
    pub from: Timestamp,
    /// To the step that begins before this moment.
    pub to: Timestamp,
    /// Meaning of a row: a step of time, a rule, a user, a key, a path or a region.
    pub group: Group,
    /// Only sums of this rule; `None`: of all.
    pub rule: Option<String>,
    /// Only sums of this user. Not together with a path: sums are kept for each of them, not for both.
    pub user: Option<String>,
    /// Only sums of this API key, by its public name or its fingerprint. Neither together with a user or path
    /// nor by less than days.
    pub key: Option<String>,
    /// Only sums of this path; `None`: of all.
    pub path: Option<String>,
    /// Only sums of this region; `None`: of all.
    pub region: Option<String>,
    /// At most so many rows: the latest of time, else those with the most denials.
    pub limit: u32,
}

/// One sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// Begin of the step, if rows are steps of time.
    pub at: Option<Timestamp>,
    /// The rule, user, key, path or region, if rows are those.
    pub name: Option<String>,
    /// Decisions that let pass, those without a record of their own included.
    pub allowed: u64,
    /// Those of `allowed` that passed after a delay.
    pub throttled: u64,
    /// Decisions that denied, those without a record of their own included.
    pub denied: u64,
    /// Those of `denied` that were blocked rather than over a limit.
    pub blocked: u64,
    /// Permits let pass, of all of them.
    pub cost: i64,
    /// Durations of the decisions; not for users, keys and paths.
    pub latency: Option<Histogram>,
}

/// The allowed decisions that have records. The sums have all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// One in so many; 0: none.
    pub allowed_one_in: u32,
    /// And every one in which one of these rules takes part.
    pub exact_rules: Vec<String>,
}

impl Recorded {
    /// The part of the allowed decisions, from 0 to 1.
    #[must_use]
    pub fn allowed_sample(&self) -> f64 {
        if self.allowed_one_in == 0 { 0.0 } else { 1.0 / f64::from(self.allowed_one_in) }
    }
}

/// Reasons why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HistoryError(pub String);

/// The memory of past decisions.
pub trait History: Send + Sync + 'static {
    /// Single decisions, newest first.
    fn decisions<'a>(&'a self, asked: &'a DecisionsAsked) -> Later<'a, Result<Vec<Decided>, HistoryError>>;

    /// Returns which allowed decisions have records.
    fn recorded(&self) -> Arc<Recorded>;

    /// Sums.
    fn usage<'a>(&'a self, asked: &'a UsageAsked) -> Later<'a, Result<Vec<UsageRow>, HistoryError>>;
}
