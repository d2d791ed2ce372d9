//! Paths as origins read them, beside what they are held to here: a real nginx, and the servers that Node,
//! Python and Go bring.
//!
//! Each run asks for other paths. A failure says which seed to set in `TIDEGATE_PATHS_SEED` to ask for the
//! same; `TIDEGATE_PATHS` is how many.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::daemon::Daemon;
use super::support::process::Process;
use super::support::{SOON, eventually, not_judged};
use super::{Front, free_tcp};

/// What paths are made of.
const PIECES: [&str; 20] = [
    "login",
    "login",
    "public",
    "public",
    "x",
    "..",
    "..",
    ".",
    "",
    "%2e%2e",
    "%2E.",
    "..;",
    "..;a=b",
    "%2e%2e;",
    "%6cogin",
    "publi%63",
    "a%2Fb",
    "..%2flogin",
    "..\\x",
    "..%5cx",
];
/// How many paths are asked for.
const PATHS: usize = 2_500;

/// One says nothing else but these two prefixes, and forbids the one and frees the other.
const RULES: &str = r#"
[[rules]]
name = "login"
domain = "held"
match = { path = "/login*" }
action = "block"

[[rules]]
name = "public"
domain = "exempt"
match = { path = "/public*" }
action = "allow"

[[rules]]
name = "nobody"
domain = "exempt"
limit = 0
window = "1h"
"#;

const SERVERS: &str = "
server {
    listen ADDR;
    keepalive_requests 1000000;
    merge_slashes MERGE;
    location / { return 200 other; }
    location /login { return 200 login; }
    location /public { return 200 public; }
}
";

/// Paths that look random, the same for the same seed.
fn paths(seed: u64, count: usize) -> Vec<String> {
    // A state of zero stays so.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(most).unwrap()).unwrap()
    };
    let path = |_| (0..=below(5)).map(|_| format!("/{}", PIECES[below(PIECES.len())])).collect::<String>();
    (0..count).map(path).collect()
}

/// A number in the environment.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number: {text:?}")))
}

/// A connection that stays open from one request to the next, as long as the server likes.
struct Line {
    addr: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Line {
    fn to(addr: SocketAddr) -> Self {
        Self { addr, stream: None }
    }

    /// Sends a request whole, once more where the server had closed meanwhile. Gives its status and body.
    fn ask(&mut self, request: &str) -> (u16, String) {
        for _ in 0..2 {
            if let Ok(answer) = self.try_ask(request) {
                return answer;
            }
            self.stream = None;
        }
        panic!("{} does not answer: {request}", self.addr);
    }

    fn try_ask(&mut self, request: &str) -> std::io::Result<(u16, String)> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.addr)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SOON))?;
                BufReader::new(stream)
            }
        };
        stream.get_mut().write_all(request.as_bytes())?;
        let (mut status, mut length, mut stays) = (None, 0, true);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end().to_ascii_lowercase();
            match line.split_once(": ") {
                _ if line.is_empty() => break,
                Some(("content-length", text)) => length = text.parse().unwrap(),
                Some(("connection", "close")) => stays = false,
                _ if status.is_none() => status = line.split(' ').nth(1).and_then(|text| text.parse().ok()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        if stays {
            self.stream = Some(stream);
        }
        Ok((status.unwrap(), String::from_utf8(body).unwrap()))
    }

    fn get(&mut self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"))
    }
}

/// The servers that programming languages bring, and how each reads a path.
struct Origins {
    lines: Vec<(&'static str, Line)>,
    processes: Vec<Process>,
    folder: TempDir,
}

impl Origins {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let script = |name: &str| {
            let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nginx/origins");
            scripts.join(name)
        };
        let mut origins = Self { lines: Vec::new(), processes: Vec::new(), folder };
        let mut node = Command::new("node");
        node.arg(script("origin.mjs"));
        origins.add(&["Node"], node);
        let mut python = Command::new("python3");
        python.arg(script("origin.py"));
        origins.add(&["Python"], python);
        match build_go(origins.folder.path(), &script("origin.go")) {
            Ok(program) => origins.add(&["Go", "ServeMux"], Command::new(program)),
            Err(why) => not_judged(&format!("no server in Go: {why}")),
        }
        origins
    }

    /// Starts a program that listens at as many addresses, and waits for it.
    fn add(&mut self, names: &[&'static str], mut command: Command) {
        let addrs: Vec<SocketAddr> = names.iter().map(|_| free_tcp()).collect();
        command.args(addrs.iter().map(ToString::to_string));
        let log = self.folder.path().join(format!("{}.log", names[0]));
        self.processes.push(Process::start(&mut command, &log));
        for (name, addr) in names.iter().zip(addrs) {
            eventually(&format!("{name} listens"), || TcpStream::connect(addr).ok());
            self.lines.push((*name, Line::to(addr)));
        }
    }

    /// What each of them serves for a path: one that refuses it or sends elsewhere serves nothing.
    fn serve(&mut self, path: &str) -> Vec<(&'static str, &'static str)> {
        let mut served = Vec::new();
        for (name, line) in &mut self.lines {
            let (status, body) = line.get(path);
            if status != 200 {
                continue;
            }
            let readings: Vec<String> = serde_json::from_str(&body).unwrap();
            served.extend(readings.iter().map(|reading| {
                let is =
                    |prefix: &&str| reading.strip_prefix('/').is_some_and(|rest| rest.starts_with(prefix));
                (*name, ["login", "public"].into_iter().find(|prefix| is(prefix)).unwrap_or("other"))
            }));
        }
        served
    }
}

/// Builds a program in Go.
fn build_go(folder: &Path, source: &Path) -> Result<PathBuf, String> {
    let program = folder.join("origin");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(source).env("GO111MODULE", "off");
    if std::env::var_os("HOME").is_none() {
        build.env("GOCACHE", folder.join("cache"));
    }
    let built = build.output().map_err(|error| format!("go: {error}"))?;
    if built.status.success() {
        Ok(program)
    } else {
        Err(String::from_utf8_lossy(&built.stderr).into_owned())
    }
}

#[test]
fn a_path_is_held_to_what_any_origin_serves_and_exempt_only_where_all_agree() {
    let now = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let seed = setting("TIDEGATE_PATHS_SEED").unwrap_or_else(now);
    let count = setting("TIDEGATE_PATHS").map_or(PATHS, |count| usize::try_from(count).unwrap());
    let again = format!("TIDEGATE_PATHS_SEED={seed} asks for the same paths");
    eprintln!("{again}");
    let daemon = Daemon::with_rules(RULES);
    let nginx = [free_tcp(), free_tcp()];
    let servers: String = nginx
        .iter()
        .zip(["on", "off"])
        .map(|(addr, merge)| SERVERS.replace("ADDR", &addr.to_string()).replace("MERGE", merge))
        .collect();
    let _nginx =
        Front::start_with(&[daemon.http], &[("upstream tidegate", &format!("{servers}\nupstream tidegate"))]);
    let mut nginx = nginx.map(Line::to);
    let mut origins = Origins::start();
    let mut asked = Line::to(daemon.http);
    let (mut held, mut exempt) = (0, 0);
    for path in paths(seed, count) {
        let mut served = origins.serve(&path);
        for line in &mut nginx {
            let (status, body) = line.get(&path);
            let known = ["login", "public", "other"].into_iter().find(|known| *known == body);
            served.extend((status == 200).then(|| ("nginx", known.unwrap())));
        }
        let mut allowed = |domain: &str| {
            let body = json!({ "domain": domain, "attributes": { "path": path } }).to_string();
            let (status, body) = asked.ask(&format!(
                "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            ));
            // A path with too many readings is refused.
            assert!([200, 400].contains(&status), "{path}: {status} {body}");
            let answer: Value = serde_json::from_str(&body).unwrap();
            status == 200 && answer["allowed"] == true
        };
        let (is_held, is_exempt) = (!allowed("held"), allowed("exempt"));
        let login = served.iter().any(|(_, one)| *one == "login");
        assert!(is_held || !login, "{path} is served as {served:?}, and not held: {again}");
        let agree = served.iter().all(|(_, one)| *one == "public");
        assert!(!is_exempt || agree, "{path} is served as {served:?}, and exempt: {again}");
        held += usize::from(is_held);
        exempt += usize::from(is_exempt);
    }
    let few = "the paths say little";
    assert!(held > count / 10 && held < count && exempt > count / 200, "{few}: {held}, {exempt}: {again}");
}
