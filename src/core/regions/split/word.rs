//! What daemons say to each other of their shares.

use super::birth::Birth;

/// What a daemon spends of the weights that it names.
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

/// What a daemon says of the weights it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WeightsStatement {
    /// Orders what is said.
    pub stamp: u64,
    /// Names all of its weights, and its list of regions.
    pub digest: u64,
    /// What it spends of them.
    pub phase: Phase,
    /// How it began.
    #[serde(default)]
    pub birth: Birth,
}
