//! Limits that callers bring over the Redis protocol, counted in the region's Redis by all its daemons.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::redis_proxy::Proxy;
use super::redis_servers::{Server, now};
use super::support::daemon::Daemon;
use super::support::resp::Connection;
use super::support::{eventually, free_tcp};

fn daemon(redis: &Server, node: &str, more: &str) -> (Daemon, SocketAddr) {
    daemon_at(&redis.url(), "", node, more)
}

fn daemon_at(redis: &str, rules: &str, node: &str, more: &str) -> (Daemon, SocketAddr) {
    let resp = free_tcp();
    let config = format!(
        "node = {node:?}\n[listen]\nresp = \"{resp}\"\n[store]\nbackend = \"redis\"\n[store.redis]\n\
         topology = \"single\"\nnodes = [{redis:?}]\ntimeout = \"2s\"\n{more}"
    );
    (Daemon::with(rules, &config, &[]), resp)
}

#[test]
fn all_daemons_of_a_region_count_a_callers_key_together() {
    let redis = Server::start(&[]);
    let (_one, first) = daemon(&redis, "one", "");
    let (_two, second) = daemon(&redis, "two", "");
    let mut connections = [Connection::open(first), Connection::open(second)];
    let mut limited = Vec::new();
    for turn in 0..8 {
        let answer = connections[turn % 2].ask("CL.THROTTLE k 4 1 3600");
        limited.push(answer.starts_with("[1 "));
    }
    assert_eq!(limited, [false, false, false, false, false, true, true, true]);
    let counted: Vec<String> =
        (0..4).map(|turn| connections[turn % 2].ask("INCREX c UBOUND 3 EX 600 ENX")).collect();
    assert_eq!(counted, ["[1 1]", "[2 1]", "[3 1]", "[3 0]"]);
    assert_eq!(connections[1].ask("TTL c"), "600");
    assert_eq!(connections[0].ask("DEL k c"), "2");
    assert_eq!(connections[1].ask("CL.THROTTLE k 4 1 3600"), "[0 5 4 -1 3600]");
    // What a key lies under in Redis is bounded in time, too.
    assert!(connections[0].ask("EXISTS k{}%").ends_with('0'));
}

#[test]
fn many_clients_of_two_daemons_get_what_the_call_says_and_no_more() {
    let redis = Server::start(&[]);
    let (_one, first) = daemon(&redis, "one", "");
    let (_two, second) = daemon(&redis, "two", "");
    let passed: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = [first, second, first, second]
            .map(|address| {
                scope.spawn(move || {
                    let mut connection = Connection::open(address);
                    let answers = (0..25).map(|_| connection.ask("CL.THROTTLE shared 29 1 3600"));
                    answers.filter(|answer| answer.starts_with("[0 ")).count()
                })
            })
            .into_iter()
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(passed, 30);
}

#[test]
fn a_key_that_everybody_asks_for_takes_no_more_than_the_call_says_and_troubles_nobody() {
    let redis = Server::start(&[]);
    let (one, first) = daemon(&redis, "one", "");
    let (_two, second) = daemon(&redis, "two", "");
    let passed: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..48)
            .map(|client| {
                scope.spawn(move || {
                    let mut connection = Connection::open([first, second][client % 2]);
                    let answers = (0..20).map(|_| connection.ask("CL.THROTTLE hot 99 1 3600"));
                    answers.filter(|answer| answer.starts_with("[0 ")).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(passed, 100);
    let degraded = one.check(&[("user", "u")])["degraded"].clone();
    assert_ne!(degraded, true, "Redis serves rules as before");
}

#[test]
fn the_user_that_is_deployed_has_every_right_that_callers_keys_need() {
    let folder = tempfile::TempDir::new().unwrap();
    let users = folder.path().join("users.acl");
    std::fs::write(&users, super::access::users().replace("user default off", "")).unwrap();
    let redis = Server::start(&["--aclfile", &users.display().to_string()]);
    let with = |node: &str| {
        let resp = free_tcp();
        let config = format!(
            "node = {node:?}\n[listen]\nresp = \"{resp}\"\n[store]\nbackend = \"redis\"\n[store.redis]\n\
             topology = \"single\"\nnodes = [\"redis://tidegate:change-me-2@127.0.0.1:{}\"]\ntimeout = \"2s\"\n",
            redis.port
        );
        (Daemon::with("", &config, &[]), resp)
    };
    let ((_one, first), (_two, second)) = (with("one"), with("two"));
    let mut connections = [Connection::open(first), Connection::open(second)];
    let passed =
        (0..10).filter(|turn| connections[turn % 2].ask("CL.THROTTLE k 4 1 3600").starts_with("[0 "));
    assert_eq!(passed.count(), 5, "both daemons count in Redis");
    assert_eq!(connections[0].ask("INCREX c EX 600"), "[1 1]");
    assert_eq!(connections[1].ask("TTL c"), "600");
    assert_eq!(connections[1].ask("DEL c k"), "2");
}

#[test]
fn a_window_of_increx_ends_when_it_was_to_end_however_often_it_is_counted_up() {
    let redis = Server::start(&[]);
    let (_daemon, address) = daemon(&redis, "one", "");
    let mut connection = Connection::open(address);
    assert_eq!(connection.ask("INCREX w EX 600 ENX"), "[1 1]");
    let begun = now();
    for _ in 0..500 {
        connection.ask("INCREX w EX 600 ENX");
    }
    let elapsed = begun.elapsed().as_millis();
    let left: u128 = connection.ask("PTTL w").parse().unwrap();
    assert!(left <= 600_020 - elapsed, "{left} ms are left, {elapsed} ms after it began");
}

#[test]
fn commands_that_arrive_together_wait_together_and_are_answered_in_their_places() {
    const RULES: &str = "[[rules]]\nname = \"a\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 1\nwindow = \"1d\"\n";
    let redis = Server::start(&[]);
    let proxy = Proxy::start(redis.port);
    let (daemon, resp) = daemon_at(&proxy.url(), RULES, "one", "");
    let mut connection = Connection::open(resp);
    assert_eq!(connection.ask("CL.THROTTLE warm 0 1 3600"), "[0 1 0 -1 3600]");
    assert!(connection.ask("TG.CHECK default 1 user warm").starts_with("[1 1 0 "));
    let mut asked: Vec<(String, &str)> = Vec::new();
    let calls = |number: usize| (format!("CL.THROTTLE k{number} 0 1 3600"), "[0 1 0 -1 3600]");
    let checks = |number: usize| (format!("TG.CHECK default 1 user u{number}"), "[1 1 0 0 ");
    asked.extend((0..30).map(calls));
    asked.push(("CL.THROTTLE bad x 1 60".to_owned(), "-Cell error: Store error: Couldn't parse"));
    // Of one key, and so after the first one of it.
    asked.push(("CL.THROTTLE k7 0 1 3600".to_owned(), "[1 1 0 "));
    asked.push(("INCREX c UBOUND 1 EX 60".to_owned(), "[1 1]"));
    asked.extend((0..30).map(checks));
    asked.push(("TG.CHECK default 1 user".to_owned(), "-ERR an attribute has a name and a value"));
    asked.push(("TG.CHECK default 1 user u7".to_owned(), "[0 1 0 "));
    asked.push(("TG.REPORT default 1 once user u40".to_owned(), "[1 1 0 0 "));
    asked.push(("PING".to_owned(), "PONG"));
    let pipeline: String = asked.iter().map(|(command, _)| format!("{command}\r\n")).collect();
    // A second call on a key, or one check after the other, would take some ten seconds.
    proxy.delay_ms.store(100, Ordering::Relaxed);
    let begun = now();
    connection.send(pipeline.as_bytes());
    for (command, expected) in &asked {
        let answer = connection.answer();
        assert!(answer.starts_with(expected), "{command}: {answer}");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let counted = daemon.metric("tidegate_resp_commands_total{command=\"throttle\"}");
    assert_eq!(counted, Some(33.0));
}

#[test]
fn while_redis_is_away_a_daemon_counts_for_itself_or_refuses() {
    let redis = Server::start(&[]);
    let (_local, first) = daemon(&redis, "local", "");
    let (_closed, second) = daemon(&redis, "closed", "on_failure = \"closed\"\n");
    redis.signal("-STOP");
    let mut local = Connection::open(first);
    eventually("a daemon counts for itself", || {
        let answer = local.ask("CL.THROTTLE k 0 1 3600");
        answer.starts_with("[1 ").then_some(())
    });
    assert_eq!(
        Connection::open(second).ask("CL.THROTTLE k 0 1 3600"),
        "-TRYAGAIN the region's Redis does not answer"
    );
    redis.signal("-CONT");
}
