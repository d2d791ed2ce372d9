//! Clients that hang up, hold on, or do not read: they cost the daemon a bounded amount, and nobody else
//! anything.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use h2::client::SendRequest;
use http::Request;
use prost::Message as _;
use tokio::runtime::Runtime;

use super::support::daemon::{Daemon, Launch};
use super::support::rls::{descriptor, request};
use super::support::{SOON, eventually, free_tcp, http as plain, not_judged};

const RULES: &str = "[[rules]]\nname = \"per-user\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                     limit = 1000000\nwindow = \"24h\"\n";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const DECIDE: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Open calls besides decisions that one connection may have.
const CONNECTION_CALLS_MAX: usize = 64;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// An HTTP/2 connection whose windows for answers have so many bytes.
async fn connect(addr: SocketAddr, window: u32) -> (SendRequest<Bytes>, tokio::task::JoinHandle<()>) {
    let socket = tokio::net::TcpStream::connect(addr).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).max_concurrent_reset_streams(10_000);
    let (send, connection) = builder.handshake(socket).await.unwrap();
    (send, tokio::spawn(async move { drop(connection.await) }))
}

fn grpc(path: &str) -> Request<()> {
    Request::post(format!("http://x{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}

fn framed(message: &[u8]) -> Bytes {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &len, message].concat().into()
}

/// Begins a watch and returns once it is answered: its status, and what ends it.
async fn watch(send: &SendRequest<Bytes>) -> (http::HeaderMap, h2::SendStream<Bytes>, h2::RecvStream) {
    let mut send = send.clone().ready().await.unwrap();
    let (answer, mut stream) = send.send_request(grpc(WATCH), false).unwrap();
    stream.send_data(framed(&[]), true).unwrap();
    let (head, body) = answer.await.unwrap().into_parts();
    (head.headers, stream, body)
}

fn gauge(daemon: &Daemon, name: &str) -> f64 {
    daemon.metric(name).unwrap_or_else(|| panic!("no metric {name}"))
}

#[test]
fn watches_that_end_leave_no_task_and_no_call_behind() {
    let daemon = Daemon::with_rules(RULES);
    // The gauge of tasks is written every second; at first some of the daemon's own have not begun.
    let mut last = 0.0;
    let before = eventually("the daemon's own tasks are there", || {
        std::thread::sleep(Duration::from_millis(1_500));
        let tasks = gauge(&daemon, "tidegate_tasks");
        let same = tasks > 0.0 && (tasks - last).abs() < 0.5;
        last = tasks;
        same.then_some(tasks)
    });
    let runtime = runtime();
    let connections = runtime.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..4 {
            let (send, connection) = connect(daemon.grpc, 65_535).await;
            for _ in 0..12 {
                let mut open = Vec::new();
                for _ in 0..40 {
                    open.push(watch(&send).await);
                }
                for (_, mut stream, body) in open {
                    stream.send_reset(h2::Reason::CANCEL);
                    drop(body);
                }
            }
            connections.push((send, connection));
        }
        connections
    });
    eventually("1,920 watches that were reset are gone", || {
        (gauge(&daemon, "tidegate_grpc_other_calls") == 0.0
            && gauge(&daemon, "tidegate_tasks") <= before + 12.0)
            .then_some(())
    });
    runtime.block_on(async {
        let mut open = Vec::new();
        for (send, connection) in connections {
            for _ in 0..40 {
                open.push(watch(&send).await);
            }
            // The socket goes, without a word to the streams.
            connection.abort();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    });
    eventually("watches of closed connections are gone", || {
        (gauge(&daemon, "tidegate_grpc_other_calls") == 0.0
            && gauge(&daemon, "tidegate_connections{listener=\"rls\"}") == 0.0
            && gauge(&daemon, "tidegate_tasks") <= before + 8.0)
            .then_some(())
    });
}

#[test]
fn a_connection_may_have_so_many_watches_and_others_are_not_held_to_it() {
    let daemon = Daemon::with_rules(RULES);
    let runtime = runtime();
    runtime.block_on(async {
        let (send, _connection) = connect(daemon.grpc, 65_535).await;
        let mut open = Vec::new();
        for _ in 0..CONNECTION_CALLS_MAX {
            let watched = watch(&send).await;
            assert_eq!(watched.0.get("grpc-status"), None);
            open.push(watched);
        }
        let (refused, ..) = watch(&send).await;
        assert_eq!(refused["grpc-status"], "8", "{refused:?}");
        let (other, _second) = connect(daemon.grpc, 65_535).await;
        assert_eq!(watch(&other).await.0.get("grpc-status"), None);
    });
    assert_eq!(daemon.rls().health("").unwrap(), 1, "a gateway still finds it healthy");
}

#[test]
fn idle_connections_of_one_listener_take_nothing_from_the_rest_of_the_daemon() {
    let launch = Launch { open_files: Some(256), ..Launch::default() };
    let daemon = Daemon::launch(launch, RULES, "", &[]);
    let idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(daemon.http).unwrap()).collect();
    let limit = |client: &super::support::rls::Client| {
        let answer = client.ask(request(vec![descriptor(&[("user", "ann")])])).unwrap();
        answer.statuses[0].current_limit.as_ref().unwrap().requests_per_unit
    };
    let clients: Vec<_> = (0..20).map(|_| daemon.rls()).collect();
    for client in &clients {
        assert_eq!(limit(client), 1_000_000);
    }
    daemon.set_rules(&RULES.replace("1000000", "77"));
    daemon.process.signal("HUP");
    eventually("the rules were read again", || (limit(&clients[0]) == 77).then_some(()));
    // The longest idle connections go for new ones.
    eventually("HTTP answers too", || {
        let mut socket = TcpStream::connect(daemon.http).ok()?;
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        answer.ends_with("ok\n").then_some(())
    });
    let said = daemon.log().lines().filter(|line| line.contains("as many connections as it may")).count();
    assert_eq!(said, 1, "once a minute is enough:\n{}", daemon.log());
    assert!(!daemon.log().contains("Too many open files"), "{}", daemon.log());
    drop(idle);
}

#[test]
fn the_soft_limit_of_open_files_is_raised_to_the_hard_one() {
    let launch = Launch { open_files_at_first: Some(100), ..Launch::default() };
    let daemon = Daemon::launch(launch, RULES, "", &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.process.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let values: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert!(values[0] == values[1] && values[0] != "100", "{line}");
}

/// A daemon that does not accept for a moment lets connections wait, instead of having each of them try again
/// a second later.
#[test]
fn a_burst_of_connections_waits_for_a_daemon_that_stands_still() {
    // More than the usual 1,024.
    const BURST: usize = 1_500;
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    if allowed.trim().parse::<usize>().unwrap() < BURST {
        not_judged(&format!("the system lets only {} connections wait", allowed.trim()));
        return;
    }
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: files.maximum, maximum: files.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let daemon = Daemon::with_rules(RULES);
    for address in [daemon.http, daemon.grpc] {
        daemon.process.signal("STOP");
        let waiting: Vec<_> = (0..BURST)
            .map_while(|_| TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok())
            .collect();
        daemon.process.signal("CONT");
        assert_eq!(waiting.len(), BURST, "connections to {address} that may wait");
    }
    assert_eq!(daemon.check(&[("user", "ann")])["allowed"], true);
}

#[test]
fn who_reads_no_answers_is_let_go_and_nobody_else_notices() {
    let daemon = Daemon::with_rules(RULES);
    let runtime = runtime();
    let call: RateLimitRequest =
        request((0..200).map(|n| descriptor(&[("user", &format!("u{n}"))])).collect());
    let message = framed(&call.encode_to_vec());
    let (grpc_held, http_held) = runtime.block_on(async {
        // Nothing fits this client's windows; it answers pings all the same.
        let (send, connection) = connect(daemon.grpc, 0).await;
        let mut answers = Vec::new();
        for _ in 0..300 {
            let mut send = send.clone().ready().await.unwrap();
            let (answer, mut stream) = send.send_request(grpc(DECIDE), false).unwrap();
            stream.send_data(message.clone(), true).unwrap();
            answers.push(answer);
        }
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let http = socket.connect(daemon.http).await.unwrap();
        let ask = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
        http.writable().await.unwrap();
        let _ = http.try_write(&ask);
        ((send, connection, answers), http)
    });
    let closed = |listener: &str| {
        daemon
            .metric(&format!("tidegate_connections_unread_total{{listener=\"{listener}\"}}"))
            .unwrap_or_default()
    };
    let client = daemon.rls();
    // Looked at every ten seconds, and given twenty.
    for _ in 0..6 {
        if closed("rls") >= 1.0 && closed("http") >= 1.0 {
            break;
        }
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while std::time::Instant::now() < until && !(closed("rls") >= 1.0 && closed("http") >= 1.0) {
            assert!(client.ask(request(vec![descriptor(&[("user", "ann")])])).is_ok());
            std::thread::sleep(Duration::from_millis(250));
        }
    }
    assert!(closed("rls") >= 1.0 && closed("http") >= 1.0, "{}", daemon.metrics());
    drop((grpc_held, http_held));
}

#[test]
fn metrics_have_a_listener_of_their_own_that_says_nothing_else() {
    let metrics = free_tcp();
    let daemon = Daemon::with(RULES, &format!("[listen]\nmetrics = \"{metrics}\"\n"), &[]);
    let ask = |path: &str| plain::request(metrics, "GET", path, &[], b"");
    assert_eq!((ask("/healthz").status, ask("/readyz").status), (200, 200));
    assert!(ask("/metrics").body.contains("tidegate_connections{listener=\"metrics\"}"));
    for path in ["/v1/rules", "/v1/check", "/console", "/openapi.json"] {
        assert_eq!(ask(path).status, 404, "{path}");
    }
    // Whoever watches takes all places there, and none from a gateway.
    let watching: Vec<TcpStream> = (0..100).filter_map(|_| TcpStream::connect(metrics).ok()).collect();
    assert_eq!(daemon.check(&[("user", "ann")])["allowed"], true);
    assert_eq!(ask("/healthz").status, 200, "a newcomer takes the place of one that is idle");
    drop(watching);
}
