//! The servers from outside: real sockets, an engine with rules, and a store that counts in the simplest way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::{Value, json};
use tidegate::api::{self, Admin, Listener, Readiness, Servers, Settings, Shutdown};
use tidegate::core::algorithm::{Algorithm, Allowance, Limit, Verdict};
use tidegate::core::key::Key;
use tidegate::core::regions::NodeName;
use tidegate::core::request::Cost;
use tidegate::core::rule::{Action, Condition, Pattern, Rule};
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{
    BucketInfo, Charge, ChargeResult, HeldLimit, Intent, Later, Outcome, Store, StoreLen,
};
use tidegate::telemetry::Metrics;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Channel;

const SOON: Duration = Duration::from_secs(5);
/// What every bucket answers as its reset, 31.25 s.
const RESET: Span = Span(31_250_000);

/// Counts uses by key and never forgets. `later` makes it a store that has to be waited for.
#[derive(Default)]
struct Counts {
    used: Mutex<HashMap<Vec<u8>, u64>>,
    later: bool,
}

impl Counts {
    fn outcome(&self, charges: &[Charge<'_>], intent: Intent) -> Outcome {
        let mut used = self.used.lock().unwrap();
        let of = |used: &HashMap<Vec<u8>, u64>, key: &Key| used.get(key.bytes()).copied().unwrap_or(0);
        let fits = |used: &HashMap<Vec<u8>, u64>, charge: &Charge<'_>| {
            of(used, charge.key).saturating_add(charge.cost.taken()) <= u64::from(charge.limit.permits)
        };
        let admitted = charges.iter().all(|charge| fits(&used, charge) || !charge.enforced);
        let mut counted = smallvec::SmallVec::new();
        for charge in charges {
            let fits = fits(&used, charge);
            let mut now_used = of(&used, charge.key);
            let mut returned = 0;
            if fits && admitted {
                now_used += charge.cost.taken();
                if let Cost::Refund(permits) = charge.cost {
                    returned = permits.min(now_used);
                    now_used -= returned;
                }
                if intent == Intent::Charge {
                    used.insert(charge.key.bytes().to_vec(), now_used);
                }
            }
            let limit = u64::from(charge.limit.permits);
            let verdict = Verdict {
                admitted: fits,
                remaining: limit.saturating_sub(now_used),
                reset: RESET,
                retry: (!fits && charge.cost.taken() <= limit).then_some(RESET),
                delay: Span::ZERO,
            };
            counted.push(ChargeResult {
                verdict,
                view: None,
                error_bound: 0,
                used: now_used,
                returned,
                reported: 0,
                uncharged: 0,
                paid: 0,
                owed: 0,
                lapsed: 0,
                reservation: None,
                penalty: None,
                degraded: false,
            });
        }
        Outcome { admitted, counted }
    }
}

impl Store for Counts {
    fn answers_at_once(&self) -> bool {
        !self.later
    }

    fn try_decide(&self, charges: &[Charge<'_>], intent: Intent, _now: Timestamp) -> Option<Outcome> {
        (!self.later).then(|| self.outcome(charges, intent))
    }

    fn decide<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        intent: Intent,
        _now: Timestamp,
    ) -> Later<'a, Outcome> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.outcome(charges, intent)
        })
    }

    fn bucket<'a>(
        &'a self,
        rule: &'a Compiled,
        key: &'a Key,
        _: HeldLimit,
        _now: Timestamp,
    ) -> Later<'a, Option<BucketInfo>> {
        Box::pin(async move {
            let charge = Charge {
                rule,
                key,
                limit: rule.limit,
                share: None,
                whole: &rule.limit,
                first: None,
                cost: Cost::Peek,
                enforced: true,
            };
            let counted = self.outcome(&[charge], Intent::Ask).counted.pop()?;
            Some(BucketInfo {
                used: counted.used,
                verdict: counted.verdict,
                view: None,
                error_bound: 0,
                degraded: false,
                penalty: None,
            })
        })
    }

    fn set_allowance(&self, _: &Compiled, _: &Key, _: Allowance, _: u64, _: Timestamp) {}
    fn reset<'a>(&'a self, _rule: &'a Compiled, key: &'a Key) -> Later<'a, Option<bool>> {
        let mut used = self.used.lock().unwrap();
        let was = used.remove(key.bytes()).is_some();
        Box::pin(std::future::ready(Some(was)))
    }
    fn debit(&self, _rule: &Compiled, _key: &Key, _limit: Limit, _permits: u64, _now: Timestamp) {}
    fn sweep(&self, _now: Timestamp) {}
    fn len(&self) -> StoreLen {
        StoreLen::default()
    }
}

fn rule(name: &str, per: &[&str], limit: u32) -> Rule {
    Rule {
        per: per.iter().map(|name| (*name).to_owned()).collect(),
        ..Rule::new(name, Algorithm::FixedWindow, limit, Span::from_secs(60))
    }
}

fn rules() -> Vec<Rule> {
    let path =
        |text: &str| vec![Condition { attribute: "path".into(), any_of: vec![Pattern::Glob(text.into())] }];
    vec![
        Rule { message: Some("slow down".into()), ..rule("by-user", &["user"], 3) },
        rule("by-ip", &["ip"], 2),
        rule("by-key", &["api_key"], 2),
        Rule {
            status: 403,
            action: Action::Block,
            conditions: path("/secret*"),
            ..rule("no-secrets", &[], 1)
        },
        Rule { enabled: false, ..rule("off", &[], 1) },
    ]
}

struct House {
    http: String,
    grpc: String,
    shutdown: Shutdown,
    readiness: watch::Sender<Readiness>,
    metrics: Arc<Metrics>,
    servers: Vec<JoinHandle<()>>,
}

async fn house() -> House {
    house_with(Settings::default(), false).await
}

async fn house_with(settings: Settings, later: bool) -> House {
    let metrics = Metrics::new();
    let name = NodeName { region: "eu-west".into(), node: "eu-west-1".into() };
    let clock = Clock::Manual(AtomicU64::new(1_700_000_000_000_000));
    let store = Arc::new(Counts { later, ..Counts::default() });
    let engine = Arc::new(Engine::new(name, clock, store, Arc::clone(&metrics)));
    engine.load(rules(), Vec::new(), false).unwrap();
    let (readiness, ready) = watch::channel(Readiness::Serving);
    let rule_json = Arc::new(|rule: &Rule| json!({ "name": rule.name, "limit": rule.limit }));
    let admin = Admin::local(rule_json, &metrics);
    let servers = Arc::new(Servers::new(engine, settings, ready, admin));
    let shutdown = Shutdown::default();
    let (http, grpc) =
        (Listener::bind("127.0.0.1:0").await.unwrap(), Listener::bind("127.0.0.1:0").await.unwrap());
    let (http_at, grpc_at) = (http.to_string(), grpc.to_string());
    let servers = vec![
        tokio::spawn(api::serve_http(http, Arc::clone(&servers), shutdown.clone())),
        tokio::spawn(api::serve_grpc(grpc, servers, shutdown.clone())),
    ];
    House { http: http_at, grpc: grpc_at, shutdown, readiness, metrics, servers }
}

/// An answer over HTTP.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.split_once(": ").filter(|(own, _)| *own == name))
            .map(|(_, value)| value)
    }
}

impl House {
    /// Sends bytes on a connection of their own and reads until the other end closes it.
    async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.http).await.unwrap();
        let (mut read, mut write) = stream.split();
        let mut answer = Vec::new();
        // Reading while writing: a refusal may come before everything is sent.
        let _ = timeout(SOON, async { tokio::join!(write.write_all(bytes), read.read_to_end(&mut answer)) })
            .await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn ask(&self, method: &str, target: &str, headers: &str, body: &str) -> Reply {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = self.raw(request.as_bytes()).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head: head.to_owned(), body: body.to_owned() }
    }

    async fn get(&self, target: &str) -> Reply {
        self.ask("GET", target, "", "").await
    }

    async fn check(&self, body: &str) -> Reply {
        self.ask("POST", "/v1/check", "content-type: application/json\r\n", body).await
    }

    async fn rls(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap()
    }

    async fn drained(self) -> bool {
        self.shutdown.stop.cancel();
        let all = async {
            for server in self.servers {
                server.await.unwrap();
            }
        };
        timeout(SOON, all).await.is_ok()
    }
}

#[tokio::test]
async fn a_check_is_answered_with_its_decision_word_by_word() {
    let house = house().await;
    let reply = house.check(r#"{"attributes":{"user":"u_42"},"cost":3}"#).await;
    let rules = r#"[{"rule":"by-user","allowed":true,"limit":3,"window_ms":60000,"remaining":0,"reset_ms":31250,"retry_after_ms":0,"degraded":false}]"#;
    let expected = format!(
        r#"{{"allowed":true,"domain":"default","cost":3,"region":"eu-west","degraded":false,"rule":"by-user","limit":3,"remaining":0,"reset_ms":31250,"retry_after_ms":0,"delay_ms":0,"status":200,"rules":{rules}}}"#
    );
    assert_eq!((reply.status, reply.body.as_str()), (200, expected.as_str()));
    assert_eq!(reply.header("retry-after"), None);

    let reply = house.check(r#"{"attributes":{"user":"u_42"}}"#).await;
    let denied = reply.json();
    assert_eq!((reply.status, &denied["allowed"], &denied["status"]), (200, &json!(false), &json!(429)));
    assert_eq!((&denied["message"], &denied["retry_after_ms"]), (&json!("slow down"), &json!(31_250)));
    let headers = [
        "retry-after",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-cost",
    ];
    assert_eq!(headers.map(|name| reply.header(name).unwrap()), ["32", "3", "0", "1700000032", "1"]);
    assert_eq!(reply.header("ratelimit-policy"), Some("\"by-user\";q=3;w=60"));
    assert_eq!(reply.header("ratelimit"), Some("\"by-user\";r=0;t=32"));

    let never = house.check(r#"{"attributes":{"user":"u_42"},"cost":4}"#).await;
    assert_eq!((&never.json()["retry_after_ms"], never.header("retry-after")), (&Value::Null, None));
}

#[tokio::test]
async fn a_request_that_no_rule_counts_is_allowed_without_a_limit() {
    let house = house().await;
    let reply = house.check(r#"{"attributes":{"color":"red"}}"#).await;
    let expected = r#"{"allowed":true,"domain":"default","cost":1,"region":"eu-west","degraded":false,"retry_after_ms":0,"delay_ms":0,"status":200,"rules":[]}"#;
    assert_eq!(reply.body, expected);
    assert!(!reply.head.contains("ratelimit"));
}

#[tokio::test]
async fn a_batch_is_decided_in_its_order_each_check_on_its_own() {
    let house = house().await;
    let check = |user: &str, cost| json!({ "attributes": { "user": user }, "cost": cost });
    let body = json!({ "checks": [check("a", 2), check("a", 2), check("b", 1), check("a", 1)] }).to_string();
    let reply = house.check(&body).await;
    let allowed: Vec<_> =
        reply.json()["decisions"].as_array().unwrap().iter().map(|one| one["allowed"] == true).collect();
    assert_eq!(allowed, [true, false, true, true]);
}

#[tokio::test]
async fn one_bad_check_refuses_the_whole_batch_and_charges_nothing() {
    let house = house().await;
    let good = r#"{"attributes":{"user":"u"},"cost":3}"#;
    let reply = house.check(&format!(r#"{{"checks":[{good},{{"attributes":{{"user":7}}}}]}}"#)).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["field"], "checks[1].attributes.user");
    assert_eq!(house.check(good).await.json()["allowed"], true);
    assert!(
        house.get("/metrics").await.body.contains("tidegate_requests_rejected_total{listener=\"http\"} 1")
    );
}

#[tokio::test]
async fn bad_input_over_http_is_an_error_and_never_reads_as_allowed() {
    let house = house().await;
    let typed = |kind: &str| format!("content-type: {kind}\r\n");
    let long = "x".repeat(2_000_000);
    for (method, target, headers, body, status, code) in [
        ("POST", "/v1/check", String::new(), "{", 400, "malformed"),
        ("POST", "/v1/check", String::new(), "", 400, "malformed"),
        ("POST", "/v1/check", typed("text/xml"), "{}", 415, "unsupported_media_type"),
        ("POST", "/v1/check", String::new(), long.as_str(), 413, "body_too_large"),
        ("GET", "/v1/check", String::new(), "", 405, "method_not_allowed"),
        ("DELETE", "/v1/check", String::new(), "", 405, "method_not_allowed"),
        ("DELETE", "/v1/rules/by-user", String::new(), "", 409, "conflict"),
        ("GET", "/nowhere", String::new(), "", 404, "route_not_found"),
        ("GET", "/v1/rules/nobody", String::new(), "", 404, "rule_not_found"),
        ("GET", "/v1/rules/%ff", String::new(), "", 400, "invalid_request"),
        ("GET", "/v1/buckets", String::new(), "", 400, "invalid_request"),
        ("GET", "/v1/buckets?rule=by-user", String::new(), "", 400, "invalid_request"),
        ("GET", "/v1/buckets?rule=nobody", String::new(), "", 404, "rule_not_found"),
        ("GET", "/v1/buckets?rule=no-secrets", String::new(), "", 400, "invalid_request"),
        ("GET", "/v1/authorize?cost=x", String::new(), "", 400, "invalid_request"),
    ] {
        let reply = house.ask(method, target, &headers, body).await;
        let found = reply.json()["error"]["code"].clone();
        assert_eq!((reply.status, found.as_str()), (status, Some(code)), "{method} {target}");
        assert_eq!(reply.header("allow").is_some(), status == 405, "{method} {target}");
        assert!(!reply.body.contains("\"allowed\":"), "{}", reply.body);
    }
}

#[tokio::test]
async fn a_body_that_does_not_say_its_length_is_bounded_too() {
    let house = house().await;
    let head =
        "POST /v1/check HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{}\r\n", 65_536, "x".repeat(65_536));
    let answer = house.raw(format!("{head}{}0\r\n\r\n", chunk.repeat(40)).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let whole = r#"{"attributes":{"user":"u"}}"#;
    let (one, other) = whole.split_at(7);
    let chunks = format!("{head}{:x}\r\n{one}\r\n{:x}\r\n{other}\r\n0\r\n\r\n", one.len(), other.len());
    let answer = house.raw(chunks.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"allowed\":true"), "{answer}");
}

#[tokio::test]
async fn random_bytes_over_http_end_their_connection_alone() {
    let house = house().await;
    for bytes in [&b"\0\0\0"[..], b"GET\r\n\r\n", b"\x16\x03\x01\x02\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let _ = house.raw(&[bytes, b"\r\n\r\n"].concat()).await;
    }
    assert_eq!(house.get("/healthz").await.body, "ok\n");
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request() {
    let house = house().await;
    let one = "GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    let answer = house.raw(format!("{one}{one}{last}").as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 3, "{answer}");
}

#[tokio::test]
async fn forward_auth_counts_by_what_the_gateway_says() {
    let house = house().await;
    let from = |hops: &str| format!("x-forwarded-for: {hops}\r\nx-original-uri: /a?b=c\r\n");
    let ask = async |hops: &str| house.ask("GET", "/v1/authorize", &from(hops), "").await;
    assert_eq!(ask("6.6.6.6, 1.1.1.1").await.status, 200);
    assert_eq!(ask("7.7.7.7, 1.1.1.1").await.header("x-ratelimit-remaining"), Some("0"));
    let denied = ask("8.8.8.8, 1.1.1.1").await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("32")));
    assert_eq!(denied.body, "Too Many Requests");
    assert_eq!(ask("2001:db8::1").await.status, 200);
    assert_eq!(ask("2001:db8::2").await.status, 200);
    assert_eq!(ask("2001:db8::3").await.status, 429);
}

#[tokio::test]
async fn forward_auth_knows_keys_paths_and_what_the_gateway_adds() {
    let house = house().await;
    let ask = async |headers: &str| house.ask("POST", "/v1/authorize", headers, "ignored").await;
    let distinct = |n: u8| format!("x-forwarded-for: 10.0.0.{n}\r\n");
    assert_eq!(ask(&format!("{}authorization: Bearer k\r\n", distinct(1))).await.status, 200);
    assert_eq!(ask(&format!("{}x-api-key: k\r\n", distinct(2))).await.status, 200);
    let denied = ask(&format!("{}x-api-key: k\r\n", distinct(3))).await;
    assert_eq!(denied.header("ratelimit-policy"), Some("\"by-ip\";q=2;w=60, \"by-key\";q=2;w=60"));
    assert_eq!(denied.status, 429);
    let blocked = ask(&format!("{}x-forwarded-uri: /secret/x?y\r\n", distinct(4))).await;
    assert_eq!((blocked.status, blocked.header("x-ratelimit-limit")), (403, None));
    let user = |n| format!("{}x-tidegate-user: u_1\r\n", distinct(n));
    assert_eq!(house.ask("GET", "/v1/authorize?cost=2", &user(5), "").await.status, 200);
    let reply = house.ask("GET", "/v1/authorize?cost=2", &user(8), "").await;
    assert_eq!((reply.status, reply.body.as_str()), (429, "slow down"));
    let spoofed = format!("{}x-original-uri: /a\r\nx-forwarded-uri: /b\r\n", distinct(6));
    assert_eq!(ask(&spoofed).await.status, 400);
    let long = format!("{}x-tidegate-user: {}\r\n", distinct(7), "x".repeat(1_025));
    let told = async |headers: &str| ask(headers).await.header("x-ratelimit-remaining").map(str::to_owned);
    let (first, second) = (told(&long).await, told(&long).await);
    assert!(first > second, "a long value is counted by its stand-in: {first:?} {second:?}");
    let request =
        b"GET /v1/authorize HTTP/1.1\r\nhost: t\r\nconnection: close\r\nx-tidegate-user: \xff\r\n\r\n";
    assert!(house.raw(request).await.starts_with("HTTP/1.1 200 "), "and so is one that is no text");
}

#[tokio::test]
async fn explain_names_every_rule_and_charges_nothing() {
    let house = house().await;
    for _ in 0..5 {
        let reply =
            house.ask("POST", "/v1/explain", "", r#"{"attributes":{"user":"u"},"cost":3}"#).await.json();
        assert_eq!(reply["decision"]["allowed"], true);
        let outcome = |rule: &str| {
            let considered = reply["considered"].as_array().unwrap().iter();
            considered.clone().find(|one| one["rule"] == rule).map(|one| one["outcome"].clone())
        };
        assert_eq!(outcome("by-user"), Some(json!("decides")));
        assert_eq!(outcome("by-ip"), Some(json!("lacks")));
        assert_eq!(outcome("off"), Some(json!("disabled")));
    }
}

#[tokio::test]
async fn what_is_in_force_can_be_looked_at() {
    let house = house().await;
    let all = house.get("/v1/rules").await.json();
    assert_eq!((&all["revision"], all["rules"].as_array().map(Vec::len)), (&json!(1), Some(5)));
    assert_eq!(house.get("/v1/rules/by%2Duser").await.json()["rule"]["limit"], 3);
    house.check(r#"{"attributes":{"user":"u&1"},"cost":2}"#).await;
    let bucket = house.get("/v1/buckets?rule=by-user&user=u%261").await.json();
    assert_eq!(
        (&bucket["used"], &bucket["remaining"], &bucket["identity"]["user"]),
        (&json!(2), &json!(1), &json!("u&1"))
    );
    let regions = house.get("/v1/regions").await.json();
    assert_eq!(
        (&regions["region"], &regions["node"], &regions["live"]),
        (&json!("eu-west"), &json!("eu-west-1"), &json!(true))
    );
    assert_eq!((&regions["peers"], &regions["cut_off"]), (&json!([]), &json!([])));
    let metrics = house.get("/metrics").await;
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    assert!(metrics.body.contains("tidegate_connections{listener=\"http\"} 1"), "{}", metrics.body);
    assert!(house.get("/").await.body.contains("/v1/check"));
    assert_eq!(house.ask("HEAD", "/healthz", "", "").await.body, "");
}

#[tokio::test]
async fn readiness_is_told_by_both_servers() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let house = house().await;
    let mut health = HealthClient::new(house.channel().await);
    let service = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
    let request = HealthCheckRequest { service };
    assert_eq!(health.check(request.clone()).await.unwrap().into_inner().status, 1);
    assert_eq!(house.get("/readyz").await.status, 200);
    let mut watched = health.watch(request.clone()).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    house.readiness.send_replace(Readiness::Draining);
    assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
    assert_eq!(health.check(request).await.unwrap().into_inner().status, 2);
    let ready = house.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["state"]), (503, &json!("draining")));
    let unknown = HealthCheckRequest { service: "nobody".into() };
    assert_eq!(health.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn reflection_describes_the_service() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let house = house().await;
    let mut reflection = ServerReflectionClient::new(house.channel().await);
    let mut ask = async |message_request| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(message_request) };
        let request = OneMessage(Some(request));
        let mut answers = reflection.server_reflection_info(request).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list")
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"envoy.service.ratelimit.v3.RateLimitService"), "{names:?}");
    for symbol in [
        "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
        "google.protobuf.Struct",
        "kuadrant.service.ratelimit.v1.CommitRequest",
    ] {
        let answer = ask(MessageRequest::FileContainingSymbol(symbol.into())).await;
        assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{symbol}: {answer:?}");
    }
}

/// A stream of one message.
struct OneMessage<T>(Option<T>);

impl<T: Unpin> futures_core::Stream for OneMessage<T> {
    type Item = T;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        std::task::Poll::Ready(self.0.take())
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "default".into(), descriptors, hits_addend: 0 }
}

async fn should(
    client: &mut RateLimitServiceClient<Channel>,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, tonic::Code> {
    let answer = timeout(SOON, client.should_rate_limit(request)).await.expect("in time");
    answer.map(tonic::Response::into_inner).map_err(|status| status.code())
}

fn codes(answer: &RateLimitResponse) -> (i32, Vec<i32>) {
    (answer.overall_code, answer.statuses.iter().map(|status| status.code).collect())
}

const OK: i32 = Code::Ok as i32;
const OVER: i32 = Code::OverLimit as i32;

async fn envoy_is_answered(house: House) {
    let mut rls = house.rls().await;
    let user = |name| descriptor(&[("user", name)]);
    let mut hits = request(vec![user("a")]);
    hits.hits_addend = 3;
    let answer = should(&mut rls, hits).await.unwrap();
    assert_eq!(codes(&answer), (OK, vec![OK]));
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit), ("by-user", 3, 2));
    assert_eq!((status.limit_remaining, status.duration_until_reset.unwrap().seconds), (0, 32));

    // Where one descriptor denies, none is charged.
    let both = request(vec![user("b"), user("a")]);
    let answer = should(&mut rls, both).await.unwrap();
    assert_eq!(codes(&answer), (OVER, vec![OK, OVER]));
    assert_eq!(answer.response_headers_to_add[0].value, "32");
    assert_eq!(answer.raw_body, b"slow down");
    let answer = should(&mut rls, request(vec![user("b")])).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 2);

    // A peek takes nothing, and an exhausted one denies without charging the others.
    let peek = |name| RateLimitDescriptor { hits_addend: Some(UInt64Value { value: 0 }), ..user(name) };
    let answer = should(&mut rls, request(vec![peek("b")])).await.unwrap();
    assert_eq!((codes(&answer), answer.statuses[0].limit_remaining), ((OK, vec![OK]), 2));
    let answer = should(&mut rls, request(vec![user("b"), peek("a")])).await.unwrap();
    assert_eq!(codes(&answer), (OVER, vec![OK, OVER]));
    let answer = should(&mut rls, request(vec![peek("b")])).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 2);

    // A refund gives back.
    let refund = RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: 2 }),
        is_negative_hits: true,
        ..user("a")
    };
    assert_eq!(should(&mut rls, request(vec![refund])).await.unwrap().statuses[0].limit_remaining, 2);

    // An override replaces the limit for the call.
    let mut own = user("c");
    own.limit = Some(RateLimitOverride { requests_per_unit: 50, unit: 3 });
    let limit = should(&mut rls, request(vec![own.clone()])).await.unwrap().statuses[0]
        .current_limit
        .clone()
        .unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (50, 3));
    own.limit = Some(RateLimitOverride { requests_per_unit: 50, unit: 0 });
    assert_eq!(should(&mut rls, request(vec![own])).await.unwrap().overall_code, OVER);

    // Nothing to limit by.
    let unknown = RateLimitRequest { domain: "elsewhere".into(), ..request(vec![user("a")]) };
    let answer = should(&mut rls, unknown).await.unwrap();
    assert_eq!((codes(&answer), answer.statuses[0].current_limit.is_none()), ((OK, vec![OK]), true));
    let answer =
        should(&mut rls, request(vec![descriptor(&[("color", "red")]), descriptor(&[])])).await.unwrap();
    assert_eq!(codes(&answer), (OK, vec![OK, OK]));

    for wrong in [RateLimitRequest { domain: String::new(), ..request(vec![user("a")]) }, request(vec![])] {
        assert_eq!(should(&mut rls, wrong).await.unwrap_err(), tonic::Code::InvalidArgument);
    }
    let ips = |text| request(vec![descriptor(&[("remote_address", text)])]);
    for (text, over) in
        [("2001:db8::1", false), ("2001:db8::2", false), ("2001:db8::3", true), ("::1", false)]
    {
        assert_eq!(should(&mut rls, ips(text)).await.unwrap().overall_code == OVER, over, "{text}");
    }
}

#[tokio::test]
async fn envoy_is_answered_in_full() {
    envoy_is_answered(house().await).await;
}

#[tokio::test]
async fn envoy_is_answered_the_same_by_a_store_that_has_to_be_waited_for() {
    envoy_is_answered(house_with(Settings::default(), true).await).await;
}

#[tokio::test]
async fn many_calls_in_flight_on_one_connection_are_all_answered() {
    let house = house().await;
    let rls = house.rls().await;
    let calls: Vec<_> = (0..500)
        .map(|n| {
            let mut rls = rls.clone();
            let name = format!("u{}", n % 100);
            tokio::spawn(async move {
                should(&mut rls, request(vec![descriptor(&[("user", &name)])])).await.unwrap().overall_code
            })
        })
        .collect();
    let mut ok = 0;
    for call in calls {
        ok += i32::from(call.await.unwrap() == OK);
    }
    assert_eq!(ok, 300);
}

#[tokio::test]
async fn messages_too_long_or_in_pieces_are_told_apart() {
    let house = house().await;
    let mut rls = house.rls().await;
    let value = "x".repeat(1_024);
    let wide: Vec<_> = (0..64).map(|n| (format!("n{n}"), value.clone())).collect();
    let wide: Vec<_> = wide.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // 10 times 64 KiB: more than one frame, less than the bound.
    assert!(should(&mut rls, request(vec![descriptor(&wide); 10])).await.is_ok());
    // A gateway lets pass what is answered with an error.
    let answer = should(&mut rls, request(vec![descriptor(&wide); 30])).await.unwrap();
    assert_eq!(answer.overall_code, OVER);
    assert!(should(&mut rls, request(vec![descriptor(&[("user", "a")])])).await.is_ok());
}

/// Speaks HTTP/2 by hand: what a gRPC library would not send.
async fn call(house: &House, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    let stream = TcpStream::connect(&house.grpc).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut request = http::Request::builder().method("POST").uri(format!("http://t{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (answer, mut send) = client.send_request(request.body(()).unwrap(), false).unwrap();
    send.send_data(body.to_vec().into(), true).unwrap();
    let answer = timeout(SOON, answer).await.unwrap().unwrap();
    driver.abort();
    let header =
        |name: &str| answer.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    (answer.status().as_u16(), header("grpc-status"))
}

#[tokio::test]
async fn what_is_no_call_is_refused_by_its_kind() {
    let house = house().await;
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let grpc = ("content-type", "application/grpc+proto");
    let status = |status: &str| (200, status.to_owned());
    assert_eq!(call(&house, path, &[grpc], b"\0\0\0\0\x03abc").await, status("3"));
    assert_eq!(call(&house, path, &[grpc], b"\x01\0\0\0\0").await, status("12"));
    assert_eq!(call(&house, path, &[grpc], b"\0\0\0").await, status("3"));
    assert_eq!(call(&house, path, &[grpc], b"").await, status("3"));
    assert_eq!(call(&house, path, &[grpc], b"\0\xff\xff\xff\xff").await, status("3"));
    assert_eq!(
        call(&house, "/envoy.service.ratelimit.v3.RateLimitService/Other", &[grpc], b"\0\0\0\0\0").await,
        status("12")
    );
    assert_eq!(call(&house, path, &[("content-type", "text/html")], b"x").await.0, 415);
    assert!(house.metrics.render().contains("tidegate_requests_rejected_total{listener=\"rls\"} 6"));
}

#[tokio::test]
async fn a_message_that_arrives_in_drops_is_answered_when_it_is_whole() {
    let house = house().await;
    let stream = TcpStream::connect(&house.grpc).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let path = "http://t/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let head = http::Request::post(path).header("content-type", "application/grpc").body(()).unwrap();
    let (answer, mut send) = client.send_request(head, false).unwrap();
    let message = prost::Message::encode_to_vec(&request(vec![descriptor(&[("user", "a")])]));
    let framed = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()][..], &message].concat();
    for byte in framed {
        send.send_data(vec![byte].into(), false).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    send.send_data(bytes::Bytes::new(), true).unwrap();
    let mut body = timeout(SOON, answer).await.unwrap().unwrap().into_body();
    assert!(body.data().await.unwrap().unwrap().len() > 10);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn a_full_listener_closes_the_longest_idle_connection_for_the_next_one() {
    let house = house_with(Settings { connections_max: 1, ..Settings::default() }, false).await;
    let ask = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
    let mut kept = TcpStream::connect(&house.http).await.unwrap();
    kept.write_all(ask).await.unwrap();
    assert!(timeout(SOON, kept.read(&mut [0; 512])).await.unwrap().unwrap() > 0);
    // Refused, and counted, until the first one has been idle for a second.
    let mut next = [0; 15];
    timeout(SOON, async {
        loop {
            let mut socket = TcpStream::connect(&house.http).await.unwrap();
            let asked = socket.write_all(ask).await;
            if asked.is_ok() && socket.read_exact(&mut next).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(&next, b"HTTP/1.1 200 OK");
    assert_eq!(timeout(SOON, kept.read(&mut [0; 512])).await.unwrap().unwrap(), 0, "closed in good order");
    assert!(house.metrics.render().contains("tidegate_connections_evicted_total{listener=\"http\"} 1"));
}

#[tokio::test]
async fn whoever_connected_before_the_end_is_answered() {
    let house = house().await;
    // The listeners' tasks have not run yet, so nobody is accepted before the end.
    let connect = || std::net::TcpStream::connect(&house.http).unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
    let (mut asked, silent) = (connect(), connect());
    std::io::Write::write_all(&mut asked, request).unwrap();
    house.shutdown.stop.cancel();
    let [asked, mut silent] = [asked, silent].map(|stream| {
        stream.set_nonblocking(true).unwrap();
        TcpStream::from_std(stream).unwrap()
    });
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    silent.write_all(request).await.unwrap();
    for mut stream in [asked, silent] {
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    }
    assert!(TcpStream::connect(&house.http).await.is_err(), "nobody listens any more");
    assert!(house.drained().await);
}

#[tokio::test]
async fn draining_finishes_what_is_in_flight_and_takes_nothing_new() {
    let house = house_with(Settings::default(), true).await;
    let mut rls = house.rls().await;
    let mut idle = TcpStream::connect(&house.http).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let http = house.http.clone();
    let in_flight =
        tokio::spawn(async move { should(&mut rls, request(vec![descriptor(&[("user", "a")])])).await });
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert!(house.drained().await);
    assert_eq!(codes(&in_flight.await.unwrap().unwrap()), (OK, vec![OK]));
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
    assert!(TcpStream::connect(http).await.is_err());
}

#[tokio::test]
async fn a_unix_socket_is_a_listener_too_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let address = format!("unix:{}", path.display());
    let house = house().await;
    // A file that a process left behind when it died.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&address).await.unwrap();
    assert_eq!(listener.to_string(), address);
    assert_eq!(Listener::bind(&address).await.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let name = NodeName { region: "r".into(), node: "n".into() };
    let engine = Arc::new(Engine::new(name, Clock::System, Arc::new(Counts::default()), Metrics::new()));
    let admin = Admin::local(Arc::new(|_: &Rule| Value::Null), engine.metrics());
    let (_ready, ready) = watch::channel(Readiness::Serving);
    let servers = Arc::new(Servers::new(engine, Settings::default(), ready, admin));
    let serving = tokio::spawn(api::serve_http(listener, servers, house.shutdown.clone()));
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("ok\n"), "{answer}");
    house.shutdown.stop.cancel();
    timeout(SOON, serving).await.unwrap().unwrap();
    assert!(!path.exists());
    std::fs::write(&path, "no socket").unwrap();
    assert_eq!(Listener::bind(&address).await.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
}
