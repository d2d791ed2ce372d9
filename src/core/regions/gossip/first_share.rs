//! A region's first share of a `gossip` limit: what its store keeps to before any view of a bucket is there.
//!
//! Each region works it out by itself. The first shares of all regions add up to the limit at most. None is
//! less than one permit, so of a limit smaller than the number of regions every region still admits a first
//! request.

use crate::rule::Global;

/// The numbers by which one region's first shares of a rule's limits are worked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstShare {
    weight: u64,
    /// The weights of all regions that the rule names.
    whole: u64,
    /// Number of the regions that the rule names.
    named: u64,
}

impl FirstShare {
    /// Makes the first share of `region`, by the weights that a rule gives to regions.
    #[must_use]
    pub fn new(global: &Global, region: &str) -> Self {
        let weights = || global.shares.iter().map(|(name, weight)| (name, u64::from(*weight)));
        let weight = weights().find(|(name, _)| *name == region).map_or(0, |(_, weight)| weight);
        let named = u64::try_from(global.shares.len()).unwrap_or(u64::MAX);
        Self { weight, whole: weights().map(|(_, weight)| weight).sum(), named }
    }

    /// Permits of `limit` that the region may use unheard while so many `regions` are known. `None`: all of
    /// them, because it is alone.
    #[must_use]
    pub fn of(&self, limit: u64, regions: u64) -> Option<u32> {
        if regions <= 1 || limit == 0 {
            return None;
        }
        // One permit each, and of the rest a part by weight. Without weights that is what a plain division
        // leaves.
        let regions = regions.max(self.named);
        let rest = limit.saturating_sub(regions);
        let (weight, whole) = if self.whole == 0 { (1, regions) } else { (self.weight, self.whole) };
        let part = match rest.checked_mul(weight) {
            Some(product) => product / whole,
            None => u64::try_from(u128::from(rest) * u128::from(weight) / u128::from(whole)).unwrap_or(rest),
        };
        Some(u32::try_from(part.saturating_add(1)).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rule::Mode;

    fn shares(weights: &[u32], limit: u64, regions: u64) -> Vec<Option<u32>> {
        let named = weights.iter().enumerate().map(|(place, weight)| (format!("r{place}"), *weight));
        let global = Global { shares: named.collect(), ..Global::new(Mode::Gossip) };
        let region = |place| FirstShare::new(&global, &format!("r{place}")).of(limit, regions);
        (0..regions).map(region).collect()
    }

    #[test]
    fn regions_without_weights_share_alike() {
        assert_eq!(shares(&[], 100, 5), [Some(20); 5]);
        assert_eq!(shares(&[], 100, 3), [Some(33); 3]);
        assert_eq!(shares(&[], 3, 5), [Some(1); 5]);
    }

    #[test]
    fn a_region_that_knows_no_other_keeps_to_no_share() {
        assert_eq!(shares(&[], 100, 1), [None]);
        assert_eq!(shares(&[7], 100, 1), [None]);
    }

    #[test]
    fn weights_divide_what_is_left_after_one_permit_each() {
        assert_eq!(shares(&[8, 1, 1, 0], 104, 4), [Some(81), Some(11), Some(11), Some(1)]);
    }

    proptest! {
        #[test]
        fn first_shares_add_up_to_the_limit_or_to_one_permit_each(
            weights in prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u32>(), 2..6)],
            more in 0_u64..3,
            limit in prop_oneof![1_u64..60, any::<u32>().prop_map(u64::from)],
        ) {
            let regions = (u64::try_from(weights.len()).unwrap() + more).max(2);
            let shares = shares(&weights, limit, regions);
            let sum: u64 = shares.iter().map(|share| u64::from(share.unwrap_or(0))).sum();
            prop_assert!(limit == 0 || shares.iter().all(|share| *share >= Some(1)));
            prop_assert!(sum <= limit.max(regions), "{shares:?} of {limit}");
        }
    }
}
