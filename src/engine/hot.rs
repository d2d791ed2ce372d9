//! The clients that ask most, lately: every decision is counted in a bounded table by rule and key, and
//! operators look at the heaviest.
//!
//! Tables are locked one at a time, for one count. They hold keys as buckets do and live no longer than the
//! process; a key is shown as the audit log would write it ([`shown_value`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use metrics::Counter;

use super::Engine;
use super::audit::key_name;
use super::decide::{TakenCost, taken_of};
use super::loaded::Loaded;
use super::port::ChargeResult;
use crate::core::decision::RuleOutcome;
use crate::core::hot::{HotBucket, HotCharge, HotSums, HotTable, span_of};
use crate::core::key::{Key, Shape, identity_values};
use crate::core::rates::RequestSums;
use crate::core::request::Cost;
use crate::core::rule::Action;
use crate::core::ruleset::{Compiled, Match};
use crate::core::time::{Span, Timestamp};
use crate::telemetry::Metrics;

/// Tables, by the topmost six bits of a key's hash.
const TABLES: usize = 64;
/// Buckets that are counted at the same time, in all tables together. More: the lightest of a set makes room.
pub const HOT_BUCKETS_MAX: usize = 32_768;
/// For so long at least somebody who was denied is found by name; by a rule with a longer window, for that.
const DENIED_LATELY: Span = Span::from_secs(600);

/// On cache lines of its own: decisions on other tables do not slow it down.
#[derive(Debug)]
#[repr(align(64))]
struct TableLine(Mutex<HotTable>);

impl TableLine {
    fn lock(&self) -> MutexGuard<'_, HotTable> {
        // A count that panicked has at worst not counted.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests that no rule decided, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct UnruledRequests {
    unmatched: AtomicU64,
    refused: AtomicU64,
}

/// Counts every decision.
#[derive(Debug)]
pub(super) struct HotCounts {
    unruled: UnruledRequests,
    tables: Box<[TableLine]>,
    hasher: RandomState,
    began: Timestamp,
}

impl HotCounts {
    /// Counts from `began` on.
    pub(super) fn new(began: Timestamp) -> Self {
        let table = |_| TableLine(Mutex::new(HotTable::new(HOT_BUCKETS_MAX / TABLES)));
        let tables = (0..TABLES).map(table).collect();
        Self { unruled: UnruledRequests::default(), tables, hasher: RandomState::default(), began }
    }

    #[inline]
    fn place(&self, key: &Key) -> (usize, u64) {
        let hash = self.hasher.hash_one(key.bytes());
        (usize::try_from(hash >> 58).unwrap_or(0), hash)
    }

    /// Counts what a decision did to a bucket, and what it added to the sums of requests.
    #[inline]
    pub(super) fn count(&self, key: &Key, charge: &HotCharge, more: RequestSums, now: Timestamp) {
        let (table, hash) = self.place(key);
        if let Some(table) = self.tables.get(table) {
            let mut table = table.lock();
            table.count_requests(more);
            table.count(hash, key, charge, now);
        }
    }

    /// Counts a decision of a rule without buckets alike.
    fn count_without_bucket(&self, rule: Shape, denied: bool, more: RequestSums, now: Timestamp) {
        // Any table will do: the time spreads over them what one rule decides.
        let table = usize::try_from(now.micros()).unwrap_or(0) % TABLES;
        if let Some(table) = self.tables.get(table) {
            let mut table = table.lock();
            table.count_requests(more);
            table.count_without_bucket(rule, denied, now);
        }
    }

    /// Counts a request that no rule matched.
    pub(super) fn count_unmatched(&self) {
        self.unruled.unmatched.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request of somebody who is refused, whatever rules say.
    pub(super) fn count_refused(&self) {
        self.unruled.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Sums of all requests since the start.
    pub(super) fn requests(&self) -> RequestSums {
        let unmatched = self.unruled.unmatched.load(Ordering::Relaxed);
        let denied = self.unruled.refused.load(Ordering::Relaxed);
        let mut sums =
            RequestSums { requests: unmatched.wrapping_add(denied), denied, ..RequestSums::default() };
        for table in &self.tables {
            sums.add(table.lock().requests());
        }
        sums
    }

    /// Returns what is counted of a bucket, if it has a place.
    pub(super) fn find(&self, key: &Key, now: Timestamp) -> Option<HotBucket> {
        let (table, hash) = self.place(key);
        self.tables.get(table)?.lock().find(hash, key, now).cloned()
    }

    /// The `limit` buckets with the most of what `weigh` says; none of which it says zero.
    pub(super) fn heaviest(
        &self,
        limit: usize,
        now: Timestamp,
        weigh: impl Fn(&HotBucket) -> u64,
    ) -> Vec<HotBucket> {
        let mut kept: BinaryHeap<Reverse<Weighed>> = BinaryHeap::new();
        for table in &self.tables {
            for bucket in table.lock().buckets(now) {
                let weight = weigh(bucket);
                let least = kept.peek().map_or(0, |Reverse(least)| least.weight);
                if weight == 0 || (kept.len() >= limit && weight <= least) {
                    continue;
                }
                kept.push(Reverse(Weighed { weight, bucket: bucket.clone() }));
                if kept.len() > limit {
                    kept.pop();
                }
            }
        }
        let mut kept: Vec<Weighed> = kept.into_iter().map(|Reverse(weighed)| weighed).collect();
        kept.sort_by(|a, b| b.cmp(a));
        kept.into_iter().map(|weighed| weighed.bucket).collect()
    }

    /// Sums by rule, and of all.
    fn sums(&self, now: Timestamp) -> (HashMap<Shape, HotSums>, HotSums) {
        let mut rules: HashMap<Shape, HotSums> = HashMap::new();
        let mut all = HotSums::default();
        for table in &self.tables {
            all.add(table.lock().sums(now, |shape, sums| rules.entry(shape).or_default().add(sums)));
        }
        rules.values().for_each(|sums| all.add(*sums));
        rules.retain(|_, sums| *sums != HotSums::default());
        (rules, all)
    }

    /// Buckets that made room for others, and decisions that are in no rule's sum, since the start.
    fn crowded(&self) -> [u64; 2] {
        let mut crowded = [0; 2];
        for table in &self.tables {
            let table = table.lock();
            crowded[0] += table.replaced_total();
            crowded[1] += table.unlisted_total();
        }
        crowded
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.tables.iter().map(|table| size_of::<TableLine>() + table.lock().bytes()).sum()
    }
}

/// A bucket by its weight; of two that weigh the same the one with the smaller key comes first.
#[derive(Debug)]
struct Weighed {
    weight: u64,
    bucket: HotBucket,
}

impl Ord for Weighed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.weight.cmp(&other.weight).then_with(|| other.bucket.key.cmp(&self.bucket.key))
    }
}

impl PartialOrd for Weighed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Weighed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Weighed {}

/// Publishes what found no room.
#[derive(Clone)]
pub(super) struct HotMetrics([Counter; 2]);

impl HotMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self(["bucket", "rule"].map(|what| metrics.counter("hot_crowded_total", "what", what)))
    }
}

/// The order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HotBy {
    /// Denials.
    Denied,
    /// Requests.
    Requests,
    /// Permits charged.
    Cost,
}

impl HotBy {
    /// Every one, as the API spells it.
    pub const ALL: [(&'static str, Self); 3] =
        [("denied", Self::Denied), ("requests", Self::Requests), ("cost", Self::Cost)];

    /// This of sums.
    #[must_use]
    pub const fn of(self, sums: &HotSums) -> u64 {
        match self {
            Self::Denied => sums.denied,
            Self::Requests => sums.requests,
            Self::Cost => sums.cost,
        }
    }

    /// Returns the spelling of the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Requests => "requests",
            Self::Cost => "cost",
        }
    }
}

/// A question to the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotAsked {
    /// Order of the rows: by denials, requests or permits.
    pub by: HotBy,
    /// Only buckets of this rule; `None`: of all.
    pub rule: Option<String>,
    /// Most rows of buckets and of rules.
    pub limit: usize,
}

/// The heaviest buckets and rules, as this daemon counted them.
#[derive(Debug, Clone)]
pub struct HotView {
    /// A count divided by this span is a rate.
    pub span: Span,
    /// Sums of everything that this daemon decided.
    pub all: HotSums,
    /// Counted buckets in the asked order, the heaviest first.
    pub buckets: Vec<HotRow>,
    /// Rules in the asked order, the heaviest first.
    pub rules: Vec<HotRuleRow>,
}

/// One bucket.
#[derive(Debug, Clone)]
pub struct HotRow {
    /// Name of the rule that counts the bucket.
    pub rule: String,
    /// Domain of the rule that counts the bucket.
    pub domain: String,
    /// Names and values of the rule's `per`, as they may be shown.
    pub identity: Vec<(String, String)>,
    /// True if its denials are only logged.
    pub shadow: bool,
    /// Counts of the bucket, which fade within minutes.
    pub bucket: HotBucket,
}

/// One rule.
#[derive(Debug, Clone)]
pub struct HotRuleRow {
    /// Name of the rule whose decisions are summed.
    pub rule: String,
    /// Domain of the rule whose decisions are summed.
    pub domain: String,
    /// True if its denials are only logged.
    pub shadow: bool,
    /// Sums of the rule's decisions, which fade within minutes.
    pub sums: HotSums,
}

impl Engine {
    /// Counts what a rule said of a request. `told` is what rules before it said of the same request.
    #[inline]
    pub(super) fn count_hot(
        &self,
        found: &Match<'_>,
        ruled: &RuleOutcome,
        charged: Option<(TakenCost, &ChargeResult)>,
        told: &mut RequestSums,
        now: Timestamp,
    ) {
        let denied = !ruled.allowed;
        let said = RequestSums {
            requests: 1,
            denied: u64::from(ruled.denies()),
            degraded: ruled.degraded.into(),
            cost: 0,
        };
        let (Some(key), Some((taken, counted))) = (&found.key, charged) else {
            return self.hot.count_without_bucket(found.rule.shape, denied, told.raise(said), now);
        };
        let is_step = matches!(taken.cost, Cost::Refund(_) | Cost::Commit(_));
        // A client that gives back or only looks uses nothing up; one that is denied is to be found.
        if is_step || (taken.cost.taken() == 0 && !denied) {
            return;
        }
        let charge = HotCharge {
            denied,
            taken: taken_of(taken, counted),
            windows: found.limit.windows(),
            counting: found.rule.counting(),
        };
        let more = told.raise(RequestSums { cost: charge.taken, ..said });
        self.hot.count(key, &charge, more, now);
    }

    /// The heaviest buckets, and the sums of the heaviest rules. Looks at every rule in force: not for
    /// threads that decide. `None`: there is no such rule.
    #[must_use]
    pub fn hot(&self, asked: &HotAsked) -> Option<HotView> {
        let (loaded, now) = (self.loaded(), self.now());
        let wanted = match &asked.rule {
            Some(name) => Some(loaded.set.by_name(name)?.shape),
            None => None,
        };
        let by_shape = by_shape(&loaded);
        let chosen = |shape: Shape| {
            by_shape.contains_key(&shape.of_rule()) && wanted.is_none_or(|wanted| wanted == shape.of_rule())
        };
        let weigh = |bucket: &HotBucket| match chosen(bucket.key.shape()) {
            true => asked.by.of(&bucket.sums),
            false => 0,
        };
        let buckets = self.hot.heaviest(asked.limit, now, weigh);
        let row = |bucket: HotBucket| {
            let compiled = by_shape.get(&bucket.key.shape().of_rule())?;
            Some(row_of(&loaded, compiled, bucket))
        };
        let (rules, all) = self.hot.sums(now);
        let rules = rules.into_iter().filter(|(shape, _)| chosen(*shape));
        let mut rules: Vec<HotRuleRow> = rules
            .filter_map(|(shape, sums)| {
                let compiled = by_shape.get(&shape)?;
                let (rule, domain) = (compiled.rule.name.clone(), compiled.rule.domain.clone());
                Some(HotRuleRow { rule, domain, shadow: is_shadow(&loaded, compiled), sums })
            })
            .collect();
        rules.sort_by(|a, b| {
            let sizes = asked.by.of(&b.sums).cmp(&asked.by.of(&a.sums));
            sizes.then(b.sums.requests.cmp(&a.sums.requests)).then_with(|| a.rule.cmp(&b.rule))
        });
        rules.truncate(asked.limit);
        let span = span_of(self.hot.began, now);
        Some(HotView { span, all, buckets: buckets.into_iter().filter_map(row).collect(), rules })
    }

    /// Buckets of this domain that were denied lately and whose identity agrees with these attributes: every
    /// attribute that both name has the same value, and there is one. The most denied first.
    pub(super) fn denied_of(
        &self,
        loaded: &Loaded,
        domain: &str,
        attributes: &[(&str, &str)],
        limit: usize,
    ) -> Vec<(Arc<Compiled>, HotBucket)> {
        let (by_shape, now) = (by_shape(loaded), self.now());
        let of_domain = |bucket: &HotBucket| {
            let compiled = by_shape.get(&bucket.key.shape().of_rule())?;
            (compiled.rule.domain == domain).then_some(*compiled)
        };
        let weigh = |bucket: &HotBucket| match (bucket.run, of_domain(bucket)) {
            (Some(run), Some(compiled)) if agrees(compiled, bucket, attributes) => {
                // Counts fade within minutes, what a day's limit denied does not.
                let lately = compiled.limit.window.max(DENIED_LATELY);
                if now.since(run.last) <= lately { bucket.sums.denied.saturating_add(1) } else { 0 }
            }
            _ => 0,
        };
        let found = self.hot.heaviest(limit, now, weigh).into_iter();
        found.filter_map(|bucket| Some((Arc::clone(of_domain(&bucket)?), bucket))).collect()
    }

    /// Publishes how many found no room. Called about once a second.
    pub fn publish_hot(&self) {
        for (counter, value) in self.hot_metrics.0.iter().zip(self.hot.crowded()) {
            counter.absolute(value);
        }
    }
}

/// True if a rule's denials are only logged.
pub(super) fn is_shadow(loaded: &Loaded, compiled: &Compiled) -> bool {
    loaded.shadow || compiled.rule.action == Action::LogOnly
}

/// Every rule in force by its shape.
fn by_shape(loaded: &Loaded) -> HashMap<Shape, &Arc<Compiled>> {
    loaded.set.rules().iter().map(|compiled| (compiled.shape, compiled)).collect()
}

fn row_of(loaded: &Loaded, compiled: &Compiled, bucket: HotBucket) -> HotRow {
    HotRow {
        rule: compiled.rule.name.clone(),
        domain: compiled.rule.domain.clone(),
        identity: shown_identity(compiled, &bucket.key),
        shadow: is_shadow(loaded, compiled),
        bucket,
    }
}

fn agrees(compiled: &Compiled, bucket: &HotBucket, attributes: &[(&str, &str)]) -> bool {
    let values = identity_values(bucket.key.identity()).unwrap_or_default();
    let mut named: BTreeMap<&str, &str> = BTreeMap::new();
    named.extend(compiled.rule.per.iter().map(String::as_str).zip(values));
    let mut both = attributes.iter().filter_map(|(name, given)| Some((*name, *given, *named.get(name)?)));
    let same = |(name, given, own): (&str, &str, &str)| given == own || given == shown_value(name, own);
    both.next().is_some_and(same) && both.all(same)
}

/// Names and values of a bucket's identity, as they may be shown.
pub(super) fn shown_identity(compiled: &Compiled, key: &Key) -> Vec<(String, String)> {
    let values = identity_values(key.identity()).unwrap_or_default();
    let named = compiled.rule.per.iter().zip(values);
    named.map(|(name, value)| (name.clone(), shown_value(name, value))).collect()
}

/// A value as somebody may see it who did not bring it: of a key that is none of ours its fingerprint, of a
/// path nothing of its query.
pub(super) fn shown_value(name: &str, value: &str) -> String {
    match name {
        "api_key" => key_name(value).as_str().to_owned(),
        "path" => value.split(['?', '#']).next().unwrap_or_default().to_owned(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::algorithm::Counting;
    use crate::core::hot::KEY_BYTES_MAX;

    const KEYS: usize = 1_000_000;
    const START: Timestamp = Timestamp(1_800_000_000_000_000);
    fn charge(denied: bool) -> HotCharge {
        HotCharge { denied, taken: 1, windows: Span::from_secs(60).into(), counting: Counting::Window }
    }

    /// Numbers that look random, the same ones in every run.
    struct Draws(u64);

    impl Draws {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            #[expect(clippy::cast_precision_loss, reason = "31 bits")]
            let drawn = (self.0 >> 33) as f64 / (1_u64 << 31) as f64;
            drawn
        }
    }

    /// The sums of 1/rank up to each rank.
    fn zipf() -> Vec<f64> {
        let mut sum = 0.0;
        (1..=u32::try_from(KEYS).unwrap())
            .map(|rank| {
                sum += 1.0 / f64::from(rank);
                sum
            })
            .collect()
    }

    fn key(rank: usize) -> Key {
        Key::new(Shape(8), [format!("u_{rank}").as_str()])
    }

    /// How many of the 100 heaviest keys are found, after so many decisions of a million keys in 75 seconds.
    fn recall(decisions: u32, denied_of: Option<usize>) -> usize {
        let (counts, sums) = (HotCounts::new(START), zipf());
        let mut draws = Draws(17);
        let mut truth = vec![0.0_f64; KEYS];
        let end = START + Span::from_secs(75);
        let half = |now: Timestamp| now.micros() / crate::core::hot::HALF_LIFE.micros();
        for decision in 0..decisions {
            let now = START + Span(75_000_000 * u64::from(decision) / u64::from(decisions));
            let wanted = draws.next() * sums[KEYS - 1];
            let rank = sums.partition_point(|sum| *sum < wanted).min(KEYS - 1);
            let denied = denied_of.is_some_and(|nth| rank % nth == 0);
            counts.count(&key(rank), &charge(denied), RequestSums::default(), now);
            if denied || denied_of.is_none() {
                truth[rank] += 0.5_f64.powi(i32::try_from(half(end) - half(now)).unwrap());
            }
        }
        let mut order: Vec<usize> = (0..KEYS).collect();
        order.sort_by(|a, b| truth[*b].total_cmp(&truth[*a]));
        let by = if denied_of.is_some() { HotBy::Denied } else { HotBy::Requests };
        let found = counts.heaviest(100, end, |bucket| by.of(&bucket.sums));
        let found: std::collections::HashSet<Key> = found.into_iter().map(|bucket| bucket.key).collect();
        order[..100].iter().filter(|rank| found.contains(&key(**rank))).count()
    }

    #[test]
    fn the_hundred_heaviest_of_a_million_keys_are_found() {
        let found = recall(1_000_000, None);
        assert!(found >= 99, "{found} of 100");
    }

    #[test]
    fn the_most_denied_are_found_among_many_more_who_are_not() {
        let found = recall(700_000, Some(7));
        assert!(found >= 97, "{found} of 100");
    }

    #[test]
    fn memory_stays_within_its_bound_whatever_keys_come() {
        let counts = HotCounts::new(START);
        assert!(counts.bytes() < 1 << 20, "{} bytes before anything was counted", counts.bytes());
        for rank in 0..200_000 {
            counts.count(&key(rank), &charge(false), RequestSums::default(), START);
        }
        let of_short = counts.bytes();
        assert!(of_short < 10 << 20, "{of_short} bytes");
        let padding = "x".repeat(KEY_BYTES_MAX - 16);
        for rank in 0..150_000 {
            let long = Key::new(Shape(8), [format!("{rank}{padding}").as_str()]);
            counts.count(&long, &charge(false), RequestSums::default(), START);
        }
        assert!(counts.bytes() > of_short && counts.bytes() < 64 << 20, "{} bytes", counts.bytes());
        assert!(counts.heaviest(usize::MAX, START, |_| 1).len() <= HOT_BUCKETS_MAX);
        assert!(counts.crowded()[0] > 0);
    }

    #[test]
    fn requests_are_summed_over_all_tables_with_those_that_no_rule_decided_and_do_not_fade() {
        let counts = HotCounts::new(START);
        let charged = RequestSums { requests: 1, cost: 1, ..RequestSums::default() };
        for rank in 0..1_000 {
            counts.count(&key(rank), &charge(false), charged, START);
        }
        let denied = RequestSums { requests: 1, denied: 1, ..RequestSums::default() };
        counts.count_without_bucket(Shape(8), true, denied, START);
        counts.count_unmatched();
        counts.count_refused();
        let expected = RequestSums { requests: 1_003, denied: 2, degraded: 0, cost: 1_000 };
        assert_eq!(counts.requests(), expected);
        assert_eq!(counts.sums(START + Span::from_secs(3_600)).1, HotSums::default());
        assert_eq!(counts.requests(), expected);
    }

    #[test]
    fn a_secret_is_shown_by_its_fingerprint_and_a_path_without_its_query() {
        let shown = shown_value("api_key", "hunter2");
        assert!(shown.len() == 32 && !shown.contains("hunter2"), "{shown}");
        assert_eq!(shown_value("api_key", "tgk_abcdefGHI012"), "tgk_abcdefGHI012");
        assert_eq!(shown_value("path", "/a?token=hunter2"), "/a");
        assert_eq!(shown_value("user", "u_42"), "u_42");
    }
}
