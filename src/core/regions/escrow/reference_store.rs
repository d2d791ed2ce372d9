//! The smallest store that can hold one bucket's rights: what a region's store does, without any way to lose
//! or share it.
//!
//! Simulations and tests use it; the stores of a daemon do the same with buckets of their own
//! (`src/store/rights.rs`, `lua/rights.lua`) and are tested against it.

use super::super::super::algorithm::{Algorithm, Limit, State};
use super::super::super::calendar::Windows;
use super::super::super::hold::{Hold, HoldStep};
use super::super::super::time::Timestamp;
use super::EscrowSafety;
use super::ledger::{Ledger, Step, StepRequest, StepResult, is_known};
use super::level::LevelTerms;
use super::places;

/// One bucket of one region.
#[derive(Debug, Clone)]
pub struct ReferenceStore {
    ledger: Ledger,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Windows(CountedWindows),
    Level(LevelTerms, State),
    Places(places::PlacesTerms, State),
}

#[derive(Debug, Clone)]
struct CountedWindows {
    used: u64,
    windows: Windows,
    /// What the region mints in each window.
    minted: u64,
    /// When this memory began.
    begun: Timestamp,
    safety: EscrowSafety,
}

impl ReferenceStore {
    /// An empty one, which remembers nothing from before `begun`. `session` names its memory and is never
    /// used again.
    #[must_use]
    pub fn new(
        session: u64,
        begun: Timestamp,
        windows: impl Into<Windows>,
        minted: u64,
        safety: EscrowSafety,
    ) -> Self {
        let windows = windows.into();
        let ledger = Ledger { session, ..Ledger::default() };
        Self { ledger, kind: Kind::Windows(CountedWindows { used: 0, windows, minted, begun, safety }) }
    }

    /// One of a bucket without windows, made at `now`.
    #[must_use]
    pub fn level(terms: LevelTerms, now: Timestamp) -> Self {
        Self { ledger: Ledger::without_windows(now), kind: Kind::Level(terms, terms.fresh(now)) }
    }

    /// One of places that are lent. Its memory is named when it is first asked for, once it may be.
    #[must_use]
    pub fn places(terms: places::PlacesTerms) -> Self {
        let state = State::new(Algorithm::Concurrency);
        Self { ledger: Ledger::default(), kind: Kind::Places(terms, state) }
    }

    /// Another part of the limit is in force, where windows or levels count: as with every request to a store
    /// of a daemon.
    pub fn set_part(&mut self, part: Limit) {
        match &mut self.kind {
            Kind::Windows(windows) => windows.minted = u64::from(part.permits),
            Kind::Level(terms, _) => terms.limit = part,
            Kind::Places(..) => {}
        }
    }

    /// Another share of the places is in force.
    pub fn set_share(&mut self, share: u64) {
        if let Kind::Places(terms, _) = &mut self.kind {
            terms.share = share;
        }
    }

    /// A holder's step. Whether it may, and the places that it newly took, kept or gave back.
    pub fn step(&mut self, now: Timestamp, hold: &Hold) -> (bool, u64) {
        let Self { ledger, kind: Kind::Places(terms, state) } = self else { return (false, 0) };
        let limit = terms.limit(Some(ledger), now);
        let known = hold.step != HoldStep::Acquire;
        let settled = terms.is_settled(now) || !terms.safety.doubt_is_burnt;
        let may = (known || settled) && state.check_hold(&limit, now, hold).admitted;
        (may, if may { state.step(&limit, now, hold) } else { 0 })
    }

    /// Places that have holders.
    #[must_use]
    pub fn held(&self, now: Timestamp) -> u64 {
        self.balance(now).used
    }

    /// Decides one request. The window that it was admitted in, if it was; zero where there are none.
    pub fn decide(&mut self, now: Timestamp, cost: u64) -> Option<u64> {
        let Self { ledger, kind } = self;
        match kind {
            Kind::Windows(windows) => {
                windows.enter(ledger, now);
                let fits = windows.used.saturating_add(cost) <= ledger.budget();
                if fits {
                    windows.used += cost;
                }
                fits.then_some(ledger.window)
            }
            Kind::Level(terms, state) => {
                terms.raise(state, Some(ledger), now);
                let view = LevelTerms::view(Some(ledger), now);
                let fits = state.check(&terms.limit, view.as_ref(), now, cost).admitted;
                if fits {
                    state.take(&terms.limit, now, cost);
                }
                fits.then_some(0)
            }
            Kind::Places(..) => None,
        }
    }

    /// Carries out a step and shows the ledger. `None`: it is too early to name this memory to others.
    pub fn carry_out(&mut self, now: Timestamp, ask: &StepRequest) -> Option<StepResult> {
        let Self { ledger, kind } = self;
        match kind {
            Kind::Windows(windows) => {
                windows.enter(ledger, now);
                if ask.step != Step::Read {
                    ledger.carry_out(ask, windows.used, &windows.safety);
                }
            }
            Kind::Level(terms, _) if !terms.is_settled(now) => return None,
            Kind::Level(terms, state) => terms.carry_out(state, ledger, ask, now),
            Kind::Places(terms, _) if !terms.is_settled(now) && terms.safety.doubt_is_burnt => return None,
            Kind::Places(terms, state) => {
                if ledger.session == 0 {
                    *ledger = Ledger::without_windows(now);
                }
                let held = state.used(&terms.limit(Some(ledger), now), now);
                terms.carry_out(ledger, held, ask, now);
            }
        }
        Some(self.balance(now))
    }

    /// The ledger as it is.
    #[must_use]
    pub fn balance(&self, now: Timestamp) -> StepResult {
        match &self.kind {
            Kind::Windows(windows) => StepResult { ledger: self.ledger.clone(), used: windows.used },
            Kind::Level(terms, state) => {
                let mut state = state.clone();
                terms.raise(&mut state, Some(&self.ledger), now);
                terms.balance(&state, &self.ledger, now)
            }
            Kind::Places(terms, state) => {
                let held = state.used(&terms.limit(Some(&self.ledger), now), now);
                terms.balance(&self.ledger, held, now)
            }
        }
    }
}

impl CountedWindows {
    fn enter(&mut self, ledger: &mut Ledger, now: Timestamp) {
        let window = self.windows.index(now);
        if window > ledger.window {
            let known = is_known(window, self.windows, self.begun) || !self.safety.doubt_is_burnt;
            ledger.enter(window, if known { self.minted } else { 0 }, self.used);
            self.used = 0;
        }
        // A share that shrinks does so at once; one that grows waits for the next window.
        ledger.minted = ledger.minted.min(self.minted);
    }
}
