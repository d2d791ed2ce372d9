//! The configuration while the daemon runs: read again when its file changes or on SIGHUP. Keys that can
//! change do; the rest is named, and waits for a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::audit::Remembering;
use super::file_changes::FileChanges;
use super::problem_lines::lines;
use super::regions::Regions;
use crate::api::{CredentialHeaders, Servers};
use crate::config::{Config, Problem};
use crate::core::notice::{Notice, NoticeKind};
use crate::database::file;
use crate::engine::Engine;
use crate::engine::notices::NoticeSource;
use crate::peer::Peers;

/// Most keys named in one sentence.
const NAMED_MAX: usize = 12;

/// Reads the configuration as at the start: the file, over it the environment, over that the command line.
pub type ReadConfig = Arc<dyn Fn() -> Result<Config, Vec<Problem>> + Send + Sync>;

/// The source of the configuration.
#[derive(Clone)]
pub struct ConfigSource {
    /// The file that is watched, if there is one.
    pub path: Option<PathBuf>,
    /// Reads it, and what stands over it.
    pub read: ReadConfig,
}

/// The parts of a running daemon that a changed configuration reaches.
pub(super) struct Reached {
    pub(super) engine: Arc<Engine>,
    pub(super) servers: Arc<Servers>,
    pub(super) regions: Arc<Regions>,
    pub(super) peers: Option<Arc<Peers>>,
    pub(super) audit: Option<Arc<Remembering>>,
    pub(super) drain: Arc<Drain>,
}

/// The time that the daemon serves on once it is to stop.
pub(super) struct Drain(AtomicU64);

impl Drain {
    pub(super) fn new(drain: Duration) -> Self {
        let own = Self(AtomicU64::new(0));
        own.set(drain);
        own
    }

    fn set(&self, drain: Duration) {
        self.0.store(u64::try_from(drain.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// The configuration in force, and where it comes from.
pub(super) struct Configuration {
    source: ConfigSource,
    reached: Reached,
    /// The values that run: what a restart would bring is not in them.
    in_force: Mutex<Config>,
    /// Lets one at a time read the files and exchange what is in force.
    reading: tokio::sync::Mutex<()>,
}

impl Configuration {
    pub(super) fn new(source: ConfigSource, in_force: Config, reached: Reached) -> Self {
        // There before it is needed.
        reached.engine.metrics().config_reload_failures.increment(0);
        Self { source, reached, in_force: Mutex::new(in_force), reading: tokio::sync::Mutex::default() }
    }

    /// Reads the file again whenever it has changed, until `stop`.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let Some(path) = self.source.path.clone() else { return stop.cancelled().await };
        let mut changes = FileChanges::of(vec![path]).await;
        // It may have changed since it was read at the start.
        self.again().await;
        while changes.settled(&stop).await {
            self.again().await;
        }
    }

    /// Reads it again. A problem is told, and the configuration before stays in force.
    pub(super) async fn again(&self) {
        let _reading = self.reading.lock().await;
        let (read, path) = (Arc::clone(&self.source.read), self.source.path.clone());
        let read = move || match path.as_deref().and_then(file::special) {
            Some(problem) => Err(vec![problem]),
            None => read(),
        };
        let wanted = match tokio::task::spawn_blocking(read).await {
            Ok(Ok(wanted)) => wanted,
            Ok(Err(problems)) => return self.refuse(&lines(&problems)),
            Err(error) => return self.refuse(&error.to_string()),
        };
        if let Some(problem) = self.join(&wanted) {
            return self.refuse(&problem);
        }
        let before = self.in_force.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let running = with_changes(&before, &wanted);
        let changed = differing(&before, &running);
        if !changed.is_empty() {
            self.put(&running).await;
            tracing::info!(changed = %some(&changed), "the configuration was read again");
        }
        let waiting = differing(&running, &wanted);
        if waiting.is_empty() {
            self.reached.engine.publish_notices(NoticeSource::Configuration, Vec::new());
        } else {
            let text = format!(
                "the configuration was changed, and only a restart brings {} into force",
                some(&waiting)
            );
            self.tell(text, "what the configuration says is in force");
        }
        *self.in_force.lock().unwrap_or_else(PoisonError::into_inner) = running;
    }

    /// Joins through other daemons. Returns the problem, if there is one.
    fn join(&self, wanted: &Config) -> Option<String> {
        let peers = self.reached.peers.as_ref()?;
        let joined = peers.set_join(wanted.peers.join.clone());
        joined.err().map(|error| error.to_string())
    }

    async fn put(&self, running: &Config) {
        let Reached { engine, servers, regions, audit, drain, .. } = &self.reached;
        let (identity, queries) =
            (&running.identity, running.audit.as_ref().is_some_and(|audit| audit.queries));
        engine.set_raw_values(!running.requests.normalize);
        let credentials = CredentialHeaders::new(&identity.credentials).unwrap_or_default();
        servers.set_settings(|settings| {
            settings.credentials = credentials.clone();
            settings.trusted_proxies = identity.trusted_proxies;
            settings.ipv6_prefix = identity.ipv6_prefix;
            settings.normalize = running.requests.normalize;
            settings.origin = running.requests.origin;
            settings.http_refunds = running.listen.http_refunds;
            settings.record_queries = queries;
        });
        drain.set(running.listen.drain.to_std());
        if let (Some(remembering), Some(audit)) = (audit, &running.audit) {
            remembering.set_sampling(audit);
        }
        regions.set_configured(running.peers.regions.clone()).await;
    }

    fn refuse(&self, problems: &str) {
        self.reached.engine.metrics().config_reload_failures.increment(1);
        let text = format!("the configuration is refused, and what was in force stays: {problems}");
        self.tell(text, "the configuration is right again");
    }

    fn tell(&self, text: String, over: &str) {
        tracing::warn!("{text}");
        let text: String = text.chars().take(2_000).collect();
        let notice =
            Notice { kind: NoticeKind::Configuration, subject: String::new(), text, over: over.to_owned() };
        self.reached.engine.publish_notices(NoticeSource::Configuration, vec![notice]);
    }
}

/// Returns what runs once everything that can change has become as wanted.
fn with_changes(before: &Config, wanted: &Config) -> Config {
    let mut running = before.clone();
    running.peers.regions.clone_from(&wanted.peers.regions);
    running.peers.join.clone_from(&wanted.peers.join);
    running.requests = wanted.requests.clone();
    running.identity.trusted_proxies = wanted.identity.trusted_proxies;
    running.identity.ipv6_prefix = wanted.identity.ipv6_prefix;
    running.identity.credentials.clone_from(&wanted.identity.credentials);
    running.listen.http_refunds = wanted.listen.http_refunds;
    running.listen.drain = wanted.listen.drain;
    if let (Some(audit), Some(wanted)) = (&mut running.audit, &wanted.audit)
        && audit.enabled
    {
        (audit.allowed_sample, audit.denied_sample) = (wanted.allowed_sample, wanted.denied_sample);
        (audit.denied_rows_max, audit.queries) = (wanted.denied_rows_max, wanted.queries);
        audit.exact.clone_from(&wanted.exact);
    }
    running
}

/// The keys in which two configurations differ, as `store.redis.timeout`. Secrets are never shown, so that
/// they differ is all that can be said of them.
fn differing(one: &Config, other: &Config) -> BTreeSet<String> {
    let (before, after) = (keys(one), keys(other));
    let names = before.keys().chain(after.keys());
    let mut found: BTreeSet<String> =
        names.filter(|key| before.get(*key) != after.get(*key)).cloned().collect();
    if found.is_empty() && one != other {
        // Only passwords are left of what is not written out.
        if one.store.redis.nodes != other.store.redis.nodes {
            found.insert("a password in store.redis.nodes".to_owned());
        }
        if one.postgres != other.postgres {
            found.insert("the password in postgres.url".to_owned());
        }
        if found.is_empty() {
            found.insert("a password".to_owned());
        }
    }
    found
}

/// Each key with its value.
fn keys(config: &Config) -> BTreeMap<String, String> {
    fn put(into: &mut BTreeMap<String, String>, place: &str, value: &toml::Value) {
        match value {
            toml::Value::Table(table) => {
                for (key, value) in table {
                    let dot = if place.is_empty() { "" } else { "." };
                    put(into, &format!("{place}{dot}{key}"), value);
                }
            }
            value => {
                into.insert(place.to_owned(), value.to_string());
            }
        }
    }
    let mut all = BTreeMap::new();
    if let Ok(table) = config.to_toml().parse::<toml::Table>() {
        put(&mut all, "", &toml::Value::Table(table));
    }
    all
}

/// Some names as a sentence has them.
fn some(keys: &BTreeSet<String>) -> String {
    let named: Vec<&str> = keys.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = keys.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Flags;

    fn config(text: &str) -> Config {
        Config::from_text("t.toml", text, Path::new("/etc"), std::iter::empty(), &Flags::default()).unwrap()
    }

    #[test]
    fn what_can_change_does_and_the_rest_waits_for_a_restart() {
        let before = config("region = \"eu\"\nnode = \"1\"\n[peers]\nregions = [\"eu\", \"us\"]\n");
        let wanted = config(
            "region = \"eu\"\nnode = \"1\"\n[peers]\nregions = [\"eu\", \"ap\"]\nmax_keys = 5000\n\
             [listen]\ndrain = \"1s\"\nmax_connections = 77\n[identity]\ntrusted_proxies = 3\n",
        );
        let running = with_changes(&before, &wanted);
        let named =
            |one: &Config, other: &Config| -> Vec<String> { differing(one, other).into_iter().collect() };
        assert_eq!(named(&before, &running), ["identity.trusted_proxies", "listen.drain", "peers.regions"]);
        assert_eq!(named(&running, &wanted), ["listen.max_connections", "peers.max_keys"]);
        // Once the file says what runs, nothing waits.
        assert!(differing(&running, &with_changes(&running, &running)).is_empty());
        assert_eq!(some(&(0..14).map(|key| format!("k{key:02}")).collect()).matches("k").count(), 12);
    }

    #[test]
    fn a_secret_that_changed_is_told_without_it() {
        let of = |password: &str| {
            config(&format!("node = \"1\"\n[postgres]\nurl = \"postgres://u:{password}@h/d\"\n"))
        };
        let (one, other) = (of("old"), of("new"));
        assert_eq!(differing(&one, &other).into_iter().collect::<Vec<_>>(), ["the password in postgres.url"]);
    }
}
