//! What no client should send: a clear error, no panic, nothing lost for others.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use super::support::daemon::Daemon;
use super::support::{SOON, http, rls};

const RULES: &str = r#"
[[rules]]
name = "per-user"
per = ["user"]
algorithm = "token_bucket"
limit = 5
window = "24h"
"#;

/// It still serves, and what others had is still there.
fn assert_unharmed(daemon: &mut Daemon) {
    assert!(daemon.process.ended().is_none(), "it ended:\n{}", daemon.log());
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    assert_eq!(daemon.check(&[("user", "bystander")])["allowed"], true);
}

#[test]
fn bodies_that_say_nothing_sensible_are_refused_with_a_reason() {
    let mut daemon = Daemon::with_rules(RULES);
    let bodies: &[&[u8]] = &[
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b"\"user\"",
        b"\xff\xfe\x00",
        b"{\"attributes\":{\"user\":7}}",
        b"{\"attributes\":{\"user\":null}}",
        b"{\"attributes\":[\"user\"]}",
        b"{\"attributes\":{\"\":\"x\"}}",
        b"{\"attributes\":{\"user\":\"a\x01b\"}}",
        b"{\"attributes\":{\"user\":\"u\"},\"cost\":\"1\"}",
        b"{\"attributes\":{\"user\":\"u\"},\"cost\":1.5}",
        b"{\"attributes\":{\"user\":\"u\"},\"cost\":9223372036854775808}",
        b"{\"attributes\":{\"user\":\"u\"},\"cost\":1e400}",
        b"{\"attributes\":{\"user\":\"u\"},\"cots\":1}",
        b"{\"attributes\":{\"user\":\"u\"},\"domain\":\"\"}",
        b"{\"checks\":7}",
        b"{\"checks\":[7]}",
    ];
    for body in bodies {
        let reply = http::post(daemon.http, "/v1/check", body);
        let shown = String::from_utf8_lossy(body);
        assert_eq!(reply.status, 400, "{shown}: {reply:?}");
        let error = &reply.json()["error"];
        assert!(error["code"].is_string() && error["message"].is_string(), "{shown}: {reply:?}");
        assert!(!reply.body.contains("\"allowed\":true"), "{shown}");
    }
    let deep = format!("{{\"attributes\":{}", "[".repeat(100_000));
    assert_eq!(http::post(daemon.http, "/v1/check", deep).status, 400);
    assert_unharmed(&mut daemon);
}

#[test]
fn requests_whose_end_nobody_can_tell_are_answered_and_charge_nothing() {
    let mut daemon = Daemon::with_rules(RULES);
    let body = "{\"attributes\":{\"user\":\"framed\"}}";
    let chunked = "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n";
    let whole = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let behind = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    for request in [
        format!("{chunked}content-length: {}\r\n\r\n{whole}", body.len()),
        format!("{chunked}content-length: {}\r\n\r\n{whole}{behind}", body.len()),
        format!("{chunked}\r\nzz\r\n{body}"),
        format!("{chunked}\r\n-1\r\n{body}\r\n0\r\n\r\n{behind}"),
        format!("{chunked}\r\n{:x}\n{body}\n0\n\n{behind}", body.len()),
        format!("GET /v1/rules HTTP/1.1\r\n\r\n{behind}"),
        format!("GET /v1/rules HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n{behind}"),
        format!("{chunked}\r\nzz\r\n{}", body.repeat(2_000)),
    ] {
        let shown = &request[..request.len().min(200)];
        let reply =
            http::raw(daemon.http, request.as_bytes()).unwrap_or_else(|| panic!("no answer: {shown}"));
        assert_eq!(reply.status, 400, "{shown}: {reply:?}");
        assert!(reply.json()["error"]["message"].is_string(), "{shown}: {reply:?}");
    }
    assert_eq!(daemon.check_cost(&[("user", "framed")], 0)["remaining"], 5);
    assert_unharmed(&mut daemon);
}

/// Some gateways name the length of a body that they do not send: the bytes behind it are the next request,
/// and no route may read them as a body and what follows as a request.
#[test]
fn a_body_that_no_route_reads_ends_its_connection() {
    let mut daemon = Daemon::with_rules(RULES);
    let routes = [
        "GET /v1/authorize",
        "GET /healthz",
        "GET /v1/rules",
        "GET /v1/nothing",
        "PUT /v1/check",
        "DELETE /",
    ];
    for route in routes {
        for framed in ["content-length: 25", "transfer-encoding: chunked"] {
            let mut socket = TcpStream::connect(daemon.http).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            socket.write_all(format!("{route} HTTP/1.1\r\nhost: x\r\n{framed}\r\n\r\n").as_bytes()).unwrap();
            let mut answer = [0; 65_536];
            let read = socket.read(&mut answer).unwrap();
            let answer = String::from_utf8_lossy(&answer[..read]).to_ascii_lowercase();
            assert!(answer.contains("connection: close\r\n"), "{route}, {framed}: {answer}");
            let _ =
                socket.write_all(b"GET /v1/x HTTP/1.1\r\na: b\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest);
            let rest = String::from_utf8_lossy(&rest);
            assert!(!rest.contains("HTTP/1.1 "), "{route}, {framed}: {rest}");
        }
    }
    assert_unharmed(&mut daemon);
}

#[test]
fn costs_at_the_edges_of_their_type_are_answered_truthfully() {
    let mut daemon = Daemon::with_rules(RULES);
    let ask = |cost: i64| daemon.check_cost(&[("user", "edge")], cost);
    for cost in [i64::MAX, 4_294_967_295, 6] {
        let decision = ask(cost);
        assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(false), &json!(5)), "{cost}");
    }
    for cost in [i64::MIN, -1, 0] {
        let decision = ask(cost);
        assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(true), &json!(5)), "{cost}");
    }
    assert_unharmed(&mut daemon);
}

#[test]
fn bodies_beyond_their_bound_are_refused_and_values_of_any_length_are_counted() {
    let mut daemon = Daemon::with_rules(RULES);
    let value = |len: usize| json!({ "attributes": { "user": "v".repeat(len) } });
    for len in [0, 1_024, 1_025, 1_000_000] {
        for turn in 0..6 {
            let reply = daemon.post("/v1/check", &value(len));
            assert_eq!((reply.status, &reply.json()["allowed"]), (200, &json!(turn < 5)), "{len} {turn}");
        }
    }
    assert_eq!(daemon.post("/v1/check", &value(10_000_000)).status, 413);
    assert_unharmed(&mut daemon);
}

#[test]
fn any_character_names_a_bucket_of_its_own() {
    let mut daemon = Daemon::with_rules(RULES);
    let users = [
        "a",
        "a\0",
        "a\0b",
        "{a}",
        "a:b",
        "a|b",
        "a=b",
        "ä",
        "a\u{308}",
        "\u{1f980}",
        " ",
        "%00",
        "a\n",
        "*",
    ];
    for user in users {
        assert_eq!(daemon.admitted(&[("user", user)], 6), 5, "{user:?}");
    }
    assert_unharmed(&mut daemon);
}

#[test]
fn heads_that_are_not_http_do_no_harm() {
    let mut daemon = Daemon::with_rules(RULES);
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(200_000));
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(50_000));
    let heads: &[&[u8]] = &[
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ];
    for head in heads {
        let reply = http::raw(daemon.http, head);
        assert!(reply.as_ref().is_none_or(|reply| reply.status >= 400), "{reply:?}");
    }
    assert_unharmed(&mut daemon);
}

#[test]
fn header_values_that_are_not_utf8_are_counted() {
    let mut daemon = Daemon::with_rules(RULES);
    let ask = |name: &str, value: &[u8]| {
        let head = "GET /v1/authorize HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
        let head = [head.as_bytes(), name.as_bytes(), b": ", value, b"\r\n\r\n"].concat();
        http::raw(daemon.http, &head).unwrap().status
    };
    for name in ["x-forwarded-for", "x-forwarded-uri", "authorization"] {
        assert_eq!(ask(name, b"\xff\xfe"), 200, "{name}");
    }
    // Origins may take it for any host.
    assert_eq!(ask("x-forwarded-host", b"\xff\xfe"), 400);
    let statuses = |value: &[u8]| (0..6).map(|_| ask("x-tidegate-user", value)).collect::<Vec<_>>();
    for value in [&b"u\xff"[..], b"u\xfe", b"", b"u%FF%FF"] {
        assert_eq!(statuses(value), [200, 200, 200, 200, 200, 429], "{value:?}");
    }
    let body = [&b"{\"attributes\":{\"user\":\"u"[..], b"\xfd", b"\"}}"].concat();
    let allowed = || http::post(daemon.http, "/v1/check", &body).json()["allowed"] == true;
    assert_eq!([(); 6].map(|()| allowed()), [true, true, true, true, true, false]);
    assert_eq!(daemon.check(&[("user", "u%FD")])["allowed"], false, "the same bucket");
    assert_unharmed(&mut daemon);
}

#[test]
fn heads_that_are_no_requests_are_answered_before_the_connection_closes() {
    let mut daemon = Daemon::with_rules(RULES);
    let get = "GET /v1/authorize HTTP/1.1\r\n";
    let many: String = (0..400).map(|n| format!("x-{n}: y\r\n")).collect();
    for (head, status) in [
        (format!("{get}host: x\r\nx-api-key: a\u{1}b\r\n\r\n"), 400),
        (format!("{get}host: x\r\nauthorization: Bearer \u{7f}\r\n\r\n"), 400),
        (format!("{get}host: x\r\nx-forwarded-for: 1.1.1.1\0\r\n\r\n"), 400),
        (format!("{get}host: x\r\nno colon\r\n\r\n"), 400),
        ("GET /v1/auth orize HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 400),
        ("GET\r\n\r\n".to_owned(), 400),
        ("\0\0\0\0\r\n\r\n".to_owned(), 400),
        (format!("{get}\r\n"), 400),
        (format!("{get}host: x\r\nhost: x\r\n\r\n"), 400),
        ("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(), 400),
        (format!("{get}host: x\r\n{many}\r\n"), 431),
        (format!("{get}host: x\r\nx-a: {}\r\n\r\n", "a".repeat(200_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(200_000)), 414),
    ] {
        let shown: String = head.chars().take(60).collect();
        // Reads to the end: the connection is closed without being asked to.
        let reply = http::raw(daemon.http, head.as_bytes()).unwrap_or_else(|| panic!("no answer: {shown:?}"));
        assert_eq!(reply.status, status, "{shown:?}: {reply:?}");
        assert!(!reply.body.contains("HTTP/1.1"), "one answer: {shown:?}: {reply:?}");
    }
    let old = http::raw(daemon.http, b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(old.status, 200, "HTTP/1.0 knows no Host");
    assert_unharmed(&mut daemon);
}

#[test]
fn routes_and_methods_that_do_not_exist_are_named_so() {
    let daemon = Daemon::with_rules(RULES);
    assert_eq!(daemon.get("/v1/nothing").status, 404);
    assert_eq!(daemon.get("/v1/check").status, 405);
    assert_eq!(http::request(daemon.http, "DELETE", "/v1/rules", &[], b"").status, 405);
}

#[test]
fn protobuf_that_is_none_is_an_invalid_argument() {
    let mut daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let garbage: &[&[u8]] = &[
        b"\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x12\x05\x0a\x03\x0a\x01",
        b"",
    ];
    for bytes in garbage {
        let status = client.ask_bytes(bytes.to_vec()).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{bytes:?}: {status}");
    }
    assert!(
        client.ask(rls::request(vec![rls::descriptor(&[("user", "x")])])).is_ok(),
        "the connection goes on"
    );
    assert_unharmed(&mut daemon);
}

#[test]
fn hits_at_the_edges_of_their_type_are_answered_truthfully() {
    let mut daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let user = || rls::descriptor(&[("user", "edge")]);
    for hits in [u64::MAX, u64::from(u32::MAX), 6] {
        let status =
            client.ask(rls::request(vec![rls::with_hits(user(), hits)])).unwrap().statuses[0].clone();
        assert_eq!((status.code, status.limit_remaining), (2, 5), "{hits}");
    }
    let back = envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor {
        is_negative_hits: true,
        ..rls::with_hits(user(), u64::MAX)
    };
    let status = client.ask(rls::request(vec![back])).unwrap().statuses[0].clone();
    assert_eq!((status.code, status.limit_remaining), (1, 5));
    assert_unharmed(&mut daemon);
}

#[test]
fn bytes_that_are_not_http2_do_no_harm_on_the_grpc_port() {
    let mut daemon = Daemon::with_rules(RULES);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frames: &[&[u8]] = &[
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\0\0\0\0",
        &[0xff; 64],
        // A frame of 16 MB, one of an unknown type, headers that are no HPACK.
        b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        b"\x00\x00\x04\xee\x00\x00\x00\x00\x01abcd",
        b"\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff",
    ];
    for frame in frames {
        for bytes in [frame.to_vec(), [preface.as_slice(), b"\0\0\0\x04\0\0\0\0\0", frame].concat()] {
            let mut socket = TcpStream::connect(daemon.grpc).unwrap();
            let _ = std::io::Write::write_all(&mut socket, &bytes);
        }
    }
    assert!(daemon.rls().ask(rls::request(vec![rls::descriptor(&[("user", "x")])])).is_ok());
    assert_unharmed(&mut daemon);
}

#[test]
fn a_message_of_ten_megabytes_is_denied() {
    let mut daemon = Daemon::with_rules(RULES);
    let value = "v".repeat(10_000_000);
    let denied = daemon.rls().ask(rls::request(vec![rls::descriptor(&[("user", &value)])])).unwrap();
    assert_eq!(denied.overall_code, 2, "a gateway lets pass what is answered with an error");
    assert_unharmed(&mut daemon);
}

#[test]
fn very_many_domains_and_keys_stay_within_the_bound() {
    let mut daemon = Daemon::with(RULES, "[store]\nmax_keys = 10000\n", &[]);
    assert_eq!(daemon.admitted(&[("user", "at-its-limit")], 6), 5);
    for batch in 0..60 {
        let check = |n: usize| {
            let n = batch * 1_000 + n;
            json!({ "domain": if n.is_multiple_of(2) { "default".to_owned() } else { format!("d{n}") }, "attributes": { "user": format!("flood-{n}") } })
        };
        let checks: Vec<_> = (0..1_000).map(check).collect();
        assert_eq!(daemon.post("/v1/check", &json!({ "checks": checks })).status, 200);
    }
    let keys = super::support::eventually("the gauge of keys", || {
        daemon.metric("tidegate_keys").filter(|keys| *keys > 0.0)
    });
    assert!(keys <= 10_000.0, "{keys} keys");
    assert_eq!(
        daemon.check(&[("user", "at-its-limit")])["allowed"],
        false,
        "a flood resets no key that is at its limit"
    );
    assert_unharmed(&mut daemon);
}
