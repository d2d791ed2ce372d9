//! Several real daemons, each a region of its own, hold one limit over QUIC.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use tempfile::TempDir;

use super::support::command::run;
use super::support::daemon::Daemon;
use super::support::{eventually, free_tcp, free_udp};

pub(super) const REGIONS: [&str; 3] = ["eu-west", "us-east", "ap-south"];
const LIMIT: usize = 60;
const ANN: &[(&str, &str)] = &[("user", "ann")];

const RULES: &str = r#"
[[rules]]
name = "worldwide"
per = ["user"]
algorithm = "fixed_window"
limit = 60
window = "24h"
[rules.global]
mode = "gossip"
"#;

/// A cluster's certificates.
pub(super) struct Authority(TempDir);

impl Authority {
    pub(super) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let ran = run(folder.path(), &["cert", "ca", "--out", "ca"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        Self(folder)
    }

    /// Starts a daemon of this region with a certificate of this authority.
    fn daemon(&self, region: &str, peer: SocketAddr, join: &[SocketAddr]) -> Daemon {
        self.node(region, &format!("{region}-1"), peer, join)
    }

    /// Another daemon of a region that has one.
    fn second(&self, region: &str, peer: SocketAddr, join: &[SocketAddr]) -> Daemon {
        self.node(region, &format!("{region}-2"), peer, join)
    }

    fn node(&self, region: &str, node: &str, peer: SocketAddr, join: &[SocketAddr]) -> Daemon {
        Daemon::with(RULES, &self.config(region, node, peer, join), &[])
    }

    /// The configuration of a node, whose certificate is issued here.
    pub(super) fn config(&self, region: &str, node: &str, peer: SocketAddr, join: &[SocketAddr]) -> String {
        let issue = ["cert", "issue", "--ca", "ca", "--region", region, "--node", node, "--out", node];
        let ran = run(self.0.path(), &issue);
        assert_eq!(ran.code, 0, "{ran:?}");
        let file = |name: &str| self.0.path().join(name).display().to_string();
        let join: Vec<_> = join.iter().map(ToString::to_string).collect();
        format!(
            "region = \"{region}\"\nnode = \"{node}\"\n[listen]\npeer = \"{peer}\"\n\
             [peers]\njoin = {join:?}\ninterval = \"50ms\"\nregions = {REGIONS:?}\n\
             [peers.tls]\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n",
            file("ca/ca.pem"),
            file(&format!("{node}/node.pem")),
            file(&format!("{node}/node.key")),
        )
    }

    /// One daemon a region, all connected.
    fn world(&self) -> Vec<Daemon> {
        let peers: Vec<_> = REGIONS.iter().map(|_| free_udp()).collect();
        let daemons: Vec<_> = REGIONS
            .iter()
            .zip(&peers)
            .map(|(region, peer)| self.daemon(region, *peer, &peers[..1]))
            .collect();
        for daemon in &daemons {
            eventually("every daemon sees the two others", || (connected(daemon) == 2).then_some(()));
        }
        daemons
    }
}

/// How many other daemons this one is connected with.
pub(super) fn connected(daemon: &Daemon) -> usize {
    let regions = daemon.get("/v1/regions").json();
    let peers = regions["peers"].as_array().map_or(&[][..], Vec::as_slice);
    peers.iter().filter(|peer| peer["connected"] == true).count()
}

fn believed(daemon: &Daemon) -> u64 {
    daemon.check_cost(ANN, 0)["rules"][0]["global"]["believed_used"].as_u64().unwrap_or_default()
}

#[test]
fn three_regions_hold_one_limit() {
    let world = Authority::new();
    let daemons = world.world();
    let mut admitted = 0;
    // Slower than the regions tell each other, as gateways over a minute would be.
    for round in 0..40 {
        admitted += daemons[round % 3].admitted(ANN, 3);
        std::thread::sleep(Duration::from_millis(25));
    }
    // What one region admits while the last counts are on their way may come on top.
    assert!((LIMIT * 9 / 10..=LIMIT * 115 / 100).contains(&admitted), "{admitted} admitted of {LIMIT}");
    for daemon in &daemons {
        eventually("every region refuses", || (daemon.check(ANN)["allowed"] == false).then_some(()));
    }
}

#[test]
fn what_one_region_admits_the_others_count() {
    let world = Authority::new();
    let daemons = world.world();
    assert_eq!(daemons[0].admitted(ANN, 20), 20);
    for daemon in &daemons {
        eventually("the world is believed to have used twenty", || (believed(daemon) == 20).then_some(()));
    }
}

#[test]
fn usage_says_what_all_regions_used_beside_what_this_one_did() {
    let world = Authority::new();
    let daemons = world.world();
    assert_eq!(daemons[0].admitted(ANN, 12), 12);
    // Until the others have heard of it a region has no more than a slice.
    let mut admitted = 0;
    eventually("another region admits three", || {
        admitted += daemons[1].admitted(ANN, 3 - admitted);
        (admitted == 3).then_some(())
    });
    let quota = |daemon: &Daemon| daemon.get("/v1/usage?user=ann").json()["quotas"][0].clone();
    eventually("both regions' use is known", || (quota(&daemons[1])["used_worldwide"] == 15).then_some(()));
    assert_eq!(quota(&daemons[1])["used"], 3);
    let told = daemons[1].run(&["usage", "--user", "ann"]).out;
    let row = told.lines().find(|line| line.trim_start().starts_with("worldwide")).unwrap_or_default();
    let numbers: Vec<&str> = row.split_whitespace().skip(2).take(2).collect();
    assert!(told.contains("used here") && numbers == ["3", "15"], "{told}");
}

#[test]
fn why_says_which_regions_used_a_limit_up() {
    let world = Authority::new();
    let daemons = world.world();
    assert_eq!(daemons[0].admitted(ANN, 20), 20);
    // Until all is used up a refusal may be of the moment: a region that asks anew is given a part of the
    // rest.
    eventually("the regions use the whole limit up", || {
        daemons.iter().for_each(|daemon| drop(daemon.check(ANN)));
        daemons.iter().all(|daemon| believed(daemon) >= LIMIT as u64).then_some(())
    });
    assert_eq!(daemons[1].check(ANN)["allowed"], false);
    let bucket = eventually("what the first region used is told", || {
        let why = daemons[1].get("/v1/why?user=ann").json();
        assert_eq!(why["limited"], true, "{why}");
        let bucket = why["buckets"][0].clone();
        let used = |region: &str| bucket["used_by"][region].as_u64().unwrap_or_default();
        let known = used("eu-west") >= 20 && REGIONS.into_iter().map(used).sum::<u64>() >= LIMIT as u64;
        known.then_some(bucket)
    });
    assert_eq!(bucket["mode"], "gossip");
    assert_eq!(bucket["used_by"]["us-east"], bucket["used"], "{bucket}");
    assert!(bucket["lately"]["denied_since"].is_string(), "{bucket}");
}

#[test]
fn a_region_that_leaves_is_noticed_and_comes_back() {
    let world = Authority::new();
    let mut daemons = world.world();
    let mut gone = daemons.pop().unwrap();
    assert_eq!(gone.terminate().code(), Some(0), "{}", gone.log());
    for daemon in &daemons {
        eventually("the one that left is not connected", || (connected(daemon) == 1).then_some(()));
    }
    assert_eq!(daemons[0].check(ANN)["allowed"], true, "the others go on");
}

#[test]
fn a_second_daemon_of_a_region_is_warned_about() {
    let world = Authority::new();
    let peer = free_udp();
    let first = world.daemon("eu-west", peer, &[]);
    let second = world.second("eu-west", free_udp(), &[peer]);
    eventually("one of them says that each counts for itself", || {
        [&first, &second].iter().any(|daemon| daemon.log().contains("WARN")).then_some(())
    });
}

#[test]
fn peers_without_certificates_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let (http, grpc, peer) = (free_tcp().to_string(), free_tcp().to_string(), free_udp().to_string());
    let ran = run(
        folder.path(),
        &["serve", "--http", &http, "--grpc", &grpc, "--peer", &peer, "--join", "127.0.0.1:7946"],
    );
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.both().contains("tidegate cert"), "{ran:?}");
}

#[test]
fn a_certificate_of_another_authority_does_not_get_in() {
    let (world, stranger) = (Authority::new(), Authority::new());
    let peer = free_udp();
    let member = world.daemon("eu-west", peer, &[]);
    let other = stranger.daemon("us-east", free_udp(), &[peer]);
    let rightful = world.daemon("ap-south", free_udp(), &[peer]);
    eventually("a member of the cluster gets in", || (connected(&rightful) == 1).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((connected(&member), connected(&other)), (1, 0));
    assert_eq!(member.check(ANN)["allowed"], true);
}

#[test]
fn datagrams_from_outside_do_nothing() {
    let world = Authority::new();
    let peer = free_udp();
    let mut daemon = world.daemon("eu-west", peer, &[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut seed = 1_u64;
    for len in (0..1_400).step_by(7) {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                u8::try_from(seed >> 56).unwrap()
            })
            .collect();
        socket.send_to(&bytes, peer).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(daemon.process.ended().is_none() && !daemon.log().contains("panicked"), "{}", daemon.log());
    let other = world.daemon("us-east", free_udp(), &[peer]);
    eventually("a member is met all the same", || {
        (connected(&daemon) == 1 && connected(&other) == 1).then_some(())
    });
    assert_eq!(daemon.terminate().code(), Some(0));
}
