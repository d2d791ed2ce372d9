//! Events that operators and their programs want to hear of when they happen.

use super::time::Timestamp;

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A bucket is used beyond its rule's `warn_at`.
    Warning,
    /// A client that was denied too often is shut out.
    Penalty,
    /// A `block` rule denied a request.
    Block,
    /// A region is cut off.
    PartitionBegun,
    /// It is heard again.
    PartitionEnded,
    /// A server of the store is not asked any more.
    BreakerOpen,
    /// It is asked again.
    BreakerClosed,
    /// A certificate ends soon, or has ended.
    Certificate,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Warning,
        Self::Penalty,
        Self::Block,
        Self::PartitionBegun,
        Self::PartitionEnded,
        Self::BreakerOpen,
        Self::BreakerClosed,
        Self::Certificate,
    ];

    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Penalty => "penalty",
            Self::Block => "block",
            Self::PartitionBegun => "partition_begun",
            Self::PartitionEnded => "partition_ended",
            Self::BreakerOpen => "breaker_open",
            Self::BreakerClosed => "breaker_closed",
            Self::Certificate => "certificate",
        }
    }
}

/// Something that happened once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Kind of the event, by which receivers and metrics tell events apart.
    pub kind: EventKind,
    /// Instant of the event, by this daemon's clock.
    pub at: Timestamp,
    /// The rule's domain and name, of what a rule did.
    pub rule: Option<(String, String)>,
    /// Names and values of the rule's `per`, as they may be shown.
    pub identity: Vec<(String, String)>,
    /// The region, server or certificate, of what no rule did.
    pub subject: Option<String>,
    /// Numbers that belong to it, by name.
    pub numbers: Vec<(&'static str, u64)>,
    /// A sentence that the log and the receiver show to people.
    pub text: String,
}

impl EventRecord {
    /// An event of no rule.
    #[must_use]
    pub const fn of_subject(kind: EventKind, at: Timestamp, subject: String, text: String) -> Self {
        Self { kind, at, rule: None, identity: Vec::new(), subject: Some(subject), numbers: Vec::new(), text }
    }
}
