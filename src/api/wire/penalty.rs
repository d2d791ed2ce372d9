//! A penalty as answers tell it.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use crate::core::penalty::Penalty;

/// A penalty that shuts a client out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Penalty"))]
pub struct PenaltyJson {
    /// Until it ends.
    pub ends_ms: u64,
    /// By what the rule's cool-down is multiplied.
    pub multiplier: u32,
    /// True if this very request began it; absent when it did not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
}

impl PenaltyJson {
    /// The penalty as it stands.
    #[must_use]
    pub const fn new(penalty: &Penalty) -> Self {
        Self { ends_ms: penalty.left.millis_up(), multiplier: penalty.multiplier, begun: penalty.begun }
    }
}
