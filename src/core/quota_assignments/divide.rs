//! How a rate is divided between streams: by max-min of what they need.

/// The highest rate that any stream may have, so that all of them together have at most `whole`: a stream
/// that needs less has what it needs, and the others share the rest equally. Sorts `needs`.
pub(super) fn level(whole: u64, needs: &mut [u64]) -> u64 {
    needs.sort_unstable();
    let (mut left, mut streams) = (whole, u64::try_from(needs.len()).unwrap_or(u64::MAX));
    for need in needs {
        let equal = left.checked_div(streams).unwrap_or(left);
        if *need > equal {
            return equal;
        }
        left -= *need;
        streams -= 1;
    }
    u64::MAX
}
