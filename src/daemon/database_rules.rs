//! Rules from PostgreSQL: loaded at the start, followed while the daemon runs, kept on disk for the day on which the
//! database is away, and handed to peers whose database is.
//!
//! The set in force only ever gives way to a newer one that is right in every part. Where none can be had the daemon goes
//! on with what it has, for ever, and says so in `/readyz`, in the log and in metrics.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::database::postgres::listen::{self, listen};
use crate::database::postgres::rules::{self, Stored, Version};
use crate::database::postgres::{Database, Failure};
use crate::database::saved;
use crate::engine::Engine;
use crate::engine::rulebook::RulesStatus;

/// How often to look without being told. A change is then seen in less than the 30 s that are promised.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// A set that others may have: its version, the digest of its bytes, and these.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) version: Version,
    pub(super) digest: [u8; 32],
    pub(super) bytes: bytes::Bytes,
}

/// Keeps an engine's rules as PostgreSQL, or a peer, has them.
pub(super) struct DatabaseRules {
    pub(super) engine: Arc<Engine>,
    pub(super) database: Database,
    pub(super) regions: Vec<String>,
    pub(super) shadow: bool,
    pub(super) saved: PathBuf,
    /// One at a time looks, compiles and swaps.
    pub(super) state: Mutex<State>,
    /// The set in force, for peers; `None` before there is one.
    pub(super) offer: watch::Sender<Option<Offer>>,
}

/// What is known of the sets.
#[derive(Debug, Default)]
pub(super) struct State {
    in_force: Option<Version>,
    /// A newer set that is not right, and why: not read again.
    refused: Option<(Version, String)>,
    from: String,
    /// Why the database cannot be used just now.
    away: Option<Failure>,
    /// What is wrong with the database, where it answers: it is behind.
    behind: Option<Version>,
}

impl DatabaseRules {
    pub(super) fn new(
        engine: Arc<Engine>,
        database: Database,
        regions: Vec<String>,
        shadow: bool,
        saved: PathBuf,
    ) -> Self {
        Self {
            engine,
            database,
            regions,
            shadow,
            saved,
            state: Mutex::default(),
            offer: watch::Sender::new(None),
        }
    }

    /// The first set: from the database, else the one that was kept. Without either the daemon is not ready yet.
    pub(super) async fn first(&self) {
        if let Err(failure) = self.database.check().await {
            let mut state = self.state.lock().await;
            tracing::warn!(%failure, "the rules cannot be read from PostgreSQL");
            state.away = Some(failure);
        } else {
            self.look().await;
        }
        if self.offer.borrow().is_none() {
            self.start_from_saved().await;
        }
        let state = self.state.lock().await;
        self.publish(&state);
    }

    async fn start_from_saved(&self) {
        let path = self.saved.clone();
        let read = tokio::task::spawn_blocking(move || saved::read(&path)).await;
        let mut state = self.state.lock().await;
        match read {
            Ok(Ok(Some(stored))) => {
                let version = stored.version;
                match self.take(&mut state, stored, "saved").await {
                    Ok(()) => tracing::warn!(
                        revision = version.revision,
                        "starting from the rules that were saved on this machine: PostgreSQL gives none"
                    ),
                    Err(problems) => tracing::error!("the saved rules cannot be used:\n{problems}"),
                }
            }
            Ok(Ok(None)) => tracing::error!(
                path = %self.saved.display(),
                "no rules: PostgreSQL gives none, and none were saved; not ready until there are"
            ),
            Ok(Err(problem)) => tracing::error!("the saved rules cannot be used: {problem}"),
            Err(error) => tracing::error!(%error, "the saved rules were not read"),
        }
    }

    /// Follows the database until `stop`: at once when it tells of a change, and now and then by itself.
    pub(super) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut heard = listen(&self.database, listen::RULES, stop.clone());
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                told = heard.recv() => {
                    if told.is_none() {
                        return;
                    }
                    // Whatever was told meanwhile is seen by the same look.
                    while heard.try_recv().is_ok() {}
                }
                _ = looks.tick() => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.look() => {}
            }
        }
    }

    /// Takes what the database holds, if it is newer and right.
    pub(super) async fn look(&self) {
        let mut state = self.state.lock().await;
        let looked = self.look_with(&mut state).await;
        let away = looked.err();
        match (&state.away, &away) {
            (None, Some(failure)) => {
                tracing::warn!(%failure, "PostgreSQL cannot be used: the rules in force stay");
            }
            (Some(_), None) => tracing::info!("PostgreSQL can be used again"),
            _ => {}
        }
        state.away = away;
        self.publish(&state);
    }

    async fn look_with(&self, state: &mut State) -> Result<(), Failure> {
        if state.away.is_some() {
            self.database.check().await?;
        }
        let version = rules::version(&self.database).await?;
        let known = state.in_force == Some(version);
        let is_behind = state.in_force.is_some_and(|in_force| version < in_force);
        if is_behind && state.behind != Some(version) {
            tracing::warn!(
                database = version.revision,
                in_force = self.engine.loaded().revision,
                "PostgreSQL holds older rules than those in force, which stay: a replica that lags, or another database; the next change made through a daemon exceeds them"
            );
        }
        state.behind = is_behind.then_some(version);
        if known || is_behind {
            if known {
                state.refused = None;
            }
            return Ok(());
        }
        if state.refused.as_ref().is_some_and(|(refused, _)| *refused == version) {
            return Ok(());
        }
        let stored = rules::load(&self.database).await?;
        let version = stored.version;
        if let Err(problems) = self.take(state, stored, "database").await {
            self.refuse(state, version, problems, "PostgreSQL");
        }
        Ok(())
    }

    /// Takes a set from a peer, if it is newer and right. `false`: it is not.
    pub(super) async fn take_from_peer(&self, bytes: Vec<u8>, peer: &str) -> bool {
        let mut state = self.state.lock().await;
        let read = tokio::task::spawn_blocking(move || saved::from_bytes(&bytes)).await;
        let Ok(Ok(stored)) = read else { return false };
        let version = stored.version;
        let newer = state.in_force.is_none_or(|in_force| version > in_force);
        let refused = state.refused.as_ref().is_some_and(|(refused, _)| *refused == version);
        if !newer || refused {
            return false;
        }
        let taken = self.take(&mut state, stored, &format!("peer {peer}")).await;
        let ok = taken.is_ok();
        match taken {
            Ok(()) => tracing::info!(revision = version.revision, peer, "took newer rules from a peer"),
            Err(problems) => self.refuse(&mut state, version, problems, peer),
        }
        self.publish(&state);
        ok
    }

    /// Whether a set of this version would be taken.
    pub(super) async fn wants(&self, version: Version) -> bool {
        let state = self.state.lock().await;
        let refused = state.refused.as_ref().is_some_and(|(refused, _)| *refused == version);
        !refused && state.in_force.is_none_or(|in_force| version > in_force)
    }

    /// Whether the database could be used at the last look.
    pub(super) fn is_reachable(&self) -> bool {
        self.engine.rules_status().reachable
    }

    /// What the daemon decides by.
    pub(super) async fn in_force(&self) -> Version {
        self.state.lock().await.in_force.unwrap_or_default()
    }

    fn refuse(&self, state: &mut State, version: Version, problems: String, from: &str) {
        self.engine.metrics().rule_reload_failures.increment(1);
        let in_force = self.engine.loaded().revision;
        tracing::error!(
            revision = version.revision,
            in_force,
            from,
            "the new rules were refused, those before stay in force:\n{problems}"
        );
        state.refused = Some((version, problems));
    }

    /// Compiles a set and puts it in force, or says what is wrong with it.
    async fn take(&self, state: &mut State, stored: Stored, from: &str) -> Result<(), String> {
        let version = stored.version;
        let (engine, regions, shadow) = (Arc::clone(&self.engine), self.regions.clone(), self.shadow);
        let compiled = tokio::task::spawn_blocking(move || {
            let rules = stored.docs.read(&regions).map_err(|problems| super::reload::lines(&problems))?;
            let count = rules.len();
            engine
                .load_as(rules, Vec::new(), shadow, Some(version.revision))
                .map_err(|conflicts| super::reload::lines(&conflicts))?;
            let bytes = bytes::Bytes::from(saved::to_bytes(&stored));
            Ok::<_, String>((count, Offer { version, digest: saved::digest(&bytes), bytes }))
        });
        let (count, offer) = compiled.await.map_err(|error| error.to_string())??;
        state.in_force = Some(version);
        state.refused = None;
        from.clone_into(&mut state.from);
        tracing::info!(revision = version.revision, rules = count, from, "rules in force");
        if from != "saved" {
            self.save(offer.bytes.clone());
        }
        self.offer.send_replace(Some(offer));
        Ok(())
    }

    /// Keeps the set on disk, without waiting for it.
    fn save(&self, bytes: bytes::Bytes) {
        let path = self.saved.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = saved::write(&path, &bytes) {
                tracing::error!(path = %path.display(), %error, "the rules were not saved on this machine: it could not start from them while PostgreSQL is away");
            }
        });
    }

    fn publish(&self, state: &State) {
        let refused = state.refused.as_ref();
        let problem = state.away.as_ref().map(ToString::to_string);
        let problem = problem.or_else(|| refused.map(|(_, problems)| problems.clone())).or_else(|| {
            state.behind.map(|version| {
                format!(
                    "PostgreSQL holds revision {}, which is older than the one in force",
                    version.revision
                )
            })
        });
        self.engine.publish_rules(RulesStatus {
            source: "postgres",
            from: state.from.clone(),
            reachable: state.away.is_none(),
            problem: problem.map(|text| text.chars().take(2_000).collect()),
            refused_revision: refused.map(|(version, _)| version.revision),
        });
    }
}
