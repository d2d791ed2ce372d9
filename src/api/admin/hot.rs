//! `GET /v1/hot`: who asks most, lately. The heaviest buckets and rules, as this daemon counted them.

use std::sync::Arc;

use super::hot_json::HotJson;
use super::parameters::Parameters;
use super::rules::no_rule;
use super::{AdminCall, AdminRoute, aside, turn};
use crate::api::error::Refusal;
use crate::api::reply::{self, Answered};
use crate::engine::admin::Role;
use crate::engine::hot::{HotAsked, HotBy};

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/hot",
    role: Role::Viewer,
    handler: |call| Box::pin(show(call)),
}];

async fn show(call: AdminCall<'_>) -> Answered {
    let mut given = Parameters(call.query()?);
    let by = match given.take("by") {
        None => HotBy::Denied,
        Some(text) => HotBy::ALL
            .into_iter()
            .find_map(|(name, by)| (name == text).then_some(by))
            .ok_or_else(|| Refusal::of_field("by", "must be denied, requests or cost"))?,
    };
    let rule = given.take("rule");
    let limit = usize::try_from(given.limit()?).unwrap_or(usize::MAX);
    given.finish()?;
    let turn = turn(call.servers).await?;
    let servers = Arc::clone(call.servers);
    aside(move || {
        let _turn = turn;
        let asked = HotAsked { by, rule, limit };
        let engine = &servers.engine;
        let unknown = || no_rule(&engine.loaded().set, asked.rule.as_deref().unwrap_or_default());
        let view = engine.hot(&asked).ok_or_else(unknown)?;
        Ok(reply::json(&HotJson::new(&view, by, engine.name())))
    })
    .await?
}
