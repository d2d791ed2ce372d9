//! What every gateway must do with the files of `deploy`, asked from outside.

use std::net::SocketAddr;
use std::time::Duration;

use super::support::daemon::{Daemon, Launch};
use super::support::spellings::{ADMIN_HOST, ODD_HOST, SEARCH};
use super::support::{http, manual, rolling};
use super::{Gateway, replaced};

pub(super) const RULES: &str = r#"
[[rules]]
name = "per-key"
match = { path = "/api/*" }
per = ["api_key"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "writes"
match = { method = "POST", host = "shop.example" }
per = ["ip"]
algorithm = "fixed_window"
limit = 1
window = "24h"
status = 503

[[rules]]
name = "mallory"
match = { user = "mallory" }
action = "block"

[[rules]]
name = "admin-host"
match = { host = "admin.example.com" }
action = "block"

[[rules]]
name = "closed"
match = { path = "/closed" }
action = "block"
"#;

const TALKATIVE: &str = r#"
[[rules]]
name = "paced"
match = { path = "/delays" }
per = ["api_key"]
algorithm = "token_bucket"
limit = 1
window = "20m"
burst = 1
action = "throttle"
max_delay = "30m"
message = '{"error": "slow down"}'
message_type = "application/json"
headers = { X-Reason = "3 an hour" }
headers_admitted = { X-Plan = "free" }
tell_cause = true
"#;

type Start = fn(&[SocketAddr]) -> Gateway;

/// Asks that client and service learn what Tidegate says of a request. `own`: the client has the rule's own
/// headers, too, without their names in the gateway's file.
pub(super) fn tells_what_tidegate_says(start: Start, own: bool) {
    let daemon = Daemon::with_rules(TALKATIVE);
    let front = start(&[daemon.http]);
    // A client must not speak of a delay.
    let ask = || http::get(front.addr, "/delays", &[("x-api-key", "k"), ("x-ratelimit-delay-ms", "77")]);
    let (first, second, denied) = (ask(), ask(), ask());
    assert_eq!([first.status, second.status, denied.status], [200, 200, 429]);
    assert_eq!((first.header("x-ratelimit-delay-ms"), first.body.trim()), (None, ""), "{first:?}");
    let delay = second.header("x-ratelimit-delay-ms").expect("the client learns its delay");
    assert!((1_100_000..=1_200_000).contains(&delay.parse::<u64>().unwrap()), "{second:?}");
    let service = second.body.trim().to_ascii_lowercase();
    assert_eq!(service, format!("x-ratelimit-delay-ms: {delay}"), "the service learns it");
    for reply in [&first, &second, &denied] {
        assert_eq!(
            (reply.header("x-ratelimit-cost"), reply.header("x-ratelimit-limit")),
            (Some("1"), Some("2"))
        );
        assert!(
            reply.header("x-ratelimit-remaining").is_some() && reply.header("x-ratelimit-reset").is_some()
        );
        let named = [reply.header("ratelimit"), reply.header("ratelimit-policy")];
        assert!(named.iter().all(|value| value.is_some_and(|value| value.contains("paced"))), "{reply:?}");
    }
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    if own {
        let plans = [&first, &second, &denied].map(|reply| reply.header("x-plan"));
        assert_eq!(plans, [Some("free"), Some("free"), None]);
        assert_eq!((first.header("x-reason"), denied.header("x-reason")), (None, Some("3 an hour")));
    }
    let said = (denied.body.as_str(), denied.header("content-type"), denied.header("x-ratelimit-cause"));
    assert_eq!(said, (r#"{"error": "slow down"}"#, Some("application/json"), Some("used_up")));
    assert_eq!(denied.header("x-tidegate-body"), None, "{denied:?}");
}

const INSTEAD: &str = r#"
[[rules]]
name = "large"
match = { path = "/uses" }
per = ["api_key"]
algorithm = "fixed_window"
limit = 1
window = "24h"
on_deny = { use = "small" }
"#;

/// Client and service learn what to use instead, from Tidegate alone.
pub(super) fn tells_what_to_use_instead(start: Start) {
    let daemon = Daemon::with_rules(INSTEAD);
    let front = start(&[daemon.http]);
    // Services behind CGI and WSGI take `_` for `-`. A gateway may refuse such names.
    for (path, odd) in [
        ("/uses", "x_tidegate_use"),
        ("/uses", "X_Tidegate-Use"),
        ("/uses", "X-TIDEGATE_USE"),
        ("/delays", "X_RateLimit_Delay_Ms"),
        ("/delays", "x-ratelimit_delay-ms"),
        ("/delays", "x-ratelimit-delay_ms"),
    ] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: {odd}\r\n");
        let shown = http::raw(front.addr, format!("{head}{odd}: 77\r\n\r\n").as_bytes()).unwrap();
        assert!(shown.status == 400 || shown.body.is_empty(), "{odd}: the service sees {}", shown.body);
    }
    // A client must not choose it.
    let ask = || http::get(front.addr, "/uses", &[("x-api-key", "k"), ("x-tidegate-use", "gold")]);
    let (first, second) = (ask(), ask());
    assert_eq!(
        (first.status, first.header("x-tidegate-use"), first.body.trim()),
        (200, None, ""),
        "{first:?}"
    );
    assert_eq!((second.status, second.header("x-tidegate-use")), (200, Some("small")), "{second:?}");
    assert_eq!(second.body.trim().to_ascii_lowercase(), "x-tidegate-use: small", "the service learns it");
}

pub(super) fn passes_what_is_left_and_says_when_to_come_back(start: Start) {
    let daemon = Daemon::with_rules(&replaced(RULES, "limit = 3", "limit = 100"));
    let front = start(&[daemon.http]);
    let passed = front.get("key-a", "/api/things?page=1");
    assert_eq!((passed.status, passed.body.as_str()), (200, "served /api/things?page=1\n"));
    let shown = ["x-ratelimit-limit", "x-ratelimit-remaining", "retry-after"].map(|name| passed.header(name));
    assert_eq!(shown, [Some("100"), Some("99"), None]);
    assert!(passed.header("x-ratelimit-reset").is_some());
    assert_eq!(front.statuses("key-a", "/api/things", 99), [200; 99]);
    let denied = front.get("key-a", "/api/things");
    assert_eq!((denied.status, denied.header("x-ratelimit-remaining")), (429, Some("0")), "the 101st");
    let retry: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&retry));
    assert!(denied.header("ratelimit").unwrap().contains("per-key"));
    assert_eq!(front.get("key-b", "/api/things").status, 200, "another key has a bucket of its own");
    let other = front.get("key-a", "/other");
    assert_eq!((other.body.as_str(), other.header("x-ratelimit-limit")), ("served /other\n", None));
    let head = http::request(front.addr, "HEAD", "/api/things", &[("x-api-key", "key-a")], b"");
    assert_eq!((head.status, head.body.as_str()), (429, ""));
    let post = http::request(front.addr, "POST", "/api/things", &[("x-api-key", "key-b")], b"a body");
    assert_eq!((post.status, post.header("x-ratelimit-remaining")), (200, Some("98")));
    // Two questions of one connection: nothing of the first answer is left for the second.
    let head = |key: &str, end: &str| {
        format!("GET /api/x HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\nconnection: {end}\r\n\r\n")
    };
    let both = head("key-c", "keep-alive") + &head("key-a", "close");
    let answers = http::raw(front.addr, both.as_bytes()).unwrap();
    assert_eq!(answers.status, 200);
    assert!(answers.body.contains(" 429 "), "{answers:?}");
}

pub(super) fn holds_whatever_a_client_sends(start: Start) {
    let daemon = Daemon::with_rules(RULES);
    let front = start(&[daemon.http]);
    let long = "a".repeat(1_100);
    let limited = [200, 200, 200, 429, 429];
    let times = |path: &[u8], header: &[u8]| [(); 5].map(|()| front.raw(path, header));
    for key in [long.as_bytes(), &[long.as_bytes(), b"b"].concat(), b"k\xff", b"k"] {
        assert_eq!(times(b"/api/search", &[b"x-api-key: ", key].concat()), limited);
    }
    // Used up by one path is used up by any other. A gateway may refuse what is no path.
    for path in [format!("/api/{long}").as_bytes(), b"/api/caf%e9", format!("/api/x?{long}").as_bytes()] {
        assert_eq!(front.raw(path, b"x-api-key: k"), 429);
    }
    for path in
        [&b"/api/caf\xe9"[..], b"/api/x\x01", b"/api/x#y", b"/api/%zz", b"/api/x\x7f", b"http://x/api/x"]
    {
        let status = front.raw(path, b"x-api-key: k");
        assert!([400, 429].contains(&status), "{status} to {path:?}");
    }
    for path in [format!("/closed?{long}").as_bytes(), b"/closed?x=%ff"] {
        assert_eq!(front.raw(path, b"x-a: b"), 403);
    }
    // An empty header, or one that is none, is the client's fault, and no sign that Tidegate is away.
    let odd: [&[u8]; 7] = [
        b"x-api-key: k\x01",
        b"authorization: Bearer \x02",
        b"x-forwarded-for: \x03\r\nx-api-key: k",
        b"x-forwarded-for:\r\nx-api-key: k",
        b"x-api-key:\r\nx-api-key: k",
        b"x-api-key: k\r\nx-api-key: j",
        b"x-api-key: k\r\nhost: y",
    ];
    for header in odd {
        let status = front.raw(b"/api/x", header);
        assert!([400, 429].contains(&status), "{status} to {:?}", String::from_utf8_lossy(header));
    }
    let unnamed = http::raw(front.addr, b"GET /api/x HTTP/1.0\r\nx-api-key: k\r\n\r\n").unwrap();
    assert!([400, 429].contains(&unnamed.status), "without a host: {unnamed:?}");
}

pub(super) fn holds_every_spelling(start: Start) {
    let daemon = Daemon::with_rules(RULES);
    let front = start(&[daemon.http]);
    assert_eq!([(); 4].map(|()| front.raw(b"/api/search", b"x-api-key: k")), [200, 200, 200, 429]);
    for path in SEARCH {
        assert_eq!(front.raw(path.as_bytes(), b"x-api-key: k"), 429, "{path} is limited");
    }
    // A gateway may refuse what is no host.
    for host in ADMIN_HOST.iter().chain(ODD_HOST) {
        let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let status = http::raw(front.addr, head.as_bytes()).unwrap().status;
        assert!([400, 403].contains(&status), "{status} to {host}");
    }
    let named =
        http::raw(front.addr, b"GET / HTTP/1.1\r\nhost: admin.example.com:443\r\nconnection: close\r\n\r\n");
    assert_eq!(named.unwrap().status, 403);
}

pub(super) fn believes_no_client(start: Start) {
    let daemon = Daemon::with_rules(RULES);
    let front = start(&[daemon.http]);
    let claims = [
        ("x-tidegate-user", "mallory"),
        ("x-forwarded-uri", "/closed"),
        ("x-original-uri", "/closed"),
        ("x-forwarded-method", "POST"),
        ("x-original-method", "POST"),
        ("x-forwarded-host", "admin.example.com"),
    ];
    for claim in claims {
        assert_eq!(http::get(front.addr, "/other", &[claim]).status, 200, "{claim:?}");
        assert_eq!(http::get(front.addr, "/closed", &[(claim.0, "/other")]).status, 403, "{claim:?}");
    }
    let write = |method: &str, host: &str, from: &str| {
        let head = format!(
            "{method} /cart HTTP/1.1\r\nhost: {host}\r\nx-forwarded-for: {from}\r\nconnection: close\r\n\r\n"
        );
        http::raw(front.addr, head.as_bytes()).unwrap().status
    };
    assert_eq!(write("POST", "shop.example", "203.0.113.1"), 200);
    assert_eq!(write("POST", "shop.example", "203.0.113.2"), 503, "a client cannot claim another address");
    assert_eq!(write("GET", "shop.example", "203.0.113.1"), 200);
    assert_eq!(write("POST", "other.example", "203.0.113.1"), 200);
}

pub(super) fn loses_nothing_in_a_rolling_restart(start: Start) {
    let launch = Launch { drain: Some("4s"), ..Launch::default() };
    let rules = replaced(RULES, "limit = 3", "limit = 1000000000");
    let mut daemons = [(); 2].map(|()| Daemon::launch(launch, &rules, "", &[]));
    let front = start(&[daemons[0].http, daemons[1].http]);
    // Longer than two intervals of the health checks.
    let settle = |_: &Daemon| std::thread::sleep(Duration::from_millis(2_500));
    rolling::restart(&mut daemons, front.addr, &[("x-api-key", "key-a")], settle);
}

const CREDENTIALS: &str = r#"
[[rules]]
name = "per-key"
match = { path = "/api/*" }
per = ["api_key"]
algorithm = "fixed_window"
limit = 3
window = "24h"
"#;

/// Ways to show `Bearer real` beside something else, or otherwise. Each is counted as `real`.
pub(super) const REAL: &[&[u8]] = &[
    b"authorization: Bearer real",
    b"authorization: Bearer real\r\nx-api-key: made-up",
    b"authorization: Bearer real\r\nx-api-key: made-up-2",
    b"authorization: Bearer real\r\nx-api-key: tgk_",
    b"authorization: Bearer real\r\nx-api-key: tgk_abcdefGHI012_abcdefghijklmnopqrstuvwxyzABCDEF",
    b"authorization: Bearer real\r\nx-api-key:",
    b"authorization: Bearer real\r\nx-api-key: \t",
    b"authorization: Bearer\treal",
    b"authorization: bearer  real",
    b"authorization: Bearer real trailing",
    b"authorization: Bearer\xa0real",
    b"authorization: Basic cmVhbA==",
    b"authorization: Basic cmVhbA",
    b"authorization: Basic cmVhbB==",
    b"authorization: real",
    b"x-api-key: real",
    // Of a header that comes twice a gateway may send either, or both.
    b"x-api-key: real\r\nx-api-key: made-up",
    b"authorization: Bearer real\r\nauthorization: made-up",
];

/// A client that leaves its key out, or invents one for each request, is held by the rules that the gateway's
/// page prints, and the head of its file too.
pub(super) fn holds_whoever_shows_no_key(start: Start, page: &str, file: &str) {
    let rules = manual::rules_of(page);
    manual::assert_at_head(&rules, file);
    let daemon = Daemon::with_rules(&manual::few(&rules));
    let front = start(&[daemon.http]);
    manual::assert_holds_whoever_asks(|key| match key {
        Some(key) => front.get(key, "/api/things").status,
        None => http::get(front.addr, "/api/things", &[]).status,
    });
}

/// A client is counted by what its service may read, whatever stands beside it.
pub(super) fn counts_whoever_asks(start: Start) {
    let daemon = Daemon::with_rules(CREDENTIALS);
    let front = start(&[daemon.http]);
    let real = b"authorization: Bearer real";
    assert_eq!([(); 4].map(|()| front.raw(b"/api/x", real)), [200, 200, 200, 429]);
    for header in REAL {
        // A gateway may refuse what is no header.
        let status = front.raw(b"/api/x", header);
        assert!([400, 429].contains(&status), "{status} to {:?}", String::from_utf8_lossy(header));
    }
    for twice in [&b"x-api-key: one\r\nx-api-key: "[..], b"authorization: two\r\nauthorization: "] {
        let statuses = [1, 2, 3, 4, 5].map(|number: u8| {
            let header = [twice, number.to_string().as_bytes()].concat();
            front.raw(b"/api/x", &header)
        });
        let limited = statuses == [200, 200, 200, 429, 429] || statuses == [400; 5];
        assert!(limited, "{statuses:?} to {:?}", String::from_utf8_lossy(twice));
    }
    // What reaches the service was counted.
    let head = "GET /keys HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    for odd in ["x_api_key: real", "x-api_key: real", "X_API-KEY: real"] {
        let shown = http::raw(front.addr, format!("{head}{odd}\r\n\r\n").as_bytes()).unwrap();
        let counted = front.raw(b"/api/x", odd.as_bytes());
        assert!(
            shown.status == 400 || shown.body.is_empty() || counted == 429,
            "{odd}: {counted}, and the service sees {}",
            shown.body
        );
    }
}
