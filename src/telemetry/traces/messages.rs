//! The messages of OTLP that this daemon sends and reads, and of those the fields that it fills or asks for:
//! `opentelemetry/proto/{collector/trace,trace,common,resource}/v1` of opentelemetry-proto 1.x.
//!
//! Tests read what is sent by OpenTelemetry's own types.

use prost::{Message, Oneof};

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Export {
    /// Spans by whose they are.
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

/// The spans of one process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    /// The process.
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    /// Its spans by what made them.
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    /// Its attributes.
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// The spans of one library.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    /// The library.
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<InstrumentationScope>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

/// A library that makes spans.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// One span.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    /// The trace, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    /// The span, 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    /// The span that it belongs to; empty: none.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    /// Its name.
    #[prost(string, tag = "5")]
    pub(super) name: String,
    /// `SpanKind`: 1 internal, 2 server, 3 client.
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    /// Nanoseconds since the Unix epoch at its beginning.
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    /// Nanoseconds since the Unix epoch at its end.
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    /// Its attributes.
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    /// Its outcome.
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
    /// The flags of W3C, and whether the parent is another process's.
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

/// The outcome of a span.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    /// The text of the error.
    #[prost(string, tag = "2")]
    pub(super) message: String,
    /// `StatusCode`: 0 unset, 2 error.
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub(super) key: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// A value of any type.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    /// The value.
    #[prost(oneof = "Value", tags = "1, 2, 3")]
    pub(super) value: Option<Value>,
}

/// The types of values that are sent.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// Yes or no.
    #[prost(bool, tag = "2")]
    Bool(bool),
    /// A number.
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Exported {
    /// The spans that the collector did not take, if there are any.
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// The spans of an export that a collector did not take.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    /// Their number.
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    /// The collector's reason.
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}
