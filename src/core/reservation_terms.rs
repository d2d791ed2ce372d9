//! The terms of a rule's reservations: what becomes of those that nobody settles, and what they take where
//! the caller does not say.

/// The percentile of the last actual costs that an estimate is, unless the rule says.
pub const PERCENTILE_DEFAULT: u8 = 90;
/// One in so many permits of a limit is reserved before anything is known, unless the rule says.
const FIRST_PART: u32 = 10;

/// The fate of a reservation that lapses before it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLapse {
    /// Its permits are free again, and a commit that comes later is charged in full.
    #[default]
    Release,
    /// Its permits stay charged, and a commit that comes later settles it all the same.
    Charge,
}

/// The terms by which a rule's reservations are estimated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EstimateTerms {
    /// The percentile of the last actual costs, from 1 to 100.
    pub percentile: u8,
    /// The attribute whose values have estimates of their own.
    pub by: Option<String>,
    /// The cost of which nothing is known yet; `None`: a tenth of the limit.
    pub first: Option<u32>,
}

impl Default for EstimateTerms {
    fn default() -> Self {
        Self { percentile: PERCENTILE_DEFAULT, by: None, first: None }
    }
}

impl EstimateTerms {
    /// The estimate before anything is known, under this limit.
    #[must_use]
    pub fn first_of(&self, limit: u32) -> u64 {
        u64::from(self.first.unwrap_or(limit / FIRST_PART)).max(1)
    }
}

/// The terms of a rule's reservations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservationTerms {
    /// Fate of the permits of a reservation that nobody commits in time.
    pub on_lapse: OnLapse,
    /// Estimate for a caller that names no amount.
    pub estimate: EstimateTerms,
}
