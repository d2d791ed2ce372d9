//! A real daemon: its process, its folder and its ports. A Redis server likewise.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::process::{PATIENCE, Process, Reader, free_port};

/// One daemon. Its files outlive its process.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) region: usize,
    pub(super) name: String,
    pub(super) http: SocketAddr,
    pub(super) grpc: SocketAddr,
    /// For its process alone, such as those that move its clock.
    variables: Vec<(String, String)>,
    program: PathBuf,
    folder: PathBuf,
    process: Option<Process>,
    /// Reader of the daemon's log.
    reader: Option<Reader>,
}

impl Daemon {
    /// Writes its files; it does not run until [`Self::start`].
    pub(super) fn new(
        program: &Path,
        folder: PathBuf,
        (region, name): (usize, String),
        config: &str,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("tidegate.toml"), config)?;
        Ok(Self {
            region,
            name,
            http: free_port()?,
            grpc: free_port()?,
            variables: Vec::new(),
            program: program.to_owned(),
            folder,
            process: None,
            reader: None,
        })
    }

    /// Environment variables of its process, from its next start on.
    pub(super) fn set_variables(&mut self, variables: Vec<(String, String)>) {
        self.variables = variables;
    }

    /// Writes its configuration, which it reads when it starts.
    pub(super) fn configure(&self, config: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(self.folder.join("tidegate.toml"), config)?)
    }

    /// Writes its rules; a running daemon takes them within a second.
    pub(super) fn set_rules(&self, rules: &str) -> anyhow::Result<()> {
        let (new, path) = (self.folder.join("rules.new"), self.folder.join("rules.toml"));
        std::fs::write(&new, rules)?;
        Ok(std::fs::rename(&new, &path)?)
    }

    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(["serve", "--config", "tidegate.toml", "--rules", "rules.toml", "--http"]);
        command.arg(self.http.to_string()).arg("--grpc").arg(self.grpc.to_string());
        let (process, reader) = Process::start_with_reader(&mut command, &self.log_path())?;
        (self.process, self.reader) = (Some(process), Some(reader));
        Ok(())
    }

    /// Nobody reads its log any more, as long as this process lives.
    pub(super) fn lose_reader(&mut self) {
        self.reader = None;
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// Asks it to end, and says whether it has.
    pub(super) fn terminate(&self) -> anyhow::Result<()> {
        self.signal("TERM")
    }

    pub(super) fn signal(&self, name: &str) -> anyhow::Result<()> {
        self.process.as_ref().context("the daemon does not run")?.signal(name)
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(Process::has_ended)
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("daemon.log")
    }

    /// All that it has logged, in all its lives.
    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// Fails with its log if it ends before it is ready.
    pub(super) async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while super::clients::get(self.http, "/readyz").await.is_none_or(|(status, _)| status != 200) {
            if self.has_ended() || Instant::now() > deadline {
                bail!("{} did not become ready:\n{}", self.name, self.log());
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// A Redis server of one region.
#[derive(Debug)]
pub(super) struct Redis {
    pub(super) address: SocketAddr,
    variables: Vec<(String, String)>,
    folder: PathBuf,
    process: Option<Process>,
}

impl Redis {
    /// With these environment variables.
    pub(super) fn start(folder: PathBuf, variables: Vec<(String, String)>) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let mut redis = Self { address: free_port()?, variables, folder, process: None };
        redis.start_again()?;
        Ok(redis)
    }

    /// Starts it without anything that it held.
    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = None;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"]);
        command.arg(self.address.port().to_string()).current_dir(&self.folder);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let process = Process::start(&mut command, &self.folder.join("redis.log"))
            .context("a region's store is Redis: is redis-server installed?")?;
        self.process = Some(process);
        self.wait()
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, name: &str) -> anyhow::Result<()> {
        self.process.as_ref().context("redis-server does not run")?.signal(name)
    }

    /// It takes nothing more, or again.
    pub(super) fn set_full(&self, full: bool) -> anyhow::Result<()> {
        // The keys that it holds stay: it is told that this is more than it may hold.
        self.order(&format!("CONFIG SET maxmemory {}", if full { "1" } else { "0" }))
    }

    /// Deletes all that it holds.
    pub(super) fn flush(&self) -> anyhow::Result<()> {
        self.order("FLUSHALL")
    }

    /// The seconds since the epoch, by its clock.
    #[cfg(test)]
    pub(super) fn seconds(&self) -> anyhow::Result<u64> {
        let mut stream = std::net::TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"TIME\r\n")?;
        let mut answer = [0; 20];
        stream.read_exact(&mut answer)?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let seconds = text.lines().nth(2).context("TIME answers otherwise")?;
        Ok(seconds.trim().parse()?)
    }

    /// Gives it a command that it answers with `OK`.
    fn order(&self, command: &str) -> anyhow::Result<()> {
        let mut stream = std::net::TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        ensure!(&answer == b"+OK\r\n", "redis-server refused {command}");
        Ok(())
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(self.address).is_err() {
            if self.process.as_mut().is_none_or(Process::has_ended) || Instant::now() > deadline {
                let log = std::fs::read(self.folder.join("redis.log")).unwrap_or_default();
                bail!("redis-server does not listen at {}:\n{}", self.address, String::from_utf8_lossy(&log));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(())
    }
}
