//! Why a call to Redis brought no answer, and what follows from that.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The deadline passed. Whether it was carried out is not known.
    #[error("no answer in time")]
    Timeout,
    /// The connection broke. Whether it was carried out is not known.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// There is no connection, or the breaker is open.
    #[error("not connected")]
    Down,
    /// No node has the slot.
    #[error("no node serves the slot")]
    NoNode,
    /// The slot lives elsewhere.
    #[error("moved to {0}")]
    Moved(String),
    /// This once, ask elsewhere.
    #[error("ask {0}")]
    Ask(String),
    /// A slot is being moved and holds only some of the keys.
    #[error("the slot is being moved")]
    TryAgain,
    /// The script is not loaded.
    #[error("the script is not loaded")]
    NoScript,
    /// The node cannot serve: it loads, is a replica, or its cluster is down.
    #[error("the node does not serve: {0}")]
    NotServing(String),
    /// Redis is at `maxmemory`.
    #[error("Redis has no memory left")]
    Full,
    /// The user may not do that, or the password is wrong.
    #[error("not permitted: {0}")]
    Forbidden(String),
    /// Anything else: it should not happen.
    #[error("unexpected: {0}")]
    Unexpected(String),
}

impl Failure {
    /// The value of label `kind` of `store_errors_total`.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Broken(_) => "connection",
            Self::Down => "breaker_open",
            Self::NoNode | Self::Moved(_) | Self::Ask(_) | Self::TryAgain => "topology",
            Self::NotServing(_) => "not_serving",
            Self::Full => "full",
            Self::Forbidden(_) => "forbidden",
            Self::NoScript | Self::Unexpected(_) => "unexpected",
        }
    }

    /// Every value of the label.
    pub(crate) const KINDS: [&'static str; 8] = [
        "timeout",
        "connection",
        "breaker_open",
        "topology",
        "not_serving",
        "full",
        "forbidden",
        "unexpected",
    ];

    /// Whether it speaks against the node, so that its breaker counts it.
    pub(super) const fn is_the_nodes(&self) -> bool {
        matches!(self, Self::Timeout | Self::Broken(_) | Self::NotServing(_))
    }

    /// Whether an operator wants to know: not a redirect, nor what follows from a trouble that is known.
    pub(super) const fn is_of_interest(&self) -> bool {
        !matches!(
            self,
            Self::Down | Self::NoNode | Self::Moved(_) | Self::Ask(_) | Self::TryAgain | Self::NoScript
        )
    }

    /// Whether the call may have been carried out all the same.
    pub(crate) const fn is_uncertain(&self) -> bool {
        matches!(self, Self::Timeout | Self::Broken(_))
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let node = || error.redirect_node().map(|(address, _)| address.to_owned()).unwrap_or_default();
        match error.kind() {
            ErrorKind::Server(kind) => match kind {
                ServerErrorKind::Moved => Self::Moved(node()),
                ServerErrorKind::Ask => Self::Ask(node()),
                ServerErrorKind::TryAgain => Self::TryAgain,
                ServerErrorKind::NoScript => Self::NoScript,
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly => Self::NotServing(error.to_string()),
                ServerErrorKind::NoPerm => Self::Forbidden(error.to_string()),
                _ if error.to_string().contains("OOM") => Self::Full,
                _ if is_of_rights(&error.to_string()) => Self::Forbidden(error.to_string()),
                _ => Self::Unexpected(error.to_string()),
            },
            ErrorKind::AuthenticationFailed => Self::Forbidden(error.to_string()),
            _ if error.is_timeout() => Self::Timeout,
            ErrorKind::Io => Self::Broken(error.to_string()),
            ErrorKind::Extension => match error.code() {
                Some("OOM") => Self::Full,
                Some("NOAUTH" | "WRONGPASS") => Self::Forbidden(error.to_string()),
                _ if is_of_rights(&error.to_string()) => Self::Forbidden(error.to_string()),
                Some("MISCONF" | "NOREPLICAS" | "BUSY") => Self::NotServing(error.to_string()),
                _ => Self::Unexpected(error.to_string()),
            },
            _ if error.is_unrecoverable_error() => Self::Broken(error.to_string()),
            _ => Self::Unexpected(error.to_string()),
        }
    }
}

/// A script that did what its user may not is told of as a plain error, in words that differ by version.
fn is_of_rights(text: &str) -> bool {
    text.contains("The user executing the script can't") || text.contains("ACL failure in script")
}
