//! Envoy's rate limit service, and beside it gRPC health and reflection.
//!
//! Straight on HTTP/2: all calls that one read from the socket brought are decided one after the other and leave in one
//! write. A call gets a task of its own only where its message is still arriving or the store has to be waited for.

mod answer;
mod message;
mod others;
mod question;
mod reflection;
mod wire;

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Ping, PingPong, RecvStream};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio_util::sync::CancellationToken;

use super::Doors;
use super::asker::Asker;
use super::connection::LOOK_EVERY;
use super::error::{Code, GRPC_OK, Refusal};
use super::listener::{Accepted, Socket};
use crate::core::request::{Cost, Request as Question};
use crate::engine::decide::Decisions;
use crate::engine::port::Answer;
use answer::{encode, over_limit};
use message::Message;

pub(super) use others::Others;

/// The one call of the service.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// What a `grpc-message` must escape; what is not ASCII is escaped anyway.
const GRPC_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');
/// Calls that one connection may have open. More are refused by HTTP/2 itself.
const STREAMS_MAX: u32 = 1_024;
/// Longest list of headers of one call, in bytes.
const HEADERS_BYTES_MAX: u32 = 16 * 1_024;
/// Bytes of all messages of one connection that may wait unread.
const WINDOW_BYTES: u32 = 256 * 1_024;
/// How long a connection may take to begin.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long a message may take to arrive.
const MESSAGE_WITHIN: Duration = Duration::from_secs(10);
/// Calls that are taken up before any of them is answered.
const TURN_LEN_MAX: usize = 256;

type Call = (Request<RecvStream>, SendResponse<Bytes>);
type Connection = h2::server::Connection<Socket, Bytes>;

/// Serves one connection until its client closes it, it falls silent, or the door drains and what is in flight is
/// answered.
pub(super) async fn connection(doors: Arc<Doors>, accepted: Accepted) {
    let Accepted { socket, drain, .. } = accepted;
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_window_size(WINDOW_BYTES);
    let handshake = builder.handshake::<_, Bytes>(socket);
    // Who speaks no HTTP/2, or not in time, is let go.
    let Ok(Ok(mut connection)) = tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await else { return };
    let mut watch = Watch { pings: connection.ping_pong(), calls: 0, waiting: false };
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut drained = pin!(drain.cancelled());
    let mut draining = false;
    let mut turn: Vec<Call> = Vec::new();
    loop {
        let event = std::future::poll_fn(|cx| {
            if let Some(event) = poll_calls(&mut connection, &mut turn, cx) {
                return Poll::Ready(event);
            }
            if !draining && drained.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Drain);
            }
            look.poll_tick(cx).map(|_| Event::Look)
        });
        match event.await {
            Event::Calls => {
                watch.calls = watch.calls.saturating_add(turn.len());
                for (request, respond) in turn.drain(..) {
                    take_up(&doors, &drain, request, respond);
                }
            }
            Event::Drain => {
                draining = true;
                connection.graceful_shutdown();
            }
            Event::Look if watch.is_silent() => return,
            Event::Look => {}
            Event::Closed => return,
        }
    }
}

enum Event {
    Calls,
    Closed,
    Drain,
    Look,
}

/// Moves the connection on, and takes every call that has arrived. `None`: nothing happened.
fn poll_calls(connection: &mut Connection, turn: &mut Vec<Call>, cx: &mut Context<'_>) -> Option<Event> {
    while turn.len() < TURN_LEN_MAX {
        match connection.poll_accept(cx) {
            Poll::Ready(Some(Ok(call))) => turn.push(call),
            // How a connection ends is its client's affair.
            Poll::Ready(Some(Err(_)) | None) => return Some(Event::Closed),
            Poll::Pending => break,
        }
    }
    (!turn.is_empty()).then_some(Event::Calls)
}

/// Whether there is still someone at the other end.
struct Watch {
    pings: Option<PingPong>,
    calls: usize,
    waiting: bool,
}

impl Watch {
    /// One look: pings a connection without calls, and finds it silent if it has not answered by the next.
    fn is_silent(&mut self) -> bool {
        let quiet = std::mem::take(&mut self.calls) == 0;
        let Some(pings) = &mut self.pings else { return false };
        let mut nobody = Context::from_waker(Waker::noop());
        if self.waiting && pings.poll_pong(&mut nobody).is_pending() {
            return quiet;
        }
        self.waiting = quiet && pings.send_ping(Ping::opaque()).is_ok();
        false
    }
}

/// Answers a call at once where it can be.
fn take_up(
    doors: &Arc<Doors>,
    drain: &CancellationToken,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    if request.uri().path() != SHOULD_RATE_LIMIT {
        tokio::spawn(others::answer(Arc::clone(doors), drain.clone(), request, respond));
        return;
    }
    if let Err(refusal) = check_head(&request) {
        return refuse(doors, respond, &refusal);
    }
    let mut message = Message::new(request.into_body());
    // No waker: if the message is not there yet, the task that waits for it asks again with its own.
    let mut nobody = Context::from_waker(Waker::noop());
    match message.poll(doors, &mut nobody) {
        Poll::Ready(Ok(bytes)) => match decide_now(doors, &bytes) {
            Ok(Some(answer)) => reply(respond, answer),
            Ok(None) => drop(tokio::spawn(wait_for_store(Arc::clone(doors), bytes, respond))),
            Err(refusal) => refuse(doors, respond, &refusal),
        },
        Poll::Ready(Err(refusal)) => refuse(doors, respond, &refusal),
        Poll::Pending => drop(tokio::spawn(wait_for_message(Arc::clone(doors), message, respond))),
    }
}

fn check_head(request: &Request<RecvStream>) -> Result<(), Refusal> {
    if request.method() != Method::POST {
        return Err(Refusal::new(Code::Method, "a call is a POST"));
    }
    let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
    if !request.headers().get(CONTENT_TYPE).is_some_and(is_grpc) {
        return Err(Refusal::new(Code::UnsupportedType, "a call is of type application/grpc"));
    }
    Ok(())
}

/// The answer, if nothing has to be waited for.
fn decide_now(doors: &Doors, message: &[u8]) -> Result<Option<Bytes>, Refusal> {
    let questions = question::read(message)?;
    let asker = Asker::read(doors, &questions);
    let questions = question::of(&asker, questions)?;
    if mixed(&questions) {
        let Answer::Now(asked) = doors.engine.ask(&questions) else { return Ok(None) };
        if any_over(&questions, &asked) {
            return Ok(Some(encode(&questions, &asked)));
        }
    }
    let decided = match doors.engine.decide(&questions) {
        Answer::Now(decisions) => Some(encode(&questions, &decisions)),
        // Not waited for, and so not begun: the task that waits asks again.
        Answer::Later(_) => None,
    };
    Ok(decided)
}

async fn decide(doors: &Doors, message: &[u8]) -> Result<Bytes, Refusal> {
    let questions = question::read(message)?;
    let asker = Asker::read(doors, &questions);
    let questions = question::of(&asker, questions)?;
    if mixed(&questions) {
        let asked = doors.engine.ask(&questions).get().await;
        if any_over(&questions, &asked) {
            return Ok(encode(&questions, &asked));
        }
    }
    let decisions = doors.engine.decide(&questions).get().await;
    Ok(encode(&questions, &decisions))
}

/// Whether some descriptors peek while others take. A peek that finds nothing left denies the call, which then must not
/// charge the others; to the engine a peek always passes.
fn mixed(questions: &[Question<'_>]) -> bool {
    let peeks = questions.iter().filter(|question| question.cost == Cost::Peek).count();
    peeks > 0 && peeks < questions.len()
}

fn any_over(questions: &[Question<'_>], decisions: &Decisions) -> bool {
    questions.iter().zip(decisions).any(|(question, decision)| over_limit(question, decision))
}

async fn wait_for_message(doors: Arc<Doors>, mut message: Message, respond: SendResponse<Bytes>) {
    let whole = std::future::poll_fn(|cx| message.poll(&doors, cx));
    let bytes = match tokio::time::timeout(MESSAGE_WITHIN, whole).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(refusal)) => return refuse(&doors, respond, &refusal),
        Err(_) => {
            return refuse(
                &doors,
                respond,
                &Refusal::new(Code::Incomplete, "the message did not arrive in time"),
            );
        }
    };
    wait_for_store(doors, bytes, respond).await;
}

async fn wait_for_store(doors: Arc<Doors>, message: Bytes, respond: SendResponse<Bytes>) {
    match decide(&doors, &message).await {
        Ok(answer) => reply(respond, answer),
        Err(refusal) => refuse(&doors, respond, &refusal),
    }
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Sends an answer. A client that is gone by now is no news.
fn reply(mut respond: SendResponse<Bytes>, answer: Bytes) {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, GRPC);
    let Ok(mut stream) = respond.send_response(head, false) else { return };
    if stream.send_data(answer, false).is_err() {
        return;
    }
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, HeaderValue::from(u16::from(GRPC_OK)));
    let _ = stream.send_trailers(trailers);
}

/// Sends a refusal: headers alone.
fn refuse(doors: &Doors, mut respond: SendResponse<Bytes>, refusal: &Refusal) {
    doors.rls.rejected.increment(1);
    let text = match &refusal.field {
        Some(field) => format!("{field}: {}", refusal.message),
        None => refusal.message.clone().into_owned(),
    };
    let text = utf8_percent_encode(&text, GRPC_MESSAGE).to_string();
    let mut head = Response::new(());
    *head.status_mut() = refusal.http2_status();
    let headers = head.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(&GRPC_STATUS, HeaderValue::from(u16::from(refusal.grpc_status())));
    if let Ok(text) = HeaderValue::try_from(text) {
        headers.insert("grpc-message", text);
    }
    let _ = respond.send_response(head, true);
}
