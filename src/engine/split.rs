//! Fixed shares in force: what `split` rules are held to in this region, and the word that lets them change.
//!
//! The pure machine [`Split`] decides; here its answers are kept where decisions read them without waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use super::Engine;
use super::port::{ForeseenRule, HeldLimit};
use crate::core::algorithm::{Counting, Limit};
use crate::core::key::Shape;
use crate::core::region_list::RegionList;
use crate::core::regions::NodeName;
use crate::core::regions::escrow::level::RECOVERY_WINDOW;
use crate::core::regions::escrow::moves_as;
use crate::core::regions::escrow::places::{Margins, counted_for};
use crate::core::regions::escrow::window::marks::{are_marked, has_marks};
use crate::core::regions::split::{
    InForce, Saved, ShareStatus, Split, SplitRule, StartSafety, WeightsStatement,
};
use crate::core::rule::Mode;
use crate::core::ruleset::{Compiled, RuleSet, Shapes};
use crate::core::share::Weights;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::RuleName;

/// One rule's share in this region, as decisions read it.
#[derive(Debug)]
pub(super) struct Share {
    rule: RuleName,
    /// True for an `escrow` rule whose rights move between regions.
    moves: bool,
    /// True if this daemon speaks with others, who may send what is missing.
    pub(super) others: bool,
    part: ArcSwap<Part>,
}

/// A share worked out for the rule's own limit, which is nearly always the one asked for.
#[derive(Debug)]
struct Part {
    region: Arc<str>,
    in_force: InForce,
    whole: Limit,
    part: Limit,
}

impl Part {
    fn new(region: Arc<str>, in_force: InForce, whole: Limit) -> Self {
        // Its share grew when nothing that was spent of this limit counted any more.
        let of = |permits: u32| u32::try_from(in_force.of(u64::from(permits), &region)).unwrap_or(permits);
        let (permits, burst, queue) = (of(whole.permits), of(whole.burst), of(whole.queue));
        let part = Limit { permits, burst, queue, ..whole };
        Self { region, in_force, whole, part }
    }
}

impl Share {
    /// Returns whether nothing may be spent, nor the store be asked, because the regions have not agreed yet.
    pub(super) fn waits(&self) -> bool {
        self.part.load().in_force.waits()
    }

    /// True if this region's part is smaller than its share, which has just grown.
    pub(super) fn grows(&self) -> bool {
        let part = self.part.load();
        part.in_force.grows(u64::from(part.whole.permits), &part.region)
    }

    /// This region's part of the rule's own limit.
    pub(super) fn own(&self) -> Limit {
        self.part.load().part
    }

    /// This region's part of `limit` at `now`. The part is the whole limit, and beside it the region's own
    /// share, if rights to all of it move.
    pub(super) fn of(&self, limit: Limit, now: Timestamp) -> HeldLimit {
        let part = self.part.load();
        let held = if limit == part.whole { part.part } else { part.in_force.part(limit, &part.region, now) };
        match self.moves {
            true => HeldLimit { limit, share: Some(held.permits) },
            false => held.into(),
        }
    }
}

/// The machine, and the regions that share where a rule names none.
#[derive(Debug)]
pub(super) struct Shares {
    regions: ArcSwap<RegionList>,
    /// True if this daemon speaks with others, so that places and capacity can be lent.
    pub(super) lends: bool,
    split: Mutex<Split>,
}

impl Shares {
    pub(super) fn new(name: NodeName, regions: RegionList, saved: Option<Saved>) -> Self {
        let regions = ArcSwap::from_pointee(regions);
        Self { regions, lends: false, split: Mutex::new(Split::new(name, saved)) }
    }

    /// The regions that share limits.
    pub(super) fn regions(&self) -> Arc<RegionList> {
        self.regions.load_full()
    }

    pub(super) fn machine(&self) -> MutexGuard<'_, Split> {
        self.split.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `split` and `escrow` rules of a set, as the machine wants them.
    pub(super) fn rules(&self, set: &RuleSet) -> Vec<SplitRule> {
        let regions = self.regions();
        let splits = |compiled: &&Arc<Compiled>| {
            let rule = &compiled.rule;
            rule.enabled
                && rule.action.counts()
                && rule.global.as_ref().is_some_and(|global| global.mode != Mode::Gossip)
        };
        let rule = |compiled: &Arc<Compiled>| {
            let global = compiled.rule.global.as_ref()?;
            let algorithm = compiled.rule.algorithm;
            let recall = match moves_as(algorithm) {
                _ if global.mode != Mode::Escrow => Span::ZERO,
                Counting::Window => Span::ZERO,
                // Permits that a larger capacity was charged with must have come, and be kept no more.
                Counting::Level => RECOVERY_WINDOW,
                Counting::Concurrency => Margins::USUAL.recall(counted_for(algorithm, compiled.limit.window)),
            };
            Some(SplitRule {
                name: RuleName { domain: compiled.rule.domain.clone(), name: compiled.rule.name.clone() },
                weights: Weights::among(&global.shares, &global.minimums, &regions),
                algorithm,
                limit: compiled.limit,
                recall,
            })
        };
        set.worldwide().iter().filter(splits).filter_map(rule).collect()
    }
}

/// Returns what a compiled rule is held to by the machine; `None` for a rule that is not shared out.
pub(super) fn share_of(split: &Split, compiled: &Compiled, region: &Arc<str>, lends: bool) -> Option<Share> {
    let global = compiled.rule.global.as_ref().filter(|global| global.mode != Mode::Gossip)?;
    let algorithm = compiled.rule.algorithm;
    let whole = match moves_as(algorithm) {
        Counting::Window => true,
        Counting::Concurrency => lends,
        Counting::Level => false,
    };
    let moves = global.mode == Mode::Escrow && whole;
    let rule = RuleName { domain: compiled.rule.domain.clone(), name: compiled.rule.name.clone() };
    let in_force = split.in_force(&rule)?;
    let part = ArcSwap::from_pointee(Part::new(Arc::clone(region), in_force, compiled.limit));
    Some(Share { rule, moves, others: lends, part })
}

impl Engine {
    /// Names the regions among which `split` rules share that name none, and what an earlier process of this
    /// daemon left.
    #[must_use]
    pub fn sharing(mut self, regions: RegionList, saved: Option<Saved>) -> Self {
        self.shares = Shares::new(self.name.clone(), regions, saved);
        self
    }

    /// Sets whether nothing of a rule is spent before every region has said the same list of regions and the
    /// same weights. To be called after [`Self::sharing`], and only where [`Self::follow_shares`] is called
    /// as time passes.
    #[must_use]
    pub fn agreeing(self, agrees: bool) -> Self {
        if agrees {
            let mut split = self.shares.machine();
            let alone = Split::new(self.name.clone(), None);
            *split = std::mem::replace(&mut *split, alone).among(&self.shares.regions());
        }
        self
    }

    /// Lets this process be part of a cluster's first start: it has this name, which no other process has. To
    /// be called after [`Self::agreeing`].
    #[must_use]
    pub fn born(self, life: u64) -> Self {
        let mut split = self.shares.machine();
        let alone = Split::new(self.name.clone(), None);
        *split = std::mem::replace(&mut *split, alone).born(life);
        drop(split);
        self
    }

    /// The rules of a first start that are in force.
    #[doc(hidden)]
    #[must_use]
    pub fn with_start_safety(self, safety: StartSafety) -> Self {
        self.shares.machine().set_safety(safety);
        self
    }

    /// Sets whether places of `escrow` rules are lent, and large costs gathered for: only if a daemon speaks
    /// with others.
    #[must_use]
    pub const fn lending(mut self, lends: bool) -> Self {
        self.shares.lends = lends;
        self
    }

    /// Other regions share limits from now on. Shares that shrink by it do so at once.
    pub fn set_regions(&self, regions: RegionList) {
        // Nobody puts rules in force meanwhile.
        let _shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut split = self.shares.machine();
        self.shares.regions.store(Arc::new(regions));
        let regions = self.shares.regions();
        split.handle_regions(&regions);
        let loaded = self.loaded();
        split.handle_rules(self.clock.now(), self.shares.rules(&loaded.set));
        loaded.set_regions(&regions.names);
        self.put_shares(&split);
    }

    /// The regions that share limits.
    #[must_use]
    pub fn regions(&self) -> Arc<RegionList> {
        self.shares.regions()
    }

    /// Takes in what the other daemons say of the weights they hold, and puts the shares in force whose time
    /// has come.
    pub fn follow_shares(&self, members: impl IntoIterator<Item = (NodeName, Option<WeightsStatement>)>) {
        let now = self.clock.now();
        let mut split = self.shares.machine();
        split.handle_members(now, members);
        if split.handle_timeout(now) {
            self.put_shares(&split);
        }
    }

    /// Asks the store whether it remembers anything from before this process, where that matters and is not
    /// known.
    pub async fn ask_store(&self) {
        let asks = self.shares.machine().asks_store();
        if asks && let Some(is_new) = self.store.is_new().get().await {
            self.shares.machine().handle_store(is_new);
        }
    }

    /// Makes this daemon count as one that had an earlier life: what is said of its beginning cannot be
    /// noted.
    pub fn be_known(&self) {
        self.shares.machine().be_known();
    }

    /// The shapes of the `escrow` rules in force, what they stand for, and a number that no shape had so far:
    /// what a store in memory leaves is named by them.
    #[must_use]
    pub fn escrow_shapes(&self) -> (Vec<(String, Shape)>, u32) {
        let loaded = self.loaded();
        let escrowed = |compiled: &&Arc<Compiled>| {
            compiled.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow)
        };
        let shapes: BTreeSet<Shape> =
            loaded.set.worldwide().iter().filter(escrowed).map(|compiled| compiled.shape).collect();
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner).keep(|shape| shapes.contains(&shape))
    }

    /// Goes on with the shapes that an earlier process named, before any rule is loaded. `false`: they stand
    /// for something else here.
    #[must_use]
    pub fn restore_shapes(&self, kept: (Vec<(String, Shape)>, u32)) -> bool {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner).restore(kept)
    }

    /// Returns whether this process is part of the first start of all regions.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.shares.machine().first_start().is_some()
    }

    /// Tells the store that nothing was spent before it began, where this process is part of a first start:
    /// before [`Self::shares_are_saved`]. A store that does not take it in burns.
    pub async fn begin_first(&self) {
        let first = self.shares.machine().first_start();
        if let Some(start) = first
            && self.store.begin_first(start).get().await
        {
            tracing::info!(
                "this is the first start of all regions: nothing was spent of any limit before it"
            );
        }
    }

    /// Confirms that what [`Self::shares_saved`] said is safe on disk: shares that waited for that are in
    /// force.
    pub fn shares_are_saved(&self, saved: &Saved) {
        let mut split = self.shares.machine();
        if split.handle_saved(saved) {
            self.put_shares(&split);
        }
    }

    /// Tells a store that keeps marks of what is spent which rules are about to be in force. The caller holds
    /// the shapes, so that nobody else puts rules in force meanwhile.
    pub(super) fn foresee(&self, set: &RuleSet, shapes: &Shapes) {
        if !self.store.keeps_marks() {
            return;
        }
        let regions = self.shares.regions();
        let of_windows = set.rules().iter().filter(|compiled| {
            moves_as(compiled.rule.algorithm) == Counting::Window && are_marked(compiled.limit.windows())
        });
        let share = |compiled: &Compiled| {
            let global = compiled.rule.global.as_ref().filter(|_| has_marks(&compiled.rule))?;
            let weights = Weights::among(&global.shares, &global.minimums, &regions);
            let whole = u64::from(compiled.limit.permits);
            let divided = weights.parts().any(|(_, weight, minimum)| weight > 0 || minimum > 0);
            Some(if divided { weights.of(whole, &self.name.region) } else { whole })
        };
        let found: BTreeMap<Shape, Option<u64>> =
            of_windows.map(|compiled| (compiled.shape, share(compiled))).collect();
        let (named, next) = shapes.keep(|shape| found.contains_key(&shape));
        let foreseen: Vec<ForeseenRule> = named
            .into_iter()
            .filter_map(|(identity, shape)| {
                Some(ForeseenRule { shape, identity, share: *found.get(&shape)? })
            })
            .collect();
        self.store.foresee(&foreseen, next, self.clock.now());
    }

    fn put_shares(&self, split: &Split) {
        for share in self.loaded.load().shares() {
            let Some(in_force) = split.in_force(&share.rule) else { continue };
            let before = share.part.load();
            share.part.store(Arc::new(Part::new(Arc::clone(&before.region), in_force, before.whole)));
        }
    }

    /// Returns what must be safe on disk before the word is said to the others.
    #[must_use]
    pub fn shares_saved(&self) -> (Saved, WeightsStatement) {
        let split = self.shares.machine();
        (split.saved(), split.word())
    }

    /// Returns how the share of each `split` rule stands.
    #[must_use]
    pub fn shares_standing(&self) -> Vec<ShareStatus> {
        self.shares.machine().standings()
    }
}
