//! The exchange between decisions and the protocol between regions: counts for it, allowances for the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::excess::Excess;
use super::port::Answer;
#[cfg(doc)]
use super::port::Store;
use super::status::{PeerStatus, WorldStatus};
use super::{Engine, bound};
use crate::core::algorithm::{Algorithm, Counting};
use crate::core::calendar::Windows;
use crate::core::key::Key;
use crate::core::region_list::RegionList;
use crate::core::regions::escrow::{StepRequest, StepResult};
use crate::core::regions::gossip::uncertainty::OtherStores;
use crate::core::regions::{Effect, StoreSeen, Touched, WorldKey, WorldRule};
use crate::core::time::{Span, Timestamp};
use crate::core::wire::{OwnLimit, RuleName};

/// Buckets that may wait to be told; more in one tick are dropped and counted.
pub const TALLIES_MAX: usize = 262_144;
const SLOTS: usize = 64;

/// The window that worldwide counts of this algorithm speak of; zero for those without windows.
pub(super) fn window_of(algorithm: Algorithm, windows: Windows, now: Timestamp) -> u64 {
    match algorithm.counting() {
        Counting::Window => windows.index(now),
        Counting::Level | Counting::Concurrency => 0,
    }
}

/// The changes of one bucket since the last drain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// The window it happened in; zero for algorithms without windows.
    pub window: u64,
    /// Permits that decisions asked for, admitted or not.
    pub offered: u64,
    /// Permits that decisions admitted since the tally was last taken.
    pub admitted: u64,
    /// Permits that were given back since the tally was last taken.
    pub returned: u64,
    /// The largest cost that was refused; zero if none was.
    pub refused: u64,
    /// The largest cost that was asked for.
    pub largest: u64,
    /// The largest limit that it was decided by, in all regions together.
    pub limit: Option<OwnLimit>,
    /// True if that is not the rule's.
    pub is_own: bool,
    /// Memory of the store, as its answers show it.
    pub store: StoreSeen,
}

/// Collects what decisions did to worldwide limits until the protocol asks for it. Bounded; a decision never
/// waits here for longer than another decision's increment.
#[derive(Debug)]
pub struct Tallies {
    slots: Vec<Mutex<HashMap<Key, [Tally; 2], foldhash::fast::RandomState>>>,
    hasher: foldhash::fast::RandomState,
}

impl Default for Tallies {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }
}

impl Tallies {
    /// Adds to a bucket's tally. `false`: there was no room.
    pub fn add(&self, key: &Key, tally: Tally) -> bool {
        use std::hash::BuildHasher;
        let slot = usize::try_from(self.hasher.hash_one(key.bytes()) >> 40).unwrap_or(0) % SLOTS;
        let mut slot = self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some([newer, older]) = slot.get_mut(key) {
            if tally.window == newer.window {
                merge(newer, tally);
            } else if tally.window > newer.window {
                // Between two drains a bucket sees at most the turn of one window.
                *older = std::mem::replace(newer, tally);
            } else {
                older.window = tally.window;
                merge(older, tally);
            }
            return true;
        }
        if slot.len() >= TALLIES_MAX / SLOTS {
            return false;
        }
        slot.insert(key.clone(), [tally, Tally::default()]);
        true
    }

    /// Takes everything out, older windows first.
    pub fn drain(&self, mut each: impl FnMut(&Key, Tally)) {
        for slot in &self.slots {
            let taken = {
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                if slot.is_empty() {
                    continue;
                }
                std::mem::take(&mut *slot)
            };
            for (key, [newer, older]) in taken {
                if older != Tally::default() {
                    each(&key, older);
                }
                each(&key, newer);
            }
        }
    }
}

fn merge(into: &mut Tally, tally: Tally) {
    into.offered = into.offered.saturating_add(tally.offered);
    into.admitted = into.admitted.saturating_add(tally.admitted);
    into.returned = into.returned.saturating_add(tally.returned);
    into.refused = into.refused.max(tally.refused);
    into.largest = into.largest.max(tally.largest);
    into.store.without_allowance |= tally.store.without_allowance;
    into.store.reset |= tally.store.reset;
    into.store.used = into.store.used.max(tally.store.used);
    if tally.limit > into.limit {
        (into.limit, into.is_own) = (tally.limit, tally.is_own);
    }
}

/// The engine as the task asks it that speaks with other daemons. Nothing here waits.
pub trait WorldPort: Send + Sync + 'static {
    /// Takes out what decisions did to worldwide limits since the last call.
    fn drain(&self, into: &mut Vec<Touched>);
    /// Tells the store.
    fn apply(&self, effect: &Effect);
    /// The revision of the rules in force.
    fn revision(&self) -> u64;
    /// The worldwide rules in force, and their revision.
    fn rules(&self) -> (u64, Vec<WorldRule>);
    /// The regions that share limits; `None`: those that the protocol began with, always.
    fn regions(&self) -> Option<Arc<RegionList>> {
        None
    }
    /// The time.
    fn now(&self) -> Timestamp;
    /// Makes known what is known of the others. The port itself knows what to say of worldwide rules without
    /// followed buckets.
    fn publish(&self, status: WorldStatus);
    /// Carries out a step on the rights of an `escrow` rule's bucket; see [`Store::rights`].
    fn rights<'a>(&'a self, ask: &'a StepRequest) -> Answer<'a, Option<StepResult>> {
        let _ = ask;
        Answer::Now(None)
    }
    /// Rights of this region went to another.
    fn rights_moved(&self, to: &str, permits: u64) {
        let _ = (to, permits);
    }
    /// A window of an `escrow` rule's bucket is over: how much was admitted worldwide, of what limit.
    fn window_closed(&self, key: &WorldKey, window: u64, used: u64, limit: u64) {
        let _ = (key, window, used, limit);
    }
    /// No region has rights of a bucket left in a window.
    fn dry(&self, key: &WorldKey, window: u64) {
        let _ = (key, window);
    }
    /// Counts frames and connections that were refused. The reasons are few and fixed.
    fn refused(&self, reason: &'static str, times: u64);
    /// Counts what was passed over as it should be: it came late, early or twice, or comes again. The reasons
    /// are few and fixed.
    fn passed_over(&self, reason: &'static str, times: u64) {
        let _ = (reason, times);
    }
    /// Counts messages that were dropped because a queue was full or a peer away. The queues are few and
    /// fixed.
    fn dropped(&self, queue: &'static str, times: u64);
    /// Counts bytes of messages to and from the daemons of a region.
    fn traffic(&self, region: &str, sent: u64, received: u64);
    /// Counts frames handled, both ways.
    fn updates(&self, frames: u64);
    /// Counts reports that came after the instant at which every region should have used them.
    fn late(&self, reports: u64) {
        let _ = reports;
    }
    /// Tells how many buckets are followed, of all modes, and how many more in use found no room since the
    /// last call.
    fn world_keys(&self, followed: usize, dropped: u64) {
        let _ = (followed, dropped);
    }
    /// Holds the `gossip` rules with these names, and no others, to this region's share, one of `regions`:
    /// some of their buckets are in use and find no room to be followed.
    fn crowded(&self, rules: &[RuleName], regions: usize) {
        let _ = (rules, regions);
    }
    /// Answers go by this from now on: what is known of the stores beside the own one.
    fn elsewhere(&self, elsewhere: OtherStores) {
        let _ = elsewhere;
    }
    /// Counts permits above the limit of a `gossip` rule in closed windows, by what all regions told in the
    /// end.
    fn overshoot(&self, rule: &str, permits: u64);
}

impl WorldPort for Engine {
    fn drain(&self, into: &mut Vec<Touched>) {
        self.drain_touched(into);
    }

    fn apply(&self, effect: &Effect) {
        Self::apply(self, effect);
    }

    fn revision(&self) -> u64 {
        self.loaded().revision
    }

    fn rules(&self) -> (u64, Vec<WorldRule>) {
        self.world_rules()
    }

    fn regions(&self) -> Option<Arc<RegionList>> {
        Some(Self::regions(self))
    }

    fn now(&self) -> Timestamp {
        Self::now(self)
    }

    fn publish(&self, mut status: WorldStatus) {
        let metrics = self.metrics();
        let known = regions(&status.peers);
        // A listed region that nobody heard yet is out of reach as well.
        let regions = self.shares.regions();
        let listed = regions.names.iter().map(String::as_str);
        for unheard in listed.filter(|region| self.shares.lends && !known.contains_key(region)) {
            if unheard != self.name().region {
                metrics.region_gauge("peer_connected", unheard).set(0.0);
            }
        }
        for (region, KnownRegion { connected, rtt, lag, ahead }) in known {
            metrics.region_gauge("peer_connected", region).set(f64::from(connected));
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            if let Some(ahead) = ahead {
                metrics.region_gauge("peer_clock_offset_seconds", region).set(ahead as f64 / 1e6);
            }
            for (name, span) in [("peer_rtt_seconds", rtt), ("peer_lag_seconds", lag)] {
                if let Some(span) = span {
                    metrics.region_gauge(name, region).set(span.to_std().as_secs_f64());
                }
            }
        }
        status.error_bounds = bound::of_rules(&self.loaded(), &status, Self::elsewhere(self, self.now()));
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        for (gauge, rule, value) in bound::rule_gauges(&self.world(), &status) {
            metrics.rule_gauge(gauge, rule).set(value as f64);
        }
        Self::publish(self, status);
    }

    fn overshoot(&self, rule: &str, permits: u64) {
        self.metrics().overshoot(rule).increment(permits);
    }

    fn rights<'a>(&'a self, ask: &'a StepRequest) -> Answer<'a, Option<StepResult>> {
        Self::rights(self, ask)
    }

    fn rights_moved(&self, to: &str, permits: u64) {
        self.metrics().rights_moved(&self.name().region, to).increment(permits);
    }

    fn window_closed(&self, key: &WorldKey, window: u64, used: u64, limit: u64) {
        let rule = key.rule.name.as_str();
        let length = self
            .loaded()
            .set
            .by_name(rule)
            .map_or(Span::ZERO, |compiled| compiled.limit.windows().length_of(window));
        let excess = self.excess.judge(self.now(), rule, length, used, limit);
        let over = if let Excess::Alarm(over) = excess { over } else { 0 };
        self.metrics().overshoot(rule).increment(over);
        if excess == Excess::Explained {
            let more = "more was used than this limit: another was in force here or elsewhere meanwhile";
            tracing::debug!(rule, window, used, limit, "{more}");
        }
        if over > 0 {
            tracing::error!(
                rule,
                window,
                used,
                limit,
                "an escrowed limit was exceeded: check that all regions hold the same rules and that no two stores serve one region"
            );
        }
    }

    fn dry(&self, key: &WorldKey, window: u64) {
        self.note_dry(key, window);
    }

    fn refused(&self, reason: &'static str, times: u64) {
        self.metrics().counter("frames_rejected_total", "reason", reason).increment(times);
    }

    fn passed_over(&self, reason: &'static str, times: u64) {
        self.metrics().counter("reports_passed_over_total", "reason", reason).increment(times);
    }

    fn dropped(&self, queue: &'static str, times: u64) {
        self.metrics().counter("peer_dropped_total", "queue", queue).increment(times);
    }

    fn traffic(&self, region: &str, sent: u64, received: u64) {
        self.metrics().sync_bytes(region, "sent").increment(sent);
        self.metrics().sync_bytes(region, "received").increment(received);
    }

    fn updates(&self, frames: u64) {
        self.metrics().sync_updates.increment(frames);
    }

    fn late(&self, reports: u64) {
        self.metrics().late_reports.increment(reports);
    }

    fn world_keys(&self, followed: usize, dropped: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        self.metrics().world_keys.set(followed as f64);
        self.metrics().world_keys_dropped.increment(dropped);
    }

    fn crowded(&self, rules: &[RuleName], regions: usize) {
        self.loaded().crowd(rules, regions);
    }

    fn elsewhere(&self, elsewhere: OtherStores) {
        self.put_elsewhere(elsewhere);
    }
}

/// The facts known of a region's daemons: links that are up, the shortest round trip, the age of the newest
/// frame, and the clock that is farthest from ours, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KnownRegion {
    connected: u32,
    rtt: Option<Span>,
    lag: Option<Span>,
    ahead: Option<i64>,
}

fn regions(peers: &[PeerStatus]) -> BTreeMap<&str, KnownRegion> {
    let mut regions = BTreeMap::<&str, KnownRegion>::new();
    for peer in peers {
        let known = regions.entry(&peer.name.region).or_default();
        known.connected = known.connected.saturating_add(u32::from(peer.connected));
        known.rtt = [known.rtt, peer.rtt].into_iter().flatten().min();
        known.lag = [known.lag, peer.lag].into_iter().flatten().min();
        known.ahead =
            [known.ahead, peer.ahead].into_iter().flatten().max_by_key(|ahead| ahead.unsigned_abs());
    }
    regions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::key::Shape;

    #[test]
    fn of_a_regions_clocks_the_farthest_is_told() {
        let peer = |node: &str, ahead| PeerStatus {
            name: crate::core::regions::NodeName { region: "eu".to_owned(), node: node.to_owned() },
            address: String::new(),
            connected: true,
            version: None,
            live: true,
            draining: false,
            rtt: None,
            lag: None,
            ahead,
            bytes: (0, 0),
            error: None,
        };
        let peers = [peer("1", Some(4)), peer("2", Some(-9)), peer("3", None), peer("4", Some(2))];
        assert_eq!(
            regions(&peers)["eu"],
            KnownRegion { connected: 4, rtt: None, lag: None, ahead: Some(-9) }
        );
    }

    #[test]
    fn what_an_escrowed_window_had_above_its_limit_is_counted() {
        use crate::core::wire::RuleName;
        let name = crate::core::regions::NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
        let store = Arc::new(crate::store::memory::MemoryStore::new(10));
        let clock = crate::engine::clock::Clock::Manual(1_800_000_000_000_000.into());
        let engine = Engine::new(name, clock, store, crate::telemetry::Metrics::new());
        let rule = "[[rules]]\nname = \"seats\"\nalgorithm = \"fixed_window\"\nlimit = 10\nwindow = \"1s\"\n\
                    [rules.global]\nmode = \"escrow\"\nshares = { here = 1, there = 1 }\n";
        let read = crate::database::document::from_toml("rules.toml", rule, &[]).unwrap();
        engine.load(read.rules, read.users, false).unwrap();
        let alarm = || {
            let text = engine.metrics().render();
            let name = "tidegate_global_overshoot_permits_total{rule=\"seats\"} ";
            text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
        };
        let rule = RuleName { domain: "default".to_owned(), name: "seats".to_owned() };
        let key = WorldKey { rule, identity: Vec::new() };
        engine.window_closed(&key, 7, 10, 10);
        assert_eq!(alarm().as_deref(), Some("0"), "it is there before it is needed");
        engine.window_closed(&key, 8, 13, 10);
        engine.window_closed(&key, 9, 0, 10);
        assert_eq!(alarm().as_deref(), Some("3"));
    }

    #[test]
    fn nothing_is_lost_when_a_window_turns_between_two_drains() {
        let tallies = Tallies::default();
        let key = Key::new(Shape(1), ["a"]);
        let tally = |window, admitted| Tally { window, offered: admitted, admitted, ..Tally::default() };
        for (window, admitted) in [(5, 1), (5, 2), (6, 4), (5, 8), (6, 16)] {
            assert!(tallies.add(&key, tally(window, admitted)));
        }
        let mut seen = Vec::new();
        tallies.drain(|_, tally| seen.push((tally.window, tally.admitted)));
        assert_eq!(seen, [(5, 11), (6, 20)]);
        tallies.drain(|_, _| panic!("drained twice"));
    }
}
