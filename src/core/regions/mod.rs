//! The protocol between regions, by mode: [`gossip`] (counts merge, budgets add up), [`escrow`] (rights move)
//! and [`split`] (shares that change in a safe order). Its words and messages are in
//! `docs/internals/protocol.md`.
//!
//! Each is a state machine that takes what happened (`handle_*`) and hands out what to do (`poll_*`). It
//! never waits, and a decision never waits for it: it only moves what the region's store enforces: the
//! [`super::algorithm::Allowance`] of `gossip`, the rights of `escrow`, the shares of `split`. Beside them
//! are the regions, and which of them is cut off (`membership`), and the division of a limit
//! ([`fair_share`]).

use super::algorithm::{Algorithm, Allowance, Counting, Limit, RegionUse};
use super::rule::Global;
use super::wire::{OwnLimit, RuleName};

mod by_region;
pub mod compared;
mod demand;
pub mod escrow;
pub mod fair_share;
pub mod gossip;
mod member;
mod membership;
mod refused;
pub mod split;
mod variants;

pub use gossip::{
    BYTES_AT_ONCE, BYTES_PER_SECOND, FRAME_BYTES_MAX, FirstShare, GossipSafety, INTERVAL_DEFAULT,
    KEYS_MAX_DEFAULT, KeyStatus, LINKS_MAX, PeerView, Policy, RegionStatus, Replica, ReplicaConfig,
    STATUS_KEYS_MAX, Status, Tally, UncertaintyCause,
};
pub use member::Member;
pub use membership::REGIONS_MAX;
pub use refused::Refused;

/// A daemon as the others know it: from its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct NodeName {
    /// Region that the node counts for.
    pub region: String,
    /// Its own name, unique in the region.
    pub node: String,
}

/// A bucket as the world knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorldKey {
    /// Domain and name of the rule that counts the bucket.
    pub rule: RuleName,
    /// Values of the rule's `per`, which name the bucket among those of the rule.
    pub identity: Vec<u8>,
}

/// The facts of a worldwide rule that the protocol must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorldRule {
    /// Domain and name of the rule, by which regions tell of its buckets.
    pub name: RuleName,
    /// Algorithm of the rule, which says whether it has windows.
    pub algorithm: Algorithm,
    /// Limit in all regions together, before any is divided.
    pub limit: Limit,
    /// Mode by which regions share the limit, and its options.
    pub global: Global,
}

impl WorldRule {
    /// Returns what its buckets count.
    #[must_use]
    pub const fn counting(&self) -> Counting {
        self.algorithm.counting()
    }
}

/// The changes that this region made to one bucket since it was last told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// Bucket that decisions touched since it was last taken.
    pub key: WorldKey,
    /// The window it happened in; zero for algorithms without windows.
    pub window: u64,
    /// Permits asked for, admitted or not.
    pub offered: u64,
    /// Permits admitted since the bucket was last taken.
    pub admitted: u64,
    /// Permits given back since the bucket was last taken.
    pub returned: u64,
    /// The largest cost that was refused; zero if none was.
    pub refused: u64,
    /// The largest cost that was asked for, admitted or not.
    pub largest: u64,
    /// By which limit it was decided, where that was not the rule's.
    pub own: Option<OwnLimit>,
    /// The memory of the store, as its answers show it.
    pub store: StoreSeen,
}

/// The signs of its memory of one bucket that a store's answers show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSeen {
    /// The most permits that it held as used after any of the decisions; `None` where it did not decide.
    pub used: Option<u64>,
    /// True if it decided without an allowance: it has none, or forgot the one that it was told.
    pub without_allowance: bool,
    /// True if an operator reset the bucket: what the region used of it is given back.
    pub reset: bool,
}

/// An instruction for the region's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Enforce this from now on.
    View {
        /// Bucket that the store is to hold to `view`.
        key: WorldKey,
        /// The allowance that the world leaves this region.
        view: Allowance,
        /// Permits by which the worldwide count may lie above `own + view.others`.
        error_bound: u64,
    },
    /// Count at least so much as used here: the store forgot a part of it.
    Restore {
        /// Bucket of which the store forgot what this region used.
        key: WorldKey,
        /// The use of the bucket by this region.
        known: RegionUse,
        /// By which limit the bucket is decided, where that is not the rule's.
        own: Option<OwnLimit>,
    },
    /// Charge what another region admitted (`token_bucket`, `leaky_bucket`, `gcra`).
    Debit {
        /// Bucket whose level other regions filled.
        key: WorldKey,
        /// Permits that another region admitted, charged once.
        permits: u64,
        /// By which limit the bucket is decided, where that is not the rule's.
        own: Option<OwnLimit>,
    },
}
