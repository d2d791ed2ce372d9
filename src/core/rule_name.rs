//! Names of rules where the rules are not at hand: between daemons, in leases and in reservations.

/// A rule by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct RuleName {
    /// Namespace of the rule, as gateways name it.
    pub domain: String,
    /// Name of the rule as its operator wrote it.
    pub name: String,
}
