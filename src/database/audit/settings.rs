//! Settings by which the tables of the audit log are kept.

use std::path::PathBuf;

use super::step::Steps;
use crate::core::regions::NodeName;
use crate::core::time::Span;

/// The terms of their keeping, and where old months go.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the daemon that archives, for the notes in `audit_archives`.
    pub node: NodeName,
    /// Age at which rows of decisions leave the database.
    pub retain: Span,
    /// Time for which sums by hour and day stay, and those of keys.
    pub retain_sums: Span,
    /// URL of the archive that they go to; `None`: they stay.
    pub archive: Option<String>,
    /// Age at which decisions leave the archive.
    pub retain_archive: Span,
    /// A folder for files on their way to the archive.
    pub scratch: PathBuf,
    /// Hook by which tests end the work after a step.
    pub steps: Steps,
}
