//! Who is asking, at size: many users in a real PostgreSQL, some of them active. How long decisions take
//! while the active ones are looked up and afterwards, how many are known at once, and what they take in
//! memory.
//!
//! `cargo bench --bench identity -- --users 10000000 --active 100000`. Without sizes it is quick, to see that
//! it runs.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a benchmark reads the clock, prints what it found, and fails by panicking"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::core::regions::NodeName;
use tidegate::core::request::{Cost, Request};
use tidegate::database::document;
use tidegate::database::postgres::people::IdentityStore;
use tidegate::database::postgres::{Database, PostgresSettings, migrate};
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::identity::LookupSettings;
use tidegate::engine::identity::lookups::Lookups;
use tidegate::store::memory::MemoryStore;
use tidegate::telemetry::Metrics;
use tokio_util::sync::CancellationToken;

#[path = "../support/postgres.rs"]
mod postgres;

const RULES: &str = r#"
[[rules]]
name = "free"
match = { tier = "free" }
per = ["user"]
limit = 4000000000
window = "1h"
[[rules]]
name = "pro"
match = { tier = "pro" }
per = ["user"]
limit = 4000000000
window = "1h"
"#;
/// Decisions under way at once while everybody is still looked up.
const AT_ONCE: usize = 64;
const WARM: usize = 2_000_000;

fn main() {
    let size = |flag: &str, default: usize| {
        let mut arguments = std::env::args().skip_while(|argument| argument != flag).skip(1);
        arguments.next().map_or(default, |text| text.parse().unwrap())
    };
    let (users, active) = (size("--users", 20_000), size("--active", 2_000));
    let server = postgres::Postgres::with(&["max_wal_size=8GB", "autovacuum=off"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run(&server, users, active));
}

async fn run(server: &postgres::Postgres, users: usize, active: usize) {
    let name = server.database();
    let settings = PostgresSettings {
        url: server.url(&name),
        timeout: Duration::from_secs(5),
        connections: 8,
        application: "bench".to_owned(),
    };
    let database = Database::open(&settings).unwrap();
    migrate::run(&database).await.unwrap();
    let began = Instant::now();
    server.sql(&name, "INSERT INTO tiers (name) VALUES ('free'), ('pro')");
    server.sql(
        &name,
        &format!(
            "SET session_replication_role = replica; INSERT INTO users (id, tier)
             SELECT 'user-' || n, CASE WHEN n % 10 = 0 THEN 'pro' ELSE 'free' END FROM generate_series(1, {users}) AS n"
        ),
    );
    server.sql(&name, "ANALYZE users");
    println!("{users} users in the table, filled in {:.0?}; {active} of them active", began.elapsed());

    let step = (users / active).max(1);
    let ids: Arc<Vec<String>> = Arc::new((0..active).map(|n| format!("user-{}", n * step + 1)).collect());
    let plain = engine();
    print_warm("decisions that look nobody up", &plain, &ids, Some("free"));

    let before = resident();
    let engine = engine();
    let stop = CancellationToken::new();
    let people = Arc::new(IdentityStore::new(database, "here", "here-1"));
    let lookups = Lookups::start(LookupSettings::default(), people, None, engine.metrics(), stop.clone());
    engine.look_up_in(Arc::clone(&lookups));
    let began = Instant::now();
    print_cold(&engine, &ids).await;
    // More asked at once than are looked up at once: who was decided as the default asks again.
    for _ in 0..100 {
        if lookups.held().entries >= active {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        print_cold(&engine, &ids).await;
    }
    println!("everybody is known after {:.1?}", began.elapsed());
    let counted = |result| metric(&engine, &format!("tidegate_identity_cache_total{{result=\"{result}\"}}"));
    let (hits, misses) = (counted("hit"), counted("miss"));
    let held = lookups.held();
    println!(
        "held: {} users in {:.1} MB as weighed, {:.0} bytes each; the process grew by {:.1} MB, buckets included",
        held.entries,
        held.bytes as f64 / 1e6,
        held.bytes as f64 / held.entries as f64,
        (resident() - before) / 1e6,
    );
    print_warm("decisions of users who are held", &engine, &ids, None);
    let (hits, misses) = (counted("hit") - hits, counted("miss") - misses);
    println!("hit rate of these: {:.3} %", 100.0 * hits / (hits + misses));
    stop.cancel();
}

fn engine() -> Arc<Engine> {
    let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
    let engine = Engine::new(name, Clock::System, Arc::new(MemoryStore::new(1_000_000)), Metrics::new());
    let loaded = document::from_toml("rules.toml", RULES, &[]).unwrap();
    engine.load(loaded.rules, vec![], false).unwrap();
    Arc::new(engine)
}

fn request<'a>(user: &'a str, tier: Option<&'a str>) -> [Request<'a>; 1] {
    let attributes = [("user", user)].into_iter().chain(tier.map(|tier| ("tier", tier))).collect();
    [Request::new("default", attributes, Cost::Take(1))]
}

/// Everybody once, some at a time.
async fn print_cold(engine: &Arc<Engine>, ids: &Arc<Vec<String>>) {
    let began = Instant::now();
    let tasks = (0..AT_ONCE).map(|task| {
        let (engine, ids) = (Arc::clone(engine), Arc::clone(ids));
        tokio::spawn(async move {
            let (mut times, mut known) = (Vec::new(), 0_usize);
            for id in ids.iter().skip(task).step_by(AT_ONCE) {
                let began = Instant::now();
                let decisions = engine.decide(&request(id, None)).get().await;
                times.push(began.elapsed());
                known += usize::from(!decisions[0].rules.is_empty());
            }
            (times, known)
        })
    });
    let (mut times, mut known) = (Vec::new(), 0);
    for task in tasks.collect::<Vec<_>>() {
        let (own, found) = task.await.unwrap();
        times.extend(own);
        known += found;
    }
    let took = began.elapsed();
    times.sort();
    println!(
        "everybody once, {AT_ONCE} at a time: {:.1} % known in time; {}; {:.0}/s",
        100.0 * known as f64 / ids.len() as f64,
        quantiles(&times),
        times.len() as f64 / took.as_secs_f64(),
    );
}

fn print_warm(what: &str, engine: &Engine, ids: &[String], tier: Option<&str>) {
    // A cheap walk that goes everywhere.
    let mut place = 1_usize;
    let mut times = Vec::with_capacity(WARM);
    for _ in 0..WARM {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let request = request(&ids[(place >> 33) % ids.len()], tier);
        let began = Instant::now();
        let answer = engine.decide(&request);
        times.push(began.elapsed());
        drop(answer);
    }
    times.sort();
    println!("{what}: {}", quantiles(&times));
}

fn quantiles(times: &[Duration]) -> String {
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    format!("p50 {:.2?}, p99 {:.2?}, p99.9 {:.2?}, longest {:.2?}", at(0.5), at(0.99), at(0.999), at(1.0))
}

fn metric(engine: &Engine, line: &str) -> f64 {
    let text = engine.metrics().render();
    text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok()).unwrap_or(0.0)
}

/// Memory of this process, in bytes.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4_096.0
}
