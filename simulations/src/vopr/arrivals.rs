//! The clients that ask, and when: sums of waves, handovers, ramps and bursts whose periods and phases a seed
//! draws, from users of whom few ask for most.

use std::f64::consts::TAU;

use super::case::STEP;
use crate::number::{float, index, len, place, seconds, whole};
use crate::virtual_world::Dice;

/// Demand of one family. Lengths are in steps, phases in parts of a period.
#[derive(Debug, Clone, PartialEq)]
enum Family {
    /// Each daemon a sine, from `floor` of its height to all of it.
    Wave { period: f64, phases: Vec<f64>, floor: f64 },
    /// All in one daemon, which hands on to the next over this part of the period.
    Handover { period: f64, phase: f64, handing: f64 },
    /// From nothing to all and at once to nothing again, each daemon in its own time.
    Ramp { period: f64, phases: Vec<f64> },
    /// Nothing but for this part of the period, in all daemons at once or in one after the other.
    Burst { period: f64, phase: f64, lasts: f64, moves: bool },
}

/// The demand on daemons.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Arrivals {
    /// Each family with its weight in the sum.
    families: Vec<(f64, Family)>,
    /// Part of the requests that come from each user and from those before it.
    users: Vec<f64>,
    daemons: usize,
}

impl Arrivals {
    pub(super) fn draw(dice: &mut Dice, daemons: usize, users: u64) -> Self {
        let count = dice.between(1, 3);
        let families = (0..count).map(|_| (0.2 + dice.unit(), family(dice, daemons))).collect();
        let exponent = if dice.chance(0.5) { 0.5 + dice.unit() * 2.0 } else { 0.0 };
        let mut sum = 0.0;
        let mut up_to: Vec<f64> = (0..users)
            .map(|user| {
                sum += float(user + 1).powf(-exponent);
                sum
            })
            .collect();
        up_to.iter_mut().for_each(|part| *part /= sum);
        Self { families, users: up_to, daemons }
    }

    /// Returns how many times its usual number of requests a daemon has in a step.
    pub(super) fn of(&self, daemon: usize, step: u64) -> f64 {
        let sum: f64 = self.families.iter().map(|(weight, _)| weight).sum();
        let part = |(weight, family): &(f64, Family)| weight * family.at(daemon, self.daemons, float(step));
        self.families.iter().map(part).sum::<f64>() / sum
    }

    /// Whom a request comes from.
    pub(super) fn user(&self, dice: &mut Dice) -> u64 {
        let drawn = dice.unit();
        place(self.users.partition_point(|up_to| *up_to <= drawn).min(self.users.len().saturating_sub(1)))
    }

    /// In words, for who reads of a failure.
    pub(super) fn describe(&self) -> String {
        let of = |(_, family): &(f64, Family)| {
            let (word, period) = match family {
                Family::Wave { period, .. } => ("waves", period),
                Family::Handover { period, .. } => ("handovers", period),
                Family::Ramp { period, .. } => ("ramps", period),
                Family::Burst { period, .. } => ("bursts", period),
            };
            format!("{word} of {:.0} ms", period * seconds(STEP) * 1e3)
        };
        self.families.iter().map(of).collect::<Vec<_>>().join(" and ")
    }
}

fn family(dice: &mut Dice, daemons: usize) -> Family {
    // From a fifth of a second to ten seconds.
    let period = 40.0 * 50_f64.powf(dice.unit());
    let phases = |dice: &mut Dice| (0..daemons).map(|_| dice.unit()).collect();
    match dice.below(4) {
        0 => Family::Wave { period, phases: phases(dice), floor: dice.unit() * 0.5 },
        1 => Family::Handover { period, phase: dice.unit(), handing: dice.unit() },
        2 => Family::Ramp { period, phases: phases(dice) },
        _ => Family::Burst {
            period,
            phase: dice.unit(),
            lasts: 0.02 + dice.unit() * 0.3,
            moves: dice.chance(0.5),
        },
    }
}

impl Family {
    /// About one on average over daemons and a period.
    fn at(&self, daemon: usize, daemons: usize, step: f64) -> f64 {
        let phase_of = |phases: &[f64]| phases.get(daemon).copied().unwrap_or(0.0);
        let is = |wanted: u64| if daemon == index(wanted) % daemons.max(1) { 1.0 } else { 0.0 };
        match self {
            Self::Wave { period, phases, floor } => {
                let wave = 0.5 + ((step / period + phase_of(phases)) * TAU).sin() / 2.0;
                2.0 * (floor + (1.0 - floor) * wave) / (1.0 + floor)
            }
            Self::Handover { period, phase, handing } => {
                let course = step / period + phase;
                let turn = whole(course);
                let handed = ((course.fract() - (1.0 - handing)) / handing.max(1e-9)).clamp(0.0, 1.0);
                len(daemons) * (is(turn) * (1.0 - handed) + is(turn + 1) * handed)
            }
            Self::Ramp { period, phases } => 2.0 * (step / period + phase_of(phases)).fract(),
            Self::Burst { period, phase, lasts, moves } => {
                let course = step / period + phase;
                let height = if course.fract() < *lasts { 1.0 / lasts } else { 0.0 };
                height * if *moves { len(daemons) * is(whole(course)) } else { 1.0 }
            }
        }
    }
}
