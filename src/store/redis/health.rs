//! The store as its operator sees it: every server, what it is for, and whether it is asked.

use std::sync::Arc;

use super::breaker::Phase;
use super::node::Node;
use super::topology::Places;
use crate::engine::status::{ServerHealth, StoreHealth, StoreState};

/// The word for a breaker.
const fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Closed => "closed",
        Phase::HalfOpen => "half_open",
        Phase::Open => "open",
    }
}

/// How the servers are, as last seen.
pub(super) fn of(places: &Places) -> StoreHealth {
    let map = places.map();
    let closed = map.nodes().iter().filter(|node| node.phase() == Phase::Closed).count();
    let state = match closed {
        0 => StoreState::Down,
        all if all == map.nodes().len() && map.is_whole() => StoreState::Ok,
        _ => StoreState::Degraded,
    };
    let mut servers: Vec<ServerHealth> =
        map.nodes().iter().map(|node| server(node, "primary", Some(word(node.phase())))).collect();
    let standing_by = |address: &String| ServerHealth {
        address: address.clone(),
        role: "replica",
        breaker: None,
        rtt: None,
        error: None,
        warning: None,
    };
    servers.extend(map.replicas().iter().map(standing_by));
    let told = |adviser: &&Arc<Node>| servers.iter().all(|server| server.address != adviser.address);
    let advisers: Vec<ServerHealth> = places
        .advisers()
        .iter()
        .filter(told)
        .map(|adviser| server(adviser, places.topology().adviser(), None))
        .collect();
    servers.extend(advisers);
    StoreHealth { state, topology: Some(places.topology().word()), servers }
}

fn server(node: &Node, role: &'static str, breaker: Option<&'static str>) -> ServerHealth {
    ServerHealth {
        address: node.address.clone(),
        role,
        breaker,
        rtt: node.notes.rtt(),
        error: node.newest_trouble(),
        warning: node.notes.warning(),
    }
}
