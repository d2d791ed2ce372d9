//! Decisions that give places or permits: they are made whole even if the client leaves meanwhile, so that
//! what they gave is known and can be given back.

use std::sync::Arc;

use hyper::body::Bytes;
use tokio::sync::oneshot;

use super::ConnectionContext;
use super::question::Check;
use crate::api::Servers;
use crate::api::client_identity::ClientIdentity;
use crate::api::delivery::{Deliveries, Given, Undelivered};
use crate::api::error::{Code, Refusal};
use crate::core::request::Cost;
use crate::engine::decide::Decisions;
use crate::engine::reserve::MadeReservation;

/// Reads the one check of a body.
pub(super) type ReadCheck = for<'b> fn(&'b [u8]) -> Result<Check<'b>, Refusal>;

/// A decision with what it gives.
pub(super) struct GivenDecision {
    pub(super) decisions: Decisions,
    pub(super) reservation: Option<MadeReservation>,
    /// Given back when dropped. `None` also where the caller named the request: it may be asking again under
    /// that name by now, and then has it.
    pub(super) undelivered: Option<Undelivered>,
}

impl ConnectionContext<'_> {
    /// Decides what a body asks for at this cost.
    pub(super) async fn give(
        self,
        body: Bytes,
        read: ReadCheck,
        cost: Cost,
    ) -> Result<GivenDecision, Refusal> {
        let (tell, told) = oneshot::channel();
        let (servers, deliveries) = (Arc::clone(self.servers), Arc::clone(self.deliveries));
        tokio::spawn(async move {
            // The client that waits may be gone: what was given is dropped with it, and so given back.
            drop(tell.send(given(&servers, &deliveries, &body, read, cost).await));
        });
        told.await.map_err(|_| Refusal::new(Code::Internal, "the decision broke off"))?
    }

    /// The answer to this request gives this.
    pub(super) fn answers(self, undelivered: Option<Undelivered>) {
        if let Some(undelivered) = undelivered {
            self.deliveries.answers(self.call, undelivered);
        }
    }
}

async fn given(
    servers: &Servers,
    deliveries: &Arc<Deliveries>,
    body: &[u8],
    read: ReadCheck,
    cost: Cost,
) -> Result<GivenDecision, Refusal> {
    let check = read(body)?;
    let mut request = check.request();
    request.cost = cost;
    let asked = [request];
    let client_identity = ClientIdentity::read(servers, &asked);
    let asked = client_identity.stand_in(asked)?;
    let engine = &servers.engine;
    let mut decisions = engine.decide(&asked).get().await;
    let (reservation, given) = match cost {
        Cost::Reserve(_) => {
            let made = engine.reservation(&mut decisions);
            let given = made.as_ref().map(|made| Given::Reservation(made.reservation.clone()));
            (made, given)
        }
        _ => (None, Given::places(&decisions).map(Given::Places)),
    };
    let undelivered = given.filter(|_| check.id().is_none()).map(|given| deliveries.hold(given));
    Ok(GivenDecision { decisions, reservation, undelivered })
}
