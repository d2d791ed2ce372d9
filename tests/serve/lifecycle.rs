//! Start, reload, drain: what signals and files do to a running daemon.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::{SOON, eventually, http};

const ANN: &[(&str, &str)] = &[("user", "ann")];

fn rules(limit: u32) -> String {
    format!(
        "[[rules]]\nname = \"per-user\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = {limit}\nwindow = \"24h\"\n"
    )
}

fn failures(daemon: &Daemon) -> f64 {
    daemon.metric("tidegate_rule_reload_failures_total").unwrap_or_default()
}

#[test]
fn a_changed_file_takes_force_by_itself_and_buckets_survive() {
    let daemon = Daemon::with_rules(&rules(3));
    assert_eq!(daemon.admitted(ANN, 5), 3);
    daemon.reload(&rules(5), "per-user", 5);
    assert_eq!(daemon.admitted(ANN, 5), 2, "three of five were used before");
    daemon.reload(&rules(4), "per-user", 4);
    assert_eq!(daemon.admitted(ANN, 3), 0);
}

#[test]
fn sighup_reads_the_rules_again() {
    let daemon = Daemon::with_rules(&rules(1));
    daemon.set_rules(&rules(7));
    daemon.process.signal("HUP");
    eventually("the limit is seven", || (daemon.check_cost(ANN, 0)["limit"] == 7).then_some(()));
}

#[test]
fn a_bad_file_is_refused_with_every_problem_and_the_old_set_serves() {
    let daemon = Daemon::with_rules(&rules(3));
    let before = daemon.get("/v1/rules").json();
    assert_eq!(daemon.admitted(ANN, 1), 1);
    let bad = "[[rules]]\nname = \"a\"\nlimit = -1\nwindow = \"1m\"\nalgorithm = \"fixed_window\"\n\n\
               [[rules]]\nname = \"b\"\nlimit = 1\nwindow = \"soon\"\nalgorithm = \"leaking_bucket\"\n";
    daemon.set_rules(bad);
    daemon.process.signal("HUP");
    eventually("the failure is counted", || (failures(&daemon) > 0.0).then_some(()));
    let log = daemon.log();
    for place in ["rules.toml:3:", "rules.toml:10:", "rules.toml:11:"] {
        assert!(log.contains(place), "{place} is not in:\n{log}");
    }
    assert_eq!(daemon.get("/v1/rules").json(), before);
    assert_eq!(daemon.check(ANN)["remaining"], 1, "the old set and its buckets are as they were");
    daemon.reload(&rules(9), "per-user", 9);
    assert_eq!(daemon.check(ANN)["remaining"], 6);
}

#[test]
fn a_file_that_is_gone_for_a_moment_changes_nothing() {
    let daemon = Daemon::with_rules(&rules(3));
    std::fs::remove_file(daemon.folder().join("rules.toml")).unwrap();
    daemon.process.signal("HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(daemon.check(ANN)["limit"], 3);
    daemon.reload(&rules(4), "per-user", 4);
}

#[test]
fn reloads_under_load_lose_no_request_and_admit_no_more_than_the_limit() {
    let daemon = Daemon::with_rules(&rules(200));
    let admitted = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| daemon.admitted(ANN, 100))).collect();
        for _ in 0..5 {
            daemon.set_rules(&rules(200));
            daemon.process.signal("HUP");
            std::thread::sleep(Duration::from_millis(30));
        }
        asking.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(admitted, 200);
}

#[test]
fn sigterm_drains_and_exits_zero_within_ten_seconds() {
    let mut daemon = Daemon::with_rules(&rules(3));
    let client = daemon.rls();
    assert!(client.health("").is_ok());
    // An idle connection, as every gateway keeps some, must not hold it up.
    let mut idle = TcpStream::connect(daemon.http).unwrap();
    idle.set_read_timeout(Some(SOON)).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert!(idle.read(&mut [0; 512]).unwrap() > 0);
    let begin = Instant::now();
    let status = daemon.terminate();
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert!(TcpStream::connect(daemon.http).is_err(), "nothing listens any more");
}

#[test]
fn a_request_that_is_on_its_way_is_finished_while_draining() {
    let mut daemon = Daemon::with_rules(&rules(3));
    let body = json!({ "attributes": { "user": "ann" } }).to_string();
    let mut slow = TcpStream::connect(daemon.http).unwrap();
    slow.set_read_timeout(Some(SOON)).unwrap();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    slow.write_all(head.as_bytes()).unwrap();
    slow.write_all(&body.as_bytes()[..10]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    daemon.process.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    slow.write_all(&body.as_bytes()[10..]).unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"allowed\":true"), "{answer}");
    assert_eq!(daemon.process.wait(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn a_client_that_never_finishes_does_not_hold_it_up_for_ever() {
    let mut daemon = Daemon::with_rules(&rules(3));
    let mut stuck = TcpStream::connect(daemon.http).unwrap();
    stuck.write_all(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.log());
}

#[test]
fn many_connections_at_once_are_answered() {
    let daemon = Daemon::with_rules(&rules(1_000));
    let admitted: usize = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..32).map(|_| scope.spawn(|| daemon.admitted(ANN, 10))).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 320);
    assert_eq!(daemon.check_cost(ANN, 0)["remaining"], 680, "each was counted once");
}

#[test]
fn keep_alive_and_pipelined_requests_are_answered_in_order() {
    let daemon = Daemon::with_rules(&rules(2));
    let body = json!({ "attributes": { "user": "ann" } }).to_string();
    let one = format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let last = one.replace("host: x", "host: x\r\nconnection: close");
    let mut socket = TcpStream::connect(daemon.http).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.write_all([one.as_str(), one.as_str(), last.as_str()].concat().as_bytes()).unwrap();
    let mut answers = String::new();
    socket.read_to_string(&mut answers).unwrap();
    let allowed: Vec<bool> = answers
        .split("HTTP/1.1 ")
        .filter_map(|part| part.split_once("\r\n\r\n"))
        .map(|(_, body)| serde_json::from_str::<Value>(body).unwrap()["allowed"] == true)
        .collect();
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn unix_sockets_serve_as_well() {
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("http.sock");
    // The later flag is refused, so this daemon is started with its own.
    let mut command = super::support::command::command(folder.path());
    std::fs::write(folder.path().join("rules.toml"), rules(1)).unwrap();
    let grpc = super::support::free_tcp();
    command.args(["serve", "--rules", "rules.toml", "--grpc", &grpc.to_string()]);
    command.args(["--http", &format!("unix:{}", socket.display())]);
    let mut process =
        super::support::process::Process::start(&mut command, &folder.path().join("daemon.log"));
    let answer = eventually("the socket answers", || {
        assert!(process.ended().is_none(), "{}", process.output());
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).ok()?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    });
    assert!(!answer.is_empty());
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn readiness_is_told_apart_from_life() {
    let daemon = Daemon::with_rules(&rules(1));
    assert_eq!(http::get(daemon.http, "/healthz", &[]).status, 200);
    assert_eq!(http::get(daemon.http, "/readyz", &[]).status, 200);
}
