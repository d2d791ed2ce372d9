//! The growth of a region's count of one window, as far as it told: what of it still lies in an interval that
//! ends in the window after.

use crate::time::{Span, Timestamp};

/// Instants of a window, evenly apart, at which the count is remembered.
const MARKS: u64 = 32;
const MARKS_LEN: usize = 32;
/// A region that admits says so within this long: what a report adds was admitted no longer before it.
const TOLD_WITHIN: Span = Span::from_millis(100);

/// The count at so many instants of the window.
#[derive(Debug, Clone, Default)]
pub(super) struct CountHistory {
    marks: [u32; MARKS_LEN],
    /// Part of the window that had passed at the newest report, and what it told.
    newest: (u64, u64),
}

impl CountHistory {
    /// `admitted` permits were told of at `stamp`, in the window of this `length` that begins at `start`.
    pub(super) fn note(&mut self, start: Timestamp, length: Span, stamp: Timestamp, admitted: u64) {
        let (before, known) = self.newest;
        let at = stamp.since(start).0.min(length.0);
        if at < before {
            return;
        }
        let admitted = admitted.max(known);
        let from = before.max(at.saturating_sub(TOLD_WITHIN.0));
        for (mark, count) in (1..).zip(&mut self.marks) {
            let instant = mark_at(mark, length);
            if instant >= at {
                *count = whole(admitted);
            } else if instant > before {
                let since = instant.saturating_sub(from);
                *count = whole(known + part(admitted - known, since, at - from));
            }
        }
        self.newest = (at, admitted);
    }

    /// Returns what was admitted when `passed` of the window had passed.
    pub(super) fn at(&self, passed: u64, length: Span) -> u64 {
        let mark = u128::from(passed.min(length.0)) * u128::from(MARKS) / u128::from(length.0.max(1));
        let mark = u64::try_from(mark).unwrap_or(MARKS).min(MARKS - 1);
        let count = |mark: u64| match usize::try_from(mark).ok().and_then(|mark| mark.checked_sub(1)) {
            Some(index) => self.marks.get(index).map_or(0, |count| u64::from(*count)),
            None => 0,
        };
        let (low, high) = (count(mark), count(mark + 1));
        let (from, to) = (mark_at(mark, length), mark_at(mark + 1, length));
        low + part(high.saturating_sub(low), passed.saturating_sub(from), to - from)
    }
}

/// Returns when the window has reached a mark.
fn mark_at(mark: u64, length: Span) -> u64 {
    u64::try_from(u128::from(length.0) * u128::from(mark) / u128::from(MARKS)).unwrap_or(u64::MAX)
}

fn part(count: u64, of: u64, whole: u64) -> u64 {
    let part = u128::from(count) * u128::from(of.min(whole)) / u128::from(whole.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn whole(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1_700_000_000_000_000);
    const SECOND: Span = Span::from_secs(1);

    fn noted(reports: &[(u64, u64)]) -> CountHistory {
        let mut trail = CountHistory::default();
        for &(ms, admitted) in reports {
            trail.note(START, SECOND, START + Span::from_millis(ms), admitted);
        }
        trail
    }

    #[test]
    fn between_two_reports_a_count_grows_evenly() {
        let trail = noted(&[(100, 100), (200, 120), (300, 220)]);
        let at = |ms| trail.at(Span::from_millis(ms).0, SECOND);
        assert!(at(50).abs_diff(50) <= 3 && at(150).abs_diff(110) <= 3 && at(250).abs_diff(170) <= 3);
        assert_eq!((at(0), at(900), at(1_000)), (0, 220, 220));
    }

    #[test]
    fn what_is_told_after_a_silence_was_admitted_just_before() {
        let trail = noted(&[(100, 10), (900, 510)]);
        let at = |ms| trail.at(Span::from_millis(ms).0, SECOND);
        assert_eq!((at(500), at(750)), (10, 10));
        assert!(at(850) >= 200 && at(850) <= 300, "{}", at(850));
    }

    #[test]
    fn what_is_told_after_the_end_was_admitted_at_the_end() {
        let trail = noted(&[(950, 100), (1_060, 150)]);
        let near = trail.at(Span::from_millis(930).0, SECOND);
        assert!((60..=100).contains(&near), "{near}");
        assert_eq!(trail.at(SECOND.0, SECOND), 150);
        let long = Span::from_secs(3_600 * 24 * 366);
        let mut trail = CountHistory::default();
        trail.note(START, long, START + long, u64::MAX);
        assert_eq!(trail.at(0, long), 0);
    }
}
