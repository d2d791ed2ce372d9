//! Messages of `escrow` mode: what regions tell of their rights, and rights on their way.
//!
//! Everything in them is cumulative and carries its sessions and its window, where there is one, so that
//! loss, duplication, reordering and any delay do nothing.

use super::{OwnLimit, RuleName};
use crate::algorithm::Counting;
use crate::time::Timestamp;

/// Most statements and transfers in one frame, together.
pub const RIGHTS_ENTRIES_MAX: usize = 256;
/// Most totals in one list of a statement.
pub const TOTALS_MAX: usize = 128;

/// One frame from one node to another. A frame without entries only says that the sender can be heard.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RightsFrame {
    /// The sender's clock when it sent this.
    pub sent: Timestamp,
    /// Rights that the sender's region holds and wants.
    pub statements: Vec<Statement>,
    /// Rights that the sender gave to the receiver's region.
    pub transfers: Vec<Transfer>,
}

/// The rights that a region holds of one bucket, and what it is asked for. It is request and acknowledgement
/// in one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Statement {
    /// Domain and name of the rule that counts the bucket.
    pub rule: RuleName,
    /// The values of its `per`, as [`crate::key::Key::identity`] gives them.
    pub identity: Vec<u8>,
    /// Instant at which it was said, by the sender's clock.
    pub stamp: Timestamp,
    /// Names the memory of the sender's store: another number means that what it held before is lost.
    pub session: u64,
    /// Rights that could be spent at once.
    pub free: u64,
    /// Permits asked for, per second, in millionths; at most [`super::DEMAND_MAX`].
    pub demand: u64,
    /// The largest cost that was refused lately; zero if none was.
    pub wanted: u64,
    /// Rights that went to other regions and came from them.
    pub totals: MovedTotals,
    /// By which limit the sender counts the bucket.
    #[serde(skip)]
    pub limit: CountedLimit,
}

/// The rights of a bucket that a message speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum RightKind {
    /// Rights of one window, by its index. They may be spent in no other. The later window is the larger.
    Window(u64),
    /// Permits of a level.
    Level,
    /// Places.
    Places,
}

/// Rights that moved between the sender's region and all others, by what the bucket counts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum MovedTotals {
    /// Rights of a window.
    Window(WindowTotals),
    /// Permits of a level.
    Level(LevelTotals),
    /// Places.
    Places(PlacesTotals),
}

/// Rights of one window that moved.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WindowTotals {
    /// Index of the window since the epoch.
    pub window: u64,
    /// Rights received in this window, by region and session of the giver.
    pub taken: Vec<Total>,
    /// Rights given in this window, by region and session of the receiver.
    pub given: Vec<Total>,
    /// Permits that were admitted in the window before, once that is over.
    pub closed: Option<ClosedWindow>,
}

/// Permits that were used of a window that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClosedWindow {
    /// Index of the window since the epoch.
    pub window: u64,
    /// Permits that the sender's region admitted in it.
    pub used: u64,
}

/// Permits of a level that were received, by region and session of the giver.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LevelTotals {
    /// Rights that are in the level, or were: their giver need not be charged for them any more.
    pub settled: Vec<Total>,
    /// Rights that are kept beyond the capacity, part of what is free. Their giver is charged for them.
    pub kept: Vec<Total>,
}

/// Places that moved since two sessions met, lent or given back.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PlacesTotals {
    /// Places received, by region and session of the giver.
    pub taken: Vec<Total>,
    /// Places given, by region and session of the receiver. None are told while the share does not cover what
    /// is lent.
    pub given: Vec<Total>,
}

impl RightKind {
    /// Returns what a bucket with such rights counts.
    #[must_use]
    pub const fn counting(self) -> Counting {
        match self {
            Self::Window(_) => Counting::Window,
            Self::Level => Counting::Level,
            Self::Places => Counting::Concurrency,
        }
    }
}

impl MovedTotals {
    /// Returns which rights it speaks of.
    #[must_use]
    pub const fn kind(&self) -> RightKind {
        match self {
            Self::Window(totals) => RightKind::Window(totals.window),
            Self::Level(_) => RightKind::Level,
            Self::Places(_) => RightKind::Places,
        }
    }

    /// All its lists.
    #[must_use]
    pub fn lists(&self) -> [&[Total]; 2] {
        match self {
            Self::Window(totals) => [&totals.taken, &totals.given],
            Self::Level(totals) => [&totals.settled, &totals.kept],
            Self::Places(totals) => [&totals.taken, &totals.given],
        }
    }
}

/// By which limit a bucket counts. It follows the statements and transfers of a frame, where any is not the
/// usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CountedLimit {
    /// The bucket's own, in place of the rule's.
    pub own: Option<OwnLimit>,
    /// True if others only said so: the sender's region itself decides nothing.
    pub said_by_others: bool,
}

/// Rights that went from one region to another, all together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Total {
    /// Region that gave these rights, or received them.
    pub region: String,
    /// Session of the other region when the rights moved.
    pub session: u64,
    /// Permits since the window began; of levels and places since the two sessions met.
    pub permits: u64,
}

/// Rights on their way to the receiver's region. Sent again until they are acknowledged or their window is
/// over.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Transfer {
    /// Domain and name of the rule that counts the bucket.
    pub rule: RuleName,
    /// Values of the rule's `per`, which name the bucket among those of the rule.
    pub identity: Vec<u8>,
    /// Kind of the rights: of a window, of a level, or places.
    pub kind: RightKind,
    /// Session of the giver's store when it gave the rights.
    pub session: u64,
    /// The receiver's session: another one must not take them.
    pub to_session: u64,
    /// Permits given to it, all together.
    pub permits: u64,
    /// By which limit the sender counts the bucket.
    #[serde(skip)]
    pub limit: CountedLimit,
}
