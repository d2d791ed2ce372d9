//! What this daemon owes one other daemon: reports still to be sent, frames in flight, and what was heard from it.
//!
//! Nothing old is ever sent again. A frame that was lost marks its buckets as owed once more, and the newest value goes out.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::super::time::{Span, Timestamp};
use super::super::wire::Seen;
use super::NodeName;
use super::keys::KeyId;
use super::labels::{Heard, Named};
use super::regions::RegionId;

/// Most frames in flight to one daemon. Full: the oldest counts as lost.
const FLIGHTS_MAX: usize = 256;
/// What one daemon is told at most, in bytes a second, and at once after a pause. More waits, the urgent first.
const BYTES_PER_SECOND: u64 = 1_000_000;
const BYTES_AT_ONCE: u64 = 32 * 1_024;
/// How often the allowance is looked at.
const PACE: Span = Span::from_millis(10);
/// Reports that wait for one daemon. More are not taken; the next change of their bucket brings them again.
const QUEUED_MAX: usize = 65_536;
/// An urgent report goes out once more after this pause, so that a lost frame costs no round trip.
const ECHO_AFTER: Span = Span::from_millis(5);
/// Most reports that wait to go out once more.
const ECHOES_MAX: usize = 4_096;
/// Frames heard without an answer after which an acknowledgement is due at once: its history covers 64.
const UNANSWERED_MAX: u32 = 32;
/// Assumed until a round trip was measured.
const RTT_DEFAULT: Span = Span::from_millis(100);

/// One thing that can be told: a region's counts for one window of one bucket. `region` is `None` for what this daemon
/// alone counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Item {
    pub(super) key: KeyId,
    pub(super) region: Option<RegionId>,
    pub(super) window: u64,
}

/// The side of one other daemon.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: NodeName,
    /// The node of its name.
    pub(super) node: Arc<str>,
    pub(super) region: RegionId,
    pub(super) live: bool,
    /// Its newest incarnation heard of.
    pub(super) incarnation: u64,
    pub(super) heard: Option<Timestamp>,
    /// The longest delay that it announced.
    pub(super) slowest: Span,
    rtt: Option<Span>,
    seq: u64,
    seen: Option<Seen>,
    unanswered: u32,
    last_sent: Option<Timestamp>,
    urgent: VecDeque<Item>,
    dirty: VecDeque<Item>,
    queued: HashSet<Item>,
    flights: VecDeque<Flight>,
    echoes: VecDeque<(Timestamp, Item, u32)>,
    paced_at: Timestamp,
    bytes_left: u64,
    /// Reports that found no room in the queue.
    pub(super) dropped: u64,
    /// The own labels that it knows.
    pub(super) named: Named,
    /// What its labels stand for.
    pub(super) labels: Heard,
}

/// A report that went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) item: Item,
    pub(super) version: u32,
    pub(super) label: u64,
}

#[derive(Debug)]
struct Flight {
    seq: u64,
    sent: Timestamp,
    reports: Vec<Told>,
}

/// What a frame's sequence number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Not seen before.
    Fresh,
    /// Seen before: nothing in it can be new.
    Duplicate,
    /// The sender began anew and knows nothing of what it was told.
    Restarted,
}

impl Link {
    pub(super) fn new(name: NodeName, region: RegionId) -> Self {
        Self {
            node: Arc::from(name.node.as_str()),
            name,
            region,
            live: false,
            incarnation: 0,
            heard: None,
            slowest: Span::ZERO,
            rtt: None,
            seq: 0,
            seen: None,
            unanswered: 0,
            last_sent: None,
            urgent: VecDeque::new(),
            dirty: VecDeque::new(),
            queued: HashSet::new(),
            flights: VecDeque::new(),
            echoes: VecDeque::new(),
            paced_at: Timestamp::default(),
            bytes_left: BYTES_AT_ONCE,
            dropped: 0,
            named: Named::default(),
            labels: Heard::default(),
        }
    }

    pub(super) const fn set_rtt(&mut self, rtt: Span) {
        self.rtt = Some(rtt);
    }

    pub(super) const fn rtt(&self) -> Option<Span> {
        self.rtt
    }

    /// Owes it this from now on.
    pub(super) fn owe(&mut self, item: Item, urgent: bool) {
        if !self.live {
            return;
        }
        if !urgent && self.queued.len() >= QUEUED_MAX && !self.queued.contains(&item) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        if self.queued.insert(item) {
            if urgent { self.urgent.push_back(item) } else { self.dirty.push_back(item) }
        } else if urgent && !self.urgent.contains(&item) && self.urgent.len() < 64 {
            // It stays in the other queue too; whoever comes second finds it paid.
            self.urgent.push_back(item);
        }
    }

    /// Forgets all debts: it is gone, or begins anew and will be told everything.
    pub(super) fn forget(&mut self) {
        self.urgent.clear();
        self.dirty.clear();
        self.queued.clear();
        self.flights.clear();
        self.echoes.clear();
    }

    /// The next thing to tell it, and whether it is urgent.
    pub(super) fn next_owed(&mut self) -> Option<(Item, bool)> {
        loop {
            let (item, urgent) = match self.urgent.pop_front() {
                Some(item) => (item, true),
                None => (self.dirty.pop_front()?, false),
            };
            if self.queued.remove(&item) {
                return Some((item, urgent));
            }
        }
    }

    /// Will say this version of an item once more.
    pub(super) fn echo(&mut self, now: Timestamp, item: Item, version: u32) {
        if self.echoes.len() < ECHOES_MAX {
            self.echoes.push_back((now + ECHO_AFTER, item, version));
        }
    }

    /// The next thing to say once more, and the version that was said.
    pub(super) fn next_echo(&mut self, now: Timestamp) -> Option<(Item, u32)> {
        let &(at, item, version) = self.echoes.front()?;
        if at > now {
            return None;
        }
        self.echoes.pop_front();
        Some((item, version))
    }

    /// Puts back what did not fit.
    pub(super) fn put_back(&mut self, item: Item) {
        if self.queued.insert(item) {
            self.urgent.push_front(item);
        }
    }

    pub(super) fn owes(&self) -> bool {
        !self.queued.is_empty()
    }

    /// A frame of this incarnation arrives. `None`: of one that is over, which nothing may be concluded from.
    pub(super) fn arrives(&mut self, now: Timestamp, incarnation: u64, seq: u64) -> Option<Arrival> {
        if incarnation < self.incarnation {
            return None;
        }
        let restarted = incarnation > self.incarnation && self.incarnation > 0;
        if incarnation > self.incarnation {
            self.incarnation = incarnation;
            self.seen = None;
            self.named.forget();
            self.labels.forget();
        }
        self.heard = Some(now);
        Some(match self.seen {
            _ if restarted => Arrival::Restarted,
            Some(seen) if has_seen(seen, seq) => Arrival::Duplicate,
            _ => Arrival::Fresh,
        })
    }

    /// All that a frame said was understood: it will be acknowledged. `lag` is the receiver's clock minus the sender's stamp.
    pub(super) fn understood(&mut self, seq: u64, lag: i64) {
        self.unanswered = self.unanswered.saturating_add(1);
        let Some(seen) = &mut self.seen else {
            self.seen = Some(Seen { incarnation: self.incarnation, seq, before: 0, lag });
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
            seen.lag = lag;
        } else if !has_seen(*seen, seq) {
            seen.before |= 1 << (seen.seq - seq - 1);
        }
    }

    /// Takes in what it says it has received of ours: those frames have landed.
    pub(super) fn landed(&mut self, own_incarnation: u64, seen: Seen) {
        if seen.incarnation != own_incarnation {
            return;
        }
        let named = &mut self.named;
        self.flights.retain(|flight| {
            let back = match seen.seq.checked_sub(flight.seq) {
                None => return true,
                Some(back) => back,
            };
            let landed = back == 0 || (back <= 64 && seen.before & (1 << (back - 1)) != 0);
            if landed {
                flight.reports.iter().for_each(|told| named.understood(told.label));
            }
            !landed
        });
    }

    /// Calls `lost` for everything that was in frames which must be taken for lost.
    pub(super) fn lose(&mut self, now: Timestamp, interval: Span, mut lost: impl FnMut(Item, u32)) {
        let patience = self.patience(interval);
        while let Some(first) = self.flights.front() {
            if now.since(first.sent) < patience && self.flights.len() <= FLIGHTS_MAX {
                break;
            }
            let Some(flight) = self.flights.pop_front() else { break };
            for told in flight.reports {
                self.named.doubt(told.label);
                lost(told.item, told.version);
            }
        }
    }

    /// How long a frame may stay unacknowledged: one and a half round trips, and the time that the other side may wait
    /// before it answers.
    fn patience(&self, interval: Span) -> Span {
        let rtt = self.rtt.unwrap_or(RTT_DEFAULT).0;
        Span((rtt / 2).saturating_mul(3)) + interval + PACE
    }

    /// Whether a frame should go out now.
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
        let echoes = self.echoes.front().is_some_and(|(at, ..)| *at <= now);
        idle || ((self.owes() || echoes) && !mute && self.bytes_left > 0) || self.unanswered >= UNANSWERED_MAX
    }

    /// When [`Self::due`] next answers yes if nothing happens.
    pub(super) fn next_due(&self, heartbeat: Span, interval: Span, silence: Span) -> Option<Timestamp> {
        if !self.live {
            return None;
        }
        let knock = self.last_sent.map_or(Timestamp::default(), |sent| sent + heartbeat);
        let loss = self.flights.front().map(|flight| flight.sent + self.patience(interval));
        let mute = self.heard.zip(self.last_sent).is_none_or(|(heard, sent)| sent.since(heard) > silence);
        let owed = (self.owes() && !mute).then_some(self.paced_at + PACE);
        let echo = self.echoes.front().filter(|_| !mute).map(|(at, ..)| (*at).max(self.paced_at + PACE));
        [Some(knock), loss, owed, echo].into_iter().flatten().min()
    }

    /// Takes a frame's number and acknowledgement, and remembers what is in it.
    pub(super) fn depart(&mut self, now: Timestamp, reports: Vec<Told>, bytes: usize) -> (u64, Option<Seen>) {
        self.seq += 1;
        self.unanswered = 0;
        self.last_sent = Some(now);
        self.bytes_left = self.bytes_left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        if !reports.is_empty() {
            self.flights.push_back(Flight { seq: self.seq, sent: now, reports });
        }
        (self.seq, self.seen)
    }

    /// Reports waiting to be sent.
    pub(super) fn backlog(&self) -> usize {
        self.queued.len()
    }
}

/// Whether a frame was received, or is too old to tell.
const fn has_seen(seen: Seen, seq: u64) -> bool {
    match seen.seq.checked_sub(seq) {
        None => false,
        Some(back) => back == 0 || back > 64 || seen.before & (1 << (back - 1)) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        let mut link = Link::new(NodeName { region: "b".to_owned(), node: "b1".to_owned() }, 1);
        link.live = true;
        link
    }

    /// A frame arrives, all of it understood.
    fn arrive(link: &mut Link, incarnation: u64, seq: u64) -> Option<Arrival> {
        let arrival = link.arrives(Timestamp(1), incarnation, seq);
        link.understood(seq, 0);
        arrival
    }

    const ITEM: Item = Item { key: KeyId { slot: 3, born: 1 }, region: Some(0), window: 7 };

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
    fn what_was_acknowledged_is_not_lost_and_the_rest_is() {
        let mut link = link();
        let interval = Span::from_millis(50);
        for _ in 0..3 {
            link.depart(Timestamp(0), vec![Told { item: ITEM, version: 1, label: 4 }], 100);
        }
        link.landed(8, Seen { incarnation: 7, seq: 3, before: 0b11, lag: 0 });
        link.landed(8, Seen { incarnation: 8, seq: 3, before: 0b10, lag: 0 });
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
}
