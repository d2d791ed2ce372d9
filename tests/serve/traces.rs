//! Traces from outside: a collector that speaks OTLP over HTTP gets a span of each decision whose caller is
//! sampled, of each change and of each connection to a peer; and no decision waits for a collector.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::support::authority::Authority;
use super::support::command;
use super::support::daemon::Daemon;
use super::support::http::{self, Reply};
use super::support::receiver::Receiver;
use super::support::rls::{descriptor, request};
use super::support::spans::{CALLER, TRACE, config, counted, span, spans, traceparent};
use super::support::{eventually, free_tcp, free_udp};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

const RULES: &str = "[[rules]]\nname = \"two\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 2\nwindow = \"365d\"\n\
                     [[rules]]\nname = \"places\"\nper = [\"user\"]\nalgorithm = \"concurrency\"\nlimit = 5\nhold = \"1m\"\n";
const SERVER: i32 = 2;
const CLIENT: i32 = 3;

/// Another trace than [`TRACE`], so that spans are told apart.
fn trace(number: u8) -> String {
    format!("{}{number:02x}", &TRACE[..30])
}

fn post(daemon: &Daemon, path: &str, traceparent: &str, body: &str) -> Reply {
    let headers = [("content-type", "application/json"), ("traceparent", traceparent)];
    http::request(daemon.http, "POST", path, &headers, body.as_bytes())
}

fn check(daemon: &Daemon, user: &str, traceparent: &str) -> Reply {
    post(daemon, "/v1/check", traceparent, &format!("{{\"attributes\":{{\"user\":\"{user}\"}}}}"))
}

#[test]
fn a_check_of_a_sampled_caller_is_a_span_below_the_callers() {
    let receiver = Receiver::start(200);
    let more = "service_name = \"limits\"\nheaders = [\"x-token=secret\"]\n";
    let daemon = Daemon::with(RULES, &format!("region = \"eu\"\n{}", config(&receiver, more)), &[]);
    // Neither of a caller that is not sampled, nor of one that says nothing, nonsense or two things.
    check(&daemon, "ann", &traceparent(&trace(1), false));
    daemon.check(&[("user", "bob")]);
    let malformed = traceparent(&trace(2), true).to_uppercase();
    check(&daemon, "carl", &malformed);
    let twice =
        [("traceparent", &*traceparent(&trace(3), true)), ("traceparent", &*traceparent(&trace(4), true))];
    http::request(daemon.http, "POST", "/v1/check", &twice, b"{\"attributes\":{\"user\":\"dora\"}}");
    assert_eq!(check(&daemon, "ann", &traceparent(TRACE, true)).json()["allowed"], true);
    let seen = span(&receiver, "the span arrives", |span| span.trace == TRACE);
    assert_eq!((seen.parent.as_str(), seen.kind, seen.failed), (CALLER, SERVER, false));
    assert!(seen.id.len() == 16 && seen.id != CALLER && seen.nanos.0 <= seen.nanos.1, "{seen:?}");
    assert_eq!(seen.name, "POST /v1/check");
    for (name, value) in [
        ("tidegate.domain", "default"),
        ("tidegate.allowed", "true"),
        ("tidegate.rule", "two"),
        ("tidegate.remaining", "0"),
        ("tidegate.degraded", "false"),
        ("tidegate.store", "memory"),
        ("tidegate.region", "eu"),
        ("http.response.status_code", "200"),
        ("http.route", "/v1/check"),
        ("service.name", "limits"),
    ] {
        assert_eq!(seen.get(name), value, "{name}: {seen:?}");
    }
    assert_eq!(spans(&receiver).len(), 1, "{:?}", spans(&receiver));
    let posted = &receiver.taken()[0];
    assert_eq!(posted.header("content-type"), "application/x-protobuf");
    assert_eq!(posted.header("x-token"), "secret");
    assert_eq!(counted(&daemon, "delivered"), 1.0);
}

#[test]
fn every_route_of_gateways_has_spans() {
    let receiver = Receiver::start(200);
    let daemon = Daemon::with(RULES, &config(&receiver, ""), &[]);
    for path in ["/v1/check", "/v1/report", "/v1/acquire", "/v1/reserve"] {
        let amount = if path == "/v1/reserve" { "amount" } else { "cost" };
        let body = format!("{{\"attributes\":{{\"user\":\"{path}\"}},\"{amount}\":1}}");
        let reply = post(&daemon, path, &traceparent(&trace(10), true), &body);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        let name = format!("POST {path}");
        let seen = span(&receiver, &name, |span| span.name == name);
        assert_eq!(seen.get("tidegate.allowed"), "true", "{seen:?}");
    }
    let caller = traceparent(&trace(11), true);
    let headers = [("traceparent", caller.as_str()), ("x-tidegate-user", "ed")];
    let statuses = [(); 3].map(|()| http::get(daemon.http, "/v1/authorize", &headers).status);
    assert_eq!(statuses, [200, 200, 429]);
    let seen = span(&receiver, "a denial", |span| span.get("http.response.status_code") == "429");
    assert_eq!((seen.name.as_str(), seen.get("tidegate.rule")), ("GET /v1/authorize", "two"));
    assert_eq!((seen.get("tidegate.allowed"), seen.failed), ("false", false), "a denial is no failure");
    // The span of a batch names the first that was denied.
    let one = |user: &str| format!("{{\"attributes\":{{\"user\":\"{user}\"}}}}");
    let batch = format!("{{\"checks\":[{},{},{}]}}", one("new"), one("ed"), one("newer"));
    assert_eq!(post(&daemon, "/v1/check", &traceparent(&trace(12), true), &batch).status, 200);
    let seen = span(&receiver, "a batch", |span| span.trace == trace(12));
    assert_eq!((seen.get("tidegate.decisions"), seen.get("tidegate.denied")), ("3", "1"), "{seen:?}");
    assert_eq!(seen.get("tidegate.allowed"), "false");
    assert_eq!(post(&daemon, "/v1/check", &traceparent(&trace(13), true), "{").status, 400);
    let seen = span(&receiver, "a refusal", |span| span.trace == trace(13));
    assert_eq!((seen.get("http.response.status_code"), seen.get("tidegate.allowed")), ("400", ""));
}

#[test]
fn a_call_of_a_gateway_over_grpc_is_a_span_too() {
    let receiver = Receiver::start(200);
    let daemon = Daemon::with(RULES, &config(&receiver, ""), &[]);
    let client = daemon.rls();
    let ann = || request(vec![descriptor(&[("user", "ann")])]);
    client.ask_within(ann(), &traceparent(&trace(20), false)).unwrap();
    let answer = client.ask_within(ann(), &traceparent(TRACE, true)).unwrap();
    assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (1, 0));
    let seen = span(&receiver, "the span arrives", |span| span.trace == TRACE);
    assert_eq!(seen.name, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    assert_eq!((seen.parent.as_str(), seen.kind), (CALLER, SERVER));
    for (name, value) in [
        ("tidegate.domain", "default"),
        ("tidegate.allowed", "true"),
        ("tidegate.rule", "two"),
        ("tidegate.degraded", "false"),
        ("rpc.method", "ShouldRateLimit"),
        ("rpc.grpc.status_code", "0"),
    ] {
        assert_eq!(seen.get(name), value, "{name}: {seen:?}");
    }
    assert_eq!(client.ask_within(ann(), &traceparent(&trace(21), true)).unwrap().overall_code, 2);
    let seen = span(&receiver, "a denial", |span| span.trace == trace(21));
    assert_eq!(seen.get("tidegate.allowed"), "false");
    assert!(client.ask_within(RateLimitRequest::default(), &traceparent(&trace(22), true)).is_err());
    assert!(span(&receiver, "a refusal", |span| span.trace == trace(22)).failed);
    let kuadrant: RateLimitResponse =
        client.kuadrant_within("CheckRateLimit", &ann(), Some(&traceparent(&trace(23), true))).unwrap();
    assert_eq!(kuadrant.overall_code, 2);
    let seen = span(&receiver, "a call of Kuadrant's", |span| span.trace == trace(23));
    assert_eq!((seen.get("rpc.method"), seen.get("tidegate.allowed")), ("CheckRateLimit", "false"));
    assert!(spans(&receiver).iter().all(|span| span.trace != trace(20)), "{:?}", spans(&receiver));
}

#[test]
fn decisions_go_on_without_a_collector_and_later_spans_arrive() {
    let receiver = Receiver::start(503);
    let daemon = Daemon::with(RULES, &config(&receiver, "timeout = \"1s\"\n"), &[]);
    assert_eq!(check(&daemon, "ann", &traceparent(&trace(30), true)).status, 200);
    eventually("the batch is given up", || (counted(&daemon, "undelivered") == 1.0).then_some(()));
    assert_eq!(receiver.refused(), 3, "a batch is sent three times");
    let begun = Instant::now();
    for user in 0..100 {
        assert_eq!(check(&daemon, &format!("u{user}"), &traceparent(&trace(31), true)).status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "decisions wait: {:?}", begun.elapsed());
    receiver.answer_with(200);
    span(&receiver, "later spans arrive", |span| span.trace == trace(31));
    eventually("all of them", || (counted(&daemon, "delivered") == 100.0).then_some(()));
    assert!(daemon.metric("tidegate_trace_exports_total{outcome=\"failed\"}") >= Some(3.0));
    let log = daemon.log();
    assert_eq!(log.matches("it answers 503").count(), 1, "each cause is told once: {log}");
    assert!(log.contains("the collector takes spans again"), "{log}");
    // What it refuses for ever is not sent again.
    receiver.answer_with(400);
    check(&daemon, "ann", &traceparent(&trace(32), true));
    eventually("it is counted", || (counted(&daemon, "refused") == 1.0).then_some(()));
}

#[test]
fn a_collector_that_is_not_there_is_told_of_once() {
    let nobody = free_tcp();
    let traces = format!("[traces]\nendpoint = \"http://u:secret@{nobody}\"\n");
    let mut daemon = Daemon::with(RULES, &traces, &[]);
    check(&daemon, "ann", &traceparent(TRACE, true));
    eventually("the spans are given up", || (counted(&daemon, "undelivered") == 1.0).then_some(()));
    let log = daemon.log();
    assert_eq!(log.matches("takes no spans").count(), 1, "{log}");
    assert!(log.contains("Connection refused") && !log.contains("secret"), "{log}");
    check(&daemon, "ann", &traceparent(TRACE, true));
    assert!(daemon.terminate().success());
    assert!(daemon.log().contains("spans are lost"), "{}", daemon.log());
}

#[test]
fn the_last_spans_are_sent_before_the_daemon_ends() {
    let receiver = Receiver::start(200);
    let mut daemon = Daemon::with(RULES, &config(&receiver, ""), &[]);
    check(&daemon, "ann", &traceparent(TRACE, true));
    assert!(daemon.terminate().success());
    assert_eq!(spans(&receiver).len(), 1, "{}", daemon.log());
}

#[test]
fn a_sample_of_all_tells_decisions_without_a_caller() {
    let receiver = Receiver::start(200);
    let daemon = Daemon::with(RULES, &config(&receiver, "sample = 1\n"), &[]);
    daemon.check(&[("user", "ann")]);
    let root = span(&receiver, "a trace of its own", |span| span.parent.is_empty());
    assert_ne!(root.trace, "0".repeat(32));
    check(&daemon, "ann", &traceparent(TRACE, false));
    let seen = span(&receiver, "a span of the caller's trace", |span| span.trace == TRACE);
    assert_eq!(seen.parent, CALLER);
    // Nobody wants to know of probes.
    assert!(spans(&receiver).iter().all(|span| span.name == "POST /v1/check"), "{:?}", spans(&receiver));
}

#[test]
fn a_change_says_who_did_what() {
    let receiver = Receiver::start(200);
    let daemon = Daemon::with(RULES, &config(&receiver, ""), &[]);
    daemon.check(&[("user", "ann")]);
    let headers = [("traceparent", traceparent(TRACE, true))];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let reply = http::request(daemon.http, "DELETE", "/v1/buckets?rule=two&user=ann", &headers, b"");
    assert_eq!(reply.status, 200, "{reply:?}");
    let seen = span(&receiver, "the reset", |span| span.name == "DELETE /v1/buckets");
    assert_eq!((seen.trace.as_str(), seen.parent.as_str()), (TRACE, CALLER));
    assert_eq!((seen.get("tidegate.actor"), seen.get("tidegate.role")), ("local", "admin"));
    assert_eq!(seen.get("client.address"), "127.0.0.1");
    assert_eq!(http::request(daemon.http, "DELETE", "/v1/rules/two", &[], b"").status, 200);
    let seen = span(&receiver, "the rule", |span| span.name == "DELETE /v1/rules/{name}");
    assert_eq!((seen.get("tidegate.target"), seen.get("tidegate.revision")), ("two", "2"), "{seen:?}");
    assert_eq!((seen.parent.as_str(), seen.failed), ("", false));
    assert_eq!(http::request(daemon.http, "DELETE", "/v1/rules/three", &[], b"").status, 404);
    let seen = span(&receiver, "the refusal", |span| span.get("tidegate.target") == "three");
    assert_eq!((seen.get("http.response.status_code"), seen.failed), ("404", true), "{seen:?}");
    daemon.get("/v1/rules");
    assert!(spans(&receiver).iter().all(|span| !span.name.starts_with("GET")), "looks are no changes");
}

#[test]
fn a_connection_to_a_peer_is_one_span() {
    let (receiver, authority) = (Receiver::start(200), Authority::new());
    let peers = [free_udp(), free_udp()];
    let start = |place: usize, region: &str, traces: &str| {
        let config = format!(
            "region = \"{region}\"\nnode = \"{region}-1\"\n[listen]\npeer = \"{}\"\n[peers]\njoin = [\"{}\"]\n{}{traces}",
            peers[place],
            peers[1 - place],
            authority.issue(region, &format!("{region}-1")),
        );
        Daemon::with("", &config, &[])
    };
    let _eu = start(0, "eu", &config(&receiver, ""));
    let _us = start(1, "us", "");
    let seen = span(&receiver, "the connection", |span| span.name == "peer connect");
    assert_eq!((seen.kind, seen.parent.as_str(), seen.failed), (CLIENT, "", false));
    assert_eq!((seen.get("tidegate.peer.region"), seen.get("tidegate.peer.node")), ("us", "us-1"));
    assert_eq!(seen.get("network.peer.address"), peers[1].to_string());
    assert_eq!(seen.get("tidegate.region"), "eu");
    // Whole seconds of gossip and counts later there are no more.
    std::thread::sleep(Duration::from_secs(3));
    let names: Vec<String> = spans(&receiver).into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["peer connect"]);
}

#[test]
fn without_a_configuration_there_are_no_spans_and_their_metrics_are_zero() {
    let daemon = Daemon::with_rules(RULES);
    assert_eq!(check(&daemon, "ann", &traceparent(TRACE, true)).json()["allowed"], true);
    for outcome in ["delivered", "refused", "undelivered", "queue_full"] {
        assert_eq!(counted(&daemon, outcome), 0.0, "{outcome}");
    }
}

#[test]
fn what_cannot_be_sent_to_is_refused_at_its_place_and_secrets_are_not_shown() {
    let folder = TempDir::new().unwrap();
    let check = |text: &str| {
        std::fs::write(folder.path().join("tidegate.toml"), text).unwrap();
        let ran = command::run(folder.path(), &["config", "check", "--config", "tidegate.toml"]);
        (ran.code, format!("{}{}", ran.out, ran.err))
    };
    let with = |more: &str| format!("[traces]\nendpoint = \"http://h:4318\"\n{more}");
    for (text, expected) in [
        ("[traces]\nsample = 1".to_owned(), "endpoint is missing"),
        (
            "[traces]\nendpoint = \"h:4318\"".to_owned(),
            "tidegate.toml:2:12: endpoint must be http://host:port",
        ),
        ("[traces]\nendpoint = \"http://h?token=t\"".to_owned(), "without a query"),
        (with("sample = 2"), "sample must be"),
        (with("headers = [\"secret\"]"), "headers must list texts such as"),
        (with("headers = [\"a b=secret\"]"), "headers must list texts such as"),
        (with("timeout = \"1ms\""), "timeout must be from 100ms"),
    ] {
        let (code, told) = check(&text);
        assert!(code != 0 && told.contains(expected) && !told.contains("secret\""), "{text}: {told}");
    }
    let (code, told) = check(&with("headers = [\"authorization=Bearer secret\"]\nsample = 0.25\n"));
    assert!(code == 0 && !told.contains("secret"), "{told}");
    for line in ["headers = [\"authorization=…\"]", "sample = 0.25", "service_name = \"tidegate\""] {
        assert!(told.contains(line), "{line}: {told}");
    }
}
