//! One PostgreSQL for all daemons, in a temporary folder: what they decided is remembered in it.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use super::process::{PATIENCE, Process, free_port};

const INSTALL: &str = "daemons share PostgreSQL here: apt-get install postgresql";
const DATABASE: &str = "tidegate";
/// A server whose predecessor was killed may have to wait until the last of its processes is gone.
const LOOK: Duration = Duration::from_millis(100);

/// A running server.
#[derive(Debug)]
pub(super) struct Postgres {
    address: SocketAddr,
    process: Option<Process>,
    /// Last, so that the server is gone before its files.
    folder: TempDir,
}

impl Postgres {
    /// A server with one database, which has the schema of this program.
    pub(super) fn start(tidegate: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tidegate-postgres").tempdir()?;
        // The server has a user of its own where this is root.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))?;
        let mut initdb = as_postgres(&binary("initdb"));
        initdb.args(["--auth=trust", "--username=postgres", "--no-sync", "--no-instructions"]);
        initdb.args(["--encoding=UTF8", "--locale=C", "-D"]).arg(folder.path().join("data"));
        let made = initdb.output().context(INSTALL)?;
        if !made.status.success() {
            bail!("initdb: {}", String::from_utf8_lossy(&made.stderr));
        }
        let mut server = Self { address: free_port()?, process: None, folder };
        server.spawn()?;
        let deadline = Instant::now() + PATIENCE;
        while server.sql("postgres", "SELECT 1").is_err() {
            if Instant::now() > deadline {
                bail!("PostgreSQL does not answer at {}", server.address);
            }
            std::thread::sleep(LOOK);
        }
        server.sql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
        let migrated = Command::new(tidegate)
            .arg("migrate")
            .current_dir(server.folder.path())
            .env("TIDEGATE_POSTGRES__URL", server.url())
            .output()?;
        if !migrated.status.success() {
            bail!("tidegate migrate: {}", String::from_utf8_lossy(&migrated.stderr));
        }
        Ok(server)
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let mut command = as_postgres(&binary("postgres"));
        command.arg("-D").arg(self.folder.path().join("data"));
        command.args(["-p", &self.address.port().to_string()]).arg("-k").arg(self.folder.path());
        for setting in ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=100"] {
            command.args(["-c", setting]);
        }
        let log = self.folder.path().join("server.log");
        self.process = Some(Process::start(&mut command, &log).context(INSTALL)?);
        Ok(())
    }

    /// Returns the URL at which daemons find it.
    pub(super) fn url(&self) -> String {
        format!("postgres://postgres@{}/{DATABASE}", self.address)
    }

    /// All of its processes are killed at once.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.signal("KILL")?;
        self.process = None;
        Ok(())
    }

    /// Starts it with the data that it had. It answers some time later.
    pub(super) async fn start_again(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        self.spawn()?;
        loop {
            tokio::time::sleep(LOOK).await;
            if !self.process.as_mut().is_none_or(Process::has_ended) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = std::fs::read(self.folder.path().join("server.log")).unwrap_or_default();
                bail!("PostgreSQL does not start again:\n{}", String::from_utf8_lossy(&log));
            }
            self.spawn()?;
        }
    }

    /// It answers whoever asks, and takes nothing, or takes it again. Connections that are open end, so that
    /// all daemons notice.
    pub(super) fn set_read_only(&self, read_only: bool) -> anyhow::Result<()> {
        let alter = format!(
            "ALTER DATABASE {DATABASE} SET default_transaction_read_only = {}",
            if read_only { "on" } else { "off" }
        );
        self.sql("postgres", &alter)?;
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{DATABASE}'"
        );
        self.sql("postgres", &end).map(drop)
    }

    /// Sends a signal to all of its processes.
    pub(super) fn signal(&self, name: &str) -> anyhow::Result<()> {
        let Some(process) = &self.process else { return Ok(()) };
        let own = process.id().to_string();
        let listed = Command::new("ps").args(["-o", "pid=", "--ppid", &own]).output()?;
        let children = String::from_utf8_lossy(&listed.stdout).into_owned();
        // One of its processes may end meanwhile, which is as good.
        Command::new("kill")
            .arg(format!("-{name}"))
            .arg(&own)
            .args(children.split_whitespace())
            .stderr(std::process::Stdio::null())
            .status()?;
        Ok(())
    }

    /// The denials that it remembers: the region of each, and when it was decided, since the epoch.
    pub(super) fn denials(&self) -> anyhow::Result<Vec<(String, Duration)>> {
        let rows = "SELECT (extract(epoch FROM at) * 1000000)::bigint, region FROM audit_log, generate_series(1, weight) \
                    WHERE outcome = 'denied'";
        let text = self.sql(DATABASE, rows)?;
        text.lines()
            .map(|line| {
                let (at, region) = line.split_once('|').with_context(|| format!("{line:?} is no denial"))?;
                let at = at.parse().with_context(|| format!("{line:?} begins with no time"))?;
                Ok((region.to_owned(), Duration::from_micros(at)))
            })
            .collect()
    }

    fn sql(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        let url = format!("postgres://postgres@{}/{database}", self.address);
        let mut command = Command::new(binary("psql"));
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &url, "-c", sql]);
        let output = command.env("PGCONNECT_TIMEOUT", "5").output().context(INSTALL)?;
        if !output.status.success() {
            bail!("psql: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A server that stands still does not end its children.
        let _ = self.signal("KILL");
    }
}

/// Returns the path of one of PostgreSQL's programs; the newest of those from 15 on.
fn binary(name: &str) -> PathBuf {
    let versions = (15..30).rev().map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    let folder = versions.into_iter().find(|folder| folder.join(name).exists());
    folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name))
}

/// A command as the user `postgres`, where this is root: PostgreSQL refuses to run as root. `setpriv` becomes
/// the command, so that the process's id is the server's.
fn as_postgres(program: &Path) -> Command {
    let is_root =
        Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command
}
