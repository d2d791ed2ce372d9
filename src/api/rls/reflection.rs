//! What gRPC reflection tells of the service, so that `grpcurl` and its kind need no files.
//!
//! The generated types bring no descriptors, so the few messages that matter are described here: the fields, without
//! the validation rules and annotations of Envoy's own files.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
};
use tonic::service::Routes;

/// Adds both versions of reflection, of which clients still ask the older.
pub(super) fn add(routes: Routes) -> Routes {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_file_descriptor_set(described())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(newer), Ok(older)) => routes.add_service(newer).add_service(older),
        (newer, older) => {
            let error = newer.err().or(older.err());
            tracing::warn!(?error, "gRPC reflection is off: the description of the service is wrong");
            routes
        }
    }
}

const DURATION: &str = "google/protobuf/duration.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const TIMESTAMP: &str = "google/protobuf/timestamp.proto";
const STRUCT: &str = "google/protobuf/struct.proto";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";
const BASE: &str = "envoy/config/core/v3/base.proto";
const RATELIMIT: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const RLS: &str = "envoy/service/ratelimit/v3/rls.proto";

/// Every file that the service needs.
fn described() -> FileDescriptorSet {
    FileDescriptorSet {
        file: vec![duration(), wrappers(), timestamp(), structs(), unit(), base(), ratelimit(), rls()],
    }
}

fn file(name: &str, package: &str, needs: &[&str]) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: needs.iter().map(|need| (*need).to_owned()).collect(),
        syntax: Some("proto3".to_owned()),
        ..Default::default()
    }
}

fn message(name: &str, fields: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field: fields, ..Default::default() }
}

fn field(number: i32, name: &str, kind: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        ..Default::default()
    }
}

/// A field whose type has a name: a message or an enumeration.
fn named(number: i32, name: &str, kind: Type, type_name: &str) -> FieldDescriptorProto {
    FieldDescriptorProto { type_name: Some(type_name.to_owned()), ..field(number, name, kind) }
}

fn many(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto { label: Some(Label::Repeated.into()), ..field }
}

fn either(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto { oneof_index: Some(0), ..field }
}

fn oneof(name: &str) -> Vec<OneofDescriptorProto> {
    vec![OneofDescriptorProto { name: Some(name.to_owned()), ..Default::default() }]
}

fn enumeration(name: &str, values: &[(&str, i32)]) -> EnumDescriptorProto {
    let value = |(name, number): &(&str, i32)| EnumValueDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(*number),
        ..Default::default()
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.iter().map(value).collect(),
        ..Default::default()
    }
}

fn duration() -> FileDescriptorProto {
    let fields = vec![field(1, "seconds", Type::Int64), field(2, "nanos", Type::Int32)];
    FileDescriptorProto {
        message_type: vec![message("Duration", fields)],
        ..file(DURATION, "google.protobuf", &[])
    }
}

fn timestamp() -> FileDescriptorProto {
    let fields = vec![field(1, "seconds", Type::Int64), field(2, "nanos", Type::Int32)];
    FileDescriptorProto {
        message_type: vec![message("Timestamp", fields)],
        ..file(TIMESTAMP, "google.protobuf", &[])
    }
}

fn wrappers() -> FileDescriptorProto {
    let message = message("UInt64Value", vec![field(1, "value", Type::Uint64)]);
    FileDescriptorProto { message_type: vec![message], ..file(WRAPPERS, "google.protobuf", &[]) }
}

fn structs() -> FileDescriptorProto {
    let value = ".google.protobuf.Value";
    let mut entry =
        message("FieldsEntry", vec![field(1, "key", Type::String), named(2, "value", Type::Message, value)]);
    entry.options = Some(prost_types::MessageOptions { map_entry: Some(true), ..Default::default() });
    let entries = many(named(1, "fields", Type::Message, ".google.protobuf.Struct.FieldsEntry"));
    let fields = DescriptorProto { nested_type: vec![entry], ..message("Struct", vec![entries]) };
    let kinds = vec![
        either(named(1, "null_value", Type::Enum, ".google.protobuf.NullValue")),
        either(field(2, "number_value", Type::Double)),
        either(field(3, "string_value", Type::String)),
        either(field(4, "bool_value", Type::Bool)),
        either(named(5, "struct_value", Type::Message, ".google.protobuf.Struct")),
        either(named(6, "list_value", Type::Message, ".google.protobuf.ListValue")),
    ];
    let one = DescriptorProto { oneof_decl: oneof("kind"), ..message("Value", kinds) };
    let list = message("ListValue", vec![many(named(1, "values", Type::Message, value))]);
    FileDescriptorProto {
        message_type: vec![fields, one, list],
        enum_type: vec![enumeration("NullValue", &[("NULL_VALUE", 0)])],
        ..file(STRUCT, "google.protobuf", &[])
    }
}

fn unit() -> FileDescriptorProto {
    let units =
        [("UNKNOWN", 0), ("SECOND", 1), ("MINUTE", 2), ("HOUR", 3), ("DAY", 4), ("MONTH", 5), ("YEAR", 6)];
    FileDescriptorProto {
        enum_type: vec![enumeration("RateLimitUnit", &units)],
        ..file(UNIT, "envoy.type.v3", &[])
    }
}

fn base() -> FileDescriptorProto {
    let fields = vec![
        field(1, "key", Type::String),
        field(2, "value", Type::String),
        field(3, "raw_value", Type::Bytes),
    ];
    FileDescriptorProto {
        message_type: vec![message("HeaderValue", fields)],
        ..file(BASE, "envoy.config.core.v3", &[])
    }
}

fn ratelimit() -> FileDescriptorProto {
    let own = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    let entry = message("Entry", vec![field(1, "key", Type::String), field(2, "value", Type::String)]);
    let limit = message(
        "RateLimitOverride",
        vec![
            field(1, "requests_per_unit", Type::Uint32),
            named(2, "unit", Type::Enum, ".envoy.type.v3.RateLimitUnit"),
        ],
    );
    let fields = vec![
        many(named(1, "entries", Type::Message, &format!("{own}.Entry"))),
        named(2, "limit", Type::Message, &format!("{own}.RateLimitOverride")),
        named(3, "hits_addend", Type::Message, ".google.protobuf.UInt64Value"),
        field(4, "is_negative_hits", Type::Bool),
    ];
    let descriptor =
        DescriptorProto { nested_type: vec![entry, limit], ..message("RateLimitDescriptor", fields) };
    let file = file(RATELIMIT, "envoy.extensions.common.ratelimit.v3", &[UNIT, WRAPPERS]);
    FileDescriptorProto { message_type: vec![descriptor], ..file }
}

fn rls() -> FileDescriptorProto {
    let request = message(
        "RateLimitRequest",
        vec![
            field(1, "domain", Type::String),
            many(named(
                2,
                "descriptors",
                Type::Message,
                ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
            )),
            field(3, "hits_addend", Type::Uint32),
        ],
    );
    let package = "envoy.service.ratelimit.v3";
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".to_owned()),
        input_type: Some(format!(".{package}.RateLimitRequest")),
        output_type: Some(format!(".{package}.RateLimitResponse")),
        ..Default::default()
    };
    let service = ServiceDescriptorProto {
        name: Some("RateLimitService".to_owned()),
        method: vec![method],
        ..Default::default()
    };
    FileDescriptorProto {
        message_type: vec![request, response()],
        service: vec![service],
        ..file(RLS, package, &[BASE, RATELIMIT, DURATION, STRUCT, TIMESTAMP])
    }
}

fn response() -> DescriptorProto {
    let own = ".envoy.service.ratelimit.v3.RateLimitResponse";
    let named = |number, name, kind, own_type: &str| named(number, name, kind, &format!("{own}.{own_type}"));
    let units = [
        ("UNKNOWN", 0),
        ("SECOND", 1),
        ("MINUTE", 2),
        ("HOUR", 3),
        ("DAY", 4),
        ("WEEK", 7),
        ("MONTH", 5),
        ("YEAR", 6),
    ];
    let limit_fields = vec![
        field(3, "name", Type::String),
        field(1, "requests_per_unit", Type::Uint32),
        named(2, "unit", Type::Enum, "RateLimit.Unit"),
    ];
    let limit = DescriptorProto {
        enum_type: vec![enumeration("Unit", &units)],
        ..message("RateLimit", limit_fields)
    };
    let quota_fields = vec![
        field(1, "requests", Type::Uint32),
        either(foreign(2, "valid_until", ".google.protobuf.Timestamp")),
        field(3, "id", Type::String),
    ];
    let quota =
        DescriptorProto { oneof_decl: oneof("expiration_specifier"), ..message("Quota", quota_fields) };
    let status_fields = vec![
        named(1, "code", Type::Enum, "Code"),
        named(2, "current_limit", Type::Message, "RateLimit"),
        field(3, "limit_remaining", Type::Uint32),
        foreign(4, "duration_until_reset", ".google.protobuf.Duration"),
        named(5, "quota", Type::Message, "Quota"),
    ];
    let header = ".envoy.config.core.v3.HeaderValue";
    let fields = vec![
        named(1, "overall_code", Type::Enum, "Code"),
        many(named(2, "statuses", Type::Message, "DescriptorStatus")),
        many(foreign(3, "response_headers_to_add", header)),
        many(foreign(4, "request_headers_to_add", header)),
        field(5, "raw_body", Type::Bytes),
        foreign(6, "dynamic_metadata", ".google.protobuf.Struct"),
        named(7, "quota", Type::Message, "Quota"),
    ];
    DescriptorProto {
        nested_type: vec![limit, quota, message("DescriptorStatus", status_fields)],
        enum_type: vec![enumeration("Code", &[("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)])],
        ..message("RateLimitResponse", fields)
    }
}

/// A field that holds a message of another file.
fn foreign(number: i32, name: &str, type_name: &str) -> FieldDescriptorProto {
    named(number, name, Type::Message, type_name)
}
