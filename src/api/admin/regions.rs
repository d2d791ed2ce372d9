//! `GET /v1/regions`: every daemon of the cluster, as seen from this one.

use super::AdminRoute;
use crate::api::http::{Reply, reply};
use crate::api::wire::{
    ChangingJson, ErrorBoundJson, NoticeJson, PeerJson, RegionsJson, RightsJson, StoreJson,
};
use crate::api::{Readiness, Servers};
use crate::engine::admin::Role;

pub(super) const ROUTES: &[AdminRoute] = &[AdminRoute {
    method: "GET",
    path: "/v1/regions",
    role: Role::Viewer,
    handler: |call| Box::pin(async move { Ok(show(call.doors)) }),
}];

/// The region's store and its servers, members, links, lag, who is cut off, and how far each worldwide rule
/// may be off.
pub(super) fn show(doors: &Servers) -> Reply {
    let world = doors.engine.world();
    let name = doors.engine.name();
    let health = doors.engine.store().health();
    let bounds = world.error_bounds.iter();
    let standings = doors.engine.shares_standing();
    let changing = standings.iter().filter(|standing| !standing.settled);
    let notices = doors.engine.notices();
    reply::json(&RegionsJson {
        region: &name.region,
        node: &name.node,
        live: doors.readiness() == Readiness::Serving,
        store: StoreJson::new(&health),
        configured: &doors.admin.regions,
        peers: world.peers.iter().map(PeerJson::new).collect(),
        cut_off: &world.cut_off,
        rules: bounds
            .map(|(rule, bound, because)| ErrorBoundJson { rule, error_bound: *bound, because })
            .collect(),
        rights: world.rights.iter().map(RightsJson::new).collect(),
        changing: changing
            .map(|standing| ChangingJson {
                rule: &standing.rule.name,
                first: standing.waits,
                waiting_for: &standing.waiting_for,
            })
            .collect(),
        notices: notices
            .iter()
            .map(|notice| NoticeJson { about: notice.kind.as_str(), text: &notice.text })
            .collect(),
    })
}
