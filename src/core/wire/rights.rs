//! Messages of `escrow` mode: what regions tell of their rights, and rights on their way.
//!
//! Everything in them is cumulative and carries its window and its sessions, so that loss, duplication,
//! reordering and any delay do nothing.

use super::{OwnLimit, RuleName};
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
    /// What the sender's region holds and wants.
    pub statements: Vec<Statement>,
    /// Rights for the receiver's region.
    pub transfers: Vec<Transfer>,
}

/// What a region holds of one bucket in one window, and what it is asked for. It is request and
/// acknowledgement in one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Statement {
    /// The rule's domain and name.
    pub rule: RuleName,
    /// The values of its `per`, as [`crate::key::Key::identity`] gives them.
    pub identity: Vec<u8>,
    /// Which window this speaks of.
    pub window: u64,
    /// When it was said, by the sender's clock.
    pub stamp: Timestamp,
    /// Names the memory of the sender's store: another number means that what it held before is lost.
    pub session: u64,
    /// Rights that could be spent at once.
    pub free: u64,
    /// Permits asked for, per second, in millionths; at most [`super::DEMAND_MAX`].
    pub demand: u64,
    /// The largest cost that was refused in this window; zero if none was.
    pub wanted: u64,
    /// Rights received in this window, by region and session of the giver. Without windows those that are
    /// kept beyond the capacity are not among them yet.
    pub taken: Vec<Total>,
    /// Rights given in this window, by region and session of the receiver. Without windows those received
    /// that are kept beyond the capacity, by region and session of the giver; they are part of `free`.
    pub given: Vec<Total>,
    /// What was admitted in the window before, once that is over: its index and the count.
    pub closed: Option<(u64, u64)>,
    /// By which limit the sender counts the bucket.
    #[serde(skip)]
    pub limit: CountedLimit,
}

/// By which limit a bucket counts. It follows the statements and transfers of a frame, where any is not the
/// usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CountedLimit {
    /// The bucket's own, in place of the rule's.
    pub own: Option<OwnLimit>,
    /// Whether others only said so: the sender's region itself decides nothing.
    pub said_by_others: bool,
}

/// Rights that went from one region to another in one window, all together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Total {
    /// The other region.
    pub region: String,
    /// The other region's session.
    pub session: u64,
    /// Permits since the window began.
    pub permits: u64,
}

/// Rights on their way to the receiver's region. Sent again until they are acknowledged or their window is
/// over.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Transfer {
    /// The rule's domain and name.
    pub rule: RuleName,
    /// The values of its `per`.
    pub identity: Vec<u8>,
    /// The window in which they may be spent.
    pub window: u64,
    /// The giver's session.
    pub session: u64,
    /// The receiver's session: another one must not take them.
    pub to_session: u64,
    /// Permits given to it in this window, all together.
    pub permits: u64,
    /// By which limit the sender counts the bucket.
    #[serde(skip)]
    pub limit: CountedLimit,
}
