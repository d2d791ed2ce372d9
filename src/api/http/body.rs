//! Reading a request's body: of the right type, bounded, and without a copy where it came in one piece.

use std::borrow::Cow;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Bytes, Incoming};

use super::origin;
use crate::api::Servers;
use crate::api::error::{Code, Refusal};
use crate::core::uri::escaped;

/// The most of a body that is too long that is read and thrown away, so that its sender gets to read why.
const DISCARD_BYTES_MAX: usize = 64 << 20;

/// Reads the whole body of a request that should bring JSON. Bytes that are not UTF-8 count as they do at
/// every server: a gateway that pasted a header's value into its JSON is answered by the rule.
pub(super) async fn read(servers: &Servers, headers: &HeaderMap, body: Incoming) -> Result<Bytes, Refusal> {
    check_type(headers)?;
    let body = read_up_to(servers, headers, body, servers.settings().body_bytes_max).await?;
    if let Cow::Owned(text) = escaped(&body) {
        return Ok(text.into());
    }
    Ok(body)
}

/// Reads the whole body, whatever its type, of at most this many bytes.
pub(super) async fn read_up_to(
    servers: &Servers,
    headers: &HeaderMap,
    mut body: Incoming,
    bytes_max: usize,
) -> Result<Bytes, Refusal> {
    if declared(headers).is_some_and(|bytes| bytes > bytes_max) {
        // A client that asks before sending is told at once.
        if !headers.contains_key(EXPECT) {
            discard(body).await;
        }
        return Err(too_large(bytes_max));
    }
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    if body.is_end_stream() && first.len() <= bytes_max {
        return Ok(first);
    }
    Box::pin(gather(servers, headers, first, body, bytes_max)).await
}

async fn gather(
    servers: &Servers,
    headers: &HeaderMap,
    first: Bytes,
    mut body: Incoming,
    bytes_max: usize,
) -> Result<Bytes, Refusal> {
    let mut held = servers.http.budget.hold();
    // The declared length is reserved at once: a body that grew by doubling would take twice its length.
    let declared = declared(headers).unwrap_or_default().min(bytes_max);
    let mut whole = Vec::with_capacity(declared);
    let mut part = Some(first);
    while let Some(bytes) = part {
        if whole.len().saturating_add(bytes.len()) > bytes_max {
            drop(whole);
            drop(held);
            discard(body).await;
            return Err(too_large(bytes_max));
        }
        if !held.grow(bytes.len()) {
            return Err(Refusal::new(
                Code::Overloaded,
                "too many requests are being received at this moment",
            ));
        }
        whole.extend_from_slice(&bytes);
        part = next(&mut body).await?;
    }
    Ok(whole.into())
}

/// The next piece of the body; `None` at its end.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::new(Code::Incomplete, "the body ended before its time"))?;
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

async fn discard(mut body: Incoming) {
    let mut discarded = 0_usize;
    while let Ok(Some(bytes)) = next(&mut body).await {
        discarded = discarded.saturating_add(bytes.len());
        if discarded > DISCARD_BYTES_MAX {
            return;
        }
    }
}

fn too_large(bytes_max: usize) -> Refusal {
    Refusal::new(Code::TooLarge, format!("a body has at most {bytes_max} bytes"))
}

fn declared(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Checks whether no page of another site had a browser send this.
fn of_no_page(headers: &HeaderMap) -> Result<(), Refusal> {
    if origin::is_foreign(headers) {
        return Err(Refusal::new(Code::Forbidden, "pages of other sites are not answered"));
    }
    Ok(())
}

/// JSON, or what `curl -d` claims when it sends JSON; no type at all is JSON.
fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return of_no_page(headers) };
    let media = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is = |known: &str| media.eq_ignore_ascii_case(known);
    let structured = || {
        media.len() > 5
            && media.is_char_boundary(media.len() - 5)
            && media[media.len() - 5..].eq_ignore_ascii_case("+json")
    };
    // A browser does not send these to another site without asking.
    if is("application/json") || structured() {
        return Ok(());
    }
    if is("application/x-www-form-urlencoded") {
        return of_no_page(headers);
    }
    Err(Refusal::new(Code::UnsupportedType, "the body must be application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_by_its_usual_names_is_accepted_and_nothing_else() {
        let accepts = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(text));
            check_type(&headers).is_ok()
        };
        for good in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/problem+json",
            "application/x-www-form-urlencoded",
        ] {
            assert!(accepts(good), "{good}");
        }
        for bad in
            ["text/plain", "application/xml", "", "json", "+json", "multipart/form-data; boundary=json"]
        {
            assert!(!accepts(bad), "{bad}");
        }
        assert!(check_type(&HeaderMap::new()).is_ok());
    }
}
