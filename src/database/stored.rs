//! A set of rules with its place in the order of all sets.

use super::set::RuleDocs;

/// Orders sets of rules: a later generation is newer whatever its revision.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Version {
    /// Raised by a recovery to a point in time.
    pub generation: u64,
    /// Grows with every change of the rules or quotas.
    pub revision: u64,
}

/// A set as the tables hold it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Place of the set in the order of all sets.
    pub version: Version,
    /// Mark of its revision in the history of the tables it was read from; see
    /// [`super::postgres::rules::since::KnownSet::mark`].
    pub mark: Option<String>,
    /// Rules and quotas of the set, as documents.
    pub docs: RuleDocs,
}
