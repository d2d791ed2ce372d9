//! The whole daemon, from outside: what it records, on good days and bad.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::bucket::Bucket;
use super::records::Server;
use super::support::daemon::Daemon;
use super::support::process::Process;
use super::support::{command, eventually, http};

pub(crate) const RULES: &str = "[[rules]]\nname = \"search\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 2\nwindow = \"1h\"\n\
                     [[rules]]\nname = \"closed\"\nmatch = { path = \"/closed\" }\naction = \"block\"\ngroup = \"b\"";

pub(crate) fn config(server: &Server, spool: &Path, more: &str) -> String {
    let url = server.postgres.url(&server.database);
    let spool = spool.display();
    format!(
        "region = \"eu\"\nnode = \"eu-1\"\n[postgres]\nurl = \"{url}\"\ntimeout = \"2s\"\n[audit]\nspool = \"{spool}\"\n{more}"
    )
}

pub(crate) fn start(server: &Server, spool: &Path, more: &str) -> Daemon {
    Daemon::with(RULES, &config(server, spool, more), &[])
}

pub(crate) fn block(daemon: &Daemon, user: &str) {
    let answer = daemon.check(&[("user", user), ("path", "/closed")]);
    assert_eq!(answer["allowed"], false);
}

pub(crate) fn rows(server: &Server) -> u64 {
    server.number("SELECT count(*) FROM audit_log")
}

pub(crate) fn wait_for_rows(server: &Server, wanted: u64) {
    eventually(&format!("{wanted} rows, there are {}", rows(server)), || {
        (rows(server) >= wanted).then_some(())
    });
    assert_eq!(rows(server), wanted);
}

/// The permission bits of a file or folder.
fn mode(path: &Path) -> u32 {
    PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o777
}

#[test]
fn what_was_decided_is_shown_by_routes_and_commands() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "allowed_sample = 1");
    for path in ["/a", "/b", "/c?q=secret"] {
        daemon.check(&[
            ("user", "u_1"),
            ("path", path),
            ("ip", "203.0.113.9"),
            ("api_key", "sk_secret"),
            ("method", "GET"),
        ]);
    }
    daemon.check(&[("user", "u_2"), ("path", "/a")]);
    wait_for_rows(&server, 4);
    assert_eq!(server.number("SELECT count(*) FROM audit_log WHERE audit_log::text LIKE '%sk_secret%'"), 0);
    assert_eq!(server.number("SELECT count(*) FROM audit_log WHERE audit_log::text LIKE '%q=secret%'"), 0);

    let page: Value = daemon.get("/v1/audit?user=u_1&limit=2").json();
    let decisions = page["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 2);
    let newest = &decisions[0];
    for (field, value) in
        [("outcome", "denied"), ("rule", "search"), ("ip", "203.0.113.9"), ("path", "/c"), ("region", "eu")]
    {
        assert_eq!(newest[field], value, "{newest}");
    }
    assert_eq!(
        (newest["count"].as_u64(), newest["limit"].as_u64(), newest["status"].as_u64()),
        (Some(2), Some(2), Some(429))
    );
    let next = page["next"].as_str().unwrap();
    let rest: Value = daemon.get(&format!("/v1/audit?user=u_1&limit=2&after={next}")).json();
    assert_eq!(rest["decisions"].as_array().unwrap().len(), 1, "{rest}");
    assert_eq!(rest["decisions"][0]["path"], "/a");
    assert!(rest["next"].is_null());
    let denied: Value = daemon.get("/v1/audit?outcome=denied&address=203.0.113.9&rule=search").json();
    assert_eq!(denied["decisions"].as_array().unwrap().len(), 1);

    // Sums follow the rows.
    eventually("everything is in the sums", || {
        let denied = "SELECT coalesce(sum(denied + allowed), 0) FROM usage_day WHERE user_id <> ''";
        (server.number(denied) == 4).then_some(())
    });
    let usage: Value = daemon.get("/v1/usage?user=u_1").json();
    assert_eq!(
        (usage["rows"][0]["allowed"].as_u64(), usage["rows"][0]["denied"].as_u64()),
        (Some(2), Some(1)),
        "{usage}"
    );
    assert!(usage["rows"][0]["latency_us"]["p99"].is_u64(), "{usage}");
    assert_eq!(
        (usage["quotas"][0]["rule"].as_str(), usage["quotas"][0]["remaining"].as_u64()),
        (Some("search"), Some(0))
    );
    let top: Value = daemon.get("/v1/usage?rule=search&group=user&by=day&from=0d").json();
    let users: Vec<&str> =
        top["rows"].as_array().unwrap().iter().map(|row| row["user"].as_str().unwrap()).collect();
    assert_eq!(users, ["u_1", "u_2"], "who was denied, and then who was only admitted: {top}");
    let paths: Value = daemon.get("/v1/usage?group=path&by=minute").json();
    let names: Vec<&str> =
        paths["rows"].as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["/c", "/a", "/b"], "{paths}");

    let shown = daemon.run(&["audit", "--user", "u_1", "--outcome", "denied"]);
    assert!(shown.code == 0 && shown.out.contains("search") && shown.out.contains("429"), "{shown:?}");
    let shown = daemon.run(&["usage", "--user", "u_1"]);
    assert!(shown.code == 0 && shown.out.contains("Left for u_1 now"), "{shown:?}");
    let json = daemon.run(&["usage", "--group", "rule", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json.out).unwrap()["rows"][0]["rule"], "search");
}

#[test]
fn a_decision_is_found_by_the_name_that_a_gateway_gave_the_request() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "allowed_sample = 1");
    let headers = [("x-forwarded-uri", "/a"), ("x-tidegate-user", "u_1"), ("x-request-id", "of-a-proxy")];
    assert_eq!(http::get(daemon.http, "/v1/authorize", &headers).status, 200);
    daemon.check(&[("user", "u_2"), ("path", "/a"), ("request_id", "of-a-descriptor")]);
    daemon.check(&[("user", "u_3"), ("path", "/a")]);
    wait_for_rows(&server, 3);
    for (name, user) in [("of-a-proxy", "u_1"), ("of-a-descriptor", "u_2")] {
        let page = daemon.get(&format!("/v1/audit?request_id={name}")).json();
        let found = page["decisions"].as_array().unwrap();
        assert_eq!(found.len(), 1, "{page}");
        assert_eq!((&found[0]["request_id"], &found[0]["user"]), (&name.into(), &user.into()), "{page}");
        let shown = daemon.run(&["audit", "--request-id", name]);
        assert!(shown.code == 0 && shown.out.contains(user), "{shown:?}");
    }
    let page = daemon.get("/v1/audit?user=u_3").json();
    assert!(page["decisions"][0]["request_id"].is_null(), "{page}");
    let shown = daemon.run(&["audit", "--request-id", "nobody"]);
    assert!(shown.out.contains("No decisions were recorded"), "{shown:?}");
}

#[test]
fn bad_questions_are_refused_by_name() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "");
    for (query, field) in [
        ("audit?limit=0", "limit"),
        ("audit?limit=5000", "limit"),
        ("audit?from=yesterday", "from"),
        ("audit?outcome=perhaps", "outcome"),
        ("audit?address=here", "address"),
        ("audit?after=x", "after"),
        ("audit?colour=red", "colour"),
        ("audit?user=a&user=b", "user"),
        ("usage?by=year", "by"),
        ("usage?group=colour", "group"),
        ("usage?user=a&path=b", "path"),
        ("usage?user=a&group=path", "path"),
    ] {
        let reply = daemon.get(&format!("/v1/{query}"));
        assert_eq!((reply.status, reply.json()["error"]["field"].as_str()), (400, Some(field)), "{query}");
    }
    let strange = daemon.get("/v1/audit?user=a%00b&from=1970-01-01T00:00:00Z&to=9999-12-31T23:59:59Z");
    assert!(strange.status < 500, "{strange:?}");
    assert_eq!(daemon.get("/v1/audit?after=18446744073709551615-4294967295").status, 200);
}

#[test]
fn without_a_database_the_routes_say_so() {
    let daemon = Daemon::with_rules(RULES);
    for route in ["/v1/audit", "/v1/usage"] {
        let reply = daemon.get(route);
        assert_eq!(reply.status, 409);
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains("[postgres]"));
    }
    let shown = daemon.run(&["audit"]);
    assert!(shown.code == 1 && shown.err.contains("no database"), "{shown:?}");
}

#[test]
fn a_daemon_that_is_told_to_stop_delivers_what_it_has() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let mut daemon = start(&server, folder.path(), "");
    (0..50).for_each(|n| block(&daemon, &format!("u_{n}")));
    assert!(daemon.terminate().success());
    assert_eq!(rows(&server), 50);
}

#[test]
fn a_killed_daemon_loses_at_most_its_last_second_and_repeats_nothing() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let mut safe = 0;
    let mut sent = 0;
    for round in 0..4_u64 {
        let mut daemon = start(&server, folder.path(), "");
        let begin = Instant::now();
        let lives = Duration::from_millis(900 + 170 * round);
        while begin.elapsed() < lives {
            block(&daemon, &format!("u_{sent}"));
            sent += 1;
            if begin.elapsed() + Duration::from_millis(900) < lives {
                safe = sent;
            }
        }
        daemon.process.signal("KILL");
        daemon.process.wait(Duration::from_secs(5));
    }
    let mut last = start(&server, folder.path(), "");
    eventually("the spool is empty", || {
        (last.metric("tidegate_audit_spooled_bytes") == Some(0.0)).then_some(())
    });
    assert!(last.terminate().success());
    let found = server.sql("SELECT count(*), count(DISTINCT user_id) FROM audit_log");
    let (all, distinct) = found.split_once('|').unwrap();
    assert_eq!(all, distinct, "some decision is there twice");
    let found: u64 = all.parse().unwrap();
    assert!(found <= sent && found > 0, "{found} of {sent}");
    // Of the last round's safe ones none is missing.
    let missing = (0..safe)
        .rev()
        .take(20)
        .filter(|n| server.number(&format!("SELECT count(*) FROM audit_log WHERE user_id = 'u_{n}'")) == 0);
    assert_eq!(missing.count(), 0);
    assert_eq!(server.number("SELECT sum(denied) FROM usage_day WHERE user_id = '' AND path = ''"), found);
}

#[test]
fn while_the_database_is_away_decisions_wait_in_the_spool() {
    let mut server = Server::start();
    let folder = TempDir::new().unwrap();
    let mut daemon = start(&server, folder.path(), "");
    (0..20).for_each(|n| block(&daemon, &format!("a_{n}")));
    wait_for_rows(&server, 20);
    server.postgres.kill();
    let slowest = (0..200)
        .map(|n| {
            let begin = Instant::now();
            block(&daemon, &format!("b_{n}"));
            begin.elapsed()
        })
        .max()
        .unwrap();
    assert!(slowest < Duration::from_secs(1), "a decision waited {slowest:?} for the database");
    eventually("batches wait", || daemon.metric("tidegate_audit_spooled_bytes").filter(|bytes| *bytes > 0.0));
    assert_eq!(daemon.get("/v1/audit").status, 503);
    // Even the next process knows of them.
    assert!(daemon.terminate().success());
    let daemon = start(&server, folder.path(), "");
    block(&daemon, "c");
    server.postgres.run();
    wait_for_rows(&server, 221);
    assert_eq!(server.number("SELECT count(DISTINCT user_id) FROM audit_log"), 221);
    assert!(daemon.log().contains("deliver"), "{}", daemon.log());
}

#[test]
fn a_database_that_hangs_holds_nothing_up() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "");
    block(&daemon, "a");
    wait_for_rows(&server, 1);
    server.postgres.signal_all("STOP");
    let begin = Instant::now();
    (0..100).for_each(|n| block(&daemon, &format!("b_{n}")));
    let took = begin.elapsed();
    let spooled = eventually("batches wait", || {
        daemon.metric("tidegate_audit_spooled_bytes").filter(|bytes| *bytes > 0.0)
    });
    server.postgres.signal_all("CONT");
    assert!(took < Duration::from_secs(5) && spooled > 0.0, "{took:?}");
    wait_for_rows(&server, 101);
}

#[test]
fn a_spool_that_cannot_be_written_is_no_obstacle_while_the_database_is_there() {
    let mut server = Server::start();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").unwrap();
    let daemon = start(&server, &file, "");
    (0..30).for_each(|n| block(&daemon, &format!("a_{n}")));
    wait_for_rows(&server, 30);
    assert!(daemon.log().contains("cannot be written"), "{}", daemon.log());
    // Without both, what finds no room is counted.
    server.postgres.kill();
    let dropped =
        || daemon.metric("tidegate_audit_dropped_total{reason=\"spool_failed\"}").filter(|rows| *rows > 0.0);
    eventually("drops are counted", || {
        block(&daemon, "b");
        dropped()
    });
}

#[test]
fn a_full_spool_drops_and_counts_and_recovers() {
    let mut server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "spool_max_bytes = 1048576");
    block(&daemon, "a");
    wait_for_rows(&server, 1);
    server.postgres.kill();
    let long = "x".repeat(900);
    let dropped =
        || daemon.metric("tidegate_audit_dropped_total{reason=\"spool_full\"}").filter(|rows| *rows > 0.0);
    eventually("the spool is full", || {
        (0..200).for_each(|_| block(&daemon, &long));
        dropped()
    });
    assert!(daemon.metric("tidegate_audit_spooled_bytes").unwrap() <= 1_048_576.0);
    server.postgres.run();
    eventually("the spool is delivered", || {
        (daemon.metric("tidegate_audit_spooled_bytes") == Some(0.0)).then_some(())
    });
    block(&daemon, "after");
    eventually("records arrive again", || {
        (server.number("SELECT count(*) FROM audit_log WHERE user_id = 'after'") == 1).then_some(())
    });
}

#[test]
fn months_are_archived_by_command() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let archive = folder.path().join("archive");
    let more =
        format!("retain = \"30d\"\nretain_archive = \"36500d\"\narchive = \"file://{}\"", archive.display());
    server.sql("SELECT tidegate_audit_partition('2020-02-10Z')");
    server.sql("INSERT INTO audit_log (at, region, node, domain, outcome, cost, status) SELECT '2020-02-10Z', 'eu', 'n', 'd', 'denied', 1, 429 FROM generate_series(1, 500)");
    std::fs::write(folder.path().join("tidegate.toml"), config(&server, &folder.path().join("spool"), &more))
        .unwrap();
    let run = |arguments: &[&str]| command::run(folder.path(), arguments);
    let dry = run(&["audit", "archive", "--dry-run", "--config", "tidegate.toml"]);
    assert!(dry.code == 0 && dry.out.contains("2020-02") && dry.out.contains("would go to"), "{dry:?}");
    assert!(!archive.exists() && rows(&server) == 500);
    let done = run(&["audit", "archive", "--config", "tidegate.toml"]);
    assert!(done.code == 0 && done.out.contains("500"), "{done:?}");
    let part = archive.join("audit_log/2020-02.parquet");
    assert!(part.exists() && rows(&server) == 0);
    let modes = [mode(&part), mode(part.parent().unwrap()), mode(&archive)];
    assert_eq!(modes, [0o600, 0o700, 0o700], "decisions of other people are nobody else's to read");
    let again = run(&["audit", "archive", "--config", "tidegate.toml"]);
    assert!(again.code == 0 && again.out.contains("No month"), "{again:?}");
}

#[test]
fn months_go_to_a_bucket_just_as_well() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let bucket = Bucket::start();
    server.sql("SELECT tidegate_audit_partition('2020-02-10Z')");
    server.sql("INSERT INTO audit_log (at, region, node, domain, outcome, cost, status) SELECT '2020-02-10Z', 'eu', 'n', 'd', 'denied', 1, 429 FROM generate_series(1, 500)");
    let archive = |endpoint: &str, keeps: &str, arguments: &[&str]| {
        let more =
            format!("retain = \"30d\"\nretain_archive = \"{keeps}\"\narchive = \"s3://logs/tidegate\"");
        let text = config(&server, &folder.path().join("spool"), &more);
        std::fs::write(folder.path().join("tidegate.toml"), text).unwrap();
        let mut command = command::command(folder.path());
        command.args(["audit", "archive", "--config", "tidegate.toml"]).args(arguments);
        command.env("AWS_ENDPOINT", endpoint).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "eu");
        command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let endpoint = format!("http://{}", bucket.address);
    let (code, said) = archive(&endpoint, "36500d", &[]);
    assert!(code == Some(0) && said.contains("s3://logs/tidegate/audit_log/2020-02.parquet"), "{said}");
    let objects = bucket.objects();
    assert_eq!(objects.len(), 1);
    assert!(
        objects[0].0 == "/logs/tidegate/audit_log/2020-02.parquet" && objects[0].1 > 1_000,
        "{objects:?}"
    );
    assert_eq!(rows(&server), 0);
    let (code, said) = archive(&endpoint, "31d", &["--dry-run"]);
    assert!(code == Some(0) && said.contains("would be removed") && said.contains("2020-02"), "{said}");
    assert_eq!(bucket.objects().len(), 1);
    let (code, said) = archive(&endpoint, "31d", &[]);
    assert!(code == Some(0) && said.contains("audit.retain_archive") && said.contains("removed"), "{said}");
    assert_eq!((bucket.objects(), archive(&endpoint, "31d", &[]).1.contains("removed")), (vec![], false));
}

#[test]
fn decisions_are_followed_as_they_are_recorded_each_once() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "");
    block(&daemon, "u_before");
    wait_for_rows(&server, 1);
    let url = format!("http://{}", daemon.http);
    let mut command = command::command(folder.path());
    command.args(["audit", "--follow", "--rule", "closed", "--server", &url]);
    let mut following = Process::start(&mut command, &folder.path().join("followed"));
    let mut number = 0;
    let first = eventually("a decision is shown", || {
        number += 1;
        block(&daemon, &format!("u_{number}"));
        let shown = following.output();
        shown.lines().next().map(str::to_owned)
    });
    assert!(first.contains("blocked") && first.contains("closed") && first.contains("u_"), "{first}");
    let last = format!("u_{number}");
    eventually("the last one is shown", || following.output().contains(&last).then_some(()));
    let shown = following.output();
    assert!(!shown.contains("u_before"), "{shown}");
    let mut lines: Vec<&str> = shown.lines().collect();
    let all = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), all, "{shown}");
    following.signal("INT");
    following.wait(Duration::from_secs(10));
}
