//! The knowledge of one memory of a store about the rights that it counted.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::core::key::Shape;
use crate::core::regions::escrow::window::lives::Breaks;
use crate::core::time::Timestamp;

/// The rules and times that one memory knows of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemoryPart {
    /// Instant at which it began, which names it.
    pub(super) begun: Timestamp,
    /// Nothing from before this instant is known.
    pub(super) known: Timestamp,
    /// The shapes of the rules that it counted to the end.
    pub(super) shapes: BTreeSet<u32>,
    /// All shapes from here on are of rules that came later.
    pub(super) from: Option<u32>,
    /// Times between the processes that went on with it.
    #[serde(default)]
    pub(super) breaks: Breaks,
}

impl MemoryPart {
    /// True if it knows all of a bucket of this shape since it began.
    pub(super) fn knows(&self, shape: Shape) -> bool {
        let of_rule = shape.of_rule().0;
        self.from.is_some_and(|from| of_rule >= from) || self.shapes.contains(&of_rule)
    }
}
