//! What a change among very many rules costs, part by part.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and prints what it found"
)]

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tidegate::core::ruleset::{RuleSet, Shapes};
use tidegate::core::worldwide::NodeName;
use tidegate::database::held::Held;
use tidegate::database::postgres::rules::Version;
use tidegate::database::saved;
use tidegate::database::set::RuleDocs;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::store::MemoryStore;
use tidegate::telemetry::Metrics;

fn main() {
    for many in [10_000, 100_000] {
        parts(many);
    }
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = work();
    println!("{what:<40} {:>9.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    done
}

fn parts(many: usize) {
    println!("{many} rules");
    let rules = (0..many).map(|n| {
        let name = format!("r{n}");
        let rule = json!({ "name": name, "match": { "path": format!("/api/{n}/*") }, "per": ["user"], "limit": 5, "window": "24h" });
        (name, rule)
    });
    let docs = RuleDocs { rules: rules.collect(), ..RuleDocs::default() };
    let held = timed("held", || Held::of(&docs));
    timed("clone of held", || held.clone());
    let bytes = timed("to bytes", || held.to_bytes(Version::default()).unwrap());
    timed("digest", || saved::digest(&bytes));
    timed("from bytes", || saved::from_bytes(&bytes).unwrap());
    timed("clone", || docs.clone());
    timed("keeping", || docs.keeping(docs.clone(), &[]));
    timed("changes", || docs.changes_to(&docs));
    let read = timed("read", || docs.read(&[]).unwrap());
    let mut shapes = Shapes::default();
    timed("compile", || RuleSet::compile(read.clone(), &mut shapes).unwrap());
    timed("compile again", || RuleSet::compile(read.clone(), &mut shapes).unwrap());
    let name = NodeName { region: "bench".to_owned(), node: "bench-1".to_owned() };
    let engine = Engine::new(name, Clock::System, Arc::new(MemoryStore::new(100_000)), Metrics::new());
    timed("load", || engine.load(read.clone(), Vec::new(), false).unwrap());
    timed("load again", || engine.load(read, Vec::new(), false).unwrap());
}
