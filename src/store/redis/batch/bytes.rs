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
use crate::core::calendar::Calendar;
use crate::core::time::Timestamp;
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

/// Appends what `lua/calendar.lua` reads: the windows of the bucket at this place, around `now`.
pub(in crate::store::redis) fn push_calendar(
    bytes: &mut Vec<u8>,
    place: usize,
    calendar: &Calendar,
    now: Timestamp,
) {
    push(bytes, u64::try_from(place).unwrap_or(0), 2);
    let count_at = bytes.len();
    bytes.push(0);
    for (number, stretch) in (1..).zip(calendar.around(now)) {
        push(bytes, stretch.start, 7);
        push(bytes, stretch.first, 6);
        push(bytes, stretch.step, 6);
        if let Some(count) = bytes.get_mut(count_at) {
            *count = number;
        }
    }
}
