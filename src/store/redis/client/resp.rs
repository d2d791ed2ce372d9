//! Redis's protocol (RESP 2) as far as it is spoken here: one reply from the bytes that have arrived, one
//! command into the bytes that leave.

use redis::Value;

use crate::store::redis::client::failure::Failure;

/// Longest string in a reply, in bytes. A longer one ends the connection.
const STRING_BYTES_MAX: usize = 64 * 1_024 * 1_024;
/// Arrays in arrays at most.
const DEPTH_MAX: u8 = 8;
/// Room made for an array before its items have arrived.
const ITEMS_EXPECTED_MAX: usize = 1_024;

/// The bytes that came are not RESP: the connection cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server's reply cannot be read")]
pub(in crate::store::redis) struct Garbled;

/// Reasons why no value can be read now.
enum Stop {
    /// Some of it has yet to arrive.
    Early,
    Garbled,
}

/// The reply of a server: a value, or why there is none.
pub(in crate::store::redis) type Answer = Result<Value, Failure>;

/// The first reply in `bytes` and its length; `None` while some of it has yet to arrive.
pub(in crate::store::redis) fn read(bytes: &[u8]) -> Result<Option<(Answer, usize)>, Garbled> {
    let mut reader = Reader { rest: bytes };
    match reader.reply() {
        Ok(reply) => Ok(Some((reply, bytes.len() - reader.rest.len()))),
        Err(Stop::Early) => Ok(None),
        Err(Stop::Garbled) => Err(Garbled),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn reply(&mut self) -> Result<Result<Value, Failure>, Stop> {
        if self.rest.first() == Some(&b'-') {
            let line = self.line()?;
            let text = String::from_utf8_lossy(line.get(1..).unwrap_or_default());
            return Ok(Err(Failure::from_text(&text)));
        }
        self.value(DEPTH_MAX).map(Ok)
    }

    fn value(&mut self, depth: u8) -> Result<Value, Stop> {
        let (mark, text) = self.line()?.split_first().ok_or(Stop::Garbled)?;
        match mark {
            b'+' if text == b"OK" => Ok(Value::Okay),
            // An error inside an array is told as its text.
            b'+' | b'-' => Ok(Value::SimpleString(String::from_utf8_lossy(text).into_owned())),
            b':' => number(text).map(Value::Int).ok_or(Stop::Garbled),
            b'$' => match self.length(text, STRING_BYTES_MAX)? {
                None => Ok(Value::Nil),
                Some(len) => self.string(len),
            },
            b'*' => match self.length(text, usize::MAX)? {
                None => Ok(Value::Nil),
                Some(len) => {
                    let depth = depth.checked_sub(1).ok_or(Stop::Garbled)?;
                    let mut items = Vec::with_capacity(len.min(ITEMS_EXPECTED_MAX));
                    for _ in 0..len {
                        items.push(self.value(depth)?);
                    }
                    Ok(Value::Array(items))
                }
            },
            _ => Err(Stop::Garbled),
        }
    }

    /// Up to the next line's end, which is passed.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let end = self.rest.iter().position(|byte| *byte == b'\r').ok_or(Stop::Early)?;
        let (line, after) = self.rest.split_at(end);
        match after {
            [b'\r', b'\n', rest @ ..] => {
                self.rest = rest;
                Ok(line)
            }
            [_] => Err(Stop::Early),
            _ => Err(Stop::Garbled),
        }
    }

    #[expect(clippy::unused_self, reason = "reads as the others do")]
    fn length(&self, text: &[u8], most: usize) -> Result<Option<usize>, Stop> {
        match number(text) {
            Some(-1) => Ok(None),
            Some(len) => {
                let len = usize::try_from(len).map_err(|_| Stop::Garbled)?;
                if len <= most { Ok(Some(len)) } else { Err(Stop::Garbled) }
            }
            None => Err(Stop::Garbled),
        }
    }

    fn string(&mut self, len: usize) -> Result<Value, Stop> {
        let (own, after) = self.rest.split_at_checked(len).ok_or(Stop::Early)?;
        match after {
            [b'\r', b'\n', rest @ ..] => {
                self.rest = rest;
                Ok(Value::BulkString(own.to_vec()))
            }
            [] | [_] => Err(Stop::Early),
            _ => Err(Stop::Garbled),
        }
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Begins a command of this many words.
pub(in crate::store::redis) fn begin(into: &mut Vec<u8>, words: usize) {
    into.push(b'*');
    into.extend_from_slice(itoa::Buffer::new().format(words).as_bytes());
    into.extend_from_slice(b"\r\n");
}

/// Appends one word.
pub(in crate::store::redis) fn word(into: &mut Vec<u8>, word: &[u8]) {
    into.push(b'$');
    into.extend_from_slice(itoa::Buffer::new().format(word.len()).as_bytes());
    into.extend_from_slice(b"\r\n");
    into.extend_from_slice(word);
    into.extend_from_slice(b"\r\n");
}

/// A whole command.
pub(in crate::store::redis) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    begin(&mut bytes, words.len());
    for own in words {
        word(&mut bytes, own);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(value: &Value, into: &mut Vec<u8>) {
        match value {
            Value::Okay => into.extend_from_slice(b"+OK\r\n"),
            Value::Nil => into.extend_from_slice(b"$-1\r\n"),
            Value::Int(number) => into.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Value::SimpleString(text) => into.extend_from_slice(format!("+{text}\r\n").as_bytes()),
            Value::BulkString(bytes) => word(into, bytes),
            Value::Array(items) => {
                begin(into, items.len());
                items.iter().for_each(|item| write(item, into));
            }
            other => panic!("{other:?} is never written"),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Okay),
            Just(Value::Nil),
            any::<i64>().prop_map(Value::Int),
            "[a-z ]{3,9}".prop_map(Value::SimpleString),
            proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::BulkString),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| proptest::collection::vec(inner, 0..5).prop_map(Value::Array))
    }

    proptest! {
        #[test]
        fn a_reply_is_read_once_all_of_it_is_there_and_no_sooner(value in values(), more in "[+:$*]?") {
            let mut bytes = Vec::new();
            write(&value, &mut bytes);
            let len = bytes.len();
            for part in 0..len {
                prop_assert_eq!(read(&bytes[..part]), Ok(None));
            }
            bytes.extend_from_slice(more.as_bytes());
            prop_assert_eq!(read(&bytes), Ok(Some((Ok(value), len))));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn an_error_is_a_failure_and_not_a_value() {
        let moved = Failure::Moved("127.0.0.1:7000".to_owned());
        assert_eq!(read(b"-MOVED 12 127.0.0.1:7000\r\n:1\r\n"), Ok(Some((Err(moved), 26))));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for garbled in [
            "hello\r\n",
            "$x\r\n",
            "$-2\r\n",
            "$1\r\nabc",
            "$99999999999\r\n",
            "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        ] {
            assert_eq!(read(garbled.as_bytes()), Err(Garbled), "{garbled:?}");
        }
    }
}
