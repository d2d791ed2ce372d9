//! The names of batches that wait on disk for their receiver.

/// Names a batch for ever. Two batches of a kind never share one: a daemon begins a new incarnation each time
/// it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId {
    /// Begin of the process, in milliseconds since the epoch.
    pub incarnation: u64,
    /// Number of the batch in its process; grows with each one.
    pub sequence: u64,
}
