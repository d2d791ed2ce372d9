//! The certificates of listeners: read at the start, and again whenever a file changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use tokio_util::sync::CancellationToken;

use super::certificate_life::{CertificateLife, CertificateStage, DAY_SECONDS};
use super::file_changes::{FileChanges, LOOK_INTERVAL};
use crate::api::{Inside, ListenerPem, ListenerTls};
use crate::config;
use crate::core::event::{EventKind, EventRecord};
use crate::core::notice::{Notice, NoticeKind};
use crate::core::time::Timestamp;
use crate::engine::Engine;
use crate::engine::clock::Clock;
use crate::engine::notices::NoticeSource;
use crate::peer::certificate;
use crate::telemetry::Metrics;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The certificate of one listener, and where it comes from.
#[derive(Clone)]
pub(super) struct WatchedTls {
    /// Certificate, key and authorities that the listener's handshakes use.
    pub(super) tls: Arc<ListenerTls>,
    files: config::ListenerTls,
    /// Name of the listener: `http`, `grpc` or `resp`.
    name: &'static str,
    metrics: Arc<Metrics>,
    /// The certificate that handshakes use now.
    in_force: Arc<Mutex<CertificateLife>>,
}

/// # Errors
/// The certificate cannot be read, or has ended.
fn life_of(pem: &ListenerPem, now: Timestamp) -> anyhow::Result<CertificateLife> {
    let life = CertificateLife::new(certificate::ends(&pem.cert)?);
    ensure!(
        life.stage(now) < CertificateStage::Ended,
        "the certificate ended on {}",
        certificate::date(life.ends())
    );
    Ok(life)
}

/// Reads the files of a listener, and gives what it would use.
///
/// # Errors
/// Which file cannot be used, and why: a daemon does not start so.
fn usable(
    files: &config::ListenerTls,
    name: &str,
    now: Timestamp,
) -> anyhow::Result<(ListenerTls, CertificateLife)> {
    let pem = read(files, name)?;
    let inside = match name {
        "grpc" => Inside::Grpc,
        "resp" => Inside::Resp,
        _ => Inside::Http,
    };
    let tls = ListenerTls::new(&pem, inside).with_context(|| named(files, name))?;
    let in_force = life_of(&pem, now).with_context(|| named(files, name))?;
    Ok((tls, in_force))
}

/// Says why a daemon would not start with the files of a listener.
pub(super) fn check(files: &config::ListenerTls, name: &str, now: Timestamp) -> anyhow::Result<()> {
    usable(files, name, now).map(drop)
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
        let (tls, in_force) = usable(files, name, Clock::System.now())?;
        let watched = Self {
            tls: Arc::new(tls),
            files: files.clone(),
            name,
            metrics: Arc::clone(metrics),
            in_force: Arc::new(Mutex::new(in_force)),
        };
        watched.show();
        Ok(Some(watched))
    }

    fn in_force(&self) -> MutexGuard<'_, CertificateLife> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows when the certificate in force ends.
    fn show(&self) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        let ends = self.in_force().ends() as f64;
        self.metrics.gauge("certificate_expires_timestamp_seconds", "certificate", self.name).set(ends);
    }

    /// Tells once that the certificate in force ends soon, and once that it has ended: in the log, and as an
    /// event.
    fn tell_its_end(&self, now: Timestamp, engine: &Engine) {
        let Some(stage) = self.in_force().next_to_tell(now) else { return };
        let (file, until) = (self.files.cert.display(), certificate::date(self.in_force().ends()));
        if stage == CertificateStage::Ended {
            tracing::error!(%file, %until, "the certificate of listen.{} has ended", self.name);
        } else {
            tracing::warn!(%file, %until, "the certificate of listen.{} ends soon", self.name);
        }
        if let Some(Notice { subject, text, .. }) = self.notice(now) {
            engine.events().tell(EventRecord::of_subject(EventKind::Certificate, now, subject, text));
        }
    }

    /// The notice that its certificate ends soon, or has ended.
    fn notice(&self, now: Timestamp) -> Option<Notice> {
        let (stage, left, day) = {
            let in_force = self.in_force();
            (in_force.stage(now), in_force.left(now), certificate::date(in_force.ends()))
        };
        let what = format!("the certificate of listen.{}", self.name);
        let when = match stage {
            CertificateStage::Holds => return None,
            CertificateStage::EndsSoon => format!("ends on {day}, in {} days", left / DAY_SECONDS),
            CertificateStage::Ended => format!("ended on {day}: clients refuse it"),
        };
        Some(Notice {
            kind: NoticeKind::Certificate,
            subject: format!("listen.{}", self.name),
            text: format!("{what} {when}: write a new one to {}", self.files.cert.display()),
            over: format!("{what} was replaced"),
        })
    }

    /// Reads the files again. A fault is logged, and the certificate before stays in force.
    pub(super) async fn reload(&self) {
        let (files, name) = (self.files.clone(), self.name);
        let read = tokio::task::spawn_blocking(move || read(&files, name)).await;
        let replaced = read.map_err(anyhow::Error::from).and_then(|pem| pem).and_then(|pem| {
            let context = || named(&self.files, self.name);
            let in_force = life_of(&pem, Clock::System.now()).with_context(context)?;
            self.tls.replace(&pem).with_context(context)?;
            Ok(in_force)
        });
        match replaced {
            Ok(in_force) => {
                self.in_force().replace(in_force.ends());
                tracing::info!("listen.{} uses its certificate as it is now", self.name);
                self.show();
            }
            Err(error) => {
                tracing::error!("the certificate of listen.{} was not replaced: {error:#}", self.name)
            }
        }
    }

    /// Follows the files until `stop`, and publishes what is to be known of the certificate.
    pub(super) async fn watch(self, engine: Arc<Engine>, stop: CancellationToken) {
        let source = match self.name {
            "grpc" => NoticeSource::GrpcListener,
            "resp" => NoticeSource::RespListener,
            _ => NoticeSource::HttpListener,
        };
        let mut shown = None;
        let paths = paths(&self.files).map(|(_, path)| path.clone()).collect();
        let mut changes = FileChanges::of(paths).await;
        loop {
            self.tell_its_end(Clock::System.now(), &engine);
            let notice = self.notice(Clock::System.now());
            if notice != shown {
                shown.clone_from(&notice);
                engine.publish_notices(source, notice.into_iter().collect());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            if changes.have_settled().await {
                self.reload().await;
            }
        }
    }
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
        names: files.names.clone(),
    })
}
