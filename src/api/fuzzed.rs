//! Entry points for the targets in `fuzz/`, which write what strangers write. There only with the feature
//! `fuzzing`.

use std::net::Ipv4Addr;
use std::sync::LazyLock;

use ::http::{HeaderMap, HeaderName, HeaderValue};

use super::credentials::{CredentialHeaders, canonical_authorization};
use super::token::{KeySet, OnInvalid, TokenReader, TokenSettings};
use super::{address, admin, http, query, resp, rls, signing_schemes};
use crate::core::time::{Span, Timestamp};
use crate::telemetry::Metrics;

/// A call of a gateway over gRPC.
pub fn rate_limit_call(message: &[u8]) {
    rls::fuzzed(message);
}

/// A report of what a gateway has spent of its quotas.
pub fn quota_report(message: &[u8]) {
    rls::fuzzed_quotas(message);
}

/// The revisions that a change is made for.
pub fn entity_tags(tags: &str) {
    admin::fuzzed_tags(tags);
}

/// The value of an `Authorization` header, of a scheme that signs each request.
pub fn signing_scheme(value: &[u8]) {
    let blank = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, behind) = value.split_at(blank);
    let _ = signing_schemes::signers(scheme, behind.trim_ascii());
    if let Ok(text) = std::str::from_utf8(value) {
        let _ = canonical_authorization(text);
    }
}

/// A body of each kind over HTTP.
pub fn http_bodies(body: &[u8]) {
    http::fuzzed(body);
}

/// The query of a URL.
pub fn query(text: &str) {
    let _ = query::pairs(text);
}

/// Reads what proxies say of a client's address.
pub fn address(text: &str) {
    for trusted in [1, 2, 64] {
        if let Some(client) = address::client([text].into_iter(), trusted, Some(Ipv4Addr::LOCALHOST.into())) {
            let _ = address::grouped(client, 64);
        }
    }
    let _ = address::regrouped(text, 64);
}

/// The headers of a request, a line each, as far as they show credentials.
pub fn credentials(lines: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n').take(32) {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (HeaderName::from_bytes(&line[..at]), HeaderValue::from_bytes(&line[at + 1..]));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    for is_token in [false, true] {
        let _ = CredentialHeaders::default().shown(&headers, is_token);
    }
}

/// The bytes of a connection that speaks the Redis protocol.
pub fn redis_commands(bytes: &[u8]) {
    resp::fuzzed(bytes);
}

static READER: LazyLock<Option<TokenReader>> = LazyLock::new(|| {
    let keys = r#"{"keys":[{"kty":"oct","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}]}"#;
    let settings = TokenSettings {
        user_claim: "sub".to_owned(),
        issuers: Vec::new(),
        audiences: Vec::new(),
        leeway: Span::from_secs(30),
        on_invalid: OnInvalid::Refuse,
    };
    Some(TokenReader::new(settings, KeySet::from_json(keys).ok()?, &Metrics::new()))
});

/// The value of an `Authorization` header, and a set of keys.
pub fn token(data: &[u8]) {
    if let Some(reader) = &*READER {
        let _ = reader.user_of(data, Timestamp(1));
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = KeySet::from_json(text);
    }
}
