//! Rights of a window (`fixed_window`), pushed between regions while it runs.
//!
//! The store admits a request iff `used + cost <= budget`. Rights leave the budget before anyone hears of it
//! and enter another one at most once, so all budgets together never exceed the limit, whatever is lost,
//! late, doubled or reordered. Windows are labels: nothing here compares clocks. The same steps are in
//! `lua/rights.lua`.

use super::super::super::calendar::Windows;
use super::super::super::time::Timestamp;
use super::super::super::wire::rights::{ClosedWindow, Total};
use super::EscrowSafety;
use super::totals::{Giving, RECOVERY_MARGIN, Taking, add, sum};

pub mod lives;
pub mod marks;
mod partner;
mod planner;
mod transfers;

pub(super) use self::partner::WindowPartner;
pub(super) use self::transfers::{RegionEstimate, SpendingTime, lasting_need, need, window_transfers};

/// Something to be done to the rights of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowStep {
    /// Take rights out for another region.
    Give(Giving),
    /// Put in what another region gave.
    Take(Taking),
}

/// One region's rights in one window.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct WindowLedger {
    /// The index of the window.
    pub window: u64,
    /// Names the memory of this store; see [`super::super::super::wire::rights::Statement::session`].
    pub session: u64,
    /// The region's part of the limit, zero for a window that began before this store's memory does.
    pub minted: u64,
    /// What went to other regions, by region and session.
    pub given: Vec<Total>,
    /// What came from other regions, by region and session.
    pub taken: Vec<Total>,
    /// What was used in the window before.
    pub closed: Option<ClosedWindow>,
}

/// True if a store whose memory began at `begun` knows all that happened in a window. If not its rights are
/// burnt: what was lost may have spent them.
#[must_use]
pub fn is_known(window: u64, windows: Windows, begun: Timestamp) -> bool {
    windows.start(window) >= begun + RECOVERY_MARGIN
}

impl WindowLedger {
    /// Goes on to a later window, in which nothing has moved yet. `used` is what was used in the present one.
    pub fn enter(&mut self, window: u64, minted: u64, used: u64) {
        if window <= self.window {
            return;
        }
        // No window has the index zero but those of 1970.
        self.closed = (self.window > 0).then_some(ClosedWindow { window: self.window, used });
        self.window = window;
        self.minted = minted;
        self.given.clear();
        self.taken.clear();
    }

    /// Returns what may be used in the window.
    #[must_use]
    pub fn budget(&self) -> u64 {
        // The store gives no more than is there, so this saturates only when the limit shrinks inside a
        // window.
        self.minted.saturating_add(sum(&self.taken)).saturating_sub(sum(&self.given))
    }

    /// Returns how many of the region's own rights are gone, where `used` permits are: what came from other
    /// regions made up for as many.
    #[must_use]
    pub fn spent(&self, used: u64) -> u64 {
        used.saturating_add(sum(&self.given)).saturating_sub(sum(&self.taken))
    }

    /// Carries out a step that speaks of `window`, of which `used` permits leave enough.
    pub fn carry_out(&mut self, window: u64, step: &WindowStep, used: u64, safety: &EscrowSafety) {
        if window != self.window && safety.windows_are_labels {
            return;
        }
        match step {
            WindowStep::Give(Giving { to, session, permits }) => {
                let free = self.budget().saturating_sub(used);
                if *permits > 0 && (*permits <= free || !safety.gives_only_what_is_free) {
                    add(&mut self.given, to, *session, |total| total.saturating_add(*permits));
                }
            }
            WindowStep::Take(Taking { from, session, to_session, permits }) => {
                if *to_session != self.session && safety.sessions_are_fenced {
                    return;
                }
                add(&mut self.taken, from, *session, |total| {
                    if safety.takes_are_cumulative {
                        total.max(*permits)
                    } else {
                        total.saturating_add(*permits)
                    }
                });
            }
        }
    }
}
