//! Never above the limit, whatever happens: rights that move between regions.
//!
//! Each region mints its share of a window's rights and may spend only what its store holds ([`window`]).
//! Rights move while the window runs: whoever has too many pushes them to whoever will run dry, before it
//! does. Nothing outlives its window, so every error heals with the next one. What a store has forgotten it
//! does not mint again: it burns it. Buckets without windows forward what refills ([`level`]), and places are
//! lent and come home ([`places`]); so is what a sliding window or log may count. Each of the three has a
//! ledger, steps and a planner of its own; what they share is beside them.
//!
//! [`Escrow`] is one daemon's side: a state machine without I/O, clock or lock, beside [`super::Replica`].
//! Only the store is trusted with rights; whatever this machine forgets or gets wrong costs use, never
//! exactness.
//!
//! The way of one right, function by function, is in `docs/internals/protocol.md`, section 5.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::super::algorithm::{Algorithm, Counting, Limit};
use super::super::region_list::RegionList;
use super::super::rule::Mode;
use super::super::share::Weights;
use super::super::time::{Span, Timestamp};
use super::super::wire::{OwnLimit, RuleName};
use super::membership::{RegionId, Regions};
use super::variants::Variants;
use super::{Member, NodeName, Touched, WorldKey, WorldRule};

mod bucket;
mod dry;
mod ledger;
pub mod level;
mod link;
mod own;
mod own_limit;
mod part;
pub mod places;
mod planner;
mod receive;
mod status;
mod totals;
mod transmit;
pub mod window;

#[cfg(test)]
mod tests;

use self::bucket::EscrowBucket;
use self::link::EscrowLink;
use self::places::Margins;

pub use self::dry::dry_mark;
pub use self::ledger::{Ledger, Step, StepRequest, StepResult};
pub use self::status::{EscrowRule, EscrowStatus, EscrowTally};
pub use self::totals::{Giving, MovedRights, RECOVERY_MARGIN, Taking};
pub use self::transmit::rights_frame_bytes;

/// The safety rules, each of which a test can switch off to show that it matters. All on in every daemon.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one switch for each rule")]
pub struct EscrowSafety {
    /// A store gives only rights that nobody has used.
    pub gives_only_what_is_free: bool,
    /// What is received is a total, of which the largest stands.
    pub takes_are_cumulative: bool,
    /// Rights meant for a memory that was lost are not taken into the new one.
    pub sessions_are_fenced: bool,
    /// Rights count in the window that they were minted for and in no other.
    pub windows_are_labels: bool,
    /// A store does not mint for windows that began before its memory does.
    pub doubt_is_burnt: bool,
    /// Rights are sent only once the store has taken them out.
    pub debits_before_credits: bool,
    /// What was forwarded from a bucket without windows takes up its room until it is acknowledged.
    pub forwarded_stays_charged: bool,
    /// What a region keeps beyond its capacity is acknowledged only when it is kept no more.
    pub kept_stays_charged: bool,
    /// Places that were borrowed are never lent on.
    pub lends_only_its_own: bool,
    /// Places that were borrowed are used only while their owner is heard.
    pub loans_lapse: bool,
    /// A store owns no places until it is known what was lent by the memory before its own.
    pub lost_loans_are_burnt: bool,
    /// What was borrowed from a memory that is lost is given back only to one that has counted it.
    pub gives_back_only_what_is_counted: bool,
    /// A store that was taken down for the next process charges and gives nothing more.
    pub seals_what_is_left: bool,
    /// A store never forgets what it admitted because it lacks room.
    pub never_forgets_for_room: bool,
    /// Nobody waits for rights of a bucket of which no region has any.
    pub says_who_is_dry: bool,
    /// Nothing of a sliding rule is lent beside a daemon whose version would not see it in their store.
    pub lends_only_in_sight: bool,
    /// A store in memory spends no more of a window than is noted outside of its process.
    pub spends_only_below_the_mark: bool,
    /// Marks go on above what the memory before may have spent.
    pub marks_go_on_above_what_was_lost: bool,
    /// Marks say nothing of windows that began before they were noted.
    pub marks_have_a_beginning: bool,
}

impl EscrowSafety {
    /// Every rule in force.
    pub const ALL: Self = Self {
        gives_only_what_is_free: true,
        takes_are_cumulative: true,
        sessions_are_fenced: true,
        windows_are_labels: true,
        doubt_is_burnt: true,
        debits_before_credits: true,
        forwarded_stays_charged: true,
        kept_stays_charged: true,
        lends_only_its_own: true,
        loans_lapse: true,
        lost_loans_are_burnt: true,
        gives_back_only_what_is_counted: true,
        seals_what_is_left: true,
        never_forgets_for_room: true,
        says_who_is_dry: true,
        lends_only_in_sight: true,
        spends_only_below_the_mark: true,
        marks_go_on_above_what_was_lost: true,
        marks_have_a_beginning: true,
    };
}

impl Default for EscrowSafety {
    fn default() -> Self {
        Self::ALL
    }
}

/// How an [`Escrow`] begins.
#[derive(Debug, Clone)]
pub struct EscrowConfig {
    /// This daemon.
    pub name: NodeName,
    /// Every region that may hold a share, present or not.
    pub regions: RegionList,
    /// Between two statements of a bucket that have nothing urgent to say.
    pub interval: Span,
    /// Between two looks at a bucket in the store.
    pub look_gap: Span,
    /// Most buckets followed. The others keep their static shares.
    pub keys_max: usize,
    /// How long loans of places last.
    pub margins: Margins,
    #[doc(hidden)]
    pub safety: EscrowSafety,
}

impl EscrowConfig {
    /// The regions that share where a rule names none.
    fn all_regions(&self) -> RegionList {
        let mut list = self.regions.clone();
        if list.state(&self.name.region).is_none() {
            list.names.push(self.name.region.clone());
        }
        list
    }

    /// The usual settings for this daemon.
    #[must_use]
    pub const fn new(name: NodeName) -> Self {
        Self {
            name,
            regions: RegionList::NOBODY,
            interval: Span::from_millis(100),
            look_gap: Span::from_millis(10),
            keys_max: super::KEYS_MAX_DEFAULT,
            margins: Margins::USUAL,
            safety: EscrowSafety::ALL,
        }
    }
}

/// Something that happened, for metrics and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The own region's store took out rights for another region.
    Gave {
        /// Whom they went to.
        to: String,
        /// How many.
        permits: u64,
    },
    /// Rights of another region came into the own store.
    Took {
        /// Whose they were.
        from: String,
        /// How many.
        permits: u64,
    },
    /// No region has rights of a bucket left in a window, as far as is known.
    Dry {
        /// The bucket.
        key: WorldKey,
        /// The window; see [`dry_mark`]. Zero: somebody has rights again.
        window: u64,
    },
    /// A window is over and every region that used it has said how much.
    Closed {
        /// The bucket.
        key: WorldKey,
        /// The window.
        window: u64,
        /// Permits admitted worldwide.
        used: u64,
        /// What the limit was.
        limit: u64,
    },
}

/// A rule with its division.
#[derive(Debug)]
struct FollowedRule {
    rule: WorldRule,
    shares: BTreeMap<String, Share>,
}

/// One region's part of a rule.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    weight: u64,
    /// What it mints in each window; without windows, the most that its level holds.
    minted: u64,
    /// By how much its level refills, in millionths of a permit a second.
    refill: u64,
    /// The largest cost that it can gather permits for, without windows.
    gathered: u64,
    /// The largest `minted` and `refill` under this rule and those before it: who has not heard of a change
    /// yet, or sent what it had before, is honest.
    minted_most: u64,
    refill_most: u64,
}

impl FollowedRule {
    fn new(rule: &WorldRule, regions: &RegionList) -> Self {
        let weights = Weights::among(&rule.global.shares, &rule.global.minimums, regions);
        let divide = |permits: u32| {
            let parts = weights.divide(u64::from(permits));
            // A part is never more than the whole.
            parts.into_iter().map(move |part| u32::try_from(part).unwrap_or(permits))
        };
        let Limit { permits, window, calendar, burst, queue } = rule.limit;
        let parts = divide(permits).zip(divide(burst)).zip(divide(queue));
        // Of a region that was taken out of the list nothing is waited for.
        let parts = weights
            .parts()
            .zip(parts)
            .filter(|((name, ..), _)| !regions.removed.iter().any(|gone| gone == name));
        let shares = parts.map(|((name, weight, _), ((permits, burst), queue))| {
            let part = Limit { permits, window, calendar, burst, queue };
            let refill = u128::from(permits) * 1_000_000_000_000 / u128::from(window.0.max(1));
            let (minted, refill) = (part.capacity(rule.algorithm), u64::try_from(refill).unwrap_or(u64::MAX));
            let weight = u64::from(weight);
            let share =
                Share { weight, minted, refill, gathered: 0, minted_most: minted, refill_most: refill };
            (name.to_owned(), share)
        });
        let mut shares: BTreeMap<String, Share> = shares.collect();
        let sent = |share: &Share| level::under_way_max(share.minted);
        let all = shares.values().map(sent).fold(0, u64::saturating_add);
        for share in shares.values_mut() {
            share.gathered = share.minted.saturating_add(all - sent(share));
        }
        Self { rule: rule.clone(), shares }
    }

    /// Remembers the shares of an earlier rule of the same name.
    fn remember(&mut self, before: &Self) {
        for (name, share) in &mut self.shares {
            let earlier = before.share(name);
            share.minted_most = share.minted_most.max(earlier.minted_most);
            share.refill_most = share.refill_most.max(earlier.refill_most);
        }
    }

    fn share(&self, region: &str) -> Share {
        self.shares.get(region).copied().unwrap_or_default()
    }

    fn weight(&self, region: &str) -> u64 {
        self.share(region).weight
    }

    fn minted(&self, region: &str) -> u64 {
        self.share(region).minted
    }

    /// Which rights of its buckets move.
    const fn counting(&self) -> Counting {
        moves_as(self.rule.algorithm)
    }

    /// The regions that may have places of a region's share.
    fn others<'r>(&'r self, own: &'r str) -> impl Iterator<Item = &'r String> {
        self.shares.keys().filter(move |name| *name != own)
    }
}

/// Most events that wait to be taken. Full: the oldest goes, and with it a count in a metric.
const EVENTS_MAX: usize = 4_096;

/// One daemon's side of `escrow` mode. See the module's head.
#[derive(Debug)]
pub struct Escrow {
    config: EscrowConfig,
    regions: Regions,
    rules: HashMap<RuleName, Arc<FollowedRule>>,
    /// The same with own limits in place of theirs.
    variants: Variants<FollowedRule>,
    index: HashMap<WorldKey, usize>,
    buckets: Vec<Option<EscrowBucket>>,
    vacant: Vec<usize>,
    alarms: BTreeSet<(Timestamp, usize)>,
    links: BTreeMap<NodeName, EscrowLink>,
    /// True if a daemon of the own region may decide by its store that does not see what of a sliding rule is
    /// lent. While one may, none is.
    unseen: bool,
    /// One way to each region's nearest and farthest daemon, by [`RegionId`].
    ways: Vec<Option<(Span, Span)>>,
    asks: VecDeque<StepRequest>,
    events: VecDeque<Event>,
    /// Which link is asked first for the next frame.
    turn: usize,
    tally: EscrowTally,
}

impl Escrow {
    /// A machine that knows nothing yet.
    #[must_use]
    pub fn new(config: EscrowConfig) -> Self {
        Self {
            regions: Regions::new(&config.name.region, &config.regions.names),
            config,
            rules: HashMap::new(),
            variants: Variants::default(),
            index: HashMap::new(),
            buckets: Vec::new(),
            vacant: Vec::new(),
            alarms: BTreeSet::new(),
            links: BTreeMap::new(),
            unseen: false,
            ways: Vec::new(),
            asks: VecDeque::new(),
            events: VecDeque::new(),
            turn: 0,
            tally: EscrowTally::default(),
        }
    }

    /// The worldwide rules now in force; those of other modes are passed over.
    pub fn handle_rules(&mut self, now: Timestamp, rules: &[WorldRule]) {
        let regions = self.config.all_regions();
        self.variants = Variants::default();
        let before = std::mem::take(&mut self.rules);
        self.rules = rules
            .iter()
            .filter(|rule| moves_rights(rule))
            .map(|rule| {
                let mut now = FollowedRule::new(rule, &regions);
                if let Some(before) = before.get(&rule.name) {
                    now.remember(before);
                }
                (rule.name.clone(), Arc::new(now))
            })
            .collect();
        for id in 0..self.buckets.len() {
            let Some(bucket) = self.bucket(id) else { continue };
            let (name, old) = (bucket.key.rule.clone(), &bucket.rule.rule);
            let (algorithm, windows) = (old.algorithm, old.limit.windows());
            match self.rules.get(&name).cloned() {
                Some(rule) if (rule.rule.algorithm, rule.rule.limit.windows()) == (algorithm, windows) => {
                    let own = bucket.own_limit();
                    let variant = self.variant(&rule, own);
                    if let Some(bucket) = self.bucket_mut(id) {
                        bucket.count_by(now, own, variant);
                    }
                    // Of two that others decide by the smaller may now be the other one.
                    self.settle_limit(now, id, &rule);
                    self.plan(now, id);
                }
                _ => self.forget(id),
            }
        }
    }

    /// The rules whose rights move, in the order of their names.
    pub fn rules(&self) -> impl Iterator<Item = &RuleName> {
        let mut names: Vec<&RuleName> = self.rules.keys().collect();
        names.sort_unstable();
        names.into_iter()
    }

    /// How many buckets are followed.
    #[must_use]
    pub fn keys_len(&self) -> usize {
        self.index.len()
    }

    /// What this daemon decided of one bucket since it was last told.
    pub fn handle_touched(&mut self, now: Timestamp, touched: &Touched) {
        let Some(id) = self.follow(now, &touched.key, touched.own) else { return };
        self.decide_by(now, id, touched.own);
        // Nobody need gather for what can never pass.
        let never = self.bucket(id).is_some_and(|bucket| {
            bucket.rule.counting() == Counting::Level
                && touched.refused > bucket.rule.share(self.own_region()).gathered
        });
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.touch(now, touched, if never { 0 } else { touched.refused });
        }
        self.plan(now, id);
    }

    /// Who is in the cluster now.
    pub fn handle_members(&mut self, now: Timestamp, members: &[Member]) {
        self.regions.set_members(now, &self.config.name, members);
        // One that is believed dead may only be cut off from here.
        let blind = |member: &Member| member.name.region == self.config.name.region && !member.sees_capacity;
        self.unseen = self.config.safety.lends_only_in_sight && members.iter().any(blind);
        for link in self.links.values_mut() {
            link.live = false;
        }
        for member in members.iter().filter(|member| member.live) {
            if self.regions.takes_part(&member.name.region)
                && let Some(link) = self.link_to(&member.name)
            {
                link.live = true;
            }
        }
        self.measure_ways();
    }

    /// Other regions share limits from now on. [`Self::handle_rules`] and [`Self::handle_members`] must
    /// follow.
    pub fn handle_regions(&mut self, now: Timestamp, list: RegionList) {
        self.regions.set_listed(now, &list.names);
        self.config.regions = list;
    }

    /// The link to another daemon was measured.
    pub fn handle_link(&mut self, _: Timestamp, peer: &NodeName, rtt: Span) {
        if let Some(link) = self.link_to(peer) {
            link.rtt = Some(rtt);
        }
        self.measure_ways();
    }

    /// The store's answer to an ask; `None`: it could not be asked, or has no room.
    pub fn handle_balance(&mut self, now: Timestamp, key: &WorldKey, balance: Option<StepResult>) {
        let Some(&id) = self.index.get(key) else { return };
        let Some(bucket) = self.bucket_mut(id) else { return };
        bucket.asked = None;
        if let Some(balance) = balance {
            self.take_in_balance(id, balance);
            if let Some(bucket) = self.bucket_mut(id).filter(|bucket| bucket.has_loans()) {
                bucket.keep(now);
            }
            self.give_and_tell(now, id);
        }
        self.next_step(now, id);
        self.schedule(now, id);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some(&(at, id)) = self.alarms.first().filter(|(at, _)| *at <= now) {
            self.alarms.remove(&(at, id));
            let Some(bucket) = self.bucket_mut(id) else { continue };
            bucket.alarm = None;
            if bucket.expiry() <= now {
                self.forget(id);
            } else {
                self.plan(now, id);
            }
        }
    }

    /// The next thing to ask the store, or `None`. Its answer goes to [`Self::handle_balance`].
    pub fn poll_ask(&mut self) -> Option<StepRequest> {
        self.asks.pop_front()
    }

    /// The next thing that happened, or `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] and the polls want to be called again if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let links = self.links.values().filter_map(EscrowLink::next_due).min();
        [self.alarms.first().map(|&(at, _)| at), links].into_iter().flatten().min()
    }

    fn bucket(&self, id: usize) -> Option<&EscrowBucket> {
        self.buckets.get(id)?.as_ref()
    }

    fn bucket_mut(&mut self, id: usize) -> Option<&mut EscrowBucket> {
        self.buckets.get_mut(id)?.as_mut()
    }

    /// Finds a bucket, or begins to follow it, with this own limit. `None`: its rule has no rights that move,
    /// or there is no room.
    fn follow(&mut self, now: Timestamp, key: &WorldKey, own: Option<OwnLimit>) -> Option<usize> {
        if let Some(&id) = self.index.get(key) {
            return Some(id);
        }
        let rule = Arc::clone(self.rules.get(&key.rule)?);
        if self.index.len() >= self.config.keys_max {
            self.tally.no_room = self.tally.no_room.saturating_add(1);
            return None;
        }
        let rule = self.variant(&rule, own);
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.buckets.push(None);
            self.buckets.len() - 1
        });
        let mut bucket = EscrowBucket::new(key.clone(), rule, now);
        bucket.owned = own.map(|own| own_limit::EscrowOwnLimit::new(Some(own)));
        *self.buckets.get_mut(id)? = Some(bucket);
        self.index.insert(key.clone(), id);
        Some(id)
    }

    fn forget(&mut self, id: usize) {
        let Some(bucket) = self.buckets.get_mut(id).and_then(Option::take) else { return };
        if let Some(at) = bucket.alarm {
            self.alarms.remove(&(at, id));
        }
        self.index.remove(&bucket.key);
        self.vacant.push(id);
        for link in self.links.values_mut() {
            link.forget(id);
        }
    }

    fn link_to(&mut self, name: &NodeName) -> Option<&mut EscrowLink> {
        let region = self.regions.find(&name.region)?;
        if !self.links.contains_key(name) {
            if *name == self.config.name {
                return None;
            }
            if self.links.len() >= super::LINKS_MAX {
                // In place of the one that was gone for longest: names change with every deployment.
                let gone = self.links.iter().filter(|(_, link)| !link.live);
                let old = gone.min_by_key(|(_, link)| link.last_sent()).map(|(name, _)| name.clone())?;
                self.links.remove(&old);
            }
        }
        Some(self.links.entry(name.clone()).or_insert_with(|| EscrowLink::new(region)))
    }

    /// The daemon that speaks for a bucket in a region.
    fn owner(&self, region: RegionId, key: &WorldKey) -> Option<NodeName> {
        let region = self.regions.get(region)?;
        let node = region.ring.owner(key)?;
        Some(NodeName { region: region.name.clone(), node: node.to_owned() })
    }

    fn owns(&self, key: &WorldKey) -> bool {
        self.regions.owned_by(&self.config.name.node, key)
    }

    fn note(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// Returns how rights of a rule that counts in this way move between regions: as those of windows, of levels
/// or of places. The count of a sliding window or log never ends with a window, so its rights are not minted
/// by the window: they are capacity that stays, and is lent as places are.
#[must_use]
pub const fn moves_as(algorithm: Algorithm) -> Counting {
    match algorithm {
        Algorithm::SlidingWindow | Algorithm::SlidingLog => Counting::Concurrency,
        _ => algorithm.counting(),
    }
}

/// True of a rule that counts by a sliding window or log.
#[must_use]
pub const fn slides(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::SlidingWindow | Algorithm::SlidingLog)
}

fn moves_rights(rule: &WorldRule) -> bool {
    rule.global.mode == Mode::Escrow && rule.limit.window > Span::ZERO
}
