//! The store as its operator sees it: every server, what it is for, whether it is asked, and what is wrong.

use std::sync::Arc;

use super::client::breaker::Phase;
use super::policy::daemons::{Daemons, listed_apart};
use super::servers::map::Map;
use super::servers::node::Node;
use super::servers::topology::Places;
use super::settings::Topology;
use crate::engine::status::{ServerHealth, StoreHealth, StoreState};

/// The word for a breaker.
const fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Closed => "closed",
        Phase::HalfOpen => "half_open",
        Phase::Open => "open",
    }
}

/// Returns how the servers are, as last seen.
pub(super) fn of(places: &Places, daemons: &Daemons) -> StoreHealth {
    let map = places.map();
    let closed = map.nodes().iter().filter(|node| node.phase() == Phase::Closed).count();
    let mut problems: Vec<String> = map.nodes().iter().flat_map(|node| troubles(node)).collect();
    problems.extend(unplaced(&map, places.topology()));
    let mut well = closed == map.nodes().len() && problems.is_empty();
    if places.topology() == Topology::Sentinel {
        let sentinels = places.advisers();
        let troubled = sentinels.iter().map(|sentinel| troubles(sentinel));
        let troubled: Vec<Vec<String>> = troubled.filter(|troubles| !troubles.is_empty()).collect();
        // Without any sentinel a failover would not be noticed.
        well &= troubled.len() < sentinels.len();
        problems.extend(troubled.into_iter().flatten());
    }
    problems.extend(listed_apart(&daemons.apart()));
    let state = match closed {
        0 => StoreState::Down,
        _ if well => StoreState::Ok,
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
    let topology = Some(places.topology().word());
    StoreHealth { state, topology, servers, daemons: Some(daemons.count()), problems }
}

fn troubles(node: &Node) -> Vec<String> {
    node.troubles().into_iter().map(|trouble| format!("{}: {}", node.address, trouble.text)).collect()
}

/// Returns what is wrong with the map itself.
fn unplaced(map: &Map, topology: Topology) -> Option<String> {
    if map.nodes().is_empty() {
        let sentence = match topology {
            Topology::Sentinel => "no sentinel names a primary",
            _ => "no server of the cluster answers",
        };
        return Some(sentence.to_owned());
    }
    (!map.is_whole()).then(|| "some slots of the cluster have no server".to_owned())
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
