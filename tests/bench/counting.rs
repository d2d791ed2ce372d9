//! What counting itself costs: the memory store behind its port, without matching, headers or servers.
//!
//! `cargo bench --bench counting` prints nanoseconds a decision (median of rounds) as time on the processor,
//! which a busy machine distorts least: one hot key, then a million and ten million keys in an order that
//! caches cannot foresee, on one thread and on two. `cargo bench --bench counting -- count N` takes N permits
//! of one hot key, for callgrind. `cargo bench --bench counting -- memory [KEYS]` prints bytes a bucket
//! beside its key, for each algorithm but the log.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::process::Command;
use std::sync::{Arc, Barrier};

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::key::{Key, Shape};
use tidegate::core::request::Cost;
use tidegate::core::rule::Rule;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::RuleName;
use tidegate::engine::port::{Charge, Intent, Store};
use tidegate::store::MemoryStore;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const DECISIONS: usize = 300_000;
const START: u64 = 1_790_000_000_000_000;
/// With its length before it, an identity of 20 bytes; the key adds four for the shape.
const VALUE_BYTES: u8 = 19;

const ALGORITHMS: [(Algorithm, &str); 6] = [
    (Algorithm::FixedWindow, "fixed_window"),
    (Algorithm::SlidingWindow, "sliding_window"),
    (Algorithm::SlidingLog, "sliding_log"),
    (Algorithm::TokenBucket, "token_bucket"),
    (Algorithm::LeakyBucket, "leaky_bucket"),
    (Algorithm::Gcra, "gcra"),
];

fn rule(algorithm: Algorithm, limit: u32) -> Compiled {
    let window = Span::from_secs(60);
    let rule = Rule { per: vec!["user".to_owned()], ..Rule::new("bench", algorithm, limit, window) };
    let named = RuleName { domain: rule.domain.clone(), name: rule.name.clone() };
    Compiled {
        rule,
        named: Arc::new(named),
        number: 0,
        shape: Shape(1),
        limit: Limit { calendar: None, permits: limit, window, burst: limit, queue: 0 },
    }
}

fn key(number: usize) -> Key {
    let mut identity = [b'0'; 1 + VALUE_BYTES as usize];
    identity[0] = VALUE_BYTES;
    identity[12..].copy_from_slice(&number.to_le_bytes());
    Key::from_identity(Shape(1), &identity)
}

fn take(store: &MemoryStore, rule: &Compiled, key: &Key, now: Timestamp) -> bool {
    let charge = Charge {
        rule,
        key,
        limit: rule.limit,
        share: None,
        whole: &rule.limit,
        first: None,
        cost: Cost::Take(1),
        enforced: true,
    };
    store.try_decide(std::slice::from_ref(&charge), Intent::Charge, now).unwrap().admitted
}

/// Nanoseconds that this thread has run.
fn on_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Nanoseconds a decision of one thread while `threads` of them decide.
fn measure(store: &MemoryStore, rule: &Compiled, keys: usize, threads: usize) -> f64 {
    let round = |round: usize| {
        let barrier = Barrier::new(threads);
        std::thread::scope(|scope| {
            let work = |thread: usize| {
                let barrier = &barrier;
                move || {
                    // A stride that shares no factor with the number of keys visits them all in a scattered
                    // order.
                    let mut at = (round * 7_919 + thread * 104_729) % keys;
                    barrier.wait();
                    let begun = on_processor();
                    for step in 0..DECISIONS {
                        let now = Timestamp(START + u64::try_from(round * DECISIONS + step).unwrap() / 4);
                        std::hint::black_box(take(store, rule, &key(at), now));
                        at = (at + 7_368_787) % keys;
                    }
                    (on_processor() - begun) as f64 / DECISIONS as f64
                }
            };
            let all: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
            all.into_iter().map(|one| one.join().unwrap()).fold(0.0, f64::max)
        })
    };
    median((0..ROUNDS).map(round).collect())
}

fn decide() {
    println!("{:<16}{:>14}{:>10}{:>10}", "", "keys", "1 thread", "2 threads");
    for (algorithm, name) in ALGORITHMS {
        // The log would hold every one of these admissions: let it deny instead.
        let limit = if algorithm == Algorithm::SlidingLog { 1_000 } else { u32::MAX };
        let rule = rule(algorithm, limit);
        let store = MemoryStore::new(100_000);
        let (one, two) = (measure(&store, &rule, 1, 1), measure(&store, &rule, 1, 2));
        println!("{name:<16}{:>14}{one:>7.0} ns{two:>7.0} ns", "1, hot");
    }
    let rule = rule(Algorithm::Gcra, u32::MAX);
    let store = MemoryStore::new(100_000);
    take(&store, &rule, &key(0), Timestamp(START));
    let denying = self::rule(Algorithm::Gcra, 1);
    println!("{:<16}{:>14}{:>7.0} ns", "gcra, denying", "1, hot", measure(&store, &denying, 1, 1));
    for count in [1_000, 1_000_000, 10_000_000] {
        let store = MemoryStore::new(count * 2);
        for number in 0..count {
            take(&store, &rule, &key(number), Timestamp(START));
        }
        let (one, two) = (measure(&store, &rule, count, 1), measure(&store, &rule, count, 2));
        println!("{:<16}{count:>14}{one:>7.0} ns{two:>7.0} ns", "gcra");
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// Each algorithm in a process of its own, since an allocator may keep what the one before gave back.
fn memory(count: &str) {
    println!("{:<16}{:>10}{:>14}{:>22}", "", "keys", "resident", "counted, keys apart");
    for (_, name) in ALGORITHMS.iter().filter(|(algorithm, _)| *algorithm != Algorithm::SlidingLog) {
        let this = std::env::current_exe().unwrap();
        assert!(Command::new(this).args(["memory-of", name, count]).status().unwrap().success());
    }
}

fn memory_of(name: &str, count: usize) {
    let (algorithm, _) = ALGORITHMS.iter().find(|(_, known)| *known == name).unwrap();
    let (key_bytes, rule) = (key(0).bytes().len(), rule(*algorithm, 10));
    let before = resident();
    // Some room to spare, so that no slot is full and none forgets.
    let store = MemoryStore::new(count + count / 10);
    for step in 1..=10 {
        for number in count * (step - 1) / 10..count * step / 10 {
            take(&store, &rule, &key(number), Timestamp(START));
        }
        let keys = store.len().keys;
        let resident = resident().saturating_sub(before) as f64 / keys as f64 - key_bytes as f64;
        let counted = store.bytes() as f64 / keys as f64;
        println!("{name:<16}{keys:>10}{resident:>12.1} B{counted:>20.1} B");
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    match words.first().map(String::as_str) {
        Some("memory") => memory(words.get(1).map_or("10000000", String::as_str)),
        Some("memory-of") => memory_of(&words[1], words[2].parse().unwrap()),
        Some("count") => {
            let (store, rule, key) = (MemoryStore::new(100_000), rule(Algorithm::Gcra, u32::MAX), key(1));
            for step in 0..words[1].parse().unwrap() {
                std::hint::black_box(take(&store, &rule, &key, Timestamp(START + step)));
            }
        }
        _ => decide(),
    }
}
