//! The shares of a limit over regions: whole permits that add up to it exactly.
//!
//! Every region works this out for itself from the same rule, so it is a pure function of weights, minimums
//! and names: the divisor method of Jefferson (M. L. Balinski, H. P. Young: Fair Representation, 1982), ties
//! to the name that sorts first. No region gets less than the whole part of its exact share, and none gets
//! less for a larger limit. Largest remainders do not promise the second: while a limit grew from five to
//! six, two regions could each hold the permit that changed hands.

use smallvec::SmallVec;

use crate::region_list::RegionList;

/// The weights of one rule over its regions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Weights {
    /// Weights sorted by region, each region once.
    parts: Vec<WeightPart>,
}

/// One region's part.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
struct WeightPart {
    region: String,
    weight: u32,
    minimum_percent: u32,
}

impl Weights {
    /// The weights in `shares`, with `minimums` in percent of the limit. A region of `regions` that `shares`
    /// does not name has none; if `shares` is empty all of `regions` weigh the same.
    #[must_use]
    pub fn new(shares: &[(String, u32)], minimums: &[(String, u32)], regions: &[String]) -> Self {
        let mut parts: Vec<WeightPart> = Vec::new();
        let of = |list: &[(String, u32)], region: &str| {
            list.iter().find(|(name, _)| name == region).map(|(_, number)| *number)
        };
        let names = shares.iter().chain(minimums).map(|(region, _)| region).chain(regions);
        for region in names {
            let weight = if shares.is_empty() { 1 } else { of(shares, region).unwrap_or(0) };
            let minimum_percent = of(minimums, region).unwrap_or(0);
            parts.push(WeightPart { region: region.clone(), weight, minimum_percent });
        }
        parts.sort_by(|a, b| a.region.cmp(&b.region));
        parts.dedup_by(|a, b| a.region == b.region);
        Self { parts }
    }

    /// The same among the regions of a list, of which some have no part whatever a rule gives them.
    #[must_use]
    pub fn among(shares: &[(String, u32)], minimums: &[(String, u32)], list: &RegionList) -> Self {
        let mut weights = Self::new(shares, minimums, &list.names);
        for part in weights.parts.iter_mut().filter(|part| list.is_without_part(&part.region)) {
            (part.weight, part.minimum_percent) = (0, 0);
        }
        weights
    }

    /// The regions, sorted.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.region.as_str())
    }

    /// Each region with its weight and its minimum in percent, sorted by region.
    pub fn parts(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.parts.iter().map(|part| (part.region.as_str(), part.weight, part.minimum_percent))
    }

    /// Returns what `region` may spend of `total` permits; 0 for a region that has no part.
    #[must_use]
    pub fn of(&self, total: u64, region: &str) -> u64 {
        let Ok(place) = self.parts.binary_search_by(|part| part.region.as_str().cmp(region)) else {
            return 0;
        };
        self.divide(total).get(place).copied().unwrap_or(0)
    }

    /// All shares of `total` permits, in the order of [`Self::regions`]. They add up to `total` wherever
    /// there is a region with a weight.
    #[must_use]
    pub fn divide(&self, total: u64) -> SmallVec<[u64; 8]> {
        let parts = self.effective();
        let whole = parts.iter().sum();
        if whole == 0 {
            return SmallVec::from_elem(0, parts.len());
        }
        let mut shares: SmallVec<[u64; 8]> = parts.iter().map(|part| share_of(total, *part, whole)).collect();
        let left = total.saturating_sub(shares.iter().sum());
        for _ in 0..left {
            // Compared as `part / (share + 1)`. The first of equals.
            let place = (0..parts.len()).reduce(|best, place| {
                let claim = |of: usize, against: usize| parts[of] * u128::from(shares[against] + 1);
                if claim(place, best) > claim(best, place) { place } else { best }
            });
            if let Some(place) = place {
                shares[place] += 1;
            }
        }
        shares
    }

    /// The weights with the minimums put in, which is the same for every limit: who weighs less than its
    /// minimum weighs just that, and the others divide what remains. At most `100 x 2^32 x regions`.
    fn effective(&self) -> SmallVec<[u128; 8]> {
        let mut held: SmallVec<[bool; 8]> = SmallVec::from_elem(false, self.parts.len());
        loop {
            let (mut rest, mut weights) = (100_u128, 0_u128);
            for (part, held) in self.parts.iter().zip(&held) {
                if *held {
                    rest = rest.saturating_sub(part.minimum_percent.into());
                } else {
                    weights += u128::from(part.weight);
                }
            }
            let least = |part: &WeightPart| u128::from(part.minimum_percent) * weights.max(1);
            let exact = |part: &WeightPart| u128::from(part.weight) * rest;
            let parts = || self.parts.iter().zip(&held);
            let Some(below) = parts().position(|(part, held)| !held && exact(part) < least(part)) else {
                return parts().map(|(part, held)| if *held { least(part) } else { exact(part) }).collect();
            };
            held[below] = true;
        }
    }
}

/// `total · part / whole`, rounded down.
fn share_of(total: u64, part: u128, whole: u128) -> u64 {
    u64::try_from(u128::from(total) * part / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(numbers: &[u32]) -> Vec<(String, u32)> {
        numbers.iter().enumerate().map(|(place, number)| (format!("r{place}"), *number)).collect()
    }

    #[test]
    fn shares_are_whole_and_ties_go_to_the_first_name() {
        let weights = Weights::new(&[], &[], &["b".into(), "a".into(), "c".into()]);
        assert_eq!(weights.divide(100).as_slice(), [34, 33, 33]);
        assert_eq!((weights.of(2, "a"), weights.of(2, "c"), weights.of(2, "nowhere")), (1, 0, 0));
    }

    #[test]
    fn a_region_that_is_drained_or_removed_leaves_its_part_to_the_others() {
        let mut list = RegionList::of(vec!["ap".into(), "eu".into(), "us".into()]);
        list.drained = vec!["ap".into()];
        assert_eq!(Weights::among(&[], &[], &list).divide(100).as_slice(), [0, 50, 50]);
        let (shares, minimums) =
            ([("ap".into(), 8), ("eu".into(), 1), ("us".into(), 1)], [("ap".into(), 30)]);
        assert_eq!(Weights::among(&shares, &minimums, &list).divide(100).as_slice(), [0, 50, 50]);
        list = RegionList {
            names: vec!["eu".into(), "us".into()],
            removed: list.drained,
            ..RegionList::default()
        };
        assert_eq!(Weights::among(&[], &[], &list).divide(100).as_slice(), [50, 50]);
        assert_eq!(Weights::among(&shares, &minimums, &list).divide(100).as_slice(), [0, 50, 50]);
    }

    #[test]
    fn a_minimum_is_taken_from_the_others_by_weight() {
        let weights = Weights::new(&named(&[90, 9, 1]), &named(&[0, 0, 20]), &[]);
        assert_eq!(weights.divide(100).as_slice(), [73, 7, 20]);
    }

    #[test]
    fn the_largest_weights_and_limits_divide() {
        let weights = Weights::new(&named(&[u32::MAX; 64]), &named(&[1; 64]), &[]);
        assert_eq!(
            weights.divide(u64::MAX).iter().map(|share| u128::from(*share)).sum::<u128>(),
            u128::from(u64::MAX)
        );
    }

    #[test]
    fn a_region_without_weight_may_still_have_a_minimum() {
        let weights = Weights::new(&named(&[1, 0]), &named(&[0, 50]), &[]);
        assert_eq!(weights.divide(11).as_slice(), [6, 5]);
    }

    proptest! {
        #[test]
        fn shares_add_up_to_the_limit_and_keep_every_minimum(
            parts in prop::collection::vec((0_u32..1_000, 0_u32..20), 1..6),
            total in 0_u64..5_000_000_000,
        ) {
            let (weights, minimums): (Vec<u32>, Vec<u32>) = parts.into_iter().unzip();
            prop_assume!(weights.iter().any(|weight| *weight > 0));
            let shares = Weights::new(&named(&weights), &named(&minimums), &[]).divide(total);
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            for (share, percent) in shares.iter().zip(&minimums) {
                prop_assert!(*share >= total * u64::from(*percent) / 100);
            }
        }

        #[test]
        fn no_region_gets_less_for_a_larger_limit(
            parts in prop::collection::vec((0_u32..1_000, 0_u32..20), 1..6),
            total in 0_u64..200,
            more in 0_u64..50,
        ) {
            let (weights, minimums): (Vec<u32>, Vec<u32>) = parts.into_iter().unzip();
            let weights = Weights::new(&named(&weights), &named(&minimums), &[]);
            for (small, large) in weights.divide(total).iter().zip(weights.divide(total + more)) {
                prop_assert!(*small <= large);
            }
        }

        #[test]
        fn the_order_in_which_regions_are_written_does_not_matter(
            parts in prop::collection::vec(0_u32..1_000, 2..6),
            total in 0_u64..100_000,
        ) {
            let shares = named(&parts);
            let turned: Vec<_> = shares.iter().rev().cloned().collect();
            prop_assert_eq!(Weights::new(&shares, &[], &[]).divide(total), Weights::new(&turned, &[], &[]).divide(total));
        }
    }
}
