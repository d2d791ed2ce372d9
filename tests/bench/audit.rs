//! What remembering costs and carries. Starts a PostgreSQL of its own.
//!
//! * `cargo bench --bench audit -- decide`: a decision without a log, with one, and with one whose database
//!   is away; in turns within one run, so that the machine's moods meet all three.
//! * `cargo bench --bench audit -- outside`: the same through HTTP, of three whole daemons; every call is
//!   denied.
//! * `cargo bench --bench audit -- rows [MILLIONS]`: rows a second from the queue into the database, and from
//!   a full spool.
//! * `cargo bench --bench audit -- query [MILLIONS|URL]`: what operators ask of a log of that size, or of one
//!   made before.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark"
)]
#![allow(clippy::expect_used, clippy::panic, clippy::cast_precision_loss, reason = "a benchmark")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a benchmark")]

#[path = "../support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::daemon::Daemon;
use support::{command, postgres};
use tidegate::core::algorithm::Algorithm;
use tidegate::core::audit::{DistinctMax, Outcome, Record};
use tidegate::core::regions::NodeName;
use tidegate::core::request::{Attributes, Cost, Request};
use tidegate::core::rule::Rule;
use tidegate::core::time::{Span, Timestamp};
use tidegate::database::audit::{Past, Pipeline, PipelineSetup, Spool, Steps};
use tidegate::database::postgres::{Database, PostgresSettings, migrate};
use tidegate::engine::Engine;
use tidegate::engine::audit::Queue;
use tidegate::engine::clock::Clock;
use tidegate::engine::history::{DecisionsAsked, Group, History as _, Recorded, StepOfTime, UsageAsked};
use tidegate::engine::port::Answer;
use tidegate::engine::tasks::Tasks;
use tidegate::store::memory::MemoryStore;
use tidegate::telemetry::Metrics;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let url = arguments.get(1).filter(|text| text.contains("://"));
    let millions =
        arguments.get(1).filter(|_| url.is_none()).map_or(1.0, |text| text.parse::<f64>().unwrap());
    let rows = (millions * 1e6) as u64;
    match arguments.first().map(String::as_str) {
        Some("decide") => decide(),
        Some("outside") => outside(),
        Some("rows") => carry(rows),
        Some("query") => match url {
            Some(url) => questions(&runtime(), url),
            None => query(rows),
        },
        _ => println!("say what: decide, outside, rows [MILLIONS] or query [MILLIONS]"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

fn open(url: String) -> Database {
    let settings = PostgresSettings {
        url,
        timeout: Duration::from_secs(5),
        connections: 4,
        application: "bench".to_owned(),
    };
    Database::open(&settings).unwrap()
}

fn name() -> NodeName {
    NodeName { region: "bench".to_owned(), node: "bench-1".to_owned() }
}

/// A pipeline into this database, and what it needs to go on.
struct Running {
    queue: Arc<Queue>,
    spool: Arc<Spool>,
    pipeline: Pipeline,
    stop: CancellationToken,
    tasks: Tasks,
}

fn start(url: String, folder: &Path, incarnation: u64) -> Running {
    let metrics = Metrics::new();
    let queue = Queue::new(100, &metrics);
    let spool = Arc::new(Spool::open(folder, 4 << 30, Steps::default()));
    let (stop, tasks) = (CancellationToken::new(), Tasks::default());
    let setup = PipelineSetup {
        node: name(),
        incarnation,
        queue: Arc::clone(&queue),
        spool: Arc::clone(&spool),
        database: open(url),
        flush: Duration::from_millis(500),
        distinct: DistinctMax::default(),
        steps: Steps::default(),
        metrics,
    };
    let pipeline = Pipeline::start(setup, &stop, &tasks);
    Running { queue, spool, pipeline, stop, tasks }
}

impl Running {
    async fn end(self) {
        self.stop.cancel();
        self.tasks.ended().await;
    }
}

// --- decide

fn rule(limit: u32) -> Rule {
    Rule {
        per: vec!["user".to_owned()],
        ..Rule::new("search", Algorithm::FixedWindow, limit, Span::from_secs(3_600))
    }
}

fn engine(limit: u32, queue: Option<Arc<Queue>>) -> Engine {
    let engine = Engine::new(name(), Clock::System, Arc::new(MemoryStore::new(100_000)), Metrics::new());
    let engine = match queue {
        Some(queue) => engine.with_audit(queue),
        None => engine,
    };
    engine.load(vec![rule(limit)], Vec::new(), false).unwrap();
    engine
}

/// Times single decisions; `pace`: pause between two, or none.
fn times(engine: &Engine, users: &[String], decisions: usize, pace: Option<Duration>, into: &mut Vec<u32>) {
    for user in users.iter().cycle().take(decisions) {
        let attributes: Attributes<'_> =
            [("user", user.as_str()), ("path", "/api/search"), ("method", "GET"), ("ip", "203.0.113.9")]
                .into_iter()
                .collect();
        let request = Request::new("default", attributes, Cost::Take(1));
        let begin = Instant::now();
        let Answer::Now(_) = engine.decide(std::slice::from_ref(&request)) else { unreachable!() };
        into.push(begin.elapsed().as_nanos() as u32);
        if let Some(pace) = pace {
            while begin.elapsed() < pace {
                std::hint::spin_loop();
            }
        }
    }
}

const HEADINGS: &str =
    "ns, and how often that of the log off                    p50           p99         p99.9        mean";

/// Measures off, on and stopped in turns, so that the machine's moods meet all three, and shows them.
fn in_turns(load: &str, mut measure: impl FnMut(usize, &mut Vec<u32>)) {
    let mut taken = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..11 {
        for (place, times) in taken.iter_mut().enumerate() {
            let mut fresh = Vec::new();
            measure(place, &mut fresh);
            if round > 0 {
                times.append(&mut fresh);
            }
        }
    }
    let shown = taken.map(|mut times| {
        times.sort_unstable();
        let at = |part: f64| f64::from(times[(times.len() as f64 * part) as usize]);
        let sum: u64 = times.iter().map(|nanos| u64::from(*nanos)).sum();
        [at(0.5), at(0.99), at(0.999), sum as f64 / times.len() as f64]
    });
    for (what, values) in ["off", "on", "on, database stopped"].iter().zip(&shown) {
        let cells =
            values.iter().zip(&shown[0]).map(|(value, off)| format!(" {value:>7.0} {:>5.2}", value / off));
        println!("{:<52}{}", format!("{load}: {what}"), cells.collect::<String>());
    }
}

/// Three daemons that block everybody, asked over one kept connection each.
fn outside() {
    let server = postgres::Postgres::start();
    let database = server.migrated(command::TIDEGATE);
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let rules = "[[rules]]\nname = \"closed\"\naction = \"block\"\ngroup = \"b\"\n";
    let remembering = |url: &str, folder: &Path| {
        let spool = folder.join("spool");
        format!("[postgres]\nurl = {url:?}\n[audit]\nspool = {spool:?}\n")
    };
    let daemons = [
        Daemon::with(rules, "", &[]),
        Daemon::with(rules, &remembering(&server.url(&database), folders[0].path()), &[]),
        // A port that refuses, as that of a stopped server does.
        Daemon::with(rules, &remembering("postgres://127.0.0.1:1/none", folders[1].path()), &[]),
    ];
    let mut calls = daemons.each_ref().map(|daemon| {
        let socket = TcpStream::connect(daemon.http).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
    });
    let body = r#"{"attributes":{"user":"u_17","path":"/api/search","method":"GET","ip":"203.0.113.9"}}"#;
    let question = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    println!("{HEADINGS}");
    in_turns("denied, over HTTP", |place, into| {
        let socket = &mut calls[place];
        let mut answer = [0; 4_096];
        for _ in 0..5_000 {
            let begin = Instant::now();
            socket.write_all(question.as_bytes()).unwrap();
            let mut len = 0;
            // An answer ends with its JSON, which ends with a brace and a line.
            while !answer[..len].ends_with(b"}\n") && !answer[..len].ends_with(b"}") {
                len += socket.read(&mut answer[len..]).unwrap();
            }
            into.push(begin.elapsed().as_nanos() as u32);
            assert!(answer[..len].windows(15).any(|part| part == b"\"allowed\":false"));
        }
    });
    for daemon in &daemons[1..] {
        let dropped = daemon.metric("tidegate_audit_dropped_total{reason=\"queue_full\"}").unwrap_or(0.0);
        assert!(dropped == 0.0, "{dropped} records were dropped: it was not all remembered");
    }
}

fn decide() {
    let server = postgres::Postgres::start();
    let database = server.database();
    let runtime = runtime();
    runtime.block_on(async { migrate::run(&open(server.url(&database))).await.unwrap() });
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let guard = runtime.enter();
    let on = start(server.url(&database), folders[0].path(), 1);
    // A port that refuses, as that of a stopped server does.
    let away = start("postgres://127.0.0.1:1/none".to_owned(), folders[1].path(), 1);
    drop(guard);
    let users: Vec<String> = (0..1_000).map(|user| format!("u_{user}")).collect();
    println!("{HEADINGS}");
    let every = |nanos| Some(Duration::from_nanos(nanos));
    let loads: [(&str, u32, usize, Option<Duration>); 3] = [
        ("allowed, 1 % recorded, 50,000/s", u32::MAX, 20_000, every(20_000)),
        ("all denied and recorded, 20,000/s", 0, 10_000, every(50_000)),
        ("all denied, as fast as it goes", 0, 300_000, None),
    ];
    for (load, limit, decisions, pace) in loads {
        let engines = [
            engine(limit, None),
            engine(limit, Some(Arc::clone(&on.queue))),
            engine(limit, Some(Arc::clone(&away.queue))),
        ];
        in_turns(load, |place, into| times(&engines[place], &users, decisions, pace, into));
    }
    runtime.block_on(async {
        on.end().await;
        away.end().await;
    });
}

// --- rows

fn push(queue: &Queue, row: u64, user: &str) {
    queue.push(&Record {
        at: Clock::System.now(),
        domain: "default",
        rule: Some(["search", "upload", "login", "export"][row as usize % 4]),
        user: Some(user),
        key: None,
        address: Some("203.0.113.9"),
        path: Some("/api/search"),
        method: Some("GET"),
        outcome: Outcome::Denied,
        cost: 1,
        count: 10,
        limit: 10,
        status: 429,
        retry_ms: Some(1_000),
        cause: None,
        request_id: None,
        latency_us: 12,
        weight: 1,
    });
}

/// Pushes rows of a hundred thousand users, some of whom are much busier, no faster than they are taken.
fn fill(queue: &Queue, rows: u64) {
    let mut seed = 1_u64;
    for row in 0..rows {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let draw = (seed >> 33) as f64 / f64::from(1_u32 << 31);
        push(queue, row, &format!("u_{}", (100_000.0 * draw * draw * draw) as u64));
        // Rows come from one thread here, so they share one slot of the queue.
        while row % 1_000 == 0 && queue.len() > 4_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn carry(rows: u64) {
    let server = postgres::Postgres::with(&["fsync=on", "max_wal_size=4GB", "shared_buffers=256MB"]);
    let database = server.database();
    let runtime = runtime();
    runtime.block_on(async { migrate::run(&open(server.url(&database))).await.unwrap() });
    let number = |sql: &str| server.sql(&database, sql).parse::<u64>().unwrap();
    // Every row, and every row in the sums of users too.
    let count = || {
        let rows = number("SELECT count(*) FROM audit_log");
        for table in ["usage_minute", "usage_hour", "usage_day"] {
            assert_eq!(number(&format!("SELECT sum(denied) FROM {table} WHERE user_id <> ''")), rows);
        }
        rows
    };
    let folder = tempfile::tempdir().unwrap();
    let guard = runtime.enter();
    let running = start(server.url(&database), folder.path(), 1);
    drop(guard);
    let begin = Instant::now();
    fill(&running.queue, rows);
    let far = tidegate::engine::clock::Deadline::after;
    runtime.block_on(running.pipeline.drain(far_deadline(&runtime, far)));
    let took = begin.elapsed();
    assert_eq!(count(), rows);
    println!("{rows} rows end to end, sums included: {:.0} rows/s", rows as f64 / took.as_secs_f64());
    let sums = number("SELECT count(*) FROM usage_minute");
    println!("they make {sums} sums by minute");
    runtime.block_on(running.end());

    // The same again with nobody there to take them; then somebody is.
    let guard = runtime.enter();
    let spooling = start("postgres://127.0.0.1:1/none".to_owned(), folder.path(), 2);
    drop(guard);
    let begin = Instant::now();
    fill(&spooling.queue, rows);
    while !spooling.queue.is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{rows} rows into the spool: {:.0} rows/s", rows as f64 / begin.elapsed().as_secs_f64());
    runtime.block_on(spooling.end());
    let guard = runtime.enter();
    let begin = Instant::now();
    let replaying = start(server.url(&database), folder.path(), 3);
    drop(guard);
    let (batches, bytes) = (replaying.spool.len(), replaying.spool.bytes());
    runtime.block_on(replaying.pipeline.drain(far_deadline(&runtime, far)));
    let took = begin.elapsed();
    assert_eq!(count(), 2 * rows);
    println!(
        "{rows} rows out of the spool ({batches} batches, {} bytes a row): {:.0} rows/s",
        bytes / rows,
        rows as f64 / took.as_secs_f64()
    );
    runtime.block_on(replaying.end());
}

fn far_deadline(
    runtime: &tokio::runtime::Runtime,
    after: impl Fn(Duration) -> tidegate::engine::clock::Deadline,
) -> tidegate::engine::clock::Deadline {
    let _guard = runtime.enter();
    after(Duration::from_secs(600))
}

// --- query

/// A log of so many rows in this month: a hundred rules, a million users, a tenth denied; and its sums. Rows
/// of one day, and their sums. Indexes are made when the rows are there, as fits a log that is made at once.
fn generate(sql: &dyn Fn(&str) -> String, rows: u64) {
    let indexes = |table: &str| {
        let list = sql(&format!(
            "SELECT indexname || '|' || replace(indexdef, ' ON ONLY ', ' ON ') FROM pg_indexes \
             WHERE tablename = '{table}' AND indexdef NOT LIKE '%UNIQUE%'"
        ));
        let pair = |line: &str| line.split_once('|').map(|(name, text)| (name.to_owned(), text.to_owned()));
        let (names, texts): (Vec<_>, Vec<_>) = list.lines().filter_map(pair).unzip();
        sql(&format!("DROP INDEX {}", names.join(", ")));
        texts
    };
    let make = |texts: Vec<String>| texts.iter().for_each(|text| drop(sql(text)));
    let of_log = indexes("audit_log");
    sql(&format!(
        "INSERT INTO audit_log (at, region, node, domain, rule, user_id, address, path, method, outcome, cost, count, permits, \
             status, latency_us, weight) \
         SELECT date_trunc('day', now(), 'UTC') + (n::float8 / {rows}) * interval '20 hours', \
             (ARRAY['eu', 'us', 'ap'])[1 + n % 3], 'n1', 'default', 'rule-' || rule, \
             'u_' || floor(1e5 * CASE WHEN rule = 8 THEN spread ELSE spread ^ 2 END)::bigint, '203.0.113.9', \
             '/api/' || n % 50, 'GET', \
             CASE WHEN n % 10 = 0 THEN 'denied' ELSE 'allowed' END, 1, 5, 10, CASE WHEN n % 10 = 0 THEN 429 ELSE 200 END, n % 50, 1 \
         FROM (SELECT n, (hashint8(n) & 1023) % 100 AS rule, (hashint8(n * 7) & 1048575) / 1048576.0::float8 AS spread \
               FROM generate_series(1, {rows}) AS n) AS made"
    ));
    make(of_log);
    sql("ALTER TABLE usage_day DISABLE TRIGGER USER");
    for (table, step) in [("usage_minute", "minute"), ("usage_hour", "hour"), ("usage_day", "day")] {
        let of_table = indexes(table);
        for (user, path) in [("''", "''"), ("user_id", "''"), ("''", "path")] {
            // A real log has minutes of every user and path, and hours and days of every user; here days of
            // those who were denied and of some others will do, and hours of some.
            let some = match (table, user, path) {
                ("usage_minute", "user_id", _) | ("usage_minute", _, "path") => continue,
                ("usage_hour", "user_id", _) => "WHERE user_id LIKE '%00'",
                ("usage_day", "user_id", _) => "WHERE outcome = 'denied' OR user_id LIKE '%0'",
                _ => "",
            };
            sql(&format!(
                "INSERT INTO {table} (bucket, region, rule, user_id, path, allowed, denied, cost, latency) \
                 SELECT date_trunc('{step}', at, 'UTC'), region, rule, {user}, {path}, \
                     count(*) FILTER (WHERE outcome = 'allowed'), count(*) FILTER (WHERE outcome = 'denied'), count(*), \
                     '{{844424930131973,1125899906842633}}' FROM audit_log {some} GROUP BY 1, 2, 3, 4, 5"
            ));
        }
        make(of_table);
    }
    sql("INSERT INTO usage_denied SELECT bucket, rule, user_id, sum(denied) FROM usage_day \
         WHERE user_id <> '' AND denied > 0 GROUP BY 1, 2, 3");
    sql("ALTER TABLE usage_day ENABLE TRIGGER USER");
    for step in ["minute", "hour", "day"] {
        sql(&format!(
            "INSERT INTO usage_total (step, bucket, region, allowed, denied, cost, latency) \
             SELECT '{step}', bucket, region, sum(allowed), sum(denied), sum(cost), '{{0,0,500,900}}' \
             FROM usage_{step} WHERE user_id = '' AND path = '' GROUP BY 2, 3"
        ));
    }
    sql("VACUUM ANALYZE");
}

fn query(rows: u64) {
    let settings =
        ["max_wal_size=2GB", "shared_buffers=512MB", "work_mem=32MB", "maintenance_work_mem=512MB"];
    let server = postgres::Postgres::with(&settings);
    let database = server.database();
    let runtime = runtime();
    runtime.block_on(async { migrate::run(&open(server.url(&database))).await.unwrap() });
    let begin = Instant::now();
    generate(&|text| server.sql(&database, text), rows);
    println!("{rows} rows and their sums made in {:.0?}", begin.elapsed());
    questions(&runtime, &server.url(&database));
}

fn questions(runtime: &tokio::runtime::Runtime, url: &str) {
    let past = {
        let _guard = runtime.enter();
        Past::new(open(url.to_owned()), Recorded::default())
    };
    let now = Clock::System.now();
    let day = Timestamp(now.0 - now.0 % 86_400_000_000);
    let decisions = DecisionsAsked {
        from: day,
        to: day + Span::from_secs(86_400),
        user: None,
        key: None,
        address: None,
        rule: None,
        region: None,
        outcomes: Vec::new(),
        cause: None,
        request_id: None,
        limit: 100,
        after: None,
    };
    let usage = UsageAsked {
        by: StepOfTime::Hour,
        from: day,
        to: day + Span::from_secs(86_400),
        group: Group::Time,
        rule: None,
        user: None,
        key: None,
        path: None,
        region: None,
        limit: 100,
    };
    let text = |text: &str| Some(text.to_owned());
    println!("{:<52} {:>9} {:>9}", "ms", "p50", "slowest");
    let show = |what: &str, ask: &dyn Fn() -> usize| {
        let mut times: Vec<f64> = (0..21)
            .map(|_| {
                let begin = Instant::now();
                assert!(ask() > 0, "{what}: no rows");
                begin.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        // The first finds nothing in memory: it counts as the slowest, if it is.
        let slowest = times.iter().copied().fold(0.0, f64::max);
        times.sort_by(f64::total_cmp);
        println!("{what:<52} {:>9.1} {slowest:>9.1}", times[10]);
    };
    let single = |what: &str, asked: DecisionsAsked| {
        show(what, &|| runtime.block_on(past.decisions(&asked)).unwrap().len());
    };
    let sums = |what: &str, asked: UsageAsked| {
        show(what, &|| runtime.block_on(past.usage(&asked)).unwrap().len());
    };
    single("the newest 100 decisions", decisions.clone());
    single("a user's newest decisions", DecisionsAsked { user: text("u_1000"), ..decisions.clone() });
    single(
        "a rule's newest denials",
        DecisionsAsked { rule: text("rule-7"), outcomes: vec![Outcome::Denied], ..decisions.clone() },
    );
    single(
        "denials of the last hours in a region",
        DecisionsAsked { region: text("us"), outcomes: vec![Outcome::Denied], ..decisions },
    );
    sums("a user's sums today, by hour", UsageAsked { user: text("u_1000"), ..usage.clone() });
    sums(
        "top violators of a rule today",
        UsageAsked {
            rule: text("rule-7"),
            group: Group::User,
            by: StepOfTime::Day,
            limit: 20,
            ..usage.clone()
        },
    );
    sums(
        "top violators where nobody stands out",
        UsageAsked {
            rule: text("rule-8"),
            group: Group::User,
            by: StepOfTime::Day,
            limit: 20,
            ..usage.clone()
        },
    );
    sums("decisions over time, today by hour", usage.clone());
    sums(
        "decisions over time, today by minute",
        UsageAsked { by: StepOfTime::Minute, limit: 1_000, ..usage.clone() },
    );
    sums(
        "a rule over time, by minute",
        UsageAsked { by: StepOfTime::Minute, rule: text("rule-7"), limit: 1_000, ..usage.clone() },
    );
    sums(
        "rules with the most denials today",
        UsageAsked { group: Group::Rule, by: StepOfTime::Day, ..usage.clone() },
    );
    sums("paths today", UsageAsked { group: Group::Path, by: StepOfTime::Day, ..usage });
}
