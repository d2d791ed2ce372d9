//! The reports of one region on a bucket without windows, and how much of each is believed when it takes
//! force.

use std::collections::VecDeque;

use super::late_reports::LateReports;
use super::{LevelScope, UNHEARD};
use crate::regions::fair_share::{ReportFigures, UNIT};
use crate::regions::gossip::plausibility::PlausibilityLimit;
use crate::regions::membership::{RegionId, Regions};
use crate::time::Timestamp;

/// The reports of one region: the one in force, and those that wait for their instant.
#[derive(Debug, Clone)]
pub(super) struct DelayedLevels {
    pub(super) in_force: Option<ReportFigures>,
    pub(super) waiting: VecDeque<(Timestamp, LevelReport)>,
    /// Permits of its count that the level knows of.
    pub(super) counted: u64,
    /// Bound on how much more of it is believed.
    pub(super) plausible: PlausibilityLimit,
    /// Instant at which a report in force last showed that something was asked for.
    pub(super) stirred: Option<Timestamp>,
    /// This daemon stood still since the last report: of what the next one tells no debt is made.
    pub(super) missed: bool,
}

/// A region's report on a bucket without windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct LevelReport {
    pub(in super::super) account: ReportFigures,
    /// True if it is the region's first here and tells of a count that is older than the bucket is here: what
    /// was admitted long ago has been refilled, so it may leave the bucket empty, but in no debt.
    pub(in super::super) past: bool,
}

/// The effect of one region's words.
#[derive(Debug, Clone, Copy)]
pub(super) struct TakenOut {
    /// Millionths of a permit by which the level falls.
    pub(super) level: i128,
    /// Permits of its count that the level knows of then, and how much more is believed.
    pub(super) counted: u64,
    pub(super) plausible: PlausibilityLimit,
}

impl DelayedLevels {
    pub(super) const fn new(since: Timestamp) -> Self {
        let plausible = PlausibilityLimit::since(since);
        Self { in_force: None, waiting: VecDeque::new(), counted: 0, plausible, stirred: None, missed: false }
    }

    pub(super) fn newest(&self) -> Option<&ReportFigures> {
        self.waiting.back().map(|(_, statement)| &statement.account).or(self.in_force.as_ref())
    }

    /// True if nothing was told for so long before these words that what they tell has been refilled in part.
    pub(super) fn is_unheard(&self, statement: LevelReport) -> bool {
        self.in_force.is_some_and(|known| known.stamp + UNHEARD < statement.account.stamp)
    }

    /// Returns what these words of a region do to the level.
    pub(super) fn takes(
        &self,
        (region, statement): (RegionId, LevelReport),
        level: i128,
        late: &mut LateReports,
        share: LevelScope<'_>,
    ) -> TakenOut {
        let mut plausible = self.plausible;
        let more = statement.account.admitted.saturating_sub(self.counted);
        let believed = plausible.believe(statement.account.stamp, more, share.limit, share.capacity);
        let fewer = self.counted.saturating_sub(statement.account.admitted);
        let taken = (i128::from(believed) - i128::from(fewer)) * UNIT;
        let unheard = self.is_unheard(statement);
        let taken = if statement.past || (self.missed && unheard) {
            late.assume(taken, level, i128::from(share.capacity) * UNIT)
        } else if region == Regions::OWN || !share.corrects {
            taken
        } else {
            late.correct(taken, level)
        };
        // A region that was not heard for long may have used what seemed to refill into a full bucket.
        let spares = unheard && late.may_tell_of_a_cut(region, statement.account.stamp);
        let level = if spares { late.spare(taken) } else { taken };
        // A count that is not believed yet may be once more has refilled.
        let counted = self.counted.saturating_add(believed).saturating_sub(fewer);
        TakenOut { level, counted, plausible }
    }
}
