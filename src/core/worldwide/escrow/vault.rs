//! The smallest store that can hold one bucket's rights: what a region's store does, without any way to lose or share it.
//!
//! Simulations and tests use it; the stores of a daemon do the same with buckets of their own (`src/store/rights.rs`,
//! `lua/rights.lua`) and are tested against it.

use super::super::super::time::{Span, Timestamp};
use super::Safety;
use super::ledger::{Ask, Balance, Ledger, Step, is_known};

/// One bucket of one region.
#[derive(Debug, Clone)]
pub struct Vault {
    ledger: Ledger,
    used: u64,
    window: Span,
    /// What the region mints in each window.
    minted: u64,
    /// When this memory began.
    begun: Timestamp,
    safety: Safety,
}

impl Vault {
    /// An empty one, which remembers nothing from before `begun`. `session` names its memory and is never used again.
    #[must_use]
    pub fn new(session: u64, begun: Timestamp, window: Span, minted: u64, safety: Safety) -> Self {
        Self { ledger: Ledger { session, ..Ledger::default() }, used: 0, window, minted, begun, safety }
    }

    /// Decides one request. The window that it was admitted in, if it was.
    pub fn decide(&mut self, now: Timestamp, cost: u64) -> Option<u64> {
        self.enter(now);
        let fits = self.used.saturating_add(cost) <= self.ledger.budget();
        if fits {
            self.used += cost;
        }
        fits.then_some(self.ledger.window)
    }

    /// Carries out a step and shows the ledger.
    pub fn carry_out(&mut self, now: Timestamp, ask: &Ask) -> Balance {
        self.enter(now);
        if ask.step != Step::Read {
            self.ledger.carry_out(ask, self.used, &self.safety);
        }
        self.balance()
    }

    /// The ledger as it is.
    #[must_use]
    pub fn balance(&self) -> Balance {
        Balance { ledger: self.ledger.clone(), used: self.used }
    }

    fn enter(&mut self, now: Timestamp) {
        let window = now.window_index(self.window);
        if window > self.ledger.window {
            let known = is_known(window, self.window, self.begun) || !self.safety.doubt_is_burnt;
            self.ledger.enter(window, if known { self.minted } else { 0 }, self.used);
            self.used = 0;
        }
    }
}
