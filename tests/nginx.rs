//! A stock nginx enforces our limits with `auth_request`: the real program, with the file that `deploy/nginx`
//! gives to users.
//!
//! `tests/run` installs nginx; without it these tests fail, they do not skip.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

#[path = "nginx/origins.rs"]
mod origins;
mod support;

use std::net::SocketAddr;
use std::time::Duration;

use support::daemon::{Daemon, Launch};
use support::http::{self, Reply};
use support::process::Process;
use support::spellings::{ADMIN_HOST, ODD_HOST, SEARCH};
use support::{eventually, free_tcp, manual, origin, paced, rolling};
use tempfile::TempDir;

const RULES: &str = r#"
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

/// nginx in front of a service, asking a daemon.
struct Front {
    addr: SocketAddr,
    nginx: Process,
    _folder: TempDir,
}

impl Front {
    fn start(tidegate: SocketAddr) -> Self {
        Self::start_for(&[tidegate])
    }

    fn start_for(daemons: &[SocketAddr]) -> Self {
        Self::start_with(daemons, &[])
    }

    /// With some texts of the file exchanged.
    fn start_with(daemons: &[SocketAddr], exchanged: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let (addr, service) = (free_tcp(), origin::start());
        let mut config = include_str!("../deploy/nginx/tidegate.conf").to_owned();
        for (from, to) in [("listen 127.0.0.1:8088;", addr), ("proxy_pass http://127.0.0.1:8000;", service)] {
            assert_eq!(config.matches(from).count(), 1, "deploy/nginx/tidegate.conf says {from} once");
            let port = from.rsplit(':').next().unwrap();
            config = config.replace(from, &from.replace(port, &format!("{};", to.port())));
        }
        let server = "    server 127.0.0.1:8080 fail_timeout=1s;\n";
        assert_eq!(config.matches(server).count(), 1, "deploy/nginx/tidegate.conf names one server");
        let of = |at: &SocketAddr| server.replace("8080", &at.port().to_string());
        config = config.replace(server, &daemons.iter().map(of).collect::<String>());
        for (from, to) in exchanged {
            assert!(config.contains(from), "deploy/nginx/tidegate.conf says {from}");
            config = config.replace(from, to);
        }
        let mut nginx = support::nginx::start(folder.path(), &config);
        eventually("nginx serves", || {
            assert!(nginx.ended().is_none(), "nginx ended:\n{}", nginx.output());
            http::raw(addr, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        });
        Self { addr, nginx, _folder: folder }
    }

    fn get(&self, key: &str, path: &str) -> Reply {
        http::get(self.addr, path, &[("x-api-key", key)])
    }

    fn statuses(&self, key: &str, path: &str, times: usize) -> Vec<u16> {
        (0..times).map(|_| self.get(key, path).status).collect()
    }
}

impl Front {
    /// Statuses of requests with any bytes in their path and in one header.
    fn raw(&self, path: &[u8], header: &[u8], times: usize) -> Vec<u16> {
        let head: [&[u8]; 5] =
            [b"GET ", path, b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n", header, b"\r\n\r\n"];
        (0..times).map(|_| http::raw(self.addr, &head.concat()).unwrap().status).collect()
    }
}

#[test]
fn requests_past_the_limit_get_429_and_others_200() {
    let daemon = Daemon::with_rules(RULES);
    let mut front = Front::start(daemon.http);
    assert_eq!(front.statuses("key-a", "/api/things?page=1", 5), [200, 200, 200, 429, 429]);
    assert_eq!(front.statuses("key-b", "/api/things", 2), [200, 200], "another key has a bucket of its own");
    assert_eq!(front.get("key-a", "/other").body, "served /other\n", "no rule is for this path");
    assert!(front.nginx.ended().is_none());
}

#[test]
fn a_denial_of_the_second_server_that_was_asked_is_a_denial() {
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start_for(&[free_tcp(), daemon.http]);
    assert_eq!(front.statuses("key-a", "/api/things", 4), [200, 200, 200, 429]);
    for _ in 0..3 {
        // The server that is gone is tried again after `fail_timeout`.
        std::thread::sleep(Duration::from_millis(1_200));
        assert_eq!(front.statuses("key-a", "/api/things", 2), [429, 429]);
    }
}

#[test]
fn the_client_sees_the_limit_and_when_to_come_back() {
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
    let passed = front.get("key-a", "/api/x");
    assert_eq!(
        (passed.header("x-ratelimit-limit"), passed.header("x-ratelimit-remaining")),
        (Some("3"), Some("2"))
    );
    assert_eq!(passed.header("retry-after"), None);
    front.statuses("key-a", "/api/x", 2);
    let denied = front.get("key-a", "/api/x");
    assert_eq!((denied.status, denied.header("x-ratelimit-remaining")), (429, Some("0")));
    let retry: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&retry));
}

#[test]
fn other_statuses_methods_hosts_and_addresses_reach_the_rules() {
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
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
    assert_eq!(front.get("key-a", "/closed").status, 403, "a block is passed on as it is");
}

#[test]
fn a_client_cannot_speak_for_the_gateway() {
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
    let claims = [
        ("x-tidegate-user", "mallory"),
        ("x-forwarded-uri", "/closed"),
        ("x-original-uri", "/closed"),
        ("x-forwarded-method", "POST"),
        ("x-forwarded-host", "shop.example"),
    ];
    for claim in claims {
        assert_eq!(http::get(front.addr, "/other", &[claim]).status, 200, "{claim:?}");
    }
    assert_eq!(http::get(front.addr, "/closed", &[("x-forwarded-uri", "/other")]).status, 403);
}

#[test]
fn the_services_own_failures_stay_its_own_and_without_tidegate_requests_pass() {
    let mut daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
    let failed = front.get("key-a", "/fail");
    assert_eq!((failed.status, failed.body.as_str()), (500, "served /fail\n"));
    assert_eq!(daemon.terminate().code(), Some(0));
    assert_eq!(front.statuses("key-a", "/api/x", 5), [200; 5]);
}

#[test]
fn a_rolling_restart_of_two_daemons_loses_no_request() {
    let launch = Launch { drain: Some("3s"), ..Launch::default() };
    let rules = RULES.replace("limit = 3", "limit = 1000000000");
    let mut daemons = [(); 2].map(|()| Daemon::launch(launch, &rules, "", &[]));
    let front = Front::start_for(&[daemons[0].http, daemons[1].http]);
    let headers = [("x-api-key", "key-a")];
    // Longer than the second for which nginx passes over a server that failed.
    let settle = |_: &Daemon| std::thread::sleep(Duration::from_millis(1_500));
    rolling::restart(&mut daemons, front.addr, &headers, settle);
}

#[test]
fn nothing_that_a_client_chooses_makes_nginx_pass_a_request() {
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
    let long = "a".repeat(1_100);
    let limited = [200, 200, 200, 429, 429];
    for key in [long.as_bytes(), &[long.as_bytes(), b"b"].concat(), b"k\xff", b"k"] {
        let header = [b"x-api-key: ", key].concat();
        assert_eq!(front.raw(b"/api/search", &header, 5), limited);
    }
    // Used up by one path is used up by any other.
    for path in [format!("/api/{long}").as_bytes(), b"/api/caf\xe9", format!("/api/x?{long}").as_bytes()] {
        assert_eq!(front.raw(path, b"x-api-key: k", 2), [429, 429]);
        assert_eq!(front.raw(path, &[b"x-api-key: ", path].concat(), 5), limited, "an honest odd path");
    }
    for path in [format!("/closed?{long}").as_bytes(), b"/closed?\xff"] {
        assert_eq!(front.raw(path, b"x-a: b", 2), [403, 403]);
    }
    // A header that is none is the client's fault, and no sign that Tidegate is away.
    for header in [&b"x-api-key: k\x01"[..], b"authorization: Bearer \x02", b"x-forwarded-for: \x03"] {
        assert_eq!(front.raw(b"/api/x", header, 2), [400, 400], "{header:?}");
    }
}

#[test]
fn every_spelling_of_a_path_and_a_host_is_held_at_nginx() {
    let daemon = Daemon::with_rules(&RULES.replace("\"/closed\"", "\"/api/search\""));
    let front = Front::start(daemon.http);
    for path in SEARCH {
        assert_eq!(front.raw(path.as_bytes(), b"x-api-key: k", 1), [403], "{path} is blocked");
    }
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
    assert_eq!(front.raw(b"/api/search", b"x-api-key: k", 4), [200, 200, 200, 429]);
    for path in SEARCH {
        assert_eq!(front.raw(path.as_bytes(), b"x-api-key: k", 1), [429], "{path} is limited");
    }
    // nginx cuts this one off at its first colon, for the service as for Tidegate: `$host` is `x`.
    let odd = ODD_HOST.iter().filter(|host| **host != "x:y@admin.example.com");
    for host in ADMIN_HOST.iter().chain(odd) {
        let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let status = http::raw(front.addr, head.as_bytes()).unwrap().status;
        // A gateway may refuse what is no host.
        assert!([400, 403].contains(&status), "{status} to {host}");
    }
}

#[test]
fn requests_are_paced_at_nginx_where_the_daemon_holds_answers_back() {
    let daemon = Daemon::with_rules(paced::RULE);
    let front = Front::start(daemon.http);
    paced::are_paced(|| front.get("key-a", "/paced"));
    assert!(daemon.metric("tidegate_throttle_holds_total{outcome=\"held\"}") >= Some(6.0));
}

#[test]
fn a_delay_that_is_not_held_back_is_told_to_the_client() {
    let daemon = Daemon::with_rules(
        &paced::RULE.replace("\"hold\"", "\"header\"").replace("\"1s\"", "\"100s\"").replace("4s", "10m"),
    );
    let front = Front::start(daemon.http);
    let delay = || {
        front
            .get("key-a", "/paced")
            .header("x-ratelimit-delay-ms")
            .map(|millis| millis.parse::<u64>().unwrap())
    };
    assert_eq!(delay(), None);
    let delays = [delay().unwrap(), delay().unwrap()];
    assert!(delays[0] <= 20_000 && delays[1] > delays[0] && delays[1] <= 40_000, "{delays:?}");
}

#[test]
fn a_rules_own_headers_reach_the_client() {
    let own =
        "headers = { X-Reason = \"3 a day\" }\nheaders_admitted = { X-Plan = \"free\" }\nwindow = \"24h\"\n";
    let daemon = Daemon::with_rules(&RULES.replacen("window = \"24h\"\n", own, 1));
    let reset = "        auth_request_set $tidegate_reset ";
    let set = format!(
        "        auth_request_set $reason $upstream_http_x_reason;\n        auth_request_set $plan $upstream_http_x_plan;\n{reset}"
    );
    let limit = "add_header X-RateLimit-Limit     $tidegate_limit     always;";
    let add = format!("{limit} add_header X-Reason $reason always; add_header X-Plan $plan always;");
    let front = Front::start_with(&[daemon.http], &[(reset, &set), (limit, &add)]);
    let told = |key: &str| {
        let reply = front.get(key, "/api/x");
        (reply.status, reply.header("x-plan").map(str::to_owned), reply.header("x-reason").map(str::to_owned))
    };
    for _ in 0..3 {
        assert_eq!(told("key-a"), (200, Some("free".to_owned()), None));
    }
    assert_eq!(told("key-a"), (429, None, Some("3 a day".to_owned())));
}

#[test]
fn the_text_of_a_denial_and_its_type_reach_the_client() {
    let limited =
        "message = '{\"error\": \"enough\"}'\nmessage_type = \"application/json\"\nwindow = \"24h\"\n";
    let blocked = "action = \"block\"\nmessage = \"First line.\\nSecond line.\"\n";
    let rules = RULES.replacen("window = \"24h\"\n", limited, 1);
    let closed = "match = { path = \"/closed\" }\naction = \"block\"\n";
    assert!(rules.contains(closed), "{rules}");
    let lines = rules.replace(closed, &format!("match = {{ path = \"/closed\" }}\n{blocked}"));
    let daemon = Daemon::with_rules(&lines);
    let front = Front::start(daemon.http);
    assert_eq!(front.statuses("key-a", "/api/x", 3), [200; 3]);
    let told =
        |reply: &Reply| (reply.status, reply.body.clone(), reply.header("content-type").map(str::to_owned));
    let text = |text: &str| Some(text.to_owned());
    let denied = front.get("key-a", "/api/x");
    assert_eq!(told(&denied), (429, "{\"error\": \"enough\"}".to_owned(), text("application/json")));
    // A block by host says nothing, so its status speaks; and several lines are in no header.
    let head = b"GET / HTTP/1.1\r\nhost: admin.example.com\r\nconnection: close\r\n\r\n";
    let forbidden = http::raw(front.addr, head).unwrap();
    assert_eq!(told(&forbidden), (403, "Forbidden".to_owned(), text("text/plain; charset=utf-8")));
    assert_eq!(told(&front.get("key-a", "/closed")), (403, "Denied\n".to_owned(), text("text/plain")));
}

#[test]
fn a_client_that_accepts_a_problem_document_gets_one_through_nginx() {
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
    assert_eq!(front.statuses("key-a", "/api/x", 3), [200; 3]);
    let accepts = [("x-api-key", "key-a"), ("accept", "application/problem+json")];
    let denied = http::get(front.addr, "/api/x", &accepts);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(denied.json()["violated-policies"][0], "per-key");
}

#[test]
fn whoever_asks_is_counted_at_nginx() {
    let daemon = Daemon::with_rules(RULES);
    let front = Front::start(daemon.http);
    assert_eq!(front.raw(b"/api/x", b"authorization: Bearer real", 4), [200, 200, 200, 429]);
    for header in [
        &b"authorization: Bearer real\r\nx-api-key: made-up"[..],
        b"authorization: Bearer real\r\nx-api-key: tgk_",
        b"authorization: Bearer real\r\nx-api-key:",
        b"authorization: Bearer\treal",
        b"authorization: Bearer real trailing",
        b"authorization: Basic cmVhbA==",
        b"authorization: Basic cmVhbB",
        b"x-api-key: real",
        b"x-api-key: real\r\nx-api-key: made-up",
    ] {
        assert_eq!(front.raw(b"/api/x", header, 1), [429], "{:?}", String::from_utf8_lossy(header));
    }
    // Of a header that comes twice this nginx reads the first, so the service gets no other.
    for twice in ["x-api-key: one\r\nx-api-key: two", "authorization: one\r\nauthorization: two"] {
        let head = format!("GET /keys HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{twice}\r\n\r\n");
        let shown = http::raw(front.addr, head.as_bytes()).unwrap();
        let first = shown.body.to_ascii_lowercase().contains("one") && !shown.body.contains("two");
        assert!(shown.status == 400 || first, "{twice}: {shown:?}");
    }
}

#[test]
fn a_client_without_a_key_is_held_at_nginx_by_the_rules_of_the_page() {
    let rules = manual::rules_of(include_str!("../docs/tasks/limit-an-api-behind-nginx.md"));
    manual::assert_at_head(&rules, include_str!("../deploy/nginx/tidegate.conf"));
    let daemon = Daemon::with_rules(&manual::few(&rules));
    let front = Front::start(daemon.http);
    manual::assert_holds_whoever_asks(|key| match key {
        Some(key) => front.get(key, "/api/things").status,
        None => http::get(front.addr, "/api/things", &[]).status,
    });
}
