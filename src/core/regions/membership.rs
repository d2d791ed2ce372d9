//! The regions of the cluster: who is in each, how long its frames take, and whether it is cut off.

use super::super::ring::Ring;
use super::super::time::{Span, Timestamp};
use super::{Member, NodeName, WorldKey};
use crate::wire::{CrowdedRules, RuleName};

/// Most regions of a cluster.
pub const REGIONS_MAX: usize = 64;
/// A delay counts for at least this long and at most twice as long: the clocks and routes of today, not of
/// last week.
const DELAY_MEMORY: Span = Span::from_secs(10);
/// No delay above this is believed: a clock that is so wrong, or a link that is so slow, counts as cut off
/// sooner.
const DELAY_MAX: Span = Span::from_secs(1);

/// The shortest round trip of the last one to two times as long is the way's: a longer one waited for a
/// daemon that stood still.
const TRIP_MEMORY: Span = Span::from_secs(3);

/// So much longer the first answer to this daemon may take: a link must be there first, and a round trip be
/// over.
const FIRST_ANSWER: Span = Span::from_secs(1);

/// A region's place in [`Regions`]; it never changes.
pub(super) type RegionId = usize;

/// All regions, the own one first.
#[derive(Debug)]
pub(super) struct Regions {
    list: Vec<Region>,
    /// Places in the order of the names.
    order: Vec<RegionId>,
    /// True if the configuration names them, so that no other can join.
    named: bool,
}

/// One region.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) name: String,
    /// Its live daemons that are not draining.
    pub(super) ring: Ring,
    /// Instant at which a frame from any of its daemons came last.
    pub(super) heard: Option<Timestamp>,
    /// Instant at which one of its daemons last said that another frame of this one has come.
    answered: Option<Timestamp>,
    /// True if all its daemons went in good order: it admits nothing, and nothing is kept for it.
    pub(super) left: bool,
    /// True if it may take part. One that was taken out of the list stays known by its place, and counts as
    /// one that left.
    pub(super) listed: bool,
    /// True if it has been silent for too long, or has not heard this daemon for as long.
    pub(super) cut_off: bool,
    /// True if it is cut off and yet heard: it does not hear this daemon.
    pub(super) deaf: bool,
    /// After it was cut off: until when all that it admitted meanwhile has been heard.
    mending: Option<Timestamp>,
    /// Begin of the newest process of a daemon of it that followed another one.
    pub(super) reborn: Option<Timestamp>,
    /// The rules of which any of its live daemons cannot follow all buckets in use.
    pub(super) crowded: CrowdedRules,
    /// Instant since which it is expected to speak.
    pub(super) expected: Timestamp,
    delay: Delay,
    trip: Trip,
}

/// The shortest round trip of the last seconds.
#[derive(Debug, Default)]
struct Trip {
    now: Option<Span>,
    before: Option<Span>,
    turned: Timestamp,
}

/// The longest delay of the last 10 to 20 seconds.
#[derive(Debug, Default)]
struct Delay {
    now: Span,
    before: Span,
    turned: Timestamp,
    latest: Option<Span>,
}

impl Regions {
    pub(super) fn new(own: &str, configured: &[String]) -> Self {
        let mut regions = Self { list: Vec::new(), order: Vec::new(), named: false };
        regions.place(own, Timestamp::default());
        for name in configured {
            regions.place(name, Timestamp::default());
        }
        regions.named = !configured.is_empty();
        regions
    }

    pub(super) const OWN: RegionId = 0;

    /// Other regions are listed from now on; none: whoever is seen may join. The own one always takes part.
    pub(super) fn set_listed(&mut self, now: Timestamp, configured: &[String]) {
        self.named = false;
        for region in &mut self.list {
            region.listed = true;
        }
        for name in configured {
            self.place(name, now);
        }
        self.named = !configured.is_empty();
        for region in self.list.iter_mut().skip(1) {
            region.listed = !self.named || configured.contains(&region.name);
            if !region.listed {
                region.ring = Ring::default();
                region.crowded = CrowdedRules::NONE;
                (region.left, region.cut_off, region.deaf, region.mending) = (true, false, false, None);
            } else if region.left && region.ring.nodes().is_empty() {
                (region.left, region.expected) = (false, now);
            }
        }
        self.sort();
    }

    fn sort(&mut self) {
        let list = &self.list;
        self.order = (0..list.len()).filter(|id| list.get(*id).is_some_and(|region| region.listed)).collect();
        self.order.sort_by_key(|&id| list.get(id).map(|region| region.name.as_str()));
    }

    pub(super) fn find(&self, name: &str) -> Option<RegionId> {
        self.list.iter().position(|region| region.name == name)
    }

    /// True if a region is known and takes part.
    pub(super) fn takes_part(&self, name: &str) -> bool {
        self.list.iter().any(|region| region.name == name && region.listed)
    }

    /// Finds a region, or makes room for it; `None` if it may not join.
    pub(super) fn place(&mut self, name: &str, now: Timestamp) -> Option<RegionId> {
        if let Some(id) = self.find(name) {
            return self.get(id).is_some_and(|region| region.listed).then_some(id);
        }
        if self.named || self.list.len() >= REGIONS_MAX {
            return None;
        }
        self.list.push(Region {
            name: name.to_owned(),
            ring: Ring::default(),
            heard: None,
            answered: None,
            left: false,
            listed: true,
            cut_off: false,
            deaf: false,
            mending: None,
            reborn: None,
            crowded: CrowdedRules::NONE,
            expected: now,
            delay: Delay::default(),
            trip: Trip::default(),
        });
        self.sort();
        Some(self.list.len() - 1)
    }

    pub(super) fn get(&self, id: RegionId) -> Option<&Region> {
        self.list.get(id)
    }

    pub(super) fn name(&self, id: RegionId) -> &str {
        self.list.get(id).map_or("", |region| &region.name)
    }

    /// All regions that take part in the order of their names, which is the same everywhere.
    pub(super) fn by_name(&self) -> impl Iterator<Item = RegionId> {
        self.order.iter().copied()
    }

    /// Regions that were taken out of the list.
    pub(super) fn unlisted(&self) -> impl Iterator<Item = RegionId> {
        self.list.iter().enumerate().filter(|(_, region)| !region.listed).map(|(id, _)| id)
    }

    /// Returns how many places there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns how many regions take part, the own one included.
    pub(super) fn listed_len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        self.list.iter().enumerate()
    }

    /// Takes in who is in the cluster. Returns the regions whose ring changed.
    pub(super) fn set_members(
        &mut self,
        now: Timestamp,
        own: &NodeName,
        members: &[Member],
    ) -> Vec<RegionId> {
        for member in members {
            self.place(&member.name.region, now);
        }
        let mut changed = Vec::new();
        for (id, region) in self.list.iter_mut().enumerate().filter(|(_, region)| region.listed) {
            let of_region = || members.iter().filter(|member| member.name.region == region.name);
            let mut owners: Vec<&str> = of_region()
                .filter(|member| member.live && !member.draining)
                .map(|member| member.name.node.as_str())
                .collect();
            let own_draining = of_region().any(|member| member.name == *own && member.draining);
            if id == Self::OWN && !own_draining {
                owners.push(&own.node);
            }
            let present = of_region().any(|member| member.live);
            region.left = owners.is_empty()
                && (of_region().any(|member| member.draining) || region.left)
                && id != Self::OWN;
            // A region that is cut off stays so until it is heard: membership may see it through a third
            // region, and knows nothing of what it admits.
            let seen_first = region.heard.is_none() && region.ring.nodes().is_empty();
            if present && seen_first && !region.cut_off {
                region.expected = region.expected.max(now);
            }
            owners.sort_unstable();
            owners.dedup();
            // A ring is dear to make, and mostly it would be the same again.
            if owners != region.ring.nodes() {
                region.ring = Ring::new(owners);
                changed.push(id);
            }
        }
        changed
    }

    /// True if this daemon of the own region speaks for a bucket there.
    pub(super) fn owned_by(&self, node: &str, key: &WorldKey) -> bool {
        let owner = self.get(Self::OWN).and_then(|region| region.ring.owner(key));
        owner.is_none_or(|owner| owner == node)
    }

    /// A frame from this region took `delay` (clock offset included); `None` where it may have waited for
    /// this daemon.
    pub(super) fn heard(&mut self, id: RegionId, now: Timestamp, delay: Option<Span>) {
        if let Some(region) = self.list.get_mut(id) {
            region.heard = Some(now);
            if let Some(delay) = delay {
                region.delay.note(now, delay);
            }
        }
    }

    /// A daemon of this region had another frame of this one at `at`.
    pub(super) fn answered(&mut self, id: RegionId, at: Timestamp) {
        if let Some(region) = self.list.get_mut(id) {
            region.answered = region.answered.max(Some(at));
        }
    }

    /// A daemon of this region began anew at `begun`: it is there again. Last words of one that ends are no
    /// such thing.
    pub(super) fn began_again(&mut self, id: RegionId, begun: Timestamp) {
        if let Some(region) = self.list.get_mut(id) {
            region.left = false;
            region.reborn = region.reborn.max(Some(begun));
        }
    }

    /// Its daemons cannot follow all buckets in use of these rules. Returns those of which that was said
    /// before.
    pub(super) fn set_crowded(&mut self, id: RegionId, rules: CrowdedRules) -> CrowdedRules {
        match self.list.get_mut(id) {
            Some(region) => std::mem::replace(&mut region.crowded, rules),
            None => CrowdedRules::NONE,
        }
    }

    /// True of another region that keeps to its share of a rule without telling all of it.
    pub(super) fn is_crowded(&self, id: RegionId, rule: &RuleName) -> bool {
        id != Self::OWN && self.list.get(id).is_some_and(|region| region.crowded.contains(rule))
    }

    /// True if all regions are heard.
    pub(super) fn are_whole(&self) -> bool {
        self.list.iter().skip(1).all(|region| !region.is_apart())
    }

    /// True if a region speaks again, and not all that it admitted meanwhile need be known yet.
    pub(super) fn is_any_mending(&self) -> bool {
        self.list.iter().skip(1).any(|region| region.mending.is_some())
    }

    /// A round trip to this region was measured.
    pub(super) fn round_trip(&mut self, id: RegionId, now: Timestamp, rtt: Span) {
        if let Some(region) = self.list.get_mut(id) {
            let shortest = region.trip.note(now, rtt);
            region.delay.note(now, Span(shortest.0 / 2));
        }
    }

    /// The longest that anything from another region lately took to this daemon.
    pub(super) fn slowest(&self, now: Timestamp) -> Span {
        self.list.iter().skip(1).map(|region| region.delay.longest(now)).max().unwrap_or(Span::ZERO)
    }

    /// Marks regions that were silent for longer than `patience` allows, and those that speak again:
    /// `mending` later all that they admitted meanwhile has been heard. A region that does not hear this
    /// daemon takes it for cut off, so it is taken for that too: else the two would divide by different
    /// rules. Returns whether any changed.
    pub(super) fn mark_cut_off(&mut self, now: Timestamp, patience: Patience, mending: Span) -> bool {
        let mut changed = false;
        for region in self.list.iter_mut().skip(1) {
            let cut_off = region.doubted_from(patience) <= now && !region.left;
            let deaf = cut_off && region.silent_from(patience) > now;
            changed |= cut_off != region.cut_off || deaf != region.deaf;
            region.deaf = deaf;
            if region.cut_off && !cut_off {
                region.mending = Some(now + mending);
            } else if cut_off || region.mending.is_some_and(|until| until <= now) {
                changed |= region.mending.take().is_some();
            }
            region.cut_off = cut_off;
        }
        changed
    }

    /// Returns when [`Self::judge`] would next find a region silent for too long.
    pub(super) fn next_judgement(&self, patience: Patience) -> Option<Timestamp> {
        let waiting = self.list.iter().skip(1).filter(|region| !region.cut_off && !region.left);
        let doubted = waiting.map(|region| region.doubted_from(patience));
        let deaf = self.list.iter().skip(1).filter(|region| region.deaf);
        let silent = deaf.map(|region| region.silent_from(patience));
        let mended = self.list.iter().filter_map(|region| region.mending);
        doubted.chain(silent).chain(mended).min()
    }

    /// The clock went back to `now`: who was heard later than that was heard now.
    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        for region in &mut self.list {
            region.heard = region.heard.map(|heard| heard.min(now));
            region.answered = region.answered.map(|answered| answered.min(now));
            region.expected = region.expected.min(now);
            region.mending = region.mending.map(|_| now);
            region.delay.turned = region.delay.turned.min(now);
            region.trip.turned = region.trip.turned.min(now);
        }
    }

    /// Regions that no frame has come from yet are expected from now on.
    pub(super) fn expect_from(&mut self, now: Timestamp) {
        for region in &mut self.list {
            region.expected = now;
        }
    }
}

/// The silence of a region that is borne before it counts as cut off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Longest time without a frame of a region before it is cut off.
    pub(super) unheard: Span,
    /// Without word that a frame of this daemon has come to it; forever where that is not judged.
    pub(super) unanswered: Option<Span>,
}

impl Region {
    /// From when on it counts as cut off if nothing more is heard of it.
    fn doubted_from(&self, patience: Patience) -> Timestamp {
        let silent = self.silent_from(patience);
        let answered = self.answered.unwrap_or(self.expected + FIRST_ANSWER);
        patience.unanswered.map_or(silent, |patience| silent.min(answered + patience + Span(1)))
    }

    /// Returns when news last went both ways: since then either side may have used what refilled without a
    /// word of it.
    pub(super) fn spoken_with(&self) -> Timestamp {
        let either = self.heard.unwrap_or(self.expected).min(self.answered.unwrap_or(self.expected));
        // Before this daemon began, and while the region was not listed, it was not expected.
        either.max(self.expected)
    }

    /// From when on nothing has come from it for too long.
    fn silent_from(&self, patience: Patience) -> Timestamp {
        self.heard.unwrap_or(self.expected) + patience.unheard + Span(1)
    }

    /// True if it is cut off, or was until just now, so that some of what it admitted is not known yet.
    pub(super) const fn is_apart(&self) -> bool {
        self.cut_off || self.mending.is_some()
    }

    /// Returns how long its newest frame took, clock offset included.
    pub(super) const fn delay(&self) -> Option<Span> {
        self.delay.latest
    }
}

impl Trip {
    /// Takes in a round trip, and returns the shortest one of late.
    fn note(&mut self, now: Timestamp, rtt: Span) -> Span {
        if now.since(self.turned) > TRIP_MEMORY {
            self.before = self.now.take();
            self.turned = now;
        }
        self.now = Some(self.now.map_or(rtt, |shortest| shortest.min(rtt)));
        self.now.into_iter().chain(self.before).min().unwrap_or(rtt)
    }
}

impl Delay {
    fn note(&mut self, now: Timestamp, delay: Span) {
        let delay = delay.min(DELAY_MAX);
        if now.since(self.turned) > DELAY_MEMORY {
            self.before =
                if now.since(self.turned) > DELAY_MEMORY + DELAY_MEMORY { Span::ZERO } else { self.now };
            self.now = Span::ZERO;
            self.turned = now;
        }
        self.now = self.now.max(delay);
        self.latest = Some(delay);
    }

    fn longest(&self, now: Timestamp) -> Span {
        if now.since(self.turned) > DELAY_MEMORY + DELAY_MEMORY {
            Span::ZERO
        } else {
            self.now.max(self.before)
        }
    }
}
