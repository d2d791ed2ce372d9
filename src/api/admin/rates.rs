//! `GET /v1/rates`: requests, denials, degraded answers and cost by time, of the last hour or day.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::parameters::Parameters;
use super::{AdminCall, AdminRoute};
use crate::api::error::Refusal;
use crate::api::reply::{self, Answered};
use crate::core::rates::{RateSeries, RateSpan, RequestSums};
use crate::core::regions::NodeName;
use crate::core::written::format_moment;
use crate::engine::admin::Role;

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/rates",
    role: Role::Viewer,
    handler: |call| Box::pin(show(call)),
}];

/// Requests by time, as one daemon decided them. The lists have an entry for each step, the oldest first; the
/// last step is the present one.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Rates"))]
pub(super) struct RatesJson<'a> {
    /// The region of the daemon that answers.
    region: &'a str,
    /// Its own name.
    node: &'a str,
    /// The time that is told.
    #[cfg_attr(test, schemars(extend("enum" = RateSpan::ALL.map(|(name, _)| name))))]
    span: &'static str,
    /// Begin of the first step, RFC 3339.
    from: String,
    /// The length of a step.
    step_ms: u64,
    /// The part of each step that this daemon saw: a sum divided by it is a rate. 0: it did not run, or its
    /// clock was set, and the sums of the step are null.
    seen_ms: Vec<u64>,
    /// Requests. Each counts once, however many rules decide it.
    requests: Vec<Option<u64>>,
    /// Those that were denied.
    denied: Vec<Option<u64>>,
    /// Those that a failure policy answered.
    degraded: Vec<Option<u64>>,
    /// Permits charged; where rules charge a request differently, the most.
    cost: Vec<Option<u64>>,
}

impl<'a> RatesJson<'a> {
    fn new(span: RateSpan, series: &RateSeries, name: &'a NodeName) -> Self {
        let each = |of: fn(RequestSums) -> u64| -> Vec<Option<u64>> {
            series.points.iter().map(|point| point.map(|point| of(point.sums))).collect()
        };
        let seen = series.points.iter().map(|point| point.map_or(0, |point| point.seen.millis_up()));
        Self {
            region: &name.region,
            node: &name.node,
            span: span.as_str(),
            from: format_moment(series.from),
            step_ms: series.step.millis_up(),
            seen_ms: seen.collect(),
            requests: each(|sums| sums.requests),
            denied: each(|sums| sums.denied),
            degraded: each(|sums| sums.degraded),
            cost: each(|sums| sums.cost),
        }
    }
}

async fn show(call: AdminCall<'_>) -> Answered {
    let mut given = Parameters(call.query()?);
    let span = match given.take("span") {
        None => RateSpan::Hour,
        Some(text) => RateSpan::ALL
            .into_iter()
            .find_map(|(name, span)| (name == text).then_some(span))
            .ok_or_else(|| Refusal::of_field("span", "must be hour or day"))?,
    };
    given.finish()?;
    let engine = &call.servers.engine;
    Ok(reply::json(&RatesJson::new(span, &engine.rates(span), engine.name())))
}
