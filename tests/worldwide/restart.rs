//! `gossip` with stores in memory: a daemon that begins again goes on with what its former life used.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::support::daemon::{Daemon, Launch, find};
use super::support::eventually;
use super::world::{Plan, Store, World};

/// Long enough that nothing here happens in two windows, on a slow machine too.
const WINDOW: u64 = 600;
pub(crate) const LIMIT: u64 = 500;

const PLAN: Plan = Plan {
    regions: 3,
    rtt: Duration::from_millis(80),
    store: Store::Memory,
    limit: LIMIT,
    global: "mode = \"gossip\"",
};

/// What a test here takes at most.
const ROOM: u64 = 45;

/// Begins early enough in a window, and says so where it ended meanwhile all the same.
pub(crate) fn in_one_window(test: impl Fn()) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let left = WINDOW - now() % WINDOW;
    if left < ROOM {
        std::thread::sleep(Duration::from_secs(left + 1));
    }
    let window = now() / WINDOW;
    test();
    assert_eq!(now() / WINDOW, window, "a window ended meanwhile: nothing was judged");
}

fn world(algorithm: &str) -> World {
    world_of(Launch::default(), algorithm)
}

/// Three regions of daemons that are started like this.
pub(crate) fn world_of(launch: Launch, algorithm: &str) -> World {
    let rules = format!(
        "[[rules]]\nname = \"world\"\nper = [\"who\"]\nalgorithm = \"{algorithm}\"\nlimit = {LIMIT}\nwindow = \"{WINDOW}s\"\n\
         [rules.global]\nmode = \"gossip\"\n"
    );
    World::launch(PLAN, &rules, "", launch)
}

/// Takes this much in one request, and says whether it was let in.
pub(crate) fn takes(daemon: &Daemon, user: &str, cost: i64) -> bool {
    daemon.check_cost(&[("who", user)], cost)["allowed"] == true
}

/// Waits until a daemon believes that so much was used worldwide.
pub(crate) fn believes(daemon: &Daemon, user: &str, used: u64) {
    eventually("it believes what was used", || {
        let answer = daemon.check_cost(&[("who", user)], 0);
        (find(&answer, "believed_used")? == used).then_some(())
    });
}

/// What is left for this user in all regions, asked for in small parts and everywhere alike: `gossip`
/// overshoots where demand moves, and that is not what is judged here.
pub(crate) fn rest(world: &World, user: &str) -> u64 {
    let mut taken = 0;
    for _ in 0..6 {
        loop {
            let admitted = world.daemons.iter().filter(|daemon| takes(daemon, user, 5)).count();
            if admitted == 0 {
                break;
            }
            taken += 5 * admitted as u64;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    taken
}

fn used_once(algorithm: &str, end: impl Fn(&mut Daemon)) {
    let mut world = world(algorithm);
    for (user, cost) in [("all", 400), ("half", 250)] {
        // More than a region's share is there once it is known that nobody else asks.
        eventually("it takes more than a share", || takes(&world.daemons[0], user, cost).then_some(()));
    }
    believes(&world.daemons[1], "all", 400);
    believes(&world.daemons[1], "half", 250);
    end(&mut world.daemons[0]);
    world.daemons[0].start_again();
    believes(&world.daemons[0], "all", 400);
    believes(&world.daemons[0], "half", 250);
    assert!(!takes(&world.daemons[0], "all", 150), "{algorithm}: it was used before");
    for (user, used) in [("all", 400), ("half", 250)] {
        let all = used + rest(&world, user);
        // What was used before would be there twice: 250 and 400 more. Several daemons that ask at the same
        // instant may be a request of each above the limit.
        assert!((LIMIT * 9 / 10..=LIMIT + 15).contains(&all), "{algorithm}: {all} of {LIMIT} for {user}");
    }
}

#[test]
fn what_a_daemon_that_is_killed_had_admitted_stays_used() {
    in_one_window(|| used_once("fixed_window", Daemon::kill));
}

#[test]
fn what_a_daemon_that_is_ended_had_admitted_stays_used() {
    in_one_window(|| {
        used_once("fixed_window", |daemon| {
            assert!(daemon.terminate().success());
        });
    });
}

#[test]
fn what_a_daemon_had_drawn_from_a_bucket_without_windows_stays_used() {
    used_once("token_bucket", Daemon::kill);
}

#[test]
fn a_daemon_that_is_ended_tells_its_last_counts() {
    in_one_window(|| {
        let mut world = world("fixed_window");
        // Too little to be told of, and until the last moment.
        assert!(takes(&world.daemons[0], "little", 7));
        std::thread::sleep(Duration::from_millis(300));
        assert!(takes(&world.daemons[0], "late", 90));
        assert!(world.daemons[0].terminate().success());
        believes(&world.daemons[1], "late", 90);
        believes(&world.daemons[1], "little", 7);
        world.daemons[0].start_again();
        believes(&world.daemons[0], "late", 90);
        believes(&world.daemons[0], "little", 7);
    });
}

/// Asked without a pause while it dies, begins again and is not connected yet.
#[test]
fn a_restart_under_load_admits_no_more_than_was_untold_and_a_share_more() {
    in_one_window(|| {
        let mut world = world("fixed_window");
        let mut taken = 0;
        while takes(&world.daemons[0], "load", 1) {
            taken += 1;
            if taken == 450 {
                break;
            }
        }
        believes(&world.daemons[1], "load", taken);
        world.daemons[0].kill();
        world.daemons[0].start_again();
        let limit = find(&world.daemons[0].check_cost(&[("who", "load")], 0), "limit");
        let (mut again, mut refused) = (0, 0);
        while refused < 200 {
            if takes(&world.daemons[0], "load", 1) {
                again += 1;
            } else {
                refused += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        eprintln!("{taken} before, {again} after, first of {limit:?}");
        assert!(taken + again <= LIMIT + LIMIT / 3 + 1, "{taken} and {again} of {LIMIT}");
    });
}
