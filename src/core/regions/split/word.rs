//! The statements that daemons make to each other of their shares.

use super::birth::Birth;

/// The part of its share that a daemon spends under the weights that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Phase {
    /// Nothing, and it never did: it waits for the others to say the same.
    Waiting,
    /// The smaller of several shares, or it did so until just now.
    Changing,
    /// Its share by these weights, and nothing of rules that it still waits with.
    Settled,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Changing, Self::Settled];

    /// The word that travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Changing => "changing",
            Self::Settled => "settled",
        }
    }
}

/// A daemon's word on the weights it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WeightsStatement {
    /// Orders the statements of one daemon: the highest one holds.
    pub stamp: u64,
    /// Names all of its weights, and its list of regions.
    pub digest: u64,
    /// Phase of the change, which says what the daemon spends of the weights.
    pub phase: Phase,
    /// Beginning of the daemon's process, as far as it knows.
    #[serde(default)]
    pub birth: Birth,
}
