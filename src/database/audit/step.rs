//! The steps between which a process may die.
//!
//! Everything that must survive that says where it stands; tests end it there, as a power cut would, and look
//! at what is left. Outside of tests a step does nothing.

use std::sync::Arc;

/// The stages of the work. Each is named after what has just been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ArchiveStep {
    SegmentCreated,
    SegmentHalfWritten,
    SegmentWritten,
    SegmentSynced,
    SegmentNamed,
    BatchBegun,
    BatchNoted,
    RowsCopied,
    BatchCommitted,
    BatchesMarked,
    UsageAdded,
    SumsCommitted,
    PartitionExported,
    ArchiveUploaded,
    ArchiveVerified,
    PartitionLocked,
    PartitionDropped,
    ArchiveCommitted,
    FileRemoved,
}

impl ArchiveStep {
    /// From records in memory to a file in the spool.
    pub const SPOOLING: [Self; 5] = [
        Self::SegmentCreated,
        Self::SegmentHalfWritten,
        Self::SegmentWritten,
        Self::SegmentSynced,
        Self::SegmentNamed,
    ];
    /// From the spool to the database.
    pub const DELIVERING: [Self; 4] =
        [Self::BatchBegun, Self::BatchNoted, Self::RowsCopied, Self::BatchCommitted];
    /// From rows to sums.
    pub const SUMMING: [Self; 3] = [Self::BatchesMarked, Self::UsageAdded, Self::SumsCommitted];
    /// From a partition to the archive.
    pub const ARCHIVING: [Self; 6] = [
        Self::PartitionExported,
        Self::ArchiveUploaded,
        Self::ArchiveVerified,
        Self::PartitionLocked,
        Self::PartitionDropped,
        Self::ArchiveCommitted,
    ];
}

/// The process would have died here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ended after {0:?}")]
pub struct Ended(pub ArchiveStep);

/// The hook that is told of each step.
#[derive(Clone, Default)]
pub struct Steps(Option<Arc<dyn Fn(ArchiveStep) -> bool + Send + Sync>>);

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Steps")
    }
}

impl Steps {
    /// Ends where `dies` says so.
    #[must_use]
    pub fn dying(dies: impl Fn(ArchiveStep) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(dies)))
    }

    /// Tells of a step.
    pub(super) fn done(&self, step: ArchiveStep) -> Result<(), Ended> {
        match &self.0 {
            Some(dies) if dies(step) => Err(Ended(step)),
            _ => Ok(()),
        }
    }
}
