//! Who may use the admin routes: the holders of tokens, or, where no tokens are configured, this machine.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use metrics::Counter;

use super::tokens::Tokens;
use crate::api::address;
use crate::api::error::{Code, Refusal};
use crate::core::time::{Span, Timestamp};
use crate::engine::admin::{Actor, Role};
use crate::telemetry::Metrics;

/// Wrong tokens that one client may try in [`FAILURES_WINDOW`] before it is not listened to any more.
const FAILURES_MAX: u32 = 10;
const FAILURES_WINDOW: Span = Span::from_secs(60);
/// Clients whose failures are remembered. Full: those whose time is up are forgotten; if there are none, all new clients
/// count as one.
const CLIENTS_MAX: usize = 4_096;
/// Clients of IPv6 are told apart by this many leading bits.
const IPV6_PREFIX: u8 = 64;

/// Lets in who may, and slows down who guesses.
#[derive(Debug)]
pub struct Guard {
    /// `None`: no tokens are configured.
    tokens: ArcSwapOption<Tokens>,
    failures: Mutex<HashMap<Option<IpAddr>, Failures>>,
    refused: Refused,
}

struct Refused([Counter; 4]);

impl std::fmt::Debug for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refused")
    }
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    since: Timestamp,
    count: u32,
}

#[derive(Debug, Clone, Copy)]
enum Why {
    Token,
    Role,
    Remote,
    Guessing,
}

impl Guard {
    /// A guard that knows these tokens; `None`: only this machine may ask.
    #[must_use]
    pub fn new(tokens: Option<Tokens>, metrics: &Metrics) -> Self {
        let counter = |why| metrics.counter("admin_refused_total", "reason", why);
        Self {
            tokens: ArcSwapOption::from_pointee(tokens),
            failures: Mutex::default(),
            refused: Refused(["token", "role", "remote", "guessing"].map(counter)),
        }
    }

    /// Replaces the tokens.
    pub fn set(&self, tokens: Tokens) {
        self.tokens.store(Some(tokens.into()));
    }

    /// Who asks, if it may do what needs this role.
    pub(in crate::api) fn admit(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
        needed: Role,
        now: Timestamp,
    ) -> Result<Actor, Refusal> {
        let source = peer.map(|address| address.to_canonical());
        let tokens = self.tokens.load();
        let Some(tokens) = tokens.as_ref() else {
            return match refuse_remote(headers, source) {
                None => Ok(Actor { name: "local".to_owned(), role: Role::Admin, source }),
                Some(message) => Err(self.refuse(Why::Remote, Code::Forbidden, message)),
            };
        };
        let client = source.map(|address| address::grouped(address, IPV6_PREFIX));
        if self.is_guessing(client, now) {
            let message = "too many wrong tokens from this address: wait a minute";
            return Err(self.refuse(Why::Guessing, Code::TooManyAttempts, message));
        }
        let Some(token) = bearer(headers) else {
            let message = "this route needs a token: send Authorization: Bearer TOKEN (`tidegate admin token` makes one)";
            return Err(self.refuse(Why::Token, Code::Unauthorized, message));
        };
        let Some((name, role)) = tokens.find(token) else {
            self.failed(client, now);
            return Err(self.refuse(Why::Token, Code::Unauthorized, "this token is not known"));
        };
        if role < needed {
            let message = "this token's role may not do that: it needs role operator or admin";
            let message = if needed == Role::Admin {
                "this token's role may not do that: it needs role admin"
            } else {
                message
            };
            return Err(self.refuse(Why::Role, Code::Forbidden, message));
        }
        Ok(Actor { name: name.to_owned(), role, source })
    }

    fn refuse(&self, why: Why, code: Code, message: &'static str) -> Refusal {
        if let Some(counter) = self.refused.0.get(why as usize) {
            counter.increment(1);
        }
        Refusal::new(code, message)
    }

    fn is_guessing(&self, client: Option<IpAddr>, now: Timestamp) -> bool {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |client| failures.get(&client).is_some_and(|known: &Failures| known.is_guessing(now));
        of(client) || (failures.len() >= CLIENTS_MAX && !failures.contains_key(&client) && of(None))
    }

    fn failed(&self, client: Option<IpAddr>, now: Timestamp) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= CLIENTS_MAX && !failures.contains_key(&client) {
            failures.retain(|_, known| now.since(known.since) <= FAILURES_WINDOW);
        }
        let client =
            if failures.len() < CLIENTS_MAX || failures.contains_key(&client) { client } else { None };
        let known = failures.entry(client).or_insert(Failures { since: now, count: 0 });
        if now.since(known.since) > FAILURES_WINDOW {
            *known = Failures { since: now, count: 0 };
        }
        known.count = known.count.saturating_add(1);
    }
}

impl Failures {
    fn is_guessing(&self, now: Timestamp) -> bool {
        self.count >= FAILURES_MAX && now.since(self.since) <= FAILURES_WINDOW
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

/// Why a request without any token is not from an operator at this machine; `None` if it is.
///
/// A request that a proxy passed on is not, and neither is one that a page of a foreign site made a local browser send.
fn refuse_remote(headers: &HeaderMap, source: Option<IpAddr>) -> Option<&'static str> {
    const FORWARDED: [HeaderName; 2] = [http::header::FORWARDED, HeaderName::from_static("x-forwarded-for")];
    if source.is_some_and(|address| !address.is_loopback()) {
        return Some(
            "without configured tokens the admin routes answer only on this machine: set admin.tokens",
        );
    }
    if FORWARDED.iter().any(|name| headers.contains_key(name)) {
        return Some(
            "without configured tokens the admin routes do not answer through a proxy: set admin.tokens",
        );
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if source.is_some() && !is_this_machine(host) {
        return Some(
            "without configured tokens the admin routes answer only to localhost or an address: set admin.tokens",
        );
    }
    let origin = headers.get(ORIGIN)?;
    let own = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"))
        .is_some_and(|(_, from)| from == host);
    (!own).then_some("the admin routes do not answer pages of other sites")
}

/// Whether a browser that asked this host cannot have been led here by a foreign name: those have dots.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    !name.contains('.') || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::super::tokens::make;
    use super::*;

    const LOCAL: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    const REMOTE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 7)));

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn code(answer: Result<Actor, Refusal>) -> Code {
        answer.unwrap_err().code
    }

    #[test]
    fn without_tokens_only_this_machine_is_let_in() {
        let guard = Guard::new(None, &Metrics::new());
        let ask = |lines: &[(&'static str, &str)], peer| {
            guard.admit(&headers(lines), peer, Role::Admin, Timestamp(0))
        };
        assert_eq!(ask(&[("host", "127.0.0.1:8080")], LOCAL).unwrap().name, "local");
        assert!(ask(&[("host", "localhost:8080"), ("origin", "http://localhost:8080")], LOCAL).is_ok());
        assert!(ask(&[("host", "[::1]:8080")], Some("::1".parse().unwrap())).is_ok());
        assert!(ask(&[("host", "anything")], None).is_ok());
        assert!(ask(&[], Some("::ffff:127.0.0.1".parse().unwrap())).is_ok());
        assert_eq!(code(ask(&[], REMOTE)), Code::Forbidden);
        assert_eq!(code(ask(&[("x-forwarded-for", "127.0.0.1")], LOCAL)), Code::Forbidden);
        assert_eq!(code(ask(&[("host", "evil.example")], LOCAL)), Code::Forbidden);
        assert_eq!(
            code(ask(&[("host", "localhost:8080"), ("origin", "https://evil.example")], LOCAL)),
            Code::Forbidden
        );
        assert_eq!(code(ask(&[("host", "localhost"), ("origin", "null")], LOCAL)), Code::Forbidden);
    }

    #[test]
    fn a_token_opens_what_its_role_may_and_no_more() {
        let made = make("ops", Role::Operator).unwrap();
        let guard = Guard::new(Some(Tokens::from_toml("t", &made.entry).unwrap()), &Metrics::new());
        let ask = |value: &str, role| {
            guard.admit(&headers(&[("authorization", value)]), REMOTE, role, Timestamp(0))
        };
        let bearer = format!("Bearer {}", made.token);
        let actor = ask(&bearer, Role::Operator).unwrap();
        assert_eq!((actor.name.as_str(), actor.role, actor.source), ("ops", Role::Operator, REMOTE));
        assert_eq!(code(ask(&bearer, Role::Admin)), Code::Forbidden);
        assert_eq!(code(ask("Bearer nothing", Role::Viewer)), Code::Unauthorized);
        assert_eq!(code(ask(&made.token, Role::Viewer)), Code::Unauthorized);
        // With tokens, being local is not enough.
        assert_eq!(code(guard.admit(&headers(&[]), LOCAL, Role::Viewer, Timestamp(0))), Code::Unauthorized);
    }

    #[test]
    fn whoever_guesses_is_not_listened_to_for_a_minute() {
        let made = make("ops", Role::Admin).unwrap();
        let guard = Guard::new(Some(Tokens::from_toml("t", &made.entry).unwrap()), &Metrics::new());
        let right = format!("Bearer {}", made.token);
        let ask = |value: &str, peer, second: u64| {
            guard.admit(
                &headers(&[("authorization", value)]),
                peer,
                Role::Viewer,
                Timestamp(second * 1_000_000),
            )
        };
        for _ in 0..FAILURES_MAX {
            assert_eq!(code(ask("Bearer guess", REMOTE, 1)), Code::Unauthorized);
        }
        assert_eq!(code(ask(&right, REMOTE, 2)), Code::TooManyAttempts);
        assert!(ask(&right, LOCAL, 2).is_ok(), "others are not held to it");
        assert!(ask(&right, REMOTE, 62).is_ok());
    }

    #[test]
    fn guesses_from_everywhere_stay_bounded() {
        let made = make("ops", Role::Admin).unwrap();
        let guard = Guard::new(Some(Tokens::from_toml("t", &made.entry).unwrap()), &Metrics::new());
        let ask = |value: &str, n: u32| {
            let peer = Some(IpAddr::from(n.to_be_bytes()));
            guard.admit(&headers(&[("authorization", value)]), peer, Role::Viewer, Timestamp(0))
        };
        let many = u32::try_from(CLIENTS_MAX).unwrap() + 100;
        (0..many).for_each(|n| assert!(ask("Bearer guess", n).is_err()));
        assert!(guard.failures.lock().unwrap().len() <= CLIENTS_MAX + 1);
        assert_eq!(code(ask("Bearer guess", many + 1)), Code::TooManyAttempts);
    }
}
