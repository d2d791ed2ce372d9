//! The task that drives the protocol between regions: feeds a [`Replica`] and, for rights, an `Escrow` with
//! what happened, and carries out what they ask for. It decides nothing itself.
//!
//! One task owns the replica, so the pure machine needs no lock. Everything that comes in is taken in bounded
//! parts, and no part of the loop waits for a peer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::counters::Refusal;
use super::offset::Offset;
use super::rights::{Rights, Told};
use super::{LinkStatus, Member, PeerEvent, Peers};
use crate::core::region_list::RegionList;
use crate::core::regions::escrow::EscrowConfig;
use crate::core::regions::{self, NodeName, Replica, ReplicaConfig, Touched};
use crate::core::time::{Span, Timestamp};
use crate::engine::status::{PeerStatus, WorldStatus};
use crate::engine::tasks::Tasks;
use crate::engine::world::WorldPort;

/// Time after which the replica is told the time and what decisions did.
pub const TICK: Duration = Duration::from_millis(10);
/// Time after which round trips are read and the state is published.
const LOOK: Duration = Duration::from_millis(200);
/// Events taken at once.
const EVENTS_AT_ONCE: usize = 256;
/// Frames handed out at once; the rest goes out at the next turn, at most a tick later.
const FRAMES_AT_ONCE: usize = 4_096;

/// Time that a daemon that ends waits for the others' word that they know its last counts.
const FAREWELL: Duration = Duration::from_millis(300);

/// The parts of a frame that the protocol refuses although it takes the frame: signs of a fault.
const REFUSED: [&str; 9] = [
    "rights_fenced",
    "rights_beyond",
    "rights_unknown_rule",
    "rights_no_room",
    "unknown_rule",
    "other_window",
    "backwards",
    "beyond_limit",
    "counts_no_room",
];
/// The parts that it passes over because they came late, early or twice, or come again: as it should be.
const PASSED_OVER: [&str; 5] = ["window", "rights_window", "rights_early", "duplicate", "unnamed"];

/// Runs until `stop`, or until `events` ends.
pub async fn run(
    port: Arc<dyn WorldPort>,
    peers: Arc<Peers>,
    mut events: mpsc::Receiver<PeerEvent>,
    config: ReplicaConfig,
    stop: CancellationToken,
) {
    let (driver, told) = Driver::new(port, peers, config);
    drive(driver, told, &mut events, &stop).await;
}

/// The same, watched among `tasks`. Should it end before its time it goes on as another incarnation, like a
/// process that was started again: the others then do not take its counts for the earlier ones.
pub fn start(
    tasks: &Tasks,
    port: Arc<dyn WorldPort>,
    peers: Arc<Peers>,
    events: mpsc::Receiver<PeerEvent>,
    config: ReplicaConfig,
    stop: &CancellationToken,
) {
    let (events, ending) = (Arc::new(tokio::sync::Mutex::new(events)), stop.clone());
    let mut runs = 0;
    tasks.spawn("peer_sync", stop, move || {
        let incarnation = config.incarnation.saturating_add(runs);
        let config = ReplicaConfig { incarnation, ..config.clone() };
        runs += 1;
        let (port, peers) = (Arc::clone(&port), Arc::clone(&peers));
        let (events, stop) = (Arc::clone(&events), ending.clone());
        async move {
            let mut events = events.lock().await;
            let known = peers.members().borrow().clone();
            let (mut driver, told) = Driver::new(port, peers, config);
            // Members that were there before were told to the run before this one.
            if !known.is_empty() {
                driver.take(&mut vec![PeerEvent::Members(known)]);
            }
            drive(driver, told, &mut events, &stop).await;
        }
    });
}

async fn drive(
    mut driver: Driver,
    mut told: mpsc::Receiver<Told>,
    events: &mut mpsc::Receiver<PeerEvent>,
    stop: &CancellationToken,
) {
    let (mut ticks, mut looks) = (every(TICK), every(LOOK));
    let mut taken = Vec::with_capacity(EVENTS_AT_ONCE);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = looks.tick() => driver.look(),
            _ = ticks.tick() => driver.tick(),
            count = events.recv_many(&mut taken, EVENTS_AT_ONCE) => {
                if count == 0 {
                    break;
                }
                driver.take(&mut taken);
            }
            Some(answer) = told.recv() => driver.rights.answer(answer),
        }
        // Also while frames come as fast as they are taken.
        for _ in 0..EVENTS_AT_ONCE {
            let Ok(answer) = told.try_recv() else { break };
            driver.rights.answer(answer);
        }
        driver.carry_out();
    }
    let _ = timeout(FAREWELL, driver.farewell(events, &mut ticks, &mut taken)).await;
    driver.look();
}

fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

struct Driver {
    port: Arc<dyn WorldPort>,
    peers: Arc<Peers>,
    replica: Replica,
    rights: Rights,
    own: regions::Member,
    members: Vec<Member>,
    /// Distances of the others' clocks from ours; at each look those who are no members are forgotten.
    offsets: HashMap<NodeName, Offset>,
    /// Regions that share limits, as operators listed them.
    regions: Arc<RegionList>,
    leaving: bool,
    revision: Option<u64>,
    touched: Vec<Touched>,
    /// Counts that were told to the port before, to tell it only the rest.
    told: HashMap<&'static str, u64>,
    /// By rule: permits above the limit that the port was told of. Bounded by the rules.
    above: HashMap<String, u64>,
    traffic: HashMap<String, (u64, u64)>,
    updates: u64,
}

impl Driver {
    fn new(
        port: Arc<dyn WorldPort>,
        peers: Arc<Peers>,
        config: ReplicaConfig,
    ) -> (Self, mpsc::Receiver<Told>) {
        // A shared store answers over the network: it is asked less often.
        let look_gap = if config.shared_store { Span::from_millis(30) } else { Span::from_millis(10) };
        let regions = port.regions().unwrap_or_else(|| Arc::new(RegionList::of(config.regions.clone())));
        let config = ReplicaConfig { regions: regions.names.clone(), ..config };
        let escrow = EscrowConfig {
            regions: RegionList::clone(&regions),
            keys_max: config.keys_max,
            look_gap,
            ..EscrowConfig::new(config.name.clone())
        };
        begin_counting(&*port, &config);
        let (rights, told) = Rights::new(escrow, Arc::clone(&port), Arc::clone(&peers));
        let own =
            regions::Member { name: config.name.clone(), live: true, draining: false, sees_capacity: true };
        let driver = Self {
            port,
            peers,
            replica: Replica::new(config),
            rights,
            own,
            members: Vec::new(),
            offsets: HashMap::new(),
            regions,
            leaving: false,
            revision: None,
            touched: Vec::new(),
            told: HashMap::new(),
            above: HashMap::new(),
            traffic: HashMap::new(),
            updates: 0,
        };
        (driver, told)
    }

    /// Time passes: what decisions did, new rules, what is due.
    fn tick(&mut self) {
        let now = self.port.now();
        if let Some(regions) = self.port.regions().filter(|regions| !Arc::ptr_eq(regions, &self.regions)) {
            self.follow_regions(now, regions);
        }
        if self.revision != Some(self.port.revision()) {
            let (revision, rules) = self.port.rules();
            self.rights.machine.handle_rules(now, &rules);
            self.replica.handle_rules(now, revision, rules);
            self.revision = Some(revision);
        }
        if self.leaving != self.peers.is_leaving() {
            self.leaving = self.peers.is_leaving();
            self.own.draining = self.leaving;
            self.tell_members(now);
        }
        self.port.drain(&mut self.touched);
        for touched in self.touched.drain(..) {
            self.replica.handle_touched(now, &touched);
            self.rights.machine.handle_touched(now, &touched);
        }
        self.replica.handle_timeout(now);
        self.rights.machine.handle_timeout(now);
    }

    /// Other regions share limits from now on; the rules are divided anew.
    fn follow_regions(&mut self, now: Timestamp, regions: Arc<RegionList>) {
        let (before, after) = (&self.regions.names, &regions.names);
        for region in after.iter().filter(|region| !before.contains(region)) {
            begin_counting_of(&*self.port, region);
        }
        self.rights.machine.handle_regions(now, RegionList::clone(&regions));
        self.replica.handle_regions(now, after);
        self.regions = regions;
        self.revision = None;
        self.tell_members(now);
    }

    fn take(&mut self, events: &mut Vec<PeerEvent>) {
        let now = self.port.now();
        for event in events.drain(..) {
            match event {
                PeerEvent::Frame { from, frame, .. } => {
                    match self.offsets.get_mut(&from) {
                        Some(offset) => offset.note(now, frame.sent),
                        None => self.offsets.entry(from.clone()).or_default().note(now, frame.sent),
                    }
                    if let Err(refused) = self.replica.handle_frame(now, &from, frame) {
                        self.port.refused(refused.as_str(), 1);
                    }
                }
                PeerEvent::Rights { from, frame } => self.rights.take(now, &from, frame),
                PeerEvent::Members(members) => {
                    self.members = members;
                    self.tell_members(now);
                }
            }
        }
    }

    fn tell_members(&mut self, now: Timestamp) {
        let others = self.members.iter().map(|member| regions::Member {
            name: member.name.clone(),
            live: member.live,
            draining: member.draining,
            sees_capacity: member.sees_capacity,
        });
        // Ourselves only when we go: that we are here goes without saying.
        let members: Vec<_> = others.chain(self.leaving.then(|| self.own.clone())).collect();
        self.rights.machine.handle_members(now, &members);
        self.replica.handle_members(now, &members);
        for member in &self.members {
            if let Some(digests) = &member.digests {
                self.replica.handle_rules_of(now, (&member.name, member.incarnation), digests);
            }
        }
    }

    /// Hands out what the replica asks for.
    fn carry_out(&mut self) {
        self.rights.carry_out();
        if let Some(crowded) = self.replica.poll_crowded() {
            self.port.crowded(&crowded, self.replica.regions_len());
        }
        self.port.elsewhere(self.replica.elsewhere());
        while let Some(effect) = self.replica.poll_effect() {
            self.port.apply(&effect);
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        let now = self.port.now();
        for _ in 0..FRAMES_AT_ONCE {
            let Some((to, frame)) = self.replica.poll_transmit(now) else { break };
            self.peers.send(&to, &frame);
        }
    }

    /// Tells the others all that they do not know yet of what was admitted here, until they have it.
    async fn farewell(
        &mut self,
        events: &mut mpsc::Receiver<PeerEvent>,
        ticks: &mut Interval,
        taken: &mut Vec<PeerEvent>,
    ) {
        self.tick();
        self.replica.handle_end(self.port.now());
        self.transmit();
        while !self.replica.has_told_all() {
            tokio::select! {
                _ = ticks.tick() => self.replica.handle_timeout(self.port.now()),
                count = events.recv_many(taken, EVENTS_AT_ONCE) => {
                    if count == 0 {
                        break;
                    }
                    self.take(taken);
                }
            }
            self.transmit();
        }
    }

    /// Reads the links, tells the replica their round trips, and publishes.
    fn look(&mut self) {
        let now = self.port.now();
        let links = self.peers.links();
        for link in &links {
            if let (Some(peer), Some(rtt)) = (&link.peer, link.rtt) {
                self.replica.handle_link(now, peer, rtt);
                self.rights.machine.handle_link(now, peer, rtt);
            }
        }
        self.count(&links);
        let status = self.status(now, &links);
        self.port.publish(status);
    }

    /// Tells the port what has been counted since the last look.
    fn count(&mut self, links: &[LinkStatus]) {
        for (why, count) in self.peers.counters().all() {
            let more = more(self.told.entry(why.as_str()).or_default(), count);
            match (more, why.is_drop()) {
                (0, _) => {}
                (_, true) => self.port.dropped(why.as_str(), more),
                (_, false) => self.port.refused(why.as_str(), more),
            }
        }
        self.count_traffic(links);
        let tally = self.replica.tally();
        let rights = self.rights.machine.tally();
        let frames = [tally.frames_in, tally.frames_out, rights.frames_in, rights.frames_out];
        let frames = more(&mut self.updates, frames.into_iter().fold(0, u64::saturating_add));
        let refused = [
            rights.fenced,
            rights.beyond,
            rights.unknown_rules,
            rights.no_room,
            tally.unknown_rules,
            tally.other_windows,
            tally.backwards,
            tally.beyond,
            tally.uncounted,
        ];
        let port = &self.port;
        tell_more(&mut self.told, REFUSED, refused, |reason, more| port.refused(reason, more));
        let passed_over =
            [tally.past_windows, rights.other_windows, rights.early, tally.duplicates, tally.unnamed];
        tell_more(&mut self.told, PASSED_OVER, passed_over, |reason, more| port.passed_over(reason, more));
        tell_more(&mut self.told, ["late"], [tally.late], |_, more| port.late(more));
        let dropped = [tally.dropped_reports];
        tell_more(&mut self.told, ["reports"], dropped, |queue, more| port.dropped(queue, more));
        self.port.updates(frames);
        let (followed, dropped) =
            (self.replica.keys_len() + self.rights.machine.keys_len(), tally.dropped_keys + rights.no_room);
        let dropped = more(self.told.entry("keys").or_default(), dropped);
        self.port.world_keys(followed, dropped);
    }

    fn count_traffic(&mut self, links: &[LinkStatus]) {
        for (region, (sent, received)) in by_region(links) {
            let told = self.traffic.entry(region.clone()).or_default();
            let (sent, received) = (more(&mut told.0, sent), more(&mut told.1, received));
            if sent > 0 || received > 0 {
                self.port.traffic(&region, sent, received);
            }
        }
    }

    fn status(&mut self, now: Timestamp, links: &[LinkStatus]) -> WorldStatus {
        let known = self.replica.status(now);
        let names: HashSet<&NodeName> = self.members.iter().map(|member| &member.name).collect();
        self.offsets.retain(|name, _| names.contains(name));
        let lags: HashMap<&NodeName, _> = known.peers.iter().map(|peer| (&peer.name, peer.lag)).collect();
        let peer = |member: &Member| {
            let link = links.iter().find(|link| link.address == member.address);
            PeerStatus {
                name: member.name.clone(),
                address: member.address.to_string(),
                connected: link.is_some_and(|link| link.connected),
                version: link.and_then(|link| link.version),
                live: member.live,
                draining: member.draining,
                rtt: link.and_then(|link| link.rtt),
                lag: lags.get(&member.name).copied().flatten(),
                ahead: link
                    .and_then(|link| link.rtt)
                    .and_then(|rtt| self.offsets.get(&member.name)?.ahead(rtt)),
                bytes: link.map_or((0, 0), |link| (link.sent_bytes, link.received_bytes)),
                error: link.and_then(|link| link.error.clone()),
            }
        };
        for (rule, above) in &known.overshoot {
            let more = more(self.above.entry(rule.name.clone()).or_default(), *above);
            if more > 0 {
                self.port.overshoot(&rule.name, more);
            }
        }
        let away = || known.regions.iter().filter(|region| region.cut_off);
        WorldStatus {
            begins: self.replica.is_beginning(),
            peers: self.members.iter().map(peer).collect(),
            cut_off: away().map(|region| region.name.clone()).collect(),
            unseen: away().filter(|region| region.lag.is_none()).map(|region| region.name.clone()).collect(),
            error_bounds: known
                .error_bounds
                .into_iter()
                .map(|(rule, bound, doubt)| (rule.name, bound, doubt.as_str()))
                .collect(),
            buckets: known
                .keys
                .into_iter()
                .map(|bucket| (bucket.key, bucket.others.into_iter().collect()))
                .collect(),
            rights: self.rights.machine.status(now).rules,
        }
    }
}

/// Has every counter that somebody may watch there from the start, at zero.
fn begin_counting(port: &dyn WorldPort, config: &ReplicaConfig) {
    let protocol = regions::Refused::ALL.into_iter().map(regions::Refused::as_str);
    let network = Refusal::ALL.into_iter().filter(|why| !why.is_drop()).map(Refusal::as_str);
    for reason in REFUSED.into_iter().chain(protocol).chain(network) {
        port.refused(reason, 0);
    }
    let queues = Refusal::ALL.into_iter().filter(|why| why.is_drop()).map(Refusal::as_str);
    for queue in queues.chain(["reports", "rights"]) {
        port.dropped(queue, 0);
    }
    for reason in PASSED_OVER {
        port.passed_over(reason, 0);
    }
    for region in config.regions.iter().filter(|region| **region != config.name.region) {
        begin_counting_of(port, region);
    }
}

/// The same of what is counted for each other region.
fn begin_counting_of(port: &dyn WorldPort, region: &str) {
    port.rights_moved(region, 0);
    port.traffic(region, 0, 0);
}

/// Returns how much a count grew. A link that ended takes its count along: then nothing is told, and counting
/// begins anew.
fn more(told: &mut u64, count: u64) -> u64 {
    count.saturating_sub(std::mem::replace(told, count))
}

/// Tells by how much each count has grown since the last look, where it has.
fn tell_more<const N: usize>(
    told: &mut HashMap<&'static str, u64>,
    names: [&'static str; N],
    counts: [u64; N],
    tell: impl Fn(&'static str, u64),
) {
    for (name, count) in names.into_iter().zip(counts) {
        let more = more(told.entry(name).or_default(), count);
        if more > 0 {
            tell(name, more);
        }
    }
}

fn by_region(links: &[LinkStatus]) -> HashMap<String, (u64, u64)> {
    let mut regions = HashMap::<String, (u64, u64)>::new();
    // The bytes that a node sent are known by node, not by link: two links to one node must not count them
    // twice.
    let mut counted = HashSet::new();
    for link in links {
        let Some(peer) = &link.peer else { continue };
        let (sent, received) = regions.entry(peer.region.clone()).or_default();
        *sent = sent.saturating_add(link.sent_bytes);
        if counted.insert(peer) {
            *received = received.saturating_add(link.received_bytes);
        }
    }
    regions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_once() {
        let mut told = 0;
        assert_eq!([3, 3, 8, 2, 4].map(|count| more(&mut told, count)), [3, 0, 5, 0, 2]);
    }

    #[test]
    fn the_reasons_of_the_network_and_of_the_protocol_are_different_words() {
        for refused in regions::Refused::ALL {
            assert!(Refusal::ALL.iter().all(|why| why.as_str() != refused.as_str()));
        }
    }
}
