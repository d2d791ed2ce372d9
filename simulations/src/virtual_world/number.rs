//! Between whole numbers and floats, where a simulation needs both.

use tidegate_core::time::Span;

/// A count as a float. Counts of a simulation are far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "counts of a simulation are far below 2^52")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

/// The same for a length.
pub(crate) fn len(count: usize) -> f64 {
    float(u64::try_from(count).unwrap_or(u64::MAX))
}

/// A float as a whole number, rounded down; zero for what is none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
pub(crate) const fn whole(number: f64) -> u64 {
    number as u64
}

/// A part of a span.
pub(crate) fn part(span: Span, factor: f64) -> Span {
    Span(whole(float(span.0) * factor))
}

/// Seconds.
pub(crate) fn seconds(span: Span) -> f64 {
    float(span.0) / 1e6
}

/// A place in a list as a number that hashes and seeds take.
pub(crate) fn place(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX)
}

/// A number as a place in a list.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
