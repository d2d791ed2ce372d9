//! `POST /v1/reserve`, `/v1/commit` and `/v1/cancel`: costs that are guessed before and known afterwards.

use http::request::Parts;
use hyper::body::Incoming;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Arriving, ConnectionContext, body, decision, question};
use crate::api::client_identity::ClientIdentity;
use crate::api::error::{Code, Refusal};
use crate::api::headers;
use crate::api::json_object::read_object;
use crate::api::reply::{self, Answered};
use crate::api::wire::{CommittedJson, DecisionJson, read_reservation, reservation_text};
use crate::core::request::Cost;
use crate::core::reservation::{ReservedCost, TTL_DEFAULT};
use crate::core::reservation_terms::OnLapse;
use crate::core::written::parse_span;
use crate::engine::reserve::{new_reservation, reservation_of};

/// The body of a commit. Strict, as a check's is.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct CommitBody {
    /// The text that `POST /v1/reserve` answered.
    #[cfg_attr(test, schemars(length(min = 1)))]
    reservation: String,
    /// Permits that were used.
    actual: u64,
}

/// The body of a cancellation.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct CancelBody {
    /// The text that `POST /v1/reserve` answered.
    #[cfg_attr(test, schemars(length(min = 1)))]
    reservation: String,
}

impl ConnectionContext<'_> {
    /// Answers with the decision and, if permits are reserved, the reservation.
    pub(super) async fn reserve(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        self.servers.knows_rules()?;
        let check = question::read_reserve(&body)?;
        let mut request = check.request();
        let Cost::Take(permits) = request.cost else {
            return Err(Refusal::of_field("amount", "a reservation is of at least one permit"));
        };
        let ttl = match check.ttl() {
            None => TTL_DEFAULT,
            Some(text) => parse_span(text)
                .filter(|ttl| ttl.0 > 0)
                .ok_or_else(|| Refusal::of_field("ttl", "is a time such as \"30s\" or \"5m\", above zero"))?,
        };
        let id = match check.id() {
            Some(id) => reservation_of(id, &request),
            None => new_reservation().map_err(|error| Refusal::new(Code::Internal, error.to_string()))?,
        };
        let reserve = ReservedCost { id, permits, ttl, on_lapse: OnLapse::default() };
        request.cost = Cost::Reserve(reserve);
        let asked = [request];
        let client_identity = ClientIdentity::read(self.servers, &asked);
        let mut asked = client_identity.stand_in(asked)?;
        let engine = &self.servers.engine;
        let [request] = &mut asked;
        if check.is_estimated() {
            let permits = engine.estimate(request).await;
            request.cost = Cost::Reserve(ReservedCost { permits, ..reserve });
        }
        let given = self.give(body.clone(), question::read_reserve, request.cost).await?;
        let decision =
            given.decisions.first().ok_or_else(|| Refusal::new(Code::Internal, "there was no decision"))?;
        if let Some(permits) = given.reservation.as_ref().and_then(|made| made.held_before) {
            request.cost = Cost::Reserve(ReservedCost { permits, ..reserve });
        }
        arriving.decided(request, decision);
        let mut json = DecisionJson::new(request, decision, &engine.name().region);
        if let Some(made) = &given.reservation {
            json.reservation = Some(reservation_text(&made.reservation));
            json.expires_ms = Some(made.ttl.millis_up());
        }
        let mut body = Vec::new();
        decision::write(&mut body, &json);
        let mut reply = reply::json_bytes(body);
        headers::add(reply.headers_mut(), decision, request.cost, engine.now());
        self.answers(given.undelivered);
        Ok(reply)
    }

    /// Charges what was used, and releases the rest.
    pub(super) async fn commit(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        let CommitBody { reservation, actual } = read_object(&body).map_err(|error| {
            let sentence = format!("the body is not {{\"reservation\":…,\"actual\":…}}: {error}");
            Refusal::new(Code::Malformed, sentence)
        })?;
        self.settle_reservation(&reservation, actual).await
    }

    /// Releases all that was reserved.
    pub(super) async fn cancel(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        let CancelBody { reservation } = read_object(&body).map_err(|error| {
            Refusal::new(Code::Malformed, format!("the body is not {{\"reservation\":…}}: {error}"))
        })?;
        self.settle_reservation(&reservation, 0).await
    }

    async fn settle_reservation(self, text: &str, actual: u64) -> Answered {
        let reservation = read_reservation(text).ok_or_else(|| {
            let sentence = "this is no reservation: give back the text that POST /v1/reserve answered";
            Refusal::of_field("reservation", sentence)
        })?;
        let done = self.whole(self.servers.engine.commit(&reservation, actual)).await;
        let done = done.map_err(|refused| Refusal::of_field("reservation", refused.to_string()))?;
        let (committed, lapsed, degraded) = (done.committed, done.lapsed, done.degraded);
        Ok(reply::json(&CommittedJson { committed, lapsed, degraded }))
    }
}
