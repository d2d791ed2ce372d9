//! Reading how a rule reserves.

use super::answer::{RuleKind, uncounted};
use crate::core::reservation_terms::{OnLapse, ReservationTerms};
use crate::core::written::{Fields, Problems};

const LAPSES: [(&str, OnLapse); 2] = [("release", OnLapse::Release), ("charge", OnLapse::Charge)];

/// The terms of its reservations.
pub(super) fn read_reservations(
    fields: &mut Fields<'_>,
    kind: RuleKind,
    problems: &mut Problems<'_>,
) -> ReservationTerms {
    let on_lapse = fields.word("on_lapse", &LAPSES, problems).unwrap_or_default();
    if let (Some(why), Some(entry)) = (uncounted(kind), fields.take("on_lapse")) {
        problems.report(&entry.node.at, format!("on_lapse {why}"));
    }
    ReservationTerms { on_lapse }
}
