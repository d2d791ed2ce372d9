//! Envoy's `RateLimitRequest`, read without a copy: texts stay where the message has them.
//!
//! Means exactly what the generated types mean; a property test holds one against the other.

use prost::DecodeError;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};
use smallvec::SmallVec;

use crate::core::request::ATTRIBUTES_MAX;
use crate::core::uri::escaped;

/// Most descriptors that are read of one request.
pub(super) const DESCRIPTORS_MAX: usize = 256;

/// One request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RequestMessage<'b> {
    /// The namespace of rules.
    pub(super) domain: &'b str,
    /// Sets of attributes. At most [`DESCRIPTORS_MAX`] are kept.
    pub(super) descriptors: SmallVec<[Descriptor<'b>; 1]>,
    /// How many descriptors there were.
    pub(super) descriptors_len: usize,
    /// Hits for descriptors that do not say themselves; zero if unsaid.
    pub(super) hits_addend: u32,
}

/// A limit that a caller brings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallerLimit {
    /// `requests_per_unit`.
    pub(super) requests: u32,
    /// Number of the unit.
    pub(super) unit: i32,
}

/// One set of attributes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Descriptor<'b> {
    /// Names and values. At most one more than [`ATTRIBUTES_MAX`] is kept: too many show as too many.
    pub(super) entries: SmallVec<[(&'b str, &'b str); 8]>,
    /// An override.
    pub(super) limit: Option<CallerLimit>,
    /// Its own hits.
    pub(super) hits_addend: Option<u64>,
    /// True if the hits are given back.
    pub(super) is_negative_hits: bool,
}

/// One field: its number, how it is written, and what follows it.
pub(super) struct WireField {
    pub(super) number: u32,
    wire: WireType,
}

/// The field that holds the namespace, in every request that is read here.
const DOMAIN: u32 = 1;
/// The field that holds a descriptor, likewise.
const DESCRIPTOR: u32 = 2;

/// Why bytes are no request. The texts are those of the generated types' own errors, or near them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecodable {
    /// Its form is right, but a text is not UTF-8; see [`repaired`].
    #[error("invalid string value: data is not UTF-8 encoded")]
    Text,
    /// It is no request.
    #[error("{0}")]
    Malformed(String),
}

impl From<DecodeError> for Undecodable {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

pub(super) type Decoded<T> = Result<T, Undecodable>;

/// Reads a request.
pub(super) fn decode(message: &[u8]) -> Decoded<RequestMessage<'_>> {
    let mut hits_addend = 0;
    let asked = decode_with(message, |field, message| match field.number {
        3 => {
            hits_addend = low32(varint(field, message)?);
            Ok(())
        }
        _ => skip(field, message),
    })?;
    Ok(RequestMessage { hits_addend, ..asked })
}

/// Reads a request that begins like Envoy's, and whose further fields `other` reads or skips.
pub(super) fn decode_with<'b>(
    mut message: &'b [u8],
    mut other: impl FnMut(&WireField, &mut &'b [u8]) -> Decoded<()>,
) -> Decoded<RequestMessage<'b>> {
    let mut asked = RequestMessage::default();
    while let Some(field) = next(&mut message)? {
        match field.number {
            DOMAIN => asked.domain = text(&field, &mut message)?,
            DESCRIPTOR => {
                let descriptor = descriptor(bytes(&field, &mut message)?)?;
                asked.descriptors_len += 1;
                if asked.descriptors.len() < DESCRIPTORS_MAX {
                    asked.descriptors.push(descriptor);
                }
            }
            _ => other(&field, &mut message)?,
        }
    }
    Ok(asked)
}

fn descriptor(mut message: &[u8]) -> Decoded<Descriptor<'_>> {
    let mut descriptor = Descriptor::default();
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => {
                let entry = entry(bytes(&field, &mut message)?)?;
                if descriptor.entries.len() <= ATTRIBUTES_MAX {
                    descriptor.entries.push(entry);
                }
            }
            2 => limit(bytes(&field, &mut message)?, descriptor.limit.get_or_insert_default())?,
            3 => hits(bytes(&field, &mut message)?, descriptor.hits_addend.get_or_insert_default())?,
            4 => descriptor.is_negative_hits = varint(&field, &mut message)? != 0,
            _ => skip(&field, &mut message)?,
        }
    }
    Ok(descriptor)
}

fn entry(mut message: &[u8]) -> Decoded<(&str, &str)> {
    let mut entry = ("", "");
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => entry.0 = text(&field, &mut message)?,
            2 => entry.1 = text(&field, &mut message)?,
            _ => skip(&field, &mut message)?,
        }
    }
    Ok(entry)
}

fn limit(mut message: &[u8], limit: &mut CallerLimit) -> Decoded<()> {
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => limit.requests = low32(varint(&field, &mut message)?),
            2 => limit.unit = low32(varint(&field, &mut message)?).cast_signed(),
            _ => skip(&field, &mut message)?,
        }
    }
    Ok(())
}

fn hits(mut message: &[u8], hits: &mut u64) -> Decoded<()> {
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => *hits = varint(&field, &mut message)?,
            _ => skip(&field, &mut message)?,
        }
    }
    Ok(())
}

pub(super) fn next(message: &mut &[u8]) -> Decoded<Option<WireField>> {
    if message.is_empty() {
        return Ok(None);
    }
    let (number, wire) = decode_key(message)?;
    Ok(Some(WireField { number, wire }))
}

fn expect(field: &WireField, wire: WireType) -> Decoded<()> {
    if field.wire == wire {
        return Ok(());
    }
    Err(Undecodable::Malformed(format!("invalid wire type: {:?} (expected {wire:?})", field.wire)))
}

pub(super) fn varint(field: &WireField, message: &mut &[u8]) -> Decoded<u64> {
    expect(field, WireType::Varint)?;
    Ok(decode_varint(message)?)
}

pub(super) fn bytes<'b>(field: &WireField, message: &mut &'b [u8]) -> Decoded<&'b [u8]> {
    expect(field, WireType::LengthDelimited)?;
    let len = usize::try_from(decode_varint(message)?).unwrap_or(usize::MAX);
    let (bytes, rest) =
        message.split_at_checked(len).ok_or_else(|| Undecodable::Malformed("buffer underflow".to_owned()))?;
    *message = rest;
    Ok(bytes)
}

pub(super) fn text<'b>(field: &WireField, message: &mut &'b [u8]) -> Decoded<&'b str> {
    std::str::from_utf8(bytes(field, message)?).map_err(|_| Undecodable::Text)
}

/// A descriptor that cannot be judged: its own limit has a unit that nobody knows.
const UNJUDGED: [u8; 4] = [0x12, 2, 0x10, 0x7f];
/// The namespace of a message of which too little was read to know it.
const UNREAD_DOMAIN: &[u8] = b"unread";

/// A request of the fields that are whole in the beginning of a message, and of one more descriptor, which
/// stands for all that was not read. That one cannot be judged, so the call is denied.
pub(super) fn cut(message: &[u8]) -> Vec<u8> {
    let (mut rest, mut whole, mut has_domain) = (message, 0, false);
    while let Ok(Some(field)) = next(&mut rest) {
        if skip(&field, &mut rest).is_err() {
            break;
        }
        has_domain |= field.number == DOMAIN;
        whole = message.len() - rest.len();
    }
    let mut message = message.get(..whole).unwrap_or_default().to_vec();
    if !has_domain {
        put(DOMAIN, UNREAD_DOMAIN, &mut message);
    }
    put(DESCRIPTOR, &UNJUDGED, &mut message);
    message
}

/// The same message with the namespace and the texts of descriptors in UTF-8: bytes that are none become `%`
/// and two hexadecimal digits.
pub(super) fn repaired(mut message: &[u8]) -> Decoded<Vec<u8>> {
    let mut whole = Vec::with_capacity(message.len() + 64);
    while let Some(field) = copied(&mut message, &mut whole)? {
        match field.number {
            DOMAIN => put(field.number, escaped(field.bytes).as_bytes(), &mut whole),
            DESCRIPTOR => put(field.number, &repaired_descriptor(field.bytes)?, &mut whole),
            number => put(number, field.bytes, &mut whole),
        }
    }
    Ok(whole)
}

fn repaired_descriptor(mut message: &[u8]) -> Decoded<Vec<u8>> {
    let mut whole = Vec::with_capacity(message.len() + 64);
    while let Some(field) = copied(&mut message, &mut whole)? {
        match field.number {
            1 => put(field.number, &repaired_entry(field.bytes)?, &mut whole),
            number => put(number, field.bytes, &mut whole),
        }
    }
    Ok(whole)
}

fn repaired_entry(mut message: &[u8]) -> Decoded<Vec<u8>> {
    let mut whole = Vec::with_capacity(message.len() + 64);
    while let Some(field) = copied(&mut message, &mut whole)? {
        put(field.number, escaped(field.bytes).as_bytes(), &mut whole);
    }
    Ok(whole)
}

/// A field that holds bytes.
struct Bytes<'b> {
    number: u32,
    bytes: &'b [u8],
}

/// Copies fields as they are up to one that holds bytes, and gives that one; `None` at the end of the
/// message.
fn copied<'b>(message: &mut &'b [u8], whole: &mut Vec<u8>) -> Decoded<Option<Bytes<'b>>> {
    loop {
        let before = *message;
        let Some(field) = next(message)? else { return Ok(None) };
        if field.wire == WireType::LengthDelimited {
            let bytes = bytes(&field, message)?;
            return Ok(Some(Bytes { number: field.number, bytes }));
        }
        skip(&field, message)?;
        whole.extend_from_slice(before.get(..before.len() - message.len()).unwrap_or_default());
    }
}

fn put(number: u32, bytes: &[u8], whole: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, whole);
    encode_varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX), whole);
    whole.extend_from_slice(bytes);
}

pub(super) fn skip(field: &WireField, message: &mut &[u8]) -> Decoded<()> {
    Ok(skip_field(field.wire, field.number, message, DecodeContext::default())?)
}

/// Protocol buffers cut numbers that are too long for their field.
fn low32(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
    use envoy_types::pb::google::protobuf::UInt64Value;
    use proptest::prelude::*;
    use prost::Message as _;

    fn as_generated(asked: RequestMessage<'_>) -> RateLimitRequest {
        let descriptor = |own: Descriptor<'_>| RateLimitDescriptor {
            entries: own
                .entries
                .iter()
                .map(|(key, value)| Entry { key: (*key).to_owned(), value: (*value).to_owned() })
                .collect(),
            limit: own
                .limit
                .map(|limit| RateLimitOverride { requests_per_unit: limit.requests, unit: limit.unit }),
            hits_addend: own.hits_addend.map(|value| UInt64Value { value }),
            is_negative_hits: own.is_negative_hits,
        };
        RateLimitRequest {
            domain: asked.domain.to_owned(),
            descriptors: asked.descriptors.into_iter().map(descriptor).collect(),
            hits_addend: asked.hits_addend,
        }
    }

    fn agree(message: &[u8]) {
        let ours = decode(message).map(as_generated);
        let theirs = RateLimitRequest::decode(message);
        assert_eq!(ours.is_ok(), theirs.is_ok(), "{ours:?} {theirs:?}");
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            assert_eq!(ours, theirs);
        }
    }

    fn request() -> impl Strategy<Value = RateLimitRequest> {
        let entry = (".{0,8}", ".{0,200}").prop_map(|(key, value)| Entry { key, value });
        let limit = (any::<u32>(), any::<i32>())
            .prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
        let descriptor = (
            proptest::collection::vec(entry, 0..4),
            proptest::option::of(limit),
            proptest::option::of(any::<u64>().prop_map(|value| UInt64Value { value })),
            any::<bool>(),
        );
        let descriptor = descriptor.prop_map(|(entries, limit, hits_addend, is_negative_hits)| {
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        });
        (".{0,20}", proptest::collection::vec(descriptor, 0..4), any::<u32>()).prop_map(
            |(domain, descriptors, hits_addend)| RateLimitRequest { domain, descriptors, hits_addend },
        )
    }

    /// Bytes that are more often fields than chance would have it.
    fn near_fields() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            (0..6_u8, 0..8_u8).prop_map(|(number, wire)| vec![number << 3 | wire]),
            (0..6_u8, 0..12_u8).prop_map(|(number, len)| vec![number << 3 | 2, len]),
            proptest::collection::vec(any::<u8>(), 0..4),
        ];
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn requests_are_read_as_the_generated_types_read_them(request in request()) {
            agree(&request.encode_to_vec());
        }

        #[test]
        fn broken_requests_are_read_as_the_generated_types_read_them(request in request(), at: usize, byte: u8, cut: usize) {
            let mut message = request.encode_to_vec();
            if !message.is_empty() {
                let at = at % message.len();
                message[at] = byte;
                agree(&message[..cut % message.len()]);
            }
            agree(&message);
        }

        #[test]
        fn any_bytes_are_read_as_the_generated_types_read_them(message in proptest::collection::vec(any::<u8>(), 0..64)) {
            agree(&message);
        }

        #[test]
        fn near_requests_are_read_as_the_generated_types_read_them(message in near_fields()) {
            agree(&message);
        }

        #[test]
        fn what_is_said_twice_is_merged_as_the_generated_types_merge_it(a in request(), b in request()) {
            let mut message = a.encode_to_vec();
            message.extend(b.encode_to_vec());
            agree(&message);
        }
    }

    proptest! {
        #[test]
        fn a_repaired_request_says_the_same_where_nothing_was_wrong(request in request()) {
            let message = repaired(&request.encode_to_vec()).unwrap();
            prop_assert_eq!(RateLimitRequest::decode(&*message).unwrap(), request);
        }

        #[test]
        fn what_is_repaired_holds_text_alone(message in near_fields()) {
            if let Ok(message) = repaired(&message) {
                prop_assert_ne!(decode(&message), Err(Undecodable::Text));
            }
        }
    }

    proptest! {
        #[test]
        fn a_message_that_is_cut_anywhere_keeps_what_is_whole_and_cannot_be_judged(request in request(), at: usize) {
            let message = request.encode_to_vec();
            let cut = cut(&message[..at % (message.len() + 1)]);
            let read = as_generated(decode(&cut).unwrap());
            let (last, kept) = read.descriptors.split_last().unwrap();
            prop_assert_eq!(kept, &request.descriptors[..kept.len()]);
            prop_assert_eq!(last.limit, Some(RateLimitOverride { requests_per_unit: 0, unit: 127 }));
            let domain = if read.domain == "unread" { "unread" } else { &request.domain };
            prop_assert_eq!(&read.domain, domain);
        }
    }

    #[test]
    fn texts_that_are_not_utf8_are_read_in_another_spelling() {
        let mut request = RateLimitRequest { domain: "d".to_owned(), hits_addend: 3, ..Default::default() };
        let entry = Entry { key: "user".to_owned(), value: "u1#".to_owned() };
        let limit = Some(RateLimitOverride { requests_per_unit: 4, unit: 2 });
        request.descriptors.push(RateLimitDescriptor { entries: vec![entry], limit, ..Default::default() });
        let mut message = request.encode_to_vec();
        for byte in message.iter_mut().filter(|byte| **byte == b'#') {
            *byte = 0xff;
        }
        assert_eq!(decode(&message), Err(Undecodable::Text));
        request.descriptors[0].entries[0].value = "u1%FF".to_owned();
        let message = repaired(&message).unwrap();
        assert_eq!(as_generated(decode(&message).unwrap()), request);
    }

    #[test]
    fn the_surplus_of_descriptors_is_counted_and_not_kept() {
        let descriptors = vec![RateLimitDescriptor::default(); DESCRIPTORS_MAX + 5];
        let message = RateLimitRequest { descriptors, ..Default::default() }.encode_to_vec();
        let asked = decode(&message).unwrap();
        assert_eq!((asked.descriptors.len(), asked.descriptors_len), (DESCRIPTORS_MAX, DESCRIPTORS_MAX + 5));
    }
}
