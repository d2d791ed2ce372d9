//! The HTTP server: one connection, and which route answers what.
//!
//! HTTP/1.1 with keep-alive, straight on hyper: the common check is read, decided and answered without a
//! task, a timer or a copy of its own. A client that asks for HTTP/2 over TLS gets it ([`http2`]).

mod authorize;
mod body;
mod check;
mod deciding;
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

use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::deciding::Deciding;
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
/// Time for the first request of a connection that was accepted as the listener stopped.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_millis(500);

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
    let end = place.end.clone();
    let (idle, unsent) = (Arc::default(), servers.http.unsent.connection());
    let deliveries = Deliveries::new(&servers.engine);
    let last_refusal = OnceLock::new();
    let shared =
        Http1Connection { servers, peer, idle, place, unsent, deliveries, only_watches, last_refusal };
    let shared = Arc::new(shared);
    let Http1Connection { servers, idle, unsent, deliveries, last_refusal, .. } = &*shared;
    // Called as soon as a head is there; what it returns runs later.
    let service = hyper::service::service_fn(|request| {
        let (asked, own) = (idle.asks(), Arc::clone(&shared));
        let waits = !own.servers.engine.answers_at_once();
        deciding::begin(waits, |deciding| async move {
            let answer = own.answer(request, deciding).await;
            drop(asked);
            answer
        })
    });
    let socket = DeliveringSocket::in_order(socket, deliveries);
    let watched = WatchedSocket::new(socket, Arc::clone(idle), Arc::clone(unsent));
    let socket = TokioIo::new(watched);
    let mut served = builder().serve_connection(socket, service);
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut looks = Looks::default();
    let mut unread = UnreadLooks::default();
    let mut ending = false;
    if shutdown.closing.is_cancelled() {
        idle.close_after_answer();
    }
    let mut stopped = pin!(async {
        shutdown.stop.cancelled().await;
        // A client that connected at the last moment may have asked, and its request is on its way.
        if !idle.has_received() {
            tokio::time::sleep(FIRST_REQUEST_WITHIN).await;
        }
    });
    loop {
        tokio::select! {
            biased;
            ended = &mut served => {
                let parts = served.into_parts();
                let mut watched = parts.io.into_inner();
                let refusal = ended.as_ref().err().and_then(|error| head::refusal(error, &parts.read_buf));
                if refusal.is_some() {
                    servers.http.rejected.increment(1);
                }
                // The library keeps an answer back while bytes stand behind its request, and loses it here.
                let unsaid = refusal.as_ref().or(last_refusal.get()).filter(|_| !watched.answered);
                let is_unread = ended.is_ok() && (!parts.read_buf.is_empty() || idle.has_left_body());
                if is_unread || refusal.is_some() || unsaid.is_some() {
                    // Closed with bytes unread, it would take the answer along.
                    head::close_with(watched.socket, unsaid).await;
                } else if ended.is_ok() {
                    watched.socket.finish().await;
                }
                // Any other end of a connection is its client's affair.
                return;
            }
            () = shutdown.closing.cancelled(), if !idle.closes_after_answer() => idle.close_after_answer(),
            () = &mut stopped, if !ending => {
                ending = true;
                Pin::new(&mut served).graceful_shutdown();
            }
            () = end.cancelled() => {
                Pin::new(&mut served).graceful_shutdown();
                let _ = tokio::time::timeout(END_WITHIN, &mut served).await;
                return;
            }
            _ = look.tick() => if shared.is_left(&mut unread, &mut looks) { return },
        }
    }
}

fn builder() -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    // Slow heads and bodies are found by the look for idle connections, which needs no timer for each
    // request.
    builder.header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).pipeline_flush(true);
    builder
}

/// The state that the requests of one connection share.
struct Http1Connection {
    servers: Arc<Servers>,
    peer: Peer,
    idle: Arc<IdleDetection>,
    place: ConnectionPlace,
    unsent: Arc<Unsent>,
    deliveries: Arc<Deliveries>,
    only_watches: bool,
    last_refusal: OnceLock<Refusal>,
}

impl Http1Connection {
    /// One look: true if its client does not read its answers any more, or is stuck.
    fn is_left(&self, unread: &mut UnreadLooks, looks: &mut Looks) -> bool {
        if self.unsent.is_unread(unread) {
            self.deliveries.lost();
            self.place.count_unread();
            return true;
        }
        self.idle.stuck(looks)
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        deciding: Option<Deciding>,
    ) -> Result<Response<Sending>, std::convert::Infallible> {
        let context = ConnectionContext {
            servers: &self.servers,
            peer: self.peer,
            idle: &self.idle,
            place: &self.place,
            unsent: &self.unsent,
            deliveries: &self.deliveries,
            call: 0,
            only_watches: self.only_watches,
            last_refusal: &self.last_refusal,
            deciding: deciding.as_ref(),
        };
        context.answer(request).await
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
    /// The refusal with which it ends, where nobody can tell where the next request begins.
    last_refusal: &'c OnceLock<Refusal>,
    /// `None`: the store answers at once.
    deciding: Option<&'c Deciding>,
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
        // Over HTTP/2 each body has an end of its own.
        let leaves_body = self.call == 0 && !request.body().is_end_stream();
        let mut arriving =
            Arriving { idle: self.idle, place: self.place, whole: false, leaves_body, decides, span };
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
        let (span, leaves_body) = (arriving.span.take(), arriving.leaves_body);
        drop(arriving);
        let answered = answered.and_then(|reply| self.if_there_is_room(reply));
        let mut reply = answered.unwrap_or_else(|refusal| {
            self.servers.http.rejected.increment(1);
            let reply = reply::refusal(&refusal);
            if matches!(refusal.code, Code::Head | Code::Incomplete) {
                let _ = self.last_refusal.set(refusal);
            }
            reply
        });
        // A stream of HTTP/2 shares its connection with others.
        let makes_room = || decides && self.call == 0 && self.place.ends_with_answer();
        // Where a body was announced and not read, nobody can tell whether the next bytes are it or a
        // request: some gateways name the length of a body that they do not send.
        if leaves_body {
            self.idle.leave_body();
        }
        if leaves_body || self.idle.closes_after_answer() || makes_room() {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(mut span) = span {
            span.answered(reply.status());
        }
        let stream = reply.extensions_mut().remove::<StreamAnswer>().and_then(|answer| answer.take());
        Ok(reply.map(|body| Sending::new(body, stream, self.unsent)))
    }

    /// Makes a decision whole, even if the client leaves meanwhile.
    async fn whole<T>(self, decision: impl Future<Output = T>) -> T {
        match self.deciding {
            Some(deciding) => deciding.whole(decision).await,
            None => decision.await,
        }
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
            arriving.is_there();
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
            arriving.is_there();
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
            arriving.is_there();
            Bytes::new()
        } else {
            admin::check_json(head)?;
            let body = body::read_up_to(servers, &head.headers, body, admin::BODY_BYTES_MAX).await?;
            arriving.is_whole();
            body
        };
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
    /// True if it brings a body that nobody has read.
    leaves_body: bool,
    /// True if it asks for a decision.
    decides: bool,
    /// The span of the request, if somebody is to be told.
    span: Option<Box<DecisionSpan>>,
}

impl Arriving<'_> {
    /// The request is there, head and body.
    fn is_whole(&mut self) {
        self.leaves_body = false;
        self.is_there();
    }

    /// As much of the request is there as is read: a route that takes no body goes by the head.
    fn is_there(&mut self) {
        if !std::mem::replace(&mut self.whole, true) {
            self.place.touch(self.decides);
            self.idle.request_is_whole();
        }
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.is_there();
        self.idle.answered();
    }
}
