//! The durations of decisions, in a form that adds up: counts by log-linear buckets.
//!
//! The average of two percentiles is no percentile; the sum of two of these is what one histogram over
//! everything would have been. Values are microseconds: 0 to 3 exactly, then four buckets to each doubling,
//! up to 16 s. A percentile read from it is at most an eighth off.

/// Buckets in all; the last also holds everything longer.
pub const BUCKETS: usize = 4 + 4 * 22;

/// Bits of a count in [`Histogram::packed`].
const COUNT_BITS: u32 = 48;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Counts by bucket. Trailing buckets without counts are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram(Vec<u64>);

fn bucket(micros: u32) -> usize {
    if micros < 4 {
        return usize::try_from(micros).unwrap_or(0);
    }
    let octave = micros.ilog2();
    let part = (micros >> (octave - 2)) & 3;
    let index = 4 + 4 * (octave - 2) + part;
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The smallest value of a bucket, in microseconds.
fn floor(bucket: usize) -> u64 {
    let index = u64::try_from(bucket).unwrap_or(u64::MAX);
    if index < 4 {
        return index;
    }
    let (octave, part) = ((index - 4) / 4, index % 4);
    (4 + part) << octave
}

impl Histogram {
    /// Reads what [`Self::packed`] wrote, in any order and any number of times: equal places add up. A number
    /// without a place has the one it stands at, as histograms of an older form do; places beyond the last
    /// are the last.
    #[must_use]
    pub fn from_packed(packed: impl IntoIterator<Item = u64>) -> Self {
        let mut histogram = Self::default();
        for (at, number) in packed.into_iter().enumerate() {
            let place = match usize::try_from(number >> COUNT_BITS) {
                Ok(0) => at,
                place => place.map_or(BUCKETS, |place| place - 1),
            };
            histogram.add_at(place.min(BUCKETS - 1), number & COUNT_MAX);
        }
        histogram
    }

    /// One number for each count that is not zero, as the database keeps them: its place, from 1, above 48
    /// bits of the count.
    pub fn packed(&self) -> impl Iterator<Item = u64> {
        let counts = (1..).zip(&self.0).filter(|(_, count)| **count > 0);
        counts.map(|(place, count): (u64, _)| (place << COUNT_BITS) | (*count).min(COUNT_MAX))
    }

    fn add_at(&mut self, bucket: usize, times: u64) {
        if self.0.len() <= bucket {
            self.0.resize(bucket + 1, 0);
        }
        self.0[bucket] = self.0[bucket].saturating_add(times);
    }

    /// Adds `times` decisions that took this long.
    pub fn add(&mut self, micros: u32, times: u64) {
        self.add_at(bucket(micros), times);
    }

    /// Adds another one.
    pub fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, more) in self.0.iter_mut().zip(&other.0) {
            *own = own.saturating_add(*more);
        }
    }

    /// Counts by bucket.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// The value that `per_mille` of a thousand do not exceed, in microseconds: the middle of its bucket.
    /// `None` if empty.
    #[must_use]
    pub fn percentile(&self, per_mille: u16) -> Option<u64> {
        let total: u128 = self.0.iter().map(|count| u128::from(*count)).sum();
        if total == 0 {
            return None;
        }
        let rank = (total * u128::from(per_mille.min(1_000))).div_ceil(1_000).max(1);
        let mut seen = 0_u128;
        let found = self.0.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        })?;
        Some(u64::midpoint(floor(found), floor(found + 1) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_bucket_begins_where_the_one_before_ends() {
        for index in 0..BUCKETS - 1 {
            let first = u32::try_from(floor(index)).unwrap();
            let last = u32::try_from(floor(index + 1) - 1).unwrap();
            assert_eq!((bucket(first), bucket(last)), (index, index));
        }
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn percentiles_of_sums_are_those_of_everything(
            one in proptest::collection::vec(0_u32..10_000_000, 1..200),
            other in proptest::collection::vec(0_u32..10_000_000, 0..200),
            per_mille in 0_u16..=1_000,
        ) {
            let of = |values: &[u32]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|value| histogram.add(*value, 1));
                histogram
            };
            let mut merged = of(&one);
            merged.merge(&of(&other));
            let mut all = [one, other].concat();
            prop_assert_eq!(&merged, &of(&all));
            all.sort_unstable();
            let rank = (all.len() * usize::from(per_mille)).div_ceil(1_000).max(1) - 1;
            let exact = f64::from(all[rank]);
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let read = merged.percentile(per_mille).unwrap() as f64;
            prop_assert!((read - exact).abs() <= exact / 8.0 + 0.5, "{read} for {exact}");
        }

        #[test]
        fn what_is_packed_adds_up_in_any_order(
            one in proptest::collection::vec(0_u32..10_000_000, 0..50),
            other in proptest::collection::vec(0_u32..10_000_000, 0..50),
        ) {
            let of = |values: &[u32]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|value| histogram.add(*value, 1));
                histogram
            };
            let both: Vec<u64> = of(&one).packed().chain(of(&other).packed()).collect();
            prop_assert_eq!(Histogram::from_packed(both.iter().rev().copied()), of(&[one.clone(), other].concat()));
            // As it was kept before, with zeros and without places.
            prop_assert_eq!(Histogram::from_packed(of(&one).counts().iter().copied()), of(&one));
        }

        #[test]
        fn any_numbers_are_read(numbers in proptest::collection::vec(any::<u64>(), 0..200)) {
            let histogram = Histogram::from_packed(numbers);
            prop_assert!(histogram.counts().len() <= BUCKETS);
            let _ = histogram.percentile(500);
        }
    }
}
