//! Numbers as the scripts read and write them: highest byte first.

/// Appends the lowest `len` bytes of a number, highest first.
pub(in crate::store::redis) fn push(bytes: &mut Vec<u8>, number: u64, len: usize) {
    let all = number.to_be_bytes();
    bytes.extend_from_slice(all.get(all.len() - len..).unwrap_or_default());
}

/// Takes a number of `len` bytes off the front.
pub(in crate::store::redis) fn pull(rest: &mut &[u8], len: usize) -> Option<u64> {
    let (own, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(own.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

use crate::core::algorithm::{Algorithm, Counting};
use crate::engine::port::HeldLimit;

/// What scripts are told in one place: how many permits a level holds at most, or of windows and places what
/// is this region's own.
pub(in crate::store::redis) const fn burst_or_share(algorithm: Algorithm, held: HeldLimit) -> u32 {
    match (algorithm.counting(), held.share) {
        (Counting::Level, _) => held.limit.burst,
        (Counting::Window | Counting::Concurrency, Some(share)) => share,
        (Counting::Window | Counting::Concurrency, None) => held.limit.permits,
    }
}
