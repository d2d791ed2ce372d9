//! Notices that an operator should know of this daemon and its cluster, as last looked at, and what the
//! others are told so that they can look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::Engine;
use crate::core::notice::{Notice, NoticeKind};
use crate::core::regions::compared::Digest;
use crate::core::rule::{Global, Mode};
use crate::core::ruleset::Compiled;
use crate::core::share::Weights;
use crate::telemetry::Metrics;

/// One worldwide rule, for comparison with the others' of its name.
#[derive(Debug)]
pub struct ComparedRule {
    /// Name of the rule, for the operator who reads the notice.
    pub name: String,
    /// Its name and domain, as they travel.
    pub id: Digest,
    /// Everything that must be the same in all regions.
    pub settings: Digest,
}

/// A source of notices, which looks and replaces what it told before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeSource {
    /// The regions, daemons and certificates of the cluster.
    Cluster,
    /// The certificate of the HTTP listener.
    HttpListener,
    /// The certificate of the gRPC listener.
    GrpcListener,
    /// The certificate of the listener for the Redis protocol.
    RespListener,
    /// The certificate towards Redis.
    Redis,
    /// The configuration.
    Configuration,
    /// The notes of what is spent of `escrow` rules.
    Marks,
}

/// The notices of all sources.
#[derive(Debug, Default)]
pub(super) struct PublishedNotices {
    by_source: Mutex<BTreeMap<NoticeSource, Vec<Notice>>>,
    all: ArcSwap<Vec<Notice>>,
}

impl PublishedNotices {
    fn publish(&self, source: NoticeSource, notices: Vec<Notice>, metrics: &Metrics) {
        let mut by_source = self.by_source.lock().unwrap_or_else(PoisonError::into_inner);
        by_source.insert(source, notices);
        let all: Vec<Notice> = by_source.values().flatten().cloned().collect();
        for kind in NoticeKind::ALL {
            let count = all.iter().filter(|notice| notice.kind == kind).count();
            let gauge = metrics.gauge("notices", "about", kind.as_str());
            gauge.set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
        }
        self.all.store(Arc::new(all));
    }
}

impl Engine {
    /// Returns what is so now and has been told.
    #[must_use]
    pub fn notices(&self) -> Arc<Vec<Notice>> {
        self.notices.all.load_full()
    }

    /// Publishes what is so now by this source, and how many of each kind there are by all.
    pub fn publish_notices(&self, source: NoticeSource, notices: Vec<Notice>) {
        self.notices.publish(source, notices, &self.metrics);
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
                id: Digest::of_rule(&compiled.rule.domain, &compiled.rule.name),
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
        let weights = Weights::among(&global.shares, &global.minimums, &self.shares.regions());
        for (region, weight, minimum) in weights.parts() {
            digest = digest.text(region).number(weight.into()).number(minimum.into());
        }
        digest
    }
}
