//! `--server` that names something else than a daemon's HTTP address: said as such, and soon.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::support::command::{Ran, run};
use super::support::daemon::Daemon;

/// What a command waits for something that says nothing, and what a busy machine adds to it.
const SILENT_MOST: Duration = Duration::from_secs(20);

const COMMANDS: [&[&str]; 4] =
    [&["check", "user=ann"], &["rules", "list"], &["regions"], &["rules", "delete", "r"]];

fn ask(arguments: &[&str], server: &str) -> Ran {
    let folder = TempDir::new().unwrap();
    run(folder.path(), &[arguments, &["--server", server]].concat())
}

/// A server that answers every request with these bytes; `None`: it takes connections and says nothing.
fn server(answer: Option<&'static str>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut socket in listener.incoming().flatten() {
            match answer {
                Some(answer) => {
                    let _ = socket.read(&mut [0; 8_192]);
                    let _ = socket.write_all(answer.as_bytes());
                }
                None => held.push(socket),
            }
        }
    });
    address
}

fn is_no_daemon(ran: &Ran, why: &str) {
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.out.is_empty() && ran.err.contains(why), "{ran:?}");
    assert!(ran.err.contains("must name the HTTP address of a daemon (listen.http)"), "{ran:?}");
}

#[test]
fn another_web_server_is_said_to_be_no_daemon() {
    let page =
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>";
    let missing = "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>";
    let api = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 23\r\nconnection: close\r\n\r\n{\"message\":\"not found\"}";
    for answer in [page, missing, api] {
        let server = server(Some(answer)).to_string();
        for command in COMMANDS {
            is_no_daemon(&ask(command, &server), "is no tidegate daemon");
        }
    }
    let empty = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    is_no_daemon(&ask(&["check", "user=ann"], &server(Some(empty)).to_string()), "is no tidegate daemon");
}

#[test]
fn the_grpc_port_is_named_as_what_it_is() {
    let daemon = Daemon::with_rules("");
    for command in COMMANDS {
        is_no_daemon(&ask(command, &daemon.grpc.to_string()), "gRPC port");
    }
}

#[test]
fn a_server_that_says_nothing_is_given_up_soon() {
    let server = server(None).to_string();
    std::thread::scope(|scope| {
        for command in COMMANDS {
            let server = &server;
            scope.spawn(move || {
                let begun = Instant::now();
                let ran = ask(command, server);
                assert!(begun.elapsed() < SILENT_MOST, "{command:?} took {:?}", begun.elapsed());
                is_no_daemon(&ran, "does not answer");
            });
        }
    });
}
