//! The other services of the gRPC listener: health and reflection, which tonic serves.
//!
//! Rarely asked, so nothing here is fast; it only carries requests and answers between HTTP/2 streams and
//! tonic. A call ends when its client resets it or its connection ends, and only so many may be open.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use h2::{RecvStream, SendStream};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame};
use metrics::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::services::Services;
use super::{OwnCall, Respond, reflection};
use crate::api::Readiness;
use crate::api::unsent_bytes::{CountedWriter, Unsent};
use crate::telemetry::Metrics;

/// What health knows besides the empty name, which is the daemon.
const SERVICES: [&str; 2] =
    ["envoy.service.ratelimit.v3.RateLimitService", "kuadrant.service.ratelimit.v1.RateLimitService"];
/// A single question about health, which is answered at once. It has places of its own, so that open watches
/// never keep a gateway from finding this daemon healthy.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// Calls besides decisions that one connection may have open.
const CONNECTION_CALLS_MAX: usize = 64;
/// Open watches of health and reflections, over all connections.
const STREAMS_MAX: usize = 4_096;
/// Single questions about health that are being answered, over all connections.
const CHECKS_MAX: usize = 4_096;
/// How long streams may stay once the listener drains: a watcher of health never ends by itself.
const GRACE: Duration = Duration::from_secs(1);
/// How long a call may take to begin its answer: its message must have come by then.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may leave an answer unread.
const READ_WITHIN: Duration = Duration::from_secs(20);

/// Health and reflection, ready to be asked.
pub(in crate::api) struct Others {
    services: Services,
    streams: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    open: Gauge,
}

/// The places for other calls of one connection.
pub(super) struct Share(Arc<Semaphore>);

/// The places that an open call takes: one of its connection's and one of the listener's.
pub(super) struct CallPlace {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
    open: Gauge,
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.open.decrement(1);
    }
}

impl Others {
    /// Services of a daemon with this readiness.
    pub(in crate::api) fn new(readiness: &watch::Receiver<Readiness>, metrics: &Metrics) -> Self {
        let mut services = Services::default();
        services.add(HealthServer::new(Follows(readiness.clone())));
        reflection::add(&mut services);
        Self {
            services,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            checks: Arc::new(Semaphore::new(CHECKS_MAX)),
            open: metrics.plain_gauge("grpc_other_calls"),
        }
    }

    /// A place for a call to this path; `None` where the connection or the listener has as many open as it
    /// may.
    pub(super) fn place(&self, share: &Share, path: &str) -> Option<CallPlace> {
        let shared = if path == HEALTH_CHECK { &self.checks } else { &self.streams };
        let own = Arc::clone(&share.0).try_acquire_owned().ok()?;
        let shared = Arc::clone(shared).try_acquire_owned().ok()?;
        self.open.increment(1);
        Some(CallPlace { _own: own, _shared: shared, open: self.open.clone() })
    }
}

impl Default for Share {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(CONNECTION_CALLS_MAX)))
    }
}

/// Answers one call, until its answer ends or its client is gone.
pub(super) async fn answer(
    call: OwnCall,
    request: Request<RecvStream>,
    mut respond: Respond,
    _place: CallPlace,
) {
    let OwnCall { servers, closing, way, .. } = call;
    let request = request.map(|stream| tonic::body::Body::new(Incoming(stream)));
    let begun = tokio::select! {
        biased;
        begun = timeout(BEGIN_WITHIN, servers.others.services.call(request)) => begun,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        () = ended(&closing) => return respond.send_reset(h2::Reason::CANCEL),
    };
    let Ok(response) = begun else { return respond.send_reset(h2::Reason::CANCEL) };
    let (head, mut body) = response.into_parts();
    let head = http::Response::from_parts(head, ());
    let Ok(mut stream) = respond.send_response(head, body.is_end_stream()) else { return };
    loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            // Also when the connection ends.
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return,
            () = ended(&closing) => return stream.send_reset(h2::Reason::CANCEL),
        };
        match frame {
            None => return,
            Some(Err(_)) => return stream.send_reset(h2::Reason::INTERNAL_ERROR),
            Some(Ok(frame)) => match timeout(READ_WITHIN, send(&way.unsent, &mut stream, frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => return stream.send_reset(h2::Reason::CANCEL),
            },
        }
    }
}

async fn ended(closing: &CancellationToken) {
    closing.cancelled().await;
    tokio::time::sleep(GRACE).await;
}

/// Sends a frame as the client makes room for it.
async fn send(
    unsent: &Arc<Unsent>,
    stream: &mut SendStream<CountedWriter>,
    frame: Frame<Bytes>,
) -> Result<(), h2::Error> {
    let mut data = match frame.into_data() {
        Ok(data) => data,
        Err(frame) => {
            return frame.into_trailers().map_or(Ok(()), |trailers| stream.send_trailers(trailers));
        }
    };
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.ok_or(h2::Error::from(h2::Reason::CANCEL))??;
        let part = data.split_to(room.min(data.len()));
        stream.send_data(CountedWriter::new(part, unsent), false)?;
    }
    Ok(())
}

/// The body of a request, as tonic wants it.
struct Incoming(RecvStream);

impl hyper::body::Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if let Some(data) = ready!(self.0.poll_data(cx)) {
            let data = data.and_then(|data| {
                self.0.flow_control().release_capacity(data.len())?;
                Ok(Frame::data(data))
            });
            return Poll::Ready(Some(data));
        }
        self.0
            .poll_trailers(cx)
            .map(|trailers| trailers.transpose().map(|trailers| trailers.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// gRPC health that follows the daemon's readiness.
struct Follows(watch::Receiver<Readiness>);

fn told(readiness: Readiness) -> HealthCheckResponse {
    let status = match readiness {
        Readiness::Serving => ServingStatus::Serving,
        Readiness::Starting | Readiness::Impaired | Readiness::Draining => ServingStatus::NotServing,
    };
    HealthCheckResponse {
        status: tonic_health::pb::health_check_response::ServingStatus::from(status).into(),
    }
}

fn is_known(service: &str) -> bool {
    service.is_empty() || SERVICES.contains(&service)
}

type Statuses = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

/// The state now, and again whenever it changes.
fn statuses(known: bool, readiness: watch::Receiver<Readiness>) -> Statuses {
    Box::pin(stream::unfold((readiness, true), move |(mut readiness, first)| async move {
        if !first && readiness.changed().await.is_err() {
            // The daemon ends; its connections do so in their own time.
            std::future::pending::<()>().await;
        }
        let status = if known {
            told(*readiness.borrow_and_update())
        } else {
            let unknown = tonic_health::pb::health_check_response::ServingStatus::ServiceUnknown;
            HealthCheckResponse { status: unknown.into() }
        };
        Some((Ok(status), (readiness, false)))
    }))
}

#[tonic::async_trait]
impl Health for Follows {
    type WatchStream = Statuses;

    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if is_known(&request.get_ref().service) {
            Ok(Response::new(told(*self.0.borrow())))
        } else {
            Err(Status::not_found("service not registered"))
        }
    }

    async fn watch(&self, request: tonic::Request<HealthCheckRequest>) -> Result<Response<Statuses>, Status> {
        let known = is_known(&request.get_ref().service);
        Ok(Response::new(statuses(known, self.0.clone())))
    }
}
