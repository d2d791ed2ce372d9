//! HTTP over a Unix socket, and which of a daemon's addresses a command speaks to.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

use crate::config;

/// The port of the default address.
const HTTP_PORT: u16 = 80;

/// The address to which a command sends its request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To this URL.
    Url(String),
    /// Through this Unix socket.
    Socket(PathBuf),
}

impl Target {
    /// Returns what `--server` means. Without a token a daemon of this user on this machine is asked through
    /// its admin socket.
    pub(super) fn of(server: &str, has_token: bool) -> Self {
        if let Some(path) = server.strip_prefix("unix:") {
            let admin = config::admin_beside(Path::new(path));
            return Self::Socket(if !has_token && is_own(&admin) { admin } else { path.into() });
        }
        let url = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
        let url = url.trim_end_matches('/').to_owned();
        if has_token {
            return Self::Url(url);
        }
        let found = on_this_machine(&url).map(config::admin_candidates).unwrap_or_default();
        found.into_iter().find(|path| is_own(path)).map_or(Self::Url(url), Self::Socket)
    }

    /// The URL of a route.
    pub(super) fn url(&self, route: &str) -> String {
        match self {
            Self::Url(url) => format!("{url}{route}"),
            Self::Socket(_) => format!("http://localhost{route}"),
        }
    }

    /// True if what is said on the way is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Url(url) if url.starts_with("https://"))
    }

    /// Returns what carries requests there.
    pub(super) fn agent(&self, config: ureq::config::Config) -> ureq::Agent {
        match self {
            Self::Url(_) => config.into(),
            Self::Socket(path) => ureq::Agent::with_parts(config, Socket(path.clone()), Nowhere),
        }
    }
}

/// The address that a URL names, if it is one of this machine.
fn on_this_machine(url: &str) -> Option<SocketAddr> {
    let url: Uri = url.parse().ok()?;
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
    let address = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.parse().ok()?,
    };
    let plain = url.scheme_str() == Some("http") && address.is_loopback();
    plain.then(|| SocketAddr::new(address, url.port_u16().unwrap_or(HTTP_PORT)))
}

/// True if a daemon of this user, or of root, listens on this socket.
fn is_own(path: &Path) -> bool {
    let Ok(found) = std::fs::symlink_metadata(path) else { return false };
    let user = config::user_id();
    // Root may speak to everybody's daemon; nobody else is led to a socket of somebody else.
    let trusted = found.uid() == user || found.uid() == 0 || user == 0;
    found.file_type().is_socket() && trusted && UnixStream::connect(path).is_ok()
}

/// Connects to a Unix socket, whatever the URL says.
#[derive(Debug)]
struct Socket(PathBuf);

impl Connector for Socket {
    type Out = Connected;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Connected>, ureq::Error> {
        let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
        let stream = UnixStream::connect(&self.0)?;
        Ok(Some(Connected { stream, buffers: LazyBuffers::new(input, output) }))
    }
}

#[derive(Debug)]
struct Connected {
    stream: UnixStream,
    buffers: LazyBuffers,
}

fn within(timeout: NextTimeout) -> Option<Duration> {
    timeout.not_zero().map(|duration| *duration)
}

impl Connected {
    fn or_timeout<T>(result: std::io::Result<T>, timeout: NextTimeout) -> Result<T, ureq::Error> {
        result.map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                ureq::Error::Timeout(timeout.reason)
            }
            _ => error.into(),
        })
    }
}

impl Transport for Connected {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.set_write_timeout(within(timeout))?;
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        let written = (&self.stream).write_all(output);
        Self::or_timeout(written, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.set_read_timeout(within(timeout))?;
        let read = (&self.stream).read(self.buffers.input_append_buf());
        let amount = Self::or_timeout(read, timeout)?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // A command asks once or twice: a connection of its own for each is as good.
        false
    }
}

/// Looks nothing up: a socket's path is its address.
#[derive(Debug)]
struct Nowhere;

impl Resolver for Nowhere {
    fn resolve(
        &self,
        _: &Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, HTTP_PORT)));
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_a_socket_or_a_host_and_port() {
        let url = |server| Target::of(server, true).url("/healthz");
        assert_eq!(url("http://10.0.0.1:8080/"), "http://10.0.0.1:8080/healthz");
        assert_eq!(url("gate.example:9999"), "http://gate.example:9999/healthz");
        assert_eq!(Target::of("unix:/run/x.sock", true), Target::Socket("/run/x.sock".into()));
    }

    #[test]
    fn only_plain_urls_of_this_machine_lead_to_its_sockets() {
        let found = |url: &str| on_this_machine(url).map(|address| address.to_string());
        assert_eq!(found("http://127.0.0.1:8080").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(found("http://localhost:9").as_deref(), Some("127.0.0.1:9"));
        assert_eq!(found("http://[::1]:8080").as_deref(), Some("[::1]:8080"));
        for other in ["http://10.0.0.1:8080", "https://127.0.0.1:8080", "http://gate.example", "no url"] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
