//! Latencies in fixed buckets: 64 to each power of two, so a read value is at most 1/64 above the true one.

const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
/// Longest latency told apart, in ns (about 18 minutes); anything above counts as that long.
const NANOS_MAX: u64 = (1 << 40) - 1;
const BUCKETS: usize = SUB * (40 - SUB_BITS as usize + 1);

/// The number of occurrences of each length of time.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Counts one latency.
    pub(super) fn record(&mut self, nanos: u64) {
        if let Some(count) = self.counts.get_mut(index(nanos)) {
            *count += 1;
            self.total += 1;
            self.max_ns = self.max_ns.max(nanos);
        }
    }

    /// Adds what another one counted.
    pub(super) fn merge(&mut self, other: &Self) {
        for (own, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *own += theirs;
        }
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The latency, in ns, that `per_mille` of all stay at or below; zero when nothing was counted.
    pub(super) fn quantile_ns(&self, per_mille: u64) -> u64 {
        let rank = (self.total.saturating_mul(per_mille)).div_ceil(1_000);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && seen > 0 {
                return top(index).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The longest, in ns, exactly.
    pub(super) fn max_ns(&self) -> u64 {
        self.max_ns
    }
}

/// The bucket of a latency: its magnitude, then its leading bits.
fn index(nanos: u64) -> usize {
    let nanos = nanos.min(NANOS_MAX);
    let magnitude = (u64::BITS - nanos.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let leading = usize::try_from(nanos >> magnitude).unwrap_or(usize::MAX);
    magnitude as usize * SUB + leading
}

/// The longest latency of a bucket.
fn top(index: usize) -> u64 {
    if index < 2 * SUB {
        return index as u64;
    }
    let magnitude = index / SUB - 1;
    let leading = (index - magnitude * SUB) as u64;
    ((leading + 1) << magnitude) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_falls_into_a_bucket_whose_top_is_at_most_a_64th_above_it() {
        let mut nanos = 1;
        while nanos < NANOS_MAX {
            for value in [nanos - 1, nanos, nanos + nanos / 3] {
                let read = top(index(value));
                assert!(read >= value && read - value <= value / 64, "{value} read as {read}");
            }
            nanos *= 2;
        }
        assert!(index(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_read_in_order_and_the_last_is_the_maximum() {
        let mut histogram = Histogram::default();
        for micros in 1..=1_000_u64 {
            histogram.record(micros * 1_000);
        }
        let near = |read: u64, want: u64| read >= want && read <= want + want / 64;
        assert!(near(histogram.quantile_ns(500), 500_000));
        assert!(near(histogram.quantile_ns(990), 990_000));
        assert_eq!(histogram.quantile_ns(1_000), 1_000_000);
        assert_eq!(histogram.max_ns(), 1_000_000);
    }

    #[test]
    fn merging_equals_counting_together() {
        let (mut one, mut other, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for value in [3, 70, 9_000, 1 << 33] {
            one.record(value);
            other.record(value * 2);
            both.record(value);
            both.record(value * 2);
        }
        one.merge(&other);
        for per_mille in [1, 250, 500, 999, 1_000] {
            assert_eq!(one.quantile_ns(per_mille), both.quantile_ns(per_mille));
        }
    }

    #[test]
    fn an_empty_histogram_reads_as_zero() {
        assert_eq!(Histogram::default().quantile_ns(990), 0);
    }
}
