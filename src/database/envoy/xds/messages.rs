//! The messages of xDS that are read and written here, by the numbers of their fields.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

/// The type of the only resource that is asked for.
pub(in crate::database::envoy) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `envoy.service.discovery.v3.DiscoveryRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(in crate::database::envoy) struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(super) node: Option<XdsNode>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(super) error_detail: Option<RpcStatus>,
}

/// `envoy.config.core.v3.Node`: whoever asks.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::database::envoy) struct XdsNode {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<ProtoStruct>,
    #[prost(string, tag = "6")]
    pub(super) user_agent_name: String,
}

impl Eq for XdsNode {}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(in crate::database::envoy) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(in crate::database::envoy) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<ProtoAny>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(in crate::database::envoy) struct ProtoAny {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

/// `ratelimit.config.ratelimit.v3.RateLimitConfig`: one domain.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::database::envoy) struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub(in crate::database::envoy) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::database::envoy) domain: String,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::database::envoy) descriptors: Vec<RateLimitDescriptor>,
}

/// `RateLimitDescriptor`: one entry.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::database::envoy) struct RateLimitDescriptor {
    #[prost(string, tag = "1")]
    pub(in crate::database::envoy) key: String,
    #[prost(string, tag = "2")]
    pub(in crate::database::envoy) value: String,
    #[prost(message, optional, tag = "3")]
    pub(in crate::database::envoy) rate_limit: Option<RateLimitPolicy>,
    #[prost(message, repeated, tag = "4")]
    pub(in crate::database::envoy) descriptors: Vec<RateLimitDescriptor>,
    #[prost(bool, tag = "5")]
    pub(in crate::database::envoy) shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub(in crate::database::envoy) detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub(in crate::database::envoy) quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub(in crate::database::envoy) metadata: Option<ProtoStruct>,
}

/// `RateLimitPolicy`: one limit.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(in crate::database::envoy) struct RateLimitPolicy {
    #[prost(int32, tag = "1")]
    pub(in crate::database::envoy) unit: i32,
    #[prost(uint32, tag = "2")]
    pub(in crate::database::envoy) requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub(in crate::database::envoy) unlimited: bool,
    #[prost(string, tag = "4")]
    pub(in crate::database::envoy) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(in crate::database::envoy) replaces: Vec<RateLimitReplace>,
}

/// `RateLimitReplace`: a limit that does not hold beside its own.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(in crate::database::envoy) struct RateLimitReplace {
    #[prost(string, tag = "1")]
    pub(in crate::database::envoy) name: String,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::database::envoy) struct ProtoStruct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(super) fields: BTreeMap<String, ProtoValue>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::database::envoy) struct ProtoValue {
    #[prost(oneof = "ProtoKind", tags = "1, 2, 3, 4, 5, 6")]
    pub(super) kind: Option<ProtoKind>,
}

/// The kinds of a value.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(in crate::database::envoy) enum ProtoKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Flag(bool),
    #[prost(message, tag = "5")]
    Table(ProtoStruct),
    #[prost(message, tag = "6")]
    List(ProtoList),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::database::envoy) struct ProtoList {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<ProtoValue>,
}

impl ProtoStruct {
    /// A table of texts.
    pub(super) fn of_texts(texts: &[(String, String)]) -> Self {
        let value = |text: &String| ProtoValue { kind: Some(ProtoKind::Text(text.clone())) };
        Self { fields: texts.iter().map(|(key, text)| (key.clone(), value(text))).collect() }
    }

    /// The same as JSON.
    pub(in crate::database::envoy) fn to_json(&self) -> Map<String, Value> {
        self.fields.iter().map(|(key, value)| (key.clone(), value.to_json())).collect()
    }
}

impl ProtoValue {
    fn to_json(&self) -> Value {
        match &self.kind {
            None | Some(ProtoKind::Null(_)) => Value::Null,
            Some(ProtoKind::Number(number)) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
            Some(ProtoKind::Text(text)) => Value::String(text.clone()),
            Some(ProtoKind::Flag(flag)) => Value::Bool(*flag),
            Some(ProtoKind::Table(table)) => Value::Object(table.to_json()),
            Some(ProtoKind::List(list)) => list.values.iter().map(Self::to_json).collect(),
        }
    }
}
