//! `GET|POST /v1/authorize`: forward-auth, for gateways that ask about a request by passing on its headers.
//!
//! | attribute | read from |
//! |---|---|
//! | `ip` | `X-Forwarded-For`, past our own proxies; else the peer's address. IPv6 by its prefix |
//! | `path` | `X-Forwarded-Uri` or `X-Original-URI`, without the query |
//! | `method` | `X-Forwarded-Method` or `X-Original-Method` |
//! | `host` | `X-Forwarded-Host` |
//! | `user` | the JSON web token in `Authorization`, where tokens are configured and it is valid |
//! | `api_key` | `X-Api-Key`, else the credentials in `Authorization`: a key of ours by its public name, any other by its [`fingerprint`], never the secret itself |
//! | any other `<name>` | `X-Tidegate-<Name>`, for gateways that know more; the name in lower case |
//!
//! The query of the route itself may say `domain` and `cost`. The gateway must set these headers or remove what a client
//! sent under their names; where two that mean the same disagree the request is refused, since one of them is a client's.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap};
use http::request::Parts;

use super::{Answered, Visit, query, reply};
use crate::api::error::{Refusal, decision_status};
use crate::api::token::{self, OnInvalid};
use crate::api::{address, headers};
use crate::core::decision::Decision;
use crate::core::identity::is_key_like;
use crate::core::request::{ATTRIBUTES_MAX, Cost, Request, TEXT_BYTES_MAX};
use crate::core::rule::DOMAIN_DEFAULT;

/// What a header for an attribute of the gateway's own begins with.
const OWN_PREFIX: &str = "x-tidegate-";
/// Attributes that are read from headers of their own, and so never from `X-Tidegate-…`.
const READ_ELSEWHERE: [&str; 6] = ["ip", "path", "method", "host", "api_key", "region"];
const FINGERPRINT_BYTES: usize = 16;

type Attributes<'h> = Vec<(&'h str, Cow<'h, str>)>;

impl Visit<'_> {
    /// 200, or the deciding rule's status and text; rate-limit headers with both.
    pub(super) async fn authorize(self, head: &Parts) -> Answered {
        let asked = Asked::read(head.uri.query().unwrap_or_default())?;
        let attributes = self.attributes(&head.headers)?;
        let attributes = attributes.iter().map(|(name, value)| (*name, &**value)).collect();
        let requests = [Request { domain: &asked.domain, attributes, cost: asked.cost, limit: None }];
        let engine = &self.doors.engine;
        let decisions = engine.decide(&requests).get().await;
        let Some(decision) = decisions.first() else { return Ok(reply::text("")) };
        let status = decision_status(decision.status);
        let mut reply = reply::with_status(reply::text(words(decision)), status);
        headers::add(reply.headers_mut(), decision, asked.cost, engine.now());
        Ok(reply)
    }

    fn attributes(self, headers: &HeaderMap) -> Result<Attributes<'_>, Refusal> {
        let mut attributes = Attributes::new();
        if let Some(ip) = self.client(headers)? {
            attributes.push(("ip", ip.into()));
        }
        if let Some(target) = agreed(headers, "x-forwarded-uri", "x-original-uri")? {
            let path = target.split(['?', '#']).next().unwrap_or_default();
            attributes.push(("path", path.into()));
        }
        if let Some(method) = agreed(headers, "x-forwarded-method", "x-original-method")? {
            attributes.push(("method", method.into()));
        }
        if let Some(host) = text(headers, "x-forwarded-host")? {
            attributes.push(("host", host.into()));
        }
        let token = self.token_user(headers)?;
        if let Some(key) = api_key(headers, token.is_some()) {
            attributes.push(("api_key", shown(key)));
        }
        for name in headers.keys() {
            let Some(own) = name.as_str().strip_prefix(OWN_PREFIX) else { continue };
            if own.is_empty() || READ_ELSEWHERE.contains(&own) {
                continue;
            }
            if let Some(value) = text(headers, name.as_str())? {
                attributes.push((own, value.into()));
            }
        }
        if let Some(Some(user)) = token {
            name_user(&mut attributes, &user)?;
        }
        attributes.retain(|(_, value)| !value.is_empty());
        bounded(&attributes)?;
        Ok(attributes)
    }

    /// Whether the request brings a JSON web token where these are configured, and the user whom a valid one names.
    fn token_user(self, headers: &HeaderMap) -> Result<Option<Option<Arc<str>>>, Refusal> {
        let Some(tokens) = self.doors.tokens.as_deref() else { return Ok(None) };
        let Some(text) = text(headers, AUTHORIZATION.as_str()).ok().flatten() else { return Ok(None) };
        let Some(token) = token::of_authorization(text) else { return Ok(None) };
        match tokens.user(token, self.doors.engine.now()) {
            Ok(user) => Ok(Some(Some(user))),
            Err(_) if tokens.on_invalid() == OnInvalid::Address => Ok(Some(None)),
            Err(invalid) => Err(token::refusal(&invalid)),
        }
    }

    fn client(self, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
        let hops = headers.get_all("x-forwarded-for").iter();
        let hops: Result<Vec<_>, _> = hops.map(|value| utf8("x-forwarded-for", value.as_bytes())).collect();
        let settings = &self.doors.settings;
        let client = address::client(hops?.into_iter(), settings.trusted_proxies, self.peer);
        Ok(client.map(|address| address::grouped(address, settings.ipv6_prefix).to_string()))
    }
}

/// What the route's own query asks.
struct Asked {
    domain: Cow<'static, str>,
    cost: Cost,
}

impl Asked {
    fn read(query: &str) -> Result<Self, Refusal> {
        let mut asked = Self { domain: Cow::Borrowed(DOMAIN_DEFAULT), cost: Cost::Take(1) };
        for (name, value) in query::pairs(query)? {
            match name.as_str() {
                "domain" if (1..=TEXT_BYTES_MAX).contains(&value.len()) => asked.domain = Cow::Owned(value),
                "domain" => return Err(Refusal::of_field("domain", "a domain has 1 to 1024 bytes")),
                "cost" => {
                    let cost = value.parse().map_err(|_| {
                        Refusal::of_field(
                            "cost",
                            format!("{:?} is no whole number of 64 bits", clipped(&value)),
                        )
                    })?;
                    asked.cost = Cost::from_signed(cost);
                }
                _ => {
                    return Err(Refusal::of_field(
                        clipped(&name),
                        "the query knows only `domain` and `cost`",
                    ));
                }
            }
        }
        Ok(asked)
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(64).collect()
}

fn bounded(attributes: &Attributes<'_>) -> Result<(), Refusal> {
    if attributes.len() > ATTRIBUTES_MAX {
        return Err(Refusal::new(
            crate::api::error::Code::Invalid,
            format!("a request has at most {ATTRIBUTES_MAX} attributes, this one has {}", attributes.len()),
        ));
    }
    match attributes.iter().find(|(_, value)| value.len() > TEXT_BYTES_MAX) {
        Some((name, value)) => Err(Refusal::of_field(
            *name,
            format!("an attribute's value has 1 to {TEXT_BYTES_MAX} bytes, this one has {}", value.len()),
        )),
        None => Ok(()),
    }
}

/// The text of a header; the first where it repeats.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Refusal> {
    headers.get(name).map(|value| utf8(name, value.as_bytes())).transpose()
}

fn utf8<'h>(name: &str, bytes: &'h [u8]) -> Result<&'h str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| Refusal::of_field(name, "the header is not UTF-8"))
}

/// What two headers of the same meaning say, if they do not contradict each other.
fn agreed<'h>(headers: &'h HeaderMap, one: &str, other: &str) -> Result<Option<&'h str>, Refusal> {
    match (text(headers, one)?, text(headers, other)?) {
        (Some(one_says), Some(other_says)) if one_says != other_says => Err(Refusal::of_field(
            one,
            format!("{one} and {other} disagree: the gateway should set one and remove the other"),
        )),
        (one_says, other_says) => Ok(one_says.or(other_says)),
    }
}

/// The user whom the token names; a gateway that names another contradicts it.
fn name_user(attributes: &mut Attributes<'_>, user: &str) -> Result<(), Refusal> {
    match attributes.iter().find(|(name, _)| *name == "user") {
        Some((_, named)) if **named != *user => Err(Refusal::of_field(
            "x-tidegate-user",
            "x-tidegate-user and the token disagree: the gateway should remove what a client sent under this name",
        )),
        Some(_) => Ok(()),
        None => {
            attributes.push(("user", user.to_owned().into()));
            Ok(())
        }
    }
}

/// What stands for the secret: a key of ours itself, since the engine knows it and keeps its name alone; of any other a
/// fingerprint.
fn shown(key: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(key) {
        Ok(text) if is_key_like(text) => text.into(),
        _ => fingerprint(key).into(),
    }
}

/// The secret that the client shows: `X-Api-Key`, else what stands in `Authorization` after the scheme, unless that is a
/// token.
fn api_key(headers: &HeaderMap, is_token: bool) -> Option<&[u8]> {
    if let Some(key) = headers.get("x-api-key") {
        return Some(key.as_bytes().trim_ascii()).filter(|key| !key.is_empty());
    }
    if is_token {
        return None;
    }
    let credentials = headers.get(AUTHORIZATION)?.as_bytes().trim_ascii();
    let scheme = credentials.iter().position(|byte| *byte == b' ').map_or(0, |at| at + 1);
    credentials.get(scheme..).map(<[u8]>::trim_ascii).filter(|key| !key.is_empty())
}

/// The name that limits know a foreign secret by: the first 128 bits of its SHA-256, in hexadecimal. A rule matches such a
/// key by this; `printf %s KEY | sha256sum | cut -c1-32` prints it.
#[must_use]
pub fn fingerprint(secret: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret);
    let mut text = String::with_capacity(2 * FINGERPRINT_BYTES);
    for byte in digest.as_ref().iter().take(FINGERPRINT_BYTES) {
        for half in [byte >> 4, byte & 0xf] {
            text.push(char::from_digit(u32::from(half), 16).unwrap_or_default());
        }
    }
    text
}

fn words(decision: &Decision) -> String {
    if decision.allowed {
        return String::new();
    }
    match &decision.message {
        Some(message) => message.to_string(),
        None => decision_status(decision.status).canonical_reason().unwrap_or("Denied").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{HeaderName, HeaderValue};

    fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_fingerprint_is_what_sha256sum_prints() {
        assert_eq!(fingerprint(b"abc"), "ba7816bf8f01cfea414140de5dae2223");
    }

    #[test]
    fn a_key_is_the_same_by_whichever_header_it_comes() {
        let key = |lines: &[(&str, &[u8])]| api_key(&headers(lines), false).map(<[u8]>::to_vec);
        assert_eq!(key(&[("x-api-key", b"k1")]).as_deref(), Some(&b"k1"[..]));
        assert_eq!(key(&[("authorization", b"Bearer k1")]).as_deref(), Some(&b"k1"[..]));
        assert_eq!(key(&[("authorization", b"k1")]).as_deref(), Some(&b"k1"[..]));
        assert_eq!(
            key(&[("authorization", b"Bearer k2"), ("x-api-key", b"k1")]).as_deref(),
            Some(&b"k1"[..])
        );
        assert_eq!(key(&[("authorization", b"Bearer ")]), Some(b"Bearer".to_vec()));
        assert_eq!(key(&[("authorization", b"")]), None);
        assert_eq!(key(&[]), None);
    }

    #[test]
    fn headers_that_mean_the_same_may_not_disagree() {
        let both = |one: &[u8], other: &[u8]| {
            let headers = headers(&[("x-forwarded-uri", one), ("x-original-uri", other)]);
            agreed(&headers, "x-forwarded-uri", "x-original-uri").map(|uri| uri.map(str::to_owned))
        };
        assert_eq!(both(b"/a", b"/a"), Ok(Some("/a".to_owned())));
        assert_eq!(both(b"/a", b"/b").unwrap_err().field.as_deref(), Some("x-forwarded-uri"));
        assert_eq!(both(b"/\xff", b"/b").unwrap_err().message, "the header is not UTF-8");
    }

    #[test]
    fn the_query_says_domain_and_cost_and_nothing_else() {
        let asked = Asked::read("domain=web%20app&cost=-2").unwrap();
        assert_eq!((&*asked.domain, asked.cost), ("web app", Cost::Refund(2)));
        let field = |query| Asked::read(query).err().and_then(|refusal| refusal.field);
        assert_eq!(field("cost=1.5").as_deref(), Some("cost"));
        assert_eq!(field("cost=9223372036854775808").as_deref(), Some("cost"));
        assert_eq!(field("domain=").as_deref(), Some("domain"));
        assert_eq!(field("user=x").as_deref(), Some("user"));
    }
}
