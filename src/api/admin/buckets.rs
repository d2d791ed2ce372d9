//! `/v1/buckets?rule=…&user=…`: what one bucket holds, here and by what is known of the world; `DELETE` has
//! it count from zero.

use std::sync::Arc;

use super::rules::no_rule;
use super::{AdminCall, AdminRoute};
use crate::api::client_identity::ClientIdentity;
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered};
use crate::api::wire::{BucketJson, ResetJson};
use crate::core::request::{Attributes, Cost, Request};
use crate::core::ruleset::Compiled;
use crate::engine::admin::{self, Change, Role};
use crate::engine::loaded::Loaded;
use crate::engine::status::BucketReset;

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute {
        method: "GET",
        path: "/v1/buckets",
        role: Role::Viewer,
        handler: |call| Box::pin(show(call)),
    },
    AdminRoute {
        method: "DELETE",
        path: "/v1/buckets",
        role: Role::Operator,
        handler: |call| Box::pin(reset(call)),
    },
];

/// Shows the bucket of the rule named by `rule` for the attributes that the other parameters give.
async fn show(call: AdminCall<'_>) -> Answered {
    let asked = BucketQuery::read(&call)?;
    let client_identity = ClientIdentity::read(call.servers, &[asked.request()?]);
    let [request] = client_identity.stand_in([asked.request()?])?;
    let bucket = call.servers.engine.bucket(&asked.rule, &request).await.ok_or_else(no_buckets)?;
    Ok(reply::json(&BucketJson::new(&bucket)))
}

/// Has that bucket count from zero. A store that does not answer is a refusal: nothing is known to have
/// changed.
async fn reset(call: AdminCall<'_>) -> Answered {
    let asked = BucketQuery::read(&call)?;
    let client_identity = ClientIdentity::read(call.servers, &[asked.request()?]);
    let [request] = client_identity.stand_in([asked.request()?])?;
    let reset = call.servers.engine.reset(&asked.rule, &request).await.ok_or_else(no_buckets)?;
    let away = "the region's store does not answer, so the bucket may be as it was: try again";
    let existed = reset.existed.ok_or_else(|| Refusal::new(Code::NoStore, away))?;
    let json = ResetJson::new(&reset, existed);
    let change = Change {
        actor: call.actor.clone(),
        action: "bucket.reset",
        target: target(&reset),
        before: None,
        after: serde_json::to_value(&json).ok(),
        reason: None,
    };
    admin::keep(&*call.servers.admin.ledger, &change).await;
    Ok(reply::json(&json))
}

/// The bucket in words, as in `search-free user=u_42`.
fn target(reset: &BucketReset) -> String {
    let pairs = reset.identity.iter().map(|(name, value)| format!(" {name}={value}"));
    reset.rule.clone() + &pairs.collect::<String>()
}

/// A rule and attributes, as the query names them.
struct BucketQuery {
    rule: String,
    pairs: Vec<(String, String)>,
    loaded: Arc<Loaded>,
}

impl BucketQuery {
    fn read(call: &AdminCall<'_>) -> Result<Self, Refusal> {
        let mut pairs = call.query()?;
        let place = pairs.iter().position(|(name, _)| name == "rule");
        let place = place.ok_or_else(|| Refusal::of_field("rule", "say whose bucket: rule=NAME"))?;
        let (_, rule) = pairs.remove(place);
        Ok(Self { rule, pairs, loaded: call.servers.engine.loaded() })
    }

    fn compiled(&self) -> Result<&Compiled, Refusal> {
        let set = &self.loaded.set;
        set.by_name(&self.rule).map(|compiled| &**compiled).ok_or_else(|| no_rule(set, &self.rule))
    }

    fn request(&self) -> Result<Request<'_>, Refusal> {
        let compiled = self.compiled()?;
        let pairs = self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let attributes: Attributes<'_> = pairs.collect();
        let request = Request::new(&compiled.rule.domain, attributes, Cost::Peek);
        let missing = |name: &&String| request.attribute(name).is_none_or(str::is_empty);
        if let Some(name) = compiled.rule.per.iter().find(missing) {
            let message = format!("the rule has one bucket for each {name:?}: give its value");
            return Err(Refusal::of_field(name.clone(), message));
        }
        Ok(request)
    }
}

fn no_buckets() -> Refusal {
    Refusal::of_field("rule", "this rule counts nothing and has no buckets")
}
