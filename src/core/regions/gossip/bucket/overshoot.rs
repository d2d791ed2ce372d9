//! By how much windows were above their limit, as far as regions told of it.
//!
//! A window of a month would be judged a month late. So one that is open is counted too, once its excess has
//! lasted: a reservation that gives back what it did not use is none.

use super::{GossipBucket, Period};
use crate::algorithm::Counting;
use crate::time::{Span, Timestamp};

/// An excess of an open window counts that lasts for so long.
const LASTS: Span = Span::from_secs(1);

/// The facts known of one window's excess.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Overshoot {
    /// Permits of it that were counted.
    counted: u64,
    /// The least that it was since an instant, where that is more.
    grown: Option<(Timestamp, u64)>,
}

impl Overshoot {
    /// The window is `above` its limit now. Returns what is to be counted of it.
    fn note(&mut self, now: Timestamp, above: u64, is_closed: bool) -> u64 {
        if above <= self.counted {
            self.grown = None;
            return 0;
        }
        let (since, least) = self.grown.map_or((now, above), |(since, least)| (since, least.min(above)));
        let counts = if is_closed { above } else { least };
        if !is_closed && now.since(since) < LASTS {
            self.grown = Some((since, least));
            return 0;
        }
        self.grown = None;
        counts - std::mem::replace(&mut self.counted, counts)
    }
}

impl GossipBucket {
    /// Permits that windows had above the limit and that were not counted yet: of those that are over for
    /// good by what all regions told in the end.
    pub(in super::super) fn overshoot(&mut self, now: Timestamp) -> u64 {
        if self.counting() != Counting::Window {
            return 0;
        }
        let window = self.window_at(now);
        let limit = u64::from(self.rule.limit.permits);
        let above = |period: &Period| {
            // While its own limit changes some regions hold the old one and some the new.
            let begun = self.windows().start(period.window);
            let limit = limit.max(u64::from(self.own.before_at(begun)));
            period.live.net().saturating_add(self.told_by_others(period)).saturating_sub(limit)
        };
        let above: smallvec::SmallVec<[u64; 4]> = self.periods.iter().map(above).collect();
        for period in self.periods.iter_mut().filter(|period| period.window > window) {
            period.overshoot.grown = None;
        }
        let counted = self.periods.iter_mut().zip(above).filter(|(period, _)| period.window <= window);
        let counted =
            counted.map(|(period, above)| period.overshoot.note(now, above, period.window + 2 <= window));
        counted.fold(0, u64::saturating_add)
    }

    /// Forgets since when open windows are above their limit: another daemon judges them.
    pub(in super::super) fn judges_no_overshoot(&mut self) {
        self.periods.iter_mut().for_each(|period| period.overshoot.grown = None);
    }

    /// Returns when an excess of an open window is to be looked at again.
    pub(super) fn judges_overshoot_at(&self) -> Option<Timestamp> {
        let grown = self.periods.iter().filter_map(|period| period.overshoot.grown);
        grown.map(|(since, _)| since + LASTS).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excess_counts_once_it_lasts_and_only_what_is_more_counts_again() {
        let at = |tenths: u64| Timestamp(tenths * 100_000);
        let mut window = Overshoot::default();
        assert_eq!([0, 5, 9].map(|tenths| window.note(at(tenths), 30, false)), [0; 3]);
        assert_eq!(window.note(at(10), 20, false), 20, "the least of the second");
        assert_eq!(window.note(at(11), 20, false), 0);
        assert_eq!([12, 22].map(|tenths| window.note(at(tenths), 25, false)), [0, 5]);
        assert_eq!([30, 31, 40].map(|tenths| window.note(at(tenths), tenths % 2 * 90, false)), [0; 3]);
        assert_eq!(window.note(at(50), 27, true), 2, "a window that is over is counted at once");
    }
}
