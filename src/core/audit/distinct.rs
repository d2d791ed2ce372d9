//! A bound on the users, paths and API keys that get sums of their own: who asks chooses their number, and
//! sums stay for long.

use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::record::Record;
use super::usage::{OTHER_PATHS, UsageKey};
use crate::time::{Span, Timestamp};

/// The name of all users, paths and keys beyond the bounds in sums.
pub const OTHERS: &str = OTHER_PATHS;
/// Most values of one day kept in mind for all rules together, some 16 MB; two days are.
const VALUES_MAX: usize = 1_000_000;
const DAY: Span = Span::from_secs(86_400);

/// Bounds on the users, paths and keys of one rule that get sums of their own on one day. As many again of
/// the day before get theirs beyond these: names that somebody invents must not take the places of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistinctMax {
    /// Most users of one rule on one day with sums of their own.
    pub users: usize,
    /// Most paths of one rule on one day with sums of their own.
    pub paths: usize,
    /// Most API keys of one rule on one day with sums of their own.
    pub keys: usize,
}

impl Default for DistinctMax {
    fn default() -> Self {
        Self { users: 100_000, paths: 1_000, keys: 100_000 }
    }
}

/// The users, paths and keys that have sums of their own today.
#[derive(Debug, Default)]
pub struct Distinct {
    max: DistinctMax,
    day: u64,
    rules: HashMap<String, SeenValues, RandomState>,
    /// The same of the last day before that had any.
    before: HashMap<String, SeenValues, RandomState>,
    hasher: RandomState,
    /// Values of today that are remembered of all rules together; bounds the memory they take.
    len: usize,
    /// Records whose user, path or key went to the others, since the start.
    merged: u64,
}

/// By their hashes: to take two for one costs a sum of its own too many, and nothing else.
#[derive(Debug, Default)]
struct SeenValues {
    users: HashSet<u64, RandomState>,
    paths: HashSet<u64, RandomState>,
    keys: HashSet<u64, RandomState>,
}

impl Distinct {
    /// None yet.
    #[must_use]
    pub fn new(max: DistinctMax) -> Self {
        Self { max, ..Self::default() }
    }

    /// Records whose user, path or key went to the others, since the start.
    #[must_use]
    pub const fn merged(&self) -> u64 {
        self.merged
    }

    /// Calls a user, path or key [`OTHERS`] that comes beyond the bound of its rule and day.
    pub fn bound(&mut self, record: &mut Record<'_>) {
        self.begin(record.at);
        let (rule, max) = (record.rule.unwrap_or_default(), self.max);
        if record.user.is_some_and(|user| !self.admits(rule, |seen| &mut seen.users, user, max.users, 1)) {
            record.user = Some(OTHERS);
        }
        if record.key.is_some_and(|key| !self.admits(rule, |seen| &mut seen.keys, key, max.keys, 1)) {
            record.key = Some(OTHERS);
        }
        let path = record.path.map(|path| path.split('?').next().unwrap_or_default());
        if path.is_some_and(|path| !self.admits(rule, |seen| &mut seen.paths, path, max.paths, 1)) {
            record.path = Some(OTHERS);
        }
    }

    /// Does the same to what a sum of so many decisions is of.
    pub fn bound_sum(&mut self, key: &mut UsageKey, times: u64) {
        self.begin(key.minute);
        let (rule, max) = (&*key.rule, self.max);
        if !self.admits(rule, |seen| &mut seen.users, &key.user, max.users, times) {
            OTHERS.clone_into(&mut key.user);
        }
        if !self.admits(rule, |seen| &mut seen.keys, &key.key, max.keys, times) {
            OTHERS.clone_into(&mut key.key);
        }
        if !self.admits(rule, |seen| &mut seen.paths, &key.path, max.paths, times) {
            OTHERS.clone_into(&mut key.path);
        }
    }

    /// Keeps the values of the day before apart, if this is a new one.
    fn begin(&mut self, at: Timestamp) {
        let day = at.window_index(DAY);
        if day > self.day {
            self.day = day;
            self.before = std::mem::take(&mut self.rules);
            self.len = 0;
        }
    }

    /// True if the value has sums of its own: it is known, there is room for it, or there was the day before.
    /// Else so many decisions go to the others.
    fn admits(
        &mut self,
        rule: &str,
        values: fn(&mut SeenValues) -> &mut HashSet<u64, RandomState>,
        value: &str,
        max: usize,
        times: u64,
    ) -> bool {
        if value.is_empty() {
            return true;
        }
        let hash = self.hasher.hash_one(value);
        let seen = match self.rules.get_mut(rule) {
            Some(seen) => seen,
            None => self.rules.entry(rule.to_owned()).or_default(),
        };
        let known = values(seen);
        if known.contains(&hash) {
            return true;
        }
        let mut was_known = || self.before.get_mut(rule).is_some_and(|seen| values(seen).contains(&hash));
        let is_within = known.len() < max || known.len() < max.saturating_mul(2) && was_known();
        let has_room = is_within && self.len < VALUES_MAX;
        if has_room {
            known.insert(hash);
            self.len += 1;
        } else {
            self.merged += times;
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Outcome;

    #[test]
    fn each_rule_has_so_many_users_paths_and_keys_a_day_and_the_rest_is_the_others() {
        let mut distinct = Distinct::new(DistinctMax { users: 2, paths: 1, keys: 2 });
        let mut named = |day: u64, rule: &'static str, user: &'static str, path: &'static str| {
            let mut record = Record {
                at: Timestamp(day * 86_400_000_000 + 5),
                domain: "default",
                rule: Some(rule),
                user: Some(user),
                key: Some(user),
                address: None,
                path: Some(path),
                method: None,
                outcome: Outcome::Denied,
                cost: 1,
                count: 0,
                limit: 0,
                status: 429,
                retry_ms: None,
                cause: None,
                request_id: None,
                latency_us: 1,
                weight: 1,
            };
            distinct.bound(&mut record);
            assert_eq!(record.key, record.user, "keys are as many here");
            (record.user.unwrap().to_owned(), record.path.unwrap().to_owned())
        };
        let pair = |user: &str, path: &str| (user.to_owned(), path.to_owned());
        assert_eq!(named(1, "r", "a", "/x?q=1"), pair("a", "/x?q=1"));
        assert_eq!(named(1, "r", "b", "/x?q=2"), pair("b", "/x?q=2"));
        assert_eq!(named(1, "r", "c", "/y"), pair(OTHERS, OTHERS));
        assert_eq!(named(1, "r", "a", "/x"), pair("a", "/x"), "known ones stay");
        assert_eq!(named(1, "s", "c", "/y"), pair("c", "/y"), "another rule has its own");
        assert_eq!(named(2, "r", "c", "/y"), pair("c", "/y"), "and another day");
        assert_eq!(distinct.merged(), 3);
    }

    #[test]
    fn who_had_sums_the_day_before_keeps_them_beside_names_that_somebody_invents() {
        let mut distinct = Distinct::new(DistinctMax { users: 2, paths: 1, keys: 1 });
        let mut is_named = |day: u64, user: &str| {
            let mut key = UsageKey {
                minute: Timestamp(day * 86_400_000_000 + 5),
                rule: "r".to_owned(),
                user: user.to_owned(),
                path: String::new(),
                key: String::new(),
            };
            distinct.bound_sum(&mut key, 1);
            key.user == user
        };
        assert!(is_named(1, "ann") && is_named(1, "bob") && !is_named(1, "eve"));
        assert!(is_named(2, "invented-1") && is_named(2, "invented-2") && !is_named(2, "invented-3"));
        assert!(is_named(2, "ann") && is_named(2, "bob"), "they asked the day before");
        assert!(!is_named(2, "eve"), "she shared a sum the day before");
        assert!(is_named(3, "invented-4") && is_named(3, "invented-5"));
        assert!(
            is_named(3, "ann") && is_named(3, "invented-1") && !is_named(3, "bob"),
            "twice as many at most"
        );
    }

    #[test]
    fn a_sum_beyond_the_bound_is_one_of_the_others_by_the_same_count() {
        let mut distinct = Distinct::new(DistinctMax { users: 1, paths: 1, keys: 1 });
        let mut named = |user: &str| {
            let mut key = UsageKey {
                minute: Timestamp(5),
                rule: "r".to_owned(),
                user: user.to_owned(),
                path: String::new(),
                key: String::new(),
            };
            distinct.bound_sum(&mut key, 7);
            (key.user, key.path)
        };
        assert_eq!(named("a").0, "a");
        assert_eq!(named("b"), (OTHERS.to_owned(), String::new()));
        assert_eq!(named(""), (String::new(), String::new()), "a total is nobody's");
        assert_eq!(distinct.merged(), 7);
    }
}
