//! The words of an answer under `gossip` on all regions: what they are believed to have used, and how much
//! more it may be.

use crate::algorithm::{Algorithm, Allowance, Counting, LEVEL_SPEAKS, Limit};
use crate::time::{Span, Timestamp};

/// A store's answer on a bucket, with what it was told of the other regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketAnswer {
    /// Permits in use in the own region.
    pub used: u64,
    /// Permits that it would still admit.
    pub remaining: u64,
    /// Allowance that the world leaves it, if it was told.
    pub view: Option<Allowance>,
    /// Permits by which the worldwide count may lie above `used` and `view.others`, as it was told with the
    /// view.
    pub error_bound: u64,
}

/// The part of what was admitted that the own store may have forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnStore {
    /// Nothing: it outlives the daemon.
    #[default]
    Lasting,
    /// The store began with nothing used, and with it the daemon, which does not know what became of others
    /// before.
    Begun(Timestamp),
    /// The store did not answer: another one decided, which knows nothing of it.
    Unanswered,
}

/// A daemon's knowledge of the stores beside its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OtherStores {
    /// Stores that may admit the same limit: those of the other regions.
    pub stores: u64,
    /// Regions that are known, the own one included.
    pub regions: u64,
    /// True if every region divides by the same reports; see [`super::Replica::elsewhere`].
    pub settled: bool,
    /// The memory that the own store may have lost.
    pub own_store: OwnStore,
    /// The longest that any other region was not heard since all was settled.
    pub silence: Span,
    /// True if any listed region is cut off.
    pub cut_off: bool,
}

/// The regions as a decision finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionsKnown {
    /// Number of regions, the own one included.
    pub count: u64,
    /// True if one of them is cut off.
    pub is_cut: bool,
}

impl From<OtherStores> for RegionsKnown {
    fn from(elsewhere: OtherStores) -> Self {
        Self { count: elsewhere.regions, is_cut: elsewhere.cut_off }
    }
}

impl OtherStores {
    /// Memories that may have admitted the same limit and are not known: that of each other store, and if the
    /// own one began while that still `counts`, a former one of each store.
    fn memories(&self, counts: impl Fn(Timestamp) -> bool) -> u64 {
        match self.own_store {
            OwnStore::Begun(begun) if counts(begun) => self.stores.saturating_mul(2).saturating_add(1),
            OwnStore::Unanswered => self.stores.saturating_add(1),
            OwnStore::Begun(_) | OwnStore::Lasting => self.stores,
        }
    }
}

/// A request that is refused while the world has room may be asked again after this long: the way to the
/// other regions and back, and until a division by it is in force.
pub const ROUND_TRIP: Span = Span::from_secs(1);

/// After this long at most, what a region uses is heard while nothing keeps it from telling.
const HEARD_WITHIN: Span = Span::from_secs(1);

/// Returns what refills of a bucket without windows in a region that is not heard, in permits: each region's
/// refills, but only one is the limit's.
pub(super) fn unheard(limit: &Limit, silence: Span) -> u64 {
    let refilled = u128::from(limit.permits) * u128::from((silence + HEARD_WITHIN).0);
    u64::try_from(refilled.div_ceil(u128::from(limit.window.0.max(1)))).unwrap_or(u64::MAX)
}

/// Returns what all regions are believed to have used.
#[must_use]
pub fn believed(limit: &Limit, answered: &BucketAnswer, now: Timestamp) -> u64 {
    // The others' use of a level is charged to it.
    let others = match answered.view {
        Some(Allowance::Window(told)) if told.window == limit.windows().index(now) => told.others,
        _ => 0,
    };
    answered.used.saturating_add(others)
}

/// True if the limit leaves room for `cost` as far as is known here, so that only the region's part of it
/// refuses that: then the refusal lasts until the other regions have heard of it.
#[must_use]
pub fn has_room(
    algorithm: Algorithm,
    limit: &Limit,
    answered: &BucketAnswer,
    cost: u64,
    now: Timestamp,
) -> bool {
    let others = answered.view.map_or(0, |view| view.others_at(algorithm, limit, now));
    let used = answered.used.saturating_add(others);
    used.saturating_add(cost.max(1)) <= limit.capacity(algorithm)
}

/// Returns how much more than [`believed`] all regions may have used.
///
/// Until the protocol has looked at a bucket in this window, and while reports come late, every other store
/// may have admitted the whole limit. So may the own one before it forgot, and every other one that forgot
/// before this process could notice. Each may also have admitted what refilled of a bucket without windows.
#[must_use]
pub fn error_bound(
    algorithm: Algorithm,
    limit: &Limit,
    answered: &BucketAnswer,
    elsewhere: OtherStores,
    now: Timestamp,
) -> u64 {
    let BucketAnswer { view, error_bound: told, .. } = *answered;
    if elsewhere.stores == 0 {
        return told;
    }
    let whole = limit.capacity(algorithm);
    if algorithm.counting() == Counting::Level {
        let refilled = u128::from(whole) * u128::from(limit.window.0) / u128::from(limit.permits.max(1));
        let refilled = Span(u64::try_from(refilled).unwrap_or(u64::MAX));
        let each = whole.saturating_add(unheard(limit, elsewhere.silence));
        let all = each.saturating_mul(elsewhere.memories(|begun| now < begun + refilled));
        let view = view.and_then(|view| view.as_level().copied());
        let speaks = view.is_some_and(|view| now.since(view.since) <= LEVEL_SPEAKS);
        // Others may be asked by a larger limit than the one that was divided when this was told.
        let divided = view.map_or(0, |view| view.capacity);
        let told =
            if divided == 0 { told } else { told.saturating_add(whole.saturating_sub(divided.into())) };
        // The word of another process to the store may stem from a longer silence than this one knows.
        return if speaks && elsewhere.settled { told.min(all) } else { told.max(all) };
    }
    let windows = limit.windows();
    let window = windows.index(now);
    let slides = matches!(algorithm, Algorithm::SlidingWindow | Algorithm::SlidingLog);
    let in_window =
        |window: u64| whole.saturating_mul(elsewhere.memories(|begun| windows.index(begun) >= window));
    let current = view.and_then(|view| view.as_window().copied()).filter(|view| view.window == window);
    let (known, before) = current.map_or((0, 0), |view| (view.others, view.others_before));
    let unknown = in_window(window).saturating_sub(known);
    // The others' use in the window before counts in a sliding one, and is not in what is believed.
    let unknown = if slides { unknown.saturating_add(in_window(window.saturating_sub(1))) } else { unknown };
    match current {
        Some(_) if elsewhere.settled => told.saturating_add(if slides { before } else { 0 }),
        // The store is told more of a region that began again.
        Some(_) => told.max(unknown),
        None => unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{LevelAllowance, WindowAllowance};

    const NOW: Timestamp = Timestamp(7 * 60_000_000 + 1);
    const FOUR: OtherStores = OtherStores {
        stores: 4,
        regions: 5,
        settled: true,
        own_store: OwnStore::Lasting,
        silence: Span::ZERO,
        cut_off: false,
    };

    fn bound(algorithm: Algorithm, view: Option<Allowance>, elsewhere: OtherStores) -> u64 {
        let limit = Limit { calendar: None, permits: 100, window: Span::from_secs(60), burst: 40, queue: 0 };
        let answered = BucketAnswer { used: 10, remaining: 18, view, error_bound: 5 };
        error_bound(algorithm, &limit, &answered, elsewhere, NOW)
    }

    fn of_window(window: u64) -> Option<Allowance> {
        let (budget, next_budget, others, others_before) = (60, 30, 20, 50);
        Some(Allowance::Window(WindowAllowance { window, budget, next_budget, others, others_before }))
    }

    #[test]
    fn what_the_store_was_told_holds_in_its_window_while_nothing_comes_late() {
        let fixed = Algorithm::FixedWindow;
        assert_eq!(bound(fixed, of_window(7), FOUR), 5);
        assert_eq!(bound(fixed, of_window(7), OtherStores { settled: false, ..FOUR }), 380);
        assert_eq!(bound(fixed, of_window(6), FOUR), 400, "the window has just begun");
        assert_eq!(bound(fixed, None, FOUR), 400, "nobody has looked at it");
        assert_eq!(bound(fixed, None, OtherStores::default()), 5, "there are no others");
    }

    #[test]
    fn a_store_that_forgot_may_have_admitted_all_before_and_so_may_others_that_forgot_unnoticed() {
        let begun = |ago: u64| OtherStores { own_store: OwnStore::Begun(Timestamp(NOW.0 - ago)), ..FOUR };
        assert_eq!(bound(Algorithm::FixedWindow, None, begun(1)), 900);
        assert_eq!(bound(Algorithm::FixedWindow, None, begun(2)), 400, "in the window before");
        assert_eq!(bound(Algorithm::Gcra, None, begun(23_000_000)), 9 * 42);
        assert_eq!(bound(Algorithm::Gcra, None, begun(24_000_000)), 168, "all is refilled");
        let unanswered = OtherStores { own_store: OwnStore::Unanswered, ..FOUR };
        assert_eq!(bound(Algorithm::FixedWindow, None, unanswered), 500, "one store does not answer");
    }

    #[test]
    fn in_a_sliding_window_counts_what_others_admitted_before() {
        assert_eq!(bound(Algorithm::SlidingLog, of_window(7), FOUR), 55);
        assert_eq!(bound(Algorithm::SlidingWindow, None, FOUR), 800);
    }

    #[test]
    fn of_a_level_every_other_region_may_have_used_a_bucket_and_what_it_refilled_unheard() {
        let divided = |capacity| {
            let (held_back, held_back_max) = (12, 40);
            Some(Allowance::Level(LevelAllowance {
                since: NOW,
                held_back,
                growth: 0,
                held_back_max,
                capacity,
            }))
        };
        let view = divided(0);
        assert_eq!(bound(Algorithm::Gcra, view, FOUR), 5);
        assert_eq!([42, 40, 32].map(|capacity| bound(Algorithm::Gcra, divided(capacity), FOUR)), [5, 5, 13]);
        assert_eq!(bound(Algorithm::Gcra, view, OtherStores { settled: false, ..FOUR }), 4 * 42);
        assert_eq!(bound(Algorithm::Gcra, None, FOUR), 4 * 42);
        let cut_off = OtherStores { settled: false, silence: Span::from_secs(59), ..FOUR };
        assert_eq!(bound(Algorithm::Gcra, view, cut_off), 4 * 140);
    }
}
