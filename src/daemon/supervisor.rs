//! Tells a supervisor such as systemd when the daemon is ready, reads its rules again, or stops: the
//! datagrams of `sd_notify`, without its library.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names the supervisor's socket; absent where nobody listens.
const SOCKET: &str = "NOTIFY_SOCKET";

/// It serves; also what ends a `RELOADING`.
pub(super) const READY: &str = "READY=1";
/// It reads rules and certificates again.
pub(super) const RELOADING: &str = "RELOADING=1";
/// It was told to stop.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Tells the supervisor, if there is one. It never waits: one that does not read is told nothing.
pub(super) fn tell(state: &str) {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    if let Err(error) = send(socket.as_encoded_bytes(), state) {
        tracing::warn!(%error, state, "the supervisor's socket, {SOCKET}, takes no message");
    }
}

fn send(socket: &[u8], state: &str) -> std::io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(String::from_utf8_lossy(socket).as_ref())?,
    };
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}
