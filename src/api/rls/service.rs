//! Envoy's rate limit service as its own implementation answers it, for a daemon that stands in for it
//! (`tidegate ratelimit`).
//!
//! A descriptor finds its limit by the tree of [`crate::core::envoy`], and is counted by the rule of ours
//! that belongs to the limit. What the descriptors come to together is that service's: shadow limits, quotas,
//! limits that take the place of others.

mod answer;
mod call;
mod json;
mod statistics;

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use smallvec::SmallVec;

use self::answer::{Judged, encode};
use self::call::{CallRoom, Planned, Slot};
use self::statistics::{Series, Statistics};
use super::message::Message;
use super::question::Questions;
use super::wire::{RequestMessage, Undecodable, decode, repaired};
use super::{OwnCall, Respond, Span as CallSpan, end, refuse, reply, whole};
use crate::api::Servers;
use crate::api::error::{Code, Refusal};
use crate::core::envoy::{ServiceRules, ServiceSettings};
use crate::core::request::Cost;
use crate::engine::Engine;
use crate::engine::clock::Stopwatch;
use crate::engine::decide::Decisions;
use crate::engine::port::Answer;
use crate::telemetry::Metrics;

/// The state of a daemon that stands in for Envoy's rate limit service.
pub struct Service {
    /// `None`: none were loaded yet.
    rules: ArcSwapOption<InForce>,
    settings: ArcSwap<ServiceSettings>,
    /// Path at which those who watch the daemon find its metrics, besides the usual one.
    metrics_path: Option<String>,
    statistics: Statistics,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Rules, and the statistics of each limit by its place.
pub(super) struct InForce {
    rules: ServiceRules,
    series: Vec<Arc<Series>>,
}

impl Service {
    /// A service without rules, which tells its metrics at this path too.
    #[must_use]
    pub fn new(settings: ServiceSettings, metrics_path: Option<String>, metrics: &Arc<Metrics>) -> Self {
        let (rules, settings) = (ArcSwapOption::empty(), ArcSwap::from_pointee(settings));
        Self { rules, settings, metrics_path, statistics: Statistics::new(metrics) }
    }

    /// Returns whether this path is its own for metrics.
    pub(in crate::api) fn tells_metrics_at(&self, path: &str) -> bool {
        self.metrics_path.as_deref() == Some(path)
    }

    /// Answers by these rules from now on. The engine has their counting rules already.
    pub fn set_rules(&self, rules: ServiceRules) {
        let settings = self.settings.load();
        let series = rules.limits().iter().map(|limit| self.statistics.of_limit(limit, settings.near_limit));
        let series = series.collect();
        self.rules.store(Some(Arc::new(InForce { rules, series })));
        self.statistics.loaded.increment(1);
    }

    /// Counts rules that were refused.
    pub fn count_refused(&self) {
        self.statistics.refused.increment(1);
    }

    /// The rules as its `/rlconfig` tells them: a line each.
    pub(in crate::api) fn rules_text(&self) -> String {
        let Some(in_force) = self.rules.load_full() else { return String::new() };
        let mut lines: Vec<String> =
            in_force.rules.limits().iter().map(|limit| answer::rule_line(limit)).collect();
        lines.sort();
        lines.concat()
    }

    /// Every counter as its `/stats` tells them: a line each.
    pub(in crate::api) fn statistics_text(&self) -> String {
        self.statistics.text()
    }

    fn in_force(&self) -> Result<Arc<InForce>, Refusal> {
        let none = || {
            self.statistics.service_error.increment(1);
            Refusal::new(Code::Unknown, "no rate limit configuration loaded")
        };
        self.rules.load_full().ok_or_else(none)
    }

    /// Refuses what that service refuses.
    fn check(&self, asked: &RequestMessage<'_>) -> Result<(), Refusal> {
        let sentence = if asked.domain.is_empty() {
            "rate limit domain must not be empty"
        } else if asked.descriptors_len == 0 {
            "rate limit descriptor list must not be empty"
        } else {
            return Ok(());
        };
        self.statistics.service_error.increment(1);
        Err(Refusal::new(Code::Unknown, sentence))
    }
}

/// The answer to a message, if nothing has to be waited for.
pub(super) fn answer_now(
    servers: &Servers,
    service: &Service,
    message: &[u8],
) -> Result<Option<Bytes>, Refusal> {
    let (watch, mut room) = (Stopwatch::start(), Vec::new());
    let in_force = service.in_force()?;
    let asked = read(message, &mut room)?;
    service.check(&asked)?;
    let room = CallRoom::of(&asked, &service.settings.load().prefix);
    let planned = call::plan(&in_force.rules, &asked, &room)?;
    if refunds_some(&planned.questions) {
        return Ok(None);
    }
    let decisions = match planned.questions.is_empty() {
        true => Decisions::new(),
        false => match servers.engine.decide(&planned.questions) {
            Answer::Now(decisions) => decisions,
            Answer::Later(_) => return Ok(None),
        },
    };
    let judged = judge(service, &in_force, &asked, &planned, &decisions);
    service.statistics.answered(watch.elapsed());
    Ok(Some(encode(&judged)))
}

/// Answers a call where its message or the store has to be waited for.
pub(super) async fn answer_when_known(call: OwnCall, message: Result<Bytes, Message>, respond: Respond) {
    let OwnCall { servers, way, mut span, .. } = call;
    let Some(service) = &servers.service else { return };
    let bytes = match message {
        Ok(bytes) => Ok(bytes),
        Err(message) => whole(&servers, message).await,
    };
    let answered = match bytes {
        Ok(bytes) => answer_later(&servers, service, &bytes, &mut span).await,
        Err(refusal) => Err(refusal),
    };
    end(span, answered.as_ref().err());
    match answered {
        Ok(answer) => reply(&way, respond, answer.into()),
        Err(refusal) => refuse(&servers, respond, &refusal),
    }
}

async fn answer_later(
    servers: &Servers,
    service: &Service,
    message: &[u8],
    span: &mut CallSpan,
) -> Result<Bytes, Refusal> {
    let (watch, mut room) = (Stopwatch::start(), Vec::new());
    let in_force = service.in_force()?;
    let asked = read(message, &mut room)?;
    let judged = asked_and_judged(servers, span, service, &in_force, &asked, encode).await;
    service.statistics.answered(watch.elapsed());
    judged
}

/// The answer to the same question in JSON, and whether it is denied.
pub(in crate::api) async fn answer_json(
    servers: &Servers,
    service: &Service,
    body: &[u8],
) -> Result<(Vec<u8>, bool), Refusal> {
    let watch = Stopwatch::start();
    let question = json::read(body)?;
    let in_force = service.in_force()?;
    let asked = question.message();
    let written = |judged: &Judged<'_>| (json::write(judged), judged.over);
    let judged = asked_and_judged(servers, &mut None, service, &in_force, &asked, written).await;
    service.statistics.answered(watch.elapsed());
    judged
}

async fn asked_and_judged<T>(
    servers: &Servers,
    span: &mut CallSpan,
    service: &Service,
    in_force: &InForce,
    asked: &RequestMessage<'_>,
    write: impl FnOnce(&Judged<'_>) -> T,
) -> Result<T, Refusal> {
    service.check(asked)?;
    let room = CallRoom::of(asked, &service.settings.load().prefix);
    let planned = call::plan(&in_force.rules, asked, &room)?;
    let decisions = decide(&servers.engine, &planned.questions).await;
    let judged = judge(service, in_force, asked, &planned, &decisions);
    tell(span, &planned, &decisions, &judged);
    Ok(write(&judged))
}

/// Takes the decisions of a call down for its span, as the call was answered: where it passes none denied.
fn tell(span: &mut CallSpan, planned: &Planned<'_>, decisions: &Decisions, judged: &Judged<'_>) {
    let Some(span) = span else { return };
    let lines = planned.slots.iter().zip(&judged.statuses);
    let counted = lines.filter(|(slot, _)| matches!(slot, Slot::Counted(_)));
    for ((_, line), (question, decision)) in counted.zip(planned.questions.iter().zip(decisions)) {
        span.decided(question, decision, !(judged.over && line.over));
    }
}

/// A message as it is, or with texts that are none made readable.
fn read<'b>(message: &'b [u8], room: &'b mut Vec<u8>) -> Result<RequestMessage<'b>, Refusal> {
    match decode(message) {
        Err(Undecodable::Text) => {
            *room = repaired(message)?;
            Ok(decode(room)?)
        }
        asked => Ok(asked?),
    }
}

fn is_refund(cost: Cost) -> bool {
    matches!(cost, Cost::Refund(_))
}

/// Whether some descriptors give back and others do not. Each counts by itself, and the engine takes the
/// questions of one decision together.
fn refunds_some(questions: &Questions<'_>) -> bool {
    let refunds = questions.iter().filter(|question| is_refund(question.cost)).count();
    refunds > 0 && refunds < questions.len()
}

async fn decide(engine: &Engine, questions: &Questions<'_>) -> Decisions {
    if questions.is_empty() {
        return Decisions::new();
    }
    if !refunds_some(questions) {
        return engine.decide(questions).get().await;
    }
    let (back, others): (Vec<usize>, Vec<usize>) = (0..questions.len())
        .partition(|place| questions.get(*place).is_some_and(|question| is_refund(question.cost)));
    let mut decided = SmallVec::<[_; 4]>::new();
    for places in [back, others] {
        let own: Questions<'_> = places.iter().filter_map(|place| questions.get(*place)).cloned().collect();
        decided.extend(places.into_iter().zip(engine.decide(&own).get().await));
    }
    decided.sort_by_key(|(place, _)| *place);
    decided.into_iter().map(|(_, decision)| decision).collect()
}

fn judge<'a>(
    service: &Service,
    in_force: &InForce,
    asked: &RequestMessage<'_>,
    planned: &Planned<'a>,
    decisions: &Decisions,
) -> Judged<'a> {
    let settings = service.settings.load();
    let mut judged = answer::judge(&settings, asked, planned, decisions);
    if judged.over && settings.shadow {
        judged.over = false;
        service.statistics.global_shadow.increment(1);
    }
    if !planned.is_known {
        service.statistics.count_unknown(asked.domain);
    }
    service.statistics.count(in_force, asked, planned, decisions, settings.near_limit);
    judged
}
