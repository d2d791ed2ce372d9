//! What one look at a bucket of the memory store finds, before anything is charged.

use crate::core::algorithm::{Allowance, Limit, Verdict};
use crate::core::reservation::ReservationFate;
use crate::core::table::TablePlace;
use crate::core::time::{Span, Timestamp};
use crate::engine::port::ChargeResult;

/// When to ask again where a bucket holds as many reservations as it may.
pub(in crate::store) const CROWDED_RETRY: Span = Span::from_secs(1);

/// What a bucket would answer one charge.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evaluation {
    /// The bucket, if it is there.
    pub(super) place: Option<TablePlace>,
    pub(super) verdict: Verdict,
    /// What is enforced.
    pub(super) view: Option<Allowance>,
    /// True if that is what was told of the other regions.
    pub(super) told: bool,
    pub(super) error_bound: u64,
    /// The instant that it counts at.
    pub(super) now: Timestamp,
    /// What it is counted against.
    pub(super) limit: Limit,
    /// Rest of the recovery window, in which nothing is admitted.
    pub(super) recovery: Option<Span>,
    /// Permits that would fit if all that can come from other regions were here, and when they may.
    pub(super) most: (u64, Span),
    /// Permits of lapsed reservations that were given back for this look.
    pub(super) lapsed: u64,
    /// Where the notes of its reservations are, looked for where the charge speaks of one.
    pub(super) notes: Option<TablePlace>,
    /// What is known of a reservation before it is charged.
    pub(super) fate: Option<ReservationFate>,
}

impl Evaluation {
    /// Returns what it is counted against.
    pub(super) const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns what is enforced.
    pub(super) const fn view(&self) -> Option<&Allowance> {
        self.view.as_ref()
    }

    /// Denies because the bucket holds as many reservations as it may.
    pub(super) fn crowd(&mut self) {
        self.fate = Some(ReservationFate::Crowded);
        self.verdict =
            Verdict { admitted: false, delay: Span::ZERO, retry: Some(CROWDED_RETRY), ..self.verdict };
    }

    /// True if the charge fits; a refund always does.
    pub(super) fn fits(&self) -> bool {
        self.verdict.admitted
    }

    /// The answer, before it is known what was charged.
    pub(super) fn counted(&self) -> ChargeResult {
        ChargeResult {
            verdict: self.verdict,
            view: self.view.filter(|_| self.told),
            error_bound: self.error_bound,
            used: 0,
            returned: 0,
            reported: 0,
            uncharged: 0,
            paid: 0,
            owed: 0,
            lapsed: self.lapsed,
            reservation: self.fate,
            penalty: None,
            degraded: false,
        }
    }

    /// The answer to a report, of a bucket as it is after it: whether it fitted, and when one permit is free
    /// again.
    pub(super) fn after_report(&self, after: &Verdict) -> Verdict {
        let admitted = self.verdict.admitted;
        let mut verdict = Verdict { admitted, delay: Span::ZERO, ..*after };
        self.hope(&mut verdict);
        if admitted {
            verdict.retry = None;
        }
        if let Some(left) = self.recovery {
            (verdict.remaining, verdict.retry) = (0, Some(left));
        }
        verdict
    }

    /// Has hope for one permit where what other regions have would do.
    pub(super) fn hope(&self, verdict: &mut Verdict) {
        if verdict.remaining == 0 && verdict.retry.is_none() && self.most.0 > 0 {
            verdict.retry = Some(self.most.1);
        }
    }

    /// The answer where the bucket found no room; see [`super::newcomers`].
    pub(super) fn without_room(&self, verdict: Verdict) -> ChargeResult {
        ChargeResult { degraded: true, verdict, ..self.counted() }
    }
}
