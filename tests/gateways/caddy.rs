//! Debian's Caddy with `deploy/caddy`, which asks by `reverse_proxy`, as `forward_auth` does.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::TempDir;

use super::support::daemon::Daemon;
use super::support::process::Process;
use super::support::{free_tcp, http, origin};
use super::{Gateway, every, program, replaced};

fn start(daemons: &[SocketAddr]) -> Gateway {
    start_with(daemons, |config| config)
}

/// On a busy machine an answer may take longer than users would wait for it.
pub(super) fn start_with(daemons: &[SocketAddr], change: impl Fn(String) -> String) -> Gateway {
    start_as_shipped(daemons, |config| {
        change(replaced(&config, "response_header_timeout 250ms", "response_header_timeout 5s"))
    })
}

/// Waits for an answer as long as the file of `deploy` has it.
pub(super) fn start_as_shipped(daemons: &[SocketAddr], change: impl Fn(String) -> String) -> Gateway {
    let folder = TempDir::new().unwrap();
    let (addr, service) = (free_tcp(), origin::start());
    let config = include_str!("../../deploy/caddy/Caddyfile");
    let config = replaced(config, "\n:8088 {\n", &format!("\n:{} {{\n\tbind 127.0.0.1\n", addr.port()));
    let config = replaced(&config, "reverse_proxy 127.0.0.1:8000\n", &format!("reverse_proxy {service}\n"));
    let asked: Vec<String> = daemons.iter().map(ToString::to_string).collect();
    let asks = format!("reverse_proxy {} {{", asked.join(" "));
    let config = replaced(&config, "reverse_proxy 127.0.0.1:8080 {", &asks);
    let file = folder.path().join("Caddyfile");
    std::fs::write(&file, format!("{{\n\tadmin off\n}}\n{}", change(config))).unwrap();
    let mut command = program("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&file);
    for variable in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
        command.env(variable, folder.path());
    }
    let process = Process::start(&mut command, &folder.path().join("caddy.log"));
    Gateway::serving(addr, process, folder)
}

#[test]
fn caddy_passes_a_hundred_and_answers_the_next_with_429() {
    every::passes_what_is_left_and_says_when_to_come_back(start);
}

#[test]
fn nothing_that_a_client_chooses_makes_caddy_pass_a_request() {
    every::holds_whatever_a_client_sends(start);
    let daemon = Daemon::with_rules(every::RULES);
    let front = start(&[daemon.http]);
    front.statuses("k", "/api/x", 4);
    for length in [8_000, 16_000, 60_000, 66_000, 300_000, 1_200_000] {
        let long = "a".repeat(length);
        let status = front.raw(format!("/api/{long}").as_bytes(), b"x-api-key: k");
        assert!([429, 431].contains(&status), "{status} to a path of {length} bytes");
    }
    let starless = b"GET * HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nconnection: close\r\n\r\n";
    assert_eq!(http::raw(front.addr, starless).unwrap().status, 400, "no path that a rule for `/*` meets");
    // Headers that a client names as those of the connection are passed on to nobody.
    for named in ["x-forwarded-uri", "x-forwarded-method, x-forwarded-uri, x-forwarded-for, x-forwarded-host"]
    {
        let header = format!("x-api-key: k\r\nconnection: {named}");
        assert_eq!(front.raw(b"/api/x", header.as_bytes()), 429, "{named}");
    }
}

#[test]
fn every_spelling_of_a_path_and_a_host_is_held_at_caddy() {
    every::holds_every_spelling(start);
}

#[test]
fn a_client_cannot_speak_for_caddy() {
    every::believes_no_client(start);
}

#[test]
fn without_tidegate_caddy_refuses_requests() {
    let mut daemon = Daemon::with_rules(every::RULES);
    let front = start(&[daemon.http]);
    let failed = front.get("key-a", "/fail");
    assert_eq!((failed.status, failed.body.as_str()), (500, "served /fail\n"), "the service's own failure");
    assert_eq!(daemon.terminate().code(), Some(0));
    for status in front.statuses("key-a", "/api/x", 5) {
        assert!([502, 503, 504].contains(&status), "{status} without a daemon");
    }
}

#[test]
fn client_and_service_learn_from_caddy_what_to_use_instead() {
    every::tells_what_to_use_instead(start);
}

#[test]
fn client_and_service_learn_from_caddy_what_tidegate_says() {
    every::tells_what_tidegate_says(start, true);
}

#[test]
fn caddy_asks_once_where_a_daemon_took_the_question_and_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = listener.local_addr().unwrap();
    let silent = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    let (is_silent, count) = (Arc::clone(&silent), Arc::clone(&asked));
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let (is_silent, count) = (Arc::clone(&is_silent), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut buffer = [0; 4_096];
                while let Ok(len @ 1..) = socket.read(&mut buffer) {
                    if is_silent.load(Ordering::SeqCst) && !buffer[..len].starts_with(b"GET /readyz ") {
                        count.fetch_add(1, Ordering::SeqCst);
                    } else {
                        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                    }
                }
            });
        }
    });
    let as_shipped =
        |config: String| replaced(&config, "response_header_timeout 5s", "response_header_timeout 250ms");
    let front = start_with(&[daemon], as_shipped);
    silent.store(true, Ordering::SeqCst);
    assert_eq!(front.raw(b"/api/x", b"x-api-key: k"), 504);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_rolling_restart_behind_caddy_loses_no_request() {
    every::loses_nothing_in_a_rolling_restart(start);
}

#[test]
fn whoever_asks_is_counted_at_caddy() {
    every::counts_whoever_asks(start);
}

#[test]
fn a_client_without_a_key_is_held_at_caddy_by_the_rules_of_the_page() {
    every::holds_whoever_shows_no_key(
        start,
        include_str!("../../docs/tasks/limit-an-api-behind-caddy.md"),
        include_str!("../../deploy/caddy/Caddyfile"),
    );
}
