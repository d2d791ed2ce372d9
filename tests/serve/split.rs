//! Fixed shares of a limit over regions, and their change while daemons run.

use super::regions::{Authority, REGIONS, connected};
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};

const ANN: &[(&str, &str)] = &[("user", "ann")];

fn rules(window: &str, shares: [u32; 3]) -> String {
    let [eu, us, ap] = shares;
    format!(
        "[[rules]]\nname = \"shared\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 60\nwindow = \"{window}\"\n\
         [rules.global]\nmode = \"split\"\nshares = {{ eu-west = {eu}, us-east = {us}, ap-south = {ap} }}\n\
         [[users]]\nid = \"big\"\noverrides = {{ shared = {{ limit = 600 }} }}\n"
    )
}

/// The limit that a region holds a user to.
fn held(daemon: &Daemon) -> u64 {
    daemon.check_cost(ANN, 0)["limit"].as_u64().unwrap()
}

#[test]
fn a_region_alone_holds_its_own_share_and_no_more() {
    let config = format!("region = \"us-east\"\n[peers]\nregions = {REGIONS:?}\n");
    let daemon = Daemon::with(&rules("24h", [40, 35, 25]), &config, &[]);
    assert_eq!(daemon.admitted(ANN, 60), 21, "35 % of 60");
    let big = daemon.check_cost(&[("user", "big")], 0);
    assert_eq!((big["limit"].as_u64(), big["remaining"].as_u64()), (Some(210), Some(210)), "{big}");
    let global = &big["rules"][0]["global"];
    assert_eq!(global["mode"], "split");
}

#[test]
fn a_region_alone_says_of_escrow_that_nothing_is_admitted_and_of_the_others_that_they_were_not_heard() {
    let rules = "[[rules]]\nname = \"seats\"\nalgorithm = \"fixed_window\"\nlimit = 300\nwindow = \"24h\"\n\
                 [rules.global]\nmode = \"escrow\"\n";
    let peers = [free_udp(), free_udp()];
    let authority = Authority::new();
    let config = authority.config("us-east", "us-east-1", peers[0], &peers[1..]);
    let daemon = Daemon::with(rules, &config, &[]);
    let told = || daemon.get("/readyz").json()["notices"].to_string();
    eventually("it says why everything is denied", || {
        told().contains("nothing is admitted by").then_some(())
    });
    eventually("it says whom it has not heard", || told().contains("has not been heard yet").then_some(()));
    let unseen = told();
    assert!(!unseen.contains("no worldwide limit depends on it"), "{unseen}");
    assert!(
        unseen.contains("escrow and split rules admit nothing before all regions have agreed"),
        "{unseen}"
    );
    let regions = daemon.get("/v1/regions").json();
    assert_eq!(regions["unseen"], regions["cut_off"], "{regions}");
    let shown = daemon.run(&["regions"]).out;
    assert!(shown.contains("Not heard yet: ") && !shown.contains("Cut off: "), "{shown}");
}

#[test]
fn new_shares_shrink_at_once_and_grow_when_every_region_holds_them() {
    let authority = Authority::new();
    let peers = [free_udp(), free_udp(), free_udp()];
    let config = |place: usize| {
        let region = REGIONS[place];
        authority.config(region, &format!("{region}-1"), peers[place], &peers[..1])
    };
    let daemons: Vec<_> =
        (0..3).map(|place| Daemon::with(&rules("1s", [60, 0, 0]), &config(place), &[])).collect();
    for daemon in &daemons {
        eventually("every daemon sees the two others", || (connected(daemon) == 2).then_some(()));
    }
    eventually("all hold the same and say so", || {
        let agreed = |daemon: &Daemon| daemon.get("/v1/regions").json()["changing"] == serde_json::json!([]);
        daemons.iter().all(agreed).then_some(())
    });
    // Nobody holds anything before all have said that this is the first start.
    eventually("the first region holds all", || (held(&daemons[0]) == 60).then_some(()));
    assert_eq!(held(&daemons[1]), 0);

    daemons[1].set_rules(&rules("1s", [0, 45, 15]));
    eventually("it waits for the others", || {
        let changing = daemons[1].get("/v1/regions").json()["changing"][0].clone();
        (changing["waiting_for"].as_array()?.len() == 2).then_some(())
    });
    let told = daemons[1].run(&["regions"]).out;
    assert!(told.contains("New shares of shared: waiting for"), "{told}");
    assert_eq!(held(&daemons[1]), 0, "it does not grow alone");

    daemons[0].set_rules(&rules("1s", [0, 45, 15]));
    eventually("shrinking asks nobody", || (held(&daemons[0]) == 0).then_some(()));
    eventually("one is still missing", || {
        let changing = daemons[1].get("/v1/regions").json()["changing"][0].clone();
        (changing["waiting_for"] == serde_json::json!(["ap-south/ap-south-1"])).then_some(())
    });
    assert_eq!(held(&daemons[1]), 0, "ap-south may still hold the old weights");
    let noted =
        std::fs::metadata(daemons[0].folder().join("shares.eu-west-1.json")).expect("what is held is noted");
    let mode = std::os::unix::fs::PermissionsExt::mode(&noted.permissions()) & 0o777;
    assert_eq!(mode, 0o600, "for this daemon's user alone: {mode:o}");

    daemons[2].set_rules(&rules("1s", [0, 45, 15]));
    eventually("all of the limit is held again", || {
        ((held(&daemons[0]), held(&daemons[1]), held(&daemons[2])) == (0, 45, 15)).then_some(())
    });
    let settled = daemons[1].get("/v1/regions").json();
    assert_eq!(settled["changing"].as_array().map(Vec::len), Some(0), "{settled}");
}
