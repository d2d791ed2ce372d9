//! The place of a daemon's admin socket: the command line of the same user finds it without being told.
//!
//! The socket is named after the address of the HTTP listener: several daemons may run on one machine, and a
//! command that names one of them must never reach another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

/// The ending that is put behind the path of an HTTP listener that is itself a Unix socket.
const BESIDE: &str = ".admin";

/// `listen.admin`, where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminSocket {
    /// There is none.
    Off,
    /// Here.
    At(PathBuf),
}

impl Serialize for AdminSocket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::At(path) => serializer.collect_str(&format_args!("unix:{}", path.display())),
        }
    }
}

/// The user that this process runs as.
#[must_use]
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The folder in which a daemon of this user makes its socket: that of the service (`RUNTIME_DIRECTORY`,
/// which systemd sets), of the session (`XDG_RUNTIME_DIR`), or one of its own.
#[must_use]
pub fn admin_folder() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let service = of("RUNTIME_DIRECTORY").and_then(|folders| std::env::split_paths(&folders).next());
    service
        .or_else(|| Some(PathBuf::from(of("XDG_RUNTIME_DIR")?).join("tidegate")))
        .unwrap_or_else(own_folder)
}

fn own_folder() -> PathBuf {
    PathBuf::from(format!("/tmp/tidegate-{}", user_id()))
}

/// The name of the socket of a daemon that serves HTTP here.
#[must_use]
pub fn admin_name(http: SocketAddr) -> String {
    format!("{}-{}.sock", http.ip().to_canonical(), http.port())
}

/// The admin socket of a daemon that serves HTTP on a Unix socket.
#[must_use]
pub fn admin_beside(http: &Path) -> PathBuf {
    let mut path = http.as_os_str().to_owned();
    path.push(BESIDE);
    path.into()
}

/// Returns where the admin socket of the daemon at this address of this machine may be, the likeliest first.
#[must_use]
pub fn admin_candidates(http: SocketAddr) -> Vec<PathBuf> {
    let folders = [admin_folder(), PathBuf::from("/run/tidegate"), own_folder()];
    let anywhere = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let names: Vec<String> = std::iter::once(http.ip())
        .chain(anywhere)
        .map(|address| admin_name(SocketAddr::new(address, http.port())))
        .collect();
    folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_on_one_address_is_not_taken_for_one_on_another() {
        let of = |address: &str| admin_candidates(address.parse().unwrap());
        let made = |address: &str| admin_folder().join(admin_name(address.parse().unwrap()));
        assert_eq!(of("127.0.0.1:8080").first(), Some(&made("127.0.0.1:8080")));
        assert!(of("127.0.0.1:8080").contains(&made("0.0.0.0:8080")));
        assert!(!of("127.0.0.1:8080").contains(&made("127.0.0.2:8080")));
        assert!(!of("127.0.0.1:8080").contains(&made("127.0.0.1:8081")));
    }
}
