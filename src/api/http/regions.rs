//! `GET /v1/regions`: every daemon of the cluster, as seen from this one.

use super::{Reply, reply};
use crate::api::wire::{ErrorBoundJson, PeerJson, RegionsJson, StoreJson};
use crate::api::{Doors, Readiness};

/// The region's store and its servers, members, links, lag, who is cut off, and how far each worldwide rule may be off.
pub(super) fn show(doors: &Doors) -> Reply {
    let world = doors.engine.world();
    let name = doors.engine.name();
    let health = doors.engine.store().health();
    let bounds = world.error_bounds.iter();
    reply::json(&RegionsJson {
        region: &name.region,
        node: &name.node,
        live: doors.readiness() == Readiness::Serving,
        store: StoreJson::new(&health),
        peers: world.peers.iter().map(PeerJson::new).collect(),
        cut_off: &world.cut_off,
        rules: bounds.map(|(rule, bound)| ErrorBoundJson { rule, error_bound: *bound }).collect(),
    })
}
