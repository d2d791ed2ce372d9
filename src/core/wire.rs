//! Every message between daemons, versioned. How they become bytes is the codec's business (`peer/codec.rs`).
//!
//! The sender's region and node are never in a message: they are read from its certificate.

use super::time::Timestamp;

/// Version of these messages. A frame of another version is refused and counted.
pub const VERSION: u8 = 1;
/// Most reports in one frame.
pub const REPORTS_MAX: usize = 256;
/// Longest identity in a report, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 16 * 1_024;

/// One frame from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Frame {
    /// When the sender's process began, in ms since the epoch: counts of an older incarnation stay counted, and a newer one
    /// starts at zero again.
    pub incarnation: u64,
    /// Grows by one with every frame to this receiver.
    pub seq: u64,
    /// The sender's clock when it sent this.
    pub sent: Timestamp,
    /// The newest `seq` received from the receiver, and when it arrived by the sender's clock minus that frame's `sent`
    /// (one-way delay plus clock offset, in µs); `None` before the first.
    pub seen: Option<Seen>,
    /// What the sender's region admitted.
    pub reports: Vec<Report>,
}

/// An acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Seen {
    /// Newest sequence number received.
    pub seq: u64,
    /// Which of the 64 before it were received; bit 0 is `seq - 1`.
    pub before: u64,
    /// Receiver's clock minus sender's stamp of frame `seq`, in µs.
    pub lag: i64,
}

/// What one region admitted of one bucket: cumulative, so that loss, duplication and reordering do nothing.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// The rule's domain and name.
    pub rule: RuleName,
    /// The values of its `per`, as [`super::key::Key::identity`] gives them.
    pub identity: Vec<u8>,
    /// Which window this speaks of; zero for algorithms without windows.
    pub window: u64,
    /// When the counts were read, by the sender's clock.
    pub stamp: Timestamp,
    /// Permits admitted: in this window, or since the incarnation began for algorithms without windows.
    pub admitted: u64,
    /// Permits given back, counted alike.
    pub returned: u64,
    /// Permits asked for, per second, in millionths.
    pub demand: u64,
}

/// A rule, between daemons.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct RuleName {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub name: String,
}
