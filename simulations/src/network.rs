//! A network that delays, jitters, loses, doubles, reorders and cuts, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::Frame;
use tidegate::core::worldwide::frame_bytes;

use crate::dice::Dice;

/// What the network's own headers add to each frame: IP, UDP and QUIC.
const HEADER_BYTES: usize = 60;

/// How the network behaves.
#[derive(Debug, Clone)]
pub(crate) struct Weather {
    /// One-way delay between the nodes, by place.
    pub(crate) delay: Vec<Vec<Span>>,
    /// Up to this part of the delay comes on top, at random.
    pub(crate) jitter: f64,
    /// Part of the frames that never arrive.
    pub(crate) loss: f64,
    /// Part of the frames that arrive twice.
    pub(crate) double: f64,
}

/// Frames on their way.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) weather: Weather,
    /// Which side of a cut each node is on.
    pub(crate) side: Vec<u8>,
    flying: BinaryHeap<Reverse<Flight>>,
    sent: u64,
    dice: Dice,
    /// Frames and bytes handed to the network.
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// A frame that arrives.
#[derive(Debug)]
pub(crate) struct Flight {
    at: Timestamp,
    number: u64,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) frame: Frame,
}

impl Network {
    pub(crate) fn new(weather: Weather, seed: u64) -> Self {
        let nodes = weather.delay.len();
        Self {
            weather,
            side: vec![0; nodes],
            flying: BinaryHeap::new(),
            sent: 0,
            dice: Dice::new(seed, 1),
            frames: 0,
            bytes: 0,
        }
    }

    pub(crate) fn send(&mut self, now: Timestamp, from: usize, to: usize, frame: &Frame) {
        self.frames += 1;
        self.bytes += u64::try_from(frame_bytes(frame) + HEADER_BYTES).unwrap_or(u64::MAX);
        let cut = self.side.get(from) != self.side.get(to);
        if cut || self.dice.chance(self.weather.loss) {
            return;
        }
        let copies = if self.dice.chance(self.weather.double) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = self.delay(from, to);
            self.sent += 1;
            self.flying.push(Reverse(Flight {
                at: now + delay,
                number: self.sent,
                from,
                to,
                frame: frame.clone(),
            }));
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "delays are small and positive"
    )]
    fn delay(&mut self, from: usize, to: usize) -> Span {
        let base = self.weather.delay.get(from).and_then(|row| row.get(to)).copied().unwrap_or_default();
        base + Span((base.0 as f64 * self.weather.jitter * self.dice.unit()) as u64)
    }

    /// The next frame that has arrived by `now`.
    pub(crate) fn landed(&mut self, now: Timestamp) -> Option<Flight> {
        if self.flying.peek().is_none_or(|Reverse(flight)| flight.at > now) {
            return None;
        }
        self.flying.pop().map(|Reverse(flight)| flight)
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
