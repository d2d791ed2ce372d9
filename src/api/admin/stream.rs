//! `GET /v1/stream`: what changes by itself, as server-sent events: the cluster as `/v1/regions` shows it and
//! the daemon as `/readyz` does, each second. A second without change is a heartbeat.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderValue;
use http::header::CACHE_CONTROL;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use tokio::time::{Interval, MissedTickBehavior};

use super::stream_places::{STREAMS_MAX, WatchPlace};
use super::{AdminCall, AdminRoute, regions};
use crate::api::error::{Code, Refusal};
use crate::api::ready::ready;
use crate::api::reply::{self, Answered, Reply};
use crate::api::{Readiness, Servers};
use crate::engine::admin::Role;

/// Time between two messages of a stream.
const EVERY: Duration = Duration::from_secs(1);
/// Seconds after which a stream ends: whoever still may look opens another, and shows its token again.
const SECONDS_MAX: u32 = 240;

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/stream",
    role: Role::Viewer,
    handler: |call| Box::pin(async move { open(&call) }),
}];

/// Events to come.
pub(in crate::api) struct EventStream {
    servers: Arc<Servers>,
    ticks: Interval,
    seconds: u32,
    /// The text that was sent last of each event.
    sent: [Bytes; 2],
    place: WatchPlace,
}

/// Carries a stream in an answer to the connection that sends it.
#[derive(Clone)]
pub(in crate::api) struct StreamAnswer(Arc<Mutex<Option<EventStream>>>);

impl StreamAnswer {
    /// The stream, once.
    pub(in crate::api) fn take(&self) -> Option<EventStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn open(call: &AdminCall<'_>) -> Answered {
    let Some(place) = call.servers.streams.enter(&call.actor.name) else {
        let message =
            format!("{STREAMS_MAX} streams are open already, and this client has its share of them");
        return Err(Refusal::new(Code::Overloaded, message));
    };
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let servers = Arc::clone(call.servers);
    let stream = EventStream { servers, ticks, seconds: 0, sent: Default::default(), place };
    let mut answer = reply::with_type(Vec::new(), HeaderValue::from_static("text/event-stream"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer.extensions_mut().insert(StreamAnswer(Arc::new(Mutex::new(Some(stream)))));
    Ok(answer)
}

impl EventStream {
    /// The next event or heartbeat; `None` at the end, which a draining daemon, or another client that has
    /// the place now, brings within a second.
    pub(in crate::api) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ticks.poll_tick(cx).is_pending() {
            return Poll::Pending;
        }
        self.seconds = self.seconds.saturating_add(1);
        if self.seconds > SECONDS_MAX
            || self.place.is_taken()
            || self.servers.readiness() == Readiness::Draining
        {
            return Poll::Ready(None);
        }
        let now = [("regions", regions::show(&self.servers)), ("ready", ready(&self.servers))];
        let mut text = Vec::new();
        for ((name, answer), sent) in now.into_iter().zip(&mut self.sent) {
            let Some(body) = whole(answer) else { continue };
            if body == *sent {
                continue;
            }
            text.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
            text.extend_from_slice(&body);
            text.extend_from_slice(b"\n\n");
            *sent = body;
        }
        if text.is_empty() {
            text.extend_from_slice(b": heartbeat\n\n");
        }
        Poll::Ready(Some(text.into()))
    }
}

/// The body of an answer that is there whole.
fn whole(answer: Reply) -> Option<Bytes> {
    let mut body = answer.into_body();
    let mut none = Context::from_waker(std::task::Waker::noop());
    match Pin::new(&mut body.frame()).poll(&mut none) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().ok(),
        _ => None,
    }
}
