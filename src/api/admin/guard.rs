//! Admission to the admin routes: for the holders of tokens, and the user of the daemon on a socket that only
//! that user can open.
//!
//! A client from loopback may be anybody: proxies, sidecars and other users come from there. Without
//! configured tokens they may look.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use metrics::Counter;

use super::tokens::Tokens;
use crate::api::address;
use crate::api::error::{Code, Refusal};
use crate::api::listener::Peer;
use crate::core::time::{Span, Timestamp};
use crate::engine::admin::{Actor, Role};
use crate::telemetry::Metrics;

/// Wrong tokens that one client may try in [`FAILURES_WINDOW`]; further wrong ones are answered with 429. A
/// right token is never held to what others tried: it has 256 random bits, so there is nothing to guess, and
/// many may share an address.
const FAILURES_MAX: u32 = 10;
/// Wrong tokens that are logged one by one in [`FAILURES_WINDOW`]; the rest are a number.
const LOGGED_MAX: u32 = 5;
const FAILURES_WINDOW: Span = Span::from_secs(60);
/// Clients whose failures are remembered. Full: those whose time is up are forgotten; if there are none, all
/// new clients count as one.
const CLIENTS_MAX: usize = 4_096;
/// Clients of IPv6 are told apart by this many leading bits.
const IPV6_PREFIX: u8 = 64;

/// Lets in who may, and slows down who guesses.
#[derive(Debug)]
pub struct Guard {
    /// `None` while no tokens are configured; clients from loopback may look then.
    tokens: ArcSwapOption<Tokens>,
    failures: Mutex<HashMap<Option<IpAddr>, Failures>>,
    logged: Mutex<Logged>,
    refused: Refused,
    /// True if loopback may do everything.
    local: bool,
    /// The path of the socket on which the daemon's own user is let in.
    socket: Option<String>,
}

/// Counts of wrong tokens that were logged, and since when.
#[derive(Debug, Default)]
struct Logged {
    since: Option<Timestamp>,
    lines: u32,
    silent: u64,
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
    /// A guard that knows these tokens; `None`: only this machine may ask, and only look.
    #[must_use]
    pub fn new(tokens: Option<Tokens>, metrics: &Metrics) -> Self {
        let counter = |why| metrics.counter("admin_refused_total", "reason", why);
        Self {
            tokens: ArcSwapOption::from_pointee(tokens),
            failures: Mutex::default(),
            logged: Mutex::default(),
            refused: Refused(["token", "role", "remote", "guessing"].map(counter)),
            local: false,
            socket: None,
        }
    }

    /// The same; `local`: whoever comes from loopback may do everything. `socket`: where the daemon's own
    /// user is let in.
    #[must_use]
    pub fn with(self, local: bool, socket: Option<String>) -> Self {
        Self { local, socket, ..self }
    }

    /// Replaces the tokens.
    pub fn set(&self, tokens: Tokens) {
        self.tokens.store(Some(tokens.into()));
    }

    /// Returns who asks, if it may do what needs this role.
    pub(in crate::api) fn admit(
        &self,
        headers: &HeaderMap,
        peer: Peer,
        needed: Role,
        now: Timestamp,
    ) -> Result<Actor, Refusal> {
        let source = peer.address.map(|address| address.to_canonical());
        let tokens = self.tokens.load();
        let local = |role| Actor { name: "local".to_owned(), role, source };
        let shown = bearer(headers);
        let Some(tokens) = tokens.as_ref().filter(|_| shown.is_some() || !(peer.is_owner || self.local))
        else {
            if let Some(message) = refuse_remote(headers, source) {
                return Err(self.refuse(Why::Remote, Code::Forbidden, message));
            }
            let role = if peer.is_owner || self.local { Role::Admin } else { Role::Viewer };
            if role < needed {
                return Err(self.refuse(Why::Remote, Code::Forbidden, self.only_look()));
            }
            return Ok(local(role));
        };
        let client = source.map(|address| address::grouped(address, IPV6_PREFIX));
        let Some(token) = shown else {
            let message = "this route needs a token: --token or TIDEGATE_TOKEN for the command line, \
                           Authorization: Bearer TOKEN over HTTP (`tidegate admin token` makes one)";
            return Err(self.refuse(Why::Token, Code::Unauthorized, message));
        };
        let Some((name, role)) = tokens.find(token) else {
            let guessing = self.is_guessing(client, now);
            self.failed(client, now);
            self.log(client, now);
            return Err(if guessing {
                let message = "too many wrong tokens from this address: wait a minute";
                self.refuse(Why::Guessing, Code::TooManyAttempts, message)
            } else {
                let message = "this token is not known: check --token or TIDEGATE_TOKEN";
                self.refuse(Why::Token, Code::Unauthorized, message)
            });
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

    /// Returns how to get in to change something.
    fn only_look(&self) -> String {
        let socket = self.socket.as_deref().and_then(|socket| socket.strip_prefix("unix:")).map_or_else(
            || "set listen.admin to a socket of the daemon's user".to_owned(),
            |path| {
                format!("as the daemon's user the command line finds {path} by itself (curl: --unix-socket {path})")
            },
        );
        format!(
            "without a token a client on this machine may only look. To change something: {socket}, or configure \
             admin.tokens and show one (--token)"
        )
    }

    fn refuse(&self, why: Why, code: Code, message: impl Into<Cow<'static, str>>) -> Refusal {
        if let Some(counter) = self.refused.0.get(why as usize) {
            counter.increment(1);
        }
        Refusal::new(code, message)
    }

    /// Says who tries wrong tokens, a few times a minute.
    fn log(&self, client: Option<IpAddr>, now: Timestamp) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.since.is_none_or(|since| now.since(since) > FAILURES_WINDOW) {
            let silent = std::mem::take(&mut logged.silent);
            *logged = Logged { since: Some(now), ..Logged::default() };
            if silent > 0 {
                tracing::warn!(tokens = silent, "further wrong admin tokens were shown since the last line");
            }
        }
        if logged.lines >= LOGGED_MAX {
            logged.silent += 1;
            return;
        }
        logged.lines += 1;
        let from = client.map_or_else(|| "a Unix socket".to_owned(), |address| address.to_string());
        tracing::warn!(%from, "a wrong admin token was shown");
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

/// Returns why a request without any token is not from an operator at this machine; `None` if it is.
///
/// A request that a proxy passed on is not, and neither is one that a page of a foreign site made a local
/// browser send.
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

/// True if a browser that asked this host cannot have been led here by a foreign name: those have dots.
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

    const LOCAL: Peer = at([127, 0, 0, 1]);
    const REMOTE: Peer = at([203, 0, 113, 7]);
    const SOCKET: Peer = Peer { address: None, is_owner: false };
    const OWNER: Peer = Peer { address: None, is_owner: true };

    const fn at([a, b, c, d]: [u8; 4]) -> Peer {
        Peer { address: Some(IpAddr::V4(std::net::Ipv4Addr::new(a, b, c, d))), is_owner: false }
    }

    fn of(text: &str) -> Peer {
        Peer { address: text.parse().ok(), is_owner: false }
    }

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
    fn without_tokens_this_machine_may_look_and_only_the_owner_may_change() {
        let guard = Guard::new(None, &Metrics::new()).with(false, Some("unix:/run/a.sock".to_owned()));
        let ask = |lines: &[(&'static str, &str)], peer, role| {
            guard.admit(&headers(lines), peer, role, Timestamp(0))
        };
        let look = |lines: &[(&'static str, &str)], peer| ask(lines, peer, Role::Viewer);
        assert_eq!(look(&[("host", "127.0.0.1:8080")], LOCAL).unwrap().role, Role::Viewer);
        assert!(look(&[("host", "localhost:8080"), ("origin", "http://localhost:8080")], LOCAL).is_ok());
        assert!(look(&[("host", "[::1]:8080")], of("::1")).is_ok());
        assert!(look(&[("host", "anything")], SOCKET).is_ok());
        assert!(look(&[], of("::ffff:127.0.0.1")).is_ok());
        assert_eq!(code(look(&[], REMOTE)), Code::Forbidden);
        assert_eq!(code(look(&[("x-forwarded-for", "127.0.0.1")], LOCAL)), Code::Forbidden);
        assert_eq!(code(look(&[("host", "evil.example")], LOCAL)), Code::Forbidden);
        let foreign = [("host", "localhost:8080"), ("origin", "https://evil.example")];
        assert_eq!(code(look(&foreign, LOCAL)), Code::Forbidden);
        assert_eq!(code(look(&[("host", "localhost"), ("origin", "null")], LOCAL)), Code::Forbidden);

        let host = [("host", "127.0.0.1:8080")];
        for peer in [LOCAL, SOCKET] {
            let refused = ask(&host, peer, Role::Operator).unwrap_err();
            assert_eq!(refused.code, Code::Forbidden);
            assert!(refused.message.contains("/run/a.sock"), "{}", refused.message);
        }
        let owner = ask(&host, OWNER, Role::Admin).unwrap();
        assert_eq!((owner.name.as_str(), owner.role), ("local", Role::Admin));
        assert_eq!(code(ask(&[("x-forwarded-for", "192.0.2.1")], OWNER, Role::Viewer)), Code::Forbidden);
    }

    #[test]
    fn loopback_may_change_only_where_that_was_asked_for() {
        let made = make("ops", Role::Admin).unwrap();
        let tokens = || Tokens::from_toml("t", &made.entry).unwrap();
        for tokens in [None, Some(tokens())] {
            let guard = Guard::new(tokens, &Metrics::new()).with(true, None);
            let ask = |peer| guard.admit(&headers(&[]), peer, Role::Admin, Timestamp(0));
            assert_eq!(ask(LOCAL).unwrap().name, "local");
            assert!(ask(REMOTE).is_err());
        }
        let guard = Guard::new(Some(tokens()), &Metrics::new());
        assert_eq!(guard.admit(&headers(&[]), OWNER, Role::Admin, Timestamp(0)).unwrap().name, "local");
        let wrong = headers(&[("authorization", "Bearer wrong")]);
        assert_eq!(code(guard.admit(&wrong, OWNER, Role::Viewer, Timestamp(0))), Code::Unauthorized);
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
        assert_eq!((actor.name.as_str(), actor.role, actor.source), ("ops", Role::Operator, REMOTE.address));
        assert_eq!(code(ask(&bearer, Role::Admin)), Code::Forbidden);
        assert_eq!(code(ask("Bearer nothing", Role::Viewer)), Code::Unauthorized);
        assert_eq!(code(ask(&made.token, Role::Viewer)), Code::Unauthorized);
        // With tokens, being local is not enough.
        assert_eq!(code(guard.admit(&headers(&[]), LOCAL, Role::Viewer, Timestamp(0))), Code::Unauthorized);
    }

    #[test]
    fn wrong_tokens_are_slowed_down_and_the_right_one_never_is() {
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
        assert_eq!(code(ask("Bearer guess", REMOTE, 2)), Code::TooManyAttempts);
        assert!(ask(&right, REMOTE, 2).is_ok(), "it is no guess");
        assert_eq!(code(ask("Bearer guess", LOCAL, 2)), Code::Unauthorized, "others are not held to it");
        assert_eq!(
            code(ask("Bearer guess", REMOTE, 62)),
            Code::Unauthorized,
            "after a minute it begins anew"
        );
        for _ in 0..=FAILURES_MAX {
            assert!(ask("Bearer guess", SOCKET, 70).is_err());
        }
        assert!(ask(&right, SOCKET, 70).is_ok(), "all peers of a Unix socket are one client");
    }

    #[test]
    fn guesses_from_everywhere_stay_bounded() {
        let made = make("ops", Role::Admin).unwrap();
        let guard = Guard::new(Some(Tokens::from_toml("t", &made.entry).unwrap()), &Metrics::new());
        let ask = |value: &str, n: u32| {
            let peer = at(n.to_be_bytes());
            guard.admit(&headers(&[("authorization", value)]), peer, Role::Viewer, Timestamp(0))
        };
        let many = u32::try_from(CLIENTS_MAX).unwrap() + 100;
        (0..many).for_each(|n| assert!(ask("Bearer guess", n).is_err()));
        assert!(guard.failures.lock().unwrap().len() <= CLIENTS_MAX + 1);
        assert_eq!(code(ask("Bearer guess", many + 1)), Code::TooManyAttempts);
    }
}
