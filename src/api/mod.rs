//! The servers: Envoy's and Kuadrant's rate limit services over gRPC; checks, forward-auth and a view of the
//! daemon over HTTP; the Redis protocol.
//!
//! A server reads bytes, makes a [`crate::core::request::Request`] of them or a refusal, asks the engine once
//! and writes the answer. It decides nothing itself. Both share [`Servers`]; [`serve_http`] and
//! [`serve_grpc`] run one listener each until they are told to drain. Status codes are named only in `error`,
//! Envoy's messages only in `rls`.

mod address;
mod admin;
mod client_identity;
mod client_names;
mod connection;
mod console;
mod credentials;
mod delivering_socket;
mod delivery;
mod error;
mod frames;
#[cfg(feature = "fuzzing")]
pub mod fuzzed;
mod headers;
mod http;
mod json_object;
mod listener;
mod made_once;
mod openapi;
mod places;
mod problem;
mod query;
mod ready;
mod reply;
mod resp;
mod rls;
#[cfg(test)]
mod schema;
mod signing_schemes;
mod stand_in;
mod tls;
pub mod token;
mod traces;
mod unsent_bytes;

pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::Counter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::token::TokenReader;
use crate::core::uri::Origin;
use crate::engine::Engine;

pub use admin::{Admin, Guard, Made, RuleJson, Tokens, make_token};
pub use credentials::CredentialHeaders;
pub use listener::Listener;
pub use openapi::openapi_json;
pub use resp::{Passwords, RespState};
pub use rls::service::Service;
pub use tls::{Inside, ListenerPem, ListenerTls, ListenerTlsError};

/// Most connections of the admin socket, and of the listener for those who watch.
const FEW_CONNECTIONS_MAX: usize = 64;
/// Explanations that are made at the same time. One looks at every rule of a domain.
const EXPLAINING_MAX: usize = 2;

/// The settings of the servers that an operator may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Hops of `X-Forwarded-For`, from the right, that our own proxies wrote: the client is the leftmost of
    /// them. Zero reads no header and takes the peer's address.
    pub trusted_proxies: u8,
    /// Addresses of IPv6 that share this many leading bits share a bucket.
    pub ipv6_prefix: u8,
    /// The headers in which clients show credentials.
    pub credentials: CredentialHeaders,
    /// True if paths and hosts are brought into one form before rules see them.
    pub normalize: bool,
    /// Habits of the origin in reading paths, if these are brought into one form.
    pub origin: Origin,
    /// True if the audit log is told paths as clients sent them, queries included.
    pub record_queries: bool,
    /// Longest body of an HTTP request and longest gRPC message, in bytes. Longer ones are refused.
    pub body_bytes_max: usize,
    /// Most open connections of one listener. A full listener closes its longest idle connection for a new
    /// one.
    pub connections_max: usize,
    /// Most open connections of one client address, loopback excepted; 0: any number.
    pub address_connections_max: usize,
    /// True if HTTP clients may give back with a negative cost.
    pub http_refunds: bool,
    /// Time that a listener that has stopped waits for what is in flight before it closes the connections.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            trusted_proxies: 1,
            ipv6_prefix: 64,
            credentials: CredentialHeaders::default(),
            normalize: true,
            origin: Origin::Any,
            record_queries: false,
            body_bytes_max: 1 << 20,
            connections_max: 10_000,
            address_connections_max: 0,
            http_refunds: true,
            drain: Duration::from_secs(8),
        }
    }
}

/// True if gateways should ask this daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readiness {
    /// Not yet: it has no rules or no peers so far.
    #[default]
    Starting,
    /// Yes.
    Serving,
    /// Not now: a background task is missing. It answers what comes all the same.
    Impaired,
    /// No longer: it answers what still comes while it shuts down.
    Draining,
}

/// The state that all servers of one daemon share.
pub struct Servers {
    engine: Arc<Engine>,
    settings: ArcSwap<Settings>,
    readiness: watch::Receiver<Readiness>,
    admin: Admin,
    tokens: Option<Arc<TokenReader>>,
    http: ListenerLimits,
    rls: ListenerLimits,
    resp: ListenerLimits,
    /// There where the Redis protocol is served.
    resp_state: Option<RespState>,
    /// There where the daemon stands in for Envoy's rate limit service.
    service: Option<Arc<Service>>,
    owner: ListenerLimits,
    watching: ListenerLimits,
    metrics_text: made_once::MadeOnce<()>,
    /// The rules as text, made once for each revision of them.
    rules_text: made_once::MadeOnce<u64>,
    explaining: Arc<tokio::sync::Semaphore>,
    streams: Arc<admin::stream_places::StreamPlaces>,
    others: rls::Others,
    quotas: rls::QuotaStreams,
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Servers").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The counters of one listener, and the room that it has: for connections, for bodies that arrive in pieces,
/// for answers that are not read.
struct ListenerLimits {
    rejected: Counter,
    handshakes_failed: Counter,
    places: Arc<places::Places>,
    budget: connection::Budget,
    unsent: unsent_bytes::ListenerUnsent,
}

impl ListenerLimits {
    fn new(engine: &Engine, settings: &Settings, listener: &'static str) -> Self {
        let metrics = engine.metrics();
        let (max, address_max) = (settings.connections_max, settings.address_connections_max);
        Self {
            rejected: metrics.counter("requests_rejected_total", "listener", listener),
            handshakes_failed: metrics.counter("tls_handshakes_failed_total", "listener", listener),
            places: places::Places::new(listener, max, address_max, metrics),
            budget: connection::Budget::default(),
            unsent: unsent_bytes::ListenerUnsent::default(),
        }
    }
}

impl Servers {
    /// Servers that ask this engine. `readiness` is what `/readyz` and gRPC health tell, as long as its
    /// sender lives and after; `admin` is what the admin routes work with.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        settings: Settings,
        readiness: watch::Receiver<Readiness>,
        admin: Admin,
    ) -> Self {
        let (http, rls) =
            (ListenerLimits::new(&engine, &settings, "http"), ListenerLimits::new(&engine, &settings, "rls"));
        let resp = ListenerLimits::new(&engine, &settings, "resp");
        let few = Settings { connections_max: FEW_CONNECTIONS_MAX, ..settings.clone() };
        let owner = ListenerLimits::new(&engine, &few, "admin");
        let watching = ListenerLimits::new(&engine, &few, "metrics");
        let explaining = Arc::new(tokio::sync::Semaphore::new(EXPLAINING_MAX));
        let streams = Arc::default();
        let others = rls::Others::new(&readiness, engine.metrics());
        let quotas = rls::QuotaStreams::new(engine.metrics());
        Self {
            engine,
            settings: ArcSwap::from_pointee(settings),
            readiness,
            admin,
            tokens: None,
            http,
            rls,
            resp,
            resp_state: None,
            service: None,
            owner,
            watching,
            metrics_text: made_once::MadeOnce::default(),
            rules_text: made_once::MadeOnce::default(),
            explaining,
            streams,
            others,
            quotas,
        }
    }

    /// Requests are read by these settings from now on. Connections and bodies keep the bounds that there
    /// were at the start.
    pub fn set_settings(&self, change: impl Fn(&mut Settings)) {
        self.settings.rcu(|before| {
            let mut after = Settings::clone(before);
            change(&mut after);
            after
        });
    }

    /// The settings in force.
    fn settings(&self) -> arc_swap::Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// The same servers, which check JSON web tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<TokenReader>) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    /// The same servers, which speak the Redis protocol as well.
    #[must_use]
    pub fn with_resp(self, state: RespState) -> Self {
        Self { resp_state: Some(state), ..self }
    }

    /// The same servers, which answer as Envoy's own rate limit service does.
    #[must_use]
    pub fn with_service(self, service: Arc<Service>) -> Self {
        Self { service: Some(service), ..self }
    }

    /// Refuses to decide before the first set of rules: "allowed" would be a guess, and the gateway's own
    /// setting for a service that fails is its operator's answer.
    fn knows_rules(&self) -> Result<(), error::Refusal> {
        if self.engine.awaits_rules() {
            let message = "no rules are known yet: PostgreSQL gives none, and none were saved";
            return Err(error::Refusal::new(error::Code::NotReady, message));
        }
        Ok(())
    }

    /// Gives all answers that are held back at once, and holds none from now on.
    pub fn release_held(&self) {
        self.engine.release_held();
    }

    /// Returns how many connections are open, at all listeners.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.http.places.len() + self.rls.places.len() + self.resp.places.len()
    }

    fn readiness(&self) -> Readiness {
        *self.readiness.borrow()
    }
}

/// The end of listeners: first they ask clients to go elsewhere, then they stop.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// From now on every HTTP answer is the last of its connection, and gRPC clients are told to open no
    /// further calls. Connections are still accepted and everything is answered.
    pub closing: CancellationToken,
    /// Connections are no longer accepted; what is in flight is finished.
    pub stop: CancellationToken,
}

/// Serves HTTP on this listener until it is stopped, then finishes what is in flight for at most
/// [`Settings::drain`] and returns. A Unix socket's file is gone afterwards.
pub async fn serve_http(listener: impl Into<Arc<Listener>>, servers: Arc<Servers>, shutdown: Shutdown) {
    listener::serve(listener.into(), servers, |servers| &servers.http, http::connection, shutdown).await;
}

/// Serves HTTP on the admin socket, on which the user of the daemon needs no token.
pub async fn serve_owner(listener: impl Into<Arc<Listener>>, servers: Arc<Servers>, shutdown: Shutdown) {
    listener::serve(listener.into(), servers, |servers| &servers.owner, http::connection, shutdown).await;
}

/// Serves metrics and health on this listener, and nothing else.
pub async fn serve_metrics(listener: impl Into<Arc<Listener>>, servers: Arc<Servers>, shutdown: Shutdown) {
    listener::serve(listener.into(), servers, |servers| &servers.watching, http::watching, shutdown).await;
}

/// Serves gRPC on this listener until it is stopped, like [`serve_http`].
pub async fn serve_grpc(listener: impl Into<Arc<Listener>>, servers: Arc<Servers>, shutdown: Shutdown) {
    let of_listener = Arc::clone(&servers);
    let served =
        listener::serve(listener.into(), of_listener, |servers| &servers.rls, rls::connection, shutdown);
    tokio::select! {
        () = served => {}
        () = rls::turn_quota_windows(&servers) => {}
    }
}

/// Serves the Redis protocol on this listener until it is stopped, like [`serve_http`].
pub async fn serve_resp(listener: impl Into<Arc<Listener>>, servers: Arc<Servers>, shutdown: Shutdown) {
    listener::serve(listener.into(), servers, |servers| &servers.resp, resp::connection, shutdown).await;
}
