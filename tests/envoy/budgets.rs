//! A budget of 1,000 and responses of 400: the fourth request is denied, in memory and in Redis, in one
//! region and in every worldwide mode; a thousand times where nothing has to come from another region first,
//! and else as often as the time allows. With `TIDEGATE_TEST_BUDGETS` a thousand times in every mode: that
//! wants a machine to itself, one test at a time.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::redis_servers::Server;
use super::support::authority::Authority;
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};
use super::{Front, tokens_front};

/// How often one mode is tried.
const REPETITIONS: usize = 1_000;
/// After so long a machine that is too slow for all of them tries no more.
const LONGEST: Duration = Duration::from_secs(20);
/// The same where a thousand are asked for in every mode.
const LONGEST_THOROUGH: Duration = Duration::from_secs(100);
/// So many users spend their budgets at the same time, where nothing has to come from another region first or
/// where a thousand are asked for in every mode.
const AT_ONCE: usize = 100;
/// So many where rights to their budgets come from other regions first, within one window.
const AT_ONCE_EXACT: usize = 30;
/// So many requests of theirs are under way.
const CALLERS: usize = 4;

/// A budget for each user; the share of `split` is a third.
fn budget(mode: &str) -> String {
    let limit = if mode == "split" { 3_000 } else { 1_000 };
    // A store that begins spends no rights of the window in which it began. What comes too late on a slow
    // machine comes in another window, which is not judged.
    let window = if mode == "escrow" { "30s" } else { "24h" };
    let global = if mode == "local" { String::new() } else { format!("[rules.global]\nmode = \"{mode}\"\n") };
    format!(
        "[[rules]]\nname = \"{mode}\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = {limit}\n\
         window = \"{window}\"\ncharge = \"always\"\n{global}"
    )
}

/// Three regions, each with this configuration's store; Envoy asks the first.
pub(crate) fn three_regions(rules: &str, stores: [String; 3]) -> [Daemon; 3] {
    let authority = Authority::new();
    let regions = ["ap", "eu", "us"];
    let peers = regions.map(|_| free_udp());
    let join: Vec<String> = peers.iter().map(ToString::to_string).collect();
    let mut stores = stores.into_iter();
    let start = |(region, peer): (&str, std::net::SocketAddr)| {
        let tls = authority.issue(region, region);
        let config = format!(
            "region = \"{region}\"\nnode = \"{region}\"\n[listen]\npeer = \"{peer}\"\n{}\
             [peers]\njoin = {join:?}\nregions = {regions:?}\n{tls}",
            stores.next().unwrap()
        );
        Daemon::with(rules, &config, &[])
    };
    let daemons: Vec<Daemon> = regions.into_iter().zip(peers).map(start).collect();
    daemons.try_into().unwrap_or_else(|_| unreachable!("three are three"))
}

fn a_budget_is_held(mode: &str, stores: [String; 3]) {
    let daemons = three_regions(&budget(mode), stores);
    let begun = Instant::now();
    while daemons[0].check_cost(&[("user", "first")], 0)["allowed"] != true {
        assert!(begun.elapsed() < Duration::from_secs(90), "an exact limit does not begin");
        std::thread::sleep(Duration::from_millis(100));
    }
    let front = tokens_front(daemons[0].grpc);
    let thorough = std::env::var_os("TIDEGATE_TEST_BUDGETS").is_some();
    let at_once = match mode {
        "escrow" if thorough => AT_ONCE_EXACT,
        // Where a region waits for the others, users come one after the other, each of them as soon as it
        // may.
        "gossip" | "escrow" if !thorough => 1,
        _ => AT_ONCE,
    };
    let longest = if thorough { LONGEST_THOROUGH } else { LONGEST };
    let (began, mut judged, mut turn) = (Instant::now(), 0, 0);
    while judged < REPETITIONS && began.elapsed() < longest {
        let users: Vec<String> = (0..at_once).map(|user| format!("{mode}-{turn}-{user}")).collect();
        if are_held(&front, &daemons[0], mode, &users) {
            judged += at_once;
        }
        turn += 1;
    }
    eprintln!("{mode}: {judged} budgets were held in {:?}", began.elapsed());
    assert!(judged >= at_once.max(3), "{mode}: {judged} were judged in {turn} turns");
}

/// The status of one more request of each.
fn statuses(front: &Front, users: &[&String]) -> Vec<u16> {
    let part = users.len().div_ceil(CALLERS).max(1);
    std::thread::scope(|scope| {
        let ask = |users: &[&String]| -> Vec<u16> {
            users.iter().map(|user| front.get(user, "/tokens/400").status).collect()
        };
        let parts: Vec<_> = users.chunks(part).map(|users| scope.spawn(move || ask(users))).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    })
}

/// Uses up budgets; `false` if their window ended meanwhile. However a budget is held, the request after the
/// one that used it up is denied. Under `escrow` the region gathers what the others hold before it admits
/// again.
fn are_held(front: &Front, daemon: &Daemon, mode: &str, users: &[String]) -> bool {
    let checks = users.iter().map(|user| json!({ "attributes": { "user": user }, "cost": 0 }));
    let checks = json!({ "checks": checks.collect::<Vec<Value>>() });
    let asked = || daemon.post("/v1/check", &checks).json()["decisions"].as_array().unwrap().clone();
    let (began, window) = (Instant::now(), asked()[0]["reset_ms"].as_u64().unwrap());
    let ended = || mode == "escrow" && began.elapsed() >= Duration::from_millis(window);
    for turn in 1..=3_u64 {
        let mut waiting: Vec<&String> = users.iter().collect();
        eventually(&format!("request {turn} of each passes"), || {
            let passed = statuses(front, &waiting);
            let mut passed = passed.into_iter().map(|status| status == 200);
            waiting.retain(|_| !passed.next().unwrap());
            (waiting.is_empty() || ended()).then_some(())
        });
        // Envoy reports after it has answered.
        let left = 1_000_u64.saturating_sub(turn * 400);
        eventually("the responses are charged", || {
            let charged = asked().iter().all(|asked| asked["remaining"].as_u64() <= Some(left));
            (charged || ended()).then_some(())
        });
    }
    let all: Vec<&String> = users.iter().collect();
    let statuses = [statuses(front, &all), statuses(front, &all)].concat();
    let judged = !ended();
    let denied = statuses.iter().filter(|status| **status == 429).count();
    assert!(!judged || denied == statuses.len(), "{mode}: {denied} of {} were denied", statuses.len());
    judged
}

fn in_memory(mode: &str) {
    a_budget_is_held(mode, [const { String::new() }; 3]);
}

fn in_redis(mode: &str) {
    let servers = [(); 3].map(|()| Server::start(&[]));
    let store = |server: &Server| {
        format!(
            "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntopology = \"single\"\ntimeout = \"1s\"\n",
            server.url()
        )
    };
    a_budget_is_held(mode, [store(&servers[0]), store(&servers[1]), store(&servers[2])]);
}

#[test]
fn budgets_are_held_in_memory() {
    in_memory("local");
}

#[test]
fn budgets_are_held_by_gossip() {
    in_memory("gossip");
}

#[test]
fn budgets_are_held_by_split() {
    in_memory("split");
}

#[test]
fn budgets_are_held_by_escrow() {
    in_memory("escrow");
}

#[test]
fn budgets_are_held_in_redis() {
    in_redis("local");
}

#[test]
fn budgets_are_held_by_gossip_in_redis() {
    in_redis("gossip");
}

#[test]
fn budgets_are_held_by_split_in_redis() {
    in_redis("split");
}

#[test]
fn budgets_are_held_by_escrow_in_redis() {
    in_redis("escrow");
}
