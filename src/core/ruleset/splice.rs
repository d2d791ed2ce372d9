//! A list in order of precedence with a few members exchanged, at the cost of copying it and not of sorting
//! it.

use super::Compiled;
use crate::rule::Rule;

/// Returns what rules are ordered by.
pub(super) fn precedence(rule: &Rule) -> (i32, &str) {
    (rule.priority, &rule.name)
}

/// The places of a list that are given up, and those before which new members stand.
#[derive(Debug)]
pub(super) struct Splice {
    /// Places of the old list that are given up, sorted.
    gone: Vec<usize>,
    /// Sorted; places of the old list.
    put: Vec<usize>,
}

impl Splice {
    /// Returns what makes of `old` the list without `gone` and with `put`, all three in order of precedence.
    /// A rule that `old` does not have cannot go.
    pub(super) fn new<T>(
        old: &[T],
        compiled: impl Fn(&T) -> &Compiled,
        gone: &[&Rule],
        put: &[&Rule],
    ) -> Self {
        let place =
            |rule: &&Rule| old.binary_search_by(|own| precedence(&compiled(own).rule).cmp(&precedence(rule)));
        Self {
            gone: gone.iter().filter_map(|rule| place(rule).ok()).collect(),
            put: put.iter().map(|rule| place(rule).unwrap_or_else(|before| before)).collect(),
        }
    }

    /// The new list. `put` has a member for each that is put, in the same order.
    pub(super) fn list<T: Clone>(&self, old: &[T], put: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut list = Vec::with_capacity((old.len() + self.put.len()).saturating_sub(self.gone.len()));
        let mut put = put.into_iter();
        let (mut before, mut gone, mut from) = (self.put.iter().peekable(), self.gone.iter().peekable(), 0);
        loop {
            let next = before.peek().copied().into_iter().chain(gone.peek().copied()).min();
            let to = next.copied().unwrap_or(old.len());
            list.extend_from_slice(old.get(from..to).unwrap_or_default());
            from = to;
            if before.next_if(|place| **place == to).is_some() {
                list.extend(put.next());
            } else if gone.next_if(|place| **place == to).is_some() {
                from = to + 1;
            } else {
                return list;
            }
        }
    }

    /// Returns where the member that stood at this place stands in the new list; `None`: it is gone.
    pub(super) fn place(&self, old: usize) -> Option<usize> {
        let Err(gone) = self.gone.binary_search(&old) else { return None };
        Some(old - gone + self.put.partition_point(|before| *before <= old))
    }

    /// Returns where the new members stand in the new list, in their order.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.put
            .iter()
            .enumerate()
            .map(|(earlier, before)| before + earlier - self.gone.partition_point(|gone| gone < before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_spliced_list_is_the_list_sorted_anew(
            old in proptest::collection::btree_set(0..60_usize, 0..40),
            gone in proptest::collection::btree_set(0..60_usize, 0..10),
            put in proptest::collection::btree_set(0..60_usize, 0..10),
        ) {
            let put: Vec<usize> = put.into_iter().filter(|n| !old.contains(n) || gone.contains(n)).collect();
            let old: Vec<usize> = old.into_iter().collect();
            let find = |n: &usize| old.binary_search(n);
            let splice = Splice {
                gone: gone.iter().filter_map(|n| find(n).ok()).collect(),
                put: put.iter().map(|n| find(n).unwrap_or_else(|before| before)).collect(),
            };
            let mut expected: Vec<usize> = old.iter().filter(|n| !gone.contains(n)).chain(&put).copied().collect();
            expected.sort_unstable();
            prop_assert_eq!(&splice.list(&old, put.iter().copied()), &expected);
            for (place, member) in old.iter().enumerate() {
                let stays = (!gone.contains(member)).then(|| expected.binary_search(member).unwrap());
                prop_assert_eq!(splice.place(place), stays);
            }
            let places: Vec<usize> = put.iter().map(|member| expected.binary_search(member).unwrap()).collect();
            prop_assert_eq!(splice.places().collect::<Vec<_>>(), places);
        }
    }
}
