//! What a thief of one node brings about by mode, in the figures of `docs/concepts/trust.md`: a limit of 300
//! over three regions of one share. He has the certificate of the only daemon of us.
//!
//! He says what an honest daemon would say that has admitted 600, and gives away what it believes to have:
//! his is a daemon whose rules say another limit.

use super::support::authority::Authority;
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};

const NAMES: [&str; 3] = ["ap", "eu", "us"];
const MODES: [&str; 3] = ["gossip", "split", "escrow"];
const LIMIT: u64 = 300;
const SHARE: usize = 100;

fn rules(limit: u64) -> String {
    let rule = |mode: &str| {
        format!(
            "[[rules]]\nname = \"{mode}\"\nmatch = {{ how = \"{mode}\" }}\nper = [\"user\"]\n\
             algorithm = \"fixed_window\"\nlimit = {limit}\nwindow = \"24h\"\nglobal = {{ mode = \"{mode}\" }}\n"
        )
    };
    MODES.map(rule).concat()
}

/// The daemons of ap and eu, and his; with the authority, whose files they go on reading.
fn regions() -> (Vec<Daemon>, Authority) {
    let authority = Authority::new();
    let peers = NAMES.map(|_| free_udp());
    let daemon = |place: usize| {
        let (region, node) = (NAMES[place], format!("{}-1", NAMES[place]));
        authority.issue(region, &node);
        let others: Vec<String> =
            peers.iter().filter(|peer| **peer != peers[place]).map(ToString::to_string).collect();
        let config = format!(
            "region = \"{region}\"\nnode = \"{node}\"\n[listen]\npeer = \"{}\"\n\
             [peers]\njoin = {others:?}\nregions = {NAMES:?}\n{}",
            peers[place],
            authority.issued(&node)
        );
        Daemon::with(&rules(if region == "us" { LIMIT * 100 } else { LIMIT }), &config, &[])
    };
    let daemons: Vec<Daemon> = (0..3).map(daemon).collect();
    for honest in &daemons[..2] {
        eventually("the regions see each other", || {
            let seen = honest.get("/v1/regions").json();
            let connected = seen["peers"].as_array()?.iter().filter(|peer| peer["connected"] == true).count();
            (connected + 1 == daemons.len()).then_some(())
        });
    }
    (daemons, authority)
}

/// The requests that both honest regions admit by this mode, each asked until it has denied for a while.
fn admitted(daemons: &[Daemon], mode: &str) -> [usize; 2] {
    let mut admitted = [0; 2];
    let mut denied = 0;
    // Rights and reports take a moment from region to region.
    while denied < 15 {
        let before = admitted;
        for (count, daemon) in admitted.iter_mut().zip(daemons) {
            *count += daemon.admitted(&[("user", "ann"), ("how", mode)], 40);
        }
        denied = if before == admitted { denied + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    admitted
}

#[test]
fn a_thief_who_claims_twice_the_limit_leaves_the_others_what_the_manual_says() {
    let (daemons, _authority) = regions();
    for mode in MODES {
        let asked = [("user", "ann"), ("how", mode)];
        eventually("his daemon admits what he likes", || {
            (daemons[2].check_cost(&asked, 600)["allowed"] == true).then_some(())
        });
    }
    for honest in &daemons[..2] {
        eventually("he is believed under gossip", || {
            (honest.check_cost(&[("user", "ann"), ("how", "gossip")], 0)["remaining"] == 0).then_some(())
        });
    }
    assert_eq!(admitted(&daemons, "gossip"), [0, 0]);
    assert_eq!(admitted(&daemons, "split"), [SHARE, SHARE]);
    let [ap, eu] = admitted(&daemons, "escrow");
    assert!((2 * SHARE..=5 * SHARE).contains(&(ap + eu)), "escrow: {ap} and {eu}");
}
