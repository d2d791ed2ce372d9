//! What another region said of its places, and when it was told of this memory.

use crate::time::Timestamp;
use crate::wire::rights::PlacesTotals;

/// One other region.
#[derive(Debug, Clone)]
pub(in super::super) struct PlacesPartner {
    /// What it said last.
    pub(in super::super) totals: PlacesTotals,
    /// When the store was last told of it.
    pub(super) noted: Option<Timestamp>,
    /// When it was last told because it did not know the own memory.
    pub(super) introduced: Option<Timestamp>,
}

impl PlacesPartner {
    /// One that has said nothing yet.
    pub(in super::super) const fn new() -> Self {
        let totals = PlacesTotals { taken: Vec::new(), given: Vec::new() };
        Self { totals, noted: None, introduced: None }
    }
}
