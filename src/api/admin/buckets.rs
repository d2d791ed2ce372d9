//! `GET /v1/buckets?rule=…&user=…`: what one bucket holds, here and by what is known of the world.

use super::rules::no_rule;
use super::{AdminRoute, Call};
use crate::api::error::Refusal;
use crate::api::http::{Answered, reply};
use crate::api::wire::BucketJson;
use crate::core::request::{Attributes, Cost, Request};
use crate::engine::admin::Role;

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/buckets",
    role: Role::Viewer,
    handler: |call| Box::pin(show(call)),
}];

/// Shows the bucket of the rule named by `rule` for the attributes that the other parameters give.
async fn show(call: Call<'_>) -> Answered {
    let (doors, pairs) = (call.doors, call.query()?);
    let rule = pairs.iter().find(|(name, _)| name == "rule").map(|(_, value)| value.as_str());
    let rule = rule.ok_or_else(|| Refusal::of_field("rule", "say whose bucket: rule=NAME"))?;
    let loaded = doors.engine.loaded();
    let compiled = loaded.set.rules().iter().find(|compiled| compiled.rule.name == rule);
    let compiled = compiled.ok_or_else(|| no_rule(rule))?;
    let attributes: Attributes<'_> = pairs
        .iter()
        .filter(|(name, _)| name != "rule")
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let request = Request { domain: &compiled.rule.domain, attributes, cost: Cost::Peek, limit: None };
    let missing = compiled.rule.per.iter().find(|name| request.attribute(name).is_none_or(str::is_empty));
    if let Some(name) = missing {
        let message = format!("the rule has one bucket for each {name:?}: give its value");
        return Err(Refusal::of_field(name.clone(), message));
    }
    let bucket = doors.engine.bucket(rule, &request).await;
    let bucket =
        bucket.ok_or_else(|| Refusal::of_field("rule", "this rule counts nothing and has no buckets"))?;
    Ok(reply::json(&BucketJson::new(&bucket)))
}
