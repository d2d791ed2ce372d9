//! The permits that a rule is held to: its share now, and what was spent of earlier ones that may count
//! still.

use smallvec::SmallVec;

use super::super::super::algorithm::{Algorithm, Limit};
use super::super::super::share::Weights;
use super::super::super::time::{Span, Timestamp};
use super::PENDING_MAX;

/// So far apart the clocks of two regions may be: a share of windows grows in one that nobody's clock has
/// reached, since what others spent of their larger shares there counts by their clocks.
const CLOCKS_APART: Span = Span::from_secs(2);

/// The weights one rule is held to: the least share by any of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InForce {
    /// The newest last; empty: nothing may be spent.
    pub(super) weights: Vec<Weights>,
    /// True if the other regions have not said yet that they hold the same.
    pub(super) waits: bool,
    /// By which something was spent that may count still, of limits that count for longer than the rule's.
    pub(super) former: Vec<EarlierShare>,
    /// Algorithm of the rule, and the time for which others may use what a region lent.
    pub(super) counts: Option<(Algorithm, Span)>,
}

/// The share that a rule was held to until it grew.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct EarlierShare {
    /// Instant at which everybody had said that it holds the newer weights: since then nobody has spent more.
    pub(super) agreed: Timestamp,
    /// The least share by any of them; empty: nothing.
    pub(super) weights: Vec<Weights>,
}

fn least(weights: &[Weights], total: u64, region: &str) -> u64 {
    weights.iter().map(|weights| weights.of(total, region)).min().unwrap_or(0)
}

impl InForce {
    /// Returns whether nothing may be spent because the regions have not agreed yet. Then the store is not to
    /// be asked at all: it would remember a share of nothing.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// Returns what `region` may spend of `total` permits.
    #[must_use]
    pub fn of(&self, total: u64, region: &str) -> u64 {
        least(&self.weights, total, region)
    }

    /// True if `region` is held to less than its newest share of `total`, until what others spent of theirs
    /// counts no more.
    #[must_use]
    pub fn grows(&self, total: u64, region: &str) -> bool {
        self.weights.last().is_some_and(|newest| newest.of(total, region) > self.of(total, region))
    }

    /// The part that `region` may spend at `now` of any limit, the rule's or another: of one that counts for
    /// longer the least that it had since.
    #[must_use]
    pub fn part(&self, limit: Limit, region: &str, now: Timestamp) -> Limit {
        let counts_still = |former: &&EarlierShare| {
            self.counts
                .is_some_and(|(algorithm, recall)| now < growth(algorithm, limit, recall, former.agreed))
        };
        let former: SmallVec<[&EarlierShare; 2]> = self.former.iter().filter(counts_still).collect();
        let part = |total: u32| {
            let by = |weights: &[Weights]| least(weights, total.into(), region);
            let all = former.iter().map(|former| by(&former.weights));
            // A part is never more than the whole.
            u32::try_from(all.fold(by(&self.weights), u64::min)).unwrap_or(total)
        };
        Limit { permits: part(limit.permits), burst: part(limit.burst), queue: part(limit.queue), ..limit }
    }
}

impl EarlierShare {
    /// Counts for an older one as well.
    pub(super) fn join(&mut self, older: Self) {
        let nothing = self.weights.is_empty() || older.weights.is_empty();
        for weights in older.weights {
            if !self.weights.contains(&weights) {
                self.weights.push(weights);
            }
        }
        if nothing || self.weights.len() > PENDING_MAX {
            self.weights.clear();
        }
    }
}

/// From when a larger share of a limit may be spent, if everybody agrees at `now`: not before what others
/// spent of their larger shares can no longer count together with ours.
pub(super) fn growth(algorithm: Algorithm, limit: Limit, recall: Span, now: Timestamp) -> Timestamp {
    let Limit { permits, window, burst, queue, .. } = limit;
    match algorithm {
        Algorithm::FixedWindow => {
            let windows = limit.windows();
            windows.end(windows.index(now + CLOCKS_APART))
        }
        // Permits that were used or places that were held before the shares changed count no more by then, or
        // are given back: above a share nothing is renewed.
        Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::Concurrency => {
            now + times(window, 2) + recall
        }
        // A full bucket takes this long to drain; shares are whole, so a small one's may take nearly twice as
        // long.
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => {
            let fill = u64::from(burst).saturating_add(u64::from(queue)).div_ceil(u64::from(permits.max(1)));
            now + times(window, fill.saturating_mul(2).saturating_add(1)) + recall
        }
    }
}

const fn times(span: Span, factor: u64) -> Span {
    Span(span.micros().saturating_mul(factor))
}
