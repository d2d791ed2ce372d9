//! A rolling upgrade from the wire version before: daemons of the older build and of this one hold limits
//! together, and no count is lost.
//!
//! The older build is not of this tree, so these tests run by hand (`CONTRIBUTING.md` says how), with its
//! program named by `TIDEGATE_OLDER`. What every run of the tests checks of it are the bytes that it made
//! (`src/peer/codec/tests/older_version.rs`) and its handshake (`tests/peer_loopback/versions.rs`).

use std::time::Duration;

use super::restart::{self, believes, in_one_window, takes};
use super::support::daemon::{Daemon, Launch};
use super::support::eventually;
use super::world::{Held, Plan, Store, World, judge, rules, sums, windows};

const PATIENCE: Duration = Duration::from_millis(30);

const PLAN: Plan = Plan {
    regions: 3,
    rtt: Duration::from_millis(80),
    store: Store::Memory,
    limit: 210,
    global: "mode = \"gossip\"",
};

/// Daemons of the older build.
fn older() -> Launch {
    let program =
        std::env::var("TIDEGATE_OLDER").expect("TIDEGATE_OLDER names a program of the older version");
    Launch { program: Some(program.leak()), ..Launch::default() }
}

/// The wire versions of its links, as a daemon of this build tells them.
fn spoken(daemon: &Daemon) -> Vec<u64> {
    let regions = daemon.get("/v1/regions").json();
    let peers = regions["peers"].as_array().unwrap();
    peers.iter().filter_map(|peer| peer["wire_version"].as_u64()).collect()
}

fn refused(daemon: &Daemon) -> f64 {
    let reasons = ["protocol", "version", "malformed", "kind", "trailing"];
    let count =
        |reason| daemon.metric(&format!("tidegate_frames_rejected_total{{reason=\"{reason}\"}}")).unwrap();
    reasons.map(count).iter().sum()
}

/// Exchanges the daemons one by one under load by these weights; how the limit was held in each step.
fn exchanged_under_load(plan: Plan, weights: &[u64]) -> Vec<(&'static str, Held)> {
    let mut world = World::launch(plan, &rules(plan, "fixed_window"), "", older());
    let loads = world.load(2.0, weights);
    windows(3);
    let mut held = vec![("all older", judge(&sums(&loads, windows(6)), plan.limit, PATIENCE))];
    for (place, step) in ["one newer", "two newer", "all newer"].into_iter().enumerate() {
        world.daemons[place].terminate();
        world.daemons[place].exchange(None);
        world.wait_until_connected();
        windows(3);
        held.push((step, judge(&sums(&loads, windows(6)), plan.limit, PATIENCE)));
        let links: Vec<_> = world.daemons[..=place].iter().map(spoken).collect();
        let refusals: Vec<_> = world.daemons.iter().map(refused).collect();
        eprintln!("{step}: {links:?}, refused: {refusals:?}");
        assert_eq!(links.concat().iter().filter(|version| **version == 5).count(), (2 - place) * (place + 1));
        assert!(refusals.iter().all(|count| *count == 0.0), "{refusals:?}");
    }
    eprintln!("{held:#?}");
    held
}

#[test]
#[ignore = "needs a program of the older wire version in TIDEGATE_OLDER"]
fn a_limit_is_held_and_used_while_the_daemons_are_exchanged_one_by_one() {
    let held = exchanged_under_load(PLAN, &[1, 1, 1]);
    assert!(
        held.iter().all(|(_, held)| held.over_mean <= 1.0 && held.over_max <= 5.0 && held.used >= 97.0),
        "{held:?}"
    );
}

#[test]
#[ignore = "needs a program of the older wire version in TIDEGATE_OLDER"]
fn an_exact_limit_is_never_exceeded_while_the_daemons_are_exchanged_one_by_one() {
    // Two regions have more than they need, and give of it to the third.
    let held = exchanged_under_load(Plan { global: "mode = \"escrow\"", ..PLAN }, &[10, 1, 1]);
    assert!(held.iter().all(|(_, held)| held.over_max == 0.0 && held.used >= 60.0), "{held:?}");
}

#[test]
#[ignore = "needs a program of the older wire version in TIDEGATE_OLDER"]
fn what_was_admitted_before_and_during_an_upgrade_stays_used() {
    in_one_window(|| {
        let mut world = restart::world_of(older(), "fixed_window");
        for (user, cost) in [("all", 400), ("half", 250)] {
            eventually("it takes more than a share", || takes(&world.daemons[0], user, cost).then_some(()));
        }
        for place in 0..3 {
            world.daemons.iter().for_each(|daemon| believes(daemon, "all", 400));
            world.daemons[place].terminate();
            world.daemons[place].exchange(None);
            world.wait_until_connected();
            // One older daemon and one newer tell each other of what is admitted meanwhile.
            let used = 250 + 20 * (place as u64 + 1);
            eventually("it is admitted", || takes(&world.daemons[place], "half", 20).then_some(()));
            world.daemons.iter().for_each(|daemon| believes(daemon, "half", used));
        }
        for (user, used) in [("all", 400), ("half", 310)] {
            let all = used + restart::rest(&world, user);
            eprintln!("{all} of {} for {user}", restart::LIMIT);
            assert!((restart::LIMIT * 9 / 10..=restart::LIMIT + 15).contains(&all), "{all} for {user}");
        }
    });
}
