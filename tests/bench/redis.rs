//! The store in Redis beside the raw limit of the same server in the same run: `redis-benchmark` with our own script.
//!
//! `cargo bench --bench redis` prints a table. Everything, the server included, shares the machine's cores.

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

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis_servers::{Cluster, Server, now};
use redis_store::{compiled, key, runtime, settings, store};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::request::Cost;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Store};
use tidegate::store::redis::{LeaseSettings, RedisSettings, RedisStore, Topology, script_hash};

const FOR: Duration = Duration::from_secs(3);
const KEYS: usize = 100_000;

fn rule(name: &str, algorithm: Algorithm, shape: u32) -> Compiled {
    // Bytes without a zero: redis-benchmark takes them on its command line.
    let limit = Limit { permits: 0x0f01_0101, window: Span(0x0101_0101_0101), burst: 0x0f01_0101, queue: 0 };
    compiled(name, algorithm, limit, shape)
}

async fn ask(store: &RedisStore, rules: &[&Compiled], user: &str) -> bool {
    let keys: Vec<_> = rules.iter().map(|rule| key(rule, user)).collect();
    let charge = |(rule, key)| {
        let rule: &Compiled = rule;
        Charge { rule, key, limit: rule.limit, cost: Cost::Take(1), enforced: true }
    };
    let charges: Vec<_> = rules.iter().copied().zip(&keys).map(charge).collect();
    let now = Clock::System.now();
    match store.try_decide(&charges, Intent::Charge, now) {
        Some(outcome) => outcome.admitted,
        None => store.decide(&charges, Intent::Charge, now).await.admitted,
    }
}

/// Decisions a second, p50 and p99 in microseconds, and what was admitted in all.
struct Figures {
    rate: f64,
    p50: u128,
    p99: u128,
    admitted: usize,
}

fn run(store: &Arc<RedisStore>, rules: &Arc<Vec<Compiled>>, tasks: usize, users: usize) -> Figures {
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
                admitted += usize::from(ask(&store, &rules, &format!("u{user}")).await);
                done += 1;
                if let Some(sampled) = sampled {
                    latencies.push(sampled.elapsed().as_micros());
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
    latencies.sort_unstable();
    let at = |percent: usize| latencies.get(latencies.len() * percent / 100).copied().unwrap_or(0);
    Figures { rate: done as f64 / start.elapsed().as_secs_f64(), p50: at(50), p99: at(99), admitted }
}

fn print(what: &str, figures: &Figures) {
    println!("{what:<52} {:>10.0}/s  p50 {:>6} µs  p99 {:>6} µs", figures.rate, figures.p50, figures.p99);
}

/// The raw rate of the script, by redis-benchmark.
fn raw(server: &Server, key: &str, clients: usize, pipeline: usize) -> f64 {
    let mut bucket = vec![1, 0x41, 0x42, 0x43];
    bucket.extend([0x0f, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0x0f, 1, 1, 1, 1, 1, 1, 1, 2]);
    let mut child = Command::new("redis-benchmark")
        .args(["-p", &server.port.to_string(), "-c", &clients.to_string(), "-P", &pipeline.to_string()])
        .args([
            "-n",
            "120000",
            "-r",
            &KEYS.to_string(),
            "--csv",
            "-x",
            "EVALSHA",
            script_hash(),
            "1",
            key,
            "",
        ])
        .arg(OsString::from_vec(bucket))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-benchmark is installed: apt-get install redis-tools");
    let decision = [0, 0, 1, 0, 1, 1 | 4, 0, 0, 0, 0, 1];
    child.stdin.take().expect("a pipe").write_all(&decision).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().last().unwrap_or_default();
    line.rsplit("\",\"").nth(6).and_then(|rate| rate.trim_matches('"').parse().ok()).unwrap_or(f64::NAN)
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

fn main() {
    let server = Server::start(&[]);
    let single = Arc::new(store(settings(Topology::Single, vec![server.url()]), 1));
    let rules = Arc::new(vec![rule("r", Algorithm::FixedWindow, 8)]);
    runtime().block_on(ask(&single, &[&rules[0]], "warm"));

    println!("distinct keys, single server");
    for (clients, pipeline) in [(1, 1), (64, 1), (4, 16), (1, 64)] {
        let rate = raw(&server, "tg:{user=__rand_int__}:b", clients, pipeline);
        println!("  raw, {clients} clients, pipelines of {pipeline:<22} {rate:>20.0}/s");
    }
    for tasks in [1, 16, 64, 256] {
        print(&format!("  store, {tasks} at once"), &run(&single, &rules, tasks, KEYS));
    }

    println!("one hot key, single server");
    let hot = raw(&server, "tg:{user=hot}:b", 64, 1);
    println!("  raw, 64 clients {hot:>47.0}/s");
    let figures = run(&single, &rules, 256, 1);
    print("  coalescing, 256 at once", &figures);
    println!("  {:.1} times the raw rate", figures.rate / hot);
    let lease = LeaseSettings { permits_max: 1_000, ttl: Duration::from_millis(200) };
    let leased = RedisSettings { lease, ..settings(Topology::Single, vec![server.url()]) };
    let leased = Arc::new(store(leased, 1));
    let hot_rules = Arc::new(vec![rule("leased", Algorithm::FixedWindow, 16)]);
    let figures = run(&leased, &hot_rules, 64, 1);
    print("  leases of 1,000, 64 at once", &figures);
    runtime().block_on(leased.drain());
    let used =
        runtime().block_on(single.bucket(&hot_rules[0], &key(&hot_rules[0], "u0"), Clock::System.now()));
    let used = used.map_or(0, |info| info.used);
    println!("  {:.1} times the raw rate; {} admitted, {used} charged", figures.rate / hot, figures.admitted);

    println!("CPU of Redis for each decision");
    let names = ["a", "b", "c", "d", "e"];
    let five: Vec<Compiled> =
        (0..).zip(names).map(|(at, name)| rule(name, Algorithm::TokenBucket, 100 + at * 8)).collect();
    for count in [1, 5] {
        let rules: Arc<Vec<Compiled>> = Arc::new(
            five.iter()
                .take(count)
                .map(|own| rule(&own.rule.name, Algorithm::TokenBucket, own.shape.0))
                .collect(),
        );
        let before = cpu(&server);
        let figures = run(&single, &rules, 64, KEYS);
        let decisions = figures.rate * FOR.as_secs_f64();
        print(&format!("  {count} rules in one call"), &figures);
        println!("  {:.1} µs", (cpu(&server) - before) / decisions * 1e6);
    }
    drop(server);

    let cluster = Cluster::start();
    let clustered = Arc::new(store(settings(Topology::Cluster, cluster.urls()), 1));
    println!("distinct keys, three primaries");
    for tasks in [1, 64, 256] {
        print(&format!("  store, {tasks} at once"), &run(&clustered, &rules, tasks, KEYS));
    }
}
