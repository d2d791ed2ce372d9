//! The sources of connections: TCP or a Unix socket, a bound on how many, and an orderly end.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::places::ConnectionPlace;
use super::tls::{ALPN_HTTP2, ListenerTls};
use super::{ListenerLimits, Servers, Shutdown};
use crate::engine::names;

/// Time for which accepting rests when it fails, for want of file descriptors mostly.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// A failure to accept is said once in so many seconds.
const SAY_EVERY_SECONDS: u32 = 60;
/// Connections that may wait to be accepted: a burst beyond it waits a second for its next attempt. The
/// system may allow fewer (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;

/// Longest wait for the address of a name to bind.
const LOOK_UP_MAX: Duration = Duration::from_secs(10);

/// The user who may do everything on this machine anyway.
const ROOT: u32 = 0;

/// The client at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its address; `None` on a Unix socket.
    pub(super) address: Option<IpAddr>,
    /// True if it is the user of this daemon, on the socket that is made for that.
    pub(super) is_owner: bool,
}

/// A bound address that takes no connections yet.
#[derive(Debug)]
pub struct Listener {
    /// `None` once it is closed. The task that serves it holds it too, so that one that fails leaves it open
    /// for the next.
    kind: Mutex<Option<Arc<SocketKind>>>,
    address: Option<SocketAddr>,
    text: String,
    /// `None`: what is said here is not encrypted.
    tls: Option<Arc<ListenerTls>>,
}

#[derive(Debug)]
enum SocketKind {
    Tcp(TcpListener),
    /// With the user whose connections are its owner's, if it has one.
    Unix(UnixListener, SocketFile, Option<u32>),
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
                let socket = UnixSocket::new_stream()?;
                socket.bind(path)?;
                SocketKind::Unix(socket.listen(BACKLOG)?, SocketFile(path.to_owned()), None)
            }
            None => SocketKind::Tcp(bind_tcp(address).await?),
        };
        Ok(Self::of(kind))
    }

    /// Binds a Unix socket that only this user, and root, can open.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub async fn bind_for(path: &Path, user: u32) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        remove_stale(path).await?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = SocketFile(path.to_owned());
        // Before anybody can connect.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self::of(SocketKind::Unix(socket.listen(BACKLOG)?, file, Some(user))))
    }

    fn of(kind: SocketKind) -> Self {
        let address = match &kind {
            SocketKind::Tcp(listener) => listener.local_addr().ok(),
            SocketKind::Unix(..) => None,
        };
        let text = match (&kind, address) {
            (SocketKind::Unix(_, file, _), _) => format!("unix:{}", file.0.display()),
            (_, Some(address)) => address.to_string(),
            (_, None) => "an unknown address".to_owned(),
        };
        Self { kind: Mutex::new(Some(Arc::new(kind))), address, text, tls: None }
    }

    /// The same listener, which speaks TLS over TCP. A Unix socket stays as it is: it never leaves the
    /// machine.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<ListenerTls>>) -> Self {
        Self { tls, ..self }
    }

    /// The address that TCP is bound to, with the port that the system chose for port 0; `None` for a Unix
    /// socket.
    #[must_use]
    pub const fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns what takes connections, unless it was closed.
    fn open(&self) -> Option<Arc<SocketKind>> {
        self.kind.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes no connections any more, as soon as nobody accepts.
    fn close(&self) {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl SocketKind {
    async fn accept(&self) -> io::Result<(Socket, Peer)> {
        match self {
            SocketKind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(over_tcp(stream, peer))
            }
            SocketKind::Unix(listener, _, owner) => {
                let (stream, _) = listener.accept().await?;
                Ok(over_unix(stream, *owner))
            }
        }
    }

    /// Accepts one who is connected already, and waits for nobody.
    fn accept_now(&self) -> io::Result<(Socket, Peer)> {
        match self {
            SocketKind::Tcp(listener) => {
                let twin = std::net::TcpListener::from(listener.as_fd().try_clone_to_owned()?);
                let (stream, peer) = twin.accept()?;
                stream.set_nonblocking(true)?;
                Ok(over_tcp(TcpStream::from_std(stream)?, peer))
            }
            SocketKind::Unix(listener, _, owner) => {
                let twin = std::os::unix::net::UnixListener::from(listener.as_fd().try_clone_to_owned()?);
                let (stream, _) = twin.accept()?;
                stream.set_nonblocking(true)?;
                Ok(over_unix(UnixStream::from_std(stream)?, *owner))
            }
        }
    }
}

fn over_tcp(stream: TcpStream, peer: SocketAddr) -> (Socket, Peer) {
    // Answers are small and whole: waiting for more to send with them only delays them.
    let _ = stream.set_nodelay(true);
    (Socket::Tcp(stream), Peer { address: Some(peer.ip()), is_owner: false })
}

fn over_unix(stream: UnixStream, owner: Option<u32>) -> (Socket, Peer) {
    let user = stream.peer_cred().map(|credentials| credentials.uid()).ok();
    let is_owner = owner.is_some() && (user == owner || user == Some(ROOT));
    (Socket::Unix(stream), Peer { address: None, is_owner })
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

async fn bind_tcp(address: &str) -> io::Result<TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses_of(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A daemon that starts again need not wait for what its former connections left behind.
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Returns what an address means, by whose host it is, be it a name.
async fn addresses_of(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "it must be host:port");
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let found = names::shared().addresses(host, LOOK_UP_MAX).await?;
    Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
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
    /// Over TCP, encrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// True if the client asked for HTTP/2 when it agreed on keys.
    pub(super) fn agreed_on_http2(&self) -> bool {
        match self {
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2),
            Self::Tcp(_) | Self::Unix(_) => false,
        }
    }

    /// True if the other end has reset it, which may become known after the end of what it sent.
    pub(super) fn is_broken(&self) -> bool {
        let error = match self {
            Self::Tcp(stream) => stream.take_error(),
            Self::Unix(stream) => stream.take_error(),
            Self::Tls(stream) => stream.get_ref().0.take_error(),
        };
        !matches!(error, Ok(None))
    }

    /// Bytes that have arrived and were not read: as they are on the wire, or decrypted.
    pub(super) fn unread(&mut self) -> u64 {
        let (bytes, decrypted) = match self {
            Self::Tcp(stream) => (rustix::io::ioctl_fionread(stream), 0),
            Self::Unix(stream) => (rustix::io::ioctl_fionread(stream), 0),
            Self::Tls(stream) => {
                let (tcp, session) = stream.get_mut();
                let state = session.process_new_packets();
                let decrypted = state.map_or(0, |state| state.plaintext_bytes_to_read());
                (rustix::io::ioctl_fionread(tcp), u64::try_from(decrypted).unwrap_or(u64::MAX))
            }
        };
        bytes.unwrap_or_default().saturating_add(decrypted)
    }

    /// The same connection after the handshake of this listener, if it has one. `None`: it had to end before.
    async fn secured_until(
        self,
        tls: Option<&ListenerTls>,
        end: &CancellationToken,
        stop: &CancellationToken,
    ) -> Option<io::Result<Self>> {
        tokio::select! {
            biased;
            secured = self.secured(tls) => Some(secured),
            () = end.cancelled() => None,
            () = stop.cancelled() => None,
        }
    }

    /// The same connection after the handshake of this listener, if it has one.
    async fn secured(self, tls: Option<&ListenerTls>) -> io::Result<Self> {
        match (self, tls) {
            (Self::Tcp(stream), Some(tls)) => Ok(Self::Tls(Box::new(tls.accept(stream).await?))),
            (socket, _) => Ok(socket),
        }
    }
}

macro_rules! either {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
            Socket::Tls($stream) => $call,
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
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

/// A connection, with what its driver needs to know.
pub(super) struct Accepted {
    pub(super) socket: Socket,
    /// The client at the other end, by its address or its socket.
    pub(super) peer: Peer,
    /// Tells when to ask the client to go elsewhere, and when to finish what is in flight and end.
    pub(super) shutdown: Shutdown,
    /// The connection's place in its listener.
    pub(super) place: ConnectionPlace,
}

/// Says that connections cannot be accepted, seldom enough to be read.
#[derive(Default)]
struct Failing {
    seconds: u32,
    said_at: Option<u32>,
}

impl Failing {
    /// One more second has passed.
    const fn tick(&mut self) {
        self.seconds = self.seconds.saturating_add(1);
    }

    /// Says it if it is time to.
    fn tell(&mut self, listener: &Listener, error: &io::Error) {
        if self.takes_its_turn() {
            tracing::warn!(%listener, %error, "cannot accept connections; trying on");
        }
    }

    /// True if it is time to say it again. Then it counts as said.
    fn takes_its_turn(&mut self) -> bool {
        let to_say = self.said_at.is_none_or(|said| self.seconds.saturating_sub(said) >= SAY_EVERY_SECONDS);
        if to_say {
            self.said_at = Some(self.seconds);
        }
        to_say
    }
}

/// A handshake that failed: with whom, and why.
struct HandshakeFailure {
    client: Option<IpAddr>,
    error: io::Error,
}

impl HandshakeFailure {
    fn tell(&self, listener: &Listener) {
        let client = self.client.map_or_else(|| "unknown".to_owned(), |client| client.to_string());
        tracing::warn!(%listener, client, error = %self.error, "a TLS handshake failed");
    }
}

/// Accepts until it is stopped, one task for each connection, then waits for them for as long as the settings
/// allow.
pub(super) async fn serve<F>(
    listener: Arc<Listener>,
    servers: Arc<Servers>,
    limits_of: fn(&Servers) -> &ListenerLimits,
    drive: fn(Arc<Servers>, Accepted) -> F,
    shutdown: Shutdown,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let places = &limits_of(&servers).places;
    let Some(accepting) = listener.open() else { return };
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failing, mut handshakes) = (Failing::default(), Failing::default());
    // Dropping it, with this future, ends every connection.
    let mut open: JoinSet<Option<HandshakeFailure>> = JoinSet::new();
    let begin = |open: &mut JoinSet<Option<HandshakeFailure>>, socket: Socket, peer: Peer| {
        let Some(entering) = places.enter(peer.address) else { return };
        let shutdown =
            Shutdown { closing: shutdown.closing.child_token(), stop: shutdown.stop.child_token() };
        let (servers, tls) = (Arc::clone(&servers), listener.tls.clone());
        // In the connection's own task: a client that dawdles keeps nobody else from being accepted.
        open.spawn(async move {
            let place = entering.place().await?;
            match socket.secured_until(tls.as_deref(), &place.end, &shutdown.stop).await? {
                Ok(socket) => {
                    drive(servers, Accepted { socket, peer, shutdown, place }).await;
                    None
                }
                Err(error) => {
                    limits_of(&servers).handshakes_failed.increment(1);
                    Some(HandshakeFailure { client: peer.address, error })
                }
            }
        });
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.stop.cancelled() => break,
            _ = seconds.tick() => {
                places.tick();
                [&mut failing, &mut handshakes].into_iter().for_each(Failing::tick);
                continue;
            }
            Some(ended) = open.join_next() => {
                if let Ok(Some(failure)) = ended && handshakes.takes_its_turn() {
                    failure.tell(&listener);
                }
                continue;
            }
            accepted = async {
                places.takes_newcomers().await;
                accepting.accept().await
            } => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                // For want of file descriptors mostly: those of idle connections come free.
                places.make_room();
                failing.tell(&listener, &error);
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        begin(&mut open, socket, peer);
    }
    listener.close();
    shutdown.closing.cancel();
    // Closing resets those who are connected and were not accepted yet, and may have asked.
    for _ in 0..BACKLOG {
        let Ok((socket, peer)) = accepting.accept_now() else { break };
        begin(&mut open, socket, peer);
    }
    drop(accepting);
    let longest = servers.settings().drain;
    finish(open, longest).await;
}

/// Waits for connections to end, and ends those that do not in time.
async fn finish(mut open: JoinSet<Option<HandshakeFailure>>, longest: Duration) {
    let finish = async { while open.join_next().await.is_some() {} };
    if tokio::time::timeout(longest, finish).await.is_err() {
        tracing::warn!(connections = open.len(), "closing connections that did not finish in time");
        open.shutdown().await;
    }
}
