//! Regions are added, drained and removed by one command at any daemon, while all go on: no limit is
//! exceeded, and nobody is restarted.

use std::net::SocketAddr;
use std::time::Duration;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tidegate::core::region_list::{RegionChanges, RegionOrder, RegionState};
use tidegate::core::regions::NodeName;
use tidegate::core::wire::WireVersion;
use tidegate::peer::{Peers, PeersConfig, TlsPem};

use super::support::authority::Authority;
use super::support::command::{Ran, run};
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
    operator: String,
    peers: Vec<SocketAddr>,
}

impl Cluster {
    fn new() -> Self {
        let authority = Authority::new();
        let operator = authority.operator("ann");
        Self { authority, operator, peers: NAMES.map(|_| free_udp()).into() }
    }

    /// `tidegate regions` with these words, signed by an operator.
    fn regions(&self, daemon: &Daemon, words: &[&str]) -> Ran {
        daemon.run(&[&["regions"], words, &["--operator", &self.operator]].concat())
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

    // A name that nobody has heard of may be mistyped.
    let mistyped = cluster.regions(&daemons[0], &["add", "sap"]);
    assert!(mistyped.code == 2 && mistyped.err.contains("did you mean \"ap\"?"), "{mistyped:?}");
    assert_eq!(listed(&daemons[0]), ["ap", "eu", "us"]);

    let ran = cluster.regions(&daemons[0], &["add", "sa", "--yes", "--reason", "we open in São Paulo"]);
    assert_eq!((ran.code, ran.out.contains("Region sa is listed")), (0, true), "{ran:?}");
    eventually("all make room for the new one", || (held_by(&daemons) == [30, 30, 30]).then_some(()));
    for daemon in &daemons {
        assert_eq!(listed(daemon), ["ap", "eu", "sa", "us"]);
    }
    daemons.push(cluster.daemon(3, &NAMES));
    eventually("the new region spends its share", || (held_by(&daemons) == [30; 4]).then_some(()));
    eventually("of rights, too", || daemons.iter().all(seat).then_some(()));

    // Asked at another daemon than before.
    let ran = cluster.regions(&daemons[1], &["drain", "ap", "--wait", "60s"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("Every region holds its new share"), "{ran:?}");
    eventually("the others have what it had", || (held_by(&daemons) == [0, 40, 40, 40]).then_some(()));
    assert_eq!(regions(&daemons[3])["drained"], json!(["ap"]));

    let ran = cluster.regions(&daemons[1], &["remove", "ap"]);
    assert!(ran.code == 1 && ran.both().contains("stop ap/ap-1 first"), "{ran:?}");
    let mut ap = daemons.remove(0);
    assert_eq!(ap.terminate().code(), Some(0));
    eventually("it is removed once its daemon is seen to be gone", || {
        (cluster.regions(&daemons[2], &["remove", "ap"]).code == 0).then_some(())
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

    // Who signs what this daemon alone held until then changes it for all.
    let unsigned = daemons[2].run(&["regions", "add", "mu", "--yes"]);
    assert!(unsigned.code == 0 && unsigned.out.contains("Nobody signed it"), "{unsigned:?}");
    let signed = cluster.regions(&daemons[2], &["add", "mu", "--reason", "we open there"]);
    assert!(signed.code == 0 && signed.out.contains("was listed already; it is signed by"), "{signed:?}");
    let changes = daemons[2].run(&["changes", "--target", "mu"]);
    assert!(changes.out.contains("region.put listed, signed by"), "{changes:?}");
    assert!(changes.out.contains("we open there"), "{changes:?}");
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
        let ran =
            cluster.regions(&daemons[0], &["remove", "us", "--gone", "--reason", "the building burned"]);
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
        (&["add", "a b", "--yes"], "is no name of a region"),
    ] {
        let ran = daemons[0].run(&[&["regions"], words].concat());
        assert!(ran.code == 1 && ran.both().contains(reason), "{words:?}: {ran:?}");
    }
    assert_eq!(listed(&daemons[1]), ["ap", "eu", "us"]);
    for drained in ["eu", "us"] {
        let ran = cluster.regions(&daemons[0], &["drain", drained]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let ran = daemons[0].run(&["regions", "drain", "ap"]);
    assert!(ran.code == 1 && ran.both().contains("no other region has a share of"), "{ran:?}");
    // A region comes back as it went.
    let added = cluster.regions(&daemons[2], &["add", "us"]);
    assert_eq!(added.code, 0, "{added:?}");
    eventually("both share", || (held_by(&daemons) == [60, 0, 60]).then_some(()));
    // Only an operator of this cluster signs for it, and none signs for a time to come.
    let others = Authority::new();
    let stranger = others.operator("eve");
    let ran = daemons[0].run(&["regions", "add", "us", "--operator", &stranger]);
    assert!(ran.code == 1 && ran.both().contains("is not signed by an operator"), "{ran:?}");
    let alone = Daemon::with_rules("");
    let ran = alone.run(&["regions", "drain", "ap"]);
    assert!(ran.code == 1 && ran.both().contains("speaks with no others"), "{ran:?}");
}

/// What a member of region us says of the regions who is no operator: stamps that nobody can exceed, many
/// regions that are none, and signatures by his node's key, each of what it says.
fn lies(node: &[u8], key: &[u8]) -> RegionChanges {
    let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(key).unwrap();
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.secret_pkcs8_der(), &random).unwrap();
    let stamp = 1_u64 << 62;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    let now = u64::try_from(now).unwrap();
    let change = |region: &str, state: RegionState, stamp: u64| {
        let signature = key.sign(&random, &RegionOrder::message(region, state, stamp)).unwrap();
        let signature: &[u8] = signature.as_ref();
        let signed = json!({ "certificate": node, "signature": signature });
        json!({ "state": state.as_str(), "stamp": stamp, "signed": signed })
    };
    let mut said = serde_json::Map::new();
    said.insert("eu".to_owned(), json!({ "state": "removed", "stamp": stamp }));
    said.insert("ap".to_owned(), change("ap", RegionState::Gone, now));
    said.insert("us".to_owned(), change("us", RegionState::Drained, now));
    for place in 0..200 {
        let name = format!("no-{place}");
        let listed = change(&name, RegionState::Listed, now);
        said.insert(name, listed);
    }
    serde_json::from_value(Value::Object(said)).unwrap()
}

#[test]
fn a_thief_of_one_nodes_key_changes_no_region_and_an_operator_still_does() {
    let cluster = Cluster::new();
    let daemons = cluster.three();
    let _ = cluster.authority.issue("us", "us-9");
    let file = |name: &str| std::fs::read(cluster.authority.folder().join(name)).unwrap();
    let (cert, key) = (file("us-9/node.pem"), file("us-9/node.key"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = PeersConfig {
        listen: free_udp(),
        advertise: None,
        join: cluster.peers[..3].iter().map(ToString::to_string).collect(),
        name: NodeName { region: "us".to_owned(), node: "us-9".to_owned() },
        incarnation: 1,
        gossip_interval: Duration::from_millis(100),
        tls: TlsPem { ca: file("ca/ca.pem"), cert: cert.clone(), key: key.clone(), revoked: Vec::new() },
        tracer: None,
        versions: WireVersion::SPOKEN.into(),
    };
    let (thief, mut events) = runtime.block_on(Peers::start(config)).unwrap();
    runtime.spawn(async move { while events.recv().await.is_some() {} });
    let der = <CertificateDer<'_> as PemObject>::from_pem_slice(&cert).unwrap();
    thief.set_region_changes(&lies(&der, &key));
    for daemon in &daemons {
        eventually("what he says is looked at, and not taken", || {
            let line = "tidegate_frames_rejected_total{reason=\"unsigned\"}";
            daemon.metric(line).filter(|times| *times >= 1.0)
        });
        let all = regions(daemon);
        assert_eq!(listed(daemon), ["ap", "eu", "us"]);
        assert_eq!((&all["drained"], &all["removed"]), (&json!([]), &json!([])), "{all}");
    }
    assert_eq!(held_by(&daemons), [40, 40, 40]);

    // An operator's word counts beside him, at all daemons.
    let ran = cluster.regions(&daemons[0], &["drain", "us"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for daemon in &daemons {
        eventually("us is drained", || (regions(daemon)["drained"] == json!(["us"])).then_some(()));
    }
    // He says nothing of shares, so larger ones wait for him, as for every daemon that was seen.
    eventually("us holds nothing", || (held_by(&daemons) == [40, 40, 0]).then_some(()));
    drop((thief, runtime));
    assert_eq!(cluster.regions(&daemons[1], &["add", "us"]).code, 0);
    for daemon in &daemons {
        eventually("us takes part again", || (regions(daemon)["drained"] == json!([])).then_some(()));
    }
}

#[test]
fn what_nobody_signed_holds_at_the_daemon_that_was_asked_and_a_revoked_operator_is_undone() {
    let cluster = Cluster::new();
    let list = cluster.authority.folder().join("revoked.pem");
    std::fs::write(&list, "").unwrap();
    let daemons: Vec<Daemon> = (0..2)
        .map(|place| {
            cluster.authority.issue(NAMES[place], &format!("{}-1", NAMES[place]));
            let config = cluster.config(place, &NAMES[..3], &cluster.peers[..2]);
            Daemon::with(RULES, &format!("{config}revoked = {list:?}\n"), &[])
        })
        .collect();
    eventually("they see each other", || {
        (regions(&daemons[0])["peers"][0]["connected"] == true).then_some(())
    });
    let ran = daemons[0].run(&["regions", "drain", "us"]);
    assert!(ran.code == 0 && ran.out.contains("so only this daemon takes it"), "{ran:?}");
    assert!(ran.out.contains("Not known to eu/eu-1."), "{ran:?}");
    assert_eq!(regions(&daemons[0])["drained"], json!(["us"]));
    // Whoever signs says it to all.
    let ran = cluster.regions(&daemons[0], &["drain", "us"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    eventually("eu knows", || (regions(&daemons[1])["drained"] == json!(["us"])).then_some(()));

    let folder = cluster.authority.folder();
    let ran = run(folder, &["cert", "revoke", "--ca", "ca", "ann/operator.pem"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    std::fs::copy(folder.join("ca/revoked.pem"), &list).unwrap();
    for daemon in &daemons {
        eventually("what she signed is dropped", || (regions(daemon)["drained"] == json!([])).then_some(()));
    }
    let ran = cluster.regions(&daemons[0], &["drain", "us"]);
    assert!(ran.code == 1 && ran.both().contains("is not accepted"), "{ran:?}");
}
