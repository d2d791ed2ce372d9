//! Where connections come from: TCP or a Unix socket, a bound on how many, and an orderly end.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Doors, Gate};

/// How long accepting rests when it fails, for want of file descriptors mostly.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A bound address that takes no connections yet.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes the socket's file when dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Binds `host:port` or `unix:/path`. A socket file that no process listens on any more is replaced.
    ///
    /// # Errors
    /// What the system says, and `AddrInUse` where another process listens on the socket file.
    pub async fn bind(address: &str) -> io::Result<Self> {
        let kind = match address.strip_prefix("unix:") {
            Some(path) => {
                let path = Path::new(path);
                remove_stale(path).await?;
                Kind::Unix(UnixListener::bind(path)?, SocketFile(path.to_owned()))
            }
            None => Kind::Tcp(TcpListener::bind(address).await?),
        };
        Ok(Self { kind })
    }

    /// The address that TCP is bound to, with the port that the system chose for port 0; `None` for a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Tcp(listener) => listener.local_addr().ok(),
            Kind::Unix(..) => None,
        }
    }

    async fn accept(&self) -> io::Result<(Socket, Option<IpAddr>)> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Answers are small and whole: waiting for more to send with them only delays them.
                let _ = stream.set_nodelay(true);
                Ok((Socket::Tcp(stream), Some(peer.ip())))
            }
            Kind::Unix(listener, _) => Ok((Socket::Unix(listener.accept().await?.0), None)),
        }
    }
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(_) => f.write_str("an unknown address"),
            },
            Kind::Unix(_, file) => write!(f, "unix:{}", file.0.display()),
        }
    }
}

async fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let text = format!("{} exists and is no socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match UnixStream::connect(path).await {
        Ok(_) => {
            let text = format!("another process listens on {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// One accepted connection.
pub(super) enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

macro_rules! either {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_read(cx, into))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }
}

/// A connection, with what its driver needs to know.
pub(super) struct Accepted {
    /// The bytes.
    pub(super) socket: Socket,
    /// Whose it is; `None` on a Unix socket.
    pub(super) peer: Option<IpAddr>,
    /// Asks the driver to finish what is in flight and end.
    pub(super) drain: CancellationToken,
}

/// Counts an open connection for as long as it lives.
struct Open {
    doors: Arc<Doors>,
    gate: fn(&Doors) -> &Gate,
}

impl Open {
    fn new(doors: Arc<Doors>, gate: fn(&Doors) -> &Gate) -> Self {
        gate(&doors).connections.increment(1);
        Self { doors, gate }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        (self.gate)(&self.doors).connections.decrement(1);
    }
}

/// Accepts until `shutdown`, one task for each connection, then waits for them for as long as the settings allow.
pub(super) async fn serve<F>(
    listener: Listener,
    doors: Arc<Doors>,
    gate: fn(&Doors) -> &Gate,
    drive: fn(Arc<Doors>, Accepted) -> F,
    shutdown: CancellationToken,
) where
    F: Future<Output = ()> + Send + 'static,
{
    // Dropping it, with this future, ends every connection.
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = open.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                tracing::warn!(%listener, %error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        if open.len() >= doors.settings.connections_max {
            gate(&doors).connections_refused.increment(1);
            continue;
        }
        let counted = Open::new(Arc::clone(&doors), gate);
        let driver = drive(Arc::clone(&doors), Accepted { socket, peer, drain: shutdown.child_token() });
        open.spawn(async move {
            let _counted = counted;
            driver.await;
        });
    }
    drop(listener);
    let finish = async { while open.join_next().await.is_some() {} };
    if tokio::time::timeout(doors.settings.drain, finish).await.is_err() {
        tracing::warn!(connections = open.len(), "closing connections that did not finish in time");
        open.shutdown().await;
    }
}
