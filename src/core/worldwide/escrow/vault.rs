//! The smallest store that can hold one bucket's rights: what a region's store does, without any way to lose or share it.
//!
//! Simulations and tests use it; the stores of a daemon do the same with buckets of their own (`src/store/rights.rs`,
//! `lua/rights.lua`) and are tested against it.

use super::super::super::algorithm::State;
use super::super::super::time::{Span, Timestamp};
use super::Safety;
use super::ledger::{Ask, Balance, Ledger, Step, is_known};
use super::level::Terms;

/// One bucket of one region.
#[derive(Debug, Clone)]
pub struct Vault {
    ledger: Ledger,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Windows(Windows),
    Level(Terms, State),
}

#[derive(Debug, Clone)]
struct Windows {
    used: u64,
    length: Span,
    /// What the region mints in each window.
    minted: u64,
    /// When this memory began.
    begun: Timestamp,
    safety: Safety,
}

impl Vault {
    /// An empty one, which remembers nothing from before `begun`. `session` names its memory and is never used again.
    #[must_use]
    pub fn new(session: u64, begun: Timestamp, length: Span, minted: u64, safety: Safety) -> Self {
        let ledger = Ledger { session, ..Ledger::default() };
        Self { ledger, kind: Kind::Windows(Windows { used: 0, length, minted, begun, safety }) }
    }

    /// One of a bucket without windows, made at `now`.
    #[must_use]
    pub fn level(terms: Terms, now: Timestamp) -> Self {
        Self { ledger: Ledger::without_windows(now), kind: Kind::Level(terms, terms.fresh(now)) }
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
                let fits = state.check(&terms.limit, None, now, cost).admitted;
                if fits {
                    state.take(&terms.limit, now, cost);
                }
                fits.then_some(0)
            }
        }
    }

    /// Carries out a step and shows the ledger. `None`: it is too early to name this memory to others.
    pub fn carry_out(&mut self, now: Timestamp, ask: &Ask) -> Option<Balance> {
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
        }
        Some(self.balance(now))
    }

    /// The ledger as it is.
    #[must_use]
    pub fn balance(&self, now: Timestamp) -> Balance {
        match &self.kind {
            Kind::Windows(windows) => Balance { ledger: self.ledger.clone(), used: windows.used },
            Kind::Level(terms, state) => {
                let mut state = state.clone();
                terms.raise(&mut state, Some(&self.ledger), now);
                terms.balance(&state, &self.ledger, now)
            }
        }
    }
}

impl Windows {
    fn enter(&mut self, ledger: &mut Ledger, now: Timestamp) {
        let window = now.window_index(self.length);
        if window > ledger.window {
            let known = is_known(window, self.length, self.begun) || !self.safety.doubt_is_burnt;
            ledger.enter(window, if known { self.minted } else { 0 }, self.used);
            self.used = 0;
        }
    }
}
