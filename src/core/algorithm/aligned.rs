//! Where an instant lies among the windows aligned to the epoch, and what a view says of that window. Shared by the three
//! machines that count by windows; it keeps no state.

use super::{Limit, View};
use crate::core::time::{Span, Timestamp};

/// One instant's place in its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The window's index since the epoch.
    pub(super) index: u64,
    /// Where it begins.
    pub(super) start: u64,
    /// Its length in microseconds; never zero.
    pub(super) length: u64,
    /// How much of it has passed; less than `length`.
    pub(super) elapsed: u64,
}

impl Place {
    pub(super) fn of(window: Span, now: Timestamp) -> Self {
        let length = window.0.max(1);
        let index = now.0 / length;
        let start = index * length;
        Self { index, start, length, elapsed: now.0 - start }
    }

    /// How much of the window is still to come; at least a microsecond.
    pub(super) fn left(&self) -> u64 {
        self.length - self.elapsed
    }

    /// How many windows before this one `earlier` lies: 0, 1 or 2 for any older.
    pub(super) fn windows_since(&self, earlier: u64) -> u8 {
        if earlier >= self.start {
            0
        } else if self.start - earlier <= self.length {
            1
        } else {
            2
        }
    }
}

/// What the world leaves a bucket in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Permits that may be admitted here; never above the limit.
    pub(super) budget: u32,
    /// What others are known to have admitted in this window.
    pub(super) others: u64,
    /// What others are known to have admitted in the window before.
    pub(super) others_before: u64,
}

impl Share {
    /// A view speaks of its own window and, less surely, of the next one; of any other the local limit alone is known.
    pub(super) fn of(limit: &Limit, view: Option<&View>, index: u64) -> Self {
        match view {
            Some(view) if view.window == index => Self {
                budget: view.budget.min(limit.permits),
                others: view.others,
                others_before: view.others_before,
            },
            Some(view) if view.window.checked_add(1) == Some(index) => {
                Self { budget: view.next_budget.min(limit.permits), others: 0, others_before: view.others }
            }
            _ => Self { budget: limit.permits, others: 0, others_before: 0 },
        }
    }
}

/// `amount` scaled by `left / length`, rounded up: what is left of a window's count when only that part still matters.
pub(super) fn faded(amount: u64, left: u64, length: u64) -> u64 {
    if amount == 0 {
        return 0;
    }
    match amount.checked_mul(left) {
        Some(product) => product.div_ceil(length),
        None => u64::try_from((u128::from(amount) * u128::from(left)).div_ceil(u128::from(length)))
            .unwrap_or(u64::MAX),
    }
}
