//! The table of what a client can bring about, and what each shipped gateway does then: a request that a rule
//! blocks never passes, whether the gateway is set to pass or to refuse where Tidegate is away.
//!
//! | row | what the client does meanwhile | held by |
//! |---|---|---|
//! | size | heads, paths, names and traces up to what the gateway reads; calls beyond 1 MiB | read as far as it is needed, and denied beyond it |
//! | form | control characters, bytes that are not UTF-8, empty and doubled headers | counted, or refused as the client's fault |
//! | count | as many headers as the gateway takes | unread fields are dropped |
//! | time | a hundred requests that are given up at once or after some milliseconds | what they were given goes back |
//! | overload | sixty requests at the same time | answered from memory |
//! | connections | every place of the listener is taken by connections that watch, busy or idle | those that decide keep theirs |
//! | streams | every stream of the gRPC listener that watches health is taken | decisions have places of their own |
//! | held answers | three hundred requests of one client that a rule holds back | a dozen wait, the rest is denied; the gateway's breaker is wide |
//! | memory | more clients than `store.max_keys` | a block counts nothing; a newcomer keeps to what all newcomers share |
//! | unread answers | a hundred long answers that nobody reads, and metrics in a loop | made once, away from the threads that decide |
//! | descriptors | the daemon may open 256 files | listeners leave a quarter to everything else |
//!
//! The gateway's own circuit breaker is in the row of held answers, with Envoy's file as it is shipped.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use super::support::daemon::{Daemon, Launch};
use super::support::{self, eventually, free_tcp, http, origin};
use super::{Gateway, caddy, haproxy, nginx, replaced};

const RULES: &str = r#"
[[rules]]
name = "closed"
match = { path = "/closed" }
action = "block"

[[rules]]
name = "held"
match = { path = "/held" }
algorithm = "token_bucket"
limit = 60
burst = 1
window = "1m"
action = "throttle"
max_delay = "20s"
delay = "hold"

[[rules]]
name = "everybody"
match = { path = "/counted" }
per = ["ip"]
algorithm = "fixed_window"
limit = 1
window = "24h"
"#;

/// A gateway of the table: how it is started, in front of a daemon, passing or refusing where that is away.
struct Column {
    name: &'static str,
    start: fn(&Daemon, bool) -> Gateway,
}

fn envoy_rls(daemon: &Daemon, refuses: bool) -> Gateway {
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
    config = replaced(&config, "failure_mode_deny: false", &format!("failure_mode_deny: {refuses}"));
    config = replaced(&config, "timeout: 0.05s", "timeout: 30s");
    let process = support::envoy::start(folder.path(), &config);
    let front = Gateway::serving(addr, process, folder);
    let probe = b"GET /clusters HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let healthy = format!("tidegate::{}::health_flags::healthy", daemon.grpc);
    eventually("Envoy finds Tidegate healthy", || {
        http::raw(admin, probe).is_some_and(|clusters| clusters.body.contains(&healthy)).then_some(())
    });
    front
}

fn envoy_ext_authz(daemon: &Daemon, refuses: bool) -> Gateway {
    let filter = format!(
        r#"name: envoy.filters.http.ext_authz
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
  transport_api_version: V3
  failure_mode_allow: {}
  http_service:
    server_uri: {{ uri: "http://tidegate", cluster: tidegate, timeout: 30s }}
    path_prefix: /v1/authorize/domain=default
    authorization_request: {{ allowed_headers: {{ patterns: [{{ exact: x-api-key }}, {{ exact: tracestate }}] }} }}
"#,
        !refuses
    );
    super::built_on_envoy::envoy(&filter, "", "tidegate", daemon.http, false)
}

const ENVOY: Column = Column { name: "Envoy", start: envoy_rls };
const EXT_AUTHZ: Column = Column { name: "Envoy ext_authz", start: envoy_ext_authz };
const NGINX: Column = Column {
    name: "nginx",
    start: |daemon, refuses| {
        nginx::start_with(&[daemon.http], |config| {
            let config = config.replace("250ms", "30s");
            if refuses {
                replaced(&config, "        error_page 502 504 = @tidegate_absent;\n", "")
            } else {
                config
            }
        })
    },
};
const HAPROXY: Column = Column {
    name: "HAProxy",
    start: |daemon, refuses| {
        haproxy::start_with(&[daemon.http], |config| {
            let config = replaced(&config, "timeout server  5s", "timeout server  30s");
            if refuses { replaced(&config, "-m str passed absent }", "-m str passed }") } else { config }
        })
    },
};
/// Caddy refuses without an answer, and its file has no switch for the other way.
const CADDY: Column = Column {
    name: "Caddy",
    start: |daemon, _| {
        caddy::start_with(&[daemon.http], |config| {
            replaced(&config, "response_header_timeout 5s", "response_header_timeout 30s")
        })
    },
};

/// Connections that ask the daemon itself, and leave what it answers or keep the connection open.
struct Others(Vec<TcpStream>);

impl Others {
    fn connect(addr: SocketAddr, count: usize) -> Self {
        let connected =
            (0..count).filter_map(|_| TcpStream::connect_timeout(&addr, Duration::from_secs(2)).ok());
        Self(connected.collect())
    }

    fn ask(&mut self, request: &[u8]) {
        self.0.retain_mut(|socket| socket.write_all(request).is_ok());
    }

    /// Reads what is there, without waiting.
    fn read(&mut self) {
        let mut buffer = [0; 65_536];
        for socket in &mut self.0 {
            let _ = socket.set_nonblocking(true);
            while socket.read(&mut buffer).is_ok_and(|read| read > 0) {}
            let _ = socket.set_nonblocking(false);
        }
    }
}

struct Table<'t> {
    column: &'t Column,
    refuses: bool,
    daemon: &'t Daemon,
    front: &'t Gateway,
}

impl Table<'_> {
    /// The status of a request for what is blocked, with anything behind its path and among its headers.
    fn closed(&self, query: &str, headers: &[u8]) -> u16 {
        let path = format!("/closed{query}");
        let head: [&[u8]; 5] =
            [b"GET ", path.as_bytes(), b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n", headers, b"\r\n"];
        // No answer is no pass.
        http::raw(self.front.addr, &head.concat()).map_or(0, |reply| reply.status)
    }

    fn judge(&self, row: &str, what: &str, status: u16) {
        let (column, mode) = (self.column.name, if self.refuses { "refusing" } else { "passing" });
        assert!(
            status != 200 && status != 204,
            "{row}, {column} {mode}: {what} passed\n{}",
            self.daemon.log()
        );
    }

    fn stays_closed(&self, row: &str) {
        for _ in 0..5 {
            self.judge(row, "what is blocked", self.closed("", b""));
        }
    }

    fn size(&self) {
        let trace = format!("traceparent: 00-{}-{}-01\r\n", "1".repeat(32), "2".repeat(16));
        for length in [1_000, 9_000, 17_000, 55_000, 1_000_000] {
            let long = "a".repeat(length);
            let state = format!("{trace}tracestate: a={long}\r\n");
            self.judge("size", &format!("a trace of {length}"), self.closed("", state.as_bytes()));
            let key = format!("x-api-key: {long}\r\n");
            self.judge("size", &format!("a key of {length}"), self.closed("", key.as_bytes()));
            self.judge("size", &format!("a query of {length}"), self.closed(&format!("?{long}"), b""));
        }
        let many = format!("{trace}{}", format!("tracestate: a={}\r\n", "b".repeat(9_000)).repeat(6));
        self.judge("size", "six long traces", self.closed("", many.as_bytes()));
    }

    fn form(&self) {
        let odd: [&[u8]; 8] = [
            b"x-api-key: k\x01\r\n",
            b"x-api-key: \xff\r\n",
            b"x-api-key:\r\n",
            b"x-api-key: a\r\nx-api-key: b\r\n",
            b"traceparent: x\r\ntraceparent: y\r\n",
            b"content-length: 0\r\ntransfer-encoding: chunked\r\n",
            b"authorization: \t\r\n",
            b"x-forwarded-for: nobody, \x02\r\n",
        ];
        for headers in odd {
            self.judge("form", &String::from_utf8_lossy(headers), self.closed("", headers));
        }
        for query in ["?%ff", "?#", "?cost=-9&domain=none", "?\u{1}"] {
            self.judge("form", query, self.closed(query, b""));
        }
    }

    fn count(&self) {
        for count in [50, 90, 99, 200] {
            let headers = "x-forwarded-for: 203.0.113.1\r\n".repeat(count);
            self.judge("count", &format!("{count} headers"), self.closed("", headers.as_bytes()));
        }
    }

    fn time(&self) {
        for turn in 0..100_u64 {
            if let Ok(mut socket) = TcpStream::connect(self.front.addr) {
                let _ = socket.write_all(b"GET /closed HTTP/1.1\r\nhost: x\r\n\r\n");
                std::thread::sleep(Duration::from_millis(turn % 4));
            }
        }
        self.stays_closed("time");
    }

    fn overload(&self) {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..60).map(|_| scope.spawn(|| self.closed("", b""))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        statuses.into_iter().for_each(|status| self.judge("overload", "one of sixty", status));
    }

    fn connections(&self) {
        for addr in [self.daemon.http, self.daemon.grpc] {
            let mut idle = Others::connect(addr, 200);
            self.stays_closed("connections");
            for _ in 0..6 {
                idle.ask(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
                std::thread::sleep(Duration::from_millis(100));
                idle.read();
                self.stays_closed("connections");
            }
        }
    }

    fn held_answers(&self) {
        std::thread::scope(|scope| {
            for _ in 0..300 {
                scope.spawn(|| {
                    if let Ok(mut socket) = TcpStream::connect(self.front.addr) {
                        let _ =
                            socket.write_all(b"GET /held HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
                        std::thread::sleep(Duration::from_secs(2));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(700));
            self.stays_closed("held answers");
        });
    }

    fn unread_answers(&self) {
        let mut unread = Others::connect(self.daemon.http, 40);
        for request in ["/v1/rules", "/metrics", "/openapi.json"] {
            unread.ask(format!("GET {request} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").repeat(8).as_bytes());
            self.stays_closed("unread answers");
        }
    }

    fn memory(&self) {
        let checks: Vec<_> = (0..1_000)
            .map(|client| serde_json::json!({ "attributes": { "path": "/counted", "ip": format!("2001:db8:{client:x}::1") } }))
            .collect();
        for _ in 0..2 {
            assert_eq!(self.daemon.post("/v1/check", &serde_json::json!({ "checks": checks })).status, 200);
        }
        self.stays_closed("memory");
        let passed = (0..20).filter(|_| {
            self.daemon.check(&[("path", "/counted"), ("ip", "198.51.100.1")])["allowed"] == true
        });
        let passed = passed.count();
        assert!(passed <= 1, "memory: {passed} of a newcomer's requests passed where all room is taken");
    }

    fn streams(&self) {
        let watchers: Vec<_> = (0..3).map(|_| self.daemon.rls()).collect();
        for client in &watchers {
            client.watch_health(70);
        }
        self.stays_closed("streams");
    }
}

fn holds(column: &Column) {
    for refuses in [false, true] {
        // Few files: every row is also one of a daemon that has no descriptor to spare.
        let launch = Launch { open_files: Some(256), ..Launch::default() };
        let daemon = Daemon::launch(launch, RULES, "[store]\nmax_keys = 1000\n", &[]);
        let front = (column.start)(&daemon, refuses);
        let table = Table { column, refuses, daemon: &daemon, front: &front };
        table.size();
        table.form();
        table.count();
        table.time();
        table.overload();
        table.connections();
        table.streams();
        table.unread_answers();
        table.held_answers();
        table.memory();
        let open = eventually("what no rule is for passes afterwards", || {
            let reply = http::raw(front.addr, b"GET /open HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
            (reply.status == 200).then_some(reply.status)
        });
        assert_eq!(open, 200);
    }
}

#[test]
fn nothing_that_a_client_chose_passes_envoy() {
    holds(&ENVOY);
}

#[test]
fn nothing_that_a_client_chose_passes_envoys_ext_authz() {
    holds(&EXT_AUTHZ);
}

#[test]
fn nothing_that_a_client_chose_passes_nginx() {
    holds(&NGINX);
}

#[test]
fn nothing_that_a_client_chose_passes_haproxy() {
    holds(&HAPROXY);
}

#[test]
fn nothing_that_a_client_chose_passes_caddy() {
    holds(&CADDY);
}
