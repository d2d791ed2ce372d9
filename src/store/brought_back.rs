//! Buckets of the memory store that a clock counted which was ahead and is set back.

use super::escrowed::{moving, paying};
use super::slot::{KeySlot, weight};
use crate::core::algorithm::Limit;
use crate::core::ruleset::Compiled;
use crate::core::table::TablePlace;
use crate::core::time::Timestamp;
use crate::engine::port::HeldLimit;

impl KeySlot {
    /// Has the bucket at `place` count from now on if it lies ahead of `now`, since the clock was set back;
    /// see [`crate::core::algorithm::State::brought_back`]. True if it did. Not where rights move: they say
    /// themselves what is used.
    pub(super) fn bring_back(
        &mut self,
        rule: &Compiled,
        (limit, share): (&Limit, Option<u32>),
        place: Option<TablePlace>,
        now: Timestamp,
    ) -> bool {
        if let Some(state) = place.and_then(|at| self.buckets.get_mut(at)) {
            state.bring_places_back(limit, now);
        }
        let Some(back) = self.state(place).and_then(|state| state.brought_back(limit, now)) else {
            return false;
        };
        let Some((place, state)) = place.and_then(|at| Some((at, self.buckets.get_mut(at)?))) else {
            return false;
        };
        if moving(rule).is_some() {
            return false;
        }
        *state = back;
        let expiry = state.expiry(&paying(rule, HeldLimit { limit: *limit, share }));
        self.buckets.rate(place, expiry, weight(limit, 0));
        true
    }
}
