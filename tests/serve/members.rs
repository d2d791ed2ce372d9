//! Who is in the cluster: regions that are added in the wrong order, daemons that hold other rules,
//! certificates that are not accepted, and regions that are away. Each is told in words, and exact limits
//! hold meanwhile.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::authority::Authority;
use super::support::command::run;
use super::support::daemon::Daemon;
use super::support::{eventually, free_tcp, free_udp};

const THREE: [&str; 3] = ["ap", "eu", "us"];
const FOUR: [&str; 4] = ["ap", "eu", "us", "sa"];
const ANN: &[(&str, &str)] = &[("user", "ann")];
const LIMIT: u64 = 120;

/// Two exact rules; without shares all listed regions weigh the same.
fn rules(shares: &str) -> String {
    let rule = |name: &str, mode: &str, window: &str, domain: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\ndomain = \"{domain}\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
             limit = {LIMIT}\nwindow = \"{window}\"\n[rules.global]\nmode = \"{mode}\"\n{shares}"
        )
    };
    format!("{}{}", rule("shared", "split", "24h", "default"), rule("seats", "escrow", "1s", "exact"))
}

/// A cluster whose daemons join through all others.
struct Cluster {
    authority: Authority,
    peers: Vec<SocketAddr>,
}

impl Cluster {
    fn new() -> Self {
        Self { authority: Authority::new(), peers: FOUR.map(|_| free_udp()).into() }
    }

    fn config(&self, place: usize, regions: &[&str]) -> String {
        let region = FOUR[place];
        let node = format!("{region}-1");
        let tls = self.authority.issue(region, &node);
        self.configured(place, regions, &tls)
    }

    fn configured(&self, place: usize, regions: &[&str], tls: &str) -> String {
        let region = FOUR[place];
        let join: Vec<String> = self
            .peers
            .iter()
            .take(3)
            .filter(|peer| **peer != self.peers[place])
            .map(ToString::to_string)
            .collect();
        format!(
            "region = \"{region}\"\nnode = \"{region}-1\"\n[listen]\npeer = \"{}\"\n\
             [peers]\njoin = {join:?}\nregions = {regions:?}\n{tls}",
            self.peers[place]
        )
    }
}

fn told(daemon: &Daemon) -> String {
    let ready = daemon.get("/readyz").json();
    let notices = ready["notices"].as_array().cloned().unwrap_or_default();
    notices.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

/// Waits until a daemon says this in its log, and says how it stands where not.
fn logs(daemon: &Daemon, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !daemon.log().contains(what) {
        assert!(Instant::now() < deadline, "{what:?} is not logged:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a region holds users to by the `split` rule.
fn held(daemon: &Daemon) -> u64 {
    daemon.check_cost(ANN, 0)["limit"].as_u64().unwrap()
}

fn held_by(daemons: &[Daemon]) -> Vec<u64> {
    let held: Vec<u64> = daemons.iter().map(held).collect();
    assert!(held.iter().sum::<u64>() <= LIMIT, "{held:?}");
    held
}

/// Whether a seat was given.
fn seat(daemon: &Daemon) -> bool {
    let asked = serde_json::json!({ "domain": "exact", "attributes": { "user": "ann" } });
    daemon.post("/v1/check", &asked).json()["allowed"] == true
}

#[test]
fn in_the_wrong_order_a_new_region_spends_nothing_and_both_sides_say_why() {
    let cluster = Cluster::new();
    let mut daemons: Vec<Daemon> =
        (0..2).map(|place| Daemon::with(&rules(""), &cluster.config(place, &THREE), &[])).collect();
    assert_eq!(held_by(&daemons), [0, 0], "two of three cannot know what the third holds");
    assert!(!seat(&daemons[0]));
    logs(&daemons[0], "nothing is admitted by the escrow and split rules");
    daemons.push(Daemon::with(&rules(""), &cluster.config(2, &THREE), &[]));
    eventually("a new cluster gets going by itself", || (held_by(&daemons) == [40, 40, 40]).then_some(()));
    eventually("of rights, too", || daemons.iter().all(seat).then_some(()));

    // The weights first: nobody takes them.
    let shares = "shares = { ap = 1, eu = 1, us = 1, sa = 1 }\n";
    daemons[0].set_rules(&rules(shares));
    logs(&daemons[0], "region \"sa\" is not one of peers.regions");
    assert_eq!(held_by(&daemons), [40, 40, 40]);
    daemons[0].set_rules(&rules(""));

    // Then the new region, while nobody else lists it.
    daemons.push(Daemon::with(&rules(""), &cluster.config(3, &FOUR), &[]));
    logs(&daemons[0], "region sa (sa-1) is not in this daemon's peers.regions");
    logs(&daemons[3], "region sa, which is this daemon's, is not in the peers.regions of eu/eu-1");
    eventually("it says what it waits for", || told(&daemons[3]).contains("waiting for").then_some(()));
    for _ in 0..20 {
        assert_eq!(held_by(&daemons), [40, 40, 40, 0]);
        assert!(!seat(&daemons[3]), "{}", daemons[3].log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(told(&daemons[0]).contains("region sa (sa-1)"), "{}", told(&daemons[0]));
    let shown = daemons[3].run(&["regions"]).out;
    assert!(shown.contains("shared admits nothing before all regions have agreed"), "{shown}");
    assert!(shown.contains("Attention: region sa, which is this daemon's"), "{shown}");
    assert_eq!(daemons[0].metric("tidegate_notices{about=\"regions\"}"), Some(1.0));
    assert_eq!(daemons[3].get("/readyz").status, 200, "gossip and local rules are served");

    // One after the other lists it.
    for place in 0..3 {
        assert!(daemons[place].terminate().success());
        std::fs::write(daemons[place].folder().join("tidegate.toml"), cluster_config(&cluster, place))
            .unwrap();
        daemons[place].start_again();
        held_by(&daemons);
        assert_eq!(held(&daemons[3]), 0);
        if place == 0 {
            logs(&daemons[0], "region sa is not in the peers.regions of eu/eu-1, but in this daemon's");
        }
    }
    eventually("all list it", || {
        daemons[3].get("/v1/regions").json()["changing"][0]["waiting_for"]
            .as_array()?
            .is_empty()
            .then_some(())
    });
    held_by(&daemons);
}

/// The configuration with all four regions, for a node whose certificate is there already.
fn cluster_config(cluster: &Cluster, place: usize) -> String {
    let tls = cluster.authority.issued(&format!("{}-1", FOUR[place]));
    cluster.configured(place, &FOUR, &tls)
}

#[test]
fn rules_that_differ_are_named_with_their_region() {
    let gossip = |limit: u32| {
        format!(
            "[[rules]]\nname = \"search\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = {limit}\nwindow = \"1m\"\n\
             [rules.global]\nmode = \"gossip\"\n"
        )
    };
    let cluster = Cluster::new();
    let both = ["ap", "eu"];
    let daemons: Vec<Daemon> =
        (0..2).map(|place| Daemon::with(&gossip(100), &cluster.config(place, &both), &[])).collect();
    assert_eq!(daemons[0].metric("tidegate_notices{about=\"rules\"}"), Some(0.0), "there from the start");
    assert_eq!(daemons[0].metric("tidegate_global_overshoot_permits_total{rule=\"search\"}"), Some(0.0));
    assert_eq!(daemons[0].metric("tidegate_frames_rejected_total{reason=\"certificate\"}"), Some(0.0));
    daemons[1].set_rules(&gossip(200));
    logs(&daemons[0], "rule search is not the same in eu/eu-1");
    logs(&daemons[1], "rule search is not the same in ap/ap-1");
    assert!(daemons[0].run(&["regions"]).out.contains("Attention: rule search is not the same in eu/eu-1"));
    assert_eq!(daemons[0].metric("tidegate_notices{about=\"rules\"}"), Some(1.0));
    daemons[1].set_rules(&gossip(100));
    logs(&daemons[0], "rule search is the same in region eu");
    // A third daemon that `peers.join` names is not there, which is told too.
    eventually("nothing is wrong with rules", || (!told(&daemons[0]).contains("rule")).then_some(()));
}

#[test]
fn a_region_that_is_cut_off_and_heard_again_is_told_with_what_applies() {
    let rules = "[[rules]]\nname = \"search\"\nalgorithm = \"fixed_window\"\nlimit = 100\nwindow = \"1m\"\n\
                 [rules.global]\nmode = \"gossip\"\non_partition = \"deny\"\n";
    let cluster = Cluster::new();
    let both = ["ap", "eu"];
    let mut daemons: Vec<Daemon> =
        (0..2).map(|place| Daemon::with(rules, &cluster.config(place, &both), &[])).collect();
    for (daemon, peer) in daemons.iter().zip(["eu", "ap"]) {
        logs(daemon, &format!("region={peer} node={peer}-1"));
        logs(daemon, "peer connected");
        eventually("the peer is a live member", || {
            let regions = daemon.get("/v1/regions").json();
            let peer = &regions["peers"][0];
            (peer["connected"] == true && peer["live"] == true && peer["lag_ms"].is_u64()).then_some(())
        });
        eventually("nothing is wrong", || told(daemon).is_empty().then_some(()));
    }
    daemons[1].kill();
    logs(&daemons[0], "WARN region eu is cut off: on_partition=deny for search");
    eventually("it is shown", || told(&daemons[0]).contains("region eu is cut off").then_some(()));
    let events =
        |daemon: &Daemon, kind: &str| daemon.metric(&format!("tidegate_events_total{{kind=\"{kind}\"}}"));
    assert!(events(&daemons[0], "partition_begun") >= Some(1.0));
    assert_eq!(daemons[0].get("/readyz").status, 200);
    daemons[1].start_again();
    logs(&daemons[0], "INFO region eu is heard");
    assert!(events(&daemons[0], "partition_ended") >= Some(1.0));
}

#[test]
fn certificates_are_checked_at_the_start_and_files_are_named() {
    let cluster = Cluster::new();
    let good = cluster.config(0, &THREE);
    let other = Authority::new();
    let theirs = other.issue("ap", "ap-1");
    let starts = |tls: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tidegate.toml"), cluster.configured(0, &THREE, tls)).unwrap();
        let (http, grpc) = (free_tcp().to_string(), free_tcp().to_string());
        run(folder.path(), &["serve", "--config", "tidegate.toml", "--http", &http, "--grpc", &grpc])
    };
    let line = |text: &str, name: &str| {
        text.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap().to_owned()
    };
    let tls = |ca: &str, cert: &str, key: &str| {
        format!("[peers.tls]\n{}\n{}\n{}\n", line(ca, "ca"), line(cert, "cert"), line(key, "key"))
    };
    let ended = starts(&tls(&good, &theirs, &theirs));
    assert_ne!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("was not signed by the cluster's authority"), "{ended:?}");
    assert!(ended.err.contains("ap-1/node.pem") && ended.err.contains("ca/ca.pem"), "{ended:?}");
    let ended = starts(&tls(&good, &good, &theirs));
    assert!(ended.err.contains("the node's private key does not belong to its certificate"), "{ended:?}");
    assert!(ended.err.contains("ap-1/node.key"), "{ended:?}");
}

#[test]
fn two_daemons_with_one_certificate_are_told_with_both_addresses() {
    let cluster = Cluster::new();
    let both = ["ap", "eu"];
    let ap = Daemon::with("", &cluster.config(0, &both), &[]);
    let config = cluster.config(1, &both);
    let eu = Daemon::with("", &config, &[]);
    logs(&ap, "peer connected");
    let stolen = free_udp();
    let own = cluster.peers[1].to_string();
    let thief =
        Daemon::with("", &config.replace(&format!("peer = \"{own}\""), &format!("peer = \"{stolen}\"")), &[]);
    eventually("it is told", || {
        let told = told(&ap);
        (told.contains("several daemons say that they are eu/eu-1")
            && told.contains(&own)
            && told.contains(&stolen.to_string()))
        .then_some(())
    });
    assert_eq!(ap.metric("tidegate_notices{about=\"twice\"}"), Some(1.0));
    drop(thief);
    logs(&ap, "one daemon says that it is eu/eu-1");
    assert_eq!(eu.get("/readyz").status, 200);
}

#[test]
fn a_refused_certificate_and_an_address_without_an_answer_are_told_on_both_sides() {
    let (cluster, others) = (Cluster::new(), Authority::new());
    let both = ["ap", "eu"];
    let rules = "";
    let soon = cluster.authority.issue_for("ap", "ap-1", &["--days", "10"]);
    let ap = Daemon::with(rules, &cluster.configured(0, &both, &soon), &[]);
    let eu = Daemon::with(rules, &cluster.configured(1, &both, &others.issue("eu", "eu-1")), &[]);
    logs(&ap, "a daemon was refused: its certificate is not accepted here");
    logs(&eu, "a daemon was refused: its certificate is not accepted here");
    let address = cluster.peers[1].to_string();
    eventually("the link says so, too", || {
        told(&ap).lines().any(|line| line.contains(&address) && line.contains("certificate")).then_some(())
    });
    assert!(!ap.log().contains("peer connected"), "{}", ap.log());
    let nobody = format!("nobody answers at {}", cluster.peers[2]);
    logs(&ap, &nobody);
    assert!(ap.run(&["regions"]).out.contains(&nobody));
    let refused = ap.log().matches("a daemon was refused").count();
    assert_eq!(refused, 1, "once for each address and cause: {}", ap.log());

    logs(&ap, "this daemon's certificate ends on");
    let ends = ap.metric("tidegate_certificate_expires_timestamp_seconds{certificate=\"node\"}").unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((ends - now - 10.0 * 86_400.0).abs() < 3_600.0, "{ends}");
    assert!(told(&ap).contains("this daemon's certificate ends on"), "{}", told(&ap));
    assert_eq!(ap.metric("tidegate_events_total{kind=\"certificate\"}"), Some(1.0));
}
