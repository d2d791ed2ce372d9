//! The part of one bucket that the rest of the world leaves to a region: one way to say it for each way to
//! count.
//!
//! Places need none: what a region may hold of them is said by the limit that holders are checked against
//! (see [`crate::regions::escrow::places`]).

use super::aligned::{WindowPlace, WindowShare, faded, weighted};
use super::{Algorithm, Limit, level};
use crate::time::{Span, Timestamp};

/// The part of a worldwide limit that a store is told to enforce, beside the limit itself. Computed by
/// [`crate::regions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// Of a bucket that counts by windows: a budget.
    Window(WindowAllowance),
    /// Of a level under `gossip`: what is held back for other regions.
    Level(LevelAllowance),
    /// Of a level under `escrow`: what of other regions' permits may be used here.
    Kept {
        /// Permits beyond the capacity; see [`crate::regions::escrow::level`].
        permits: u64,
    },
}

/// The permits that a region may admit in one window, and those that others admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowAllowance {
    /// The index of the window that `budget` and `others` speak of.
    pub window: u64,
    /// Permits that this region may admit in `window`.
    pub budget: u32,
    /// Permits that this region may admit in the window after it, until a newer allowance arrives.
    pub next_budget: u32,
    /// Permits that the other regions are known to have admitted in `window`.
    pub others: u64,
    /// Permits that the other regions admitted in the window before (sliding algorithms only).
    pub others_before: u64,
}

/// What is held back of a level for other regions: `held_back` permits at `since`, from then on more by
/// `growth`, and at most `held_back_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LevelAllowance {
    /// The instant at which `held_back` is held back.
    pub since: Timestamp,
    /// Permits held back at that instant.
    pub held_back: u64,
    /// By how many permits this grows in the time that the limit calls its window.
    pub growth: u32,
    /// The most permits that are ever held back.
    pub held_back_max: u32,
    /// Permits that the bucket holds by the limit that was divided; zero: not known.
    pub capacity: u32,
}

impl Allowance {
    /// Returns what it says of windows; `None` where it speaks of a level.
    #[must_use]
    pub const fn as_window(&self) -> Option<&WindowAllowance> {
        match self {
            Self::Window(window) => Some(window),
            Self::Level(_) | Self::Kept { .. } => None,
        }
    }

    /// Returns what it holds back of a level; `None` where it does not.
    #[must_use]
    pub const fn as_level(&self) -> Option<&LevelAllowance> {
        match self {
            Self::Level(level) => Some(level),
            Self::Window(_) | Self::Kept { .. } => None,
        }
    }

    /// Permits of the limit that the other regions are known to have in use at `now`. Of a level nothing:
    /// their use is charged to it.
    #[must_use]
    pub fn others_at(&self, algorithm: Algorithm, limit: &Limit, now: Timestamp) -> u64 {
        let Self::Window(view) = self else { return 0 };
        let place = WindowPlace::of(limit, now);
        let share = WindowShare::of(limit, Some(view), place.index);
        let (left, length) = (place.left(), place.length);
        // As each of them counts what fades.
        let before = match algorithm {
            Algorithm::SlidingWindow => faded(share.others_before.into(), left, length),
            Algorithm::SlidingLog => weighted(share.others_before, left, length),
            _ => 0,
        };
        share.others.saturating_add(before)
    }

    /// The same of one that may be missing.
    pub(super) fn window_of(allowance: Option<&Self>) -> Option<&WindowAllowance> {
        allowance.and_then(Self::as_window)
    }

    /// How many permits more than its capacity a level holds.
    pub(super) const fn kept_of(allowance: Option<&Self>) -> u64 {
        match allowance {
            Some(Self::Kept { permits }) => *permits,
            Some(Self::Window(_) | Self::Level(_)) | None => 0,
        }
    }

    /// How long until an amount that is missing of a level is free beside what is held back of it.
    pub(super) fn time_to_free(
        allowance: Option<&Self>,
        limit: &Limit,
        now: Timestamp,
        missing: u128,
    ) -> Span {
        match allowance.and_then(Self::as_level) {
            Some(level) => level.time_to_free(limit, now, missing),
            None => level::time_to_drain(missing, limit),
        }
    }

    /// Returns what is held back of a level for others at `now`, in 1/window permits.
    pub(super) fn held_of(allowance: Option<&Self>, limit: &Limit, now: Timestamp) -> u128 {
        allowance.and_then(Self::as_level).map_or(0, |level| level.held(limit, now))
    }
}

impl LevelAllowance {
    /// Returns what is held back for others at `now`, in 1/window permits.
    #[must_use]
    pub(crate) fn held(&self, limit: &Limit, now: Timestamp) -> u128 {
        let window = u128::from(limit.window.0.max(1));
        let since = u128::from(now.since(self.since).0);
        let held = u128::from(self.held_back) * window + u128::from(self.growth) * since;
        held.min(u128::from(self.held_back_max) * window)
    }

    /// The same in whole permits, a started one counted.
    #[must_use]
    pub fn held_up(&self, limit: &Limit, now: Timestamp) -> u64 {
        level::permits_in_up(self.held(limit, now), limit)
    }

    /// What drains is held back in part, until no more is held back than ever will be.
    fn time_to_free(&self, limit: &Limit, now: Timestamp, missing: u128) -> Span {
        let most = u128::from(self.held_back_max) * u128::from(limit.window.0.max(1));
        let room = most.saturating_sub(self.held(limit, now));
        let at_most = level::time_to_drain(missing + room, limit);
        match limit.permits.saturating_sub(self.growth) {
            0 => at_most,
            permits => level::time_to_drain(missing, &Limit { permits, ..*limit }).min(at_most),
        }
    }
}
