//! The other services of the gRPC door: health and reflection, which tonic serves.
//!
//! Rarely asked, so nothing here is fast; it only carries requests and answers between HTTP/2 streams and tonic.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower_service::Service as _;

use super::reflection;
use crate::api::{Doors, Readiness};

/// What health knows besides the empty name, which is the daemon.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// How long streams may stay once the door drains: a watcher of health never ends by itself.
const GRACE: Duration = Duration::from_secs(1);

/// Health and reflection, ready to be asked.
pub(in crate::api) struct Others(Routes);

impl Others {
    /// Services of a daemon with this readiness.
    pub(in crate::api) fn new(readiness: &watch::Receiver<Readiness>) -> Self {
        let routes = Routes::new(HealthServer::new(Follows(readiness.clone())));
        Self(reflection::add(routes).prepare())
    }
}

/// Answers one call.
pub(super) async fn answer(
    doors: Arc<Doors>,
    drain: CancellationToken,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let request = request.map(|stream| tonic::body::Body::new(Incoming(stream)));
    let ended = async {
        drain.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    let carry = async {
        // Never fails: what goes wrong is an answer too.
        let Ok(response) = doors.others.0.clone().call(request).await;
        let (head, mut body) = response.into_parts();
        let head = http::Response::from_parts(head, ());
        let Ok(mut stream) = respond.send_response(head, body.is_end_stream()) else { return };
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return stream.send_reset(h2::Reason::INTERNAL_ERROR) };
            if send(&mut stream, frame).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = carry => {}
        () = ended => respond.send_reset(h2::Reason::CANCEL),
    }
}

/// Sends a frame as the client makes room for it.
async fn send(stream: &mut SendStream<Bytes>, frame: Frame<Bytes>) -> Result<(), h2::Error> {
    let mut data = match frame.into_data() {
        Ok(data) => data,
        Err(frame) => {
            return frame.into_trailers().map_or(Ok(()), |trailers| stream.send_trailers(trailers));
        }
    };
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.ok_or(h2::Error::from(h2::Reason::CANCEL))??;
        stream.send_data(data.split_to(room.min(data.len())), false)?;
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
        Readiness::Starting | Readiness::Draining => ServingStatus::NotServing,
    };
    HealthCheckResponse {
        status: tonic_health::pb::health_check_response::ServingStatus::from(status).into(),
    }
}

fn is_known(service: &str) -> bool {
    service.is_empty() || service == SERVICE
}

/// What a watcher of health is told.
struct Told(mpsc::Receiver<HealthCheckResponse>);

impl Stream for Told {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|told| told.map(Ok))
    }
}

#[tonic::async_trait]
impl Health for Follows {
    type WatchStream = Told;

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

    async fn watch(&self, request: tonic::Request<HealthCheckRequest>) -> Result<Response<Told>, Status> {
        let (tell, listen) = mpsc::channel(1);
        let known = is_known(&request.get_ref().service);
        let mut readiness = self.0.clone();
        tokio::spawn(async move {
            loop {
                let status = if known {
                    told(*readiness.borrow_and_update())
                } else {
                    HealthCheckResponse {
                        status: tonic_health::pb::health_check_response::ServingStatus::ServiceUnknown.into(),
                    }
                };
                if tell.send(status).await.is_err() {
                    return;
                }
                let changed = async {
                    if readiness.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    () = tell.closed() => return,
                    () = changed => {}
                }
            }
        });
        Ok(Response::new(Told(listen)))
    }
}
