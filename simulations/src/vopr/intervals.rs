//! The permits that all regions together admit of sliding buckets under `split` and `escrow`, judged at each
//! admission, each region by its own clock: never above the limit in any interval of a window, or by the
//! estimate of `sliding_window`, which each region rounds down to whole permits, and there at most twice the
//! limit in any interval.
//!
//! A clock that is set forward lets a region use again what it had used, as the manual says. So an admission
//! counts from what the clock showed until a window after that by the latest that it ever showed.

use std::collections::{BTreeMap, VecDeque};

use tidegate::core::algorithm::Algorithm;
use tidegate::core::time::{Span, Timestamp};

use crate::model::daemons::World;

/// Permits that a region admitted, by its clock.
#[derive(Debug, Clone, Copy)]
struct Admission {
    region: usize,
    at: Timestamp,
    cost: u64,
}

/// The admissions that may still count.
#[derive(Debug)]
pub(super) struct Intervals {
    algorithm: Algorithm,
    window: Span,
    /// By region: the latest that its clock ever showed.
    latest: Vec<Timestamp>,
    /// By user.
    admitted: BTreeMap<u64, VecDeque<Admission>>,
}

impl Intervals {
    pub(super) const fn judges(algorithm: Algorithm) -> bool {
        matches!(algorithm, Algorithm::SlidingWindow | Algorithm::SlidingLog)
    }

    pub(super) fn new(algorithm: Algorithm, window: Span) -> Self {
        Self { algorithm, window, latest: Vec::new(), admitted: BTreeMap::new() }
    }

    /// Time has passed, or a clock was set.
    pub(super) fn follow(&mut self, world: &World) {
        self.latest.resize(world.plan.regions.len(), Timestamp(0));
        for (region, latest) in self.latest.iter_mut().enumerate() {
            *latest = world.clock(region).max(*latest);
        }
    }

    /// A region's store lost what it had admitted, and may admit it again.
    pub(super) fn forget(&mut self, region: usize) {
        for admitted in self.admitted.values_mut() {
            admitted.retain(|admission| admission.region != region);
        }
    }

    /// Takes note of an admission, and judges it.
    ///
    /// # Errors
    /// When more is admitted than the limit.
    pub(super) fn admitted(
        &mut self,
        world: &World,
        region: usize,
        (user, cost): (u64, u64),
        limit: u64,
    ) -> Result<(), String> {
        self.follow(world);
        let Self { algorithm, window, latest, admitted } = self;
        let latest = |region: usize| latest.get(region).copied().unwrap_or_default();
        let admitted = admitted.entry(user).or_default();
        // Two windows back nothing counts for either of the algorithms.
        admitted.retain(|one| latest(one.region).since(one.at).0 < window.0.saturating_mul(2));
        admitted.push_back(Admission { region, at: world.clock(region), cost });
        let within = admitted.iter().filter(|one| latest(one.region).since(one.at) < *window);
        let within: u64 = within.map(|one| one.cost).sum();
        let by_region = || -> Vec<u64> {
            let of = |region| admitted.iter().filter(move |one| one.region == region);
            (0..world.plan.regions.len()).map(|region| of(region).map(|one| one.cost).sum()).collect()
        };
        if *algorithm == Algorithm::SlidingLog {
            if within > limit {
                return Err(format!(
                    "{within} permits of user {user} admitted of {limit} within one interval, in two of them by region {:?}",
                    by_region()
                ));
            }
            return Ok(());
        }
        let weigh = |one: &Admission| {
            let now = latest(one.region);
            let left = Timestamp::window_start(now.window_index(*window) + 1, *window).since(now).0;
            match now.window_index(*window) - one.at.window_index(*window) {
                0 => u128::from(one.cost) * u128::from(window.0),
                1 => u128::from(one.cost) * u128::from(left),
                _ => 0,
            }
        };
        let estimate: u128 = admitted.iter().map(weigh).sum();
        // Each region rounds away less than a permit of its estimate.
        let regions = u128::try_from(world.plan.regions.len()).unwrap_or(u128::MAX);
        if estimate >= (u128::from(limit) + regions) * u128::from(window.0) || within > limit * 2 {
            return Err(format!(
                "user {user} is estimated to use {} of {limit} permits, and used {within} within one interval, in two of them by region {:?}",
                estimate.div_ceil(u128::from(window.0)),
                by_region()
            ));
        }
        Ok(())
    }
}
