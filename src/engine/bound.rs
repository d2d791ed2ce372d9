//! The error of a region's belief on the worldwide use of a limit: of one bucket, and of every worldwide
//! rule.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Engine;
use super::loaded::Loaded;
use super::status::WorldStatus;
use crate::core::algorithm::{Algorithm, Counting, Limit};
use crate::core::regions::escrow::EscrowRule;
use crate::core::regions::gossip::uncertainty::{self, BucketAnswer, OtherStores, OwnStore, RegionsKnown};
use crate::core::rule::{Mode, Rule};
use crate::core::ruleset::Compiled;
use crate::core::time::{Span, Timestamp};

/// The word on the stores elsewhere holds for so long: it is said anew every hundredth of a second.
const SAID_FOR: Span = Span::from_millis(100);
/// Most rules told of which nothing moved and nothing was heard.
const QUIET_MAX: usize = 1_000;

/// The newest word of the protocol between regions on the stores elsewhere, as decisions read it.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Number of stores elsewhere that count the same limits.
    stores: AtomicU64,
    /// Number of regions that are known, the own one included.
    regions: AtomicU64,
    /// True if any of them is cut off.
    cut_off: AtomicBool,
    /// Instant until which all regions are taken to divide by the same reports, in microseconds.
    settled: AtomicU64,
    /// The longest that one was not heard since then, in microseconds.
    silence: AtomicU64,
    /// The memory that the own store may have lost.
    own_store: OwnStore,
}

impl Others {
    fn put(&self, elsewhere: OtherStores, now: Timestamp) {
        self.stores.store(elsewhere.stores, Ordering::Relaxed);
        self.regions.store(elsewhere.regions, Ordering::Relaxed);
        self.cut_off.store(elsewhere.cut_off, Ordering::Relaxed);
        let until = if elsewhere.settled { now + SAID_FOR } else { Timestamp::default() };
        self.settled.store(until.0, Ordering::Relaxed);
        self.silence.store(elsewhere.silence.0, Ordering::Relaxed);
    }

    fn get(&self, now: Timestamp) -> OtherStores {
        let settled = now.0 <= self.settled.load(Ordering::Relaxed);
        let silence = Span(self.silence.load(Ordering::Relaxed));
        let stores = self.stores.load(Ordering::Relaxed);
        let regions = self.regions.load(Ordering::Relaxed);
        let cut_off = self.cut_off.load(Ordering::Relaxed);
        OtherStores { stores, regions, settled, own_store: self.own_store, silence, cut_off }
    }
}

/// Returns what is known beside an answer. The contents of a store that did not give the answer are not known
/// either.
pub(super) const fn of_answer(elsewhere: OtherStores, degraded: bool) -> OtherStores {
    match elsewhere.own_store {
        OwnStore::Lasting if degraded => OtherStores { own_store: OwnStore::Unanswered, ..elsewhere },
        _ => elsewhere,
    }
}

impl Engine {
    /// Says that others may admit of the same limits before the protocol between regions has found anybody:
    /// only where this daemon speaks with others. `forgets` is whether the store lives no longer than this
    /// process. To be called after [`Self::sharing`].
    #[must_use]
    pub fn among_others(mut self, forgets: bool) -> Self {
        if forgets {
            self.others.own_store = OwnStore::Begun(self.clock.now());
        }
        let named = u64::try_from(self.shares.regions().names.len()).unwrap_or(u64::MAX);
        self.others.stores = AtomicU64::new(named.saturating_sub(1).max(1));
        self.others.regions = AtomicU64::new(named);
        self
    }

    pub(super) fn elsewhere(&self, now: Timestamp) -> OtherStores {
        self.others.get(now)
    }

    /// The same, and the time.
    pub(super) fn elsewhere_of(&self, degraded: bool) -> (OtherStores, Timestamp) {
        let now = self.clock.now();
        (of_answer(self.elsewhere(now), degraded), now)
    }

    /// The regions that are known.
    pub(super) fn regions_known(&self) -> RegionsKnown {
        let count = self.others.regions.load(Ordering::Relaxed);
        RegionsKnown { count, is_cut: self.others.cut_off.load(Ordering::Relaxed) }
    }

    pub(super) fn put_elsewhere(&self, elsewhere: OtherStores) {
        self.others.put(elsewhere, self.clock.now());
    }
}

/// Permits by which a bucket's worldwide use may exceed what its region believes. `whole` is the limit in all
/// regions, `own` what this region is held to, and `answered` what its store said, with what the protocol
/// between regions worked out.
///
/// Never too small: rights that are on their way, or whose fate nobody knows, count as used by others.
#[must_use]
pub(super) fn of_bucket(
    mode: Mode,
    algorithm: Algorithm,
    (whole, own): (&Limit, &Limit),
    answered: &BucketAnswer,
    (elsewhere, now): (OtherStores, Timestamp),
) -> u64 {
    match mode {
        Mode::Gossip if own == whole => uncertainty::error_bound(algorithm, whole, answered, elsewhere, now),
        // This region tells nobody of all its buckets, so the others may have spent all.
        Mode::Gossip => {
            let unheard = BucketAnswer { view: None, ..*answered };
            uncertainty::error_bound(algorithm, whole, &unheard, elsewhere, now)
        }
        // The others may have spent all that is not ours.
        Mode::Split => whole.capacity(algorithm).saturating_sub(own.capacity(algorithm)),
        // The permits used and left here are the rights that this region holds now, with any store; nobody
        // else can have spent those.
        Mode::Escrow => {
            whole.capacity(algorithm).saturating_sub(answered.used.saturating_add(answered.remaining))
        }
    }
}

/// The limit that an answer shows, in permits: as many as its bucket holds, so that no more than that is ever
/// left.
///
/// `whole` is the limit in all regions, `own` what this region is held to. Beside its own share a region's
/// bucket may hold rights of others under `escrow`, so there it is the whole limit.
#[must_use]
pub(super) fn shown_limit(rule: &Rule, whole: &Limit, own: &Limit) -> u32 {
    let escrowed = rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow);
    let shown = if escrowed { whole } else { own };
    u32::try_from(shown.capacity(rule.algorithm)).unwrap_or(u32::MAX)
}

/// Returns for every worldwide rule in force its name, the worst bound of its buckets, and what that is due
/// to; see [`WorldStatus::error_bounds`]. `status` has those that the protocol between regions follows
/// buckets of; of the others at most [`QUIET_MAX`] are told.
pub(super) fn of_rules(
    loaded: &Loaded,
    status: &WorldStatus,
    elsewhere: OtherStores,
) -> Vec<(String, u64, &'static str)> {
    let told: HashMap<&str, (u64, &'static str)> = status
        .error_bounds
        .iter()
        .map(|(rule, bound, because)| (rule.as_str(), (*bound, *because)))
        .collect();
    let rights: HashMap<&str, &EscrowRule> =
        status.rights.iter().map(|rights| (rights.rule.as_str(), rights)).collect();
    let spoken: BTreeSet<&str> = told.keys().chain(rights.keys()).copied().collect();
    let counts = |compiled: &&Arc<Compiled>| {
        compiled.rule.global.is_some() && compiled.rule.enabled && compiled.rule.action.counts()
    };
    let quiet = loaded.set.worldwide().iter().filter(counts);
    // However many rules there are, no more of them are looked at than are told of.
    let quiet = quiet.filter(|compiled| !spoken.contains(compiled.rule.name.as_str())).take(QUIET_MAX);
    let moving = spoken.iter().filter_map(|name| loaded.set.by_name(name)).filter(counts);
    let reason = if status.begins { "start" } else { "room" };
    let bounds = moving.chain(quiet).map(|compiled| {
        let (name, algorithm) = (compiled.rule.name.as_str(), compiled.rule.algorithm);
        let (told, rights) = (told.get(name), rights.get(name));
        let (bound, because) = match loaded.own_of(compiled) {
            Some(own) => {
                let held = least_held(algorithm, own.capacity(algorithm), rights.copied());
                (compiled.limit.capacity(algorithm).saturating_sub(held), "shares")
            }
            None => {
                let told = told.copied().unwrap_or((0, "none"));
                let all = compiled.limit.capacity(algorithm).saturating_mul(elsewhere.stores);
                let crowded = loaded.crowded(compiled).is_some() && all > told.0;
                if crowded { (all, reason) } else { told }
            }
        };
        (name.to_owned(), bound, if bound > 0 { because } else { "none" })
    });
    bounds.collect()
}

/// The least that this region holds of any of a rule's buckets, going by its `share` and by what moved.
fn least_held(algorithm: Algorithm, share: u64, rights: Option<&EscrowRule>) -> u64 {
    match rights {
        // Permits that flow from a bucket without windows stay charged to it, or refill.
        Some(_) if algorithm.counting() == Counting::Level => share,
        Some(rights) if rights.in_doubt > 0 => 0,
        // In the worst case all that was given came from one bucket.
        Some(rights) => share.saturating_sub(rights.given.values().copied().fold(0, u64::saturating_add)),
        None => share,
    }
}

/// Returns what the gauges of single rules change to when `after` is published where `before` was: name of
/// the gauge, rule and value. The gauges of a rule that is no longer there come first, as zero.
pub(super) fn rule_gauges<'a>(
    before: &'a WorldStatus,
    after: &'a WorldStatus,
) -> impl Iterator<Item = (&'static str, &'a str, u64)> {
    let (was, is) = (of_status(before), of_status(after));
    let gone: Vec<_> =
        was.keys().filter(|of| !is.contains_key(of)).map(|(gauge, rule)| (*gauge, *rule, 0)).collect();
    let changed = is.into_iter().filter(move |(of, value)| was.get(of) != Some(value));
    gone.into_iter().chain(changed.map(|((gauge, rule), value)| (gauge, rule, value)))
}

/// By gauge and rule.
fn of_status(status: &WorldStatus) -> BTreeMap<(&'static str, &str), u64> {
    let bounds =
        status.error_bounds.iter().map(|(rule, bound, _)| (("global_error_bound", rule.as_str()), *bound));
    let rights = status.rights.iter().flat_map(|rights| {
        let burning = u64::try_from(rights.in_doubt).unwrap_or(u64::MAX);
        [("rights_free", rights.free), ("rights_under_way", rights.under_way), ("rights_burning", burning)]
            .map(|(gauge, value)| ((gauge, rights.rule.as_str()), value))
    });
    bounds.chain(rights).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::algorithm::{Allowance, WindowAllowance};
    use crate::core::regions::NodeName;
    use crate::core::request::{Cost, Request};
    use crate::core::wire::RuleName;
    use crate::database::document;
    use crate::engine::Engine;
    use crate::engine::clock::Clock;
    use crate::engine::port::Answer;
    use crate::engine::world::WorldPort;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::Metrics;

    fn status(bounds: &[(&str, u64)], rights: &[(&str, u64)]) -> WorldStatus {
        let rights = rights.iter().map(|(rule, free)| EscrowRule {
            rule: (*rule).to_owned(),
            free: *free,
            ..EscrowRule::default()
        });
        let bounds = bounds.iter().map(|(rule, bound)| ((*rule).to_owned(), *bound, "lag"));
        WorldStatus { error_bounds: bounds.collect(), rights: rights.collect(), ..WorldStatus::default() }
    }

    #[test]
    fn the_gauges_of_a_rule_that_is_gone_fall_to_zero() {
        let before = status(&[("kept", 4), ("gone", 7)], &[("gone", 3)]);
        let after = status(&[("kept", 5), ("new", 6)], &[]);
        let set: Vec<_> = rule_gauges(&before, &after).collect();
        let expected = [
            ("global_error_bound", "gone", 0),
            ("rights_burning", "gone", 0),
            ("rights_free", "gone", 0),
            ("rights_under_way", "gone", 0),
            ("global_error_bound", "kept", 5),
            ("global_error_bound", "new", 6),
        ];
        assert_eq!(set, expected);
        assert_eq!(rule_gauges(&after, &after).count(), 0, "only once");
    }

    #[test]
    fn every_worldwide_rule_is_published_and_one_that_goes_is_published_no_more() {
        let rule = |name: &str, algorithm: &str, mode: &str| {
            format!(
                "[[rules]]\nname = \"{name}\"\nalgorithm = \"{algorithm}\"\nlimit = 12\nwindow = \"1m\"\n\
                 [rules.global]\nmode = \"{mode}\"\nshares = {{ here = 1, there = 2 }}\n"
            )
        };
        let gossips = rule("told", "fixed_window", "gossip").replace("shares = { here = 1, there = 2 }", "");
        let all = [
            gossips.clone(),
            gossips.replace("told", "quiet"),
            rule("split", "token_bucket", "split"),
            rule("moved", "fixed_window", "escrow"),
            rule("still", "sliding_window", "escrow"),
        ];
        let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
        let store = Arc::new(MemoryStore::new(100));
        let engine = Engine::new(name, Clock::Manual(1_800_000_000_000_000.into()), store, Metrics::new());
        let load = |text: &str| {
            let read = document::from_toml("rules.toml", text, &[]).unwrap();
            engine.load(read.rules, read.users, false).unwrap();
        };
        let published = |status: WorldStatus| {
            WorldPort::publish(&engine, status);
            let mut bounds = engine.world().error_bounds.clone();
            bounds.sort();
            bounds
                .into_iter()
                .map(|(rule, bound, because)| format!("{rule} {bound} {because}"))
                .collect::<Vec<_>>()
        };
        let gauge = |rule: &str| {
            let text = engine.metrics().render();
            let line = format!("tidegate_global_error_bound{{rule=\"{rule}\"}} ");
            text.lines().find_map(|one| one.strip_prefix(line.as_str())).map(str::to_owned)
        };
        load(&all.concat());
        let mut told = status(&[("told", 3)], &[("moved", 1)]);
        told.rights[0].given.insert("there".to_owned(), 2);
        let expected = ["moved 10 shares", "quiet 0 none", "split 8 shares", "still 8 shares", "told 3 lag"];
        assert_eq!(published(told.clone()), expected);
        assert_eq!((gauge("told").as_deref(), gauge("moved").as_deref()), (Some("3"), Some("10")));
        let names =
            ["quiet", "split"].map(|name| RuleName { domain: "default".to_owned(), name: name.to_owned() });
        engine.crowded(&names, 3);
        WorldPort::elsewhere(&engine, OtherStores { stores: 2, ..OtherStores::default() });
        let crowded = ["moved 10 shares", "quiet 24 room", "split 8 shares", "still 8 shares", "told 3 lag"];
        assert_eq!(published(told.clone()), crowded);
        let begins = WorldStatus { begins: true, ..told.clone() };
        let begun = ["moved 10 shares", "quiet 24 start", "split 8 shares", "still 8 shares", "told 3 lag"];
        assert_eq!(published(begins), begun);
        engine.crowded(&[], 3);
        assert_eq!(published(told.clone()), expected, "there is room again");
        told.rights[0].in_doubt = 1;
        assert_eq!(published(told)[0], "moved 12 shares", "what this region minted may be spent");
        load(&all[2]);
        assert_eq!(published(WorldStatus::default()), ["split 8 shares"]);
        assert_eq!((gauge("told").as_deref(), gauge("split").as_deref()), (Some("0"), Some("8")));
    }

    #[test]
    fn a_rule_that_denies_admits_nothing_of_an_idle_bucket_while_a_region_is_known_to_be_cut_off() {
        for algorithm in
            ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra"]
        {
            let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
            let store = Arc::new(MemoryStore::new(100));
            let clock = Clock::Manual(1_800_000_000_000_000.into());
            let engine = Engine::new(name, clock, store, Metrics::new()).among_others(false);
            let rule = |name: &str, on_partition: &str| {
                format!(
                    "[[rules]]\nname = \"{name}\"\nmatch = {{ how = \"{name}\" }}\nper = [\"user\"]\nlimit = 9\n\
                     window = \"1m\"\nalgorithm = \"{algorithm}\"\n\
                     [rules.global]\nmode = \"gossip\"\non_partition = \"{on_partition}\"\n"
                )
            };
            let text = [rule("denies", "deny"), rule("shares", "share")].concat();
            let read = document::from_toml("rules.toml", &text, &[]).unwrap();
            engine.load(read.rules, read.users, false).unwrap();
            let admitted = |user: &str, how: &str| {
                let attributes = [("user", user), ("how", how)].into_iter().collect();
                let asked = [Request::new("default", attributes, Cost::Take(1))];
                let decided = |_: &u32| match engine.decide(&asked) {
                    Answer::Now(decisions) => decisions[0].allowed,
                    Answer::Later(_) => false,
                };
                (0..9).filter(decided).count()
            };
            let known = |cut_off| OtherStores { stores: 2, regions: 3, cut_off, ..OtherStores::default() };
            WorldPort::elsewhere(&engine, known(true));
            assert_eq!((admitted("ann", "denies"), admitted("ann", "shares")), (0, 3), "{algorithm}");
            WorldPort::elsewhere(&engine, known(false));
            assert_eq!(admitted("bob", "denies"), 3, "{algorithm}: all are heard again");
        }
    }

    #[test]
    fn what_is_not_ours_the_others_may_have_spent() {
        let limit =
            |permits, burst| Limit { calendar: None, permits, window: Span::from_secs(60), burst, queue: 0 };
        let (whole, own) = (limit(100, 900), limit(30, 270));
        let now = Timestamp(7 * 60_000_000);
        let view = Some(Allowance::Window(WindowAllowance { window: 7, ..WindowAllowance::default() }));
        let answered = BucketAnswer { used: 12, remaining: 28, view, error_bound: 5 };
        let elsewhere = (OtherStores { stores: 2, settled: true, ..OtherStores::default() }, now);
        let bound = |mode, algorithm| of_bucket(mode, algorithm, (&whole, &own), &answered, elsewhere);
        let told = of_bucket(Mode::Gossip, Algorithm::FixedWindow, (&whole, &whole), &answered, elsewhere);
        assert_eq!(told, 5);
        // Held to its share, since not every bucket is followed: the others need not know of it.
        assert_eq!(bound(Mode::Gossip, Algorithm::FixedWindow), 200);
        assert_eq!(bound(Mode::Split, Algorithm::FixedWindow), 70);
        assert_eq!(bound(Mode::Split, Algorithm::TokenBucket), 630);
        // Ten were taken from others.
        assert_eq!(bound(Mode::Escrow, Algorithm::FixedWindow), 60);
        assert_eq!(bound(Mode::Escrow, Algorithm::Gcra), 860);
        let answered = BucketAnswer { used: u64::MAX, remaining: 1, ..answered };
        let more = of_bucket(Mode::Escrow, Algorithm::FixedWindow, (&whole, &own), &answered, elsewhere);
        assert_eq!(more, 0);
    }
}
