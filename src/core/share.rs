//! How a limit is shared out over regions: whole permits that add up to it exactly.
//!
//! Every region works this out for itself from the same rule, so it is a pure function of weights, minimums and names:
//! the largest-remainder method (Hamilton), ties to the name that sorts first.

use smallvec::SmallVec;

/// The weights of one rule over its regions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Weights {
    /// Sorted by region, each once.
    parts: Vec<Part>,
}

/// One region's part.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
struct Part {
    region: String,
    weight: u32,
    minimum_percent: u32,
}

impl Weights {
    /// The weights in `shares`, with `minimums` in percent of the limit. A region of `regions` that `shares` does not
    /// name has none; if `shares` is empty all of `regions` weigh the same.
    #[must_use]
    pub fn new(shares: &[(String, u32)], minimums: &[(String, u32)], regions: &[String]) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        let of = |list: &[(String, u32)], region: &str| {
            list.iter().find(|(name, _)| name == region).map(|(_, number)| *number)
        };
        let names = shares.iter().chain(minimums).map(|(region, _)| region).chain(regions);
        for region in names {
            let weight = if shares.is_empty() { 1 } else { of(shares, region).unwrap_or(0) };
            let minimum_percent = of(minimums, region).unwrap_or(0);
            parts.push(Part { region: region.clone(), weight, minimum_percent });
        }
        parts.sort_by(|a, b| a.region.cmp(&b.region));
        parts.dedup_by(|a, b| a.region == b.region);
        Self { parts }
    }

    /// The regions, sorted.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.region.as_str())
    }

    /// Each region with its weight and its minimum in percent, sorted by region.
    pub fn parts(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.parts.iter().map(|part| (part.region.as_str(), part.weight, part.minimum_percent))
    }

    /// What `region` may spend of `total` permits; 0 for a region that has no part.
    #[must_use]
    pub fn of(&self, total: u64, region: &str) -> u64 {
        let Ok(place) = self.parts.binary_search_by(|part| part.region.as_str().cmp(region)) else {
            return 0;
        };
        self.divide(total).get(place).copied().unwrap_or(0)
    }

    /// All shares of `total` permits, in the order of [`Self::regions`]. They add up to `total` wherever there is a
    /// region with a weight.
    #[must_use]
    pub fn divide(&self, total: u64) -> SmallVec<[u64; 8]> {
        let minimum = |part: &Part| share_of(total, u64::from(part.minimum_percent), 100);
        let mut held: SmallVec<[bool; 8]> = SmallVec::from_elem(false, self.parts.len());
        loop {
            let free = || self.parts.iter().zip(&held).filter(|(_, held)| !**held).map(|(part, _)| part);
            let kept: u64 =
                self.parts.iter().zip(&held).filter(|(_, held)| **held).map(|(p, _)| minimum(p)).sum();
            let rest = total.saturating_sub(kept);
            let weights: u64 = free().map(|part| u64::from(part.weight)).sum();
            let below: SmallVec<[usize; 8]> = (0..self.parts.len())
                .filter(|place| {
                    let part = &self.parts[*place];
                    !held[*place] && share_of(rest, u64::from(part.weight), weights) < minimum(part)
                })
                .collect();
            if below.is_empty() {
                return self.largest_remainders(rest, weights, &held, minimum);
            }
            for place in below {
                held[place] = true;
            }
        }
    }

    fn largest_remainders(
        &self,
        rest: u64,
        weights: u64,
        held: &[bool],
        minimum: impl Fn(&Part) -> u64,
    ) -> SmallVec<[u64; 8]> {
        let mut shares: SmallVec<[u64; 8]> = SmallVec::new();
        let mut remainders: SmallVec<[(u128, usize); 8]> = SmallVec::new();
        let mut left = rest;
        for (place, part) in self.parts.iter().enumerate() {
            if held[place] {
                shares.push(minimum(part));
                continue;
            }
            let whole = share_of(rest, u64::from(part.weight), weights);
            left = left.saturating_sub(whole);
            shares.push(whole);
            if part.weight > 0 {
                let exact = u128::from(rest) * u128::from(part.weight);
                remainders.push((exact % u128::from(weights.max(1)), place));
            }
        }
        remainders.sort_by(|(a, first), (b, second)| b.cmp(a).then(first.cmp(second)));
        for (_, place) in remainders {
            if left == 0 {
                break;
            }
            shares[place] += 1;
            left -= 1;
        }
        shares
    }
}

/// `total · part / whole`, rounded down; 0 of nothing.
fn share_of(total: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(total) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
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
    fn a_minimum_is_taken_from_the_others_by_weight() {
        let weights = Weights::new(&named(&[90, 9, 1]), &named(&[0, 0, 20]), &[]);
        assert_eq!(weights.divide(100).as_slice(), [73, 7, 20]);
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
