//! The bearing of a rule's escrowed rights on its buckets, by the rule alone.

use crate::core::algorithm::{Counting, Limit};
use crate::core::regions::escrow::can_move;
use crate::core::regions::escrow::level::under_way_max;
use crate::core::rule::{Mode, OnFailure};
use crate::core::ruleset::Compiled;
use crate::engine::port::HeldLimit;

/// True of a rule whose rights are escrowed.
pub(super) fn is_escrowed(rule: &Compiled) -> bool {
    rule.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow)
}

/// True of a rule whose rights can move between regions. The other algorithms hold each region to its share.
pub(super) fn has_rights(rule: &Compiled) -> bool {
    moving(rule).is_some()
}

/// The kind of the rule's rights, where they can move between regions.
pub(super) fn moving(rule: &Compiled) -> Option<Counting> {
    (is_escrowed(rule) && can_move(rule.rule.algorithm)).then(|| rule.counting())
}

/// The limit that says how long a bucket's debt lasts: where rights move, a window pays with what its region
/// mints.
pub(super) fn paying(rule: &Compiled, held: HeldLimit) -> Limit {
    let minted = held.own();
    if moving(rule) == Some(Counting::Window) && minted > 0 {
        return Limit { permits: minted.min(held.limit.permits), ..held.limit };
    }
    held.limit
}

/// The largest cost that a bucket without windows can gather permits for, from other regions too; zero for
/// all others. `whole` is the limit of all regions together.
pub(super) fn gathered(rule: &Compiled, limit: &Limit, whole: &Limit) -> u64 {
    if moving(rule) != Some(Counting::Level) {
        return 0;
    }
    let (own, whole) = (limit.capacity(rule.rule.algorithm), whole.capacity(rule.rule.algorithm));
    own.saturating_add(under_way_max(whole.saturating_sub(own)))
}

/// True where nothing passes without room or an answer: whatever else is said, where rights are exact.
pub(super) fn is_closed(rule: &Compiled, policy: Option<OnFailure>) -> bool {
    policy == Some(OnFailure::Closed) || is_escrowed(rule)
}

/// True where places held under this limit are lent: a daemon that speaks with no other keeps its share of
/// the `whole`.
pub(super) fn lends(rule: &Compiled, limit: &Limit, whole: &Limit) -> bool {
    moving(rule) == Some(Counting::Concurrency) && limit.permits == whole.permits
}
