//! A charge that goes back since another part of its decision denied. The call that gives it back may come
//! late: its window may have ended, others may have been charged, and a level has drained.

use crate::core::algorithm::CountedCharge;

/// A charge that goes back. Another's permits never do in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) struct UndoneCharge {
    /// Where it counts.
    pub(in crate::store::redis) charge: CountedCharge,
    /// What undone charges had given back of a level when it was charged, modulo 2^32.
    pub(in crate::store::redis) undone: u32,
}

impl UndoneCharge {
    /// Returns where its `permits` count once undone charges have given back `undone` of a level. What went
    /// back since may be what it stood on, so that it has drained the sooner; but never sooner than from an
    /// empty bucket. Mirrors: `level_undo` of `lua/level.lua`.
    pub(in crate::store::redis) fn after(&self, undone: u32, permits: u64) -> CountedCharge {
        let since = undone.wrapping_sub(self.undone);
        // A bucket that begins anew counts from zero again.
        let since = if since > u32::MAX / 2 { u64::MAX } else { u64::from(since) };
        CountedCharge { used: self.charge.used.saturating_sub(since).max(permits), ..self.charge }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::algorithm::{Algorithm, Limit, State};
    use crate::core::time::{Span, Timestamp};
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Wait(u64),
        /// Charged, and never undone.
        Take(u64),
        /// Charged by a decision that is denied elsewhere.
        Denied(u64),
        /// The undo of one of those arrives.
        Undo(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..400_000_u64).prop_map(Step::Wait),
            3 => (1..40_u64).prop_map(Step::Take),
            3 => (1..40_u64).prop_map(Step::Denied),
            3 => (0..4_usize).prop_map(Step::Undo),
        ];
        proptest::collection::vec(step, 1..40)
    }

    proptest! {
        /// However late undone charges go back and in whichever order, a bucket never counts less than one
        /// that never had them.
        #[test]
        fn nothing_of_other_charges_goes_back(steps in steps(), algorithm in 0..Algorithm::OF_COSTS.len()) {
            let limit = Limit { calendar: None, permits: 100, window: Span(1_000_000), burst: 100, queue: 0 };
            let new = || State::new(Algorithm::OF_COSTS[algorithm]);
            let (mut state, mut without, mut undone) = (new(), new(), 0_u32);
            let mut denied: Vec<(u64, UndoneCharge)> = Vec::new();
            let mut now = Timestamp(1_790_000_000_700_000);
            for step in steps {
                match step {
                    Step::Wait(micros) => now = now + Span(micros),
                    Step::Take(permits) => {
                        state.take(&limit, now, permits);
                        without.take(&limit, now, permits);
                    }
                    Step::Denied(permits) => {
                        state.take(&limit, now, permits);
                        let at = state.instant(now);
                        let charge = CountedCharge { at, used: state.level_at(&limit, at) };
                        denied.push((permits, UndoneCharge { charge, undone }));
                    }
                    Step::Undo(which) if !denied.is_empty() => {
                        let (permits, taken) = denied.remove(which % denied.len());
                        let charge = taken.after(undone, permits);
                        let back = state.give_back(&limit, now, charge, permits);
                        undone = undone.wrapping_add(u32::try_from(back.started).unwrap());
                    }
                    Step::Undo(_) => {}
                }
                prop_assert!(state.used(&limit, now) >= without.used(&limit, now), "{state:?} {without:?}");
            }
        }
    }

    #[test]
    fn an_undo_at_once_gives_back_all_of_it() {
        let taken =
            UndoneCharge { charge: CountedCharge { at: Timestamp(5), used: 100 }, undone: u32::MAX - 9 };
        assert_eq!(taken.after(u32::MAX - 9, 30).used, 100);
        assert_eq!(taken.after(10, 30).used, 80);
        assert_eq!(taken.after(200, 30).used, 30);
        // Forgotten, and counted from zero again.
        let forgotten = UndoneCharge { undone: 7, ..taken };
        assert_eq!(forgotten.after(0, 30).used, 30);
    }
}
