//! Over HTTP/2, at `listen.http` with TLS: requests that are reset, and connections that are closed.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};

use super::{RULES, on_both_stores, wire};
use crate::support::eventually;
use crate::tls::Secured;

type Connection = StreamOwned<ClientConnection, TcpStream>;

fn open(secured: &Secured) -> Connection {
    let mut config = secured.client();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut connection = StreamOwned::new(client, TcpStream::connect(secured.http).unwrap());
    send(&mut connection, wire::PREFACE);
    connection
}

fn send(connection: &mut Connection, bytes: &[u8]) {
    connection.write_all(bytes).unwrap();
    connection.flush().unwrap();
}

/// Two streams: one acquires a place, the other reserves ten permits.
fn asked() -> Vec<u8> {
    let json = "application/json";
    let acquire = wire::post(1, "/v1/acquire", json, br#"{"attributes":{"user":"gone"}}"#);
    let reserve = wire::post(3, "/v1/reserve", json, br#"{"attributes":{"owner":"gone"},"amount":10}"#);
    [acquire, reserve].concat()
}

fn resets() -> Vec<u8> {
    [wire::reset(1), wire::reset(3)].concat()
}

fn held(secured: &Secured, places: u64, permits: u64) {
    let used = |query: &str| {
        let bucket = secured.json(&format!("/v1/buckets?{query}"));
        bucket["used"].as_u64().unwrap_or_else(|| panic!("{bucket}"))
    };
    let mut seen = (0, 0);
    eventually("as many places and permits are held as should be", || {
        seen = (used("rule=exports&user=gone"), used("rule=tokens&owner=gone"));
        (seen == (places, permits)).then_some(())
    });
}

#[test]
fn a_request_that_is_reset_holds_nothing_on_a_connection_that_stays_open() {
    on_both_stores(|store| {
        let secured = Secured::with(RULES, store);
        let mut open_still = Vec::new();
        for _ in 0..5 {
            let mut connection = open(&secured);
            send(&mut connection, &asked());
            held(&secured, 1, 10);
            send(&mut connection, &resets());
            held(&secured, 0, 0);
            open_still.push(connection);
        }
        for _ in 0..10 {
            let mut connection = open(&secured);
            send(&mut connection, &[asked(), resets()].concat());
            open_still.push(connection);
        }
        // By then all of them are decided.
        std::thread::sleep(Duration::from_millis(500));
        held(&secured, 0, 0);
        // Numbers go on along the connection: an older stream keeps its place when another is reset.
        let mut connection = open(&secured);
        send(&mut connection, &asked());
        held(&secured, 1, 10);
        let body = br#"{"attributes":{"user":"gone"}}"#;
        send(&mut connection, &wire::post(5, "/v1/acquire", "application/json", body));
        held(&secured, 2, 10);
        send(&mut connection, &wire::reset(5));
        held(&secured, 1, 10);
        send(&mut connection, &resets());
        held(&secured, 0, 0);
        drop(open_still);
    });
}

#[test]
fn a_connection_that_is_closed_unread_holds_nothing() {
    on_both_stores(|store| {
        let secured = Secured::with(RULES, store);
        for _ in 0..5 {
            let mut connection = open(&secured);
            send(&mut connection, &asked());
            held(&secured, 1, 10);
            drop(connection);
            held(&secured, 0, 0);
        }
        for micros in [0, 100, 300, 1_000, 3_000] {
            for _ in 0..10 {
                let mut connection = open(&secured);
                send(&mut connection, &asked());
                std::thread::sleep(Duration::from_micros(micros));
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        held(&secured, 0, 0);
    });
}

#[test]
fn a_request_that_has_its_answer_keeps_what_it_holds() {
    let secured = Secured::with(RULES, "");
    let post = ["--http2", "--header", "content-type: application/json", "--data"];
    for (route, body) in [
        ("/v1/acquire", r#"{"attributes":{"user":"gone"}}"#),
        ("/v1/reserve", r#"{"attributes":{"owner":"gone"},"amount":10}"#),
    ] {
        // A client's own field of this name is nothing to the daemon.
        let more = ["--header", "tidegate-stream: 77"];
        let told = secured.curl(&[&post[..], &[body], &more].concat(), route);
        assert_eq!(told.as_deref(), Some("200 2"));
    }
    // Longer than the end of a connection is looked at.
    std::thread::sleep(Duration::from_secs(3));
    held(&secured, 1, 10);
}
