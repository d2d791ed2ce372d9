//! Fixed shares of a limit, changed while all regions admit: `split` mode.
//!
//! Each region enforces its own share and asks nobody. Only when an operator changes the weights do regions
//! have to know of each other, since for a while some hold the old weights and some the new. So a daemon that
//! loads new weights takes at once the *smaller* of its old and its new share, and the larger one only when
//! every other daemon has said that it holds the same weights too: shrink before grow. A word that is missing
//! keeps the smaller share in force, which is safe.
//!
//! What a daemon says is one number for all of its weights, the *digest*, and a *stamp* that orders what is
//! said (Lamport 1978). Loading weights takes a stamp above all that were seen; a word counts as an answer to
//! it only with the same digest and no smaller stamp, so a word from before an earlier change of mind never
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
use smallvec::SmallVec;

use super::super::algorithm::{Algorithm, Limit};
use super::super::region_list::RegionList;
use super::super::share::Weights;
use super::super::time::{Span, Timestamp};
use super::super::wire::RuleName;
use super::NodeName;

/// So far apart the clocks of two regions may be: a share of windows grows in one that nobody's clock has
/// reached, since what others spent of their larger shares there counts by their clocks.
const CLOCKS_APART: Span = Span::from_secs(2);
/// Most weights that one rule may have pending at once. With more the rule's share is nothing until the
/// others agree.
pub const PENDING_MAX: usize = 8;
/// Most changes of one rule's weights that are remembered for limits that count for longer than the rule's.
/// Of more the two oldest count as one.
pub const FORMER_MAX: usize = 8;
/// Most rules remembered after they were removed, in case they come back with other weights.
pub const REMOVED_MAX: usize = 1_000;

/// What the machine must know of a `split` rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitRule {
    /// Its name.
    pub name: RuleName,
    /// Its weights, as loaded.
    pub weights: Weights,
    /// How it counts, which says when a larger share may begin.
    pub algorithm: Algorithm,
    /// What it admits worldwide.
    pub limit: Limit,
    /// How long others may still use what a region lent, or forwarded, of a larger share; zero where nothing
    /// is.
    pub recall: Span,
}

/// What a daemon spends of the weights that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Phase {
    /// Nothing, and it never did: it waits for the others to say the same.
    Waiting,
    /// The smaller of several shares, or it did so until just now.
    Changing,
    /// Its share by these weights, and nothing of rules that it still waits with.
    Settled,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Changing, Self::Settled];

    /// The word that travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Changing => "changing",
            Self::Settled => "settled",
        }
    }
}

/// What a daemon says of the weights it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WeightsStatement {
    /// Orders what is said.
    pub stamp: u64,
    /// Names all of its weights, and its list of regions.
    pub digest: u64,
    /// What it spends of them.
    pub phase: Phase,
}

/// The weights one rule is held to: the least share by any of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InForce {
    /// The newest last; empty: nothing may be spent.
    weights: Vec<Weights>,
    /// Whether the other regions have not said yet that they hold the same.
    waits: bool,
    /// By which something was spent that may count still, of limits that count for longer than the rule's.
    former: Vec<EarlierShare>,
    /// How the rule counts, and how long others may use what a region lent.
    counts: Option<(Algorithm, Span)>,
}

/// What a rule was held to until its share grew.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct EarlierShare {
    /// When everybody had said that it holds the newer weights: since then nobody has spent more.
    agreed: Timestamp,
    /// The least share by any of them; empty: nothing.
    weights: Vec<Weights>,
}

fn least(weights: &[Weights], total: u64, region: &str) -> u64 {
    weights.iter().map(|weights| weights.of(total, region)).min().unwrap_or(0)
}

impl InForce {
    /// Whether nothing may be spent because the regions have not agreed yet. Then the store is not to be
    /// asked at all: it would remember a share of nothing.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// What `region` may spend of `total` permits.
    #[must_use]
    pub fn of(&self, total: u64, region: &str) -> u64 {
        least(&self.weights, total, region)
    }

    /// The part that `region` may spend at `now` of any limit, the rule's or another: of one that counts for
    /// longer the least that it had since.
    #[must_use]
    pub fn part(&self, limit: Limit, region: &str, now: Timestamp) -> Limit {
        let counts_still = |former: &&EarlierShare| {
            self.counts
                .is_some_and(|(algorithm, recall)| now < growth(algorithm, limit, recall, former.agreed))
        };
        let former: SmallVec<[&EarlierShare; 2]> = self.former.iter().filter(counts_still).collect();
        let part = |total: u32| {
            let by = |weights: &[Weights]| least(weights, total.into(), region);
            let all = former.iter().map(|former| by(&former.weights));
            // A part is never more than the whole.
            u32::try_from(all.fold(by(&self.weights), u64::min)).unwrap_or(total)
        };
        Limit { permits: part(limit.permits), burst: part(limit.burst), queue: part(limit.queue), ..limit }
    }
}

/// What outlives the process, so that a restart in the middle of a change is safe.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Saved {
    stamp: u64,
    digest: u64,
    rules: Vec<SavedRule>,
    /// The list of regions that all of them have agreed on.
    #[serde(default)]
    regions: Option<BTreeSet<String>>,
}

impl Saved {
    /// Whether there never was a `split` rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
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

/// Whether a rule may be spent from, before any change of its weights.
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
    /// More were pending than [`PENDING_MAX`].
    overrun: bool,
    /// The target may be taken alone from here on, as long as everybody still agrees; and since when they
    /// have.
    from: Option<(Timestamp, Timestamp)>,
    /// From when the share in force was taken, and what it was held to before, in case the clock goes back
    /// behind that.
    grown: Option<(Timestamp, Vec<Weights>)>,
    /// No share grows before this.
    earliest: Timestamp,
    /// Oldest first.
    former: Vec<EarlierShare>,
}

impl EarlierShare {
    /// Counts for an older one as well.
    fn join(&mut self, older: Self) {
        let nothing = self.weights.is_empty() || older.weights.is_empty();
        for weights in older.weights {
            if !self.weights.contains(&weights) {
                self.weights.push(weights);
            }
        }
        if nothing || self.weights.len() > PENDING_MAX {
            self.weights.clear();
        }
    }
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

    /// Takes the target alone if its time has come. Whether it has.
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
        // Where the regions agreed for the first time, and at once, nothing had been spent.
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

    /// A clock that went back is in windows again of which others may have spent their larger shares. Whether
    /// it did.
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

/// How a rule's share stands, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareStatus {
    /// The rule.
    pub rule: RuleName,
    /// Whether the share is what the rules in force say.
    pub settled: bool,
    /// Whether nothing is spent at all until the regions have agreed.
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
    /// Those of them whose daemons run no more: their word is not waited for.
    gone: BTreeSet<String>,
    held: BTreeMap<RuleName, RuleShares>,
    others: BTreeMap<NodeName, Option<WeightsStatement>>,
    /// The stamp at which the present weights were loaded.
    loaded: u64,
    word: WeightsStatement,
}

impl Split {
    /// A daemon that begins, with what an earlier process of it has left, if anything. Without it the first
    /// rules that are loaded are trusted as they are.
    #[must_use]
    pub fn new(name: NodeName, saved: Option<Saved>) -> Self {
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
            held: saved.rules.into_iter().map(held).collect(),
            others: BTreeMap::new(),
            loaded: saved.stamp,
            word: WeightsStatement { stamp: saved.stamp, digest: saved.digest, phase: Phase::Waiting },
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

    /// Other regions are listed from now on, of which [`Self::handle_rules`] must be told next. Nothing of it
    /// matters to a daemon that speaks with no other.
    pub fn handle_regions(&mut self, list: &RegionList) {
        let Some(regions) = &mut self.regions else { return };
        *regions = list.names.iter().cloned().collect();
        if !list.removed.contains(&self.name.region) {
            regions.insert(self.name.region.clone());
        }
        self.agreed.take_if(|agreed| agreed != regions);
        self.removed = list.removed.iter().cloned().collect();
        self.gone = list.gone.iter().cloned().collect();
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

    /// Who is known now, and what each last said. `None`: it says nothing of shares.
    pub fn handle_members(
        &mut self,
        now: Timestamp,
        members: impl IntoIterator<Item = (NodeName, Option<WeightsStatement>)>,
    ) {
        self.others = members.into_iter().filter(|(name, _)| *name != self.name).collect();
        let seen = self.others.values().flatten().map(|word| word.stamp).max().unwrap_or(0);
        // The answer to those who loaded after us: we still hold these weights.
        self.word.stamp = self.word.stamp.max(seen);
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

    /// What to say to the others, once [`Self::saved`] is safe on disk.
    #[must_use]
    pub const fn word(&self) -> WeightsStatement {
        self.word
    }

    /// What a rule is held to; `None` for a rule that is not known.
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

    /// What must outlive the process.
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
        }
    }

    /// How each rule stands.
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

    /// Whether all regions have once said the same list of regions as this daemon, or need not.
    #[must_use]
    pub fn has_agreed(&self) -> bool {
        self.regions.is_none() || self.regions == self.agreed
    }

    /// Notes which pending rules everybody agrees on, and from when they may grow.
    fn agree(&mut self, now: Timestamp) {
        if !self.has_agreed() && self.missing_at_start().next().is_none() {
            self.agreed.clone_from(&self.regions);
        }
        // Where nobody's share has shrunk lately, nothing was spent that a first share could count together
        // with.
        let calm = self.others.values().flatten().all(|word| word.phase != Phase::Changing);
        let pending: Vec<RuleName> =
            self.held.iter().filter(|(_, held)| !held.settled()).map(|(name, _)| name.clone()).collect();
        for name in pending {
            let Some(held) = self.held.get(&name) else { continue };
            let agreed = self.missing(held).next().is_none();
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

    /// What this daemon spends of what it says.
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

    /// Whose word is missing before this rule's share may grow.
    fn missing<'a>(&'a self, held: &'a RuleShares) -> Box<dyn Iterator<Item = String> + 'a> {
        if held.start == Start::Waits {
            return Box::new(self.missing_at_start());
        }
        // A region without a part by any of the weights has nothing that could count together with what
        // grows. Of more weights than are kept it is not known who had one.
        let parts = held.weights.iter().flat_map(Weights::parts);
        let regions: BTreeSet<&str> = parts
            .filter(|(_, weight, minimum)| *weight > 0 || *minimum > 0)
            .map(|(region, ..)| region)
            .filter(|region| !self.gone.contains(*region))
            .collect();
        let counts = {
            let regions = regions.clone();
            move |region: &str| {
                let counts = held.overrun || region == self.name.region || regions.contains(region);
                counts && !self.gone.contains(region)
            }
        };
        let silent = self
            .others
            .iter()
            .filter(move |(name, word)| counts(&name.region) && !self.says_the_same(**word));
        Box::new(self.absent(regions).chain(silent.map(|(name, _)| path(name))))
    }

    /// Whose word is missing before anything is spent at the first start: every listed region's and that of
    /// all of its daemons. A daemon of a region that is not listed must not have spent anything.
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

    /// Those of these regions that no daemon is known of.
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

/// From when a larger share of a limit may be spent, if everybody agrees at `now`: not before what others
/// spent of their larger shares can no longer count together with ours.
fn growth(algorithm: Algorithm, limit: Limit, recall: Span, now: Timestamp) -> Timestamp {
    let Limit { permits, window, burst, queue, .. } = limit;
    match algorithm {
        Algorithm::FixedWindow => {
            let windows = limit.windows();
            windows.end(windows.index(now + CLOCKS_APART))
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog => now + times(window, 2),
        // What was held before the shares changed is given back by then, or ends: above a share nothing is
        // renewed.
        Algorithm::Concurrency => now + times(window, 2) + recall,
        // What a full bucket takes to drain; shares are whole, so a small one's may take nearly twice as
        // long.
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => {
            let fill = u64::from(burst).saturating_add(u64::from(queue)).div_ceil(u64::from(permits.max(1)));
            now + times(window, fill.saturating_mul(2).saturating_add(1)) + recall
        }
    }
}

fn path(name: &NodeName) -> String {
    format!("{}/{}", name.region, name.node)
}

const fn times(span: Span, factor: u64) -> Span {
    Span(span.micros().saturating_mul(factor))
}

#[cfg(test)]
mod tests;
