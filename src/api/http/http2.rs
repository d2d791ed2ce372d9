//! HTTP/2 on the HTTP listener, where a client asks for it in the TLS handshake (ALPN). The routes are those
//! of HTTP/1.1; each request of a connection has a task of its own.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{HOST, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::deciding::{self, Deciding};
use super::{ConnectionContext, Sending, WatchedSocket};
use crate::api::Servers;
use crate::api::connection::{END_WITHIN, GIVEN_UP_MAX, IdleDetection, LOOK_EVERY, Looks};
use crate::api::delivering_socket::DeliveringSocket;
use crate::api::delivery::Deliveries;
use crate::api::error::{Code, Refusal};
use crate::api::frames::{WatchedFrames, take_number};
use crate::api::listener::{Accepted, Peer};
use crate::api::places::ConnectionPlace;
use crate::api::reply::{self, Reply};
use crate::api::unsent_bytes::{UnreadLooks, Unsent};

/// Requests that one connection may have open. More are refused by HTTP/2 itself.
const STREAMS_MAX: u32 = 256;
/// Longest list of headers of one request, in bytes.
const HEADERS_BYTES_MAX: u32 = 64 * 1_024;
/// Bytes of all bodies of one connection that may wait unread.
const WINDOW_BYTES: u32 = 1 << 20;
/// Time after which a connection without frames is asked whether anybody is there, and the time it may take
/// to say.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Time that a request may take from its head to its answer. The routes that take longest answer in a minute;
/// what is over then is a body that does not arrive.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

/// The state that the requests of one connection share.
struct Http2Connection {
    servers: Arc<Servers>,
    peer: Peer,
    idle: IdleDetection,
    place: ConnectionPlace,
    unsent: Arc<Unsent>,
    deliveries: Arc<Deliveries>,
}

impl Http2Connection {
    async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        deciding: Option<Deciding>,
    ) -> Result<Response<Sending>, Infallible> {
        let call = take_number(request.headers_mut());
        // HTTP/2 says it as `:authority` (RFC 9113, 8.3.1).
        let authority = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
        if let Some(authority) = authority.filter(|_| !request.headers().contains_key(HOST)) {
            request.headers_mut().insert(HOST, authority);
        }
        // A stream has an end of its own.
        let last_refusal = OnceLock::new();
        let context = ConnectionContext {
            servers: &self.servers,
            peer: self.peer,
            idle: &self.idle,
            place: &self.place,
            unsent: &self.unsent,
            deliveries: &self.deliveries,
            call,
            only_watches: false,
            last_refusal: &last_refusal,
            deciding: deciding.as_ref(),
        };
        if let Ok(answered) = tokio::time::timeout(ANSWER_WITHIN, context.answer(request)).await {
            return answered;
        }
        let late: Reply = reply::refusal(&Refusal::new(Code::Incomplete, "the body took too long to arrive"));
        Ok(late.map(|body| Sending::new(body, None, &self.unsent)))
    }
}

impl Http2Connection {
    /// One look: true if its client does not read its answers any more, or is stuck.
    fn is_left(&self, unread: &mut UnreadLooks, looks: &mut Looks) -> bool {
        if self.unsent.is_unread(unread) {
            self.deliveries.lost();
            self.place.count_unread();
            return true;
        }
        self.idle.stuck(looks)
    }
}

fn builder() -> hyper::server::conn::http2::Builder<TokioExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(GIVEN_UP_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    builder
}

/// Serves one connection until its client closes it, it falls silent, or the listener drains and what is in
/// flight is answered.
pub(super) async fn connection(servers: Arc<Servers>, accepted: Accepted) {
    let Accepted { socket, peer, shutdown, place } = accepted;
    let (end, unsent) = (place.end.clone(), servers.http.unsent.connection());
    // Frames of HTTP/2 itself are no part of a request, so what arrives is not watched here.
    let idle = Arc::new(IdleDetection::default());
    let deliveries = Deliveries::new(&servers.engine);
    let socket = DeliveringSocket::by_number(socket, &deliveries);
    let socket = WatchedFrames::numbered(WatchedSocket::new(socket, idle, Arc::clone(&unsent)), &deliveries);
    let idle = IdleDetection::default();
    let shared = Arc::new(Http2Connection { servers, peer, idle, place, unsent, deliveries });
    let own = Arc::clone(&shared);
    let service = hyper::service::service_fn(move |request| {
        let own = Arc::clone(&own);
        let waits = !own.servers.engine.answers_at_once();
        deciding::begin(waits, |deciding| own.answer(request, deciding))
    });
    let mut served = std::pin::pin!(builder().serve_connection(TokioIo::new(socket), service));
    let mut look = tokio::time::interval(LOOK_EVERY);
    let (mut looks, mut unread) = (Looks::default(), UnreadLooks::default());
    let mut ending = false;
    loop {
        tokio::select! {
            biased;
            ended = &mut served => {
                if ended.is_err() {
                    shared.deliveries.lost();
                }
                return;
            }
            // HTTP/2 says by itself which requests of a connection are still answered.
            () = shutdown.closing.cancelled(), if !ending => {
                ending = true;
                served.as_mut().graceful_shutdown();
            }
            () = end.cancelled() => {
                served.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(END_WITHIN, &mut served).await;
                return;
            }
            _ = look.tick() => if shared.is_left(&mut unread, &mut looks) { return },
        }
    }
}
