//! Opens a connection: TCP, TLS or a Unix socket where the address says so, the user's name, the database,
//! and a proof that it answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{ConnectionAddr, ConnectionInfo, Value};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::engine::names;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::link::Link;
use crate::store::redis::client::resp;

/// The reading side of a connection once it is open.
pub(in crate::store::redis) enum Opened {
    /// Readable half of a plain connection.
    Plain(tokio::net::tcp::OwnedReadHalf),
    /// Both halves of one with TLS.
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    /// Both halves of one to a server on this machine.
    Unix(UnixStream),
}

/// For the handshake of TLS.
const HANDSHAKE_MAX: Duration = Duration::from_millis(200);
/// Told where it brings nothing: a plain server waits for the rest of what it takes for a command.
const NO_TLS: &str =
    "the server began no TLS in time; one that listens without TLS is written redis://, not rediss://";

/// Checks whether addresses of this kind can be connected to, or why not.
pub(in crate::store::redis) fn can_dial(info: &ConnectionInfo) -> Result<(), &'static str> {
    match info.addr() {
        ConnectionAddr::Tcp(..)
        | ConnectionAddr::TcpTls { insecure: false, .. }
        | ConnectionAddr::Unix(_) => Ok(()),
        ConnectionAddr::TcpTls { .. } => Err(
            "certificates are always verified: name their authority in [store.redis.tls] in place of #insecure",
        ),
        _ => Err("only redis://host:port, rediss://host:port and redis+unix:///path can be connected to"),
    }
}

/// The proofs of who servers are, and of who this daemon is to them, from the next connection on; `None`: by
/// the system's authorities, or those of `SSL_CERT_FILE`.
pub(in crate::store::redis) type SharedTls = Arc<ArcSwapOption<ClientConfig>>;

/// Longest time to look a server's name up for one attempt; the look-up itself goes on.
const LOOK_UP_MAX: Duration = Duration::from_secs(2);

/// Looks the name up, connects within `longest` and greets. The look-up has a deadline of its own: it may
/// take longer than connecting does. The greeting's last question has to be answered within `prompt`.
pub(in crate::store::redis) async fn open(
    info: &ConnectionInfo,
    tls: &SharedTls,
    prompt: Duration,
    longest: Duration,
) -> Result<(Link, Opened), Failure> {
    let tls = tls.load_full();
    let addresses = match host_of(info) {
        Some(host) => names::shared().addresses(host, LOOK_UP_MAX).await,
        None => Ok(Vec::new()),
    };
    let addresses = addresses.map_err(|error| Failure::Broken(error.to_string()))?;
    timeout(longest, dial(info, &addresses, tls.as_ref(), prompt)).await.unwrap_or(Err(Failure::Timeout))
}

/// The host that an address names; a Unix socket names none.
fn host_of(info: &ConnectionInfo) -> Option<&str> {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
        _ => None,
    }
}

/// Connects at one of its host's addresses, and greets. The greeting's last question has to be answered
/// within `prompt`.
async fn dial(
    info: &ConnectionInfo,
    addresses: &[IpAddr],
    tls: Option<&Arc<ClientConfig>>,
    prompt: Duration,
) -> Result<(Link, Opened), Failure> {
    let broken = |error: std::io::Error| Failure::Broken(error.to_string());
    match info.addr() {
        ConnectionAddr::Tcp(_, port) => {
            let mut socket = connect(addresses, *port).await.map_err(broken)?;
            greet(&mut socket, info, prompt).await?;
            let (reader, writer) = socket.into_split();
            Ok((Link::plain(writer), Opened::Plain(reader)))
        }
        ConnectionAddr::TcpTls { host, port, insecure: false, .. } => {
            let system = || TLS.as_ref().map_err(|error| Failure::Broken(error.clone()));
            let config = tls.map_or_else(system, Ok)?;
            let name = ServerName::try_from(host.clone())
                .map_err(|_| Failure::Broken(format!("{host} is no name that a certificate could hold")))?;
            let socket = connect(addresses, *port).await.map_err(broken)?;
            let secured =
                timeout(HANDSHAKE_MAX, TlsConnector::from(Arc::clone(config)).connect(name, socket));
            let mut socket = match secured.await {
                Ok(Ok(socket)) => socket,
                Ok(Err(error)) if error.to_string().contains("corrupt message") => {
                    return Err(Failure::Broken(NO_TLS.to_owned()));
                }
                Ok(Err(error)) => return Err(broken(error)),
                Err(_) => return Err(Failure::Broken(NO_TLS.to_owned())),
            };
            greet(&mut socket, info, prompt).await?;
            Ok((Link::tasked(), Opened::Tls(Box::new(socket))))
        }
        ConnectionAddr::Unix(path) => {
            let mut socket = UnixStream::connect(path).await.map_err(broken)?;
            greet(&mut socket, info, prompt).await?;
            Ok((Link::tasked(), Opened::Unix(socket)))
        }
        other => Err(Failure::Broken(format!("{other} is no address that can be connected to"))),
    }
}

async fn connect(addresses: &[IpAddr], port: u16) -> std::io::Result<TcpStream> {
    let all: Vec<SocketAddr> = addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
    let socket = TcpStream::connect(&*all).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// The proofs of who `rediss://` servers are, and of who this daemon is to them; all in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedisTls {
    /// The authorities that signed the servers' certificates; `None`: the system's.
    pub authorities: Option<Vec<u8>>,
    /// This daemon's certificate and private key, where servers ask for one.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

impl RedisTls {
    /// Says whether a daemon can use them.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), String> {
        self.client().map(drop)
    }

    /// Returns what a client of such a server makes its connections with.
    ///
    /// # Errors
    /// They cannot be used, and why.
    pub fn client(&self) -> Result<Arc<ClientConfig>, String> {
        secured(self)
    }
}

/// The system's authorities, or those of `SSL_CERT_FILE`.
static TLS: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| secured(&RedisTls::default()));

/// Returns how servers prove who they are, and this daemon to them. The error is a sentence.
pub(in crate::store::redis) fn secured(tls: &RedisTls) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match &tls.authorities {
        Some(pem) => {
            for authority in certificates("ca", pem)? {
                roots.add(authority).map_err(|error| format!("ca: {error}"))?;
            }
        }
        None => add_the_systems(&mut roots)?,
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match &tls.own {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key);
            let key = key.map_err(|error| format!("key holds no private key in PEM: {error}"))?;
            let own = config.with_client_auth_cert(certificates("cert", cert)?, key);
            own.map_err(|error| format!("cert and key cannot be used: {error}"))?
        }
    };
    Ok(Arc::new(config))
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(format!("{what} holds no certificate in PEM")),
        Err(error) => Err(format!("{what} cannot be read: {error}")),
    }
}

fn add_the_systems(roots: &mut RootCertStore) -> Result<(), String> {
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if !roots.is_empty() {
        return Ok(());
    }
    let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
    Err(format!("no certificate authority is known, so TLS cannot be used{why}"))
}

/// Says who we are, chooses the database, and asks for a sign of life.
async fn greet<S>(socket: &mut S, info: &ConnectionInfo, prompt: Duration) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let settings = info.redis_settings();
    if let Some(password) = settings.password() {
        let mut words: Vec<&[u8]> = vec![b"AUTH"];
        words.extend(settings.username().map(str::as_bytes));
        words.push(password.as_bytes());
        ask(socket, &words).await?;
    }
    if settings.db() != 0 {
        ask(socket, &[b"SELECT", settings.db().to_string().as_bytes()]).await?;
    }
    timeout(prompt, ask(socket, &[b"PING"])).await.map_err(|_| Failure::Timeout)??;
    Ok(())
}

/// One question on a connection with nothing else in flight.
async fn ask<S>(socket: &mut S, words: &[&[u8]]) -> Result<Value, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let broken = |error: std::io::Error| Failure::Broken(error.to_string());
    socket.write_all(&resp::command(words)).await.map_err(broken)?;
    socket.flush().await.map_err(broken)?;
    let mut bytes = Vec::new();
    loop {
        let garbled = |error: resp::Garbled| Failure::Broken(error.to_string());
        if let Some((reply, _)) = resp::read(&bytes).map_err(garbled)? {
            return reply;
        }
        if socket.read_buf(&mut bytes).await.map_err(broken)? == 0 {
            return Err(Failure::Broken("closed by the server".to_owned()));
        }
    }
}
