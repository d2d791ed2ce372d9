//! Rules from PostgreSQL: loaded at the start, followed while the daemon runs, kept on disk for the day on
//! which the database is away, and handed to peers whose database is.
//!
//! The set in force only ever gives way to a newer one that is right in every part. A daemon that can get
//! none goes on with what it has, for ever, and says so in `/readyz`, in the log and in metrics.
//!
//! Another daemon is asked only while the own database is away, and what it gave is in force until that
//! answers: whatever number it has, the database's own set takes its place. It is handed on to nobody, and
//! dropped when the certificate of whoever gave it is no longer accepted.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::database::given::{self, Giver};
use crate::database::held::Held;
use crate::database::postgres::listen::{self, listen};
use crate::database::postgres::rules::since::{Changed, KnownSet, since};
use crate::database::postgres::rules::{self, InForce};
use crate::database::postgres::{Database, Failure};
use crate::database::saved;
use crate::database::stored::{Stored, Version};
use crate::engine::Engine;
use crate::engine::clock::Stopwatch;
use crate::engine::rulebook::RulesStatus;

use super::problem_lines::lines;
use super::unfit::Unfit;

/// Time between two looks without being told. A change is then seen in less than the 30 s that are promised.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// First wait before a set that the disk refused is written again; each further one is twice as long.
const SAVE_RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest wait.
const SAVE_RETRY_MAX: Duration = Duration::from_secs(30);
/// The database must be away for so long before a peer's set takes the place of one that it gave: one call
/// that failed is no reason.
const AWAY_AFTER: Duration = Duration::from_secs(10);

/// A set that others may have: its version, the digest of its bytes, and these.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) version: Version,
    pub(super) digest: [u8; 32],
    pub(super) bytes: bytes::Bytes,
    /// False for what another daemon gave.
    pub(super) of_database: bool,
}

impl Offer {
    fn of(held: &Held, version: Version) -> Result<Self, String> {
        let bytes = bytes::Bytes::from(held.to_bytes(version)?);
        Ok(Self { version, digest: saved::digest(&bytes), bytes, of_database: true })
    }
}

/// Keeps an engine's rules as PostgreSQL, or a peer, has them.
pub(super) struct DatabaseRules {
    pub(super) engine: Arc<Engine>,
    pub(super) database: Database,
    pub(super) shadow: bool,
    pub(super) saved: PathBuf,
    /// True if rules of other daemons are taken at all.
    from_peers: bool,
    /// The set that is to be kept on disk; only the newest matters.
    saver: watch::Sender<OnDisk>,
    /// Reason why the set in force is not on disk.
    unsaved: std::sync::Mutex<Option<String>>,
    /// One at a time looks, compiles and swaps.
    pub(super) state: Mutex<State>,
    /// The set in force, for peers; `None` before there is one.
    pub(super) offer: watch::Sender<Option<Offer>>,
}

/// The two files, as they are to be. `None`: as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OnDisk {
    /// The last set of the database.
    stored: Option<bytes::Bytes>,
    /// The set that another daemon gave, with who it was; empty: none.
    given: Option<bytes::Bytes>,
}

impl OnDisk {
    /// Writes what is not written yet. Blocks.
    fn write(&self, written: &Self, saved: &std::path::Path) -> std::io::Result<()> {
        if let Some(bytes) = self.stored.as_ref().filter(|_| self.stored != written.stored) {
            saved::write(saved, bytes)?;
        }
        let path = given::path_beside(saved);
        match self.given.as_ref().filter(|_| self.given != written.given) {
            None => Ok(()),
            Some(bytes) if bytes.is_empty() => match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
            Some(bytes) => saved::write(&path, bytes),
        }
    }
}

/// The origin of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// The own database.
    Database,
    /// The own database, before this process began.
    Saved,
    /// Another daemon.
    Peer(Giver),
}

impl Origin {
    fn text(&self) -> String {
        match self {
            Self::Database => "database".to_owned(),
            Self::Saved => "saved".to_owned(),
            Self::Peer(giver) => format!("peer {}", giver.node),
        }
    }
}

/// A set that is not right.
#[derive(Debug)]
struct Refused {
    version: Version,
    problems: String,
    /// The database holds it: it is not read again. Rules from a peer say nothing of what the database will
    /// hold.
    by_database: bool,
}

impl Refused {
    fn is_of_database(&self, version: Version) -> bool {
        self.by_database && self.version == version
    }
}

/// The facts known of the sets.
#[derive(Debug, Default)]
pub(super) struct State {
    in_force: Option<Version>,
    /// The texts of the set in force. Locked by whoever puts another in force until that is done, also where
    /// nobody waits for it any more.
    held: Arc<std::sync::Mutex<Held>>,
    /// Number of rules that are in force.
    rules: usize,
    /// Its mark in the history of the database, if it came from there: what changed since can be asked for.
    known: Option<KnownSet>,
    /// A newer set that is not right, and why.
    refused: Option<Refused>,
    /// Origin of the set in force; `None` before the first.
    origin: Option<Origin>,
    /// Reason why the database cannot be used just now, and since when.
    away: Option<(Failure, Stopwatch)>,
    /// Version of the database's set, if it answers and is behind.
    behind: Option<Version>,
    /// Words of another daemon on a set newer than that of a database that answers.
    ahead: Option<String>,
}

impl State {
    /// The daemon that gave the set in force, if one did.
    fn giver(&self) -> Option<&Giver> {
        match &self.origin {
            Some(Origin::Peer(giver)) => Some(giver),
            _ => None,
        }
    }

    /// True if another daemon's set may take force now.
    fn needs_peers(&self) -> bool {
        let away = self.away.as_ref();
        away.is_some_and(|(_, since)| {
            self.in_force.is_none() || self.giver().is_some() || since.elapsed() >= AWAY_AFTER
        })
    }
}

/// The sets that are taken while the database is away; see [`super::setup::RulesSource`].
pub(super) struct SavedRules {
    pub(super) saved: PathBuf,
    pub(super) from_peers: bool,
}

impl DatabaseRules {
    pub(super) fn new(engine: Arc<Engine>, database: Database, shadow: bool, kept: SavedRules) -> Self {
        let SavedRules { saved, from_peers } = kept;
        Self {
            engine,
            database,
            shadow,
            saved,
            from_peers,
            saver: watch::Sender::default(),
            unsaved: std::sync::Mutex::default(),
            state: Mutex::default(),
            offer: watch::Sender::new(None),
        }
    }

    /// The first set: from the database, else the one that was kept. Without either the daemon is not ready
    /// yet.
    pub(super) async fn first(&self) {
        if let Err(failure) = self.database.check().await {
            let mut state = self.state.lock().await;
            tracing::warn!(%failure, "the rules cannot be read from PostgreSQL");
            state.away = Some((failure, Stopwatch::start()));
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
                match self.take(&mut state, stored, Origin::Saved).await {
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
                    // One look sees everything that was told meanwhile.
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

    /// Keeps each set that takes force on disk, one at a time and only the newest, until `stop`.
    pub(super) async fn save(self: Arc<Self>, stop: CancellationToken) {
        let mut wanted = self.saver.subscribe();
        wanted.mark_changed();
        let (mut stopped, mut failed, mut wait) = (false, false, SAVE_RETRY_MIN);
        let mut on_disk = OnDisk::default();
        while !stopped {
            stopped = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                _ = wanted.changed() => false,
                () = tokio::time::sleep(wait), if failed => false,
            };
            let due = failed || wanted.has_changed().unwrap_or(false) || !stopped;
            let files = wanted.borrow_and_update().clone();
            if !due || files == on_disk {
                continue;
            }
            let (path, now, before) = (self.saved.clone(), files.clone(), on_disk.clone());
            let written = tokio::task::spawn_blocking(move || now.write(&before, &path)).await;
            let problem = match written {
                Ok(Ok(())) => {
                    on_disk = files;
                    None
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            match &problem {
                None if failed => {
                    tracing::info!(path = %self.saved.display(), "the rules are saved on this machine again")
                }
                Some(error) if !failed => {
                    tracing::error!(path = %self.saved.display(), %error, "the rules were not saved on this machine, and are tried again: until then it could not start from them while PostgreSQL is away")
                }
                _ => {}
            }
            wait = if failed { (wait * 2).min(SAVE_RETRY_MAX) } else { SAVE_RETRY_MIN };
            let changed = failed || problem.is_some();
            failed = problem.is_some();
            *self.unsaved.lock().unwrap_or_else(PoisonError::into_inner) = problem;
            if changed && !stopped {
                let state = self.state.lock().await;
                self.publish(&state);
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
        let since = state.away.take().map_or_else(Stopwatch::start, |(_, since)| since);
        state.away = away.map(|failure| (failure, since));
        self.publish(&state);
    }

    /// Other regions are listed: a set that was refused because of them is looked at again.
    pub(super) async fn look_again(&self) {
        self.state.lock().await.refused = None;
        self.look().await;
    }

    async fn look_with(&self, state: &mut State) -> Result<(), Failure> {
        if state.away.is_some() {
            self.database.check().await?;
        }
        let changed = match &state.known {
            Some(known) => since(&self.database, known).await?,
            None => None,
        };
        let (version, mark) = match &changed {
            Some(changed) => (changed.now.version, None),
            None => rules::version(&self.database).await?,
        };
        // The saved set may be of another history: another server gave the same number.
        let other = mark.as_ref().filter(|mark| state.known.as_ref().is_none_or(|own| own.mark != **mark));
        // Numbers are compared with those that the database gave before. Rules from another daemon have no
        // say beside a database that answers, unless that never held a set.
        let from_peer = state.giver().is_some();
        let known = !from_peer && state.in_force == Some(version) && other.is_none();
        let is_behind = if from_peer {
            version.revision == 0
        } else {
            state.in_force.is_some_and(|in_force| version < in_force)
        };
        if is_behind && state.behind != Some(version) {
            self.warn_of_older(version.revision);
        }
        state.behind = is_behind.then_some(version);
        if let (Some(_), Some(own), true) = (other, &state.known, state.in_force == Some(version)) {
            warn_of_other(version.revision, &own.mark);
        }
        if known || is_behind {
            if known {
                state.refused = None;
            }
            return Ok(());
        }
        if state.refused.as_ref().is_some_and(|refused| refused.is_of_database(version)) {
            return Ok(());
        }
        let (version, taken) = match changed {
            Some(changed) => (version, self.take_changed(state, changed).await),
            None => {
                let stored = rules::load(&self.database).await?;
                (stored.version, self.take(state, stored, Origin::Database).await)
            }
        };
        if let Err(problems) = taken {
            if from_peer {
                self.put_back(state).await;
            }
            self.refuse(state, version, problems, None);
        }
        Ok(())
    }

    fn warn_of_older(&self, revision: u64) {
        tracing::warn!(
            database = revision,
            in_force = self.engine.loaded().revision,
            "PostgreSQL holds older rules than those in force, which stay: a replica that lags, or another database; the next change made through a daemon exceeds them"
        );
    }

    /// Puts in force what the database gave last, in place of what another daemon gave. The daemon has no
    /// rules, and is not ready, if the database never gave any.
    async fn put_back(&self, state: &mut State) {
        self.saver.send_modify(|files| files.given = Some(bytes::Bytes::new()));
        let (path, last) = (self.saved.clone(), self.saver.borrow().stored.clone());
        let read = move || match last {
            Some(bytes) => saved::from_bytes(&bytes).map(Some),
            None => saved::read(&path),
        };
        let read = tokio::task::spawn_blocking(read).await;
        if let Ok(Ok(Some(stored))) = read
            && self.take(state, stored, Origin::Saved).await.is_ok()
        {
            return;
        }
        tracing::error!("no rules: PostgreSQL has given none so far; not ready until there are");
        if let Err(conflicts) = self.engine.load_as(Vec::new(), Vec::new(), self.shadow, Some(0)) {
            tracing::error!("no rules are a set that holds together: {}", lines(&conflicts));
        }
        self.engine.await_rules();
        *state = State { away: state.away.take(), ..State::default() };
        self.offer.send_replace(None);
    }

    /// Drops what another daemon gave if its certificate is not accepted any more.
    pub(super) async fn drop_given_unless(&self, accepted: impl Fn(&Giver) -> bool) {
        let mut state = self.state.lock().await;
        let Some(giver) = state.giver().filter(|giver| !accepted(giver)) else { return };
        tracing::warn!(peer = %giver.node, "the certificate of the daemon that gave the rules in force is not accepted any more: they are dropped");
        self.put_back(&mut state).await;
        self.publish(&state);
    }

    /// At the start: takes what another daemon gave the process before this one, if the database is away and
    /// gave nothing newer, and if its certificate is accepted still.
    pub(super) async fn take_given_before(&self, accepted: impl Fn(&Giver) -> bool) {
        let path = given::path_beside(&self.saved);
        let read = move || std::fs::read(path).ok().and_then(|bytes| given::from_bytes(&bytes));
        let Ok(Some((giver, stored))) = tokio::task::spawn_blocking(read).await else { return };
        let mut state = self.state.lock().await;
        let is_newer = state.in_force.is_none_or(|in_force| stored.version > in_force);
        if self.from_peers && state.away.is_some() && is_newer && accepted(&giver) {
            if let Err(problems) = self.take(&mut state, stored, Origin::Peer(giver)).await {
                tracing::error!("the rules that another daemon gave cannot be used:\n{problems}");
            }
            self.publish(&state);
        } else {
            self.saver.send_modify(|files| files.given = Some(bytes::Bytes::new()));
        }
    }

    /// Takes a set from a peer, if the database is away still, and if the set is the one that was promised,
    /// newer than the one in force, and right.
    pub(super) async fn take_from_peer(
        &self,
        bytes: Vec<u8>,
        promised: Version,
        giver: Giver,
    ) -> Result<(), Unfit> {
        let mut state = self.state.lock().await;
        let read = tokio::task::spawn_blocking(move || saved::from_bytes(&bytes)).await;
        let stored = read.map_err(|error| Unfit::Unreadable(error.to_string()))?;
        let stored = stored.map_err(Unfit::Unreadable)?;
        let version = stored.version;
        if version != promised {
            return Err(Unfit::Other(version.revision));
        }
        if state.in_force.is_some_and(|in_force| version <= in_force) {
            return Err(Unfit::Old);
        }
        if !self.from_peers || !state.needs_peers() {
            return Err(Unfit::Answers);
        }
        let peer = giver.node.clone();
        let taken = self.take(&mut state, stored, Origin::Peer(giver)).await;
        match &taken {
            Ok(()) => {
                tracing::warn!(revision = version.revision, %peer, "took newer rules from another daemon, as PostgreSQL is away: they hold until it answers")
            }
            Err(problems) => self.refuse(&mut state, version, problems.clone(), Some(&peer)),
        }
        self.publish(&state);
        taken.map_err(Unfit::Wrong)
    }

    /// True if a set of this version would be taken.
    pub(super) async fn wants(&self, version: Version) -> bool {
        let state = self.state.lock().await;
        let refused = state.refused.as_ref().is_some_and(|refused| refused.is_of_database(version));
        !refused && state.in_force.is_none_or(|in_force| version > in_force)
    }

    /// True if a peer's set would be taken now.
    pub(super) async fn needs_peers(&self) -> bool {
        self.from_peers && self.state.lock().await.needs_peers()
    }

    /// Notes what another daemon says that is newer than what a database that answers holds.
    pub(super) async fn note_ahead(&self, ahead: Option<String>) {
        let mut state = self.state.lock().await;
        if state.ahead != ahead {
            if let Some(text) = &ahead {
                tracing::warn!("{text}");
            }
            state.ahead = ahead;
            self.publish(&state);
        }
    }

    /// True if another daemon gave the set in force.
    pub(super) async fn is_from_peer(&self) -> bool {
        self.state.lock().await.giver().is_some()
    }

    /// True if the database could be used at the last look.
    pub(super) fn is_reachable(&self) -> bool {
        self.engine.rules_status().reachable
    }

    /// Returns what the daemon decides by.
    pub(super) async fn in_force(&self) -> InForce {
        let state = self.state.lock().await;
        InForce {
            version: state.in_force.unwrap_or_default(),
            rules: state.rules,
            of_database: state.giver().is_none(),
        }
    }

    fn refuse(&self, state: &mut State, version: Version, problems: String, peer: Option<&str>) {
        self.engine.metrics().rule_reload_failures.increment(1);
        let in_force = self.engine.loaded().revision;
        tracing::error!(
            revision = version.revision,
            in_force,
            from = peer.unwrap_or("PostgreSQL"),
            "the new rules were refused, those before stay in force:\n{problems}"
        );
        state.refused = Some(Refused { version, problems, by_database: peer.is_none() });
    }

    /// Compiles a set and puts it in force, or says what is wrong with it.
    async fn take(&self, state: &mut State, stored: Stored, origin: Origin) -> Result<(), String> {
        let Stored { version, mark, docs } = stored;
        let (engine, shadow) = (Arc::clone(&self.engine), self.shadow);
        let regions = engine.regions().nameable();
        let texts = Arc::clone(&state.held);
        let compiled = tokio::task::spawn_blocking(move || {
            let mut texts = texts.lock().unwrap_or_else(PoisonError::into_inner);
            let rules = docs.read(&regions).map_err(|problems| lines(&problems))?;
            let held = Held::of(&docs);
            let offer = Offer::of(&held, version)?;
            engine
                .load_as(rules, Vec::new(), shadow, Some(version.revision))
                .map_err(|conflicts| lines(&conflicts))?;
            let many = held.len();
            *texts = held;
            Ok::<_, String>((many, offer))
        });
        let (rules, offer) = compiled.await.map_err(|error| error.to_string())??;
        state.rules = rules;
        state.known = mark.map(|mark| KnownSet { version, mark });
        self.taken(state, offer, origin);
        Ok(())
    }

    /// The same for what changed in the set in force: work for what changed, and little for the rest.
    async fn take_changed(&self, state: &mut State, changed: Changed) -> Result<(), String> {
        let Changed { now, names, docs } = changed;
        let version = now.version;
        let (engine, shadow) = (Arc::clone(&self.engine), self.shadow);
        let regions = engine.regions().nameable();
        let texts = Arc::clone(&state.held);
        let compiled = tokio::task::spawn_blocking(move || {
            let mut texts = texts.lock().unwrap_or_else(PoisonError::into_inner);
            let before = texts.change(&names, &docs);
            let others = texts.len().saturating_sub(docs.rules.len());
            let loaded = docs
                .read_beside(others, &regions)
                .map_err(|problems| lines(&problems))
                .and_then(|put| texts.check_len(version).map(|()| put))
                .and_then(|put| {
                    engine
                        .load_changed(&names, put, shadow, version.revision)
                        .map_err(|conflicts| lines(&conflicts))
                });
            match loaded {
                // Decisions go by it before its bytes are written out for others.
                Ok(rules) => Ok((rules, Offer::of(&texts, version)?)),
                Err(problems) => {
                    texts.take_back(before);
                    Err(problems)
                }
            }
        });
        let (rules, offer) = compiled.await.map_err(|error| error.to_string())??;
        state.rules = rules;
        state.known = Some(now);
        self.taken(state, offer, Origin::Database);
        Ok(())
    }

    fn taken(&self, state: &mut State, mut offer: Offer, origin: Origin) {
        state.in_force = Some(offer.version);
        state.refused = None;
        tracing::info!(revision = offer.version.revision, rules = state.rules, from = %origin.text(), "rules in force");
        let bytes = offer.bytes.clone();
        match &origin {
            Origin::Database => self.saver.send_modify(|files| {
                *files = OnDisk { stored: Some(bytes), given: Some(bytes::Bytes::new()) };
            }),
            Origin::Saved => {}
            Origin::Peer(giver) => {
                let written = given::to_bytes(giver, &bytes);
                self.saver.send_modify(|files| files.given = Some(written.into()));
            }
        }
        offer.of_database = !matches!(origin, Origin::Peer(_));
        state.origin = Some(origin);
        self.offer.send_replace(Some(offer));
    }

    fn publish(&self, state: &State) {
        let refused = state.refused.as_ref();
        let away = state.away.as_ref().map(|(failure, _)| failure.for_anybody());
        let problem = match (state.giver(), away) {
            (Some(giver), Some(away)) => Some(format!(
                "the rules in force are those that {} gave, until PostgreSQL answers: {away}",
                giver.node
            )),
            (_, away) => away,
        };
        let problem = problem.or_else(|| refused.map(|refused| refused.problems.clone())).or_else(|| {
            state.behind.map(|version| {
                format!(
                    "PostgreSQL holds revision {}, which is older than the one in force",
                    version.revision
                )
            })
        });
        let problem = problem.or_else(|| state.ahead.clone());
        self.engine.publish_rules(RulesStatus {
            source: "postgres",
            from: state.origin.as_ref().map(Origin::text).unwrap_or_default(),
            reachable: state.away.is_none(),
            problem: problem.map(|text| text.chars().take(2_000).collect()),
            refused_revision: refused.map(|refused| refused.version.revision),
            unsaved: self.unsaved.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        });
    }
}

fn warn_of_other(revision: u64, in_force: &str) {
    tracing::warn!(
        revision,
        in_force,
        "PostgreSQL holds another set of rules by the revision in force, and it is taken: a server that had lost the last change was promoted"
    );
}
