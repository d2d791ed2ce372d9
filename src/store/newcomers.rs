//! Clients for whose buckets there is no room, where every bucket that is there is at its limit and so is
//! never forgotten. The newcomers of one rule share one bucket: a client that fills the memory opens no rule.

use std::collections::HashMap;

use crate::core::algorithm::{Limit, State, Verdict};
use crate::core::key::Shape;
use crate::core::request::Cost;
use crate::core::time::{Span, Timestamp};
use crate::engine::port::Charge;

use super::escrowed::is_closed;

/// Most rules whose newcomers are remembered; each has one bucket. Full: all are forgotten.
const RULES_MAX: usize = 4_096;

/// The buckets that newcomers share, by rule.
#[derive(Debug, Default)]
pub(super) struct Newcomers(HashMap<Shape, State, foldhash::fast::RandomState>);

impl Newcomers {
    /// Charges a newcomer whom a bucket of its own would answer `looked`, unless its rule's `on_failure`
    /// denies it. Anything but a plain charge passes: places, reservations and reports belong to a bucket of
    /// their own.
    pub(super) fn charge(
        &mut self,
        charge: &Charge<'_>,
        looked: Verdict,
        limit: &Limit,
        now: Timestamp,
    ) -> Verdict {
        let rule = charge.rule;
        if is_closed(rule, rule.rule.on_failure) {
            // Room comes as buckets expire; after a window of this rule at least its own kind have.
            let retry = Some(charge.limit.window);
            return Verdict { admitted: false, remaining: 0, delay: Span::ZERO, retry, ..looked };
        }
        let Cost::Take(permits) = charge.cost else { return looked };
        if self.0.len() >= RULES_MAX && !self.0.contains_key(&charge.key.shape()) {
            self.0.clear();
        }
        let state = self.0.entry(charge.key.shape()).or_insert_with(|| State::new(rule.rule.algorithm));
        let verdict = state.check(limit, None, now, permits);
        if verdict.admitted {
            state.take(limit, now, permits);
        }
        verdict
    }
}
