//! A stock Envoy enforces our limits: the real program, with the file that `deploy/envoy` gives to users.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(unreachable_pub, reason = "the servers are shared with other tests")]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

#[path = "envoy/budgets.rs"]
mod budgets;
#[path = "envoy/in_flight.rs"]
mod in_flight;
#[path = "envoy/quotas.rs"]
mod quotas;
#[path = "support/redis_servers.rs"]
mod redis_servers;
mod support;

use std::net::SocketAddr;

use support::daemon::{Daemon, Launch};
use support::http::{self, Reply};
use support::process::Process;
use support::spellings::{ADMIN_HOST, ODD_HOST, SEARCH};
use support::web_authority::WebAuthority;
use support::{envoy, eventually, free_tcp, manual, origin, paced, rolling};
use tempfile::TempDir;

fn rules(limit: u32) -> String {
    format!(
        "[[rules]]\nname = \"per-user\"\nmatch = {{ path = \"/api/*\" }}\nper = [\"user\"]\n\
         algorithm = \"fixed_window\"\nlimit = {limit}\nwindow = \"24h\"\nmessage = \"Enough for today.\"\n"
    )
}

/// Envoy in front of a service, asking a daemon.
struct Front {
    envoy: Process,
    addr: SocketAddr,
    admin: SocketAddr,
    _folder: TempDir,
}

impl Front {
    fn start(grpc: SocketAddr) -> Self {
        Self::with(grpc, &[])
    }

    /// With some texts of the file exchanged, each of which it says once.
    fn with(grpc: SocketAddr, exchanged: &[(&str, &str)]) -> Self {
        Self::start_with(&[grpc], exchanged)
    }

    fn start_for(daemons: &[SocketAddr]) -> Self {
        Self::start_with(daemons, &[])
    }

    fn start_with(daemons: &[SocketAddr], exchanged: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let (addr, admin, service) = (free_tcp(), free_tcp(), origin::start());
        let mut config = include_str!("../deploy/envoy/envoy.yaml").to_owned();
        for (from, to) in
            [("port_value: 10000", addr), ("port_value: 9901", admin), ("port_value: 8000", service)]
        {
            assert_eq!(config.matches(from).count(), 1, "deploy/envoy/envoy.yaml says {from} once");
            config = config.replace(from, &format!("port_value: {}", to.port()));
        }
        let endpoint = "              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8081 } } }\n";
        assert_eq!(config.matches(endpoint).count(), 1, "deploy/envoy/envoy.yaml names one daemon");
        let of = |at: &SocketAddr| endpoint.replace("8081", &at.port().to_string());
        config = config.replace(endpoint, &daemons.iter().map(of).collect::<String>());
        for (from, to) in exchanged {
            assert_eq!(config.matches(from).count(), 1, "deploy/envoy/envoy.yaml says {from} once");
            config = config.replace(from, to);
        }
        let mut envoy = envoy::start(folder.path(), &config);
        eventually("Envoy has found Tidegate healthy", || {
            assert!(envoy.ended().is_none(), "Envoy ended:\n{}", envoy.output());
            daemons.iter().all(|daemon| is_healthy(admin, *daemon)).then_some(())
        });
        eventually("Envoy serves", || {
            http::raw(addr, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        });
        Self { envoy, addr, admin, _folder: folder }
    }

    fn get(&self, user: &str, path: &str) -> Reply {
        http::get(self.addr, path, &[("x-user", user)])
    }

    fn statuses(&self, user: &str, path: &str, times: usize) -> Vec<u16> {
        (0..times).map(|_| self.get(user, path).status).collect()
    }

    /// Statuses of requests with any bytes as their path and user.
    fn raw(&self, user: &[u8], path: &[u8], times: usize) -> Vec<u16> {
        let head: [&[u8]; 5] =
            [b"GET ", path, b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-user: ", user, b"\r\n\r\n"];
        (0..times).map(|_| http::raw(self.addr, &head.concat()).unwrap().status).collect()
    }
}

/// What switches Envoy's own spelling of paths off, so that Tidegate is on its own.
const AS_THEY_CAME: &[(&str, &str)] = &[
    ("normalize_path: true", "normalize_path: false"),
    ("merge_slashes: true", "merge_slashes: false"),
    (
        "path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD",
        "path_with_escaped_slashes_action: KEEP_UNCHANGED",
    ),
];

const HOSTILE: &str = r#"
[[rules]]
name = "per-user"
match = { path = "/api/*" }
per = ["user"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "admin"
match = { path = "/admin*" }
action = "block"

[[rules]]
name = "admin-host"
match = { host = "admin.example.com" }
action = "block"

[[rules]]
name = "per-address"
match = { path = "/address" }
per = ["ip"]
algorithm = "fixed_window"
limit = 3
window = "24h"
"#;

#[test]
fn nothing_that_a_client_chooses_makes_envoy_pass_a_request() {
    for deny in ["failure_mode_deny: false", "failure_mode_deny: true"] {
        let daemon = Daemon::with_rules(HOSTILE);
        let front = Front::with(daemon.grpc, &[("failure_mode_deny: false", deny)]);
        let limited = [200, 200, 200, 429, 429];
        let long = "a".repeat(1_100);
        for user in [long.as_bytes(), &[long.as_bytes(), b"b"].concat(), b"u1\xff", b"u1\xfe", b"", b"u2"] {
            let shown = String::from_utf8_lossy(user).chars().take(9).collect::<String>();
            assert_eq!(front.raw(user, b"/api/search", 5), limited, "{deny}: {shown:?}");
        }
        // Used up by one path is used up by any other, however long.
        for path in
            [format!("/api/search?q={long}"), format!("/api/{long}"), format!("/api/{}", "é".repeat(900))]
        {
            let path = path.replace('é', "%C3%A9");
            assert_eq!(front.raw(b"u2", path.as_bytes(), 2), [429, 429], "{deny}: {} bytes", path.len());
            assert_eq!(
                front.raw(path.as_bytes(), path.as_bytes(), 5),
                limited,
                "{deny}: an honest long path"
            );
        }
        for path in ["/admin", "/admin?", &format!("/admin?{long}"), &format!("/admin/{long}")] {
            assert_eq!(front.raw(b"u3", path.as_bytes(), 2), [429, 429], "{deny}: {path}");
        }
        // A descriptor holds the address too: a client without a name, or with an odd one, has that.
        assert_eq!(http::get(front.addr, "/address", &[]).status, 200);
        assert_eq!(
            front.raw(b"\xff", format!("/address?{long}").as_bytes(), 4),
            [200, 200, 429, 429],
            "{deny}"
        );
        let claimed = http::get(front.addr, "/address", &[("x-forwarded-for", "192.0.2.1")]);
        assert_eq!(claimed.status, 429, "{deny}: a client cannot claim another address");
        assert_eq!(daemon.metric("tidegate_requests_rejected_total{listener=\"rls\"}"), Some(0.0));
    }
}

#[test]
fn every_spelling_of_a_path_and_a_host_is_held_at_envoy() {
    for exchanged in [&[][..], AS_THEY_CAME] {
        let daemon = Daemon::with_rules(&HOSTILE.replace("/admin*", "/api/search"));
        let front = Front::with(daemon.grpc, exchanged);
        for path in SEARCH {
            let status = front.raw(b"u", path.as_bytes(), 1)[0];
            assert!(status == 429 || status == 400, "{path} is blocked: {status}, {exchanged:?}");
        }
        let daemon = Daemon::with_rules(HOSTILE);
        let front = Front::with(daemon.grpc, exchanged);
        assert_eq!(front.raw(b"u", b"/api/search", 4), [200, 200, 200, 429]);
        for path in SEARCH {
            let status = front.raw(b"u", path.as_bytes(), 1)[0];
            assert!(status == 429 || status == 400, "{path} is limited: {status}, {exchanged:?}");
        }
        for host in ADMIN_HOST.iter().chain(ODD_HOST) {
            let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            let status = http::raw(front.addr, head.as_bytes()).unwrap().status;
            // A gateway may refuse what is no host.
            assert!([400, 429].contains(&status), "{status} to {host}");
        }
    }
}

/// Whether Envoy finds this daemon healthy.
fn is_healthy(admin: SocketAddr, daemon: SocketAddr) -> bool {
    let probe = b"GET /clusters HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let healthy = format!("tidegate::{daemon}::health_flags::healthy");
    http::raw(admin, probe).is_some_and(|clusters| clusters.body.contains(&healthy))
}

#[test]
fn requests_past_the_limit_get_429_and_others_200() {
    let daemon = Daemon::with_rules(&rules(3));
    let front = Front::start(daemon.grpc);
    assert_eq!(front.statuses("ann", "/api/things", 5), [200, 200, 200, 429, 429]);
    assert_eq!(front.statuses("bob", "/api/things", 2), [200, 200], "another user has a bucket of its own");
    assert_eq!(front.statuses("ann", "/other", 2), [200, 200], "no rule is for this path");
    let anonymous = http::get(front.addr, "/api/things", &[]);
    assert_eq!(
        (anonymous.status, anonymous.body.as_str()),
        (200, "served /api/things\n"),
        "no descriptor, no limit"
    );
    assert!(!front.envoy.output().contains("panic"));
}

#[test]
fn answers_carry_the_headers_of_draft_03() {
    let daemon = Daemon::with_rules(&rules(2));
    let front = Front::start(daemon.grpc);
    let header = |reply: &Reply, name: &str| {
        reply.header(name).unwrap_or_else(|| panic!("no {name}: {reply:?}")).to_owned()
    };
    for (remaining, status) in [("1", 200), ("0", 200), ("0", 429)] {
        let reply = front.get("ann", "/api/x");
        assert_eq!(reply.status, status);
        let limit = header(&reply, "x-ratelimit-limit");
        assert!(limit.starts_with("2, 2;w=86400"), "{limit}");
        assert!(limit.contains("per-user"), "{limit}");
        assert_eq!(header(&reply, "x-ratelimit-remaining"), remaining);
        let reset: u64 = header(&reply, "x-ratelimit-reset").parse().unwrap();
        assert!(reset <= 86_400, "seconds until the window ends: {reset}");
    }
    let denied = front.get("ann", "/api/x");
    assert!(denied.header("x-envoy-ratelimited").is_some(), "{denied:?}");
}

#[test]
fn a_raised_limit_takes_force_while_envoy_keeps_asking() {
    let daemon = Daemon::with_rules(&rules(2));
    let front = Front::start(daemon.grpc);
    assert_eq!(front.statuses("ann", "/api/x", 3), [200, 200, 429]);
    daemon.reload(&rules(4), "per-user", 4);
    assert_eq!(front.statuses("ann", "/api/x", 3), [200, 200, 429]);
}

#[test]
fn the_snippet_that_the_demo_prints_works_as_printed() {
    let folder = TempDir::new().unwrap();
    let mut demo = support::command::command(folder.path());
    demo.args(["demo", "--limit", "5", "--window", "1h", "--load", "0"]);
    let mut demo = Process::start(&mut demo, &folder.path().join("demo.log"));
    let printed = eventually("the demo prints its snippet", || {
        assert!(demo.ended().is_none(), "{}", demo.output());
        let output = demo.output();
        let (_, rest) = output.split_once("http_filters:\n")?;
        let (filters, rest) = rest.split_once("  # ")?;
        let (_, rest) = rest.split_once("  clusters:\n")?;
        let (clusters, _) = rest.split_once("\n\n")?;
        Some((filters.to_owned(), clusters.to_owned()))
    });
    let (addr, service) = (free_tcp(), origin::start());
    let mut envoy = envoy::start(folder.path(), &around(&printed.0, &printed.1, addr, service));
    eventually("Envoy enforces the demo's limit", || {
        assert!(envoy.ended().is_none(), "Envoy ended:\n{}", envoy.output());
        let reply = http::raw(addr, b"GET /demo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        (reply.status == 429).then_some(())
    });
}

/// Envoy with a file of `deploy/envoy` under its route.
fn front_of(daemons: &[SocketAddr], under_route: &str) -> Front {
    let route = "                          route:\n";
    let more: String = under_route.lines().map(|line| format!("{:26}{line}\n", "")).collect();
    Front::start_with(daemons, &[(route, &(more + route))])
}

/// Envoy with `deploy/envoy/tokens.yaml` in its place.
fn tokens_front(grpc: SocketAddr) -> Front {
    front_of(&[grpc], include_str!("../deploy/envoy/tokens.yaml"))
}

#[test]
fn what_a_response_used_is_charged_when_its_stream_is_done() {
    let budget = "[[rules]]\nname = \"tokens\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 1000\n\
                  window = \"24h\"\ncharge = \"always\"\n";
    let daemon = Daemon::with_rules(budget);
    let front = tokens_front(daemon.grpc);
    let times = std::env::var("TIDEGATE_REPORTS").ok().and_then(|times| times.parse().ok()).unwrap_or(30);
    for user in 0..times {
        let user = format!("u{user}");
        for turn in 1..=3 {
            assert_eq!(front.get(&user, "/tokens/400").status, 200, "request {turn} of {user}");
            // Envoy reports after it has answered.
            let expected = serde_json::json!(turn * 400);
            eventually("the response is charged", || {
                let bucket = daemon.get(&format!("/v1/buckets?rule=tokens&user={user}")).json();
                (bucket["used"] == expected).then_some(())
            });
        }
        assert_eq!(front.get(&user, "/tokens/400").status, 429, "{user}");
    }
}

/// A whole configuration around the parts that the demo prints.
fn around(filters: &str, clusters: &str, addr: SocketAddr, service: SocketAddr) -> String {
    let filters: String = filters.lines().map(|line| format!("        {line}\n")).collect();
    format!(
        r#"
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - name: everything
              domains: ["*"]
              routes:
              - match: {{ prefix: "/" }}
                route:
                  cluster: service
                  rate_limits: [{{ actions: [{{ request_headers: {{ header_name: ':path', descriptor_key: path }} }}] }}]
          http_filters:
{filters}
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: service
    type: STATIC
    load_assignment:
      cluster_name: service
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }} }}] }}]
{clusters}
"#,
        addr.port(),
        service.port()
    )
}

#[test]
fn without_tidegate_requests_pass_as_the_file_says() {
    let mut daemon = Daemon::with_rules(&rules(1));
    let front = Front::start(daemon.grpc);
    assert_eq!(front.statuses("ann", "/api/x", 2), [200, 429]);
    assert_eq!(daemon.terminate().code(), Some(0));
    eventually("Envoy passes what it cannot ask about", || {
        (front.get("ann", "/api/x").status == 200).then_some(())
    });
}

#[test]
fn a_rolling_restart_of_two_daemons_loses_no_request() {
    // As it is without configuration.
    let launch = Launch { drain: Some("5s"), ..Launch::default() };
    let mut daemons = [(); 2].map(|()| Daemon::launch(launch, &rules(1_000_000_000), "", &[]));
    let front = Front::start_for(&[daemons[0].grpc, daemons[1].grpc]);
    let settle = |daemon: &Daemon| {
        eventually("Envoy finds the new daemon healthy", || {
            is_healthy(front.admin, daemon.grpc).then_some(())
        });
    };
    rolling::restart(&mut daemons, front.addr, &[("x-user", "ann")], settle);
}

#[test]
fn requests_are_paced_at_envoy_where_the_daemon_holds_answers_back() {
    let daemon = Daemon::with_rules(paced::RULE);
    let front = Front::start(daemon.grpc);
    paced::are_paced(|| front.get("ann", "/paced"));
    assert!(daemon.metric("tidegate_throttle_holds_total{outcome=\"held\"}") >= Some(6.0));
}

#[test]
fn a_delay_that_is_not_held_back_is_told_to_the_client() {
    let daemon = Daemon::with_rules(
        &paced::RULE.replace("\"hold\"", "\"header\"").replace("\"1s\"", "\"100s\"").replace("4s", "10m"),
    );
    let front = Front::start(daemon.grpc);
    let delay = || {
        front.get("ann", "/paced").header("x-ratelimit-delay-ms").map(|millis| millis.parse::<u64>().unwrap())
    };
    assert_eq!(delay(), None);
    let delays = [delay().unwrap(), delay().unwrap()];
    assert!(delays[0] <= 20_000 && delays[1] > delays[0] && delays[1] <= 40_000, "{delays:?}");
}

#[test]
fn client_and_service_learn_from_envoy_what_to_use_instead() {
    let rule = "[[rules]]\nname = \"large\"\nmatch = { path = \"/uses\" }\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                limit = 1\nwindow = \"24h\"\non_deny = { use = \"small\" }\n";
    let daemon = Daemon::with_rules(rule);
    let front = Front::start(daemon.grpc);
    // A client must not choose it.
    let ask = || http::get(front.addr, "/uses", &[("x-user", "ann"), ("x-tidegate-use", "gold")]);
    let (first, second) = (ask(), ask());
    assert_eq!(
        (first.status, first.header("x-tidegate-use"), first.body.trim()),
        (200, None, ""),
        "{first:?}"
    );
    assert_eq!((second.status, second.header("x-tidegate-use")), (200, Some("small")), "{second:?}");
    assert_eq!(second.body.trim().to_ascii_lowercase(), "x-tidegate-use: small", "the service learns it");
}

#[test]
fn a_rules_own_body_reaches_the_client_with_its_media_type() {
    let text = rules(1);
    let line = text.lines().find(|line| line.starts_with("message = ")).unwrap();
    let own = "message = '{\"error\": \"slow down\"}'\nmessage_type = \"application/json\"";
    let daemon = Daemon::with_rules(&text.replace(line, own));
    let front = Front::start(daemon.grpc);
    assert_eq!(front.get("ann", "/api/x").status, 200);
    let denied = front.get("ann", "/api/x");
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/json")), "{denied:?}");
    assert_eq!(denied.json(), serde_json::json!({ "error": "slow down" }));
}

#[test]
fn a_rules_own_headers_and_its_problem_document_reach_the_client() {
    let own =
        "headers = { X-Reason = \"1 a day\" }\nheaders_admitted = { X-Plan = \"free\" }\nproblem = true\n";
    let daemon = Daemon::with_rules(&(rules(1) + own));
    let front = Front::start(daemon.grpc);
    let passed = front.get("ann", "/api/x");
    assert_eq!(
        (passed.status, passed.header("x-plan"), passed.header("x-reason")),
        (200, Some("free"), None)
    );
    let denied = front.get("ann", "/api/x");
    assert_eq!(
        (denied.status, denied.header("x-plan"), denied.header("x-reason")),
        (429, None, Some("1 a day"))
    );
    assert_eq!(denied.header("content-type"), Some("application/problem+json"), "{denied:?}");
    let problem = denied.json();
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-user"]));
    // Over gRPC the status is the gateway's, so the document names none.
    assert_eq!(
        (&problem["status"], &problem["detail"]),
        (&serde_json::Value::Null, &"Enough for today.".into())
    );
}

#[test]
fn envoy_asks_over_tls_and_shows_its_certificate() {
    let (folder, authority) = (TempDir::new().unwrap(), WebAuthority::new());
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (server, client) = (authority.issue(1), authority.issue(2));
    let ca = file("ca.pem", &authority.pem);
    let config = format!(
        "[listen.grpc_tls]\ncert = \"{}\"\nkey = \"{}\"\nclients = \"{ca}\"\n",
        file("server.pem", &server.cert),
        file("server.key", &server.key)
    );
    let daemon = Daemon::with(&rules(3), &config, &[]);
    let secured = format!(
        "      transport_socket:\n        name: envoy.transport_sockets.tls\n        typed_config:\n          \
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n          \
         sni: localhost\n          common_tls_context:\n            tls_certificates:\n              \
         - certificate_chain: {{ filename: \"{}\" }}\n                private_key: {{ filename: \"{}\" }}\n            \
         validation_context: {{ trusted_ca: {{ filename: \"{ca}\" }} }}\n    - name: service\n",
        file("client.pem", &client.cert),
        file("client.key", &client.key)
    );
    let front = Front::with(daemon.grpc, &[("    - name: service\n", &secured)]);
    assert_eq!(front.statuses("ada", "/api/x", 5), [200, 200, 200, 429, 429]);
}

#[test]
fn a_client_without_a_name_is_held_at_envoy_by_the_rules_of_the_page() {
    let rules = manual::rules_of(include_str!("../docs/tasks/limit-an-api-behind-envoy.md"));
    manual::assert_at_head(&rules, include_str!("../deploy/envoy/envoy.yaml"));
    let daemon = Daemon::with_rules(&manual::few(&rules));
    let front = Front::start(daemon.grpc);
    manual::assert_holds_whoever_asks(|user| match user {
        Some(user) => front.get(user, "/api/things").status,
        None => http::get(front.addr, "/api/things", &[]).status,
    });
}
