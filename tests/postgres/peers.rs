//! Rules reach a region whose own database is down: from a peer, over the peer port.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::rules::{Place, insert, limit, rule, wait_for};
use super::support::command::run;
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};

/// Certificates of a cluster, and what a daemon's configuration says of them.
fn peers(ca: &TempDir, region: &str, join: SocketAddr) -> String {
    let ran =
        run(ca.path(), &["cert", "issue", "--ca", "ca", "--region", region, "--node", "n1", "--out", region]);
    assert_eq!(ran.code, 0, "{ran:?}");
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
    let saved = ca.path().join("us.saved.json");
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

    // Without any source it starts from that.
    drop(in_us);
    drop(in_eu);
    let in_us = Daemon::with("", &us_config, &[]);
    assert_eq!(
        (limit(&in_us, "r"), in_us.get("/readyz").json()["rules"]["from"].clone()),
        (Some(8), "saved".into())
    );

    // Its own database comes back empty: what is in force stays, and the next change there exceeds it.
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
    // What is in force makes it current again.
    let set = in_us.get("/v1/rules").json()["rules"].clone();
    let put = super::rules::send(&in_us, "PUT", "/v1/rules", &[], &serde_json::json!({ "rules": set }));
    assert_eq!((put.status, &put.json()["revision"]), (200, &3.into()), "{put:?}");
    assert_eq!(there.sql("SELECT document ->> 'limit' FROM rules"), "8");
    assert_eq!(super::rules::send(&in_us, "PUT", "/v1/rules/own", &[], &rule("own", 1)).status, 200);
    assert_eq!((limit(&in_us, "own"), limit(&in_us, "r")), (Some(1), Some(8)));
}
