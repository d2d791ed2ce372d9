//! The table of what a client can bring about, and what each shipped gateway does then: a request that a rule
//! blocks never passes, whether the gateway is set to pass or to refuse where Tidegate is away.
//!
//! | row | what the client does meanwhile | held by |
//! |---|---|---|
//! | size | heads, paths, names and traces up to what the gateway reads; calls beyond 1 MiB | read as far as it is needed, and denied beyond it |
//! | form | control characters, bytes that are not UTF-8, empty and doubled headers | counted, or refused as the client's fault |
//! | count | as many headers as the gateway takes | unread fields are dropped |
//! | time | a hundred requests that are given up at once or after some milliseconds | what they were given goes back |
//! | given up | fifteen hundred requests that are given up at once, while others wait | no frame that waits to be written, and no call that nobody waits for, ends the gateway's connection |
//! | hosts | long hosts of dots and escapes | read in one pass |
//! | overload | sixty requests at the same time | answered from memory |
//! | many at once | four thousand requests at the same time, and the gateway waits no longer than its file says | its times are longer than it is busy itself; open calls are no fewer |
//! | connections | every place of the listener is taken by connections that watch, busy or idle | those that decide keep theirs |
//! | streams | every stream that watches health, and every stream of events, is taken | decisions have places of their own |
//! | held answers | three hundred requests of one client that a rule holds back | a dozen wait, the rest is denied |
//! | circuit breaker | more clients than answers may be held back, a few requests each | the daemon denies the rest at once: its number is below the gateway's |
//! | memory | more clients than `store.max_keys` | a block counts nothing; a newcomer keeps to what all newcomers share |
//! | unread answers | a hundred long answers that nobody reads, and metrics in a loop | made once, away from the threads that decide |
//! | descriptors | the daemon may open 256 files | listeners leave a quarter to everything else |
//!
//! Each row asks for what a rule blocks, and for what a limit that is used up denies. The daemon must have
//! refused both: no answer, an answer of the gateway's failure, and a refusal by the gateway itself are none
//! of the daemon's. A gateway may refuse by itself only what it does not read: heads beyond its own size, odd
//! and many headers.
//!
//! Caddy has one mode. Envoy alone has a circuit breaker: the others wait, or refuse.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Gateway;
use super::columns::{CADDY, Column, ENVOY, EXT_AUTHZ, HAPROXY, NGINX, Setting};
use super::support::daemon::{Daemon, Launch};
use super::support::http::{self, Reply};
use super::support::{eventually, not_judged, rls};

const RULES: &str = r#"
[[rules]]
name = "closed"
match = { path = "/closed" }
action = "block"

[[rules]]
name = "used-up"
match = { path = "/used" }
algorithm = "fixed_window"
limit = 1
window = "24h"

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

[[rules]]
name = "held-by-user"
match = { path = "/each" }
per = ["user"]
algorithm = "token_bucket"
limit = 6
burst = 1
window = "1m"
action = "throttle"
max_delay = "30s"
delay = "hold"

[[rules]]
name = "held-by-key"
match = { path = "/each" }
per = ["api_key"]
algorithm = "token_bucket"
limit = 6
burst = 1
window = "1m"
action = "throttle"
max_delay = "30s"
delay = "hold"
"#;

/// What each row asks for: a block, and a limit that is used up.
const CLOSED: [&str; 2] = ["/closed", "/used"];
/// Lengths of what a client sends.
const LENGTHS: [usize; 5] = [1_000, 7_000, 17_000, 55_000, 1_000_000];
/// Clients that leave at once: more than the resets that Envoy lets wait unless it is told otherwise.
const GIVE_UP: usize = 1_500;
/// Clients that ask at once and wait: more than the calls that Envoy leaves open unless it is told otherwise.
const AT_ONCE: usize = 4_000;
/// A request for what is closed, by a client that asks once.
const ASK: &[u8] = b"GET /closed HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
/// Watches of health that the gRPC listener serves, those of one connection, and so many of those have all.
const WATCHES: u32 = 4_096;
const WATCHES_OF_ONE: usize = 64;
const WATCHERS: usize = 64;

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

/// Those who may have refused a request of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refuser {
    /// The daemon alone.
    Daemon,
    /// Or the gateway, which answered that it does not read such a head.
    Gateway,
    /// Or the gateway, which closed the connection while the rest of a long head was under way.
    Cut,
}

struct Table<'t> {
    column: &'t Column,
    refuses: bool,
    daemon: &'t Daemon,
    front: &'t Gateway,
}

impl Table<'_> {
    /// The answer to a request for what is closed, with anything behind its path and among its headers.
    fn ask(&self, path: &str, query: &str, headers: &[u8]) -> Option<Reply> {
        let head: [&[u8]; 6] = [
            b"GET ",
            path.as_bytes(),
            query.as_bytes(),
            b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n",
            headers,
            b"\r\n",
        ];
        http::raw(self.front.addr, &head.concat())
    }

    fn judge(&self, row: &str, what: &str, refuser: Refuser, answer: Option<&Reply>) {
        let by_daemon = |reply: &Reply| match reply.status {
            403 | 429 => true,
            // As the daemon says it, and as the file of nginx passes that on.
            400 | 413 | 414 | 431 => reply.body.starts_with("{\"error\"") || reply.body == "Bad request\n",
            _ => false,
        };
        let by_gateway = |reply: &Reply| [400, 413, 414, 431].contains(&reply.status);
        let held = match answer {
            None => refuser == Refuser::Cut,
            Some(reply) => by_daemon(reply) || (refuser != Refuser::Daemon && by_gateway(reply)),
        };
        let (column, mode) = (self.column.name, if self.refuses { "refusing" } else { "passing" });
        assert!(held, "{row}, {column} {mode}: {what}: {answer:?}\n{}", self.daemon.log());
    }

    fn stays_closed(&self, row: &str) {
        for _ in 0..3 {
            for path in CLOSED {
                self.judge(row, path, Refuser::Daemon, self.ask(path, "", b"").as_ref());
            }
        }
    }

    /// Uses up the limit of what is then closed by it.
    fn use_up(&self) {
        let answer = eventually("the limit is used up", || {
            self.ask("/used", "", b"").filter(|answer| answer.status != 200)
        });
        assert_eq!(answer.status, 429, "{answer:?}");
    }

    fn size(&self) {
        let trace = format!("traceparent: 00-{}-{}-01\r\n", "1".repeat(32), "2".repeat(16));
        for length in LENGTHS {
            let refuser = if length < self.column.reads { Refuser::Daemon } else { Refuser::Cut };
            let long = "a".repeat(length);
            let state = format!("{trace}tracestate: a={long}\r\n");
            let key = format!("x-api-key: {long}\r\n");
            let query = format!("?{long}");
            for path in CLOSED {
                let judge = |what: &str, query: &str, headers: &str| {
                    let what = format!("{path} with {what} of {length}");
                    self.judge("size", &what, refuser, self.ask(path, query, headers.as_bytes()).as_ref());
                };
                judge("a trace", "", &state);
                judge("a key", "", &key);
                judge("a query", &query, "");
            }
        }
        let many = format!("{trace}{}", format!("tracestate: a={}\r\n", "b".repeat(9_000)).repeat(6));
        let refuser = if many.len() < self.column.reads { Refuser::Daemon } else { Refuser::Cut };
        self.judge("size", "six long traces", refuser, self.ask("/closed", "", many.as_bytes()).as_ref());
        self.stays_closed("size");
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
        for path in CLOSED {
            for headers in odd {
                let what = format!("{path} with {}", String::from_utf8_lossy(headers));
                self.judge("form", &what, Refuser::Gateway, self.ask(path, "", headers).as_ref());
            }
            for query in ["?%ff", "?#", "?cost=-9&domain=none", "?\u{1}"] {
                let what = format!("{path}{query}");
                self.judge("form", &what, Refuser::Gateway, self.ask(path, query, b"").as_ref());
            }
        }
        self.stays_closed("form");
    }

    fn count(&self) {
        for count in [50, 90, 99, 200] {
            // Fewer than any gateway of these counts.
            let refuser = if count <= 50 { Refuser::Daemon } else { Refuser::Gateway };
            let headers = "x-forwarded-for: 203.0.113.1\r\n".repeat(count);
            for path in CLOSED {
                let what = format!("{path} with {count} headers");
                self.judge("count", &what, refuser, self.ask(path, "", headers.as_bytes()).as_ref());
            }
        }
        self.stays_closed("count");
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

    fn hosts(&self) {
        for host in [format!("x{}", ".".repeat(50_000)), format!("x{}", ".%20".repeat(12_500))] {
            let head = format!("GET /closed HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            for _ in 0..8 {
                let answer = http::raw(self.front.addr, head.as_bytes());
                self.judge("hosts", "a long host", Refuser::Cut, answer.as_ref());
            }
        }
        self.stays_closed("hosts");
    }

    fn overload(&self) {
        let answers: Vec<Option<Reply>> = std::thread::scope(|scope| {
            let asks = (0..60).map(|turn| scope.spawn(move || self.ask(CLOSED[turn % 2], "", b"")));
            let all: Vec<_> = asks.collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for answer in answers {
            self.judge("overload", "one of sixty", Refuser::Daemon, answer.as_ref());
        }
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
        let asked = || self.daemon.check(&[("path", "/counted"), ("ip", "198.51.100.1")])["allowed"] == true;
        let passed = (0..20).filter(|_| asked()).count();
        assert!(passed <= 1, "memory: {passed} of a newcomer's requests passed where all room is taken");
        // A newcomer at the gateway: its own address.
        let passes = || self.ask("/counted", "", b"").is_some_and(|answer| answer.status == 200);
        let passed = (0..20).filter(|_| passes()).count();
        assert!(passed <= 1, "memory, {}: {passed} requests of a newcomer passed", self.column.name);
        self.judge("memory", "a newcomer", Refuser::Daemon, self.ask("/counted", "", b"").as_ref());
    }

    fn streams(&self) {
        let watcher = self.daemon.rls();
        watcher.watch_health(WATCHES_OF_ONE + 6);
        let mut events = Others::connect(self.daemon.http, 40);
        events.ask(b"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
        self.stays_closed("streams");
    }
}

fn holds(column: &Column) {
    for refuses in [false, true].into_iter().filter(|refuses| *refuses || column.passes) {
        // Few files: every row is also one of a daemon that has no descriptor to spare.
        let launch = Launch { open_files: Some(256), ..Launch::default() };
        let daemon = Daemon::launch(launch, RULES, "[store]\nmax_keys = 1000\n", &[]);
        let front = (column.start)(&daemon, Setting { refuses, patient: true, ..Setting::default() });
        let table = Table { column, refuses, daemon: &daemon, front: &front };
        table.use_up();
        table.size();
        table.form();
        table.count();
        table.time();
        table.hosts();
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

/// Clients leave in numbers while others wait. Those get the daemon's refusal, or none: some gateways have no
/// place for so many.
fn nobody_passes_while_many_give_up(column: &Column) {
    let daemon = Daemon::with_rules(RULES);
    let setting = Setting { patient: true, ..Setting::default() };
    let front = (column.start)(&daemon, setting);
    let table = Table { column, refuses: false, daemon: &daemon, front: &front };
    table.use_up();
    for _ in 0..2 {
        let (mut stays, mut leaves) = (Others::connect(front.addr, 20), Others::connect(front.addr, GIVE_UP));
        leaves.ask(ASK);
        stays.ask(ASK);
        drop(leaves);
        for socket in &mut stays.0 {
            let _ = socket.set_read_timeout(Some(Duration::from_secs(40)));
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            let answer = http::parse(&answer);
            let refused = answer.as_ref().is_none_or(|reply| reply.status >= 400);
            assert!(refused, "given up, {}: {answer:?}\n{}", column.name, daemon.log());
        }
        table.stays_closed("given up");
    }
}

/// The number of files that this process may have open.
fn files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).and_then(|files| files.parse().ok()).unwrap_or(usize::MAX)
}

/// Clients ask in numbers and wait, with the times of the shipped files as they are: a gateway that is busy
/// itself passes what it finds late.
fn nobody_passes_while_many_ask(column: &Column) {
    let daemon = Daemon::with_rules(RULES);
    let front = (column.start)(&daemon, Setting::default());
    // The service behind the gateway is of this process, too.
    let mut clients = Others::connect(front.addr, AT_ONCE.min(files_max().saturating_sub(200)));
    clients.ask(ASK);
    let asked = clients.0.len();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut passed, mut denied) = (0, 0);
    for mut socket in clients.0 {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let _ = socket.set_read_timeout(Some(left));
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        match http::parse(&answer).map(|reply| reply.status) {
            Some(200) => passed += 1,
            Some(403 | 429) => denied += 1,
            _ => {}
        }
    }
    let name = column.name;
    eprintln!("{name}: of {asked} who asked at once {passed} passed, and the daemon denied {denied}");
    assert_eq!(passed, 0, "many at once, {name}: of {asked}, {denied} denied\n{}", daemon.log());
    // Caddy refuses by itself where an answer is late.
    assert!(denied > 0 || !column.passes, "many at once, {name}: nobody of {asked} was denied");
    if asked < AT_ONCE {
        not_judged(&format!("{asked} clients could ask at once here, and not {AT_ONCE}"));
    }
}

/// More answers would wait than the gateway leaves open, if the daemon did not deny those beyond its own
/// number.
fn held_answers_fill_no_breaker(column: &Column) {
    let daemon = Daemon::with(RULES, "[listen]\nmax_held_answers = 32\n", &[]);
    let setting = Setting { patient: true, calls_max: Some(64), ..Setting::default() };
    let front = (column.start)(&daemon, setting);
    let table = Table { column, refuses: false, daemon: &daemon, front: &front };
    table.use_up();
    let (mut waiting, mut denied) = (Vec::new(), 0);
    for client in 0..40 {
        for _ in 0..3 {
            let mut socket = TcpStream::connect(front.addr).unwrap();
            let head =
                format!("GET /each HTTP/1.1\r\nhost: x\r\nx-user: u{client}\r\nx-api-key: k{client}\r\n\r\n");
            socket.write_all(head.as_bytes()).unwrap();
            // One after the other: those that are answered at once are never many at a time.
            socket.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
            let mut answer = [0; 64];
            match socket.read(&mut answer) {
                Ok(read) => denied += usize::from(answer[..read].starts_with(b"HTTP/1.1 429")),
                Err(_) => waiting.push(socket),
            }
        }
        if client % 10 == 9 {
            table.stays_closed("circuit breaker");
        }
    }
    assert!(!waiting.is_empty() && denied > 0, "{} wait, {denied} are denied", waiting.len());
}

#[test]
fn held_answers_fill_no_circuit_breaker_of_envoys() {
    held_answers_fill_no_breaker(&ENVOY);
}

#[test]
fn held_answers_fill_no_circuit_breaker_of_envoys_ext_authz() {
    held_answers_fill_no_breaker(&EXT_AUTHZ);
}

#[test]
fn watches_that_take_every_stream_pass_no_request_of_envoys() {
    for refuses in [false, true] {
        let daemon = Daemon::with_rules(RULES);
        let front = (ENVOY.start)(&daemon, Setting { refuses, patient: true, ..Setting::default() });
        let table = Table { column: &ENVOY, refuses, daemon: &daemon, front: &front };
        table.use_up();
        let watchers: Vec<rls::Client> = (0..WATCHERS).map(|_| daemon.rls()).collect();
        watchers.iter().for_each(|watcher| watcher.watch_health(WATCHES_OF_ONE));
        // Envoy asks for its health as well, in places of their own.
        eventually("every stream is taken", || {
            daemon.metric("tidegate_grpc_other_calls").filter(|open| *open >= f64::from(WATCHES))
        });
        assert!(daemon.rls().reflected().is_err(), "there was room for one more");
        table.stays_closed("streams");
        drop(watchers);
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

#[test]
fn nobody_passes_envoy_while_many_give_up() {
    nobody_passes_while_many_give_up(&ENVOY);
}

#[test]
fn nobody_passes_envoys_ext_authz_while_many_give_up() {
    nobody_passes_while_many_give_up(&EXT_AUTHZ);
}

#[test]
fn nobody_passes_nginx_while_many_give_up() {
    nobody_passes_while_many_give_up(&NGINX);
}

#[test]
fn nobody_passes_haproxy_while_many_give_up() {
    nobody_passes_while_many_give_up(&HAPROXY);
}

#[test]
fn nobody_passes_caddy_while_many_give_up() {
    nobody_passes_while_many_give_up(&CADDY);
}

#[test]
fn nobody_passes_envoy_while_many_ask_at_once() {
    nobody_passes_while_many_ask(&ENVOY);
}

#[test]
fn nobody_passes_envoys_ext_authz_while_many_ask_at_once() {
    nobody_passes_while_many_ask(&EXT_AUTHZ);
}

#[test]
fn nobody_passes_nginx_while_many_ask_at_once() {
    nobody_passes_while_many_ask(&NGINX);
}

#[test]
fn nobody_passes_haproxy_while_many_ask_at_once() {
    nobody_passes_while_many_ask(&HAPROXY);
}

#[test]
fn nobody_passes_caddy_while_many_ask_at_once() {
    nobody_passes_while_many_ask(&CADDY);
}
