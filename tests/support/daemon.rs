//! A real `tidegate serve` in a folder of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::http::{self, Reply};
use super::process::Process;
use super::{command, eventually, free_tcp, rls};

/// How often to try anew when a port was taken between choosing and binding it.
const ATTEMPTS: usize = 3;

/// A running daemon. Stopped when dropped.
pub(crate) struct Daemon {
    /// The process.
    pub(crate) process: Process,
    /// Where it serves HTTP.
    pub(crate) http: SocketAddr,
    /// Where it serves gRPC.
    pub(crate) grpc: SocketAddr,
    rules: PathBuf,
    arguments: Vec<String>,
    launch: Launch,
    /// When its metrics were asked for last.
    metrics_asked: Mutex<Option<Instant>>,
    /// Last, so that the process is gone before its folder.
    folder: TempDir,
}

/// How a daemon is started, besides its files and flags.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Launch {
    /// `listen.drain`; without it tests do not wait for gateways that they do not have.
    pub(crate) drain: Option<&'static str>,
    /// The limit of open files.
    pub(crate) open_files: Option<u32>,
    /// The same, and the daemon may raise it.
    pub(crate) open_files_at_first: Option<u32>,
    /// Where its name service is, which only root can tell one process alone.
    pub(crate) name_service: Option<std::net::Ipv4Addr>,
    /// By how much its clock is ahead, in seconds: what libfaketime makes it believe.
    pub(crate) clock_ahead: Option<&'static str>,
    /// Threads that decide.
    pub(crate) threads: Option<u32>,
    /// The program, if it is not that of this build.
    pub(crate) program: Option<&'static str>,
    /// Whether only the daemon's user may change anything, as it is without configuration; tests that ask
    /// over TCP may.
    pub(crate) guarded: bool,
}

impl Launch {
    /// A daemon that is measured: that of the build which `DAEMON` names, or of this one.
    pub(crate) fn measured() -> Self {
        let program = std::env::var("DAEMON").ok().map(|path| &*path.leak());
        Self { program, ..Self::default() }
    }

    fn start(self, folder: &Path, arguments: &[String], log: Option<Stdio>) -> Process {
        let limit = self.open_files.map(|files| format!("-n {files}"));
        let names = self.name_service.map(|address| command::asking_names_at(folder, address));
        let mut command = match limit.or(self.open_files_at_first.map(|files| format!("-S -n {files}"))) {
            None => names.unwrap_or_else(|| command::of(self.program.unwrap_or(command::TIDEGATE), folder)),
            Some(limit) => {
                let limited = format!("ulimit {limit} && exec \"$0\" \"$@\"");
                let mut shell = command::of("sh", folder);
                shell.args(["-c", &limited, command::TIDEGATE]);
                shell
            }
        };
        command.env("TIDEGATE_LISTEN__DRAIN", self.drain.unwrap_or("0s"));
        if let Some(ahead) = self.clock_ahead {
            let library = command::faketime().expect("libfaketime is installed: apt-get install libfaketime");
            command.env("LD_PRELOAD", library).env("FAKETIME", ahead).env("DONT_FAKE_MONOTONIC", "1");
        }
        if let Some(threads) = self.threads {
            command.env("TOKIO_WORKER_THREADS", threads.to_string());
        }
        if !self.guarded {
            command.env("TIDEGATE_ADMIN__LOCAL", "true");
        }
        let (command, path) = (command.args(arguments), folder.join("daemon.log"));
        match log {
            Some(errors) => Process::start_logging_to(command, errors, &path),
            None => Process::start(command, &path),
        }
    }
}

impl Daemon {
    /// Starts one with these rules, alone, and waits until it is ready.
    pub(crate) fn with_rules(rules: &str) -> Self {
        Self::with(rules, "", &[])
    }

    /// Starts one with these rules, this `tidegate.toml` and these further arguments.
    pub(crate) fn with(rules: &str, config: &str, arguments: &[&str]) -> Self {
        Self::launch(Launch::default(), rules, config, arguments)
    }

    /// The same, with what else it is started with.
    pub(crate) fn launch(launch: Launch, rules: &str, config: &str, arguments: &[&str]) -> Self {
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match Self::try_start(launch, rules, config, arguments, None) {
                Ok(daemon) => return daemon,
                Err(output) => last = output,
            }
            if !last.contains("in use") {
                break;
            }
        }
        panic!("the daemon did not become ready:\n{last}");
    }

    /// The same, with its log elsewhere than in `daemon.log`.
    pub(crate) fn with_log(rules: &str, config: &str, arguments: &[&str], log: Stdio) -> Self {
        Self::try_start(Launch::default(), rules, config, arguments, Some(log)).unwrap()
    }

    fn try_start(
        launch: Launch,
        rules: &str,
        config: &str,
        arguments: &[&str],
        log: Option<Stdio>,
    ) -> Result<Self, String> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("rules.toml");
        std::fs::write(&path, rules).unwrap();
        std::fs::write(folder.path().join("tidegate.toml"), config).unwrap();
        let (http, grpc) = (free_tcp(), free_tcp());
        let (at_http, at_grpc) = (http.to_string(), grpc.to_string());
        let own = [
            "serve",
            "--config",
            "tidegate.toml",
            "--rules",
            "rules.toml",
            "--http",
            &at_http,
            "--grpc",
            &at_grpc,
        ];
        let arguments: Vec<String> =
            own.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect();
        let mut process = launch.start(folder.path(), &arguments, log);
        let ready = eventually("the daemon is ready or gone", || {
            if process.ended().is_some() {
                return Some(false);
            }
            let probe = format!("GET /readyz HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n\r\n");
            http::raw(http, probe.as_bytes()).is_some_and(|reply| reply.status == 200).then_some(true)
        });
        if ready {
            let metrics_asked = Mutex::default();
            Ok(Self { process, http, grpc, rules: path, arguments, launch, metrics_asked, folder })
        } else {
            Err(process.output())
        }
    }

    /// Its folder: `rules.toml`, `tidegate.toml`, `daemon.log`.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        self.process.output()
    }

    /// Replaces the rules file in one step, as a careful editor does.
    pub(crate) fn set_rules(&self, rules: &str) {
        let fresh = self.folder.path().join("rules.toml.new");
        std::fs::write(&fresh, rules).unwrap();
        std::fs::rename(&fresh, &self.rules).unwrap();
    }

    /// Replaces the rules and waits until a rule of this name has this limit.
    pub(crate) fn reload(&self, rules: &str, name: &str, limit: u64) {
        self.set_rules(rules);
        eventually("the new rules are in force", || {
            let reply = self.get(&format!("/v1/rules/{name}"));
            (reply.status == 200 && find(&reply.json(), "limit") == Some(json!(limit))).then_some(())
        });
    }

    /// `GET` without headers.
    pub(crate) fn get(&self, path: &str) -> Reply {
        http::get(self.http, path, &[])
    }

    /// `POST` of JSON.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        http::post(self.http, path, body.to_string())
    }

    /// Asks about one request of cost 1.
    pub(crate) fn check(&self, attributes: &[(&str, &str)]) -> Value {
        self.check_cost(attributes, 1)
    }

    /// Asks about one request.
    pub(crate) fn check_cost(&self, attributes: &[(&str, &str)], cost: i64) -> Value {
        let attributes: serde_json::Map<_, _> =
            attributes.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let reply = self.post("/v1/check", &json!({ "attributes": attributes, "cost": cost }));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// Asks `times` times and counts how often it was allowed.
    pub(crate) fn admitted(&self, attributes: &[(&str, &str)], times: usize) -> usize {
        (0..times).filter(|_| self.check(attributes)["allowed"] == true).count()
    }

    /// A gRPC client of its own.
    pub(crate) fn rls(&self) -> rls::Client {
        rls::Client::connect(self.grpc)
    }

    /// Every metric as of now: within a second the same text is told again.
    pub(crate) fn metrics(&self) -> String {
        let mut asked = self.metrics_asked.lock().unwrap();
        if let Some(asked) = *asked {
            std::thread::sleep(Duration::from_millis(1_050).saturating_sub(asked.elapsed()));
        }
        *asked = Some(Instant::now());
        self.get("/metrics").body
    }

    /// One metric's value by its full line up to the value, e.g. `tidegate_keys`.
    pub(crate) fn metric(&self, line: &str) -> Option<f64> {
        let text = self.metrics();
        text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' ')?.parse().ok())
    }

    /// Its CLI: a client command against this daemon.
    pub(crate) fn run(&self, arguments: &[&str]) -> command::Ran {
        let server = format!("http://{}", self.http);
        let mut all = arguments.to_vec();
        all.extend(["--server", &server]);
        command::run(self.folder.path(), &all)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.signal("KILL");
        self.process.wait(Duration::from_secs(10));
    }

    /// Starts it once more, with the same files and ports, and waits until it is ready.
    pub(crate) fn start_again(&mut self) {
        self.process = self.launch.start(self.folder.path(), &self.arguments, None);
        eventually("the daemon is ready again", || {
            assert!(self.process.ended().is_none(), "{}", self.log());
            let probe = format!("GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.http);
            http::raw(self.http, probe.as_bytes()).is_some_and(|reply| reply.status == 200).then_some(())
        });
    }

    /// Starts a second process of it beside the first, and returns what that one says when it has ended.
    pub(crate) fn started_twice(&self) -> String {
        let mut second = self.launch.start(self.folder.path(), &self.arguments, None);
        let status = second.wait(Duration::from_secs(20));
        assert!(!status.success(), "{}", second.output());
        second.output()
    }

    /// Starts it once more with another program: that of this build, or the one that is named.
    pub(crate) fn exchange(&mut self, program: Option<&'static str>) {
        self.launch.program = program;
        self.start_again();
    }

    /// SIGTERM, and how it ended.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.process.signal("TERM");
        self.process.wait(Duration::from_secs(30))
    }
}

/// The first value of this name anywhere in a JSON value.
pub(crate) fn find(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Object(map) => {
            map.get(name).cloned().or_else(|| map.values().find_map(|value| find(value, name)))
        }
        Value::Array(list) => list.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}
