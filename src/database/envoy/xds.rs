//! Rules from a server of xDS: one stream, on which the server sends the whole state whenever it changes.
//!
//! Each answer is accepted or refused as a whole, and the server is told which. The last accepted answer
//! stays in force while the server is away; a new stream begins with its version.

pub(super) mod messages;

use std::hash::{BuildHasher as _, Hasher as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Ping, PingPong, RecvStream, SendStream};
use http::{HeaderMap, Request};
use prost::Message as _;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use self::messages::{
    DiscoveryRequest, DiscoveryResponse, ProtoStruct, RateLimitConfig, RpcStatus, TYPE_URL, XdsNode,
};
use super::service::rules_of_messages;
use crate::core::envoy::ServiceRules;
use crate::engine::clock::Stopwatch;
use crate::engine::names;

const STREAM: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// Time that a connection may take to open, TLS and HTTP/2 included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Time after which a server that says nothing is asked whether it is there, and the time it may take to say
/// so.
const PING_EVERY: Duration = Duration::from_secs(20);
/// A stream that lived so long was a good one: the next one waits no longer than the first did.
const GOOD_STREAM: Duration = Duration::from_secs(60);
/// Flag and length before a message.
const PREFIX_BYTES: usize = 5;
/// Bytes that a server may send ahead.
const WINDOW_BYTES: u32 = 1 << 20;
/// `INVALID_ARGUMENT`, with which an answer is refused.
const INVALID_ARGUMENT: i32 = 3;
/// Longest sentence that a server is told.
const DETAIL_CHARS_MAX: usize = 4_000;

/// Makes the TLS of one connection, of files as they are then.
pub type MakeTls = Arc<dyn Fn() -> Result<Arc<ClientConfig>, String> + Send + Sync>;

/// The server that is asked for rules, and how.
#[derive(Clone)]
pub struct XdsSettings {
    /// Address of the xDS server, as `host:port`.
    pub server: String,
    /// TLS, with the name that the server's certificate must have where that is not its host.
    pub tls: Option<(MakeTls, Option<String>)>,
    /// Name by which this daemon asks the server for its resources.
    pub node: String,
    /// Facts about this daemon that the server is told besides.
    pub metadata: Vec<(String, String)>,
    /// Headers that are sent with the stream besides gRPC's own, by name and value.
    pub headers: Vec<(String, String)>,
    /// Longest message that is accepted from the server, in bytes.
    pub message_bytes_max: usize,
    /// Wait before a connection is tried again that did not open.
    pub connect_retry: Duration,
    /// First and longest wait before a stream that ended is opened again.
    pub backoff: (Duration, Duration),
    /// By which part of itself a wait is longer or shorter by chance.
    pub jitter: f64,
    /// True if one domain may stand in several resources.
    pub merge: bool,
    /// File that keeps the last rules, to start from while the server is away.
    pub saved: PathBuf,
}

impl std::fmt::Debug for XdsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdsSettings").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Reasons why no rules come just now.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error("{0}")]
    NotOpen(String),
    #[error("{0}")]
    Ended(String),
}

fn ended(error: impl std::fmt::Display) -> StreamEnd {
    StreamEnd::Ended(error.to_string())
}

/// Puts rules in force; an error refuses them.
pub type Accept = dyn Fn(ServiceRules) -> Result<(), String> + Send + Sync;

/// The fate of rules that came by xDS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XdsNews {
    /// They are in force.
    Accepted,
    /// They were refused, and why.
    Refused(String),
    /// None come, and why.
    Away(String),
}

/// Follows one server.
pub struct XdsClient {
    settings: XdsSettings,
    accept: Box<Accept>,
    tell: Box<dyn Fn(XdsNews) + Send + Sync>,
    /// The version and the nonce of the last answers, kept from one stream to the next.
    last: std::sync::Mutex<(String, String)>,
    /// True once it was said that nothing is kept.
    unsaved: AtomicBool,
}

impl std::fmt::Debug for XdsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdsClient").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl XdsClient {
    /// A client that has these rules accepted, and tells how it goes.
    #[must_use]
    pub fn new(settings: XdsSettings, accept: Box<Accept>, tell: Box<dyn Fn(XdsNews) + Send + Sync>) -> Self {
        let (last, unsaved) = (std::sync::Mutex::default(), AtomicBool::new(false));
        Self { settings, accept, tell, last, unsaved }
    }

    /// Puts the rules in force that were kept last, if there are any. Blocks.
    ///
    /// The server is asked for the newest all the same: its versions may have begun anew.
    pub fn restore(&self) {
        let saved = &self.settings.saved;
        let Ok(bytes) = std::fs::read(saved) else { return };
        let answer = DiscoveryResponse::decode(&*bytes).map_err(|error| error.to_string());
        match answer.and_then(|answer| self.accept(&answer)) {
            Ok(domains) => {
                tracing::info!(file = %saved.display(), domains, "rules that came by xDS before are in force");
            }
            Err(why) => tracing::warn!(file = %saved.display(), "the rules that were kept are no use: {why}"),
        }
    }

    /// Keeps what is in force. On a file system that is read-only nothing is kept.
    fn save(&self, answer: &DiscoveryResponse) {
        let saved = &self.settings.saved;
        let fresh = saved.with_extension("new");
        let kept =
            std::fs::write(&fresh, answer.encode_to_vec()).and_then(|()| std::fs::rename(&fresh, saved));
        if let Err(error) = kept
            && !self.unsaved.swap(true, Ordering::Relaxed)
        {
            tracing::info!(file = %saved.display(), %error, "rules by xDS are not kept for the next start");
        }
    }

    /// Follows the server until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let (least, most) = self.settings.backoff;
        let mut wait = least;
        loop {
            let since = Stopwatch::start();
            let end = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                end = self.stream() => end,
            };
            let pause = match &end {
                StreamEnd::NotOpen(_) => self.settings.connect_retry,
                StreamEnd::Ended(_) => {
                    if since.elapsed() >= GOOD_STREAM {
                        wait = least;
                    }
                    let pause = wait;
                    wait = (wait * 2).min(most);
                    pause
                }
            };
            let pause = jittered(pause, self.settings.jitter);
            tracing::warn!(
                server = %self.settings.server,
                again_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "the xDS server gives no rules: {end}"
            );
            (self.tell)(XdsNews::Away(end.to_string()));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// One stream, until it ends.
    async fn stream(&self) -> StreamEnd {
        let opened = timeout(CONNECT_WITHIN, self.connect()).await;
        let opened = match opened {
            Ok(Ok(socket)) => socket,
            Ok(Err(why)) => return StreamEnd::NotOpen(why),
            Err(_) => return StreamEnd::NotOpen(format!("no connection within {CONNECT_WITHIN:?}")),
        };
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let shaken = timeout(CONNECT_WITHIN, builder.handshake::<_, Bytes>(opened)).await;
        let (sender, mut connection) = match shaken {
            Ok(Ok(shaken)) => shaken,
            Ok(Err(error)) => return StreamEnd::NotOpen(error.to_string()),
            Err(_) => return StreamEnd::NotOpen(format!("no HTTP/2 within {CONNECT_WITHIN:?}")),
        };
        let pings = connection.ping_pong();
        tokio::select! {
            talked = self.talk(sender) => talked.err().unwrap_or_else(|| ended("the server ended the stream")),
            closed = connection => match closed {
                Ok(()) => ended("the server closed the connection"),
                Err(error) => ended(error),
            },
            () = is_gone(pings) => ended("the server does not answer"),
        }
    }

    async fn connect(&self) -> Result<Box<dyn Socket>, String> {
        let server = &self.settings.server;
        let (host, port) = server.rsplit_once(':').ok_or_else(|| format!("{server} has no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port: u16 = port.parse().map_err(|_| format!("{server} has no port"))?;
        let addresses = names::shared().addresses(host, CONNECT_WITHIN).await;
        let mut why = format!("{host} has no address");
        for address in addresses.map_err(|error| error.to_string())? {
            let socket = match TcpStream::connect((address, port)).await {
                Ok(socket) => socket,
                Err(error) => {
                    why = format!("{server}: {error}");
                    continue;
                }
            };
            // A stream of few and small messages.
            let _ = socket.set_nodelay(true);
            let Some((make, name)) = &self.settings.tls else { return Ok(Box::new(socket)) };
            let name = ServerName::try_from(name.as_deref().unwrap_or(host).to_owned())
                .map_err(|error| format!("{server}: {error}"))?;
            let secured = TlsConnector::from(make()?).connect(name, socket).await;
            return secured.map(|socket| Box::new(socket) as _).map_err(|error| format!("{server}: {error}"));
        }
        Err(why)
    }

    async fn talk(&self, sender: SendRequest<Bytes>) -> Result<(), StreamEnd> {
        let mut sender = sender.ready().await.map_err(ended)?;
        let scheme = if self.settings.tls.is_some() { "https" } else { "http" };
        let mut request = Request::post(format!("{scheme}://{}{STREAM}", self.settings.server))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        let request = request.body(()).map_err(ended)?;
        let (response, mut asking) = sender.send_request(request, false).map_err(ended)?;
        self.ask(&mut asking, None)?;
        let response = response.await.map_err(ended)?;
        let status = response.status();
        refusal(response.headers())?;
        if status != http::StatusCode::OK {
            return Err(ended(format!("the server answers {status}")));
        }
        let mut answers = Answers { stream: response.into_body(), held: BytesMut::new() };
        while let Some(message) = answers.next(self.settings.message_bytes_max).await? {
            let answer = DiscoveryResponse::decode(message).map_err(ended)?;
            let nonce = answer.nonce.clone();
            let refused = tokio::task::block_in_place(|| self.take(answer)).err();
            if let Some(why) = &refused {
                tracing::error!(server = %self.settings.server, "rules by xDS were refused, those before stay in force: {why}");
            }
            (self.tell)(refused.clone().map_or(XdsNews::Accepted, XdsNews::Refused));
            self.last_mut().1 = nonce;
            self.ask(&mut asking, refused)?;
        }
        Ok(())
    }

    fn last_mut(&self) -> std::sync::MutexGuard<'_, (String, String)> {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn take(&self, answer: DiscoveryResponse) -> Result<(), String> {
        let domains = self.accept(&answer)?;
        tracing::info!(version = %answer.version_info, domains, "rules by xDS are in force");
        self.save(&answer);
        self.last_mut().0 = answer.version_info;
        Ok(())
    }

    /// Puts an answer in force, all of it or nothing. Returns how many domains it has.
    fn accept(&self, answer: &DiscoveryResponse) -> Result<usize, String> {
        if !answer.type_url.is_empty() && answer.type_url != TYPE_URL {
            return Err(format!("{TYPE_URL} was asked for, and {} came", answer.type_url));
        }
        let mut messages = Vec::with_capacity(answer.resources.len());
        for resource in &answer.resources {
            if resource.type_url != TYPE_URL {
                return Err(format!("{TYPE_URL} was asked for, and {} came", resource.type_url));
            }
            messages.push(RateLimitConfig::decode(&*resource.value).map_err(|error| error.to_string())?);
        }
        let rules =
            rules_of_messages(&messages, self.settings.merge).map_err(|problems| problems.join("\n"))?;
        (self.accept)(rules)?;
        Ok(messages.len())
    }

    /// Asks for what comes next, and says what became of the last.
    fn ask(&self, asking: &mut SendStream<Bytes>, refused: Option<String>) -> Result<(), StreamEnd> {
        let (version_info, response_nonce) = self.last_mut().clone();
        let request = DiscoveryRequest {
            version_info,
            node: Some(XdsNode {
                id: self.settings.node.clone(),
                metadata: Some(ProtoStruct::of_texts(&self.settings.metadata)),
                user_agent_name: "tidegate".to_owned(),
            }),
            type_url: TYPE_URL.to_owned(),
            response_nonce,
            error_detail: refused.map(|why| RpcStatus {
                code: INVALID_ARGUMENT,
                message: why.chars().take(DETAIL_CHARS_MAX).collect(),
            }),
        };
        let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + request.encoded_len());
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(request.encoded_len()).unwrap_or(u32::MAX));
        request.encode(&mut bytes).map_err(ended)?;
        asking.send_data(bytes.freeze(), false).map_err(ended)
    }
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// The messages of a stream.
struct Answers {
    stream: RecvStream,
    held: BytesMut,
}

impl Answers {
    /// The next message; `None` once the server has ended the stream.
    async fn next(&mut self, bytes_max: usize) -> Result<Option<Bytes>, StreamEnd> {
        loop {
            if let Some(prefix) = self.held.get(1..PREFIX_BYTES) {
                let len = prefix.iter().fold(0_usize, |len, byte| len << 8 | usize::from(*byte));
                if len > bytes_max {
                    return Err(ended(format!(
                        "a message of {len} bytes is longer than {bytes_max} (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES)"
                    )));
                }
                if self.held.first() != Some(&0) {
                    return Err(ended("a message is compressed"));
                }
                if self.held.len() >= PREFIX_BYTES + len {
                    self.held.advance(PREFIX_BYTES);
                    return Ok(Some(self.held.split_to(len).freeze()));
                }
            }
            match self.stream.data().await {
                Some(data) => {
                    let data = data.map_err(ended)?;
                    self.stream.flow_control().release_capacity(data.len()).map_err(ended)?;
                    self.held.extend_from_slice(&data);
                }
                None => {
                    if let Some(trailers) = self.stream.trailers().await.map_err(ended)? {
                        refusal(&trailers)?;
                    }
                    return Ok(None);
                }
            }
        }
    }
}

/// The refusal that headers tell.
fn refusal(headers: &HeaderMap) -> Result<(), StreamEnd> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status") {
        None | Some("0") => Ok(()),
        Some(status) => {
            Err(ended(format!("gRPC status {status}: {}", text("grpc-message").unwrap_or_default())))
        }
    }
}

/// Returns once the server has not answered a ping in time.
async fn is_gone(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(PING_EVERY).await;
        if !matches!(timeout(PING_EVERY, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// The same wait, longer or shorter by chance, so that daemons do not all come back at once.
fn jittered(wait: Duration, part: f64) -> Duration {
    let chance = std::hash::RandomState::new().build_hasher().finish();
    let chance = f64::from(u32::try_from(chance >> 32).unwrap_or(0)) / f64::from(u32::MAX);
    wait.mul_f64(1.0 + part.clamp(0.0, 1.0) * (2.0 * chance - 1.0))
}
