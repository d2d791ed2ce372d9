//! A real PostgreSQL for tests: one server where a test asks for one, in a temporary folder, on a Unix socket
//! and a free port, with a database of its own for each test. Stopped, by its own id, when dropped.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A running server. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Postgres {
    port: u16,
    child: Option<Child>,
    settings: Vec<String>,
    /// Last, so that the server is gone before its folder.
    folder: TempDir,
}

impl Postgres {
    /// A server with the quickest settings.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with these settings (`name=value`) besides.
    pub(crate) fn with(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("tg-pg").tempdir().unwrap();
        open(folder.path());
        initialise(&folder.path().join("data"));
        let settings = settings.iter().map(|text| (*text).to_owned()).collect();
        let mut server = Self { port: free_port(), child: None, settings, folder };
        server.run();
        server
    }

    /// Starts the server, where it was stopped, with the data and at the port it had.
    pub(crate) fn run(&mut self) {
        let mut command = as_postgres(&binary("postgres"));
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        command.arg("-k").arg(self.folder.path());
        for setting in
            ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=60", "shared_buffers=32MB"]
        {
            command.args(["-c", setting]);
        }
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().expect("PostgreSQL is installed: apt-get install postgresql"));
        self.wait_until("it answers", || self.try_sql("postgres", "SELECT 1").is_ok_and(|text| text == "1"));
    }

    /// Where its data are.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Its port on loopback.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The URL of one of its databases.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A new, empty database; its name.
    pub(crate) fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// A new database with this build's schema; its name. `tidegate` is the binary under test.
    pub(crate) fn migrated(&self, tidegate: &str) -> String {
        let name = self.database();
        let mut migrate = Command::new(tidegate);
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("TIDEGATE_")) {
            migrate.env_remove(variable);
        }
        let done = migrate
            .arg("migrate")
            .current_dir(self.folder.path())
            .env("TIDEGATE_POSTGRES__URL", self.url(&name))
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        name
    }

    /// Runs SQL and gives what `psql` prints, without headings.
    ///
    /// # Panics
    /// When it fails.
    pub(crate) fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}\n{}", self.log()))
    }

    /// The same, with what `psql` says where it fails.
    pub(crate) fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut command = Command::new(binary("psql"));
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.url(database), "-c", sql]);
        let Output { status, stdout, stderr } = command.env("PGCONNECT_TIMEOUT", "5").output().unwrap();
        if status.success() {
            Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&stderr).trim().to_owned())
        }
    }

    /// Stops it at once, as a crash would; its data stay.
    pub(crate) fn kill(&mut self) {
        self.end("QUIT");
    }

    /// Stops it in order.
    pub(crate) fn stop(&mut self) {
        self.end("INT");
    }

    /// Copies its data, while it is stopped, as a standby has them that has heard everything until now.
    pub(crate) fn copy(&self) {
        let copied =
            as_postgres(Path::new("cp")).arg("-a").arg(self.data()).arg(self.standby()).status().unwrap();
        assert!(copied.success());
        std::fs::write(self.standby().join("standby.signal"), "").unwrap();
    }

    /// Puts the standby in the place of the server that was killed, and promotes it. Its first checkpoint is
    /// still to come.
    pub(crate) fn promote(&mut self) {
        std::fs::rename(self.data(), self.folder.path().join("lost")).unwrap();
        std::fs::rename(self.standby(), self.data()).unwrap();
        self.run();
        self.sql("postgres", "SELECT pg_promote()");
    }

    fn standby(&self) -> PathBuf {
        self.folder.path().join("standby")
    }

    /// Sends a signal to all of its processes: `STOP` makes it hang, `CONT` go on.
    pub(crate) fn signal_all(&self, signal: &str) {
        let Some(child) = &self.child else { return };
        let own = child.id().to_string();
        let listed = Command::new("ps").args(["-o", "pid=", "--ppid", &own]).output().unwrap();
        let children = String::from_utf8_lossy(&listed.stdout).into_owned();
        for pid in children.split_whitespace().chain([own.as_str()]) {
            let _ = Command::new("kill").args([&format!("-{signal}"), pid]).status();
        }
    }

    fn end(&mut self, signal: &str) {
        let Some(mut child) = self.child.take() else { return };
        let pid = child.id().to_string();
        let _ = Command::new("kill").args([&format!("-{signal}"), &pid]).stderr(Stdio::null()).status();
        let deadline = now() + Duration::from_secs(10);
        while child.try_wait().unwrap().is_none() {
            if now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = now() + Duration::from_secs(20);
        while !done() {
            assert!(now() < deadline, "waited in vain until {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A hung server does not hear QUIT.
        self.signal_all("CONT");
        self.end("QUIT");
    }
}

#[allow(clippy::disallowed_methods, reason = "tests measure real time")]
fn now() -> Instant {
    Instant::now()
}

/// Where PostgreSQL's programs are; the newest of those from 15 on.
pub(crate) fn binary(name: &str) -> PathBuf {
    let versions = (15..30).rev().map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    let folder = versions.into_iter().find(|folder| folder.join(name).exists());
    folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name))
}

/// A command as the user `postgres`, where this is root: PostgreSQL refuses to run as root.
///
/// `setpriv` becomes the command, so that the child's id is the server's.
pub(crate) fn as_postgres(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command
}

/// Whether these tests run as root, and PostgreSQL therefore as `postgres`.
pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0"))
}

/// Lets the server's user work in this folder.
fn open(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// Makes a data folder.
fn initialise(data: &Path) {
    let made = as_postgres(&binary("initdb"))
        .args(["--auth=trust", "--username=postgres", "--no-sync", "--no-instructions", "--encoding=UTF8"])
        .args(["--locale=C", "-D"])
        .arg(data)
        .output()
        .expect("PostgreSQL is installed: apt-get install postgresql");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A port that was free a moment ago, below those that the kernel gives to clients.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let base = std::process::id() % 900 * 10;
    loop {
        let port = u16::try_from(20_000 + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
