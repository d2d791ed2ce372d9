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
