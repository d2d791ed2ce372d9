//! Few permits, of which nobody may send one too many: who gives which of them to whom.
//!
//! Everybody works out the same division from what is believed of all, and gives its own part. Parts are
//! whole permits and add up to what is lacked: were each rounded by itself all would give one, or none. Who
//! believes wrongly that another has something to give waits for it in vain; so they take turns.

use smallvec::SmallVec;

use super::super::super::time::Span;

/// For so long the same region has the first turn to give: longer than what it gives is on its way.
const TURN: Span = Span::from_millis(500);

/// What one region has to spare, and what it lacks, in whole permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct WholePermits {
    /// Its place among all, as everybody counts.
    pub(super) order: usize,
    pub(super) spare: u64,
    pub(super) lacks: u64,
    /// For how long it has lacked them.
    pub(super) since: Span,
}

/// What the first region gives to each, in the order of `parts`. What there is to spare is divided in
/// proportion to what each lacks, and each lack among those with something to spare in proportion to that.
pub(super) fn given(parts: &[WholePermits]) -> SmallVec<[u64; 8]> {
    let mut given: SmallVec<[u64; 8]> = SmallVec::from_elem(0, parts.len());
    if parts.first().is_none_or(|own| own.spare == 0) || parts.iter().all(|part| part.lacks == 0) {
        return given;
    }
    let mut spares: SmallVec<[u64; 8]> = parts.iter().map(|part| part.spare).collect();
    let mut places: SmallVec<[usize; 8]> = (0..parts.len()).collect();
    places.sort_by_key(|place| parts.get(*place).map(|part| part.order));
    let lacks = |place: &usize| parts.get(*place).map_or(0, |part| part.lacks);
    let spare: u64 = spares.iter().fold(0, |sum, spare| sum.saturating_add(*spare));
    let missing = places.iter().map(lacks).fold(0, u64::saturating_add);
    let gets = in_proportion(missing.min(spare), &places.iter().map(lacks).collect::<PartWeights>());
    for (place, gets) in places.iter().zip(gets).filter(|(_, gets)| *gets > 0) {
        let since = parts.get(*place).map_or(0, |part| part.since.0 / TURN.0);
        let turn = usize::try_from(since).unwrap_or(0) % places.len().max(1);
        let order = places.iter().cycle().skip(turn).take(places.len());
        let left: PartWeights = order.clone().map(|place| spares.get(*place).copied().unwrap_or(0)).collect();
        for (giver, part) in order.zip(in_proportion(gets, &left)) {
            if let Some(spare) = spares.get_mut(*giver) {
                *spare = spare.saturating_sub(part);
            }
            if let (0, Some(given)) = (*giver, given.get_mut(*place)) {
                *given = part;
            }
        }
    }
    given
}

type PartWeights = SmallVec<[u64; 8]>;

/// Whole parts of `whole` in proportion to `weights`, which add up to it; none is larger than its weight
/// where `whole` is not larger than all of them.
fn in_proportion(whole: u64, weights: &[u64]) -> PartWeights {
    let sum = weights.iter().fold(0, |sum: u128, weight| sum + u128::from(*weight)).max(1);
    let (mut before, mut done) = (0_u128, 0_u128);
    weights
        .iter()
        .map(|weight| {
            before += u128::from(*weight);
            // The first of equals has the first turn.
            let until = (u128::from(whole) * before).div_ceil(sum);
            let part = until - std::mem::replace(&mut done, until);
            u64::try_from(part).unwrap_or(0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As each region in turn sees it: what it gives to each, in the order of all.
    fn all_give(parts: &[(u64, u64, u64)]) -> Vec<Vec<u64>> {
        let part = |order: usize| {
            let (spare, lacks, since) = parts[order];
            WholePermits { order, spare, lacks, since: Span::from_millis(since) }
        };
        let sees = |own: usize| {
            let mut seen: Vec<WholePermits> = (0..parts.len()).map(part).collect();
            seen.swap(0, own);
            let mut given = given(&seen).to_vec();
            given.swap(0, own);
            given
        };
        (0..parts.len()).map(sees).collect()
    }

    #[test]
    fn of_many_who_could_give_one_does_and_after_it_the_next() {
        let gives = |since| {
            let parts = [(1, 0, 0), (1, 0, 0), (0, 1, since), (1, 0, 0)];
            let given = all_give(&parts);
            given.iter().position(|given| given[2] > 0)
        };
        assert_eq!([0, 499, 500, 1_500, 2_000].map(gives), [0, 0, 1, 3, 0].map(Some));
    }

    #[test]
    fn what_is_scarce_goes_to_those_who_lack_most() {
        let given = all_give(&[(3, 0, 0), (3, 0, 0), (0, 8, 0), (0, 4, 0)]);
        let to = |place: usize| given.iter().map(|given| given[place]).sum::<u64>();
        assert_eq!((to(2), to(3)), (4, 2));
    }

    proptest! {
        #[test]
        fn all_together_give_what_is_lacked_and_none_more_than_it_has(
            parts in proptest::collection::vec((0_u64..20, 0_u64..20, 0_u64..5_000), 1..8),
        ) {
            // Nobody who lacks has something to spare.
            let parts: Vec<_> = parts
                .iter()
                .map(|(spare, lacks, since)| if *spare > 9 { (0, *lacks, *since) } else { (*spare, 0, *since) })
                .collect();
            let given = all_give(&parts);
            for (given, (spare, ..)) in given.iter().zip(&parts) {
                prop_assert!(given.iter().sum::<u64>() <= *spare);
            }
            let all: u64 = given.iter().flatten().sum();
            let spare: u64 = parts.iter().map(|part| part.0).sum();
            let lacks: u64 = parts.iter().map(|part| part.1).sum();
            prop_assert_eq!(all, spare.min(lacks));
        }
    }
}
