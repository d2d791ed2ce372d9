//! Sums of records by minute: per rule and region in all, and of that per user and per path; and by day per
//! API key.
//!
//! Four kinds of rows instead of one for each combination: a rule's total (no user, no path, no key), and
//! what a user, a path or a key has of it. They grow with users plus paths plus keys, not with their product.

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap, HashSet};

use super::histogram::Histogram;
use super::record::{Outcome, Record, cut, storable};
use crate::time::{Span, Timestamp};

/// Most paths that get sums of their own among those that are added up together; the rest share
/// [`OTHER_PATHS`].
pub const PATHS_MAX: usize = 256;
/// The name that paths beyond [`PATHS_MAX`] have together.
pub const OTHER_PATHS: &str = "*";

/// A sum of permits stops here, and below zero alike: one absurd cost must not make a sum that no database
/// can add to. Sums of thousands of them still fit into an `i64`.
pub const COST_MAX: i64 = 1 << 50;

const MINUTE: Span = Span::from_secs(60);
const DAY: Span = Span::from_secs(86_400);

/// The subject of a sum. An empty user, path or key: of all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UsageKey {
    /// Begin of the minute (or hour, or day); of a key's sum, of the day.
    pub minute: Timestamp,
    /// The rule; empty where none applied.
    pub rule: String,
    /// Id of the user; empty in the sums of all users.
    pub user: String,
    /// The path without its query, or empty.
    pub path: String,
    /// The API key by its public name or its fingerprint, or empty.
    pub key: String,
}

impl UsageKey {
    /// True if it is the sum of a rule in all.
    #[must_use]
    pub const fn is_total(&self) -> bool {
        self.user.is_empty() && self.path.is_empty() && self.key.is_empty()
    }

    /// True if it is the sum of an API key, which is kept by day alone.
    #[must_use]
    pub const fn is_of_key(&self) -> bool {
        !self.key.is_empty()
    }
}

/// One sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Decisions that let pass, those without a row of their own included.
    pub allowed: u64,
    /// Those of `allowed` that passed after a delay.
    pub throttled: u64,
    /// Decisions that denied, those without a row of their own included.
    pub denied: u64,
    /// Those of `denied` that were blocked rather than over a limit.
    pub blocked: u64,
    /// Permits that were let pass, of all of them; at most [`COST_MAX`], and as far below zero.
    pub cost: i64,
    /// Durations of the decisions; nothing of API keys.
    pub latency: Histogram,
}

impl Usage {
    fn add(&mut self, record: &Record<'_>) {
        let weight = u64::from(record.weight);
        match record.outcome {
            Outcome::Denied | Outcome::Blocked => {
                self.denied += weight;
                self.blocked += if record.outcome == Outcome::Blocked { weight } else { 0 };
                return;
            }
            // Its rule was charged nothing.
            Outcome::Diverted => {
                self.allowed += weight;
                return;
            }
            Outcome::Throttled => {
                self.allowed += weight;
                self.throttled += weight;
            }
            Outcome::Allowed | Outcome::ShadowDenied => self.allowed += weight,
            Outcome::Committed => {}
        }
        self.charge(record.cost.saturating_mul(i64::from(record.weight)));
    }

    fn charge(&mut self, permits: i64) {
        self.cost = self.cost.saturating_add(permits).clamp(-COST_MAX, COST_MAX);
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.throttled = self.throttled.saturating_add(other.throttled);
        self.denied = self.denied.saturating_add(other.denied);
        self.blocked = self.blocked.saturating_add(other.blocked);
        self.charge(other.cost);
        self.latency.merge(&other.latency);
    }
}

/// A key as it is read off a record, before it is known whether anybody has to own it.
#[derive(Clone, Copy, Hash)]
struct Borrowed<'a> {
    minute: Timestamp,
    rule: &'a str,
    user: &'a str,
    path: &'a str,
    key: &'a str,
}

impl Borrowed<'_> {
    const fn is_total(&self) -> bool {
        self.user.is_empty() && self.path.is_empty() && self.key.is_empty()
    }

    /// The sum of all the others of its kind.
    const fn of_others(self) -> Self {
        const fn others(name: &str) -> &str {
            if name.is_empty() { name } else { OTHER_PATHS }
        }
        Self { user: others(self.user), path: others(self.path), key: others(self.key), ..self }
    }
}

impl Equivalent<UsageKey> for Borrowed<'_> {
    fn equivalent(&self, key: &UsageKey) -> bool {
        self.minute == key.minute
            && self.user == key.user
            && self.path == key.path
            && self.key == key.key
            && self.rule == key.rule
    }
}

impl From<&Borrowed<'_>> for UsageKey {
    fn from(key: &Borrowed<'_>) -> Self {
        Self {
            minute: key.minute,
            rule: key.rule.to_owned(),
            user: key.user.to_owned(),
            path: key.path.to_owned(),
            key: key.key.to_owned(),
        }
    }
}

/// The sums that a record is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumsOfRecord {
    /// That of its rule, and those of its user, path and key.
    All,
    /// That of its rule.
    Rule,
    /// Those of its user, path and key: that of the rule has it already.
    Names,
}

/// Records added up by minute.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    sums: HashMap<UsageKey, Usage, RandomState>,
    paths: HashSet<String, RandomState>,
}

impl Sums {
    /// Adds a record.
    pub fn add(&mut self, record: &Record<'_>) {
        self.add_within(record, SumsOfRecord::All, usize::MAX);
    }

    /// Adds a record. From so many sums on, a user, path or key that has none yet is called [`OTHER_PATHS`]:
    /// nothing of it is lost, and the sum of its rule stays what it is. Returns how many names were.
    pub fn add_within(&mut self, record: &Record<'_>, of: SumsOfRecord, most: usize) -> u64 {
        let [minute, day] =
            [MINUTE, DAY].map(|step| Timestamp::window_start(record.at.window_index(step), step));
        let rule = storable(cut(record.rule.unwrap_or_default()));
        let all = Borrowed { minute, rule: &rule, user: "", path: "", key: "" };
        let sums = &mut self.sums;
        let mut merged = 0;
        let mut add = |key: Borrowed<'_>| {
            let has_room = sums.len() < most || key.is_total() || sums.contains_key(&key);
            let key = if has_room { key } else { key.of_others() };
            merged += u64::from(!has_room);
            let usage = sums.entry_ref(&key).or_default();
            usage.add(record);
            if record.outcome != Outcome::Committed && key.key.is_empty() {
                usage.latency.add(record.latency_us, u64::from(record.weight));
            }
        };
        if of != SumsOfRecord::Names {
            add(all);
        }
        if of == SumsOfRecord::Rule {
            return merged;
        }
        if let Some(user) = record.user.filter(|user| !user.is_empty()) {
            add(Borrowed { user: &storable(cut(user)), ..all });
        }
        let path = record.path.map(|path| path.split('?').next().unwrap_or_default());
        if let Some(path) = path.filter(|path| !path.is_empty()) {
            let paths = &mut self.paths;
            let known = paths.contains(path) || (paths.len() < PATHS_MAX && paths.insert(path.to_owned()));
            let stored = storable(cut(path));
            add(Borrowed { path: if known { &stored } else { OTHER_PATHS }, ..all });
        }
        if let Some(key) = record.key.filter(|key| !key.is_empty()) {
            add(Borrowed { minute: day, key: &storable(cut(key)), ..all });
        }
        merged
    }

    /// Returns how many sums there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// True if nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The sums, in the order of their keys: writers of several daemons then never wait for each other in a
    /// circle.
    #[must_use]
    pub fn into_sorted(self) -> Vec<(UsageKey, Usage)> {
        let mut sorted: Vec<_> = self.sums.into_iter().collect();
        sorted.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        sorted
    }
}

/// Sums of several places as one: sorted, and each once.
#[must_use]
pub fn joined(sums: &[(UsageKey, Usage)]) -> Vec<(UsageKey, Usage)> {
    coarser(sums, MINUTE)
}

/// Sums by longer steps of time, sorted: their keys' minutes become hours or days (UTC).
#[must_use]
pub fn coarser(sums: &[(UsageKey, Usage)], step: Span) -> Vec<(UsageKey, Usage)> {
    let coarse = |(key, usage): &(UsageKey, Usage)| {
        let minute = Timestamp::window_start(key.minute.window_index(step), step);
        (UsageKey { minute, ..key.clone() }, usage.clone())
    };
    let mut all: Vec<_> = sums.iter().map(coarse).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1.merge(&later.1);
        }
        same
    });
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
            cause: None,
            request_id: None,
            latency_us: 3,
            weight,
        }
    }

    fn sum<'a>(records: impl Iterator<Item = Record<'a>>) -> BTreeMap<UsageKey, Usage> {
        let mut sums = Sums::default();
        records.for_each(|record| sums.add(&record));
        sums.into_sorted().into_iter().collect()
    }

    fn key(minute: u64, user: &str, path: &str) -> UsageKey {
        let minute = Timestamp(minute * 60_000_000);
        UsageKey {
            minute,
            rule: "r".to_owned(),
            user: user.to_owned(),
            path: path.to_owned(),
            key: String::new(),
        }
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
    fn what_was_delayed_passed_and_what_was_blocked_was_denied() {
        let outcomes = [Outcome::Allowed, Outcome::Throttled, Outcome::Denied, Outcome::Blocked];
        let sums = sum((1..).zip(outcomes).map(|(weight, outcome)| record(1, "a", "", outcome, weight)));
        let all = &sums[&key(0, "a", "")];
        assert_eq!((all.allowed, all.throttled, all.denied, all.blocked), (3, 2, 7, 4));
        assert_eq!(all.cost, 6, "permits are those of what passed");
    }

    #[test]
    fn what_was_told_to_use_something_else_passed_and_took_no_permits() {
        let sums = sum([record(1, "a", "", Outcome::Diverted, 3)].into_iter());
        let all = &sums[&key(0, "", "")];
        assert_eq!((all.allowed, all.denied, all.cost), (3, 0, 0));
    }

    #[test]
    fn paths_without_number_share_one_sum() {
        let paths: Vec<String> = (0..PATHS_MAX + 50).map(|index| format!("/{index}")).collect();
        let sums = sum(paths.iter().map(|path| record(1, "", path, Outcome::Denied, 1)));
        assert_eq!(sums.len(), 1 + PATHS_MAX + 1);
        assert_eq!(sums[&key(0, "", OTHER_PATHS)].denied, 50);
    }

    #[test]
    fn beyond_so_many_sums_names_share_one_and_nothing_is_lost() {
        let mut sums = Sums::default();
        let names = ["a", "b", "c", "a", "d"];
        let merged: u64 = names
            .iter()
            .map(|user| sums.add_within(&record(1, user, "", Outcome::Allowed, 1), SumsOfRecord::All, 3))
            .sum();
        let sums: BTreeMap<_, _> = sums.into_sorted().into_iter().collect();
        let allowed = |user: &str| sums[&key(0, user, "")].allowed;
        assert_eq!((merged, allowed(""), allowed("a"), allowed("b"), allowed(OTHER_PATHS)), (2, 5, 2, 1, 2));
        assert_eq!(sums.len(), 4);
    }

    #[test]
    fn a_record_that_the_rule_has_already_is_added_to_its_names_alone() {
        let mut sums = Sums::default();
        let denied = record(1, "a", "/x", Outcome::Denied, 1);
        assert_eq!(sums.add_within(&denied, SumsOfRecord::Names, usize::MAX), 0);
        let sums: BTreeMap<_, _> = sums.into_sorted().into_iter().collect();
        assert_eq!(sums.keys().collect::<Vec<_>>(), [&key(0, "", "/x"), &key(0, "a", "")]);
    }

    #[test]
    fn sums_of_several_places_are_joined() {
        let of = |weight: u32| {
            let mut sums = Sums::default();
            sums.add(&record(1, "a", "", Outcome::Allowed, weight));
            sums.into_sorted()
        };
        let joined = joined(&[of(2), of(3)].concat());
        assert_eq!(joined, of(5));
    }

    #[test]
    fn a_key_has_one_sum_a_day() {
        let mut sums = Sums::default();
        for (minute, name) in [(1, "k"), (700, "k"), (1_439, "other"), (1_440, "k")] {
            let mut record = record(minute * 60_000_000, "", "", Outcome::Allowed, 10);
            record.key = Some(name);
            sums.add(&record);
        }
        let sorted = sums.into_sorted();
        let of_keys = sorted.iter().filter(|(key, _)| key.is_of_key());
        let told =
            of_keys.map(|(key, usage)| (key.minute.micros(), key.key.as_str(), usage.allowed, usage.cost));
        let day = 86_400_000_000;
        assert_eq!(told.collect::<Vec<_>>(), [(0, "k", 20, 40), (0, "other", 10, 20), (day, "k", 10, 20)]);
        assert_eq!(sorted.iter().filter(|(key, _)| key.is_total()).count(), 4);
    }

    #[test]
    fn hours_are_the_sums_of_their_minutes() {
        let mut sums = Sums::default();
        for minute in [0, 59, 60, 61] {
            sums.add(&record(minute * 60_000_000, "a", "/x", Outcome::Denied, 1));
        }
        let hours = coarser(&sums.into_sorted(), Span::from_secs(3_600));
        let of_users: Vec<_> = hours.iter().filter(|(key, _)| key.user == "a").collect();
        assert_eq!(of_users.iter().map(|(_, usage)| usage.denied).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(of_users[1].0, key(60, "a", ""));
        assert!(hours.is_sorted_by(|one, other| one.0 < other.0));
    }
}
