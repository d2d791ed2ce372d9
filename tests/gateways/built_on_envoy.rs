//! Envoy with what the page on gateways built on it has them configure.
//!
//! None of those gateways is to be had where the tests run. What they hand to Envoy is Envoy's own, and is
//! run by it here.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::support::daemon::Daemon;
use super::support::{self, free_tcp, http, manual, origin};
use super::{Gateway, every};

const PAGE: &str = include_str!("../../docs/tasks/limit-an-api-behind-gateways-built-on-envoy.md");

const RULES: &str = r#"
[[rules]]
name = "per-user"
domain = "edge"
match = { path = "/api/*" }
per = ["user"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "writes"
domain = "edge"
match = { method = "POST", host = "shop.example" }
action = "block"

[[rules]]
name = "per-key"
domain = "edge"
match = { path = "/keys/*" }
per = ["api_key"]
algorithm = "fixed_window"
limit = 2
window = "24h"
"#;

/// The lines of the page between two of its lines, moved left by this many columns.
fn of_page(after: &str, before: &str, columns: usize) -> String {
    let (_, rest) = PAGE.split_once(after).unwrap_or_else(|| panic!("the page says {after:?}"));
    let (lines, _) = rest.split_once(before).unwrap_or_else(|| panic!("the page says {before:?}"));
    lines.lines().map(|line| format!("{}\n", line.get(columns..).unwrap_or_default())).collect()
}

/// How long an answer may take, as the page has Envoy Gateway configure it.
pub(super) fn time_of_page() -> String {
    of_page("failOpen: true\n    timeout: ", "\n", 0).trim().to_owned()
}

/// Calls that may be open at once, as the page has Envoy Gateway and a stock Envoy configure them.
pub(super) fn calls_of_page() -> u32 {
    let section = of_page("## Envoy Gateway\n", "## How to see", 0);
    let numbers = section
        .split("max")
        .skip(1)
        .filter_map(|part| part.split_once(": ")?.1.get(..5)?.parse::<u32>().ok());
    let numbers: Vec<u32> = numbers.collect();
    assert_eq!(numbers.len(), 6, "connections, pending requests and requests, of both: {numbers:?}");
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
    numbers[0]
}

fn indented(text: &str, columns: usize) -> String {
    text.lines().map(|line| format!("{:columns$}{line}\n", "")).collect()
}

/// The cluster by which Envoy asks the daemon.
pub(super) struct AskedCluster<'a> {
    pub(super) name: &'a str,
    pub(super) daemon: SocketAddr,
    pub(super) is_http2: bool,
    /// Calls that its circuit breaker leaves open at once.
    pub(super) calls_max: u32,
}

/// Envoy with one filter before the router, what its virtual host adds, and a cluster of the daemon.
pub(super) fn envoy(filter: &str, virtual_host: &str, asked: &AskedCluster<'_>) -> Gateway {
    let AskedCluster { name: cluster, daemon, is_http2, calls_max } = *asked;
    let folder = TempDir::new().unwrap();
    let (addr, service) = (free_tcp(), origin::start());
    let http2 = if is_http2 {
        "{ http2_protocol_options: { max_outbound_control_frames: 1000000, max_outbound_frames: 1000000 } }"
    } else {
        "{ http_protocol_options: {} }"
    };
    let config = format!(
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
          use_remote_address: true
          common_http_protocol_options: {{ headers_with_underscores_action: REJECT_REQUEST }}
          route_config:
            virtual_hosts:
            - name: everything
              domains: ["*"]
              routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: service }} }}]
{}
          http_filters:
{}
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: service
    type: STATIC
    load_assignment:
      cluster_name: service
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }} }}] }}]
  - name: {cluster}
    type: STATIC
    circuit_breakers: {{ thresholds: [{{ max_requests: {calls_max}, max_connections: {calls_max}, max_pending_requests: {calls_max} }}] }}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2}
    load_assignment:
      cluster_name: {cluster}
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }} }}] }}]
"#,
        addr.port(),
        indented(virtual_host, 14),
        indented(filter, 12).replacen("            name:", "          - name:", 1),
        service.port(),
        daemon.port()
    );
    let process = support::envoy::start(folder.path(), &config);
    Gateway::serving(addr, process, folder)
}

/// Envoy that asks with the headers and for the time that the page has Envoy Gateway configure.
fn asking_by_http(daemons: &[SocketAddr]) -> Gateway {
    let named = of_page("headersToExtAuth: [", "]", 0);
    let headers: Vec<String> =
        named.trim().split(", ").map(|name| format!("{{ exact: {name}, ignore_case: true }}")).collect();
    let filter = format!(
        r#"name: envoy.filters.http.ext_authz
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
  transport_api_version: V3
  failure_mode_allow: true
  http_service:
    server_uri: {{ uri: "http://tidegate", cluster: tidegate, timeout: {} }}
    path_prefix: /v1/authorize/domain=default
    authorization_request: {{ allowed_headers: {{ patterns: [{}] }} }}
"#,
        time_of_page(),
        headers.join(", ")
    );
    let cluster =
        AskedCluster { name: "tidegate", daemon: daemons[0], is_http2: false, calls_max: calls_of_page() };
    envoy(&filter, "", &cluster)
}

#[test]
fn whoever_asks_is_counted_at_envoys_ext_authz() {
    every::counts_whoever_asks(asking_by_http);
}

const BY_CREDENTIAL: &str = r#"
[[rules]]
name = "per-authorization"
domain = "edge"
match = { path = "/api/*" }
per = ["authorization"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "per-key"
domain = "edge"
match = { path = "/api/*" }
per = ["api_key"]
algorithm = "fixed_window"
limit = 3
window = "24h"
"#;

#[test]
fn whoever_asks_is_counted_at_envoys_rate_limit_filter() {
    let daemon = Daemon::with_rules(BY_CREDENTIAL);
    let filter = of_page("INSERT_BEFORE\n        value:\n", "    - applyTo: VIRTUAL_HOST", 10);
    let virtual_host = "request_headers_to_add:
- header: { key: x-api-key, value: '%REQ(x-api-key)%' }
  append_action: OVERWRITE_IF_EXISTS
  keep_empty_value: true
rate_limits:
- actions:
  - request_headers: { header_name: authorization, descriptor_key: authorization, skip_if_absent: true }
  - request_headers: { header_name: x-api-key, descriptor_key: api_key, skip_if_absent: true }
  - request_headers: { header_name: ':path', descriptor_key: path }
";
    let name = "outbound|8081||tidegate.tidegate.svc.cluster.local";
    let cluster = AskedCluster { name, daemon: daemon.grpc, is_http2: true, calls_max: 1_024 };
    let front = envoy(&filter, virtual_host, &cluster);
    let used_up = |header: &[u8]| {
        assert_eq!([(); 4].map(|()| front.raw(b"/api/x", header)), [200, 200, 200, 429]);
    };
    used_up(b"authorization: Bearer real");
    used_up(b"authorization: Basic cmVhbA==");
    used_up(b"x-api-key: real");
    for header in [
        &b"authorization: Bearer real\r\nx-api-key: made-up"[..],
        b"authorization: Bearer real\r\nx-api-key:",
        b"authorization: Bearer\treal",
        b"authorization: bearer  real",
        b"authorization: Bearer real trailing",
        b"authorization: Basic cmVhbA",
        b"authorization: Basic cmVhbB==",
        b"x-api-key: real\r\nx-api-key: made-up",
        b"x-api-key: real\r\nauthorization: Bearer made-up",
        b"x_api_key: real",
    ] {
        // Envoy may refuse what is no header.
        let status = front.raw(b"/api/x", header);
        assert!([400, 429].contains(&status), "{status} to {:?}", String::from_utf8_lossy(header));
    }
    // Of a header that comes twice this filter reads the first, so the service gets no other.
    for twice in ["x-api-key: one\r\nx-api-key: two", "x-api-key:\r\nx-api-key: two"] {
        let head = format!("GET /keys HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{twice}\r\n\r\n");
        let shown = http::raw(front.addr, head.as_bytes()).unwrap();
        assert!(shown.status == 200 && !shown.body.contains("two"), "{twice}: {shown:?}");
    }
}

#[test]
fn what_the_page_has_istio_patch_into_envoy_holds_a_limit() {
    let domain = "domain = \"edge\"\n";
    // The gateway is asked for another path until it serves.
    let of_page = manual::few(&manual::rules_of(PAGE))
        .replace(domain, &format!("{domain}match = {{ path = \"/api/*\" }}\n"));
    for (rules, is_of_page) in [(RULES.to_owned(), false), (of_page, true)] {
        let daemon = Daemon::with_rules(&rules);
        let front = istio(daemon.grpc);
        let ask = |user: Option<&str>, path: &str| match user {
            Some(user) => http::get(front.addr, path, &[("x-user", user)]).status,
            None => http::get(front.addr, path, &[]).status,
        };
        if is_of_page {
            manual::assert_holds_whoever_asks(|user| ask(user, "/api/things"));
            continue;
        }
        let statuses = |user: &str, path: &str| [(); 4].map(|()| ask(Some(user), path));
        assert_eq!(statuses("ann", "/api/things"), [200, 200, 200, 429]);
        assert_eq!(statuses("bob", "/api/things"), [200, 200, 200, 429]);
        assert_eq!(statuses("ann", "/other"), [200; 4]);
    }
}

/// Envoy with what the page has Istio patch into it.
fn istio(daemon: SocketAddr) -> Gateway {
    let filter = of_page("INSERT_BEFORE\n        value:\n", "    - applyTo: VIRTUAL_HOST", 10);
    let virtual_host = of_page("operation: MERGE\n        value:\n", "    - applyTo: CLUSTER", 10);
    let name = "outbound|8081||tidegate.tidegate.svc.cluster.local";
    envoy(&filter, &virtual_host, &AskedCluster { name, daemon, is_http2: true, calls_max: 1_024 })
}

#[test]
fn what_the_page_has_envoy_gateway_ask_holds_a_limit() {
    let daemon = Daemon::with_rules(RULES);
    let path = of_page("path: /v1/authorize/", "\n", 0);
    let filter = format!(
        r#"name: envoy.filters.http.ext_authz
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
  transport_api_version: V3
  failure_mode_allow: true
  http_service:
    server_uri: {{ uri: "http://tidegate", cluster: tidegate, timeout: {} }}
    path_prefix: /v1/authorize/{}
    authorization_request: {{ allowed_headers: {{ patterns: [{{ exact: x-api-key }}, {{ exact: x-tidegate-user }}] }} }}
    authorization_response: {{ allowed_client_headers: {{ patterns: [{{ prefix: ratelimit }}, {{ exact: retry-after }}] }} }}
"#,
        time_of_page(),
        path.trim()
    );
    let calls_max = calls_of_page();
    let cluster = AskedCluster { name: "tidegate", daemon: daemon.http, is_http2: false, calls_max };
    let front = envoy(&filter, "", &cluster);
    let ask = |path: &str| http::get(front.addr, path, &[("x-tidegate-user", "ann")]);
    // The query is the client's: it names neither cost nor domain.
    let statuses: Vec<u16> = ["/api/a", "/api/b?cost=-9", "/api/c?domain=none", "/api/d?cost=0"]
        .map(|path| ask(path).status)
        .into();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let denied = ask("/api/a");
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    assert_eq!(ask("/other").status, 200);
    assert_eq!(front.statuses("key-a", "/keys/x", 3), [200, 200, 429]);
    let post = |host: &str| {
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        http::raw(front.addr, head.as_bytes()).unwrap().status
    };
    assert_eq!((post("shop.example"), post("other.example")), (403, 200));
}
