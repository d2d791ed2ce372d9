//! The news that no region has anything left of a bucket: nobody waits for it then, or is told to come back
//! in a second.
//!
//! Nothing here matters to exactness: it says what a denial means.

use super::super::super::algorithm::Algorithm;
use super::super::super::calendar::Windows;
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::rights::RightKind;
use super::super::membership::RegionId;
use super::bucket::{EscrowBucket, PartnerRights, RegionStatement};
use super::ledger::{Ledger, Step, StepResult};
use super::level::LevelStep;
use super::places::PlacesStep;
use super::totals::total;
use super::window::WindowStep;
use super::{Escrow, Event};

/// For so many seconds after it was seen that no region has anything left of what has no windows, nobody
/// waits for any. So long, too, a region is believed to have some although it says nothing.
const DRY_FOR: u64 = 2;
const SILENT_FOR: Span = Span::from_secs(DRY_FOR);
/// A region that was not heard for so long is cut off, and sends nothing.
const AUDIBLE_FOR: Span = Span::from_secs(2);

/// The number that an [`Event::Dry`] of a bucket names at this instant: the window that it is dry in. What
/// has no windows becomes free at any time, so it is dry for the seconds up to the one that is named.
#[must_use]
pub fn dry_mark(algorithm: Algorithm, windows: Windows, now: Timestamp) -> u64 {
    if algorithm == Algorithm::FixedWindow { windows.index(now) } else { now.window_index(DRY_SECOND) }
}

/// See [`dry_mark`].
const DRY_SECOND: Span = Span::from_secs(1);

impl Escrow {
    /// Says that no region has anything left of a bucket, and says when one has again.
    pub(super) fn run_dry(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let (kind, free) = (balance.ledger.kind(), balance.free());
        let (lacks, mark, until) = match kind {
            RightKind::Window(window) => (free == 0, window, window),
            RightKind::Level | RightKind::Places => {
                let mark = dry_mark(bucket.rule.rule.algorithm, bucket.windows(), now);
                (bucket.wanted(kind) > free, mark, mark.saturating_add(DRY_FOR))
            }
        };
        let others_have = is_coming(bucket) || self.others_have(now, bucket, balance);
        let hopes = others_have || self.others_may_have(now, bucket, kind);
        let dry = bucket.dry;
        let says = match lacks && !hopes && self.config.safety.says_who_is_dry {
            true if dry < until => until,
            false if dry > 0 && dry >= mark && (others_have || free > 0) => 0,
            _ => return,
        };
        self.note_dry(id, says);
    }

    fn note_dry(&mut self, id: usize, window: u64) {
        let Some(bucket) = self.bucket_mut(id) else { return };
        bucket.dry = window;
        let key = bucket.key.clone();
        self.note(Event::Dry { key, window });
    }

    /// True if a region that is heard said just now that it has some, or gave some that has not come yet:
    /// what is under way nobody has.
    fn others_have(&self, now: Timestamp, bucket: &EscrowBucket, own: &StepResult) -> bool {
        let ledger = &own.ledger;
        self.audible(now).any(|region| {
            let said = said_of(now, bucket, ledger.kind(), region);
            said.is_some_and(|partner| {
                let has = partner.free > 0 && is_recent(now, partner);
                has || self.gave_more(partner, ledger, self.regions.name(region))
            })
        })
    }

    /// True if a region said that it gave more to this memory than has come.
    fn gave_more(&self, partner: &RegionStatement, ledger: &Ledger, name: &str) -> bool {
        let given = match &partner.rights {
            PartnerRights::Window(partner) => &partner.totals.given,
            PartnerRights::Places(partner) => &partner.totals.given,
            // Of levels nobody says what was given.
            PartnerRights::Level(_) => return false,
        };
        total(given, self.own_region(), ledger.session()) > ledger.taken_from(name, partner.session)
    }

    /// True if a region that is heard, or was never, may have some by its last word, or its whole share if it
    /// has said nothing. If it had, it would have sent some soon after the first refusal. One need not say
    /// that it gave its last, one whose store burns what it lost says nothing, and to a daemon that does not
    /// own the bucket none does.
    fn others_may_have(&self, now: Timestamp, bucket: &EscrowBucket, kind: RightKind) -> bool {
        let may_have = |region| said_of(now, bucket, kind, region).is_none_or(|said| said.free > 0);
        let soon = bucket.lacks_since().is_none_or(|since| now.since(since) < SILENT_FOR);
        // One that was never heard may be about to begin.
        let mut audible = (1..self.regions.len())
            .filter(|region| self.heard(*region).is_none_or(|heard| now.since(heard) < AUDIBLE_FOR));
        soon && audible.any(may_have)
    }

    fn audible(&self, now: Timestamp) -> impl Iterator<Item = RegionId> {
        (1..self.regions.len())
            .filter(move |region| self.heard(*region).is_some_and(|heard| now.since(heard) < AUDIBLE_FOR))
    }
}

/// Returns what a region said of these rights, as far as it still says something of now: of a window until
/// that is over.
fn said_of(
    now: Timestamp,
    bucket: &EscrowBucket,
    kind: RightKind,
    region: RegionId,
) -> Option<&RegionStatement> {
    let partner = bucket.partner(region).filter(|partner| partner.heard.is_some())?;
    let counts = match kind {
        RightKind::Window(_) => partner.kind() == kind,
        RightKind::Level | RightKind::Places => is_recent(now, partner),
    };
    counts.then_some(partner)
}

fn is_recent(now: Timestamp, partner: &RegionStatement) -> bool {
    partner.heard.is_some_and(|heard| now.since(heard) < SILENT_FOR)
}

/// True if something that came waits for the store.
fn is_coming(bucket: &EscrowBucket) -> bool {
    bucket.steps.iter().any(|waiting| match &waiting.step {
        Step::Window { step, .. } => matches!(step, WindowStep::Take(_)),
        Step::Level(step) => matches!(step, LevelStep::Take { .. }),
        Step::Places { step, .. } => matches!(step, PlacesStep::Take(_)),
        Step::Read => false,
    })
}
