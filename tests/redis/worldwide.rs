//! Worldwide limits where each region has a Redis of its own and several daemons on it, from outside.

use std::net::SocketAddr;

use crate::redis_servers::Server;
use crate::support::authority::Authority;
use crate::support::daemon::Daemon;
use crate::support::{eventually, free_udp};

const REGIONS: [&str; 2] = ["eu-west", "us-east"];
const LIMIT: usize = 400;
const ANN: &[(&str, &str)] = &[("user", "ann")];
const RULES: &str = r#"
[[rules]]
name = "worldwide"
per = ["user"]
algorithm = "fixed_window"
limit = 400
window = "24h"
[rules.global]
mode = "gossip"
"#;

/// Two regions with a Redis each, two daemons on each Redis, all linked.
struct World {
    daemons: Vec<Daemon>,
    _servers: Vec<Server>,
}

impl World {
    fn start() -> Self {
        let authority = Authority::new();
        let servers: Vec<Server> = REGIONS.iter().map(|_| Server::start(&[])).collect();
        let peers: Vec<SocketAddr> = (0..4).map(|_| free_udp()).collect();
        let daemons: Vec<Daemon> = (0..4)
            .map(|index| {
                let (region, node) = (REGIONS[index % 2], format!("{}-{}", REGIONS[index % 2], index / 2));
                let tls = authority.issue(region, &node);
                let config = format!(
                    "region = \"{region}\"\nnode = \"{node}\"\n[listen]\npeer = \"{}\"\n\
                     [store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\nnodes = [\"{}\"]\ntimeout = \"500ms\"\n\
                     [peers]\njoin = [\"{}\"]\ninterval = \"50ms\"\nregions = {REGIONS:?}\n{tls}",
                    peers[index],
                    servers[index % 2].url(),
                    peers[0],
                );
                Daemon::with(RULES, &config, &[])
            })
            .collect();
        for daemon in &daemons {
            eventually("every daemon is linked with the three others", || {
                let regions = daemon.get("/v1/regions").json();
                let peers = regions["peers"].as_array().map_or(&[][..], Vec::as_slice);
                (peers.iter().filter(|peer| peer["connected"] == true).count() == 3).then_some(())
            });
        }
        Self { daemons, _servers: servers }
    }
}

fn believed(daemon: &Daemon) -> usize {
    let used = &daemon.check_cost(ANN, 0)["rules"][0]["global"]["believed_used"];
    used.as_u64().unwrap_or_default().try_into().unwrap()
}

/// Never more than was admitted; what is not told, since it is far from the limit, is in the error bound.
fn all_counted(daemon: &Daemon) -> bool {
    let global = daemon.check_cost(ANN, 0)["rules"][0]["global"].clone();
    let bound: usize = global["error_bound"].as_u64().unwrap_or_default().try_into().unwrap();
    let believed = believed(daemon);
    assert!(believed <= 80, "counted twice: {global}");
    believed + bound >= 80
}

#[test]
fn what_any_daemon_of_a_region_admits_is_counted_once_everywhere() {
    let world = World::start();
    // Each of the four admits its own number, so that a count that is missing or doubled can be told.
    let mut all = 0;
    for (daemon, times) in world.daemons.iter().zip([3, 7, 20, 50]) {
        // A region that a bucket is new to gets what is not its share only when it knows that nobody else
        // needs it.
        let mut admitted = 0;
        eventually("all of them are admitted", || {
            admitted += daemon.admitted(ANN, times - admitted);
            (admitted == times).then_some(())
        });
        all += admitted;
    }
    assert_eq!(all, 80);
    for daemon in &world.daemons {
        eventually("all four are counted, each once", || all_counted(daemon).then_some(()));
    }
    // It stays so: nothing is told a second time under another name.
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(world.daemons.iter().all(all_counted));
    let here = world.daemons[0].get("/v1/buckets?rule=worldwide&user=ann").json();
    let there = world.daemons[1].get("/v1/buckets?rule=worldwide&user=ann").json();
    assert_eq!((here["used"].as_u64(), there["used"].as_u64()), (Some(23), Some(57)), "{here} {there}");
}

#[test]
fn four_daemons_of_two_regions_hold_one_limit() {
    let world = World::start();
    let mut admitted = 0;
    // Slower than the regions tell each other, as gateways over a day would be.
    for round in 0..160 {
        admitted += world.daemons[round % 4].admitted(ANN, 4);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    println!("{admitted} admitted of {LIMIT}");
    assert!((LIMIT * 9 / 10..=LIMIT * 115 / 100).contains(&admitted), "{admitted} admitted of {LIMIT}");
    for daemon in &world.daemons {
        eventually("every daemon refuses", || (daemon.check(ANN)["allowed"] == false).then_some(()));
        eventually("every daemon knows what was admitted", || (believed(daemon) == admitted).then_some(()));
    }
}

#[test]
fn a_daemon_that_is_killed_takes_no_count_along() {
    let mut world = World::start();
    assert_eq!(world.daemons[3].admitted(ANN, 40), 40);
    // What is not told within an interval dies with who admitted it, for the other region: its own has it in
    // Redis.
    for daemon in [0, 2].map(|place| &world.daemons[place]) {
        eventually("the other region has heard of it", || (believed(daemon) == 40).then_some(()));
    }
    drop(world.daemons.remove(3));
    assert_eq!(world.daemons[1].admitted(ANN, 10), 10);
    for daemon in &world.daemons {
        eventually("what it had admitted stays counted", || {
            let believed = believed(daemon);
            println!("{believed} of 50 known, {}", daemon.get("/v1/regions").body);
            (believed == 50).then_some(())
        });
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    for daemon in &world.daemons {
        assert_eq!(believed(daemon), 50, "and not twice");
    }
}
