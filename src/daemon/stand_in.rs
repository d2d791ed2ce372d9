//! Standing in for Envoy's rate limit service: its rules from a folder or from a server of xDS, put in force
//! in the engine and in the service that answers by them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::problem_lines::lines;
use crate::api::Service;
use crate::config::{self, StandInRules, XdsSource};
use crate::core::envoy::ServiceRules;
use crate::core::rule::Global;
use crate::database::envoy::{MakeTls, XdsClient, XdsNews, XdsSettings, rules_of_texts};
use crate::database::file::{self, LOOK_INTERVAL};
use crate::engine::Engine;
use crate::engine::rulebook::RulesStatus;
use crate::engine::tasks::Tasks;
use crate::store::redis::RedisTls;
use crate::telemetry::Metrics;

/// Most files that are read, and how deep folders are nested.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 16;

/// A service and where its rules come from.
pub(super) struct StandIn {
    wanted: config::StandIn,
    engine: Arc<Engine>,
    service: Arc<Service>,
    healthy: watch::Sender<bool>,
}

/// Files of rules with their names.
type Texts = Vec<(String, String)>;

impl StandIn {
    pub(super) fn new(wanted: config::StandIn, engine: &Arc<Engine>, metrics: &Arc<Metrics>) -> Arc<Self> {
        let service = Service::new(wanted.answers.clone(), wanted.metrics_path.clone(), metrics);
        let service = Arc::new(service);
        let healthy = watch::Sender::new(wanted.healthy_without_rules);
        Arc::new(Self { wanted, engine: Arc::clone(engine), service, healthy })
    }

    pub(super) const fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Returns whether it is healthy, now and later.
    pub(super) fn healthy(&self) -> watch::Receiver<bool> {
        self.healthy.subscribe()
    }

    /// Loads the first rules where they are files, and follows them from now on.
    pub(super) async fn start(
        self: &Arc<Self>,
        stop: &CancellationToken,
        tasks: &Tasks,
    ) -> anyhow::Result<()> {
        for sentence in &self.wanted.unused {
            tracing::info!("{sentence}");
        }
        match &self.wanted.rules {
            StandInRules::Folder { path, ignores_dotfiles } => {
                let first = read(path.clone(), *ignores_dotfiles).await;
                if let Err(problems) = self.accept_texts(&first) {
                    if !self.wanted.starts_without_rules {
                        bail!("{problems}");
                    }
                    self.refuse(&problems);
                }
                let (own, path, ending) = (Arc::clone(self), path.clone(), stop.clone());
                let ignores_dotfiles = *ignores_dotfiles;
                tasks.spawn("rules_folder", stop, move || {
                    let (first, path) = (first.clone(), path.clone());
                    Arc::clone(&own).watch(path, ignores_dotfiles, first, ending.clone())
                });
            }
            StandInRules::Xds(source) => {
                let (accepting, telling) = (Arc::clone(self), Arc::clone(self));
                let client = Arc::new(XdsClient::new(
                    settings_of(source, self.wanted.merge),
                    Box::new(move |rules| accepting.accept(rules)),
                    Box::new(move |news| telling.tell_of_xds(news)),
                ));
                self.tell("xds", None);
                let own = Arc::clone(&client);
                let _ = tokio::task::spawn_blocking(move || own.restore()).await;
                let ending = stop.clone();
                tasks.spawn("rules_xds", stop, move || Arc::clone(&client).run(ending.clone()));
            }
        }
        Ok(())
    }

    /// Puts rules in force.
    fn accept(&self, rules: ServiceRules) -> Result<(), String> {
        let prefix = &self.wanted.answers.prefix;
        let counting = rules.counting_rules(
            |domain| format!("{prefix}{domain}"),
            |name| self.wanted.mode_of(name).map(Global::new),
        );
        let count = rules.limits().len();
        let revision =
            self.engine.load(counting, Vec::new(), false).map_err(|conflicts| lines(&conflicts))?;
        self.service.set_rules(rules);
        self.healthy.send_replace(true);
        tracing::info!(revision, limits = count, "rules in force");
        Ok(())
    }

    fn accept_texts(&self, texts: &Result<Texts, String>) -> Result<(), String> {
        let texts = texts.as_ref().map_err(Clone::clone)?;
        let rules = rules_of_texts(texts, self.wanted.merge).map_err(|problems| problems.join("\n"))?;
        self.accept(rules)?;
        self.tell("folder", None);
        Ok(())
    }

    fn refuse(&self, problems: &str) {
        self.tell("folder", Some(problems.to_owned()));
        tracing::error!("the new rules were refused, those before stay in force:\n{problems}");
    }

    fn tell_of_xds(&self, news: XdsNews) {
        match news {
            XdsNews::Accepted => self.tell("xds", None),
            XdsNews::Refused(why) => self.tell("xds", Some(why)),
            XdsNews::Away(why) => {
                let status = RulesStatus { problem: Some(why), reachable: false, ..self.status("xds") };
                self.engine.publish_rules(status);
            }
        }
    }

    /// Tells how it stands with the rules.
    fn tell(&self, source: &'static str, problem: Option<String>) {
        if problem.is_some() {
            self.service.count_refused();
            self.engine.metrics().rule_reload_failures.increment(1);
        }
        let refused_revision = problem.as_ref().map(|_| self.engine.loaded().revision + 1);
        let problem = problem.map(|text| text.chars().take(2_000).collect());
        self.engine.publish_rules(RulesStatus { problem, refused_revision, ..self.status(source) });
    }

    fn status(&self, source: &'static str) -> RulesStatus {
        let known = *self.healthy.borrow() && self.engine.loaded().revision > 0;
        let from = if known { source.to_owned() } else { String::new() };
        let (problem, refused_revision, unsaved) = (None, None, None);
        RulesStatus { source, from, reachable: true, problem, refused_revision, unsaved }
    }

    /// Follows the folder until `stop`: what two looks have found, and is not in force, is taken.
    async fn watch(
        self: Arc<Self>,
        path: PathBuf,
        ignores_dotfiles: bool,
        first: Result<Texts, String>,
        stop: CancellationToken,
    ) {
        let (mut taken, mut seen) = (first.clone(), first);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            let now = read(path.clone(), ignores_dotfiles).await;
            if now == seen && now != taken {
                if let Err(problems) = self.accept_texts(&now) {
                    self.refuse(&problems);
                }
                taken.clone_from(&now);
            }
            seen = now;
        }
    }
}

/// Every file of the folder, in the order of their names.
async fn read(path: PathBuf, ignores_dotfiles: bool) -> Result<Texts, String> {
    let look = move || {
        let (mut paths, mut texts) = (Vec::new(), Vec::new());
        collect(&path, ignores_dotfiles, DEPTH_MAX, &mut paths)?;
        paths.sort();
        for path in paths {
            let text = file::read(&path).map_err(|problem| problem.to_string())?;
            texts.push((path.display().to_string(), text));
        }
        Ok(texts)
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| Err(error.to_string()))
}

fn collect(
    folder: &Path,
    ignores_dotfiles: bool,
    depth: usize,
    into: &mut Vec<PathBuf>,
) -> Result<(), String> {
    let unread = |error: std::io::Error| format!("{}: cannot be read: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        // `..data` and its like are how Kubernetes swaps what it mounts.
        if name.starts_with("..") || (ignores_dotfiles && name.starts_with('.')) {
            continue;
        }
        if path.is_dir() {
            if depth > 0 {
                collect(&path, ignores_dotfiles, depth - 1, into)?;
            }
        } else if into.len() < FILES_MAX {
            into.push(path);
        }
    }
    Ok(())
}

fn settings_of(source: &XdsSource, merge: bool) -> XdsSettings {
    let tls = source.tls.clone().map(|files| {
        let name = files.name.clone();
        (Arc::new(move || make_tls(&files)) as MakeTls, name)
    });
    XdsSettings {
        server: source.server.clone(),
        tls,
        node: source.node.clone(),
        metadata: source.metadata.clone(),
        headers: source.headers.clone(),
        message_bytes_max: source.message_bytes_max,
        connect_retry: source.connect_retry.max(Duration::from_millis(10)),
        backoff: (source.backoff.0.max(Duration::from_millis(10)), source.backoff.1),
        jitter: source.jitter,
        merge,
        saved: source.saved.clone(),
    }
}

/// The TLS of a connection, of the files as they are now.
fn make_tls(files: &config::XdsTls) -> Result<Arc<rustls::ClientConfig>, String> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
    };
    let own = match &files.own {
        Some((cert, key)) => Some((read(cert)?, read(key)?)),
        None => None,
    };
    let pem = RedisTls { authorities: files.ca.as_ref().map(read).transpose()?, own };
    let mut config = rustls::ClientConfig::clone(&*pem.client()?);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
