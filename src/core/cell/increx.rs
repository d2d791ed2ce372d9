//! `INCREX key [BYINT n | BYFLOAT f] [LBOUND n] [UBOUND n] [SATURATE] [expiry] [ENX]`: a counter with bounds
//! and an expiry, as Redis 8.8 answers it. `INCREX key BYINT 1 UBOUND 100 EX 60 ENX` is a window of a minute
//! that begins with its first call: applied 0 means denied.

use super::{CellChange, CellValue, Nanos, Number, Reply, Stored};

/// The number that is added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum By {
    /// A whole number.
    Whole(i64),
    /// Any finite number.
    Fraction(f64),
}

/// The bounds of the count, each of them inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounds<T> {
    /// The least that it may become.
    pub lower: Option<T>,
    /// The most that it may become.
    pub upper: Option<T>,
}

/// The fate of the key's expiry where the count changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expiry {
    /// It stays as it is.
    #[default]
    Keep,
    /// The key stays for ever.
    Persist,
    /// The key is freed so many nanoseconds from now.
    In(Nanos),
    /// The key is freed at this instant.
    At(Nanos),
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Increx {
    /// Number to add: whole (`BYINT`) or with fractions (`BYFLOAT`).
    pub by: By,
    /// The bounds of a whole count.
    pub whole: Bounds<i64>,
    /// The bounds of a count with fractions.
    pub fraction: Bounds<f64>,
    /// True if a count that would leave its bounds stops there, rather than staying as it is.
    pub saturate: bool,
    /// Expiry that the call sets, unless `only_new_expiry` keeps an earlier one.
    pub expiry: Expiry,
    /// True if an expiry that is there stays.
    pub only_new_expiry: bool,
}

impl Default for Increx {
    fn default() -> Self {
        Self {
            by: By::Whole(1),
            whole: Bounds { lower: None, upper: None },
            fraction: Bounds { lower: None, upper: None },
            saturate: false,
            expiry: Expiry::Keep,
            only_new_expiry: false,
        }
    }
}

/// The two numbers that `INCREX` answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counted {
    /// Count as it stands after the call.
    pub value: Number,
    /// Number that was really added: zero where a bound refused it.
    pub applied: Number,
}

/// The reason why a value cannot be changed so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncrexError {
    /// A whole number is to be added to a count with a fraction.
    NotWhole,
    /// The count would become infinite.
    Infinite,
}

impl Increx {
    /// Answers from what is stored.
    pub(super) fn apply(&self, stored: Option<Stored>, now: Nanos) -> (Reply, CellChange) {
        let before = match stored.map(|stored| stored.value) {
            Some(CellValue::Count(number)) => number,
            _ => Number::Whole(0),
        };
        let counted = match (self.by, before) {
            (By::Whole(by), Number::Whole(count)) => self.whole(count, by),
            (By::Whole(_), Number::Fraction(_)) => Err(IncrexError::NotWhole),
            #[expect(clippy::cast_precision_loss, reason = "the command adds floats, as Redis does")]
            (By::Fraction(by), Number::Whole(count)) => self.fraction(count as f64, by),
            (By::Fraction(by), Number::Fraction(count)) => self.fraction(count, by),
        };
        let counted = match counted {
            Ok(Some(counted)) => counted,
            Ok(None) => {
                let nothing = match self.by {
                    By::Whole(_) => Number::Whole(0),
                    By::Fraction(_) => Number::Fraction(0.0),
                };
                return (Reply::Counted(Counted { value: before, applied: nothing }), CellChange::Keep);
            }
            Err(error) => return (Reply::Refused(error), CellChange::Keep),
        };
        let (expires, since) = self.expires(stored, now);
        let put = Stored { value: CellValue::Count(counted.value), expires, since };
        let change = if put.holds(now) { CellChange::Put(put) } else { CellChange::Remove };
        (Reply::Counted(counted), change)
    }

    /// Returns the expiry, and the instant that it is counted from.
    fn expires(&self, before: Option<Stored>, now: Nanos) -> (Option<Nanos>, Option<Nanos>) {
        let kept = before.map_or((None, None), |stored| (stored.expires, stored.since));
        match self.expiry {
            Expiry::Keep => kept,
            Expiry::Persist => (None, None),
            Expiry::In(_) | Expiry::At(_) if self.only_new_expiry && kept.0.is_some() => kept,
            Expiry::In(time) => (Some(now.saturating_add(time)), Some(now)),
            Expiry::At(at) => (Some(at), None),
        }
    }

    /// Adds to a whole count; `None` where it stays as it is.
    fn whole(&self, count: i64, by: i64) -> Result<Option<Counted>, IncrexError> {
        let lower = self.whole.lower.unwrap_or(i64::MIN);
        let upper = self.whole.upper.unwrap_or(i64::MAX);
        let after = i128::from(count) + i128::from(by);
        let within = i64::try_from(after).ok().filter(|after| (lower..=upper).contains(after));
        // A count that stops at a bound never turns back: one that lies beyond it already stays.
        let stopped = if by >= 0 { upper.max(count) } else { lower.min(count) };
        let value = match within {
            Some(after) => after,
            None if self.saturate => stopped,
            None => return Ok(None),
        };
        let applied = Number::Whole(value.saturating_sub(count));
        Ok(Some(Counted { value: Number::Whole(value), applied }))
    }

    /// Adds to a count with a fraction; `None` where it stays as it is.
    fn fraction(&self, count: f64, by: f64) -> Result<Option<Counted>, IncrexError> {
        let lower = self.fraction.lower.unwrap_or(f64::NEG_INFINITY);
        let upper = self.fraction.upper.unwrap_or(f64::INFINITY);
        let after = count + by;
        let value = if (lower..=upper).contains(&after) {
            after
        } else if !self.saturate {
            return Ok(None);
        } else if by >= 0.0 {
            upper.max(count)
        } else {
            lower.min(count)
        };
        if !value.is_finite() {
            return Err(IncrexError::Infinite);
        }
        Ok(Some(Counted { value: Number::Fraction(value), applied: Number::Fraction(value - count) }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Operation;
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// Plays calls at instants on one key: value, applied, and the expiry that is stored then.
    fn play(calls: &[(i64, Increx)]) -> Vec<(i64, i64, Option<i64>)> {
        let mut stored: Option<Stored> = None;
        let mut out = Vec::new();
        for (now, call) in calls {
            let (reply, change) = Operation::Increx(*call).apply(stored, *now);
            match change {
                CellChange::Put(put) => stored = Some(put),
                CellChange::Remove => stored = None,
                CellChange::Keep => {}
            }
            let Reply::Counted(Counted { value: Number::Whole(value), applied: Number::Whole(applied) }) =
                reply
            else {
                panic!("{reply:?}")
            };
            out.push((value, applied, stored.and_then(|stored| stored.expires)));
        }
        out
    }

    fn upto(upper: i64) -> Increx {
        let whole = Bounds { lower: None, upper: Some(upper) };
        Increx { whole, expiry: Expiry::In(60 * SECOND), only_new_expiry: true, ..Increx::default() }
    }

    #[test]
    fn the_pattern_of_a_rate_limit_denies_by_applying_nothing() {
        let told = play(&[(0, upto(2)), (SECOND, upto(2)), (2 * SECOND, upto(2)), (60 * SECOND, upto(2))]);
        let first = Some(60 * SECOND);
        assert_eq!(told, [(1, 1, first), (2, 1, first), (2, 0, first), (1, 1, Some(120 * SECOND))]);
    }

    #[test]
    fn what_does_not_fit_makes_no_key_unless_it_stops_at_the_bound() {
        let five = Increx { by: By::Whole(5), ..upto(3) };
        assert_eq!(play(&[(0, five)]), [(0, 0, None)]);
        let stops = Increx { saturate: true, ..five };
        assert_eq!(play(&[(0, stops)]), [(3, 3, Some(60 * SECOND))]);
        // A bound that was lowered takes nothing away.
        assert_eq!(
            play(&[(0, upto(5)), (0, Increx { saturate: true, ..upto(0) })])[1],
            (1, 0, Some(60 * SECOND))
        );
    }

    #[test]
    fn expiries_stay_go_and_end_the_key_at_once() {
        let plain = Increx { only_new_expiry: false, ..upto(9) };
        let persist = Increx { expiry: Expiry::Persist, ..plain };
        let past = Increx { expiry: Expiry::At(0), ..plain };
        let keep = Increx { expiry: Expiry::Keep, ..plain };
        let told = play(&[
            (0, plain),
            (SECOND, keep),
            (SECOND, plain),
            (SECOND, persist),
            (SECOND, past),
            (SECOND, keep),
        ]);
        assert_eq!(
            told,
            [
                (1, 1, Some(60 * SECOND)),
                (2, 1, Some(60 * SECOND)),
                (3, 1, Some(61 * SECOND)),
                (4, 1, None),
                (5, 1, None),
                (1, 1, None)
            ]
        );
    }

    #[test]
    fn a_whole_number_does_not_go_with_a_fraction_and_nothing_becomes_infinite() {
        let half = Stored { value: CellValue::Count(Number::Fraction(0.5)), expires: None, since: None };
        let (reply, change) = Operation::Increx(Increx::default()).apply(Some(half), 0);
        assert_eq!((reply, change), (Reply::Refused(IncrexError::NotWhole), CellChange::Keep));
        let most = Stored { value: CellValue::Count(Number::Fraction(f64::MAX)), expires: None, since: None };
        let double = Increx { by: By::Fraction(f64::MAX), ..Increx::default() };
        let (reply, _) = Operation::Increx(double).apply(Some(most), 0);
        assert_eq!(reply, Reply::Refused(IncrexError::Infinite));
        let far = Increx { by: By::Whole(i64::MAX), ..Increx::default() };
        assert_eq!(play(&[(0, far), (0, far)])[1], (i64::MAX, 0, None));
    }
}
