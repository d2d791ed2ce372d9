//! Start, reload, drain: what signals and files do to a running daemon.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
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

/// Calls gRPC health over a Unix socket with this `:authority`, in bytes: client libraries refuse to send
/// some that others send.
fn is_healthy(socket: &Path, authority: &[u8]) -> bool {
    fn frame(kind: u8, flags: u8, stream: u8, body: &[u8]) -> Vec<u8> {
        [&[0, 0, u8::try_from(body.len()).unwrap(), kind, flags, 0, 0, 0, stream], body].concat()
    }
    fn text(value: &[u8]) -> Vec<u8> {
        [&[u8::try_from(value.len()).unwrap()], value].concat()
    }
    let path = text(b"/grpc.health.v1.Health/Check");
    // POST, http, the path, the authority, content-type and te.
    let headers = [
        &[0x83, 0x86, 0x44][..],
        &path,
        &[0x41],
        &text(authority),
        &[0x5f],
        &text(b"application/grpc"),
        &[0x40],
        &text(b"te"),
        &text(b"trailers"),
    ];
    let call = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers.concat()),
        frame(0, 1, 1, &[0; 5]),
    ];
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&call.concat()).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        stream.read_exact(&mut body).unwrap();
        match head[3] {
            // The message: five bytes before it, then the status SERVING.
            0 => return body.ends_with(&[8, 1]),
            3 | 7 => return false,
            _ => {}
        }
    }
}

#[test]
fn unix_sockets_serve_as_well() {
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("http.sock");
    // The later flag is refused, so this daemon is started with its own.
    let mut command = super::support::command::command(folder.path());
    std::fs::write(folder.path().join("rules.toml"), rules(1)).unwrap();
    let grpc = folder.path().join("grpc.sock");
    command.env("TIDEGATE_LISTEN__DRAIN", "0s");
    command.args(["serve", "--rules", "rules.toml", "--grpc", &format!("unix:{}", grpc.display())]);
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
    assert!(is_healthy(&grpc, b"localhost"));
    // Clients of gRPC's C core name the server so.
    assert!(is_healthy(&grpc, b"%2Ftmp%2Fgrpc.sock"));
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn readiness_is_told_apart_from_life() {
    let daemon = Daemon::with_rules(&rules(1));
    assert_eq!(http::get(daemon.http, "/healthz", &[]).status, 200);
    assert_eq!(http::get(daemon.http, "/readyz", &[]).status, 200);
}

/// A pipe whose reader is gone, and a disk that is full, as a daemon's standard error.
fn dead_logs() -> [(&'static str, Stdio); 2] {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    [("reader gone", writer.into()), ("disk full", full.into())]
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing_and_is_counted() {
    for (what, log) in dead_logs() {
        let mut daemon = Daemon::with_log(&rules(3), "", &[], log);
        // A file that is refused is logged; then one that is right must still take force.
        daemon.set_rules("[[rules]]\nname = \"a\"\nlimit = -1\n");
        eventually("the failure is counted", || (failures(&daemon) > 0.0).then_some(()));
        daemon.reload(&rules(5), "per-user", 5);
        assert_eq!(daemon.admitted(ANN, 7), 5, "{what}");
        daemon.set_rules(&rules(6));
        daemon.process.signal("HUP");
        eventually("the limit is six", || (daemon.check_cost(ANN, 0)["limit"] == 6).then_some(()));
        eventually("lost lines are counted", || {
            let lost = daemon.metric("tidegate_log_lines_lost_total{reason=\"unwritten\"}");
            lost.filter(|lines| *lines > 2.0)
        });
        let metrics = daemon.metrics();
        let ends: Vec<&str> =
            metrics.lines().filter(|line| line.starts_with("tidegate_task_ends_total{")).collect();
        assert!(ends.len() > 3 && ends.iter().all(|line| line.ends_with(" 0")), "{what}: {ends:?}");
        assert_eq!(daemon.terminate().code(), Some(0), "{what}");
    }
}

#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut daemon = Daemon::with_log(&rules(3), "", &[], writer.into());
    // Each refusal is a line for every problem, so that the pipe is full soon.
    let bad = "[[rules]]\nname = \"a\"\nlimit = -1\n".repeat(100);
    for round in 0..200 {
        let before = failures(&daemon);
        daemon.set_rules(&format!("# {round}\n{bad}"));
        daemon.process.signal("HUP");
        eventually("the failure is counted", || (failures(&daemon) > before).then_some(()));
        if round >= 20 {
            break;
        }
    }
    daemon.reload(&rules(5), "per-user", 5);
    assert_eq!(daemon.admitted(ANN, 7), 5);
    assert_eq!(daemon.terminate().code(), Some(0));
    drop(reader);
}

#[test]
fn an_unknown_level_is_refused_like_any_other_setting() {
    let folder = tempfile::TempDir::new().unwrap();
    for arguments in [&["serve"][..], &["config", "check"]] {
        for level in ["warning", "verbose", "tidegate=loud"] {
            let mut command = super::support::command::command(folder.path());
            let ran = command.args(arguments).env("TIDEGATE_LOG", level).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stderr);
            let expected =
                ran.status.code() == Some(2) && said.starts_with("TIDEGATE_LOG: there is no level");
            assert!(expected, "{arguments:?} {level}: {said}");
        }
    }
}

#[test]
fn the_usual_rules_file_may_come_later() {
    let folder = tempfile::TempDir::new().unwrap();
    let (http, grpc) = (super::support::free_tcp(), super::support::free_tcp());
    let mut command = super::support::command::command(folder.path());
    command.args(["serve", "--http", &http.to_string(), "--grpc", &grpc.to_string()]);
    let process = super::support::process::Process::start(&mut command, &folder.path().join("daemon.log"));
    let ready = || {
        let probe = format!("GET /readyz HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n\r\n");
        http::raw(http, probe.as_bytes()).filter(|reply| reply.status == 200)
    };
    eventually("it is ready", ready);
    assert!(process.output().contains("there is no rules file"), "{}", process.output());
    let check = || http::post(http, "/v1/check", r#"{"attributes":{"user":"ann"}}"#).json();
    assert_eq!(check()["allowed"], true);
    process.signal("HUP");
    std::fs::write(folder.path().join("rules.toml"), rules(4)).unwrap();
    eventually("the limit is four", || (check()["limit"] == 4).then_some(()));
    let metrics = http::get(http, "/metrics", &[]).body;
    assert!(metrics.contains("tidegate_rule_reload_failures_total 0"), "nothing was refused");
}
