//! Identities: where users and keys are looked up, and the keys that sign tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::file_people::FilePeople;
use super::reload::Reloader;
use super::setup::{RulesSource, Setup};
use crate::api::token::{KeySet, TokenReader};
use crate::database::file::changes::ChangeFile;
use crate::database::postgres::Database;
use crate::database::postgres::people::{self, IdentityStore};
use crate::engine::admin::Ledger;
use crate::engine::clock::Clock;
use crate::engine::identity::Shelf;
use crate::engine::identity::lookups::Lookups;
use crate::engine::identity::register::Register;
use crate::engine::tasks::Tasks;

/// Time between two looks at the file of keys.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A file that was removed is believed to be gone after so many looks: an editor may be replacing it.
const GONE_LOOKS: u32 = 3;
/// Largest file of keys, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns where changes of everything but rules and quotas are recorded: in the database, else beside the
/// rules file.
pub(super) fn ledger(setup: &Setup, database: Option<&Database>) -> Arc<dyn Ledger> {
    match (database, &setup.rules) {
        (Some(database), _) => {
            Arc::new(IdentityStore::new(database.clone(), &setup.name.region, &setup.name.node))
        }
        (None, RulesSource::File(path)) => {
            Arc::new(Arc::new(ChangeFile::new(Some(path), setup.name.clone(), Clock::System)))
        }
        (None, _) => Arc::new(Arc::new(ChangeFile::new(None, setup.name.clone(), Clock::System))),
    }
}

/// The stores of identities and their changes.
pub(super) struct Kept<'k> {
    /// The source, where there is one.
    pub(super) database: Option<&'k Database>,
    /// Knowledge that the region's daemons share of identities.
    pub(super) shelf: Option<Arc<dyn Shelf>>,
    /// Record of what operators change besides rules and quotas.
    pub(super) ledger: &'k Arc<dyn Ledger>,
}

/// The parts that find out who is asking, in a running daemon.
pub(super) struct Identities {
    /// Shows and changes identities for the admin routes.
    pub(super) register: Arc<dyn Register>,
    /// Reads the tokens that requests show; `None` where none are configured.
    pub(super) tokens: Option<Arc<TokenReader>>,
    /// Looks at the file of keys again.
    pub(super) reload: Arc<Notify>,
}

impl Identities {
    /// Begins.
    ///
    /// # Errors
    /// A file of keys that cannot be used.
    pub(super) fn start(
        setup: &Setup,
        reloader: &Arc<Reloader>,
        kept: Kept<'_>,
        stop: &CancellationToken,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        let Kept { database, shelf, ledger } = kept;
        let (identity, engine) = (&setup.identity, reloader.engine());
        if let Some(tier) = &identity.default_tier {
            engine.set_tier_default(tier);
        }
        let register: Arc<dyn Register> = match (database, &identity.lookups) {
            (Some(database), Some(settings)) => {
                let people = IdentityStore::new(database.clone(), &setup.name.region, &setup.name.node);
                let people = Arc::new(people);
                let (source, metrics) = (Arc::clone(&people) as _, engine.metrics());
                let lookups =
                    Lookups::start_in(tasks, settings.clone(), source, shelf, metrics, stop.clone());
                engine.look_up_in(Arc::clone(&lookups));
                let (database, ending) = (database.clone(), stop.clone());
                tasks.spawn("identity_changes", stop, move || {
                    people::watch(database.clone(), Arc::clone(&lookups), ending.clone())
                });
                let (own, ending) = (Arc::clone(&people), stop.clone());
                let sightings = Arc::clone(engine.sightings());
                tasks.spawn("identity_seen", stop, move || {
                    Arc::clone(&own).write_seen(Arc::clone(&sightings), ending.clone())
                });
                people
            }
            _ => Arc::new(FilePeople { reloader: Arc::clone(reloader), ledger: Arc::clone(ledger) }),
        };
        let reload = Arc::new(Notify::new());
        let tokens = identity.tokens.clone().map(|(path, settings)| -> anyhow::Result<_> {
            let (text, keys) = load(&path)?;
            let tokens = Arc::new(TokenReader::new(settings, keys, engine.metrics()));
            let keys = Keys { path, text, tokens: Arc::clone(&tokens), reload: Arc::clone(&reload) };
            let ending = stop.clone();
            tasks.spawn("token_keys", stop, move || keys.clone().watch(ending.clone()));
            Ok(tokens)
        });
        Ok(Self { register, tokens: tokens.transpose()?, reload })
    }
}

/// The file of keys that sign tokens, followed while the daemon runs.
#[derive(Clone)]
struct Keys {
    path: PathBuf,
    /// Text of the file when it was last read.
    text: String,
    tokens: Arc<TokenReader>,
    reload: Arc<Notify>,
}

impl Keys {
    /// Follows it until `stop`. A file that cannot be used leaves the keys before it in force; one that was
    /// removed takes them along.
    async fn watch(mut self, stop: CancellationToken) {
        let (mut told, mut gone) = (false, 0);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.reload.notified() => {}
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            let path = self.path.clone();
            let Ok(loaded) = tokio::task::spawn_blocking(move || load(&path)).await else { continue };
            gone = if self.path.try_exists().is_ok_and(|exists| !exists) { gone + 1 } else { 0 };
            if gone == GONE_LOOKS {
                tracing::warn!(path = %self.path.display(), "the keys that sign tokens are gone: no token is valid");
                self.tokens.replace(KeySet::default());
                self.text.clear();
            }
            match loaded {
                Ok((text, _)) if text == self.text => told = false,
                Ok((text, keys)) => {
                    tracing::info!(keys = keys.len(), "the keys that sign tokens were replaced");
                    self.tokens.replace(keys);
                    (self.text, told) = (text, false);
                }
                Err(error) if !told => {
                    told = true;
                    tracing::error!(
                        "the keys that sign tokens were refused, those before stay in force: {error:#}"
                    );
                }
                Err(_) => {}
            }
        }
    }
}

/// Reads the file of keys that sign tokens.
///
/// # Errors
/// It cannot be read, or is no set of keys.
pub(super) fn load(path: &Path) -> anyhow::Result<(String, KeySet)> {
    use std::io::Read as _;
    let failed = || format!("identity.jwt.keys: {} cannot be read", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(failed)?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).with_context(failed)?;
    let keys = KeySet::from_json(&text).with_context(|| format!("identity.jwt.keys: {}", path.display()))?;
    for skipped in keys.skipped() {
        tracing::warn!("identity.jwt.keys: {}: skipped {skipped}", path.display());
    }
    Ok((text, keys))
}
