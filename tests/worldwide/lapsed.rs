//! Reservations of worldwide rules that nobody settles: what they held is free again in all regions.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::eventually;
use super::support::reservations::{commit, reserve};
use super::world::{Plan, Store, World};

const LIMIT: u64 = 100;

const RULES: [(&str, &str); 4] = [
    ("fixed_window", "gossip"),
    ("sliding_log", "gossip"),
    ("fixed_window", "escrow"),
    ("sliding_log", "escrow"),
];

/// The name of a rule, which requests say as well.
fn name_of((algorithm, mode): (&str, &str)) -> String {
    format!("{algorithm}-{mode}")
}

fn world(store: Store) -> World {
    let plan = Plan { regions: 2, rtt: Duration::from_millis(20), store, limit: LIMIT, global: "" };
    let rule = |rule: (&str, &str)| {
        let (name, (algorithm, mode)) = (name_of(rule), rule);
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ how = \"{name}\" }}\nper = [\"user\"]\n\
             algorithm = \"{algorithm}\"\nlimit = {LIMIT}\nwindow = \"24h\"\n[rules.global]\nmode = \"{mode}\"\n"
        )
    };
    World::with_rules(plan, &RULES.map(rule).concat())
}

/// Reserves, once what other regions have has come where it is asked for.
fn reserved(daemon: &Daemon, who: (&str, &str), amount: u64, ttl: &str) -> Value {
    eventually("it is reserved", || {
        let made = reserve(daemon, who, &json!({ "amount": amount, "ttl": ttl }));
        (made["allowed"] == true).then_some(made)
    })
}

/// Takes what it gets there now, of at most so much.
fn take(daemons: &[Daemon], (how, user): (&str, &str), most: u64) -> u64 {
    let mut taken = 0;
    for daemon in daemons {
        let takes = || daemon.check_cost(&[("how", how), ("user", user)], 5)["allowed"] == true;
        while taken < most && takes() {
            taken += 5;
        }
    }
    taken
}

/// Waits until at least so much was let in.
fn takes_at_least(daemons: &[Daemon], who: (&str, &str), least: u64) {
    let mut taken = 0;
    eventually(&format!("{least} are free: {who:?}"), || {
        taken += take(daemons, who, least - taken);
        (taken >= least).then_some(())
    });
}

fn is_free_elsewhere(store: Store) {
    let world = world(store);
    let (here, elsewhere) = (&world.daemons[0], &world.daemons[1..]);
    for rule in RULES {
        let how = &name_of(rule);
        reserved(here, (how, "open"), 90, "10m");
        reserved(here, (how, "lapses"), 90, "1s");
    }
    for rule in RULES {
        let how = &name_of(rule);
        // Nobody asks where it was reserved.
        takes_at_least(elsewhere, (how, "lapses"), 90);
        let more = take(elsewhere, (how, "open"), 90);
        assert!(more <= 15, "{how}: {more} were let in beside 90 of {LIMIT} that are reserved");
    }
}

#[test]
fn what_lapsed_in_one_region_is_free_in_another() {
    is_free_elsewhere(Store::Memory);
}

#[test]
fn what_lapsed_in_the_redis_of_one_region_is_free_in_another() {
    is_free_elsewhere(Store::Redis);
}

#[test]
fn what_was_reserved_in_memory_goes_back_when_its_daemon_is_ended() {
    let mut world = world(Store::Memory);
    let mut committed = Vec::new();
    for rule in RULES {
        let how = &name_of(rule);
        reserved(&world.daemons[0], (how, "never"), 60, "10m");
        committed.push(reserved(&world.daemons[0], (how, "committed"), 60, "10m"));
    }
    assert!(world.daemons[0].terminate().success());
    world.daemons[0].start_again();
    world.wait_until_connected();
    for (rule, made) in RULES.into_iter().zip(committed) {
        let how = &name_of(rule);
        let late = json!({ "committed": true, "lapsed": true, "degraded": false });
        assert_eq!(commit(&world.daemons[0], &made, 10), late, "{how}");
        // It stays charged neither beside what was used nor alone.
        takes_at_least(&world.daemons, (how, "committed"), LIMIT - 20);
        takes_at_least(&world.daemons, (how, "never"), LIMIT - 10);
    }
}
