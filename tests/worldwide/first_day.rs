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

/// A share of nearly the whole limit, so that nobody sends what is lost on its way.
const SHARE: u64 = 297;
/// Two eighths of it, and what the other region has.
const LOST_MOST: u64 = 2 * SHARE.div_ceil(8) + (LIMIT - SHARE);

fn two_regions() -> World {
    let rtt = Duration::from_millis(20);
    let global = "mode = \"escrow\"\nshares = { eu-west = 99, us-east = 1 }";
    let plan = Plan { regions: 2, rtt, store: Store::Memory, limit: LIMIT, global };
    let rules = format!(
        "[[rules]]\nname = \"world\"\nper = [\"who\"]\nalgorithm = \"fixed_window\"\nlimit = {LIMIT}\ncalendar = \"month\"\n\
         [rules.global]\n{global}\n"
    );
    let world = World::with_rules(plan, &rules);
    eventually("the regions have agreed", || takes(&world.daemons[0], "first").then_some(()));
    world
}

fn spend(world: &World, user: &str, permits: u64) {
    let spent: u64 = (0..permits).map(|_| u64::from(takes(&world.daemons[0], user))).sum();
    assert_eq!(spent, permits, "{user}");
}

/// SIGKILL, something that happens to its file, and a new process that has agreed with the others.
fn killed(world: &mut World, meanwhile: impl FnOnce(&Daemon)) {
    // Weights that were just noted are noted beside the marks within a second.
    std::thread::sleep(Duration::from_secs(3));
    world.daemons[0].kill();
    meanwhile(&world.daemons[0]);
    world.daemons[0].start_again();
    world.wait_until_connected();
    eventually("it has agreed", || {
        let cause = world.daemons[0].check_cost(&[("who", "nobody")], 0);
        (!cause.to_string().contains("not_agreed")).then_some(())
    });
}

fn marks_of(daemon: &Daemon) -> std::path::PathBuf {
    daemon.folder().join("marks.eu-west-1")
}

#[test]
fn a_daemon_in_memory_that_is_killed_loses_two_eighths_of_its_share_at_most() {
    let mut world = two_regions();
    for (user, permits) in [("little", 20), ("more", 150), ("nearly all", 280)] {
        spend(&world, user, permits);
    }
    // By mistake: the notes of the first process stay.
    let refused = world.daemons[0].started_twice();
    assert!(refused.contains("marks.eu-west-1.lock"), "{refused}");
    spend(&world, "more", 10);
    killed(&mut world, |_| {});
    // Once more, after something was spent by the second process.
    spend(&world, "more", 40);
    spend(&world, "twice", 60);
    killed(&mut world, |_| {});
    for (user, before, kills) in
        [("little", 20, 1), ("more", 200, 2), ("nearly all", 280, 1), ("twice", 60, 2)]
    {
        let all = before + rest(&world, user);
        eprintln!("{user}: {before} before, {all} in all");
        assert!(all <= LIMIT, "{user}: {all} of {LIMIT}");
        assert!(all + kills * LOST_MOST >= LIMIT, "{user}: {all} of {LIMIT}");
    }
}

#[test]
fn what_was_noted_burns_where_it_is_gone_or_of_another_boot() {
    let mut world = two_regions();
    spend(&world, "u", 20);
    killed(&mut world, |daemon| std::fs::remove_file(marks_of(daemon)).unwrap());
    assert!(rest(&world, "u") <= LIMIT - SHARE, "without the file all of the share is burnt");
    let denied = world.daemons[0].check(&[("who", "u")]);
    assert!(denied.to_string().contains("burnt"), "{denied}");

    let mut world = two_regions();
    spend(&world, "u", 20);
    killed(&mut world, |daemon| {
        let (path, boot) =
            (marks_of(daemon), std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(boot.trim()), "{text}");
        std::fs::write(&path, text.replace(boot.trim(), "6d3c6c0e-0000-4000-8000-000000000000")).unwrap();
    });
    assert!(rest(&world, "u") <= LIMIT - SHARE, "what another boot noted is burnt");
    let log = world.daemons[0].log();
    assert!(log.contains("was started anew since"), "{log}");
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
