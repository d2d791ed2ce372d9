//! What a daemon does for the machines of `gossip` and `split`, beyond their own safety rules: each of these
//! can be left out, to see which judge notices.

use tidegate::core::algorithm::{Allowance, WindowAllowance};
use tidegate::core::regions::Effect;
use tidegate::core::time::Timestamp;
use tidegate::core::wire::Frame;

/// What is done; all of it, but in `sim mutate`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duties {
    /// Reports are used from the instant on that their sender set (G2), and not from when they came.
    pub(crate) common_instants: bool,
    /// The store keeps to the budget that it is told (G4).
    pub(crate) keeps_to_budget: bool,
    /// A share grows when the others have said the weights (S1), and not at once.
    pub(crate) waits_for_others: bool,
}

impl Duties {
    pub(crate) const ALL: Self =
        Self { common_instants: true, keeps_to_budget: true, waits_for_others: true };

    /// A frame as the machine of `gossip` is to hear it.
    pub(super) fn heard(self, mut frame: Frame, now: Timestamp) -> Frame {
        if !self.common_instants {
            frame.reports.iter_mut().for_each(|report| report.stamp = now);
        }
        frame
    }

    /// An effect as the store is to be told.
    pub(super) fn told(self, effect: Effect) -> Effect {
        match effect {
            Effect::View { key, view: Allowance::Window(window), error_bound } if !self.keeps_to_budget => {
                let more = |budget: u32| budget.saturating_mul(2).saturating_add(1);
                let window = WindowAllowance {
                    budget: more(window.budget),
                    next_budget: more(window.next_budget),
                    ..window
                };
                Effect::View { key, view: Allowance::Window(window), error_bound }
            }
            other => other,
        }
    }
}
