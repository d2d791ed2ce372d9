//! Stock Envoys that spend quotas by themselves: `deploy/envoy/quotas.yaml` as users get it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::budgets::three_regions;
use super::redis_servers::Server;
use super::support::daemon::Daemon;
use super::support::http;
use super::support::process::Process;
use super::support::{SOON, envoy, eventually, free_tcp, origin};
use tempfile::TempDir;

const QUOTAS: &str = include_str!("../../deploy/envoy/quotas.yaml");
/// A fallback that denies.
const DENY: &str = "blanket_rule: DENY_ALL";
/// What an Envoy does after an assignment that was not renewed.
const LAPSED: &str = "expired_assignment_behavior:\n                                expired_assignment_behavior_timeout: 86400s\n                                fallback_rate_limit: { blanket_rule: DENY_ALL }";
const PER_TIME_UNIT: &str = "requests_per_time_unit: { requests_per_time_unit: 1, time_unit: MINUTE }";
/// What follows this key is what an Envoy does before its first assignment.
const BLANKET: &str = "no_assignment_behavior:\n                                fallback_rate_limit: { blanket_rule: DENY_ALL }";

/// An Envoy that has a stream.
struct Gateway {
    envoy: Process,
    addr: SocketAddr,
    config: String,
    folder: TempDir,
}

impl Gateway {
    fn start(grpc: SocketAddr) -> Self {
        Self::with(grpc, QUOTAS)
    }

    fn with(grpc: SocketAddr, config: &str) -> Self {
        Self::started(grpc, config, envoy::start)
    }

    /// The first epoch of one that is reloaded.
    fn reloadable(grpc: SocketAddr) -> Self {
        Self::started(grpc, QUOTAS, |folder, config| envoy::start_epoch(folder, config, base(), 0))
    }

    /// Has the next epoch take its place, as a hot reload does.
    fn reload(&mut self) {
        let mut before = std::mem::replace(
            &mut self.envoy,
            envoy::start_epoch(self.folder.path(), &self.config, base(), 1),
        );
        eventually("the epoch before has ended", || {
            assert!(self.envoy.ended().is_none(), "Envoy ended:\n{}", self.envoy.output());
            before.ended()
        });
        // What the epochs told each other by.
        let _ = std::fs::remove_file(format!("/dev/shm/envoy_shared_memory_{}0", base()));
    }

    fn started(grpc: SocketAddr, config: &str, start: impl Fn(&Path, &str) -> Process) -> Self {
        let (folder, addr, admin, service) =
            (TempDir::new().unwrap(), free_tcp(), free_tcp(), origin::start());
        let mut config = config.to_owned();
        for (from, to) in [("10000", addr), ("9901", admin), ("8000", service), ("8081", grpc)] {
            let from = format!("port_value: {from}");
            assert_eq!(config.matches(&from).count(), 1, "deploy/envoy/quotas.yaml says {from} once");
            config = config.replace(&from, &format!("port_value: {}", to.port()));
        }
        let mut envoy = start(folder.path(), &config);
        eventually("Envoy serves", || {
            assert!(envoy.ended().is_none(), "Envoy ended:\n{}", envoy.output());
            http::raw(admin, b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                .filter(|reply| reply.status == 200)
        });
        Self { envoy, addr, config, folder }
    }
}

/// Names the epochs of this process's Envoy, of which no other process has any.
fn base() -> u16 {
    1_000 + u16::try_from(std::process::id() % 60_000).unwrap()
}

/// The status of one request; `None` where nobody answers.
///
/// Does not wait for the end of the connection: where a client asks for that, Envoy ends it up to a second
/// after a denial, and the client would ask once a second.
fn ask(addr: SocketAddr, headers: &str) -> Option<u16> {
    let mut socket = TcpStream::connect_timeout(&addr, SOON).ok()?;
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.write_all(format!("GET / HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes()).ok()?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).ok()?;
    line.split(' ').nth(1)?.parse().ok()
}

fn status(addr: SocketAddr, user: &str) -> Option<u16> {
    ask(addr, &format!("x-user: {user}\r\n"))
}

fn rule(name: &str, more: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nmatch = {{ user = \"{name}\" }}\n{more}\n")
}

#[test]
fn a_stock_envoy_spends_what_it_was_assigned_and_asks_nobody() {
    let windowed = "algorithm = \"fixed_window\"\nwindow = \"24h\"\n";
    let rules = [
        rule("ann", &format!("{windowed}limit = 300")),
        rule("slow", "algorithm = \"token_bucket\"\nlimit = 100\nwindow = \"1s\""),
        rule("eve", "action = \"block\""),
    ];
    let daemon = Daemon::with_rules(&rules.concat());
    let gateway = Gateway::start(daemon.grpc);
    let passes = |user: &str| status(gateway.addr, user) == Some(200);
    assert_eq!(status(gateway.addr, "ann"), Some(429), "nothing is assigned before the first request");
    eventually("an assignment is there", || passes("ann").then_some(()));
    eventually("nothing limits bob", || passes("bob").then_some(()));
    assert!((0..50).all(|_| passes("bob")));
    for user in ["eve", "slow"] {
        assert!(!(0..20).any(|_| passes(user)), "{user} is denied");
    }
    let (mut passed, begun) = (1, Instant::now());
    while passed < 285 {
        passed += u64::from(passes("ann"));
        assert!(begun.elapsed() < Duration::from_secs(60), "{passed} of 300 passed");
        std::thread::sleep(Duration::from_millis(4));
    }
    for _ in 0..600 {
        passed += u64::from(passes("ann"));
    }
    assert!(passed <= 300, "{passed}");
    let actions: f64 = ["tokens", "deny", "allow"]
        .iter()
        .filter_map(|kind| daemon.metric(&format!("tidegate_quota_actions_total{{kind=\"{kind}\"}}")))
        .sum();
    eprintln!("{passed} of 300 passed in {:?}, {actions} actions", begun.elapsed());
    assert!(actions < 4.0 + 8.0 * begun.elapsed().as_secs_f64(), "{actions}");
    assert!(daemon.log().contains("permits cannot be assigned"), "{}", daemon.log());
    assert_eq!(daemon.metric("tidegate_quota_streams"), Some(1.0));
    let used = daemon.get("/v1/buckets?rule=ann&user=ann").json()["used"].as_u64().unwrap();
    assert!((passed..=300).contains(&used), "{passed} passed, {used} counted");
}

/// A relay of TCP that holds bytes back while it is told to.
struct Relay {
    addr: SocketAddr,
    /// Of bytes to the daemon, and to the gateway.
    holds: [Arc<AtomicBool>; 2],
}

impl Relay {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, holds) =
            (listener.local_addr().unwrap(), [const { AtomicBool::new(false) }; 2].map(Arc::new));
        let held = holds.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(to) else { continue };
                let ways = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
                for ((from, into), held) in ways.into_iter().zip(held.clone()) {
                    std::thread::spawn(move || carry(from, into, &held));
                }
            }
        });
        Self { addr, holds }
    }

    fn hold(&self, to_daemon: bool, to_gateway: bool) {
        self.holds[0].store(to_daemon, Ordering::Relaxed);
        self.holds[1].store(to_gateway, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut into: TcpStream, holds: &AtomicBool) {
    let mut bytes = [0; 65_536];
    while let Ok(len) = from.read(&mut bytes) {
        while holds.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if len == 0 || into.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(std::net::Shutdown::Both);
}

/// Sends about 50 requests a second until it is told to stop.
fn load(addr: &Mutex<SocketAddr>, passed: &AtomicU64, asked: &AtomicU64, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut next = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    let to = *addr.lock().unwrap();
                    asked.fetch_add(1, Ordering::Relaxed);
                    if status(to, "ann") == Some(200) {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                    next += Duration::from_millis(40);
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            });
        }
    });
}

/// Three Envoys in two of three regions that have 1,500 permits each. Two are in one region. To that of
/// another nothing is delivered until its stream is given up; then its connection stands still for nine
/// seconds; then it is killed and started again.
#[test]
fn three_stock_envoys_use_a_limit_and_never_exceed_it_with_a_kill_and_a_connection_that_stands_still() {
    let rules = "[[rules]]\nname = \"ann\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 4500\n\
                 window = \"24h\"\n[rules.global]\nmode = \"split\"\n";
    let daemons = three_regions(rules, [const { String::new() }; 3]);
    let relay = Relay::start(daemons[1].grpc);
    let mut gateways =
        [Gateway::start(daemons[0].grpc), Gateway::start(daemons[0].grpc), Gateway::start(relay.addr)];
    let addrs = [0, 1, 2].map(|at: usize| Mutex::new(gateways[at].addr));
    let passed = [const { AtomicU64::new(0) }; 3];
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let steady = || passed[0].load(Ordering::Relaxed) + passed[1].load(Ordering::Relaxed);
    let lost = |daemon: &Daemon| {
        let of = |reason| daemon.metric(&format!("tidegate_quota_streams_lost_total{{reason=\"{reason}\"}}"));
        ["receipt", "ended"].into_iter().filter_map(of).sum::<f64>()
    };
    let given_up = || lost(&daemons[1]);
    let begun = Instant::now();
    let (all_asked, stops) = (&asked, &stop);
    std::thread::scope(|scope| {
        let _stops = StopsAtEnd(stops);
        for (addr, passed) in addrs.iter().zip(&passed) {
            scope.spawn(move || load(addr, passed, all_asked, stops));
        }
        std::thread::sleep(Duration::from_secs(3));
        assert!(given_up() < 1.0, "nothing is wrong yet");
        relay.hold(false, true);
        eventually("a stream that reads nothing is given up", || (given_up() >= 1.0).then_some(()));
        relay.hold(true, true);
        std::thread::sleep(Duration::from_secs(9));
        relay.hold(false, false);
        std::thread::sleep(Duration::from_secs(5));
        gateways[2].envoy.signal("KILL");
        gateways[2] = Gateway::start(relay.addr);
        *addrs[2].lock().unwrap() = gateways[2].addr;
        // A machine that is busy asks for few; what is judged is how many of them pass in the end.
        while steady() < 1_425 && begun.elapsed() < Duration::from_secs(90) {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_secs(7));
    });
    let unsteady = passed[2].load(Ordering::Relaxed);
    let asked = asked.load(Ordering::Relaxed);
    eprintln!("{} and {unsteady} of 1,500 each passed, {asked} asked in {:?}", steady(), begun.elapsed());
    assert!(steady() <= 1_500 && unsteady <= 1_500);
    assert!(lost(&daemons[0]) < 1.0, "a stream that is read goes on");
    assert!(steady() >= 1_425 && unsteady > 50, "{} and {unsteady} of {asked}", steady());
    for daemon in &daemons {
        assert_eq!(daemon.metric("tidegate_requests_rejected_total{listener=\"rls\"}"), Some(0.0));
    }
}

/// Under `gossip` a region has a slice of what nobody asked for. What its Envoy lacks comes from the others.
#[test]
fn an_envoy_uses_what_other_regions_do_not_need() {
    let rules = "[[rules]]\nname = \"ann\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 600\n\
                 window = \"24h\"\n[rules.global]\nmode = \"gossip\"\n";
    let daemons = three_regions(rules, [const { String::new() }; 3]);
    let gateway = Gateway::start(daemons[0].grpc);
    let addr = Mutex::new(gateway.addr);
    let (passed, asked, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let _stops = StopsAtEnd(&stop);
        scope.spawn(|| load(&addr, &passed, &asked, &stop));
        while passed.load(Ordering::Relaxed) < 570 && begun.elapsed() < Duration::from_secs(90) {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_secs(6));
    });
    let passed = passed.load(Ordering::Relaxed);
    eprintln!("{passed} of 600 passed, {} asked in {:?}", asked.load(Ordering::Relaxed), begun.elapsed());
    assert!((570..=600).contains(&passed), "{passed}");
}

/// Under `escrow` a region holds its share by right. What its Envoy lacks is lent by the region that nobody
/// asks, and never is more assigned than the limit.
#[test]
fn envoys_of_two_regions_use_an_exact_limit_and_never_exceed_it() {
    let rules = "[[rules]]\nname = \"ann\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 1200\n\
                 window = \"24h\"\n[rules.global]\nmode = \"escrow\"\n";
    let daemons = three_regions(rules, [const { String::new() }; 3]);
    let gateways = [Gateway::start(daemons[0].grpc), Gateway::start(daemons[1].grpc)];
    let addrs = [0, 1].map(|at: usize| Mutex::new(gateways[at].addr));
    let passed = [const { AtomicU64::new(0) }; 2];
    let all = || passed.iter().map(|own| own.load(Ordering::Relaxed)).sum::<u64>();
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let (all_asked, stops) = (&asked, &stop);
    std::thread::scope(|scope| {
        let _stops = StopsAtEnd(stops);
        for (addr, passed) in addrs.iter().zip(&passed) {
            scope.spawn(move || load(addr, passed, all_asked, stops));
        }
        while all() < 1_100 && begun.elapsed() < Duration::from_secs(90) {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_secs(6));
    });
    let each = passed.each_ref().map(|own| own.load(Ordering::Relaxed));
    eprintln!("{each:?} of 1200 passed, {} asked in {:?}", asked.load(Ordering::Relaxed), begun.elapsed());
    assert!(all() <= 1_200, "{each:?}");
    assert!(all() > 800, "the two regions' own shares are 800: {each:?}");
}

/// Two Envoys spend what they hold while nobody answers, and meet a daemon that knows nothing of it: what was
/// assigned is taken from the bucket in Redis. Then one of them is reloaded: two processes, for a while.
#[test]
fn a_limit_in_redis_holds_over_a_killed_daemon_and_a_reloaded_envoy() {
    let rules = "[[rules]]\nname = \"ann\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 6000\n\
                 window = \"24h\"\n";
    let redis = Server::start(&[]);
    let config = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"redis://127.0.0.1:{}\"]\ntopology = \"single\"\n\
         timeout = \"1s\"\n",
        redis.port
    );
    let mut daemon = Daemon::with(rules, &config, &[]);
    let mut gateways = [Gateway::start(daemon.grpc), Gateway::reloadable(daemon.grpc)];
    let addrs = [0, 1].map(|at: usize| Mutex::new(gateways[at].addr));
    let passed = AtomicU64::new(0);
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (counted, all_asked, stops) = (&passed, &asked, &stop);
    let passes = || counted.load(Ordering::Relaxed);
    let more_pass = |what: &str, more: u64| {
        let before = passes();
        eventually(what, || (passes() >= before + more).then_some(()));
    };
    std::thread::scope(|scope| {
        let _stops = StopsAtEnd(stops);
        for addr in &addrs {
            scope.spawn(move || load(addr, counted, all_asked, stops));
        }
        more_pass("assignments are spent", 400);
        daemon.kill();
        std::thread::sleep(Duration::from_secs(2));
        daemon.start_again();
        more_pass("assignments of the new daemon are spent", 200);
        gateways[1].reload();
        more_pass("the new epoch is assigned permits", 20);
        std::thread::sleep(Duration::from_secs(5));
    });
    let passed = passes();
    let used = daemon.get("/v1/buckets?rule=ann&user=ann").json()["used"].as_u64().unwrap();
    eprintln!("{passed} passed, {used} of 6000 used, {} asked", asked.load(Ordering::Relaxed));
    assert!(passed <= used && used <= 6_000, "{passed} passed, {used} used");
}

/// Tells threads to stop, also where a test fails before its end.
struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The settings of Envoy 1.40 that the manual warns of, each of which does what it says.
#[test]
fn settings_that_the_manual_warns_of_do_what_it_says() {
    let rules = "[[rules]]\nname = \"per-user\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                 window = \"24h\"\nlimit = 30\n";
    let daemon = Daemon::with_rules(rules);
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = silent.local_addr().unwrap();
    assert_eq!(QUOTAS.matches(BLANKET).count(), 1);
    // Without the key every request passes while nobody has answered.
    let gateway = Gateway::with(nobody, &QUOTAS.replace(BLANKET, ""));
    assert!((0..400).all(|_| status(gateway.addr, "ann") == Some(200)));
    // A default by time unit is no limit either.
    let gateway = Gateway::with(nobody, &QUOTAS.replace(BLANKET, &BLANKET.replace(DENY, PER_TIME_UNIT)));
    assert!((0..100).all(|_| status(gateway.addr, "ann") == Some(200)));
    // With blanket rules none does.
    let gateway = Gateway::start(nobody);
    assert!((0..20).all(|_| status(gateway.addr, "ann") == Some(429)));
    // Without the header no bucket is named: the request passes, and nobody hears of it.
    let gateway = Gateway::start(daemon.grpc);
    assert!((0..60).all(|_| ask(gateway.addr, "") == Some(200)));
    assert_eq!(daemon.metric("tidegate_quota_buckets"), Some(0.0));
    // An empty one leaves its pair out, and of an id without pairs Envoy takes no assignment.
    let empty = || status(gateway.addr, "");
    assert_eq!(empty(), Some(429));
    eventually("the daemon hears of it", || {
        (daemon.metric("tidegate_quota_streams") == Some(1.0)).then_some(())
    });
    eventually("an assignment is there", || (status(gateway.addr, "ann") == Some(200)).then_some(()));
    assert!((0..20).all(|_| empty() == Some(429)));
    // A token bucket there ends Envoy.
    let bucket = "no_assignment_behavior:\n                                fallback_rate_limit: { token_bucket: { max_tokens: 5, tokens_per_fill: 5, fill_interval: 1s } }";
    let mut gateway = Gateway::with(nobody, &QUOTAS.replace(BLANKET, bucket));
    eventually("Envoy 1.40 crashes", || {
        let _ = status(gateway.addr, "ann");
        gateway.envoy.ended()
    });
}

/// What requests meet once assignments have lapsed and nobody answers: how many of 40 pass, or Envoy's end.
#[test]
fn fallbacks_of_a_lapsed_assignment_do_what_the_manual_says() {
    let rules = "[[rules]]\nname = \"per-user\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                 window = \"24h\"\nlimit = 6000\n";
    let mut daemon = Daemon::with_rules(rules);
    assert_eq!(QUOTAS.matches(LAPSED).count(), 1);
    let fallback = |own: &str| QUOTAS.replace(LAPSED, &LAPSED.replace(DENY, own));
    let bucket = |interval: &str| {
        format!("token_bucket: {{ max_tokens: 3, tokens_per_fill: 3, fill_interval: {interval} }}")
    };
    let reused = LAPSED.replace(&format!("fallback_rate_limit: {{ {DENY} }}"), "reuse_last_assignment: {}");
    let crashing = QUOTAS.replace(LAPSED, "").replace(BLANKET, &BLANKET.replace(DENY, &bucket("1s")));
    let settings = [
        ("allow", fallback("blanket_rule: ALLOW_ALL"), Some(40..=40)),
        ("a bucket", fallback(&bucket("600s")), Some(1..=3)),
        ("a bucket that fills each half second", fallback(&bucket("0.5s")), Some(40..=40)),
        ("a number by time unit", fallback(PER_TIME_UNIT), Some(40..=40)),
        ("the last assignment", QUOTAS.replace(LAPSED, &reused), Some(0..=0)),
        ("a bucket as the default", crashing, None),
    ];
    let mut gateways =
        settings.map(|(name, config, passing)| (name, Gateway::with(daemon.grpc, &config), passing));
    // One request alone: where the default is a bucket, the next one before an answer ends Envoy.
    for (_, gateway, _) in &gateways {
        let _ = status(gateway.addr, "ann");
    }
    std::thread::sleep(Duration::from_secs(3));
    for (name, gateway, _) in &gateways {
        eventually(&format!("{name}: an assignment is there"), || {
            (status(gateway.addr, "ann") == Some(200)).then_some(())
        });
    }
    assert_eq!(daemon.metric("tidegate_quota_streams"), Some(6.0));
    daemon.kill();
    // None lives for longer than 15 seconds.
    std::thread::sleep(Duration::from_secs(17));
    for (name, gateway, passing) in &mut gateways {
        match passing {
            Some(passing) => {
                let passed = (0..40).filter(|_| status(gateway.addr, "ann") == Some(200)).count();
                assert!(passing.contains(&passed), "{name}: {passed} of 40 passed");
            }
            None => {
                eventually("Envoy 1.40 crashes", || {
                    let _ = status(gateway.addr, "ann");
                    gateway.envoy.ended()
                });
            }
        }
    }
}
