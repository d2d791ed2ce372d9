//! The network between regions: delays and what goes wrong.

use tidegate_core::time::Span;

use super::dice::Dice;

/// The delays of the network between regions, and how often messages suffer.
#[derive(Debug, Clone)]
pub(crate) struct Weather {
    /// One-way delay from region to region.
    pub(crate) delay: Vec<Vec<Span>>,
    /// Up to this part of the delay comes on top, at random.
    pub(crate) jitter: f64,
    /// Part of the messages that never arrive.
    pub(crate) loss: f64,
    /// Part that arrives twice.
    pub(crate) double: f64,
    /// Part that takes up to four times as long, and so arrives behind later ones.
    pub(crate) reorder: f64,
}

impl Weather {
    /// The first pair takes the whole round trip, the others half of it and more.
    pub(crate) fn spread(regions: usize, rtt: Span, dice: &mut Dice) -> Self {
        let mut parts = vec![vec![0_u64; regions]; regions];
        for (one, row) in parts.iter_mut().enumerate() {
            for (other, part) in row.iter_mut().enumerate().take(one) {
                *part = if (one, other) == (1, 0) { 1_000 } else { dice.between(500, 1_000) };
            }
        }
        let part = |one: usize, other: usize| {
            parts.get(one.max(other)).and_then(|row| row.get(one.min(other))).copied().unwrap_or(0)
        };
        let delay = |one, other| Span(rtt.0 / 2 * part(one, other) / 1_000);
        let delay = (0..regions).map(|one| (0..regions).map(|other| delay(one, other)).collect()).collect();
        Self { delay, jitter: 0.1, loss: 0.01, double: 0.0, reorder: 0.0 }
    }

    /// Messages between these regions and the others take so much longer, as far as `inward` and `outward`
    /// say, or no longer does.
    pub(crate) fn slow(
        &mut self,
        regions: &[usize],
        (inward, outward): (bool, bool),
        by: Span,
        begins: bool,
    ) {
        for (from, row) in self.delay.iter_mut().enumerate() {
            for (to, delay) in row.iter_mut().enumerate() {
                let (from, to) = (regions.contains(&from), regions.contains(&to));
                if (inward && to && !from) || (outward && from && !to) {
                    *delay = if begins { *delay + by } else { Span(delay.0.saturating_sub(by.0)) };
                }
            }
        }
    }

    /// The longest way.
    pub(crate) fn longest(&self) -> Span {
        self.delay.iter().flatten().copied().max().unwrap_or_default()
    }
}
