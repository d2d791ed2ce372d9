//! A region of a `gossip` limit whose Redis is emptied, or does not answer for a while, from outside.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::redis_servers::Server;
use crate::support::authority::Authority;
use crate::support::daemon::Daemon;
use crate::support::reservations::{ALGORITHMS, commit, reserve};
use crate::support::{eventually, free_udp};

const REGIONS: [&str; 2] = ["eu-west", "us-east"];
const LIMIT: u64 = 300;

/// A worldwide rule for each algorithm, met by its name. In an hour next to nothing refills.
fn rules() -> String {
    let rule = |algorithm: &str| {
        format!(
            "[[rules]]\nname = \"{algorithm}\"\nmatch = {{ how = \"{algorithm}\" }}\nper = [\"user\"]\n\
             algorithm = \"{algorithm}\"\nlimit = {LIMIT}\nwindow = \"24h\"\n[rules.global]\nmode = \"gossip\"\n"
        )
    };
    ALGORITHMS.map(rule).concat()
}

/// Two regions with a Redis and a daemon each, linked.
struct World {
    daemons: [Daemon; 2],
    servers: [Server; 2],
}

impl World {
    fn start() -> Self {
        let authority = Authority::new();
        let servers = [(); 2].map(|()| Server::start(&[]));
        let peers: [SocketAddr; 2] = [(); 2].map(|()| free_udp());
        let daemons = [0, 1].map(|at| {
            let (region, node) = (REGIONS[at], format!("{}-1", REGIONS[at]));
            let config = format!(
                "region = \"{region}\"\nnode = \"{node}\"\n[listen]\npeer = \"{}\"\n\
                 [store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\nnodes = [\"{}\"]\ntimeout = \"500ms\"\n\
                 [peers]\njoin = [\"{}\"]\ninterval = \"50ms\"\nregions = {REGIONS:?}\n{}",
                peers[at],
                servers[at].url(),
                peers[1 - at],
                authority.issue(region, &node),
            );
            Daemon::with(&rules(), &config, &[])
        });
        for daemon in &daemons {
            eventually("both daemons are linked", || {
                let regions = daemon.get("/v1/regions").json();
                let peers = regions["peers"].as_array().map_or(&[][..], Vec::as_slice);
                peers.iter().any(|peer| peer["connected"] == true).then_some(())
            });
        }
        Self { daemons, servers }
    }

    /// Asks one region for 5 permits until it has admitted so many.
    fn use_up_to(&self, at: usize, how: &str, permits: u64) {
        let mut admitted = 0;
        eventually("so much is admitted", || {
            admitted += if self.ask(at, how)["allowed"] == true { 5 } else { 0 };
            (admitted >= permits).then_some(())
        });
    }

    fn ask(&self, at: usize, how: &str) -> Value {
        self.daemons[at].check_cost(&[("user", "ann"), ("how", how)], 5)
    }

    /// Asks for 5 permits as often as the whole limit has them. Returns how many were admitted, and holds
    /// each answer against what it says itself.
    fn ask_for_all(&self, at: usize, how: &str) -> u64 {
        let mut admitted = 0;
        for _ in 0..LIMIT / 5 {
            let answer = self.ask(at, how);
            let believed = answer["rules"][0]["global"]["believed_used"].as_u64().unwrap();
            if answer["allowed"] == true {
                admitted += 5;
                assert!(believed <= LIMIT, "{how}: allowed, and its own answer says {believed}: {answer}");
            }
        }
        admitted
    }
}

#[test]
fn a_redis_that_comes_back_empty_counts_what_its_region_had_used_from_the_first_decision_on() {
    let mut world = World::start();
    for how in ALGORITHMS {
        world.use_up_to(0, how, 100);
        world.use_up_to(1, how, 100);
        eventually("the first region knows of both", || {
            let look = world.daemons[0].check_cost(&[("user", "ann"), ("how", how)], 0);
            (look["remaining"].as_u64() <= Some(100)).then_some(())
        });
    }
    let [eu, us] = world.servers;
    world.servers = [eu.restart(), us];
    for how in ALGORITHMS {
        eventually("Redis decides again", || (world.ask(0, how)["degraded"] == false).then_some(()));
        let first = world.ask(0, how);
        let used = first["rules"][0]["remaining"].as_u64().unwrap();
        assert!(used <= 100, "{how}: {first}");
        let admitted = world.ask_for_all(0, how);
        assert!(admitted <= 100, "{how}: {admitted} of the 100 that were left");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let admitted = admitted + world.ask_for_all(0, how);
        assert!(admitted <= 100, "{how}: {admitted} of the 100 that were left");
    }
    // And once more, emptied while it runs.
    let used =
        |how: &str| world.daemons[0].get(&format!("/v1/buckets?rule={how}&user=ann")).json()["used"].clone();
    let before = ALGORITHMS.map(used);
    world.servers[0].command(&["FLUSHALL"]).unwrap();
    for (how, before) in ALGORITHMS.into_iter().zip(before) {
        world.ask(0, how);
        assert!(used(how).as_u64() >= before.as_u64(), "{how}: {before} were used, now {}", used(how));
    }
}

#[test]
fn what_is_reserved_while_redis_is_silent_admits_nothing_twice() {
    let world = World::start();
    for how in ["fixed_window", "sliding_window", "token_bucket"] {
        world.use_up_to(0, how, 150);
        world.use_up_to(1, how, 140);
        eventually("the first region knows of both", || {
            let look = world.daemons[0].check_cost(&[("user", "ann"), ("how", how)], 0);
            (look["remaining"].as_u64() <= Some(10)).then_some(())
        });
        world.servers[0].signal("-STOP");
        let held = json!({ "amount": 10, "ttl": "60s" });
        let silent = [(); 3].map(|()| reserve(&world.daemons[0], (how, "ann"), &held));
        world.servers[0].signal("-CONT");
        assert!(silent.iter().all(|one| one["degraded"] == true), "{silent:?}");
        let granted = silent.iter().filter(|one| one["allowed"] == true).count();
        assert!(granted <= 1, "{how}: ten permits are left, and {granted} reservations of ten were granted");
        eventually("Redis decides again", || (world.ask(0, how)["degraded"] == false).then_some(()));
        let mut used = 0;
        for _ in 0..40 {
            let one = reserve(&world.daemons[0], (how, "ann"), &held);
            if one["allowed"] == true {
                used += 5;
                commit(&world.daemons[0], &one, 5);
            }
        }
        assert!(used <= 10, "{how}: {used} of the ten that were left were used");
        // What was granted meanwhile is noted in Redis: its commit gives back what it did not use.
        for one in silent.iter().filter(|one| one["allowed"] == true) {
            assert_eq!(commit(&world.daemons[0], one, 4)["lapsed"], false, "{how}");
        }
    }
}

#[test]
fn what_another_region_charged_is_not_given_back_here_without_a_word() {
    let world = World::start();
    let back = |at: usize, how: &str| world.daemons[at].check_cost(&[("user", "bob"), ("how", how)], -40);
    for how in ["fixed_window", "sliding_window", "sliding_log"] {
        let taken = world.daemons[0].check_cost(&[("user", "bob"), ("how", how)], 40);
        assert_eq!(taken["allowed"], true, "{taken}");
        let refused = back(1, how);
        assert_eq!((&refused["allowed"], &refused["degraded"]), (&json!(false), &json!(false)), "{refused}");
        let returned = back(0, how);
        assert_eq!(returned["allowed"], true, "{returned}");
        assert_eq!(returned["rules"][0]["global"]["believed_used"], 0, "{returned}");
    }
}
