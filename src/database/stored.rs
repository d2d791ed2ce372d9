//! A set of rules with its place in the order of all sets.

use super::set::RuleDocs;

/// Orders sets of rules: a later generation is newer whatever its revision.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Version {
    /// Raised by a recovery to a point in time.
    pub generation: u64,
    /// Raised by every change.
    pub revision: u64,
}

/// A set as the tables hold it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Which.
    pub version: Version,
    /// What marks its revision in the history of the tables it was read from; see
    /// [`super::postgres::rules::since::KnownSet::mark`].
    pub mark: Option<String>,
    /// The rules and quotas.
    pub docs: RuleDocs,
}
