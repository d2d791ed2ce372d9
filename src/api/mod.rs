//! What answers: Envoy's rate limit service over gRPC, and checks, forward-auth and a view of the daemon over HTTP.
//!
//! A door reads bytes, makes a [`crate::core::request::Request`] of them or a refusal, asks the engine once and writes
//! the answer. It decides nothing itself. Both doors share [`Doors`]; [`serve_http`] and [`serve_grpc`] run one listener
//! each until they are told to drain. Status codes are named only in `error`, Envoy's messages only in `rls`.

mod address;
mod admin;
mod asker;
mod connection;
mod error;
mod headers;
mod http;
mod listener;
mod openapi;
mod rls;
pub mod token;

pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::token::TokenReader;
use crate::engine::Engine;

pub use admin::{Admin, Guard, Made, RuleJson, Tokens, make_token};
pub use http::fingerprint;
pub use listener::Listener;
pub use openapi::openapi_json;

/// What an operator may set of the doors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How many hops of `X-Forwarded-For`, from the right, our own proxies wrote: the client is the leftmost of them.
    /// Zero reads no header and takes the peer's address.
    pub trusted_proxies: u8,
    /// Addresses of IPv6 that share this many leading bits are one client.
    pub ipv6_prefix: u8,
    /// Longest body of an HTTP request and longest gRPC message, in bytes. Longer ones are refused.
    pub body_bytes_max: usize,
    /// Most open connections of one door. One more is closed at once and counted.
    pub connections_max: usize,
    /// How long a draining door waits for what is in flight before it closes the connections.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            trusted_proxies: 1,
            ipv6_prefix: 64,
            body_bytes_max: 1 << 20,
            connections_max: 10_000,
            drain: Duration::from_secs(8),
        }
    }
}

/// Whether gateways should ask this daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readiness {
    /// Not yet: it has no rules or no peers so far.
    #[default]
    Starting,
    /// Yes.
    Serving,
    /// No longer: it answers what still comes while it shuts down.
    Draining,
}

/// What every door of one daemon shares.
pub struct Doors {
    engine: Arc<Engine>,
    settings: Settings,
    readiness: watch::Receiver<Readiness>,
    admin: Admin,
    tokens: Option<Arc<TokenReader>>,
    http: Gate,
    rls: Gate,
    others: rls::Others,
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doors").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The counters of one door, and the room it has for bodies that arrive in pieces.
struct Gate {
    rejected: Counter,
    connections: Gauge,
    connections_refused: Counter,
    budget: connection::Budget,
}

impl Gate {
    fn new(engine: &Engine, door: &'static str) -> Self {
        let metrics = engine.metrics();
        Self {
            rejected: metrics.counter("requests_rejected_total", "door", door),
            connections: metrics.gauge("connections", "door", door),
            connections_refused: metrics.counter("connections_refused_total", "door", door),
            budget: connection::Budget::default(),
        }
    }
}

impl Doors {
    /// Doors to this engine. `readiness` is what `/readyz` and gRPC health tell, as long as its sender lives and after;
    /// `admin` is what the admin routes work with.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        settings: Settings,
        readiness: watch::Receiver<Readiness>,
        admin: Admin,
    ) -> Self {
        let (http, rls) = (Gate::new(&engine, "http"), Gate::new(&engine, "rls"));
        let others = rls::Others::new(&readiness);
        Self { engine, settings, readiness, admin, tokens: None, http, rls, others }
    }

    /// The same doors, which check JSON web tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<TokenReader>) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    fn readiness(&self) -> Readiness {
        *self.readiness.borrow()
    }
}

/// Serves the HTTP door on this listener until `shutdown`, then finishes what is in flight for at most
/// [`Settings::drain`] and returns. A Unix socket's file is gone afterwards.
pub async fn serve_http(listener: Listener, doors: Arc<Doors>, shutdown: CancellationToken) {
    listener::serve(listener, doors, |doors| &doors.http, http::connection, shutdown).await;
}

/// Serves the gRPC door on this listener until `shutdown`, like [`serve_http`].
pub async fn serve_grpc(listener: Listener, doors: Arc<Doors>, shutdown: CancellationToken) {
    listener::serve(listener, doors, |doors| &doors.rls, rls::connection, shutdown).await;
}
