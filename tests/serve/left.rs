//! Clients that leave before they have their answer hold nothing.

mod http2;
mod resp;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use prost::Message as _;
use serde_json::json;

use super::redis_servers::Server;
use super::support::daemon::Daemon;
use super::support::{eventually, rls};
use super::wire;

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
    let bucket = daemon.get(&format!("/v1/buckets?rule={rule}&{client}")).json();
    bucket["used"].as_u64().unwrap_or_else(|| panic!("{bucket}"))
}

/// The same with memory and with Redis: what a `tidegate.toml` says of the store.
fn on_both_stores(test: impl Fn(&str)) {
    test("");
    let server = Server::start(&[]);
    test(&format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntopology = \"single\"\ntimeout = \"1s\"\n",
        server.url()
    ));
}

fn nothing_is_held(daemon: &Daemon, rule: &str, client: &str) {
    eventually(&format!("nothing is held of {rule} for {client}"), || {
        (used(daemon, rule, client) == 0).then_some(())
    });
}

fn holds(daemon: &Daemon, places: u64, user: &str) {
    let client = format!("user={user}");
    eventually(&format!("{places} places are held for {user}"), || {
        (used(daemon, "exports", &client) == places).then_some(())
    });
}

fn acquire(user: &str) -> String {
    head("/v1/acquire", &json!({ "attributes": { "user": user } }).to_string())
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
        // Whoever stays shows that it is this that is looked at.
        let (user, owner) = (format!("u{millis}"), format!("o{millis}"));
        daemon.post("/v1/acquire", &json!({ "attributes": { "user": user } }));
        daemon.post("/v1/reserve", &json!({ "attributes": { "owner": owner }, "amount": 7 }));
        for turn in 0..20 {
            let wait = Duration::from_millis(millis);
            leave("/v1/acquire", &json!({ "attributes": { "user": user } }).to_string(), wait);
            let reserved = json!({ "attributes": { "owner": owner }, "amount": 10 + turn });
            leave("/v1/reserve", &reserved.to_string(), wait);
        }
    }
    for millis in [0, 1, 5, 30] {
        let held = || {
            let places = used(&daemon, "exports", &format!("user=u{millis}"));
            (places, used(&daemon, "tokens", &format!("owner=o{millis}")))
        };
        eventually("only those who stayed hold anything", || (held() == (1, 7)).then_some(()));
    }
}

#[test]
fn answers_that_nobody_read_hold_nothing_however_many_were_asked_for_at_once() {
    on_both_stores(|store| {
        let daemon = Daemon::with(RULES, store, &[]);
        // In memory as many as one read of the socket does not bring, too.
        let most = if store.is_empty() { 100 } else { 10 };
        for requests in [1, 3, most] {
            for _ in 0..5 {
                let mut socket = TcpStream::connect(daemon.http).unwrap();
                socket.write_all(acquire("many").repeat(requests).as_bytes()).unwrap();
                holds(&daemon, u64::try_from(requests).unwrap(), "many");
                drop(socket);
                holds(&daemon, 0, "many");
            }
        }
        // Some of the first answer was read.
        let mut socket = TcpStream::connect(daemon.http).unwrap();
        socket.write_all(acquire("many").repeat(3).as_bytes()).unwrap();
        holds(&daemon, 3, "many");
        socket.read_exact(&mut [0; 20]).unwrap();
        drop(socket);
        holds(&daemon, 0, "many");
        // The daemon closes the connection.
        let mut socket = TcpStream::connect(daemon.http).unwrap();
        let last = acquire("many").replace("host: x\r\n", "host: x\r\nconnection: close\r\n");
        socket.write_all(last.as_bytes()).unwrap();
        holds(&daemon, 1, "many");
        drop(socket);
        holds(&daemon, 0, "many");
    });
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
        socket.write_all(acquire("kept").as_bytes()).unwrap();
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
    let mut socket = TcpStream::connect(daemon.http).unwrap();
    let read = |socket: &mut TcpStream, answers: usize| {
        let (mut text, mut some) = (String::new(), [0; 8_192]);
        while text.matches("\"lease\"").count() < answers || !text.ends_with('}') {
            let read = socket.read(&mut some).unwrap();
            assert!(read > 0, "{text}");
            text.push_str(std::str::from_utf8(&some[..read]).unwrap());
        }
    };
    socket.write_all(acquire("kept").repeat(3).as_bytes()).unwrap();
    read(&mut socket, 3);
    // It goes on after its answers, and so has them, whatever becomes of the next one.
    socket.write_all(acquire("kept").as_bytes()).unwrap();
    holds(&daemon, 7, "kept");
    drop(socket);
    holds(&daemon, 6, "kept");
    let mut last = TcpStream::connect(daemon.http).unwrap();
    let asked = acquire("kept").replace("host: x\r\n", "host: x\r\nconnection: close\r\n");
    last.write_all(asked.as_bytes()).unwrap();
    last.read_to_end(&mut Vec::new()).unwrap();
    drop(last);
    // Longer than the end of a connection is looked at.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(used(&daemon, "exports", "user=kept"), 7);
}

#[test]
fn a_call_that_is_cancelled_holds_no_place() {
    let daemon = Daemon::with_rules(RULES);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let descriptor = rls::descriptor(&[("tidegate_acquire", "1"), ("user", "gone")]);
    let message = rls::request(vec![descriptor]).encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, &message].concat();
    let call = |stream| wire::post(stream, path, "application/grpc", &body);
    // One connection, which stays open and reads nothing.
    let mut socket = TcpStream::connect(daemon.grpc).unwrap();
    let mut send = |bytes: &[u8]| socket.write_all(bytes).unwrap();
    send(wire::PREFACE);
    let mut streams = (1..).step_by(2);
    let mut next = || streams.next().unwrap();
    let stays = next();
    send(&call(stays));
    holds(&daemon, 1, "gone");
    for _ in 0..5 {
        let (first, second) = (next(), next());
        send(&[call(first), call(second)].concat());
        holds(&daemon, 3, "gone");
        send(&wire::reset(second));
        holds(&daemon, 2, "gone");
        send(&wire::reset(first));
        holds(&daemon, 1, "gone");
    }
    for _ in 0..20 {
        let stream = next();
        send(&[call(stream), wire::reset(stream)].concat());
    }
    // Behind all of them on their connection, so that they are decided by then.
    let behind = next();
    send(&call(behind));
    holds(&daemon, 2, "gone");
    send(&wire::reset(stays));
    holds(&daemon, 1, "gone");
    drop(socket);
    holds(&daemon, 0, "gone");
}

#[test]
fn calls_that_are_given_up_by_the_thousand_end_no_other_of_their_connection() {
    let daemon = Daemon::with_rules(RULES);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let call = |stream, message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        wire::post(stream, path, "application/grpc", &[&[0][..], &length, message].concat())
    };
    let descriptor = rls::descriptor(&[("tidegate_acquire", "1"), ("user", "gone")]);
    let stays = rls::request(vec![descriptor]).encode_to_vec();
    let mut socket = TcpStream::connect(daemon.grpc).unwrap();
    socket.write_all(wire::PREFACE).unwrap();
    let mut streams = (1_u32..).step_by(2);
    let mut all = Vec::new();
    for stream in streams.by_ref().take(9_000) {
        all.extend([call(stream, b""), wire::reset(stream)].concat());
    }
    all.extend(call(streams.next().unwrap(), &stays));
    socket.write_all(&all).unwrap();
    holds(&daemon, 1, "gone");
}

/// One request a second, each held back until its turn.
const PACED: &str = "[[rules]]\nname = \"paced\"\nper = [\"user\"]\nalgorithm = \"token_bucket\"\nlimit = 60\nburst = 1\n\
                     window = \"1m\"\naction = \"throttle\"\nmax_delay = \"20s\"\ndelay = \"hold\"\n";

/// Eight answers are held back for a user, and nobody waits for them any more: `leave` has it so. The next
/// one does not wait behind them.
fn turns_go_back(daemon: &Daemon, user: &str, leave: impl FnOnce()) {
    assert_eq!(daemon.check(&[("user", user)])["delay_ms"], 0);
    leave();
    let left = Instant::now();
    // A connection that ends is looked at for a quarter of a second.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(daemon.check(&[("user", user)])["allowed"], true);
    assert!(left.elapsed() < Duration::from_secs(5), "{user}: it waited for {:?}", left.elapsed());
    let counted = daemon.metric("tidegate_throttle_holds_total{outcome=\"left\"}");
    assert!(counted > Some(0.0), "{user}: {counted:?}");
}

#[test]
fn whoever_leaves_while_an_answer_is_held_back_gives_the_turn_back() {
    on_both_stores(|store| {
        let daemon = Daemon::with(PACED, store, &[]);
        let used_by = |user: &str| used(&daemon, "paced", &format!("user={user}"));
        turns_go_back(&daemon, "http", || {
            let ask = head("/v1/check", r#"{"attributes":{"user":"http"}}"#);
            let mut sockets: Vec<_> = (0..8).map(|_| TcpStream::connect(daemon.http).unwrap()).collect();
            sockets.iter_mut().for_each(|socket| socket.write_all(ask.as_bytes()).unwrap());
            eventually("eight wait", || (used_by("http") >= 7).then_some(()));
            std::thread::sleep(Duration::from_millis(100));
        });
        turns_go_back(&daemon, "grpc", || {
            let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            let message = rls::request(vec![rls::descriptor(&[("user", "grpc")])]).encode_to_vec();
            let length = u32::try_from(message.len()).unwrap().to_be_bytes();
            let body = [&[0][..], &length, &message].concat();
            let mut socket = TcpStream::connect(daemon.grpc).unwrap();
            socket.write_all(wire::PREFACE).unwrap();
            let streams = || (1..).step_by(2).take(8);
            streams().for_each(|stream| {
                socket.write_all(&wire::post(stream, path, "application/grpc", &body)).unwrap();
            });
            eventually("eight wait", || (used_by("grpc") >= 7).then_some(()));
            std::thread::sleep(Duration::from_millis(100));
            streams().for_each(|stream| socket.write_all(&wire::reset(stream)).unwrap());
        });
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
