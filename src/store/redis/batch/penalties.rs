//! Penalties as the script reads and tells them; see `lua/penalty.lua`.

use crate::core::penalty::{MULTIPLIERS_MAX, PenaltyRecord, PenaltyTerms};
use crate::core::time::Timestamp;
use crate::store::redis::batch::bytes::{pull, push};

/// Longest length that the script is told, in microseconds: longer ones are all alike, and it counts in
/// doubles.
const LENGTH_MAX: u64 = 1 << 50;

/// The terms of every bucket, in order.
pub(in crate::store::redis) fn packed_penalties<'a>(
    of_buckets: impl Iterator<Item = Option<&'a PenaltyTerms>>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for terms in of_buckets {
        let Some(terms) = terms else {
            bytes.push(0);
            continue;
        };
        let multipliers = terms.multipliers.get(..MULTIPLIERS_MAX).unwrap_or(&terms.multipliers);
        bytes.push(u8::try_from(multipliers.len()).unwrap_or(0));
        push(&mut bytes, u64::from(terms.threshold), 4);
        push(&mut bytes, terms.window.0.min(LENGTH_MAX), 7);
        push(&mut bytes, terms.cool_down.0.min(LENGTH_MAX), 7);
        multipliers.iter().for_each(|one| push(&mut bytes, u64::from(*one), 4));
    }
    bytes
}

/// A client's record as it was before the call; an empty one for none. `None`: the server had no room for a
/// new one.
pub(in crate::store::redis) fn read_penalty(bytes: &[u8]) -> Option<PenaltyRecord> {
    if bytes.is_empty() {
        return Some(PenaltyRecord::default());
    }
    let mut rest = bytes;
    let mut number = |len| pull(&mut rest, len);
    Some(PenaltyRecord {
        violations: u32::try_from(number(4)?).ok()?,
        since: Timestamp(number(7)?),
        until: Timestamp(number(7)?),
        step: u8::try_from(number(1)?).ok()?,
        // Daemons of 0.1.0 write none.
        before: number(4).and_then(|before| u32::try_from(before).ok()).unwrap_or(0),
    })
}
