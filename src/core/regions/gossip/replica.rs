//! One daemon's side of the protocol between regions: a state machine without I/O, clock or lock.
//!
//! The shell feeds it what happened (`handle_*`, each with the time) and takes out what to do (`poll_*`)
//! until there is no more. Frames from others are judged in [`super::receive`], frames to others are made in
//! [`super::transmit`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::bucket::{DaemonContext, GossipBucket};
use super::bucket_table::{BucketId, BucketTable};
use super::link::{GossipLink, OwedReport};
use super::missed_rules::MissedRules;
use super::replica_config::ReplicaConfig;
use super::retired::RetiredBuckets;
use super::safety::GossipSafety;
use crate::regions::membership::{RegionId, Regions};
use crate::regions::variants::Variants;
use crate::regions::{Effect, Member, NodeName, Touched, WorldKey, WorldRule};
use crate::time::{Span, Timestamp};
use crate::wire::{DecidedBy, OwnLimit, RuleName};

/// Most other daemons spoken with. More are not told anything, and their frames are refused.
pub const LINKS_MAX: usize = 1_024;
/// Least time between two urgent reports of one bucket.
const URGENT_GAP: Span = Span::from_millis(20);
/// From so many changed buckets in one interval on, only what others would guess wrong is told of them.
const BUSY_ABOVE: usize = 64;
/// A clock that went back by no more than this is waited for.
const STEPPED_BACK: Span = Span::from_millis(50);

/// One daemon's side of the protocol. See the module's head.
#[derive(Debug)]
pub struct Replica {
    pub(super) config: ReplicaConfig,
    /// Node part of the daemon's name, shared so that counters need no copy.
    pub(super) node: Arc<str>,
    pub(super) regions: Regions,
    pub(super) rules: HashMap<RuleName, Arc<WorldRule>>,
    /// The same with own limits in place of theirs, by the limit.
    pub(super) variants: Variants<WorldRule>,
    pub(super) revision: u64,
    pub(super) keys: BucketTable,
    pub(super) retired: RetiredBuckets,
    pub(super) late_rules: MissedRules,
    pub(super) links: Vec<GossipLink>,
    /// Place in `links` by region and node.
    pub(super) speakers: Vec<BTreeMap<String, usize>>,
    /// Buckets that something happened to since the last interval began.
    waiting: Vec<BucketId>,
    /// The last key id given out.
    pub(super) key_ids: u64,
    effects: VecDeque<BucketId>,
    next_interval: Timestamp,
    /// The instant that it was last told.
    pub(super) newest: Timestamp,
    /// Instant at which this daemon last went on after it had stood still: what was sent before waited for
    /// it.
    pub(super) stood_until: Timestamp,
    /// Place of the link that is asked first for the next frame.
    pub(super) turn: usize,
    begun: bool,
    /// True if the last cut had more to tell than all of it is worth.
    busy: bool,
    /// After this long a report has reached everyone; worked out anew at each timeout.
    pub(super) horizon: Span,
    pub(super) tally: Tally,
    /// Permits above the limit in closed windows, by rule, of the buckets that this daemon speaks for.
    pub(super) overshoot: BTreeMap<RuleName, u64>,
    /// Rules that have buckets in use which are not followed, and until when that is taken to be so. Bounded
    /// by the rules.
    pub(super) crowded: BTreeMap<RuleName, Timestamp>,
    /// True if `crowded` names other rules than when it was last taken, or holds all of them no longer.
    pub(super) crowd_changed: bool,
    /// True if another daemon may have said something new of the rules that it has no room for.
    pub(super) crowds_heard: bool,
    /// Instant at which shares were last left to other regions, or taken back.
    pub(super) shares_left: Timestamp,
    /// Instant until which it waits to hear what its former life admitted; see [`super::new_process`].
    pub(super) waits: Option<Timestamp>,
    /// Instant until which regions may divide by other reports than this one.
    pub(super) unsettled: Timestamp,
    /// The longest that a region was not heard since then, less what drained meanwhile.
    pub(super) silence: Span,
    /// Instant at which that was last worked out.
    pub(super) measured: Timestamp,
}

/// Counts of what the replica has seen since it began, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Frames of other daemons that were taken in.
    pub frames_in: u64,
    /// Frames that were handed out to be sent.
    pub frames_out: u64,
    /// Reports in the frames that were taken in.
    pub reports_in: u64,
    /// Reports in the frames that were handed out.
    pub reports_out: u64,
    /// Frames that came a second time.
    pub duplicates: u64,
    /// Reports of rules that are not known here.
    pub unknown_rules: u64,
    /// Reports of windows that are over, or too far ahead.
    pub other_windows: u64,
    /// Reports of windows that were over, or had not begun, by a little.
    pub past_windows: u64,
    /// Reports that found no room among the buckets that are followed.
    pub no_room: u64,
    /// Reports and decisions whose counts found no room in their bucket.
    pub uncounted: u64,
    /// Reports under a key id that was not understood; they come again with their name.
    pub unnamed: u64,
    /// Reports that came after the instant at which every region should have used them.
    pub late: u64,
    /// Counts that a newer report told smaller than they were known to be.
    pub backwards: u64,
    /// Reports of more than a region is believed to have admitted; they count for no more than that.
    pub beyond: u64,
    /// Buckets forgotten while they were in use, or never followed, for want of room.
    pub dropped_keys: u64,
    /// Reports not told because too many waited already.
    pub dropped_reports: u64,
}

impl Replica {
    /// A replica that knows nothing yet.
    #[must_use]
    pub fn new(config: ReplicaConfig) -> Self {
        let regions = Regions::new(&config.name.region, &config.regions);
        Self {
            keys: BucketTable::new(config.keys_max),
            speakers: vec![BTreeMap::new(); regions.len()],
            regions,
            node: Arc::from(config.name.node.as_str()),
            config,
            rules: HashMap::new(),
            retired: RetiredBuckets::default(),
            late_rules: MissedRules::default(),
            variants: Variants::default(),
            revision: 0,
            links: Vec::new(),
            waiting: Vec::new(),
            key_ids: 0,
            effects: VecDeque::new(),
            next_interval: Timestamp::default(),
            newest: Timestamp::default(),
            stood_until: Timestamp::default(),
            turn: 0,
            begun: false,
            busy: false,
            horizon: Self::HORIZON_MIN,
            tally: Tally::default(),
            overshoot: BTreeMap::new(),
            crowded: BTreeMap::new(),
            crowd_changed: false,
            crowds_heard: false,
            shares_left: Timestamp::default(),
            waits: None,
            unsettled: Timestamp::default(),
            silence: Span::ZERO,
            measured: Timestamp::default(),
        }
    }

    /// Other rules are in force from now on.
    pub const fn set_care(&mut self, safety: GossipSafety) {
        self.config.safety = safety;
    }

    /// The revision of the rules in force.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes in what this region did with one bucket since it was last told. Buckets of unknown rules are
    /// ignored.
    pub fn handle_touched(&mut self, now: Timestamp, touched: &Touched) {
        self.begin(now);
        let Some(id) = self.follow(now, &touched.key, touched.own) else { return };
        self.hear_limit((now, now), id, Regions::OWN, touched.own.map_or(DecidedBy::Rule, DecidedBy::Own));
        let (here, keys) = self.here();
        let Some(bucket) = keys.get_mut(id) else { return };
        if touched.store.reset {
            bucket.forget_use(now, here);
        }
        let counted = bucket.count(now, touched, here);
        bucket.refused(now, touched.refused, here);
        self.note_room(now, id, !counted);
        if !self.changed(now, id) {
            self.recompute(now, id);
        }
        self.note_store(now, id, touched);
    }

    /// Takes in who is in the cluster now.
    pub fn handle_members(&mut self, now: Timestamp, members: &[Member]) {
        self.begin(now);
        let before: Vec<_> = self.regions.iter().map(|(_, region)| region.ring.clone()).collect();
        let changed = self.regions.set_members(now, &self.config.name, members);
        if before.len() <= 1 && self.regions.len() > 1 {
            self.meet_first(now);
        }
        while self.speakers.len() < self.regions.len() {
            self.speakers.push(BTreeMap::new());
        }
        for link in &mut self.links {
            let listed = members.iter().any(|member| member.name == link.name && member.live)
                && self.regions.takes_part(&link.name.region);
            if link.live && !listed {
                link.forget();
            }
            link.live = listed;
        }
        for member in members.iter().filter(|member| member.live) {
            if self.regions.takes_part(&member.name.region)
                && let Some(link) = self.link_to(&member.name)
            {
                link.live = true;
            }
        }
        self.crowds_heard |= self.links.iter().any(|link| !link.crowded.is_none());
        self.leave_shares(now);
        for id in self.keys.ids() {
            for &region in &changed {
                let owner = before
                    .get(region)
                    .zip(self.keys.get(id))
                    .and_then(|(ring, bucket)| ring.owner(&bucket.key));
                self.hand_over(now, id, region, owner);
            }
        }
        if !changed.is_empty() {
            self.unsettle(now);
            self.look_at_all(now);
        }
    }

    /// The link to another daemon was measured.
    pub fn handle_link(&mut self, now: Timestamp, peer: &NodeName, rtt: Span) {
        let Some(region) = self.regions.find(&peer.region) else { return };
        // Links are looked at before the first tick.
        self.begin(now);
        self.regions.round_trip(region, now, rtt);
        if let Some(link) = self.link_to(peer) {
            link.set_rtt(rtt);
        }
        self.measure(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.begin(now);
        self.measure(now);
        if self.regions.mark_cut_off(now, self.cut_off_after(), self.mending()) {
            self.look_at_all(now);
        }
        self.resend_lost(now);
        self.wait_for_word(now);
        self.end_crowds(now);
        self.retired.forget_until(now);
        self.leave_shares(now);
        if now >= self.next_interval {
            let interval = self.config.interval.0.max(1_000);
            self.next_interval = Timestamp((now.0 / interval).saturating_add(1).saturating_mul(interval));
            self.busy = self.waiting.len() > BUSY_ABOVE;
            for id in std::mem::take(&mut self.waiting) {
                let (here, keys) = self.here();
                let Some(bucket) = keys.get_mut(id) else { continue };
                bucket.waiting = false;
                if bucket.has_pending_report(now, here) {
                    self.tell(now, id, false);
                }
            }
        }
        while let Some(id) = self.keys.due(now) {
            match self.keys.get(id) {
                Some(bucket) if bucket.expiry() <= now => self.keys.remove(id),
                Some(_) => self.wake(now, id),
                None => {}
            }
        }
    }

    /// The next thing that the region's store must be told, or `None`.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        let leaves_allowances = self.leaves_allowances();
        loop {
            let id = *self.effects.front()?;
            if let Some(effect) = self.keys.get_mut(id).and_then(|bucket| bucket.effect(leaves_allowances)) {
                return Some(effect);
            }
            self.effects.pop_front();
        }
    }

    /// Returns when [`Self::handle_timeout`] and the polls want to be called again if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let (heartbeat, patience) = (self.heartbeat(), self.patience());
        let links = self
            .links
            .iter()
            .filter_map(|link| link.next_due(heartbeat, self.config.interval, patience))
            .min();
        let reports = (!self.waiting.is_empty()).then_some(self.next_interval);
        let silence = self.regions.next_judgement(self.cut_off_after());
        let crowd = self.crowded.values().min().copied();
        let (shares, late) = (self.leaves_shares_at(), self.late_rules.next_end());
        let others = [silence, crowd, shares, late, self.waits];
        [links, reports, self.keys.next_alarm()].into_iter().chain(others).flatten().min()
    }

    /// Looks at a bucket because its time has come.
    fn wake(&mut self, now: Timestamp, id: BucketId) {
        let (here, keys) = self.here();
        let full = keys.get_mut(id).is_some_and(|bucket| {
            bucket.place_counts(now, here);
            bucket.has_uncounted(now)
        });
        self.crowd_for(now, id, full);
        if self.keys.get(id).is_some_and(|bucket| self.owns(bucket))
            && let Some(bucket) = self.keys.get_mut(id)
        {
            let above = bucket.overshoot(now);
            if above > 0 {
                // Bounded by the number of rules.
                let sum = self.overshoot.entry(bucket.key.rule.clone()).or_default();
                *sum = sum.saturating_add(above);
            }
        } else if let Some(bucket) = self.keys.get_mut(id) {
            // The owner judges it now; an instant that nobody judges would come due for ever.
            bucket.judges_no_overshoot();
        }
        self.recompute(now, id);
        self.changed(now, id);
    }

    /// Something happened to a bucket here: tells the others at once if it is urgent, else at the next cut.
    /// Returns whether it told them, and so has looked at the bucket already.
    pub(super) fn changed(&mut self, now: Timestamp, id: BucketId) -> bool {
        let (here, keys) = self.here();
        let Some(bucket) = keys.get_mut(id) else { return false };
        let urgent = bucket.has_pending_report(now, here) && bucket.is_urgent(now, here);
        let rested = bucket.told.is_none_or(|told| now.since(told.at) >= URGENT_GAP);
        let tells = urgent && rested;
        if tells {
            self.tell(now, id, true);
        } else {
            let again = bucket.next_look(now);
            let told = bucket.told.filter(|_| urgent);
            let again = told.map_or(again, |told| again.min(told.at + URGENT_GAP));
            if !std::mem::replace(&mut bucket.waiting, true) {
                self.waiting.push(id);
            }
            self.keys.wake_at(id, again);
        }
        tells && self.keys.get(id).is_some_and(|bucket| self.owns(bucket))
    }

    /// Makes the newest counts known: to the owners in other regions if this daemon owns the bucket, else to
    /// its owner.
    pub(super) fn tell(&mut self, now: Timestamp, id: BucketId, urgent: bool) {
        let owned = self.keys.get(id).is_some_and(|bucket| self.owns(bucket));
        let (here, keys) = self.here();
        let Some(bucket) = keys.get_mut(id) else { return };
        if owned {
            for window in bucket.tell(now, here) {
                self.spread(id, Regions::OWN, window, urgent);
            }
            self.recompute(now, id);
        } else {
            for window in bucket.tell_owner(now) {
                self.owe_owner(id, Regions::OWN, OwedReport { key: id, region: None, window }, urgent);
            }
        }
        self.wake_in_time(now, id);
    }

    /// Looks at a bucket again when what is known of it comes into force, whether or not anything happens
    /// until then.
    pub(super) fn wake_in_time(&mut self, now: Timestamp, id: BucketId) {
        if let Some(again) = self.keys.get(id).map(|bucket| bucket.next_look(now)) {
            self.keys.wake_at(id, again);
        }
    }

    /// Owes what `region` told of a window to everyone whom this daemon must tell it: as the owner, or the
    /// owner itself.
    pub(super) fn spread(&mut self, id: BucketId, region: RegionId, window: u64, urgent: bool) {
        let item = OwedReport { key: id, region: Some(region), window };
        if region == Regions::OWN {
            for other in 1..self.regions.len() {
                self.owe_owner(id, other, item, urgent);
            }
        } else if self.keys.get(id).is_some_and(|bucket| !self.owns(bucket)) {
            // The daemon that told this saw another ring here, and may be gone before it sees the same.
            self.owe_owner(id, Regions::OWN, item, urgent);
        }
        let Some(bucket) = self.keys.get(id) else { return };
        let Some(names) = self.speakers.get(Regions::OWN) else { return };
        for link in bucket.siblings.iter().filter_map(|sibling| names.get(&sibling.node)) {
            if let Some(link) = self.links.get_mut(*link) {
                link.owe(item, urgent);
            }
        }
    }

    /// Owes something to the daemon that owns the bucket in `region`.
    fn owe_owner(&mut self, id: BucketId, region: RegionId, item: OwedReport, urgent: bool) {
        let Some(bucket) = self.keys.get(id) else { return };
        let Some(owner) = self.regions.get(region).and_then(|region| region.ring.owner(&bucket.key)) else {
            return;
        };
        let link = self.speakers.get(region).and_then(|names| names.get(owner)).copied();
        if let Some(link) = link.and_then(|link| self.links.get_mut(link)) {
            link.owe(item, urgent);
        }
    }

    /// True if this daemon speaks for the bucket.
    pub(super) fn owns(&self, bucket: &GossipBucket) -> bool {
        self.regions.owned_by(&self.config.name.node, &bucket.key)
    }

    /// After `region`'s ring changed: tells the bucket's new owner there everything that it must know.
    fn hand_over(&mut self, now: Timestamp, id: BucketId, region: RegionId, before: Option<&str>) {
        let Some(bucket) = self.keys.get(id) else { return };
        let owner = self.regions.get(region).and_then(|region| region.ring.owner(&bucket.key));
        if owner == before {
            return;
        }
        let link = owner.and_then(|owner| self.speakers.get(region)?.get(owner)).copied();
        let owned = self.owns(bucket);
        if region == Regions::OWN && owned {
            self.tell(now, id, true);
        }
        if region == Regions::OWN || owned {
            self.owe_everything(id, link);
        }
    }

    /// Owes one daemon all that is known of a bucket and that it may be told: a region also what it told
    /// itself in a former life.
    pub(super) fn owe_everything(&mut self, id: BucketId, link: Option<usize>) {
        let (Some(bucket), Some(link)) = (self.keys.get(id), link.and_then(|link| self.links.get_mut(link)))
        else {
            return;
        };
        let (theirs, sibling) = (link.region, link.region == Regions::OWN);
        for period in bucket.periods() {
            for region in period.tellers().filter(|region| sibling || [Regions::OWN, theirs].contains(region))
            {
                link.owe(OwedReport { key: id, region: Some(region), window: period.window }, false);
            }
            if sibling {
                link.owe(OwedReport { key: id, region: None, window: period.window }, false);
            }
        }
    }

    /// The reports of frames that must be taken for lost are owed again, unless something newer of them went
    /// out since.
    fn resend_lost(&mut self, now: Timestamp) {
        let mut lost = Vec::new();
        for link in &mut self.links {
            link.lose(now, self.config.interval, |item, version| lost.push((item, version)));
            for (item, version) in lost.drain(..) {
                let period = self.keys.get(item.key).and_then(|bucket| bucket.period(item.window));
                // A region is not told again of its own counts when they change.
                let theirs = link.region != Regions::OWN && item.region == Some(link.region);
                let newest = period.and_then(|period| period.version(item.region));
                if newest == Some(version) || (theirs && newest.is_some()) {
                    link.owe(item, true);
                }
            }
        }
    }

    /// Finds a bucket, or begins to follow it, with this own limit.
    pub(super) fn follow(
        &mut self,
        now: Timestamp,
        key: &WorldKey,
        own: Option<OwnLimit>,
    ) -> Option<BucketId> {
        if let Some(id) = self.keys.find(key) {
            return Some(id);
        }
        let rule = self.variants.with(self.rules.get(&key.rule)?, own);
        self.insert(now, GossipBucket::new(key.clone(), rule, now))
    }

    /// Follows a bucket, if there is room for it.
    pub(super) fn insert(&mut self, now: Timestamp, bucket: GossipBucket) -> Option<BucketId> {
        self.retired.make_room(self.keys.len(), self.config.keys_max);
        let id = self.keys.insert(now, bucket);
        self.tally.dropped_keys = self.keys.dropped;
        if let Some(rule) = self.keys.missed.take() {
            self.crowd(now, rule);
        }
        if id.is_none() {
            self.tally.no_room = self.tally.no_room.saturating_add(1);
        }
        id
    }

    /// By which limit `region` decides requests for a bucket: at what time now, and when it said so by its
    /// clock.
    pub(super) fn hear_limit(
        &mut self,
        times: (Timestamp, Timestamp),
        id: BucketId,
        region: RegionId,
        decided_by: DecidedBy,
    ) {
        let Some(bucket) = self.keys.get_mut(id).filter(|_| decided_by != DecidedBy::Unknown) else { return };
        let own = decided_by.own();
        if (own.is_some() || bucket.has_own_limit())
            && let Some(rule) = self.rules.get(&bucket.key.rule)
            && bucket.hear_limit(times, region, own, &rule.limit)
        {
            bucket.follow(self.variants.with(rule, bucket.own_limit()));
        }
    }

    /// Works out what the store must be told of a bucket.
    pub(super) fn recompute(&mut self, now: Timestamp, id: BucketId) {
        let (here, keys) = self.here();
        let Some(bucket) = keys.get_mut(id) else { return };
        if bucket.recompute(now, here) && !bucket.queued {
            bucket.queued = true;
            self.effects.push_back(id);
        }
    }

    /// Tells the store all that was kept from it while this daemon left it what the last one had told.
    pub(super) fn tell_store_all(&mut self) {
        for id in self.keys.ids() {
            let Some(bucket) = self.keys.get_mut(id) else { continue };
            if bucket.has_news_for_store() && !bucket.queued {
                bucket.queued = true;
                self.effects.push_back(id);
            }
        }
    }

    /// Notes what the store's answers show of its memory: it is told again what it forgot.
    fn note_store(&mut self, now: Timestamp, id: BucketId, touched: &Touched) {
        let (here, keys) = self.here();
        let Some(bucket) = keys.get_mut(id) else { return };
        let restored = bucket.note_store(now, (touched.window, touched.store), here);
        let told = touched.store.without_allowance && bucket.tell_store_again(now);
        if (restored || told) && !bucket.queued {
            bucket.queued = true;
            self.effects.push_back(id);
        }
    }

    /// Returns what a bucket must know of this daemon, beside the buckets themselves.
    pub(super) fn here(&mut self) -> (DaemonContext<'_>, &mut BucketTable) {
        let known = (self.horizon, self.busy, self.is_settled(), self.silence, self.waits.is_some());
        (here(&self.config, &self.node, &self.regions, known), &mut self.keys)
    }

    /// The same where nothing is changed.
    pub(super) fn standpoint(&self) -> DaemonContext<'_> {
        let known = (self.horizon, self.busy, self.is_settled(), self.silence, self.waits.is_some());
        here(&self.config, &self.node, &self.regions, known)
    }

    pub(super) fn look_at_all(&mut self, now: Timestamp) {
        for id in self.keys.ids() {
            if let Some(bucket) = self.keys.get_mut(id) {
                bucket.unsettle();
            }
            self.recompute(now, id);
        }
    }

    /// The link to a daemon, made if there is room and its region may be there.
    pub(super) fn link_to(&mut self, name: &NodeName) -> Option<&mut GossipLink> {
        let region = self.regions.find(&name.region)?;
        let place = match self.speakers.get(region)?.get(&name.node) {
            Some(&place) => place,
            None => {
                if *name == self.config.name {
                    return None;
                }
                let link = GossipLink::new(name.clone(), region);
                let place = if self.links.len() < LINKS_MAX {
                    self.links.push(link);
                    self.links.len() - 1
                } else {
                    // In place of the one that was gone for longest: names change with every deployment.
                    let gone = self.links.iter().enumerate().filter(|(_, link)| !link.live);
                    let (place, _) = gone.min_by_key(|(_, link)| link.heard)?;
                    let old = std::mem::replace(self.links.get_mut(place)?, link);
                    self.speakers.get_mut(old.region)?.remove(&old.name.node);
                    place
                };
                self.speakers.get_mut(region)?.insert(name.node.clone(), place);
                place
            }
        };
        self.links.get_mut(place)
    }

    pub(super) fn begin(&mut self, now: Timestamp) {
        if !self.begun {
            self.begun = true;
            self.regions.expect_from(now);
            self.begin_to_wait(now);
            self.unsettle(now);
        } else if now + STEPPED_BACK < self.newest {
            self.clock_went_back(now);
            self.unsettle(now);
        } else if self.may_have_been_cut_off(now) {
            self.unsettle(now);
            for id in self.keys.ids() {
                if let Some(bucket) = self.keys.get_mut(id) {
                    bucket.stood_still();
                }
            }
        }
        self.goes_on(now);
        self.newest = now;
    }

    /// Notes of an instant that is to come again count as made now: else everything would wait until it has
    /// come.
    fn clock_went_back(&mut self, now: Timestamp) {
        self.stood_until = self.stood_until.min(now);
        self.next_interval = Timestamp::default();
        self.waits = self.waits.map(|_| now);
        self.shorten_crowds(now);
        self.regions.clock_went_back(now);
        self.retired.clock_went_back(now);
        self.links.iter_mut().for_each(|link| link.clock_went_back(now));
        for id in self.keys.ids() {
            if let Some(bucket) = self.keys.get_mut(id) {
                bucket.clock_went_back(now);
            }
            self.keys.wake_at(id, now);
        }
    }
}

fn here<'a>(
    config: &'a ReplicaConfig,
    node: &'a Arc<str>,
    regions: &'a Regions,
    (horizon, busy, settled, silence, waits): (Span, bool, bool, Span, bool),
) -> DaemonContext<'a> {
    DaemonContext {
        node,
        started: Timestamp(config.incarnation.saturating_mul(1_000)),
        shared_store: config.shared_store,
        regions,
        horizon,
        interval: config.interval,
        policy: config.policy,
        safety: config.safety,
        suppresses_reports: config.suppresses_reports,
        busy: config.suppresses_reports && busy,
        settled,
        waits,
        silence,
    }
}
