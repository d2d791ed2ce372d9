//! What gRPC reflection tells of the services, so that `grpcurl` and its kind need no files.
//!
//! `descriptors.bin` is Envoy's own description of its rate limit service with all that it imports
//! (Apache-2.0), without comments. It is made from the files that the crate `envoy-types` ships, in its
//! folder `proto`, by
//!
//! ```text
//! protoc --include_imports --descriptor_set_out=descriptors.bin \
//!   -I data-plane-api -I xds -I protoc-gen-validate envoy/service/ratelimit/v3/rls.proto
//! ```
//!
//! `kuadrant.bin` is made of `kuadrant.proto` in the same way, without `--include_imports`: what it imports
//! is in `descriptors.bin`.

use super::services::Services;

/// The service, its messages and what those need.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
/// Kuadrant's service and its messages.
const KUADRANT: &[u8] = include_bytes!("kuadrant.bin");

/// Adds both versions of reflection, of which clients still ask the older.
pub(super) fn add(services: &mut Services) {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(KUADRANT)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(newer), Ok(older)) => {
            services.add(newer);
            services.add(older);
        }
        (newer, older) => {
            let error = newer.err().or(older.err());
            tracing::warn!(?error, "gRPC reflection is off: the description of the service is wrong");
        }
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
        DescriptorStatus, Quota, RateLimit, quota,
    };
    use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
    use envoy_types::pb::google::protobuf::{Duration, Struct, Timestamp, UInt64Value, Value, value};
    use prost::Message;
    use prost::encoding::{WireType, decode_key, decode_varint};
    use prost_types::field_descriptor_proto::Type;
    use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

    use super::{DESCRIPTORS, KUADRANT};

    /// The description of a message by its whole name.
    fn described<'s>(set: &'s FileDescriptorSet, name: &str) -> &'s DescriptorProto {
        let in_file = |file: &'s FileDescriptorProto| {
            let mut parts = name.strip_prefix(&format!(".{}.", file.package()))?.split('.');
            let named =
                |among: &'s [DescriptorProto], part: &str| among.iter().find(|one| one.name() == part);
            let outer = named(&file.message_type, parts.next()?)?;
            parts.try_fold(outer, |message, part| named(&message.nested_type, part))
        };
        set.file.iter().find_map(in_file).unwrap_or_else(|| panic!("{name} is not described"))
    }

    /// Reads bytes by the description alone: every field must be described as it was written. Returns how
    /// many fields there were.
    fn read(set: &FileDescriptorSet, name: &str, mut bytes: &[u8]) -> usize {
        let message = described(set, name);
        let mut fields = 0;
        while !bytes.is_empty() {
            let (tag, wire) = decode_key(&mut bytes).unwrap();
            let field = message.field.iter().find(|field| field.number() == i32::try_from(tag).unwrap());
            let field = field.unwrap_or_else(|| panic!("{name} has no field {tag}"));
            fields += 1;
            match (wire, field.r#type()) {
                (
                    WireType::Varint,
                    Type::Uint32 | Type::Uint64 | Type::Int64 | Type::Int32 | Type::Enum | Type::Bool,
                ) => {
                    decode_varint(&mut bytes).unwrap();
                }
                (WireType::SixtyFourBit, Type::Double) => bytes = &bytes[8..],
                (WireType::LengthDelimited, kind @ (Type::Message | Type::String | Type::Bytes)) => {
                    let length = usize::try_from(decode_varint(&mut bytes).unwrap()).unwrap();
                    let (inner, rest) = bytes.split_at(length);
                    if kind == Type::Message {
                        fields += read(set, field.type_name(), inner);
                    }
                    bytes = rest;
                }
                other => panic!("{name}.{} is described as {other:?}", field.name()),
            }
        }
        fields
    }

    fn set() -> FileDescriptorSet {
        let mut set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        set.file.extend(FileDescriptorSet::decode(KUADRANT).unwrap().file);
        set
    }

    #[test]
    fn every_field_of_a_request_is_described() {
        let descriptor = RateLimitDescriptor {
            entries: vec![Entry { key: "user".to_owned(), value: "ann".to_owned() }],
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: 2 }),
            hits_addend: Some(UInt64Value { value: 3 }),
            is_negative_hits: true,
        };
        let request =
            RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 2 };
        let name = ".envoy.service.ratelimit.v3.RateLimitRequest";
        assert_eq!(read(&set(), name, &request.encode_to_vec()), 12);
    }

    #[test]
    fn every_field_of_an_answer_is_described() {
        let quota = Quota {
            requests: 1,
            id: "q".to_owned(),
            expiration_specifier: Some(quota::ExpirationSpecifier::ValidUntil(Timestamp {
                seconds: 1,
                nanos: 2,
            })),
        };
        let status = DescriptorStatus {
            code: 1,
            current_limit: Some(RateLimit { name: "l".to_owned(), requests_per_unit: 5, unit: 7 }),
            limit_remaining: 4,
            duration_until_reset: Some(Duration { seconds: 1, nanos: 2 }),
            quota: Some(quota.clone()),
        };
        let header = HeaderValue { key: "k".to_owned(), value: "v".to_owned(), raw_value: vec![1] };
        let number = Value { kind: Some(value::Kind::NumberValue(1.5)) };
        let answer = RateLimitResponse {
            overall_code: 2,
            statuses: vec![status],
            response_headers_to_add: vec![header.clone()],
            request_headers_to_add: vec![header],
            raw_body: vec![1],
            dynamic_metadata: Some(Struct { fields: [("n".to_owned(), number)].into() }),
            quota: Some(quota),
        };
        let name = ".envoy.service.ratelimit.v3.RateLimitResponse";
        assert_eq!(read(&set(), name, &answer.encode_to_vec()), 37);
    }

    #[test]
    fn every_import_of_the_description_is_in_it() {
        let set = set();
        let names: Vec<&str> = set.file.iter().map(FileDescriptorProto::name).collect();
        let missing = set.file.iter().flat_map(|file| &file.dependency);
        let missing: Vec<_> = missing.filter(|name| !names.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
