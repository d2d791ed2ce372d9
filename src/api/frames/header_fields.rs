//! The part of a block of headers that is kept before HTTP/2 is read: everything but long values, which
//! nothing here reads (RFC 7541, 5 and 6).
//!
//! The block is read without tables or Huffman codes. So a field is cut only so that both ends' tables stay
//! the same: a value that goes into no table becomes empty, and one too long for any table becomes another
//! that is too long as well, since both empty the table.

const AUTHORITY: &[u8] = b":authority";
/// Where that name stands in the static table.
const AUTHORITY_INDEX: u32 = 1;
/// Longest value that is kept of a field that goes into no table. `traceparent` has 55 bytes, and no other
/// that a client may have chosen is read.
const UNINDEXED_MAX: u32 = 1_024;
/// Bytes of the table of fields, which no peer may raise: a longer field goes into none.
const TABLE_BYTES: u32 = 4_096;
/// What stands for a value that is longer than that: its length, 4,096, as a number of seven bits and more.
const TOO_LONG: [u8; 3] = [0x7f, 0x81, 0x1f];

/// A name that is too long for any gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NameTooLong;

/// What a number in a block of headers tells once it is read.
#[derive(Debug, Clone, Copy)]
enum Number {
    /// Nothing: a field from a table, or the table's size.
    Nothing,
    /// Where the name stands in the tables; zero: it follows.
    Name,
    /// The length of a name that follows.
    NameLen { coded: bool },
    /// The length of the value that follows.
    ValueLen { coded: bool },
}

/// Where a block of headers stands.
#[derive(Debug)]
enum HeaderPosition {
    Begin,
    /// The rest of a number that did not fit into its first byte.
    Number {
        of: Number,
        value: u32,
        shift: u32,
    },
    NameBegin,
    /// A name to come, and how much of [`AUTHORITY`] it has been so far.
    Name {
        left: u32,
        same: usize,
        coded: bool,
    },
    ValueBegin,
    Value {
        left: u32,
        mends: bool,
    },
    /// A value that is left out.
    Dropped {
        left: u32,
    },
}

/// Reads a block of headers, in pieces of any length.
#[derive(Debug)]
pub(super) struct HeaderFields {
    at: HeaderPosition,
    is_authority: bool,
    /// True if the field goes into the table.
    is_indexed: bool,
    /// The length of a value as it came, until it is known whether the value is kept.
    length: Vec<u8>,
}

impl Default for HeaderFields {
    fn default() -> Self {
        Self { at: HeaderPosition::Begin, is_authority: false, is_indexed: false, length: Vec::new() }
    }
}

impl HeaderFields {
    /// Reads some of the block, and appends to `kept` what is kept of it. `mends` is whether each `%` of an
    /// authority becomes `-`.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        mends: bool,
        kept: &mut Vec<u8>,
    ) -> Result<(), NameTooLong> {
        while let Some((&first, rest)) = bytes.split_first() {
            let run = |left: u32| bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match self.at {
                HeaderPosition::Dropped { left } => {
                    let run = run(left);
                    let left = left.saturating_sub(u32::try_from(run).unwrap_or(u32::MAX));
                    self.at =
                        if left == 0 { HeaderPosition::Begin } else { HeaderPosition::Dropped { left } };
                    bytes = bytes.get(run..).unwrap_or_default();
                }
                HeaderPosition::Value { left, mends: false } => {
                    let run = run(left);
                    kept.extend_from_slice(bytes.get(..run).unwrap_or_default());
                    let left = left.saturating_sub(u32::try_from(run).unwrap_or(u32::MAX));
                    self.at = if left == 0 {
                        HeaderPosition::Begin
                    } else {
                        HeaderPosition::Value { left, mends: false }
                    };
                    bytes = bytes.get(run..).unwrap_or_default();
                }
                _ => {
                    self.byte(first, mends, kept)?;
                    bytes = rest;
                }
            }
        }
        Ok(())
    }

    /// True if the block may end here.
    pub(super) const fn is_whole(&self) -> bool {
        matches!(self.at, HeaderPosition::Begin)
    }

    fn byte(&mut self, byte: u8, mends: bool, kept: &mut Vec<u8>) -> Result<(), NameTooLong> {
        let of_value = matches!(
            self.at,
            HeaderPosition::ValueBegin | HeaderPosition::Number { of: Number::ValueLen { .. }, .. }
        );
        match self.at {
            _ if of_value => self.length.push(byte),
            HeaderPosition::Value { mends: true, .. } if byte == b'%' => kept.push(b'-'),
            _ => kept.push(byte),
        }
        self.at = match self.at {
            HeaderPosition::Begin if byte & 0x80 != 0 => self.number(Number::Nothing, byte, 7)?,
            HeaderPosition::Begin if byte & 0x40 != 0 => {
                self.is_indexed = true;
                self.number(Number::Name, byte, 6)?
            }
            HeaderPosition::Begin if byte & 0x20 != 0 => self.number(Number::Nothing, byte, 5)?,
            HeaderPosition::Begin => {
                self.is_indexed = false;
                self.number(Number::Name, byte, 4)?
            }
            HeaderPosition::NameBegin => self.number(Number::NameLen { coded: byte & 0x80 != 0 }, byte, 7)?,
            HeaderPosition::ValueBegin => {
                self.number(Number::ValueLen { coded: byte & 0x80 != 0 }, byte, 7)?
            }
            HeaderPosition::Number { of, value, shift } => {
                let more = u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(u32::MAX);
                let value = value.saturating_add(more);
                if byte & 0x80 == 0 {
                    self.read(of, value)?
                } else {
                    HeaderPosition::Number { of, value, shift: shift.saturating_add(7) }
                }
            }
            HeaderPosition::Name { left, same, coded } => {
                let same = if !coded && AUTHORITY.get(same) == Some(&byte) { same + 1 } else { usize::MAX };
                match left - 1 {
                    0 => {
                        self.is_authority = same == AUTHORITY.len();
                        HeaderPosition::ValueBegin
                    }
                    left => HeaderPosition::Name { left, same: same.min(AUTHORITY.len() + 1), coded },
                }
            }
            HeaderPosition::Value { left: 1, .. } | HeaderPosition::Dropped { left: 1 } => {
                HeaderPosition::Begin
            }
            HeaderPosition::Value { left, mends } => HeaderPosition::Value { left: left - 1, mends },
            HeaderPosition::Dropped { left } => HeaderPosition::Dropped { left: left - 1 },
        };
        if of_value {
            self.value_begins(mends, kept);
        }
        Ok(())
    }

    /// Decides what becomes of a value, where its length is known now.
    fn value_begins(&mut self, mends: bool, kept: &mut Vec<u8>) {
        match self.at {
            HeaderPosition::Value { left, .. } if self.is_indexed && left > TABLE_BYTES => {
                kept.extend_from_slice(&TOO_LONG);
                kept.resize(kept.len() + usize::try_from(TABLE_BYTES).unwrap_or_default(), b'x');
                self.at = HeaderPosition::Dropped { left };
            }
            HeaderPosition::Value { left, .. } if !self.is_indexed && left > UNINDEXED_MAX => {
                kept.push(0);
                self.at = HeaderPosition::Dropped { left };
            }
            HeaderPosition::Value { left, mends: coded_plainly } => {
                kept.append(&mut self.length);
                self.at = HeaderPosition::Value { left, mends: mends && coded_plainly };
            }
            HeaderPosition::Number { .. } => return,
            _ => kept.append(&mut self.length),
        }
        self.length.clear();
    }

    /// A number that begins in the last `bits` of a byte.
    fn number(&mut self, of: Number, byte: u8, bits: u32) -> Result<HeaderPosition, NameTooLong> {
        let most = (1_u32 << bits) - 1;
        match u32::from(byte) & most {
            value if value == most => Ok(HeaderPosition::Number { of, value, shift: 0 }),
            value => self.read(of, value),
        }
    }

    fn read(&mut self, of: Number, value: u32) -> Result<HeaderPosition, NameTooLong> {
        Ok(match of {
            Number::Nothing => HeaderPosition::Begin,
            Number::Name => {
                self.is_authority = value == AUTHORITY_INDEX;
                if value == 0 { HeaderPosition::NameBegin } else { HeaderPosition::ValueBegin }
            }
            // A name without a letter is none.
            Number::NameLen { .. } if value == 0 => HeaderPosition::ValueBegin,
            Number::NameLen { .. } if value > TABLE_BYTES => return Err(NameTooLong),
            Number::NameLen { coded } => HeaderPosition::Name { left: value, same: 0, coded },
            Number::ValueLen { .. } if value == 0 => HeaderPosition::Begin,
            Number::ValueLen { coded } => {
                HeaderPosition::Value { left: value, mends: self.is_authority && !coded }
            }
        })
    }
}
