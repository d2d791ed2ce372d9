//! Duties of a daemon towards the machines of the three modes, beyond their own safety rules: each of these
//! can be left out, to see which judge notices.

use tidegate::core::algorithm::{Allowance, Limit, WindowAllowance};
use tidegate::core::regions::Effect;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::Frame;

/// The duties that are done; all of them, but in `sim mutate`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duties {
    /// Reports are used from the instant on that their sender set (G2), and not from when they came.
    pub(crate) common_instants: bool,
    /// The store keeps to the budget that it is told (G4).
    pub(crate) keeps_to_budget: bool,
    /// A share grows when the others have said the weights (S1), and not at once.
    pub(crate) waits_for_others: bool,
    /// It grows when what was spent of larger ones counts no longer (S3), and not as soon as all agree.
    pub(crate) waits_for_what_was_spent: bool,
    /// A region of `escrow` mints its share (W1), and no more.
    pub(crate) mints_its_share: bool,
    /// The store charges its level with what others admitted, also below zero (G11).
    pub(crate) carries_debt: bool,
}

/// After so long nothing that was spent counts any more.
const LONG: Span = Span::from_secs(86_400);

impl Duties {
    pub(crate) const ALL: Self = Self {
        common_instants: true,
        keeps_to_budget: true,
        waits_for_others: true,
        waits_for_what_was_spent: true,
        mints_its_share: true,
        carries_debt: true,
    };

    /// A frame as the machine of `gossip` is to hear it.
    pub(super) fn heard(self, mut frame: Frame, now: Timestamp) -> Frame {
        if !self.common_instants {
            frame.reports.iter_mut().for_each(|report| report.stamp = now);
        }
        frame
    }

    /// The time as the machine of `split` is to be told it.
    pub(super) fn clock_of_shares(self, now: Timestamp) -> Timestamp {
        if self.waits_for_what_was_spent { now } else { now + LONG }
    }

    /// A region's share, as it mints it.
    pub(super) fn minted(self, share: Limit) -> Limit {
        if self.mints_its_share {
            return share;
        }
        let more = |part: u32| part.saturating_add(1);
        Limit { permits: more(share.permits), burst: more(share.burst), ..share }
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
            Effect::Debit { key, own, .. } if !self.carries_debt => Effect::Debit { key, permits: 0, own },
            other => other,
        }
    }
}
