//! The files of TLS towards Redis: read again when they change, and the end of this daemon's certificate
//! told.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::certificate_life::{CertificateLife, CertificateStage, DAY_SECONDS};
use super::file_changes::{FileChanges, LOOK_INTERVAL};
use crate::config;
use crate::core::event::{EventKind, EventRecord};
use crate::core::notice::{Notice, NoticeKind};
use crate::core::time::Timestamp;
use crate::engine::Engine;
use crate::engine::clock::Clock;
use crate::engine::notices::NoticeSource;
use crate::peer::certificate;
use crate::store::redis::{RedisStore, RedisTls};

/// Reads the files of TLS towards Redis.
///
/// # Errors
/// Which of them cannot be read, and why.
pub(super) fn redis_tls(files: &config::RedisTls) -> anyhow::Result<RedisTls> {
    let read = |what: &str, path: &Option<PathBuf>| -> anyhow::Result<Option<Vec<u8>>> {
        let Some(path) = path else { return Ok(None) };
        let text = std::fs::read(path);
        text.map(Some).with_context(|| format!("store.redis.tls.{what}: {} cannot be read", path.display()))
    };
    let (cert, key) = (read("cert", &files.cert)?, read("key", &files.key)?);
    Ok(RedisTls { authorities: read("ca", &files.ca)?, own: cert.zip(key) })
}

/// The files, and who uses what they hold.
pub(super) struct WatchedRedisTls {
    pub(super) files: config::RedisTls,
    pub(super) store: Arc<RedisStore>,
    pub(super) engine: Arc<Engine>,
}

impl WatchedRedisTls {
    /// Follows the files until `stop`.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let config::RedisTls { ca, cert, key } = &self.files;
        let paths = [ca, cert, key].into_iter().flatten().cloned().collect();
        let mut changes = FileChanges::of(paths).await;
        let (mut in_force, mut life) = (None, None);
        // They may have changed since they were read at the start.
        self.read(&mut in_force, &mut life).await;
        let mut shown = None;
        loop {
            let now = Clock::System.now();
            let notice = life.as_mut().and_then(|life| self.notice(life, now));
            if notice != shown {
                shown.clone_from(&notice);
                self.engine.publish_notices(NoticeSource::Redis, notice.into_iter().collect());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            if changes.have_settled().await {
                self.read(&mut in_force, &mut life).await;
            }
        }
    }

    /// Reads the files, and has new connections use what they hold. What is wrong is logged, and what was in
    /// force stays.
    async fn read(&self, in_force: &mut Option<RedisTls>, life: &mut Option<CertificateLife>) {
        let files = self.files.clone();
        let read = tokio::task::spawn_blocking(move || redis_tls(&files)).await;
        let read = read.map_err(anyhow::Error::from).and_then(|read| read);
        let used = read.and_then(|tls| {
            self.store.replace_tls(&tls)?;
            Ok(tls)
        });
        match used {
            Ok(tls) => {
                if in_force.as_ref().is_some_and(|before| *before != tls) {
                    tracing::info!("new connections to Redis use store.redis.tls as it is now");
                }
                let ends = tls.own.as_ref().and_then(|(cert, _)| certificate::ends(cert).ok());
                match (ends, life.as_mut()) {
                    (Some(ends), Some(life)) => life.replace(ends),
                    (ends, _) => *life = ends.map(CertificateLife::new),
                }
                if let Some(ends) = ends {
                    self.show(ends);
                }
                *in_force = Some(tls);
            }
            Err(error) => tracing::error!("store.redis.tls was not replaced: {error:#}"),
        }
    }

    fn show(&self, ends: i64) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        let ends = ends as f64;
        let metrics = self.engine.metrics();
        metrics.gauge("certificate_expires_timestamp_seconds", "certificate", "redis").set(ends);
    }

    /// The notice that its certificate ends soon, or has ended. Each stage is logged, and told as an event,
    /// once.
    fn notice(&self, life: &mut CertificateLife, now: Timestamp) -> Option<Notice> {
        let (stage, day) = (life.stage(now), certificate::date(life.ends()));
        let what = "the certificate of store.redis.tls";
        let when = match stage {
            CertificateStage::Holds => return None,
            CertificateStage::EndsSoon => format!("ends on {day}, in {} days", life.left(now) / DAY_SECONDS),
            CertificateStage::Ended => format!("ended on {day}: Redis refuses it"),
        };
        let file = self.files.cert.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let text = format!("{what} {when}: write a new one to {file}");
        if let Some(stage) = life.next_to_tell(now) {
            if stage == CertificateStage::Ended {
                tracing::error!("{text}");
            } else {
                tracing::warn!("{text}");
            }
            let event =
                EventRecord::of_subject(EventKind::Certificate, now, "store.redis".to_owned(), text.clone());
            self.engine.events().tell(event);
        }
        let over = format!("{what} was replaced");
        Some(Notice { kind: NoticeKind::Certificate, subject: "store.redis".to_owned(), text, over })
    }
}
