//! Reservations that are noted in Redis: from several daemons, over several servers, and while one is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::request::Cost;
use tidegate::core::reservation::{Commit, ReservationFate, ReservationId, ReservedCost};
use tidegate::core::reservation_terms::OnLapse;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, ChargeResult, Intent, Store};
use tidegate::store::redis::{RedisSettings, RedisStore, Topology};

use crate::redis_servers::{Cluster, Server, until};
use crate::redis_store::{compiled, key, runtime, settings, store};
use crate::support::authority::Authority;
use crate::support::daemon::Daemon;
use crate::support::reports::sent_again_it_is_charged_once;
use crate::support::reservations::{
    ALGORITHMS, PLACES, an_id_holds_what_it_held_first, charging_rules, commit, remaining, reserve, rules,
    what_lapsed_stays_charged,
};
use crate::support::{eventually, free_udp};

fn on(topology: &str, nodes: &[String], more: &str) -> String {
    format!(
        "[store]\nbackend = \"redis\"\n{more}[store.redis]\ntopology = \"{topology}\"\nnodes = {nodes:?}\n\
         timeout = \"2s\"\n"
    )
}

#[test]
fn five_at_once_of_20_each_over_two_daemons_of_a_cluster_use_100_at_most() {
    let cluster = Cluster::start_patient();
    let config = on("cluster", &cluster.urls(), "");
    let daemons = [Daemon::with(&rules(), &config, &[]), Daemon::with(&rules(), &config, &[])];
    for how in ALGORITHMS {
        let who = (how, "race");
        let made: Vec<(usize, Value)> = std::thread::scope(|scope| {
            let one = |at: usize| {
                let daemon = &daemons[at % 2];
                scope.spawn(move || (at % 2, reserve(daemon, who, &json!({ "amount": 20 }))))
            };
            let all: Vec<_> = (0..12).map(one).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(made.iter().all(|(_, made)| made["degraded"] == false), "{made:?}");
        let held: Vec<_> = made.iter().filter(|(_, made)| made["allowed"] == true).collect();
        assert_eq!(held.len(), 5, "{how}");
        assert!(made.iter().all(|(_, made)| (made["allowed"] == true) == made["reservation"].is_string()));
        assert_eq!(remaining(&daemons[0], who), 0, "{how}");
        for (at, reserved) in held {
            // The other daemon finds what this one has reserved, and charges it once.
            let done = commit(&daemons[1 - at], reserved, 15);
            assert_eq!(done, json!({ "committed": true, "lapsed": false, "degraded": false }), "{how}");
            for daemon in &daemons {
                assert_eq!(commit(daemon, reserved, 15)["committed"], false, "{how}");
            }
        }
        let left = remaining(&daemons[1], who);
        assert!((24..=25).contains(&left), "{how}: five used 15 each, and {left} are left");
    }
}

#[test]
fn a_report_that_is_sent_again_to_another_daemon_is_charged_once() {
    let cluster = Cluster::start_patient();
    let config = on("cluster", &cluster.urls(), "");
    let rules = rules().replace("limit = 100\n", "limit = 1000\n");
    let daemons = [Daemon::with(&rules, &config, &[]), Daemon::with(&rules, &config, &[])];
    for how in ALGORITHMS {
        sent_again_it_is_charged_once([&daemons[0], &daemons[1]], how);
    }
}

#[test]
fn what_lapsed_is_free_for_any_check_and_charged_in_full_when_it_is_committed_late() {
    let server = Server::start(&[]);
    let config = on("single", &[server.url()], "[store.lease]\nmax = 0\n");
    let daemons = [Daemon::with(&rules(), &config, &[]), Daemon::with(&rules(), &config, &[])];
    for how in ALGORITHMS {
        let who = (how, "late");
        let late = reserve(&daemons[0], who, &json!({ "amount": 100, "ttl": "300ms" }));
        assert_eq!((&late["allowed"], &late["expires_ms"]), (&json!(true), &json!(300)), "{late}");
        // The other daemon has reserved nothing, and learns of the lapse by the bucket itself.
        eventually("the lapse", || {
            let checked = daemons[1].check_cost(&[("user", "late"), ("how", how)], 90);
            (checked["allowed"] == true).then_some(())
        });
        let done = commit(&daemons[1], &late, 7);
        assert_eq!(done, json!({ "committed": true, "lapsed": true, "degraded": false }), "{how}");
        assert_eq!(commit(&daemons[0], &late, 7)["committed"], false, "{how}");
        let left = remaining(&daemons[0], who);
        assert!((2..=3).contains(&left), "{how}: {left}");
    }
}

#[test]
fn where_the_rule_says_so_what_lapsed_stays_charged_in_redis_until_it_is_settled() {
    let server = Server::start(&[]);
    let config = on("single", &[server.url()], "[store.lease]\nmax = 0\n");
    what_lapsed_stays_charged(&Daemon::with(&charging_rules(), &config, &[]));
}

#[test]
fn an_id_that_asks_for_another_amount_is_told_what_it_holds_in_redis() {
    let server = Server::start(&[]);
    let config = on("single", &[server.url()], "[store.lease]\nmax = 0\n");
    an_id_holds_what_it_held_first(&Daemon::with(&format!("{}{PLACES}", rules()), &config, &[]));
}

#[test]
fn an_invented_reservation_gives_nothing_back() {
    let server = Server::start(&[]);
    let daemon = Daemon::with(&rules(), &on("single", &[server.url()], ""), &[]);
    for how in ALGORITHMS {
        let who = (how, "mallory");
        let made = reserve(&daemon, who, &json!({ "amount": 60 }));
        let mut bytes = URL_SAFE_NO_PAD.decode(made["reservation"].as_str().unwrap()).unwrap();
        for place in 0..16 {
            bytes[place] ^= 1;
            let invented = json!({ "reservation": URL_SAFE_NO_PAD.encode(&bytes) });
            assert_eq!(daemon.post("/v1/cancel", &invented).json()["lapsed"], true, "{how}");
            bytes[place] ^= 1;
        }
        assert!(remaining(&daemon, who) <= 41, "{how}");
        assert_eq!(commit(&daemon, &made, 0)["lapsed"], false, "{how}");
        // A level has a part of a permit left for a while.
        assert!(remaining(&daemon, who) >= 99, "{how}");
    }
}

#[test]
fn where_the_second_rule_denies_on_another_server_the_first_gets_its_permits_back() {
    let rules = r#"
[[rules]]
name = "own"
per = ["user"]
algorithm = "token_bucket"
limit = 100
window = "24h"
[[rules]]
name = "team"
per = ["team"]
algorithm = "fixed_window"
limit = 10
window = "24h"
"#;
    let cluster = Cluster::start_patient();
    let daemon = Daemon::with(rules, &on("cluster", &cluster.urls(), ""), &[]);
    for user in 0..12 {
        let user = format!("u{user}");
        let body = json!({ "attributes": { "user": user, "team": "t" }, "amount": 20, "id": user });
        let made = daemon.post("/v1/reserve", &body).json();
        assert_eq!((&made["allowed"], &made["rule"]), (&json!(false), &json!("team")), "{made}");
        eventually("the first gets them back", || {
            let bucket = daemon.get(&format!("/v1/buckets?rule=own&user={user}")).json();
            (bucket["used"] == json!(0)).then_some(())
        });
        // By the same id it may be tried again.
        let body = json!({ "attributes": { "user": user }, "amount": 20, "id": user });
        let made = daemon.post("/v1/reserve", &body).json();
        assert_eq!(made["allowed"], true, "{made}");
        assert_eq!(daemon.check_cost(&[("user", &user)], 0)["remaining"], 80);
    }
}

#[test]
fn while_redis_is_away_policies_reserve_and_every_commit_is_taken() {
    let rule = |policy: &str| {
        format!(
            "[[rules]]\nname = \"{policy}\"\nmatch = {{ how = \"{policy}\" }}\nper = [\"user\"]\n\
             algorithm = \"fixed_window\"\nlimit = 100\nwindow = \"365d\"\non_failure = \"{policy}\"\n"
        )
    };
    let mut server = Server::start(&[]);
    let config = on("single", &[server.url()], "").replace("2s", "300ms");
    let daemon = Daemon::with(&["local", "open", "closed"].map(rule).concat(), &config, &[]);
    let amount = json!({ "amount": 20 });
    let before = reserve(&daemon, ("local", "ann"), &amount);
    assert_eq!((&before["allowed"], &before["degraded"]), (&json!(true), &json!(false)));

    server.kill();
    let away: Vec<Value> = (0..7).map(|_| reserve(&daemon, ("local", "bob"), &amount)).collect();
    assert!(away.iter().all(|made| made["degraded"] == true), "{away:?}");
    let held: Vec<&Value> = away.iter().filter(|made| made["allowed"] == true).collect();
    assert_eq!(held.len(), 5, "what is reserved counts as used here too");
    let done = commit(&daemon, held[0], 5);
    assert_eq!(done, json!({ "committed": true, "lapsed": false, "degraded": true }));
    assert_eq!(commit(&daemon, held[0], 5)["committed"], false);
    assert_eq!(remaining(&daemon, ("local", "bob")), 15);
    assert_eq!(reserve(&daemon, ("closed", "bob"), &amount)["allowed"], false);
    let open = reserve(&daemon, ("open", "bob"), &amount);
    assert_eq!(open["allowed"], true);
    assert_eq!(commit(&daemon, &open, 5)["degraded"], true);
    // What Redis has noted is not known now: it is charged in full, and told to Redis when it is back.
    assert_eq!(commit(&daemon, &before, 5), json!({ "committed": true, "lapsed": true, "degraded": true }));

    let _server = server.restart();
    eventually("redis counts again", || {
        (daemon.check_cost(&[("user", "bob"), ("how", "local")], 0)["degraded"] == false).then_some(())
    });
    // Five permits were told, and the four reservations that are held.
    eventually("what was used is charged", || (remaining(&daemon, ("local", "bob")) == 15).then_some(()));
    for reserved in &held[1..] {
        assert_eq!(commit(&daemon, reserved, 10)["degraded"], false);
    }
    assert_eq!(remaining(&daemon, ("local", "bob")), 55);
}

fn ask(store: &RedisStore, rule: &Compiled, cost: Cost, now: Timestamp) -> ChargeResult {
    runtime().block_on(ask_as(store, rule, cost, now))
}

async fn ask_as(store: &RedisStore, rule: &Compiled, cost: Cost, now: Timestamp) -> ChargeResult {
    let key = key(rule, "u");
    let charge = Charge {
        rule,
        key: &key,
        limit: rule.limit,
        share: None,
        whole: &rule.limit,
        first: None,
        cost,
        enforced: !matches!(cost, Cost::Commit(_)),
    };
    let charges = [charge];
    let outcome = match store.try_decide(&charges, Intent::Charge, now) {
        Some(outcome) => outcome,
        None => store.decide(&charges, Intent::Charge, now).await,
    };
    assert!(!outcome.counted[0].degraded, "a server did not answer in time");
    outcome.counted[0]
}

fn id(number: u32) -> ReservationId {
    let mut id = [1; 16];
    id[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b1).to_be_bytes());
    ReservationId(id)
}

fn reserving(number: u32, permits: u64, ttl: Span) -> Cost {
    Cost::Reserve(ReservedCost { id: id(number), permits, ttl, on_lapse: OnLapse::Release })
}

fn committing(number: u32, actual: u64) -> Cost {
    Cost::Commit(Commit { id: id(number), actual, debt_max: 100_000 })
}

const NOW: Timestamp = Timestamp(1_790_000_000_000_000);
const MINUTE: Span = Span::from_secs(60);

/// A store whose server goes by a clock that the test moves.
fn clocked(server: &Server) -> (RedisStore, Arc<Clock>) {
    let clock = Arc::new(Clock::Manual(NOW.0.into()));
    let patient =
        RedisSettings { timeout: Duration::from_secs(30), ..settings(Topology::Single, vec![server.url()]) };
    (store(RedisSettings { clock: Some(Arc::clone(&clock)), ..patient }, 1), clock)
}

/// What a command answers that answers a number.
fn number_of(server: &Server, words: &[&str]) -> usize {
    server.command(words).unwrap().trim().trim_start_matches(':').parse().unwrap()
}

/// Many are held of one bucket, and go in any order: what is given back stays exact, and what the script
/// keeps for that is forgotten when nothing is held.
#[test]
fn ten_thousand_are_held_and_no_more_and_all_of_them_can_be_given_back() {
    let server = Server::start(&[]);
    let (store, _clock) = clocked(&server);
    let limit =
        Limit { permits: 50_000, window: Span::from_secs(86_400), burst: 50_000, queue: 0, calendar: None };
    let kinds = [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::TokenBucket];
    for (algorithm, number) in kinds.into_iter().zip(1_u32..) {
        let rule = compiled(&format!("many{number}"), algorithm, limit, number * 8);
        let all = async |cost: &dyn Fn(u32) -> Cost, numbers: Vec<u32>| {
            for some in numbers.chunks(200) {
                let asked = some.iter().map(|number| ask_as(&store, &rule, cost(*number), NOW));
                let counted = futures_util::future::join_all(asked).await;
                assert!(counted.iter().all(|counted| counted.verdict.admitted), "{algorithm:?}");
            }
        };
        runtime().block_on(all(&|number| reserving(number, 2, MINUTE), (0..10_000).collect()));
        let crowded = ask(&store, &rule, reserving(20_000, 2, MINUTE), NOW);
        assert_eq!((crowded.verdict.admitted, crowded.reservation), (false, Some(ReservationFate::Crowded)));
        assert_eq!(ask(&store, &rule, Cost::Peek, NOW).verdict.remaining, 30_000, "{algorithm:?}");
        let began = std::time::Instant::now();
        for number in 0..200 {
            assert_eq!(ask(&store, &rule, committing(number * 37, 1), NOW).returned, 1, "{algorithm:?}");
        }
        println!("{algorithm:?}: a commit beside ten thousand takes {:?}", began.elapsed() / 200);
        let mut rest: Vec<u32> = (0..10_000).filter(|number| number % 37 != 0 || *number >= 7_400).collect();
        rest.sort_unstable_by_key(|number| number.wrapping_mul(0x85eb_ca6b));
        runtime().block_on(all(&|number| committing(number, 0), rest));
        assert_eq!(ask(&store, &rule, Cost::Peek, NOW).used, 200, "{algorithm:?}");
        let notes = format!("tg:{{user=u}}:many{number}:notes");
        assert_eq!(number_of(&server, &["EXISTS", &notes]), 0, "{algorithm:?}");
        assert_eq!(number_of(&server, &["ZCARD", &format!("{notes}-order")]), 10_000, "{algorithm:?}");
    }
}

/// While some are always held, what was given back by those that are gone is forgotten too.
#[test]
fn notes_stay_small_while_reservations_come_and_go() {
    let server = Server::start(&[]);
    let (store, _clock) = clocked(&server);
    let limit =
        Limit { permits: 1_000, window: Span::from_secs(86_400), burst: 1_000, queue: 0, calendar: None };
    let rule = compiled("coming", Algorithm::TokenBucket, limit, 8);
    for number in 0..3_000_u32 {
        assert!(ask(&store, &rule, reserving(number, 10, MINUTE), NOW).verdict.admitted);
        if let Some(before) = number.checked_sub(20) {
            assert_eq!(ask(&store, &rule, committing(before, 0), NOW).returned, 10);
        }
    }
    let kept = number_of(&server, &["HLEN", "tg:{user=u}:coming:notes"]);
    assert!((20..200).contains(&kept), "{kept} fields for 20 that are held");
}

#[test]
fn a_split_key_finds_its_reservation_and_charges_it_once() {
    let server = Server::start(&[]);
    let (store, clock) = clocked(&server);
    let limit = Limit { permits: 400, window: Span::from_secs(86_400), burst: 400, queue: 0, calendar: None };
    for (algorithm, shape) in
        Algorithm::OF_COSTS.into_iter().filter(|kind| *kind != Algorithm::LeakyBucket).zip(1_u32..)
    {
        let mut rule = compiled(&format!("split{shape}"), algorithm, limit, shape * 8);
        rule.rule.split_keys = 4;
        clock.set(NOW);
        let free = |now: Timestamp| ask_all(&store, &rule, now);
        for number in 0..20 {
            assert!(ask(&store, &rule, reserving(number, 20, MINUTE), NOW).verdict.admitted, "{algorithm:?}");
        }
        assert!(!ask(&store, &rule, reserving(20, 20, MINUTE), NOW).verdict.admitted, "{algorithm:?}");
        for number in 0..10 {
            let done = ask(&store, &rule, committing(number, 15), NOW);
            assert_eq!((done.reservation, done.returned), (Some(ReservationFate::Released), 5));
            let again = ask(&store, &rule, committing(number, 15), NOW);
            assert_eq!(again.reservation, Some(ReservationFate::Repeated), "{algorithm:?}");
        }
        assert_eq!(free(NOW), 350, "{algorithm:?}");
        let later = NOW + MINUTE + Span(1);
        clock.set(later);
        let late = ask(&store, &rule, committing(10, 7), later);
        assert_eq!((late.reservation, late.reported), (Some(ReservationFate::Lapsed), 7), "{algorithm:?}");
        assert_eq!(ask(&store, &rule, committing(10, 7), later).reservation, Some(ReservationFate::Repeated));
    }
}

/// What is used of a key, whatever has lapsed.
fn ask_all(store: &RedisStore, rule: &Compiled, now: Timestamp) -> u64 {
    let key = key(rule, "u");
    runtime().block_on(store.bucket(rule, &key, rule.limit.into(), now)).map_or(0, |info| info.used)
}

/// What one reservation used, and when it was asked for and answered.
struct Used {
    asked: SystemTime,
    answered: SystemTime,
    actual: u64,
}

const REGIONS: [&str; 3] = ["ap-south", "eu-west", "us-east"];

/// Three regions of one daemon on a Redis each, of which everybody admits.
fn three_regions(rules: &str) -> (Vec<Daemon>, [Server; 3]) {
    let authority = Authority::new();
    let servers = REGIONS.map(|_| Server::start(&[]));
    let peers = REGIONS.map(|_| free_udp());
    let start = |at: usize| {
        let region = REGIONS[at];
        let tls = authority.issue(region, region);
        let config = format!(
            "region = \"{region}\"\nnode = \"{region}\"\n[listen]\npeer = \"{}\"\n{}\
             [peers]\njoin = [\"{}\"]\ninterval = \"50ms\"\nregions = {REGIONS:?}\n{tls}",
            peers[at],
            on("single", &[servers[at].url()], ""),
            peers[0],
        );
        Daemon::with(rules, &config, &[])
    };
    let daemons: Vec<Daemon> = (0..3).map(start).collect();
    until("every region admits", Duration::from_secs(60), || {
        daemons.iter().all(|daemon| daemon.check_cost(&[("user", "first")], 1)["allowed"] == true)
    });
    (daemons, servers)
}

/// Six reserve all the time in three regions, use no more, and say so, from when every region admits for
/// `length`. Returns what was used, and when the first server was started.
fn three_regions_reserve(rules: &str, length: Duration) -> (Vec<Used>, SystemTime) {
    let began = SystemTime::now();
    let (daemons, _servers) = three_regions(rules);
    let end = SystemTime::now() + length;
    let used = std::thread::scope(|scope| {
        let one = |at: usize| {
            let daemon = &daemons[at % 3];
            scope.spawn(move || {
                let mut used = Vec::new();
                for turn in 0.. {
                    let asked = SystemTime::now();
                    if asked > end {
                        break;
                    }
                    let body = json!({ "attributes": { "user": "ann" }, "amount": 7 });
                    let made = daemon.post("/v1/reserve", &body).json();
                    if made["allowed"] != true {
                        std::thread::sleep(Duration::from_millis(20));
                        continue;
                    }
                    let answered = SystemTime::now();
                    assert_eq!(made["degraded"], false, "{made}");
                    let actual = (turn + at as u64) % 8;
                    let done = commit(daemon, &made, actual);
                    assert_eq!(done["committed"], true, "{done}");
                    used.push(Used { asked, answered, actual });
                }
                used
            })
        };
        let all: Vec<_> = (0..6).map(one).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    (used, began)
}

fn worldwide(algorithm: &str, window: &str, mode: &str) -> String {
    format!(
        "[[rules]]\nname = \"worldwide\"\nper = [\"user\"]\nalgorithm = \"{algorithm}\"\nlimit = 300\n\
         window = \"{window}\"\n[rules.global]\nmode = \"{mode}\"\n"
    )
}

#[test]
fn what_is_reserved_counts_in_other_regions_under_gossip_and_in_the_own_share_under_split() {
    let ann = [("user", "ann")];
    let (daemons, _servers) = three_regions(&worldwide("fixed_window", "24h", "gossip"));
    let reserve = |daemon: &Daemon, amount: u64| {
        daemon.post("/v1/reserve", &json!({ "attributes": { "user": "ann" }, "amount": amount })).json()
    };
    // A bucket that is new to a region is not all its own until it knows that nobody else asks.
    let held = eventually("250 are reserved", || {
        let made = reserve(&daemons[0], 250);
        (made["allowed"] == true).then_some(made)
    });
    eventually("the others have heard of it", || {
        let global = daemons[1].check_cost(&ann, 0)["rules"][0]["global"].clone();
        (global["believed_used"].as_u64() >= Some(250)).then_some(())
    });
    assert_eq!(reserve(&daemons[1], 100)["allowed"], false);
    assert_eq!(commit(&daemons[0], &held, 0)["lapsed"], false);
    eventually("what was given back is free there", || {
        (reserve(&daemons[1], 100)["allowed"] == true).then_some(())
    });

    let (daemons, _servers) = three_regions(&worldwide("fixed_window", "24h", "split"));
    let held = reserve(&daemons[0], 90);
    assert_eq!((&held["allowed"], &reserve(&daemons[0], 20)["allowed"]), (&json!(true), &json!(false)));
    assert_eq!(reserve(&daemons[1], 100)["allowed"], true);
    assert_eq!(commit(&daemons[0], &held, 30)["committed"], true);
    assert_eq!(reserve(&daemons[0], 70)["allowed"], true);
    assert_eq!(reserve(&daemons[0], 1)["allowed"], false);
}

#[test]
fn under_escrow_three_regions_that_reserve_never_use_more_than_the_limit_of_a_window() {
    let (all, _) = three_regions_reserve(&worldwide("fixed_window", "8s", "escrow"), Duration::from_secs(26));
    let window = |at: &SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 8;
    let mut windows = BTreeMap::new();
    // Of what was asked in one window and answered in another nobody knows which has charged it.
    for used in all.iter().filter(|used| window(&used.asked) == window(&used.answered)) {
        *windows.entry(window(&used.asked)).or_insert(0) += used.actual;
    }
    println!("{windows:?} used of 300 in each window");
    assert!(windows.values().all(|used| *used <= 300), "{windows:?}");
    assert!(windows.values().any(|used| *used >= 150), "hardly anything was to be had: {windows:?}");
}

#[test]
fn under_escrow_three_regions_that_reserve_never_use_more_than_a_level_lets_flow() {
    let (all, began) =
        three_regions_reserve(&worldwide("token_bucket", "10s", "escrow"), Duration::from_secs(15));
    let used: u64 = all.iter().map(|used| used.actual).sum();
    // At the first start of all regions nothing was spent, so the bucket is full.
    let flown = 300 + 30 * (began.elapsed().unwrap().as_secs() + 1);
    println!("{used} used of {flown} that were there and flew");
    assert!(used <= flown, "{used} of {flown}");
    assert!(used >= 100, "hardly anything was to be had: {used}");
}
