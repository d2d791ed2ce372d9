//! Numbers that look random and are the same in every run with the same seed.

/// A seeded generator (splitmix64): small, fast, and good enough for arrivals and faults.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// A generator for this seed and purpose; different purposes draw different numbers.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut dice = Self(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A whole number below `sides`; zero if there are none.
    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.next().checked_rem(sides).unwrap_or(0)
    }

    /// A whole number from `low` to `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// One of these; `None` if there are none.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(super::number::index(self.below(super::number::place(from.len()))))
    }

    /// Draws whether something of this probability happens.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are all that a float holds")]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws how many independent events happen where `mean` are expected.
    pub(crate) fn poisson(&mut self, mean: f64) -> u64 {
        let mut rest = mean;
        let mut events = 0;
        while rest > 20.0 {
            events += self.few(20.0);
            rest -= 20.0;
        }
        events + self.few(rest)
    }

    fn few(&mut self, mean: f64) -> u64 {
        let floor = (-mean).exp();
        let mut product = self.unit();
        let mut events = 0;
        while product > floor && events < 10_000 {
            product *= self.unit();
            events += 1;
        }
        events
    }
}
