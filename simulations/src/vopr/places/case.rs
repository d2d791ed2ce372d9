//! What a seed draws for a world of holders.

use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::escrow::places::{Margins, counted_for};
use tidegate::core::time::Span;

use crate::number::{index, place};
use crate::virtual_world::{Dice, Weather};

/// A world and its fate.
#[derive(Debug, Clone)]
pub(in crate::vopr) struct PlacesCase {
    pub(in crate::vopr) seed: u64,
    pub(super) algorithm: Algorithm,
    pub(super) limit: u32,
    /// Time for which places are held, or the window.
    pub(super) hold: Span,
    pub(super) margins: Margins,
    pub(super) weights: Vec<u32>,
    pub(super) users: u64,
    pub(super) cost_max: u64,
    pub(super) steps: u64,
    pub(super) weather: Weather,
    pub(super) eagerness: f64,
    pub(super) cut: f64,
    pub(super) crash: f64,
    pub(super) lost: f64,
    pub(super) clock: f64,
    pub(super) reshare: f64,
    /// A store answers a step later, and decides meanwhile.
    pub(super) slow: bool,
    /// Until this step a region has a daemon whose version does not see what is lent.
    pub(super) older: Option<(usize, u64)>,
}

impl PlacesCase {
    /// The case of a seed.
    pub(in crate::vopr) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 21);
        let regions = index(dice.between(2, 5));
        let limit = match dice.below(3) {
            0 => dice.between(1, 5),
            1 => dice.between(5, 40),
            _ => dice.between(40, 400),
        };
        let mut weights: Vec<u32> = vec![1; regions];
        if dice.chance(0.5) {
            weights.iter_mut().for_each(|weight| *weight = u32::try_from(dice.between(0, 4)).unwrap_or(1));
        }
        if weights.iter().all(|weight| *weight == 0) {
            weights.fill(1);
        }
        let most = *dice.pick(&[5_000, 50_000, 120_000]).unwrap_or(&50_000);
        let row = |dice: &mut Dice| (0..regions).map(|_| Span(dice.between(500, most))).collect();
        let delay = (0..regions).map(|_| row(&mut dice)).collect();
        let rate = |dice: &mut Dice, most: f64| if dice.chance(0.7) { dice.unit() * most } else { 0.0 };
        Self {
            seed,
            algorithm: Algorithm::Concurrency,
            limit: u32::try_from(limit).unwrap_or(1),
            hold: Span::from_millis(dice.between(30, 200) * 10),
            margins: Margins {
                message_life: Span::from_millis(700),
                loan_life: Span::from_millis(dice.between(5, 25) * 100),
            },
            weights,
            users: dice.between(1, 3),
            cost_max: if dice.chance(0.6) { 1 } else { dice.between(2, 1 + limit.min(40)) },
            steps: dice.between(400, 1_400),
            weather: Weather {
                delay,
                jitter: dice.unit(),
                loss: dice.unit() * dice.unit() * 0.5,
                double: dice.unit() * 0.3,
                reorder: dice.unit() * 0.3,
            },
            eagerness: 0.05 + dice.unit() * dice.unit() * 3.0,
            cut: rate(&mut dice, 0.02),
            crash: rate(&mut dice, 0.006),
            lost: rate(&mut dice, 0.006),
            clock: rate(&mut dice, 0.01),
            reshare: if dice.chance(0.3) { 0.002 } else { 0.0 },
            slow: dice.chance(0.3),
            older: None,
        }
    }

    /// The same world, whose rule counts by a sliding window or log.
    pub(in crate::vopr) fn sliding(seed: u64) -> Self {
        let mut case = Self::draw(seed);
        let mut dice = Dice::new(seed, 23);
        let algorithms = [Algorithm::SlidingWindow, Algorithm::SlidingLog];
        case.algorithm = dice.pick(&algorithms).copied().unwrap_or(Algorithm::SlidingLog);
        if dice.chance(0.2) {
            let region = index(dice.below(place(case.weights.len())));
            case.older = Some((region, dice.between(100, case.steps)));
        }
        case
    }

    /// For so long what was admitted counts at most.
    pub(super) const fn counts(&self) -> Span {
        counted_for(self.algorithm, self.hold)
    }

    /// In words, for who reads of a failure.
    pub(in crate::vopr) fn describe(&self) -> String {
        format!(
            "{} by {:?} for {} ms, weights {:?}, {} users, cost up to {}, loss {:.0} %, loans last {} ms{}",
            self.limit,
            self.algorithm,
            self.hold.0 / 1_000,
            self.weights,
            self.users,
            self.cost_max,
            self.weather.loss * 100.0,
            self.margins.loan_life.0 / 1_000,
            if self.older.is_some() { ", an older daemon" } else { "" }
        )
    }
}
