//! Calls over a Unix socket whose `:authority` is a percent-encoded path.
//!
//! gRPC's C core, and with it Python, Ruby and PHP, names the server of a Unix socket so, and an HTTP/2
//! server has to refuse the name: `%` stands in no authority (RFC 3986, 3.2). Nothing here looks at an
//! authority. So in what a Unix socket brings, each `%` of that one value becomes `-`, before HTTP/2 is read.
//! The value keeps its length, so both tables of header compression agree (RFC 7541).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::listener::Socket;

const NAME: &[u8] = b":authority";
/// Where that name stands in the static table.
const NAME_INDEX: u32 = 1;
const PREFACE_LEN: u32 = 24;
const HEAD_LEN: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_LEN: u32 = 5;

/// A socket that mends the authority of what it reads, where it is a Unix socket.
pub(super) struct Mended {
    socket: Socket,
    frames: Option<Frames>,
}

impl Mended {
    pub(super) fn new(socket: Socket) -> Self {
        let frames = matches!(socket, Socket::Unix(_)).then(Frames::default);
        Self { socket, frames }
    }
}

impl AsyncRead for Mended {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, into);
        if let Some(frames) = &mut self.frames {
            frames.mend(into.filled_mut().get_mut(before..).unwrap_or_default());
        }
        read
    }
}

impl AsyncWrite for Mended {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// Where a stream of HTTP/2 frames stands.
#[derive(Debug)]
enum At {
    /// Bytes to come that say nothing about headers.
    Skip(u32),
    /// A frame's head, of which so many bytes are there.
    Head([u8; HEAD_LEN], usize),
    /// The length of the padding at the end, then `skipped` bytes, then `block`, of which the padding is no
    /// part.
    Padding { skipped: u32, block: u32 },
    /// Bytes before a block of headers.
    Before { skipped: u32, block: u32, padding: u32 },
    /// A block of headers, and the padding after it.
    Block { left: u32, padding: u32 },
}

/// Reads frames as they arrive, in pieces of any length.
#[derive(Debug)]
struct Frames {
    at: At,
    fields: Fields,
}

impl Default for Frames {
    fn default() -> Self {
        Self { at: At::Skip(PREFACE_LEN), fields: Fields::default() }
    }
}

impl Frames {
    fn mend(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.at {
                At::Skip(left) | At::Before { skipped: left, .. } if *left > 0 => {
                    let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left = left.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
                    taken
                }
                At::Skip(_) => {
                    self.at = At::Head([0; HEAD_LEN], 0);
                    0
                }
                At::Before { block, padding, .. } => {
                    self.at = At::Block { left: *block, padding: *padding };
                    0
                }
                At::Block { left: 0, padding } => {
                    self.at = At::Skip(*padding);
                    0
                }
                At::Block { left, .. } => {
                    if let Some(byte) = bytes.first_mut() {
                        self.fields.take(byte);
                    }
                    *left = left.saturating_sub(1);
                    1
                }
                At::Padding { skipped, block } => {
                    let padding = u32::from(bytes.first().copied().unwrap_or(0));
                    self.at = At::Before { skipped: *skipped, block: block.saturating_sub(padding), padding };
                    1
                }
                At::Head(head, have) => {
                    if let (Some(place), Some(byte)) = (head.get_mut(*have), bytes.first()) {
                        *place = *byte;
                    }
                    *have += 1;
                    if *have == HEAD_LEN {
                        self.at = after(*head);
                    }
                    1
                }
            };
            bytes = bytes.get_mut(taken..).unwrap_or_default();
        }
    }
}

/// What follows a frame's head.
fn after([a, b, c, kind, flags, ..]: [u8; HEAD_LEN]) -> At {
    let length = u32::from_be_bytes([0, a, b, c]);
    match kind {
        HEADERS => {
            let skipped = if flags & PRIORITY == 0 { 0 } else { PRIORITY_LEN };
            if flags & PADDED == 0 {
                At::Before { skipped, block: length.saturating_sub(skipped), padding: 0 }
            } else {
                At::Padding { skipped, block: length.saturating_sub(1 + skipped) }
            }
        }
        CONTINUATION => At::Block { left: length, padding: 0 },
        _ => At::Skip(length),
    }
}

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
    /// A name to come, and how much of [`NAME`] it has been so far.
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
}

/// Reads a block of headers as far as it takes to find the authority's value (RFC 7541, 5 and 6).
#[derive(Debug)]
struct Fields {
    field: HeaderPosition,
    is_authority: bool,
}

impl Default for Fields {
    fn default() -> Self {
        Self { field: HeaderPosition::Begin, is_authority: false }
    }
}

impl Fields {
    fn take(&mut self, byte: &mut u8) {
        self.field = match self.field {
            HeaderPosition::Begin if *byte & 0x80 != 0 => self.number(Number::Nothing, *byte, 7),
            HeaderPosition::Begin if *byte & 0x40 != 0 => self.number(Number::Name, *byte, 6),
            HeaderPosition::Begin if *byte & 0x20 != 0 => self.number(Number::Nothing, *byte, 5),
            HeaderPosition::Begin => self.number(Number::Name, *byte, 4),
            HeaderPosition::NameBegin => self.number(Number::NameLen { coded: *byte & 0x80 != 0 }, *byte, 7),
            HeaderPosition::ValueBegin => {
                self.number(Number::ValueLen { coded: *byte & 0x80 != 0 }, *byte, 7)
            }
            HeaderPosition::Number { of, value, shift } => {
                let more = u32::from(*byte & 0x7f).checked_shl(shift).unwrap_or(u32::MAX);
                let value = value.saturating_add(more);
                if *byte & 0x80 == 0 {
                    self.read(of, value)
                } else {
                    HeaderPosition::Number { of, value, shift: shift + 7 }
                }
            }
            HeaderPosition::Name { left, same, coded } => {
                let same = if !coded && NAME.get(same) == Some(byte) { same + 1 } else { usize::MAX };
                match left - 1 {
                    0 => {
                        self.is_authority = same == NAME.len();
                        HeaderPosition::ValueBegin
                    }
                    left => HeaderPosition::Name { left, same: same.min(NAME.len() + 1), coded },
                }
            }
            HeaderPosition::Value { left, mends } => {
                if mends && *byte == b'%' {
                    *byte = b'-';
                }
                if left == 1 {
                    HeaderPosition::Begin
                } else {
                    HeaderPosition::Value { left: left - 1, mends }
                }
            }
        };
    }

    /// A number that begins in the last `bits` of a byte.
    fn number(&mut self, of: Number, byte: u8, bits: u32) -> HeaderPosition {
        let most = (1_u32 << bits) - 1;
        match u32::from(byte) & most {
            value if value == most => HeaderPosition::Number { of, value, shift: 0 },
            value => self.read(of, value),
        }
    }

    fn read(&mut self, of: Number, value: u32) -> HeaderPosition {
        match of {
            Number::Nothing => HeaderPosition::Begin,
            Number::Name => {
                self.is_authority = value == NAME_INDEX;
                if value == 0 { HeaderPosition::NameBegin } else { HeaderPosition::ValueBegin }
            }
            // A name without a letter is none.
            Number::NameLen { .. } if value == 0 => HeaderPosition::ValueBegin,
            Number::NameLen { coded } => HeaderPosition::Name { left: value, same: 0, coded },
            Number::ValueLen { .. } if value == 0 => HeaderPosition::Begin,
            Number::ValueLen { coded } => {
                HeaderPosition::Value { left: value, mends: self.is_authority && !coded }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], body].concat()
    }

    fn text(value: &[u8]) -> Vec<u8> {
        let length = u8::try_from(value.len()).unwrap();
        assert!(length < 127);
        [&[length], value].concat()
    }

    /// Mends in pieces of this length, as a socket may bring them.
    fn mended(stream: &[u8], piece: usize) -> Vec<u8> {
        let mut frames = Frames::default();
        let mut bytes = stream.to_vec();
        for piece in bytes.chunks_mut(piece) {
            frames.mend(piece);
        }
        bytes
    }

    #[test]
    fn only_the_value_of_the_authority_changes_however_it_arrives() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let value = text(b"%2Ftmp%2Fa.sock");
        let by_index =
            [&[0x83, 0x86, 0x41][..], &value, &[0x3f, 0xe1, 0x1f, 0x04], &text(b"/a%2Fb")].concat();
        let by_name = [&[0x40][..], &text(NAME), &value, &[0x00], &text(b":authoritx"), &value].concat();
        // As Huffman codes nothing is changed, whatever the bytes are.
        let coded = [&[0x01, 0x83][..], b"%%%", &[0x82]].concat();
        let split = by_index.split_at(7);
        let padded = [&[3][..], &[0; 5], &by_name, b"%%%"].concat();
        let frames = [
            frame(4, 0, b"%%%%%%"),
            frame(HEADERS, 4, &by_index),
            frame(0, 1, b":authority%2F"),
            frame(HEADERS, 4 | PADDED | PRIORITY, &padded),
            frame(HEADERS, 0, split.0),
            frame(CONTINUATION, 4, split.1),
            frame(HEADERS, 4, &coded),
            frame(HEADERS, 4, &[]),
            frame(HEADERS, 4, &by_name),
        ];
        let stream = [preface, frames.concat()].concat();
        let whole = mended(&stream, stream.len());
        let changed: Vec<usize> = (0..stream.len()).filter(|at| stream[*at] != whole[*at]).collect();
        assert_eq!(changed.len(), 4 * 2, "two in each of four");
        assert!(changed.iter().all(|at| stream[*at] == b'%' && whole[*at] == b'-'));
        let shown = String::from_utf8_lossy(&whole).into_owned();
        assert_eq!(shown.matches("-2Ftmp-2Fa.sock").count(), 3, "the fourth is in two frames");
        assert!(shown.contains(":authoritx\u{f}%2Ftmp"), "{shown:?}");
        for piece in 1..40 {
            assert_eq!(mended(&stream, piece), whole, "in pieces of {piece}");
        }
    }

    #[test]
    fn nonsense_is_passed_on_as_it_is() {
        let nonsense = vec![0xff; 4_096];
        assert_eq!(mended(&nonsense, 100), nonsense);
        let endless = [vec![b'%'; 24], frame(HEADERS, 0xff, &[0xff; 300])].concat();
        assert_eq!(mended(&endless, 1), endless);
        let short =
            [vec![0; 24], frame(HEADERS, PADDED | PRIORITY, &[200]), frame(HEADERS, PADDED, &[])].concat();
        assert_eq!(mended(&short, 1), short);
    }
}
