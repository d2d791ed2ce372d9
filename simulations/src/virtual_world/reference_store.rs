//! The smallest store that can hold one bucket's rights: what a region's store does, without any way to lose
//! or share it.
//!
//! Simulations and tests use it; the stores of a daemon do the same with buckets of their own
//! (`src/store/rights.rs`, `lua/rights.lua`) and are tested against it.

use tidegate_core::algorithm::{Algorithm, Limit, State};
use tidegate_core::calendar::Windows;
use tidegate_core::hold::{Hold, HoldStep};
use tidegate_core::regions::escrow::level::{LevelLedger, LevelTerms};
use tidegate_core::regions::escrow::places::{PlacesLedger, PlacesTerms};
use tidegate_core::regions::escrow::window::{WindowLedger, is_known};
use tidegate_core::regions::escrow::{EscrowSafety, Ledger, Step, StepRequest, StepResult};
use tidegate_core::time::Timestamp;

/// One bucket of one region, by what it counts.
#[derive(Debug, Clone)]
pub(crate) struct ReferenceStore(Bucket);

#[derive(Debug, Clone)]
enum Bucket {
    Window(CountedWindows),
    Level {
        terms: LevelTerms,
        state: State,
        ledger: LevelLedger,
    },
    /// Places that are held, or what a sliding window or log counts.
    Places {
        terms: PlacesTerms,
        /// That of all regions together.
        whole: Limit,
        state: State,
        /// Its memory is named when it is first asked for, once it may be.
        ledger: Option<PlacesLedger>,
    },
}

#[derive(Debug, Clone)]
struct CountedWindows {
    ledger: WindowLedger,
    used: u64,
    windows: Windows,
    /// Permits that the region mints in each window.
    minted: u64,
    /// When this memory began.
    begun: Timestamp,
    safety: EscrowSafety,
}

impl ReferenceStore {
    /// An empty one, which remembers nothing from before `begun`. `session` names its memory and is never
    /// used again.
    pub(crate) fn new(
        session: u64,
        begun: Timestamp,
        windows: impl Into<Windows>,
        minted: u64,
        safety: EscrowSafety,
    ) -> Self {
        let (windows, ledger) = (windows.into(), WindowLedger { session, ..WindowLedger::default() });
        Self(Bucket::Window(CountedWindows { ledger, used: 0, windows, minted, begun, safety }))
    }

    /// One of a level, made at `now`.
    pub(crate) fn level(terms: LevelTerms, now: Timestamp) -> Self {
        Self(Bucket::Level { terms, state: terms.fresh(now), ledger: LevelLedger::new(now) })
    }

    /// One of places, or of what slides, of which parts of the `whole` limit are lent.
    pub(crate) fn places(algorithm: Algorithm, whole: Limit, terms: PlacesTerms) -> Self {
        Self(Bucket::Places { terms, whole, state: State::new(algorithm), ledger: None })
    }

    /// Another part of the `whole` limit is in force: as with every request to a store of a daemon.
    pub(crate) fn set_part(&mut self, part: Limit, whole: Limit) {
        match &mut self.0 {
            Bucket::Window(windows) => windows.minted = u64::from(part.permits),
            Bucket::Level { terms, .. } => terms.limit = part,
            Bucket::Places { terms, whole: limit, .. } => {
                (terms.share, *limit) = (u64::from(part.permits), whole);
            }
        }
    }

    /// Another share of the places is in force.
    pub(crate) fn set_share(&mut self, share: u64) {
        if let Bucket::Places { terms, .. } = &mut self.0 {
            terms.share = share;
        }
    }

    /// A holder's step. Returns whether it may, and the places that it newly took, kept or gave back.
    pub(crate) fn step(&mut self, now: Timestamp, hold: &Hold) -> (bool, u64) {
        let Bucket::Places { terms, whole, state, ledger } = &mut self.0 else { return (false, 0) };
        let limit = terms.limit(whole, ledger.as_ref(), now);
        let known = hold.step != HoldStep::Acquire;
        let settled = terms.is_settled(now) || !terms.safety.doubt_is_burnt;
        let may = (known || settled) && state.check_hold(&limit, now, hold).admitted;
        (may, if may { state.step(&limit, now, hold) } else { 0 })
    }

    /// Decides one request. The window that it was admitted in, if it was; zero where there are none.
    pub(crate) fn decide(&mut self, now: Timestamp, cost: u64) -> Option<u64> {
        match &mut self.0 {
            Bucket::Window(windows) => {
                windows.enter(now);
                let fits = windows.used.saturating_add(cost) <= windows.ledger.budget();
                if fits {
                    windows.used += cost;
                }
                fits.then_some(windows.ledger.window)
            }
            Bucket::Level { terms, state, ledger } => {
                terms.raise(state, Some(ledger), now);
                let view = LevelTerms::view(Some(ledger), now);
                let fits = state.check(&terms.limit, view.as_ref(), now, cost).admitted;
                if fits {
                    state.take(&terms.limit, now, cost);
                }
                fits.then_some(0)
            }
            Bucket::Places { terms, whole, state, ledger } => {
                let limit = terms.limit(whole, ledger.as_ref(), now);
                let settled = terms.is_settled(now) || !terms.safety.doubt_is_burnt;
                let fits = settled && state.check(&limit, None, now, cost).admitted;
                if fits {
                    state.take(&limit, now, cost);
                }
                fits.then(|| state.window_at(&limit, now))
            }
        }
    }

    /// Gives back permits that were counted. Returns how many.
    pub(crate) fn refund(&mut self, now: Timestamp, permits: u64) -> u64 {
        match &mut self.0 {
            Bucket::Places { terms, whole, state, ledger } => {
                state.refund(&terms.limit(whole, ledger.as_ref(), now), now, permits)
            }
            Bucket::Window(_) | Bucket::Level { .. } => 0,
        }
    }

    /// Decides by the region's share alone, as a daemon does whose version does not see what is lent.
    pub(crate) fn decide_blindly(&mut self, now: Timestamp, cost: u64) -> bool {
        let Bucket::Places { terms, whole, state, .. } = &mut self.0 else { return false };
        let permits = u32::try_from(terms.share).unwrap_or(u32::MAX);
        let limit = Limit { permits, ..*whole };
        let fits = terms.is_settled(now) && state.check(&limit, None, now, cost).admitted;
        if fits {
            state.take(&limit, now, cost);
        }
        fits
    }

    /// Carries out a step and shows the ledger. `None`: it is too early to name this memory to others, or the
    /// step is one of another way to count.
    pub(crate) fn carry_out(&mut self, now: Timestamp, ask: &StepRequest) -> Option<StepResult> {
        match (&mut self.0, &ask.step) {
            (Bucket::Window(windows), Step::Read) => windows.enter(now),
            (Bucket::Window(windows), Step::Window { window, step }) => {
                windows.enter(now);
                windows.ledger.carry_out(*window, step, windows.used, &windows.safety);
            }
            (Bucket::Level { terms, .. }, _) if !terms.is_settled(now) => return None,
            (Bucket::Level { terms, state, ledger }, Step::Read) => terms.carry_out(state, ledger, None, now),
            (Bucket::Level { terms, state, ledger }, Step::Level(step)) => {
                terms.carry_out(state, ledger, Some(step), now);
            }
            (Bucket::Places { terms, .. }, _) if !terms.is_settled(now) && terms.safety.doubt_is_burnt => {
                return None;
            }
            (Bucket::Places { terms, whole, state, ledger }, step) => {
                let step = match step {
                    Step::Read => None,
                    Step::Places { heard, step } => Some((*heard, step)),
                    Step::Window { .. } | Step::Level(_) => return None,
                };
                let ledger = ledger.get_or_insert_with(|| PlacesLedger::new(now.0.max(1)));
                let held = state.used(&terms.limit(whole, Some(ledger), now), now);
                terms.carry_out(ledger, held, step, now);
            }
            _ => return None,
        }
        Some(self.balance(now))
    }

    /// The ledger as it is.
    pub(crate) fn balance(&self, now: Timestamp) -> StepResult {
        match &self.0 {
            Bucket::Window(windows) => {
                StepResult { ledger: Ledger::Window(windows.ledger.clone()), used: windows.used }
            }
            Bucket::Level { terms, state, ledger } => {
                let mut state = state.clone();
                terms.raise(&mut state, Some(ledger), now);
                let used = terms.used(&state, ledger, now);
                StepResult { ledger: Ledger::Level(ledger.clone()), used }
            }
            Bucket::Places { terms, whole, state, ledger } => {
                let used = state.used(&terms.limit(whole, ledger.as_ref(), now), now);
                let shown = ledger.as_ref().map_or_else(
                    || terms.shown(&PlacesLedger::new(0), now),
                    |ledger| terms.shown(ledger, now),
                );
                StepResult { ledger: Ledger::Places(shown), used }
            }
        }
    }
}

impl CountedWindows {
    fn enter(&mut self, now: Timestamp) {
        let window = self.windows.index(now);
        if window > self.ledger.window {
            let known = is_known(window, self.windows, self.begun) || !self.safety.doubt_is_burnt;
            self.ledger.enter(window, if known { self.minted } else { 0 }, self.used);
            self.used = 0;
        }
        // A share that shrinks does so at once; one that grows waits for the next window.
        self.ledger.minted = self.ledger.minted.min(self.minted);
    }
}
