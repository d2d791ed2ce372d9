//! Sums of records by minute: per rule and region in all, and of that per user and per path.
//!
//! Three kinds of rows instead of one for each combination: a rule's total (no user, no path), a user's share of it and a
//! path's share of it. They grow with users plus paths, not with users times paths.

use std::collections::{BTreeMap, HashSet};

use super::histogram::Histogram;
use super::record::{Outcome, Record, storable};
use crate::core::time::{Span, Timestamp};

/// Most paths of one batch that get sums of their own; the rest share [`OTHER_PATHS`].
pub const PATHS_MAX: usize = 256;
/// What the paths beyond [`PATHS_MAX`] are called.
pub const OTHER_PATHS: &str = "*";

const MINUTE: Span = Span::from_secs(60);

/// Whose sum. An empty user or path: of all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UsageKey {
    /// Where the minute (or hour, or day) begins.
    pub minute: Timestamp,
    /// The rule; empty where none applied.
    pub rule: String,
    /// The user, or empty.
    pub user: String,
    /// The path without its query, or empty.
    pub path: String,
}

/// One sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Decisions that let pass, those that were not sampled included by estimate.
    pub allowed: u64,
    /// Decisions that denied.
    pub denied: u64,
    /// Permits that were let pass, estimated likewise.
    pub cost: i64,
    /// How long they took.
    pub latency: Histogram,
}

impl Usage {
    fn add(&mut self, record: &Record<'_>) {
        let weight = u64::from(record.weight);
        if record.outcome == Outcome::Denied {
            self.denied += weight;
        } else {
            self.allowed += weight;
            self.cost = self.cost.saturating_add(record.cost.saturating_mul(i64::from(record.weight)));
        }
        self.latency.add(record.latency_us, weight);
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.cost = self.cost.saturating_add(other.cost);
        self.latency.merge(&other.latency);
    }
}

/// The same sums by longer steps of time: their keys' minutes become hours or days (UTC).
#[must_use]
pub fn coarser(sums: &BTreeMap<UsageKey, Usage>, step: Span) -> BTreeMap<UsageKey, Usage> {
    let mut coarse: BTreeMap<UsageKey, Usage> = BTreeMap::new();
    for (key, usage) in sums {
        let minute = Timestamp::window_start(key.minute.window_index(step), step);
        coarse.entry(UsageKey { minute, ..key.clone() }).or_default().merge(usage);
    }
    coarse
}

/// Adds records up, in the order of their keys: writers of several daemons then never wait for each other in a circle.
#[must_use]
pub fn sum<'a>(records: impl Iterator<Item = Record<'a>>) -> BTreeMap<UsageKey, Usage> {
    let mut sums: BTreeMap<UsageKey, Usage> = BTreeMap::new();
    let mut paths: HashSet<String> = HashSet::new();
    for record in records {
        let minute = Timestamp::window_start(record.at.window_index(MINUTE), MINUTE);
        let rule = storable(record.rule.unwrap_or_default());
        let mut add = |user: &str, path: &str| {
            let (user, path) = (storable(user).into_owned(), storable(path).into_owned());
            let key = UsageKey { minute, rule: rule.clone().into_owned(), user, path };
            sums.entry(key).or_default().add(&record);
        };
        add("", "");
        if let Some(user) = record.user.filter(|user| !user.is_empty()) {
            add(user, "");
        }
        let path = record.path.map(|path| path.split('?').next().unwrap_or_default());
        if let Some(path) = path.filter(|path| !path.is_empty()) {
            let known = paths.contains(path) || (paths.len() < PATHS_MAX && paths.insert(path.to_owned()));
            add("", if known { path } else { OTHER_PATHS });
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record<'a>(at: u64, user: &'a str, path: &'a str, outcome: Outcome, weight: u32) -> Record<'a> {
        Record {
            at: Timestamp(at),
            domain: "default",
            rule: Some("r"),
            user: Some(user),
            key: None,
            address: None,
            path: Some(path),
            method: None,
            outcome,
            cost: 2,
            count: 0,
            limit: 10,
            status: 200,
            retry_ms: None,
            latency_us: 3,
            weight,
        }
    }

    fn key(minute: u64, user: &str, path: &str) -> UsageKey {
        let minute = Timestamp(minute * 60_000_000);
        UsageKey { minute, rule: "r".to_owned(), user: user.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn a_sampled_record_counts_for_those_it_stands_for() {
        let sums = sum([
            record(1, "a", "/x?q=1", Outcome::Allowed, 100),
            record(2, "a", "/x", Outcome::Denied, 1),
            record(60_000_001, "b", "", Outcome::ShadowDenied, 1),
        ]
        .into_iter());
        let all = &sums[&key(0, "", "")];
        assert_eq!((all.allowed, all.denied, all.cost), (100, 1, 200));
        assert_eq!(all.latency.counts(), [0, 0, 0, 101]);
        assert_eq!(&sums[&key(0, "a", "")], all);
        assert_eq!(&sums[&key(0, "", "/x")], all);
        assert_eq!(sums[&key(1, "b", "")].allowed, 1);
        assert_eq!(sums.len(), 5);
    }

    #[test]
    fn paths_without_number_share_one_sum() {
        let paths: Vec<String> = (0..PATHS_MAX + 50).map(|index| format!("/{index}")).collect();
        let sums = sum(paths.iter().map(|path| record(1, "", path, Outcome::Denied, 1)));
        assert_eq!(sums.len(), 1 + PATHS_MAX + 1);
        assert_eq!(sums[&key(0, "", OTHER_PATHS)].denied, 50);
    }
}
