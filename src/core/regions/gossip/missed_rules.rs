//! The rules of which other daemons told before this one held them.

use std::collections::BTreeMap;

use crate::time::{Span, Timestamp};
use crate::wire::RuleName;

/// For so long a rule that came late keeps to the region's share: the others have told what they know by
/// then.
const LATE_FOR: Span = Span::from_secs(3);
/// Most rules that are remembered because reports of them were passed over. Beyond that the one of which
/// nobody has told for longest comes without a share to keep to.
const MISSED_MAX: usize = 1_024;

/// Rules of which other daemons told before this one held them.
#[derive(Debug, Default)]
pub(super) struct MissedRules {
    /// Rules of which reports were passed over, and when the last time.
    missed: BTreeMap<RuleName, Timestamp>,
    /// Rules that came after that, and until when they keep to the region's share.
    late: BTreeMap<RuleName, Timestamp>,
}

impl MissedRules {
    /// A report of a rule was passed over: the rule is not held here, or counts in other windows.
    pub(super) fn miss(&mut self, now: Timestamp, rule: &RuleName) {
        if let Some(known) = self.missed.get_mut(rule) {
            *known = now;
            return;
        }
        if self.missed.len() >= MISSED_MAX {
            let oldest = self.missed.iter().min_by_key(|(_, at)| **at).map(|(rule, _)| rule.clone());
            oldest.and_then(|rule| self.missed.remove(&rule));
        }
        self.missed.insert(rule.clone(), now);
    }

    /// Other rules are in force, of which these have come with them.
    pub(super) fn come(
        &mut self,
        now: Timestamp,
        is_in_force: impl Fn(&RuleName) -> bool,
        came: impl Fn(&RuleName) -> bool,
    ) {
        self.late.retain(|rule, _| is_in_force(rule));
        let late: Vec<RuleName> = self.missed.keys().filter(|rule| came(rule)).cloned().collect();
        for rule in late {
            self.missed.remove(&rule);
            self.late.insert(rule, now + LATE_FOR);
        }
    }

    /// The rules that keep to the region's share.
    pub(super) fn held(&self) -> impl Iterator<Item = &RuleName> {
        self.late.keys()
    }

    /// Frees the rules of which the others had the time to tell. Returns whether there are any.
    pub(super) fn end(&mut self, now: Timestamp) -> bool {
        let held = self.late.len();
        self.late.retain(|_, until| now < *until);
        self.late.len() != held
    }

    pub(super) fn next_end(&self) -> Option<Timestamp> {
        self.late.values().min().copied()
    }

    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        self.late.values_mut().for_each(|until| *until = (*until).min(now + LATE_FOR));
    }
}
