//! Files of certificates that lie there already: whether they are those that are asked for, so that a machine
//! may be told to make them as often as it starts.

use std::path::Path;

use super::certificate::{CertificateError, ends, read_authority};
use super::tls::{self, TlsError, TlsPem};
use crate::core::regions::NodeName;
use crate::core::time::Timestamp;

/// Reasons why files that lie there are not those that are asked for.
#[derive(Debug, thiserror::Error)]
pub enum PresentError {
    /// The authority cannot be used.
    #[error(transparent)]
    Authority(#[from] CertificateError),
    /// A file cannot be read.
    #[error("{path}: {reason}")]
    Read {
        /// File that could not be read.
        path: String,
        /// Reason that the operating system gives.
        reason: std::io::Error,
    },
    /// The daemon's certificate cannot be used.
    #[error("what lies in {dir} already is not what is asked for: {reason}")]
    Node {
        /// Folder that holds the files of the daemon.
        dir: String,
        /// Reason for which the certificate cannot be used.
        reason: TlsError,
    },
}

fn lies(dir: &Path, names: [&str; 2]) -> bool {
    names.iter().any(|name| dir.join(name).symlink_metadata().is_ok())
}

/// Says whether an authority that can sign lies in this folder; `false`: neither of its files does.
///
/// # Errors
/// Something lies there that is none, or has ended.
pub fn has_authority(dir: &Path, now: Timestamp) -> Result<bool, PresentError> {
    if !lies(dir, ["ca.pem", "ca.key"]) {
        return Ok(false);
    }
    let authority = read_authority(dir)?;
    let ended = ends(authority.certificate_pem().as_bytes())?;
    if ended < i64::try_from(now.micros() / 1_000_000).unwrap_or(i64::MAX) {
        let (path, ended) = (dir.join("ca.pem"), super::certificate::date(ended));
        return Err(CertificateError::AuthorityEnded { path, ended }.into());
    }
    Ok(true)
}

/// Says whether this node's certificate, signed by the authority in `ca` and valid now, lies in `dir`;
/// `false`: neither of its files does.
///
/// # Errors
/// Another one lies there, one that has ended, or one that does not go with its key.
pub fn has_node(ca: &Path, node: &NodeName, dir: &Path, now: Timestamp) -> Result<bool, PresentError> {
    if !lies(dir, ["node.pem", "node.key"]) {
        return Ok(false);
    }
    let read = |path: std::path::PathBuf| {
        let read = std::fs::read(&path);
        read.map_err(|reason| PresentError::Read { path: path.display().to_string(), reason })
    };
    let pem = TlsPem {
        ca: read(ca.join("ca.pem"))?,
        cert: read(dir.join("node.pem"))?,
        key: read(dir.join("node.key"))?,
        revoked: Vec::new(),
    };
    let fits = tls::check(&pem, now).and_then(|_| tls::check_name(&pem, node));
    fits.map(|()| true).map_err(|reason| PresentError::Node { dir: dir.display().to_string(), reason })
}
