//! One gRPC message, read off an HTTP/2 stream: bounded, and without a copy where it came in one piece.

use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::RecvStream;

use super::answer::PREFIX_BYTES;
use super::wire;
use crate::api::Servers;
use crate::api::connection::Held;
use crate::api::error::{Code, Refusal};

/// A message that is arriving.
pub(super) struct Message {
    body: RecvStream,
    /// What came before the end, and the room it takes.
    gathered: Option<(BytesMut, Held)>,
    /// Whether more came than is kept.
    is_cut: bool,
}

impl Message {
    /// Nothing of it has been read yet.
    pub(super) const fn new(body: RecvStream) -> Self {
        Self { body, gathered: None, is_cut: false }
    }

    /// The message without its prefix, once all of it is there. One that is too long is read to its end, and
    /// ends where it was cut; see [`wire::cut`].
    pub(super) fn poll(&mut self, servers: &Servers, cx: &mut Context<'_>) -> Poll<Result<Bytes, Refusal>> {
        let bytes_max = servers.settings().body_bytes_max;
        loop {
            let part = match ready!(self.body.poll_data(cx)) {
                Some(Ok(part)) => part,
                Some(Err(_)) => return Poll::Ready(Err(incomplete())),
                None => {
                    let whole = self.gathered.take().map(|(bytes, _)| bytes.freeze()).unwrap_or_default();
                    return Poll::Ready(unframed(whole, bytes_max, self.is_cut));
                }
            };
            // Fails only where the stream is gone, which the next poll tells.
            let _ = self.body.flow_control().release_capacity(part.len());
            if self.gathered.is_none() && self.body.is_end_stream() {
                return Poll::Ready(unframed(part, bytes_max, false));
            }
            self.gather(servers, &part, bytes_max);
        }
    }

    fn gather(&mut self, servers: &Servers, part: &[u8], bytes_max: usize) {
        let (bytes, held) = self.gathered.get_or_insert_with(|| (BytesMut::new(), servers.rls.budget.hold()));
        let room = bytes_max.saturating_add(PREFIX_BYTES).saturating_sub(bytes.len());
        let kept = part.get(..room.min(part.len())).unwrap_or_default();
        if self.is_cut || !held.grow(kept.len()) {
            self.is_cut = true;
            return;
        }
        self.is_cut = kept.len() < part.len();
        bytes.extend_from_slice(kept);
    }
}

fn incomplete() -> Refusal {
    Refusal::new(Code::Incomplete, "the message ended before its time")
}

/// Takes the prefix off: a flag and the length.
fn unframed(mut bytes: Bytes, bytes_max: usize, is_cut: bool) -> Result<Bytes, Refusal> {
    let Some(&[flag, a, b, c, d]) = bytes.get(..PREFIX_BYTES) else {
        return if is_cut { Ok(wire::cut(&[]).into()) } else { Err(incomplete()) };
    };
    let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    match flag {
        0 => {}
        1 => return Err(Refusal::new(Code::Unimplemented, "compressed messages are not read")),
        _ => return Err(Refusal::new(Code::Malformed, "the message's flag is neither 0 nor 1")),
    }
    bytes.advance(PREFIX_BYTES);
    if is_cut || (len > bytes_max && bytes.len() >= len) {
        return Ok(wire::cut(bytes.get(..bytes_max.min(len)).unwrap_or(&bytes)).into());
    }
    match bytes.len().cmp(&len) {
        std::cmp::Ordering::Less => Err(incomplete()),
        std::cmp::Ordering::Equal => Ok(bytes),
        std::cmp::Ordering::Greater => {
            Err(Refusal::new(Code::Invalid, "the call takes one message, not several"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_says_exactly_what_follows() {
        let read = |bytes: &'static [u8]| {
            unframed(Bytes::from_static(bytes), 4, false)
                .map(|message| message.to_vec())
                .map_err(|refusal| refusal.code)
        };
        assert_eq!(read(b"\0\0\0\0\x02ab"), Ok(b"ab".to_vec()));
        assert_eq!(read(b"\0\0\0\0\0"), Ok(Vec::new()));
        assert_eq!(read(b"\0\0\0\0"), Err(Code::Incomplete));
        assert_eq!(read(b""), Err(Code::Incomplete));
        assert_eq!(read(b"\0\0\0\0\x02a"), Err(Code::Incomplete));
        assert_eq!(read(b"\0\0\0\0\x02abc"), Err(Code::Invalid));
        assert_eq!(read(b"\x01\0\0\0\x02ab"), Err(Code::Unimplemented));
        assert_eq!(read(b"\x02\0\0\0\x02ab"), Err(Code::Malformed));
        assert_eq!(read(b"\0\xff\xff\xff\xffab"), Err(Code::Incomplete));
        assert_eq!(read(b"\0\0\0\0\x05abcde"), Ok(wire::cut(b"abcd")), "longer than is read");
    }

    #[test]
    fn a_message_that_was_cut_is_never_an_error() {
        for bytes in [&b""[..], b"\0\0", b"\0\xff\xff\xff\xff", b"\0\xff\xff\xff\xff\x0a\x03web\x12\xff"] {
            let whole = unframed(Bytes::from_static(bytes), 1_000, true).unwrap();
            assert!(wire::decode(&whole).is_ok(), "{bytes:?}");
        }
    }
}
