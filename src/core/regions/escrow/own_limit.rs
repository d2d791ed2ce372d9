//! What is noted of one bucket that counts, or did, by another limit than its rule's.

use std::sync::Arc;

use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::OwnLimit;
use super::FollowedRule;

/// For so long a region counts as deciding by what it decided by, or said, last.
pub(super) const DECIDED: Span = Span::from_secs(10);
/// Until nothing was decided by the smaller for so long, a larger limit does not take its place: buckets that
/// several people share are decided by one and by the other.
const SETTLED: Span = Span::from_secs(2);

/// What is known of a bucket that has, or had, another limit than its rule's.
#[derive(Debug)]
pub(super) struct EscrowOwnLimit {
    /// What the own region decided by last, and when; `None` in it is the rule's.
    decided: Option<(Option<OwnLimit>, Timestamp)>,
    /// What is in force in place of the rule's.
    pub(super) limit: Option<OwnLimit>,
    /// The largest number of permits before, and until when it was in force.
    pub(super) before: (u32, Timestamp),
    /// The largest rule before: who has not heard of a change yet is honest.
    pub(super) rule_before: Option<Arc<FollowedRule>>,
}

impl EscrowOwnLimit {
    pub(super) fn new(limit: Option<OwnLimit>) -> Box<Self> {
        Box::new(Self { decided: None, limit, before: (0, Timestamp(0)), rule_before: None })
    }

    /// The own region decides by this limit.
    pub(super) fn decide_by(&mut self, now: Timestamp, own: Option<OwnLimit>, rule: OwnLimit) {
        let takes = self.decided.is_none_or(|(known, at)| {
            let smaller = own.unwrap_or(rule) <= known.unwrap_or(rule);
            smaller || now < at || now.since(at) >= SETTLED
        });
        if takes {
            self.decided = Some((own, now));
        }
    }

    pub(super) fn decided(&self, now: Timestamp) -> Option<Option<OwnLimit>> {
        self.decided.filter(|(_, at)| now.since(*at) < DECIDED).map(|(own, _)| own)
    }
}
