//! A bucket as bytes, for a store outside this process: what `lua/bucket.lua` writes and this reads. Logs are
//! not bytes but lists, and holders a sorted set: both are read where they lie.

use super::level::Level;
use super::{Algorithm, FixedWindow, Gcra, LeakyBucket, SlidingWindow, State, TokenBucket};
use crate::time::Timestamp;

impl Algorithm {
    /// The number that stands for it in stored values and in calls to scripts. Never changes.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::FixedWindow => 1,
            Self::SlidingWindow => 2,
            Self::SlidingLog => 3,
            Self::TokenBucket => 4,
            Self::LeakyBucket => 5,
            Self::Gcra => 6,
            Self::Concurrency => 7,
        }
    }
}

impl State {
    /// The most bytes that [`Self::unpack`] reads.
    #[must_use]
    pub const fn packed_max(algorithm: Algorithm) -> usize {
        match algorithm {
            Algorithm::FixedWindow => 15,
            Algorithm::SlidingWindow => 19,
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => 17,
            Algorithm::SlidingLog | Algorithm::Concurrency => 0,
        }
    }

    /// Reads a bucket from bytes: the newest instant seen (7 bytes), then for `fixed_window` its count (4),
    /// for `sliding_window` this window's count and the one's before (4, 4), for both what is owed (4) where
    /// something is, for the others whole permits and the part of one (4, 6), all big-endian. `None` if the
    /// length is another, and always for a `sliding_log` and for `concurrency`.
    #[must_use]
    pub fn unpack(algorithm: Algorithm, bytes: &[u8]) -> Option<Self> {
        let (at, rest) = number(bytes, 7)?;
        let at = Timestamp(at);
        let (first, rest) = number(rest, 4)?;
        let first = u32::try_from(first).ok()?;
        let level = |rest| {
            let (part, rest) = number(rest, 6)?;
            rest.is_empty().then(|| Level::from_parts(at, first, part))
        };
        let debt = |rest: &[u8]| {
            let (debt, rest) = if rest.is_empty() { (0, rest) } else { number(rest, 4)? };
            u32::try_from(debt).ok().filter(|_| rest.is_empty())
        };
        match algorithm {
            Algorithm::FixedWindow => {
                Some(Self::FixedWindow(FixedWindow::from_parts(at, first, debt(rest)?)))
            }
            Algorithm::SlidingWindow => {
                let (previous, rest) = number(rest, 4)?;
                let previous = u32::try_from(previous).ok()?;
                Some(Self::SlidingWindow(SlidingWindow::from_parts(at, first, previous, debt(rest)?)))
            }
            Algorithm::SlidingLog | Algorithm::Concurrency => None,
            Algorithm::TokenBucket => Some(Self::TokenBucket(TokenBucket::from_level(level(rest)?))),
            Algorithm::LeakyBucket => Some(Self::LeakyBucket(LeakyBucket::from_level(level(rest)?))),
            Algorithm::Gcra => Some(Self::Gcra(Gcra::from_level(level(rest)?))),
        }
    }
}

/// The number in the first `len` bytes, and what follows.
fn number(bytes: &[u8], len: usize) -> Option<(u64, &[u8])> {
    let (own, rest) = bytes.split_at_checked(len)?;
    Some((own.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Limit;
    use crate::time::Span;
    use proptest::prelude::*;

    #[test]
    fn a_packed_count_is_read_as_it_was_written() {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(1), burst: 10, queue: 0 };
        let bytes = [0, 0, 0, 0, 0x0f, 0x42, 0x41, 0, 0, 0, 3];
        let mut counted = State::new(Algorithm::FixedWindow);
        counted.take(&limit, Timestamp(1_000_001), 3);
        assert_eq!(State::unpack(Algorithm::FixedWindow, &bytes), Some(counted));
    }

    proptest! {
        #[test]
        fn any_bytes_unpack_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
            for algorithm in [
                Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::TokenBucket,
                Algorithm::LeakyBucket, Algorithm::Gcra, Algorithm::Concurrency,
            ] {
                let _ = State::unpack(algorithm, &bytes);
            }
        }
    }
}
