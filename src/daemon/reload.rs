//! Rules from where they are written into the engine: at the start, when their file changes, and when asked.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;
use tokio_util::sync::CancellationToken;

use super::setup::RulesSource;
use crate::config::Config;
use crate::core::rule::Rule;
use crate::core::time::Span;
use crate::core::written::parse_span;
use crate::database::document::{Loaded, RuleDoc};
use crate::database::file::{self, LOOK_INTERVAL};
use crate::engine::Engine;

/// Keeps an engine's rules as its source has them.
pub(super) struct Reloader {
    engine: Arc<Engine>,
    source: RulesSource,
    shadow: bool,
    regions: Vec<String>,
    /// Names the text in force, so that reading the same again changes nothing.
    hash: Mutex<Option<u64>>,
}

impl Reloader {
    pub(super) fn new(engine: Arc<Engine>, source: RulesSource, shadow: bool, regions: Vec<String>) -> Self {
        Self { engine, source, shadow, regions, hash: Mutex::default() }
    }

    /// Loads the first rules. A daemon does not start on wrong ones.
    pub(super) fn first(&self) -> anyhow::Result<()> {
        match &self.source {
            RulesSource::Nothing => Ok(()),
            RulesSource::Fixed(rules) => {
                if let Err(conflicts) = self.engine.load(rules.clone(), Vec::new(), self.shadow) {
                    bail!("{}", lines(&conflicts));
                }
                Ok(())
            }
            RulesSource::File(path) => match file::load(path, &self.regions) {
                Ok(loaded) => self.accept(loaded).map_err(anyhow::Error::msg),
                Err(problems) => bail!("{}", lines(&problems)),
            },
        }
    }

    /// Reads the file again, whether or not it changed.
    pub(super) async fn again(&self) {
        let RulesSource::File(path) = &self.source else { return };
        let (path, regions) = (path.clone(), self.regions.clone());
        match tokio::task::spawn_blocking(move || file::load(&path, &regions)).await {
            Ok(change) => self.change(change),
            Err(error) => tracing::error!(%error, "the rules file was not read"),
        }
    }

    /// Follows the file until `stop`.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let RulesSource::File(path) = &self.source else { return };
        let known = *self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = file::watch(PathBuf::from(path), self.regions.clone(), known, LOOK_INTERVAL);
        loop {
            let change = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                change = changes.recv() => change,
            };
            let Some(change) = change else { return };
            self.change(change);
        }
    }

    fn change(&self, change: file::Change) {
        let refused = match change {
            Ok(loaded) => self.accept(loaded).err(),
            Err(problems) => Some(lines(&problems)),
        };
        if let Some(problems) = refused {
            self.engine.metrics().rule_reload_failures.increment(1);
            let revision = self.engine.loaded().revision;
            tracing::error!(revision, "the new rules were refused, those before stay in force:\n{problems}");
        }
    }

    fn accept(&self, loaded: Loaded) -> Result<(), String> {
        let mut hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        if *hash == Some(loaded.hash) {
            return Ok(());
        }
        let count = loaded.rules.len();
        let revision = self
            .engine
            .load(loaded.rules, loaded.users, self.shadow)
            .map_err(|conflicts| lines(&conflicts))?;
        *hash = Some(loaded.hash);
        tracing::info!(revision, rules = count, "rules in force");
        Ok(())
    }
}

pub(super) fn lines(problems: &[impl std::fmt::Display]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Reads a rules file and checks it as a whole.
///
/// # Errors
/// Every problem, a line each.
pub fn check_rules(path: &std::path::Path, regions: &[String]) -> Result<Vec<Rule>, Vec<String>> {
    let texts =
        |problems: &[crate::core::written::Problem]| problems.iter().map(ToString::to_string).collect();
    let loaded = file::load(path, regions).map_err(|problems| -> Vec<String> { texts(&problems) })?;
    let mut shapes = crate::core::ruleset::Shapes::default();
    crate::core::ruleset::RuleSet::compile_with_users(loaded.rules.clone(), loaded.users, &mut shapes)
        .map_err(|conflicts| {
            conflicts.iter().map(|conflict| format!("{}: {conflict}", path.display())).collect::<Vec<_>>()
        })?;
    Ok(loaded.rules)
}

/// The rules that a configuration leads to.
///
/// # Errors
/// Every problem, a line each.
pub fn rules_of(config: &Config) -> Result<Vec<Rule>, Vec<String>> {
    let rules = &config.rules;
    if !rules.file_required && !rules.file.exists() {
        return Ok(Vec::new());
    }
    check_rules(&rules.file, &config.peers.regions)
}

/// A rule as the API shows it.
pub(super) fn rule_json(rule: &Rule) -> serde_json::Value {
    serde_json::to_value(RuleDoc::from(rule)).unwrap_or_default()
}

/// Reads a duration as the configuration writes it.
///
/// # Errors
/// What was expected.
pub fn read_span(text: &str) -> Result<Span, String> {
    parse_span(text).ok_or_else(|| format!("`{text}` is no duration: write it like 100ms, 5s or 1m"))
}
