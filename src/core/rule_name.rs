//! Names of rules where the rules are not at hand: between daemons, in leases and in reservations.

/// A rule by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct RuleName {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub name: String,
}
