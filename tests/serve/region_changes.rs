//! Regions are added, drained and removed by one command at any daemon, while all go on: no limit is
//! exceeded, and nobody is restarted.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::support::authority::Authority;
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};

const NAMES: [&str; 4] = ["ap", "eu", "us", "sa"];
const LIMIT: u64 = 120;
const RULES: &str = r#"
[[rules]]
name = "shared"
per = ["user"]
algorithm = "fixed_window"
limit = 120
window = "1s"
[rules.global]
mode = "split"

[[rules]]
name = "seats"
domain = "exact"
per = ["user"]
algorithm = "fixed_window"
limit = 120
window = "1s"
[rules.global]
mode = "escrow"
"#;

/// A cluster of four places, of which the first three daemons list each other only.
struct Cluster {
    authority: Authority,
    peers: Vec<SocketAddr>,
}

impl Cluster {
    fn new() -> Self {
        Self { authority: Authority::new(), peers: NAMES.map(|_| free_udp()).into() }
    }

    fn daemon(&self, place: usize, listed: &[&str]) -> Daemon {
        self.authority.issue(NAMES[place], &format!("{}-1", NAMES[place]));
        Daemon::with(RULES, &self.config(place, listed, &self.peers), &[])
    }

    /// The configuration of a daemon that joins through these.
    fn config(&self, place: usize, listed: &[&str], join: &[SocketAddr]) -> String {
        let region = NAMES[place];
        let join: Vec<String> =
            join.iter().filter(|peer| **peer != self.peers[place]).map(ToString::to_string).collect();
        let tls = self.authority.issued(&format!("{region}-1"));
        format!(
            "region = \"{region}\"\nnode = \"{region}-1\"\n[listen]\npeer = \"{}\"\n\
             [peers]\njoin = {join:?}\nregions = {listed:?}\n{tls}",
            self.peers[place]
        )
    }

    fn three(&self) -> Vec<Daemon> {
        let daemons: Vec<Daemon> = (0..3).map(|place| self.daemon(place, &NAMES[..3])).collect();
        eventually("three regions share", || (held_by(&daemons) == [40, 40, 40]).then_some(()));
        daemons
    }
}

/// What each region holds users to by the `split` rule: together never more than the limit.
fn held_by(daemons: &[Daemon]) -> Vec<u64> {
    let held = |daemon: &Daemon| daemon.check_cost(&[("user", "ann")], 0)["limit"].as_u64().unwrap();
    let held: Vec<u64> = daemons.iter().map(held).collect();
    assert!(held.iter().sum::<u64>() <= LIMIT, "{held:?}");
    held
}

fn seat(daemon: &Daemon) -> bool {
    let asked = json!({ "domain": "exact", "attributes": { "user": "ann" } });
    daemon.post("/v1/check", &asked).json()["allowed"] == true
}

fn regions(daemon: &Daemon) -> Value {
    daemon.get("/v1/regions").json()
}

fn listed(daemon: &Daemon) -> Vec<String> {
    let all = regions(daemon);
    let mut names: Vec<String> = serde_json::from_value(all["configured"].clone()).unwrap();
    names.sort_unstable();
    names
}

#[test]
fn a_region_is_added_drained_and_removed_by_one_command_each() {
    let cluster = Cluster::new();
    let mut daemons = cluster.three();

    let ran = daemons[0].run(&["regions", "add", "sa", "--reason", "we open in São Paulo"]);
    assert_eq!((ran.code, ran.out.contains("Region sa is listed")), (0, true), "{ran:?}");
    eventually("all make room for the new one", || (held_by(&daemons) == [30, 30, 30]).then_some(()));
    for daemon in &daemons {
        assert_eq!(listed(daemon), ["ap", "eu", "sa", "us"]);
    }
    daemons.push(cluster.daemon(3, &NAMES));
    eventually("the new region spends its share", || (held_by(&daemons) == [30; 4]).then_some(()));
    eventually("of rights, too", || daemons.iter().all(seat).then_some(()));

    // Asked at another daemon than before.
    let ran = daemons[1].run(&["regions", "drain", "ap", "--wait", "60s"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("Every region holds its new share"), "{ran:?}");
    eventually("the others have what it had", || (held_by(&daemons) == [0, 40, 40, 40]).then_some(()));
    assert_eq!(regions(&daemons[3])["drained"], json!(["ap"]));

    let ran = daemons[1].run(&["regions", "remove", "ap"]);
    assert!(ran.code == 1 && ran.both().contains("stop ap/ap-1 first"), "{ran:?}");
    let mut ap = daemons.remove(0);
    assert_eq!(ap.terminate().code(), Some(0));
    eventually("it is removed once its daemon is seen to be gone", || {
        (daemons[2].run(&["regions", "remove", "ap"]).code == 0).then_some(())
    });
    // Its address goes out of the configurations, which nobody is started again for.
    for (place, daemon) in daemons.iter().enumerate() {
        let config = cluster.config(place + 1, &NAMES, &cluster.peers[1..]);
        std::fs::write(daemon.folder().join("tidegate.toml"), config).unwrap();
    }
    for daemon in &daemons {
        eventually("all know", || (listed(daemon) == ["eu", "sa", "us"]).then_some(()));
        eventually("nothing is wrong", || {
            (regions(daemon)["notices"] == json!([]) && regions(daemon)["changing"] == json!([]))
                .then_some(())
        });
    }
    assert_eq!(held_by(&daemons), [40, 40, 40]);

    // A daemon that is started again knows it by itself, whatever its configuration lists.
    assert_eq!(daemons[0].terminate().code(), Some(0));
    daemons[0].start_again();
    assert_eq!(listed(&daemons[0]), ["eu", "sa", "us"]);
    eventually("and has its share", || (held_by(&daemons) == [40, 40, 40]).then_some(()));

    // It is in the record of changes of the daemon that was asked.
    let changes = daemons[2].get("/v1/changes").json();
    let recorded = changes["changes"][0].clone();
    assert_eq!((&recorded["action"], &recorded["target"]), (&json!("region.put"), &json!("ap")), "{changes}");
}

#[test]
fn the_shares_of_a_region_that_is_gone_for_good_go_to_the_others() {
    let cluster = Cluster::new();
    let mut daemons = cluster.three();
    daemons[2].kill();
    let lost = daemons.pop().unwrap();
    eventually("that it may hold a share is told once it is seen no more", || {
        let ran = daemons[0].run(&["regions", "remove", "us"]);
        assert!(ran.code == 1, "{ran:?}");
        ran.both().contains("drain it first").then_some(())
    });
    eventually("it is taken for gone once it is seen no more", || {
        let ran = daemons[0].run(&["regions", "remove", "us", "--gone", "--reason", "the building burned"]);
        assert!(ran.code == 0 || ran.both().contains("stop us/us-1 first"), "{ran:?}");
        (ran.code == 0).then_some(())
    });
    eventually("nobody waits for its word", || (held_by(&daemons) == [60, 60]).then_some(()));
    eventually("of rights neither", || daemons.iter().all(seat).then_some(()));

    // Should it come back against that, it hears that it was removed.
    let mut back = lost;
    back.start_again();
    eventually("it spends nothing", || {
        let limit = back.check_cost(&[("user", "ann")], 0)["limit"].as_u64().unwrap();
        (limit == 0).then_some(())
    });
    assert_eq!(held_by(&daemons), [60, 60]);
}

#[test]
fn what_cannot_be_changed_is_told_with_the_reason() {
    let cluster = Cluster::new();
    let daemons = cluster.three();
    for (words, reason) in [
        (&["drain", "mars"][..], "region \"mars\" is not listed"),
        (&["remove", "ap", "--gone"], "is this daemon's own"),
        (&["remove", "eu", "--gone"], "stop eu/eu-1 first"),
        (&["add", "a b"], "is no name of a region"),
    ] {
        let ran = daemons[0].run(&[&["regions"], words].concat());
        assert!(ran.code == 1 && ran.both().contains(reason), "{words:?}: {ran:?}");
    }
    assert_eq!(listed(&daemons[1]), ["ap", "eu", "us"]);
    for drained in ["eu", "us"] {
        assert_eq!(daemons[0].run(&["regions", "drain", drained]).code, 0);
    }
    let ran = daemons[0].run(&["regions", "drain", "ap"]);
    assert!(ran.code == 1 && ran.both().contains("no other region has a share of"), "{ran:?}");
    // A region comes back as it went.
    assert_eq!(daemons[2].run(&["regions", "add", "us"]).code, 0);
    eventually("both share", || (held_by(&daemons) == [60, 0, 60]).then_some(()));
    let alone = Daemon::with_rules("");
    let ran = alone.run(&["regions", "drain", "ap"]);
    assert!(ran.code == 1 && ran.both().contains("speaks with no others"), "{ran:?}");
}
