//! Where and when requests come: the demand patterns of the design's results page.

use crate::dice::Dice;

/// The patterns by name, in the order of the table.
pub(crate) const NAMES: [&str; 14] = [
    "bal0.9", "bal1.1", "bal2", "bal3", "bal10", "one2", "skew2", "mov0.9", "mov2", "onoff3", "sync10",
    "walk1.5", "lone", "roam",
];

/// A demand pattern: what each region is asked for, as multiples of the limit per window.
#[derive(Debug)]
pub(crate) enum Pattern {
    /// The same everywhere; the total.
    Balanced(f64),
    /// All in the first region.
    One(f64),
    /// 70 / 20 / 10 %, the rest nothing.
    Skewed(f64),
    /// All in one region, which changes about every seven windows.
    Moving { load: f64, place: usize },
    /// Each region on by itself, a third of the time.
    OnOff { load: f64, on: Vec<bool> },
    /// Silence, then all regions start in the same instant, every eight windows.
    Sync(f64),
    /// Shares that wander.
    Walk { load: f64, weights: Vec<f64> },
    /// One region, long silent everywhere, asks for the whole limit within a tenth of a window, every five windows.
    Lone,
    /// The same, each time in another region.
    Roam,
}

impl Pattern {
    pub(crate) fn parse(name: &str, regions: usize) -> Option<Self> {
        let split = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
        let (kind, load) = name.split_at(split);
        let load = || load.parse::<f64>().ok().filter(|load| load.is_finite() && *load > 0.0);
        Some(match kind {
            "bal" => Self::Balanced(load()?),
            "one" => Self::One(load()?),
            "skew" => Self::Skewed(load()?),
            "mov" => Self::Moving { load: load()?, place: 0 },
            "onoff" => Self::OnOff { load: load()?, on: vec![false; regions] },
            "sync" => Self::Sync(load()?),
            "walk" => Self::Walk { load: load()?, weights: vec![1.0; regions] },
            "lone" => Self::Lone,
            "roam" => Self::Roam,
            _ => return None,
        })
    }

    /// Moves the pattern on by `step` (in windows).
    pub(crate) fn advance(&mut self, dice: &mut Dice, step: f64) {
        match self {
            Self::Moving { place, .. } => *place += usize::from(dice.chance(step / 7.0)),
            Self::OnOff { on, .. } => {
                for on in on {
                    // On for one window on average, off for two.
                    if dice.chance(if *on { step } else { step / 2.0 }) {
                        *on = !*on;
                    }
                }
            }
            Self::Walk { weights, .. } => {
                for weight in weights {
                    *weight =
                        (*weight * (1.0 + step.sqrt() * 0.5 * (dice.unit() - 0.5) * 2.0)).clamp(0.05, 5.0);
                }
            }
            _ => {}
        }
    }

    /// What region `place` of `regions` is asked for `at` (in windows since the start).
    #[expect(clippy::cast_precision_loss, reason = "there are few regions")]
    pub(crate) fn load(&self, place: usize, regions: usize, at: f64) -> f64 {
        let if_place = |wanted: usize, load: f64| if place == wanted % regions.max(1) { load } else { 0.0 };
        match self {
            Self::Balanced(load) => load / regions as f64,
            Self::One(load) => if_place(0, *load),
            Self::Skewed(load) => load * [0.7, 0.2, 0.1].get(place).copied().unwrap_or(0.0),
            Self::Moving { load, place } => if_place(*place, *load),
            Self::OnOff { load, on } => {
                if on.get(place) == Some(&true) {
                    *load
                } else {
                    0.0
                }
            }
            Self::Sync(load) => {
                if at % 8.0 >= 4.37 {
                    load / regions as f64
                } else {
                    0.0
                }
            }
            Self::Walk { load, weights } => {
                load * weights.get(place).copied().unwrap_or(0.0) / weights.iter().sum::<f64>().max(0.001)
            }
            Self::Lone | Self::Roam => {
                let phase = at % 5.0;
                // Nine tenths of the limit in a tenth of a window.
                if (4.3..4.4).contains(&phase) {
                    if_place(if matches!(self, Self::Roam) { whole(at / 5.0) } else { 0 }, 9.0)
                } else {
                    0.0
                }
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
fn whole(number: f64) -> usize {
    number as usize
}
