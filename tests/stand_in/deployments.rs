//! The pods that Envoy Gateway and users of Envoy AI Gateway make, with this image in the place of the
//! service's: the image's own file system, command, variables, files and users, and a server of xDS that
//! behaves as the gateway's controller.
//!
//! What stands otherwise than in a cluster: the ports, which other tests want as well, and where names lead.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;

use super::asked::{StandIn, rules};
use super::redis_servers::Server;
use super::support::process::Process;
use super::support::rls::Client;
use super::support::web_authority::{WebAuthority, WebCertificate};
use super::support::{SOON, command, eventually, free_tcp, http, not_judged};
use super::xds::{Playing, answer, resource_of};

/// The variables that Envoy Gateway sets where metrics and traces are on.
const ENVOY_GATEWAY: &[(&str, &str)] = &[
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("LOG_LEVEL", "info"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:XDS"),
    ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis.redis.svc:REDIS"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_ADDR", ":METRICS"),
    ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ("TRACING_ENABLED", "true"),
    ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
    ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
    ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-7d9f"),
    ("TRACING_SAMPLING_RATE", "0.6"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://trace-collector:4317"),
];

/// Those of the manifest that Envoy AI Gateway's documentation has users write.
const AI_GATEWAY: &[(&str, &str)] = &[
    ("LOG_LEVEL", "debug"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis.redis-system.svc.cluster.local:REDIS"),
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ai-gateway-ratelimit"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local:XDS"),
];

/// What the image itself sets, and a cluster for the services beside the pod.
const EVERY_POD: &[(&str, &str)] = &[
    ("TIDEGATE_CONFIG", "/etc/tidegate/tidegate.toml"),
    ("RUNTIME_DIRECTORY", "/run/tidegate"),
    ("HOSTNAME", "envoy-ratelimit-7d9f"),
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
    ("ENVOY_RATELIMIT_SERVICE_PORT", "8081"),
    ("ENVOY_RATELIMIT_PORT_8081_TCP", "tcp://10.96.0.9:8081"),
    ("ENVOY_GATEWAY_SERVICE_HOST", "10.96.0.7"),
    ("REDIS_SERVICE_HOST", "10.96.0.8"),
    ("REDIS_PORT", "tcp://10.96.0.8:6379"),
];

/// Enters a root with what is mounted in it, as the user of the pod: pairs of a folder and its place follow.
const ENTER: &str = "root=$1 writes=$2 user=$3 argument=$4; shift 4; mount --bind \"$root\" \"$root\" || exit
    while [ $# -gt 0 ]; do mount --bind \"$1\" \"$root$2\" || exit; shift 2; done
    [ \"$writes\" = yes ] || mount -o remount,ro,bind \"$root\" || exit
    exec unshare --root=\"$root\" --wd=/var/lib/tidegate --setgid \"$user\" --setuid \"$user\" /bin/ratelimit $argument";

/// A pod of one container.
struct Pod {
    variables: &'static [(&'static str, &'static str)],
    argument: &'static str,
    user: &'static str,
    /// Whether the root file system can be written.
    writes: bool,
    /// Folders, and where they are mounted.
    mounts: Vec<(PathBuf, &'static str)>,
    /// The name of the server of xDS, and that of Redis.
    names: [&'static str; 2],
}

/// The places of one pod.
struct Places {
    xds: SocketAddr,
    redis: u16,
    metrics: SocketAddr,
}

impl Pod {
    fn start(&self, folder: TempDir, places: &Places) -> StandIn {
        let root = folder.path().join("root");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/image/rootfs");
        let made = Command::new(script).arg(command::TIDEGATE).arg(&root).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let [xds, redis] = self.names;
        std::fs::write(root.join("etc/hosts"), format!("127.0.0.1 localhost {xds} {redis}\n")).unwrap();
        let ports = [free_tcp(), free_tcp(), free_tcp()];
        let mut pod = Command::new("unshare");
        pod.args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "sh"]).arg(&root);
        pod.args([if self.writes { "yes" } else { "no" }, self.user, self.argument]);
        for (from, place) in &self.mounts {
            std::fs::create_dir_all(root.join(&place[1..])).unwrap();
            pod.arg(from).arg(place);
        }
        pod.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(EVERY_POD.iter().copied());
        let at = [("XDS", places.xds.port()), ("REDIS", places.redis), ("METRICS", places.metrics.port())];
        for (name, value) in self.variables {
            let place = at.iter().find(|(word, _)| value.ends_with(&format!(":{word}")));
            let value =
                place.map_or((*value).to_owned(), |(word, port)| value.replace(word, &port.to_string()));
            pod.env(name, value);
        }
        for (name, port) in ["PORT", "GRPC_PORT", "DEBUG_PORT"].into_iter().zip(ports) {
            pod.env(name, port.port().to_string());
        }
        let process = Process::start(&mut pod, &folder.path().join("daemon.log"));
        StandIn::running(process, ports, folder)
    }
}

fn may_change_roots() -> bool {
    let user = Command::new("id").arg("-u").output().unwrap();
    let is_root = String::from_utf8_lossy(&user.stdout).trim() == "0";
    if !is_root {
        not_judged("only root may change the root of a process");
    }
    is_root
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

fn key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn roots(authority: &WebAuthority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(chain(&authority.pem).remove(0)).unwrap();
    roots
}

/// The controller's side: it asks for a certificate of whoever wants rules.
fn controller(authority: &WebAuthority) -> ServerConfig {
    let own = authority.issue_for(&["envoy-gateway", "envoy-gateway.envoy-gateway-system.svc"], 1);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots(authority)),
        Arc::clone(&provider),
    );
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(chain(&own.cert), key(&own.key))
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Envoy's side.
fn envoy(authority: &WebAuthority, own: Option<&WebCertificate>) -> ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(authority));
    let mut config = match own {
        Some(own) => config.with_client_auth_cert(chain(&own.cert), key(&own.key)).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// The name of the service in the certificate that Envoy Gateway makes for it.
const SERVICE: &str = "envoy-ratelimit.envoy-gateway-system.svc.cluster.local";

#[test]
fn a_pod_of_envoy_gateway_serves_with_this_image() {
    if !may_change_roots() {
        return;
    }
    let (folder, authority, redis) = (TempDir::new().unwrap(), WebAuthority::new(), Server::start(&[]));
    let own = authority.issue_for(&["envoy-rate-limit", SERVICE], 2);
    let certs = folder.path().join("certs");
    std::fs::create_dir(&certs).unwrap();
    for (name, text) in [("ca.crt", &authority.pem), ("tls.crt", &own.cert), ("tls.key", &own.key)] {
        std::fs::write(certs.join(name), text).unwrap();
    }
    // The ConfigMap is optional: without it an empty folder is mounted.
    let exporter = folder.path().join("exporter");
    std::fs::create_dir(&exporter).unwrap();
    let (playing, metrics) = (Playing::start_with(Some(controller(&authority))), free_tcp());
    let pod = Pod {
        variables: ENVOY_GATEWAY,
        argument: "",
        user: "65534",
        writes: false,
        mounts: vec![(certs, "/certs"), (exporter, "/etc/statsd-exporter")],
        names: ["envoy-gateway", "redis.redis.svc"],
    };
    let places = Places { xds: playing.address, redis: redis.port, metrics };
    let mut pod = pod.start(folder, &places);
    // Its three probes ask the same, without TLS, and before there are rules.
    pod.until_healthy();
    assert_eq!(pod.get("/healthcheck").body, "OK");
    let stream = playing.stream();
    assert_eq!(&*playing.asked().node.unwrap().id, "envoy-ratelimit");
    let proxy = authority.issue_for(&["envoy"], 3);
    pod.call_through(Client::connect_secured(pod.grpc, SERVICE, envoy(&authority, Some(&proxy))));
    let domain = "default/eg/http";
    let call = "[route=route, rule-0-match--1=rule-0-match--1]";
    assert_eq!(pod.call(domain, call), "Unknown: no rate limit configuration loaded", "case 108");
    let lines = rules(&[
        "route=route",
        "  rule-0-match--1=rule-0-match--1 3/hour",
        "  masked_remote_address=0.0.0.0/0 9/hour",
        "  masked_remote_address=invert:192.0.2.0/24 9/hour",
    ]);
    stream.send(Ok(answer("1", "1", vec![resource_of(domain, &lines)]))).unwrap();
    assert!(playing.asked().error_detail.is_none(), "the controller hears that its rules are in force");
    let told = [(); 4].map(|()| pod.call(domain, call));
    assert_eq!(told, ["OK | OK 3 2", "OK | OK 3 1", "OK | OK 3 0", "OVER | OVER 3 0"], "cases 131, 132, 150");
    for network in ["0.0.0.0/0", "invert:192.0.2.0/24"] {
        let call = format!("[route=route, masked_remote_address={network}]");
        assert_eq!(pod.call(domain, &call), "OK | OK 9 8", "case 139");
    }
    // `GRPC_SERVER_TLS_CA_CERT` asks for no certificate, though Envoy shows one.
    let stranger = Client::connect_secured(pod.grpc, SERVICE, envoy(&authority, None));
    assert_eq!(stranger.health("ratelimit").unwrap(), 1);
    let key2 = ["rule-0-match--1_rule-0-match--1", "masked_remote_address_0_0_0_0/0"];
    let key2 = key2.into_iter().chain(["masked_remote_address_invert_192_0_2_0/24"]);
    let text = eventually("Prometheus is told", || {
        let text = http::get(metrics, "/metrics", &[]).body;
        text.contains("invert_192_0_2_0").then_some(text)
    });
    for key2 in key2 {
        let line = format!(
            "ratelimit_service_rate_limit_total_hits{{domain=\"{domain}\",key1=\"route_route\",key2=\"{key2}\"}} "
        );
        assert!(text.contains(&line), "case 151: {line}\n{text}");
    }
    let listed = format!("{domain}.route_route.rule-0-match--1_rule-0-match--1: unit=HOUR");
    assert!(pod.debug("/rlconfig").contains(&listed), "case 114: {}", pod.debug("/rlconfig"));
    assert!(redis.command(&["DBSIZE"]).is_some_and(|size| size.trim() != ":0"), "Redis counts");
    let log = pod.process.output();
    for wrong in ["ERROR", "panicked", "cannot be read", "the process before"] {
        assert!(!log.contains(wrong), "{wrong}: {log}");
    }
    pod.process.signal("TERM");
    assert_eq!(pod.process.wait(2 * SOON).code(), Some(0), "case 113");
}

#[test]
fn a_pod_of_envoy_ai_gateway_serves_with_this_image_and_keeps_its_rules() {
    if !may_change_roots() {
        return;
    }
    let (redis, playing) = (Server::start(&[]), Playing::start_with(None));
    let pod = Pod {
        variables: AI_GATEWAY,
        argument: "--quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit.envoy-gateway-system",
        user: "65532",
        writes: true,
        mounts: Vec::new(),
        names: [
            "ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local",
            "redis.redis-system.svc.cluster.local",
        ],
    };
    let places = Places { xds: playing.address, redis: redis.port, metrics: free_tcp() };
    let running = pod.start(TempDir::new().unwrap(), &places);
    let stream = playing.stream();
    assert_eq!(&*playing.asked().node.unwrap().id, "envoy-ai-gateway-ratelimit");
    let domain = "ai-gateway-quota";
    let lines = rules(&[
        "backend_name=default/backend",
        "  model_name_override=m",
        "    rule-0-x-user|ann-match-0=rule-0-x-user|ann-match-0 20/hour quota",
        "    rule-1-match--1=rule-1-match--1 20/hour quota",
    ]);
    stream.send(Ok(answer("1", "1", vec![resource_of(domain, &lines)]))).unwrap();
    assert!(playing.asked().error_detail.is_none());
    running.until_healthy();
    let of = |bucket: &str, hits: &str| {
        format!("[backend_name=default/backend, model_name_override=m, {bucket}={bucket}{hits}]")
    };
    // One at the request, twenty tokens when its stream is done; so the next one is denied.
    let bucket = "rule-1-match--1";
    assert_eq!(running.call(domain, &of(bucket, "")), "OK | OK 20 19", "cases 153, 155, 157");
    assert_eq!(running.call(domain, &of(bucket, " h=20")), "OVER | OVER 20 0", "case 158");
    assert_eq!(running.call(domain, &of(bucket, "")), "OVER | OVER 20 0", "case 158");
    assert_eq!(running.call(domain, &of("rule-0-x-user|ann-match-0", "")), "OK | OK 20 19", "case 154");
    let kept = running.folder.path().join("root/var/lib/tidegate/rules.saved.xds");
    eventually("its rules are kept", || kept.exists().then_some(()));
    let log = running.process.output();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}

#[test]
fn certificates_towards_xds_are_read_at_each_connection() {
    let (authority, other, folder) = (WebAuthority::new(), WebAuthority::new(), TempDir::new().unwrap());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let renew = |signer: &WebAuthority, serial: u64| {
        let own = signer.issue_for(&["envoy-ratelimit"], serial);
        std::fs::write(file("tls.crt"), &own.cert).unwrap();
        std::fs::write(file("tls.key"), &own.key).unwrap();
    };
    std::fs::write(file("ca.crt"), &authority.pem).unwrap();
    renew(&other, 2);
    let playing = Playing::start_with(Some(controller(&authority)));
    let (ca, cert, key) = (file("ca.crt"), file("tls.crt"), file("tls.key"));
    let daemon = playing.daemon(&[
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca.as_str()),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert.as_str()),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key.as_str()),
    ]);
    // It comes again every tenth of a second.
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!playing.has_stream(), "its certificate is another authority's: {}", daemon.process.output());
    renew(&authority, 3);
    let stream = playing.stream();
    assert_eq!(&*playing.asked().node.unwrap().id, "envoy-ratelimit", "case 124");
    stream.send(Ok(answer("1", "n1", vec![resource_of("d", &rules(&["k 5/day"]))]))).unwrap();
    daemon.until_healthy();
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 4", "case 124");
}
