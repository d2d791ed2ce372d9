//! `POST /v1/check`: may this pass? One question, or a batch that is decided in its order, each on its own.
//! `POST /v1/report`: this was used.

use http::Request;
use http::request::Parts;
use hyper::body::Incoming;

use super::question::{self, Check, Question as Asked};
use super::{Arriving, ConnectionContext, body, decision};
use crate::api::client_identity::ClientIdentity;
use crate::api::headers;
use crate::api::reply::{self, Answered};
use crate::api::wire::DecisionJson;
use crate::core::decision::Decision;
use crate::core::request::Request as Question;
use crate::core::reservation::ReservationId;
use crate::engine::port::Answer;
use crate::engine::reserve::report_of;

/// Room for one decision, in bytes.
const DECISION_BYTES: usize = 384;

impl ConnectionContext<'_> {
    /// Answers one check with its decision and rate-limit headers, or a batch with `decisions`.
    pub(super) async fn check(self, request: Request<Incoming>, arriving: &mut Arriving<'_>) -> Answered {
        let (head, body) = request.into_parts();
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        self.servers.knows_rules()?;
        match question::read(&body)? {
            Asked::One(check) => self.one(&check, None, arriving).await,
            Asked::Batch(checks) => Box::pin(self.batch(&checks, arriving)).await,
        }
    }

    /// Charges what was used already, and answers as to a check.
    pub(super) async fn report(self, head: &Parts, body: Incoming, arriving: &mut Arriving<'_>) -> Answered {
        let body = body::read(self.servers, &head.headers, body).await?;
        arriving.is_whole();
        let check = question::read_report(&body)?;
        let report = check.id().map(|id| report_of(id, &check.request()));
        self.one(&check, report, arriving).await
    }

    async fn one(
        self,
        check: &Check<'_>,
        report: Option<ReservationId>,
        arriving: &mut Arriving<'_>,
    ) -> Answered {
        let engine = &self.servers.engine;
        let asked = [Question { report, ..check.request() }];
        self.may_ask(asked[0].cost)?;
        let client_identity = ClientIdentity::read(self.servers, &asked);
        let asked = client_identity.stand_in(asked)?;
        let decisions = match engine.decide(&asked) {
            Answer::Now(decisions) => decisions,
            Answer::Later(decisions) => self.whole(decisions).await,
        };
        let decisions = engine.held_back(&asked, decisions).await;
        let [request] = &asked;
        let Some(decision) = decisions.first() else { return Ok(reply::json_bytes(b"{}".to_vec())) };
        arriving.decided(request, decision);
        let mut body = Vec::with_capacity(DECISION_BYTES);
        decision::write(&mut body, &DecisionJson::new(request, decision, &engine.name().region));
        let mut reply = reply::json_bytes(body);
        headers::add(reply.headers_mut(), decision, request.cost, engine.now());
        Ok(reply)
    }

    async fn batch(self, checks: &[Check<'_>], arriving: &mut Arriving<'_>) -> Answered {
        let engine = &self.servers.engine;
        let questions: Vec<_> = checks.iter().map(Check::request).collect();
        questions.iter().try_for_each(|question| self.may_ask(question.cost))?;
        let client_identity = ClientIdentity::read(self.servers, &questions);
        let questions = client_identity.stand_in(questions)?;
        let mut body = Vec::with_capacity(checks.len().saturating_mul(DECISION_BYTES));
        body.extend_from_slice(b"{\"decisions\":[");
        let empty = body.len();
        let write = |request: &Question<'_>, decision: &Decision| {
            arriving.decided(request, decision);
            if body.len() > empty {
                body.push(b',');
            }
            decision::write(&mut body, &DecisionJson::new(request, decision, &engine.name().region));
        };
        self.whole(engine.decide_each(&questions, write)).await;
        body.extend_from_slice(b"]}");
        Ok(reply::json_bytes(body))
    }
}
