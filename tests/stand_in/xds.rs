//! Rules from a server of xDS, which these tests play.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, ListValue, Struct, Value as ProtoValue};
use futures_util::{Stream, StreamExt as _};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc as channels;
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Response, Status, Streaming};

use super::asked::{StandIn, UNITS, rules, told};
use super::cases::{as_json, folder, play};
use super::rows::{ROWS, Row};
use super::support::{SOON, eventually, free_tcp};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

#[derive(Clone, PartialEq, prost::Message)]
struct Config {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(message, repeated, tag = "3")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<Policy>,
    #[prost(message, repeated, tag = "4")]
    descriptors: Vec<Descriptor>,
    #[prost(bool, tag = "5")]
    shadow_mode: bool,
    #[prost(bool, tag = "6")]
    detailed_metric: bool,
    #[prost(bool, tag = "7")]
    quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Policy {
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    unlimited: bool,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    replaces: Vec<Replace>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Replace {
    #[prost(string, tag = "1")]
    name: String,
}

/// One domain with one limit of so many a day.
fn resource(domain: &str, unit: i32, permits: u32) -> Any {
    let policy = Policy { unit, requests_per_unit: permits, ..Policy::default() };
    let descriptor = Descriptor { key: "k".to_owned(), rate_limit: Some(policy), ..Descriptor::default() };
    packed(domain, vec![descriptor])
}

fn packed(domain: &str, descriptors: Vec<Descriptor>) -> Any {
    let config = Config { name: domain.to_owned(), domain: domain.to_owned(), descriptors };
    Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
}

/// One domain with these rules, as `asked::rules` writes them.
pub(crate) fn resource_of(domain: &str, rules: &Value) -> Any {
    packed(domain, descriptors(rules))
}

fn descriptors(rules: &Value) -> Vec<Descriptor> {
    let one = |own: &Value| {
        assert!(own.get("share_threshold").is_none(), "files alone have it");
        Descriptor {
            key: text(own, "key"),
            value: text(own, "value"),
            rate_limit: own.get("rate_limit").map(policy),
            descriptors: own.get("descriptors").map(descriptors).unwrap_or_default(),
            shadow_mode: own["shadow_mode"] == true,
            detailed_metric: own["detailed_metric"] == true,
            quota_mode: own["quota_mode"] == true,
            metadata: own["metadata"].as_object().map(as_struct),
        }
    };
    rules.as_array().unwrap().iter().map(one).collect()
}

fn text(own: &Value, name: &str) -> String {
    own[name].as_str().unwrap_or_default().to_owned()
}

fn policy(limit: &Value) -> Policy {
    // Files write units as one likes; messages have their numbers.
    let number = |unit: &str| UNITS.iter().position(|known| known.eq_ignore_ascii_case(unit)).unwrap();
    let unit = limit["unit"].as_str().map_or(0, number);
    let permits = limit["requests_per_unit"].as_u64().unwrap_or_default();
    let replaced = limit["replaces"].as_array().into_iter().flatten();
    Policy {
        unit: i32::try_from(unit).unwrap(),
        requests_per_unit: u32::try_from(permits).unwrap(),
        unlimited: limit["unlimited"] == true,
        name: text(limit, "name"),
        replaces: replaced.map(|own| Replace { name: text(own, "name") }).collect(),
    }
}

fn as_struct(table: &Map<String, Value>) -> Struct {
    Struct { fields: table.iter().map(|(name, own)| (name.clone(), as_proto(own))).collect() }
}

fn as_proto(own: &Value) -> ProtoValue {
    let kind = match own {
        Value::Null => Kind::NullValue(0),
        Value::Bool(flag) => Kind::BoolValue(*flag),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(list) => Kind::ListValue(ListValue { values: list.iter().map(as_proto).collect() }),
        Value::Object(table) => Kind::StructValue(as_struct(table)),
    };
    ProtoValue { kind: Some(kind) }
}

pub(crate) fn answer(version: &str, nonce: &str, resources: Vec<Any>) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: version.to_owned(),
        nonce: nonce.to_owned(),
        type_url: TYPE_URL.to_owned(),
        resources,
        ..DiscoveryResponse::default()
    }
}

const DAY: i32 = 4;

type Answers = Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;
type DeltaAnswers = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

/// Sends on what is asked; a stream's answers come from the test.
struct Server {
    asked: mpsc::Sender<DiscoveryRequest>,
    streams: mpsc::Sender<channels::UnboundedSender<Result<DiscoveryResponse, Status>>>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Server {
    type StreamAggregatedResourcesStream = Answers;
    type DeltaAggregatedResourcesStream = DeltaAnswers;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let (sender, receiver) = channels::unbounded_channel();
        self.streams.send(sender).unwrap();
        let (asked, mut requests) = (self.asked.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                let _ = asked.send(request);
            }
        });
        let answers = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|answer| (answer, receiver))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<DeltaAnswers>, Status> {
        Err(Status::unimplemented("state of the world alone"))
    }
}

pub(crate) struct Playing {
    pub(crate) address: SocketAddr,
    asked: mpsc::Receiver<DiscoveryRequest>,
    streams: mpsc::Receiver<channels::UnboundedSender<Result<DiscoveryResponse, Status>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Playing {
    fn start() -> Self {
        Self::start_with(None)
    }

    /// One that speaks TLS, if it is told how.
    pub(crate) fn start_with(tls: Option<rustls::ServerConfig>) -> Self {
        let tls = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (asking, asked) = mpsc::channel();
        let (opening, streams) = mpsc::channel();
        let address = free_tcp();
        let server = AggregatedDiscoveryServiceServer::new(Server { asked: asking, streams: opening });
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (service, tls) = (TowerToHyperService::new(server.clone()), tls.clone());
                let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move {
                    match tls {
                        None => serving.serve_connection(TokioIo::new(socket), service).await,
                        Some(tls) => {
                            let Ok(socket) = tls.accept(socket).await else { return };
                            serving.serve_connection(TokioIo::new(socket), service).await
                        }
                    }
                    .ok();
                });
            }
        });
        Self { address, asked, streams, _runtime: runtime }
    }

    pub(crate) fn daemon(&self, environment: &[(&str, &str)]) -> StandIn {
        let server = self.address.to_string();
        let mut all = vec![
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", server.as_str()),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d"),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "200ms"),
        ];
        all.extend(environment);
        StandIn::start(&[], &all)
    }

    pub(crate) fn asked(&self) -> DiscoveryRequest {
        self.asked.recv_timeout(SOON).unwrap()
    }

    /// Whether somebody opened a stream that was not taken yet.
    pub(crate) fn has_stream(&self) -> bool {
        self.streams.try_recv().is_ok()
    }

    pub(crate) fn stream(&self) -> channels::UnboundedSender<Result<DiscoveryResponse, Status>> {
        self.streams.recv_timeout(SOON).unwrap()
    }
}

#[test]
fn rules_come_by_xds_and_are_accepted_or_refused_as_a_whole() {
    let playing = Playing::start();
    let daemon = playing.daemon(&[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    daemon.until_healthy();
    let stream = playing.stream();
    let first = playing.asked();
    let node = first.node.unwrap();
    assert_eq!((&*node.id, first.type_url.as_str()), ("envoy-ratelimit", TYPE_URL), "case 117");
    assert_eq!(node.metadata.unwrap().fields.len(), 2, "case 125");
    assert_eq!(
        (&*first.version_info, &*first.response_nonce, first.resource_names.len()),
        ("", "", 0),
        "case 117"
    );
    assert_eq!(daemon.call("d", "[k=v]"), "Unknown: no rate limit configuration loaded", "case 122");

    let sent = Instant::now();
    stream.send(Ok(answer("1", "n1", vec![resource("d", DAY, 5), resource("e", DAY, 9)]))).unwrap();
    let acked = playing.asked();
    let after = sent.elapsed();
    assert_eq!((&*acked.version_info, &*acked.response_nonce), ("1", "n1"), "case 118");
    assert!(acked.error_detail.is_none() && after < Duration::from_secs(2), "in force after {after:?}");
    assert_eq!(daemon.call("d", "[k=v] "), "OK | OK 5 4", "case 118");
    assert_eq!(daemon.call("e", "[k=v]"), "OK | OK 9 8", "case 118");

    stream.send(Ok(answer("2", "n2", vec![resource("d", DAY, 7), resource("e", 0, 1)]))).unwrap();
    let refused = playing.asked();
    assert_eq!((&*refused.version_info, &*refused.response_nonce), ("1", "n2"), "case 119");
    let why = refused.error_detail.unwrap().message;
    assert!(why.contains("e: descriptors[0].rate_limit.unit: must be second"), "case 119: {why}");
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 3", "case 119: nothing of it is in force");
    let unreadable = Any { type_url: TYPE_URL.to_owned(), value: vec![0xff; 3] };
    stream.send(Ok(answer("2", "n2b", vec![unreadable]))).unwrap();
    let refused = playing.asked();
    assert_eq!((&*refused.version_info, &*refused.response_nonce), ("1", "n2b"), "case 119");
    assert!(refused.error_detail.is_some(), "case 119");
    stream.send(Ok(answer("3", "n3", vec![resource("d", DAY, 7), resource("d", DAY, 8)]))).unwrap();
    assert!(playing.asked().error_detail.is_some(), "case 120");

    drop(stream);
    let stream = playing.stream();
    let again = playing.asked();
    assert_eq!((&*again.version_info, &*again.response_nonce), ("1", "n3"), "case 123");
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 2", "while the server is away");
    stream.send(Ok(answer("4", "n4", vec![resource("d", DAY, 7)]))).unwrap();
    assert_eq!(playing.asked().version_info, "4");
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 7 3", "what was counted stays");
    assert_eq!(daemon.call("e", "[k=v]"), "OK | OK - 0", "case 149");

    stream.send(Ok(answer("", "n5", Vec::new()))).unwrap();
    let none = playing.asked();
    assert_eq!((&*none.version_info, none.error_detail), ("", None), "case 121");
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK - 0", "case 121");
    let metrics = eventually("all is counted", || {
        let text = daemon.get("/metrics").body;
        text.contains("ratelimit_service_config_load_success 3\n").then_some(text)
    });
    // Beside those of cases 119 and 120 the one that could not be read.
    assert!(metrics.contains("ratelimit_service_config_load_error 3\n"), "case 119: {metrics}");
}

#[test]
fn rules_that_came_by_xds_are_there_again_while_the_server_is_away() {
    let playing = Playing::start();
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("kept").display().to_string();
    let daemon = playing.daemon(&[("TIDEGATE_RULES__SAVED", &saved)]);
    let stream = playing.stream();
    stream.send(Ok(answer("1", "n1", vec![resource("d", DAY, 5)]))).unwrap();
    daemon.until_healthy();
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 4");
    drop((daemon, playing));
    let nobody = free_tcp().to_string();
    let environment = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", nobody.as_str()),
        ("TIDEGATE_RULES__SAVED", saved.as_str()),
    ];
    let daemon = StandIn::with(&[], &environment);
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 4");
    std::fs::write(&saved, "nonsense").unwrap();
    let daemon = StandIn::start(&[], &environment);
    eventually("it says so", || daemon.process.output().contains("are no use").then_some(()));
}

#[test]
fn without_a_forced_start_it_is_healthy_once_it_has_rules() {
    let playing = Playing::start();
    let daemon =
        playing.daemon(&[("MERGE_DOMAIN_CONFIG", "true"), ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "400")]);
    let stream = playing.stream();
    assert_eq!(playing.asked().version_info, "");
    assert_eq!(daemon.get("/healthcheck").status, 500, "case 112");
    let mut other = resource("d", DAY, 5);
    other.value = {
        let mut config = Config::decode(&*other.value).unwrap();
        config.descriptors[0].key = "j".to_owned();
        config.encode_to_vec()
    };
    stream.send(Ok(answer("1", "n1", vec![resource("d", DAY, 5), other]))).unwrap();
    assert_eq!(playing.asked().version_info, "1", "case 120: merged");
    daemon.until_healthy();
    assert_eq!(daemon.call("d", "[k=v] [j=v]"), "OK | OK 5 4 | OK 5 4", "case 120");
    let long = "x".repeat(1_000);
    stream.send(Ok(answer(&long, "n2", Vec::new()))).unwrap();
    let stream = playing.stream();
    assert_eq!(playing.asked().version_info, "1", "case 126: the stream ended, and began again");
    stream.send(Ok(answer("2", "n3", vec![resource("d", DAY, 6)]))).unwrap();
    assert_eq!(playing.asked().version_info, "2", "case 126");
}

#[test]
fn every_row_is_answered_alike_where_rules_come_by_xds() {
    let is_of_files = |row: &&Row| row.1.iter().any(|line| line.contains(" shared"));
    let rows: Vec<Row> = ROWS.iter().filter(|row| !is_of_files(row)).copied().collect();
    assert!(rows.len() * 10 > ROWS.len() * 9, "{} of {} rows", rows.len(), ROWS.len());
    let playing = Playing::start();
    let daemon = playing.daemon(&[]);
    let resources = folder(&rows).iter().map(|(domain, rules)| resource_of(domain, rules)).collect();
    let stream = playing.stream();
    stream.send(Ok(answer("1", "n1", resources))).unwrap();
    daemon.until_healthy();
    play(&daemon, &rows);
}

#[test]
fn every_field_of_a_limit_comes_by_xds() {
    let playing = Playing::start();
    let daemon = playing.daemon(&[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let lines = [
        "a 1/day name=x",
        "b 5/day replaces=x metadata={\"b\":1,\"deep\":{\"list\":[2,\"two\",true,null]}}",
        "u unlimited",
        "r 9/day detailed",
        "s 1/day shadow",
        "q 1/day quota",
        "p 9/day quota",
    ];
    let stream = playing.stream();
    stream.send(Ok(answer("1", "n1", vec![resource_of("d", &rules(&lines))]))).unwrap();
    daemon.until_healthy();
    let call = "[a=1] [b=1] [u=1] [r=w] [s=1] [q=1] [p=1]";
    let first = daemon.answer("d", call).unwrap();
    let expected = "OK | OK - 0 | OK 5 4 | OK - 4294967295 | OK 9 8 | OK 1 0 | OK 1 0 | OK 9 8";
    assert_eq!(told(&first), expected, "what b replaces is not counted");
    let metadata = as_json(&first.dynamic_metadata.unwrap())["metadata"].clone();
    assert_eq!(metadata, json!({ "b": 1.0, "deep": { "list": [2.0, "two", true, null] } }));
    let expected = "OK | OK - 0 | OK 5 3 | OK - 4294967295 | OK 9 7 | OK 1 0 | OVER 1 0 | OK 9 7";
    let why = "a shadow limit denies nothing, and no quota does while another has room";
    assert_eq!(daemon.call("d", call), expected, "{why}");
    assert_eq!(daemon.call("d", "[a=1 h=0]"), "OK | OK 1 1 x");
    let text = daemon.debug("/stats");
    assert!(text.contains("ratelimit.service.rate_limit.d.r_w.total_hits: 2\n"), "{text}");
}
