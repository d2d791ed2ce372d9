//! Over the Redis protocol: connections that are closed before `TG.RESERVE` was answered.

use std::net::SocketAddr;
use std::time::Duration;

use super::{RULES, nothing_is_held, on_both_stores, used};
use crate::support::daemon::Daemon;
use crate::support::resp::Connection;
use crate::support::{eventually, free_tcp};

const OWNER: &str = "owner=gone";

fn start(store: &str) -> (Daemon, SocketAddr) {
    let resp = free_tcp();
    (Daemon::with(RULES, &format!("[listen]\nresp = \"{resp}\"\n{store}"), &[]), resp)
}

fn reserve(id: &str) -> Vec<u8> {
    let words = ["TG.RESERVE", "default", "10", "10m", id, "owner", "gone"];
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    command.into_bytes()
}

fn held(daemon: &Daemon, permits: u64) {
    eventually(&format!("{permits} permits are held"), || {
        (used(daemon, "tokens", OWNER) == permits).then_some(())
    });
}

#[test]
fn a_connection_that_is_closed_unread_reserves_nothing() {
    on_both_stores(|store| {
        let (daemon, resp) = start(store);
        // One; several that are sent at once; one behind which the daemon closes the connection.
        let quit = [&reserve("")[..], b"QUIT\r\n"].concat();
        for (commands, permits) in [(reserve(""), 10), (reserve("").repeat(3), 30), (quit, 10)] {
            for _ in 0..5 {
                let mut connection = Connection::open(resp);
                connection.send(&commands);
                held(&daemon, permits);
                drop(connection);
                nothing_is_held(&daemon, "tokens", OWNER);
            }
        }
        for _ in 0..20 {
            Connection::open(resp).send(&reserve(""));
        }
        let all = "tidegate_resp_commands_total{command=\"decision\"}";
        // 5 times 1, 3 and 1, then 20.
        eventually("all were answered", || (daemon.metric(all) == Some(45.0)).then_some(()));
        std::thread::sleep(Duration::from_millis(500));
        nothing_is_held(&daemon, "tokens", OWNER);
    });
}

#[test]
fn a_client_that_has_its_answer_keeps_what_it_reserved() {
    let (daemon, resp) = start("");
    let mut connection = Connection::open(resp);
    let mut reserved = |commands: &[u8], answers: usize| {
        connection.send(commands);
        for _ in 0..answers {
            assert!(connection.answer().starts_with("[1 1000000 "));
        }
    };
    reserved(&reserve(""), 1);
    reserved(&reserve("").repeat(3), 3);
    // It goes on after its answers, and so has them, whatever becomes of the next one.
    connection.send(&reserve(""));
    held(&daemon, 50);
    drop(connection);
    held(&daemon, 40);
    // Whoever named it may be asking again.
    let mut named = Connection::open(resp);
    named.send(&reserve("mine"));
    held(&daemon, 50);
    drop(named);
    // One that is told to close has its answer, too.
    let mut last = Connection::open(resp);
    last.send(&[&reserve("")[..], b"QUIT\r\n"].concat());
    assert!(last.answer().starts_with("[1 ") && last.answer() == "OK" && last.is_closed());
    drop(last);
    // Longer than the end of a connection is looked at.
    std::thread::sleep(Duration::from_secs(3));
    held(&daemon, 60);
}
