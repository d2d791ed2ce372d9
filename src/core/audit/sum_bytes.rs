//! The bytes of sums, as a batch of the spool carries them.

use super::histogram::Histogram;
use super::record::HexBytes;
use super::usage::{Usage, UsageKey};
use crate::time::Timestamp;

/// Writes sums one after the other: the minute, the counts, the permits, the texts, the latencies.
#[must_use]
pub fn write_sums(sums: &[(UsageKey, Usage)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(sums.len() * 128);
    for (key, usage) in sums {
        out.extend_from_slice(&key.minute.micros().to_le_bytes());
        for count in [usage.allowed, usage.throttled, usage.denied, usage.blocked] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&usage.cost.to_le_bytes());
        for text in [&key.rule, &key.user, &key.path, &key.key] {
            write_len(&mut out, text.len());
            out.extend_from_slice(text.as_bytes());
        }
        write_len(&mut out, usage.latency.packed().count());
        usage.latency.packed().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }
    out
}

fn write_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

/// Reads what [`write_sums`] wrote; `None` if it is anything else.
#[must_use]
pub fn read_sums(bytes: &[u8]) -> Option<Vec<(UsageKey, Usage)>> {
    let mut rest = HexBytes(bytes);
    let mut sums = Vec::new();
    while !rest.0.is_empty() {
        sums.push(read_sum(&mut rest)?);
    }
    Some(sums)
}

fn read_sum(bytes: &mut HexBytes<'_>) -> Option<(UsageKey, Usage)> {
    let minute = Timestamp(u64::from_le_bytes(bytes.array()?));
    let [allowed, throttled, denied, blocked] =
        [read_number(bytes)?, read_number(bytes)?, read_number(bytes)?, read_number(bytes)?];
    let cost = i64::from_le_bytes(bytes.array()?);
    let [rule, user, path, key] =
        [read_text(bytes)?, read_text(bytes)?, read_text(bytes)?, read_text(bytes)?];
    let len = read_len(bytes)?;
    // Each takes 8 bytes: a number of them that cannot be true ends the reading before any room is made.
    let packed = bytes.take(len.checked_mul(8)?)?;
    let (packed, _) = packed.as_chunks::<8>();
    let latency = Histogram::from_packed(packed.iter().map(|number| u64::from_le_bytes(*number)));
    let usage = Usage { allowed, throttled, denied, blocked, cost, latency };
    Some((UsageKey { minute, rule, user, path, key }, usage))
}

fn read_number(bytes: &mut HexBytes<'_>) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.array()?))
}

fn read_len(bytes: &mut HexBytes<'_>) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes.array()?)).ok()
}

fn read_text(bytes: &mut HexBytes<'_>) -> Option<String> {
    let len = read_len(bytes)?;
    std::str::from_utf8(bytes.take(len)?).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum() -> impl Strategy<Value = (UsageKey, Usage)> {
        let texts = (".{0,20}", ".{0,20}", ".{0,20}", ".{0,20}");
        let counts = (0..9_u64, 0..9_u64, 0..9_u64, 0..9_u64, any::<i64>());
        let latencies = proptest::collection::vec((any::<u32>(), 1..9_u64), 0..5);
        (any::<u64>(), texts, counts, latencies).prop_map(|(at, texts, counts, latencies)| {
            let (rule, user, path, key) = texts;
            let (allowed, throttled, denied, blocked, cost) = counts;
            let mut latency = Histogram::default();
            latencies.into_iter().for_each(|(micros, times)| latency.add(micros, times));
            let usage = Usage { allowed, throttled, denied, blocked, cost, latency };
            (UsageKey { minute: Timestamp(at), rule, user, path, key }, usage)
        })
    }

    proptest! {
        #[test]
        fn sums_come_back_as_they_were(sums in proptest::collection::vec(sum(), 0..5)) {
            prop_assert_eq!(read_sums(&write_sums(&sums)), Some(sums));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_sums(&bytes);
        }

        #[test]
        fn sums_cut_short_are_no_sums(one in sum(), cut in any::<proptest::sample::Index>()) {
            let bytes = write_sums(&[one]);
            let end = 1 + cut.index(bytes.len() - 1);
            prop_assert_eq!(read_sums(&bytes[..end]).is_some(), end == bytes.len());
        }
    }
}
