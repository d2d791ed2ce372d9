//! A child process that does not outlive its test, and whose output can be read at any time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running program. Killed, by its own id, when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it with both outputs in the file `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let output = File::create(log).unwrap();
        let errors = output.try_clone().unwrap();
        Self::start_on(command, output, errors.into(), log)
    }

    /// Starts it with its standard error elsewhere.
    pub(crate) fn start_logging_to(command: &mut Command, errors: Stdio, log: &Path) -> Self {
        Self::start_on(command, File::create(log).unwrap(), errors, log)
    }

    fn start_on(command: &mut Command, output: File, errors: Stdio, log: &Path) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { child, log: log.to_owned() }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends it a signal by name: `TERM`, `HUP`, `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.id())]).status().unwrap();
        assert!(sent.success(), "cannot signal the process: {}", self.output());
    }

    /// How it ended, or `None` if it still runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for it to end by itself.
    pub(crate) fn wait(&mut self, longest: Duration) -> ExitStatus {
        let deadline = Instant::now() + longest;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "still runs after {longest:?}:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.log.display(), self.output());
        }
    }
}
