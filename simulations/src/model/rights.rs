//! The rights of one region or daemon, bucket by bucket: the ledger that every store keeps for `escrow`,
//! without a way to lose or share it. The stores of daemons are tested against it.

use std::collections::BTreeMap;

use tidegate::core::algorithm::{Algorithm, Counting, Limit};
use tidegate::core::regions::WorldKey;
use tidegate::core::regions::escrow::level::LevelTerms;
use tidegate::core::regions::escrow::places::{Margins, PlacesTerms, counted_for};
use tidegate::core::regions::escrow::{EscrowSafety, StepRequest, StepResult, moves_as};
use tidegate::core::time::Timestamp;

use crate::virtual_world::ReferenceStore;

/// The memory of rights that a store has.
#[derive(Debug)]
pub(crate) struct Vaults {
    memory: Memory,
    algorithm: Algorithm,
    by_key: BTreeMap<WorldKey, ReferenceStore>,
}

/// The name of a memory, and what it mints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Names it; never used again.
    pub(crate) session: u64,
    /// When it began. Nothing is remembered from before.
    pub(crate) begun: Timestamp,
    pub(crate) safety: EscrowSafety,
}

impl Vaults {
    /// An empty memory of a region.
    pub(crate) const fn new(memory: Memory, algorithm: Algorithm) -> Self {
        Self { memory, algorithm, by_key: BTreeMap::new() }
    }

    fn vault(
        &mut self,
        key: &WorldKey,
        now: Timestamp,
        (part, whole): (Limit, Limit),
    ) -> &mut ReferenceStore {
        let Self { memory: Memory { session, begun, safety }, algorithm, by_key } = self;
        let vault = by_key.entry(key.clone()).or_insert_with(|| match moves_as(*algorithm) {
            Counting::Level => {
                let (algorithm, begun, safety) = (*algorithm, *begun, *safety);
                ReferenceStore::level(LevelTerms { algorithm, limit: part, begun, safety }, now)
            }
            Counting::Concurrency => {
                let (share, hold) = (u64::from(part.permits), counted_for(*algorithm, whole.window));
                let (begun, safety, margins) = (*begun, *safety, Margins::USUAL);
                ReferenceStore::places(*algorithm, whole, PlacesTerms { share, hold, begun, margins, safety })
            }
            Counting::Window => {
                ReferenceStore::new(*session, *begun, part.window, u64::from(part.permits), *safety)
            }
        });
        vault.set_part(part, whole);
        vault
    }

    /// Decides one request by a daemon for which this part of the limit is in force, beside the whole. The
    /// window that it was admitted in, if it was.
    pub(crate) fn decide(
        &mut self,
        key: &WorldKey,
        now: Timestamp,
        cost: u64,
        held: (Limit, Limit),
    ) -> Option<u64> {
        self.vault(key, now, held).decide(now, cost)
    }

    /// Carries out what the protocol asks of the store.
    pub(crate) fn carry_out(
        &mut self,
        now: Timestamp,
        ask: &StepRequest,
        held: (Limit, Limit),
    ) -> Option<StepResult> {
        self.vault(&ask.key, now, held).carry_out(now, ask)
    }

    /// The rights of a bucket as they are.
    pub(crate) fn balance(&self, key: &WorldKey, now: Timestamp) -> Option<StepResult> {
        self.by_key.get(key).map(|vault| vault.balance(now))
    }
}
