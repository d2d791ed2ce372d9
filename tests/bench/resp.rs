//! The Redis protocol beside everything else that speaks it, in one run: a bare server that answers a
//! constant, the daemon, Redis with the module redis-cell, and throttlecrab.
//!
//! `cargo bench --bench resp` prints decisions a second and the processor time of the server for each; runs
//! alternate, and medians are printed. Client and servers share the machine: read the processor time and the
//! ratios. The peers take part where their programs are named:
//! `REDIS_CELL=PATH/libredis_cell.so THROTTLECRAB=PATH/throttlecrab-server cargo bench --bench resp`.
//! `DAEMON=PATH` measures a daemon of another build than this one.

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

#[path = "../support/redis_servers.rs"]
mod redis_servers;
#[path = "../support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::{Buf as _, BytesMut};
use redis_servers::Server;
use support::daemon::{Daemon, Launch};
use support::process::Process;
use support::usage::Usage;
use support::{eventually, free_tcp};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One run, and how many there are of each server and work.
const FOR: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 8;
/// A permit each 600 ns, and as many at once as no run asks for.
const GENEROUS: [&str; 3] = ["100000000", "100000000", "60"];
/// What follows the key of a call that is denied from the second one on.
const NARROW: [&str; 3] = ["0", "1", "86400"];
const RULES: &str =
    "[[rules]]\nname = \"a\"\nper = [\"user\"]\nalgorithm = \"gcra\"\nlimit = 4000000000\nwindow = \"1s\"\n";
const CONSTANT: &[u8] = b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";

/// Calls of one kind.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    /// Calls that are sent together on each connection.
    depth: usize,
    keys: usize,
    numbers: [&'static str; 3],
}

const WORK: [Work; 6] = [
    Work { name: "1 key, pipelines of 64", depth: 64, keys: 1, numbers: GENEROUS },
    Work { name: "100,000 keys, pipelines of 64", depth: 64, keys: 100_000, numbers: GENEROUS },
    Work { name: "1,000 keys, denied, pipelines of 64", depth: 64, keys: 1_000, numbers: NARROW },
    Work { name: "100,000 keys, pipelines of 512", depth: 512, keys: 100_000, numbers: GENEROUS },
    Work { name: "100,000 keys, pipelines of 16", depth: 16, keys: 100_000, numbers: GENEROUS },
    Work { name: "100,000 keys, one at a time", depth: 1, keys: 100_000, numbers: GENEROUS },
];

/// How a server is asked, and how many lines an answer has.
#[derive(Clone, Copy)]
enum Asked {
    Throttle(&'static str),
    Check,
}

impl Asked {
    const fn lines(self) -> usize {
        match self {
            Self::Throttle(_) => 6,
            Self::Check => 10,
        }
    }

    fn command(self, key: usize, numbers: [&str; 3]) -> Vec<u8> {
        let key = format!("bench:{key:06}");
        let words = match self {
            Self::Throttle(name) => [&[name, &key], &numbers[..]].concat(),
            Self::Check => vec!["TG.CHECK", "default", "1", "user", &key],
        };
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        command.into_bytes()
    }
}

/// A server of this run.
struct Asking {
    name: &'static str,
    address: SocketAddr,
    process: u32,
    asked: Asked,
}

/// Decisions a second, and processor time of the server for each in nanoseconds.
#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    nanos: f64,
}

/// What is sent together, for all keys in an order that caches cannot foresee.
fn pipelines(asked: Asked, work: Work) -> Vec<Vec<u8>> {
    let mut at = 0;
    let mut next = || {
        at = (at + 7_368_787) % work.keys;
        asked.command(at, work.numbers)
    };
    let count = work.keys.div_ceil(work.depth).max(CONNECTIONS);
    (0..count).map(|_| (0..work.depth).flat_map(|_| next()).collect()).collect()
}

/// Reads so many lines, and looks at the first bytes of them.
fn read(socket: &mut TcpStream, buffer: &mut [u8], mut lines: usize) {
    while lines > 0 {
        let count = socket.read(buffer).unwrap();
        assert!(count > 0, "the server closed the connection");
        assert!(buffer[0] != b'-', "{}", String::from_utf8_lossy(&buffer[..count.min(200)]));
        lines -= buffer[..count].iter().filter(|byte| **byte == b'\n').count();
    }
}

fn run(asking: &Asking, work: Work) -> Figures {
    let pipelines = pipelines(asking.asked, work);
    let mut sockets: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(asking.address).unwrap()).collect();
    for socket in &sockets {
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    let (mut buffer, mut at) = (vec![0; 256 << 10], 0);
    let lines = work.depth * asking.asked.lines();
    let mut begun = None;
    let (mut done, warm) = (0, Instant::now() + FOR / 5);
    loop {
        let now = Instant::now();
        match begun {
            None if now > warm => begun = Some((now, Usage::of(asking.process).cpu, done)),
            Some((begun, cpu, before)) if now > begun + FOR => {
                let spent = Usage::of(asking.process).cpu - cpu;
                let done = (done - before) as f64;
                let seconds = begun.elapsed().as_secs_f64();
                return Figures { rate: done / seconds, nanos: spent.as_secs_f64() * 1e9 / done };
            }
            _ => {}
        }
        for socket in &mut sockets {
            socket.write_all(&pipelines[at % pipelines.len()]).unwrap();
            at += 1;
        }
        sockets.iter_mut().for_each(|socket| read(socket, &mut buffer, lines));
        done += CONNECTIONS * work.depth;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(servers: &[Asking], work: Work) {
    // A rule's limit is its own.
    let takes_part =
        |server: &&Asking| work.numbers == GENEROUS || matches!(server.asked, Asked::Throttle(_));
    let servers: Vec<&Asking> = servers.iter().filter(takes_part).collect();
    let mut runs: Vec<Vec<Figures>> = servers.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (server, runs) in servers.iter().zip(&mut runs) {
            runs.push(run(server, work));
        }
    }
    println!("{}", work.name);
    let cell = servers.iter().position(|server| server.name == "redis-cell");
    for (server, own) in servers.iter().zip(&runs) {
        let of = |field: fn(&Figures) -> f64| median(own.iter().map(field).collect());
        // The ratio of each round by itself: what else the machine does falls on both.
        let beside = |field: fn(&Figures) -> f64| {
            let cell = cell.map(|place| &runs[place])?;
            Some(median(cell.iter().zip(own).map(|(cell, own)| field(cell) / field(own)).collect()))
        };
        print!(
            "  {:<24}{:>12.0}/s{:>8.0} ns",
            server.name,
            of(|figures| figures.rate),
            of(|figures| figures.nanos)
        );
        match (beside(|figures| 1.0 / figures.rate), beside(|figures| figures.nanos)) {
            (Some(rate), Some(nanos)) => {
                println!("   {rate:.1} times as many, {nanos:.1} times less of the processor")
            }
            _ => println!(),
        }
    }
}

/// A server that answers each command with the same bytes: what the sockets alone cost.
fn floor(address: SocketAddr) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let listener = TcpListener::bind(address).await.unwrap();
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = socket.set_nodelay(true);
                let (mut input, mut output) = (BytesMut::with_capacity(64 << 10), Vec::new());
                while socket.read_buf(&mut input).await.is_ok_and(|count| count > 0) {
                    while let Some(used) = whole(&input) {
                        input.advance(used);
                        output.extend_from_slice(CONSTANT);
                    }
                    if socket.write_all(&output).await.is_err() {
                        return;
                    }
                    output.clear();
                    input.reserve(16 << 10);
                }
            });
        }
    });
}

/// How long the command at the front is, if it is all there.
fn whole(input: &[u8]) -> Option<usize> {
    let line = |at: usize| {
        let rest = input.get(at + 1..)?;
        let end = rest.iter().position(|byte| *byte == b'\r')?;
        let number = std::str::from_utf8(&rest[..end]).ok()?.parse::<usize>().ok()?;
        Some((number, at + end + 3))
    };
    let (count, mut at) = line(0)?;
    for _ in 0..count {
        let (length, begin) = line(at)?;
        at = begin + length + 2;
    }
    (at <= input.len()).then_some(at)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [role, address] = &words[..]
        && role == "floor"
    {
        return floor(address.parse().unwrap());
    }
    let folder = TempDir::new().unwrap();
    let start = |mut command: Command, name: &str, address: SocketAddr| {
        let process = Process::start(&mut command, &folder.path().join(name));
        eventually(&format!("{name} listens"), || TcpStream::connect(address).ok());
        process
    };
    let bare = free_tcp();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["floor", &bare.to_string()]);
    let floor = start(command, "floor", bare);
    let resp = free_tcp();
    let daemon = Daemon::launch(Launch::measured(), RULES, &format!("[listen]\nresp = \"{resp}\"\n"), &[]);
    let throttle = Asked::Throttle("CL.THROTTLE");
    let mut servers = vec![
        Asking { name: "a constant", address: bare, process: floor.id(), asked: throttle },
        Asking { name: "tidegate", address: resp, process: daemon.process.id(), asked: throttle },
        Asking {
            name: "tidegate, TG.CHECK",
            address: resp,
            process: daemon.process.id(),
            asked: Asked::Check,
        },
    ];
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cell = path("REDIS_CELL").map(|module| Server::start(&["--loadmodule", module.to_str().unwrap()]));
    if let Some(cell) = &cell {
        let address = SocketAddr::from(([127, 0, 0, 1], cell.port));
        servers.push(Asking { name: "redis-cell", address, process: cell.id(), asked: throttle });
    }
    let at = free_tcp();
    let crab = path("THROTTLECRAB").map(|program| {
        let mut command = Command::new(program);
        command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &at.port().to_string()]);
        command.args(["--log-level", "error"]);
        start(command, "throttlecrab", at)
    });
    if let Some(crab) = &crab {
        let asked = Asked::Throttle("THROTTLE");
        servers.push(Asking { name: "throttlecrab", address: at, process: crab.id(), asked });
    }
    let wanted = |work: &&Work| words.is_empty() || words.iter().any(|word| work.name.contains(word));
    for work in WORK.iter().filter(wanted) {
        compare(&servers, *work);
    }
}
