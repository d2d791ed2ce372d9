//! Every message between daemons, versioned. The codec turns them into bytes (`peer/codec.rs`), but for
//! frames of counts: of those there are so many that every byte was weighed ([`compact`]). The types here are
//! those of the newest version; an older one says less, and only where bytes are made.
//!
//! The sender's region and node are never in a message: they are read from its certificate.

use std::sync::Arc;

use smallvec::SmallVec;

use super::algorithm::Limit;
pub use super::rule_name::RuleName;
use super::time::{Span, Timestamp};

pub mod compact;
pub mod rights;

/// Most rules that one frame names as crowded.
pub const CROWDED_MAX: usize = 8;
/// Most reports in one frame.
pub const REPORTS_MAX: usize = 256;
/// Longest identity in a report, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 16 * 1_024;

/// Most counts in one report: daemons of one region, restarts included.
pub const COUNTS_MAX: usize = 64;
/// Longest name of a region or node in a message, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Largest demand that is believed, in millionths of a permit per second: about 1,100 million permits per
/// second. A power of two, so that no demand below it is rounded to one above it.
pub const DEMAND_MAX: u64 = 1 << 50;

/// A version of these messages. Two daemons agree on one in the handshake of each connection. Every message
/// on it begins with the version's number; one of another version is refused and counted.
///
/// A daemon speaks the newest and the one before, so that a cluster counts on while it is upgraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WireVersion {
    /// The one before the newest.
    V5,
    /// The newest: a name says whether a bucket is decided by the rule's limit, or nothing is known of that.
    V6,
}

impl WireVersion {
    /// The newest.
    pub const NEWEST: Self = Self::V6;
    /// The one before it.
    pub const PREVIOUS: Self = Self::V5;
    /// All that are spoken, the newest first: the first one that both sides speak is taken.
    pub const SPOKEN: [Self; 2] = [Self::NEWEST, Self::PREVIOUS];

    /// Its number, which is the first byte of its messages.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V5 => 5,
            Self::V6 => 6,
        }
    }

    /// The spoken version with this number.
    #[must_use]
    pub fn numbered(number: u8) -> Option<Self> {
        Self::SPOKEN.into_iter().find(|version| version.number() == number)
    }
}

impl std::fmt::Display for WireVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number().fmt(f)
    }
}

/// One frame from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Begin of the sender's process, in ms since the epoch: sequence numbers start again with each.
    pub incarnation: u64,
    /// Grows by one with every frame to this receiver.
    pub seq: u64,
    /// The sender's clock when it sent this.
    pub sent: Timestamp,
    /// The newest `seq` received from the receiver, and when it arrived by the sender's clock minus that
    /// frame's `sent` (one-way delay plus clock offset, in µs); `None` before the first.
    pub seen: Option<Acknowledgement>,
    /// The longest that a frame of another region lately took to the sender. Every node takes the worst of
    /// all, so that all of them use a report at the same instant.
    pub slowest: Span,
    /// Rules of whose buckets in use the sender cannot follow all.
    pub crowded: CrowdedRules,
    /// Counts of admitted permits, a report for each bucket that changed.
    pub reports: Vec<Report>,
}

/// Rules with buckets in use that find no room in a table. A region that says so keeps to its share of them,
/// and does not tell of every bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrowdedRules {
    /// These; at most [`CROWDED_MAX`] in a frame.
    Named(Vec<RuleName>),
    /// More than a frame names, so every rule may be one of them.
    All,
}

impl CrowdedRules {
    /// No rule.
    pub const NONE: Self = Self::Named(Vec::new());

    /// True if this rule is, or may be, one of them.
    #[must_use]
    pub fn contains(&self, rule: &RuleName) -> bool {
        match self {
            Self::Named(names) => names.contains(rule),
            Self::All => true,
        }
    }

    /// True if no rule is one of them.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::Named(names) if names.is_empty())
    }
}

/// An acknowledgement. A frame is acknowledged only if all of its key ids were understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Incarnation of the receiver that sent that frame: a newer one must not take it for its own.
    pub incarnation: u64,
    /// Newest sequence number received of that incarnation.
    pub seq: u64,
    /// The frames among the 64 before it that were received; bit 0 is `seq - 1`.
    pub before: u64,
}

/// The permits that were admitted of one bucket: cumulative, so that loss, duplication and reordering do
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The sender's number for the subject. In one incarnation it never stands for another.
    pub key_id: u64,
    /// The bucket that the number stands for; left out once the receiver has acknowledged a frame that said
    /// it.
    pub subject: Option<Subject>,
    /// Window that this speaks of; zero for algorithms without windows.
    pub window: u64,
    /// Instant at which the counts were read, by the clock of whoever read them.
    pub stamp: Timestamp,
    /// One for each of the subject's counters, in their order; or none at all where nothing was admitted.
    pub amounts: Amounts,
    /// Permits asked for, per second, in millionths; at most [`DEMAND_MAX`]. A frame carries it [`rounded`].
    pub demand: u64,
}

/// The state of each count; nearly always it is one.
pub type Amounts = SmallVec<[Amount; 1]>;

/// The part of a report that hardly changes from one to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Domain and name of the rule that counts the bucket.
    pub rule: RuleName,
    /// The values of its `per`, as [`super::key::Key::identity`] gives them.
    pub identity: Vec<u8>,
    /// Whom the reports speak for: the sending daemon, or a whole region.
    pub scope: Scope,
    /// Daemons that counted, and since when; at most [`COUNTS_MAX`].
    pub counters: Vec<Counter>,
    /// By which limit those decide whom the reports speak for.
    pub decided_by: DecidedBy,
}

/// By which limit a region decides requests for a bucket, as far as the speaker knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecidedBy {
    /// The speaker does not know: it may be another daemon that decides, or nobody.
    #[default]
    Unknown,
    /// The rule's.
    Rule,
    /// The bucket's own, in place of the rule's.
    Own(OwnLimit),
}

impl DecidedBy {
    /// The bucket's own limit, if that is what is known.
    #[must_use]
    pub const fn own(self) -> Option<OwnLimit> {
        match self {
            Self::Own(limit) => Some(limit),
            Self::Rule | Self::Unknown => None,
        }
    }
}

/// The permits that one bucket may admit in place of its rule's limit: a user's or a key's own. Its window is
/// the rule's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct OwnLimit {
    /// Permits per window, as in [`Limit::permits`], in all regions together.
    pub permits: u32,
    /// Capacity of bucket algorithms, as in [`Limit::burst`].
    pub burst: u32,
    /// Length of the queue, as in [`Limit::queue`].
    pub queue: u32,
}

impl OwnLimit {
    /// Returns what a limit admits, whatever its window.
    #[must_use]
    pub const fn of(limit: &Limit) -> Self {
        Self { permits: limit.permits, burst: limit.burst, queue: limit.queue }
    }

    /// Returns it as a limit with the window of its rule's.
    #[must_use]
    pub const fn in_place_of(self, limit: Limit) -> Limit {
        Limit { permits: self.permits, burst: self.burst, queue: self.queue, ..limit }
    }
}

/// Whom a report speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The sending daemon alone: told to the owner of the key inside its region.
    Node,
    /// A whole region: its owner of the key tells the owner in each other region about its own, and its
    /// siblings about all.
    Region(String),
}

/// One daemon's count of one bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    /// Name of the daemon that counts, within its region.
    pub node: Arc<str>,
    /// Instant at which it began this count, by its clock. A daemon that restarts, or that forgot the bucket,
    /// begins a new count at zero; the last value of the old one stays counted.
    pub since: Timestamp,
}

/// The state of one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Permits admitted: in this window, or since the count began for algorithms without windows.
    pub admitted: u64,
    /// Permits given back, counted over the same time as `admitted`.
    pub returned: u64,
}

impl Amount {
    /// True if since `told` more was given back than admitted.
    #[must_use]
    pub const fn falls_below(self, told: Self) -> bool {
        let admitted = self.admitted.saturating_sub(told.admitted);
        self.returned.saturating_sub(told.returned) > admitted
    }
}

/// The demand that a frame carries for this one: rounded to eleven significant bits, so off by 0.05 % at
/// most. A region divides by what it told, not by what it knows better, so that all divide alike.
#[must_use]
pub const fn rounded(demand: u64) -> u64 {
    let shift = u64::BITS.saturating_sub(demand.leading_zeros()).saturating_sub(compact::DEMAND_BITS);
    if shift == 0 {
        return demand;
    }
    let half = 1 << (shift - 1);
    demand.saturating_add(half) >> shift << shift
}
