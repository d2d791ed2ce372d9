//! Mistakes in the rules in force that are valid all the same, as last looked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;

use super::Engine;
use crate::core::ruleset::Warning;

/// Most warnings that are kept and told; the rest are counted.
const TOLD_MAX: usize = 20;

/// The oddities of one revision of the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleWarnings {
    /// The revision that was looked at; 0 before the first look.
    pub revision: u64,
    /// First warnings in order; `total` counts the rest too.
    pub told: Vec<Warning>,
    /// Number of warnings there are in all.
    pub total: usize,
}

/// The place that keeps the newest look.
pub(super) type NewestWarnings = ArcSwap<RuleWarnings>;

impl Engine {
    /// Says whether paths and hosts come to rules as they were sent, rather than in one form.
    pub fn set_raw_values(&self, raw: bool) {
        self.raw_values.store(raw, Ordering::Relaxed);
    }

    /// Returns what the last look for odd rules found.
    #[must_use]
    pub fn rule_warnings(&self) -> Arc<RuleWarnings> {
        self.warnings.load_full()
    }

    /// Looks for odd rules if the rules changed since the last look. Returns those that were not told before.
    /// Takes some hundredths of a second for very large sets: not for a thread that decides.
    pub fn look_for_warnings(&self) -> Vec<Warning> {
        if self.awaits_rules() {
            // Nothing passes until the first set is there.
            return Vec::new();
        }
        let (loaded, before) = (self.loaded(), self.rule_warnings());
        if loaded.revision == before.revision && before.revision > 0 {
            return Vec::new();
        }
        let mut told = loaded.set.warnings_of(!self.raw_values.load(Ordering::Relaxed));
        let total = told.len();
        told.truncate(TOLD_MAX);
        let known: BTreeSet<&Warning> = before.told.iter().collect();
        let new = told.iter().filter(|warning| !known.contains(warning)).cloned().collect();
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        self.metrics.rule_warnings.set(total as f64);
        self.warnings.store(Arc::new(RuleWarnings { revision: loaded.revision, told, total }));
        new
    }
}
