//! The way to one other daemon: which buckets it is owed something of, and how often it is spoken to.

use std::collections::{BTreeSet, VecDeque};

use super::super::super::time::{Span, Timestamp};
use super::super::membership::RegionId;

/// Most frames to one daemon in [`PACE`], about 1.8 MB/s. The rest waits; of one bucket only the newest is
/// ever told.
const FRAMES_PER_PACE: u32 = 16;
const PACE: Span = Span::from_millis(10);
/// Where rights are moving, an empty frame goes out at least this often, so that silence means something.
const HEARTBEAT: Span = Span::from_millis(200);
/// For so long after something was told.
const TALKATIVE: Span = Span::from_secs(2);
/// Assumed until a round trip was measured.
const RTT_DEFAULT: Span = Span::from_millis(100);

/// The way to one other daemon.
#[derive(Debug)]
pub(super) struct EscrowLink {
    pub(super) region: RegionId,
    pub(super) live: bool,
    pub(super) rtt: Option<Span>,
    owed: VecDeque<usize>,
    queued: BTreeSet<usize>,
    last_sent: Option<Timestamp>,
    last_told: Option<Timestamp>,
    paced_at: Timestamp,
    frames_left: u32,
}

impl EscrowLink {
    pub(super) const fn new(region: RegionId) -> Self {
        Self {
            region,
            live: false,
            rtt: None,
            owed: VecDeque::new(),
            queued: BTreeSet::new(),
            last_sent: None,
            last_told: None,
            paced_at: Timestamp(0),
            frames_left: FRAMES_PER_PACE,
        }
    }

    /// When a frame last went to it.
    pub(super) const fn last_sent(&self) -> Option<Timestamp> {
        self.last_sent
    }

    /// Owes it something of a bucket.
    pub(super) fn owe(&mut self, id: usize) {
        if self.live && self.queued.insert(id) {
            self.owed.push_back(id);
        }
    }

    /// The next bucket to tell of.
    pub(super) fn next_owed(&mut self) -> Option<usize> {
        loop {
            let id = self.owed.pop_front()?;
            if self.queued.remove(&id) {
                return Some(id);
            }
        }
    }

    pub(super) fn put_back(&mut self, id: usize) {
        if self.queued.insert(id) {
            self.owed.push_front(id);
        }
    }

    pub(super) fn forget(&mut self, id: usize) {
        self.queued.remove(&id);
    }

    pub(super) fn backlog(&self) -> usize {
        self.queued.len()
    }

    /// Whether a frame should go out now.
    pub(super) fn due(&mut self, now: Timestamp) -> bool {
        if now.since(self.paced_at) >= PACE || now < self.paced_at {
            (self.paced_at, self.frames_left) = (now, FRAMES_PER_PACE);
        }
        if !self.live || self.frames_left == 0 {
            return false;
        }
        let talkative = self.last_told.is_some_and(|told| now.since(told) < TALKATIVE);
        let silent = self.last_sent.is_none_or(|sent| now.since(sent) >= HEARTBEAT);
        !self.queued.is_empty() || (talkative && silent)
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        if !self.live {
            return None;
        }
        if !self.queued.is_empty() {
            return Some(if self.frames_left == 0 { self.paced_at + PACE } else { Timestamp(0) });
        }
        let (sent, told) = (self.last_sent?, self.last_told?);
        let next = sent + HEARTBEAT;
        (next.since(told) < TALKATIVE).then_some(next)
    }

    pub(super) fn departed(&mut self, now: Timestamp, empty: bool) {
        self.frames_left = self.frames_left.saturating_sub(1);
        self.last_sent = Some(now);
        if !empty {
            self.last_told = Some(now);
        }
    }

    pub(super) fn rtt(&self) -> Span {
        self.rtt.unwrap_or(RTT_DEFAULT)
    }
}
