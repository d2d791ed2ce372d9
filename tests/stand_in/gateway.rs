//! A stock Envoy that asks as Envoy Gateway has it ask.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::asked::{StandIn, rules};
use super::support::process::Process;
use super::support::{envoy, eventually, free_tcp, http, origin};

const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters.http";

/// The rules that it pushes: a domain for a listener, and one for a policy that its routes share.
const LISTENER: &[&str] = &[
    "route=route",
    "  rule-0-match--1=rule-0-match--1 3/hour",
    "quiet=quiet shadow",
    "  rule-0-match--1=rule-0-match--1 1/hour shadow",
    "mixed=mixed",
    "  rule-0-match--1=rule-0-match--1 5/day",
    "cost=cost",
    "  rule-0-match-0 10/day",
    "named=named",
    "  rule-0-match--1=rule-0-match--1 9/day",
];
const POLICY: &[&str] = &["ns/policy/rule/0=ns/policy/rule/0", "  rule-0-match--1=rule-0-match--1 3/day"];

/// Envoy, the service that it protects, and the daemon that it asks.
struct Gateway {
    daemon: StandIn,
    front: SocketAddr,
    _envoy: Process,
    _folder: TempDir,
}

impl Gateway {
    fn start() -> Self {
        let domain = |name: &str, lines| (name.to_owned(), rules(lines));
        let daemon = StandIn::with(&[domain("default/eg/http", LISTENER), domain("ns/policy", POLICY)], &[]);
        let (folder, front) = (TempDir::new().unwrap(), free_tcp());
        let config = config(front, origin::start(), daemon.grpc);
        let envoy = envoy::start(folder.path(), &config.to_string());
        Self { daemon, front, _envoy: envoy, _folder: folder }
    }

    /// Status, `x-ratelimit-limit` and `x-ratelimit-remaining`, in a line; `None` while nobody listens.
    fn try_get(&self, user: &str, path: &str) -> Option<String> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nx-user: {user}\r\n", self.front);
        let reply = http::raw(self.front, format!("{head}connection: close\r\n\r\n").as_bytes())?;
        let header = |name| reply.joined(name).unwrap_or_else(|| "-".to_owned());
        let [limit, left] = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(header);
        Some(format!("{} | {limit} | {left}", reply.status))
    }

    fn get(&self, path: &str) -> String {
        self.try_get("ann", path).unwrap()
    }
}

fn cluster(name: &str, at: SocketAddr) -> Value {
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": at.port() } });
    json!({ "name": name, "type": "STATIC", "load_assignment": { "cluster_name": name, "endpoints": [
        { "lb_endpoints": [{ "endpoint": { "address": address } }] },
    ] } })
}

/// A route with the descriptors that each filter sends for it.
fn route(path: &str, own: &[Value], shared: &[Value]) -> Value {
    let kind = format!("{FILTERS}.ratelimit.v3.RateLimitPerRoute");
    let of = |limits: &[Value]| json!({ "@type": kind, "rate_limits": limits });
    json!({ "match": { "prefix": path }, "route": { "cluster": "service" }, "typed_per_filter_config": {
        "envoy.filters.http.ratelimit": of(own),
        "envoy.filters.http.ratelimit/ns/policy": of(shared),
    } })
}

fn routes() -> Value {
    let generic = |key: &str| json!({ "generic_key": { "descriptor_key": key, "descriptor_value": key } });
    let all = |name: &str| json!({ "actions": [generic(name), generic("rule-0-match--1")] });
    let user = json!({ "request_headers": { "header_name": "x-user", "descriptor_key": "rule-0-match-0" } });
    let shared = all("ns/policy/rule/0");
    let charged = |hits: Value, done: bool| {
        let actions = [generic("cost"), user.clone()];
        json!({ "actions": actions, "hits_addend": hits, "apply_on_stream_done": done })
    };
    let mut named = all("named");
    named["limit"] =
        json!({ "dynamic_metadata": { "metadata_key": { "key": "own", "path": [{ "key": "limit" }] } } });
    let costs = [
        charged(json!({ "number": 0 }), false),
        charged(json!({ "format": "%DYNAMIC_METADATA(own:tokens)%" }), true),
    ];
    json!([
        route("/quiet", &[all("quiet")], &[]),
        route("/shared", &[], std::slice::from_ref(&shared)),
        route("/mixed", &[all("mixed")], &[shared]),
        route("/tokens/", &costs, &[]),
        route("/named", &[named], &[]),
        route("/", &[all("route")], &[]),
    ])
}

fn config(front: SocketAddr, service: SocketAddr, daemon: SocketAddr) -> Value {
    let limit = |name: &str, domain: &str| {
        json!({ "name": name, "typed_config": {
            "@type": format!("{FILTERS}.ratelimit.v3.RateLimit"),
            "domain": domain,
            "timeout": "5s",
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": { "envoy_grpc": { "cluster_name": "ratelimit" } },
            },
        } })
    };
    let filters = json!([
        { "name": "envoy.filters.http.header_to_metadata", "typed_config": {
            "@type": format!("{FILTERS}.header_to_metadata.v3.Config"),
            "response_rules": [{ "header": "x-tokens", "on_header_present": {
                "metadata_namespace": "own", "key": "tokens", "type": "NUMBER",
            } }],
        } },
        { "name": "envoy.filters.http.set_metadata", "typed_config": {
            "@type": format!("{FILTERS}.set_metadata.v3.Config"),
            "metadata": [{ "metadata_namespace": "own", "value": {
                "limit": { "requests_per_unit": 2, "unit": "DAY" },
            } }],
        } },
        limit("envoy.filters.http.ratelimit", "default/eg/http"),
        limit("envoy.filters.http.ratelimit/ns/policy", "ns/policy"),
        { "name": "envoy.filters.http.router", "typed_config": {
            "@type": format!("{FILTERS}.router.v3.Router"),
        } },
    ]);
    let network = "type.googleapis.com/envoy.extensions.filters.network";
    let manager = json!({
        "@type": format!("{network}.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "front",
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes() }] },
        "http_filters": filters,
    });
    let mut limiter = cluster("ratelimit", daemon);
    limiter["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} },
        },
    });
    json!({ "static_resources": {
        "listeners": [{
            "name": "front",
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": front.port() } },
            "filter_chains": [{ "filters": [
                { "name": "envoy.filters.network.http_connection_manager", "typed_config": manager },
            ] }],
        }],
        "clusters": [cluster("service", service), limiter],
    } })
}

/// One Envoy for all of it: starting it costs more than what it is asked.
#[test]
fn an_envoy_of_envoy_gateway_is_limited_as_its_tests_expect() {
    let gateway = Gateway::start();
    headers_are_those_that_its_tests_compare(&gateway);
    routes_share_what_a_policy_shares(&gateway);
    costs_are_checked_first_and_charged_with_the_response(&gateway);
    let own = ["200 | 2, 2;w=86400 | 1", "200 | 2, 2;w=86400 | 0", "429 | 2, 2;w=86400 | 0"];
    assert_eq!(own.map(|_| gateway.get("/named")), own, "case 148: the limit is that of the metadata");
}

fn headers_are_those_that_its_tests_compare(gateway: &Gateway) {
    let first =
        eventually("Envoy answers", || gateway.try_get("ann", "/").filter(|told| told.starts_with("200")));
    assert_eq!(first, "200 | 3, 3;w=3600 | 2", "case 150");
    for expected in ["200 | 3, 3;w=3600 | 1", "200 | 3, 3;w=3600 | 0", "429 | 3, 3;w=3600 | 0"] {
        assert_eq!(gateway.get("/"), expected, "case 150");
    }
    for _ in 0..2 {
        let quiet = gateway.get("/quiet");
        assert_eq!(quiet, "200 | 1, 1;w=3600 | 0", "case 145: a shadow rule keeps its headers");
    }
}

fn routes_share_what_a_policy_shares(gateway: &Gateway) {
    assert_eq!(gateway.get("/shared/a"), "200 | 3, 3;w=86400 | 2", "case 143");
    assert_eq!(gateway.get("/shared/b"), "200 | 3, 3;w=86400 | 1", "case 143");
    // Both filters ask, each for its own kind, whose rules are numbered alone.
    assert_eq!(gateway.get("/mixed"), "200 | 3, 3;w=86400, 5, 5;w=86400 | 0, 4", "case 144");
    assert_eq!(gateway.get("/shared/a"), "429 | 3, 3;w=86400 | 0", "case 143");
    assert!(gateway.get("/mixed").starts_with("429 |"), "case 144");
}

fn costs_are_checked_first_and_charged_with_the_response(gateway: &Gateway) {
    let asked = || gateway.daemon.call("default/eg/http", "[cost=cost, rule-0-match-0=ann h=0]");
    for (left, after) in [(10, "OK | OK 10 6"), (6, "OK | OK 10 2"), (2, "OVER | OVER 10 0")] {
        let told = gateway.get("/tokens/4");
        assert_eq!(told, format!("200 | 10, 10;w=86400 | {left}"), "case 146: a check takes nothing");
        // Envoy reports after it has answered.
        eventually("case 147: the response is charged", || (asked() == after).then_some(()));
    }
    assert_eq!(
        gateway.get("/tokens/4"),
        "429 | 10, 10;w=86400 | 0",
        "case 147: the call after that is denied"
    );
    let other = gateway.try_get("bob", "/tokens/4").unwrap();
    assert_eq!(other, "200 | 10, 10;w=86400 | 10", "case 134: each value counts apart");
}
