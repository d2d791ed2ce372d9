//! The times between the lives of a daemon of which something outlives its process.
//!
//! Another daemon may have served in its place meanwhile, on a machine with a disk of its own. Of windows
//! that began before it did it spent nothing; those that began between two lives it may have spent as a
//! whole.

use super::super::super::super::calendar::Windows;
use super::super::super::super::time::Timestamp;
use super::super::RECOVERY_MARGIN;

/// Breaks that are told apart. More: the two that are nearest to each other become one, which burns more.
const BREAKS_MAX: usize = 64;

/// Times between two lives: from the last sign of the one to the begin of the other, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Breaks(Vec<(Timestamp, Timestamp)>);

impl Breaks {
    /// One life gave its last sign at `from`, and the next one began at `to`.
    pub fn add(&mut self, from: Timestamp, to: Timestamp) {
        if from >= to + RECOVERY_MARGIN || self.0.contains(&(from, to)) {
            return;
        }
        self.0.push((from, to));
        self.0.sort_unstable();
        while self.0.len() > BREAKS_MAX {
            self.join_nearest();
        }
    }

    fn join_nearest(&mut self) {
        let all = self.0.iter().zip(self.0.iter().skip(1));
        let apart = all.map(|((_, end), (begin, _))| begin.since(*end)).enumerate();
        let Some((at, _)) = apart.min_by_key(|(_, apart)| *apart) else { return };
        let (_, end) = self.0.remove(at + 1);
        if let Some(first) = self.0.get_mut(at) {
            first.1 = first.1.max(end);
        }
    }

    /// True of a window that began in one of them, or within a clock margin after it.
    #[must_use]
    pub fn cover(&self, window: u64, windows: Windows) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let start = windows.start(window);
        self.0.iter().any(|(from, to)| *from < start && start < *to + RECOVERY_MARGIN)
    }

    /// Each of them.
    pub fn all(&self) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    const HOUR: Span = Span::from_secs(3_600);

    fn at(hours: u64, seconds: u64) -> Timestamp {
        Timestamp(hours * HOUR.0) + Span::from_secs(seconds)
    }

    #[test]
    fn a_window_that_begins_between_two_lives_is_of_neither() {
        let hours = Windows::new(HOUR, None);
        let covered = |breaks: &Breaks| (0..20).filter(|hour| breaks.cover(*hour, hours)).collect::<Vec<_>>();
        let mut breaks = Breaks::default();
        assert!(covered(&breaks).is_empty());
        breaks.add(at(10, 1_200), at(11, 1_860));
        assert_eq!(covered(&breaks), [11]);
        // A window that began with the last sign of life was begun by it; one a moment after the next life's
        // begin may have been begun by a clock that was ahead.
        breaks.add(at(13, 0), at(13, 2));
        breaks.add(Timestamp(at(16, 0).0 - 2_000_000), Timestamp(at(16, 0).0 - 500_000));
        assert_eq!(covered(&breaks), [11, 16]);
        // A clock that was ahead and is right again.
        breaks.add(at(19, 0), at(18, 0));
        assert_eq!(covered(&breaks), [11, 16]);
    }

    #[test]
    fn breaks_are_bounded_and_those_that_are_near_each_other_become_one() {
        let hours = Windows::new(HOUR, None);
        let mut breaks = Breaks::default();
        for hour in 0..64 {
            breaks.add(at(2 * hour, 3_000), at(2 * hour, 3_010));
        }
        assert!((0..128).all(|hour| !breaks.cover(hour, hours)));
        breaks.add(at(2, 3_020), at(2, 3_030));
        assert_eq!(breaks.all().count(), 64);
        assert!((0..128).all(|hour| !breaks.cover(hour, hours)), "the two of one hour are one");
        breaks.add(at(129, 10), at(130, 0));
        assert_eq!(breaks.all().count(), 64);
        assert!(breaks.cover(130, hours));
    }
}
