//! The parts of a limit that regions were given, now and lately.

use smallvec::SmallVec;

use crate::regions::membership::RegionId;
use crate::time::{Span, Timestamp};

/// The parts that each region was given are remembered for once to twice as long: a region has told within a
/// second what it did with them.
pub(super) const GIVEN_MEMORY: Span = Span::from_secs(2);
/// The same of those of the next window: a region that hears nothing any more holds to them for as long as
/// that is not noticed.
pub(super) const COMING_MEMORY: Span = Span::from_secs(1);

/// The permits that each region was given, by [`RegionId`]; nothing for one that had no part in it, and so
/// decided on the sum. Small: every bucket keeps several, with a place for each region of the world.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Allocation(pub(super) SmallVec<[u32; 4]>);

impl Allocation {
    /// Stands for no part.
    const NONE: u32 = u32::MAX;

    pub(super) fn get(&self, region: RegionId) -> Option<u64> {
        self.0.get(region).filter(|part| **part != Self::NONE).map(|part| u64::from(*part))
    }

    /// More than any limit is as good as the largest.
    pub(super) fn set(&mut self, region: RegionId, part: u64) {
        if self.0.len() <= region {
            self.0.resize(region + 1, Self::NONE);
        }
        if let Some(place) = self.0.get_mut(region) {
            *place = u32::try_from(part).unwrap_or(u32::MAX).min(Self::NONE - 1);
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().filter(|part| **part != Self::NONE).map(|part| u64::from(*part)).sum()
    }

    /// Takes the larger part of each region.
    pub(super) fn raise(&mut self, other: &Self) {
        for region in 0..other.0.len() {
            if let Some(part) = other.get(region) {
                self.set(region, self.get(region).map_or(part, |known| known.max(part)));
            }
        }
    }

    /// Takes the smaller part of each region that has a part in both.
    pub(super) fn lower(&mut self, other: &Self) {
        for (part, other) in self.0.iter_mut().zip(&other.0) {
            *part = (*part).min(*other);
        }
    }
}

/// The most that each region was given lately.
#[derive(Debug, Clone, Default)]
pub(super) struct LargestAllocation {
    now: Allocation,
    before: Allocation,
    turned: Timestamp,
    /// True if nobody looked in the window before, so that a region may hold more than is known here.
    unknown: bool,
}

impl LargestAllocation {
    /// Returns what is known when a window begins, from what was given of it in the one before.
    pub(super) fn begin(at: Timestamp, coming: &Self, follows: bool) -> Self {
        let mut now = coming.now.clone();
        now.raise(&coming.before);
        Self { now, before: Allocation::default(), turned: at, unknown: !follows }
    }

    /// Notes what single regions may have used of a bucket without windows.
    pub(super) fn note_each(&mut self, at: Timestamp, each: impl IntoIterator<Item = (RegionId, u64)>) {
        let mut parts = Allocation::default();
        each.into_iter().for_each(|(region, part)| parts.set(region, part));
        self.note(at, &parts, COMING_MEMORY);
    }

    pub(super) fn note(&mut self, at: Timestamp, parts: &Allocation, memory: Span) {
        if at.since(self.turned) > memory {
            self.before = std::mem::take(&mut self.now);
            self.turned = at;
        }
        self.now.raise(parts);
    }

    pub(super) fn of(&self, region: RegionId) -> Option<u64> {
        self.now.get(region).max(self.before.get(region)).filter(|_| !self.unknown)
    }
}
