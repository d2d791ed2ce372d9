//! Real Redis servers for tests: started on free ports with their files in a temporary directory, killed when
//! dropped.

#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "each test file uses a part of it, and says what it skips"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// One running server.
#[derive(Debug)]
pub struct Server {
    pub port: u16,
    child: Child,
    dir: TempDir,
    program: String,
    args: Vec<String>,
}

#[allow(clippy::disallowed_methods, reason = "tests measure real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits until `done`, or fails after `most`.
pub fn until(what: &str, most: Duration, mut done: impl FnMut() -> bool) {
    let start = now();
    while !done() {
        assert!(start.elapsed() < most, "waited {most:?} for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A port that was free a moment ago, below those that the kernel gives to clients.
pub fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = u16::try_from(std::process::id() % 900).unwrap_or(0) * 20;
    loop {
        let port = 12_000 + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 18_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    /// A server with these settings besides the plainest.
    pub fn start(args: &[&str]) -> Self {
        Self::start_program("redis-server", args)
    }

    /// The same of another program: another version.
    pub fn start_program(program: &str, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::run(program, free_port(), dir, args)
    }

    fn run(program: &str, port: u16, dir: TempDir, args: Vec<String>) -> Self {
        let child = Command::new(program)
            // The folder first: older servers open the log where they are when they read of it.
            .arg("--dir")
            .arg(dir.path())
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--loglevel", "warning", "--logfile", "log"])
            .args(&args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed: apt-get install redis-server");
        let server = Self { port, child, dir, program: program.to_owned(), args };
        until("the server to answer", Duration::from_secs(10), || {
            server
                .command(&["PING"])
                .is_some_and(|answer| answer.contains("PONG") || answer.contains("NOAUTH"))
        });
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What the server answers to a command, as it came.
    pub fn command(&self, words: &[&str]) -> Option<String> {
        command_at(self.port, words)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }

    /// Stops it at once, without a farewell.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it anew on the same port and with the same folder: without counters, since it saves none, but
    /// with what a member of a cluster knows of the others.
    pub fn restart_in_place(mut self) -> Self {
        self.kill();
        let (port, args, program) = (self.port, self.args.clone(), self.program.clone());
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().expect("a temporary directory"));
        Self::run(&program, port, dir, args)
    }

    /// Starts it anew, empty, on the same port.
    pub fn restart(mut self) -> Self {
        self.kill();
        let (port, args, program) = (self.port, self.args.clone(), self.program.clone());
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::run(&program, port, dir, args)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Another server program than the installed one, if it is there: `tests/run` fetches them into `target/`.
/// Says so if not.
pub fn other_program(path: &str) -> Option<String> {
    let program = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join(path);
    if !program.exists() {
        println!("skipped: there is no {}; tests/run fetches it", program.display());
        return None;
    }
    Some(program.display().to_string())
}

/// Redis 6.2, the oldest that is enough.
pub const OLDEST: &str = "redis-6.2.14/redis-server";
/// Valkey.
pub const VALKEY: &str = "valkey-9.1.2/valkey-server";

pub fn command_at(port: u16, words: &[&str]) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = vec![0; 65_536];
    let mut length = stream.read(&mut answer).ok()?;
    // One segment may not be all of it.
    stream.set_read_timeout(Some(Duration::from_millis(2))).ok()?;
    while length < answer.len() {
        match stream.read(&mut answer[length..]) {
            Ok(more) if more > 0 => length += more,
            _ => break,
        }
    }
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// A sentinel that watches one primary by itself.
#[derive(Debug)]
pub struct Sentinel {
    pub port: u16,
    child: Child,
    _dir: TempDir,
}

impl Sentinel {
    pub fn start(name: &str, primary: u16) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("sentinel.conf");
        let port = free_port();
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {primary} 1\n\
             sentinel down-after-milliseconds {name} 2000\nsentinel failover-timeout {name} 10000\nlogfile /dev/null\n"
        );
        std::fs::write(&file, text).expect("the file is written");
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a sentinel starts");
        let sentinel = Self { port, child, _dir: dir };
        until("the sentinel to answer", Duration::from_secs(10), || {
            sentinel.command(&["PING"]).is_some_and(|answer| answer.contains("PONG"))
        });
        sentinel
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn command(&self, words: &[&str]) -> Option<String> {
        command_at(self.port, words)
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }

    /// Waits until it knows this replica as one that could take over.
    pub fn knows(&self, name: &str, replica: u16) {
        until("the sentinel to know the replica", Duration::from_secs(30), || {
            let known = self.command(&["SENTINEL", "REPLICAS", name]).unwrap_or_default();
            known.contains(&replica.to_string()) && known.contains("master-link-status\r\n$2\r\nok")
        });
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three primaries with a replica each.
#[derive(Debug)]
pub struct Cluster {
    pub servers: Vec<Server>,
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_with("1000")
    }

    /// One in which nobody takes over from a primary that only waits for its processor: what is not yet with
    /// the replica would be lost.
    pub fn start_patient() -> Self {
        Self::start_with("60000")
    }

    fn start_with(node_timeout_ms: &str) -> Self {
        let servers: Vec<Server> = (0..6)
            .map(|_| {
                let bus = free_port().to_string();
                Server::start(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-node-timeout",
                    node_timeout_ms,
                    "--cluster-port",
                    &bus,
                    "--cluster-replica-validity-factor",
                    "0",
                    "--repl-diskless-sync-delay",
                    "0",
                ])
            })
            .collect();
        let addresses = servers.iter().map(|server| format!("127.0.0.1:{}", server.port));
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("redis-cli is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Self { servers };
        cluster.wait_until_well(6);
        cluster
    }

    /// Waits until this many members agree that all is well.
    pub fn wait_until_well(&self, members: usize) {
        until("the cluster to be well", Duration::from_secs(30), || {
            let well = |server: &&Server| {
                server.command(&["CLUSTER", "INFO"]).is_some_and(|info| info.contains("cluster_state:ok"))
            };
            self.servers.iter().filter(well).count() >= members
        });
        until("replicas to follow", Duration::from_secs(30), || {
            let linked = |server: &&Server| {
                let info = server.command(&["INFO", "replication"]).unwrap_or_default();
                info.contains("role:slave") && info.contains("master_link_status:up")
            };
            self.servers.iter().filter(linked).count() >= members.saturating_sub(3)
        });
    }

    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// The primary of a slot, by its place.
    pub fn primary_of(&self, key: &str) -> usize {
        let any = self.servers.iter().find_map(|server| server.command(&["CLUSTER", "KEYSLOT", key]));
        let slot: u32 = any.unwrap_or_default().trim().trim_start_matches(':').parse().expect("a slot");
        let serves = |server: &Server| {
            let nodes = server.command(&["CLUSTER", "NODES"]).unwrap_or_default();
            let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default().to_owned();
            own.split_whitespace().skip(8).any(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let inside = |from: u32, to: u32| (from..=to).contains(&slot);
                from.parse().is_ok_and(|from| to.parse().is_ok_and(|to| inside(from, to)))
            })
        };
        self.servers.iter().position(serves).expect("somebody serves it")
    }
}
