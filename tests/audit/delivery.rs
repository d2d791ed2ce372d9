//! From the spool to the database: exactly once, whatever dies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::core::audit::{Histogram, Outcome, Record};
use tidegate::core::regions::NodeName;
use tidegate::core::time::{Span, Timestamp};
use tidegate::database::audit::{ArchiveStep, DeliverError, Delivered, Past, Spool, Steps};
use tidegate::engine::history::{Group, History as _, Recorded, StepOfTime, UsageAsked};

use super::records::{NOON, Process, Server, batch, batch_of_sums, denial, node, runtime};

const BYTES_MAX: u64 = 1 << 20;

/// Delivers like a process that may die: everything it knew is gone, and it starts again from the folder.
async fn deliver_through_deaths(server: &Server, folder: &Path, node: &NodeName, steps: &Steps) -> usize {
    let mut deaths = 0;
    loop {
        let spool = Spool::open(folder, BYTES_MAX, Steps::default());
        let mut process = Process::of(server, node, steps);
        let lived = async {
            while let Some(segment) = spool.oldest() {
                let batch = spool.read(segment).unwrap();
                process.deliverer.deliver(&batch).await?;
                // Now and then sums are written; else they die with the process.
                if batch.id.sequence.is_multiple_of(2) {
                    process.summer.write(None).await?;
                }
                spool.remove(segment);
            }
            process.summer.write(None).await
        };
        match lived.await {
            Ok(()) => return deaths,
            Err(DeliverError::Ended(_)) => deaths += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_batch_arrives_once_wherever_its_writer_dies() {
    let server = Server::start();
    for (round, dies) in ArchiveStep::DELIVERING.into_iter().chain(ArchiveStep::SUMMING).enumerate() {
        let folder = TempDir::new().unwrap();
        let spool = Spool::open(folder.path(), BYTES_MAX, Steps::default());
        let region = format!("r{round}");
        let node = NodeName { region: region.clone(), node: "eu-1".to_owned() };
        for sequence in 1..=6 {
            let users: Vec<String> = (0..50).map(|user| format!("u{sequence}_{user}")).collect();
            let of_key = |user| Record { key: Some("k"), ..denial(NOON, user) };
            let mut batch = batch(sequence, users.iter().map(|user| of_key(user)));
            batch.node.region.clone_from(&region);
            spool.put(&batch).unwrap();
        }
        // Every batch meets its death once.
        let met = Arc::new(AtomicUsize::new(0));
        let steps =
            Steps::dying(move |step| step == dies && met.fetch_add(1, Ordering::Relaxed).is_multiple_of(2));
        let deaths = runtime().block_on(deliver_through_deaths(&server, folder.path(), &node, &steps));
        assert!(deaths >= 2, "{dies:?} was met {deaths} times");
        let of = |sql: &str| server.number(&format!("{sql} WHERE region = '{region}'"));
        assert_eq!(of("SELECT count(*) FROM audit_log"), 300, "{dies:?}");
        assert_eq!(of("SELECT count(DISTINCT user_id) FROM audit_log"), 300, "{dies:?}");
        assert_eq!(of("SELECT count(*) FROM audit_batches"), 6, "{dies:?}");
        for table in ["usage_minute", "usage_hour", "usage_day"] {
            let total = format!(
                "SELECT sum(denied) FROM {table} WHERE user_id = '' AND path = '' AND region = '{region}'"
            );
            assert_eq!(server.number(&total), 300, "{table} after {dies:?}");
            let users = format!(
                "SELECT count(*), min(denied), max(denied) FROM {table} WHERE user_id <> '' AND region = '{region}'"
            );
            assert_eq!(server.sql(&users), "300|1|1", "{table} after {dies:?}");
        }
        assert_eq!(of("SELECT sum(denied) FROM usage_key"), 300, "the key after {dies:?}");
        for step in ["minute", "hour", "day"] {
            let total =
                format!("SELECT sum(denied) FROM usage_total WHERE step = '{step}' AND region = '{region}'");
            assert_eq!(server.number(&total), 300, "all by {step} after {dies:?}");
        }
        let round = u64::try_from(round + 1).unwrap();
        assert_eq!(server.number("SELECT sum(denied) FROM usage_denied"), 300 * round, "{dies:?}");
        assert_eq!(of("SELECT count(*) FILTER (WHERE NOT summed) FROM audit_batches"), 0, "{dies:?}");
    }
}

#[test]
fn every_field_arrives_as_it_was() {
    let server = Server::start();
    let strange = "a\0b\\N\t\n\"ä{}";
    let mut records = vec![denial(NOON, strange), denial(NOON, "plain")];
    records[0].address = Some("no address");
    records[0].retry_ms = None;
    records[0].rule = None;
    records[0].cost = -5;
    records[0].count = u64::MAX;
    records[1].outcome = Outcome::Allowed;
    records[1].weight = 100;
    records[1].key = Some("k");
    let delivered = runtime().block_on(async {
        let mut process = Process::of(&server, &node(), &Steps::default());
        let delivered = process.deliverer.deliver(&batch(1, records)).await.unwrap();
        process.summer.write(None).await.unwrap();
        delivered
    });
    assert_eq!(delivered, Delivered::Now);
    let columns = "at AT TIME ZONE 'UTC', region, node, domain, rule, user_id, key_id, address, path, method, outcome, cost, \
                   count, permits, status, retry_after_ms, latency_us, weight, cause, request_id";
    let row = |filter: &str| server.sql(&format!("SELECT {columns} FROM audit_log WHERE {filter}"));
    assert_eq!(
        row("user_id = 'plain'"),
        "2026-03-10 12:00:00|eu|eu-1|default|search|plain|k|2001:db8::/64|/search?q=1|GET|allowed|1|10|10|429|1000|12|100|used_up|7f3c"
    );
    let strange = format!("2026-03-10 12:00:00|eu|eu-1|default||{}||", strange.replace('\0', "\u{fffd}"));
    assert!(row("user_id <> 'plain'").starts_with(&strange), "{}", row("user_id <> 'plain'"));
    assert_eq!(
        server.sql("SELECT allowed, denied, cost, place, n FROM usage_minute, tidegate_counts(latency) WHERE user_id = 'plain'"),
        "100|0|100|11|100"
    );
}

#[test]
fn sums_of_many_batches_are_the_sums_of_everything() {
    let server = Server::start();
    runtime().block_on(async {
        let mut process = Process::of(&server, &node(), &Steps::default());
        for sequence in 1..=5_u64 {
            let at = |n: u64| NOON + Span::from_secs(sequence * 1_200 + n * 30);
            let records = (0..20).map(|n| {
                let mut record = denial(at(n), if n % 2 == 0 { "even" } else { "odd" });
                record.latency_us = u32::try_from(n * sequence).unwrap();
                record
            });
            process.deliverer.deliver(&batch(sequence, records)).await.unwrap();
            if sequence != 2 {
                process.summer.write(None).await.unwrap();
            }
        }
    });
    for (table, step) in [("usage_minute", "minute"), ("usage_hour", "hour"), ("usage_day", "day")] {
        let summed = format!(
            "SELECT bucket, user_id, denied, (SELECT sum(n) FROM tidegate_counts(latency)) FROM {table} WHERE path = '' AND user_id <> '' ORDER BY 1, 2"
        );
        let counted = format!(
            "SELECT date_trunc('{step}', at, 'UTC'), user_id, count(*), count(*) FROM audit_log GROUP BY 1, 2 ORDER BY 1, 2"
        );
        assert_eq!(server.sql(&summed), server.sql(&counted));
    }
    // What the routes read of it.
    let read = runtime().block_on(async {
        let asked = UsageAsked {
            by: StepOfTime::Day,
            from: Timestamp(0),
            to: NOON + Span::from_secs(86_400),
            group: Group::Time,
            rule: None,
            user: None,
            key: None,
            path: None,
            region: None,
            limit: 10,
        };
        Past::new(server.open(), Recorded::default()).usage(&asked).await.unwrap()
    });
    let mut all = Histogram::default();
    for sequence in 1..=5 {
        (0..20).for_each(|n| all.add(n * sequence, 1));
    }
    assert_eq!(read.iter().map(|row| row.latency.clone()).collect::<Vec<_>>(), [Some(all)]);
    let days = "SELECT array_agg(n ORDER BY place) FROM usage_day, LATERAL (SELECT place, sum(n) AS n FROM tidegate_counts(latency) GROUP BY 1) AS counts WHERE user_id = '' AND path = '' AND place <= 4";
    let counted = "SELECT array_agg((SELECT count(*) FROM audit_log WHERE latency_us = n) ORDER BY n) FROM generate_series(0, 3) n";
    assert_eq!(server.sql(days), server.sql(counted));
}

#[test]
fn sums_of_decisions_without_rows_arrive_once_wherever_their_writer_dies() {
    let server = Server::start();
    for (round, dies) in ArchiveStep::DELIVERING.into_iter().enumerate() {
        let folder = TempDir::new().unwrap();
        let spool = Spool::open(folder.path(), BYTES_MAX, Steps::default());
        let region = format!("r{round}");
        let node = NodeName { region: region.clone(), node: "eu-1".to_owned() };
        let users: Vec<String> = (0..50).map(|user| format!("u{user}")).collect();
        for sequence in 1..=6_u64 {
            let admitted = users.iter().map(|user| Record {
                outcome: Outcome::Allowed,
                key: Some("k"),
                ..denial(NOON, user)
            });
            // In turns with batches of rows, as a daemon sends them.
            let mut batch = if sequence.is_multiple_of(2) {
                batch(sequence, users.iter().map(|user| denial(NOON, user)))
            } else {
                batch_of_sums(sequence, admitted)
            };
            batch.node.region.clone_from(&region);
            spool.put(&batch).unwrap();
        }
        let met = Arc::new(AtomicUsize::new(0));
        let steps =
            Steps::dying(move |step| step == dies && met.fetch_add(1, Ordering::Relaxed).is_multiple_of(2));
        let deaths = runtime().block_on(deliver_through_deaths(&server, folder.path(), &node, &steps));
        assert!(deaths >= 2, "{dies:?} was met {deaths} times");
        let of = |sql: &str| server.sql(&format!("{sql} AND region = '{region}'"));
        assert_eq!(of("SELECT count(*) FROM audit_log WHERE true"), "150", "{dies:?}");
        assert_eq!(of("SELECT count(*) FROM audit_batches WHERE summed"), "6", "{dies:?}");
        for table in ["usage_minute", "usage_hour", "usage_day"] {
            let all = format!("SELECT allowed, denied, cost FROM {table} WHERE user_id = '' AND path = ''");
            assert_eq!(of(&all), "150|150|150", "{table} after {dies:?}");
            let users = format!(
                "SELECT count(*), min(allowed), max(allowed), min(denied), max(denied) FROM {table} WHERE user_id <> ''"
            );
            assert_eq!(of(&users), "50|3|3|3|3", "{table} after {dies:?}");
        }
        assert_eq!(of("SELECT sum(allowed) FROM usage_key WHERE true"), "150", "{dies:?}");
        assert_eq!(of("SELECT allowed FROM usage_total WHERE step = 'day'"), "150", "{dies:?}");
    }
}

#[test]
fn a_clock_that_jumps_over_months_loses_nothing() {
    let server = Server::start();
    let moments = [0, NOON.0, NOON.0 + 40 * 86_400_000_000, 4_102_444_800_000_000, u64::MAX];
    runtime().block_on(async {
        let mut process = Process::of(&server, &node(), &Steps::default());
        let records = moments.iter().map(|at| denial(Timestamp(*at), "u"));
        assert_eq!(process.deliverer.deliver(&batch(1, records)).await.unwrap(), Delivered::Now);
        // The clock steps back: the months are there.
        assert_eq!(process.deliverer.deliver(&batch(2, [denial(NOON, "u")])).await.unwrap(), Delivered::Now);
    });
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 6);
    let months = "SELECT string_agg(DISTINCT tableoid::regclass::text, ' ') FROM audit_log";
    assert_eq!(
        server.sql(months),
        "audit_log_1970_01 audit_log_2026_03 audit_log_2026_04 audit_log_2100_01 audit_log_2199_12"
    );
}

#[test]
fn a_month_that_was_dropped_meanwhile_is_made_again() {
    let server = Server::start();
    runtime().block_on(async {
        let mut process = Process::of(&server, &node(), &Steps::default());
        process.deliverer.deliver(&batch(1, [denial(NOON, "a")])).await.unwrap();
        server.sql("DROP TABLE audit_log_2026_03");
        // It believes the month to be there; the next attempt knows better.
        assert!(process.deliverer.deliver(&batch(2, [denial(NOON, "b")])).await.is_err());
        assert_eq!(process.deliverer.deliver(&batch(2, [denial(NOON, "b")])).await.unwrap(), Delivered::Now);
    });
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 1);
}

#[test]
fn many_writers_at_once_wait_for_each_other_and_lose_nothing() {
    let server = Server::start();
    runtime().block_on(async {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..4_u64 {
            let database = server.open();
            writers.spawn(async move {
                let name = NodeName { node: format!("eu-{writer}"), ..node() };
                let mut process = Process::with(database, &name, &Steps::default());
                for sequence in 0..10 {
                    let users: Vec<String> =
                        (0..100).map(|user| format!("u{}", (user * 7 + writer) % 100)).collect();
                    let mut batch = batch(sequence, users.iter().map(|user| denial(NOON, user)));
                    batch.node = name.clone();
                    while process.deliverer.deliver(&batch).await.is_err() {}
                    if sequence % 3 == 0 {
                        while process.summer.write(None).await.is_err() {}
                    }
                }
                while process.summer.write(None).await.is_err() {}
            });
        }
        while let Some(done) = writers.join_next().await {
            done.unwrap();
        }
    });
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 4_000);
    assert_eq!(server.sql("SELECT DISTINCT denied FROM usage_day WHERE user_id <> ''"), "40");
}

#[test]
fn a_connection_cut_at_any_moment_leaves_no_double_and_no_loss() {
    let server = Server::start();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (server, stopped) = (&server, Arc::clone(&stop));
        scope.spawn(move || {
            // So many cuts at pauses that never keep step with the batches; then all arrives, however slow
            // the machine.
            for round in 0..25_u64 {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let cut =
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test'";
                let _ = server.postgres.try_sql(&server.database, cut);
                std::thread::sleep(Duration::from_millis(round * 37 % 110 + 5));
            }
        });
        let failures = runtime().block_on(async {
            let mut process = Process::of(server, &node(), &Steps::default());
            let mut failures = 0;
            for sequence in 0..30 {
                let users: Vec<String> = (0..500).map(|user| format!("u{sequence}_{user}")).collect();
                let batch = batch(sequence, users.iter().map(|user| denial(NOON, user)));
                while process.deliverer.deliver(&batch).await.is_err() {
                    failures += 1;
                }
                if sequence % 4 == 0 {
                    while process.summer.write(None).await.is_err() {
                        failures += 1;
                    }
                }
            }
            while process.summer.write(None).await.is_err() {
                failures += 1;
            }
            failures
        });
        stop.store(true, Ordering::Relaxed);
        assert!(failures > 0, "no delivery was ever cut");
    });
    assert_eq!(server.sql("SELECT count(*), count(DISTINCT user_id) FROM audit_log"), "15000|15000");
    assert_eq!(server.number("SELECT denied FROM usage_day WHERE user_id = '' AND path = ''"), 15_000);
}

#[test]
fn what_a_daemon_that_is_gone_owes_the_sums_others_add() {
    let server = Server::start();
    runtime().block_on(async {
        let gone = NodeName { region: "us".to_owned(), node: "us-1".to_owned() };
        for (sequence, name) in [(1, &gone), (2, &node())] {
            let mut batch = batch(sequence, [denial(NOON, "a"), denial(NOON, "a")]);
            batch.node = name.clone();
            Process::of(&server, name, &Steps::default()).deliverer.deliver(&batch).await.unwrap();
        }
        let mut process = Process::of(&server, &node(), &Steps::default());
        process.summer.write(Some(Duration::from_secs(600))).await.unwrap();
        let by_region = "SELECT region, denied FROM usage_hour WHERE user_id = 'a' ORDER BY region";
        assert_eq!(server.sql(by_region), "eu|2", "a daemon that may still be there was not waited for");
        server.sql("UPDATE audit_batches SET at = at - interval '11 minutes'");
        process.summer.write(Some(Duration::from_secs(600))).await.unwrap();
        assert_eq!(server.sql(by_region), "eu|2\nus|2");
    });
}

#[test]
fn two_processes_of_one_name_add_nothing_twice() {
    let server = Server::start();
    runtime().block_on(async {
        let mut processes = [1, 2].map(|_| Process::of(&server, &node(), &Steps::default()));
        for sequence in 0..8_usize {
            let batch = batch(sequence as u64, [denial(NOON, "a")]);
            processes[sequence % 2].deliverer.deliver(&batch).await.unwrap();
            // Each takes the other for a predecessor of its own that died.
            processes[sequence / 2 % 2].summer = Process::of(&server, &node(), &Steps::default()).summer;
            processes[sequence / 2 % 2].summer.write(None).await.unwrap();
        }
        for process in &mut processes {
            process.summer.write(None).await.unwrap();
        }
    });
    assert_eq!(server.sql("SELECT DISTINCT denied FROM usage_minute"), "8");
}
