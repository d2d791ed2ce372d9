//! A collector of traces: the receiver, and the spans that it was posted by OTLP.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use super::daemon::Daemon;
use super::eventually;
use super::receiver::{Posted, Receiver};

/// A trace, and the caller's span in it.
pub(crate) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(crate) const CALLER: &str = "b7ad6b7169203331";

/// A span as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct SeenSpan {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    pub(crate) kind: i32,
    pub(crate) nanos: (u64, u64),
    pub(crate) failed: bool,
    /// Of the daemon, then of the span, by name.
    pub(crate) attributes: BTreeMap<String, String>,
}

impl SeenSpan {
    /// The value of an attribute; empty where it has none.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// What a caller says whose span has this trace, sampled or not.
pub(crate) fn traceparent(trace: &str, sampled: bool) -> String {
    format!("00-{trace}-{CALLER}-0{}", u8::from(sampled))
}

/// The `[traces]` that sends here.
pub(crate) fn config(receiver: &Receiver, more: &str) -> String {
    format!("[traces]\nendpoint = \"http://{}\"\n{more}", receiver.address)
}

/// Every span that was taken, in order.
pub(crate) fn spans(receiver: &Receiver) -> Vec<SeenSpan> {
    receiver.taken().iter().flat_map(of_export).collect()
}

/// The first span that fits, once it is there.
pub(crate) fn span(receiver: &Receiver, what: &str, fits: impl Fn(&SeenSpan) -> bool) -> SeenSpan {
    eventually(what, || spans(receiver).into_iter().find(|span| fits(span)))
}

/// How many spans the daemon says ended so.
pub(crate) fn counted(daemon: &Daemon, outcome: &str) -> f64 {
    daemon.metric(&format!("tidegate_trace_spans_total{{outcome=\"{outcome}\"}}")).unwrap()
}

fn of_export(posted: &Posted) -> Vec<SeenSpan> {
    let request = ExportTraceServiceRequest::decode(&posted.bytes[..]).unwrap();
    let mut seen = Vec::new();
    for resource in request.resource_spans {
        let of = attributes(&resource.resource.unwrap().attributes);
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            seen.push(of_span(&of, span));
        }
    }
    seen
}

fn of_span(of: &BTreeMap<String, String>, span: Span) -> SeenSpan {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut all = of.clone();
    all.append(&mut attributes(&span.attributes));
    SeenSpan {
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        name: span.name,
        kind: span.kind,
        nanos: (span.start_time_unix_nano, span.end_time_unix_nano),
        failed: span.status.is_some_and(|status| status.code == 2),
        attributes: all,
    }
}

fn attributes(list: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| match one.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::BoolValue(value) => Some(value.to_string()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    };
    list.iter().map(|one| (one.key.clone(), text(one).unwrap())).collect()
}
