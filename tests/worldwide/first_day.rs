//! A month's budget under `escrow`: there on a cluster's first day, and never spent twice, whatever is lost.

use std::time::Duration;

use super::support::daemon::Daemon;
use super::support::eventually;
use super::world::{Plan, Store, World};

const LIMIT: u64 = 300;

fn world(store: Store) -> World {
    let rtt = Duration::from_millis(20);
    let plan = Plan { regions: 3, rtt, store, limit: LIMIT, global: "mode = \"escrow\"" };
    let rules = format!(
        "[[rules]]\nname = \"world\"\nper = [\"who\"]\nalgorithm = \"fixed_window\"\nlimit = {LIMIT}\ncalendar = \"month\"\n\
         [rules.global]\n{}\n",
        plan.global
    );
    let world = World::with_rules(plan, &rules);
    eventually("the regions have agreed", || takes(&world.daemons[0], "first").then_some(()));
    world
}

fn takes(daemon: &Daemon, user: &str) -> bool {
    daemon.check(&[("who", user)])["allowed"] == true
}

/// Asks all regions in turn until all have denied ten times in a row. How many were admitted.
fn rest(world: &World, user: &str) -> u64 {
    let (mut admitted, mut denied) = (0, 0);
    while denied < 10 {
        let before = admitted;
        admitted += world.daemons.iter().map(|daemon| u64::from(takes(daemon, user))).sum::<u64>();
        denied = if admitted == before { denied + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(30));
    }
    admitted
}

/// What a user is given in all who spends something in the first region before that loses something.
fn over(world: &mut World, user: &str, lose: impl FnOnce(&mut World)) -> u64 {
    let before: u64 = (0..60).map(|_| u64::from(takes(&world.daemons[0], user))).sum();
    assert!(before > 0, "a share is a hundred, and others send theirs");
    lose(world);
    let after = rest(world, user);
    eprintln!("{user}: {before} and {after}");
    before + after
}

fn comes_back(world: &mut World, with_disk: bool) {
    let daemon = &mut world.daemons[0];
    daemon.kill();
    if !with_disk {
        for file in std::fs::read_dir(daemon.folder()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "json") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
    daemon.start_again();
    world.wait_until_connected();
    eventually("it spends again", || {
        let regions = world.daemons[0].get("/v1/regions").json();
        (!regions.to_string().contains("\"first\":true")).then_some(())
    });
}

#[test]
fn a_months_budget_in_memory_is_there_on_the_first_day_and_never_spent_twice() {
    let mut world = world(Store::Memory);
    assert_eq!(rest(&world, "first day"), LIMIT);
    // What the lost memory had not spent is burnt, with what others had just sent to it.
    for (user, with_disk) in [("killed", true), ("without its disk", false)] {
        let all = over(&mut world, user, |world| {
            comes_back(world, with_disk);
            a_newcomer_waits_a_second(world, &format!("new once it was {user}"));
        });
        assert!(all <= LIMIT, "{user}: {all} of {LIMIT}");
    }
}

/// The region that lost its memory has nothing for a user that nobody knows, and the others send some.
fn a_newcomer_waits_a_second(world: &World, user: &str) {
    let first = world.daemons[0].check(&[("who", user)]);
    if first["allowed"] == true {
        return;
    }
    let wait = first["retry_after_ms"].as_u64();
    assert!(wait.is_some_and(|wait| wait <= 1_000), "{user}: {first}");
    std::thread::sleep(Duration::from_millis(wait.unwrap_or_default()));
    eventually("whoever waited is admitted", || takes(&world.daemons[0], user).then_some(()));
}

#[test]
fn a_restart_in_good_order_loses_nothing_in_memory_and_what_was_left_is_taken_once() {
    let mut world = world(Store::Memory);
    let restart = |world: &mut World| {
        assert!(world.daemons[0].terminate().success());
        world.daemons[0].start_again();
        world.wait_until_connected();
    };
    let all = over(&mut world, "in order", restart);
    assert_eq!(all, LIMIT);
    // Killed after that, it finds nothing of what it left before.
    let all = over(&mut world, "in order, then killed", |world| {
        restart(world);
        let more: u64 = (0..30).map(|_| u64::from(takes(&world.daemons[0], "in order, then killed"))).sum();
        assert_eq!(more, 30);
        comes_back(world, true);
    });
    assert!(all + 30 <= LIMIT, "{all} of {LIMIT}, and 30 that are not counted here");
}

#[test]
fn a_months_budget_in_redis_is_there_on_the_first_day_and_never_spent_twice() {
    let mut world = world(Store::Redis);
    assert_eq!(rest(&world, "first day"), LIMIT);
    for (user, with_disk) in [("killed", true), ("without its disk", false)] {
        let all = over(&mut world, user, |world| comes_back(world, with_disk));
        assert_eq!(all, LIMIT, "{user}: Redis remembers");
    }
    let all = over(&mut world, "flushed", |world| {
        world.redis[0].command(&["FLUSHALL"]).unwrap();
    });
    assert!(all <= LIMIT, "flushed: {all} of {LIMIT}");
}
