//! The same call in JSON, as the reference service takes it at `/json`.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use smallvec::SmallVec;

use super::answer::{Judged, UNITS, unit_name};
use crate::api::error::{Code, Refusal};
use crate::api::rls::wire::{CallerLimit, DESCRIPTORS_MAX, Descriptor, RequestMessage};
use crate::core::request::ATTRIBUTES_MAX;

/// `RateLimitRequest`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct JsonQuestion {
    domain: String,
    descriptors: Vec<JsonDescriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct JsonDescriptor {
    entries: Vec<JsonEntry>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<JsonHits>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct JsonEntry {
    key: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonLimit {
    #[serde(alias = "requests_per_unit", default)]
    requests_per_unit: u32,
    #[serde(default)]
    unit: JsonUnit,
}

/// 64 bits are a text in the JSON of protocol buffers; a number is read, too.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum JsonHits {
    Number(u64),
    Text(String),
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum JsonUnit {
    Number(i32),
    Name(String),
}

impl Default for JsonUnit {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl JsonUnit {
    fn number(&self) -> i32 {
        match self {
            Self::Number(number) => *number,
            Self::Name(name) => {
                let place = UNITS.iter().position(|own| own == name);
                place.and_then(|place| i32::try_from(place).ok()).unwrap_or(-1)
            }
        }
    }
}

/// Reads a body.
///
/// # Errors
/// It is no such question.
pub(super) fn read(body: &[u8]) -> Result<JsonQuestion, Refusal> {
    let wrong = |error: String| Refusal::new(Code::Malformed, error);
    let question: JsonQuestion = serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?;
    for descriptor in &question.descriptors {
        if let Some(JsonHits::Text(text)) = &descriptor.hits_addend
            && text.parse::<u64>().is_err()
        {
            return Err(wrong(format!("hitsAddend must be a whole number, not {text:?}")));
        }
    }
    Ok(question)
}

impl JsonQuestion {
    /// The same question as a message has it.
    pub(super) fn message(&self) -> RequestMessage<'_> {
        let descriptor = |own: &'_ JsonDescriptor| Descriptor {
            entries: SmallVec::new(),
            limit: own
                .limit
                .as_ref()
                .map(|limit| CallerLimit { requests: limit.requests_per_unit, unit: limit.unit.number() }),
            hits_addend: own.hits_addend.as_ref().map(|hits| match hits {
                JsonHits::Number(number) => *number,
                JsonHits::Text(text) => text.parse().unwrap_or(0),
            }),
            is_negative_hits: own.is_negative_hits,
        };
        let descriptors = self.descriptors.iter().take(DESCRIPTORS_MAX).map(|own| {
            let entries = own.entries.iter().take(ATTRIBUTES_MAX + 1);
            let entries = entries.map(|entry| (entry.key.as_str(), entry.value.as_str())).collect();
            Descriptor { entries, ..descriptor(own) }
        });
        RequestMessage {
            domain: &self.domain,
            descriptors: descriptors.collect(),
            descriptors_len: self.descriptors.len(),
            hits_addend: self.hits_addend,
        }
    }
}

/// `RateLimitResponse` in JSON.
pub(super) fn write(judged: &Judged<'_>) -> Vec<u8> {
    let code = |over: bool| if over { "OVER_LIMIT" } else { "OK" };
    let statuses: Vec<Value> = judged
        .statuses
        .iter()
        .map(|line| {
            let mut status = Map::new();
            status.insert("code".to_owned(), json!(code(line.over)));
            if let Some(limit) = &line.limit {
                let mut told = Map::new();
                if !limit.name.is_empty() {
                    told.insert("name".to_owned(), json!(limit.name));
                }
                if limit.permits > 0 {
                    told.insert("requestsPerUnit".to_owned(), json!(limit.permits));
                }
                told.insert("unit".to_owned(), json!(unit_name(limit.window)));
                status.insert("currentLimit".to_owned(), Value::Object(told));
                let seconds = format!("{}s", limit.reset.secs_up());
                status.insert("durationUntilReset".to_owned(), json!(seconds));
            }
            if line.remaining > 0 {
                let remaining = line.remaining.min(u64::from(u32::MAX));
                status.insert("limitRemaining".to_owned(), json!(remaining));
            }
            Value::Object(status)
        })
        .collect();
    let mut answer = Map::new();
    answer.insert("overallCode".to_owned(), json!(code(judged.over)));
    answer.insert("statuses".to_owned(), Value::Array(statuses));
    if !judged.headers.is_empty() {
        let header = |(key, value): &(String, String)| json!({ "key": key, "value": value });
        let headers = judged.headers.iter().map(header).collect();
        answer.insert("responseHeadersToAdd".to_owned(), headers);
    }
    if let Some(metadata) = &judged.metadata {
        answer.insert("dynamicMetadata".to_owned(), Value::Object(metadata.clone()));
    }
    // Texts and numbers alone always become JSON.
    serde_json::to_vec(&answer).unwrap_or_default()
}
