//! PostgreSQL is away, or not well: the daemon goes on, says so, and takes up again.

use std::time::{Duration, Instant};

use super::rules::{Place, insert, limit, rule, send, wait_for};
use super::support::command;
use super::support::daemon::Daemon;
use super::support::eventually;
use super::support::postgres::Postgres;
use super::support::rls;

fn status(daemon: &Daemon) -> serde_json::Value {
    daemon.get("/readyz").json()["rules"].clone()
}

#[test]
fn a_daemon_starts_from_what_it_saved_and_follows_again_when_the_database_is_back() {
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let saved = tempfile::tempdir().unwrap();
    let path = saved.path().join("rules.json");
    let config = place.config().replace("[postgres]", &format!("saved = {path:?}\n[postgres]"));
    let first = Daemon::with("", &config, &[]);
    eventually("the rules are saved", || path.exists().then_some(()));
    drop(first);

    place.server.kill();
    let daemon = Daemon::with("", &config, &[]);
    assert_eq!((&status(&daemon)["from"], &status(&daemon)["reachable"]), (&"saved".into(), &false.into()));
    // Anybody may ask for that: which server, and neither its database nor who asks it.
    let problem = status(&daemon)["problem"].as_str().unwrap().to_owned();
    let server = format!("127.0.0.1:{} does not answer", place.server.port());
    assert!(problem.contains(&server) && !problem.contains(&place.database), "{problem}");
    assert!(daemon.log().contains("starting from the rules that were saved"), "{}", daemon.log());
    let doctor = daemon.run(&["doctor"]);
    assert!(doctor.code == 1 && doctor.out.contains("PostgreSQL is away: "), "{doctor:?}");
    assert_eq!(daemon.admitted(&[("user", "u")], 5), 3);
    let put = send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 4));
    assert!(put.status == 503 && put.body.contains("does not answer"), "{put:?}");
    assert!(!put.body.contains("30s"), "the deadline is another: {put:?}");

    place.server.run();
    place.sql("UPDATE rules SET document = document || '{\"limit\": 9}'");
    wait_for(&daemon, "r", Some(9));
    // A set is in force a moment before the look that brought it is over.
    eventually("it says so", || (status(&daemon)["reachable"] == true).then_some(()));
    assert_eq!(daemon.metric("tidegate_rules_source_up"), Some(1.0));
}

#[test]
fn a_promoted_standby_that_lost_the_last_change_is_followed_before_its_first_checkpoint() {
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    place.server.stop();
    place.server.copy();
    place.server.run();
    let daemon = place.daemon();
    wait_for(&daemon, "r", Some(3));
    place.sql("UPDATE rules SET document = document || '{\"limit\": 4}'");
    wait_for(&daemon, "r", Some(4));
    let lost = daemon.get("/v1/rules").json()["revision"].clone();
    place.server.kill();
    place.server.promote();
    // A change that gets the number of the lost one.
    place.sql("UPDATE rules SET document = document || '{\"limit\": 7}'");
    wait_for(&daemon, "r", Some(7));
    assert_eq!(daemon.get("/v1/rules").json()["revision"], lost);
    let put = send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 8));
    assert_eq!(put.status, 200, "{put:?}");
    wait_for(&daemon, "r", Some(8));
}

#[test]
fn a_schema_that_forbids_a_running_daemon_is_noticed_and_nothing_is_written_any_more() {
    let place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let daemon = place.daemon();
    wait_for(&daemon, "r", Some(3));
    place.sql("UPDATE schema_compatibility SET oldest_version = 9999");
    eventually("it says so", || {
        let problem = status(&daemon)["problem"].as_str().unwrap_or_default().to_owned();
        problem.contains("9999").then_some(())
    });
    let put = send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 4));
    assert!(put.status == 503 && put.body.contains("upgrade this daemon"), "{put:?}");
    let block = send(&daemon, "POST", "/v1/users/u/block", &[], &serde_json::json!({}));
    assert!(block.status == 503 && block.body.contains("upgrade this daemon"), "{block:?}");
    assert_eq!(daemon.admitted(&[("user", "u")], 5), 3, "the rules in force stay");
    place.sql("UPDATE schema_compatibility SET oldest_version = 1");
    eventually("it goes on", || {
        (send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 4)).status == 200).then_some(())
    });
}

#[test]
fn what_is_asked_of_a_database_that_hangs_is_refused_soon_by_every_route() {
    let place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    // Two thirds of a minute would be waited without the look.
    let config = place.config().replace("timeout = \"2s\"", "timeout = \"40s\"");
    let daemon = Daemon::with("", &config, &[]);
    wait_for(&daemon, "r", Some(3));
    let (nothing, empty) = (serde_json::Value::Null, serde_json::json!({}));
    let (limited, back) = (rule("r", 4), serde_json::json!({ "revision": 1 }));
    let routes = [
        ("PUT", "/v1/rules/r", &limited),
        ("DELETE", "/v1/rules/r", &nothing),
        ("POST", "/v1/rules/rollback", &back),
        ("GET", "/v1/rules/history", &nothing),
        ("GET", "/v1/users/u", &nothing),
        ("GET", "/v1/users", &nothing),
        ("GET", "/v1/keys", &nothing),
        ("GET", "/v1/tiers", &nothing),
        ("GET", "/v1/changes", &nothing),
        ("POST", "/v1/users/u/block", &empty),
    ];
    // Each is the first one that is asked, a moment after the database answered.
    for first in 0..routes.len() {
        eventually("the database answers", || {
            (send(&daemon, "GET", "/v1/users", &[], &nothing).status == 200).then_some(())
        });
        place.server.signal_all("STOP");
        for (method, path, body) in routes.iter().cycle().skip(first).take(2) {
            let begun = Instant::now();
            let answer = send(&daemon, method, path, &[], body);
            let took = begun.elapsed();
            assert_eq!(answer.status, 503, "{method} {path}: {answer:?}");
            assert!(took < Duration::from_secs(3), "{method} {path} took {took:?}");
        }
        place.server.signal_all("CONT");
    }
}

#[test]
fn another_change_by_the_number_of_the_one_in_force_is_taken() {
    let place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let daemon = place.daemon();
    wait_for(&daemon, "r", Some(3));
    // As where neither its timeline nor its number says that a server has lost the last change.
    place.sql(
        "ALTER TABLE rules DISABLE TRIGGER USER; UPDATE rules SET document = document || '{\"limit\": 5}'; \
         ALTER TABLE rules ENABLE TRIGGER USER; UPDATE rule_revisions SET at = at + interval '1 second'",
    );
    wait_for(&daemon, "r", Some(5));
    assert!(daemon.log().contains("another set of rules by the revision in force"), "{}", daemon.log());
}

#[test]
fn a_daemon_whose_log_nobody_reads_follows_rules_and_people() {
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut daemon = Daemon::with_log("", &place.config(), &[], writer.into());
    wait_for(&daemon, "r", Some(3));
    let follows = |place: &Place, daemon: &Daemon, limit: u64, user: &str| {
        place.sql(&format!("UPDATE rules SET document = document || '{{\"limit\": {limit}}}'"));
        wait_for(daemon, "r", Some(limit));
        place.sql(&format!("INSERT INTO users (id, blocked_at) VALUES ('{user}', now())"));
        eventually("the block", || (daemon.check(&[("user", user)])["rule"] == "user_blocked").then_some(()));
    };
    follows(&place, &daemon, 9, "mallory");
    // What is refused would be logged as well.
    place.sql("INSERT INTO rules (document) VALUES ('{\"name\": \"wrong\", \"limit\": 1}')");
    eventually("it is refused", || daemon.metric("tidegate_rules_refused").filter(|refused| *refused > 0.0));
    place.sql("DELETE FROM rules WHERE document->>'name' = 'wrong'");
    // So would be that the database is away.
    place.server.kill();
    eventually("it is away", || (daemon.metric("tidegate_rules_source_up") == Some(0.0)).then_some(()));
    place.server.run();
    follows(&place, &daemon, 11, "oscar");
    assert_eq!(daemon.admitted(&[("user", "ann")], 13), 11);
    assert!(daemon.metric("tidegate_log_lines_lost_total{reason=\"unwritten\"}") > Some(0.0));
    let metrics = daemon.metrics();
    let ended: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("tidegate_task_ends_total{") && !line.ends_with(" 0"))
        .collect();
    assert_eq!(ended, [""; 0]);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_database_that_dies_under_load_changes_no_decision() {
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 1_000_000)));
    let daemon = place.daemon();
    let slowest = |checks: usize| {
        let one = |_| {
            let begin = Instant::now();
            assert_eq!(daemon.check(&[("user", "u")])["allowed"], true);
            begin.elapsed()
        };
        (0..checks).map(one).max().unwrap()
    };
    slowest(50);
    place.server.kill();
    assert!(slowest(300) < Duration::from_secs(1));
    eventually("the daemon says so", || (status(&daemon)["reachable"] == false).then_some(()));
    place.server.run();
    place.server.signal_all("STOP");
    assert!(slowest(300) < Duration::from_secs(1));
    place.server.signal_all("CONT");
    place.sql("UPDATE rules SET document = document || '{\"limit\": 7}'");
    wait_for(&daemon, "r", Some(7));
}

#[test]
fn without_any_rules_a_daemon_is_not_ready_until_there_are() {
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    place.server.stop();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tidegate.toml"), place.config()).unwrap();
    let (http, grpc) = (super::support::free_tcp(), super::support::free_tcp());
    let mut command = command::command(folder.path());
    command.args([
        "serve",
        "--config",
        "tidegate.toml",
        "--http",
        &http.to_string(),
        "--grpc",
        &grpc.to_string(),
    ]);
    let process = super::support::process::Process::start(&mut command, &folder.path().join("daemon.log"));
    let ready = || {
        let probe = format!("GET /readyz HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n\r\n");
        super::support::http::raw(http, probe.as_bytes())
    };
    let waiting = eventually("it answers", ready);
    assert_eq!((waiting.status, &waiting.json()["state"]), (503, &"starting".into()), "{waiting:?}");
    // No decision is made up meanwhile.
    let check = super::support::http::post(http, "/v1/check", r#"{"attributes":{"user":"u"}}"#);
    assert!(check.status == 503 && check.body.contains("not_ready"), "{check:?}");
    let authorize = super::support::http::get(http, "/v1/authorize", &[("x-tidegate-user", "u")]);
    assert_eq!(authorize.status, 503, "{authorize:?}");
    // A gateway takes UNAVAILABLE for "nobody decided", and does what its own setting says.
    let gateway = rls::Client::connect(grpc);
    let asked = || rls::request(vec![rls::descriptor(&[("user", "u")])]);
    assert_eq!(gateway.refusal(asked()), tonic::Code::Unavailable);
    place.server.run();
    eventually("it is ready", || (ready()?.status == 200).then_some(()));
    let check = super::support::http::post(http, "/v1/check", r#"{"attributes":{"user":"u"}}"#);
    assert_eq!(check.status, 200, "{check:?}");
    assert_eq!(gateway.refusal(asked()), tonic::Code::Ok);
    drop(process);
}

#[test]
fn a_set_that_the_disk_refused_is_saved_once_it_takes_it() {
    let place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later/rules.json");
    let config = place.config().replace("[postgres]", &format!("saved = {path:?}\n[postgres]"));
    let daemon = Daemon::with("", &config, &[]);
    eventually("it is said", || status(&daemon)["unsaved"].is_string().then_some(()));
    assert_eq!(daemon.metric("tidegate_rules_unsaved"), Some(1.0));
    let doctor = daemon.run(&["doctor"]);
    assert!(doctor.code == 1 && doctor.out.contains("are not saved"), "{doctor:?}");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    eventually("it is saved", || path.exists().then_some(()));
    eventually("that is said too", || (daemon.metric("tidegate_rules_unsaved") == Some(0.0)).then_some(()));
    assert!(status(&daemon)["unsaved"].is_null());
}

#[test]
fn each_bad_day_has_its_sentence() {
    let place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let daemon = place.daemon();
    let name = &place.database;
    let put = |limit| send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", limit));
    let refused = |what: &str, limit: u32| {
        let reply = put(limit);
        assert!(reply.status == 503 && reply.body.contains(what), "{what}: {reply:?}");
        assert_eq!(daemon.check(&[("user", "x"), ("n", what)])["allowed"], true);
    };
    // Read only: connections made from now on are.
    place.sql(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on"));
    place.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()");
    eventually("the pool has connected anew", || (put(4).status == 503).then_some(()));
    refused("is read only", 4);
    place.server.sql("postgres", &format!("ALTER DATABASE {name} RESET default_transaction_read_only"));
    place.server.sql(
        "postgres",
        &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"),
    );
    eventually("changes are taken again", || (put(5).status == 200).then_some(()));

    // Slow: somebody holds the lock that a change needs.
    let locker = std::thread::scope(|scope| {
        let lock =
            scope.spawn(|| place.sql("BEGIN; SELECT FROM rules_head FOR UPDATE; SELECT pg_sleep(4); COMMIT"));
        std::thread::sleep(Duration::from_millis(500));
        let begin = Instant::now();
        let reply = put(6);
        assert!(reply.status == 503 && begin.elapsed() < Duration::from_secs(4), "{reply:?}");
        assert_eq!(daemon.check(&[("user", "y")])["allowed"], true);
        lock.join().unwrap()
    });
    drop(locker);

    // A newer schema that this build cannot work with.
    place.sql("UPDATE schema_compatibility SET oldest_version = 9000");
    place.server.sql(
        "postgres",
        &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"),
    );
    let fresh = tempfile::tempdir().unwrap();
    let config = place.config().replace(
        "[postgres]",
        &format!("saved = {:?}\n[postgres]", daemon.folder().join("rules.saved.json")),
    );
    drop(fresh);
    let newer = Daemon::with("", &config, &[]);
    assert!(status(&newer)["problem"].as_str().unwrap().contains("newer tidegate"), "{}", status(&newer));
    assert_eq!(limit(&newer, "r"), Some(5));
}

#[test]
fn a_server_in_recovery_gives_rules_and_takes_no_changes() {
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    place.server.stop();
    std::fs::write(place.server.data().join("standby.signal"), "").unwrap();
    place.server.run();
    let daemon = place.daemon();
    assert_eq!((limit(&daemon, "r"), &status(&daemon)["from"]), (Some(3), &"database".into()));
    let put = send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 4));
    assert!(put.status == 503 && put.body.contains("read only"), "{put:?}");
}

#[test]
fn a_full_disk_refuses_the_change_and_nothing_else() {
    let server = Postgres::start();
    let database = server.migrated(command::TIDEGATE);
    let place = Place { server, database };
    place.sql(&insert(&rule("r", 3)));
    // What a full disk makes of a write, without filling this one.
    place.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$; \
         CREATE TRIGGER full_disk BEFORE UPDATE ON rules FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    let daemon = place.daemon();
    let put = send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 4));
    assert!(put.status == 503 && put.body.contains("No space left"), "{put:?}");
    assert_eq!((limit(&daemon, "r"), daemon.admitted(&[("user", "u")], 5)), (Some(3), 3));
}
