//! Clients that leave before they have their answer hold nothing.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::json;

use super::support::daemon::Daemon;
use super::support::{eventually, rls};

const RULES: &str = r#"
[[rules]]
name = "exports"
per = ["user"]
algorithm = "concurrency"
limit = 1000
hold = "5m"

[[rules]]
name = "tokens"
per = ["owner"]
algorithm = "fixed_window"
limit = 1000000
window = "24h"
"#;

fn used(daemon: &Daemon, rule: &str, client: &str) -> u64 {
    daemon.get(&format!("/v1/buckets?rule={rule}&{client}")).json()["used"].as_u64().unwrap_or_default()
}

fn nothing_is_held(daemon: &Daemon, rule: &str, client: &str) {
    eventually(&format!("nothing is held of {rule} for {client}"), || {
        (used(daemon, rule, client) == 0).then_some(())
    });
}

fn head(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn a_client_that_closes_its_connection_holds_neither_place_nor_reservation() {
    let daemon = Daemon::with_rules(RULES);
    let leave = |path: &str, body: &str, wait: Duration| {
        let mut socket = TcpStream::connect(daemon.http).unwrap();
        socket.write_all(head(path, body).as_bytes()).unwrap();
        std::thread::sleep(wait);
    };
    for millis in [0, 1, 5, 30] {
        for turn in 0..20 {
            let wait = Duration::from_millis(millis);
            leave(
                "/v1/acquire",
                &json!({ "attributes": { "user": format!("u{millis}") } }).to_string(),
                wait,
            );
            let owner = json!({ "attributes": { "owner": format!("o{millis}") }, "amount": 10 + turn });
            leave("/v1/reserve", &owner.to_string(), wait);
        }
    }
    for millis in [0, 1, 5, 30] {
        nothing_is_held(&daemon, "exports", &format!("user=u{millis}"));
        nothing_is_held(&daemon, "tokens", &format!("owner=o{millis}"));
    }
}

#[test]
fn a_client_that_closes_its_half_at_once_gets_every_answer() {
    let daemon = Daemon::with_rules(RULES);
    let check = head("/v1/check", r#"{"attributes":{"owner":"half"},"cost":0}"#);
    for requests in [1, 2, 5, 50, 200] {
        for _ in 0..2 {
            let mut socket = TcpStream::connect(daemon.http).unwrap();
            socket.write_all(check.repeat(requests).as_bytes()).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            let mut answers = String::new();
            socket.read_to_string(&mut answers).unwrap();
            assert_eq!(answers.matches("HTTP/1.1 200").count(), requests);
        }
    }
}

#[test]
fn a_client_that_has_its_answer_keeps_what_it_holds() {
    let daemon = Daemon::with_rules(RULES);
    let whole = |then: &dyn Fn(&mut TcpStream)| {
        let mut socket = TcpStream::connect(daemon.http).unwrap();
        let acquire = head("/v1/acquire", &json!({ "attributes": { "user": "kept" } }).to_string());
        socket.write_all(acquire.as_bytes()).unwrap();
        then(&mut socket);
        let mut answer = [0; 8_192];
        let read = socket.read(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer[..read]).contains("\"lease\""));
    };
    whole(&|_| {});
    whole(&|socket| socket.shutdown(Shutdown::Write).unwrap());
    let client = daemon.rls();
    let asked = rls::request(vec![rls::descriptor(&[("tidegate_acquire", "1"), ("user", "kept")])]);
    assert_eq!(client.ask(asked).unwrap().overall_code, 1);
    drop(client);
    // Longer than the end of a connection is looked at.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(used(&daemon, "exports", "user=kept"), 3);
}

#[test]
fn a_call_that_is_cancelled_holds_no_place() {
    let daemon = Daemon::with_rules(RULES);
    let asked = || rls::request(vec![rls::descriptor(&[("tidegate_acquire", "1"), ("user", "gone")])]);
    for micros in [100, 500, 1_000, 3_000] {
        for _ in 0..10 {
            let client = daemon.rls();
            // Which of them came in time is known by nobody here, so a connection that ends says the rest.
            client.ask_and_leave(asked(), Duration::from_micros(micros));
        }
    }
    let held = || used(&daemon, "exports", "user=gone");
    let acquired = daemon.metric("tidegate_holds_total{event=\"acquired\"}").unwrap_or_default();
    let released = || daemon.metric("tidegate_holds_total{event=\"released\"}").unwrap_or_default();
    eventually("what is held was answered", || {
        // As many as are left were answered in time: acquired and delivered.
        let (held, released) = (held(), released());
        (released + f64::from(u32::try_from(held).unwrap()) >= acquired).then_some(())
    });
}

#[test]
fn a_call_whose_answer_is_held_back_gives_its_place_back_when_it_is_cancelled() {
    let paced = "[[rules]]\nname = \"paced\"\nalgorithm = \"token_bucket\"\nlimit = 1\nburst = 1\nwindow = \"50s\"\n\
                 action = \"throttle\"\nmax_delay = \"1m\"\ndelay = \"hold\"\n";
    let daemon = Daemon::with_rules(&format!("{RULES}\n{paced}"));
    let client = daemon.rls();
    let asked = || rls::request(vec![rls::descriptor(&[("tidegate_acquire", "1"), ("user", "gone")])]);
    assert_eq!(client.ask(asked()).unwrap().overall_code, 1);
    client.ask_and_leave(asked(), Duration::from_millis(300));
    eventually("only the first place is held", || (used(&daemon, "exports", "user=gone") == 1).then_some(()));
}
