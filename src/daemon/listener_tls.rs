//! The certificates of listeners: read at the start, and again whenever a file changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use crate::api::{Inside, ListenerPem, ListenerTls};
use crate::config;
use crate::core::time::Timestamp;
use crate::engine::clock::Clock;
use crate::peer::certificate;
use crate::telemetry::Metrics;

/// How often to look at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// So long before a certificate ends its operator is told, once.
const WARN_SECONDS: i64 = 30 * 24 * 3_600;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The certificate of one listener, and where it comes from.
#[derive(Clone)]
pub(super) struct WatchedTls {
    /// What the listener uses.
    pub(super) tls: Arc<ListenerTls>,
    files: config::ListenerTls,
    /// `http` or `grpc`.
    name: &'static str,
    metrics: Arc<Metrics>,
}

impl WatchedTls {
    /// Reads the files of a listener.
    ///
    /// # Errors
    /// Which file cannot be used, and why: a daemon does not start so.
    pub(super) fn load(
        files: Option<&config::ListenerTls>,
        name: &'static str,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(files) = files else { return Ok(None) };
        let pem = read(files, name)?;
        let inside = if name == "grpc" { Inside::Grpc } else { Inside::Http };
        let tls = ListenerTls::new(&pem, inside).with_context(|| named(files, name))?;
        let watched = Self { tls: Arc::new(tls), files: files.clone(), name, metrics: Arc::clone(metrics) };
        watched.dated(&pem, Clock::System.now())?;
        Ok(Some(watched))
    }

    /// Says until when the certificate holds.
    fn dated(&self, pem: &ListenerPem, now: Timestamp) -> anyhow::Result<()> {
        let context = || named(&self.files, self.name);
        let ends = certificate::ends(&pem.cert).with_context(context)?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        self.metrics
            .gauge("certificate_expires_timestamp_seconds", "certificate", self.name)
            .set(ends as f64);
        let left = ends.saturating_sub(i64::try_from(now.micros() / 1_000_000).unwrap_or(i64::MAX));
        let until = certificate::date(ends);
        if left <= 0 {
            bail!("{}: the certificate ended on {until}", context());
        }
        if left < WARN_SECONDS {
            let file = self.files.cert.display();
            tracing::warn!(%file, %until, "the certificate of listen.{} ends soon", self.name);
        }
        Ok(())
    }

    /// Reads the files again. What is wrong is logged, and the certificate before stays in force.
    pub(super) async fn reload(&self) {
        let (files, name) = (self.files.clone(), self.name);
        let read = tokio::task::spawn_blocking(move || read(&files, name)).await;
        let replaced = read.map_err(anyhow::Error::from).and_then(|pem| pem).and_then(|pem| {
            self.dated(&pem, Clock::System.now())?;
            self.tls.replace(&pem).with_context(|| named(&self.files, self.name))
        });
        match replaced {
            Ok(()) => tracing::info!("listen.{} uses its certificate as it is now", self.name),
            Err(error) => {
                tracing::error!("the certificate of listen.{} was not replaced: {error:#}", self.name)
            }
        }
    }

    /// Follows the files until `stop`.
    pub(super) async fn watch(self, stop: CancellationToken) {
        let mut in_force = changes(&self.files).await;
        let mut seen = in_force.clone();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            let now = changes(&self.files).await;
            // Several files are written one after the other: they are read when two looks saw the same.
            if now == seen && now != in_force {
                in_force.clone_from(&now);
                self.reload().await;
            }
            seen = now;
        }
    }
}

type Change = Option<(std::time::SystemTime, u64)>;

/// When each file was written, and how long it is.
async fn changes(files: &config::ListenerTls) -> Vec<Change> {
    let paths: Vec<PathBuf> = paths(files).map(|(_, path)| path.clone()).collect();
    let look = move || {
        let change = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        paths.iter().map(change).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

fn paths(files: &config::ListenerTls) -> impl Iterator<Item = (&'static str, &PathBuf)> {
    [("cert", &files.cert), ("key", &files.key)]
        .into_iter()
        .chain(files.clients.as_ref().map(|path| ("clients", path)))
        .chain(files.revoked.as_ref().map(|path| ("revoked", path)))
}

fn named(files: &config::ListenerTls, name: &str) -> String {
    let each: Vec<String> = paths(files).map(|(key, path)| format!("{key} {}", path.display())).collect();
    format!("[listen.{name}_tls] cannot be used with {}", each.join(", "))
}

fn read(files: &config::ListenerTls, name: &str) -> anyhow::Result<ListenerPem> {
    let file = |key: &str, path: &Path| -> anyhow::Result<Vec<u8>> {
        use std::io::Read as _;
        let hint = || format!("listen.{name}_tls.{key}: {} cannot be read", path.display());
        let mut text = Vec::new();
        let opened = std::fs::File::open(path).with_context(hint)?;
        opened.take(FILE_BYTES_MAX).read_to_end(&mut text).with_context(hint)?;
        Ok(text)
    };
    let optional = |key, path: &Option<PathBuf>| path.as_ref().map(|path| file(key, path)).transpose();
    Ok(ListenerPem {
        cert: file("cert", &files.cert)?,
        key: file("key", &files.key)?,
        clients: optional("clients", &files.clients)?,
        revoked: optional("revoked", &files.revoked)?,
    })
}
