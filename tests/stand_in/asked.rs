//! The daemon, and a short language for its rules, for calls and for answers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tonic::Status;

use crate::support::http::{self, Reply};
use crate::support::process::Process;
use crate::support::rls::{Client, descriptor};
use crate::support::{command, eventually, free_tcp};

/// Units of limits, each at its number.
pub(crate) const UNITS: [&str; 8] = ["unknown", "second", "minute", "hour", "day", "month", "year", "week"];

/// A running `tidegate ratelimit`.
pub(crate) struct StandIn {
    pub(crate) process: Process,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) debug: SocketAddr,
    client: OnceLock<Client>,
    pub(crate) folder: TempDir,
}

impl StandIn {
    /// Starts one with rules by domain, and waits until it is healthy.
    pub(crate) fn with(rules: &[(String, Value)], environment: &[(&str, &str)]) -> Self {
        let started = Self::start(rules, environment);
        started.until_healthy();
        started
    }

    /// The same, and does not wait.
    pub(crate) fn start(rules: &[(String, Value)], environment: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let config = folder.path().join("ratelimit/config");
        std::fs::create_dir_all(&config).unwrap();
        for (place, (domain, descriptors)) in rules.iter().enumerate() {
            write(&config, place, domain, descriptors);
        }
        let (http, grpc, debug) = (free_tcp(), free_tcp(), free_tcp());
        let mut command = command::command(folder.path());
        // As Envoy AI Gateway starts it; the reference reads no argument.
        command.args(["ratelimit", "--quotaRateLimitServiceAddr=x:1", "--help"]);
        command.env("RUNTIME_ROOT", folder.path()).env("RUNTIME_SUBDIRECTORY", "ratelimit");
        for (name, address) in [("", http), ("GRPC_", grpc), ("DEBUG_", debug)] {
            command.env(format!("{name}HOST"), "127.0.0.1");
            command.env(format!("{name}PORT"), address.port().to_string());
        }
        command.env("TIDEGATE_LISTEN__DRAIN", "0s");
        command.envs(environment.iter().copied());
        let process = Process::start(&mut command, &folder.path().join("daemon.log"));
        Self { process, http, grpc, debug, client: OnceLock::new(), folder }
    }

    /// One that was started otherwise, on these ports of its own: HTTP, gRPC and debugging.
    pub(crate) fn running(process: Process, [http, grpc, debug]: [SocketAddr; 3], folder: TempDir) -> Self {
        Self { process, http, grpc, debug, client: OnceLock::new(), folder }
    }

    /// Calls through this client from now on.
    pub(crate) fn call_through(&self, client: Client) {
        assert!(self.client.set(client).is_ok(), "nothing was called before");
    }

    pub(crate) fn until_healthy(&self) {
        eventually(&format!("it is healthy: {}", self.process.output()), || {
            let probe =
                format!("GET /healthcheck HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.http);
            http::raw(self.http, probe.as_bytes()).is_some_and(|reply| reply.status == 200).then_some(())
        });
    }

    pub(crate) fn client(&self) -> &Client {
        self.client.get_or_init(|| Client::connect(self.grpc))
    }

    pub(crate) fn set_rules(&self, place: usize, domain: &str, descriptors: &Value) {
        write(&self.folder.path().join("ratelimit/config"), place, domain, descriptors);
    }

    /// Calls, and tells the answer in a line.
    pub(crate) fn call(&self, domain: &str, text: &str) -> String {
        match self.answer(domain, text) {
            Ok(answer) => told(&answer),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        }
    }

    pub(crate) fn answer(&self, domain: &str, text: &str) -> Result<RateLimitResponse, Status> {
        self.client().ask(request(domain, text))
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        http::get(self.http, path, &[])
    }

    pub(crate) fn debug(&self, path: &str) -> String {
        let reply = http::get(self.debug, path, &[]);
        assert_eq!(reply.status, 200, "{path}");
        reply.body
    }
}

fn write(folder: &Path, place: usize, domain: &str, descriptors: &Value) {
    let text = json!({ "domain": domain, "descriptors": descriptors }).to_string();
    let fresh = folder.join("..fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, folder.join(format!("{place}.yaml"))).unwrap();
}

/// Descriptors, a line each: `k=v 5/day shadow quota shared name=x replaces=y metadata={…}`; what is
/// indented stands below the line before.
pub(crate) fn rules(lines: &[&str]) -> Value {
    let mut rest = lines;
    level(&mut rest, 0)
}

fn level(rest: &mut &[&str], depth: usize) -> Value {
    let mut list: Vec<Value> = Vec::new();
    while let Some((line, after)) = rest.split_first() {
        let own = (line.len() - line.trim_start().len()) / 2;
        if own < depth {
            break;
        }
        if own > depth {
            let below = level(rest, own);
            list.last_mut().unwrap()["descriptors"] = below;
            continue;
        }
        *rest = after;
        list.push(one(line.trim()));
    }
    Value::Array(list)
}

fn one(line: &str) -> Value {
    let mut words = line.split(' ');
    let name = words.next().unwrap();
    let mut descriptor = match name.split_once('=') {
        Some((key, value)) => json!({ "key": key, "value": value }),
        None => json!({ "key": name }),
    };
    let mut limit = Map::new();
    for word in words {
        match word.split_once('=') {
            Some(("name", name)) => drop(limit.insert("name".into(), json!(name))),
            Some(("replaces", name)) => drop(limit.insert("replaces".into(), json!([{ "name": name }]))),
            Some(("metadata", text)) => descriptor["metadata"] = serde_json::from_str(text).unwrap(),
            _ => match (word, word.split_once('/')) {
                ("unlimited", _) => drop(limit.insert("unlimited".into(), json!(true))),
                ("shared", _) => descriptor["share_threshold"] = json!(true),
                (flag @ ("shadow" | "quota"), _) => descriptor[format!("{flag}_mode")] = json!(true),
                ("detailed", _) => descriptor["detailed_metric"] = json!(true),
                (_, Some((permits, unit))) => {
                    limit.insert("requests_per_unit".into(), json!(permits.parse::<u32>().unwrap()));
                    limit.insert("unit".into(), json!(unit));
                }
                _ => panic!("{line}"),
            },
        }
    }
    if !limit.is_empty() {
        descriptor["rate_limit"] = Value::Object(limit);
    }
    descriptor
}

/// A call: `[k=v, j=w h=2 limit=3/hour negative] [x=1] add=4`.
pub(crate) fn request(domain: &str, text: &str) -> RateLimitRequest {
    let (descriptors, add) = text.rsplit_once(']').map_or(("", text), |(before, after)| (before, after));
    let hits_addend = add.trim().strip_prefix("add=").map_or(0, |hits| hits.parse().unwrap());
    let descriptors = descriptors.split(']').filter_map(|one| Some(of_text(one.split_once('[')?.1)));
    RateLimitRequest { domain: domain.to_owned(), descriptors: descriptors.collect(), hits_addend }
}

fn of_text(text: &str) -> RateLimitDescriptor {
    let (mut entries, mut own) = (Vec::new(), RateLimitDescriptor::default());
    for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("h", hits)) => own.hits_addend = Some(UInt64Value { value: hits.parse().unwrap() }),
            Some(("limit", limit)) => {
                let (permits, unit) = limit.split_once('/').unwrap();
                let unit = UNITS.iter().position(|own| *own == unit).unwrap();
                let (requests_per_unit, unit) = (permits.parse().unwrap(), i32::try_from(unit).unwrap());
                own.limit = Some(RateLimitOverride { requests_per_unit, unit });
            }
            Some((key, value)) => entries.push((key, value)),
            None => own.is_negative_hits = word == "negative",
        }
    }
    RateLimitDescriptor { entries: descriptor(&entries).entries, ..own }
}

/// An answer: `OVER | OK 5 4 | OVER 1 0 x`, the limit, what is left and the limit's name.
pub(crate) fn told(answer: &RateLimitResponse) -> String {
    let code = |code: i32| if code == 2 { "OVER" } else { "OK" };
    let mut text = code(answer.overall_code).to_owned();
    for status in &answer.statuses {
        let limit = status.current_limit.as_ref();
        let permits = limit.map_or("-".to_owned(), |limit| limit.requests_per_unit.to_string());
        text += &format!(" | {} {permits} {}", code(status.code), status.limit_remaining);
        if let Some(name) = limit.map(|limit| &limit.name).filter(|name| !name.is_empty()) {
            text += &format!(" {name}");
        }
    }
    text
}
