//! `POST /v1/acquire`, `/v1/renew` and `/v1/release`: requests in flight.
//!
//! An acquisition is decided as a check is, and besides asks the `concurrency` rules, which no check asks.
//! A lease names what it then holds; any daemon on the same store takes it back.

use http::request::Parts;
use hyper::body::Incoming;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Arriving, ConnectionContext, body, decision, question};
use crate::api::error::{Code, Refusal};
use crate::api::headers;
use crate::api::json_object::read_object;
use crate::api::reply::{self, Answered};
use crate::api::wire::{DecisionJson, ReleasedJson, RenewedJson, read_lease};
use crate::core::hold::{Hold, HoldStep};
use crate::core::request::Cost;
use crate::engine::hold::{holder_of, new_holder};

/// The body of what is done with a lease.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(rename = "Lease"))]
pub(in crate::api) struct LeaseBody {
    /// The text that `POST /v1/acquire` answered.
    #[cfg_attr(test, schemars(length(min = 1)))]
    lease: String,
}

impl ConnectionContext<'_> {
    /// Answers with the decision and, if places are held, their lease.
    pub(super) async fn acquire(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        self.servers.knows_rules()?;
        let check = question::read_named(&body)?;
        let mut request = check.request();
        let places = match request.cost {
            Cost::Take(places) => places,
            Cost::Refund(_) => {
                let sentence = "places are given back with POST /v1/release, not by a negative cost";
                return Err(Refusal::of_field("cost", sentence));
            }
            Cost::Peek | Cost::Hold(_) | Cost::Report(_) | Cost::Reserve(_) | Cost::Commit(_) => 0,
        };
        let holder = match check.id() {
            Some(id) => holder_of(id, &request),
            None => new_holder().map_err(|error| Refusal::new(Code::Internal, error.to_string()))?,
        };
        request.cost = Cost::Hold(Hold { step: HoldStep::Acquire, holder, places });
        let given = self.give(body.clone(), question::read_named, request.cost).await?;
        let mut asked = [request];
        let engine = &self.servers.engine;
        let decisions = engine.held_back(&asked, given.decisions).await;
        let [request] = &mut asked;
        let decision =
            decisions.first().ok_or_else(|| Refusal::new(Code::Internal, "there was no decision"))?;
        if let Some(places) = decision.lease.as_ref().and_then(|leased| leased.held_before) {
            request.cost = Cost::Hold(Hold { step: HoldStep::Acquire, holder, places });
        }
        arriving.decided(request, decision);
        let mut body = Vec::new();
        decision::write(&mut body, &DecisionJson::new(request, decision, &engine.name().region));
        let mut reply = reply::json_bytes(body);
        headers::add(reply.headers_mut(), decision, request.cost, engine.now());
        self.answers(given.undelivered);
        Ok(reply)
    }

    /// Renews or releases what a lease names.
    pub(super) async fn step(
        self,
        head: &Parts,
        body: Incoming,
        arriving: &mut Arriving<'_>,
        step: HoldStep,
    ) -> Answered {
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        let asked: LeaseBody = read_object(&body).map_err(|error| {
            Refusal::new(Code::Malformed, format!("the body is not {{\"lease\":…}}: {error}"))
        })?;
        let lease = read_lease(&asked.lease).ok_or_else(|| {
            Refusal::of_field("lease", "this is no lease: give back the text that POST /v1/acquire answered")
        })?;
        let stepped = self.whole(self.servers.engine.step(&lease, step)).await;
        let degraded = stepped.degraded;
        Ok(if step == HoldStep::Renew {
            let expires_ms = stepped.held.then(|| stepped.hold.millis_up());
            reply::json(&RenewedJson { renewed: stepped.held, expires_ms, degraded })
        } else {
            reply::json(&ReleasedJson { released: stepped.held, degraded })
        })
    }
}
