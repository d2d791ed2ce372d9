//! The gateways of the table, with their files as they are shipped but for what a test says.

use tempfile::TempDir;

use super::built_on_envoy::{self, AskedCluster};
use super::support::daemon::Daemon;
use super::support::{self, eventually, free_tcp, http, origin};
use super::{Gateway, caddy, haproxy, nginx, replaced};

/// The parts of a gateway's file that a test chooses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Setting {
    /// True: a request is refused where Tidegate does not answer. False: it passes.
    pub(super) refuses: bool,
    /// True: an answer may take thirty seconds. False: as long as the shipped file says.
    pub(super) patient: bool,
    /// Calls that Envoy's circuit breaker leaves open at once, if they are not as many as the file or the
    /// page says.
    pub(super) calls_max: Option<u32>,
}

/// A gateway: how it is started in front of a daemon.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) start: fn(&Daemon, Setting) -> Gateway,
    /// Bytes of a head that it surely reads, and asks about.
    pub(super) reads: usize,
    /// Statuses of its own where no daemon answered and it refuses.
    pub(super) absent: &'static [u16],
    /// True if its file has a switch to pass requests where no daemon answers.
    pub(super) passes: bool,
}

fn envoy_rls(daemon: &Daemon, setting: Setting) -> Gateway {
    let folder = TempDir::new().unwrap();
    let (addr, admin, service) = (free_tcp(), free_tcp(), origin::start());
    let mut config = include_str!("../../deploy/envoy/envoy.yaml").to_owned();
    for (from, to) in [("10000", addr), ("9901", admin), ("8000", service), ("8081", daemon.grpc)]
        .map(|(from, to)| (format!("port_value: {from}"), to))
    {
        config = replaced(&config, &from, &format!("port_value: {}", to.port()));
    }
    // A trace goes on into the calls of the daemon, with whatever the client said of it.
    let tracing = "stat_prefix: front
                max_request_headers_kb: 8192
                tracing:
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      service_name: front
                      grpc_service: { envoy_grpc: { cluster_name: tidegate } }\n";
    config = replaced(&config, "stat_prefix: front\n", tracing);
    // Calls of many descriptors, each with the whole path.
    let one = "                              - actions:\n                                  - request_headers: { header_name: \":path\", descriptor_key: \"path\" }\n";
    config = replaced(
        &config,
        "                            rate_limits:\n",
        &format!("                            rate_limits:\n{}", one.repeat(24)),
    );
    config =
        replaced(&config, "failure_mode_deny: false", &format!("failure_mode_deny: {}", setting.refuses));
    if setting.patient {
        config =
            replaced(&config, "                      timeout: 10s\n", "                      timeout: 30s\n");
    }
    if let Some(calls) = setting.calls_max {
        config = replaced(&config, "max_requests: 65536", &format!("max_requests: {calls}"));
    }
    let process = support::envoy::start(folder.path(), &config);
    let front = Gateway::serving(addr, process, folder);
    let probe = b"GET /clusters HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let healthy = format!("tidegate::{}::health_flags::healthy", daemon.grpc);
    eventually("Envoy finds Tidegate healthy", || {
        http::raw(admin, probe).is_some_and(|clusters| clusters.body.contains(&healthy)).then_some(())
    });
    front
}

fn envoy_ext_authz(daemon: &Daemon, setting: Setting) -> Gateway {
    let filter = format!(
        r#"name: envoy.filters.http.ext_authz
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
  transport_api_version: V3
  failure_mode_allow: {}
  http_service:
    server_uri: {{ uri: "http://tidegate", cluster: tidegate, timeout: {} }}
    path_prefix: /v1/authorize/domain=default
    authorization_request: {{ allowed_headers: {{ patterns: [{{ exact: x-api-key }}, {{ exact: tracestate }}] }} }}
"#,
        !setting.refuses,
        if setting.patient { "30s".to_owned() } else { built_on_envoy::time_of_page() },
    );
    let cluster = AskedCluster {
        name: "tidegate",
        daemon: daemon.http,
        is_http2: false,
        calls_max: setting.calls_max.unwrap_or_else(built_on_envoy::calls_of_page),
    };
    built_on_envoy::envoy(&filter, "", &cluster)
}

fn nginx(daemon: &Daemon, setting: Setting) -> Gateway {
    nginx::start_with(&[daemon.http], |mut config| {
        if setting.patient {
            config = replaced(&config, "proxy_connect_timeout 10s;", "proxy_connect_timeout 30s;");
            config = replaced(&config, "proxy_read_timeout 10s;", "proxy_read_timeout 30s;");
        }
        if setting.refuses {
            config = replaced(&config, "        error_page 502 504 = @tidegate_absent;\n", "");
        }
        config
    })
}

fn haproxy(daemon: &Daemon, setting: Setting) -> Gateway {
    haproxy::start_with(&[daemon.http], |mut config| {
        if setting.patient {
            config = replaced(&config, "timeout server  10s", "timeout server  30s");
        }
        if setting.refuses {
            config = replaced(&config, "-m str passed absent }", "-m str passed }");
        }
        config
    })
}

fn caddy(daemon: &Daemon, setting: Setting) -> Gateway {
    caddy::start_as_shipped(&[daemon.http], |mut config| {
        if setting.patient {
            config = replaced(&config, "response_header_timeout 250ms", "response_header_timeout 30s");
        }
        config
    })
}

pub(super) const ENVOY: Column =
    Column { name: "Envoy", start: envoy_rls, reads: 8_000_000, absent: &[500], passes: true };
pub(super) const EXT_AUTHZ: Column =
    Column { name: "Envoy ext_authz", start: envoy_ext_authz, reads: 56_000, absent: &[403], passes: true };
pub(super) const NGINX: Column =
    Column { name: "nginx", start: nginx, reads: 8_000, absent: &[500], passes: true };
pub(super) const HAPROXY: Column =
    Column { name: "HAProxy", start: haproxy, reads: 13_000, absent: &[503], passes: true };
/// Caddy refuses without an answer, and its file has no switch for the other way.
pub(super) const CADDY: Column =
    Column { name: "Caddy", start: caddy, reads: 300_000, absent: &[502, 503, 504], passes: false };
