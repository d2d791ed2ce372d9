//! `gossip`: nearly exact, with the bounds that the simulator gives plus what this machine's noise explains.

use std::time::Duration;

use super::load::Load;
use super::support::daemon::{Daemon, find};
use super::support::eventually;
use super::world::{Plan, Store, Window, World, judge, rules, sums, window, windows};

const PATIENCE: Duration = Duration::from_millis(30);

const fn plan(regions: usize, rtt_ms: u64, store: Store) -> Plan {
    let rtt = Duration::from_millis(rtt_ms);
    Plan { regions, rtt, store, limit: 210, global: "mode = \"gossip\"" }
}

/// Nothing above a little, and nearly all of it used.
fn held(seen: &[Window], plan: Plan) {
    let held = judge(seen, plan.limit, PATIENCE);
    assert!(held.over_mean <= 1.0 && held.over_max <= 5.0 && held.used >= 97.0, "{held:?}");
}

/// Steady load, twice the limit: nothing above a little, all of it used.
fn is_held_and_used(plan: Plan) {
    let world = World::start(plan);
    let loads = world.load(2.0, &vec![1; plan.regions]);
    windows(3);
    held(&sums(&loads, windows(8)), plan);
}

#[test]
fn three_regions_a_continent_apart_hold_and_use_a_limit() {
    is_held_and_used(plan(3, 20, Store::Memory));
}

#[test]
fn five_regions_around_the_world_hold_and_use_a_limit() {
    is_held_and_used(plan(5, 250, Store::Memory));
}

#[test]
fn five_regions_that_count_in_redis_hold_and_use_a_limit() {
    is_held_and_used(plan(5, 250, Store::Redis));
}

/// A region is cut off for five seconds.
fn survives_a_cut(plan: Plan) {
    let world = World::start(plan);
    let loads = world.load(2.0, &[1, 1, 1]);
    windows(3);
    world.cut(2);
    let apart = sums(&loads, windows(5));
    world.heal(2);
    world.wait_until_connected();
    windows(2);
    let again = sums(&loads, windows(4));
    // In the first window they have not noticed yet.
    let apart = judge(&apart[1..], plan.limit, PATIENCE);
    assert!(apart.over_mean <= 1.0 && apart.used >= 90.0, "{apart:?}");
    held(&again, plan);
}

#[test]
fn a_region_that_is_cut_off_keeps_its_share_and_comes_back() {
    survives_a_cut(plan(3, 80, Store::Memory));
}

#[test]
fn a_region_that_is_cut_off_keeps_its_share_in_redis_and_comes_back() {
    survives_a_cut(plan(3, 20, Store::Redis));
}

/// Of a bucket without windows each side keeps its part of the rate in a cut, and nothing is owed after it.
fn a_level_survives_a_cut(plan: Plan, algorithm: &str) {
    let world = World::with_rules(plan, &rules(plan, algorithm));
    let loads = world.load(2.0, &[1, 1, 1]);
    windows(3);
    world.cut(2);
    // It is noticed, and what was left of the bucket is used.
    windows(2);
    let apart = sums(&loads, windows(8));
    world.heal(2);
    world.wait_until_connected();
    windows(2);
    let again = sums(&loads, windows(4));
    eprintln!("apart {apart:?}, again {again:?}");
    let sum = |seen: &[Window], of: fn(&Window) -> u64| seen.iter().map(of).sum::<u64>();
    // A busy machine asks for less than it was told to. What it did not ask for lies in the bucket, a limit
    // at most, and is used once it asks for more.
    let kept =
        |seen: &[Window]| if seen.iter().any(|window| window.asked < plan.limit) { plan.limit } else { 0 };
    let bounds = |seen: &[Window], percent: u64| {
        let all = plan.limit * u64::try_from(seen.len()).unwrap();
        (sum(seen, |window| window.asked).min(all) * percent / 100, all)
    };
    let ((least, all), admitted) = (bounds(&apart, 60), sum(&apart, |window| window.admitted));
    let most = all * 105 / 100 + kept(&apart);
    assert!((least..=most).contains(&admitted), "{admitted} of {least} to {most} in the cut");
    let ((least, all), admitted) = (bounds(&again, 70), sum(&again, |window| window.admitted));
    let most = all * 110 / 100 + plan.limit;
    assert!((least..=most).contains(&admitted), "{admitted} of {least} to {most} after it");
}

#[test]
fn a_token_bucket_keeps_the_shares_of_both_sides_of_a_cut() {
    a_level_survives_a_cut(plan(3, 80, Store::Memory), "token_bucket");
}

#[test]
fn a_token_bucket_in_redis_keeps_the_shares_of_both_sides_of_a_cut() {
    a_level_survives_a_cut(plan(3, 20, Store::Redis), "token_bucket");
}

#[test]
fn nothing_of_a_bucket_that_is_denied_is_admitted_in_a_cut() {
    let global = "mode = \"gossip\"\non_partition = \"deny\"";
    let plan = Plan { global, ..plan(3, 20, Store::Memory) };
    let world = World::with_rules(plan, &rules(plan, "gcra"));
    let loads = world.load(2.0, &[1, 1, 1]);
    windows(2);
    world.cut(2);
    windows(2);
    let apart = sums(&loads, windows(3));
    assert!(apart.iter().all(|window| window.admitted == 0), "{apart:?}");
    world.heal(2);
    world.wait_until_connected();
    windows(3);
    let again = sums(&loads, windows(3)).iter().map(|window| window.admitted).sum::<u64>();
    assert!(again >= plan.limit * 3 * 85 / 100, "{again}");
}

/// A daemon is killed under load, and started again.
fn survives_a_kill(plan: Plan) {
    let mut world = World::start(plan);
    let loads = world.load(2.0, &[1, 1, 1]);
    windows(2);
    world.daemons[2].kill();
    windows(2);
    world.daemons[2].start_again();
    world.wait_until_connected();
    windows(2);
    held(&sums(&loads, windows(5)), plan);
}

#[test]
fn a_daemon_that_is_killed_comes_back_without_counting_twice() {
    survives_a_kill(plan(3, 80, Store::Memory));
}

#[test]
fn a_daemon_that_is_killed_finds_its_counts_in_redis_and_does_not_count_them_twice() {
    survives_a_kill(plan(3, 80, Store::Redis));
}

/// A report that is larger than its region's part counts at once where the world has room for it, also where
/// nobody asks its region again.
fn one_large_report_is_heard_of(store: Store) {
    let plan = plan(3, 20, store);
    let rules = ["fixed_window", "sliding_window"].map(|algorithm| {
        format!(
            "[[rules]]\nname = \"{algorithm}\"\nmatch = {{ by = \"{algorithm}\" }}\nper = [\"who\"]\n\
             algorithm = \"{algorithm}\"\nlimit = 90\nwindow = \"30d\"\n[rules.global]\nmode = \"gossip\"\n"
        )
    });
    let world = World::with_rules(plan, &rules.concat());
    for (by, reports, heard) in [
        ("fixed_window", vec![85], 85),
        ("sliding_window", vec![85], 85),
        ("fixed_window", vec![30, 115], 80),
    ] {
        let who = format!("{by}-{}", reports.len());
        let attributes = [("by", by), ("who", who.as_str())];
        for cost in reports {
            let asked = serde_json::json!({ "attributes": { "by": by, "who": who }, "cost": cost });
            assert_eq!(world.daemons[0].post("/v1/report", &asked).status, 200);
        }
        for daemon in &world.daemons[1..] {
            eventually(&format!("another region hears of what was reported ({who})"), || {
                let told = daemon.check_cost(&attributes, 0);
                let believed = find(&told, "believed_used").and_then(|used| used.as_u64());
                believed.is_some_and(|used| used >= heard).then_some(())
            });
        }
    }
}

#[test]
fn one_large_report_is_heard_of_from_memory() {
    one_large_report_is_heard_of(Store::Memory);
}

#[test]
fn one_large_report_is_heard_of_from_redis() {
    one_large_report_is_heard_of(Store::Redis);
}

/// More users use up their limits than a daemon follows.
#[test]
fn where_not_every_bucket_can_be_followed_the_regions_keep_to_their_shares() {
    let plan = plan(2, 20, Store::Memory);
    let rules = "[[rules]]\nname = \"world\"\nper = [\"who\"]\nalgorithm = \"fixed_window\"\nlimit = 10\nwindow = \"30d\"\n\
                 [rules.global]\nmode = \"gossip\"\n";
    let world = World::with_peers(plan, rules, "max_keys = 1000\n");
    let (first, second) = (&world.daemons[0], &world.daemons[1]);
    let dropped = |daemon: &Daemon| daemon.metric("tidegate_world_keys_dropped_total").unwrap();
    assert_eq!((dropped(first), dropped(second)), (0.0, 0.0), "the counter is there before it is needed");
    let passes =
        |daemon: &Daemon, user: &str, cost| daemon.check_cost(&[("who", user)], cost)["allowed"] == true;
    eventually("more than a share is there once nobody else asks", || {
        passes(first, "control", 6).then_some(())
    });
    for user in 0..1_200 {
        // All that a region may use of a bucket that is new.
        first.check_cost(&[("who", &format!("u{user}"))], 5);
    }
    let mut asked = 0;
    eventually("both regions keep to their shares", || {
        asked += 1;
        let user = format!("w{asked}");
        let crowded = |daemon: &Daemon| find(&daemon.check(&[("who", &user)]), "limit") == Some(5.into());
        (crowded(first) && crowded(second)).then_some(())
    });
    for daemon in [first, second] {
        let bounds = daemon.get("/v1/regions").json();
        assert!(find(&bounds, "error_bound").and_then(|bound| bound.as_u64()) >= Some(5), "{bounds}");
    }
    assert!(!passes(first, "new", 6) && !passes(second, "new", 6), "a share is all that there is");
    for user in 0..4 {
        let user = format!("v{user}");
        let admitted = |daemon: &Daemon| daemon.admitted(&[("who", user.as_str())], 10);
        let (here, there) = (admitted(first), admitted(second));
        assert!(here + there <= 10 && here >= 5, "{user}: {here} and {there} of 10");
        let answer = first.check(&[("who", user.as_str())]);
        let bound = find(&answer, "error_bound").and_then(|bound| bound.as_u64()).unwrap();
        assert!(bound >= 5, "{answer}");
    }
    assert!(dropped(first) > 0.0);
    assert!(first.metric("tidegate_world_keys").unwrap() <= 1_000.0);
}

#[test]
fn a_limit_follows_demand_that_moves() {
    let plan = plan(3, 80, Store::Memory);
    let world = World::start(plan);
    let loads = world.load(2.0, &[1, 0, 0]);
    let rate = plan.limit * 2;
    windows(3);
    let mut seen = Vec::new();
    for place in [1, 2, 0] {
        for (other, load) in loads.iter().enumerate() {
            load.set_rate(if other == place { rate } else { 0 });
        }
        seen.extend(sums(&loads, windows(3)));
    }
    let held = judge(&seen, plan.limit, PATIENCE);
    assert!(held.over_mean <= 1.5 && held.over_max <= 12.0 && held.used >= 95.0, "{held:?}");
}

/// What was surely used in a window is never more than `daemon` says: what it believes, and its error bound.
/// Asks until the window is over.
fn says_no_less_than_was_used(
    daemon: &Daemon,
    loads: &[Load],
    seconds: u64,
    seen: &mut Vec<(u64, u64, u64)>,
) {
    let now = || window() / seconds;
    let begun = now();
    loop {
        // All of this was answered before the question, so it is used.
        let used: u64 = loads.iter().map(|load| load.of(begun).admitted).sum();
        let answer = daemon.check_cost(&[("who", "world")], 0);
        if now() != begun {
            return;
        }
        let said = |field: &str| find(&answer, field).and_then(|value| value.as_u64()).unwrap();
        let (believed, bound) = (said("believed_used"), said("error_bound"));
        assert!(used <= believed + bound, "{used} are used: {answer}");
        seen.push((used, believed, bound));
        std::thread::sleep(Duration::from_millis(3));
    }
}

#[test]
fn a_region_that_only_asks_is_told_no_less_than_the_others_used() {
    let plan = Plan { limit: 1_000, ..plan(4, 80, Store::Memory) };
    let world = World::start(plan);
    let loads = world.load(2.1, &[1, 1, 1, 0]);
    let mut seen = Vec::new();
    // What was late at the start is forgotten after ten seconds, if this machine lets anything be in time.
    let end = window() + 18;
    while window() < end {
        says_no_less_than_was_used(&world.daemons[3], &loads, 1, &mut seen);
    }
    let close = seen.iter().filter(|(.., bound)| *bound < plan.limit).count();
    eprintln!("{} answers, {close} of them with a bound below the limit", seen.len());
    assert!(seen.len() >= 50 && seen.iter().any(|(used, ..)| *used > 0), "{}", seen.len());
}

#[test]
fn a_daemon_that_forgot_with_its_process_says_that_it_may_have_admitted_all_before() {
    let plan = Plan { limit: 6_000, ..plan(3, 80, Store::Memory) };
    let mut world = World::with_rules(plan, &rules(plan, "fixed_window").replace("1s", "10s"));
    let ten = Duration::from_secs(10);
    let loads: Vec<_> = world.daemons.iter().map(|daemon| Load::start(daemon.grpc, 300, ten)).collect();
    // So that much of a window is left.
    windows(2);
    while !(2..4).contains(&(window() % 10)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    world.daemons[0].kill();
    world.daemons[0].start_again();
    let mut seen = Vec::new();
    says_no_less_than_was_used(&world.daemons[0], &loads, 10, &mut seen);
    assert!(!seen.is_empty(), "the daemon was not there again before the window was over");
}
