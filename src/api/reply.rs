//! Answers as HTTP: bodies, their types, and refusals.

use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use serde::Serialize;

use super::error::{Code, Refusal};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// An answer as HTTP.
pub(super) type Reply = Response<Full<Bytes>>;
/// The answer of a route, or its refusal.
pub(super) type Answered = Result<Reply, Refusal>;

/// Room that most answers need, in bytes.
const USUAL_BYTES: usize = 512;

/// JSON with status 200.
pub(super) fn json(value: &impl Serialize) -> Reply {
    let mut body = Vec::with_capacity(USUAL_BYTES);
    // Fails only for maps whose keys are no strings, and there are none.
    let _ = serde_json::to_writer(&mut body, value);
    json_bytes(body)
}

/// JSON that is written already, with status 200.
pub(super) fn json_bytes(body: impl Into<Bytes>) -> Reply {
    with_type(body, JSON)
}

/// Plain text with status 200.
pub(super) fn text(text: impl Into<String>) -> Reply {
    with_type(text.into().into_bytes(), TEXT)
}

/// A body of this type with status 200.
pub(super) fn with_type(body: impl Into<Bytes>, content_type: HeaderValue) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}

/// The same answer with another status.
pub(super) fn with_status(mut reply: Reply, status: StatusCode) -> Reply {
    *reply.status_mut() = status;
    reply
}

/// The same answer, kept by no cache and taken for nothing but what it says it is: it names people.
pub(super) fn unkept(mut reply: Reply) -> Reply {
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

/// A refusal.
pub(super) fn refusal(refusal: &Refusal) -> Reply {
    let mut reply = with_status(json_bytes(refusal.json()), refusal.http_status());
    if let Some(methods) = refusal.allow.as_deref().and_then(|methods| HeaderValue::from_str(methods).ok()) {
        reply.headers_mut().insert(ALLOW, methods);
    }
    match refusal.code {
        Code::Unauthorized => {
            reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Code::Head => {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Code::TooManyAttempts => {
            reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"));
        }
        _ => {}
    }
    reply
}
