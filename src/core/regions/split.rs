//! Fixed shares of a limit, changed while all regions admit: `split` mode.
//!
//! Each region enforces its own share and asks nobody. Only when an operator changes the weights do regions
//! have to know of each other, since for a while some hold the old weights and some the new. So a daemon that
//! loads new weights takes at once the *smaller* of its old and its new share, and the larger one only when
//! every other daemon has said that it holds the same weights too: shrink before grow. A word that is missing
//! keeps the smaller share in force, which is safe.
//!
//! A daemon says one number for all of its weights, the *digest*, and a *stamp* that orders what is said
//! (Lamport 1978). Loading weights takes a stamp above all that were seen; a word counts as an answer to it
//! only with the same digest and no smaller stamp, so a word from before an earlier change of mind never
//! counts. `docs/concepts/split.md` has the proof.
//!
//! A share grows when what was spent of the rule's limit counts no longer. A limit of a user's own may count
//! for longer: of that the least share is in force that the region had since, until what was spent of it
//! counts no longer either.
//!
//! A daemon that has no memory of an agreement, as at its first start, cannot know whether the others list
//! its region. It spends nothing until a daemon of every listed region has said the same list of regions and
//! the same weights ([`Split::among`]).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::super::algorithm::{Algorithm, Limit};
use super::super::region_list::RegionList;
use super::super::share::Weights;
use super::super::time::{Span, Timestamp};
use super::super::wire::RuleName;
use super::NodeName;

mod birth;
mod in_force;
mod word;

use self::birth::Beginning;
use self::in_force::{EarlierShare, growth};

pub use self::birth::{Birth, StartSafety};
pub use self::in_force::InForce;
pub use self::word::{Phase, WeightsStatement};

/// Most weights that one rule may have pending at once. With more the rule's share is nothing until the
/// others agree.
pub const PENDING_MAX: usize = 8;
/// Most changes of one rule's weights that are remembered for limits that count for longer than the rule's.
/// Beyond that the two oldest count as one.
pub const FORMER_MAX: usize = 8;
/// Most rules remembered after they were removed, in case they come back with other weights.
pub const REMOVED_MAX: usize = 1_000;

/// The facts of a `split` rule that the machine must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitRule {
    /// Domain and name of the rule whose limit is split.
    pub name: RuleName,
    /// Weights of all regions, as this daemon loaded them.
    pub weights: Weights,
    /// Algorithm by which the rule counts, which says when a larger share may begin.
    pub algorithm: Algorithm,
    /// Limit in all regions together, which the shares add up to.
    pub limit: Limit,
    /// Time for which others may still use what a region lent, or forwarded, of a larger share; zero where
    /// nothing is.
    pub recall: Span,
}

/// The state that outlives the process, so that a restart in the middle of a change is safe.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Saved {
    stamp: u64,
    digest: u64,
    rules: Vec<SavedRule>,
    /// The list of regions that all of them have agreed on.
    #[serde(default)]
    regions: Option<BTreeSet<String>>,
    /// Beginning of the process that noted this.
    #[serde(default)]
    birth: Birth,
    /// Regions that were removed after they had said that they have no part.
    #[serde(default)]
    left: BTreeSet<String>,
}

impl Saved {
    /// True if there never was a `split` or `escrow` rule.
    #[must_use]
    pub fn is_without_rules(&self) -> bool {
        self.rules.is_empty()
    }

    /// True if it says no more than that nothing was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && matches!(self.birth, Birth::New { .. })
    }

    /// True if the process that noted this spent nothing, and neither knew of anybody who had.
    fn is_unspent(&self) -> bool {
        let new = matches!(self.birth, Birth::New { .. });
        new && self.regions.is_none() && self.rules.iter().all(|rule| rule.waits)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct SavedRule {
    domain: String,
    name: String,
    weights: Vec<Weights>,
    #[serde(default)]
    waits: bool,
    #[serde(default)]
    former: Vec<EarlierShare>,
}

/// The state of a rule before any change of its weights: whether it may be spent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// No: the regions have not agreed.
    Waits,
    /// They have, and it is not safe on disk yet.
    Agreed,
    /// Yes.
    Done,
}

#[derive(Debug, Clone)]
struct RuleShares {
    start: Start,
    /// `None` for a rule that was removed.
    rule: Option<SplitRule>,
    /// Oldest first; the target last. One alone is settled.
    weights: Vec<Weights>,
    /// True once more weights were pending than [`PENDING_MAX`] allows.
    overrun: bool,
    /// The target may be taken alone from here on, as long as everybody still agrees; and since when they
    /// have.
    from: Option<(Timestamp, Timestamp)>,
    /// From when the share in force was taken, and what it was held to before, in case the clock goes back
    /// behind that.
    grown: Option<(Timestamp, Vec<Weights>)>,
    /// Instant before which no share of the rule grows.
    earliest: Timestamp,
    /// Earlier shares, the oldest first; at most [`FORMER_MAX`].
    former: Vec<EarlierShare>,
}

impl RuleShares {
    /// Nothing at all to go by stands for more than is kept.
    const fn new(weights: Vec<Weights>) -> Self {
        let overrun = weights.is_empty();
        let start = Start::Done;
        let earliest = Timestamp(0);
        Self { start, rule: None, weights, overrun, from: None, grown: None, earliest, former: Vec::new() }
    }

    fn settled(&self) -> bool {
        self.weights.len() <= 1 && !self.overrun && self.start != Start::Waits
    }

    /// Takes the target alone if its time has come. Returns whether it has.
    fn grow(&mut self, now: Timestamp) -> bool {
        let Some((from, agreed)) = self.from.filter(|(from, _)| *from <= now && !self.settled()) else {
            return false;
        };
        if self.start == Start::Waits {
            self.start = Start::Agreed;
            self.overrun = true;
        }
        let target = self.weights.last().cloned().into_iter().collect();
        let before = std::mem::replace(&mut self.weights, target);
        let before = if self.overrun { Vec::new() } else { before };
        // Nothing had been spent if the regions agreed for the first time, and at once.
        if from > Timestamp(0) {
            self.remember(EarlierShare { agreed, weights: before.clone() });
        }
        self.grown = Some((from, before));
        self.overrun = false;
        self.from = None;
        true
    }

    fn remember(&mut self, former: EarlierShare) {
        self.former.push(former);
        if self.former.len() > FORMER_MAX {
            let oldest = self.former.remove(0);
            if let Some(next) = self.former.first_mut() {
                next.join(oldest);
            }
        }
    }

    /// A clock that went back is in windows again of which others may have spent their larger shares. Returns
    /// whether it did.
    fn shrink_back(&mut self, now: Timestamp) -> bool {
        let Some((from, before)) = self.grown.take_if(|(from, _)| now < *from) else { return false };
        let missing = before.iter().filter(|weights| !self.weights.contains(weights));
        let all: Vec<Weights> = missing.chain(&self.weights).cloned().collect();
        self.overrun |= before.is_empty() || all.len() > PENDING_MAX;
        if !self.overrun {
            self.weights = all;
        }
        self.earliest = from;
        true
    }
}

/// The state of a rule's share, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareStatus {
    /// Domain and name of the rule whose share it is.
    pub rule: RuleName,
    /// True if the share is what the rules in force say.
    pub settled: bool,
    /// True if nothing is spent at all until the regions have agreed.
    pub waits: bool,
    /// Regions and daemons that have not said yet that they hold the same weights; at most eight.
    pub waiting_for: Vec<String>,
}

/// One daemon's side. See the module's head.
#[derive(Debug)]
pub struct Split {
    name: NodeName,
    /// The list of regions that must have agreed once; `None`: whatever is loaded first is trusted as it is.
    regions: Option<BTreeSet<String>>,
    /// The list that they have agreed on.
    agreed: Option<BTreeSet<String>>,
    /// Regions that were taken out of the list.
    removed: BTreeSet<String>,
    /// Regions among them whose daemons run no more: their word is not waited for.
    gone: BTreeSet<String>,
    /// Regions of the list that have no part of any rule.
    drained: BTreeSet<String>,
    /// Regions that were removed once they had no part, and what their daemons say who know that they have
    /// none.
    leaving: BTreeMap<String, WeightsStatement>,
    /// Regions among them whose daemons all said it: they spend nothing of what was shared then, whatever
    /// they hear later.
    left: BTreeSet<String>,
    held: BTreeMap<RuleName, RuleShares>,
    others: BTreeMap<NodeName, Option<WeightsStatement>>,
    /// True if an earlier process of it left nothing that tells of having spent anything.
    is_unspent: bool,
    beginning: Beginning,
    /// The stamp at which the present weights were loaded.
    loaded: u64,
    word: WeightsStatement,
}

impl Split {
    /// A daemon that begins, with what an earlier process of it has left, if anything. Without it the first
    /// rules that are loaded are trusted as they are.
    #[must_use]
    pub fn new(name: NodeName, saved: Option<Saved>) -> Self {
        let is_unspent = saved.as_ref().is_none_or(Saved::is_unspent);
        let saved = saved.unwrap_or_default();
        let held = |rule: SavedRule| {
            let start = if rule.waits { Start::Waits } else { Start::Done };
            let held = RuleShares { start, former: rule.former, ..RuleShares::new(rule.weights) };
            (RuleName { domain: rule.domain, name: rule.name }, held)
        };
        Self {
            name,
            regions: None,
            agreed: saved.regions,
            removed: BTreeSet::new(),
            gone: BTreeSet::new(),
            drained: BTreeSet::new(),
            leaving: BTreeMap::new(),
            left: saved.left,
            held: saved.rules.into_iter().map(held).collect(),
            others: BTreeMap::new(),
            is_unspent,
            beginning: Beginning::known(),
            loaded: saved.stamp,
            word: WeightsStatement {
                stamp: saved.stamp,
                digest: saved.digest,
                phase: Phase::Waiting,
                birth: Birth::Known,
            },
        }
    }

    /// The same for a daemon that speaks with daemons of these regions: it spends nothing of a rule that it
    /// loads before all of them have said the same list and the same weights. An agreement on the same list
    /// that an earlier process has left holds.
    #[must_use]
    pub fn among(mut self, list: &RegionList) -> Self {
        self.regions = Some(BTreeSet::new());
        self.handle_regions(list);
        self
    }

    /// The same for a process that is named `life` and that no other process of any daemon is named. If an
    /// earlier one left nothing on the disk, it may be part of a first start; [`Self::handle_store`] must be
    /// told then.
    #[must_use]
    pub const fn born(mut self, life: u64) -> Self {
        if self.is_unspent && self.regions.is_some() {
            self.beginning.be_new(life);
        }
        self
    }

    /// True if the store is to be asked whether it remembers anything: see [`Self::handle_store`].
    #[must_use]
    pub const fn asks_store(&self) -> bool {
        self.beginning.asks_store()
    }

    /// The store is known to remember nothing from before this process, or may.
    pub const fn handle_store(&mut self, is_new: bool) {
        self.beginning.handle_store(is_new);
    }

    /// Hears that this daemon cannot note what it says of its beginning.
    pub const fn be_known(&mut self) {
        self.beginning.be_known();
    }

    /// Names the first start of all, if this process is part of it: nothing was spent of any rule before.
    #[must_use]
    pub const fn first_start(&self) -> Option<u64> {
        self.beginning.first()
    }

    #[doc(hidden)]
    pub const fn set_safety(&mut self, safety: StartSafety) {
        self.beginning.safety = safety;
    }

    /// Other regions are listed from now on, of which [`Self::handle_rules`] must be told next. Nothing of it
    /// matters to a daemon that speaks with no other.
    pub fn handle_regions(&mut self, list: &RegionList) {
        let Some(regions) = &mut self.regions else { return };
        *regions = list.names.iter().cloned().collect();
        if !list.removed.contains(&self.name.region) {
            regions.insert(self.name.region.clone());
        }
        self.agreed.take_if(|agreed| agreed != regions);
        let left = list.removed.iter().filter(|region| self.drained.contains(*region));
        self.leaving.extend(
            left.map(|region| (region.clone(), WeightsStatement { stamp: self.loaded, ..self.word })),
        );
        self.removed = list.removed.iter().cloned().collect();
        self.gone = list.gone.iter().cloned().collect();
        self.drained = list.drained.iter().cloned().collect();
        self.leaving.retain(|region, _| self.removed.contains(region));
        self.left.retain(|region| self.removed.contains(region));
        self.see_off();
    }

    /// Notes which of the regions that were removed have said that they have no part.
    fn see_off(&mut self) {
        let said = |region: &String, last: &WeightsStatement| {
            let mut daemons = self.others.iter().filter(|(name, _)| name.region == *region).peekable();
            let knows = |word: &WeightsStatement| word.digest == last.digest && word.stamp >= last.stamp;
            daemons.peek().is_some() && daemons.all(|(_, word)| word.as_ref().is_some_and(knows))
        };
        let left = self.leaving.iter().filter(|(region, last)| said(region, last));
        let left: Vec<String> = left.map(|(region, _)| region.clone()).collect();
        self.leaving.retain(|region, _| !left.contains(region));
        self.left.extend(left);
    }

    /// These rules are in force now. Shares that shrink do so at once.
    pub fn handle_rules(&mut self, now: Timestamp, rules: Vec<SplitRule>) {
        for held in self.held.values_mut() {
            held.rule = None;
        }
        let start = if self.has_agreed() { Start::Done } else { Start::Waits };
        for rule in rules {
            let fresh = || RuleShares { start, ..RuleShares::new(vec![rule.weights.clone()]) };
            let held = self.held.entry(rule.name.clone()).or_insert_with(fresh);
            if held.start == Start::Waits {
                // Nothing was spent by the weights before.
                if held.weights.last() != Some(&rule.weights) {
                    held.weights = vec![rule.weights.clone()];
                    held.from = None;
                }
            } else if held.weights.last() != Some(&rule.weights) || held.overrun {
                held.weights.retain(|weights| *weights != rule.weights);
                if held.weights.len() >= PENDING_MAX {
                    held.weights.clear();
                    held.overrun = true;
                }
                held.weights.push(rule.weights.clone());
                held.from = None;
            }
            held.rule = Some(rule);
        }
        self.forget_removed();
        let digest = self.digest();
        if digest != self.word.digest {
            let seen = self.others.values().flatten().map(|word| word.stamp).max().unwrap_or(0);
            self.loaded = self.word.stamp.max(seen).max(now.micros()).saturating_add(1);
            self.word = WeightsStatement { stamp: self.loaded, digest, ..self.word };
            for held in self.held.values_mut() {
                held.from = None;
            }
        }
        self.word.phase = self.phase();
    }

    /// Takes in who is known now, and what each last said. `None`: it says nothing of shares.
    pub fn handle_members(
        &mut self,
        now: Timestamp,
        members: impl IntoIterator<Item = (NodeName, Option<WeightsStatement>)>,
    ) {
        self.others = members.into_iter().filter(|(name, _)| *name != self.name).collect();
        let seen = self.others.values().flatten().map(|word| word.stamp).max().unwrap_or(0);
        // The answer to those who loaded after us: we still hold these weights.
        self.word.stamp = self.word.stamp.max(seen);
        self.see_off();
        self.beginning.hear(self.others.values().flatten().map(|word| word.birth));
        self.agree(now);
    }

    /// Takes the shares whose time has come, and gives back those whose time is to come again. `true`: some
    /// share is another than before.
    pub fn handle_timeout(&mut self, now: Timestamp) -> bool {
        let mut moved = false;
        for held in self.held.values_mut() {
            moved |= held.shrink_back(now);
        }
        self.agree(now);
        for held in self.held.values_mut() {
            moved |= held.grow(now);
        }
        self.word.phase = self.phase();
        moved
    }

    /// This is safe on disk: what waited for that may be spent, if it is still what must be there. `true`:
    /// some share is another than before.
    pub fn handle_saved(&mut self, saved: &Saved) -> bool {
        let waiting = self.held.values().any(|held| held.start == Start::Agreed);
        if !waiting || self.saved() != *saved {
            return false;
        }
        for held in self.held.values_mut().filter(|held| held.start == Start::Agreed) {
            held.start = Start::Done;
        }
        self.word.phase = self.phase();
        true
    }

    /// Returns what to say to the others, once [`Self::saved`] is safe on disk.
    #[must_use]
    pub const fn word(&self) -> WeightsStatement {
        WeightsStatement { birth: self.beginning.birth(), ..self.word }
    }

    /// Returns what a rule is held to; `None` for a rule that is not known.
    #[must_use]
    pub fn in_force(&self, rule: &RuleName) -> Option<InForce> {
        let held = self.held.get(rule)?;
        let waits = held.start != Start::Done;
        Some(InForce {
            weights: if held.overrun || waits { Vec::new() } else { held.weights.clone() },
            waits,
            former: held.former.clone(),
            counts: held.rule.as_ref().map(|rule| (rule.algorithm, rule.recall)),
        })
    }

    /// Returns what must outlive the process.
    #[must_use]
    pub fn saved(&self) -> Saved {
        let rules = self.held.iter().map(|(name, held)| SavedRule {
            domain: name.domain.clone(),
            name: name.name.clone(),
            weights: if held.overrun { Vec::new() } else { held.weights.clone() },
            waits: held.start == Start::Waits,
            former: held.former.clone(),
        });
        Saved {
            stamp: self.word.stamp,
            digest: self.word.digest,
            rules: rules.collect(),
            regions: self.agreed.clone(),
            birth: self.beginning.birth(),
            left: self.left.clone(),
        }
    }

    /// Returns how each rule stands.
    #[must_use]
    pub fn standings(&self) -> Vec<ShareStatus> {
        let known = self.held.iter().filter(|(_, held)| held.rule.is_some());
        known
            .map(|(name, held)| ShareStatus {
                rule: name.clone(),
                settled: held.settled(),
                waits: held.start == Start::Waits,
                waiting_for: if held.settled() { Vec::new() } else { self.missing(held).take(8).collect() },
            })
            .collect()
    }

    /// True if all regions have once said the same list of regions as this daemon, or need not.
    #[must_use]
    pub fn has_agreed(&self) -> bool {
        self.regions.is_none() || self.regions == self.agreed
    }

    /// Notes which pending rules everybody agrees on, and from when they may grow.
    fn agree(&mut self, now: Timestamp) {
        if !self.has_agreed() && self.missing_at_start().next().is_none() && self.begins(now) {
            self.agreed.clone_from(&self.regions);
        }
        // Nothing was spent that a first share could count together with if nobody's share has shrunk lately.
        let calm = self.others.values().flatten().all(|word| word.phase != Phase::Changing);
        let pending: Vec<RuleName> =
            self.held.iter().filter(|(_, held)| !held.settled()).map(|(name, _)| name.clone()).collect();
        for name in pending {
            let Some(held) = self.held.get(&name) else { continue };
            let begun = held.start != Start::Waits || self.has_agreed();
            let agreed = begun && self.missing(held).next().is_none();
            let at_once = calm && held.start == Start::Waits;
            let grows = |rule: &SplitRule| (growth(rule.algorithm, rule.limit, rule.recall, now), now);
            let from = held.rule.as_ref().filter(|_| agreed).map(grows);
            if let Some(held) = self.held.get_mut(&name) {
                let later = from.map(|from| {
                    let (from, agreed) = held.from.unwrap_or(from);
                    (from.max(held.earliest), agreed.max(held.earliest))
                });
                held.from = if at_once { later.map(|(_, agreed)| (Timestamp(0), agreed)) } else { later };
            }
        }
    }

    /// True if it is settled how this daemon begins, once every listed region has said the same.
    fn begins(&mut self, now: Timestamp) -> bool {
        let listed = |region: &String| self.regions.iter().flatten().any(|listed| listed == region);
        let others: Vec<(&NodeName, Option<Birth>)> = self
            .others
            .iter()
            .filter(|(name, _)| listed(&name.region) && !self.gone.contains(&name.region))
            .map(|(name, word)| (name, word.map(|word| word.birth)))
            .collect();
        self.beginning.settles(now, &self.name, &others)
    }

    /// Returns what this daemon spends of what it says.
    fn phase(&self) -> Phase {
        let mut held = self.held.values().filter(|held| held.rule.is_some());
        let changes = |held: &RuleShares| held.start == Start::Done && !held.settled();
        if held.clone().any(changes) {
            Phase::Changing
        } else if !self.has_agreed() && held.all(|held| held.start == Start::Waits) {
            Phase::Waiting
        } else {
            Phase::Settled
        }
    }

    /// Returns whose word is missing before this rule's share may grow.
    fn missing<'a>(&'a self, held: &'a RuleShares) -> Box<dyn Iterator<Item = String> + 'a> {
        if held.start == Start::Waits {
            return Box::new(self.missing_at_start());
        }
        // A region without a part by any of the weights has nothing that could count together with what
        // grows. Nobody knows who had one of more weights than are kept.
        let parts = held.weights.iter().flat_map(Weights::parts);
        let regions: BTreeSet<&str> = parts
            .filter(|(_, weight, minimum)| *weight > 0 || *minimum > 0)
            .map(|(region, ..)| region)
            .filter(|region| !self.is_gone(region))
            .collect();
        let counts = {
            let regions = regions.clone();
            move |region: &str| {
                let counts = held.overrun || region == self.name.region || regions.contains(region);
                counts && !self.is_gone(region)
            }
        };
        let silent = self
            .others
            .iter()
            .filter(move |(name, word)| counts(&name.region) && !self.says_the_same(**word));
        Box::new(self.absent(regions).chain(silent.map(|(name, _)| path(name))))
    }

    /// True if nothing more can be spent in a region of what was shared when it was removed: what was spent
    /// before stops to count while a larger share waits.
    fn is_gone(&self, region: &str) -> bool {
        self.gone.contains(region) || self.left.contains(region)
    }

    /// Returns whose word is missing before anything is spent at the first start: every listed region's and
    /// that of all of its daemons. A daemon of a region that is not listed must not have spent anything.
    fn missing_at_start(&self) -> impl Iterator<Item = String> + '_ {
        let rules = self.held.values().filter_map(|held| held.rule.as_ref());
        let named = rules.flat_map(|rule| rule.weights.regions());
        let listed = self.regions.iter().flatten().map(String::as_str).chain(named);
        let listed =
            listed.chain([self.name.region.as_str()]).filter(|region| !self.removed.contains(*region));
        let listed: BTreeSet<&str> = listed.collect();
        let differs = {
            let listed = listed.clone();
            move |name: &NodeName, word: Option<WeightsStatement>| {
                if self.gone.contains(&name.region) {
                    false
                } else if listed.contains(name.region.as_str()) || self.removed.contains(&name.region) {
                    !self.says_the_same(word)
                } else {
                    word.is_some_and(|word| word.phase != Phase::Waiting)
                }
            }
        };
        let silent = self.others.iter().filter(move |(name, word)| differs(name, **word));
        self.absent(listed).chain(silent.map(|(name, _)| path(name)))
    }

    /// Returns those of these regions that no daemon is known of.
    fn absent<'a>(&'a self, regions: BTreeSet<&'a str>) -> impl Iterator<Item = String> + 'a {
        regions
            .into_iter()
            .filter(|region| *region != self.name.region)
            .filter(|region| !self.others.keys().any(|name| name.region == *region))
            .map(str::to_owned)
    }

    fn says_the_same(&self, word: Option<WeightsStatement>) -> bool {
        word.is_some_and(|word| word.digest == self.word.digest && word.stamp >= self.loaded)
    }

    fn forget_removed(&mut self) {
        let removed = self.held.iter().filter(|(_, held)| held.rule.is_none());
        let removed: Vec<RuleName> = removed.map(|(name, _)| name.clone()).skip(REMOVED_MAX).collect();
        for name in removed {
            self.held.remove(&name);
        }
    }

    /// The same in every daemon that holds the same weights for the same rules, and lists the same regions.
    fn digest(&self) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(0x7469_6465, 0x6761_7465);
        let mut text = |text: &str| {
            hasher.write_u64(text.len() as u64);
            hasher.write(text.as_bytes());
        };
        for region in self.regions.iter().flatten() {
            text(region);
        }
        for (name, held) in &self.held {
            let Some(rule) = &held.rule else { continue };
            text(&name.domain);
            text(&name.name);
            for (region, weight, minimum) in rule.weights.parts() {
                text(region);
                text(&weight.to_string());
                text(&minimum.to_string());
            }
        }
        hasher.finish()
    }
}

fn path(name: &NodeName) -> String {
    format!("{}/{}", name.region, name.node)
}

#[cfg(test)]
mod tests;
