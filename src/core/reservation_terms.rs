//! How a rule reserves: what becomes of its reservations that nobody settles.

/// What becomes of a reservation that lapses before it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLapse {
    /// Its permits are free again, and a commit that comes later is charged in full.
    #[default]
    Release,
    /// Its permits stay charged, and a commit that comes later settles it all the same.
    Charge,
}

/// The terms of a rule's reservations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservationTerms {
    /// When a reservation lapses.
    pub on_lapse: OnLapse,
}
