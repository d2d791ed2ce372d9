//! The rights of one region for one bucket in one window, as its store keeps them.
//!
//! The store admits a request iff `used + cost <= budget`. Rights leave the budget before anyone hears of it
//! and enter another one at most once, so all budgets together never exceed the limit, whatever is lost,
//! late, doubled or reordered. Windows are labels: nothing here compares clocks. The same steps are in
//! `lua/rights.lua`.

use super::super::super::calendar::Windows;
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::OwnLimit;
use super::super::super::wire::rights::{TOTALS_MAX, Total};
use super::super::WorldKey;
use super::EscrowSafety;
use super::places::LoanBook;

/// How much later than its store began a window must begin to be minted: a store that was lost may have been
/// ahead by this.
pub const RECOVERY_MARGIN: Span = Span::from_secs(1);

/// Something to be done to a ledger, atomically with decisions on its bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Only look.
    Read,
    /// Take rights out for another region, if so many are free.
    Give {
        /// Whom they are for.
        to: String,
        /// Its session.
        session: u64,
        /// How many.
        permits: u64,
    },
    /// Put in what another region gave.
    Take {
        /// Who gave them.
        from: String,
        /// Its session.
        session: u64,
        /// The session of ours that they were meant for.
        to_session: u64,
        /// All that it gave in this window.
        permits: u64,
        /// How many may be kept beyond what there is room for, those of other regions included. Only where
        /// there are no windows.
        keep: u64,
    },
    /// Charge what was given to another region no more: it has it. Only where there are no windows.
    Acknowledge {
        /// Who has it.
        to: String,
        /// Its session.
        session: u64,
        /// All that it has taken from this session of ours.
        permits: u64,
    },
    /// Know a region's session, and what it says of the own one. Only where places are lent.
    OpenSession {
        /// Which region.
        region: String,
        /// Its session.
        session: u64,
        /// All that it has taken from this session of ours; `None`: it does not know this session yet.
        has: Option<u64>,
        /// All that it gave to this session of ours; `None`: it does not know it, or lets what it lent run
        /// out.
        gave: Option<u64>,
    },
    /// Own the whole share if all of these have said what they have of a memory before this one. Only where
    /// places are lent.
    ConfirmRecovery {
        /// All other regions.
        regions: Vec<String>,
    },
}

/// A step for the store. It is refused if the store is in another window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRequest {
    /// The bucket.
    pub key: WorldKey,
    /// The window it speaks of; not read by [`Step::Read`]. Zero where there are none, but where places are
    /// lent the instant, in microseconds, at which its reason was heard.
    pub window: u64,
    /// What to do.
    pub step: Step,
    /// By which limit the bucket counts, where that is not the rule's.
    pub own: Option<OwnLimit>,
}

/// What became of a step: the ledger after it, with what has been used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepResult {
    /// The ledger.
    pub ledger: Ledger,
    /// Permits used in its window.
    pub used: u64,
}

impl StepResult {
    /// Rights that could be spent at once.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.ledger.budget().saturating_sub(self.used)
    }
}

/// One region's rights. Without windows (see [`super::level`]) all counts run since the session began, and
/// what was given, taken and used is in the level.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    /// The window; zero where there are none.
    pub window: u64,
    /// Names the memory of this store; see [`super::super::super::wire::rights::Statement::session`].
    pub session: u64,
    /// The region's part of the limit, zero for a window that began before this store's memory does. Without
    /// windows its part of the capacity, less what an earlier memory may still have under way.
    pub minted: u64,
    /// What went to other regions.
    pub given: Vec<Total>,
    /// What came from other regions.
    pub taken: Vec<Total>,
    /// What they said that they have of `given`. Only where there are no windows.
    pub acknowledged: Vec<Total>,
    /// What was used in a window before, once that is over: its index and the count.
    pub closed: Option<(u64, u64)>,
    /// Only where there are no windows; see [`super::level`].
    pub kept: Option<Box<Reserve>>,
    /// Only where places are lent; see [`super::places`].
    pub loans: Option<Box<LoanBook>>,
}

/// Permits of other regions that found no room, and wait for a cost that is larger than the own capacity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reserve {
    /// They can be used before this.
    pub until: Timestamp,
    /// From whom, and in which session. These are not acknowledged.
    pub totals: Vec<Total>,
}

/// Whether a store whose memory began at `begun` knows all that happened in a window. If not its rights are
/// burnt: what was lost may have spent them.
#[must_use]
pub fn is_known(window: u64, windows: Windows, begun: Timestamp) -> bool {
    windows.start(window) >= begun + RECOVERY_MARGIN
}

impl Ledger {
    /// Goes on to a later window, in which nothing has moved yet. `used` is what was used in the present one.
    pub fn enter(&mut self, window: u64, minted: u64, used: u64) {
        if window <= self.window {
            return;
        }
        // No window has the index zero but those of 1970.
        self.closed = (self.window > 0).then_some((self.window, used));
        self.window = window;
        self.minted = minted;
        self.given.clear();
        self.taken.clear();
    }

    /// What may be used in the window.
    #[must_use]
    pub fn budget(&self) -> u64 {
        if let Some(loans) = &self.loans {
            return loans.capacity;
        }
        if self.window == 0 {
            return self.minted.saturating_add(self.kept());
        }
        // The store gives no more than is there, so this saturates only when the limit shrinks inside a
        // window.
        self.minted.saturating_add(sum(&self.taken)).saturating_sub(sum(&self.given))
    }

    /// Whether rights are burnt of which the region would mint `share`, because what was lost may have spent
    /// them.
    #[must_use]
    pub fn is_recovering(&self, share: u64) -> bool {
        if self.window == 0 { self.minted < share } else { self.minted == 0 && share > 0 }
    }

    /// Carries out a step of which `used` permits leave enough. Whether it changed anything.
    pub fn carry_out(&mut self, ask: &StepRequest, used: u64, safety: &EscrowSafety) -> bool {
        if ask.window != self.window && safety.windows_are_labels {
            return false;
        }
        match &ask.step {
            Step::Read
            | Step::Acknowledge { .. }
            | Step::OpenSession { .. }
            | Step::ConfirmRecovery { .. } => false,
            Step::Give { to, session, permits } => {
                let free = self.budget().saturating_sub(used);
                let enough = *permits > 0 && (*permits <= free || !safety.gives_only_what_is_free);
                enough && add(&mut self.given, to, *session, |total| total.saturating_add(*permits))
            }
            Step::Take { from, session, to_session, permits, .. } => {
                if *to_session != self.session && safety.sessions_are_fenced {
                    return false;
                }
                let joined = |total: u64| {
                    if safety.takes_are_cumulative {
                        total.max(*permits)
                    } else {
                        total.saturating_add(*permits)
                    }
                };
                add(&mut self.taken, from, *session, joined)
            }
        }
    }

    /// All that went to a region in one of its sessions.
    #[must_use]
    pub fn given_to(&self, region: &str, session: u64) -> u64 {
        total(&self.given, region, session)
    }

    /// All that came from a region in one of its sessions.
    #[must_use]
    pub fn taken_from(&self, region: &str, session: u64) -> u64 {
        total(&self.taken, region, session)
    }
}

pub(super) fn sum(totals: &[Total]) -> u64 {
    totals.iter().fold(0, |sum, total| sum.saturating_add(total.permits))
}

pub(super) fn total(totals: &[Total], region: &str, session: u64) -> u64 {
    let found = totals.iter().find(|total| total.region == region && total.session == session);
    found.map_or(0, |total| total.permits)
}

/// Changes one total. `false`: it stays as it was, or there is no room for another.
fn add(totals: &mut Vec<Total>, region: &str, session: u64, change: impl FnOnce(u64) -> u64) -> bool {
    let room = totals.len() < TOTALS_MAX;
    match totals.iter_mut().find(|total| total.region == region && total.session == session) {
        Some(total) => {
            let after = change(total.permits);
            after != std::mem::replace(&mut total.permits, after)
        }
        None => {
            let permits = change(0);
            if room && permits > 0 {
                totals.push(Total { region: region.to_owned(), session, permits });
            }
            room && permits > 0
        }
    }
}
