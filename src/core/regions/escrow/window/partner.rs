//! A statement of another region on its rights in a window, and how far it is believed.

use crate::time::{Span, Timestamp};
use crate::wire::rights::{ClosedWindow, Total, WindowTotals};

/// Rights that a third region gave the sender are known here within so long.
const PROVEN_WITHIN: Span = Span::from_secs(1);
/// Rights that could not be proven so long ago say nothing of those that come now.
const FORGIVEN_AFTER: Span = Span::from_secs(10);

/// One other region.
#[derive(Debug, Clone)]
pub(in super::super) struct WindowPartner {
    /// What it said last.
    pub(in super::super) totals: WindowTotals,
    /// Since when it has sent nothing but what it cannot have by what the others told.
    unproven: Option<Timestamp>,
}

impl WindowPartner {
    /// One that has said nothing yet.
    pub(in super::super) const fn new() -> Self {
        let totals = WindowTotals { window: 0, taken: Vec::new(), given: Vec::new(), closed: None };
        Self { totals, unproven: None }
    }

    /// Takes in what it said. How a window ended is said until the next one ends.
    pub(in super::super) fn hear(&mut self, said: WindowTotals) {
        let closed: Option<ClosedWindow> = said.closed.or(self.totals.closed);
        self.totals = WindowTotals { closed, ..said };
    }

    /// Rights of its window that it says to have received, less those that it gave.
    pub(super) fn net_taken(&self) -> i128 {
        let sum = |totals: &[Total]| totals.iter().map(|total| i128::from(total.permits)).sum::<i128>();
        sum(&self.totals.taken) - sum(&self.totals.given)
    }

    /// All that it says to have given to a region in a window.
    pub(super) fn gave_to(&self, region: &str, window: u64) -> u64 {
        if self.totals.window == window { to_region(&self.totals.given, region) } else { 0 }
    }

    /// It sent more of a window than is known here that it can have. Whether those who gave it the rest may
    /// not have been heard yet.
    pub(super) fn may_prove(&mut self, now: Timestamp) -> bool {
        let since = self.unproven.filter(|since| now.since(*since) <= FORGIVEN_AFTER).unwrap_or(now);
        self.unproven = Some(since);
        now.since(since) <= PROVEN_WITHIN
    }

    /// It sent what it can have.
    pub(super) const fn proves(&mut self) {
        self.unproven = None;
    }
}

/// All that went to a region, in whichever of its sessions.
pub(super) fn to_region(totals: &[Total], region: &str) -> u64 {
    let of_region = totals.iter().filter(|total| total.region == region);
    of_region.fold(0, |sum, total| sum.saturating_add(total.permits))
}
