//! A bucket's own limit: which one holds, and who said so.
//!
//! A region decides by the limit that it knows, so that is the one it divides by. A region that nobody asked
//! divides by what the others say. While a limit changes some hold the old one and some the new: all together
//! then admit no more than the larger.

use crate::algorithm::Limit;
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};
use crate::wire::{DecidedBy, OwnLimit};

/// Until this has passed without a decision by the larger limit, a smaller one does not take its place:
/// buckets that several people share are decided by one and by the other.
const SETTLED: Span = Span::from_secs(2);
/// For so long after a change some regions may not have heard of it.
const CHANGING: Span = Span::from_secs(10);
/// A limit that nothing was decided by here for so long gives way to what another region says.
const STALE: Span = Span::from_secs(60);

/// The facts known of one bucket's own limit. Nearly all have none, and nothing is kept for them.
#[derive(Debug, Default)]
pub(super) struct Own(Option<Box<KnownOwnLimit>>);

#[derive(Debug)]
struct KnownOwnLimit {
    /// `None`: the region decides by the rule's limit again.
    limit: Option<OwnLimit>,
    /// Region that said so last, and whose word is in force.
    from: RegionId,
    /// Instant at which it was last decided by here, or said.
    at: Timestamp,
    /// The largest number of permits before, and until when it was in force.
    before: (u32, Timestamp),
}

impl Own {
    /// True if it ever had one.
    pub(super) const fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// The limit that holds in place of the rule's.
    pub(super) fn limit(&self) -> Option<OwnLimit> {
        self.0.as_ref()?.limit
    }

    /// Returns which region said so.
    pub(super) fn from(&self) -> Option<RegionId> {
        Some(self.0.as_ref()?.from)
    }

    /// The limit by which `region` is known to decide, which has `counted` something or not: nobody passes on
    /// for himself what he heard.
    pub(super) fn said_by(&self, region: RegionId, counted: bool) -> DecidedBy {
        match self.0.as_deref() {
            Some(known) if known.from == region => known.limit.map_or(DecidedBy::Rule, DecidedBy::Own),
            // Daemons of the own region say by which own limit they decide; without such a word it is the
            // rule's.
            None if region == Regions::OWN && counted => DecidedBy::Rule,
            _ => DecidedBy::Unknown,
        }
    }

    /// The most permits of a limit that held before.
    pub(super) fn before(&self) -> u32 {
        self.0.as_ref().map_or(0, |known| known.before.0)
    }

    /// The same of one that some region may still have held at `instant`.
    pub(super) fn before_at(&self, instant: Timestamp) -> u32 {
        let known = self.0.as_deref().filter(|known| known.before.1 + CHANGING >= instant);
        known.map_or(0, |known| known.before.0)
    }

    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        if let Some(known) = &mut self.0 {
            known.at = known.at.min(now);
            known.before.1 = known.before.1.min(now);
        }
    }

    /// `region` decided by this limit at `said`, by its clock. `rule` is the rule's, and `holds` the one in
    /// force here.
    pub(super) fn hear(
        &mut self,
        (now, said): (Timestamp, Timestamp),
        region: RegionId,
        limit: Option<OwnLimit>,
        (rule, holds): (&Limit, &Limit),
    ) {
        let Some(known) = &mut self.0 else {
            if limit.is_some() {
                let before = (holds.permits, now);
                self.0 = Some(Box::new(KnownOwnLimit { limit, from: region, at: said, before }));
            }
            return;
        };
        let decided = known.from == Regions::OWN;
        if known.limit == limit && (known.from == region || region == Regions::OWN) {
            (known.from, known.at) = (region, said);
            return;
        }
        let rules = OwnLimit::of(rule);
        let waits = match region {
            Regions::OWN => {
                let larger = limit.unwrap_or(rules) > known.limit.unwrap_or(rules);
                decided && !larger && now.since(known.at) < SETTLED
            }
            _ if decided => now.since(known.at) < STALE,
            _ if known.from == region => said < known.at,
            // While a limit changes, one that does not decide goes by those that have it still.
            _ => limit.is_none(),
        };
        let said_permits = limit.unwrap_or(rules).permits;
        if waits {
            if region != Regions::OWN && said_permits > holds.permits {
                known.before = (known.before.0.max(said_permits), now);
            }
            return;
        }
        // Only what was in force until lately explains what was admitted.
        let before =
            if now.since(known.before.1) < STALE { known.before.0.max(holds.permits) } else { holds.permits };
        **known = KnownOwnLimit { limit, from: region, at: said, before: (before, now) };
    }
}
