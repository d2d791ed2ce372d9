//! The HTTP door: one connection, and which route answers what.
//!
//! HTTP/1.1 with keep-alive, straight on hyper: the common question is read, decided and answered without a task, a
//! timer or a copy of its own.

mod authorize;
mod body;
mod check;
mod decision;
mod explain;
mod health;
mod hold;
pub(super) mod query;
mod question;
pub(super) mod reply;

use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Doors;
use super::admin;
use super::connection::{LOOK_EVERY, Looks, Pulse};
use super::error::{Code, Refusal};
use super::listener::{Accepted, Socket};
use super::openapi::openapi_json;
use crate::core::hold::HoldStep;

pub use authorize::fingerprint;

/// Longest head of a request, in bytes. Longer ones are refused by hyper with 431.
const HEAD_BYTES_MAX: usize = 64 * 1_024;
/// What a route answers, a refusal included.
pub(super) type Reply = Response<Full<Bytes>>;
pub(super) type Answered = Result<Reply, Refusal>;

/// Serves one connection until its client closes it, it gets stuck, or the door drains and what is in flight is answered.
pub(super) async fn connection(doors: Arc<Doors>, accepted: Accepted) {
    let Accepted { socket, peer, drain } = accepted;
    let pulse = Arc::new(Pulse::default());
    let visit = Visit { doors: &doors, peer, pulse: &pulse };
    let service = hyper::service::service_fn(|request| visit.answer(request));
    let socket = TokioIo::new(Felt { socket, pulse: Arc::clone(&pulse) });
    let mut builder = hyper::server::conn::http1::Builder::new();
    // Slow heads and bodies are the pulse's business, which needs no timer for each request.
    builder.header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).pipeline_flush(true);
    let mut served = pin!(builder.serve_connection(socket, service));
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut looks = Looks::default();
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            // How a connection ends is its client's affair.
            _ = served.as_mut() => return,
            () = drain.cancelled(), if !draining => {
                draining = true;
                served.as_mut().graceful_shutdown();
            }
            _ = look.tick() => {
                if pulse.stuck(&mut looks) {
                    return;
                }
            }
        }
    }
}

/// A socket whose pulse is felt.
struct Felt {
    socket: Socket,
    pulse: Arc<Pulse>,
}

impl AsyncRead for Felt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, into);
        if read.is_ready() {
            self.pulse.received(into.filled().len() - before);
        }
        read
    }
}

impl AsyncWrite for Felt {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// What a request needs to know of its connection.
#[derive(Clone, Copy)]
struct Visit<'c> {
    doors: &'c Doors,
    peer: Option<IpAddr>,
    pulse: &'c Pulse,
}

/// Every route of gateways and of those who watch the daemon. What operators use is in [`admin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Check,
    Authorize,
    Explain,
    Acquire,
    Renew,
    Release,
    Metrics,
    Healthz,
    Readyz,
    OpenApi,
    Home,
}

/// Paths and the methods they know.
pub(super) const ROUTES: &[(&str, Route, &str)] = &[
    ("/v1/check", Route::Check, "POST"),
    ("/v1/authorize", Route::Authorize, "GET, HEAD, POST"),
    ("/v1/explain", Route::Explain, "POST"),
    ("/v1/acquire", Route::Acquire, "POST"),
    ("/v1/renew", Route::Renew, "POST"),
    ("/v1/release", Route::Release, "POST"),
    ("/metrics", Route::Metrics, "GET, HEAD"),
    ("/healthz", Route::Healthz, "GET, HEAD"),
    ("/readyz", Route::Readyz, "GET, HEAD"),
    ("/openapi.json", Route::OpenApi, "GET, HEAD"),
    ("/", Route::Home, "GET, HEAD"),
];

impl Route {
    fn find(path: &str) -> Option<(Self, &'static str)> {
        ROUTES.iter().find(|(known, ..)| *known == path).map(|(_, route, methods)| (*route, *methods))
    }
}

fn refuse_method(methods: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    let message = "this route does not know the method";
    Refusal { allow: Some(methods.into()), ..Refusal::new(Code::Method, message) }
}

impl Visit<'_> {
    async fn answer(self, request: Request<Incoming>) -> Result<Reply, std::convert::Infallible> {
        let mut arriving = Arriving { pulse: self.pulse, whole: false };
        let answered = match Route::find(request.uri().path()) {
            Some((Route::Check, _)) if request.method() == Method::POST => {
                self.check(request, &mut arriving).await
            }
            _ => Box::pin(self.answer_rarer(request, &mut arriving)).await,
        };
        drop(arriving);
        Ok(answered.unwrap_or_else(|refusal| {
            self.doors.http.rejected.increment(1);
            reply::refusal(&refusal)
        }))
    }

    async fn answer_rarer(self, request: Request<Incoming>, arriving: &mut Arriving<'_>) -> Answered {
        let (head, body) = request.into_parts();
        let Some((route, methods)) = Route::find(head.uri.path()) else {
            return self.administer(&head, body, arriving).await;
        };
        if !methods.split(", ").any(|method| method == head.method.as_str()) {
            return Err(refuse_method(methods));
        }
        let brings_body = matches!(route, Route::Explain | Route::Acquire | Route::Renew | Route::Release);
        if !brings_body {
            arriving.is_whole();
        }
        match route {
            Route::Check | Route::Explain => self.explain(&head, body, arriving).await,
            Route::Acquire => self.acquire(&head, body, arriving).await,
            Route::Renew => self.step(&head, body, arriving, HoldStep::Renew).await,
            Route::Release => self.step(&head, body, arriving, HoldStep::Release).await,
            Route::Authorize => self.authorize(&head).await,
            Route::Metrics => Ok(health::metrics(self.doors)),
            Route::Healthz => Ok(reply::text("ok\n")),
            Route::Readyz => Ok(health::ready(self.doors)),
            Route::OpenApi => Ok(reply::json_bytes(openapi_json().as_bytes().to_vec())),
            Route::Home => Ok(health::home(self.doors)),
        }
    }
}

impl Visit<'_> {
    /// Answers an admin route: the guard first, then the body, then the route's own handler.
    async fn administer(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let doors = self.doors;
        let (route, params) = match admin::find(head.method.as_str(), head.uri.path())? {
            admin::Found::Route(route, params) => (route, params),
            admin::Found::OtherMethods(methods) => return Err(refuse_method(methods)),
            admin::Found::Nothing => {
                return Err(Refusal::new(Code::NoRoute, format!("there is no route {}", head.uri.path())));
            }
        };
        let actor = doors.admin.guard.admit(&head.headers, self.peer, route.role, doors.engine.now())?;
        let body = if route.method == "GET" {
            Bytes::new()
        } else {
            admin::check_json(head)?;
            body::read_up_to(doors, &head.headers, body, admin::BODY_BYTES_MAX).await?
        };
        arriving.is_whole();
        (route.handler)(admin::Call { doors, head, params, body, actor }).await
    }
}

/// Tells the pulse when a request is there, and when it is answered.
struct Arriving<'p> {
    pulse: &'p Pulse,
    whole: bool,
}

impl Arriving<'_> {
    /// The request is there, head and body.
    fn is_whole(&mut self) {
        if !std::mem::replace(&mut self.whole, true) {
            self.pulse.request_is_whole();
        }
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.is_whole();
        self.pulse.answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_found_by_its_path_and_nothing_else_is() {
        for (path, route, methods) in ROUTES {
            assert_eq!(Route::find(path), Some((*route, *methods)));
        }
        for path in ["/v1/rules/", "/v1", "/v1/check/", "//", ""] {
            assert_eq!(Route::find(path), None, "{path}");
        }
    }
}
