//! Sums are exact whatever part of the decisions has a row.

use std::path::Path;

use tempfile::TempDir;

use super::daemon::{config, rows};
use super::records::Server;
use super::support::daemon::Daemon;
use super::support::eventually;

const RULES: &str = "[[rules]]\nname = \"search\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 1000000\nwindow = \"1h\"";

fn start(server: &Server, spool: &Path, more: &str) -> Daemon {
    Daemon::with(RULES, &config(server, spool, more), &[])
}

/// Admits each of these users so often.
fn admit(daemon: &Daemon, users: u64, times: u64) {
    for n in 0..users * times {
        let user = format!("u_{}", n % users);
        let answer = daemon.check(&[("user", &user), ("path", "/a"), ("api_key", "sk_1")]);
        assert_eq!(answer["allowed"], true, "{answer}");
    }
}

const USERS: &str = "SELECT count(*), min(allowed), max(allowed) FROM usage_day WHERE user_id <> ''";

#[test]
fn every_admitted_decision_is_in_the_sums_and_a_sample_has_rows() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "");
    admit(&daemon, 10, 50);
    eventually("every user has what it was admitted", || (server.sql(USERS) == "10|50|50").then_some(()));
    // By chance: 5 of 500.
    assert!(rows(&server) < 60, "{} rows", rows(&server));
    for (table, of) in [("usage_day", "path = '/a'"), ("usage_key", "true"), ("usage_total", "step = 'day'")]
    {
        let all = format!("SELECT coalesce(sum(allowed), 0) FROM {table} WHERE {of}");
        eventually(&format!("so has {table}"), || (server.number(&all) == 500).then_some(()));
    }
    let latencies = "SELECT sum(n) FROM usage_day, tidegate_counts(latency) WHERE user_id = '' AND path = ''";
    assert_eq!(server.number(latencies), 500, "percentiles are those of all decisions");
    let listed = daemon.get("/v1/usage?rule=search&group=user&by=day&from=0d&limit=3").json();
    let users = listed["rows"].as_array().unwrap().iter();
    let told: Vec<_> = users.map(|row| (row["user"].as_str().unwrap(), row["allowed"].as_u64())).collect();
    assert_eq!(told, [("u_0", Some(50)), ("u_1", Some(50)), ("u_2", Some(50))], "nobody was denied");
    assert_eq!(daemon.metric("tidegate_audit_merged_total").unwrap_or(0.0), 0.0);
}

#[test]
fn where_no_decision_has_a_row_a_daemon_that_ends_leaves_the_whole_sums() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let more = "allowed_sample = 0\ndenied_sample = 0";
    let mut daemon = start(&server, folder.path(), more);
    admit(&daemon, 5, 20);
    assert!(daemon.terminate().success());
    // A daemon that ends waits for PostgreSQL only so long; the next one delivers what is left on its disk.
    let _daemon = start(&server, folder.path(), more);
    eventually("all of it is in the sums", || (server.sql(USERS) == "5|20|20").then_some(()));
    assert_eq!(rows(&server), 0);
}

#[test]
fn sums_wait_in_the_spool_while_the_database_is_away_and_arrive_once() {
    let mut server = Server::start();
    let folder = TempDir::new().unwrap();
    let mut daemon = start(&server, folder.path(), "allowed_sample = 0");
    admit(&daemon, 5, 10);
    eventually("the first are there", || (server.sql(USERS) == "5|10|10").then_some(()));
    server.postgres.kill();
    admit(&daemon, 5, 10);
    assert!(daemon.terminate().success());
    server.postgres.run();
    let _daemon = start(&server, folder.path(), "allowed_sample = 0");
    eventually("and the others once", || (server.sql(USERS) == "5|20|20").then_some(()));
}
