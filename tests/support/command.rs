//! The command line, run to its end.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The binary under test.
pub(crate) const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Its exit code; -1 when a signal ended it.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Both outputs, for messages.
    pub(crate) fn both(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// A command whose names are looked up at this address alone, by a system that waits long for an answer.
pub(crate) fn asking_names_at(folder: &Path, address: std::net::Ipv4Addr) -> Command {
    let settings = format!("nameserver {address}\noptions timeout:20 attempts:3\n");
    std::fs::write(folder.join("resolv.conf"), settings).unwrap();
    let mut unshared = of("unshare", folder);
    let mount = "mount --bind resolv.conf /etc/resolv.conf && exec \"$0\" \"$@\"";
    unshared.args(["--mount", "sh", "-c", mount, TIDEGATE]);
    unshared
}

/// What makes a program believe that it is another time, if it is installed.
pub(crate) fn faketime() -> Option<std::path::PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|library| library.exists())
}

/// A command that knows nothing of the machine's own configuration.
pub(crate) fn command(folder: &Path) -> Command {
    of(TIDEGATE, folder)
}

/// The same with another program.
pub(crate) fn of(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
        command.env_remove(name);
    }
    // Where daemons make their admin sockets, and commands look for them.
    command.env("XDG_RUNTIME_DIR", folder).env_remove("RUNTIME_DIRECTORY");
    command.current_dir(folder).env_remove("RUST_LOG").env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    command
}

/// A program that runs another one in a terminal of 80 columns and 24 lines, and prints what it writes there.
const IN_A_TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios

child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.environ["TERM"] = "xterm-256color"
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    try:
        piece = os.read(terminal, 65536)
    except OSError:
        break
    if not piece:
        break
    os.write(1, piece)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// A command whose standard output is a terminal of 80 columns and 24 lines.
pub(crate) fn in_terminal(folder: &Path) -> Command {
    let mut python = of("python3", folder);
    python.args(["-c", IN_A_TERMINAL, TIDEGATE]);
    python
}

/// Runs `tidegate` with these arguments in a folder.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Ran {
    let output = command(folder).args(arguments).stdin(Stdio::null()).output().unwrap();
    Ran::of(&output)
}
