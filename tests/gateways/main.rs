//! Stock gateways enforce our limits: the real programs, with the files that `deploy` gives to
//! users.
//!
//! What every gateway must do is asked once, in `every.rs`; what a client can bring about, in `table.rs`.
//! `tests/run` installs the programs; without them these tests fail, they do not skip.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

#[path = "../support/mod.rs"]
mod support;

mod built_on_envoy;
mod caddy;
mod columns;
mod every;
mod haproxy;
mod nginx;
mod slow;
mod table;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use support::http::{self, Reply};
use support::process::Process;
use tempfile::TempDir;

/// A gateway in front of a service, asking a daemon. Stopped when dropped.
struct Gateway {
    addr: SocketAddr,
    process: Process,
    /// Last, so that the process is gone before its folder.
    folder: TempDir,
}

impl Gateway {
    /// Waits until it passes requests of the service on. It must be so before a test charges anything.
    fn serving(addr: SocketAddr, mut process: Process, folder: TempDir) -> Self {
        support::eventually("the gateway serves", || {
            assert!(process.ended().is_none(), "the gateway ended:\n{}", process.output());
            let reply =
                http::raw(addr, b"GET /not-limited HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
            (reply.status == 200).then_some(())
        });
        Self { addr, process, folder }
    }

    fn get(&self, key: &str, path: &str) -> Reply {
        http::get(self.addr, path, &[("x-api-key", key)])
    }

    fn statuses(&self, key: &str, path: &str, times: usize) -> Vec<u16> {
        (0..times).map(|_| self.get(key, path).status).collect()
    }

    /// The status of a request with any bytes in its path and among its headers.
    fn raw(&self, path: &[u8], header: &[u8]) -> u16 {
        let head: [&[u8]; 5] =
            [b"GET ", path, b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n", header, b"\r\n\r\n"];
        http::raw(self.addr, &head.concat()).expect("the gateway answers").status
    }
}

/// A text of `deploy` with a part of it replaced, which it must have once.
fn replaced(text: &str, part: &str, by: &str) -> String {
    assert_eq!(text.matches(part).count(), 1, "the file of deploy says {part} once");
    text.replace(part, by)
}

/// A program of Debian's.
fn program(name: &str) -> Command {
    let beside = format!("/usr/sbin/{name}");
    Command::new(if Path::new(&beside).exists() { beside } else { name.to_owned() })
}
