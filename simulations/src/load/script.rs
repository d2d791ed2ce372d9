//! The requests, encoded once before the clock starts, so that the generator spends its time on sending.

use std::net::SocketAddr;
use std::str::FromStr;

use bytes::Bytes;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

/// Most keys in one run: their requests are all kept in memory.
pub(super) const KEYS_MAX: u32 = 4_000_000;

/// Attributes to ask about; `{n}` in a value stands for the key's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entries(Vec<(String, String)>);

impl FromStr for Entries {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = |part: &str| match part.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                Ok((name.to_owned(), value.to_owned()))
            }
            _ => Err(format!("`{part}` is not name=value")),
        };
        text.split(',').map(entry).collect::<Result<_, _>>().map(Self)
    }
}

impl Entries {
    fn of(&self, n: u32) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().map(move |(name, value)| (name.as_str(), value.replace("{n}", &n.to_string())))
    }
}

/// Encoded requests, one for each key.
#[derive(Debug)]
pub(super) struct Script(Vec<Bytes>);

impl Script {
    /// One request, drawn evenly.
    pub(super) fn draw(&self, dice: &mut Dice) -> Bytes {
        let at = usize::try_from(dice.roll()).unwrap_or(0) % self.0.len().max(1);
        self.0.get(at).cloned().unwrap_or_default()
    }
}

/// Evenly spread numbers, the same in every run (xorshift64*).
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    /// A sequence of its own for every `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
}

/// gRPC messages: one byte "not compressed", the length, the `RateLimitRequest`.
pub(super) fn rls(domain: &str, entries: &Entries, keys: u32) -> Script {
    let message = |n| {
        let entries = entries.of(n).map(|(key, value)| Entry { key: key.to_owned(), value }).collect();
        let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
        framed(&RateLimitRequest { domain: domain.to_owned(), descriptors, ..Default::default() })
    };
    Script((0..keys).map(message).collect())
}

/// A protobuf message as gRPC puts it into a body.
pub(super) fn framed(message: &impl prost::Message) -> Bytes {
    let body = message.encode_to_vec();
    let mut frame = Vec::with_capacity(body.len() + 5);
    frame.push(0);
    frame.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(&body);
    frame.into()
}

/// Whole HTTP/1.1 requests, head and JSON body; in a batch the keys follow one another.
///
/// # Errors
/// When the JSON cannot be written, which does not happen for text.
pub(super) fn http(
    addr: SocketAddr,
    domain: &str,
    entries: &Entries,
    keys: u32,
    batch: u16,
) -> anyhow::Result<Script> {
    let check = |n| {
        let attributes: serde_json::Map<_, _> =
            entries.of(n).map(|(name, value)| (name.to_owned(), value.into())).collect();
        serde_json::json!({ "domain": domain, "attributes": attributes })
    };
    let body = |n: u32| {
        if batch == 1 {
            return check(n);
        }
        let checks: Vec<_> = (0..u32::from(batch)).map(|i| check(n.wrapping_add(i) % keys)).collect();
        serde_json::json!({ "checks": checks })
    };
    let request = |n| {
        let body = serde_json::to_string(&body(n))?;
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: {addr}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Ok(Bytes::from(head + &body))
    };
    // A batch begins at every n-th key only: otherwise a million keys would be kept a hundred times over.
    (0..keys).step_by(usize::from(batch)).map(request).collect::<anyhow::Result<_>>().map(Script)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn entries() -> Entries {
        "user=u_{n},path=/a".parse().unwrap()
    }

    #[test]
    fn a_grpc_request_decodes_to_what_was_asked_for() {
        let Script(requests) = rls("edge", &entries(), 3);
        let frame = &requests[2];
        assert_eq!(frame[0], 0);
        assert_eq!(u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize, frame.len() - 5);
        let request = RateLimitRequest::decode(&frame[5..]).unwrap();
        assert_eq!(request.domain, "edge");
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        assert_eq!(request.descriptors[0].entries, [entry("user", "u_2"), entry("path", "/a")]);
    }

    #[test]
    fn an_http_request_states_the_length_of_its_body() {
        for batch in [1, 100] {
            let addr = SocketAddr::from(([127, 0, 0, 1], 80));
            let Script(requests) = http(addr, "edge", &entries(), 7, batch).unwrap();
            let text = String::from_utf8(requests[0].to_vec()).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            let checks = if batch == 1 { 1 } else { body["checks"].as_array().unwrap().len() };
            assert_eq!(checks, usize::from(batch));
        }
    }

    #[test]
    fn every_key_is_drawn_about_equally_often() {
        let script = Script((0..10_u8).map(|n| Bytes::from(vec![n])).collect());
        let (mut dice, mut drawn) = (Dice::new(0), [0; 10]);
        for _ in 0..10_000 {
            drawn[usize::from(script.draw(&mut dice)[0])] += 1;
        }
        assert!(drawn.iter().all(|&times| (850..1_150).contains(&times)), "{drawn:?}");
    }

    #[test]
    fn an_entry_without_a_name_or_value_is_refused() {
        for text in ["", "user", "user=", "=x", "user=a,,path=b"] {
            assert!(text.parse::<Entries>().is_err(), "{text}");
        }
    }
}
