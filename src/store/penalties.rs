//! Penalties in the memory store: the record of each bucket whose client was denied lately, beside it. Rules
//! without a penalty pay nothing for it.

use super::evaluation::Evaluation;
use super::slot::{KeySlot, Named};
use crate::core::penalty::{Penalty, PenaltyRecord, PenaltyTerms};
use crate::core::request::Cost;
use crate::core::reservation::ReservationFate;
use crate::core::table::{TablePlace, WEIGHT_KEPT};
use crate::core::time::Timestamp;
use crate::engine::port::{Charge, ChargeResult, Intent};

/// The weight of a record while its penalty is in force. Below [`WEIGHT_KEPT`], so that one more client
/// always finds room: a flood of clients that are all shut out lets the one go that is free soonest.
const PENALTY_WEIGHT: u8 = WEIGHT_KEPT - 1;
/// The weight of a record otherwise.
const VIOLATIONS_WEIGHT: u8 = 0;

/// The meaning of a penalty to a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum PenaltyRole {
    /// It is shut out, and counted if it is denied.
    Asks,
    /// It is shut out, and not counted: it asks for nothing, or has happened already.
    Looks,
    /// It passes: what is given back or was promised.
    Passes,
}

impl PenaltyRole {
    /// The role of a cost, given what is known of its reservation.
    pub(in crate::store) fn of(cost: &Cost, fate: Option<ReservationFate>) -> Self {
        match (cost, fate) {
            (Cost::Reserve(_), Some(ReservationFate::HeldBefore { .. })) => Self::Passes,
            // A bucket that holds as many reservations as it may is no fault of the client's.
            (Cost::Reserve(_), Some(ReservationFate::Crowded)) => Self::Looks,
            (Cost::Take(_) | Cost::Reserve(_), _) => Self::Asks,
            (Cost::Peek | Cost::Report(_), _) => Self::Looks,
            (Cost::Refund(_) | Cost::Commit(_) | Cost::Hold(_), _) => Self::Passes,
        }
    }
}

/// Puts the penalty in force, if any, into an answer.
pub(in crate::store) fn close(counted: &mut ChargeResult, penalty: Option<Penalty>, role: PenaltyRole) {
    let Some(penalty) = penalty else { return };
    match role {
        PenaltyRole::Asks => penalty.close(&mut counted.verdict),
        PenaltyRole::Looks => penalty.close_look(&mut counted.verdict),
        PenaltyRole::Passes => return,
    }
    counted.penalty = Some(penalty);
}

impl KeySlot {
    fn penalty_at(&self, named: Named<'_>) -> Option<TablePlace> {
        if self.penalties.is_empty() {
            return None;
        }
        self.penalties.find(named.hash, named.key.bytes())
    }

    /// The penalty in force.
    pub(super) fn penalty(&self, terms: &PenaltyTerms, named: Named<'_>, now: Timestamp) -> Option<Penalty> {
        self.penalties.get(self.penalty_at(named)?)?.in_force(terms, now)
    }

    /// Returns what the bucket would answer now, as [`Self::evaluate`] says, unless a penalty shuts its
    /// client out.
    pub(super) fn judge(
        &mut self,
        charge: &Charge<'_>,
        named: Named<'_>,
        before: u64,
        now: Timestamp,
    ) -> Evaluation {
        let mut looked = self.evaluate(charge, named, before, now);
        if let Some(terms) = &charge.rule.rule.penalty
            && let Some(penalty) = self.penalty(terms, named, now)
        {
            match PenaltyRole::of(&charge.cost, looked.fate) {
                PenaltyRole::Asks => penalty.close(&mut looked.verdict),
                PenaltyRole::Looks => penalty.close_look(&mut looked.verdict),
                PenaltyRole::Passes => {}
            }
        }
        looked
    }

    /// Counts a denial against the client, where it is one, and puts the penalty in force into the answer.
    pub(super) fn punish(
        &mut self,
        charge: &Charge<'_>,
        looked: &Evaluation,
        named: Named<'_>,
        (intent, now): (Intent, Timestamp),
        counted: &mut ChargeResult,
    ) {
        let Some(terms) = charge.rule.rule.penalty.as_ref().filter(|_| !looked.fits()) else { return };
        let role = PenaltyRole::of(&charge.cost, looked.fate);
        let counts = intent == Intent::Charge && role == PenaltyRole::Asks;
        let penalty = if counts { self.violate(terms, named, now) } else { self.penalty(terms, named, now) };
        close(counted, penalty, role);
    }

    fn violate(&mut self, terms: &PenaltyTerms, named: Named<'_>, now: Timestamp) -> Option<Penalty> {
        let place = match self.penalty_at(named) {
            Some(place) => place,
            None => {
                let record = PenaltyRecord::default();
                let made = self.penalties.insert(named.hash, named.key.bytes(), record, now, |_| false);
                let Ok(inserted) = made else {
                    self.note_full();
                    return None;
                };
                self.note_evicted(inserted.evicted);
                inserted.place
            }
        };
        let record = self.penalties.get_mut(place)?;
        let penalty = record.violate(terms, now);
        let expiry = record.expiry(terms);
        let weight = if penalty.is_some() { PENALTY_WEIGHT } else { VIOLATIONS_WEIGHT };
        self.penalties.rate(place, expiry, weight);
        penalty
    }

    /// Forgets what a client did. `false`: nothing was known.
    pub(super) fn forget_penalty(&mut self, named: Named<'_>) -> bool {
        self.penalty_at(named).is_some_and(|place| self.penalties.remove(place).is_some())
    }
}
