//! The link to one other daemon: reports still to be sent, frames in flight, and what was heard from it.
//!
//! Nothing old is ever sent again. A frame that was lost marks its buckets as owed once more, and the newest
//! value goes out.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::bucket_table::BucketId;
use super::key_dictionary::{AcknowledgedKeyIds, PeerKeyIds};
use crate::regions::NodeName;
use crate::regions::compared::Digests;
use crate::regions::membership::RegionId;
use crate::time::{Span, Timestamp};
use crate::wire::{Acknowledgement, CrowdedRules};

/// Most frames in flight to one daemon. Full: the oldest counts as lost.
const FLIGHTS_MAX: usize = 256;
/// The most that one daemon is told, in bytes a second, and at once after a pause. More waits, the urgent
/// first.
pub const BYTES_PER_SECOND: u64 = 1_000_000;
/// See [`BYTES_PER_SECOND`].
pub const BYTES_AT_ONCE: u64 = 32 * 1_024;
/// Time between two looks at the allowance.
const PACE: Span = Span::from_millis(10);
/// Reports that wait for one daemon. More are not taken; the next change of their bucket brings them again.
const QUEUED_MAX: usize = 65_536;
/// An urgent report goes out once more after this pause, so that a lost frame costs no round trip.
const ECHO_AFTER: Span = Span::from_millis(5);
/// Most reports that wait to go out once more.
const ECHOES_MAX: usize = 4_096;
/// Frames heard without an answer after which an acknowledgement is due at once: its history covers 64.
const UNANSWERED_MAX: u32 = 32;
/// After so long without a frame of a process, one that seems to be older is believed to have followed it.
const REBORN: Span = Span::from_secs(10);
/// Assumed until a round trip was measured.
const RTT_DEFAULT: Span = Span::from_millis(100);
/// Newest frames of which it is known when they went out: as many as an acknowledgement speaks of.
const DEPARTURES_MAX: usize = 64;

/// One thing that can be told: a region's counts for one window of one bucket. `region` is `None` for what
/// this daemon alone counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct OwedReport {
    pub(super) key: BucketId,
    pub(super) region: Option<RegionId>,
    pub(super) window: u64,
}

/// The side of one other daemon.
#[derive(Debug)]
pub(super) struct GossipLink {
    pub(super) name: NodeName,
    /// Node part of `name`, shared so that counters need no copy.
    pub(super) node: Arc<str>,
    pub(super) region: RegionId,
    pub(super) live: bool,
    /// Newest incarnation of it that was heard of, in ms since the epoch.
    pub(super) incarnation: u64,
    pub(super) heard: Option<Timestamp>,
    /// True if it has acknowledged a frame of this process.
    pub(super) answered: bool,
    /// The longest delay that it announced.
    pub(super) slowest: Span,
    /// The rules of which it said that it cannot follow all buckets in use.
    pub(super) crowded: CrowdedRules,
    /// The digests of its rules, once it has said them, and when the process began that said them.
    pub(super) rules: Option<(u64, Digests)>,
    rtt: Option<Span>,
    seq: u64,
    seen: Option<Acknowledgement>,
    /// The newest frame of ours that it has, and by when it had it.
    landed: Option<(u64, Timestamp)>,
    /// Instants at which the newest frames of ours went out.
    departures: VecDeque<(u64, Timestamp)>,
    unanswered: u32,
    last_sent: Option<Timestamp>,
    urgent: VecDeque<OwedReport>,
    ordinary: VecDeque<OwedReport>,
    queued: HashSet<OwedReport>,
    unacknowledged: VecDeque<SentFrame>,
    repeats: VecDeque<(Timestamp, OwedReport, u32)>,
    paced_at: Timestamp,
    bytes_left: u64,
    /// Reports that found no room in the queue.
    pub(super) dropped: u64,
    /// The own key ids that it knows.
    pub(super) named: AcknowledgedKeyIds,
    /// The meaning of its key ids.
    pub(super) key_ids: PeerKeyIds,
}

/// A report that went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentReport {
    pub(super) item: OwedReport,
    pub(super) version: u32,
    pub(super) key_id: u64,
}

#[derive(Debug)]
struct SentFrame {
    seq: u64,
    sent: Timestamp,
    reports: Vec<SentReport>,
}

/// The meaning of a frame's sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Not seen before.
    Fresh,
    /// Seen before: nothing in it can be new.
    Duplicate,
    /// The sender began anew and knows nothing of what it was told.
    Restarted,
}

impl GossipLink {
    pub(super) fn new(name: NodeName, region: RegionId) -> Self {
        Self {
            node: Arc::from(name.node.as_str()),
            name,
            region,
            live: false,
            incarnation: 0,
            heard: None,
            answered: false,
            slowest: Span::ZERO,
            crowded: CrowdedRules::NONE,
            rules: None,
            rtt: None,
            seq: 0,
            seen: None,
            landed: None,
            departures: VecDeque::new(),
            unanswered: 0,
            last_sent: None,
            urgent: VecDeque::new(),
            ordinary: VecDeque::new(),
            queued: HashSet::new(),
            unacknowledged: VecDeque::new(),
            repeats: VecDeque::new(),
            paced_at: Timestamp::default(),
            bytes_left: BYTES_AT_ONCE,
            dropped: 0,
            named: AcknowledgedKeyIds::default(),
            key_ids: PeerKeyIds::default(),
        }
    }

    pub(super) const fn set_rtt(&mut self, rtt: Span) {
        self.rtt = Some(rtt);
    }

    pub(super) const fn rtt(&self) -> Option<Span> {
        self.rtt
    }

    /// Owes it this from now on.
    pub(super) fn owe(&mut self, item: OwedReport, urgent: bool) {
        if !self.live {
            return;
        }
        if self.queued.len() >= QUEUED_MAX && !self.queued.contains(&item) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        if self.queued.insert(item) {
            if urgent { self.urgent.push_back(item) } else { self.ordinary.push_back(item) }
        } else if urgent && self.urgent.len() < 64 && !self.urgent.contains(&item) {
            // It stays in the other queue too; whoever comes second finds it paid.
            self.urgent.push_back(item);
        }
    }

    /// The clock went back to `now`.
    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        self.departures.iter_mut().for_each(|(_, sent)| *sent = (*sent).min(now));
        self.paced_at = self.paced_at.min(now);
        self.last_sent = self.last_sent.map(|sent| sent.min(now));
        self.heard = self.heard.map(|heard| heard.min(now));
        self.landed = self.landed.map(|(seq, at)| (seq, at.min(now)));
        self.unacknowledged.iter_mut().for_each(|flight| flight.sent = flight.sent.min(now));
        self.repeats.iter_mut().for_each(|(at, ..)| *at = (*at).min(now));
    }

    /// Forgets all debts: it is gone, or begins anew and will be told everything.
    pub(super) fn forget(&mut self) {
        self.urgent.clear();
        self.ordinary.clear();
        self.queued.clear();
        self.unacknowledged.clear();
        self.repeats.clear();
    }

    /// The next thing to tell it, and whether it is urgent.
    pub(super) fn next_owed(&mut self) -> Option<(OwedReport, bool)> {
        loop {
            let (item, urgent) = match self.urgent.pop_front() {
                Some(item) => (item, true),
                None => (self.ordinary.pop_front()?, false),
            };
            if self.queued.remove(&item) {
                return Some((item, urgent));
            }
        }
    }

    /// Will say this version of an item once more.
    pub(super) fn repeat(&mut self, now: Timestamp, item: OwedReport, version: u32) {
        if self.repeats.len() < ECHOES_MAX {
            self.repeats.push_back((now + ECHO_AFTER, item, version));
        }
    }

    /// The next thing to say once more, and the version that was said.
    pub(super) fn next_repeat(&mut self, now: Timestamp) -> Option<(OwedReport, u32)> {
        let &(at, item, version) = self.repeats.front()?;
        if at > now {
            return None;
        }
        self.repeats.pop_front();
        Some((item, version))
    }

    /// Puts back what did not fit, first of its kind.
    pub(super) fn put_back(&mut self, item: OwedReport, urgent: bool) {
        if self.queued.insert(item) {
            if urgent { self.urgent.push_front(item) } else { self.ordinary.push_front(item) }
        }
    }

    /// True if it has all that it was to be told, as far as it can still be heard.
    pub(super) fn has_all(&self) -> bool {
        !self.live || (!self.owes() && self.unacknowledged.is_empty())
    }

    pub(super) fn owes(&self) -> bool {
        !self.queued.is_empty()
    }

    /// A frame of this incarnation arrives. `None`: of one that is over, which nothing may be concluded from.
    pub(super) fn arrives(&mut self, now: Timestamp, incarnation: u64, seq: u64) -> Option<Arrival> {
        // A process whose clock was ahead when it began is followed by one with a smaller number.
        let silent = self.heard.is_none_or(|heard| now.since(heard) > REBORN);
        if incarnation < self.incarnation && !silent {
            return None;
        }
        let restarted = incarnation != self.incarnation && self.incarnation > 0;
        if incarnation != self.incarnation {
            self.incarnation = incarnation;
            self.seen = None;
            self.named.forget();
            self.key_ids.forget();
        }
        self.heard = Some(now);
        Some(match self.seen {
            _ if restarted => Arrival::Restarted,
            Some(seen) if has_seen(seen, seq) => Arrival::Duplicate,
            _ => Arrival::Fresh,
        })
    }

    /// All that a frame said was understood: it will be acknowledged.
    pub(super) fn understood(&mut self, seq: u64) {
        self.unanswered = self.unanswered.saturating_add(1);
        let Some(seen) = &mut self.seen else {
            self.seen = Some(Acknowledgement { incarnation: self.incarnation, seq, before: 0 });
            return;
        };
        if seq > seen.seq {
            let step = seq - seen.seq;
            seen.before = if step > 64 {
                0
            } else {
                seen.before.checked_shl(u32::try_from(step).unwrap_or(64)).unwrap_or(0) | 1 << (step - 1)
            };
            seen.seq = seq;
        } else if !has_seen(*seen, seq) {
            seen.before |= 1 << (seen.seq - seq - 1);
        }
    }

    /// Takes in what it says it has received of ours: those frames have landed. Returns whether none of them
    /// is missing. It says so within a `heartbeat` even if nothing else is to be said.
    pub(super) fn landed(
        &mut self,
        now: Timestamp,
        own_incarnation: u64,
        seen: Acknowledgement,
        heartbeat: Span,
    ) -> bool {
        if seen.incarnation != own_incarnation {
            return false;
        }
        if self.landed.is_none_or(|(seq, _)| seq < seen.seq) {
            self.landed = Some((seen.seq, self.reached_by(now, seen.seq, heartbeat)));
        }
        self.answered = true;
        let named = &mut self.named;
        self.unacknowledged.retain(|flight| {
            let back = match seen.seq.checked_sub(flight.seq) {
                None => return true,
                Some(back) => back,
            };
            let landed = back == 0 || (back <= 64 && seen.before & (1 << (back - 1)) != 0);
            if landed {
                flight.reports.iter().for_each(|told| named.understood(told.key_id));
            }
            !landed
        });
        !has_gaps(seen)
    }

    /// Returns by when it had a frame of ours of which it speaks now for the first time. It speaks late of
    /// frames before a time in which it could not be heard.
    fn reached_by(&mut self, now: Timestamp, seq: u64, heartbeat: Span) -> Timestamp {
        while self.departures.get(1).is_some_and(|(newer, _)| *newer <= seq) {
            self.departures.pop_front();
        }
        let Some(rtt) = self.rtt else { return now };
        let spoken = Timestamp(now.0.saturating_sub(rtt.0 / 2));
        self.departures.front().map_or(spoken, |(_, sent)| spoken.min(*sent + rtt + heartbeat))
    }

    /// By when, at the latest, it had the newest frame of ours that it has acknowledged.
    pub(super) fn reached(&self) -> Option<Timestamp> {
        self.landed.map(|(_, at)| at)
    }

    /// True if all of its newest frames came, none later than `patience` after the one before, and ours are
    /// answered: of those one `heartbeat` more sees the answer.
    pub(super) fn is_sound(&self, now: Timestamp, patience: Span, heartbeat: Span) -> bool {
        let within = |at: Option<Timestamp>, patience| at.is_some_and(|at| now.since(at) <= patience);
        let answered = within(self.heard, patience) && within(self.reached(), patience + heartbeat);
        answered && self.seen.is_some_and(|seen| !has_gaps(seen))
    }

    /// Calls `lost` for everything that was in frames which must be taken for lost.
    pub(super) fn lose(&mut self, now: Timestamp, interval: Span, mut lost: impl FnMut(OwedReport, u32)) {
        let patience = self.patience(interval);
        while let Some(first) = self.unacknowledged.front() {
            if now.since(first.sent) < patience && self.unacknowledged.len() <= FLIGHTS_MAX {
                break;
            }
            let Some(flight) = self.unacknowledged.pop_front() else { break };
            for told in flight.reports {
                self.named.doubt(told.key_id);
                lost(told.item, told.version);
            }
        }
    }

    /// Returns how long a frame may stay unacknowledged: one and a half round trips, and the time that the
    /// other side may wait before it answers.
    fn patience(&self, interval: Span) -> Span {
        let rtt = self.rtt.unwrap_or(RTT_DEFAULT).0;
        Span((rtt / 2).saturating_mul(3)) + interval + PACE
    }

    /// True if a frame should go out now.
    pub(super) fn due(&mut self, now: Timestamp, heartbeat: Span, silence: Span) -> bool {
        if now.since(self.paced_at) >= PACE {
            let earned = now.since(self.paced_at).0.min(1_000_000) * BYTES_PER_SECOND / 1_000_000;
            self.paced_at = now;
            self.bytes_left = self.bytes_left.saturating_add(earned).min(BYTES_AT_ONCE);
        }
        if !self.live {
            return false;
        }
        let idle = self.last_sent.is_none_or(|sent| now.since(sent) >= heartbeat);
        // One that does not answer is only knocked at: what it is owed stays owed.
        let mute = self.heard.is_none_or(|heard| now.since(heard) > silence);
        let echoes = self.repeats.front().is_some_and(|(at, ..)| *at <= now);
        idle || ((self.owes() || echoes) && !mute && self.bytes_left > 0) || self.unanswered >= UNANSWERED_MAX
    }

    /// Returns when [`Self::due`] next answers yes if nothing happens.
    pub(super) fn next_due(&self, heartbeat: Span, interval: Span, silence: Span) -> Option<Timestamp> {
        if !self.live {
            return None;
        }
        let knock = self.last_sent.map_or(Timestamp::default(), |sent| sent + heartbeat);
        let loss = self.unacknowledged.front().map(|flight| flight.sent + self.patience(interval));
        let mute = self.heard.zip(self.last_sent).is_none_or(|(heard, sent)| sent.since(heard) > silence);
        let owed = (self.owes() && !mute).then_some(self.paced_at + PACE);
        let echo = self.repeats.front().filter(|_| !mute).map(|(at, ..)| (*at).max(self.paced_at + PACE));
        [Some(knock), loss, owed, echo].into_iter().flatten().min()
    }

    /// Takes a frame's number and acknowledgement, and remembers what is in it.
    pub(super) fn depart(
        &mut self,
        now: Timestamp,
        reports: Vec<SentReport>,
        bytes: usize,
    ) -> (u64, Option<Acknowledgement>) {
        self.seq += 1;
        self.unanswered = 0;
        self.last_sent = Some(now);
        if self.departures.len() >= DEPARTURES_MAX {
            self.departures.pop_front();
        }
        self.departures.push_back((self.seq, now));
        self.bytes_left = self.bytes_left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        if !reports.is_empty() {
            self.unacknowledged.push_back(SentFrame { seq: self.seq, sent: now, reports });
        }
        (self.seq, self.seen)
    }

    /// Reports waiting to be sent.
    pub(super) fn backlog(&self) -> usize {
        self.queued.len()
    }
}

/// True if one of the newest frames is missing, but for the last two, which may have been overtaken.
const fn has_gaps(seen: Acknowledgement) -> bool {
    const OVERTAKEN: u64 = 1;
    const JUDGED: u64 = 16;
    // The first frame has the number one.
    let sent = seen.seq - if seen.seq > 0 { 1 } else { 0 };
    let judged = if sent < JUDGED { sent } else { JUDGED };
    let mut back = OVERTAKEN;
    while back < judged {
        if seen.before & (1 << back) == 0 {
            return true;
        }
        back += 1;
    }
    false
}

/// True if a frame was received, or is too old to tell.
const fn has_seen(seen: Acknowledgement, seq: u64) -> bool {
    match seen.seq.checked_sub(seq) {
        None => false,
        Some(back) => back == 0 || back > 64 || seen.before & (1 << (back - 1)) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> GossipLink {
        let mut link = GossipLink::new(NodeName { region: "b".to_owned(), node: "b1".to_owned() }, 1);
        link.live = true;
        link
    }

    /// A frame arrives, all of it understood.
    fn arrive(link: &mut GossipLink, incarnation: u64, seq: u64) -> Option<Arrival> {
        let arrival = link.arrives(Timestamp(1), incarnation, seq);
        link.understood(seq);
        arrival
    }

    const ITEM: OwedReport = OwedReport { key: BucketId { slot: 3, born: 1 }, region: Some(0), window: 7 };

    #[test]
    fn a_frame_is_fresh_once_whatever_the_order() {
        let mut link = link();
        for (seq, arrival) in [
            (5, Arrival::Fresh),
            (3, Arrival::Fresh),
            (5, Arrival::Duplicate),
            (3, Arrival::Duplicate),
            (70, Arrival::Fresh),
            (69, Arrival::Fresh),
            (4, Arrival::Duplicate),
            (6, Arrival::Fresh),
            (6, Arrival::Duplicate),
        ] {
            assert_eq!(arrive(&mut link, 9, seq), Some(arrival), "{seq}");
        }
    }

    #[test]
    fn a_restarted_sender_counts_from_one_again() {
        let mut link = link();
        assert_eq!(arrive(&mut link, 9, 100), Some(Arrival::Fresh));
        assert_eq!(arrive(&mut link, 10, 1), Some(Arrival::Restarted));
        assert_eq!(arrive(&mut link, 10, 1), Some(Arrival::Duplicate));
    }

    #[test]
    fn a_process_that_began_while_its_clock_was_ahead_is_followed_by_one_with_a_smaller_number() {
        let mut link = link();
        assert_eq!(arrive(&mut link, 9, 1), Some(Arrival::Fresh));
        assert_eq!(link.arrives(Timestamp(2), 8, 1), None, "it may be older");
        let later = Timestamp(2) + REBORN;
        assert_eq!(link.arrives(later, 8, 1), Some(Arrival::Restarted));
        link.understood(1);
        assert_eq!(link.arrives(later, 8, 1), Some(Arrival::Duplicate));
    }

    #[test]
    fn a_frame_that_was_not_understood_is_not_acknowledged_and_may_come_again() {
        let mut link = link();
        assert_eq!(arrive(&mut link, 9, 1), Some(Arrival::Fresh));
        assert_eq!(link.arrives(Timestamp(1), 9, 2), Some(Arrival::Fresh));
        assert_eq!(arrive(&mut link, 9, 3), Some(Arrival::Fresh));
        let (_, seen) = link.depart(Timestamp(2), Vec::new(), 0);
        assert_eq!(seen.map(|seen| (seen.seq, seen.before)), Some((3, 0b10)));
        assert_eq!(link.arrives(Timestamp(3), 9, 2), Some(Arrival::Fresh));
        assert_eq!(link.arrives(Timestamp(3), 8, 7), None);
    }

    #[test]
    fn what_is_acknowledged_only_after_a_cut_reached_it_before() {
        let mut link = link();
        link.set_rtt(Span::from_millis(4));
        let heartbeat = Span::from_millis(50);
        let ack = |seq| Acknowledgement { incarnation: 8, seq, before: 0 };
        let start = Timestamp(1_000_000);
        for seq in 1..=100 {
            link.depart(start + Span::from_millis(seq * 50), Vec::new(), 0);
        }
        let before = start + Span::from_millis(2_000);
        link.landed(before + Span::from_millis(10), 8, ack(40), heartbeat);
        assert_eq!(
            link.reached(),
            Some(before + Span::from_millis(8)),
            "the time that the answer took is known"
        );
        link.landed(start + Span::from_millis(5_000), 8, ack(42), heartbeat);
        assert_eq!(
            link.reached(),
            Some(start + Span::from_millis(2_154)),
            "it spoke late of what it had long had"
        );
    }

    #[test]
    fn what_was_acknowledged_is_not_lost_and_the_rest_is() {
        let mut link = link();
        let interval = Span::from_millis(50);
        for _ in 0..3 {
            link.depart(Timestamp(0), vec![SentReport { item: ITEM, version: 1, key_id: 4 }], 100);
        }
        link.landed(Timestamp(1), 8, Acknowledgement { incarnation: 7, seq: 3, before: 0b11 }, Span::ZERO);
        link.landed(Timestamp(1), 8, Acknowledgement { incarnation: 8, seq: 3, before: 0b10 }, Span::ZERO);
        let mut lost = Vec::new();
        link.lose(Timestamp(100_000), interval, |item, version| lost.push((item, version)));
        assert_eq!(lost, []);
        assert!(link.named.knows(4));
        link.lose(Timestamp(1_000_000), interval, |item, version| lost.push((item, version)));
        assert_eq!(lost, [(ITEM, 1)]);
        // Perhaps it was lost for want of a name: it is named again.
        assert!(!link.named.knows(4));
    }

    #[test]
    fn an_item_is_owed_once_also_when_it_becomes_urgent() {
        let mut link = link();
        link.owe(ITEM, false);
        link.owe(ITEM, true);
        assert_eq!(link.next_owed(), Some((ITEM, true)));
        assert_eq!(link.next_owed(), None);
        assert!(!link.owes());
    }

    /// A full frame, and what a report takes of it.
    const FRAME: u64 = 1_150;
    const REPORT: u64 = 40;

    fn nth(slot: usize) -> OwedReport {
        OwedReport { key: BucketId { slot: u32::try_from(slot).unwrap(), born: 1 }, ..ITEM }
    }

    /// Fills and sends frames for as long as they are due at this millisecond, as the replica does; returns
    /// their bytes.
    fn send(link: &mut GossipLink, millis: u64, mut told: impl FnMut(OwedReport, bool)) -> u64 {
        let now = Timestamp(millis * 1_000);
        link.heard = Some(now);
        let (heartbeat, silence) = (Span::from_secs(3_600), Span::from_secs(1));
        let mut sent = 0;
        while link.due(now, heartbeat, silence) {
            let mut bytes = 64;
            while bytes + REPORT <= FRAME
                && let Some((item, urgent)) = link.next_owed()
            {
                bytes += REPORT;
                told(item, urgent);
            }
            link.depart(now, Vec::new(), usize::try_from(bytes).unwrap());
            sent += bytes;
        }
        sent
    }

    #[test]
    fn a_flood_goes_out_at_the_pace_of_a_link() {
        let mut link = link();
        let mut items = (0..).map(nth);
        let by_millis: Vec<u64> = (1..=4_000)
            .map(|millis| {
                // Eight times as much as may be told.
                items.by_ref().take(200).for_each(|item| link.owe(item, false));
                send(&mut link, millis, |_, _| {})
            })
            .collect();
        // At each look the frame that uses up the allowance may be longer than what is left of it.
        let looks = 1_000 / (PACE.0 / 1_000);
        let most = BYTES_PER_SECOND + looks * FRAME;
        for (from, second) in by_millis.windows(1_000).enumerate() {
            let sent: u64 = second.iter().sum();
            let at_once = if from < 10 { BYTES_AT_ONCE } else { 0 };
            assert!(sent <= most + at_once, "{sent} bytes in the second from {from} ms on");
            assert!(sent >= BYTES_PER_SECOND * 99 / 100, "only {sent} bytes from {from} ms on");
        }
    }

    #[test]
    fn after_a_pause_only_so_much_goes_out_at_once() {
        let mut link = link();
        (0..10_000).map(nth).for_each(|item| link.owe(item, false));
        for millis in [1, 10_000, 20_000] {
            let sent = send(&mut link, millis, |_, _| {});
            assert!((BYTES_AT_ONCE..BYTES_AT_ONCE + FRAME).contains(&sent), "{sent} bytes at {millis} ms");
        }
    }

    #[test]
    fn what_finds_no_room_in_the_queue_is_dropped_and_counted() {
        let mut link = link();
        (0..QUEUED_MAX + 1_000).map(nth).for_each(|item| link.owe(item, false));
        assert_eq!((link.backlog(), link.dropped), (QUEUED_MAX, 1_000));
        // Reports that wait already need no room.
        link.owe(nth(0), false);
        assert_eq!((link.backlog(), link.dropped), (QUEUED_MAX, 1_000));
        let mut told = 0;
        send(&mut link, 1, |_, _| told += 1);
        assert!(told > 0);
        (0..told + 10).map(|slot| nth(QUEUED_MAX + slot)).for_each(|item| link.owe(item, false));
        assert_eq!((link.backlog(), link.dropped), (QUEUED_MAX, 1_010));
    }

    #[test]
    fn reports_that_are_not_urgent_get_their_turn_beside_urgent_ones() {
        const HOT: usize = 64;
        let mut link = link();
        (HOT..HOT + QUEUED_MAX).map(nth).for_each(|item| link.owe(item, false));
        let waiting_ends = QUEUED_MAX as u64 * REPORT * 1_000 / BYTES_PER_SECOND;
        let (mut ordinary, mut first, mut last) = (0, None, None);
        for millis in 1..waiting_ends * 2 {
            // As often as a bucket may say something urgent.
            if millis % 20 == 0 {
                (0..HOT).map(nth).for_each(|item| link.owe(item, true));
            }
            send(&mut link, millis, |_, urgent| {
                if !urgent {
                    ordinary += 1;
                    first = first.or(Some(millis));
                    last = Some(millis);
                }
            });
            if millis % 20 == 10 {
                assert!(link.urgent.is_empty(), "urgent reports wait at {millis} ms");
            }
        }
        assert_eq!((ordinary, link.dropped, link.backlog()), (QUEUED_MAX, 0, 0));
        // An eighth of the pace goes to the urgent ones.
        assert!(
            first < Some(20) && last < Some(waiting_ends * 5 / 4),
            "{first:?} to {last:?} of {waiting_ends} ms"
        );
    }
}
