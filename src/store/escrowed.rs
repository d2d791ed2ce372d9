//! The bearing of a rule's escrowed rights on its buckets, by the rule alone.

use crate::core::algorithm::{Algorithm, Counting, Limit};
use crate::core::key::Key;
use crate::core::regions::escrow::level::under_way_max;
use crate::core::regions::escrow::{moves_as, slides};
use crate::core::rule::{Mode, OnFailure};
use crate::core::ruleset::Compiled;
use crate::engine::port::HeldLimit;

/// True of a rule whose rights are escrowed.
pub(super) fn is_escrowed(rule: &Compiled) -> bool {
    rule.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow)
}

/// Returns how the rule's rights move between regions, where they do.
pub(super) fn moving(rule: &Compiled) -> Option<Counting> {
    is_escrowed(rule).then(|| moves_as(rule.rule.algorithm))
}

/// The limit that says how long a bucket's debt lasts: where rights move, a window pays with its region's
/// own.
pub(super) fn paying(rule: &Compiled, held: HeldLimit) -> Limit {
    let minted = held.own();
    let windows = matches!(rule.rule.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow);
    if is_escrowed(rule) && windows && minted > 0 {
        return Limit { permits: minted.min(held.limit.permits), ..held.limit };
    }
    held.limit
}

/// The largest cost that a bucket without windows, or of a sliding window, can gather permits for from other
/// regions too; zero for all others. `whole` is the limit of all regions together.
pub(super) fn gathered(rule: &Compiled, key: &Key, held: &HeldLimit, whole: &Limit) -> u64 {
    if lends(rule, key, held, whole) && rule.rule.algorithm == Algorithm::SlidingWindow {
        return u64::from(whole.permits);
    }
    if moving(rule) != Some(Counting::Level) {
        return 0;
    }
    let (own, whole) = (held.limit.capacity(rule.rule.algorithm), whole.capacity(rule.rule.algorithm));
    own.saturating_add(under_way_max(whole.saturating_sub(own)))
}

/// True where nothing passes without room or an answer: whatever else is said, where rights are exact.
pub(super) fn is_closed(rule: &Compiled, policy: Option<OnFailure>) -> bool {
    policy == Some(OnFailure::Closed) || is_escrowed(rule)
}

/// True where places held or permits counted under this limit are lent: a daemon that speaks with no other
/// keeps its share of the `whole`. A request's own window counts in a bucket that no other region knows.
pub(super) fn lends(rule: &Compiled, key: &Key, held: &HeldLimit, whole: &Limit) -> bool {
    let known = !slides(rule.rule.algorithm) || key.shape() == rule.shape;
    moving(rule) == Some(Counting::Concurrency)
        && known
        && held.share.is_some()
        && held.limit.permits == whole.permits
}
