//! The Redis protocol: `CL.THROTTLE` as the module redis-cell answers it, `INCREX` as Redis 8.8 does, and the
//! decisions of this daemon, for every client that speaks to Redis.
//!
//! One read may bring many commands. They are answered in their order, and sent with one write. Those of a
//! kind that follow each other are decided together: where the store is a Redis, at one wait for many.

mod cells;
mod decisions;
mod introduction;
mod parse;
mod reply;
mod scripts;
mod session;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use self::session::{CommandCounters, Next, Session};
use super::Servers;
use super::connection::Held;
use super::delivering_socket::DeliveringSocket;
use super::delivery::Deliveries;
use super::listener::Accepted;
use crate::engine::clock::Deadline;
use crate::engine::port::CellStore;
use crate::telemetry::Metrics;

/// Bytes that one read asks for.
const READ_BYTES: usize = 16 << 10;
/// Bytes of answers that are sent although more commands are there.
const ANSWER_BYTES: usize = 64 << 10;
/// Commands that one connection has answered before others have their turn on its thread.
const TURN_COMMANDS: usize = 32;
/// Most bytes of commands that one connection holds: one command of the largest size fits.
const INPUT_BYTES_MAX: usize = 2 << 20;
/// Time for which a connection may be idle.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Time that the rest of a command may take to come, and an answer to be read.
const DAWDLE_MAX: Duration = Duration::from_secs(20);

/// The passwords that clients may show; none: everybody may ask.
#[derive(Clone, Default)]
pub struct Passwords(Vec<Vec<u8>>);

impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passwords", self.0.len())
    }
}

impl Passwords {
    /// Reads one password a line; empty lines, and those that begin with `#`, are none.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(|line| line.as_bytes().to_vec()).collect())
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if this is one of them. The time that it takes does not tell how much of it is right.
    fn knows(&self, shown: &[u8]) -> bool {
        let digest = |bytes| ring::digest::digest(&ring::digest::SHA256, bytes);
        let shown = digest(shown);
        self.0.iter().fold(false, |known, one| known | (digest(one).as_ref() == shown.as_ref()))
    }
}

/// The state that all connections of the Redis protocol share.
#[derive(Debug)]
pub struct RespState {
    cells: Arc<dyn CellStore>,
    passwords: Passwords,
    scripts: scripts::KnownScripts,
    counters: CommandCounters,
    connections: AtomicI64,
}

impl RespState {
    /// Counts what callers limit themselves in `cells`.
    #[must_use]
    pub fn new(cells: Arc<dyn CellStore>, passwords: Passwords, metrics: &Metrics) -> Self {
        Self {
            cells,
            passwords,
            scripts: scripts::KnownScripts::default(),
            counters: CommandCounters::new(metrics),
            connections: AtomicI64::new(0),
        }
    }
}

/// Serves one connection until it ends.
pub(super) async fn connection(servers: Arc<Servers>, accepted: Accepted) {
    let Some(state) = &servers.resp_state else { return };
    let Accepted { socket, shutdown, place, .. } = accepted;
    let deliveries = Deliveries::new(&servers.engine);
    let mut socket = DeliveringSocket::in_order(socket, &deliveries);
    let id = state.connections.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    let mut session = Session::new(&servers, state, id, &deliveries);
    let mut input = BytesMut::with_capacity(READ_BYTES);
    let mut held = servers.resp.budget.hold();
    // Until when the rest of a command may come that is there in part.
    let mut whole_by: Option<Deadline> = None;
    loop {
        let (next, answered) = answer_all(&servers, &mut session, &mut input, &mut socket).await;
        if answered > 0 {
            place.touch(true);
        }
        if !send(&mut session, &mut socket).await {
            place.count_unread();
            return;
        }
        if next == Next::Close {
            let _ = timeout(DAWDLE_MAX, socket.shutdown()).await;
            return socket.finish().await;
        }
        let new = || Deadline::after(DAWDLE_MAX);
        whole_by = (!input.is_empty()).then(|| whole_by.filter(|_| answered == 0).unwrap_or_else(new));
        if !make_room(&mut input, &mut held) {
            return;
        }
        let end = whole_by.unwrap_or_else(|| Deadline::after(IDLE_MAX));
        let read = tokio::select! {
            biased;
            () = place.end.cancelled() => return,
            () = shutdown.stop.cancelled() => return socket.finish().await,
            read = end.wait(socket.read_buf(&mut input)) => read,
        };
        if !matches!(read, Ok(Ok(1..))) {
            return;
        }
    }
}

/// Has room for the next read. It grows with what a client has sent of one command, is counted over all
/// connections, and is given back once that command is answered. False where there is none.
fn make_room(input: &mut BytesMut, held: &mut Held) -> bool {
    if held.bytes() > 0 && input.len() <= READ_BYTES {
        let mut smaller = BytesMut::with_capacity(2 * READ_BYTES);
        smaller.extend_from_slice(input);
        *input = smaller;
        return held.resize(0);
    }
    if input.capacity() - input.len() >= READ_BYTES / 4 {
        return true;
    }
    let more = READ_BYTES.max(input.len());
    let has_room =
        input.len() < INPUT_BYTES_MAX && (input.len() <= READ_BYTES || held.resize(input.len() + more));
    if has_room {
        input.reserve(more);
    }
    has_room
}

/// Answers every command that is there whole, and says how many those were.
async fn answer_all(
    servers: &Servers,
    session: &mut Session<'_>,
    input: &mut BytesMut,
    socket: &mut DeliveringSocket,
) -> (Next, u32) {
    let (mut answered, mut whole) = (0, 0_u32);
    loop {
        if answered >= TURN_COMMANDS {
            answered = 0;
            tokio::task::yield_now().await;
        }
        let (used, count) = match parse::next(input) {
            Ok(None) => return (Next::GoOn, whole),
            Ok(Some((command, used))) if session.answer_at_once(&command) => (used, 1),
            Ok(Some((command, used))) => match session.alike(&command) {
                Some(is_alike) => {
                    let (commands, taken) = parse::alike(input, TURN_COMMANDS - answered, is_alike);
                    session.answer_together(&commands).await;
                    (taken, commands.len())
                }
                None if session.answer(&command).await == Next::Close => return (Next::Close, whole),
                None => (used, 1),
            },
            Err(error) => {
                servers.resp.rejected.increment(1);
                session.answers.error(&format!("ERR Protocol error: {error}"));
                return (Next::Close, whole);
            }
        };
        answered += count;
        whole = whole.saturating_add(1);
        input.advance(used);
        if session.answers.bytes.len() >= ANSWER_BYTES && !send(session, socket).await {
            return (Next::Close, whole);
        }
    }
}

/// Sends what waits; false where the client does not read it.
async fn send(session: &mut Session<'_>, socket: &mut DeliveringSocket) -> bool {
    if session.answers.bytes.is_empty() {
        return true;
    }
    let all = async {
        socket.write_all(&session.answers.bytes).await?;
        // Bytes that TLS has encrypted wait until it is told to send them.
        socket.flush().await
    };
    let sent = timeout(DAWDLE_MAX, all).await;
    session.answers.bytes.clear();
    let sent = matches!(sent, Ok(Ok(())));
    if !sent {
        session.deliveries.lost();
    }
    sent
}

fn arity(command: &str) -> Cow<'static, str> {
    format!("ERR wrong number of arguments for '{command}' command").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_lines_and_compared_whole() {
        let passwords = Passwords::read("# gateways\nfirst\n\n second \n");
        assert!(passwords.knows(b"first") && passwords.knows(b"second"));
        assert!(!passwords.knows(b"firs") && !passwords.knows(b"") && !passwords.knows(b"# gateways"));
        assert_eq!(format!("{passwords:?}"), "2 passwords");
    }
}

/// Reads commands as a stranger wrote them.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzzed(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((arguments, taken))) = parse::next(rest) {
        assert!(0 < taken && taken <= rest.len(), "a command takes some of the bytes that are there");
        let _ = (cells::throttle(&arguments), cells::increx(&arguments));
        for argument in &arguments {
            let _ = scripts::read(argument);
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
}
