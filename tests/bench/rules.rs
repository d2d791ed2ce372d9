//! What very many rules cost: inside the process part by part, and in real daemons on a real PostgreSQL.
//!
//! * `cargo bench --bench rules -- parts`: reading, compiling and writing out a set of 10,000 and of 100,000
//!   rules.
//! * `cargo bench --bench rules -- change`: a change committed by SQL until each of three daemons decides by
//!   it, among few rules and among 10,000; and how long a daemon takes to start with those. Under three
//!   minutes.
//! * `cargo bench --bench rules -- many`: 100,000 rules started with, changed one by one and by a file,
//!   started with from disk, and handed to a peer.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark reads the clock, prints what it found, and stops where something is wrong"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::core::regions::NodeName;
use tidegate::core::ruleset::{RuleSet, Shapes};
use tidegate::database::held::Held;
use tidegate::database::saved;
use tidegate::database::set::{RULES_MAX, RuleDocs};
use tidegate::database::stored::Version;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::store::MemoryStore;
use tidegate::telemetry::Metrics;

#[path = "../support/mod.rs"]
mod support;

use support::command::{TIDEGATE, run};
use support::daemon::Daemon;
use support::postgres::Postgres;
use support::{eventually, free_udp, http};

const CHANGES: u64 = 100;
/// Changes in turns whose processor time is told together: the clock that tells it ticks every 4 ms.
const CHANGES_OF_A_KIND: usize = 50;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let mode = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    match mode.as_deref() {
        Some("parts") => [10_000, 100_000].into_iter().for_each(parts),
        Some("change") => change(),
        Some("many") => many(),
        _ => println!("say what: parts, change or many"),
    }
}

/// Prints how long it took, and the processor time of this thread: what it takes where nobody else wants the
/// processor.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (begin, used) = (Instant::now(), processor_time("/proc/thread-self/schedstat".as_ref()));
    let done = work();
    let used = processor_time("/proc/thread-self/schedstat".as_ref()) - used;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{what:<64} {:>9.1} ms {:>9.2} ms of processor", millis(begin.elapsed()), millis(used));
    done
}

/// What a thread has used of the processor.
fn processor_time(schedstat: &Path) -> Duration {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// What the threads of a process that live now have used of it.
fn processor_time_of(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    threads.map(|thread| processor_time(&thread.path().join("schedstat"))).sum()
}

// --- parts

fn parts(rules: usize) {
    println!("{rules} rules");
    let rule = |n: usize| {
        let name = format!("r{n}");
        let path = format!("/api/{n}/*");
        let rule =
            json!({ "name": name, "match": { "path": path }, "per": ["user"], "limit": 5, "window": "24h" });
        (name, rule)
    };
    let docs = RuleDocs { rules: (0..rules).map(rule).collect(), ..RuleDocs::default() };
    let read = timed("  reading every rule", || docs.read(&[]).unwrap());
    timed("  compiling all", || RuleSet::compile(read.clone(), &mut Shapes::default()).unwrap());
    let name = NodeName { region: "bench".to_owned(), node: "bench-1".to_owned() };
    let engine = Engine::new(name, Clock::System, Arc::new(MemoryStore::new(100_000)), Metrics::new());
    engine.load(read, Vec::new(), false).unwrap();
    let mut held = Held::of(&docs);
    let mut revision = 1;
    let mut changes = |what: &str, names: Vec<(String, Option<Value>)>| {
        timed(&format!("  {what}, {} in turns: in force, with its bytes", names.len()), || {
            for (name, rule) in names {
                let put = RuleDocs {
                    rules: rule.map(|rule| (name.clone(), rule)).into_iter().collect(),
                    ..RuleDocs::default()
                };
                let names = [name];
                let _ = held.change(&names, &put);
                let read = put.read_beside(rules, &[]).unwrap();
                held.check_len(Version::default()).unwrap();
                revision += 1;
                engine.load_changed(&names, read, false, revision).unwrap();
                let _ = saved::digest(&held.to_bytes(Version::default()).unwrap());
            }
        });
    };
    let limited = |n: usize| {
        let (name, mut rule) = rule(n);
        rule["limit"] = json!(6);
        (name, Some(rule))
    };
    changes("changed limits", (0..CHANGES_OF_A_KIND).map(limited).collect());
    let fresh = |n: usize| rule(rules + n);
    changes("new rules", (0..CHANGES_OF_A_KIND).map(|n| (fresh(n).0, Some(fresh(n).1))).collect());
    changes("removed rules", (0..CHANGES_OF_A_KIND).map(|n| (fresh(n).0, None)).collect());
    let bytes = held.to_bytes(Version::default()).unwrap();
    timed("  of each: the bytes and their digest", || {
        saved::digest(&held.to_bytes(Version::default()).unwrap())
    });
    timed("  reading the bytes back", || saved::from_bytes(&bytes).unwrap());
}

// --- daemons

/// A server with a database, and how to write to it.
struct Place {
    server: Postgres,
    database: String,
}

impl Place {
    fn new() -> Self {
        let server = Postgres::with(&["max_wal_size=4GB"]);
        let database = server.migrated(TIDEGATE);
        Self { server, database }
    }

    fn sql(&self, text: &str) -> String {
        self.server.sql(&self.database, text)
    }

    fn insert(&self, rules: usize) {
        self.sql(&format!(
            "INSERT INTO rules (document) SELECT jsonb_build_object('name', 'r' || n, 'match', \
                 jsonb_build_object('path', '/api/' || n || '/*'), 'per', '[\"user\"]'::jsonb, 'limit', 1, 'window', '24h') \
             FROM generate_series(1, {rules}) AS n"
        ));
    }

    fn config(&self) -> String {
        format!(
            "[rules]\nsource = \"postgres\"\n[postgres]\nurl = {:?}\ntimeout = \"5s\"\n",
            self.server.url(&self.database)
        )
    }

    fn daemon(&self) -> Daemon {
        Daemon::with("", &self.config(), &[])
    }

    fn set_limit(&self, rule: &str, limit: u64) {
        self.sql(&format!(
            "UPDATE rules SET document = document || '{{\"limit\": {limit}}}' WHERE name = '{rule}'"
        ));
    }
}

fn limit(daemon: &Daemon, name: &str) -> Option<u64> {
    daemon.get(&format!("/v1/rules/{name}")).json()["rule"]["limit"].as_u64()
}

fn wait_for(daemon: &Daemon, name: &str, wanted: u64) {
    let begin = Instant::now();
    while limit(daemon, name) != Some(wanted) {
        assert!(begin.elapsed() < PATIENCE, "{name} has not the limit {wanted} in time");
        // Leaves the processor to those who are asked.
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn change() {
    for rules in [1, 10_000] {
        let place = Place::new();
        place.insert(rules);
        let daemons: Vec<Daemon> = (0..3).map(|_| place.daemon()).collect();
        let used =
            || -> Duration { daemons.iter().map(|daemon| processor_time_of(daemon.process.id())).sum() };
        let before = used();
        let mut took: Vec<Duration> = (2..2 + CHANGES)
            .map(|wanted| {
                place.set_limit("r1", wanted);
                // `psql` has ended by now: the change was committed a moment before.
                let begin = Instant::now();
                daemons.iter().for_each(|daemon| wait_for(daemon, "r1", wanted));
                begin.elapsed()
            })
            .collect();
        println!(
            "  processor time of a daemon for one change, the asking whether it is in force included: {:.1?}",
            (used() - before) / u32::try_from(CHANGES).unwrap() / 3
        );
        took.sort();
        let at = |percent: usize| took[(took.len() - 1) * percent / 100];
        println!(
            "one change among {rules} rules, committed → in force on 3 daemons: p50 {:.1?}, p99 {:.1?}, max {:.1?} of {CHANGES}",
            at(50),
            at(99),
            at(100)
        );
        drop(daemons);
        if rules > 1 {
            for _ in 0..3 {
                drop(timed(&format!("a start with {rules} rules, until ready"), || place.daemon()));
            }
        }
    }
}

fn put(daemon: &Daemon, name: &str, limit: u64) {
    let rule = json!({ "name": name, "per": ["user"], "limit": limit, "window": "24h" });
    let reply =
        http::request(daemon.http, "PUT", &format!("/v1/rules/{name}"), &[], rule.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.body.get(..300).unwrap_or(&reply.body));
}

/// Times decisions, one every millisecond, while something goes on.
fn deciding<T>(daemon: &Daemon, what: &str, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    let body = r#"{"attributes":{"user":"u","path":"/api/77/x"}}"#;
    let question = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (done, mut took) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut socket = TcpStream::connect(daemon.http).unwrap();
            socket.set_nodelay(true).unwrap();
            let (mut answer, mut took) = ([0; 4_096], Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                socket.write_all(question.as_bytes()).unwrap();
                let len = socket.read(&mut answer).unwrap();
                took.push(begin.elapsed());
                assert!(answer[..len].starts_with(b"HTTP/1.1 200"));
                std::thread::sleep(Duration::from_millis(1));
            }
            took
        });
        let done = work();
        stop.store(true, Ordering::Relaxed);
        (done, asking.join().unwrap())
    });
    took.sort();
    let at = |part: usize| took[(took.len() - 1) * part / 1_000];
    println!(
        "  decisions while {what}: p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}, max {:.1?} of {}",
        at(500),
        at(990),
        at(999),
        at(1_000),
        took.len()
    );
    done
}

fn many() {
    const RULES: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let certificates = |arguments: &[&str]| assert_eq!(run(folder.path(), arguments).code, 0);
    certificates(&["cert", "ca", "--out", "ca"]);
    let peers = [("eu", free_udp()), ("us", free_udp())];
    for (region, _) in peers {
        certificates(&["cert", "issue", "--ca", "ca", "--region", region, "--node", "n1", "--out", region]);
    }
    let mut place = Place::new();
    let config = |own: usize| {
        let (region, address) = peers[own];
        let file = |name: String| format!("{:?}", folder.path().join(name));
        let saved = format!("saved = {}\n[postgres]", file(format!("{region}.json")));
        format!(
            "region = {region:?}\nnode = \"n1\"\n[listen]\npeer = \"{address}\"\n{}[peers]\njoin = [\"{}\"]\n\
             [peers.tls]\nca = {}\ncert = {}\nkey = {}\n",
            place.config().replace("[postgres]", &saved),
            peers[1 - own].1,
            file("ca/ca.pem".to_owned()),
            file(format!("{region}/node.pem")),
            file(format!("{region}/node.key"))
        )
    };
    let configs = [config(0), config(1)];
    timed("100,000 rules inserted by SQL", || place.insert(RULES));
    let daemon = timed("a start with them, until ready", || Daemon::with("", &configs[0], &[]));
    assert_eq!(daemon.metric("tidegate_rules"), Some(RULES as f64));
    deciding(&daemon, "nothing else happens", || std::thread::sleep(Duration::from_secs(5)));
    for n in 0..3 {
        timed("one put by the API, in force when answered", || put(&daemon, "r5", 10 + n));
        assert_eq!(limit(&daemon, "r5"), Some(10 + n));
        place.set_limit("r6", 20 + n);
        timed("one changed by SQL, until in force", || wait_for(&daemon, "r6", 20 + n));
    }
    let rules = "[[rules]]\nname = \"r7\"\nlimit = 7\nwindow = \"1s\"\n";
    std::fs::write(daemon.folder().join("new.toml"), rules).unwrap();
    let applied = timed("one by `tidegate rules apply`, the whole set sent", || {
        deciding(&daemon, "the whole set is sent", || daemon.run(&["rules", "apply", "new.toml"]))
    });
    assert!(applied.code == 0 && applied.out.contains("1 changed"), "{applied:?}");
    let whole: Value = json!({ "rules": [] });
    let emptied = timed("a set without them put, dry", || {
        http::request(daemon.http, "PUT", "/v1/rules?dry_run=true", &[], whole.to_string().as_bytes())
    });
    assert_eq!(emptied.json()["changes"].as_array().map(Vec::len), Some(RULES));
    deciding(&daemon, "rules change by SQL, one after the other", || {
        (0..50).for_each(|n| place.set_limit("r8", 100 + n));
        wait_for(&daemon, "r8", 149);
    });
    let rules = (0..=RULES_MAX).map(|n| json!({ "name": format!("n{n}"), "limit": 1, "window": "1s" }));
    let too_many = json!({ "rules": rules.collect::<Vec<_>>() }).to_string();
    let refused = deciding(&daemon, "a set of too many rules is refused", || {
        timed("a set of 200,001 rules put", || {
            http::request(daemon.http, "PUT", "/v1/rules", &[], too_many.as_bytes())
        })
    });
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (400, Some("invalid_request")),
        "{refused:?}"
    );
    println!("  {}", refused.json()["error"]["message"]);
    let all = json!({ "rules": (0..RULES).map(|n| json!({ "name": format!("n{n}"), "limit": 1, "window": "1s" })).collect::<Vec<_>>() });
    let other = deciding(&daemon, "a set is replaced by another of 100,000 rules, dry", || {
        timed("another set of 100,000 rules put, dry", || {
            http::request(daemon.http, "PUT", "/v1/rules?dry_run=true", &[], all.to_string().as_bytes())
        })
    });
    assert_eq!(other.status, 200);
    eventually("the newest set is on disk", || {
        let text = std::fs::read_to_string(folder.path().join("eu.json")).ok()?;
        text.contains("{\"limit\":7,\"name\":\"r7\"").then_some(())
    });
    place.server.kill();
    drop(daemon);
    let daemon = timed("a start from disk, without PostgreSQL", || Daemon::with("", &configs[0], &[]));
    assert_eq!(daemon.get("/readyz").json()["rules"]["from"], "saved");
    let other = timed("a start from a peer, without PostgreSQL", || Daemon::with("", &configs[1], &[]));
    assert_eq!(other.get("/readyz").json()["rules"]["from"], "peer eu/n1");
    assert_eq!((limit(&other, "r7"), other.metric("tidegate_rules")), (Some(7), Some(RULES as f64)));
}
