//! Counters whose limits the caller brings with each call: what clients of the Redis protocol ask for by
//! `CL.THROTTLE` and `INCREX`. No rule says anything of them; the key and the numbers of the call are all.
//!
//! An [`Operation`] on what is [`Stored`] under a key gives a [`Reply`] and a [`CellChange`]. Stores only
//! keep values, so memory and Redis answer alike.

mod increx;
mod throttle;

pub use increx::{Bounds, By, Counted, Expiry, Increx, IncrexError};
pub use throttle::{Terms, TermsError, Throttled};

use crate::time::Timestamp;

/// Nanoseconds since the Unix epoch, as `CL.THROTTLE` keeps an arrival time.
pub type Nanos = i64;

/// The instant in nanoseconds, saturating.
#[must_use]
pub fn nanos(now: Timestamp) -> Nanos {
    i64::try_from(now.0).unwrap_or(i64::MAX).saturating_mul(1_000)
}

/// A number as `INCREX` counts: whole until somebody adds a fraction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(i64),
    /// A number with a fraction; finite.
    Fraction(f64),
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Fraction(number) => number.fmt(f),
        }
    }
}

/// The value under a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CellValue {
    /// The theoretical arrival time of `CL.THROTTLE`.
    Arrival(Nanos),
    /// The count of `INCREX`.
    Count(Number),
}

/// A value, and until when it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored {
    /// Value of the counter: a count, or an arrival time of `CL.THROTTLE`.
    pub value: CellValue,
    /// The instant from which on the key is free again; `None`: it stays.
    pub expires: Option<Nanos>,
}

impl Stored {
    /// True if it is still there at `now`.
    #[must_use]
    pub fn holds(&self, now: Nanos) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}

/// Marks the text of an arrival time among texts of numbers.
const ARRIVAL: &str = "t";

impl CellValue {
    /// The text under which a store keeps it.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Arrival(at) => format!("{ARRIVAL}{at}"),
            Self::Count(number) => number.to_string(),
        }
    }

    /// Reads such a text; `None` where something else lies there.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        if let Some(at) = text.strip_prefix(ARRIVAL) {
            return at.parse().ok().map(Self::Arrival);
        }
        let fraction = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Number::Fraction);
        text.parse().ok().map(Number::Whole).or_else(fraction).map(Self::Count)
    }
}

/// The call of a client on one key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    /// `CL.THROTTLE`.
    Throttle(Terms),
    /// `INCREX`.
    Increx(Increx),
    /// Looks at the value.
    Look,
    /// Frees the key.
    Delete,
}

/// The answer to an [`Operation`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reply {
    /// To `CL.THROTTLE`.
    Throttled(Throttled),
    /// To `INCREX`.
    Counted(Counted),
    /// To a look, and to a deletion: what was there.
    Seen(Option<Stored>),
    /// The key holds the value of another command.
    WrongKind,
    /// The call of `INCREX` cannot be carried out on this value.
    Refused(IncrexError),
}

/// The fate of the value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CellChange {
    /// It stays as it is.
    Keep,
    /// It is replaced.
    Put(Stored),
    /// The key is free again.
    Remove,
}

impl Operation {
    /// Answers at `now`, from what is stored.
    #[must_use]
    pub fn apply(&self, stored: Option<Stored>, now: Nanos) -> (Reply, CellChange) {
        let stored = stored.filter(|stored| stored.holds(now));
        match (self, stored.map(|stored| stored.value)) {
            (Self::Throttle(terms), None) => terms.apply(None, now),
            (Self::Throttle(terms), Some(CellValue::Arrival(at))) => terms.apply(Some(at), now),
            (Self::Increx(asked), None | Some(CellValue::Count(_))) => asked.apply(stored, now),
            (Self::Throttle(_), Some(CellValue::Count(_)))
            | (Self::Increx(_), Some(CellValue::Arrival(_))) => (Reply::WrongKind, CellChange::Keep),
            (Self::Look, _) => (Reply::Seen(stored), CellChange::Keep),
            (Self::Delete, None) => (Reply::Seen(None), CellChange::Keep),
            (Self::Delete, Some(_)) => (Reply::Seen(stored), CellChange::Remove),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_as_they_were_written() {
        for value in [
            CellValue::Arrival(1_780_000_000_000_000_000),
            CellValue::Count(Number::Whole(i64::MIN)),
            CellValue::Count(Number::Fraction(0.1)),
        ] {
            assert_eq!(CellValue::from_text(&value.to_text()), Some(value));
        }
        assert_eq!(CellValue::from_text("hello"), None);
        assert_eq!(CellValue::from_text("inf"), None);
    }

    #[test]
    fn a_key_of_another_command_is_left_alone() {
        let count = Stored { value: CellValue::Count(Number::Whole(1)), expires: None };
        let throttle = Operation::Throttle(Terms::new(15, 30, 60, 1).unwrap());
        assert_eq!(throttle.apply(Some(count), 0), (Reply::WrongKind, CellChange::Keep));
        let arrival = Stored { value: CellValue::Arrival(9), expires: Some(9) };
        let increx = Operation::Increx(Increx::default());
        assert_eq!(increx.apply(Some(arrival), 0), (Reply::WrongKind, CellChange::Keep));
        // Once it has expired the key is anybody's.
        assert!(matches!(increx.apply(Some(arrival), 9).0, Reply::Counted(_)));
    }
}
