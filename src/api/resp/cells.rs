//! `CL.THROTTLE`, `INCREX`, and what is done to their keys.

use std::borrow::Cow;

use super::arity;
use super::parse::{Arguments, number};
use super::reply::Answers;
use crate::core::cell::{
    Bounds, By, CellValue, Counted, Expiry, Increx, IncrexError, Number, Operation, Reply, Terms, TermsError,
};
use crate::core::request::TEXT_BYTES_MAX;

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_A_FLOAT: &str = "ERR value is not a valid float";
const SYNTAX: &str = "ERR syntax error";
const USAGE: &str = "Cell error: Store error: Usage: \
    cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
/// Stands before the digest of a long key. It is no UTF-8, as few keys are that people write.
const LONG_KEY: &[u8] = b"\xffsha256:";
const WRONG_KIND: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// Nanoseconds of a second, and of a millisecond.
const SECOND: i64 = 1_000_000_000;
const MILLISECOND: i64 = 1_000_000;

/// The name under which a key is counted: the key itself, or its digest where it is longer than any text that
/// is kept of a request.
pub(super) fn cell_name(key: &[u8]) -> Cow<'_, [u8]> {
    if key.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(key);
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, key);
    Cow::Owned([LONG_KEY, digest.as_ref()].concat())
}

/// A key and what is done to it, or the answer to a client that asked wrongly.
pub(super) type CellCall<'a> = Result<(Cow<'a, [u8]>, Operation), Cow<'static, str>>;

/// Reads a call of `CL.THROTTLE` or `INCREX`; `None`: it is another command.
pub(super) fn call<'a>(command: &'a Arguments<'_>) -> Option<CellCall<'a>> {
    let (name, words) = command.split_first()?;
    // The one that is asked for most comes first.
    if name.eq_ignore_ascii_case(b"CL.THROTTLE") {
        let Some((key, numbers)) = words.split_first() else { return Some(Err(USAGE.into())) };
        return Some(throttle(numbers).map(|operation| (cell_name(key), operation)));
    }
    if !name.eq_ignore_ascii_case(b"INCREX") {
        return None;
    }
    let Some((key, options)) = words.split_first() else { return Some(Err(arity("increx"))) };
    Some(increx(options).map(|operation| (cell_name(key), operation)).map_err(Cow::from))
}

/// Reads what follows the key of `CL.THROTTLE`.
///
/// # Errors
/// The answer to a client that asked wrongly.
pub(super) fn throttle(arguments: &[Cow<'_, [u8]>]) -> Result<Operation, Cow<'static, str>> {
    if !(3..=4).contains(&arguments.len()) {
        return Err(USAGE.into());
    }
    let mut numbers = [0, 0, 0, 1];
    for (read, text) in numbers.iter_mut().zip(arguments) {
        // Numbers are read as the module reads them, which takes a plus and zeros in front.
        *read = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
            let text = String::from_utf8_lossy(text);
            format!("Cell error: Store error: Couldn't parse as integer: {text}")
        })?;
    }
    let [burst, count, period, quantity] = numbers;
    let terms = Terms::new(burst, count, period, quantity).map_err(|error| match error {
        TermsError::ZeroRate => "Cell error: Store error: Zero rates are not supported",
        TermsError::OutOfRange => NOT_AN_INTEGER,
    })?;
    Ok(Operation::Throttle(terms))
}

/// Reads what follows the key of `INCREX`.
///
/// # Errors
/// The answer to a client that asked wrongly.
pub(super) fn increx(arguments: &[Cow<'_, [u8]>]) -> Result<Operation, &'static str> {
    let mut asked = IncrexOptions::default();
    let mut rest = arguments.iter();
    while let Some(option) = rest.next() {
        let name = option.to_ascii_uppercase();
        match &name[..] {
            b"SATURATE" if !asked.saturate => asked.saturate = true,
            b"ENX" if !asked.only_new => asked.only_new = true,
            b"PERSIST" if asked.expiry.is_none() => asked.expiry = Some(Expiry::Persist),
            b"BYINT" | b"BYFLOAT" | b"LBOUND" | b"UBOUND" | b"EX" | b"PX" | b"EXAT" | b"PXAT" => {
                asked.put(&name, rest.next().ok_or(SYNTAX)?)?;
            }
            _ => return Err(SYNTAX),
        }
    }
    asked.operation()
}

/// The options of `INCREX` as they stand.
#[derive(Default)]
struct IncrexOptions<'a> {
    by: Option<By>,
    lower: Option<&'a [u8]>,
    upper: Option<&'a [u8]>,
    saturate: bool,
    expiry: Option<Expiry>,
    only_new: bool,
}

impl<'a> IncrexOptions<'a> {
    /// Takes an option that has a value; each at most once.
    fn put(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), &'static str> {
        match name {
            b"BYINT" if self.by.is_none() => self.by = Some(By::Whole(number(value).ok_or(NOT_AN_INTEGER)?)),
            b"BYFLOAT" if self.by.is_none() => self.by = Some(By::Fraction(float(value)?)),
            b"LBOUND" if self.lower.is_none() => self.lower = Some(value),
            b"UBOUND" if self.upper.is_none() => self.upper = Some(value),
            b"EX" | b"PX" | b"EXAT" | b"PXAT" if self.expiry.is_none() => {
                let unit = if name.starts_with(b"EX") { SECOND } else { MILLISECOND };
                let time = number(value).ok_or(NOT_AN_INTEGER)?;
                let time = Some(time).filter(|time| *time > 0).and_then(|time| time.checked_mul(unit));
                let time = time.ok_or("ERR invalid expire time in 'increx' command")?;
                self.expiry = Some(if name.ends_with(b"AT") { Expiry::At(time) } else { Expiry::In(time) });
            }
            _ => return Err(SYNTAX),
        }
        Ok(())
    }

    fn operation(self) -> Result<Operation, &'static str> {
        match self.expiry {
            None if self.only_new => return Err("ERR ENX requires an expiration: EX, PX, EXAT or PXAT"),
            Some(Expiry::Persist) if self.only_new => return Err(SYNTAX),
            _ => {}
        }
        let by = self.by.unwrap_or(By::Whole(1));
        let mut increx = Increx {
            by,
            saturate: self.saturate,
            expiry: self.expiry.unwrap_or_default(),
            only_new_expiry: self.only_new,
            ..Increx::default()
        };
        match by {
            By::Whole(_) => {
                let read =
                    |text: Option<&[u8]>| text.map(|text| number(text).ok_or(NOT_AN_INTEGER)).transpose();
                increx.whole = Bounds { lower: read(self.lower)?, upper: read(self.upper)? };
            }
            By::Fraction(_) => {
                let read = |text: Option<&[u8]>| text.map(float).transpose();
                increx.fraction = Bounds { lower: read(self.lower)?, upper: read(self.upper)? };
            }
        }
        let crossed = matches!(increx.whole, Bounds { lower: Some(lower), upper: Some(upper) } if lower > upper)
            || matches!(increx.fraction, Bounds { lower: Some(lower), upper: Some(upper) } if lower > upper);
        if crossed {
            return Err("ERR LBOUND can't be greater than UBOUND");
        }
        Ok(Operation::Increx(increx))
    }
}

fn float(text: &[u8]) -> Result<f64, &'static str> {
    let read = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok()).ok_or(NOT_A_FLOAT)?;
    match read {
        number if number.is_finite() => Ok(number),
        number if number.is_infinite() => Err("ERR value cannot be Infinity"),
        _ => Err(NOT_A_FLOAT),
    }
}

/// Writes the answer of a key. `only`: the one element of `CL.THROTTLE` that a script asked for.
pub(super) fn answer(answers: &mut Answers, reply: &Reply, only: Option<usize>) {
    match reply {
        Reply::Throttled(told) => {
            let numbers =
                [i64::from(told.limited), told.limit, told.remaining, told.retry_after, told.reset_after];
            match only.map(|place| numbers.get(place)) {
                None => {
                    answers.array(numbers.len());
                    numbers.iter().for_each(|number| answers.integer(*number));
                }
                Some(Some(number)) => answers.integer(*number),
                Some(None) => answers.null(),
            }
        }
        Reply::Counted(Counted { value, applied }) => {
            let in_fractions = matches!(value, Number::Fraction(_)) || matches!(applied, Number::Fraction(_));
            answers.array(2);
            for number in [value, applied] {
                match number {
                    Number::Whole(number) if !in_fractions => answers.integer(*number),
                    #[expect(clippy::cast_precision_loss, reason = "Redis answers doubles here, too")]
                    Number::Whole(number) => answers.double(*number as f64),
                    Number::Fraction(number) => answers.double(*number),
                }
            }
        }
        Reply::WrongKind => answers.error(WRONG_KIND),
        Reply::Refused(IncrexError::NotWhole) => answers.error(NOT_AN_INTEGER),
        Reply::Refused(IncrexError::Infinite) => answers.error("ERR increment would produce NaN or Infinity"),
        // For how long a key is kept is told by its own commands.
        Reply::Seen(None) | Reply::Life(_) => answers.null(),
        Reply::Seen(Some(stored)) => match stored.value {
            CellValue::Arrival(at) => answers.bulk(itoa::Buffer::new().format(at).as_bytes()),
            CellValue::Count(number) => answers.bulk(number.to_string().as_bytes()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Cow<'_, [u8]>> {
        text.split_whitespace().map(|word| Cow::Borrowed(word.as_bytes())).collect()
    }

    #[test]
    fn a_long_key_is_counted_by_its_digest() {
        let (short, long, other) = ([b'a'; 1_024], [b'a'; 1_025], [b'a'; 1_026]);
        assert_eq!(cell_name(&short), Cow::Borrowed(&short[..]));
        assert_eq!(
            (cell_name(&long).len(), cell_name(&long)),
            (LONG_KEY.len() + 32, cell_name(&[b'a'; 1_025]))
        );
        assert_ne!(cell_name(&long), cell_name(&other));
    }

    #[test]
    fn wrong_numbers_of_throttle_are_answered_as_the_module_does() {
        for (text, answer) in [
            ("15 30", USAGE),
            ("15 30 60 1 1", USAGE),
            ("abc 30 60", "Cell error: Store error: Couldn't parse as integer: abc"),
            ("15 30 1.5", "Cell error: Store error: Couldn't parse as integer: 1.5"),
            ("15 0 60", "Cell error: Store error: Zero rates are not supported"),
            ("15 30 0", "Cell error: Store error: Zero rates are not supported"),
            ("15 30 60 -1", NOT_AN_INTEGER),
            ("-1 30 60", NOT_AN_INTEGER),
        ] {
            assert_eq!(throttle(&words(text)).unwrap_err(), answer, "{text}");
        }
        assert!(throttle(&words("15 30 60")).is_ok());
    }

    #[test]
    fn options_of_increx_come_in_any_order_and_once() {
        assert!(increx(&words("ubound 100 ENX byint 1 EX 60")).is_ok());
        assert!(increx(&words("")).is_ok());
        for (text, answer) in [
            ("ENX", "ERR ENX requires an expiration: EX, PX, EXAT or PXAT"),
            ("PERSIST ENX", SYNTAX),
            ("PERSIST EX 5", SYNTAX),
            ("EX 5 PX 5", SYNTAX),
            ("BYINT 1 BYFLOAT 1", SYNTAX),
            ("BYINT 1 BYINT 1", SYNTAX),
            ("SATURATE SATURATE", SYNTAX),
            ("UBOUND", SYNTAX),
            ("SOMETHING", SYNTAX),
            ("BYINT x", NOT_AN_INTEGER),
            ("BYINT 05", NOT_AN_INTEGER),
            ("BYFLOAT x", NOT_A_FLOAT),
            ("BYFLOAT inf", "ERR value cannot be Infinity"),
            ("LBOUND 5 UBOUND 4", "ERR LBOUND can't be greater than UBOUND"),
            ("EX 0", "ERR invalid expire time in 'increx' command"),
            ("EX -1", "ERR invalid expire time in 'increx' command"),
        ] {
            assert_eq!(increx(&words(text)), Err(answer), "{text}");
        }
    }
}
