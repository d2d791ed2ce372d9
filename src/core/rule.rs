//! A rule as its operator writes it, already checked: the input of [`super::ruleset`].
//!
//! The texts of `rules.toml`, the API and the database are wire types elsewhere; they become these by a
//! checked conversion, so that everything here may be trusted.

use std::sync::Arc;

use super::algorithm::Algorithm;
use super::answer::AnswerOptions;
use super::calendar::{Calendar, Windows};
use super::penalty::PenaltyTerms;
use super::price::PriceTable;
use super::request::ReportedCost;
use super::reservation_terms::ReservationTerms;
use super::time::Span;

/// A rule's domain where it names none.
pub const DOMAIN_DEFAULT: &str = "default";
/// The most that one bucket may owe.
pub const DEBT_MAX: u32 = ReportedCost::COUNTED_BEYOND - 1;
/// A rule's priority where it names none.
pub const PRIORITY_DEFAULT: i32 = 100;

/// The treatment of a request that a rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Denied when over the limit.
    Reject,
    /// Admitted with the delay that keeps the rate, up to the rule's `max_delay`; denied beyond it.
    Throttle,
    /// Counted and reported, never denied.
    LogOnly,
    /// Passes without being counted. In a group it decides that group; without one it exempts from every
    /// counting rule.
    Allow,
    /// Always denied. Wins over `allow` unless that decides the same group before it.
    Block,
}

impl Action {
    /// True if a rule with this action has buckets and a limit.
    #[must_use]
    pub const fn counts(self) -> bool {
        matches!(self, Self::Reject | Self::Throttle | Self::LogOnly)
    }
}

/// Modes in which a worldwide limit is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Approximately: regions tell each other what they admitted.
    Gossip,
    /// By fixed shares, without communication.
    Split,
    /// Exactly: rights that move between regions.
    Escrow,
}

/// The policy of a `gossip` rule while a region is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPartition {
    /// Falls back to the configured shares.
    #[default]
    Share,
    /// Keeps the shares that demand had when contact was lost.
    Freeze,
    /// Keeps counting the silent region's last known demand.
    LastKnown,
    /// Counts the silent region as if it admitted nothing more.
    Ignore,
    /// Admits nothing.
    Deny,
}

/// The behaviour of a rule while its store cannot answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// This daemon enforces its share from memory.
    #[default]
    Local,
    /// Everything passes.
    Open,
    /// Nothing passes.
    Closed,
}

/// The calls that a rule charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Charging {
    /// Calls that it admits.
    #[default]
    Admitted,
    /// All, in full and whatever is left: the cost of a response is known only when it has been sent.
    Always,
}

/// The fate of a report's permits beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Debt {
    /// They are owed.
    Carry {
        /// The most that one bucket owes; `None`: one whole limit.
        max: Option<u32>,
    },
    /// They are forgotten.
    Forgive,
    /// They are counted in their window, and forgotten when it ends (`fixed_window`). A check of nothing
    /// passes until more is counted than the limit.
    Window,
}

/// The worldwide side of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// The mode in which the limit is held.
    pub mode: Mode,
    /// Weight by region, each at least 1 in sum; empty means equal over the configured regions.
    pub shares: Vec<(String, u32)>,
    /// Least share by region, in percent of the limit; at most 100 in sum (`split`).
    pub minimums: Vec<(String, u32)>,
    /// Behaviour of the rule while a region is cut off.
    pub on_partition: OnPartition,
    /// Time that a request that finds its region dry waits for rights of another; zero for not at all
    /// (`escrow`).
    pub wait: Span,
}

impl Global {
    /// A limit that is shared equally over the configured regions.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            shares: Vec::new(),
            minimums: Vec::new(),
            on_partition: OnPartition::Share,
            wait: Span::ZERO,
        }
    }
}

/// One condition on one attribute. All conditions of a rule must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Name of the attribute whose value is compared.
    pub attribute: String,
    /// Any of these may match; never empty.
    pub any_of: Vec<Pattern>,
}

/// The pattern that a value is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// The same text.
    Exact(String),
    /// A text with `*` for any run of characters, also an empty one; `"*"` alone means present.
    Glob(String),
    /// A network, on attribute `ip` only.
    Network(ipnet::IpNet),
}

/// A rule as written, checked on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Unique in the set; 1 to 1,024 bytes.
    pub name: String,
    /// Namespace of the gateway; requests of other domains never match the rule.
    pub domain: String,
    /// Conditions; empty matches everything in the domain.
    pub conditions: Vec<Condition>,
    /// One bucket per value of these attributes, in this order; empty: one bucket in all.
    pub per: Vec<String>,
    /// Algorithm by which the rule counts. Not read for [`Action::Allow`] and [`Action::Block`].
    pub algorithm: Algorithm,
    /// Permits per window; of `concurrency` places that may be held at once.
    pub limit: u32,
    /// The window; of `concurrency` the hold: how long a place is kept without renewing. For a calendar, the
    /// length of its longest window.
    pub window: Span,
    /// Calendar of the windows, if they are not all of one length.
    pub calendar: Option<&'static Calendar>,
    /// Capacity of bucket algorithms; `limit` unless written.
    pub burst: u32,
    /// In one group the first matching rule by priority decides; `None`: a group of its own.
    pub group: Option<String>,
    /// Rules with a lower number come first; ties are decided by name.
    pub priority: i32,
    /// Treatment of a request that the rule matches.
    pub action: Action,
    /// Longest delay of `throttle`; a request that would wait longer is denied.
    pub max_delay: Span,
    /// HTTP status of a denial; 429, or 403 for `block`, unless written.
    pub status: u16,
    /// Text that a denial shows its client; `None`: none of the rule's own.
    pub message: Option<String>,
    /// Behaviour while the store cannot answer; `None`: as the store's configuration says.
    pub on_failure: Option<OnFailure>,
    /// The request must carry exactly the attributes that this rule names in `match` and `per`.
    pub exact: bool,
    /// A disabled rule is kept and shown but never matches.
    pub enabled: bool,
    /// `None`: each region enforces the limit on its own.
    pub global: Option<Global>,
    /// In Redis, into how many sub-keys each key is split, so that several servers bear it; 1: not at all.
    pub split_keys: u32,
    /// Calls that it charges: all, or only those that it admits.
    pub charge: Charging,
    /// Fate of a report's permits beyond the limit.
    pub debt: Debt,
    /// Terms of reservations: their estimate, and the fate of those that lapse.
    pub reservations: ReservationTerms,
    /// Additions to the rule's answers; `None`: there are none.
    pub answer: Option<Arc<AnswerOptions>>,
    /// Worth of a request's cost; `None`: one permit for one unit.
    pub price: Option<Arc<PriceTable>>,
    /// Penalty of a client that it denies too often; `None`: there is none.
    pub penalty: Option<Arc<PenaltyTerms>>,
    /// From how many percent of the limit on a bucket is warned of.
    pub warn_at: Option<u8>,
}

impl Rule {
    /// A rule that counts everything of the default domain in one bucket and refuses what is above `limit`
    /// permits a `window`. All else is as where a rules file leaves it out.
    #[must_use]
    pub fn new(name: impl Into<String>, algorithm: Algorithm, limit: u32, window: Span) -> Self {
        Self {
            name: name.into(),
            domain: DOMAIN_DEFAULT.to_owned(),
            conditions: Vec::new(),
            per: Vec::new(),
            algorithm,
            limit,
            window,
            calendar: None,
            burst: limit,
            group: None,
            priority: PRIORITY_DEFAULT,
            action: Action::Reject,
            max_delay: Span::ZERO,
            status: 429,
            message: None,
            on_failure: None,
            exact: false,
            enabled: true,
            global: None,
            split_keys: 1,
            charge: Charging::Admitted,
            debt: Debt::Carry { max: None },
            reservations: ReservationTerms::default(),
            answer: None,
            price: None,
            penalty: None,
            warn_at: None,
        }
    }

    /// The windows of its buckets.
    #[must_use]
    pub const fn windows(&self) -> Windows {
        Windows::new(self.window, self.calendar)
    }

    /// True if it denies nobody, but names something to use instead.
    #[must_use]
    pub fn names_another(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.use_instead.is_some())
    }

    /// The most that a bucket owes under `limit` permits, where `whole` is what the rule's own limit is in
    /// all regions: a region that is held to a part of the limit owes the same part.
    #[must_use]
    pub fn debt_max(&self, limit: u32, whole: u32) -> u32 {
        match self.debt {
            Debt::Forgive => 0,
            Debt::Window => ReportedCost::COUNTED_BEYOND,
            Debt::Carry { max: None } => limit.min(DEBT_MAX),
            Debt::Carry { max: Some(max) } if limit >= whole => max,
            Debt::Carry { max: Some(max) } => {
                let part = (u64::from(max) * u64::from(limit)).div_ceil(u64::from(whole));
                u32::try_from(part).unwrap_or(max)
            }
        }
    }
}
