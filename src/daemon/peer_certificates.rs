//! The certificates between daemons: read again when their files change, and when asked.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::file_changes::FileChanges;
use super::setup::read_tls;
use crate::config::PeerTls;
use crate::core::time::Timestamp;
use crate::engine::clock::Clock;
use crate::peer::{CertificateDates, Peers, TlsError, TlsPem, certificate, tls};

/// Most readings of files whose key is not that of the certificate: somebody replaces them now.
const READS_MAX: u32 = 20;
/// Time to wait between two of them.
const READ_AGAIN: Duration = Duration::from_millis(100);

/// The certificates in force, and where they come from.
#[derive(Debug)]
pub(super) struct PeerCertificates {
    peers: Arc<Peers>,
    files: PeerTls,
    dates: Arc<Mutex<CertificateDates>>,
    in_force: tokio::sync::Mutex<TlsPem>,
}

impl PeerCertificates {
    /// These are in force.
    pub(super) fn new(
        peers: Arc<Peers>,
        files: PeerTls,
        dates: Arc<Mutex<CertificateDates>>,
        in_force: TlsPem,
    ) -> Self {
        Self { peers, files, dates, in_force: tokio::sync::Mutex::new(in_force) }
    }

    /// Reads the files again because somebody asked for it.
    pub(super) async fn reload(&self) {
        if !self.read_again().await {
            tracing::info!("the certificates were read: they are those in force");
        }
    }

    /// Follows the files until `stop`.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let PeerTls { ca, cert, key, revoked } = &self.files;
        let paths: Vec<PathBuf> = [ca, cert, key].into_iter().chain(revoked).cloned().collect();
        let mut changes = FileChanges::of(paths).await;
        // They may have changed since they were read at the start.
        self.read_again().await;
        while changes.settled(&stop).await {
            self.read_again().await;
        }
    }

    /// Reads the files, and uses what they hold if it is another. A fault is logged, and what was in force
    /// stays. `false`: nothing has changed.
    async fn read_again(&self) -> bool {
        let mut in_force = self.in_force.lock().await;
        let mut reads = 1;
        let read = loop {
            match self.read(&in_force).await {
                // Somebody who replaces the two files one after the other is not done yet.
                Err(error) if is_other_key(&error) && reads < READS_MAX => reads += 1,
                read => break read,
            }
            tokio::time::sleep(READ_AGAIN).await;
        };
        let replaced = match read {
            Ok(None) => return false,
            Ok(Some((tls, dates))) => {
                self.peers.reload(&tls).map(|()| (tls, dates)).with_context(|| named(Some(&self.files)))
            }
            Err(error) => Err(error),
        };
        match replaced {
            Ok((tls, dates)) => {
                *in_force = tls;
                *self.dates.lock().unwrap_or_else(PoisonError::into_inner) = dates;
                let until = certificate::date(dates.node);
                tracing::info!(%until, "new links use the certificates as they are now");
            }
            Err(error) => tracing::error!("the certificates were not replaced: {error:#}"),
        }
        true
    }

    /// `None`: the files hold what is in force, which need not be valid any more.
    async fn read(&self, in_force: &TlsPem) -> anyhow::Result<Option<(TlsPem, CertificateDates)>> {
        let (files, now) = (self.files.clone(), Clock::System.now());
        let tls = tokio::task::spawn_blocking(move || read_tls(&files)).await??;
        if tls == *in_force {
            return Ok(None);
        }
        let dates = checked(&tls, Some(&self.files), now)?;
        Ok(Some((tls, dates)))
    }
}

fn is_other_key(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(TlsError::OtherKey))
}

/// Refuses certificates that the others would refuse, by a sentence that names the files.
pub(super) fn checked(
    tls: &TlsPem,
    files: Option<&PeerTls>,
    now: Timestamp,
) -> anyhow::Result<CertificateDates> {
    tls::check(tls, now).with_context(|| named(files))
}

/// Returns what cannot be done with these files.
pub(super) fn named(files: Option<&PeerTls>) -> String {
    let Some(PeerTls { ca, cert, key, revoked }) = files else {
        return "the peer port cannot be used".to_owned();
    };
    let revoked = revoked.as_ref().map_or_else(String::new, |path| format!(" and {}", path.display()));
    format!(
        "the peer port cannot be used with peers.tls.cert {}, peers.tls.key {} and peers.tls.ca {}{revoked}",
        cert.display(),
        key.display(),
        ca.display()
    )
}
