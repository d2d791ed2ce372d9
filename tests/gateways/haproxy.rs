//! Debian's HAProxy with `deploy/haproxy`, which asks by HAProxy's own HTTP client.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use super::support::daemon::Daemon;
use super::support::process::Process;
use super::support::{free_tcp, http, origin};
use super::{Gateway, every, program, replaced};

fn start(daemons: &[SocketAddr]) -> Gateway {
    start_with(daemons, |config| config)
}

pub(super) fn start_with(daemons: &[SocketAddr], change: impl Fn(String) -> String) -> Gateway {
    let folder = TempDir::new().unwrap();
    let (addr, service) = (free_tcp(), origin::start());
    // Abstract sockets have no folder: one name for each test.
    let asked = format!("abns@tidegate-{}", addr.port());
    let script = replaced(include_str!("../../deploy/haproxy/tidegate.lua"), "abns@tidegate", &asked);
    std::fs::write(folder.path().join("tidegate.lua"), script).unwrap();
    let config = include_str!("../../deploy/haproxy/haproxy.cfg");
    let config = replaced(config, "bind abns@tidegate", &format!("bind {asked}"));
    let script = folder.path().join("tidegate.lua").display().to_string();
    let config = replaced(&config, "/etc/haproxy/tidegate.lua", &script);
    let config = replaced(&config, "bind 127.0.0.1:8088", &format!("bind {addr}"));
    let config = replaced(&config, "server service 127.0.0.1:8000", &format!("server service {service}"));
    let servers: String =
        daemons.iter().enumerate().map(|(place, at)| format!("    server d{place} {at}\n")).collect();
    let config = replaced(&config, "    server one 127.0.0.1:8080\n", &servers);
    let file = folder.path().join("haproxy.cfg");
    std::fs::write(&file, change(config)).unwrap();
    let mut command = program("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    let process = Process::start(&mut command, &folder.path().join("haproxy.log"));
    Gateway::serving(addr, process, folder)
}

#[test]
fn haproxy_passes_a_hundred_and_answers_the_next_with_429() {
    every::passes_what_is_left_and_says_when_to_come_back(start);
}

#[test]
fn nothing_that_a_client_chooses_makes_haproxy_pass_a_request() {
    every::holds_whatever_a_client_sends(start);
    let daemon = Daemon::with_rules(every::RULES);
    let front = start(&[daemon.http]);
    front.statuses("k", "/api/x", 4);
    // HAProxy's client takes so many headers and bytes. Neither ends the process nor lets a request pass.
    for hops in [50, 90, 95, 97, 98] {
        let hops = "x-forwarded-for: 203.0.113.1\r\n".repeat(hops);
        let status = front.raw(b"/api/x", format!("{hops}x-api-key: k").as_bytes());
        assert!([429, 400].contains(&status), "{status} to many hops");
    }
    for length in [13_000, 13_800, 14_000, 14_500, 15_000, 15_200, 15_300, 15_400, 16_000] {
        let long = "a".repeat(length);
        let status = front.raw(format!("/api/{long}").as_bytes(), b"x-api-key: k");
        assert!([429, 431, 400].contains(&status), "{status} to a path of {length} bytes");
        let header = format!("x-api-key: k\r\nauthorization: {long}");
        let status = front.raw(b"/api/x", header.as_bytes());
        assert!([429, 431, 400].contains(&status), "{status} to a header of {length} bytes");
    }
    assert_eq!(front.statuses("k", "/api/x", 1), [429], "it still runs");
}

#[test]
fn every_spelling_of_a_path_and_a_host_is_held_at_haproxy() {
    every::holds_every_spelling(start);
}

#[test]
fn what_names_no_host_or_path_passes_no_rule_by_at_haproxy() {
    let daemon = Daemon::with_rules(every::RULES);
    let front = start(&[daemon.http]);
    for head in [
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.0\r\n",
        "GET / HTTP/1.1\r\nhost:\r\n",
        "GET http://admin.example.com/ HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nhost: x@admin.example.com\r\n",
        "GET / HTTP/1.1\r\nhost: admin.example.com, x\r\n",
        "GET / HTTP/1.1\r\nhost: %61dmin.example.com\r\n",
        // No path that a rule for `/*` meets.
        "GET * HTTP/1.1\r\nhost: x\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: x\r\n",
        "GET x:80 HTTP/1.1\r\nhost: x\r\n",
    ] {
        let head = format!("{head}connection: close\r\n\r\n");
        assert_eq!(http::raw(front.addr, head.as_bytes()).unwrap().status, 400, "{head}");
    }
    assert_eq!(front.statuses("k", "/api/x", 1), [200]);
}

#[test]
fn connections_that_take_every_place_of_haproxys_pass_nobody() {
    let daemon = Daemon::with_rules(every::RULES);
    // As shipped, clients leave more than half of all places to questions; in the second file they leave
    // none.
    for (of_all, of_clients) in [("maxconn 100", "maxconn 40"), ("maxconn 50", "maxconn 50")] {
        let front = start_with(&[daemon.http], |config| {
            replaced(&replaced(&config, "maxconn 9000", of_all), "maxconn 4000", of_clients)
        });
        let connect = |_| TcpStream::connect_timeout(&front.addr, Duration::from_secs(2)).ok();
        let (mut ask, mut keep): (Vec<TcpStream>, Vec<TcpStream>) =
            ((0..20).filter_map(connect).collect(), (0..40).filter_map(connect).collect());
        for socket in &mut keep {
            let _ = socket.write_all(b"GET /other HTTP/1.1\r\nhost: x\r\n");
        }
        for socket in &mut ask {
            let _ = socket.write_all(b"GET /closed HTTP/1.1\r\nhost: x\r\n\r\n");
        }
        let mut denied = 0;
        for socket in &mut ask {
            let _ = socket.set_read_timeout(Some(Duration::from_secs(40)));
            let mut answer = [0; 64];
            let read = socket.read(&mut answer).unwrap_or_default();
            let answer = String::from_utf8_lossy(&answer[..read]);
            assert!(!answer.starts_with("HTTP/1.1 200"), "{of_all}, {of_clients}: {answer}");
            denied += usize::from(answer.starts_with("HTTP/1.1 403"));
        }
        assert!(denied == 20 || of_clients == of_all, "{denied} of 20 were denied");
    }
}

#[test]
fn a_target_of_any_scheme_is_held_to_its_path_at_haproxy() {
    let daemon = Daemon::with_rules(every::RULES);
    let front = start(&[daemon.http]);
    for scheme in ["http", "ftp", "ws", "x-y"] {
        let head = format!("GET {scheme}://x/closed HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        assert_eq!(http::raw(front.addr, head.as_bytes()).unwrap().status, 403, "{head}");
    }
}

#[test]
fn a_client_cannot_speak_for_haproxy() {
    every::believes_no_client(start);
}

#[test]
fn without_tidegate_haproxy_passes_or_refuses_as_its_file_says() {
    let mut daemon = Daemon::with_rules(every::RULES);
    let passing = start(&[daemon.http]);
    let refusing =
        start_with(&[daemon.http], |config| replaced(&config, "-m str passed absent }", "-m str passed }"));
    let failed = passing.get("key-a", "/fail");
    assert_eq!((failed.status, failed.body.as_str()), (500, "served /fail\n"), "the service's own failure");
    assert_eq!(daemon.terminate().code(), Some(0));
    assert_eq!(passing.statuses("key-a", "/api/x", 5), [200; 5]);
    assert_eq!(refusing.statuses("key-a", "/api/x", 5), [503; 5]);
}

#[test]
fn a_script_that_fails_lets_no_request_pass() {
    let daemon = Daemon::with_rules(every::RULES);
    let mut front = start(&[daemon.http]);
    let script = front.folder.path().join("tidegate.lua");
    let text = std::fs::read_to_string(&script).unwrap();
    std::fs::write(&script, replaced(&text, "txn.f:url()", "no_such_function()")).unwrap();
    let mut command = program("haproxy");
    command.arg("-db").arg("-f").arg(front.folder.path().join("haproxy.cfg"));
    front.process.signal("TERM");
    front.process.wait(Duration::from_secs(20));
    front.process = Process::start(&mut command, &front.folder.path().join("haproxy.log"));
    super::support::eventually("HAProxy serves again", || TcpStream::connect(front.addr).ok().map(drop));
    assert_eq!(front.statuses("key-a", "/api/x", 2), [503; 2]);
}

#[test]
fn client_and_service_learn_from_haproxy_what_tidegate_says() {
    every::tells_what_tidegate_says(start, true);
}

#[test]
fn client_and_service_learn_from_haproxy_what_to_use_instead() {
    every::tells_what_to_use_instead(start);
}

#[test]
fn a_rolling_restart_behind_haproxy_loses_no_request() {
    every::loses_nothing_in_a_rolling_restart(start);
}

#[test]
fn whoever_asks_is_counted_at_haproxy() {
    every::counts_whoever_asks(start);
}

#[test]
fn a_client_without_a_key_is_held_at_haproxy_by_the_rules_of_the_page() {
    every::holds_whoever_shows_no_key(
        start,
        include_str!("../../docs/tasks/limit-an-api-behind-haproxy.md"),
        include_str!("../../deploy/haproxy/haproxy.cfg"),
    );
}
