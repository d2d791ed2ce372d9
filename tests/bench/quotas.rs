//! What streams of quotas cost a daemon: many gateways that report every five seconds, as Envoys do, and
//! buckets that come and go.
//!
//! `cargo bench --bench quotas -- [STREAMS] [CONNECTIONS] [SECONDS]` (10000, 500 and 30) opens so many
//! streams over so many connections, first with a bucket of each stream's own, then with one that all share.
//! It prints the daemon's memory for each stream, and its processor time for each report. Connections take
//! file descriptors: `ulimit -n`. `-- buckets [BUCKETS]` (1000000) opens one stream after the other with a
//! thousand buckets each, and prints the daemon's memory on the way. `DAEMON=PATH` measures a daemon of
//! another build than this one.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints what it found, and fails by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use prost::Message as _;
use support::daemon::{Daemon, Launch};
use support::usage::Usage;
use tokio::net::TcpStream;
use tokio::time::{interval, sleep, timeout};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RULES: &str = "[[rules]]\nname = \"a\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                     limit = 4000000000\nwindow = \"1h\"\n";
const CALL: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// The time between two reports of an Envoy.
const REPORTS_EVERY: Duration = Duration::from_secs(5);
/// Requests in that time: fifty a second.
const REQUESTS: u64 = 250;
/// Buckets of each stream that comes and goes.
const BUCKETS_AT_ONCE: u64 = 1_000;
const SOON: Duration = Duration::from_secs(60);

/// What all streams have seen so far.
#[derive(Default)]
struct Seen {
    reports: AtomicU64,
    assigned: AtomicU64,
    others: AtomicU64,
    /// Streams with an assignment.
    served: AtomicU64,
    ended: AtomicU64,
}

fn usage(user: &str, allowed: u64, elapsed: Duration) -> BucketQuotaUsage {
    let bucket = [("user".to_owned(), user.to_owned())].into_iter().collect();
    let seconds = i64::try_from(elapsed.as_secs()).unwrap();
    BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket }),
        time_elapsed: Some(ProtoDuration { seconds, nanos: 0 }),
        num_requests_allowed: allowed,
        num_requests_denied: 0,
    }
}

/// A report as gRPC sends it.
fn report(rows: Vec<BucketQuotaUsage>) -> Bytes {
    let message = RateLimitQuotaUsageReports { domain: "default".to_owned(), bucket_quota_usages: rows };
    let bytes = message.encode_to_vec();
    let mut framed = BytesMut::with_capacity(bytes.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(bytes.len()).unwrap());
    framed.put_slice(&bytes);
    framed.freeze()
}

async fn connect(addr: SocketAddr) -> SendRequest<Bytes> {
    let socket = TcpStream::connect(addr).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (sender, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn open(sender: &SendRequest<Bytes>, addr: SocketAddr) -> (SendStream<Bytes>, RecvStream) {
    let request = http::Request::post(format!("http://{addr}{CALL}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let mut sender = sender.clone().ready().await.unwrap();
    let (response, stream) = sender.send_request(request, false).unwrap();
    (stream, response.await.unwrap().into_body())
}

/// Reads the next message of a stream; `None` once it has ended.
async fn told(body: &mut RecvStream, gathered: &mut BytesMut) -> Option<RateLimitQuotaResponse> {
    loop {
        if gathered.len() >= 5 {
            let len = usize::try_from((&gathered[1..5]).get_u32()).unwrap();
            if gathered.len() - 5 >= len {
                gathered.advance(5);
                return Some(RateLimitQuotaResponse::decode(gathered.split_to(len)).unwrap());
            }
        }
        let part = body.data().await?.ok()?;
        let _ = body.flow_control().release_capacity(part.len());
        gathered.extend_from_slice(&part);
    }
}

/// Reports as an Envoy does, for as long as the daemon goes on with the stream.
async fn gateway(sender: SendRequest<Bytes>, addr: SocketAddr, user: String, seen: Arc<Seen>) {
    let (mut reports, mut body) = open(&sender, addr).await;
    reports.send_data(report(vec![usage(&user, 1, Duration::ZERO)]), false).unwrap();
    let reading = Arc::clone(&seen);
    tokio::spawn(async move {
        let (mut gathered, mut is_served) = (BytesMut::new(), false);
        while let Some(answer) = told(&mut body, &mut gathered).await {
            for action in answer.bucket_action {
                match action.bucket_action {
                    Some(BucketAction::QuotaAssignmentAction(_)) => {
                        reading.assigned.fetch_add(1, Ordering::Relaxed);
                        if !std::mem::replace(&mut is_served, true) {
                            reading.served.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    _ => {
                        reading.others.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        reading.ended.fetch_add(1, Ordering::Relaxed);
    });
    let mut ticks = interval(REPORTS_EVERY);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if reports.send_data(report(vec![usage(&user, REQUESTS, REPORTS_EVERY)]), false).is_err() {
            return;
        }
        seen.reports.fetch_add(1, Ordering::Relaxed);
    }
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

async fn streams(
    name: &str,
    user_of: fn(usize) -> String,
    (streams, connections): (usize, usize),
    during: Duration,
) {
    let config = format!("[listen]\nmax_connections = {}\n", connections + 100);
    let daemon = Daemon::launch(Launch::measured(), RULES, &config, &[]);
    let process = daemon.process.id();
    let idle = Usage::of(process).resident;
    let seen = Arc::new(Seen::default());
    let mut senders = Vec::with_capacity(connections);
    for _ in 0..connections {
        senders.push(connect(daemon.grpc).await);
    }
    let connected = Usage::of(process).resident;
    let opening = Instant::now();
    // Spread over the time between two reports, as those of Envoys are.
    let each = REPORTS_EVERY / u32::try_from(streams).unwrap();
    for number in 0..streams {
        let sender = senders[number % connections].clone();
        tokio::spawn(gateway(sender, daemon.grpc, user_of(number), Arc::clone(&seen)));
        let due = each * u32::try_from(number).unwrap();
        if due > opening.elapsed() {
            sleep(due - opening.elapsed()).await;
        }
    }
    let served = || seen.served.load(Ordering::Relaxed);
    let all = timeout(SOON, async {
        while served() < streams as u64 {
            sleep(Duration::from_millis(100)).await;
        }
    });
    if all.await.is_err() {
        println!("{} of {streams} have an assignment after {SOON:?}", served());
    }
    sleep(2 * REPORTS_EVERY).await;
    let counts = || (seen.reports.load(Ordering::Relaxed), seen.assigned.load(Ordering::Relaxed));
    let (before, began, (reports, assigned)) = (Usage::of(process), Instant::now(), counts());
    sleep(during).await;
    let (after, took, now) = (Usage::of(process), began.elapsed(), counts());
    let (reports, assigned) = (now.0 - reports, now.1 - assigned);
    let cpu = (after.cpu - before.cpu).as_secs_f64();
    println!("{name}: {streams} streams over {connections} connections, for {:.0} s", took.as_secs_f64());
    println!(
        "  memory: {:.0} MB idle, {:.1} kB a connection, {:.1} kB a stream; {:.0} MB, {:.0} MB at the end",
        mega(idle),
        (connected.saturating_sub(idle)) as f64 / 1e3 / connections as f64,
        (before.resident.saturating_sub(connected)) as f64 / 1e3 / streams as f64,
        mega(before.resident),
        mega(after.resident),
    );
    println!(
        "  processor: {:.2} of a core, {:.0} µs a report; {:.0} reports and {:.0} assignments a second",
        cpu / took.as_secs_f64(),
        cpu * 1e6 / reports as f64,
        reports as f64 / took.as_secs_f64(),
        assigned as f64 / took.as_secs_f64(),
    );
    let (ended, others) = (seen.ended.load(Ordering::Relaxed), seen.others.load(Ordering::Relaxed));
    println!("  {ended} streams ended, {others} buckets were abandoned");
    assert_eq!(daemon.metric("tidegate_quota_streams"), Some(streams as f64 - ended as f64));
}

/// One stream after the other, each with buckets that nobody asked for before.
async fn buckets(all: u64) {
    let daemon = Daemon::launch(Launch::measured(), RULES, "", &[]);
    let process = daemon.process.id();
    println!("idle: {:.0} MB", mega(Usage::of(process).resident));
    let (mut sender, mut assigned) = (connect(daemon.grpc).await, 0);
    for begin in (0..all).step_by(usize::try_from(BUCKETS_AT_ONCE).unwrap()) {
        if begin > 0 && begin.is_multiple_of(all / 10) {
            let metric = |line: &str| daemon.metric(line).unwrap_or(f64::NAN);
            println!(
                "{begin} buckets came and went, {assigned} were assigned permits: {:.0} MB, {} remembered, {} refused",
                mega(Usage::of(process).resident),
                metric("tidegate_quota_buckets"),
                metric("tidegate_quota_refused_total{reason=\"full\"}"),
            );
            sender = connect(daemon.grpc).await;
        }
        let (mut reports, mut body) = open(&sender, daemon.grpc).await;
        let row = |number: u64| usage(&format!("u{number}"), 1, Duration::ZERO);
        let rows = (begin..begin + BUCKETS_AT_ONCE).map(row).collect();
        reports.send_data(report(rows), false).unwrap();
        let (mut gathered, mut answered) = (BytesMut::new(), 0);
        while answered < BUCKETS_AT_ONCE {
            let answer = timeout(SOON, told(&mut body, &mut gathered)).await.expect("it answers in time");
            let actions = answer.expect("the stream goes on").bucket_action;
            answered += u64::try_from(actions.len()).unwrap();
            let is_assigned = |action: &Option<BucketAction>| {
                matches!(action, Some(BucketAction::QuotaAssignmentAction(_)))
            };
            assigned += actions.iter().filter(|action| is_assigned(&action.bucket_action)).count();
        }
        reports.send_data(Bytes::new(), true).unwrap();
    }
    println!("{all} buckets: {:.0} MB", mega(Usage::of(process).resident));
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let number = |place: usize, usual: usize| words.get(place).map_or(usual, |word| word.parse().unwrap());
    if words.first().is_some_and(|word| word == "buckets") {
        return runtime.block_on(buckets(number(1, 1_000_000) as u64));
    }
    let sizes = (number(0, 10_000), number(1, 500));
    let during = Duration::from_secs(number(2, 30) as u64);
    runtime.block_on(streams("a bucket each", |stream| format!("u{stream}"), sizes, during));
    runtime.block_on(streams("one bucket of all", |_| "everybody".to_owned(), sizes, during));
}
