//! A stock Envoy enforces our limits: the real program, with the file that `deploy/envoy` gives to users.
//!
//! `tests/run` installs Envoy and says where it is; without that these tests fail, they do not skip.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod support;

use std::net::SocketAddr;
use std::process::Command;

use support::daemon::Daemon;
use support::http::{self, Reply};
use support::process::Process;
use support::{eventually, free_tcp, origin};
use tempfile::TempDir;

fn rules(limit: u32) -> String {
    format!(
        "[[rules]]\nname = \"per-user\"\nmatch = {{ path = \"/api/*\" }}\nper = [\"user\"]\n\
         algorithm = \"fixed_window\"\nlimit = {limit}\nwindow = \"24h\"\nmessage = \"Enough for today.\"\n"
    )
}

/// Envoy in front of a service, asking a daemon.
struct Front {
    envoy: Process,
    addr: SocketAddr,
    _folder: TempDir,
}

impl Front {
    fn start(grpc: SocketAddr) -> Self {
        let folder = TempDir::new().unwrap();
        let (addr, admin, service) = (free_tcp(), free_tcp(), origin::start());
        let mut config = include_str!("../deploy/envoy/envoy.yaml").to_owned();
        for (from, to) in [
            ("port_value: 10000", addr),
            ("port_value: 9901", admin),
            ("port_value: 8081", grpc),
            ("port_value: 8000", service),
        ] {
            assert_eq!(config.matches(from).count(), 1, "deploy/envoy/envoy.yaml says {from} once");
            config = config.replace(from, &format!("port_value: {}", to.port()));
        }
        // On a busy machine an answer may take longer than users would wait for it.
        assert_eq!(config.matches("timeout: 0.05s").count(), 1);
        config = config.replace("timeout: 0.05s", "timeout: 5s");
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(program());
        command.arg("-c").arg(&file).args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "warning",
        ]);
        let mut envoy = Process::start(&mut command, &folder.path().join("envoy.log"));
        eventually("Envoy has found Tidegate healthy", || {
            assert!(envoy.ended().is_none(), "Envoy ended:\n{}", envoy.output());
            let probe = b"GET /clusters HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let clusters = http::raw(admin, probe)?.body;
            let healthy = format!("tidegate::{grpc}::health_flags::healthy");
            clusters.contains(&healthy).then_some(())
        });
        eventually("Envoy serves", || {
            http::raw(addr, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        });
        Self { envoy, addr, _folder: folder }
    }

    fn get(&self, user: &str, path: &str) -> Reply {
        http::get(self.addr, path, &[("x-user", user)])
    }

    fn statuses(&self, user: &str, path: &str, times: usize) -> Vec<u16> {
        (0..times).map(|_| self.get(user, path).status).collect()
    }
}

fn program() -> String {
    let named = std::env::var("TIDEGATE_TEST_ENVOY").ok();
    let usable = |path: &String| {
        Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/target/envoy");
    named.into_iter().chain([installed.to_owned(), "envoy".to_owned()]).find(usable).unwrap_or_else(|| {
        panic!("no Envoy: run tests/run, which installs it, or name one in TIDEGATE_TEST_ENVOY")
    })
}

#[test]
fn requests_past_the_limit_get_429_and_others_200() {
    let daemon = Daemon::with_rules(&rules(3));
    let front = Front::start(daemon.grpc);
    assert_eq!(front.statuses("ann", "/api/things", 5), [200, 200, 200, 429, 429]);
    assert_eq!(front.statuses("bob", "/api/things", 2), [200, 200], "another user has a bucket of its own");
    assert_eq!(front.statuses("ann", "/other", 2), [200, 200], "no rule is for this path");
    let anonymous = http::get(front.addr, "/api/things", &[]);
    assert_eq!(
        (anonymous.status, anonymous.body.as_str()),
        (200, "served /api/things\n"),
        "no descriptor, no limit"
    );
    assert!(!front.envoy.output().contains("panic"));
}

#[test]
fn answers_carry_the_headers_of_draft_03() {
    let daemon = Daemon::with_rules(&rules(2));
    let front = Front::start(daemon.grpc);
    let header = |reply: &Reply, name: &str| {
        reply.header(name).unwrap_or_else(|| panic!("no {name}: {reply:?}")).to_owned()
    };
    for (remaining, status) in [("1", 200), ("0", 200), ("0", 429)] {
        let reply = front.get("ann", "/api/x");
        assert_eq!(reply.status, status);
        let limit = header(&reply, "x-ratelimit-limit");
        assert!(limit.starts_with("2, 2;w=86400"), "{limit}");
        assert!(limit.contains("per-user"), "{limit}");
        assert_eq!(header(&reply, "x-ratelimit-remaining"), remaining);
        let reset: u64 = header(&reply, "x-ratelimit-reset").parse().unwrap();
        assert!(reset <= 86_400, "seconds until the window ends: {reset}");
    }
    let denied = front.get("ann", "/api/x");
    assert!(denied.header("x-envoy-ratelimited").is_some(), "{denied:?}");
}

#[test]
fn a_raised_limit_takes_force_while_envoy_keeps_asking() {
    let daemon = Daemon::with_rules(&rules(2));
    let front = Front::start(daemon.grpc);
    assert_eq!(front.statuses("ann", "/api/x", 3), [200, 200, 429]);
    daemon.reload(&rules(4), "per-user", 4);
    assert_eq!(front.statuses("ann", "/api/x", 3), [200, 200, 429]);
}

#[test]
fn the_snippet_that_the_demo_prints_works_as_printed() {
    let folder = TempDir::new().unwrap();
    let mut demo = support::command::command(folder.path());
    demo.args(["demo", "--limit", "5", "--window", "1h", "--load", "0"]);
    let mut demo = Process::start(&mut demo, &folder.path().join("demo.log"));
    let printed = eventually("the demo prints its snippet", || {
        assert!(demo.ended().is_none(), "{}", demo.output());
        let output = demo.output();
        let (_, rest) = output.split_once("http_filters:\n")?;
        let (filters, rest) = rest.split_once("  # ")?;
        let (_, rest) = rest.split_once("  clusters:\n")?;
        let (clusters, _) = rest.split_once("\n\n")?;
        Some((filters.to_owned(), clusters.to_owned()))
    });
    let (addr, service) = (free_tcp(), origin::start());
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, around(&printed.0, &printed.1, addr, service)).unwrap();
    let mut command = Command::new(program());
    command.arg("-c").arg(&file).args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]);
    let mut envoy = Process::start(&mut command, &folder.path().join("envoy.log"));
    eventually("Envoy enforces the demo's limit", || {
        assert!(envoy.ended().is_none(), "Envoy ended:\n{}", envoy.output());
        let reply = http::raw(addr, b"GET /demo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        (reply.status == 429).then_some(())
    });
}

/// A whole configuration around the parts that the demo prints.
fn around(filters: &str, clusters: &str, addr: SocketAddr, service: SocketAddr) -> String {
    let filters: String = filters.lines().map(|line| format!("        {line}\n")).collect();
    format!(
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
          route_config:
            virtual_hosts:
            - name: everything
              domains: ["*"]
              routes:
              - match: {{ prefix: "/" }}
                route:
                  cluster: service
                  rate_limits: [{{ actions: [{{ request_headers: {{ header_name: ':path', descriptor_key: path }} }}] }}]
          http_filters:
{filters}
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: service
    type: STATIC
    load_assignment:
      cluster_name: service
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }} }}] }}]
{clusters}
"#,
        addr.port(),
        service.port()
    )
}

#[test]
fn without_tidegate_requests_pass_as_the_file_says() {
    let mut daemon = Daemon::with_rules(&rules(1));
    let front = Front::start(daemon.grpc);
    assert_eq!(front.statuses("ann", "/api/x", 2), [200, 429]);
    assert_eq!(daemon.terminate().code(), Some(0));
    eventually("Envoy passes what it cannot ask about", || {
        (front.get("ann", "/api/x").status == 200).then_some(())
    });
}
