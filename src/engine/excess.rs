//! The judgement whether an `escrow` window that was above its limit is an alarm.
//!
//! While a limit is being changed some regions hold the old one and some the new, and they may admit the
//! larger of the two: that is as it should be. So a count is held against the largest limit in force here
//! lately, and where another daemon is known to hold the rule otherwise, the difference itself is what its
//! operator is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::core::time::{Span, Timestamp};

/// A change counts for windows that end this long after it: what is final comes some ways between regions
/// later.
const CHANGE_KNOWN: Span = Span::from_secs(10);
/// Rules remembered; of more the oldest change is forgotten.
const RULES_MAX: usize = 1_000;

/// The judgement of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    /// Nothing.
    None,
    /// Its limit is changing, or is not the same everywhere.
    Explained,
    /// So many permits above every limit that it had here.
    Alarm(u64),
}

/// The facts that explain a count above the limit.
#[derive(Debug, Default)]
pub(super) struct Excesses(Mutex<ExcessState>);

#[derive(Debug, Default)]
struct ExcessState {
    /// By rule: the largest limit before the one in force, and when it was in force last.
    before: BTreeMap<String, (u64, Timestamp)>,
    /// By rule: when it was last known to be different elsewhere.
    different: BTreeMap<String, Timestamp>,
}

impl Excesses {
    /// A rule's limit was changed.
    pub(super) fn change(&self, now: Timestamp, rule: &str, before: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.before.get(rule).map_or(0, |(known, _)| *known);
        state.before.insert(rule.to_owned(), (known.max(before), now));
        forget(&mut state.before, |(_, at)| *at);
    }

    /// These rules are different elsewhere.
    pub(super) fn differ(&self, now: Timestamp, rules: BTreeSet<String>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.different.extend(rules.into_iter().map(|rule| (rule, now)));
        forget(&mut state.different, |at| *at);
    }

    /// Judges a window that is over, of a rule whose windows last `window`.
    pub(super) fn judge(&self, now: Timestamp, rule: &str, window: Span, used: u64, limit: u64) -> Excess {
        if used <= limit {
            return Excess::None;
        }
        let lately = |at: Timestamp| now.since(at) <= Span(window.0.saturating_mul(2)) + CHANGE_KNOWN;
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.different.get(rule).is_some_and(|at| lately(*at)) {
            return Excess::Explained;
        }
        let before = state.before.get(rule).filter(|(_, at)| lately(*at)).map_or(0, |(before, _)| *before);
        match used.saturating_sub(limit.max(before)) {
            0 => Excess::Explained,
            above => Excess::Alarm(above),
        }
    }
}

fn forget<T>(known: &mut BTreeMap<String, T>, at: impl Fn(&T) -> Timestamp) {
    while known.len() > RULES_MAX {
        let oldest = known.iter().min_by_key(|(_, value)| at(value)).map(|(rule, _)| rule.clone());
        let Some(oldest) = oldest else { return };
        known.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_changes_or_differs_elsewhere_is_no_alarm() {
        let excesses = Excesses::default();
        let (second, now) = (Span::from_secs(1), Timestamp(1_000_000_000));
        let judge = |now, used| excesses.judge(now, "seats", second, used, 300);
        assert_eq!([judge(now, 300), judge(now, 301)], [Excess::None, Excess::Alarm(1)]);
        excesses.change(now, "seats", 500);
        assert_eq!([judge(now, 500), judge(now, 520)], [Excess::Explained, Excess::Alarm(20)]);
        excesses.change(now, "seats", 400);
        assert_eq!(judge(now, 500), Excess::Explained, "the larger of those before");
        let later = now + Span::from_secs(60);
        assert_eq!(judge(later, 500), Excess::Alarm(200));
        excesses.differ(later, BTreeSet::from(["seats".to_owned()]));
        assert_eq!(judge(later, 500), Excess::Explained);
        assert_eq!(judge(later + Span::from_secs(60), 500), Excess::Alarm(200));
    }
}
