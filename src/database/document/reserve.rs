//! Reading how a rule reserves.

use super::answer::{RuleKind, uncounted};
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::reservation_terms::{EstimateTerms, OnLapse, PERCENTILE_DEFAULT, ReservationTerms};
use crate::core::written::{Fields, Problems};

const LAPSES: [(&str, OnLapse); 2] = [("release", OnLapse::Release), ("charge", OnLapse::Charge)];

/// The terms of its reservations.
pub(super) fn read_reservations(
    fields: &mut Fields<'_>,
    kind: RuleKind,
    problems: &mut Problems<'_>,
) -> ReservationTerms {
    let on_lapse = fields.word("on_lapse", &LAPSES, problems).unwrap_or_default();
    let estimate = read_estimate(fields, problems).unwrap_or_default();
    for name in ["on_lapse", "estimate"] {
        if let (Some(why), Some(entry)) = (uncounted(kind), fields.take(name)) {
            problems.report(&entry.node.at, format!("{name} {why}"));
        }
    }
    ReservationTerms { on_lapse, estimate }
}

fn read_estimate(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Option<EstimateTerms> {
    let mut table = fields.table("estimate", problems)?;
    let percentile = table.integer("percentile", 1, 100, problems);
    let by = table.text("by", TEXT_BYTES_MAX, problems).map(str::to_owned);
    let first = table.count("first", 1, problems);
    table.finish(problems);
    let percentile = percentile.and_then(|percentile| u8::try_from(percentile).ok());
    Some(EstimateTerms { percentile: percentile.unwrap_or(PERCENTILE_DEFAULT), by, first })
}
