//! Points in time and lengths of time, both in whole microseconds.
//!
//! Microseconds are what the region's store (`TIME` in Redis) and the protocol between regions count in. Both
//! types saturate: no input makes them overflow.

use std::ops::{Add, Sub};

/// A point in time: microseconds since the Unix epoch, UTC.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Timestamp(pub u64);

/// A length of time in microseconds.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Span(pub u64);

impl Timestamp {
    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Returns how long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The index of the window of length `window` that contains this instant. Windows are aligned to the
    /// epoch, so that every region counts the same ones.
    #[must_use]
    pub const fn window_index(self, window: Span) -> u64 {
        match self.0.checked_div(window.0) {
            Some(index) => index,
            None => self.0,
        }
    }

    /// Returns the begin of the window with this index.
    #[must_use]
    pub const fn window_start(index: u64, window: Span) -> Self {
        Self(index.saturating_mul(window.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Its length in microseconds.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up: who waits that long has waited long enough.
    #[must_use]
    pub const fn millis_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Whole seconds, rounded up.
    #[must_use]
    pub const fn secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The same length for the standard library.
    #[must_use]
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }
}

impl From<std::time::Duration> for Span {
    fn from(length: std::time::Duration) -> Self {
        Self(u64::try_from(length.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Span {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}
