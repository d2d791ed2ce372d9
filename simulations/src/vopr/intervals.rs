//! The permits that all regions together admit of sliding buckets under `split` and `escrow`, judged at each
//! admission, each region by its own clock: never above the limit in any interval of a window; or by the
//! estimate of `sliding_window`, whose fading part each region rounds down to whole permits.
//!
//! An estimate keeps no limit in an interval: one store for the whole world admits at most twice the limit
//! there, and so do regions that have fixed shares, or whose clocks agree. Under `escrow` what fades in one
//! region is used in another, where it begins to fade before a whole window has passed if their clocks are
//! apart. However far they are, no interval admits more than e times what the estimates may come to: what is
//! used in it is at most that, and so much of it again as has faded since it began. Where a clock was set the
//! interval is not the same for all regions, and the estimates alone are judged.
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

/// A hundred times e, rounded up: clocks that run a little fast or slow are within it.
const E_HUNDREDTHS: u128 = 272;
/// A clock runs fast or slow by so many millionths at most; one that differs by more was set.
const DRIFT_MAX: u128 = 300;

/// The admissions that may still count.
#[derive(Debug)]
pub(super) struct Intervals {
    /// True if permits that are free in one region may be used in another.
    moves: bool,
    algorithm: Algorithm,
    window: Span,
    /// By region: the latest that its clock ever showed.
    latest: Vec<Timestamp>,
    /// Instant at which all clocks were last read, and what they showed.
    read: Option<(Timestamp, Vec<Timestamp>)>,
    /// Instant at which a clock was last found to be set, or behind what it had shown before.
    set: Option<Timestamp>,
    /// By user.
    admitted: BTreeMap<u64, VecDeque<Admission>>,
}

impl Intervals {
    pub(super) const fn judges(algorithm: Algorithm) -> bool {
        matches!(algorithm, Algorithm::SlidingWindow | Algorithm::SlidingLog)
    }

    pub(super) fn new(moves: bool, algorithm: Algorithm, window: Span) -> Self {
        Self {
            moves,
            algorithm,
            window,
            latest: Vec::new(),
            read: None,
            set: None,
            admitted: BTreeMap::new(),
        }
    }

    /// Time has passed, or a clock was set.
    pub(super) fn follow(&mut self, world: &World) {
        self.latest.resize(world.plan.regions.len(), Timestamp(0));
        for (region, latest) in self.latest.iter_mut().enumerate() {
            *latest = world.clock(region).max(*latest);
        }
        let shown: Vec<Timestamp> = (0..self.latest.len()).map(|region| world.clock(region)).collect();
        let (then, before) = self.read.take().unwrap_or_else(|| (world.now(), shown.clone()));
        let passed = world.now().since(then).0;
        let is_set = |(before, now): (&Timestamp, &Timestamp)| {
            let off = u128::from(now.since(*before).0.abs_diff(passed));
            now < before || off > u128::from(passed) * DRIFT_MAX / 1_000_000 + 1
        };
        let is_behind = shown.iter().zip(&self.latest).any(|(now, latest)| now < latest);
        if is_behind || before.iter().zip(&shown).any(is_set) {
            self.set = Some(world.now());
        }
        self.read = Some((world.now(), shown));
    }

    /// The latest that a region's clock ever showed.
    pub(super) fn latest_shown(&self, region: usize) -> Timestamp {
        self.latest.get(region).copied().unwrap_or(Timestamp(0))
    }

    /// The most permits of a sliding window that may be admitted within an interval, in hundredths.
    fn most_within(&self, world: &World, limit: u64) -> Option<u128> {
        let (now, twice) = (world.now(), u128::from(limit) * 200);
        if !self.moves {
            return Some(twice);
        }
        if self.set.is_some_and(|set| now.since(set).0 < self.window.0.saturating_mul(2)) {
            return None;
        }
        if self.latest.iter().all(|latest| *latest == now) {
            return Some(twice);
        }
        // Of what each region estimates less than a permit is rounded away.
        let regions = u128::try_from(self.latest.len()).unwrap_or(u128::MAX);
        Some((u128::from(limit) + regions) * E_HUNDREDTHS)
    }

    /// Returns the permits that each region estimates to be used of a sliding window.
    fn estimates(&self, admitted: &VecDeque<Admission>) -> Vec<u64> {
        let window = self.window;
        let of = |(region, now): (usize, &Timestamp)| {
            let index = now.window_index(window);
            let left = Timestamp::window_start(index + 1, window).since(*now).0;
            let used = |back: u64| -> u64 {
                let in_window = |one: &&Admission| {
                    one.region == region && index.checked_sub(back) == Some(one.at.window_index(window))
                };
                admitted.iter().filter(in_window).map(|one| one.cost).sum()
            };
            let fading = u128::from(used(1)) * u128::from(left) / u128::from(window.0.max(1));
            used(0).saturating_add(u64::try_from(fading).unwrap_or(u64::MAX))
        };
        self.latest.iter().enumerate().map(of).collect()
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
        let mut admitted = self.admitted.remove(&user).unwrap_or_default();
        let latest = |region: usize| self.latest.get(region).copied().unwrap_or_default();
        // Two windows back nothing counts for either of the algorithms.
        admitted.retain(|one| latest(one.region).since(one.at).0 < self.window.0.saturating_mul(2));
        admitted.push_back(Admission { region, at: world.clock(region), cost });
        let judged = self.judge(world, user, &admitted, limit);
        self.admitted.insert(user, admitted);
        judged
    }

    fn judge(
        &self,
        world: &World,
        user: u64,
        admitted: &VecDeque<Admission>,
        limit: u64,
    ) -> Result<(), String> {
        let of = |(region, now): (usize, &Timestamp)| -> u64 {
            let within = |one: &&Admission| one.region == region && now.since(one.at) < self.window;
            admitted.iter().filter(within).map(|one| one.cost).sum()
        };
        let within: Vec<u64> = self.latest.iter().enumerate().map(of).collect();
        let sum: u64 = within.iter().sum();
        if self.algorithm == Algorithm::SlidingLog {
            return match sum > limit {
                true => Err(format!(
                    "{sum} permits of user {user} admitted of {limit} within one interval, by region {within:?}"
                )),
                false => Ok(()),
            };
        }
        let estimates = self.estimates(admitted);
        if estimates.iter().sum::<u64>() > limit {
            return Err(format!("user {user} is estimated to use {estimates:?} of {limit} permits"));
        }
        match self.most_within(world, limit) {
            Some(most) if u128::from(sum) * 100 > most => Err(format!(
                "user {user} was admitted {within:?} of {limit} permits within one interval, where {} may be",
                most / 100
            )),
            _ => Ok(()),
        }
    }
}
