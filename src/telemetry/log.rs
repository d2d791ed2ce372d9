//! Logs: facts with fields, on standard error. INFO is life-cycle, WARN degraded but correct, ERROR someone
//! must act; nothing per request.
//!
//! A daemon outlives its log. Lines go through a bounded queue to a thread of their own, which alone writes:
//! a disk that is full, a reader that is gone and a reader that does not read cost lines, which are counted,
//! and nothing else.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Most lines that wait to be written. Full: further ones are dropped and counted.
const LINES_WAITING_MAX: usize = 4_096;
/// Most bytes of them.
const BYTES_WAITING_MAX: u64 = 4 << 20;
/// Longest time for the last lines when the process ends.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// The filter of the log unless `TIDEGATE_LOG` says otherwise. The log says once, in words that name the
/// cause, what the driver of the database warns of.
const DEFAULT: &str = "warn,sqlx=error,tidegate=info";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The queue of this process, once logging was started.
static QUEUE: OnceLock<Queue> = OnceLock::new();
/// Lines that could not be written, and lines that found the queue full.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);
static NO_ROOM: AtomicU64 = AtomicU64::new(0);

/// Starts logging for this process. `TIDEGATE_LOG` filters (default `info`); `json` makes each line one JSON
/// object. A second call changes nothing.
///
/// # Errors
/// `TIDEGATE_LOG` names a level that there is not.
pub fn start(json: bool) -> Result<(), String> {
    start_at(json, None)
}

/// The same with another level where `TIDEGATE_LOG` names none.
///
/// # Errors
/// There is no such level.
pub fn start_at(json: bool, level: Option<&str>) -> Result<(), String> {
    let filter = match level.filter(|_| std::env::var_os("TIDEGATE_LOG").is_none()) {
        Some(level) => directives(level)?.parse().map_err(|error| format!("{level}: {error}"))?,
        None => filter()?,
    };
    let Some(queue) = Queue::start() else { return Ok(()) };
    if QUEUE.set(queue.clone()).is_err() {
        return Ok(());
    }
    let lines =
        fmt::layer().with_ansi(io::stderr().is_terminal()).log_internal_errors(false).with_writer(queue);
    let filtered = tracing_subscriber::registry().with(filter);
    let _ = match json {
        true => filtered.with(lines.json()).try_init(),
        false => filtered.with(lines.with_target(false)).try_init(),
    };
    // The usual hook writes to standard error itself, and would wait for a reader that does not read.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a bug: {}", panic.payload_as_str().unwrap_or("a panic without a message"));
    }));
    Ok(())
}

/// Lines that were lost since the process began: those that could not be written, and those that found the
/// queue full.
#[must_use]
pub fn lost() -> (u64, u64) {
    (UNWRITTEN.load(Ordering::Relaxed), NO_ROOM.load(Ordering::Relaxed))
}

/// Waits until what was logged before is written, a second at most.
pub fn flush() {
    let Some(queue) = QUEUE.get() else { return };
    let (written, wait) = sync_channel(1);
    if queue.sender.try_send(Item::Flush(written)).is_ok() {
        let _ = wait.recv_timeout(FLUSH_MAX);
    }
}

/// Writes a line on standard error, after what was logged before. A standard error that takes none is no
/// reason to fail.
pub fn say(text: impl Display) {
    let line = format!("{text}\n");
    match QUEUE.get() {
        Some(queue) => {
            queue.push(line.into_bytes());
            flush();
        }
        None => drop(io::stderr().lock().write_all(line.as_bytes())),
    }
}

/// The filter that `TIDEGATE_LOG` asks for.
///
/// # Errors
/// It names a level that there is not.
pub fn filter() -> Result<Targets, String> {
    let directives = match std::env::var("TIDEGATE_LOG") {
        Ok(text) if !text.trim().is_empty() => directives(&text)?,
        Ok(_) | Err(std::env::VarError::NotPresent) => DEFAULT.to_owned(),
        Err(error) => return Err(format!("TIDEGATE_LOG: {error}")),
    };
    directives.parse().map_err(|error| format!("TIDEGATE_LOG: {error}"))
}

/// Checks what was asked for. A part that is for one module only stands beside the default, so that nothing
/// else falls silent.
fn directives(asked: &str) -> Result<String, String> {
    let parts: Vec<&str> = asked.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    for part in &parts {
        if part.contains(['[', '{']) {
            return Err(format!(
                "TIDEGATE_LOG: {part:?} filters by more than a module: expected a level, or a module and its level such \
                 as \"info,tidegate::peer=debug\""
            ));
        }
        let level = part.rsplit_once('=').map_or(*part, |(_, level)| level);
        if !is_level(level) {
            return Err(format!(
                "TIDEGATE_LOG: there is no level {level:?}: expected off, error, warn, info, debug or trace, for one \
                 module such as \"info,tidegate::peer=debug\""
            ));
        }
    }
    let all = parts.join(",");
    Ok(if parts.iter().any(|part| is_level(part)) { all } else { format!("{DEFAULT},{all}") })
}

enum Item {
    Line(Vec<u8>),
    /// Says when everything before it was written.
    Flush(SyncSender<()>),
}

/// The queue of lines for the thread that writes them.
#[derive(Clone)]
struct Queue {
    sender: SyncSender<Item>,
    /// Bytes of the lines that wait.
    bytes: Arc<AtomicU64>,
}

impl Queue {
    /// Starts the thread; `None` where the system gives no thread or no second handle.
    fn start() -> Option<Self> {
        // A handle of its own: the process's is locked while it is written to, and others must not wait for
        // that.
        let file = File::from(io::stderr().as_fd().try_clone_to_owned().ok()?);
        let (sender, items) = sync_channel(LINES_WAITING_MAX);
        let bytes = Arc::new(AtomicU64::new(0));
        let waiting = Arc::clone(&bytes);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write(file, &items, &waiting)).ok()?;
        Some(Self { sender, bytes })
    }

    fn push(&self, line: Vec<u8>) {
        let len = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let waiting = self.bytes.fetch_add(len, Ordering::Relaxed);
        let has_room = waiting.saturating_add(len) <= BYTES_WAITING_MAX;
        let sent = has_room.then(|| self.sender.try_send(Item::Line(line)));
        if matches!(sent, None | Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_)))) {
            self.bytes.fetch_sub(len, Ordering::Relaxed);
            NO_ROOM.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes lines for as long as the process lives, and says afterwards how many could not be.
fn write(mut out: impl Write, items: &Receiver<Item>, waiting: &AtomicU64) {
    let mut told = lost();
    while let Ok(item) = items.recv() {
        match item {
            Item::Line(line) => {
                let written = out.write_all(&line).is_ok();
                waiting.fetch_sub(u64::try_from(line.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
                if !written {
                    UNWRITTEN.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let now = lost();
                let lines = (now.0 - told.0) + (now.1 - told.1);
                if lines > 0 {
                    told = now;
                    tracing::warn!(lines, "lines of this log were lost: it could not be written");
                }
            }
            Item::Flush(written) => drop(written.try_send(())),
        }
    }
}

/// One line on its way: what subscribers write to.
struct Line<'a>(&'a Queue);

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

impl Write for Line<'_> {
    /// Each event is one call.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_levels_are_refused_and_modules_stand_beside_the_default() {
        for bad in ["warning", "verbose", "foo", "info,tidegate=chatty", "tidegate::peer", "3"] {
            let refused = directives(bad).unwrap_err();
            assert!(refused.starts_with("TIDEGATE_LOG: there is no level"), "{refused}");
        }
        for bad in ["tidegate[call]=debug", "info,tidegate[call{id=1}]=debug"] {
            assert!(directives(bad).unwrap_err().contains("more than a module"), "{bad}");
        }
        assert_eq!(directives("debug").as_deref(), Ok("debug"));
        assert_eq!(directives("WARN, tidegate=info").as_deref(), Ok("WARN,tidegate=info"));
        assert_eq!(directives("h2=debug").as_deref(), Ok("warn,sqlx=error,tidegate=info,h2=debug"));
    }

    #[test]
    fn a_queue_that_nobody_empties_drops_lines_and_keeps_its_bound() {
        let (sender, items) = sync_channel(LINES_WAITING_MAX);
        let queue = Queue { sender, bytes: Arc::default() };
        let before = lost().1;
        for _ in 0..10 {
            queue.push(vec![b'x'; 1 << 20]);
        }
        assert_eq!((items.try_iter().count(), queue.bytes.load(Ordering::Relaxed)), (4, 4 << 20));
        assert!(lost().1 - before >= 6);
    }
}
