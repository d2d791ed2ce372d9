//! Daemons of several regions in the virtual world, each with its replica, and what its store was told.

use super::*;
use crate::virtual_world::{Host, Seat, VirtualWorld, Weather};

/// As many regions as any test has.
const REGIONS_MAX: usize = 10;

/// A replica, and what it made its store do.
struct TestedReplica {
    name: NodeName,
    replica: Replica,
    views: BTreeMap<WorldKey, Allowance>,
    debits: u64,
    restored: Vec<RegionUse>,
    /// Regions whose daemons have the wire version before the newest.
    older: Vec<String>,
}

/// Daemons of several regions.
pub(super) struct GossipCluster {
    world: VirtualWorld<TestedReplica>,
    /// In the order of their places.
    regions: Vec<String>,
    older: Vec<String>,
    /// True: nothing is told of buckets that are far from their limit.
    pub(super) suppresses_reports: bool,
    /// True: the daemons of a region share one store.
    pub(super) shared_store: bool,
}

fn weather(owd: Span) -> Weather {
    let delay = vec![vec![owd; REGIONS_MAX]; REGIONS_MAX];
    Weather { delay, jitter: 0.4, loss: 0.0, double: 0.0, reorder: 0.0 }
}

impl GossipCluster {
    pub(super) fn new(names: &[(&str, &str)], rule: &WorldRule) -> Self {
        Self::seeded(7, names, rule)
    }

    /// The same with other luck.
    pub(super) fn seeded(seed: u64, names: &[(&str, &str)], rule: &WorldRule) -> Self {
        let mut cluster = Self {
            world: VirtualWorld::new(START, weather(Span::from_millis(20)), seed),
            regions: Vec::new(),
            older: Vec::new(),
            suppresses_reports: false,
            shared_store: false,
        };
        for (region, node) in names {
            cluster.start(&name(region, node), rule);
        }
        cluster.meet();
        cluster
    }

    /// A daemon begins, perhaps anew.
    pub(super) fn start(&mut self, who: &NodeName, rule: &WorldRule) {
        let config = ReplicaConfig::new(who.clone(), self.now().0 / 1_000);
        let (suppresses_reports, shared_store) = (self.suppresses_reports, self.shared_store);
        let mut replica = Replica::new(ReplicaConfig { suppresses_reports, shared_store, ..config });
        replica.handle_rules(self.now(), 1, vec![rule.clone()]);
        self.insert(who, replica);
    }

    /// A daemon with this replica, perhaps in place of a former one.
    pub(super) fn insert(&mut self, who: &NodeName, replica: Replica) {
        let region = self.region(&who.region);
        let former = self.world.daemons.iter_mut().find(|seat| seat.name == *who);
        let debits = former.as_ref().map_or(0, |seat| seat.node.debits);
        let (name, older) = (who.clone(), self.older.clone());
        let node =
            TestedReplica { name, replica, views: BTreeMap::new(), debits, restored: Vec::new(), older };
        match former {
            Some(seat) => (seat.node, seat.alive, seat.known) = (node, true, true),
            None => self.world.seat(|seats| Seat::new(who.clone(), region, node, seats)),
        }
    }

    /// A daemon is gone, and nobody remembers that it was there. What it had in memory, for [`Self::insert`].
    pub(super) fn remove(&mut self, who: &NodeName) -> Replica {
        let seat = self.seat_mut(who);
        (seat.alive, seat.known) = (false, false);
        let empty = Replica::new(ReplicaConfig::new(who.clone(), 1));
        std::mem::replace(&mut seat.node.replica, empty)
    }

    /// A daemon dies, and membership says so.
    pub(super) fn kill(&mut self, who: &NodeName) {
        let at = self.at(who);
        self.world.kill(at);
    }

    /// Everyone learns who is there.
    pub(super) fn meet(&mut self) {
        self.world.meet();
    }

    /// The time that all clocks show.
    pub(super) fn now(&self) -> Timestamp {
        self.world.clock(0)
    }

    /// All clocks are set.
    pub(super) fn set_clocks(&mut self, to: Timestamp) {
        let ahead = to.0.cast_signed() - self.world.now.0.cast_signed();
        self.world.clocks.iter_mut().for_each(|clock| clock.ahead = ahead);
    }

    /// The network's delays and losses from now on.
    pub(super) fn weather(&mut self) -> &mut Weather {
        &mut self.world.network.weather
    }

    pub(super) fn set_one_way_delay(&mut self, owd: Span) {
        self.weather().delay = weather(owd).delay;
        self.meet();
    }

    /// Nothing gets between these regions and the others.
    pub(super) fn cut(&mut self, regions: &[&str]) {
        let regions: Vec<usize> = regions.iter().map(|region| self.region(region)).collect();
        self.world.network.cut(&regions, true, true, true);
    }

    /// Nobody else hears a region.
    pub(super) fn mute(&mut self, region: &str) {
        let region = self.region(region);
        self.world.network.cut(&[region], false, true, true);
    }

    /// Everything gets everywhere again.
    pub(super) fn mend(&mut self) {
        self.world.network.mend();
    }

    /// A region's daemons have the wire version before the newest.
    pub(super) fn set_older(&mut self, region: &str) {
        self.older.push(region.to_owned());
        for seat in &mut self.world.daemons {
            seat.node.older.clone_from(&self.older);
        }
    }

    /// Frames of a daemon that have not arrived yet.
    pub(super) fn under_way_from(&self, who: &NodeName) -> impl Iterator<Item = &Frame> {
        let from = self.at(who);
        self.world.network.flying().filter(move |flight| flight.from == from).map(|flight| &flight.message)
    }

    /// A daemon counts so many permits of a user, as asked for and admitted.
    pub(super) fn admit(&mut self, who: &NodeName, user: &str, window: u64, permits: u64) {
        self.touch(who, &touched(user, window, permits, permits));
    }

    pub(super) fn touch(&mut self, who: &NodeName, touched: &Touched) {
        let now = self.now();
        self.replica_mut(who).handle_touched(now, touched);
        self.pump(who);
    }

    /// A daemon does and says what it has to.
    pub(super) fn pump(&mut self, who: &NodeName) {
        let at = self.at(who);
        self.world.pump(at);
    }

    pub(super) fn run(&mut self, length: Span) {
        let end = self.world.now + length;
        while self.world.now < end {
            self.world.step(TICK);
        }
    }

    /// The permits that `who` believes each region to have admitted.
    pub(super) fn believed(&self, who: &NodeName, user: &str, window: u64) -> BTreeMap<String, u64> {
        let Some((own, others)) = self.replica(who).admitted(&key(user), window) else {
            return BTreeMap::new();
        };
        let all = others.into_iter().chain([(who.region.clone(), own)]);
        all.filter(|(_, admitted)| *admitted > 0).collect()
    }

    /// The daemons that are there, by name.
    pub(super) fn names(&self) -> Vec<NodeName> {
        self.replicas().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn replicas(&self) -> impl Iterator<Item = (&NodeName, &Replica)> {
        self.world.daemons.iter().filter(|seat| seat.alive).map(|seat| (&seat.name, &seat.node.replica))
    }

    pub(super) fn replicas_mut(&mut self) -> impl Iterator<Item = &mut Replica> {
        self.world.daemons.iter_mut().filter(|seat| seat.alive).map(|seat| &mut seat.node.replica)
    }

    pub(super) fn replica(&self, who: &NodeName) -> &Replica {
        &self.world.daemons[self.at(who)].node.replica
    }

    pub(super) fn replica_mut(&mut self, who: &NodeName) -> &mut Replica {
        &mut self.seat_mut(who).node.replica
    }

    /// By bucket, the last that a daemon's store was told.
    pub(super) fn views(&self, who: &NodeName) -> &BTreeMap<WorldKey, Allowance> {
        &self.world.daemons[self.at(who)].node.views
    }

    /// The store forgets what it was told of a user's bucket, which is this.
    pub(super) fn forget_view(&mut self, who: &NodeName, user: &str) -> Option<Allowance> {
        self.seat_mut(who).node.views.remove(&key(user))
    }

    /// Permits that a daemon charged its store for others.
    pub(super) fn debits(&self, who: &NodeName) -> u64 {
        self.world.daemons[self.at(who)].node.debits
    }

    /// What a daemon told its store that the store had forgotten, since the last call.
    pub(super) fn take_restored(&mut self, who: &NodeName) -> Vec<RegionUse> {
        std::mem::take(&mut self.seat_mut(who).node.restored)
    }

    /// Permits that a daemon charged its store for others since the last call.
    pub(super) fn take_debits(&mut self, who: &NodeName) -> u64 {
        std::mem::take(&mut self.seat_mut(who).node.debits)
    }

    fn region(&mut self, name: &str) -> usize {
        if let Some(at) = self.regions.iter().position(|known| known == name) {
            return at;
        }
        assert!(self.regions.len() < REGIONS_MAX, "there are more regions than the network knows");
        self.regions.push(name.to_owned());
        self.regions.len() - 1
    }

    fn at(&self, who: &NodeName) -> usize {
        let at = self.world.daemons.iter().position(|seat| seat.name == *who);
        at.unwrap_or_else(|| panic!("{who:?} never began"))
    }

    fn seat_mut(&mut self, who: &NodeName) -> &mut Seat<TestedReplica> {
        let at = self.at(who);
        &mut self.world.daemons[at]
    }
}

impl Host for TestedReplica {
    type Message = Frame;

    fn meet(&mut self, now: Timestamp, members: &[(Member, Span)]) {
        let list: Vec<Member> = members.iter().map(|(member, _)| member.clone()).collect();
        self.replica.handle_members(now, &list);
        for (member, trip) in members.iter().filter(|(member, _)| member.name != self.name) {
            self.replica.handle_link(now, &member.name, *trip);
        }
    }

    fn hear(&mut self, now: Timestamp, from: &NodeName, message: Frame) -> Result<(), Refused> {
        let heard = self.replica.handle_frame(now, from, message);
        assert_eq!(heard, Ok(()), "an honest frame of {from:?}");
        heard
    }

    fn tick(&mut self, now: Timestamp) {
        self.replica.handle_timeout(now);
    }

    fn carry_out(&mut self, now: Timestamp) -> Vec<(NodeName, usize, Frame)> {
        while let Some(effect) = self.replica.poll_effect() {
            match effect {
                Effect::View { key, view, .. } => {
                    self.views.insert(key, view);
                }
                Effect::Debit { permits, .. } => self.debits += permits,
                Effect::Restore { known, .. } => self.restored.push(known),
            }
        }
        let mut out = Vec::new();
        while let Some((to, frame)) = self.replica.poll_transmit(now) {
            assert!(out.len() < 1_000, "it never stops sending");
            let mut bytes = Vec::new();
            compact::write(WireVersion::NEWEST, &frame, &mut bytes);
            assert!(bytes.len() <= FRAME_BYTES_MAX || frame.reports.len() == 1);
            let older = [&self.name.region, &to.region].into_iter().any(|region| self.older.contains(region));
            let frame = if older { own::in_older_version(&frame) } else { frame };
            out.push((to, bytes.len(), frame));
        }
        out
    }
}
