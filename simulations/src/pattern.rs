//! The places and times of requests: the demand patterns of the design's results page, and a few more.

use tidegate::core::time::Span;

use crate::number::{index, len, seconds, whole};
use crate::virtual_world::Dice;

/// The patterns of the results page, in the order of its tables.
pub(crate) const TABLE: [&str; 11] =
    ["bal0.9", "bal1.1", "bal2", "bal10", "one2", "skew2", "mov0.9", "mov2", "onoff3", "sync10", "walk1.5"];

/// Demand that moves smoothly or by itself, which the results page does not have.
pub(crate) const MOVING: [&str; 6] = ["anti2", "saw2", "lunch1.8", "spike2", "ramp2", "restart2"];

/// All that `sim patterns` prints.
pub(crate) const NAMES: [&str; 21] = [
    "bal0.9", "bal1.1", "bal2", "bal3", "bal10", "one2", "skew2", "mov0.9", "mov2", "onoff3", "sync10",
    "walk1.5", "surge5", "lone", "roam", "anti2", "saw2", "lunch1.8", "spike2", "ramp2", "restart2",
];

/// A demand pattern: what each region is asked for, as multiples of the limit per window.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    kind: Kind,
    load: f64,
    /// Place of a moving demand.
    place: usize,
    /// Which regions are on.
    on: Vec<bool>,
    weights: Vec<f64>,
    /// Windows between two moves, and windows of one on-period, on average.
    moves: f64,
    on_for: f64,
    /// Begin of a moving demand in its course, as a part of it, and by how much faster than usual it goes.
    /// Drawn with the first step.
    course: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The same everywhere.
    Balanced,
    /// All in the first region.
    One,
    /// 70 / 20 / 10 %, the rest nothing.
    Skewed,
    /// All in one region, which changes about every seven windows.
    Moving,
    /// Each region on by itself, a third of the time.
    OnOff,
    /// Silence, then all regions start in the same instant, every eight windows.
    Sync,
    /// Shares that wander.
    Walk,
    /// Half the limit everywhere; in the middle third of every twelve windows the second region asks for all
    /// of `load`.
    Surge,
    /// One region, long silent everywhere, asks for nine tenths of the limit within a tenth of a window,
    /// every five windows.
    Lone,
    /// The same, each time in another region.
    Roam,
    /// Two regions, each a sine of 3.1 windows, in antiphase.
    Anti,
    /// Four fifths in one region, the next one each 0.7 windows.
    Saw,
    /// All in one region for two windows, then over two windows handed on to the next.
    Lunch,
    /// Half the limit everywhere; in one region ten times `load` for 0.3 windows, each 2.3 windows.
    Spike,
    /// From nothing to `load` in ten windows, each region a little later than the one before.
    Ramp,
    /// Each region by itself, gone a quarter of the time.
    Restart,
}

const KINDS: [(&str, Kind); 16] = [
    ("bal", Kind::Balanced),
    ("one", Kind::One),
    ("skew", Kind::Skewed),
    ("mov", Kind::Moving),
    ("onoff", Kind::OnOff),
    ("sync", Kind::Sync),
    ("walk", Kind::Walk),
    ("surge", Kind::Surge),
    ("lone", Kind::Lone),
    ("roam", Kind::Roam),
    ("anti", Kind::Anti),
    ("saw", Kind::Saw),
    ("lunch", Kind::Lunch),
    ("spike", Kind::Spike),
    ("ramp", Kind::Ramp),
    ("restart", Kind::Restart),
];

impl Pattern {
    /// Reads `bal0.9`, `mov2`, `lone`, …: a kind, and how many times the limit is asked for.
    pub(crate) fn parse(name: &str, regions: usize, window: Span) -> Option<Self> {
        let split = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
        let (word, load) = name.split_at(split);
        let kind = KINDS.iter().find(|(known, _)| *known == word)?.1;
        let load = match kind {
            Kind::Lone | Kind::Roam if load.is_empty() => 9.0,
            _ => load.parse::<f64>().ok().filter(|load| load.is_finite() && *load > 0.0)?,
        };
        let window = seconds(window);
        // As on the results page: 7 windows of a second, 20 s of a minute, 10 minutes of an hour.
        let (moves, on_for) = match window {
            longer if longer >= 3_600.0 => (600.0 / window, 120.0 / window),
            longer if longer >= 60.0 => (20.0 / window, 5.0 / window),
            _ => (7.0, 1.0),
        };
        Some(Self {
            kind,
            load,
            place: 0,
            on: vec![false; regions],
            weights: vec![1.0; regions],
            moves,
            on_for,
            course: None,
        })
    }

    /// The whole limit, evenly.
    pub(crate) fn balanced(regions: usize) -> Self {
        let (on, weights) = (vec![false; regions], vec![1.0; regions]);
        Self { kind: Kind::Balanced, load: 1.0, place: 0, on, weights, moves: 7.0, on_for: 1.0, course: None }
    }

    /// Returns the text that [`Self::parse`] reads.
    pub(crate) fn name(&self) -> String {
        let word = KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(word, _)| word);
        let bare = matches!(self.kind, Kind::Lone | Kind::Roam);
        if bare { word.to_owned() } else { format!("{word}{}", self.load) }
    }

    /// Returns whether each region is asked for the same all the time.
    pub(crate) const fn is_steady(&self) -> bool {
        matches!(self.kind, Kind::Balanced | Kind::One | Kind::Skewed)
    }

    /// Demand comes and goes by itself, or all at once, and does not shift in a way that can be followed.
    pub(crate) const fn jumps(&self) -> bool {
        match self.kind {
            Kind::Moving
            | Kind::OnOff
            | Kind::Sync
            | Kind::Surge
            | Kind::Lone
            | Kind::Roam
            | Kind::Spike
            | Kind::Restart => true,
            Kind::Balanced
            | Kind::One
            | Kind::Skewed
            | Kind::Walk
            | Kind::Anti
            | Kind::Saw
            | Kind::Lunch
            | Kind::Ramp => false,
        }
    }

    /// The words that [`Self::parse`] knows.
    pub(crate) fn words() -> String {
        KINDS.map(|(word, _)| word).join(", ")
    }

    /// Moves the pattern on by `step` (in windows).
    pub(crate) fn advance(&mut self, dice: &mut Dice, step: f64) {
        match self.kind {
            Kind::Anti | Kind::Saw | Kind::Lunch | Kind::Spike | Kind::Ramp if self.course.is_none() => {
                self.course = Some((dice.unit(), 0.75 + dice.unit() / 2.0));
            }
            Kind::Restart => {
                for on in &mut self.on {
                    // Gone for half a window, there for three times as long.
                    if dice.chance(if *on { step / 1.5 } else { step * 2.0 }) {
                        *on = !*on;
                    }
                }
            }
            Kind::Moving => self.place += usize::from(dice.chance(step / self.moves)),
            Kind::OnOff => {
                for on in &mut self.on {
                    // Off for twice as long as on.
                    let part = step / self.on_for;
                    if dice.chance(if *on { part } else { part / 2.0 }) {
                        *on = !*on;
                    }
                }
            }
            Kind::Walk => {
                for weight in &mut self.weights {
                    let drift = step.sqrt() * (dice.unit() - 0.5);
                    *weight = (*weight * (1.0 + drift)).clamp(0.05, 5.0);
                }
            }
            _ => {}
        }
    }

    /// Returns what region `place` of `regions` is asked for `at` (in windows since the start).
    pub(crate) fn load(&self, place: usize, regions: usize, at: f64) -> f64 {
        let load = self.load;
        // The number of courses of so many windows that have passed.
        let (begun, pace) = self.course.unwrap_or((0.0, 1.0));
        let course = |windows: f64| begun + at * pace / windows;
        let turn = |windows: f64| index(whole(course(windows)));
        let if_place = |wanted: usize, load: f64| if place == wanted % regions.max(1) { load } else { 0.0 };
        match self.kind {
            Kind::Balanced => load / len(regions),
            Kind::One => if_place(0, load),
            Kind::Skewed => load * [0.7, 0.2, 0.1].get(place).copied().unwrap_or(0.0),
            Kind::Moving => if_place(self.place, load),
            Kind::Anti => {
                let wave = 0.5 + (course(3.1) * std::f64::consts::TAU).sin() / 2.0;
                if_place(0, load * wave) + if_place(1, load * (1.0 - wave))
            }
            Kind::Saw => {
                let rest = load * 0.2 / len(regions.saturating_sub(1).max(1));
                if place == turn(0.7) % regions.max(1) { load * 0.8 } else { rest }
            }
            Kind::Lunch => {
                let (now, handed) = (turn(4.0), (course(4.0).fract() * 2.0 - 1.0).max(0.0));
                if_place(now, load * (1.0 - handed)) + if_place(now + 1, load * handed)
            }
            Kind::Spike => {
                let spikes = course(2.3).fract() < 0.3 / 2.3;
                0.5 / len(regions) + if spikes { if_place(turn(2.3), load * 10.0) } else { 0.0 }
            }
            Kind::Ramp => {
                let begun = course(14.0).fract() * 14.0 - len(place);
                load / len(regions) * (begun / 10.0).clamp(0.0, 1.0)
            }
            Kind::OnOff | Kind::Restart => {
                let each = if self.kind == Kind::Restart { load / len(regions) } else { load };
                if self.on.get(place) == Some(&true) { each } else { 0.0 }
            }
            Kind::Sync => {
                if at % 8.0 >= 4.37 {
                    load / len(regions)
                } else {
                    0.0
                }
            }
            Kind::Walk => {
                let sum = self.weights.iter().sum::<f64>().max(0.001);
                load * self.weights.get(place).copied().unwrap_or(0.0) / sum
            }
            Kind::Surge => {
                let surging = (4.3..8.3).contains(&(at % 12.0));
                0.5 / len(regions) + if surging { if_place(1, load) } else { 0.0 }
            }
            Kind::Lone | Kind::Roam => {
                let in_burst = (4.3..4.4).contains(&(at % 5.0));
                let place = if self.kind == Kind::Roam { index(whole(at / 5.0)) } else { 0 };
                if in_burst { if_place(place, load) } else { 0.0 }
            }
        }
    }
}
