//! `GET /v1/why`: why a client is limited. Shows what its buckets hold, who used them up, since when, and
//! when they are free. Charges nothing, and works without a database.

use std::sync::Arc;
use std::time::Duration;

use super::hot_json::WhyJson;
use super::parameters::Parameters;
use super::rules::no_rule;
use super::{AdminCall, AdminRoute, aside, turn};
use crate::api::Servers;
use crate::api::client_identity::ClientIdentity;
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered};
use crate::core::audit::Outcome;
use crate::core::request::{ATTRIBUTES_MAX, Attributes, Cost, Request};
use crate::core::rule::DOMAIN_DEFAULT;
use crate::core::time::{Span, Timestamp};
use crate::engine::admin::Role;
use crate::engine::clock::Deadline;
use crate::engine::history::{Decided, DecisionsAsked};

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/why",
    role: Role::Viewer,
    handler: |call| Box::pin(show(call)),
}];

/// Longest wait for what the audit log has. The answer does without it.
const RECORDS_WAIT: Duration = Duration::from_millis(500);
/// Denials of the audit log that are told.
const RECORDS_MAX: u32 = 5;
/// The time that is looked back.
const RECORDS_SPAN: Span = Span::from_secs(24 * 3_600);

/// The client that is asked about.
struct WhyQuery {
    domain: String,
    cost: i64,
    /// The rule whose bucket is told whatever the request matches.
    rule: Option<String>,
    pairs: Vec<(String, String)>,
}

impl WhyQuery {
    fn read(call: &AdminCall<'_>) -> Result<Self, Refusal> {
        let mut given = Parameters(call.query()?);
        let domain = given.take("domain").unwrap_or_else(|| DOMAIN_DEFAULT.to_owned());
        let cost = match given.take("cost") {
            None => 1,
            Some(text) => {
                let cost = text.parse().ok().filter(|cost| *cost >= 0);
                cost.ok_or_else(|| Refusal::of_field("cost", "must be a whole number, 0 or more"))?
            }
        };
        let rule = given.take("rule");
        let Parameters(pairs) = given;
        if pairs.is_empty() && rule.is_none() {
            return Err(Refusal::of_field("user", "say of whom, by attributes such as user=u_42"));
        }
        if pairs.len() > ATTRIBUTES_MAX {
            let message = format!("at most {ATTRIBUTES_MAX} attributes can be given");
            return Err(Refusal::of_field("query", message));
        }
        if let Some((name, _)) = pairs.iter().find(|(name, value)| name.is_empty() || value.is_empty()) {
            return Err(Refusal::of_field(name.clone(), "an attribute needs a name and a value"));
        }
        Ok(Self { domain, cost, rule, pairs })
    }

    fn request(&self) -> Request<'_> {
        let pairs = self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let attributes: Attributes<'_> = pairs.collect();
        Request::new(&self.domain, attributes, Cost::from_signed(self.cost))
    }
}

async fn show(call: AdminCall<'_>) -> Answered {
    let query = WhyQuery::read(&call)?;
    let turn = turn(call.servers).await?;
    let (servers, runtime) = (Arc::clone(call.servers), tokio::runtime::Handle::current());
    aside(move || {
        let _turn = turn;
        runtime.block_on(told(&servers, &query))
    })
    .await?
}

async fn told(servers: &Servers, query: &WhyQuery) -> Answered {
    let asked = [query.request()];
    let client_identity = ClientIdentity::read(servers, &asked);
    let [request] = client_identity.stand_in(asked)?;
    let engine = &servers.engine;
    let rule = query.rule.as_deref();
    let loaded = engine.loaded();
    if let Some(name) = rule.filter(|name| loaded.set.by_name(name).is_none()) {
        return Err(no_rule(&loaded.set, name));
    }
    let why = engine.why(&request, rule).await;
    let why = why.ok_or_else(|| Refusal::new(Code::Internal, "there was no decision"))?;
    let records = records(servers, &request).await;
    Ok(reply::json(&WhyJson::new(&request, &why, records.as_deref(), (engine.name(), engine.now()))))
}

/// The newest denials that the audit log has of this user or key; `None` where it has none at hand.
async fn records(servers: &Servers, request: &Request<'_>) -> Option<Vec<Decided>> {
    let history = servers.admin.history.as_deref()?;
    let now = servers.engine.now();
    let user = request.attribute("user").map(str::to_owned);
    let key = request.attribute("api_key").map(str::to_owned);
    if user.is_none() && key.is_none() {
        return None;
    }
    let asked = DecisionsAsked {
        from: Timestamp(now.micros().saturating_sub(RECORDS_SPAN.micros())),
        to: now + Span::from_secs(3_600),
        // One of them names the client.
        key: key.filter(|_| user.is_none()),
        user,
        address: None,
        rule: None,
        region: None,
        outcomes: vec![Outcome::Denied, Outcome::Blocked],
        cause: None,
        request_id: None,
        limit: RECORDS_MAX,
        after: None,
    };
    Deadline::after(RECORDS_WAIT).wait(history.decisions(&asked)).await.ok()?.ok()
}
