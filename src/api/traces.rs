//! The spans of decisions: one for a call, however many questions it asks.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::Servers;
use super::error::Refusal;
use crate::core::decision::Decision;
use crate::core::request::Request;
use crate::telemetry::traces::{OpenSpan, TraceParent, Tracer};

const TRACEPARENT: &str = "traceparent";

/// The caller's own span. A caller that names it twice names none.
pub(super) fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let first = values.next()?;
    if values.next().is_some() {
        return None;
    }
    TraceParent::read(first.as_bytes())
}

/// The span of a call that asks for decisions. It is told when it is dropped.
#[derive(Debug)]
pub(super) struct DecisionSpan {
    span: OpenSpan,
    region: String,
    first: Option<ToldDecision>,
    decisions: u64,
    denied: u64,
    is_degraded: bool,
    is_answered: bool,
}

/// The decision that a span names: the first that denies, else the first.
#[derive(Debug)]
struct ToldDecision {
    domain: String,
    rule: Option<Arc<str>>,
    remaining: Option<u64>,
}

impl ToldDecision {
    fn of(request: &Request<'_>, decision: &Decision) -> Self {
        let tightest = decision.tightest.and_then(|tightest| decision.rules.get(tightest));
        Self {
            domain: request.domain.to_owned(),
            rule: tightest.map(|ruled| Arc::clone(&ruled.rule)),
            remaining: tightest.map(|ruled| ruled.remaining),
        }
    }
}

impl DecisionSpan {
    /// The span of a call, with what is known of it when it begins.
    pub(super) fn new(span: OpenSpan, servers: &Servers, about: &[(&'static str, &str)]) -> Box<Self> {
        let region = servers.engine.name().region.clone();
        let (decisions, denied) = (0, 0);
        let mut made =
            Self { span, region, first: None, decisions, denied, is_degraded: false, is_answered: false };
        for (name, value) in about {
            made.span.set(name, *value);
        }
        Box::new(made)
    }

    /// Takes a decision down.
    pub(super) fn decided(&mut self, request: &Request<'_>, decision: &Decision, allowed: bool) {
        if self.first.is_none() || (!allowed && self.denied == 0) {
            self.first = Some(ToldDecision::of(request, decision));
        }
        self.decisions += 1;
        self.denied += u64::from(!allowed);
        self.is_degraded |= decision.rules.iter().any(|ruled| ruled.degraded);
    }

    /// The call was answered over HTTP.
    pub(super) fn answered(&mut self, status: StatusCode) {
        self.span.set("http.response.status_code", u64::from(status.as_u16()));
        if status.is_server_error() {
            self.span.fail(status.canonical_reason().unwrap_or_default());
        }
        self.is_answered = true;
    }

    /// The call was answered over gRPC, or refused.
    pub(super) fn replied(&mut self, refusal: Option<&Refusal>) {
        let status = refusal.map_or(super::error::GRPC_OK, Refusal::grpc_status);
        self.span.set("rpc.grpc.status_code", u64::from(status));
        if let Some(refusal) = refusal {
            self.span.fail(refusal.message.as_ref());
        }
        self.is_answered = true;
    }
}

impl Drop for DecisionSpan {
    fn drop(&mut self) {
        let store = self.span.tracer().store();
        let span = &mut self.span;
        if let Some(ToldDecision { domain, rule, remaining }) = self.first.take() {
            span.set("tidegate.domain", domain.as_str());
            span.set("tidegate.allowed", self.denied == 0);
            if let Some(rule) = rule {
                span.set("tidegate.rule", &*rule);
            }
            if let Some(remaining) = remaining {
                span.set("tidegate.remaining", remaining);
            }
            span.set("tidegate.degraded", self.is_degraded);
            if self.decisions > 1 {
                span.set("tidegate.decisions", self.decisions);
                span.set("tidegate.denied", self.denied);
            }
        }
        span.set("tidegate.store", store);
        span.set("tidegate.region", self.region.as_str());
        if !self.is_answered {
            span.fail("the call was given up before it was answered");
        }
    }
}

impl Servers {
    /// The tracer that takes spans. `None`: nobody is told any, and a decision pays for this look alone.
    #[inline]
    pub(super) fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.engine.tracer()
    }

    /// Opens the span of a call over gRPC with these headers, if somebody is to be told.
    #[inline]
    pub(super) fn span_of_call(
        &self,
        headers: &HeaderMap,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Option<OpenSpan> {
        let (tracer, parent) = (self.tracer()?, parent(headers));
        // Envoy's own service follows its caller: one that records nothing has nothing recorded.
        if self.service.is_some() && parent.is_some_and(|parent| !parent.sampled) {
            return None;
        }
        tracer.decision(parent, name)
    }
}
