//! The distance of another daemon's clock from this one's, going by how long its frames seem to take.

use crate::core::time::{Span, Timestamp};

/// For at least so long, and at most twice, the fastest frame counts: it waited least on its way.
const MEMORY: Span = Span::from_secs(30);

/// The clock of one daemon, as its newest frames show it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offset {
    turned: Timestamp,
    /// The least that a frame took, clock offset included, in microseconds: lately, and in the time before.
    least: Option<i64>,
    before: Option<i64>,
}

impl Offset {
    /// A frame that was sent at `sent` by its clock came at `now` by ours.
    pub(super) fn note(&mut self, now: Timestamp, sent: Timestamp) {
        if now < self.turned || now.since(self.turned) > MEMORY {
            let follows = now >= self.turned && now.since(self.turned) <= MEMORY + MEMORY;
            *self = Self { turned: now, least: None, before: self.least.filter(|_| follows) };
        }
        let took = signed(now.0).saturating_sub(signed(sent.0));
        self.least = Some(self.least.map_or(took, |least| least.min(took)));
    }

    /// Microseconds by which its clock is ahead of ours, negative if it is behind. Off by as much as the two
    /// ways differ, so by at most half of `rtt`, and by what the fastest frame waited.
    pub(super) fn ahead(&self, rtt: Span) -> Option<i64> {
        let least = [self.before, self.least].into_iter().flatten().min()?;
        Some(signed(rtt.0 / 2).saturating_sub(least))
    }
}

fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    #[test]
    fn the_fastest_frame_says_how_far_a_clock_is_off() {
        let rtt = Span::from_millis(80);
        // Frames take 40 ms and more, by a clock that is 100 ms behind, and by one that is 100 ms ahead.
        for (off, ahead) in [(140_000, -100_000), (-60_000, 100_000_i64)] {
            let mut offset = Offset::default();
            assert_eq!(offset.ahead(rtt), None);
            for waited in [9_000, 0, 70_000] {
                let sent = NOW.0.checked_add_signed(-(off + waited)).unwrap();
                offset.note(NOW, Timestamp(sent));
            }
            assert_eq!(offset.ahead(rtt), Some(ahead));
        }
    }

    #[test]
    fn what_was_measured_long_ago_is_forgotten_and_a_clock_that_was_set_back_begins_anew() {
        let rtt = Span::ZERO;
        let mut offset = Offset::default();
        let mut note = |second: u64, took: u64| {
            let now = NOW + Span::from_secs(second);
            offset.note(now, Timestamp(now.0 - took));
            offset.ahead(rtt)
        };
        assert_eq!(note(0, 5), Some(-5));
        assert_eq!(note(31, 8), Some(-5), "the time before still counts");
        assert_eq!(note(62, 9), Some(-8));
        assert_eq!(note(300, 20), Some(-20));
        assert_eq!(note(200, 30), Some(-30));
    }
}
