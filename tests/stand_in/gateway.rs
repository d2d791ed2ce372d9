//! A stock Envoy that asks as Envoy Gateway has it ask.

use serde_json::json;
use tempfile::TempDir;

use super::asked::{StandIn, rules};
use super::support::{envoy, eventually, free_tcp, http, origin};

#[test]
fn an_envoy_of_envoy_gateway_shows_the_headers_that_its_tests_compare() {
    // What it pushes for a rule without selectors, and for one in shadow mode.
    let lines = &[
        "route=route",
        "  rule-0-match--1=rule-0-match--1 3/hour",
        "quiet=quiet shadow",
        "  rule-0-match--1=rule-0-match--1 1/hour shadow",
    ];
    let daemon = StandIn::with(&[("default/eg/http".to_owned(), rules(lines))], &[]);
    let (folder, front, service) = (TempDir::new().unwrap(), free_tcp(), origin::start());
    let generic = |key: &str| json!({ "generic_key": { "descriptor_key": key, "descriptor_value": key } });
    let route = |path: &str, name: &str| {
        json!({ "match": { "prefix": path }, "route": {
            "cluster": "service",
            "rate_limits": [{ "actions": [generic(name), generic("rule-0-match--1")] }],
        } })
    };
    let cluster = |name: &str, at: std::net::SocketAddr| {
        let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": at.port() } });
        json!({ "name": name, "type": "STATIC", "load_assignment": { "cluster_name": name, "endpoints": [
            { "lb_endpoints": [{ "endpoint": { "address": address } }] },
        ] } })
    };
    let mut limiter = cluster("ratelimit", daemon.grpc);
    limiter["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} },
        },
    });
    let v3 = "type.googleapis.com/envoy.extensions.filters";
    let filter = json!({ "name": "envoy.filters.http.ratelimit", "typed_config": {
        "@type": format!("{v3}.http.ratelimit.v3.RateLimit"),
        "domain": "default/eg/http",
        "timeout": "5s",
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": { "envoy_grpc": { "cluster_name": "ratelimit" } },
        },
    } });
    let router = json!({ "name": "envoy.filters.http.router", "typed_config": {
        "@type": format!("{v3}.http.router.v3.Router"),
    } });
    let manager = json!({
        "@type": format!("{v3}.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "front",
        "route_config": { "virtual_hosts": [
            { "name": "all", "domains": ["*"], "routes": [route("/quiet", "quiet"), route("/", "route")] },
        ] },
        "http_filters": [filter, router],
    });
    let config = json!({ "static_resources": {
        "listeners": [{
            "name": "front",
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": front.port() } },
            "filter_chains": [{ "filters": [
                { "name": "envoy.filters.network.http_connection_manager", "typed_config": manager },
            ] }],
        }],
        "clusters": [cluster("service", service), limiter],
    } });
    let _envoy = envoy::start(folder.path(), &config.to_string());
    let get = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {front}\r\nconnection: close\r\n\r\n");
        http::raw(front, request.as_bytes())
    };
    let first = eventually("Envoy answers", || get("/").filter(|reply| reply.status == 200));
    let limits = |reply: &http::Reply| {
        (
            reply.header("x-ratelimit-limit").map(str::to_owned),
            reply.header("x-ratelimit-remaining").map(str::to_owned),
        )
    };
    let expected = |left: &str| (Some("3, 3;w=3600".to_owned()), Some(left.to_owned()));
    assert_eq!(limits(&first), expected("2"), "case 150");
    for left in ["1", "0"] {
        let reply = get("/").unwrap();
        assert_eq!((reply.status, limits(&reply)), (200, expected(left)), "case 150");
    }
    assert_eq!(get("/").unwrap().status, 429, "case 150");
    for _ in 0..2 {
        let reply = get("/quiet").unwrap();
        assert_eq!(reply.status, 200, "case 145");
        assert_eq!(
            limits(&reply).0.as_deref(),
            Some("1, 1;w=3600"),
            "case 145: a shadow rule keeps its headers"
        );
    }
}
