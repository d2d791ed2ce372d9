//! A real daemon: its process, its folder and its ports. A Redis server likewise.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The longest that a process may take until it is ready, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// A port that was free a moment ago, below those that the kernel gives to clients.
pub(super) fn free_port() -> anyhow::Result<SocketAddr> {
    const FIRST: u16 = 2_000;
    const PLACES: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % 500).unwrap_or_default() * 20;
    for _ in 0..PLACES {
        let place = (begin + NEXT.fetch_add(1, Ordering::Relaxed) % PLACES) % PLACES;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + place));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port from {FIRST} to {} is free", FIRST + PLACES)
}

/// A running program of ours. It is killed, by its own id, when dropped.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let errors = output.try_clone()?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        Ok(Self(child.with_context(|| format!("{} cannot be started", command.get_program().display()))?))
    }

    fn signal(&self, name: &str) -> anyhow::Result<()> {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.0.id().to_string()).status()?;
        if !sent.success() {
            bail!("the process {} takes no {name}", self.0.id());
        }
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One daemon. Its files outlive its process.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) region: usize,
    pub(super) name: String,
    pub(super) http: SocketAddr,
    program: PathBuf,
    folder: PathBuf,
    process: Option<Process>,
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
        Ok(Self { region, name, http: free_port()?, program: program.to_owned(), folder, process: None })
    }

    /// Writes its rules; a running daemon takes them within a second.
    pub(super) fn set_rules(&self, rules: &str) -> anyhow::Result<()> {
        let (new, path) = (self.folder.join("rules.new"), self.folder.join("rules.toml"));
        std::fs::write(&new, rules)?;
        Ok(std::fs::rename(&new, &path)?)
    }

    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).env("TIDEGATE_LISTEN__DRAIN", "2s");
        command.args(["serve", "--config", "tidegate.toml", "--rules", "rules.toml", "--http"]);
        command.arg(self.http.to_string()).args(["--grpc", "127.0.0.1:0"]);
        self.process = Some(Process::start(&mut command, &self.log_path())?);
        Ok(())
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
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// A Redis server of one region.
#[derive(Debug)]
pub(super) struct Redis {
    pub(super) address: SocketAddr,
    folder: PathBuf,
    process: Option<Process>,
}

impl Redis {
    pub(super) fn start(folder: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let mut redis = Self { address: free_port()?, folder, process: None };
        redis.start_again()?;
        Ok(redis)
    }

    /// Starts it without anything that it held.
    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = None;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"]);
        command.arg(self.address.port().to_string()).current_dir(&self.folder);
        let process = Process::start(&mut command, &self.folder.join("redis.log"))
            .context("a region's store is Redis: is redis-server installed?")?;
        self.process = Some(process);
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(self.address).is_err() {
            if Instant::now() > deadline {
                bail!("redis-server does not listen at {}", self.address);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
