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

/// A clock that shows so much less than when a value was written was set back.
const SET_BACK_ABOVE: Nanos = 5_000_000_000;

/// A value, and until when it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored {
    /// Value of the counter: a count, or an arrival time of `CL.THROTTLE`.
    pub value: CellValue,
    /// The instant from which on the key is free again; `None`: it stays.
    pub expires: Option<Nanos>,
    /// The instant that the expiry was counted from; `None` of one that was named as an instant.
    pub since: Option<Nanos>,
}

impl Stored {
    /// True if it is still there at `now`.
    #[must_use]
    pub fn holds(&self, now: Nanos) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }

    /// As it counts from `now` on, if it was written further ahead than five seconds, and than it lasts: the
    /// clock was set back, and without this the key would be shut for as long as that step. It lasts as long
    /// as it did when it was written. An arrival time is at least `full` ahead: nobody knows what was used
    /// before the clock was ahead. `None`: it counts on.
    fn brought_back(&self, full: Nanos, now: Nanos) -> Option<Self> {
        let since = self.since?;
        let lasts = match self.value {
            CellValue::Arrival(at) => at.saturating_sub(since).max(full),
            CellValue::Count(_) => self.expires?.saturating_sub(since),
        };
        if since.saturating_sub(now) <= SET_BACK_ABOVE.max(lasts) {
            return None;
        }
        let until = now.saturating_add(lasts);
        let value = match self.value {
            CellValue::Arrival(_) => CellValue::Arrival(until),
            count @ CellValue::Count(_) => count,
        };
        Some(Self { value, expires: Some(until), since: Some(now) })
    }

    /// The text under which a store keeps it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = self.value.to_text();
        for (mark, instant) in [(SINCE, self.since), (EXPIRES, self.expires)] {
            if let Some(instant) = instant {
                text.push(mark);
                text.push_str(&instant.to_string());
            }
        }
        text
    }

    /// Reads such a text; `None` where something else lies there.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (text, expires) = split(text, EXPIRES)?;
        let (value, since) = split(text, SINCE)?;
        Some(Self { value: CellValue::from_text(value)?, expires, since })
    }
}

/// Takes the instant behind a mark off a text; `None` where that is none.
fn split(text: &str, mark: char) -> Option<(&str, Option<Nanos>)> {
    match text.split_once(mark) {
        Some((text, instant)) => Some((text, Some(instant.parse().ok()?))),
        None => Some((text, None)),
    }
}

/// Stands in a text before the instant that its expiry was counted from.
const SINCE: char = '@';
/// Stands in a text before the instant from which on the key is free again.
const EXPIRES: char = '!';
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
    /// Asks for how long the key is kept.
    Life,
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
    /// For how long the key is kept, by the clock of its store.
    Life(Life),
    /// The key holds the value of another command.
    WrongKind,
    /// The call of `INCREX` cannot be carried out on this value.
    Refused(IncrexError),
}

/// The time for which a key is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The key is free.
    Free,
    /// Nothing ends it.
    Unending,
    /// It is free again after so many nanoseconds.
    Ends(Nanos),
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
        let back = stored.and_then(|stored| self.brought_back(&stored, now));
        match (self.answer(back.or(stored), now), back) {
            // Else it would be brought back at each call, and never end.
            ((reply, CellChange::Keep), Some(back)) => (reply, CellChange::Put(back)),
            (answer, _) => answer,
        }
    }

    /// See [`Stored::brought_back`]. Only who brings terms says when an arrival time counts as used up.
    fn brought_back(&self, stored: &Stored, now: Nanos) -> Option<Stored> {
        match (self, stored.value) {
            (Self::Throttle(terms), _) => stored.brought_back(terms.full(), now),
            (_, CellValue::Count(_)) => stored.brought_back(0, now),
            _ => None,
        }
    }

    fn answer(&self, stored: Option<Stored>, now: Nanos) -> (Reply, CellChange) {
        match (self, stored.map(|stored| stored.value)) {
            (Self::Throttle(terms), None) => terms.apply(None, now),
            (Self::Throttle(terms), Some(CellValue::Arrival(at))) => terms.apply(Some(at), now),
            (Self::Increx(asked), None | Some(CellValue::Count(_))) => asked.apply(stored, now),
            (Self::Throttle(_), Some(CellValue::Count(_)))
            | (Self::Increx(_), Some(CellValue::Arrival(_))) => (Reply::WrongKind, CellChange::Keep),
            (Self::Look, _) => (Reply::Seen(stored), CellChange::Keep),
            (Self::Life, _) => {
                let life = |stored: Stored| {
                    stored.expires.map_or(Life::Unending, |at| Life::Ends(at.saturating_sub(now).max(0)))
                };
                (Reply::Life(stored.map_or(Life::Free, life)), CellChange::Keep)
            }
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
        for since in [None, Some(1_780_000_000_000_000_000)] {
            for value in [CellValue::Arrival(5), CellValue::Count(Number::Fraction(0.1))] {
                for expires in [None, Some(7)] {
                    let stored = Stored { value, expires, since };
                    assert_eq!(Stored::from_text(&stored.to_text()), Some(stored));
                }
            }
        }
        assert_eq!([Stored::from_text("5@soon"), Stored::from_text("5@1!soon")], [None, None]);
    }

    const SECOND: Nanos = 1_000_000_000;
    const NOW: Nanos = 1_780_000_000 * SECOND;

    /// Calls as often as it is told to, from `from` on. Returns after how many seconds it passes.
    fn passes_after(operation: &Operation, stored: &mut Option<Stored>, from: Nanos) -> Option<i64> {
        (0..200_i64).find(|second| {
            let (reply, change) = operation.apply(*stored, from + second * SECOND);
            match change {
                CellChange::Keep => {}
                CellChange::Put(put) => *stored = Some(put),
                CellChange::Remove => *stored = None,
            }
            match reply {
                Reply::Throttled(told) => !told.limited,
                Reply::Counted(told) => told.applied != Number::Whole(0),
                other => panic!("{other:?}"),
            }
        })
    }

    #[test]
    fn a_clock_that_is_set_back_shuts_no_key_for_longer_than_a_full_bucket_or_window() {
        let throttle = Operation::Throttle(Terms::new(4, 5, 10, 1).unwrap());
        let whole = Bounds { lower: None, upper: Some(5) };
        let window =
            Increx { whole, expiry: Expiry::In(10 * SECOND), only_new_expiry: true, ..Increx::default() };
        for operation in [throttle, Operation::Increx(window)] {
            for used in [1, 5] {
                for back in [11, 600, 86_400, 31_536_000] {
                    let mut stored = None;
                    for _ in 0..used {
                        assert_eq!(passes_after(&operation, &mut stored, NOW), Some(0));
                    }
                    let from = NOW - back * SECOND;
                    let counted = matches!(operation, Operation::Increx(_)) && used == 1;
                    let after = passes_after(&operation, &mut stored, from).unwrap();
                    match counted {
                        // The window goes on with what it counted.
                        true => assert_eq!(after, 0),
                        false => assert!((2..=10).contains(&after), "{operation:?} {used} {back}: {after}"),
                    }
                    let told = Operation::Look.apply(stored, from + after * SECOND).0;
                    let Reply::Seen(Some(Stored { expires: Some(expires), .. })) = told else {
                        panic!("{told:?}")
                    };
                    assert!(expires <= from + (after + 10) * SECOND, "{operation:?} {used} {back}");
                }
            }
        }
    }

    #[test]
    fn a_small_step_back_and_an_expiry_named_as_an_instant_change_nothing() {
        let throttle = Operation::Throttle(Terms::new(0, 1, 3_600, 1).unwrap());
        let mut stored = None;
        assert_eq!(passes_after(&throttle, &mut stored, NOW), Some(0));
        let before = stored;
        for back in [5, 3_600] {
            assert_eq!(passes_after(&throttle, &mut stored, NOW - back * SECOND), None);
            assert_eq!(stored, before);
        }
        let until = Increx { expiry: Expiry::At(NOW + SECOND), ..Increx::default() };
        let (_, change) = Operation::Increx(until).apply(None, NOW);
        let CellChange::Put(put) = change else { panic!("{change:?}") };
        let earlier = NOW - 86_400 * SECOND;
        assert_eq!(Operation::Look.apply(Some(put), earlier), (Reply::Seen(Some(put)), CellChange::Keep));
    }

    #[test]
    fn a_key_of_another_command_is_left_alone() {
        let count = Stored { value: CellValue::Count(Number::Whole(1)), expires: None, since: None };
        let throttle = Operation::Throttle(Terms::new(15, 30, 60, 1).unwrap());
        assert_eq!(throttle.apply(Some(count), 0), (Reply::WrongKind, CellChange::Keep));
        let arrival = Stored { value: CellValue::Arrival(9), expires: Some(9), since: None };
        let increx = Operation::Increx(Increx::default());
        assert_eq!(increx.apply(Some(arrival), 0), (Reply::WrongKind, CellChange::Keep));
        // Once it has expired the key is anybody's.
        assert!(matches!(increx.apply(Some(arrival), 9).0, Reply::Counted(_)));
    }
}
