//! The token bucket of an assignment, in whole seconds as Envoy reads it.

use crate::time::Span;

/// Longest fill interval, in seconds: the least that is assigned is a permit in so long.
const FILL_LONGEST: u32 = 60;
/// The fill interval of rates below one permit a second.
const FILL_SLOW: u32 = 10;
/// Most permits a second that one stream is assigned.
const RATE_MAX: u64 = 10_000_000;

/// A token bucket; all zero denies everything.
///
/// Envoy compares the tokens of two buckets and not the seconds between their fills: one that differs in the
/// latter alone changes nothing. So the tokens say the interval: from 2 of them on it is a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaTerms {
    /// Permits that it holds at most, and when it is new.
    pub max_tokens: u32,
    /// Permits that come with each fill.
    pub tokens_per_fill: u32,
    /// Seconds between fills; at least 1. Below that Envoy 1.40 divides by zero and lets everything pass.
    pub fill_interval: u32,
}

impl QuotaTerms {
    /// Terms under which nothing passes.
    pub const DENY: Self = Self { max_tokens: 0, tokens_per_fill: 0, fill_interval: 1 };
    /// The least that is assigned.
    const LEAST: Self = Self { max_tokens: 1, tokens_per_fill: 1, fill_interval: FILL_LONGEST };

    /// Terms of at most this rate, in thousandths of a permit a second, and of at least a permit a minute.
    #[must_use]
    pub fn of_rate(millis: u64) -> Self {
        let tokens = |per: u64| u32::try_from((millis / per).min(RATE_MAX)).unwrap_or(u32::MAX);
        match millis {
            1_000.. => Self {
                max_tokens: tokens(1_000).div_ceil(2).max(2),
                tokens_per_fill: tokens(1_000),
                fill_interval: 1,
            },
            200.. => Self { max_tokens: 1, tokens_per_fill: tokens(100), fill_interval: FILL_SLOW },
            _ => Self::LEAST,
        }
    }

    /// The largest terms that are worth at most `permits` in `during`; `None` where nothing is.
    #[must_use]
    pub fn worth(permits: u64, during: Span) -> Option<Self> {
        // Permits that fill `during` and one fill to begin with: the largest rate comes near, and rounding
        // takes a step or two more.
        let micros = u128::from(during.0) + 1_000_000;
        let millis = u128::from(permits) * 1_000_000_000 / micros;
        let mut millis = u64::try_from(millis).unwrap_or(u64::MAX);
        for _ in 0..8 {
            let terms = Self::of_rate(millis);
            if terms.worst(during) <= permits {
                return Some(terms);
            }
            millis = (millis - millis / 8).saturating_sub(100);
        }
        (Self::LEAST.worst(during) <= permits).then_some(Self::LEAST)
    }

    /// Thousandths of a permit that they give a second.
    #[must_use]
    pub fn rate(self) -> u64 {
        u64::from(self.tokens_per_fill) * 1_000 / u64::from(self.fill_interval.max(1))
    }

    /// Permits that come in `during`, at most.
    #[must_use]
    pub fn filled(self, during: Span) -> u64 {
        let interval = u128::from(self.fill_interval.max(1)) * 1_000_000;
        let filled = (u128::from(self.tokens_per_fill) * u128::from(during.0)).div_ceil(interval);
        u64::try_from(filled).unwrap_or(u64::MAX)
    }

    /// Permits that a gateway can spend in `during` if its bucket is full at first.
    #[must_use]
    pub fn worst(self, during: Span) -> u64 {
        u64::from(self.max_tokens).saturating_add(self.filled(during))
    }
}
