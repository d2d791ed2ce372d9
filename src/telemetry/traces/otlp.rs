//! Spans as OTLP has them: what is recorded becomes OpenTelemetry's messages.

use prost::Message as _;

use super::messages::{
    AnyValue, Export, Exported, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans, Span,
    Status, Value,
};
use super::{AttributeValue, SpanKind, SpanRecord};
use crate::core::time::Timestamp;

/// Sampled; and with a parent: it is known whether it comes from elsewhere, and it does.
const FLAGS: u32 = 0x001;
const FLAGS_REMOTE: u32 = 0x300;
const STATUS_ERROR: i32 = 2;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The daemon whose spans they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceResource {
    /// Value of `service.name`, as collectors show it.
    pub service: String,
    /// Region of the daemon, an attribute of its resource.
    pub region: String,
    /// Name of the daemon within its region.
    pub node: String,
}

/// The body of an export.
#[must_use]
pub fn encode(of: &TraceResource, spans: Vec<SpanRecord>) -> Vec<u8> {
    let instance = format!("{}/{}", of.region, of.node);
    let attributes = [
        ("service.name", of.service.as_str()),
        ("service.version", VERSION),
        ("service.instance.id", &instance),
        ("tidegate.region", &of.region),
        ("tidegate.node", &of.node),
    ];
    let attributes = attributes.map(|(name, value)| attribute(name, value.into()));
    let scope = InstrumentationScope { name: "tidegate".to_owned(), version: VERSION.to_owned() };
    let spans = ScopeSpans { scope: Some(scope), spans: spans.into_iter().map(span).collect() };
    let resource = Resource { attributes: attributes.into() };
    let spans = ResourceSpans { resource: Some(resource), scope_spans: vec![spans] };
    Export { resource_spans: vec![spans] }.encode_to_vec()
}

/// Returns how many spans a collector that took an export did not take, and why. An answer that is none says
/// nothing.
#[must_use]
pub fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let answer = Exported::decode(answer).ok()?;
    let partial = answer.partial_success?;
    let many = u64::try_from(partial.rejected_spans).ok().filter(|many| *many > 0)?;
    Some((many, partial.error_message))
}

fn span(record: SpanRecord) -> Span {
    let SpanRecord { trace, id, parent, name, kind, from, to, attributes, error } = record;
    let status = error.map(|message| Status { message, code: STATUS_ERROR }).unwrap_or_default();
    Span {
        trace_id: trace.into(),
        span_id: id.into(),
        parent_span_id: parent.map(Vec::from).unwrap_or_default(),
        flags: if parent.is_some() { FLAGS | FLAGS_REMOTE } else { FLAGS },
        name: name.into_owned(),
        kind: match kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_time_unix_nano: nanos(from),
        end_time_unix_nano: nanos(to),
        attributes: attributes.into_iter().map(|(name, value)| attribute(name, value)).collect(),
        status: Some(status),
    }
}

const fn nanos(at: Timestamp) -> u64 {
    at.micros().saturating_mul(1_000)
}

fn attribute(name: &str, value: AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => Value::Text(text),
        AttributeValue::Bool(value) => Value::Bool(value),
        AttributeValue::Number(number) => Value::Number(number),
    };
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use opentelemetry_proto::tonic::common::v1::any_value;
    use opentelemetry_proto::tonic::trace::v1::{span, status};

    use super::*;

    #[test]
    fn a_span_says_what_was_recorded() {
        let record = SpanRecord {
            trace: [1; 16],
            id: [2; 8],
            parent: Some([3; 8]),
            name: "POST /v1/check".into(),
            kind: SpanKind::Server,
            from: Timestamp(5),
            to: Timestamp(9),
            attributes: vec![("tidegate.allowed", false.into()), ("tidegate.decisions", 2_u64.into())],
            error: Some("no".to_owned()),
        };
        let root = SpanRecord { parent: None, error: None, ..record.clone() };
        let of = TraceResource { service: "s".to_owned(), region: "eu".to_owned(), node: "n".to_owned() };
        let request = ExportTraceServiceRequest::decode(&encode(&of, vec![record, root])[..]).unwrap();
        let [resource] = &request.resource_spans[..] else { panic!("{request:?}") };
        let names: Vec<_> =
            resource.resource.as_ref().unwrap().attributes.iter().map(|one| one.key.as_str()).collect();
        assert!(names.contains(&"service.name") && names.contains(&"service.instance.id"), "{names:?}");
        let [span, root] = &resource.scope_spans[0].spans[..] else { panic!("{request:?}") };
        assert_eq!((&span.trace_id[..], &span.span_id[..]), (&[1; 16][..], &[2; 8][..]));
        assert_eq!((&span.parent_span_id[..], span.flags), (&[3; 8][..], 0x301));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (5_000, 9_000));
        assert_eq!((span.attributes.len(), span.kind), (2, span::SpanKind::Server as i32));
        let values = span.attributes.iter().map(|one| one.value.clone().and_then(|value| value.value));
        let expected = [any_value::Value::BoolValue(false), any_value::Value::IntValue(2)];
        assert!(values.eq(expected.map(Some)), "{:?}", span.attributes);
        let service = resource.resource.as_ref().unwrap().attributes[0].value.clone().unwrap().value;
        assert_eq!(service, Some(any_value::Value::StringValue("s".to_owned())));
        assert_eq!(resource.scope_spans[0].scope.as_ref().unwrap().name, "tidegate");
        assert_eq!((span.name.as_str(), span.end_time_unix_nano), ("POST /v1/check", 9_000));
        assert_eq!(span.status.as_ref().unwrap().message, "no");
        assert_eq!(span.status.as_ref().unwrap().code, status::StatusCode::Error as i32);
        assert_eq!((root.parent_span_id.len(), root.flags), (0, 1));
        assert_eq!(root.status.as_ref().unwrap().code, status::StatusCode::Unset as i32);
    }

    #[test]
    fn an_answer_tells_how_many_were_not_taken() {
        let answer = |rejected_spans| {
            let partial = ExportTracePartialSuccess { rejected_spans, error_message: "old".to_owned() };
            ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        assert_eq!(rejected(&answer(3)), Some((3, "old".to_owned())));
        assert_eq!((rejected(&answer(0)), rejected(b""), rejected(b"<html>")), (None, None, None));
    }
}
