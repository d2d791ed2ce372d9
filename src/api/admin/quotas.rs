//! `GET|PUT /v1/quotas/{rule}`: what each region may spend of a worldwide rule's limit.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::rules::{edit, expected, known_fields, no_rule, tagged};
use super::{AdminCall, AdminRoute};
use crate::api::error::Refusal;
use crate::api::reply::{self, Answered};
use crate::api::wire::rules::QuotasJson;
use crate::core::share::Weights;
use crate::engine::admin::Role;
use crate::engine::rulebook::{Edit, Quota};

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute {
        method: "GET",
        path: "/v1/quotas/{rule}",
        role: Role::Viewer,
        handler: |call| Box::pin(async move { show(&call) }),
    },
    AdminRoute {
        method: "PUT",
        path: "/v1/quotas/{rule}",
        role: Role::Operator,
        handler: |call| Box::pin(put(call)),
    },
];

/// Weights, minimums, and what they come to in permits.
fn show(call: &AdminCall<'_>) -> Answered {
    let (servers, name) = (call.servers, call.param(0));
    let loaded = servers.engine.loaded();
    let compiled = loaded.set.rules().iter().find(|compiled| compiled.rule.name == name);
    let rule = &compiled.ok_or_else(|| no_rule(&loaded.set, name))?.rule;
    let Some(global) = &rule.global else {
        return Err(Refusal::of_field(
            "rule",
            "this rule is not worldwide: each region enforces its limit on its own",
        ));
    };
    let weights = Weights::among(&global.shares, &global.minimums, &servers.engine.regions());
    let limit = u64::from(rule.limit);
    let map = |of: &dyn Fn(&str, u32, u32) -> Option<u64>| -> BTreeMap<String, u64> {
        let parts = weights.parts();
        parts
            .filter_map(|(region, weight, min)| Some((region.to_owned(), of(region, weight, min)?)))
            .collect()
    };
    let body = QuotasJson {
        revision: loaded.revision,
        rule: &rule.name,
        mode: global.mode,
        limit: rule.limit,
        shares: map(&|_, weight, _| Some(u64::from(weight))),
        minimums: map(&|_, _, percent| (percent > 0).then_some(u64::from(percent))),
        permits: map(&|region, _, _| Some(weights.of(limit, region))),
    };
    Ok(tagged(loaded.revision, reply::json(&body)))
}

async fn put(call: AdminCall<'_>) -> Answered {
    let body = call.json()?;
    let expected = expected(&call, &body)?;
    let known = ["shares", "minimums", "revision", "rule", "mode", "limit", "permits"];
    known_fields(&body, &known, |_| "the body knows only `shares`, `minimums` and `revision`".to_owned())?;
    let empty = Map::new();
    let table = |field: &'static str| match body.get(field) {
        None => Ok(&empty),
        Some(Value::Object(table)) => Ok(table),
        Some(_) => Err(Refusal::of_field(field, "must be an object: a number for each region")),
    };
    let (shares, minimums) = (table("shares")?, table("minimums")?);
    if !body.as_object().is_some_and(|body| body.contains_key("shares")) {
        return Err(Refusal::of_field(
            "shares",
            "say what each region weighs: {\"shares\": {\"eu-west\": 40, …}}",
        ));
    }
    if let Some(region) = minimums.keys().find(|region| !shares.contains_key(*region)) {
        let field = format!("minimums.{region}");
        return Err(Refusal::of_field(
            field,
            "this region has no share: give it one, 0 if it is to have its minimum only",
        ));
    }
    let quota = |(region, weight): (&String, &Value)| {
        let weight = weight.as_u64().and_then(|weight| u32::try_from(weight).ok());
        let weight = weight.ok_or_else(|| {
            Refusal::of_field(format!("shares.{region}"), "a share is a whole number from 0 to 4294967295")
        })?;
        let min_percent = match minimums.get(region) {
            None => Some(0),
            Some(percent) => percent
                .as_u64()
                .and_then(|percent| u8::try_from(percent).ok())
                .filter(|percent| *percent <= 100),
        };
        let min_percent = min_percent.ok_or_else(|| {
            Refusal::of_field(
                format!("minimums.{region}"),
                "a minimum is a whole number from 0 to 100, in percent",
            )
        })?;
        Ok(Quota { region: region.clone(), weight, min_percent })
    };
    let quotas = shares.iter().map(quota).collect::<Result<Vec<_>, Refusal>>()?;
    edit(&call, Edit::Quotas { rule: call.param(0).to_owned(), quotas }, expected).await
}
