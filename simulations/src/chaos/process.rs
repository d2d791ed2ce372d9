//! The processes of a story: each is ended by its own id, and listens at a port that was free.

use std::fs::File;
use std::io::{Read as _, Write as _, pipe};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// The longest that a process may take until it is ready, and until it has ended.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

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
pub(super) struct Process(Child);

/// The thread that reads what a process writes, and writes it into a file: gone when dropped.
#[derive(Debug)]
pub(super) struct Reader(Arc<AtomicBool>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Process {
    /// Starts it; what it writes goes to the end of `log`.
    pub(super) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let errors = output.try_clone()?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        Ok(Self(child.with_context(|| format!("{} cannot be started", command.get_program().display()))?))
    }

    /// The same, but what it writes goes through a pipe, whose reader may be taken away.
    pub(super) fn start_with_reader(command: &mut Command, log: &Path) -> anyhow::Result<(Self, Reader)> {
        let mut file = File::options().create(true).append(true).open(log)?;
        let (mut output, input) = pipe()?;
        let gone = Arc::new(AtomicBool::new(false));
        let reader = Reader(Arc::clone(&gone));
        let child = command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input).spawn();
        // The command holds the ends to write to.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child =
            child.with_context(|| format!("{} cannot be started", command.get_program().display()))?;
        std::thread::spawn(move || {
            let mut some = [0; 4_096];
            while let Ok(count @ 1..) = output.read(&mut some) {
                let taken = some.get(..count).unwrap_or_default();
                // A line that comes when the reader is gone already finds nobody any more.
                if gone.load(Ordering::Relaxed) || file.write_all(taken).is_err() {
                    break;
                }
            }
        });
        Ok((Self(child), reader))
    }

    pub(super) fn signal(&self, name: &str) -> anyhow::Result<()> {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.0.id().to_string()).status()?;
        if !sent.success() {
            bail!("the process {} takes no {name}", self.0.id());
        }
        Ok(())
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn has_ended(&mut self) -> bool {
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
