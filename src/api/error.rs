//! Refusals: why a request got no decision, and the only place that knows status codes.

use std::borrow::Cow;

use http::StatusCode;

/// Kinds of refusals. The text form is part of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// The body is not JSON, or the message not protobuf.
    Malformed,
    /// It is, and says something that makes no sense.
    Invalid,
    /// A body of another type.
    UnsupportedType,
    /// A body or message beyond the limit.
    TooLarge,
    /// The head is no request's; the connection is closed with the answer.
    Head,
    /// The head is longer, or has more lines, than is read.
    HeadTooLarge,
    /// The target is longer than is read.
    TargetTooLong,
    /// The body ended before its time.
    Incomplete,
    /// A token that is not valid, where these are refused.
    Token,
    /// No such route.
    NoRoute,
    /// No such rule.
    NoRule,
    /// No such user.
    NoUser,
    /// No such API key.
    NoKey,
    /// No such tier.
    NoTier,
    /// No such revision of the rules.
    NoRevision,
    /// The rules have changed since they were looked at.
    Stale,
    /// The request cannot be carried out here, or not as things are.
    Conflict,
    /// The database does not answer, or takes no changes now.
    Away,
    /// No rules are known yet, so nothing can be decided.
    NotReady,
    /// The route does not know this method.
    Method,
    /// No token, or one that is not known.
    Unauthorized,
    /// A token, or a place, that may not do this.
    Forbidden,
    /// Too many wrong tokens.
    TooManyAttempts,
    /// The server holds as many half-received requests as it may.
    Overloaded,
    /// The region's store does not answer.
    NoStore,
    /// A compressed gRPC message, or a method that the service does not have.
    Unimplemented,
    /// Envoy's own rate limit service refuses the request without a reason that gRPC knows.
    Unknown,
    /// This cannot happen.
    Internal,
}

/// The status codes of gRPC that a refusal may carry.
const UNKNOWN: u8 = 2;
const INVALID_ARGUMENT: u8 = 3;
const NOT_FOUND: u8 = 5;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const FAILED_PRECONDITION: u8 = 9;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;
/// The status code of gRPC for an answer.
pub(super) const GRPC_OK: u8 = 0;

impl Code {
    /// Its text, its HTTP status and its gRPC status.
    const fn row(self) -> (&'static str, StatusCode, u8) {
        match self {
            Self::Malformed => ("malformed", StatusCode::BAD_REQUEST, INVALID_ARGUMENT),
            Self::Invalid => ("invalid_request", StatusCode::BAD_REQUEST, INVALID_ARGUMENT),
            Self::UnsupportedType => {
                ("unsupported_media_type", StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_ARGUMENT)
            }
            Self::TooLarge => ("body_too_large", StatusCode::PAYLOAD_TOO_LARGE, RESOURCE_EXHAUSTED),
            Self::Head => ("malformed_head", StatusCode::BAD_REQUEST, INVALID_ARGUMENT),
            Self::HeadTooLarge => {
                ("head_too_large", StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, RESOURCE_EXHAUSTED)
            }
            Self::TargetTooLong => ("target_too_long", StatusCode::URI_TOO_LONG, RESOURCE_EXHAUSTED),
            Self::Incomplete => ("body_incomplete", StatusCode::BAD_REQUEST, INVALID_ARGUMENT),
            Self::Token => ("invalid_token", StatusCode::UNAUTHORIZED, UNAUTHENTICATED),
            Self::NoRoute => ("route_not_found", StatusCode::NOT_FOUND, UNIMPLEMENTED),
            Self::NoRule => ("rule_not_found", StatusCode::NOT_FOUND, NOT_FOUND),
            Self::NoUser => ("user_not_found", StatusCode::NOT_FOUND, NOT_FOUND),
            Self::NoKey => ("key_not_found", StatusCode::NOT_FOUND, NOT_FOUND),
            Self::NoTier => ("tier_not_found", StatusCode::NOT_FOUND, NOT_FOUND),
            Self::NoRevision => ("revision_not_found", StatusCode::NOT_FOUND, NOT_FOUND),
            Self::Stale => ("revision_mismatch", StatusCode::PRECONDITION_FAILED, FAILED_PRECONDITION),
            Self::Conflict => ("conflict", StatusCode::CONFLICT, FAILED_PRECONDITION),
            Self::Away => ("unavailable", StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
            Self::NotReady => ("not_ready", StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
            Self::Method => ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED, UNIMPLEMENTED),
            Self::Unauthorized => ("unauthorized", StatusCode::UNAUTHORIZED, UNAUTHENTICATED),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN, PERMISSION_DENIED),
            Self::TooManyAttempts => ("too_many_attempts", StatusCode::TOO_MANY_REQUESTS, RESOURCE_EXHAUSTED),
            Self::Overloaded => ("overloaded", StatusCode::SERVICE_UNAVAILABLE, RESOURCE_EXHAUSTED),
            Self::NoStore => ("store_unavailable", StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
            Self::Unimplemented => ("unimplemented", StatusCode::NOT_IMPLEMENTED, UNIMPLEMENTED),
            Self::Unknown => ("refused", StatusCode::BAD_REQUEST, UNKNOWN),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR, INTERNAL),
        }
    }
}

/// Reasons why a request got no decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Decides the HTTP status and the gRPC code of the answer.
    pub(super) code: Code,
    /// A sentence that the client reads: what was expected, and what to do.
    pub(super) message: Cow<'static, str>,
    /// Part of the request that is wrong, as a path such as `checks[17].attributes.user`.
    pub(super) field: Option<String>,
    /// The methods that the route knows, for [`Code::Method`].
    pub(super) allow: Option<Cow<'static, str>>,
}

impl Refusal {
    /// A refusal of the whole request.
    pub(super) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), field: None, allow: None }
    }

    /// A refusal of one part of it.
    pub(super) fn of_field(field: impl Into<String>, message: impl Into<Cow<'static, str>>) -> Self {
        Self { field: Some(field.into()), ..Self::new(Code::Invalid, message) }
    }

    /// The HTTP status.
    pub(super) const fn http_status(&self) -> StatusCode {
        self.code.row().1
    }

    /// The HTTP status beside a gRPC status: 200, unless the caller speaks no gRPC.
    pub(super) const fn http2_status(&self) -> StatusCode {
        match self.code {
            Code::Method | Code::UnsupportedType => self.http_status(),
            _ => StatusCode::OK,
        }
    }

    /// The gRPC status.
    pub(super) const fn grpc_status(&self) -> u8 {
        self.code.row().2
    }

    /// Its JSON form.
    pub(super) fn json(&self) -> Vec<u8> {
        let inner =
            ErrorJson { code: self.code.row().0, message: &self.message, field: self.field.as_deref() };
        // Strings alone always become JSON.
        serde_json::to_vec(&ErrorBody { error: inner }).unwrap_or_default()
    }
}

/// A refusal.
#[derive(serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Error"))]
pub(super) struct ErrorBody<'a> {
    /// Why.
    error: ErrorJson<'a>,
}

/// Why something is refused.
#[derive(serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ErrorReason", deny_unknown_fields))]
struct ErrorJson<'a> {
    /// One word of a fixed list.
    code: &'static str,
    /// A sentence.
    message: &'a str,
    /// Which field of the request is wrong; absent where none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

/// The status of an HTTP answer that carries a decision; a rule's own where it denies.
pub(super) fn decision_status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

/// Returns the status by which `/readyz` says whether the daemon wants requests.
pub(super) const fn ready_status(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Returns the status by which Envoy's own rate limit service says at `/healthcheck` whether it wants
/// requests.
pub(super) const fn healthcheck_status(healthy: bool) -> StatusCode {
    if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }
}

/// Returns the status by which that service says at `/json` what came of a call.
pub(super) const fn json_status(over: bool) -> StatusCode {
    if over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_code_message_and_field() {
        let refusal = Refusal::of_field("checks[17].attributes.user", "is empty");
        let expected = r#"{"error":{"code":"invalid_request","message":"is empty","field":"checks[17].attributes.user"}}"#;
        assert_eq!(String::from_utf8(refusal.json()).unwrap(), expected);
        assert_eq!((refusal.http_status().as_u16(), refusal.grpc_status()), (400, 3));
    }

    #[test]
    fn the_field_is_left_out_where_the_whole_is_wrong() {
        let refusal = Refusal::new(Code::NoRoute, "no \"such\" route");
        assert_eq!(
            String::from_utf8(refusal.json()).unwrap(),
            r#"{"error":{"code":"route_not_found","message":"no \"such\" route"}}"#
        );
    }
}
