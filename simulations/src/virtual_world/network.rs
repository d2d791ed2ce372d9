//! A network that delays, jitters, loses, doubles, reorders and cuts, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::time::{Span, Timestamp};

use super::dice::Dice;
use super::number::{part, place};
use super::weather::Weather;

/// The bytes that the network's own headers add to each message: IP, UDP and QUIC.
pub(crate) const HEADER_BYTES: usize = 60;
/// From daemon to daemon inside a region.
const INSIDE: Span = Span(300);
/// Daemons remember for so long that something was lost.
const REMEMBERED: Span = Span::from_secs(10);

/// Messages on their way between nodes.
#[derive(Debug)]
pub(crate) struct Network<M> {
    pub(crate) weather: Weather,
    /// The region of each node, by place.
    region: Vec<usize>,
    /// From region to region: nothing gets through.
    blocked: Vec<Vec<bool>>,
    flying: BinaryHeap<Reverse<Flight<M>>>,
    sent: u64,
    dice: Dice,
    pub(crate) traffic: Traffic,
    losses: Losses,
}

/// When messages between regions were lost.
#[derive(Debug, Clone, Copy, Default)]
struct Losses {
    /// The first one after a time in which daemons forget the one before.
    first: Option<Timestamp>,
    last: Timestamp,
}

/// The traffic that was handed to the network, between regions only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// A message that arrives.
#[derive(Debug)]
pub(crate) struct Flight<M> {
    pub(crate) at: Timestamp,
    pub(crate) sent: Timestamp,
    number: u64,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) message: M,
}

impl<M: Clone> Network<M> {
    /// One without nodes.
    pub(crate) fn new(weather: Weather, seed: u64) -> Self {
        let regions = weather.delay.len();
        Self {
            blocked: vec![vec![false; regions]; regions],
            weather,
            region: Vec::new(),
            flying: BinaryHeap::new(),
            sent: 0,
            dice: Dice::new(seed, 1),
            traffic: Traffic::default(),
            losses: Losses::default(),
        }
    }

    /// Another node, in this region.
    pub(crate) fn add(&mut self, region: usize) {
        self.region.push(region);
    }

    /// The same with one node in each region.
    pub(crate) fn with_each_region(mut self) -> Self {
        self.region = (0..self.weather.delay.len()).collect();
        self
    }

    /// A message was lost, or something happened that loses some.
    pub(crate) fn note_loss(&mut self, now: Timestamp) {
        let Losses { first, last } = &mut self.losses;
        if first.is_none() || now.since(*last) > REMEMBERED {
            *first = Some(now);
        }
        *last = now.max(*last);
    }

    /// When the first message was lost after a time without losses that is so long that daemons forget the
    /// one before.
    pub(crate) const fn first_loss(&self) -> Option<Timestamp> {
        self.losses.first
    }

    /// Sends `message`, of so many bytes without the network's own headers.
    pub(crate) fn send(&mut self, now: Timestamp, from: usize, to: usize, bytes: usize, message: &M) {
        let (Some(&source), Some(&target)) = (self.region.get(from), self.region.get(to)) else { return };
        if source == target {
            self.fly(now, INSIDE, from, to, message.clone());
            return;
        }
        self.traffic.frames += 1;
        self.traffic.bytes += place(bytes + HEADER_BYTES);
        if self.is_blocked(source, target) || self.dice.chance(self.weather.loss) {
            self.note_loss(now);
            return;
        }
        let copies = if self.dice.chance(self.weather.double) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = self.draw_delay(source, target);
            self.fly(now, delay, from, to, message.clone());
        }
    }

    fn fly(&mut self, sent: Timestamp, delay: Span, from: usize, to: usize, message: M) {
        self.sent += 1;
        let number = self.sent;
        self.flying.push(Reverse(Flight { at: sent + delay, sent, number, from, to, message }));
    }

    /// The delay between two regions without jitter.
    pub(crate) fn delay(&self, source: usize, target: usize) -> Span {
        if source == target {
            return INSIDE;
        }
        self.weather.delay.get(source).and_then(|row| row.get(target)).copied().unwrap_or_default()
    }

    fn draw_delay(&mut self, source: usize, target: usize) -> Span {
        let base = self.delay(source, target);
        let jitter = self.weather.jitter * self.dice.unit();
        let detour = if self.dice.chance(self.weather.reorder) { 3.0 * self.dice.unit() } else { 0.0 };
        base + part(base, jitter + detour)
    }

    /// Returns whether nothing gets from one region to another.
    pub(crate) fn is_blocked(&self, source: usize, target: usize) -> bool {
        self.blocked.get(source).and_then(|row| row.get(target)).copied().unwrap_or(false)
    }

    /// Cuts or mends the ways between `regions` and all others.
    pub(crate) fn cut(&mut self, regions: &[usize], inward: bool, outward: bool, cut: bool) {
        for (source, row) in self.blocked.iter_mut().enumerate() {
            for (target, blocked) in row.iter_mut().enumerate() {
                let (from, to) = (regions.contains(&source), regions.contains(&target));
                if (inward && to && !from) || (outward && from && !to) {
                    *blocked = cut;
                }
            }
        }
    }

    /// Mends everything.
    pub(crate) fn mend(&mut self) {
        for row in &mut self.blocked {
            row.fill(false);
        }
    }

    /// The next message that has arrived by `now`.
    pub(crate) fn landed(&mut self, now: Timestamp) -> Option<Flight<M>> {
        if self.flying.peek().is_none_or(|Reverse(flight)| flight.at > now) {
            return None;
        }
        self.flying.pop().map(|Reverse(flight)| flight)
    }

    /// Messages under way.
    pub(crate) fn flying(&self) -> impl ExactSizeIterator<Item = &Flight<M>> {
        self.flying.iter().map(|Reverse(flight)| flight)
    }
}

impl<M> PartialEq for Flight<M> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<M> Eq for Flight<M> {}

impl<M> PartialOrd for Flight<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Flight<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
