//! The speed at which a bucket without windows refills.

use crate::algorithm::Limit;
use crate::regions::fair_share::UNIT;
use crate::time::Span;

/// The permits that a limit refills in `span`, in millionths.
pub(super) fn refill(limit: Limit, span: Span) -> i128 {
    i128::from(limit.permits) * i128::from(span.0) * UNIT / i128::from(limit.window.0.max(1))
}

/// Twice the time that a bucket takes to refill from empty to full.
pub(super) fn drained(limit: Limit) -> Span {
    let most = u128::from(limit.burst.max(limit.permits));
    let refill = most * u128::from(limit.window.0) / u128::from(limit.permits.max(1));
    Span(u64::try_from(refill).unwrap_or(u64::MAX).saturating_mul(2))
}
