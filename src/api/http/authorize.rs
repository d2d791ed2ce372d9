//! `GET|POST /v1/authorize`: forward-auth, for gateways that ask about a request by passing on its headers.
//!
//! | attribute | read from |
//! |---|---|
//! | `ip` | `X-Forwarded-For`, past our own proxies; else the peer's address |
//! | `path` | `X-Forwarded-Uri` or `X-Original-URI`, in normal form, without the query |
//! | `method` | `X-Forwarded-Method` or `X-Original-Method` |
//! | `host` | `X-Forwarded-Host` |
//! | `user` | the JSON web token in `Authorization`, where tokens are configured and it is valid |
//! | `api_key` | each header that [carries credentials](super::super::credentials): a key of ours by its public name, any other by its fingerprint, never the secret itself |
//! | any other `<name>` | `X-Tidegate-<Name>`, for gateways that know more; the name in lower case |
//!
//! A gateway that appends the original request's target to the path that it asks, as Envoy's `ext_authz`
//! does, asks `/v1/authorize/domain=NAME`: what follows is `path`, the request's own method and host are
//! `method` and `host`, and the query is the client's.
//!
//! A gateway that reads no text of an answer, as nginx's `auth_request`, says `Prefer: body=header`, and has
//! the text of a denial in the header `X-Tidegate-Body` besides.
//!
//! The query of the route itself may say `domain` and `cost`. The gateway must set these headers or remove
//! what a client sent under their names; where two that mean the same disagree the request is refused, since
//! one of them is a client's.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;

use super::{Arriving, ConnectionContext, origin};
use crate::api::client_identity::ClientIdentity;
use crate::api::credentials::single;
use crate::api::error::{Refusal, decision_status};
use crate::api::query;
use crate::api::reply::{self, Answered};
use crate::api::token::{self, TokenUser};
use crate::api::{address, headers, problem};
use crate::core::decision::Decision;
use crate::core::request::{API_KEY, ATTRIBUTES_MAX, Cost, Request, TEXT_BYTES_MAX};
use crate::core::rule::DOMAIN_DEFAULT;
use crate::core::uri::escaped;

/// The prefix of headers for attributes of the gateway's own.
const OWN_PREFIX: &str = "x-tidegate-";
/// The header by which a gateway says that it reads no text of an answer (RFC 7240), and what it says.
const PREFER: &str = "prefer";
const BODY_IN_HEADER: &str = "body=header";
/// The text of a denial, for such a gateway.
static X_BODY: HeaderName = HeaderName::from_static("x-tidegate-body");
/// Longest text that is told in a header, in bytes: as long as a message, and as gateways have room for in a
/// head.
const BODY_BYTES_MAX: usize = 4_096;
/// Attributes that are read from headers of their own, and so never from `X-Tidegate-…`.
const READ_ELSEWHERE: [&str; 6] = ["ip", "path", "method", "host", "api_key", "region"];

/// The begin of the path if a gateway appends the original request's target.
pub(super) const APPENDED: &str = "/v1/authorize/domain=";
/// The methods of that: each that the original request may have.
pub(super) const ANY_METHOD: &str = "*";

type Attributes<'h> = Vec<(&'h str, Cow<'h, str>)>;

impl ConnectionContext<'_> {
    /// 200, or the deciding rule's status and text; rate-limit headers with both.
    pub(super) async fn authorize(self, head: &Parts, arriving: &mut Arriving<'_>) -> Answered {
        self.servers.knows_rules()?;
        let appended = Appended::of(head);
        let question = match &appended {
            Some(appended) => &appended.question,
            None => head.uri.query().unwrap_or_default(),
        };
        let asked = AuthorizeQuery::read(question)?;
        self.may_ask(asked.cost)?;
        if appended.is_none() {
            refuse_page(head, asked.cost)?;
        }
        let attributes = self.attributes(head, appended.as_ref())?;
        let attributes = attributes.iter().map(|(name, value)| (*name, &**value)).collect();
        let mut request = Request::new(&asked.domain, attributes, asked.cost);
        request.forms.request_id = head.headers.get("x-request-id").and_then(|name| name.to_str().ok());
        let requests = [request];
        let client_identity = ClientIdentity::of_values(&self.servers.settings(), &requests);
        let requests = client_identity.stand_in(requests)?;
        let engine = &self.servers.engine;
        let decisions = self.whole(engine.decide(&requests).get()).await;
        let decisions = engine.held_back(&requests, decisions).await;
        let ([request], Some(decision)) = (&requests, decisions.first()) else { return Ok(reply::text("")) };
        arriving.decided(request, decision);
        let status = decision_status(decision.status);
        let document = problem::of_denial(decision, problem::accepts(&head.headers), true);
        let in_header = in_header(&head.headers, decision, document.as_deref());
        let reply = match document {
            Some(document) => reply::with_type(document, HeaderValue::from_static(problem::PROBLEM_JSON)),
            None => match decision.message_type().map(HeaderValue::try_from) {
                Some(Ok(content_type)) => reply::with_type(words(decision), content_type),
                _ => reply::text(words(decision)),
            },
        };
        let mut reply = reply::with_status(reply, status);
        headers::add(reply.headers_mut(), decision, asked.cost, engine.now());
        if let Some(body) = in_header {
            reply.headers_mut().insert(&X_BODY, body);
        }
        Ok(reply)
    }

    fn attributes<'h>(
        self,
        head: &'h Parts,
        appended: Option<&'h Appended<'h>>,
    ) -> Result<Attributes<'h>, Refusal> {
        let headers = &head.headers;
        let mut attributes = Attributes::new();
        if let Some(ip) = self.client(headers) {
            attributes.push(("ip", ip.into()));
        }
        let original = match appended {
            Some(appended) => appended.original(head),
            None => forwarded(headers)?,
        };
        attributes.extend(
            ["path", "method", "host"]
                .into_iter()
                .zip(original)
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let token = self.token_user(headers)?;
        let shown = self.servers.settings().credentials.shown(headers, token != TokenUser::Nothing)?;
        attributes.extend(shown.into_iter().map(|credential| (API_KEY, credential)));
        for name in headers.keys() {
            let Some(own) = name.as_str().strip_prefix(OWN_PREFIX) else { continue };
            if own.is_empty() || READ_ELSEWHERE.contains(&own) {
                continue;
            }
            if let Some(value) = text(headers, name.as_str()) {
                attributes.push((own, value));
            }
        }
        if let TokenUser::Named(user) = token {
            name_user(&mut attributes, &user)?;
        }
        bounded(&attributes)?;
        Ok(attributes)
    }

    /// The user whom the token in `Authorization` names, where tokens are configured.
    fn token_user(self, headers: &HeaderMap) -> Result<TokenUser, Refusal> {
        let Some(tokens) = self.servers.tokens.as_deref() else { return Ok(TokenUser::Nothing) };
        let Some(value) = single(headers, &AUTHORIZATION)? else { return Ok(TokenUser::Nothing) };
        tokens
            .user_of(value.as_bytes(), self.servers.engine.now())
            .map_err(|invalid| token::refusal(&invalid))
    }

    /// The client's address, all of it. A hop that is not text is no address.
    fn client(self, headers: &HeaderMap) -> Option<String> {
        let hops = headers.get_all("x-forwarded-for").iter();
        let hops = hops.map(|value| std::str::from_utf8(value.as_bytes()).unwrap_or("?"));
        let client = address::client(hops, self.servers.settings().trusted_proxies, self.peer.address);
        client.map(|address| address.to_canonical().to_string())
    }
}

/// Path, method and host of the original request.
type Original<'h> = [Option<Cow<'h, str>>; 3];

/// The original request as the gateway's headers tell it.
fn forwarded(headers: &HeaderMap) -> Result<Original<'_>, Refusal> {
    Ok([
        agreed(headers, "x-forwarded-uri", "x-original-uri")?,
        agreed(headers, "x-forwarded-method", "x-original-method")?,
        text(headers, "x-forwarded-host"),
    ])
}

/// A question whose path ends with the original request's target.
#[derive(Debug, PartialEq, Eq)]
struct Appended<'h> {
    /// The text that would be the query, of a question that says the rest by headers.
    question: String,
    /// The original target, path and query.
    target: &'h str,
}

impl<'h> Appended<'h> {
    fn of(head: &'h Parts) -> Option<Self> {
        Self::read(head.uri.path_and_query()?.as_str())
    }

    fn read(whole: &'h str) -> Option<Self> {
        let rest = whole.strip_prefix(APPENDED)?;
        let (domain, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        // The route would take a cost from its own query as well.
        let domain = domain.replace('&', "%26");
        let target = if target.starts_with('/') { target } else { "/" };
        Some(Self { question: format!("domain={domain}"), target })
    }

    /// Headers of another gateway are the client's here.
    fn original(&self, head: &'h Parts) -> Original<'h> {
        let host = head.uri.authority().map(|authority| Cow::Borrowed(authority.as_str()));
        let host = host.or_else(|| text(&head.headers, HOST.as_str()));
        [Some(Cow::Borrowed(self.target)), Some(Cow::Borrowed(head.method.as_str())), host]
    }
}

/// Refuses to charge or give back for a page of another site, which can have a browser fetch any address. A
/// gateway, which passes on the headers of such pages too, says what it asks about.
fn refuse_page(head: &Parts, cost: Cost) -> Result<(), Refusal> {
    const OF_GATEWAYS: [&str; 5] =
        ["x-forwarded-for", "x-forwarded-uri", "x-original-uri", "x-forwarded-method", "x-original-method"];
    let own = |name: &HeaderName| name.as_str().starts_with(OWN_PREFIX);
    let of_gateway =
        || OF_GATEWAYS.iter().any(|name| head.headers.contains_key(*name)) || head.headers.keys().any(own);
    if cost != Cost::Peek && origin::is_foreign(&head.headers) && !of_gateway() {
        return Err(Refusal::new(
            crate::api::error::Code::Forbidden,
            "pages of other sites are not answered",
        ));
    }
    Ok(())
}

/// The fields of the route's own query.
struct AuthorizeQuery {
    domain: Cow<'static, str>,
    cost: Cost,
}

impl AuthorizeQuery {
    fn read(query: &str) -> Result<Self, Refusal> {
        let mut asked = Self { domain: Cow::Borrowed(DOMAIN_DEFAULT), cost: Cost::Take(1) };
        let pairs = query::pairs(query)?;
        for (place, (name, _)) in pairs.iter().enumerate() {
            if pairs.iter().take(place).any(|(before, _)| before == name) {
                return Err(Refusal::of_field(clipped(name), "is given twice"));
            }
        }
        for (name, value) in pairs {
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
    Ok(())
}

/// The text of a header; the first where it repeats. Bytes that are not UTF-8 are spelled as in a path: they
/// are a client's choice, and counted.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, str>> {
    headers.get(name).map(|value| escaped(value.as_bytes()))
}

/// Returns what two headers of the same meaning say, if they do not contradict each other.
fn agreed<'h>(headers: &'h HeaderMap, one: &str, other: &str) -> Result<Option<Cow<'h, str>>, Refusal> {
    match (text(headers, one), text(headers, other)) {
        (Some(one_says), Some(other_says)) if one_says != other_says => Err(Refusal::of_field(
            one,
            format!("{one} and {other} disagree: the gateway should set one and remove the other"),
        )),
        (one_says, other_says) => Ok(one_says.or(other_says)),
    }
}

/// The user whom the token names; a gateway that names another contradicts it.
fn name_user(attributes: &mut Attributes<'_>, user: &str) -> Result<(), Refusal> {
    match attributes.iter_mut().find(|(name, _)| *name == "user") {
        // A gateway that has nothing to say of the user says so by an empty text.
        Some((_, named)) if named.is_empty() => {
            *named = user.to_owned().into();
            Ok(())
        }
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

/// The text of a denial as a header, for a gateway that prefers it so. `document`: the text where it is a
/// problem document. `None` for one that is too long, or of several lines.
fn in_header(headers: &HeaderMap, decision: &Decision, document: Option<&[u8]>) -> Option<HeaderValue> {
    if decision.allowed {
        return None;
    }
    let mut preferences = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    if !preferences.any(|value| value.split(',').any(|one| one.trim() == BODY_IN_HEADER)) {
        return None;
    }
    let body = document.map_or_else(|| Cow::Owned(words(decision).into_bytes()), Cow::Borrowed);
    HeaderValue::from_bytes(&body).ok().filter(|value| (1..=BODY_BYTES_MAX).contains(&value.len()))
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

    fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn what_a_gateway_appends_is_the_original_target() {
        let read = |whole| Appended::read(whole).map(|appended| (appended.question, appended.target));
        let found = |question: &str, target| Some((question.to_owned(), target));
        assert_eq!(read("/v1/authorize/domain=edge/a/b?cost=-9"), found("domain=edge", "/a/b?cost=-9"));
        assert_eq!(read("/v1/authorize/domain=edge"), found("domain=edge", "/"));
        assert_eq!(read("/v1/authorize/domain=edge?cost=-9"), found("domain=edge", "/"));
        assert_eq!(read("/v1/authorize/domain=edge&cost=-9/a"), found("domain=edge%26cost=-9", "/a"));
        assert_eq!(read("/v1/authorize/a/domain=edge"), None);
        assert_eq!(read("/v1/authorize?domain=edge"), None);
    }

    #[test]
    fn headers_that_mean_the_same_may_not_disagree() {
        let both = |one: &[u8], other: &[u8]| {
            let headers = headers(&[("x-forwarded-uri", one), ("x-original-uri", other)]);
            agreed(&headers, "x-forwarded-uri", "x-original-uri").map(|uri| uri.map(Cow::into_owned))
        };
        assert_eq!(both(b"/a", b"/a"), Ok(Some("/a".to_owned())));
        assert_eq!(both(b"/a", b"/b").unwrap_err().field.as_deref(), Some("x-forwarded-uri"));
        assert_eq!(both(b"/\xff", b"/\xff"), Ok(Some("/%FF".to_owned())));
    }

    #[test]
    fn the_query_says_domain_and_cost_and_nothing_else() {
        let asked = AuthorizeQuery::read("domain=web%20app&cost=-2").unwrap();
        assert_eq!((&*asked.domain, asked.cost), ("web app", Cost::Refund(2)));
        let field = |query| AuthorizeQuery::read(query).err().and_then(|refusal| refusal.field);
        assert_eq!(field("cost=1.5").as_deref(), Some("cost"));
        assert_eq!(field("cost=9223372036854775808").as_deref(), Some("cost"));
        assert_eq!(field("domain=").as_deref(), Some("domain"));
        assert_eq!(field("user=x").as_deref(), Some("user"));
        assert_eq!(field("cost=1&cost=2").as_deref(), Some("cost"));
        assert_eq!(field("domain=a&cost=1&domain=a").as_deref(), Some("domain"));
    }
}
