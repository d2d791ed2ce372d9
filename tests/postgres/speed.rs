//! How quickly rules take force, and how a daemon carries very many of them. The figures in docs/benchmarks.md come from
//! `cargo nextest run --workspace --test postgres --run-ignored all -E 'test(speed)' --no-capture`.

use std::time::{Duration, Instant};

use super::rules::{Place, limit, rule, send, wait_for};
use super::support::daemon::Daemon;
use super::support::eventually;

const MANY: &str = "INSERT INTO rules (document) SELECT jsonb_build_object('name', 'r' || n, 'match', \
                    jsonb_build_object('path', '/api/' || n || '/*'), 'per', '[\"user\"]'::jsonb, 'limit', 5, 'window', '24h') \
                    FROM generate_series(1, ";

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_thousand_rules_are_carried_and_one_of_them_can_be_changed() {
    let place = Place::new();
    place.sql(&format!("{MANY} 100000) AS n"));
    let begin = Instant::now();
    let daemon = place.daemon();
    let started = begin.elapsed();
    assert_eq!(daemon.metric("tidegate_rules"), Some(100_000.0));
    assert_eq!(daemon.admitted(&[("user", "u"), ("path", "/api/77777/x")], 7), 5);
    let begin = Instant::now();
    let put = send(&daemon, "PUT", "/v1/rules/r5", &[], &rule("r5", 9));
    assert_eq!(
        (put.status, limit(&daemon, "r5")),
        (200, Some(9)),
        "{}",
        &put.body[..put.body.len().min(300)]
    );
    let changed = begin.elapsed();
    eprintln!(
        "100,000 rules, unoptimised unless built so: start {started:?}, one changed and in force {changed:?}"
    );
    // One more than a set may have.
    place.sql(
        &MANY
            .replace("'r' ||", "'s' ||")
            .to_string()
            .replace("generate_series(1, ", "generate_series(1, 100001) AS n"),
    );
    eventually("too many are refused", || {
        daemon.get("/readyz").json()["rules"]["problem"]
            .as_str()?
            .contains("at most 200000 rules")
            .then_some(())
    });
    assert_eq!(daemon.metric("tidegate_rules"), Some(100_000.0));
}

#[test]
#[ignore = "a measurement"]
fn speed_of_a_change_over_three_daemons_and_of_a_start_with_ten_thousand_rules() {
    let place = Place::new();
    place.sql(&super::rules::insert(&rule("r", 1)));
    let daemons: Vec<Daemon> = (0..3).map(|_| place.daemon()).collect();
    let mut took = Vec::new();
    for wanted in 2..102_u64 {
        place.sql(&format!("UPDATE rules SET document = document || '{{\"limit\": {wanted}}}'"));
        let begin = Instant::now();
        for daemon in &daemons {
            while limit(daemon, "r") != Some(wanted) {
                assert!(begin.elapsed() < Duration::from_secs(30));
            }
        }
        took.push(begin.elapsed());
    }
    took.sort();
    eprintln!(
        "rule change committed → decided by on 3 daemons: p50 {:?}, p99 {:?}, max {:?} of {}",
        percentile(&took, 50),
        percentile(&took, 99),
        took[took.len() - 1],
        took.len()
    );
    drop(daemons);
    place.sql(&format!("{MANY} 10000)"));
    for _ in 0..3 {
        let begin = Instant::now();
        let daemon = place.daemon();
        eprintln!("start with 10,000 rules from PostgreSQL, ready: {:?}", begin.elapsed());
        wait_for(&daemon, "r10000", Some(5));
    }
}
