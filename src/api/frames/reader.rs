//! Frames of HTTP/2 as a client sends them, looked at and partly written anew before HTTP/2 is read.

use bytes::BytesMut;

use super::header_fields::HeaderFields;

/// Name of the field that says of which stream a request is. What a client sends under it stands before it.
pub(super) const NUMBER_FIELD: &str = "tidegate-stream";
const PREFACE_LEN: usize = 24;
const HEAD_LEN: usize = 9;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_LEN: usize = 5;
/// Longest frame: as long as any peer may send them unless told otherwise, and none is told.
const FRAME_BYTES_MAX: usize = 16_384;
/// Most frames of one head: 16 MiB, twice what the most patient gateway reads of its client's.
const HEAD_FRAMES_MAX: u32 = 1_024;
/// Most bytes of one head that are kept. Only more fields than any gateway sends take more.
const KEPT_BYTES_MAX: usize = 64 * 1_024;

/// Why a connection is given up. Nothing that a client chose of a gateway's call leads here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeadError {
    #[error("a head has more than {HEAD_FRAMES_MAX} frames")]
    Frames,
    #[error("a head keeps more than {KEPT_BYTES_MAX} bytes without its long values")]
    Kept,
    #[error("a head has a name of more than 4,096 bytes")]
    Name,
    #[error("a head's frame or field ends before its time")]
    Cut,
}

/// The changes that are made to the heads of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// Long values are left out where a head takes several frames. `mends`: each `%` of an authority becomes
    /// `-`.
    Small { mends: bool },
    /// Each gets a field, [`NUMBER_FIELD`], with the number of its stream.
    Numbered,
}

/// Where a stream of HTTP/2 frames stands.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Bytes to come that are passed on as they are.
    Pass(usize),
    /// A frame's head, of which so many bytes are there.
    Head(usize),
    /// The length of the padding at the end, then `skipped` bytes, then `block` with that padding.
    Padding { skipped: usize, block: usize },
    /// Bytes before a block of headers, which are left out.
    Before { skipped: usize, block: usize, padding: usize },
    /// A piece of a block of headers.
    Block { left: usize, padding: usize },
    /// The padding behind it.
    Behind(usize),
}

/// The head of one request, while its frames arrive.
#[derive(Debug, Default)]
struct OpenHead {
    stream: [u8; 4],
    ends_stream: bool,
    ends: bool,
    frames: u32,
    fields: HeaderFields,
    kept: Vec<u8>,
}

/// Reads frames as they arrive, in pieces of any length.
#[derive(Debug)]
pub(super) struct Frames {
    heads: Heads,
    at: At,
    head: [u8; HEAD_LEN],
    open: Option<Box<OpenHead>>,
    /// Bytes that follow the frame that is passed on.
    behind: Vec<u8>,
    /// Bytes that were made anew and are still to be passed on, before anything that is read after them.
    pub(super) made: BytesMut,
    /// The streams that were reset.
    pub(super) reset: Vec<u32>,
}

impl Frames {
    pub(super) fn new(heads: Heads) -> Self {
        let (head, made, at) = ([0; HEAD_LEN], BytesMut::new(), At::Pass(PREFACE_LEN));
        Self { heads, at, head, open: None, behind: Vec::new(), made, reset: Vec::new() }
    }

    /// Takes what was read, and leaves at its beginning what is passed on as it came: so many bytes of it.
    /// The bytes to pass on behind those are in `made`.
    pub(super) fn pass(&mut self, read: &mut [u8]) -> Result<usize, HeadError> {
        let (mut from, mut passed) = (0, 0);
        let mends = self.heads == Heads::Small { mends: true };
        loop {
            self.settle()?;
            let left = read.len() - from;
            if left == 0 {
                return Ok(passed);
            }
            let taken = match &mut self.at {
                At::Pass(to_pass) => {
                    let taken = left.min(*to_pass);
                    *to_pass -= taken;
                    // In place as long as nothing was left out or made before it.
                    if passed == from && self.made.is_empty() {
                        passed += taken;
                    } else {
                        self.made.extend_from_slice(read.get(from..from + taken).unwrap_or_default());
                    }
                    taken
                }
                At::Head(have) => {
                    let taken = left.min(HEAD_LEN - *have);
                    let (there, new) =
                        (self.head.get_mut(*have..*have + taken), read.get(from..from + taken));
                    if let (Some(there), Some(new)) = (there, new) {
                        there.copy_from_slice(new);
                    }
                    *have += taken;
                    if *have == HEAD_LEN {
                        let whole = taken == HEAD_LEN && passed == from && self.made.is_empty();
                        if self.begins_frame()? {
                            let place = read.get_mut(from..from + taken).filter(|_| whole);
                            if let Some(place) = place {
                                place.copy_from_slice(&self.head);
                                passed += HEAD_LEN;
                            } else {
                                self.made.extend_from_slice(&self.head);
                            }
                        }
                    }
                    taken
                }
                At::Padding { skipped, block } => {
                    let padding = usize::from(read.get(from).copied().unwrap_or_default());
                    let block = block.checked_sub(padding).ok_or(HeadError::Cut)?;
                    self.at = At::Before { skipped: *skipped, block, padding };
                    1
                }
                At::Before { skipped: out, .. } | At::Behind(out) => {
                    let taken = left.min(*out);
                    *out -= taken;
                    taken
                }
                At::Block { left: block, .. } => {
                    let taken = left.min(*block);
                    *block -= taken;
                    if let Some(open) = &mut self.open {
                        let piece = read.get(from..from + taken).unwrap_or_default();
                        open.fields.take(piece, mends, &mut open.kept).map_err(|_| HeadError::Name)?;
                        if open.kept.len() > KEPT_BYTES_MAX {
                            return Err(HeadError::Kept);
                        }
                    }
                    taken
                }
            };
            from += taken;
        }
    }

    /// Goes on to what comes next where nothing is left of what came before.
    fn settle(&mut self) -> Result<(), HeadError> {
        loop {
            self.at = match self.at {
                At::Pass(0) => {
                    self.made.extend_from_slice(&self.behind);
                    self.behind.clear();
                    At::Head(0)
                }
                At::Before { skipped: 0, block, padding } => At::Block { left: block, padding },
                At::Block { left: 0, padding } => At::Behind(padding),
                At::Behind(0) => {
                    if self.open.as_ref().is_some_and(|open| open.ends)
                        && let Some(open) = self.open.take()
                    {
                        open.write(&mut self.made)?;
                    }
                    At::Head(0)
                }
                _ => return Ok(()),
            };
        }
    }

    /// Looks at a frame's head. True if the frame is passed on as it is.
    fn begins_frame(&mut self) -> Result<bool, HeadError> {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
        let ends = flags & END_HEADERS != 0;
        if let Some(open) = &mut self.open {
            if kind == CONTINUATION && stream == open.stream && length <= FRAME_BYTES_MAX {
                open.frames += 1;
                open.ends = ends;
                self.at = At::Block { left: length, padding: 0 };
                return if open.frames > HEAD_FRAMES_MAX { Err(HeadError::Frames) } else { Ok(false) };
            }
            return Err(HeadError::Cut);
        }
        if kind == RST_STREAM {
            self.reset.push(number_of(stream));
        }
        let Heads::Small { mends } = self.heads else {
            if ends && matches!(kind, HEADERS | CONTINUATION) {
                self.number(length, stream);
            }
            self.at = At::Pass(length);
            return Ok(true);
        };
        if kind != HEADERS || length > FRAME_BYTES_MAX || (ends && !mends) {
            self.at = At::Pass(length);
            return Ok(true);
        }
        let ends_stream = flags & END_STREAM != 0;
        self.open = Some(Box::new(OpenHead { stream, ends_stream, ends, ..OpenHead::default() }));
        let skipped = if flags & PRIORITY == 0 { 0 } else { PRIORITY_LEN };
        let padded = usize::from(flags & PADDED != 0);
        let block = length.checked_sub(skipped + padded).ok_or(HeadError::Cut)?;
        self.at = if padded == 0 {
            At::Before { skipped, block, padding: 0 }
        } else {
            At::Padding { skipped, block }
        };
        Ok(false)
    }

    /// Has the field with its stream's number follow the frame that ends a head, in that frame where it has
    /// room.
    fn number(&mut self, length: usize, stream: [u8; 4]) {
        let field = number_field(stream);
        let [_, a, b, c] = u32::try_from(length + field.len()).unwrap_or(u32::MAX).to_be_bytes();
        let [first, second, third, _, flags, ..] = &mut self.head;
        // Padding would lie between.
        if *flags & PADDED == 0 && length + field.len() <= FRAME_BYTES_MAX {
            (*first, *second, *third) = (a, b, c);
        } else {
            *flags &= !END_HEADERS;
            let head = FrameHead { kind: CONTINUATION, flags: END_HEADERS, stream };
            write_frame(&mut self.behind, head, field.len());
        }
        self.behind.extend_from_slice(&field);
    }
}

/// The number of a stream. Its first bit means nothing (RFC 9113, 4.1).
fn number_of(stream: [u8; 4]) -> u32 {
    u32::from_be_bytes(stream) & (u32::MAX >> 1)
}

/// The field as it stands in a head: a plain text that goes into no table (RFC 7541, 6.2.2).
fn number_field(stream: [u8; 4]) -> Vec<u8> {
    let mut field = vec![0];
    for text in [NUMBER_FIELD, &number_of(stream).to_string()] {
        // Both are far below the length that takes a second byte.
        field.push(u8::try_from(text.len()).unwrap_or_default());
        field.extend_from_slice(text.as_bytes());
    }
    field
}

/// The head of a frame, without its length.
struct FrameHead {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

/// Writes the head of a frame of so many bytes.
fn write_frame(into: &mut impl Extend<u8>, head: FrameHead, length: usize) {
    let FrameHead { kind, flags, stream } = head;
    let [_, a, b, c] = u32::try_from(length).unwrap_or_default().to_be_bytes();
    into.extend([a, b, c, kind, flags]);
    into.extend(stream);
}

impl OpenHead {
    /// Writes the head as frames.
    fn write(&self, into: &mut BytesMut) -> Result<(), HeadError> {
        if !self.fields.is_whole() {
            return Err(HeadError::Cut);
        }
        let mut pieces = self.kept.chunks(FRAME_BYTES_MAX).peekable();
        let mut kind = HEADERS;
        loop {
            let piece = pieces.next().unwrap_or_default();
            let last = pieces.peek().is_none();
            let ends_stream = if kind == HEADERS && self.ends_stream { END_STREAM } else { 0 };
            let flags = ends_stream | if last { END_HEADERS } else { 0 };
            write_frame(into, FrameHead { kind, flags, stream: self.stream }, piece.len());
            into.extend_from_slice(piece);
            if last {
                return Ok(());
            }
            kind = CONTINUATION;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue, Request};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], body].concat()
    }

    fn text(value: &[u8]) -> Vec<u8> {
        let length = u8::try_from(value.len()).unwrap();
        assert!(length < 127);
        [&[length], value].concat()
    }

    /// A plain text of any length from 127 bytes on.
    fn long(length: u32, byte: u8) -> Vec<u8> {
        let mut text = vec![0x7f];
        let mut rest = length - 127;
        while rest >= 128 {
            text.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        text.push(u8::try_from(rest).unwrap());
        text.resize(text.len() + usize::try_from(length).unwrap(), byte);
        text
    }

    /// Returns what HTTP/2 reads of a stream that arrives in pieces of this length.
    fn through(stream: &[u8], piece: usize, mends: bool) -> Result<Vec<u8>, HeadError> {
        passed(Heads::Small { mends }, stream, piece)
    }

    fn passed(heads: Heads, stream: &[u8], piece: usize) -> Result<Vec<u8>, HeadError> {
        let mut frames = Frames::new(heads);
        let mut whole = Vec::new();
        for piece in stream.chunks(piece) {
            let mut piece = piece.to_vec();
            let passed = frames.pass(&mut piece)?;
            whole.extend_from_slice(&piece[..passed]);
            whole.extend_from_slice(&frames.made.split());
        }
        Ok(whole)
    }

    fn in_all_pieces(stream: &[u8], mends: bool) -> Vec<u8> {
        let whole = through(stream, stream.len(), mends).unwrap();
        for piece in 1..40 {
            assert_eq!(through(stream, piece, mends).unwrap(), whole, "in pieces of {piece}");
        }
        whole
    }

    /// A head in as many frames as it takes.
    fn head_of(block: &[u8]) -> Vec<u8> {
        let mut pieces: Vec<&[u8]> = block.chunks(FRAME_BYTES_MAX).collect();
        let last = pieces.pop().unwrap();
        let mut frames = Vec::new();
        for (place, piece) in pieces.iter().enumerate() {
            frames.extend(frame(if place == 0 { HEADERS } else { CONTINUATION }, 0, piece));
        }
        frames.extend(frame(if pieces.is_empty() { HEADERS } else { CONTINUATION }, END_HEADERS, last));
        frames
    }

    #[test]
    fn only_the_value_of_the_authority_changes_at_a_unix_socket() {
        let value = text(b"%2Ftmp%2Fa.sock");
        let by_index =
            [&[0x83, 0x86, 0x41][..], &value, &[0x3f, 0xe1, 0x1f, 0x04], &text(b"/a%2Fb")].concat();
        let by_name =
            [&[0x40][..], &text(b":authority"), &value, &[0x00], &text(b":authoritx"), &value].concat();
        // As Huffman codes nothing is changed, whatever the bytes are.
        let coded = [&[0x01, 0x83][..], b"%%%", &[0x82]].concat();
        let split = by_index.split_at(7);
        let padded = [&[3][..], &[0; 5], &by_name, b"%%%"].concat();
        let frames = [
            PREFACE.to_vec(),
            frame(4, 0, b"%%%%%%"),
            frame(HEADERS, END_HEADERS, &by_index),
            frame(0, 1, b":authority%2F"),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded),
            frame(HEADERS, END_STREAM, split.0),
            frame(CONTINUATION, END_HEADERS, split.1),
            frame(HEADERS, END_HEADERS, &coded),
            frame(HEADERS, END_HEADERS, &[]),
        ];
        let stream = frames.concat();
        let of = |block: &[u8]| {
            let mut block = block.to_vec();
            let name = block.windows(15).position(|part| part == b"%2Ftmp%2Fa.sock").unwrap();
            block[name] = b'-';
            block[name + 6] = b'-';
            block
        };
        let expected = [
            PREFACE.to_vec(),
            frame(4, 0, b"%%%%%%"),
            frame(HEADERS, END_HEADERS, &of(&by_index)),
            frame(0, 1, b":authority%2F"),
            frame(HEADERS, END_HEADERS, &of(&by_name)),
            frame(HEADERS, END_HEADERS | END_STREAM, &of(&by_index)),
            frame(HEADERS, END_HEADERS, &coded),
            frame(HEADERS, END_HEADERS, &[]),
        ];
        assert_eq!(in_all_pieces(&stream, true), expected.concat());
        let short = [PREFACE.to_vec(), frame(HEADERS, END_HEADERS, &by_index), frame(0, 1, b"x")].concat();
        assert_eq!(in_all_pieces(&short, false), short, "over TCP a head of one frame is not even looked at");
    }

    #[test]
    fn long_values_are_left_out_of_a_head_of_several_frames_and_nothing_else() {
        let before =
            [&[0x83, 0x44][..], &text(b"/a/B"), &[0x00], &text(b"traceparent"), &text(b"00-1-2")].concat();
        let after = [&[0x40][..], &text(b"x-small"), &text(b"yes")].concat();
        for length in [17_000, 60_000, 8 << 20] {
            let unindexed = [&[0x00][..], &text(b"tracestate"), &long(length, b'y')].concat();
            let indexed = [&[0x40][..], &text(b"baggage"), &long(length, b'z')].concat();
            let block = [&before[..], &unindexed, &indexed, &after].concat();
            let stream = [PREFACE, &head_of(&block), &frame(0, 1, b"message")].concat();
            let kept = [
                &before[..],
                &[&[0x00][..], &text(b"tracestate"), &[0]].concat(),
                &[&[0x40][..], &text(b"baggage"), &long(4_096, b'x')].concat(),
                &after,
            ]
            .concat();
            let expected = [PREFACE, &frame(HEADERS, END_HEADERS, &kept), &frame(0, 1, b"message")].concat();
            assert!(through(&stream, stream.len(), false).as_deref() == Ok(&expected), "{length}");
            assert!(through(&stream, 1_000, false).as_deref() == Ok(&expected), "{length} in pieces");
        }
    }

    #[test]
    fn every_request_and_nothing_else_is_numbered_in_the_frame_that_ends_its_head() {
        let field = [&[0x00][..], &text(b"tidegate-stream"), &text(b"1")].concat();
        let block =
            [&[0x83, 0x44][..], &text(b"/a"), &[0x00], &text(b"tidegate-stream"), &text(b"7")].concat();
        let numbered = [&block[..], &field].concat();
        let full = long(16_370, b'y');
        let padded = [&[3][..], &block, b"%%%"].concat();
        let stream = [
            PREFACE.to_vec(),
            frame(4, 0, b"settings"),
            frame(HEADERS, END_HEADERS | END_STREAM, &block),
            frame(0, 1, &block),
            frame(HEADERS, 0, &block),
            frame(CONTINUATION, END_HEADERS, &block),
            frame(HEADERS, END_HEADERS | PADDED, &padded),
            frame(HEADERS, END_HEADERS, &full),
            frame(RST_STREAM, 0, &[0, 0, 0, 8]),
        ];
        let expected = [
            PREFACE.to_vec(),
            frame(4, 0, b"settings"),
            frame(HEADERS, END_HEADERS | END_STREAM, &numbered),
            frame(0, 1, &block),
            frame(HEADERS, 0, &block),
            frame(CONTINUATION, END_HEADERS, &numbered),
            frame(HEADERS, PADDED, &padded),
            frame(CONTINUATION, END_HEADERS, &field),
            frame(HEADERS, 0, &full),
            frame(CONTINUATION, END_HEADERS, &field),
            frame(RST_STREAM, 0, &[0, 0, 0, 8]),
        ];
        let (stream, expected) = (stream.concat(), expected.concat());
        for piece in [stream.len(), 1, 2, 7, 9, 10, 33, 1_000] {
            let passed = passed(Heads::Numbered, &stream, piece).unwrap();
            assert!(passed == expected, "in pieces of {piece}");
        }
        let mut frames = Frames::new(Heads::Numbered);
        frames.pass(&mut stream.clone()).unwrap();
        assert_eq!(frames.reset, [1]);
    }

    #[test]
    fn what_no_gateway_sends_ends_its_connection_and_takes_no_memory() {
        let of = |frames: Vec<u8>| through(&[PREFACE, &frames].concat(), 4_096, false).unwrap_err();
        let begun = frame(HEADERS, 0, &[0x83]);
        let flood: Vec<u8> = (0..=HEAD_FRAMES_MAX).flat_map(|_| frame(CONTINUATION, 0, &[])).collect();
        assert_eq!(of([begun.clone(), flood].concat()), HeadError::Frames);
        let many: Vec<u8> = (0..50_000).flat_map(|_| [0x00, 1, b'a', 1, b'b']).collect();
        assert_eq!(of(head_of(&many)), HeadError::Kept);
        assert_eq!(
            of([frame(HEADERS, 0, &[0x00]), frame(CONTINUATION, END_HEADERS, &long(5_000, b'n'))].concat()),
            HeadError::Name
        );
        for other in [frame(0, 1, b"x"), frame(HEADERS, END_HEADERS, &[0x83]), frame(4, 0, &[])] {
            assert_eq!(of([begun.clone(), other].concat()), HeadError::Cut);
        }
        assert_eq!(of(frame(HEADERS, PADDED, &[200, 0x83])), HeadError::Cut);
        assert_eq!(of([begun, frame(CONTINUATION, END_HEADERS, &[0x00, 9, b'x'])].concat()), HeadError::Cut);
        let nonsense = [PREFACE, &[0xff; 4_096]].concat();
        assert_eq!(in_all_pieces(&nonsense, true), nonsense, "for HTTP/2 to refuse");
    }

    /// A client's heads as its own library writes them, read by ours behind the cut: the fields that are read
    /// arrive, and the tables of header compression still agree.
    #[tokio::test]
    async fn heads_of_any_length_are_read_and_the_next_ones_too() {
        let (client, mut wire) = tokio::io::duplex(1 << 20);
        let (mut cut, server) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move {
            let mut frames = Frames::new(Heads::Small { mends: false });
            let mut buffer = vec![0; 10_000];
            let mut back = vec![0; 10_000];
            loop {
                tokio::select! {
                    read = wire.read(&mut buffer) => {
                        let read = read.unwrap();
                        if read == 0 { return; }
                        let passed = frames.pass(&mut buffer[..read]).unwrap();
                        cut.write_all(&buffer[..passed]).await.unwrap();
                        cut.write_all(&frames.made.split()).await.unwrap();
                    }
                    read = cut.read(&mut back) => {
                        let read = read.unwrap();
                        wire.write_all(&back[..read]).await.unwrap();
                    }
                }
            }
        });
        let serving = tokio::spawn(async move {
            let mut builder = h2::server::Builder::new();
            builder.max_header_list_size(64 * 1_024);
            let mut connection = builder.handshake::<_, bytes::Bytes>(server).await.unwrap();
            let mut seen = Vec::new();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let of =
                    |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
                seen.push((of("x-round"), of("traceparent"), of("x-known")));
                respond.send_response(http::Response::new(()), true).unwrap();
            }
            seen
        });
        let (mut sender, connection) = h2::client::handshake(client).await.unwrap();
        let connection = tokio::spawn(connection);
        for (round, length) in [10, 17_000, 100, 3_500, 60_000, 200, 500_000, 10].into_iter().enumerate() {
            let mut request = Request::post("http://tidegate/service/Call").body(()).unwrap();
            let mut put = |name: &'static str, value: String| {
                request
                    .headers_mut()
                    .insert(HeaderName::from_static(name), HeaderValue::try_from(value).unwrap())
            };
            put("traceparent", format!("00-{round:032}-{round:016}-01"));
            put("tracestate", "v".repeat(length));
            put("baggage", "~".repeat(length));
            put("x-round", round.to_string());
            put("x-known", "always the same".to_owned());
            sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(request, true).unwrap();
            assert_eq!(answer.await.unwrap().status(), 200, "round {round}");
        }
        drop(sender);
        connection.await.unwrap().unwrap();
        let seen = serving.await.unwrap();
        let expected: Vec<_> = (0..8)
            .map(|round: usize| {
                let parent = format!("00-{round:032}-{round:016}-01");
                (Some(round.to_string()), Some(parent), Some("always the same".to_owned()))
            })
            .collect();
        assert_eq!(seen, expected);
    }
}
