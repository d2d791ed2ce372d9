//! Rules reach a region whose own database is down: from a peer, over the peer port.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate::core::regions::NodeName;
use tidegate::core::wire::WireVersion;
use tidegate::database::saved::{SET_BYTES_MAX, digest};
use tidegate::peer::{Peers, PeersConfig, RulesStatement, TlsPem};

use super::rules::{Place, insert, limit, rule, wait_for};
use super::support::command::run;
use super::support::daemon::Daemon;
use super::support::receiver::Receiver;
use super::support::spans::{config as traces, span};
use super::support::{eventually, free_udp};

/// The certificate of a daemon in a cluster, and what a daemon's configuration says of them.
pub(super) fn peers(ca: &TempDir, region: &str, join: SocketAddr) -> String {
    if !ca.path().join(region).exists() {
        let words = ["cert", "issue", "--ca", "ca", "--region", region, "--node", "n1", "--out", region];
        let ran = run(ca.path(), &words);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let file = |name: &str| ca.path().join(name).display().to_string();
    format!(
        "[peers]\njoin = [\"{join}\"]\nregions = [\"eu\", \"us\"]\n[peers.tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
        file("ca/ca.pem"),
        file(&format!("{region}/node.pem")),
        file(&format!("{region}/node.key"))
    )
}

#[test]
fn rules_changed_in_one_region_reach_a_region_whose_database_is_down() {
    let ca = TempDir::new().unwrap();
    assert_eq!(run(ca.path(), &["cert", "ca", "--out", "ca"]).code, 0);
    let (here, mut there) = (Place::new(), Place::new());
    here.sql(&insert(&rule("r", 3)));
    there.server.kill();
    let (eu, us) = (free_udp(), free_udp());
    let saved = ca.path().join("us.saved.peer.json");
    let config = |place: &Place, region: &str, own: SocketAddr, other: SocketAddr| {
        let postgres = place.config().replace(
            "[postgres]",
            &format!("saved = {:?}\n[postgres]", ca.path().join(format!("{region}.saved.json"))),
        );
        format!(
            "region = \"{region}\"\nnode = \"n1\"\n[listen]\npeer = \"{own}\"\n{postgres}{}",
            peers(&ca, region, other)
        )
    };
    let in_eu = Daemon::with("", &config(&here, "eu", eu, us), &[]);
    let us_config = config(&there, "us", us, eu);
    // It has nothing of its own, and is ready once the peer's set came.
    let in_us = Daemon::with("", &us_config, &[]);
    assert_eq!(limit(&in_us, "r"), Some(3));
    let status = in_us.get("/readyz").json()["rules"].clone();
    assert_eq!((&status["from"], &status["reachable"]), (&"peer eu/n1".into(), &false.into()));
    assert_eq!(in_us.admitted(&[("user", "u")], 5), 3);

    here.sql("UPDATE rules SET document = document || '{\"limit\": 8}'");
    wait_for(&in_us, "r", Some(8));
    assert_eq!(in_us.get("/v1/rules").json()["revision"], 2);
    eventually("it is saved there too", || {
        std::fs::read_to_string(&saved).ok()?.contains("\"limit\":8").then_some(())
    });

    // Without any source it starts from that, as long as the certificate of its giver is accepted.
    drop(in_us);
    drop(in_eu);
    let in_us = Daemon::with("", &us_config, &[]);
    assert_eq!(
        (limit(&in_us, "r"), in_us.get("/readyz").json()["rules"]["from"].clone()),
        (Some(8), "peer eu/n1".into())
    );

    // Its own database comes back and never held a set: what is in force stays until it does.
    there.server.run();
    eventually("it sees that its database is behind", || {
        in_us.get("/readyz").json()["rules"]["problem"]
            .as_str()?
            .contains("older than the one in force")
            .then_some(())
    });
    assert_eq!(limit(&in_us, "r"), Some(8));
    let put = super::rules::send(&in_us, "PUT", "/v1/rules/own", &[], &rule("own", 1));
    assert!(put.status == 409 && put.body.contains("older than revision 2"), "{put:?}");
    // What is in force makes it current again. Its numbers are its own, whatever another daemon said.
    let set = in_us.get("/v1/rules").json()["rules"].clone();
    let put = super::rules::send(&in_us, "PUT", "/v1/rules", &[], &serde_json::json!({ "rules": set }));
    assert_eq!((put.status, &put.json()["revision"]), (200, &1.into()), "{put:?}");
    assert_eq!(there.sql("SELECT document ->> 'limit' FROM rules"), "8");
    assert_eq!(super::rules::send(&in_us, "PUT", "/v1/rules/own", &[], &rule("own", 1)).status, 200);
    assert_eq!((limit(&in_us, "own"), limit(&in_us, "r")), (Some(1), Some(8)));
}

/// A member of the cluster with a certificate of its own, that gives whatever it likes.
pub(super) struct Liar {
    runtime: tokio::runtime::Runtime,
    peers: Peers,
}

impl Liar {
    /// `says` is where it tells the others to dial it, if not where it is.
    pub(super) fn join(
        ca: &TempDir,
        region: &str,
        node: &str,
        to: SocketAddr,
        says: Option<SocketAddr>,
    ) -> Self {
        let out = format!("{region}-{node}");
        let issued = run(
            ca.path(),
            &["cert", "issue", "--ca", "ca", "--region", region, "--node", node, "--out", &out],
        );
        assert_eq!(issued.code, 0, "{issued:?}");
        let read = |name: &str| std::fs::read(ca.path().join(name)).unwrap();
        let config = PeersConfig {
            listen: free_udp(),
            advertise: says,
            join: vec![to.to_string()],
            name: NodeName { region: region.to_owned(), node: node.to_owned() },
            incarnation: 1,
            gossip_interval: Duration::from_millis(100),
            tls: TlsPem {
                ca: read("ca/ca.pem"),
                cert: read(&format!("{out}/node.pem")),
                key: read(&format!("{out}/node.key")),
                revoked: Vec::new(),
            },
            tracer: None,
            versions: WireVersion::SPOKEN.into(),
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (peers, mut events) = runtime.block_on(Peers::start(config)).unwrap();
        runtime.spawn(async move { while events.recv().await.is_some() {} });
        Self { runtime, peers }
    }

    fn offer(&self, revision: u64, length: usize, digest: [u8; 32], bytes: Vec<u8>) {
        self.offer_of(1, revision, length, digest, bytes);
    }

    fn offer_of(&self, generation: u64, revision: u64, length: usize, digest: [u8; 32], bytes: Vec<u8>) {
        let _guard = self.runtime.enter();
        self.peers.offer_rules(RulesStatement { generation, revision, length, digest }, bytes.into());
    }

    /// A set as the holder of a database of his own would give it.
    pub(super) fn offer_set(&self, generation: u64, revision: u64, rules: &[Value]) {
        let version = json!({ "generation": generation, "revision": revision });
        let set = json!({ "format": 1, "version": version, "rules": rules, "quotas": [] }).to_string();
        let bytes = set.into_bytes();
        self.offer_of(generation, revision, bytes.len(), digest(&bytes), bytes);
    }

    /// Bytes under their right length and digest.
    fn offer_honestly(&self, revision: u64, bytes: Vec<u8>) {
        self.offer(revision, bytes.len(), digest(&bytes), bytes);
    }
}

fn set_of(revision: u64, rules: &[Value]) -> Vec<u8> {
    let version = json!({ "generation": 1, "revision": revision });
    json!({ "format": 1, "version": version, "rules": rules, "quotas": [] }).to_string().into_bytes()
}

#[test]
fn what_a_hostile_member_offers_is_refused_with_the_reason_and_hides_no_honest_set() {
    let ca = TempDir::new().unwrap();
    assert_eq!(run(ca.path(), &["cert", "ca", "--out", "ca"]).code, 0);
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let (eu, collector) = (free_udp(), Receiver::start(200));
    let config = format!(
        "region = \"eu\"\nnode = \"n1\"\n[listen]\npeer = \"{eu}\"\n{}{}{}",
        place.config(),
        peers(&ca, "eu", free_udp()),
        traces(&collector, "")
    );
    let victim = Daemon::with("", &config, &[]);
    place.server.kill();
    let liar = Liar::join(&ca, "us", "liar", eu, None);
    let refused_times = |reason: &str, times: f64| {
        eventually(&format!("a set is refused: {reason}"), || {
            let line = format!("tidegate_peer_rules_refused_total{{reason=\"{reason}\"}}");
            victim.metric(&line).filter(|counted| *counted >= times)
        });
        assert_eq!(limit(&victim, "r"), Some(3), "{reason}");
    };
    let refused = |reason| refused_times(reason, 1.0);

    let bytes = set_of(10, &[rule("r", 100)]);
    liar.offer(10, bytes.len(), [7; 32], bytes);
    refused("digest");
    liar.offer_honestly(11, b"no set at all".to_vec());
    refused("unreadable");
    liar.offer_honestly(12, set_of(99, &[rule("r", 100)]));
    refused("other_revision");
    // Longer than a set may be, and longer than was said.
    liar.offer(13, SET_BYTES_MAX + 1, [13; 32], Vec::new());
    refused("too_long");
    let bytes = set_of(13, &[rule("r", 100)]);
    liar.offer(13, bytes.len() - 1, digest(&bytes), bytes);
    refused_times("too_long", 2.0);
    let colourful = json!({ "name": "r", "limit": 1, "window": "1s", "colour": "red" });
    liar.offer_honestly(14, set_of(14, &[rule("ok", 1), colourful]));
    refused("wrong");
    assert_eq!(victim.get("/readyz").json()["rules"]["refused_revision"], 14);
    assert!(victim.log().contains("us/liar") && victim.log().contains("r.colour"), "{}", victim.log());

    // Who is in no region of its certificate is not heard at all: here another's address is said to be the
    // own one.
    let mallory = Liar::join(&ca, "ap", "mallory", eu, Some(liar.peers.bound().unwrap()));
    mallory.offer_honestly(5_000, set_of(5_000, &[rule("r", 100)]));
    eventually("the impostor is counted", || {
        victim.metric("tidegate_frames_rejected_total{reason=\"impostor\"}").filter(|times| *times >= 1.0)
    });

    // An older set is no news. A newer one is taken from who has it, whatever others say they have.
    liar.offer(1_000, 9, [9; 32], Vec::new());
    let honest = Liar::join(&ca, "us", "honest", eu, None);
    honest.offer_honestly(0, set_of(0, &[rule("r", 50)]));
    honest.offer_honestly(20, set_of(20, &[rule("r", 8)]));
    wait_for(&victim, "r", Some(8));
    assert_eq!(victim.get("/readyz").json()["rules"]["from"], "peer us/honest");
    assert_eq!(victim.get("/v1/rules").json()["revision"], 20);
    // Each set that is fetched is a span.
    for (node, revision, failed) in [("liar", "12", true), ("honest", "20", false)] {
        let seen = span(&collector, "the set of a peer", |span| {
            span.name == "rules from peer" && span.get("tidegate.revision") == revision
        });
        assert_eq!((seen.get("tidegate.peer.node"), seen.failed), (node, failed), "{seen:?}");
    }
}
