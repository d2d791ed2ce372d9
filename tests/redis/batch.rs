//! Many checks of one call on Redis: they share round trips, and are answered as if they had gone one after
//! the other.

use std::sync::Arc;

use crate::redis_servers::{Cluster, Server};
use crate::redis_store::{runtime, settings, store};
use tidegate::core::regions::NodeName;
use tidegate::core::request::{Cost, Request};
use tidegate::database::document;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Store;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::Topology;
use tidegate::telemetry::Metrics;

const RULES: &str = r#"
    [[rules]]
    name = "user"
    per = ["user"]
    algorithm = "fixed_window"
    limit = 3
    window = "365d"
    [[rules]]
    name = "address"
    per = ["address"]
    algorithm = "fixed_window"
    limit = 4
    window = "365d"
"#;

fn engine(store: Arc<dyn Store>) -> Engine {
    let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
    let engine = Engine::new(name, Clock::System, store, Metrics::new());
    engine.load(document::from_toml("rules.toml", RULES, &[]).unwrap().rules, Vec::new(), false).unwrap();
    engine
}

/// Who asks, and for how much.
type Asked = (Vec<(&'static str, String)>, u64);

/// What was answered: allowed, and what each rule has left.
fn answers(engine: &Engine, asked: &[Asked]) -> Vec<(bool, Vec<u64>)> {
    let request = |(attributes, cost): &'_ Asked| -> (Vec<(&'static str, String)>, Cost) {
        (attributes.clone(), Cost::Take(*cost))
    };
    let owned: Vec<_> = asked.iter().map(request).collect();
    let requests: Vec<Request<'_>> = owned
        .iter()
        .map(|(attributes, cost)| {
            Request::new(
                "default",
                attributes.iter().map(|(name, value)| (*name, value.as_str())).collect(),
                *cost,
            )
        })
        .collect();
    let mut answers = Vec::new();
    runtime().block_on(engine.decide_each(&requests, |_, decision| {
        assert!(decision.rules.iter().all(|ruled| !ruled.degraded));
        answers.push((decision.allowed, decision.rules.iter().map(|ruled| ruled.remaining).collect()));
    }));
    answers
}

fn user(user: usize) -> Asked {
    (vec![("user", format!("u{user}"))], 1)
}

fn calls(server: &Server) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default().to_owned();
    line.split("calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_thousand_checks_go_in_a_few_dozen_calls() {
    let server = Server::start(&[]);
    let engine = engine(Arc::new(store(settings(Topology::Single, vec![server.url()]), 1)));
    answers(&engine, &[user(0)]);
    let before = calls(&server);
    let asked: Vec<Asked> = (1..=1_000).map(user).collect();
    let answers = answers(&engine, &asked);
    assert_eq!(answers.len(), 1_000);
    assert!(answers.iter().all(|(allowed, left)| *allowed && left == &[2]));
    let calls = calls(&server) - before;
    assert!(calls <= 50, "{calls} calls for 1,000 checks");
}

#[test]
fn checks_of_a_batch_are_decided_in_its_order() {
    let cluster = Cluster::start();
    let engine = engine(Arc::new(store(settings(Topology::Cluster, cluster.urls()), 1)));
    // Ten users in turn: of each only the first three may pass, each with one less left.
    let asked: Vec<Asked> = (0..700).map(|turn| user(turn % 10)).collect();
    for (turn, answer) in answers(&engine, &asked).into_iter().enumerate() {
        let round = turn / 10;
        assert_eq!(answer, (round < 3, vec![2_u64.saturating_sub(round as u64)]), "check {turn}");
    }
}

#[test]
fn a_batch_with_several_identities_over_a_cluster_is_answered_like_one_in_memory() {
    let cluster = Cluster::start();
    let redis = engine(Arc::new(store(settings(Topology::Cluster, cluster.urls()), 1)));
    let memory = engine(Arc::new(MemoryStore::new(10_000)));
    let mut dice = 7_u64;
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    for batch in 0..12 {
        // Names of its own for each batch, of which some meet often and some never.
        let asked: Vec<Asked> = (0..150)
            .map(|_| {
                let name = |kind: &str, number: u64| format!("{batch}-{kind}{number}");
                let mut attributes = Vec::new();
                if roll(4) > 0 {
                    attributes.push(("user", name("u", roll(40))));
                }
                if roll(3) == 0 {
                    attributes.push(("address", name("a", roll(30))));
                }
                (attributes, 1 + roll(3))
            })
            .collect();
        assert_eq!(answers(&redis, &asked), answers(&memory, &asked), "batch {batch}");
    }
}
