//! Reasons for which a set of rules that a peer gives is not taken.

use crate::peer::FetchError;

/// Reasons why a peer's set was not taken. The words are metric labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    /// It did not come, or not as promised.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The bytes are no set of rules.
    #[error("what came {0}")]
    Unreadable(String),
    /// The set says it is another version than its holder said.
    #[error("what came says it is revision {0}, which is not what the peer said")]
    Other(u64),
    /// Something newer is in force by now.
    #[error("it is no newer than the rules in force")]
    Old,
    /// The own database answers.
    #[error("the own database answers: rules of other daemons are for when it is away")]
    Answers,
    /// A rule in it is not right.
    #[error("its rules are not right:\n{0}")]
    Wrong(String),
}

impl Unfit {
    /// All that [`Self::word`] says.
    pub(super) const WORDS: [&'static str; 8] =
        ["digest", "too_long", "not_sent", "unreadable", "other_revision", "old", "database", "wrong"];

    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Fetch(FetchError::Digest) => "digest",
            Self::Fetch(FetchError::TooLong) => "too_long",
            Self::Fetch(_) => "not_sent",
            Self::Unreadable(_) => "unreadable",
            Self::Other(_) => "other_revision",
            Self::Old => "old",
            Self::Answers => "database",
            Self::Wrong(_) => "wrong",
        }
    }

    /// True where the same peer would give the same again.
    pub(super) const fn stays(&self) -> bool {
        !matches!(
            self,
            Self::Old
                | Self::Answers
                | Self::Fetch(
                    FetchError::NotConnected | FetchError::Slow(_) | FetchError::Broken(_) | FetchError::Gone
                )
        )
    }
}
