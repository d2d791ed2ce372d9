//! The reasons why a call to Redis brought no answer, and what follows from each.

/// Reasons why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The deadline passed. The outcome of the call is not known.
    #[error("no answer in time")]
    Timeout,
    /// The connection broke. The outcome of the call is not known.
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
    /// Redis is so near its bound that no new key is written.
    #[error("Redis takes no new keys: it holds as many as its memory, or store.redis.max_keys, allows")]
    Crowded,
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
            Self::Crowded => "crowded",
            Self::Forbidden(_) => "forbidden",
            Self::NoScript | Self::Unexpected(_) => "unexpected",
        }
    }

    /// Every value of the label.
    pub(crate) const KINDS: [&'static str; 9] = [
        "timeout",
        "connection",
        "breaker_open",
        "topology",
        "not_serving",
        "full",
        "crowded",
        "forbidden",
        "unexpected",
    ];

    /// True if it speaks against the node, so that its breaker counts it.
    pub(in crate::store::redis) const fn is_the_nodes(&self) -> bool {
        matches!(self, Self::Timeout | Self::Broken(_) | Self::NotServing(_))
    }

    /// True if an operator wants to know: not a redirect, nor what follows from a trouble that is known.
    pub(in crate::store::redis) const fn is_of_interest(&self) -> bool {
        !matches!(
            self,
            Self::Down | Self::NoNode | Self::Moved(_) | Self::Ask(_) | Self::TryAgain | Self::NoScript
        )
    }

    /// True if the call may have been carried out all the same.
    pub(crate) const fn is_uncertain(&self) -> bool {
        matches!(self, Self::Timeout | Self::Broken(_))
    }
}

impl Failure {
    /// From the text of an error reply, which begins with a word that says what kind it is.
    pub(in crate::store::redis) fn from_text(text: &str) -> Self {
        let all = || text.to_owned();
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        // "MOVED 3999 127.0.0.1:6381"
        let node = || rest.split_whitespace().nth(1).unwrap_or_default().to_owned();
        match word {
            "MOVED" => Self::Moved(node()),
            "ASK" => Self::Ask(node()),
            "TRYAGAIN" => Self::TryAgain,
            "NOSCRIPT" => Self::NoScript,
            "LOADING" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "MISCONF" | "NOREPLICAS" | "BUSY" => {
                Self::NotServing(all())
            }
            "NOPERM" | "NOAUTH" | "WRONGPASS" => Self::Forbidden(all()),
            // Inside a script it comes after other words.
            _ if text.contains("OOM") => Self::Full,
            _ if is_of_rights(text) => Self::Forbidden(all()),
            _ => Self::Unexpected(all()),
        }
    }
}

/// A script that did what its user may not is told of as a plain error, in words that differ by version.
fn is_of_rights(text: &str) -> bool {
    text.contains("The user executing the script can't") || text.contains("ACL failure in script")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies_are_told_apart_by_their_first_word() {
        let at = |text: &str| Failure::from_text(text);
        assert_eq!(at("MOVED 3999 10.0.0.1:6381"), Failure::Moved("10.0.0.1:6381".to_owned()));
        assert_eq!(at("ASK 3999 host:1"), Failure::Ask("host:1".to_owned()));
        assert_eq!(at("NOSCRIPT No matching script."), Failure::NoScript);
        assert_eq!(at("OOM command not allowed when used memory > 'maxmemory'."), Failure::Full);
        assert_eq!(at("ERR Error running script: @user_script: 7: -OOM command not allowed"), Failure::Full);
        assert!(matches!(at("WRONGPASS invalid username-password pair"), Failure::Forbidden(_)));
        assert!(matches!(at("LOADING Redis is loading the dataset in memory"), Failure::NotServing(_)));
        assert!(matches!(at("ERR unknown command"), Failure::Unexpected(_)));
        assert!(matches!(at(""), Failure::Unexpected(_)));
    }
}
