//! Reads commands: arrays of bulk strings, and lines as people type them.

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;

/// Most arguments of one command, its name included.
const ARGUMENTS_MAX: i64 = 1_024;
/// Longest argument, in bytes.
const BULK_BYTES_MAX: i64 = 1 << 20;
/// Longest line, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A command's name and its arguments.
pub(super) type Arguments<'a> = SmallVec<[Cow<'a, [u8]>; 8]>;

/// The command that a buffer begins with, and how many bytes it takes; `None`: not all of one is there yet.
/// One without arguments is to be passed over.
type Parsed<'a> = Option<(Arguments<'a>, usize)>;

/// Bytes that are no command. The connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtocolError {
    /// The number of arguments is none.
    ArrayLength,
    /// The length of an argument is none.
    BulkLength,
    /// An argument begins with something else than a length.
    NoBulk(u8),
    /// Quotes that do not end.
    Quotes,
    /// A line that does not end.
    LongLine,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ArrayLength => f.write_str("invalid multibulk length"),
            Self::BulkLength => f.write_str("invalid bulk length"),
            Self::NoBulk(byte) => write!(f, "expected '$', got '{}'", char::from(*byte).escape_default()),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::LongLine => f.write_str("too big inline request"),
        }
    }
}

/// Reads the command at the beginning of a buffer.
pub(super) fn next(buffer: &[u8]) -> Result<Parsed<'_>, ProtocolError> {
    match buffer.first() {
        None => Ok(None),
        Some(b'*') => array(buffer),
        Some(_) => line(buffer),
    }
}

/// The commands that a buffer begins with, as long as they are of one kind and no more than so many, and how
/// many bytes they take together.
pub(super) fn alike(
    buffer: &[u8],
    most: usize,
    is_alike: impl Fn(&Arguments<'_>) -> bool,
) -> (Vec<Arguments<'_>>, usize) {
    let (mut commands, mut taken) = (Vec::new(), 0);
    while commands.len() < most
        // Bytes that are no command are told of once they are at the front.
        && let Ok(Some((command, used))) = next(buffer.get(taken..).unwrap_or_default())
        && is_alike(&command)
    {
        commands.push(command);
        taken += used;
    }
    (commands, taken)
}

/// A number that ends with a line, and where the next line begins; `None`: it does not end yet.
fn length(buffer: &[u8], from: usize, wrong: ProtocolError) -> Result<Option<(i64, usize)>, ProtocolError> {
    let rest = buffer.get(from..).unwrap_or_default();
    let Some(end) = rest.iter().position(|byte| *byte == b'\r') else {
        return if rest.len() > LINE_BYTES_MAX { Err(wrong) } else { Ok(None) };
    };
    let number = rest.get(..end).and_then(number).ok_or(wrong)?;
    // The line ends with two bytes; the second is not looked at, as Redis does not.
    Ok((rest.len() > end + 1).then_some((number, from + end + 2)))
}

/// A whole number as Redis reads it: decimal, no plus, no zeros before it.
pub(super) fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = digits.first().is_some_and(u8::is_ascii_digit)
        && (digits.len() == 1 || digits.first() != Some(&b'0'));
    if !plain || text == b"-0" {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn array(buffer: &[u8]) -> Result<Parsed<'_>, ProtocolError> {
    let Some((count, mut at)) = length(buffer, 1, ProtocolError::ArrayLength)? else {
        return Ok(None);
    };
    if count > ARGUMENTS_MAX {
        return Err(ProtocolError::ArrayLength);
    }
    let mut arguments = Arguments::new();
    for _ in 0..count {
        match buffer.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::NoBulk(*other)),
        }
        let Some((bytes, begin)) = length(buffer, at + 1, ProtocolError::BulkLength)? else {
            return Ok(None);
        };
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|_| bytes <= BULK_BYTES_MAX)
            .ok_or(ProtocolError::BulkLength)?;
        let (Some(argument), true) = (buffer.get(begin..begin + bytes), buffer.len() >= begin + bytes + 2)
        else {
            return Ok(None);
        };
        arguments.push(Cow::Borrowed(argument));
        at = begin + bytes + 2;
    }
    Ok(Some((arguments, at)))
}

fn line(buffer: &[u8]) -> Result<Parsed<'_>, ProtocolError> {
    let Some(end) = buffer.iter().position(|byte| *byte == b'\n') else {
        return if buffer.len() > LINE_BYTES_MAX { Err(ProtocolError::LongLine) } else { Ok(None) };
    };
    let text = buffer.get(..end).unwrap_or_default();
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    Ok(Some((words(text)?, end + 1)))
}

/// Splits a line at blanks, as Redis does: with quotes, and escapes within them.
fn words(text: &[u8]) -> Result<Arguments<'_>, ProtocolError> {
    let mut out = Arguments::new();
    let mut bytes = text.iter().copied().peekable();
    loop {
        while bytes.next_if(u8::is_ascii_whitespace).is_some() {}
        if bytes.peek().is_none() {
            return Ok(out);
        }
        let mut word = Vec::new();
        while let Some(byte) = bytes.next_if(|byte| !byte.is_ascii_whitespace()) {
            match byte {
                b'"' | b'\'' => {
                    quoted(&mut bytes, byte, &mut word)?;
                    // A closing quote ends the word.
                    if bytes.peek().is_some_and(|next| !next.is_ascii_whitespace()) {
                        return Err(ProtocolError::Quotes);
                    }
                }
                _ => word.push(byte),
            }
        }
        out.push(Cow::Owned(word));
    }
}

fn quoted(bytes: &mut impl Iterator<Item = u8>, quote: u8, word: &mut Vec<u8>) -> Result<(), ProtocolError> {
    loop {
        match bytes.next().ok_or(ProtocolError::Quotes)? {
            byte if byte == quote => return Ok(()),
            b'\\' => {
                let escaped = bytes.next().ok_or(ProtocolError::Quotes)?;
                match (quote, escaped) {
                    (b'\'', b'\'') => word.push(b'\''),
                    (b'\'', other) => word.extend([b'\\', other]),
                    (_, b'n') => word.push(b'\n'),
                    (_, b'r') => word.push(b'\r'),
                    (_, b't') => word.push(b'\t'),
                    (_, b'b') => word.push(8),
                    (_, b'a') => word.push(7),
                    (_, b'x') => {
                        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
                        let (high, low) =
                            (digit().ok_or(ProtocolError::Quotes)?, digit().ok_or(ProtocolError::Quotes)?);
                        word.push(u8::try_from(high * 16 + low).unwrap_or_default());
                    }
                    (_, other) => word.push(other),
                }
            }
            byte => word.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn command(bytes: &[u8]) -> Result<Option<(Vec<String>, usize)>, String> {
        match next(bytes).map_err(|error| error.to_string())? {
            None => Ok(None),
            Some((arguments, used)) => {
                let text = |word: &Cow<'_, [u8]>| String::from_utf8_lossy(word).into_owned();
                Ok(Some((arguments.iter().map(text).collect(), used)))
            }
        }
    }

    fn words_of(bytes: &[u8]) -> Vec<String> {
        command(bytes).unwrap().unwrap().0
    }

    #[test]
    fn commands_come_as_arrays_and_as_lines() {
        assert_eq!(
            command(b"*2\r\n$4\r\nPING\r\n$1\r\nx\r\nrest"),
            Ok(Some((vec!["PING".into(), "x".into()], 21)))
        );
        assert_eq!(words_of(b"PING\r\n"), ["PING"]);
        assert_eq!(words_of(b"PING\n"), ["PING"]);
        assert_eq!(words_of(b"ECHO \"a b\\x41\\n\" 'it\\'s'\r\n"), ["ECHO", "a bA\n", "it's"]);
        assert_eq!(command(b"\r\n"), Ok(Some((vec![], 2))));
        assert_eq!(command(b"*0\r\n"), Ok(Some((vec![], 4))));
        assert_eq!(command(b"*-1\r\n"), Ok(Some((vec![], 5))));
    }

    #[test]
    fn what_is_no_command_is_named_as_redis_names_it() {
        for (bytes, error) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*1025\r\n", "invalid multibulk length"),
            (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
            (b"*1\r\n$x\r\n", "invalid bulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$600000000\r\n", "invalid bulk length"),
            (b"ECHO \"a\r\n", "unbalanced quotes in request"),
            (b"ECHO \"a\"b\r\n", "unbalanced quotes in request"),
        ] {
            assert_eq!(command(bytes), Err(error.to_owned()), "{bytes:?}");
        }
        assert_eq!(command(&[b'a'; LINE_BYTES_MAX + 1]), Err("too big inline request".to_owned()));
    }

    #[test]
    fn numbers_have_one_spelling() {
        for (text, read) in
            [("5", Some(5)), ("0", Some(0)), ("-7", Some(-7)), ("9223372036854775807", Some(i64::MAX))]
        {
            assert_eq!(number(text.as_bytes()), read);
        }
        for text in ["+5", " 5", "05", "-0", "", "-", "1.5", "9223372036854775808", "5 "] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn commands_of_one_kind_are_gathered_as_far_as_they_are_there() {
        let is_ping = |command: &Arguments<'_>| command.first().is_some_and(|name| &**name == b"PING");
        for (buffer, most, count, taken) in [
            (&b"PING\r\nPING\r\nECHO a\r\nPING\r\n"[..], 9, 2, 12),
            (b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI", 9, 2, 20),
            (b"PING\r\nPING\r\nPING\r\n", 2, 2, 12),
            (b"PING\r\n*x\r\n", 9, 1, 6),
            (b"ECHO a\r\n", 9, 0, 0),
        ] {
            let (commands, used) = alike(buffer, most, is_ping);
            assert_eq!((commands.len(), used), (count, taken), "{}", String::from_utf8_lossy(buffer));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_halves_are_incomplete(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = next(&bytes);
        }

        #[test]
        fn every_beginning_of_a_command_is_incomplete(
            arguments in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..6),
        ) {
            let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
            for argument in &arguments {
                bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
                bytes.extend(argument);
                bytes.extend(b"\r\n");
            }
            for end in 0..bytes.len() {
                prop_assert_eq!(next(&bytes[..end]), Ok(None));
            }
            let Ok(Some((read, used))) = next(&bytes) else { panic!() };
            prop_assert_eq!(used, bytes.len());
            prop_assert!(read.iter().map(|word| word.as_ref()).eq(arguments.iter().map(Vec::as_slice)));
        }
    }
}
