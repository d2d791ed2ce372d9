//! The store in Redis beside the raw limit of the same server in the same run: `redis-benchmark` with our own
//! script.
//!
//! `cargo bench --bench redis` prints tables; `-- latency`, `crate`, `single`, `cluster`, `hot`, `servers`,
//! `cpu` or `memory` only one of them. `servers` asks a whole daemon from outside, by the `sim` that lies
//! beside it (`cargo build --release --workspace`). Raw and own runs alternate, and medians are printed,
//! since everything, the server included, shares the machine's cores with whatever else runs there: read the
//! ratios.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and measures real time"
)]

#[path = "../support/redis_servers.rs"]
mod redis_servers;
#[path = "../support/redis_store.rs"]
mod redis_store;
#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis_servers::{Cluster, Server, now};
use redis_store::{compiled, key, runtime, settings, store};
use support::command::TIDEGATE;
use support::daemon::Daemon;
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::request::Cost;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Store};
use tidegate::store::redis::{LeaseSettings, RedisSettings, RedisStore, Topology, script_hash};

/// One run, and how many of each there are.
const FOR: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 3;
const KEYS: usize = 100_000;
const KEYS_MEASURED: usize = 1_000_000;

/// A key that redis-benchmark draws at random.
const RANDOM: &str = "tg:{user=__rand_int__}:b";

/// The bucket of a bare call, as `lua/decide.lua` reads it: shape, limit, and flags that mean neither a view
/// nor rights (zero would end the command line).
const BARE_BUCKET: &[u8] =
    &[1, 0x41, 0x42, 0x43, 0x0f, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0x0f, 1, 1, 1, 1, 1, 1, 1, 4];

/// Its decision: one permit of the first bucket.
const BARE_DECISION: &[u8] = &[0, 0, 1, 0, 1, 1 | 4, 0, 0, 0, 0, 1];

fn rule(name: &str, algorithm: Algorithm, shape: u32) -> Compiled {
    // Bytes without a zero: redis-benchmark takes them on its command line.
    let limit = Limit {
        calendar: None,
        permits: 0x0f01_0101,
        window: Span(0x0101_0101_0101),
        burst: 0x0f01_0101,
        queue: 0,
    };
    compiled(name, algorithm, limit, shape)
}

async fn ask(store: &RedisStore, rules: &[&Compiled], user: &str) -> bool {
    let keys: Vec<_> = rules.iter().map(|rule| key(rule, user)).collect();
    let charge = |(rule, key)| {
        let rule: &Compiled = rule;
        Charge {
            rule,
            key,
            limit: rule.limit,
            share: None,
            whole: &rule.limit,
            first: None,
            cost: Cost::Take(1),
            enforced: true,
        }
    };
    let charges: Vec<_> = rules.iter().copied().zip(&keys).map(charge).collect();
    let now = Clock::System.now();
    match store.try_decide(&charges, Intent::Charge, now) {
        Some(outcome) => outcome.admitted,
        None => store.decide(&charges, Intent::Charge, now).await.admitted,
    }
}

/// Decisions a second, p50 and p99 in microseconds, and what was admitted in all.
#[derive(Debug, Clone, Copy)]
struct Figures {
    rate: f64,
    p50: f64,
    p99: f64,
    done: usize,
    admitted: usize,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn medians(runs: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(runs.iter().map(field).collect());
    let sum = |field: fn(&Figures) -> usize| runs.iter().map(field).sum();
    Figures {
        rate: of(|run| run.rate),
        p50: of(|run| run.p50),
        p99: of(|run| run.p99),
        done: sum(|run| run.done),
        admitted: sum(|run| run.admitted),
    }
}

/// Asks for `users` in turn, from this many tasks at once.
fn run(store: &Arc<RedisStore>, rules: &Arc<Vec<Compiled>>, tasks: usize, users: usize) -> Figures {
    run_in(store, rules, tasks, users, usize::MAX)
}

/// The same, with no more than this many rules in one call: the rest follow in calls of their own.
fn run_in(
    store: &Arc<RedisStore>,
    rules: &Arc<Vec<Compiled>>,
    tasks: usize,
    users: usize,
    in_one: usize,
) -> Figures {
    let turn = Arc::new(AtomicUsize::new(0));
    let start = now();
    let task = |_| {
        let (store, rules, turn) = (Arc::clone(store), Arc::clone(rules), Arc::clone(&turn));
        runtime().spawn(async move {
            let rules: Vec<&Compiled> = rules.iter().collect();
            let (mut latencies, mut admitted, mut done) = (Vec::new(), 0, 0_usize);
            loop {
                let sampled = (done % 16 == 0).then(now);
                if sampled.is_some() && start.elapsed() >= FOR {
                    return (latencies, admitted, done);
                }
                let user = turn.fetch_add(1, Ordering::Relaxed) % users;
                let mut passed = true;
                for rules in rules.chunks(in_one) {
                    passed &= ask(&store, rules, &format!("u{user}")).await;
                }
                admitted += usize::from(passed);
                done += 1;
                if let Some(sampled) = sampled {
                    latencies.push(sampled.elapsed().as_secs_f64() * 1e6);
                    tokio::task::yield_now().await;
                }
            }
        })
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    let (mut latencies, mut admitted, mut done) = (Vec::new(), 0, 0);
    for task in tasks {
        let (own, passed, count) = runtime().block_on(task).expect("it ends");
        latencies.extend(own);
        admitted += passed;
        done += count;
    }
    latencies.sort_by(f64::total_cmp);
    let at = |percent: usize| latencies.get(latencies.len() * percent / 100).copied().unwrap_or(0.0);
    Figures { rate: done as f64 / start.elapsed().as_secs_f64(), p50: at(50), p99: at(99), done, admitted }
}

fn print(what: &str, figures: &Figures) {
    println!(
        "  {what:<50} {:>9.0}/s  p50 {:>6.0} µs  p99 {:>6.0} µs",
        figures.rate, figures.p50, figures.p99
    );
}

/// The raw limit of the script, by redis-benchmark.
fn raw(port: u16, key: &str, clients: usize, pipeline: usize, more: &[&str]) -> Figures {
    let count = if clients * pipeline == 1 { 20_000 } else { 60_000 };
    let mut child = Command::new("redis-benchmark")
        .args(["-p", &port.to_string(), "-c", &clients.to_string(), "-P", &pipeline.to_string()])
        .args(["-n", &count.to_string(), "-r", &KEYS.to_string(), "--csv", "-x"])
        .args(more)
        .args(["EVALSHA", script_hash(), "1", key, ""])
        .arg(OsString::from_vec(BARE_BUCKET.to_vec()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-benchmark is installed: apt-get install redis-tools");
    child.stdin.take().expect("a pipe").write_all(BARE_DECISION).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().last().unwrap_or_default().to_owned();
    // Rate, then average, least, p50, p95, p99 and greatest latency in milliseconds.
    let field = |from_end: usize| -> f64 {
        let text = line.rsplit("\",\"").nth(from_end).map(|text| text.trim_matches('"'));
        text.and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
    };
    Figures { rate: field(6), p50: field(3) * 1e3, p99: field(1) * 1e3, done: count, admitted: count }
}

/// The same work raw and through the store, in turn.
fn beside(
    what: &str,
    mut raw: impl FnMut() -> Figures,
    mut own: impl FnMut() -> Figures,
) -> (Figures, Figures) {
    let (raws, owns): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| (raw(), own())).unzip();
    let ratio = median(raws.iter().zip(&owns).map(|(raw, own)| own.rate / raw.rate).collect());
    let (raw, own) = (medians(&raws), medians(&owns));
    print(&format!("{what}, raw"), &raw);
    print(&format!("{what}, through the store"), &own);
    println!("  {:<50} {ratio:>9.2} times the raw rate", "");
    (raw, own)
}

/// CPU seconds that this process has used so far, all its threads together.
fn own_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold anything: the 12th and 13th field, in ticks of 10 ms.
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// CPU seconds that the server has used.
fn cpu(server: &Server) -> f64 {
    let info = server.command(&["INFO", "cpu"]).unwrap_or_default();
    let field = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|text| text.trim().parse().ok()).unwrap_or(0.0)
    };
    field("used_cpu_sys") + field("used_cpu_user")
}

fn started(topology: Topology, urls: Vec<String>) -> Arc<RedisStore> {
    Arc::new(store(settings(topology, urls), 1))
}

fn one_rule() -> Arc<Vec<Compiled>> {
    Arc::new(vec![rule("r", Algorithm::FixedWindow, 8)])
}

fn single() {
    let server = Server::start(&[]);
    let (store, rules) = (started(Topology::Single, vec![server.url()]), one_rule());
    runtime().block_on(ask(&store, &[&rules[0]], "warm"));
    println!("distinct keys, single server");
    for pipeline in [16, 64] {
        let raws: Vec<_> = (0..ROUNDS).map(|_| raw(server.port, RANDOM, 1, pipeline, &[])).collect();
        print(&format!("1 client, pipelines of {pipeline}, raw"), &medians(&raws));
    }
    for tasks in [1, 16, 64, 256] {
        let raw = || raw(server.port, RANDOM, tasks, 1, &[]);
        beside(&format!("{tasks} at once"), raw, || run(&store, &rules, tasks, KEYS));
    }
}

/// A connection of the `redis` crate that many tasks share.
fn crate_client(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).expect("an address");
    runtime().block_on(client.get_multiplexed_async_connection()).expect("it answers")
}

/// The bare script through the `redis` crate, from this many tasks at once.
fn run_bare(client: &MultiplexedConnection, tasks: usize, users: usize) -> Figures {
    let turn = Arc::new(AtomicUsize::new(0));
    let start = now();
    let task = |_| {
        let (mut client, turn) = (client.clone(), Arc::clone(&turn));
        runtime().spawn(async move {
            let (mut latencies, mut done) = (Vec::new(), 0_usize);
            loop {
                let sampled = (done % 16 == 0).then(now);
                if sampled.is_some() && start.elapsed() >= FOR {
                    return (latencies, done);
                }
                let key = format!("tg:{{user=u{}}}:b", turn.fetch_add(1, Ordering::Relaxed) % users);
                let mut call = redis::cmd("EVALSHA");
                call.arg(script_hash()).arg(1).arg(key).arg("").arg(BARE_BUCKET).arg(BARE_DECISION);
                let answer: redis::RedisResult<redis::Value> = call.query_async(&mut client).await;
                answer.expect("it answers");
                done += 1;
                if let Some(sampled) = sampled {
                    latencies.push(sampled.elapsed().as_secs_f64() * 1e6);
                    tokio::task::yield_now().await;
                }
            }
        })
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    let (mut latencies, mut done) = (Vec::new(), 0);
    for task in tasks {
        let (own, count) = runtime().block_on(task).expect("it ends");
        latencies.extend(own);
        done += count;
    }
    latencies.sort_by(f64::total_cmp);
    let at = |percent: usize| latencies.get(latencies.len() * percent / 100).copied().unwrap_or(0.0);
    let rate = done as f64 / start.elapsed().as_secs_f64();
    Figures { rate, p50: at(50), p99: at(99), done, admitted: done }
}

/// What connections of our own are for: the same script and keys through the `redis` crate's.
fn beside_the_crate() {
    let server = Server::start(&[]);
    let (store, rules) = (started(Topology::Single, vec![server.url()]), one_rule());
    runtime().block_on(ask(&store, &[&rules[0]], "warm"));
    println!("distinct keys, single server; raw: one multiplexed connection of the redis crate");
    let client = crate_client(&server);
    for tasks in [1, 16, 64, 256] {
        let bare = || {
            let before = own_cpu();
            let figures = run_bare(&client, tasks, KEYS);
            (figures, own_cpu() - before)
        };
        let own = || {
            let before = own_cpu();
            let figures = run(&store, &rules, tasks, KEYS);
            (figures, own_cpu() - before)
        };
        let (mut spent, mut done) = ([0.0; 2], [0_usize; 2]);
        let mut add = |at: usize, (figures, seconds): (Figures, f64)| {
            spent[at] += seconds;
            done[at] += figures.done;
            figures
        };
        let (mut raws, mut owns) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            raws.push(add(0, bare()));
            owns.push(add(1, own()));
        }
        let ratio = median(raws.iter().zip(&owns).map(|(raw, own)| own.rate / raw.rate).collect());
        print(&format!("{tasks} at once, through the crate"), &medians(&raws));
        print(&format!("{tasks} at once, through the store"), &medians(&owns));
        let each = |at: usize| spent[at] / done[at] as f64 * 1e6;
        println!(
            "  {:<50} {ratio:>9.2} times the rate; CPU of the client {:.1} µs a decision beside {:.1}",
            "",
            each(1),
            each(0)
        );
    }
}

/// One caller: what the store adds to the bare call of an asynchronous client.
fn latency() {
    let server = Server::start(&[]);
    let (store, rules) = (started(Topology::Single, vec![server.url()]), one_rule());
    runtime().block_on(ask(&store, &[&rules[0]], "warm"));
    println!("latency for one caller, single server");
    let client = crate_client(&server);
    let bare = || run_bare(&client, 1, KEYS);
    let raws: Vec<_> = (0..ROUNDS).map(|_| raw(server.port, RANDOM, 1, 1, &[])).collect();
    print("blocking client, raw", &medians(&raws));
    let (raw, own) = beside("asynchronous client", bare, || run(&store, &rules, 1, KEYS));
    println!("  {:<50} {:>9.2} times the raw median", "", own.p50 / raw.p50);
}

fn clustered() {
    let cluster = Cluster::start();
    let (store, rules) = (started(Topology::Cluster, cluster.urls()), one_rule());
    run(&store, &rules, 64, KEYS);
    println!("distinct keys, cluster of three primaries with a replica each");
    let all = || cluster.servers.iter().map(cpu).sum::<f64>();
    for tasks in [1, 64, 256] {
        let spent = [Cell::new(0.0), Cell::new(0.0), Cell::new(0.0)];
        let add = |at: usize, seconds: f64| spent[at].set(spent[at].get() + seconds);
        // It puts a tag of one of each node's slots in place of {tag}.
        let raw = || {
            let before = all();
            let figures = raw(cluster.servers[0].port, "tg:{tag}:__rand_int__", tasks, 1, &["--cluster"]);
            add(0, all() - before);
            figures
        };
        let own = || {
            let before = (all(), own_cpu());
            let figures = run(&store, &rules, tasks, KEYS);
            add(1, all() - before.0);
            add(2, own_cpu() - before.1);
            figures
        };
        let (raws, owns) = beside(&format!("{tasks} at once"), raw, own);
        let each = |at: usize, done: usize| spent[at].get() / done as f64 * 1e6;
        println!(
            "  {:<50} CPU a decision: servers {:.0} µs raw and {:.0} µs through the store, which itself takes {:.0} µs",
            "",
            each(0, raws.done),
            each(1, owns.done),
            each(2, owns.done)
        );
    }
}

fn hot() {
    let server = Server::start(&[]);
    let (store, rules) = (started(Topology::Single, vec![server.url()]), one_rule());
    runtime().block_on(ask(&store, &[&rules[0]], "warm"));
    println!("one hot key, single server");
    let raw = || raw(server.port, "tg:{user=hot}:b", 64, 1, &[]);
    beside("coalescing alone, 256 at once", raw, || run(&store, &rules, 256, 1));
    let lease = LeaseSettings { permits_max: 1_000, ttl: Duration::from_millis(200) };
    let leased = RedisSettings { lease, ..settings(Topology::Single, vec![server.url()]) };
    let leased = Arc::new(redis_store::store(leased, 1));
    let hot_rules = Arc::new(vec![rule("leased", Algorithm::FixedWindow, 16)]);
    let (_, own) = beside("leases of 1,000, 64 at once", raw, || run(&leased, &hot_rules, 64, 1));
    runtime().block_on(leased.drain());
    let key = key(&hot_rules[0], "u0");
    let used =
        runtime().block_on(store.bucket(&hot_rules[0], &key, hot_rules[0].limit.into(), Clock::System.now()));
    println!("  {} admitted, {} charged", own.admitted, used.map_or(0, |info| info.used));
}

/// Decisions a second that a whole daemon gives from outside, and its CPU for each in microseconds.
fn from_outside(daemon: &Daemon, server: &str, keys: usize) -> (f64, f64) {
    let sim = Path::new(TIDEGATE).with_file_name("sim");
    let (address, work): (_, &[&str]) = match server {
        "gRPC" => (daemon.grpc, &["rls", "--connections", "8", "--depth", "32"]),
        _ => (daemon.http, &["http", "--connections", "8", "--batch", "100"]),
    };
    let output = Command::new(&sim)
        .arg("load")
        .args(work)
        .args(["--addr", &address.to_string(), "--keys", &keys.to_string(), "--seconds", "2", "--json"])
        .args(["--pid", &daemon.process.id().to_string()])
        .output()
        .unwrap_or_else(|error| {
            panic!("{}: {error}. Build it: cargo build --release --workspace", sim.display())
        });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!((&report["errors"], &report["over_limit"]), (&0.into(), &0.into()), "{report}");
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
    (number(&report["checks_per_second"]), number(&report["server"]["cpu_us_per_check"]))
}

/// Through gRPC and HTTP, beside the bare script from as many connections.
fn servers() {
    const RULES: &str =
        "[[rules]]\nname = \"by-user\"\nper = [\"user\"]\nlimit = 4000000000\nwindow = \"1h\"\n";
    let (single, cluster) = (Server::start(&[]), Cluster::start());
    let places = [
        ("single", single.port, vec![single.url()], RANDOM, &[][..]),
        ("cluster", cluster.servers[0].port, cluster.urls(), "tg:{tag}:__rand_int__", &["--cluster"][..]),
    ];
    println!(
        "through the servers of a daemon, 256 checks at once by gRPC and 800 by HTTP, in batches of 100"
    );
    for (topology, port, urls, any_key, more) in places {
        let config = format!(
            "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"{topology}\"\nnodes = {urls:?}\ntimeout = \"1s\"\n"
        );
        let daemon = Daemon::with(RULES, &config, &[]);
        // Loads the script, which the bare calls need.
        assert_eq!(daemon.check(&[("user", "warm")])["degraded"], false);
        let store = started(if topology == "single" { Topology::Single } else { Topology::Cluster }, urls);
        run(&store, &one_rule(), 64, 1_000);
        for (server, keys) in [("gRPC", KEYS), ("HTTP", KEYS), ("gRPC", 1), ("HTTP", 1)] {
            let (mut raws, mut owns, mut spent) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let key = match (keys, topology) {
                    (1, "single") => "tg:{user=hot}:b",
                    // One for each server: redis-benchmark follows no redirect.
                    (1, _) => "tg:{tag}:b",
                    _ => any_key,
                };
                raws.push(raw(port, key, 256, 1, more).rate);
                let (rate, cpu) = from_outside(&daemon, server, keys);
                owns.push(rate);
                spent.push(cpu);
            }
            let ratio = median(raws.iter().zip(&owns).map(|(raw, own)| own / raw).collect());
            println!(
                "  {:<50} {:>9.0}/s raw, {:>9.0}/s by the daemon ({:.1} µs of its CPU): {ratio:.2} times",
                format!("{topology}, {server}, {keys} keys"),
                median(raws),
                median(owns),
                median(spent)
            );
        }
    }
}

fn costs() {
    let server = Server::start(&[]);
    let store = started(Topology::Single, vec![server.url()]);
    println!("CPU of Redis for each decision, 64 at once");
    for algorithm in
        [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket, Algorithm::Gcra]
    {
        for (count, in_one, what) in
            [(1, 1, "1 in one call"), (5, 5, "5 in one call"), (5, 1, "5 in 5 calls")]
        {
            let names = ["a", "b", "c", "d", "e"];
            let rules = (0..)
                .zip(names)
                .take(count)
                .map(|(at, name)| rule(&format!("{algorithm:?}{name}"), algorithm, 100 + at * 8));
            let rules: Arc<Vec<Compiled>> = Arc::new(rules.collect());
            let before = cpu(&server);
            let runs: Vec<_> = (0..ROUNDS).map(|_| run_in(&store, &rules, 64, KEYS, in_one)).collect();
            let own = medians(&runs);
            print(&format!("{algorithm:?}, {what}"), &own);
            println!("  {:<50} {:>9.1} µs", "", (cpu(&server) - before) / own.done as f64 * 1e6);
        }
    }
}

/// Bytes for each key beyond its name, by `MEMORY USAGE` and by what the whole server takes.
fn memory() {
    println!("bytes for each of {KEYS_MEASURED} keys");
    let levels = [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra];
    let windows = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];
    for algorithm in windows.into_iter().chain(levels) {
        let server = Server::start(&[]);
        let store = started(Topology::Single, vec![server.url()]);
        // Filled so slowly that no key is done with before the last one is counted.
        let limit =
            Limit { calendar: None, permits: 100, window: Span(24 * 3_600_000_000), burst: 100, queue: 100 };
        let rules = Arc::new(vec![compiled("m", algorithm, limit, 8)]);
        let used = || -> f64 {
            let info = server.command(&["INFO", "memory"]).unwrap_or_default();
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
            line.and_then(|text| text.trim().parse().ok()).unwrap_or(f64::NAN)
        };
        runtime().block_on(ask(&store, &[&rules[0]], "warm"));
        let before = used();
        let turn = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..256)
            .map(|_| {
                let (store, rules, turn) = (Arc::clone(&store), Arc::clone(&rules), Arc::clone(&turn));
                runtime().spawn(async move {
                    loop {
                        let user = turn.fetch_add(1, Ordering::Relaxed);
                        if user >= KEYS_MEASURED {
                            return;
                        }
                        ask(&store, &[&rules[0]], &format!("{user:08}")).await;
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| runtime().block_on(task).expect("it ends"));
        let name_len = "tg:{user=00000000}:m".len() as f64;
        let sampled: Vec<f64> = (0..1_000)
            .filter_map(|at| {
                let key = format!("tg:{{user={:08}}}:m", at * (KEYS_MEASURED / 1_000));
                let answer = server.command(&["MEMORY", "USAGE", &key])?;
                answer.trim().trim_start_matches(':').parse().ok()
            })
            .collect();
        let mean = sampled.iter().sum::<f64>() / sampled.len() as f64 - name_len;
        let whole = (used() - before) / KEYS_MEASURED as f64 - name_len;
        println!(
            "  {:<50} {mean:>9.1} by MEMORY USAGE, {whole:.1} of the data set",
            format!("{algorithm:?}")
        );
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let tables: [(&str, fn()); 8] = [
        ("latency", latency),
        ("crate", beside_the_crate),
        ("single", single),
        ("cluster", clustered),
        ("hot", hot),
        ("servers", servers),
        ("cpu", costs),
        ("memory", memory),
    ];
    for (name, table) in tables {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            table();
        }
    }
}
