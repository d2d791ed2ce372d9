//! Totals of what moved between regions, which ledgers of every kind are made of: by region and session, so
//! that what is lost, late or doubled changes nothing.

use super::super::super::time::Span;
use super::super::super::wire::rights::{TOTALS_MAX, Total};

/// How much later than its store began a window must begin to be minted: a store that was lost may have been
/// ahead by this.
pub const RECOVERY_MARGIN: Span = Span::from_secs(1);

/// Rights to take out for another region, if so many are free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Giving {
    /// Whom they are for.
    pub to: String,
    /// Its session.
    pub session: u64,
    /// How many.
    pub permits: u64,
}

/// Rights to put in that another region gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taking {
    /// Who gave them.
    pub from: String,
    /// Its session.
    pub session: u64,
    /// The session of ours that they were meant for.
    pub to_session: u64,
    /// All that it gave: in the window, or since the two sessions met.
    pub permits: u64,
}

/// What went to another region, or came from it, in one of its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedRights<'l> {
    /// The other region.
    pub region: &'l str,
    /// Its session.
    pub session: u64,
    /// How many, all together.
    pub permits: u64,
}

impl<'l> From<&'l Total> for MovedRights<'l> {
    fn from(total: &'l Total) -> Self {
        Self { region: &total.region, session: total.session, permits: total.permits }
    }
}

impl From<MovedRights<'_>> for Total {
    fn from(moved: MovedRights<'_>) -> Self {
        Self { region: moved.region.to_owned(), session: moved.session, permits: moved.permits }
    }
}

/// The total of a region in one of its sessions, among all.
pub(super) fn moved<'l>(mut all: impl Iterator<Item = MovedRights<'l>>, region: &str, session: u64) -> u64 {
    let found = all.find(|moved| moved.region == region && moved.session == session);
    found.map_or(0, |moved| moved.permits)
}

pub(super) fn sum(totals: &[Total]) -> u64 {
    totals.iter().fold(0, |sum, total| sum.saturating_add(total.permits))
}

pub(super) fn total(totals: &[Total], region: &str, session: u64) -> u64 {
    moved(totals.iter().map(MovedRights::from), region, session)
}

/// Changes one total, if it is there or there is room for another.
pub(super) fn add(totals: &mut Vec<Total>, region: &str, session: u64, change: impl FnOnce(u64) -> u64) {
    let room = totals.len() < TOTALS_MAX;
    match totals.iter_mut().find(|total| total.region == region && total.session == session) {
        Some(total) => total.permits = change(total.permits),
        None => {
            let permits = change(0);
            if room && permits > 0 {
                totals.push(Total { region: region.to_owned(), session, permits });
            }
        }
    }
}
