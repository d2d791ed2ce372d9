//! Addresses as they are written: to listen on, and of others.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Longest path of a Unix socket, in bytes: what the kernel takes, without the closing NUL.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// The address on which a stream listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listener {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix socket, written `unix:/path`.
    Unix(PathBuf),
}

/// The text names no listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an address with a port such as \"127.0.0.1:8080\", or \"unix:/path\"")]
pub struct NoListener;

impl FromStr for Listener {
    type Err = NoListener;

    fn from_str(text: &str) -> Result<Self, NoListener> {
        match text.strip_prefix("unix:") {
            Some(path) if path.is_empty() || path.len() > UNIX_PATH_BYTES_MAX || path.contains('\0') => {
                Err(NoListener)
            }
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => text.parse().map(Self::Tcp).map_err(|_| NoListener),
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Listener {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// True if this is `host:port`, the host being a name or an address (IPv6 in brackets). The name is not
/// looked up.
pub(super) fn is_host_and_port(text: &str) -> bool {
    const NAME_BYTES_MAX: usize = 253;
    if let Ok(address) = text.parse::<SocketAddr>() {
        return address.port() != 0;
    }
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let named = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    !host.is_empty()
        && host.len() <= NAME_BYTES_MAX
        && named
        && port.parse::<u16>().is_ok_and(|port| port != 0)
}
