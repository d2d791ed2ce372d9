//! A rule set in force, with what the engine keeps beside each rule.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use metrics::Counter;

use super::port::HeldLimit;
use super::split::{self, Share};
use super::unmatched;
use crate::core::algorithm::Limit;
use crate::core::key::{Key, Shape};
use crate::core::regions::gossip::uncertainty::RegionsKnown;
use crate::core::regions::split::Split;
use crate::core::regions::{FirstShare, WorldKey, WorldRule};
use crate::core::rule::{Global, Mode, OnPartition};
use crate::core::ruleset::{Compiled, RuleSet};
use crate::core::share::Weights;
use crate::core::time::Timestamp;
use crate::core::wire::RuleName;
use crate::telemetry::{Metrics, RuleMetrics};

/// A rule set in force. Immutable; a reload swaps the whole.
#[derive(Debug)]
pub struct Loaded {
    /// Compiled rules, which a decision matches against.
    pub set: RuleSet,
    /// Grows by one with every set that takes force.
    pub revision: u64,
    /// True if every rule only logs.
    pub shadow: bool,
    /// Facts that the engine keeps beside each rule, by the rule's number.
    sides: Vec<Option<Arc<Side>>>,
    worldwide: HashMap<Shape, Arc<Compiled>>,
    pub(super) unmatched: unmatched::UnmatchedCounters,
}

/// The part of a rule that the engine keeps beside it.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: Arc<str>,
    pub(super) message: Option<Arc<str>>,
    pub(super) metrics: RuleMetrics,
    /// Penalties that began, of a rule that has them.
    pub(super) penalties: Option<Counter>,
    /// Warnings, of a rule that warns.
    pub(super) warnings: Option<Counter>,
    /// Instant at which it was told last that it blocks, in microseconds; 0: never.
    pub(super) block_told: AtomicU64,
    /// Permits that this region is held to, for a `split` or `escrow` rule.
    share: Option<Share>,
    /// Permits that this region is held to while a `gossip` rule has buckets in use that are not followed.
    alone: Option<Alone>,
}

impl Side {
    fn new(compiled: &Compiled, metrics: &Metrics) -> Self {
        let rule = &compiled.rule;
        // First, since it gives the rule its labels.
        let handles = metrics.rule(&rule.name);
        let counter = |name| metrics.rule_counter(name, &rule.name);
        Self {
            name: rule.name.as_str().into(),
            message: rule.message.as_deref().map(Into::into),
            metrics: handles,
            penalties: rule.penalty.as_ref().map(|_| counter("penalties_total")),
            warnings: rule.warn_at.map(|_| counter("warnings_total")),
            block_told: AtomicU64::new(0),
            share: None,
            alone: None,
        }
    }

    fn with_share(&self, share: Option<Share>, alone: Option<Alone>) -> Self {
        let (name, message) = (Arc::clone(&self.name), self.message.clone());
        let (penalties, warnings) = (self.penalties.clone(), self.warnings.clone());
        let block_told = AtomicU64::new(self.block_told.load(Ordering::Relaxed));
        Self { name, message, metrics: self.metrics.clone(), penalties, warnings, block_told, share, alone }
    }
}

/// This region's share of a `gossip` rule, for the time in which not all of its buckets can be followed.
#[derive(Debug)]
struct Alone {
    region: Arc<str>,
    weights: ArcSwap<Weights>,
    /// Number of regions there are while this holds; else zero.
    regions: AtomicUsize,
    /// Permits that it may use of a bucket that its store knows no view of.
    first: FirstShare,
}

impl Alone {
    fn new(compiled: &Compiled, region: &Arc<str>, regions: &[String]) -> Option<Self> {
        let global = compiled.rule.global.as_ref().filter(|global| global.mode == Mode::Gossip)?;
        let weights = Weights::new(&global.shares, &global.minimums, regions);
        let (weights, first) = (ArcSwap::from_pointee(weights), FirstShare::new(global, region));
        Some(Self { region: Arc::clone(region), weights, regions: AtomicUsize::new(0), first })
    }

    fn of(&self, limit: Limit) -> Limit {
        let regions = self.regions.load(Ordering::Relaxed);
        if regions == 0 {
            return limit;
        }
        // Regions that were seen share alike if nobody named the regions.
        let weights = self.weights.load();
        let unnamed = weights.regions().next().is_none();
        let part = |permits: u32| {
            let whole = u64::from(permits);
            let regions = u64::try_from(regions).unwrap_or(u64::MAX);
            let part = if unnamed { whole / regions } else { weights.of(whole, &self.region) };
            u32::try_from(part).unwrap_or(permits)
        };
        Limit { permits: part(limit.permits), burst: part(limit.burst), queue: part(limit.queue), ..limit }
    }
}

impl Loaded {
    /// Puts a compiled set beside its metrics.
    #[must_use]
    pub fn new(set: RuleSet, revision: u64, shadow: bool, metrics: &Metrics) -> Self {
        let unmatched = unmatched::UnmatchedCounters::new(&set, metrics);
        let mut loaded =
            Self { worldwide: worldwide(&set), sides: Vec::new(), unmatched, set, revision, shadow };
        loaded.sides.resize(loaded.set.numbers(), None);
        for compiled in loaded.set.rules() {
            put(&mut loaded.sides, compiled, Some(Side::new(compiled, metrics)));
        }
        loaded
    }

    /// The same for a set that [`RuleSet::changed`] made of this one's by an exchange of the rules with these
    /// names.
    pub(super) fn changed(
        &self,
        set: RuleSet,
        names: &[String],
        revision: u64,
        shadow: bool,
        metrics: &Metrics,
    ) -> Self {
        let mut sides = self.sides.clone();
        sides.resize(set.numbers(), None);
        for gone in names.iter().filter_map(|name| self.set.by_name(name)) {
            put(&mut sides, gone, None);
        }
        for compiled in names.iter().filter_map(|name| set.by_name(name)) {
            put(&mut sides, compiled, Some(Side::new(compiled, metrics)));
        }
        let unmatched = unmatched::UnmatchedCounters::new(&set, metrics);
        Self { worldwide: worldwide(&set), sides, unmatched, set, revision, shadow }
    }

    /// Holds `split` and `escrow` rules to this region's shares, and says what `gossip` rules may be held to.
    /// `regions` share where a rule names none.
    pub(super) fn sharing(mut self, split: &Split, region: &str, regions: &[String], lends: bool) -> Self {
        let region: Arc<str> = region.into();
        for compiled in self.set.worldwide() {
            let share = split::share_of(split, compiled, &region, lends);
            let alone = Alone::new(compiled, &region, regions);
            let side = self.side(compiled).map(|side| side.with_share(share, alone));
            put(&mut self.sides, compiled, side);
        }
        self
    }

    /// Other regions share from now on where a rule names none: for `gossip` rules. The shares of `split` and
    /// `escrow` rules follow from their machine.
    pub(super) fn set_regions(&self, regions: &[String]) {
        for compiled in self.set.worldwide() {
            let alone = self.side(compiled).and_then(|side| side.alone.as_ref());
            if let Some((alone, global)) = alone.zip(compiled.rule.global.as_ref()) {
                let weights = Weights::new(&global.shares, &global.minimums, regions);
                alone.weights.store(Arc::new(weights));
            }
        }
    }

    /// Holds the `gossip` rules with these names, and no others, to this region's share: some of their
    /// buckets are in use and not followed. `regions` is how many regions there are.
    pub(super) fn crowd(&self, names: &[RuleName], regions: usize) {
        for compiled in self.set.worldwide() {
            let Some(alone) = self.side(compiled).and_then(|side| side.alone.as_ref()) else { continue };
            let rule = &compiled.rule;
            let crowded = names.iter().any(|name| name.domain == rule.domain && name.name == rule.name);
            alone.regions.store(if crowded { regions.max(1) } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Returns what this region is held to of a `gossip` rule's limit, if that is less than the limit now.
    pub(super) fn crowded(&self, rule: &Compiled) -> Option<Limit> {
        let alone = self.side(rule)?.alone.as_ref()?;
        (alone.regions.load(Ordering::Relaxed) > 0).then(|| alone.of(rule.limit))
    }

    /// Returns what this region may use of a `gossip` rule's bucket while its store has no view that speaks
    /// of now, if that is less than `limit`: nothing where the rule denies while a region is cut off.
    pub(super) fn first_of(&self, rule: &Compiled, limit: &Limit, regions: RegionsKnown) -> Option<u32> {
        let alone = self.side(rule)?.alone.as_ref()?;
        // A request's own window counts in a bucket that no other region knows, and one that is held to a
        // share needs no less.
        if limit.windows() != rule.rule.windows() || alone.regions.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let denies = |global: &Global| global.on_partition == OnPartition::Deny;
        if regions.is_cut && rule.rule.global.as_ref().is_some_and(denies) {
            return Some(0);
        }
        alone.first.of(limit.capacity(rule.rule.algorithm), regions.count)
    }

    /// The shares of all `split` and `escrow` rules.
    pub(super) fn shares(&self) -> impl Iterator<Item = &Share> {
        self.sides.iter().flatten().filter_map(|side| side.share.as_ref())
    }

    /// Returns what this region is held to at `now` where a rule or a user is given `limit`.
    pub(super) fn held_to(&self, rule: &Compiled, limit: Limit, now: Timestamp) -> HeldLimit {
        let Some(side) = self.side(rule) else { return limit.into() };
        match (&side.share, &side.alone) {
            (Some(share), _) => share.of(limit, now),
            (None, Some(alone)) => alone.of(limit).into(),
            (None, None) => limit.into(),
        }
    }

    /// True if nothing of a rule may be spent yet, because the regions have not agreed on its weights.
    pub(super) fn waits(&self, rule: &Compiled) -> bool {
        self.side(rule).and_then(|side| side.share.as_ref()).is_some_and(Share::waits)
    }

    /// True if this region's part of a rule is smaller than its share, which has just grown.
    pub(super) fn grows(&self, rule: &Compiled) -> bool {
        self.side(rule).and_then(|side| side.share.as_ref()).is_some_and(Share::grows)
    }

    /// This region's part of a `split` or `escrow` rule's limit; `None` for all other rules.
    pub(super) fn own_of(&self, rule: &Compiled) -> Option<Limit> {
        Some(self.side(rule)?.share.as_ref()?.own())
    }

    /// True if other regions' daemons may send what this region lacks.
    pub(super) fn has_others(&self, rule: &Compiled) -> bool {
        self.side(rule).and_then(|side| side.share.as_ref()).is_some_and(|share| share.others)
    }

    pub(super) fn side(&self, rule: &Compiled) -> Option<&Side> {
        self.sides.get(usize::try_from(rule.number).ok()?)?.as_deref()
    }

    /// The worldwide rule whose buckets have this shape.
    pub(super) fn worldwide(&self, shape: Shape) -> Option<&Arc<Compiled>> {
        self.worldwide.get(&shape)
    }

    /// All worldwide rules, as the protocol wants them.
    #[must_use]
    pub fn world_rules(&self) -> Vec<WorldRule> {
        let counted =
            self.set.worldwide().iter().filter(|compiled| self.worldwide.contains_key(&compiled.shape));
        let rule = |compiled: &Arc<Compiled>| {
            Some(WorldRule {
                name: name_of(compiled),
                algorithm: compiled.rule.algorithm,
                limit: compiled.limit,
                global: compiled.rule.global.clone()?,
            })
        };
        counted.filter_map(rule).collect()
    }

    /// The name that other daemons know a bucket by; `None` if its rule is not worldwide.
    pub(super) fn world_key(&self, key: &Key) -> Option<WorldKey> {
        let compiled = self.worldwide(key.shape())?;
        Some(WorldKey { rule: name_of(compiled), identity: key.identity().to_vec() })
    }

    /// The bucket that other daemons know by this name; `None` if its rule is not worldwide here.
    pub(super) fn local_key(&self, key: &WorldKey) -> Option<(&Arc<Compiled>, Key)> {
        let compiled = self.set.get(&key.rule.domain, &key.rule.name)?;
        self.worldwide(compiled.shape)?;
        Some((compiled, Key::from_identity(compiled.shape, &key.identity)))
    }
}

/// The rules that regions tell each other of, by shape.
fn worldwide(set: &RuleSet) -> HashMap<Shape, Arc<Compiled>> {
    let told = set.worldwide().iter().filter(|compiled| {
        let rule = &compiled.rule;
        rule.global.as_ref().is_some_and(|global| global.mode != Mode::Split)
            && rule.enabled
            && rule.action.counts()
    });
    told.map(|compiled| (compiled.shape, Arc::clone(compiled))).collect()
}

fn put(sides: &mut [Option<Arc<Side>>], compiled: &Compiled, side: Option<Side>) {
    if let Some(place) = usize::try_from(compiled.number).ok().and_then(|number| sides.get_mut(number)) {
        *place = side.map(Arc::new);
    }
}

fn name_of(compiled: &Compiled) -> RuleName {
    RuleName { domain: compiled.rule.domain.clone(), name: compiled.rule.name.clone() }
}
