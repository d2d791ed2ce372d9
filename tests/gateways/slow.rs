//! A daemon that is slower than a gateway waits, with the times of the shipped files as they are: ten seconds
//! at Envoy, nginx, HAProxy and on the page on gateways built on Envoy, 250 ms at Caddy.
//!
//! A gateway that is set to pass does so, also what a rule blocks; one that is set to refuse answers by
//! itself. It does neither for longer than the daemon is slow. The daemon is stopped, so that no answer can
//! be in time.

use super::columns::{CADDY, Column, ENVOY, EXT_AUTHZ, HAPROXY, NGINX, Setting};
use super::support::daemon::Daemon;
use super::support::{eventually, http};

const RULES: &str = "[[rules]]\nname = \"closed\"\nmatch = { path = \"/closed\" }\naction = \"block\"\n";

fn status(front: std::net::SocketAddr, path: &str) -> Option<u16> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    http::raw(front, head.as_bytes()).map(|reply| reply.status)
}

fn is_stopped(daemon: &Daemon) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", daemon.process.id())).unwrap();
    state.rsplit_once(')').is_some_and(|(_, behind)| behind.trim_start().starts_with('T'))
}

fn does_what_its_file_says(column: &Column) {
    for refuses in [false, true].into_iter().filter(|refuses| *refuses || column.passes) {
        let daemon = Daemon::with_rules(RULES);
        let front = (column.start)(&daemon, Setting { refuses, ..Setting::default() });
        let decides = || {
            eventually("the daemon's answers are in time", || {
                let (closed, open) = (status(front.addr, "/closed")?, status(front.addr, "/open")?);
                ([403, 429].contains(&closed) && open == 200).then_some(())
            });
        };
        decides();
        daemon.process.signal("STOP");
        eventually("the daemon is stopped", || is_stopped(&daemon).then_some(()));
        let (addr, path) = (front.addr, if refuses { "/open" } else { "/closed" });
        let told: Vec<Option<u16>> = std::thread::scope(|scope| {
            let asks: Vec<_> = (0..5).map(|_| scope.spawn(move || status(addr, path))).collect();
            asks.into_iter().map(|ask| ask.join().unwrap()).collect()
        });
        let wanted = if refuses { column.absent } else { &[200] };
        let held = told.iter().all(|told| told.is_some_and(|told| wanted.contains(&told)));
        assert!(held, "{}: {told:?}, and not {wanted:?}", column.name);
        daemon.process.signal("CONT");
        decides();
    }
}

#[test]
fn envoy_waits_no_longer_than_its_file_says() {
    does_what_its_file_says(&ENVOY);
}

#[test]
fn envoys_ext_authz_waits_no_longer_than_the_page_says() {
    does_what_its_file_says(&EXT_AUTHZ);
}

#[test]
fn nginx_waits_no_longer_than_its_file_says() {
    does_what_its_file_says(&NGINX);
}

#[test]
fn haproxy_waits_no_longer_than_its_file_says() {
    does_what_its_file_says(&HAPROXY);
}

#[test]
fn caddy_waits_no_longer_than_its_file_says() {
    does_what_its_file_says(&CADDY);
}
