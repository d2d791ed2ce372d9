//! What an operator should know of the cluster, as last looked at, and what the others are told so that they
//! can look.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Engine;
use crate::core::notice::Notice;
use crate::core::regions::compared::Digest;
use crate::core::rule::{Global, Mode};
use crate::core::ruleset::Compiled;
use crate::core::share::Weights;

/// One worldwide rule, for comparison with the others' of its name.
#[derive(Debug)]
pub struct ComparedRule {
    /// Its name.
    pub name: String,
    /// Its name and domain, as they travel.
    pub id: Digest,
    /// Everything that must be the same in all regions.
    pub settings: Digest,
}

impl Engine {
    /// What is so now and has been told.
    #[must_use]
    pub fn notices(&self) -> Arc<Vec<Notice>> {
        self.notices.load_full()
    }

    /// Publishes what is so now.
    pub fn publish_notices(&self, notices: Vec<Notice>) {
        self.notices.store(Arc::new(notices));
    }

    /// These rules are not the same in all regions now.
    pub fn follow_differences(&self, rules: BTreeSet<String>) {
        self.excess.differ(self.clock.now(), rules);
    }

    /// The worldwide rules in force.
    #[must_use]
    pub fn compared_rules(&self) -> Vec<ComparedRule> {
        let loaded = self.loaded.load();
        let counts = |compiled: &&Arc<Compiled>| compiled.rule.enabled && compiled.rule.action.counts();
        let compared = |compiled: &Arc<Compiled>| {
            let global = compiled.rule.global.as_ref()?;
            Some(ComparedRule {
                name: compiled.rule.name.clone(),
                id: Digest::default().text(&compiled.rule.domain).text(&compiled.rule.name),
                settings: self.settings(compiled, global),
            })
        };
        loaded.set.worldwide().iter().filter(counts).filter_map(compared).collect()
    }

    fn settings(&self, compiled: &Compiled, global: &Global) -> Digest {
        let limit = compiled.limit;
        let mut digest = Digest::default()
            .text(&format!("{:?} {:?}", compiled.rule.algorithm, global.mode))
            .number(limit.permits.into())
            .number(limit.window.micros())
            .number(limit.burst.into())
            .number(limit.queue.into());
        if let Some(calendar) = limit.calendar {
            digest = digest.text(&format!("{:?}", calendar.name()));
        }
        for name in &compiled.rule.per {
            digest = digest.text(name);
        }
        if global.mode == Mode::Gossip {
            digest = digest.text(&format!("{:?}", global.on_partition));
        }
        let weights = Weights::new(&global.shares, &global.minimums, self.shares.regions());
        for (region, weight, minimum) in weights.parts() {
            digest = digest.text(region).number(weight.into()).number(minimum.into());
        }
        digest
    }
}
