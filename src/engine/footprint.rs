//! The buckets that a decision touches, for those who wait beside it.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use smallvec::SmallVec;

use super::port::Charge;

/// The buckets that a decision touches, by hash: two that are alike by chance only wait needlessly.
#[derive(Debug, Clone, Default)]
pub(super) struct Footprint {
    pub(super) buckets: SmallVec<[u64; 4]>,
    /// True where the store takes several steps for it.
    pub(super) many_steps: bool,
    /// Nobody knows yet which it touches.
    pub(super) unknown: bool,
}

impl Footprint {
    /// Of a decision of which only a lookup will tell what is charged.
    pub(super) const fn unknown() -> Self {
        Self { buckets: SmallVec::new_const(), many_steps: false, unknown: true }
    }

    /// Of a decision that charges these.
    pub(super) fn of(charges: &[Charge<'_>], in_one_step: bool) -> Self {
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        let buckets = charges.iter().map(|charge| hasher.hash_one(charge.key)).collect();
        Self { buckets, many_steps: !in_one_step, unknown: false }
    }
}
