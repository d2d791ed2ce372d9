//! Permits for one unit of cost: a decimal number, without floats.

/// Decimal places of a price.
const PLACES: usize = 6;
/// The price of one permit a unit.
const ONE: u64 = 1_000_000;
/// The dearest price, in millionths.
const PRICE_MAX: u64 = 1_000_000 * ONE;
/// The most that one request costs after its price: what a caller could have said itself.
pub(super) const COST_MAX: u64 = i64::MAX.unsigned_abs();

/// Permits for one unit of cost, in millionths; above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(u64);

impl Price {
    /// One permit for one unit.
    pub const ONE: Self = Self(ONE);

    /// Reads a decimal number from 0.000001 to 1,000,000.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > PLACES {
            return None;
        }
        let millionths: u64 = format!("{part:0<PLACES$}").parse().ok()?;
        let price = whole.parse::<u64>().ok()?.checked_mul(ONE)?.checked_add(millionths)?;
        (1..=PRICE_MAX).contains(&price).then_some(Self(price))
    }

    /// The most units that so many permits pay.
    #[must_use]
    pub fn units(self, permits: u64) -> u64 {
        let units = u128::from(permits) * u128::from(ONE) / u128::from(self.0);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// The permits of so many units: whole ones, rounded up, at most 2^63 − 1.
    #[must_use]
    pub fn of(self, units: u64) -> u64 {
        let permits = (u128::from(units) * u128::from(self.0)).div_ceil(u128::from(ONE));
        u64::try_from(permits).unwrap_or(COST_MAX).min(COST_MAX)
    }
}

impl std::fmt::Display for Price {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = format!("{:0PLACES$}", self.0 % ONE);
        match part.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / ONE),
            part => write!(f, "{}.{part}", self.0 / ONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_price_is_a_decimal_number_within_bounds() {
        for wrong in
            ["", "0", "0.0", "-1", "1e3", "1.", ".5", "0.0000001", "1000000.1", "NaN", "18446744073709551616"]
        {
            assert_eq!(Price::parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(Price::parse("1"), Some(Price::ONE));
        assert_eq!(Price::parse("0.000001").unwrap().of(1), 1);
        assert_eq!(Price::parse("1000000").unwrap().of(2), 2_000_000);
    }

    proptest! {
        #[test]
        fn a_shown_price_reads_back_the_same(millionths in 1..=PRICE_MAX, units: u64) {
            let price = Price(millionths);
            prop_assert_eq!(Price::parse(&price.to_string()), Some(price));
            let exact = u128::from(units) * u128::from(millionths);
            let permits = price.of(units);
            prop_assert!(permits == COST_MAX || (u128::from(permits) * 1_000_000 >= exact
                && u128::from(permits.saturating_sub(1)) * 1_000_000 <= exact));
            if permits < COST_MAX {
                prop_assert!(price.of(price.units(permits)) <= permits, "as many are paid");
                prop_assert!(price.units(permits) >= units, "and no fewer than those");
            }
        }
    }
}
