//! The token bucket of an assignment, in whole seconds as Envoy reads it.

use crate::time::Span;

/// Longest fill interval, in seconds: the least that is assigned is a permit in so long.
const FILL_LONGEST: u32 = 60;
/// The fill interval of rates below one permit a second.
const FILL_SLOW: u32 = 10;
/// From so many permits on no terms of a rate have the tokens of an amount.
const AMOUNT_DISTINCT: u64 = 4;
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

    /// Terms of at most this rate, in thousandths of a permit a second, and of at least one in ten seconds.
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
            _ => Self { max_tokens: 1, tokens_per_fill: 1, fill_interval: FILL_SLOW },
        }
    }

    /// Terms that are worth so many permits while an assignment lives, all at once; `None` where that is less
    /// than the least that can be assigned.
    #[must_use]
    pub fn amount(permits: u64) -> Option<Self> {
        // One of them comes with the fill, which no bucket can be without.
        let max_tokens = u32::try_from(permits.saturating_sub(1)).unwrap_or(u32::MAX);
        match permits {
            0..2 => None,
            2..AMOUNT_DISTINCT => Some(Self::LEAST),
            _ => Some(Self { max_tokens, ..Self::LEAST }),
        }
    }

    /// True for terms that are spent once, and not filled again.
    #[must_use]
    pub fn is_amount(self) -> bool {
        self.fill_interval == FILL_LONGEST
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

    /// How long so many permits are enough for them, from a full bucket; `None`: they are not.
    #[must_use]
    pub fn lives_of(self, permits: u64) -> Option<Span> {
        let filled = u128::from(permits.checked_sub(self.max_tokens.into())?);
        let micros = filled * u128::from(self.fill_interval.max(1)) * 1_000_000
            / u128::from(self.tokens_per_fill.max(1));
        Some(Span(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// Permits that a gateway can spend in `during` if its bucket is full at first.
    #[must_use]
    pub fn worst(self, during: Span) -> u64 {
        u64::from(self.max_tokens).saturating_add(self.filled(during))
    }
}
