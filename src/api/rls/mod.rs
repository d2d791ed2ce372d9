//! Envoy's rate limit service, Kuadrant's, and beside them gRPC health and reflection.
//!
//! Straight on HTTP/2: all calls that one read from the socket brought are decided one after the other and
//! leave in one write. A call gets a task of its own only where its message is still arriving or the store
//! has to be waited for.

mod answer;
mod in_flight;
mod kuadrant;
mod message;
mod others;
mod question;
mod quota;
mod reflection;
pub(super) mod service;
mod services;
mod serving;
mod watch;
mod wire;

use std::future::Future as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio_util::sync::CancellationToken;

use super::Servers;
use super::client_identity::ClientIdentity;
use super::delivery::{Deliveries, Given, Undelivered};
use super::error::{Code, GRPC_OK, Refusal};
use super::traces::DecisionSpan;
use super::unsent_bytes::{CountedWriter, Unsent};
use crate::core::decision::{AnswerGuards, Decision};
use crate::core::request::{Cost, Request as Question};
use crate::engine::Engine;
use crate::engine::decide::Decisions;
use crate::engine::port::Answer;
use answer::{encode, over_limit};
use message::Message;
use question::{Questions, RateLimitCall};

pub(super) use others::Others;
pub(super) use quota::QuotaStreams;
use quota::Receipts;
#[cfg(feature = "fuzzing")]
pub(super) use quota::fuzzed as fuzzed_quotas;
pub(super) use quota::turn_windows as turn_quota_windows;
use service::Service;
pub(super) use serving::connection;

/// The one call of the service.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// What a `grpc-message` must escape; what is not ASCII is escaped anyway.
const GRPC_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');
/// How long a message may take to arrive.
const MESSAGE_WITHIN: Duration = Duration::from_secs(10);
/// Calls of one connection whose answers are held back: half of those in all, so that no gateway takes the
/// places of all others.
const WAITING_MAX: usize = 128;

type Respond = SendResponse<CountedWriter>;

/// What the calls of one connection share.
struct Line {
    servers: Arc<Servers>,
    closing: CancellationToken,
    way: Way,
    others: others::Share,
    receipts: Arc<Receipts>,
}

/// How answers leave a connection.
#[derive(Clone)]
struct Way {
    unsent: Arc<Unsent>,
    deliveries: Arc<Deliveries>,
    waiting: Arc<AtomicUsize>,
}

/// A call whose answer is held back, counted at its connection.
struct WaitingCall(Arc<AtomicUsize>);

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer, with what it gives.
struct CallReply {
    answer: Bytes,
    given: Option<Undelivered>,
}

impl From<Bytes> for CallReply {
    fn from(answer: Bytes) -> Self {
        Self { answer, given: None }
    }
}

/// What a call keeps of its connection that gets a task of its own.
struct OwnCall {
    servers: Arc<Servers>,
    closing: CancellationToken,
    way: Way,
    /// The span of the call, if somebody is to be told.
    span: Span,
}

type Span = Option<Box<DecisionSpan>>;

impl Line {
    fn call(&self) -> OwnCall {
        OwnCall {
            servers: Arc::clone(&self.servers),
            closing: self.closing.clone(),
            way: self.way.clone(),
            span: None,
        }
    }
}

/// Answers a call at once where it can be.
fn accept(line: &Line, request: Request<RecvStream>, respond: Respond) {
    let servers = &line.servers;
    let call = kuadrant::Call::of(request.uri().path());
    if call.is_none() && request.uri().path() != SHOULD_RATE_LIMIT {
        if request.uri().path() == quota::STREAM_RATE_LIMIT_QUOTAS {
            return quota::begin(line, request, respond);
        }
        let Some(place) = servers.others.place(&line.others, request.uri().path()) else {
            let sentence = "as many calls besides decisions are open as may be";
            return refuse(servers, respond, &Refusal::new(Code::Overloaded, sentence));
        };
        tokio::spawn(others::answer(line.call(), request, respond, place));
        return;
    }
    if let Err(refusal) = check_head(&request).and_then(|()| servers.knows_rules()) {
        return refuse(servers, respond, &refusal);
    }
    if let (Some(service), None) = (&servers.service, &call) {
        return stand_in(line, service, request, respond);
    }
    if let Some(span) = span(servers, &request) {
        // Its own task: what is told of it is not worth more work for the calls that are not.
        let (own, message) = (OwnCall { span: Some(span), ..line.call() }, Message::new(request.into_body()));
        return match call {
            Some(asked) => drop(tokio::spawn(kuadrant::answer(own, asked, message, respond))),
            None => drop(tokio::spawn(wait_for_message(own, message, respond))),
        };
    }
    let mut message = Message::new(request.into_body());
    if let Some(asked) = call {
        drop(tokio::spawn(kuadrant::answer(line.call(), asked, message, respond)));
        return;
    }
    // No waker: if the message is not there yet, the task that waits for it asks again with its own.
    let mut nobody = Context::from_waker(Waker::noop());
    match message.poll(servers, &mut nobody) {
        Poll::Ready(Ok(bytes)) if !servers.engine.answers_at_once() => begin(line.call(), bytes, respond),
        Poll::Ready(Ok(bytes)) => match decide_now(line, &bytes) {
            Ok(AtOnce::Answer(answer)) => reply(&line.way, respond, answer),
            Ok(AtOnce::Held(decisions)) => {
                let waiting = line.way.waits();
                drop(tokio::spawn(hold_back(line.call(), waiting, bytes, respond, *decisions)))
            }
            Ok(AtOnce::Unknown) => drop(tokio::spawn(wait_for_store(line.call(), bytes, respond, true))),
            Err(refusal) => refuse(servers, respond, &refusal),
        },
        Poll::Ready(Err(refusal)) => refuse(servers, respond, &refusal),
        Poll::Pending => drop(tokio::spawn(wait_for_message(line.call(), message, respond))),
    }
}

/// Answers a call as Envoy's own rate limit service does.
fn stand_in(line: &Line, service: &Arc<Service>, request: Request<RecvStream>, respond: Respond) {
    let (servers, span) = (&line.servers, span(&line.servers, &request));
    let mut message = Message::new(request.into_body());
    if span.is_some() {
        let own = OwnCall { span, ..line.call() };
        return drop(tokio::spawn(service::answer_when_known(own, Err(message), respond)));
    }
    let mut nobody = Context::from_waker(Waker::noop());
    match message.poll(servers, &mut nobody) {
        Poll::Ready(Ok(bytes)) => {
            let at_once = servers.engine.answers_at_once();
            let answered = match at_once.then(|| service::answer_now(servers, service, &bytes)) {
                Some(answered) => answered,
                None => Ok(None),
            };
            match answered {
                Ok(Some(answer)) => reply(&line.way, respond, answer.into()),
                Ok(None) => drop(tokio::spawn(service::answer_when_known(line.call(), Ok(bytes), respond))),
                Err(refusal) => refuse(servers, respond, &refusal),
            }
        }
        Poll::Ready(Err(refusal)) => refuse(servers, respond, &refusal),
        Poll::Pending => drop(tokio::spawn(service::answer_when_known(line.call(), Err(message), respond))),
    }
}

/// The span of this call, if somebody is to be told.
#[inline]
fn span(servers: &Servers, request: &Request<RecvStream>) -> Span {
    let path = request.uri().path().trim_start_matches('/');
    let span = servers.span_of_call(request.headers(), || path.to_owned().into())?;
    let (service, method) = path.split_once('/').unwrap_or_default();
    let about = [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", method)];
    Some(DecisionSpan::new(span, servers, &about))
}

/// Takes the decisions of a call down for its span.
fn tell(span: &mut Span, questions: &[Question<'_>], decisions: &[Decision]) {
    let Some(span) = span else { return };
    for (question, decision) in questions.iter().zip(decisions) {
        span.decided(question, decision, !over_limit(question, decision));
    }
}

/// Ends the span of a call.
fn end(span: Span, refusal: Option<&Refusal>) {
    if let Some(mut span) = span {
        span.replied(refusal);
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

/// What is known of a call without waiting.
enum AtOnce {
    Answer(CallReply),
    /// Decided; the answer is to be held back.
    Held(Box<Decisions>),
    /// Something has to be waited for, and nothing was begun.
    Unknown,
}

/// The answer, if nothing has to be waited for.
fn decide_now(line: &Line, message: &[u8]) -> Result<AtOnce, Refusal> {
    let servers = &line.servers;
    let mut room = Vec::new();
    let RateLimitCall { mut questions, denied, leases } = question::read(message, &mut room)?;
    if !leases.is_empty() {
        return Ok(AtOnce::Unknown);
    }
    in_flight::name_holder(&mut questions)?;
    line.way.may_wait(&mut questions);
    let client_identity = ClientIdentity::read(servers, &questions);
    let questions = client_identity.put(questions);
    // What takes several steps may have to be waited for in the middle, and then cannot be begun again.
    if refunds_apart(&questions, &denied) || client_identity.refused().is_some() {
        return Ok(AtOnce::Unknown);
    }
    let decided = if !denied.is_empty() {
        let Answer::Now(asked) = servers.engine.ask(&questions) else { return Ok(AtOnce::Unknown) };
        return Ok(AtOnce::Answer(encode(&questions, &deny(asked, &denied, None)).into()));
    } else if mixed(&questions) {
        servers.engine.decide_unless(&questions, |asked| any_over(&questions, asked))
    } else {
        servers.engine.decide(&questions)
    };
    let decided = match decided {
        Answer::Now(decisions) if Engine::holds_back(&questions, &decisions) => {
            AtOnce::Held(Box::new(decisions))
        }
        Answer::Now(decisions) => AtOnce::Answer(CallReply {
            answer: encode(&questions, &decisions),
            given: line.way.given(&decisions),
        }),
        // Not waited for, and so not begun: the task that waits asks again.
        Answer::Later(_) => AtOnce::Unknown,
    };
    Ok(decided)
}

/// Answers a call that is decided once its delay is over, unless it is given up before.
async fn hold_back(
    call: OwnCall,
    _waiting: WaitingCall,
    message: Bytes,
    mut respond: Respond,
    decisions: Decisions,
) {
    let mut room = Vec::new();
    let given = call.way.given(&decisions);
    // It was read before, so it can be read.
    let Ok(RateLimitCall { questions, .. }) = question::read(&message, &mut room) else { return };
    let held = when_due(&call.servers, &questions, decisions, &mut respond).await;
    if let Some(decisions) = held {
        reply(&call.way, respond, CallReply { answer: encode(&questions, &decisions), given });
    }
}

/// The decisions when they may be told; `None` for a call that was given up meanwhile.
async fn when_due(
    servers: &Servers,
    questions: &[Question<'_>],
    decisions: Decisions,
    respond: &mut Respond,
) -> Option<Decisions> {
    if !Engine::holds_back(questions, &decisions) {
        return Some(decisions);
    }
    tokio::select! {
        biased;
        decisions = servers.engine.held_back(questions, decisions) => Some(decisions),
        _ = std::future::poll_fn(|cx| respond.poll_reset(cx)) => None,
    }
}

/// The answer, where something has to be waited for; `None` for a call that was given up while its answer was
/// held back. `tried`: [`decide_now`] has asked for the same just now.
async fn decide(
    servers: &Servers,
    way: &Way,
    message: &[u8],
    tried: bool,
    respond: &mut Respond,
    span: &mut Span,
) -> Result<Option<CallReply>, Refusal> {
    let mut room = Vec::new();
    let RateLimitCall { mut questions, mut denied, leases } = question::read(message, &mut room)?;
    in_flight::give_back(servers, &leases).await;
    if questions.is_empty() {
        // Envoy reads no answer of what it says when a stream is done.
        return Ok(Some(answer::reported().into()));
    }
    in_flight::name_holder(&mut questions)?;
    way.may_wait(&mut questions);
    let client_identity = ClientIdentity::read(servers, &questions);
    let questions = client_identity.put(questions);
    let invalid = client_identity.refused().map(|refusal| refusal.message.as_ref().into());
    if invalid.is_some() {
        denied = (0..questions.len()).collect();
    }
    let decisions = if refunds_apart(&questions, &denied) {
        refund_and_charge(servers, &questions, &denied).await
    } else {
        charge(servers, &questions, &denied, tried).await
    };
    let given = way.given(&decisions);
    let decisions = deny(decisions, &denied, invalid);
    let _waiting = Engine::holds_back(&questions, &decisions).then(|| way.waits());
    let decisions = when_due(servers, &questions, decisions, respond).await;
    Ok(decisions.map(|decisions| {
        tell(span, &questions, &decisions);
        CallReply { answer: encode(&questions, &decisions), given }
    }))
}

/// Decides questions as one: charges all of them, or none where one is denied.
async fn charge(servers: &Servers, questions: &[Question<'_>], denied: &[usize], tried: bool) -> Decisions {
    if !denied.is_empty() {
        return servers.engine.ask(questions).get().await;
    }
    if mixed(questions) {
        servers.engine.decide_unless(questions, |asked| any_over(questions, asked)).get().await
    } else if tried {
        servers.engine.decide_later(questions).await
    } else {
        servers.engine.decide(questions).get().await
    }
}

/// Gives back what is to be given back, whatever becomes of the other questions: Envoy never says it again.
async fn refund_and_charge(servers: &Servers, questions: &[Question<'_>], denied: &[usize]) -> Decisions {
    let gives_back = |place: usize| {
        let refund = questions.get(place).is_some_and(|question| matches!(question.cost, Cost::Refund(_)));
        refund && !denied.contains(&place)
    };
    let places = 0..questions.len();
    let (back, others): (Vec<usize>, Vec<usize>) = places.partition(|place| gives_back(*place));
    let of = |places: &[usize]| -> Questions<'_> {
        places.iter().filter_map(|place| questions.get(*place)).cloned().collect()
    };
    let refunded = servers.engine.decide(&of(&back)).get().await;
    let charged = charge(servers, &of(&others), denied, false).await;
    let mut all: Vec<_> = back.into_iter().zip(refunded).chain(others.into_iter().zip(charged)).collect();
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, decision)| decision).collect()
}

/// True if a call gives back beside what may be denied.
fn refunds_apart(questions: &[Question<'_>], denied: &[usize]) -> bool {
    let refunds = questions.iter().filter(|question| matches!(question.cost, Cost::Refund(_))).count();
    refunds > 0 && (refunds < questions.len() || !denied.is_empty())
}

/// The same decisions with a denial for each question that could not be judged.
fn deny(mut decisions: Decisions, denied: &[usize], message: Option<Arc<str>>) -> Decisions {
    for place in denied {
        if let Some(decision) = decisions.get_mut(*place) {
            *decision = Decision {
                allowed: false,
                rules: Vec::new(),
                tightest: None,
                status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
                message: message.clone(),
                lease: None,
                guards: AnswerGuards::default(),
            };
        }
    }
    decisions
}

/// True if some descriptors peek while others take. A peek that finds nothing left denies the call, which
/// then must not charge the others; to the engine a peek always passes.
fn mixed(questions: &[Question<'_>]) -> bool {
    let peeks = questions.iter().filter(|question| question.cost == Cost::Peek).count();
    peeks > 0 && peeks < questions.len()
}

fn any_over(questions: &[Question<'_>], decisions: &Decisions) -> bool {
    questions.iter().zip(decisions).any(|(question, decision)| over_limit(question, decision))
}

/// Decides at once where nothing has to be waited for after all; else goes on in a task of its own.
fn begin(call: OwnCall, message: Bytes, respond: Respond) {
    let mut whole = Box::pin(wait_for_store(call, message, respond, false));
    if whole.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        drop(tokio::spawn(whole));
    }
}

async fn wait_for_message(call: OwnCall, message: Message, respond: Respond) {
    match whole(&call.servers, message).await {
        Ok(bytes) => wait_for_store(call, bytes, respond, false).await,
        Err(refusal) => {
            end(call.span, Some(&refusal));
            refuse(&call.servers, respond, &refusal);
        }
    }
}

/// All of a message, in time, or as much of it as is read.
async fn whole(servers: &Servers, mut message: Message) -> Result<Bytes, Refusal> {
    let whole = std::future::poll_fn(|cx| message.poll(servers, cx));
    let late = || Refusal::new(Code::Incomplete, "the message did not arrive in time");
    tokio::time::timeout(MESSAGE_WITHIN, whole).await.map_err(|_| late())?
}

async fn wait_for_store(call: OwnCall, message: Bytes, mut respond: Respond, tried: bool) {
    let OwnCall { servers, way, mut span, .. } = call;
    match decide(&servers, &way, &message, tried, &mut respond, &mut span).await {
        Ok(answer) => {
            if let Some(answer) = answer {
                end(span, None);
                reply(&way, respond, answer);
            }
        }
        Err(refusal) => {
            end(span, Some(&refusal));
            refuse(&servers, respond, &refusal);
        }
    }
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

impl Way {
    /// Has these questions denied rather than held back, where as many answers wait as may.
    fn may_wait(&self, questions: &mut [Question<'_>]) {
        if self.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            questions.iter_mut().for_each(|question| question.may_wait = false);
        }
    }

    /// Counts a call that waits.
    fn waits(&self) -> WaitingCall {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingCall(Arc::clone(&self.waiting))
    }

    /// Holds what these decisions give.
    fn given(&self, decisions: &Decisions) -> Option<Undelivered> {
        let places = Given::places(decisions)?;
        Some(self.deliveries.hold(Given::Places(places)))
    }
}

/// Sends an answer. A client that is gone by now is no news; what it was given is given back.
fn reply(way: &Way, mut respond: Respond, reply: CallReply) {
    let CallReply { answer, given } = reply;
    let call = respond.stream_id().as_u32();
    let gives = given.is_some();
    if let Some(given) = given
        && !way.deliveries.answers(call, given)
    {
        return;
    }
    if send(&way.unsent, &mut respond, answer).is_err() && gives {
        way.deliveries.reset(call);
    }
}

fn send(unsent: &Arc<Unsent>, respond: &mut Respond, answer: Bytes) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, GRPC);
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(CountedWriter::new(answer, unsent), false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, HeaderValue::from(u16::from(GRPC_OK)));
    stream.send_trailers(trailers)
}

/// Sends a refusal: headers alone.
fn refuse(servers: &Servers, mut respond: Respond, refusal: &Refusal) {
    servers.rls.rejected.increment(1);
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

/// Reads a call as a stranger wrote it.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzzed(message: &[u8]) {
    let _ = question::read(message, &mut Vec::new());
}
