//! Where an instant lies among the windows aligned to the epoch, and what a view says of that window. Shared
//! by the three machines that count by windows; it keeps no state.

use super::{Limit, WindowAllowance};
use crate::calendar::CalendarWindow;
use crate::time::{Span, Timestamp};

/// One instant's place in its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowPlace {
    /// The window's index since the epoch.
    pub(super) index: u64,
    /// Its begin.
    pub(super) start: u64,
    /// Its length in microseconds; never zero.
    pub(super) length: u64,
    /// How much of it has passed; less than `length`.
    pub(super) elapsed: u64,
}

impl WindowPlace {
    /// Finds the place of `now` among windows of one length.
    pub(super) fn every(window: Span, now: Timestamp) -> Self {
        let length = window.0.max(1);
        let index = now.0 / length;
        let start = index * length;
        Self { index, start, length, elapsed: now.0 - start }
    }

    /// Finds the place of `now` among the windows that a limit counts by.
    pub(super) fn of(limit: &Limit, now: Timestamp) -> Self {
        match limit.calendar {
            None => Self::every(limit.window, now),
            Some(calendar) => {
                let CalendarWindow { index, start, end } = calendar.at(now);
                Self { index, start, length: end - start, elapsed: now.0 - start }
            }
        }
    }

    /// How much of the window is still to come; at least a microsecond.
    pub(super) fn left(&self) -> u64 {
        self.length - self.elapsed
    }

    /// How long it is from now to the end of the window that comes `windows` after this one.
    pub(super) fn until(&self, limit: &Limit, windows: u64) -> Span {
        match limit.calendar {
            None => Span(self.left().saturating_add(self.length.saturating_mul(windows))),
            Some(_) => {
                let end = limit.windows().end(self.index.saturating_add(windows));
                end.since(Timestamp(self.start.saturating_add(self.elapsed)))
            }
        }
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

/// The part of a bucket that the world leaves a region in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowShare {
    /// Permits that may be admitted here; never above the limit.
    pub(super) budget: u32,
    /// What others are known to have admitted in this window.
    pub(super) others: u64,
    /// What others are known to have admitted in the window before.
    pub(super) others_before: u64,
}

impl WindowShare {
    /// A view speaks of its own window and, less surely, of the next one. It says nothing of any other window
    /// here: [`super::Allowance::in_force`] works out before what a region keeps to then.
    pub(super) fn of(limit: &Limit, view: Option<&WindowAllowance>, index: u64) -> Self {
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

/// The count of one window, and what is owed beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowAccount {
    /// Permits counted in the window.
    pub(super) count: u32,
    /// Permits reported beyond what was free: later windows begin with them already used.
    pub(super) debt: u32,
}

impl WindowAccount {
    /// Both together.
    pub(super) fn used(self) -> u64 {
        u64::from(self.count) + u64::from(self.debt)
    }

    /// Counts `cost` more permits. Permits that find no `room` in the window are owed, up to `debt_max` in
    /// all. Returns the permits that were charged. A debt that is larger already is paid, not forgiven.
    pub(super) fn report(&mut self, room: u64, cost: u64, debt_max: u32) -> u64 {
        // More than any bucket holds, and far from overflowing.
        let cost = cost.min(1 << 40);
        let owed = u64::from(self.debt) + cost;
        let paid = owed.min(room);
        let beyond = owed - paid;
        let kept = beyond.min(u64::from(debt_max).max(u64::from(self.debt).saturating_sub(paid)));
        self.count = self.count.saturating_add(u32::try_from(paid).unwrap_or(u32::MAX));
        self.debt = u32::try_from(kept).unwrap_or(u32::MAX);
        cost - (beyond - kept)
    }

    /// Counts what is owed, as far as there is `room`.
    pub(super) fn settle(&mut self, room: u64) {
        self.report(room, 0, 0);
    }
}

/// Permits of a debt that one window pays where nothing else uses it: all that a region may admit in it.
pub(super) fn paid_by_a_window(limit: &Limit, view: Option<&WindowAllowance>) -> u64 {
    u64::from(view.map_or(limit.permits, |view| view.next_budget.min(limit.permits)))
}

/// Returns what a window at its end has still room for. Nobody knows what a region was left of it once it is
/// over.
fn room_at_the_end(limit: &Limit, view: Option<&WindowAllowance>, count: u32) -> u64 {
    if view.is_some() { 0 } else { u64::from(limit.permits.saturating_sub(count)) }
}

/// Returns what is owed at the beginning of the window that comes `windows` after the one of `account`, if
/// nothing else came.
pub(super) fn carried(
    limit: &Limit,
    view: Option<&WindowAllowance>,
    account: WindowAccount,
    windows: u64,
) -> u32 {
    let between = paid_by_a_window(limit, view).saturating_mul(windows.saturating_sub(1));
    let paid = room_at_the_end(limit, view, account.count).saturating_add(between);
    u32::try_from(u64::from(account.debt).saturating_sub(paid)).unwrap_or(0)
}

/// After how many windows more than the next one `asked` permits fit beside what is owed at its beginning.
pub(super) fn windows_to_pay(limit: &Limit, view: Option<&WindowAllowance>, owed: u32, asked: u64) -> u64 {
    let each = match paid_by_a_window(limit, view) {
        0 => u64::from(limit.permits),
        each => each,
    };
    let needed = u64::from(owed) + asked.min(each);
    needed.div_ceil(each.max(1)).saturating_sub(1)
}

/// `amount` scaled by `left / length`, rounded up: what is left of a window's count when only that part still
/// matters.
pub(crate) fn weighted(amount: u64, left: u64, length: u64) -> u64 {
    if amount == 0 {
        return 0;
    }
    match amount.checked_mul(left) {
        Some(product) => product.div_ceil(length),
        None => u64::try_from((u128::from(amount) * u128::from(left)).div_ceil(u128::from(length)))
            .unwrap_or(u64::MAX),
    }
}

/// `amount` scaled by `left / length`, rounded down: the whole permits of a window's count that still matter.
pub(super) fn faded(amount: u128, left: u64, length: u64) -> u64 {
    if amount == 0 {
        return 0;
    }
    // A division of two words takes less than half the time of one of four.
    let short = u64::try_from(amount).ok().and_then(|amount| amount.checked_mul(left));
    match short {
        Some(product) => product / length,
        None => u64::try_from(amount * u128::from(left) / u128::from(length)).unwrap_or(u64::MAX),
    }
}
