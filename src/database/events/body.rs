//! The JSON of a batch, and its signature.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::core::event::EventRecord;
use crate::core::regions::NodeName;
use crate::core::written::format_moment;

#[derive(Serialize)]
struct BatchJson<'a> {
    /// Names the batch for ever: sent again it has the same.
    id: &'a str,
    region: &'a str,
    node: &'a str,
    events: Vec<EventJson<'a>>,
}

#[derive(Serialize)]
struct EventJson<'a> {
    id: String,
    kind: &'static str,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    identity: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    text: &'a str,
    #[serde(flatten)]
    numbers: Map<String, Value>,
}

/// The body of a batch.
#[must_use]
pub fn batch_body<'e>(id: &'e str, node: &'e NodeName, events: &'e [EventRecord]) -> Vec<u8> {
    let event = |(number, one): (usize, &'e EventRecord)| EventJson {
        id: format!("{id}/{number}"),
        kind: one.kind.as_str(),
        at: format_moment(one.at),
        domain: one.rule.as_ref().map(|(domain, _)| domain.as_str()),
        rule: one.rule.as_ref().map(|(_, name)| name.as_str()),
        identity: one.identity.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect(),
        subject: one.subject.as_deref(),
        text: &one.text,
        numbers: one.numbers.iter().map(|(name, number)| ((*name).to_owned(), (*number).into())).collect(),
    };
    let events = events.iter().enumerate().map(event).collect();
    let batch = BatchJson { id, region: &node.region, node: &node.node, events };
    // Texts and numbers alone always become JSON.
    serde_json::to_vec(&batch).unwrap_or_default()
}

/// The signature of a batch that is sent at this second, as the Standard Webhooks specification has it.
pub(super) fn signature(secret: &[u8], id: &str, seconds: u64, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(format!("{id}.{seconds}.").as_bytes());
    context.update(body);
    format!("v1,{}", STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::event::EventKind;
    use crate::core::time::Timestamp;

    #[test]
    fn the_signature_is_that_of_the_specification() {
        // The example of the specification.
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signed = signature(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_batch_says_what_happened_where_and_to_whom() {
        let events = [
            EventRecord {
                kind: EventKind::Warning,
                at: Timestamp(1_790_000_000_000_000),
                rule: Some(("default".into(), "search".into())),
                identity: vec![("user".into(), "ann \"a\"".into())],
                subject: None,
                numbers: vec![("used", 80), ("limit", 100)],
                text: "80 of 100".into(),
            },
            EventRecord::of_subject(EventKind::PartitionBegun, Timestamp(0), "us".into(), "away".into()),
        ];
        let node = NodeName { region: "eu".into(), node: "n1".into() };
        let json: Value = serde_json::from_slice(&batch_body("b", &node, &events)).unwrap();
        let expected = serde_json::json!({
            "id": "b", "region": "eu", "node": "n1", "events": [
                {"id": "b/0", "kind": "warning", "at": "2026-09-21T14:13:20Z", "domain": "default", "rule": "search",
                 "identity": {"user": "ann \"a\""}, "text": "80 of 100", "used": 80, "limit": 100},
                {"id": "b/1", "kind": "partition_begun", "at": "1970-01-01T00:00:00Z", "subject": "us", "text": "away"},
            ],
        });
        assert_eq!(json, expected);
    }
}
