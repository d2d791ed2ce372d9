//! `[traces]`: where spans are sent.

use http::{HeaderName, HeaderValue};
use serde::{Serialize, Serializer};

use super::as_text;
use super::events::{URL_BYTES_MAX, without_query};
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::time::Span;
use crate::core::written::{Fields, Problems};

/// Longest header of an export, in bytes: tokens are long.
const HEADER_BYTES_MAX: usize = 8_192;

/// `[traces]`: where spans are sent, by OTLP over HTTP. Without it none are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Traces {
    /// `endpoint`: the collector, such as `http://127.0.0.1:4318`; spans are posted to `/v1/traces` below it.
    #[serde(serialize_with = "without_query")]
    pub endpoint: String,
    /// `headers`: sent along, each as `name=value`. Default `[]`.
    #[serde(serialize_with = "without_values")]
    pub headers: Vec<(String, String)>,
    /// `sample`: which part of the decisions is told whose caller records no span of its own, from 0 (none)
    /// to 1 (all). Default `0`.
    pub sample: SampledPart,
    /// `service_name`: what traces call this service. Default `"tidegate"`.
    pub service_name: String,
    /// `timeout`: for one export, from 100ms to 60s. Default `"10s"`.
    #[serde(serialize_with = "as_text")]
    pub timeout: Span,
}

/// A part between 0 and 1, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledPart(pub u32);

impl Serialize for SampledPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1e6)
    }
}

/// Their values are secrets.
fn without_values<S: Serializer>(headers: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(headers.iter().map(|(name, _)| format!("{name}=…")))
}

/// Reads `[traces]`; `None` where there is none.
pub(super) fn read(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Option<Traces> {
    let mut table = fields.table("traces", problems)?;
    if !table.has("endpoint") {
        let sentence = "endpoint is missing: [traces] says where to, such as \"http://127.0.0.1:4318\"";
        problems.report(table.at, sentence);
    }
    let endpoint = table.text("endpoint", URL_BYTES_MAX, problems).unwrap_or_default().to_owned();
    let host = ["https://", "http://"].iter().find_map(|scheme| endpoint.strip_prefix(scheme));
    let is_url = host.is_some_and(|host| !host.is_empty() && !host.contains([' ', '?', '#']));
    if let (Some(entry), false) = (table.take("endpoint"), is_url) {
        problems.report(
            &entry.node.at,
            "endpoint must be http://host:port or https://host:port, without a query",
        );
    }
    let mut headers = Vec::new();
    for text in table.texts("headers", HEADER_BYTES_MAX, problems).unwrap_or_default() {
        let header = text.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let valid = header.filter(|(name, value)| {
            HeaderName::try_from(*name).is_ok() && HeaderValue::from_str(value).is_ok()
        });
        match (valid, table.take("headers")) {
            (Some((name, value)), _) => headers.push((name.to_owned(), value.to_owned())),
            // The text may hold a secret, so it is not repeated.
            (None, Some(entry)) => {
                problems.report(&entry.node.at, "headers must list texts such as \"name=value\"")
            }
            (None, None) => {}
        }
    }
    let sample = table.number("sample", 0.0, 1.0, problems).unwrap_or(0.0);
    let service_name = table.text("service_name", TEXT_BYTES_MAX, problems).unwrap_or("tidegate").to_owned();
    let timeout = table.span("timeout", Span::from_millis(100), Span::from_secs(60), problems);
    table.finish(problems);
    let timeout = timeout.unwrap_or(Span::from_secs(10));
    Some(Traces { endpoint, headers, sample: millionths(sample), service_name, timeout })
}

/// A part that is above zero is never rounded to none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a million")]
fn millionths(part: f64) -> SampledPart {
    SampledPart(if part > 0.0 { (part * 1e6).round().max(1.0) as u32 } else { 0 })
}
