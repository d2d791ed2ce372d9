//! HTTP/2 as bytes, for clients that no library would be.

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const CANCEL: u32 = 8;

/// The beginning of a connection, with settings that say nothing.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// A `POST` whole.
pub(super) fn post(stream: u32, path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")];
    for (name, value) in fields.into_iter().chain([("content-type", kind), ("te", "trailers")]) {
        // In no table, and neither is coded: its length, then itself.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    [frame(HEADERS, END_HEADERS, stream, &block), frame(DATA, END_STREAM, stream, body)].concat()
}

/// A frame that came: part of an answer, the word to go, or any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    Answer(u32),
    GoAway,
    Other,
}

/// The frames within these bytes, the last one perhaps cut off.
pub(super) fn frames(mut bytes: &[u8]) -> Vec<Came> {
    let mut frames = Vec::new();
    while let [high, middle, low, kind, _, stream @ ..] = bytes
        && let Some(stream) = stream.first_chunk()
    {
        frames.push(match *kind {
            HEADERS => Came::Answer(u32::from_be_bytes(*stream)),
            GOAWAY => Came::GoAway,
            _ => Came::Other,
        });
        let length = u32::from_be_bytes([0, *high, *middle, *low]);
        bytes = bytes.get(9 + usize::try_from(length).unwrap()..).unwrap_or_default();
    }
    frames
}

/// The client wants no answer any more.
pub(super) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}
