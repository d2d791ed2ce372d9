//! Rules from where they are written into the engine: at the start, when their file changes, and when asked.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;
use tokio_util::sync::CancellationToken;

use super::noted_regions;
use super::problem_lines::lines;
use super::setup::RulesSource;
use crate::config::Config;
use crate::core::rule::Rule;
use crate::core::time::Span;
use crate::core::written::{format_second, parse_span};
use crate::database::document::{self, Loaded};
use crate::database::file::history::{FileRevision, History};
use crate::database::file::{self, LOOK_INTERVAL};
use crate::engine::Engine;
use crate::engine::rulebook::RulesStatus;

/// Most times that a file is read again because it had changed since it was seen.
const SETTLE_LOOKS_MAX: u32 = 20;

/// Keeps an engine's rules as its source has them.
pub(super) struct Reloader {
    engine: Arc<Engine>,
    source: RulesSource,
    shadow: bool,
    /// Names the text in force, so that reading the same again changes nothing.
    hash: Mutex<Option<u64>>,
    /// Held while the file is changed through the daemon, so that nobody else reads half of what is done.
    pub(super) editing: tokio::sync::Mutex<()>,
}

impl Reloader {
    pub(super) fn new(engine: Arc<Engine>, source: RulesSource, shadow: bool) -> Self {
        Self { engine, source, shadow, hash: Mutex::default(), editing: tokio::sync::Mutex::default() }
    }

    pub(super) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) const fn source(&self) -> &RulesSource {
        &self.source
    }

    /// The regions that rules may name.
    pub(super) fn regions(&self) -> Vec<String> {
        self.engine.regions().nameable()
    }

    /// Loads the first rules. A daemon does not start on wrong ones.
    pub(super) fn first(&self) -> anyhow::Result<()> {
        match &self.source {
            RulesSource::Nothing | RulesSource::Database { .. } => Ok(()),
            RulesSource::Fixed(rules) => {
                if let Err(conflicts) = self.engine.load(rules.clone(), Vec::new(), self.shadow) {
                    bail!("{}", lines(&conflicts));
                }
                Ok(())
            }
            // A file that somebody named and that is missing was refused before this. Here the usual one is.
            RulesSource::File(path) if !path.exists() => {
                tracing::warn!(path = %path.display(), "there is no rules file: everything passes until there is one");
                Ok(())
            }
            RulesSource::File(path) => match file::load(path, &self.regions()) {
                Ok(loaded) => self.accept(loaded).map_err(anyhow::Error::msg),
                Err(problems) => bail!("{}", lines(&problems)),
            },
        }
    }

    /// Reads the file again, whether or not it changed.
    pub(super) async fn again(&self) {
        let RulesSource::File(path) = &self.source else { return };
        let _editing = self.editing.lock().await;
        let had_rules = self.hash.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if !had_rules && !path.exists() {
            return;
        }
        let (path, regions) = (path.clone(), self.regions());
        match tokio::task::spawn_blocking(move || file::load(&path, &regions)).await {
            Ok(change) => self.change(change),
            Err(error) => tracing::error!(%error, "the rules file was not read"),
        }
    }

    /// Takes in a change that was seen, unless the file was written since: then what it holds once it stays
    /// the same.
    async fn settled(&self, seen: file::Change) {
        let RulesSource::File(path) = &self.source else { return };
        let mut seen = seen;
        for _ in 0..SETTLE_LOOKS_MAX {
            let editing = self.editing.lock().await;
            let (own, regions) = (path.clone(), self.regions());
            let Ok(now) = tokio::task::spawn_blocking(move || file::load(&own, &regions)).await else {
                return;
            };
            if now == seen {
                return self.change(now);
            }
            drop(editing);
            seen = now;
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        // Somebody writes it without a pause; the next look that finds it still for a while tells of it.
        tracing::warn!(
            "the rules file changes all the time; those in force stay until it is the same for a second"
        );
    }

    /// Reads the file while it is being changed through the daemon.
    ///
    /// # Errors
    /// Every problem, a line each; the rules before stay in force.
    pub(super) async fn read_again(&self, path: &std::path::Path) -> Result<(), String> {
        let (path, regions) = (path.to_owned(), self.regions());
        let read = tokio::task::spawn_blocking(move || file::load(&path, &regions)).await;
        match read {
            Ok(Ok(loaded)) => self.accept(loaded),
            Ok(Err(problems)) => Err(lines(&problems)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Follows the file until `stop`.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let RulesSource::File(path) = &self.source else { return };
        let engine = Arc::clone(&self.engine);
        let regions = move || engine.regions().nameable();
        let mut changes = file::watch(PathBuf::from(path), regions, self.in_force(), LOOK_INTERVAL);
        loop {
            let change = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                change = changes.recv() => change,
            };
            let Some(change) = change else { return };
            self.settled(change).await;
        }
    }

    fn change(&self, change: file::Change) {
        let refused = match change {
            Ok(loaded) => {
                let hash = loaded.hash;
                if self.in_force() == Some(hash) {
                    let revision = self.engine.loaded().revision;
                    tracing::info!(
                        revision,
                        "the rules file was read: it holds the rules in force, nothing changes"
                    );
                }
                self.accept(loaded).err().or_else(|| {
                    self.note(hash);
                    None
                })
            }
            Err(problems) => Some(lines(&problems)),
        };
        self.publish(refused.clone());
        if let Some(problems) = refused {
            self.engine.metrics().rule_reload_failures.increment(1);
            let revision = self.engine.loaded().revision;
            tracing::error!(revision, "the new rules were refused, those before stay in force:\n{problems}");
        }
    }

    /// The file's history, once there is any.
    fn history(&self) -> Option<History> {
        let RulesSource::File(path) = &self.source else { return None };
        Some(History::of(path)).filter(History::exists)
    }

    /// Records what somebody wrote into the file, where a history is kept.
    fn note(&self, hash: u64) {
        let (Some(history), RulesSource::File(path)) = (self.history(), &self.source) else { return };
        let revision = self.engine.loaded().revision;
        let known = history.last().is_some_and(|last| document::hash(last.text.as_bytes()) == hash);
        let text = file::read(path).ok().filter(|text| document::hash(text.as_bytes()) == hash);
        let Some(text) = text.filter(|_| !known) else { return };
        let entry = FileRevision {
            revision,
            at: format_second(self.engine.now()),
            actor: "file".to_owned(),
            source: None,
            action: "file".to_owned(),
            reason: None,
            text,
        };
        if let Err(error) = history.record(&entry) {
            tracing::warn!(%error, "the change of the rules file was not recorded in its history");
        }
    }

    /// Tells how it stands with the rules.
    pub(super) fn publish(&self, problem: Option<String>) {
        let source = match &self.source {
            RulesSource::File(_) => "file",
            // It tells for itself.
            RulesSource::Database { .. } => return,
            RulesSource::Fixed(_) | RulesSource::Nothing => "none",
        };
        let refused_revision = problem.as_ref().map(|_| self.engine.loaded().revision + 1);
        self.engine.publish_rules(RulesStatus {
            source,
            from: source.to_owned(),
            reachable: true,
            problem: problem.map(|text| text.chars().take(2_000).collect()),
            refused_revision,
            unsaved: None,
        });
    }

    /// Names the text in force.
    fn in_force(&self) -> Option<u64> {
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self, loaded: Loaded) -> Result<(), String> {
        let mut hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        if *hash == Some(loaded.hash) {
            return Ok(());
        }
        let (count, people) = (loaded.rules.len(), loaded.people());
        let history = self.history();
        let revision = history.as_ref().and_then(|history| history.number(loaded.hash));
        // A text from before may come back: it is a new revision all the same.
        let revision = revision.map(|revision| match self.engine.loaded().revision {
            current if hash.is_some() && revision <= current => current + 1,
            _ => revision,
        });
        let revision = self
            .engine
            .load_as(loaded.rules, people, self.shadow, revision)
            .map_err(|conflicts| lines(&conflicts))?;
        *hash = Some(loaded.hash);
        tracing::info!(revision, rules = count, "rules in force");
        Ok(())
    }
}

/// A rules file that is right.
#[derive(Debug)]
pub struct Checked {
    /// Its rules, in the order of the file.
    pub rules: Vec<Rule>,
    /// Number of tiers that the file has.
    pub tiers: usize,
    /// Number of users that the file has.
    pub users: usize,
    /// Number of API keys that the file has.
    pub keys: usize,
    /// Oddities of the rules all the same, a line each.
    pub warnings: Vec<String>,
}

/// Reads a rules file and checks it as a whole. `regions` are those that may hold shares; empty if they are
/// not known.
///
/// # Errors
/// Every problem, a line each.
pub fn check_rules(path: &std::path::Path, regions: &[String]) -> Result<Checked, Vec<String>> {
    let texts =
        |problems: &[crate::core::written::Problem]| problems.iter().map(ToString::to_string).collect();
    let loaded = file::load(path, regions).map_err(|problems| -> Vec<String> { texts(&problems) })?;
    let mut shapes = crate::core::ruleset::Shapes::default();
    let set = crate::core::ruleset::RuleSet::compile_with_people(
        loaded.rules.clone(),
        loaded.people(),
        &mut shapes,
    )
    .map_err(|conflicts| {
        conflicts.iter().map(|conflict| format!("{}: {conflict}", path.display())).collect::<Vec<_>>()
    })?;
    let all = set.warnings().into_iter().chain(set.advice());
    let warnings = all.map(|warning| format!("{}: {warning}", path.display())).collect();
    let (tiers, users, keys) = (loaded.tiers.len(), loaded.users.len(), loaded.keys.len());
    Ok(Checked { rules: loaded.rules, tiers, users, keys, warnings })
}

/// Checks a rules file where nobody says which regions there are: those that the file names are taken for
/// right, and a warning tells how many rules are shared by regions that it does not name.
///
/// # Errors
/// Every problem, a line each.
pub fn check_rules_alone(path: &std::path::Path) -> Result<Checked, Vec<String>> {
    let text = file::read(path).map_err(|unread| vec![unread.to_string()])?;
    let root: serde_json::Value = toml::from_str(&text).unwrap_or_default();
    let (mut unsaid, mut named) = (0_usize, vec!["a region".to_owned()]);
    for rule in root["rules"].as_array().into_iter().flatten() {
        let global = &rule["global"];
        let shares = [&global["shares"], &global["minimums"]].into_iter().filter_map(|of| of.as_object());
        named.extend(shares.flat_map(|of| of.keys().cloned()));
        let shared = ["escrow", "split"].map(Into::into).contains(&global["mode"]);
        unsaid += usize::from(shared && global["shares"].is_null());
    }
    if unsaid == 0 {
        return check_rules(path, &[]);
    }
    let mut checked = check_rules(path, &named)?;
    checked.warnings.push(format!(
        "{}: {unsaid} rules are shared by regions that the file does not name, which is right where peers.regions of \
         tidegate.toml lists them: --regions, --config or --server says which those are",
        path.display()
    ));
    Ok(checked)
}

/// Rules as a file has them.
#[derive(Debug)]
pub struct WrittenRules {
    /// Rules as JSON, each with its name.
    pub rules: Vec<(String, serde_json::Value)>,
    /// Tiers, users and API keys that stand beside the rules.
    pub people: WrittenPeople,
    /// Oddities of the rules, a line each.
    pub warnings: Vec<String>,
}

/// Tiers, users and API keys as a file has them.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct WrittenPeople {
    /// Entries of `[[tiers]]` in the order of the file.
    pub tiers: Vec<serde_json::Value>,
    /// Entries of `[[users]]` in the order of the file.
    pub users: Vec<serde_json::Value>,
    /// Entries of `[[keys]]` in the order of the file.
    pub keys: Vec<serde_json::Value>,
}

/// Reads a rules file, checks it as a whole, and gives each rule as it is written.
///
/// # Errors
/// Every problem, a line each.
pub fn read_rules(path: &std::path::Path, regions: &[String]) -> Result<WrittenRules, Vec<String>> {
    let warnings = check_rules(path, regions)?.warnings;
    let problem = |text: String| vec![format!("{}: {text}", path.display())];
    let text = file::read(path).map_err(|unread| vec![unread.to_string()])?;
    let docs = file::edit::docs(&text).map_err(problem)?;
    let people = toml::from_str(&text).map_err(|error| problem(error.message().to_owned()))?;
    Ok(WrittenRules { rules: docs.rules.into_iter().collect(), people, warnings })
}

/// The rules that a configuration leads to.
///
/// # Errors
/// Every problem, a line each.
pub fn rules_of(config: &Config) -> Result<Vec<Rule>, Vec<String>> {
    let rules = &config.rules;
    if config.rules.source == crate::config::Source::Postgres {
        return Ok(Vec::new());
    }
    if !rules.file_required && !rules.file.exists() {
        return Ok(Vec::new());
    }
    let regions = noted_regions::list_of(config).map_err(|error| vec![format!("{error:#}")])?;
    check_rules(&rules.file, &regions.nameable()).map(|checked| checked.rules)
}

/// The regions that may hold a share by a configuration.
///
/// # Errors
/// The changes of them that were made since cannot be read.
pub fn regions_of(config: &Config) -> Result<Vec<String>, String> {
    noted_regions::list_of(config).map(|list| list.nameable()).map_err(|error| format!("{error:#}"))
}

/// A rule as the API shows it.
pub(super) fn rule_json(rule: &Rule) -> serde_json::Value {
    crate::database::set::rule_json(rule)
}

/// Reads a duration as the configuration writes it.
///
/// # Errors
/// What was expected.
pub fn read_span(text: &str) -> Result<Span, String> {
    parse_span(text).ok_or_else(|| format!("`{text}` is no duration: write it like 100ms, 5s or 1m"))
}
