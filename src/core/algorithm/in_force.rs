//! What a region keeps to while no view speaks of now: nobody used the bucket for long, or its daemon has not
//! looked at it yet.
//!
//! A daemon looks at a bucket some milliseconds after its first request. Until then its store keeps to what
//! the last view gave the region, and where there is none to the region's first share: what all regions may
//! use unheard adds up to the limit.
//!
//! Regions do not forget at the same instant. So a region that the last view gave more than its first share
//! keeps to the share two windows before a region that was given less: in between all of them together are
//! given less than the limit, and never more.

use super::{Algorithm, Allowance, Counting, LevelAllowance, Limit, WindowAllowance};
use crate::time::{Span, Timestamp};

/// A bucket with windows is remembered for so many of them.
const WINDOWS: u64 = 16;
/// It is remembered for at least this long.
const REMEMBERED_MIN: Span = Span::from_secs(60);
/// It is remembered for at most this long, or for three windows.
const REMEMBERED_MAX: Span = Span::from_secs(300);
/// By so many windows the looks of two regions may lie apart.
const APART: u64 = 2;
/// A view of a bucket without windows is told anew within so long while somebody looks at the bucket.
pub const LEVEL_TOLD: Span = Span::from_secs(20);
/// A view of a bucket without windows speaks for so long.
pub const LEVEL_SPEAKS: Span = Span::from_secs(60);
/// A view of a bucket without windows is kept for so long.
const LEVEL_KEPT: Span = Span::from_secs(90);

/// For how long a daemon remembers a bucket with windows of this length that nobody uses.
#[must_use]
pub fn remembered(window: Span) -> Span {
    Span(window.0.saturating_mul(WINDOWS)).max(REMEMBERED_MIN).min(REMEMBERED_MAX)
}

/// For how many windows after its own a view may speak.
fn windows_spoken_of(window: Span) -> u64 {
    (remembered(window).0 / window.0.max(1)).max(3)
}

impl Allowance {
    /// For how long a store keeps a view that was told now. `window` is the bucket's, where it counts by
    /// windows.
    #[must_use]
    pub fn kept_for(window: Option<Span>) -> Span {
        // A window longer than it is spoken of, for clocks that differ.
        let windows = |window: Span| Span(window.0.saturating_mul(windows_spoken_of(window) + APART + 2));
        window.map_or(LEVEL_KEPT, windows)
    }

    /// What is enforced at `now`: the view that was told while it speaks of now, and else what stands for it.
    /// `first` is the region's first share; where there is none, only what was told is enforced.
    #[inline]
    #[must_use]
    pub fn in_force(
        told: Option<&Self>,
        first: Option<u32>,
        algorithm: Algorithm,
        limit: &Limit,
        now: Timestamp,
    ) -> Option<Self> {
        if told.is_none() && first.is_none() {
            return None;
        }
        Self::told_or_first(told, first, algorithm, limit, now)
    }

    fn told_or_first(
        told: Option<&Self>,
        first: Option<u32>,
        algorithm: Algorithm,
        limit: &Limit,
        now: Timestamp,
    ) -> Option<Self> {
        match (algorithm.counting(), told) {
            (Counting::Level, Some(Self::Kept { .. })) => told.copied(),
            (Counting::Level, _) => {
                let told = told.and_then(Self::as_level);
                let told = told.map(|told| told.of_capacity(limit.capacity(algorithm)));
                let Some(first) = first else { return told.map(Self::Level) };
                let held = limit.capacity(algorithm).saturating_sub(u64::from(first));
                Some(Self::Level(LevelAllowance::in_force(told, held, now)))
            }
            (Counting::Window | Counting::Concurrency, _) => {
                let told = Self::window_of(told);
                let Some(first) = first else { return told.copied().map(Self::Window) };
                Some(Self::Window(WindowAllowance::in_force(told, first, limit, now)))
            }
        }
    }

    /// Whether what is enforced is what was told, and not what stands for it while nothing that was told
    /// speaks of now.
    #[inline]
    #[must_use]
    pub fn is_told(enforced: Option<&Self>, told: Option<&Self>) -> bool {
        match (enforced, told) {
            (Some(Self::Window(enforced)), Some(Self::Window(told))) => enforced.window == told.window,
            (Some(Self::Level(enforced)), Some(Self::Level(told))) => enforced.since == told.since,
            (Some(Self::Kept { .. }), Some(Self::Kept { .. })) | (None, None) => true,
            _ => false,
        }
    }
}

impl WindowAllowance {
    fn in_force(told: Option<&Self>, first: u32, limit: &Limit, now: Timestamp) -> Self {
        let window = limit.windows().index(now);
        let budget = match told {
            Some(told) if told.window <= window => match window - told.window {
                0 | 1 => return *told,
                age if age <= windows_spoken_of(limit.window) => told.next_budget,
                age if age <= windows_spoken_of(limit.window) + APART => told.next_budget.min(first),
                _ => first,
            },
            _ => first,
        };
        Self { window, budget, next_budget: budget, ..Self::default() }
    }
}

impl LevelAllowance {
    /// The same part of a level for a request whose own limit makes it hold more or less than the one that
    /// was divided: regions that each hold back the part of the others admit no more than `capacity`
    /// together, and none is left without anything.
    fn of_capacity(self, capacity: u64) -> Self {
        let divided = u64::from(self.capacity);
        if divided == 0 || divided == capacity {
            return self;
        }
        let part = |held: u64| {
            let held = (u128::from(held) * u128::from(capacity)).div_ceil(u128::from(divided));
            u32::try_from(held).unwrap_or(u32::MAX)
        };
        let (held_back, held_back_max) = (part(self.held_back).into(), part(self.held_back_max.into()));
        Self { held_back, held_back_max, ..self }
    }

    /// `held` are the permits that are not the region's first share.
    fn in_force(told: Option<Self>, held: u64, now: Timestamp) -> Self {
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        match told {
            Some(told) if now.since(told.since) <= LEVEL_SPEAKS => told,
            Some(told) => Self {
                held_back: told.held_back.max(u64::from(held)),
                held_back_max: told.held_back_max.max(held),
                ..told
            },
            None => Self { since: now, held_back: u64::from(held), held_back_max: held, ..Self::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Limit =
        Limit { calendar: None, permits: 100, window: Span::from_secs(1), burst: 100, queue: 0 };
    const TOLD: u64 = 1_700_000_000;

    const fn window(window: WindowAllowance) -> Allowance {
        Allowance::Window(window)
    }

    fn budget_after(next_budget: u32, windows: u64) -> u32 {
        let told =
            window(WindowAllowance { window: TOLD, budget: 100, next_budget, ..WindowAllowance::default() });
        let now = Timestamp((TOLD + windows) * 1_000_000 + 5);
        let view = Allowance::in_force(Some(&told), Some(20), Algorithm::FixedWindow, &SECOND, now).unwrap();
        let view = view.as_window().unwrap();
        assert!(view.window == TOLD + windows || windows < 2);
        if windows == 1 { view.next_budget } else { view.budget }
    }

    #[test]
    fn without_a_first_share_only_what_was_told_is_enforced() {
        let told = window(WindowAllowance { window: 7, budget: 3, ..WindowAllowance::default() });
        let of =
            |told| Allowance::in_force(told, None, Algorithm::SlidingLog, &SECOND, Timestamp(u64::MAX / 2));
        assert_eq!((of(None), of(Some(&told))), (None, Some(told)));
    }

    #[test]
    fn a_region_keeps_what_the_last_view_gave_it_and_then_its_first_share() {
        let of = |windows| [budget_after(90, windows), budget_after(2, windows)];
        assert_eq!([1, 2, 60].map(of), [[90, 2]; 3]);
        assert_eq!([61, 62].map(of), [[20, 2]; 2], "the home region gives back first");
        assert_eq!([63, 10_000].map(of), [[20, 20]; 2]);
    }

    #[test]
    fn a_view_of_a_window_to_come_says_nothing_of_this_one() {
        let told =
            WindowAllowance { window: TOLD + 1, budget: 100, next_budget: 100, ..WindowAllowance::default() };
        let told = window(told);
        let now = Timestamp(TOLD * 1_000_000);
        let view =
            Allowance::in_force(Some(&told), Some(20), Algorithm::SlidingWindow, &SECOND, now).unwrap();
        let view = view.as_window().unwrap();
        assert_eq!((view.window, view.budget, view.next_budget), (TOLD, 20, 20));
    }

    #[test]
    fn whose_own_limit_holds_more_or_less_has_the_same_part_of_a_level() {
        let now = Timestamp(TOLD * 1_000_000);
        let told = LevelAllowance { since: now, held_back: 75, held_back_max: 80, growth: 0, capacity: 100 };
        let divided = Allowance::Level(told);
        for first in [None, Some(20)] {
            let held = |burst| {
                let limit = Limit { burst, ..SECOND };
                let view =
                    Allowance::in_force(Some(&divided), first, Algorithm::TokenBucket, &limit, now).unwrap();
                let view = view.as_level().unwrap();
                (view.held_back, view.held_back_max)
            };
            assert_eq!([100, 40, 400, 1, 0].map(held), [(75, 80), (30, 32), (300, 320), (1, 1), (0, 0)]);
        }
        let unknown = Allowance::Level(LevelAllowance { capacity: 0, ..told });
        let limit = Limit { burst: 40, ..SECOND };
        let view = Allowance::in_force(Some(&unknown), None, Algorithm::TokenBucket, &limit, now);
        assert_eq!(view, Some(unknown));
    }

    #[test]
    fn of_a_level_all_but_the_first_share_is_held_back() {
        let now = Timestamp(TOLD * 1_000_000);
        let of = |told, later| {
            let now = now + Span::from_secs(later);
            let view = Allowance::in_force(told, Some(20), Algorithm::TokenBucket, &SECOND, now).unwrap();
            view.as_level().unwrap().held(&SECOND, now) / 1_000_000
        };
        assert_eq!(of(None, 0), 80);
        let level = |held_back, most| {
            let growth = most;
            Allowance::Level(LevelAllowance {
                since: now,
                held_back,
                growth,
                held_back_max: most,
                capacity: 0,
            })
        };
        let home = level(0, 0);
        let other = level(50, 97);
        assert_eq!([of(Some(&home), 0), of(Some(&home), 60), of(Some(&home), 61)], [0, 0, 80]);
        assert_eq!([of(Some(&other), 0), of(Some(&other), 60), of(Some(&other), 61)], [50, 97, 97]);
    }

    proptest! {
        /// However far apart two regions' looks were, and whenever they are asked again.
        #[test]
        fn what_regions_may_use_unheard_adds_up_to_the_limit(
            parts in proptest::collection::vec((0_u32..60, 0_u64..=APART), 1..6),
            idle in 2_u64..80,
        ) {
            let limit = parts.iter().map(|(part, _)| part).sum::<u32>().max(1);
            let each = limit / u32::try_from(parts.len()).unwrap();
            let limit = Limit { permits: limit, ..SECOND };
            let now = Timestamp((TOLD + APART + idle) * 1_000_000);
            let budgets = parts.iter().map(|(part, late)| {
                let told =
                    WindowAllowance { window: TOLD + late, next_budget: *part, ..WindowAllowance::default() };
                let told = window(told);
                let view = Allowance::in_force(Some(&told), Some(each), Algorithm::FixedWindow, &limit, now);
                view.unwrap().as_window().unwrap().budget
            });
            prop_assert!(budgets.sum::<u32>() <= limit.permits);
        }
    }
}
