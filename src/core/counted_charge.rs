//! The facts that a bucket keeps of a charge that may be undone: when it counted, and what was in use then.

use super::time::Timestamp;

/// The place where an earlier charge counts: how much of it can still be given back follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedCharge {
    /// The instant that the bucket counted it at.
    pub at: Timestamp,
    /// Whole permits in use then, this charge's included; of a level alone.
    pub used: u64,
}
