//! The time that a report takes, and for how long a silence is borne.

use super::replica::Replica;
use crate::regions::membership::Patience;
use crate::time::{Span, Timestamp};

/// The time that is added to the longest delay, because clocks and ticks differ.
const DELAY_MARGIN: Span = Span::from_millis(5);
/// Delays are rounded up to this, so that regions that measure nearly the same use exactly the same.
const DELAY_STEP: Span = Span::from_millis(5);
/// The time that is added to what news of a cut take: a link may have to be dialled first, and something be
/// said twice.
const MENDING: Span = Span::from_millis(300);
/// A region counts as cut off after at least this long without a frame.
const PATIENCE_MIN: Span = Span::from_millis(450);

impl Replica {
    /// The horizon of a daemon that knows of no delay yet.
    pub(super) const HORIZON_MIN: Span = DELAY_STEP;

    /// Frames go out at least this often, so that silence means something.
    pub(super) fn heartbeat(&self) -> Span {
        Span(self.config.interval.0.saturating_mul(2).clamp(50_000, 1_000_000))
    }

    /// Returns how long a region may be silent before it counts as cut off.
    pub(super) fn patience(&self) -> Span {
        Span(self.heartbeat().0.saturating_mul(4)).max(PATIENCE_MIN) + self.horizon_of(Span::ZERO)
    }

    /// The same of its answers, of which one heartbeat sees the next.
    pub(super) fn cut_off_after(&self) -> Patience {
        let unheard = self.patience();
        let unanswered = unheard + self.heartbeat();
        Patience { unheard, unanswered: self.config.safety.notices_who_is_deaf.then_some(unanswered) }
    }

    /// Says that this daemon did nothing until `now` for so long that others may have taken it for cut off.
    pub(super) fn may_have_been_cut_off(&self, now: Timestamp) -> bool {
        self.newest + PATIENCE_MIN < now
    }

    /// Returns how long after the end of a cut all that a region admitted meanwhile is in force: it must hear
    /// this side first, and then tell.
    pub(super) fn mending(&self) -> Span {
        Span(self.heartbeat().0.saturating_mul(2).saturating_add(self.horizon.0.saturating_mul(3))) + MENDING
    }

    /// The longest that a report takes to anyone: after this long everybody has it, so that all may use it at
    /// once.
    pub(super) fn horizon(&self, now: Timestamp) -> Span {
        self.horizon_of(self.regions.slowest(now))
    }

    fn horizon_of(&self, own: Span) -> Span {
        let announced = self.links.iter().filter(|link| link.live).map(|link| link.slowest).max();
        let slowest = own.max(announced.unwrap_or(Span::ZERO)) + DELAY_MARGIN;
        Span(slowest.0.div_ceil(DELAY_STEP.0).saturating_mul(DELAY_STEP.0))
    }
}
