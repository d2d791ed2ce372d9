//! `POST /v1/explain`: what would be decided, and why. Charges nothing.
//!
//! It looks at every rule of the domain, so it is for operators, away from the threads that decide, and two
//! at a time.

use std::sync::Arc;

use http::request::Parts;
use hyper::body::Incoming;

use super::{Arriving, ConnectionContext, body, question};
use crate::api::Servers;
use crate::api::admin;
use crate::api::client_identity::ClientIdentity;
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered};
use crate::api::wire::{ConsideredJson, DecisionJson, ExplanationJson};
use crate::core::ruleset::Reason;
use crate::engine::admin::Role;

/// Most rules of which an answer tells. Rules that decide come first, then those that match, then as many
/// others as fit.
const CONSIDERED_MAX: usize = 1_000;

impl ConnectionContext<'_> {
    /// Answers with the decision and the rules of the domain.
    pub(super) async fn explain(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let now = self.servers.engine.now();
        self.servers.admin.guard.admit(&head.headers, self.peer, Role::Viewer, now)?;
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        let turn = admin::turn(self.servers).await?;
        let (servers, runtime) = (Arc::clone(self.servers), tokio::runtime::Handle::current());
        admin::aside(move || {
            let _turn = turn;
            runtime.block_on(explained(&servers, &body))
        })
        .await?
    }
}

async fn explained(servers: &Servers, body: &[u8]) -> Answered {
    let check = question::read_one(body)?;
    let asked = [check.request()];
    let client_identity = ClientIdentity::read(servers, &asked);
    let asked = client_identity.stand_in(asked)?;
    let [request] = asked;
    let engine = &servers.engine;
    let explanation = engine.explain(&request, CONSIDERED_MAX).await;
    let explanation = explanation.ok_or_else(|| Refusal::new(Code::Internal, "there was no decision"))?;
    let considered = explanation.considered.iter().map(|(rule, reason)| {
        let (outcome, why) = words(reason);
        ConsideredJson { rule, outcome, why }
    });
    Ok(reply::json(&ExplanationJson {
        considered: considered.collect(),
        left_out: explanation.left_out,
        decision: DecisionJson::new(&request, &explanation.decision, &engine.name().region),
    }))
}

/// One word of a fixed list, and a sentence.
fn words(reason: &Reason) -> (&'static str, String) {
    match reason {
        Reason::Decides => ("decides", "It matches and decides.".to_owned()),
        Reason::Outranked(by) => {
            ("outranked", format!("It matches, but {by:?} of the same group comes first."))
        }
        Reason::Exempted(by) => ("exempted", format!("It matches, but {by:?} exempts the request.")),
        Reason::Lacks(attribute) => ("lacks", format!("The request has no attribute {attribute:?}.")),
        Reason::Differs { attribute, value } => {
            ("differs", format!("The request's {attribute:?} is {value:?}, which the rule does not match."))
        }
        Reason::Surplus(attribute) => (
            "surplus",
            format!("The rule is exact and does not name the attribute {attribute:?} that the request has."),
        ),
        Reason::Disabled => ("disabled", "It is switched off.".to_owned()),
        Reason::HoldsOnly => (
            "holds_only",
            "It matches, but counts requests in flight: only POST /v1/acquire asks it.".to_owned(),
        ),
    }
}
