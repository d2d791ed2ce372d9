//! The HTTP server: one connection, and which route answers what.
//!
//! HTTP/1.1 with keep-alive, straight on hyper: the common check is read, decided and answered without a
//! task, a timer or a copy of its own. A client that asks for HTTP/2 over TLS gets it ([`http2`]).

mod authorize;
mod body;
mod check;
mod decision;
mod explain;
mod given;
mod head;
mod health;
mod hold;
mod http2;
mod origin;
mod question;
mod reserve;
pub(super) mod routes;
#[cfg(test)]
pub(super) mod schemas;
mod service;
mod traced;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::routes::Route;
use super::Servers;
use super::admin;
use super::admin::stream::{EventStream, StreamAnswer};
use super::connection::{END_WITHIN, IdleDetection, LOOK_EVERY, Looks};
use super::console;
use super::delivering_socket::DeliveringSocket;
use super::delivery::Deliveries;
use super::error::{Code, Refusal};
use super::listener::{Accepted, Peer};
use super::openapi::openapi_json;
use super::places::ConnectionPlace;
use super::ready::ready;
use super::reply::{self, Answered, Reply};
use super::traces::DecisionSpan;
use super::unsent_bytes::{UnreadLooks, Unsent};
use crate::core::hold::HoldStep;
use crate::core::request::Cost;

/// Longest head of a request, in bytes. Longer ones are refused by hyper with 431.
const HEAD_BYTES_MAX: usize = 64 * 1_024;

/// Serves one connection until its client closes it, it gets stuck, or the server drains and what is in
/// flight is answered.
pub(super) async fn connection(servers: Arc<Servers>, accepted: Accepted) {
    if accepted.socket.agreed_on_http2() {
        return Box::pin(http2::connection(servers, accepted)).await;
    }
    serve(servers, accepted, false).await;
}

/// Serves one connection of those who watch the daemon, and nothing but that.
pub(super) async fn watching(servers: Arc<Servers>, accepted: Accepted) {
    serve(servers, accepted, true).await;
}

async fn serve(servers: Arc<Servers>, accepted: Accepted, only_watches: bool) {
    let Accepted { socket, peer, shutdown, place } = accepted;
    let idle = Arc::new(IdleDetection::default());
    let unsent = servers.http.unsent.connection();
    let deliveries = Deliveries::new(&servers.engine);
    let context = ConnectionContext {
        servers: &servers,
        peer,
        idle: &idle,
        place: &place,
        unsent: &unsent,
        deliveries: &deliveries,
        call: 0,
        only_watches,
    };
    // Called as soon as a head is there; what it returns runs later.
    let service = hyper::service::service_fn(|request| {
        let asked = context.idle.asks();
        async move {
            let answer = context.answer(request).await;
            drop(asked);
            answer
        }
    });
    let socket = DeliveringSocket::in_order(socket, &deliveries);
    let watched = WatchedSocket::new(socket, Arc::clone(&idle), Arc::clone(&unsent));
    let socket = TokioIo::new(watched);
    let mut builder = hyper::server::conn::http1::Builder::new();
    // Slow heads and bodies are found by the look for idle connections, which needs no timer for each
    // request.
    builder.header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).pipeline_flush(true);
    let mut served = builder.serve_connection(socket, service);
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut looks = Looks::default();
    let mut unread = UnreadLooks::default();
    let mut ending = false;
    loop {
        tokio::select! {
            biased;
            ended = &mut served => {
                let parts = served.into_parts();
                let mut watched = parts.io.into_inner();
                // Any other end of a connection is its client's affair.
                let Err(error) = ended else {
                    // Closed with bytes unread, it would take the answer along.
                    if parts.read_buf.is_empty() {
                        watched.socket.finish().await;
                    } else {
                        head::close_with(watched.socket, None).await;
                    }
                    return;
                };
                if let Some(refusal) = head::refusal(&error, &parts.read_buf) {
                    servers.http.rejected.increment(1);
                    // The library has answered already if nothing was left unread.
                    let refusal = Some(&refusal).filter(|_| !watched.answered);
                    head::close_with(watched.socket, refusal).await;
                }
                return;
            }
            () = shutdown.closing.cancelled(), if !idle.closes_after_answer() => idle.close_after_answer(),
            () = shutdown.stop.cancelled(), if !ending => {
                ending = true;
                Pin::new(&mut served).graceful_shutdown();
            }
            () = place.end.cancelled() => {
                Pin::new(&mut served).graceful_shutdown();
                let _ = tokio::time::timeout(END_WITHIN, &mut served).await;
                return;
            }
            _ = look.tick() => {
                if unsent.is_unread(&mut unread) {
                    deliveries.lost();
                    place.count_unread();
                    return;
                }
                if idle.stuck(&mut looks) {
                    return;
                }
            }
        }
    }
}

/// A socket of which is noted when it receives something.
struct WatchedSocket {
    socket: DeliveringSocket,
    idle: Arc<IdleDetection>,
    unsent: Arc<Unsent>,
    /// True if anything was written since the last bytes arrived.
    answered: bool,
}

impl WatchedSocket {
    fn new(socket: DeliveringSocket, idle: Arc<IdleDetection>, unsent: Arc<Unsent>) -> Self {
        Self { socket, idle, unsent, answered: false }
    }

    fn sent(&mut self, written: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.answered = true;
            self.unsent.sent(*bytes);
        }
        written
    }
}

impl AsyncRead for WatchedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let Self { socket, idle, answered, .. } = &mut *self;
        let read = socket.poll_read_while(idle.is_asked(), cx, into);
        if read.is_ready() {
            idle.received(into.filled().len() - before);
            idle.look_for_length(into.filled().get(before..).unwrap_or_default());
            *answered = false;
        }
        read
    }
}

impl AsyncWrite for WatchedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.sent(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // Asked for only when everything was written.
        self.unsent.all_sent();
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // The socket closes when it is dropped; until then what was no request can still be answered.
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// The facts of its connection that a request needs.
#[derive(Clone, Copy)]
struct ConnectionContext<'c> {
    servers: &'c Arc<Servers>,
    peer: Peer,
    idle: &'c IdleDetection,
    place: &'c ConnectionPlace,
    unsent: &'c Arc<Unsent>,
    deliveries: &'c Arc<Deliveries>,
    /// The number of its stream; zero over HTTP/1.
    call: u32,
    /// True if its listener is for those who watch the daemon.
    only_watches: bool,
}

/// A body that is counted from when it is made until it is sent.
struct Sending {
    body: Full<Bytes>,
    /// Its bytes, which are counted already, until hyper holds them.
    made: usize,
    /// The stream that follows in place of the body, for an answer that goes on.
    stream: Option<EventStream>,
    unsent: Arc<Unsent>,
}

impl Body for Sending {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match &mut self.stream {
            Some(stream) => stream.poll_event(cx).map(|event| event.map(|event| Ok(Frame::data(event)))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        };
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && std::mem::take(&mut self.made) == 0
        {
            self.unsent.add(frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.stream.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

impl Sending {
    fn new(body: Full<Bytes>, stream: Option<EventStream>, unsent: &Arc<Unsent>) -> Self {
        let made = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        unsent.add(made);
        Self { body, made, stream, unsent: Arc::clone(unsent) }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.unsent.sent(self.made);
    }
}

fn refuse_method(methods: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    let message = "this route does not know the method";
    Refusal { allow: Some(methods.into()), ..Refusal::new(Code::Method, message) }
}

impl ConnectionContext<'_> {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Sending>, std::convert::Infallible> {
        let span = self.span(&request);
        let route = Route::find(request.uri().path());
        let decides = route.is_some_and(|(route, _)| route.decides());
        let mut arriving = Arriving { idle: self.idle, place: self.place, whole: false, decides, span };
        let framed = head::check_host(&request).and_then(|()| head::check_length(&request, self.idle));
        let answered = match (framed, route) {
            (Err(refusal), _) => Err(refusal),
            (Ok(()), _) if service::knows(self.servers, request.uri().path(), self.only_watches) => {
                Box::pin(self.answer_service(request, &mut arriving)).await
            }
            (Ok(()), route) if self.only_watches && !route.is_some_and(|(route, _)| route.watches()) => {
                let message = "this listener tells of the daemon, and of nothing else (listen.metrics)";
                Err(Refusal::new(Code::NoRoute, message))
            }
            (Ok(()), Some((Route::Check, _))) if request.method() == Method::POST => {
                self.check(request, &mut arriving).await
            }
            _ => Box::pin(self.answer_rarer(request, &mut arriving)).await,
        };
        let span = arriving.span.take();
        drop(arriving);
        let answered = answered.and_then(|reply| self.if_there_is_room(reply));
        let mut reply = answered.unwrap_or_else(|refusal| {
            self.servers.http.rejected.increment(1);
            reply::refusal(&refusal)
        });
        if self.idle.closes_after_answer() {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(mut span) = span {
            span.answered(reply.status());
        }
        let stream = reply.extensions_mut().remove::<StreamAnswer>().and_then(|answer| answer.take());
        Ok(reply.map(|body| Sending::new(body, stream, self.unsent)))
    }

    /// Checks whether this client may ask for that: to give back may be switched off for all but the daemon's
    /// own user.
    fn may_ask(self, cost: Cost) -> Result<(), Refusal> {
        if !matches!(cost, Cost::Refund(_)) || self.servers.settings().http_refunds || self.peer.is_owner {
            return Ok(());
        }
        let sentence = "giving back by a negative cost is switched off here (listen.http_refunds)";
        Err(Refusal { field: Some("cost".to_owned()), ..Refusal::new(Code::Forbidden, sentence) })
    }

    /// Long answers are kept only where not too many wait to be read already.
    fn if_there_is_room(self, reply: Reply) -> Answered {
        let bytes = reply.body().size_hint().lower();
        if self.unsent.has_room_for(usize::try_from(bytes).unwrap_or(usize::MAX)) {
            return Ok(reply);
        }
        Err(Refusal::new(Code::Overloaded, "too many long answers wait to be read at this moment"))
    }

    async fn answer_rarer(self, request: Request<Incoming>, arriving: &mut Arriving<'_>) -> Answered {
        let (head, body) = request.into_parts();
        if let Some(asset) = console::find(head.uri.path(), &head.headers) {
            if head.method != Method::GET && head.method != Method::HEAD {
                return Err(refuse_method("GET, HEAD"));
            }
            arriving.is_whole();
            return Ok(asset.answer(&head.headers));
        }
        let Some((route, methods)) = Route::find(head.uri.path()) else {
            return self.administer(&head, body, arriving).await;
        };
        let known = methods == authorize::ANY_METHOD;
        if !known && !methods.split(", ").any(|method| method == head.method.as_str()) {
            return Err(refuse_method(methods));
        }
        let brings_body = methods == "POST";
        if !brings_body {
            arriving.is_whole();
        }
        match route {
            Route::Check | Route::Explain => self.explain(&head, body, arriving).await,
            Route::Report => self.report(&head, body, arriving).await,
            Route::Acquire => self.acquire(&head, body, arriving).await,
            Route::Renew => self.step(&head, body, arriving, HoldStep::Renew).await,
            Route::Release => self.step(&head, body, arriving, HoldStep::Release).await,
            Route::Reserve => self.reserve(&head, body, arriving).await,
            Route::Commit => self.commit(&head, body, arriving).await,
            Route::Cancel => self.cancel(&head, body, arriving).await,
            Route::Authorize => self.authorize(&head, arriving).await,
            Route::Metrics => health::metrics(self.servers).await,
            Route::Healthz => Ok(reply::text("ok\n")),
            Route::Readyz => Ok(ready(self.servers)),
            Route::OpenApi => Ok(reply::json_bytes(openapi_json().as_bytes())),
            Route::Home => Ok(health::home(self.servers)),
        }
    }
}

impl ConnectionContext<'_> {
    /// Answers an admin route: the guard first, then the body, then the route's own handler.
    async fn administer(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let servers = self.servers;
        let (route, params) = match admin::find(head.method.as_str(), head.uri.path())? {
            admin::RouteFound::Route(route, params) => (route, params),
            admin::RouteFound::OtherMethods(methods) => return Err(refuse_method(methods)),
            admin::RouteFound::Nothing => {
                return Err(Refusal::new(Code::NoRoute, format!("there is no route {}", head.uri.path())));
            }
        };
        let actor = servers.admin.guard.admit(&head.headers, self.peer, route.role, servers.engine.now())?;
        let body = if route.method == "GET" {
            Bytes::new()
        } else {
            admin::check_json(head)?;
            body::read_up_to(servers, &head.headers, body, admin::BODY_BYTES_MAX).await?
        };
        arriving.is_whole();
        let span = traced::change(servers, head, route, &params, &actor);
        let answered = (route.handler)(admin::AdminCall { servers, head, params, body, actor }).await;
        if let Some(span) = span {
            traced::changed(span, &answered);
        }
        answered.map(reply::unkept)
    }
}

/// Reads a body as a stranger wrote it.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzzed(body: &[u8]) {
    let _ = question::read(body);
    let _ = question::read_one(body);
    let _ = question::read_report(body);
    let _ = question::read_named(body);
    let _ = question::read_reserve(body);
}

/// Notes for the look for idle connections when a request is there, and when it is answered.
struct Arriving<'p> {
    idle: &'p IdleDetection,
    place: &'p ConnectionPlace,
    whole: bool,
    /// True if it asks for a decision.
    decides: bool,
    /// The span of the request, if somebody is to be told.
    span: Option<Box<DecisionSpan>>,
}

impl Arriving<'_> {
    /// The request is there, head and body.
    fn is_whole(&mut self) {
        if !std::mem::replace(&mut self.whole, true) {
            self.place.touch(self.decides);
            self.idle.request_is_whole();
        }
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.is_whole();
        self.idle.answered();
    }
}
