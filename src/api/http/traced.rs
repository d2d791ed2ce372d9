//! The spans of what is asked over HTTP.

use std::sync::Arc;

use http::header::ETAG;
use http::request::Parts;
use http::{Method, Request};
use hyper::body::Incoming;

use super::routes::{ROUTES, Route};
use super::{Arriving, ConnectionContext};
use crate::api::Servers;
use crate::api::admin::AdminRoute;
use crate::api::reply::Answered;
use crate::api::traces::{DecisionSpan, parent};
use crate::core::decision::Decision;
use crate::core::request::Request as Question;
use crate::engine::admin::Actor;
use crate::telemetry::traces::{OpenSpan, SpanKind, Tracer};

impl Route {
    /// The path of a route that decides, or that ends what a decision began, as spans name it.
    fn traced(self) -> Option<&'static str> {
        let mut routes = ROUTES.iter().filter(|_| self.decides());
        routes.find(|(_, route, _)| *route == self).map(|(path, ..)| *path)
    }
}

impl ConnectionContext<'_> {
    /// The span of this request, if somebody is to be told.
    #[inline]
    pub(super) fn span(self, request: &Request<Incoming>) -> Option<Box<DecisionSpan>> {
        let tracer = self.servers.tracer()?;
        decision(self.servers, tracer, request)
    }
}

#[inline(never)]
fn decision(
    servers: &Servers,
    tracer: &Arc<Tracer>,
    request: &Request<Incoming>,
) -> Option<Box<DecisionSpan>> {
    let (route, _) = Route::find(request.uri().path())?;
    let path = route.traced()?;
    let method = method(request.method());
    let span = tracer.decision(parent(request.headers()), || format!("{method} {path}").into())?;
    Some(DecisionSpan::new(span, servers, &[("http.request.method", method), ("http.route", path)]))
}

/// The method, of which clients could make any number.
fn method(method: &Method) -> &str {
    const KNOWN: [Method; 7] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    if KNOWN.contains(method) { method.as_str() } else { "_OTHER" }
}

impl Arriving<'_> {
    /// Takes a decision down for the span of the request, if it has one.
    #[inline]
    pub(super) fn decided(&mut self, request: &Question<'_>, decision: &Decision) {
        if let Some(span) = &mut self.span {
            span.decided(request, decision, decision.allowed);
        }
    }
}

/// The span of a change by an operator, whom the guard has let in; `None` for a look.
pub(super) fn change(
    servers: &Servers,
    head: &Parts,
    route: &AdminRoute,
    params: &[String],
    actor: &Actor,
) -> Option<OpenSpan> {
    let tracer = servers.tracer()?;
    if route.method == "GET" {
        return None;
    }
    let name = format!("{} {}", route.method, route.path);
    let mut span = tracer.open(parent(&head.headers), name, SpanKind::Server);
    span.set("http.request.method", route.method);
    span.set("http.route", route.path);
    span.set("tidegate.actor", actor.name.as_str());
    span.set("tidegate.role", actor.role.name());
    if let Some(source) = actor.source {
        span.set("client.address", source.to_string().as_str());
    }
    if let Some(target) = params.first() {
        span.set("tidegate.target", target.as_str());
    }
    if head.uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "dry_run=true")) {
        span.set("tidegate.dry_run", true);
    }
    span.set("tidegate.region", servers.engine.name().region.as_str());
    Some(span)
}

/// Ends the span of a change: what came of it, and the revision where it has one.
pub(super) fn changed(mut span: OpenSpan, answered: &Answered) {
    let status = match answered {
        Ok(reply) => {
            let tag = reply.headers().get(ETAG).and_then(|tag| tag.to_str().ok());
            if let Some(revision) = tag.and_then(|tag| tag.trim_matches('"').parse::<u64>().ok()) {
                span.set("tidegate.revision", revision);
            }
            reply.status()
        }
        Err(refusal) => {
            span.fail(refusal.message.as_ref());
            refusal.http_status()
        }
    };
    span.set("http.response.status_code", u64::from(status.as_u16()));
}
