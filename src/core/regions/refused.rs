//! The reasons why a frame of another daemon is refused, in every mode.

use super::super::time::Span;

/// Farther ahead of the own clock nothing is believed.
pub(super) const FUTURE_MAX: Span = Span::from_secs(10);

/// Reasons why a frame was refused. Nothing of it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It names this very daemon as its sender.
    #[error("the frame claims to come from this daemon")]
    OwnName,
    /// Its sender's region is not one of the configured regions.
    #[error("the sender's region is not in the cluster's configuration")]
    UnknownRegion,
    /// It speaks for a region or a daemon that is not the sender's to speak for.
    #[error("the sender speaks for a region or daemon that is not its own")]
    Foreign,
    /// It was sent, or speaks of something, more than ten seconds ahead of the own clock.
    #[error("the frame comes from the future")]
    Future,
    /// It holds more, or longer, than any honest frame.
    #[error("the frame is larger than any honest one")]
    TooLarge,
    /// There is no room for another daemon.
    #[error("there is no room for another daemon")]
    NoRoom,
}

impl Refused {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::OwnName, Self::UnknownRegion, Self::Foreign, Self::Future, Self::TooLarge, Self::NoRoom];

    /// A short name for a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OwnName => "own_name",
            Self::UnknownRegion => "unknown_region",
            Self::Foreign => "foreign",
            Self::Future => "future",
            Self::TooLarge => "too_large",
            Self::NoRoom => "no_room",
        }
    }
}
