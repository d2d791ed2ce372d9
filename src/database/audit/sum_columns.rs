//! The text of the columns that all tables of sums have.

use crate::core::audit::Histogram;
use crate::core::audit::usage::Usage;

/// Counts and permits of a row and of what is added to it. Permits stop at
/// [`crate::core::audit::usage::COST_MAX`] before more is added, so that no row can make the adding of all
/// others fail.
macro_rules! added_counts {
    () => {
        "allowed = own.allowed + excluded.allowed, throttled = own.throttled + excluded.throttled, \
         denied = own.denied + excluded.denied, blocked = own.blocked + excluded.blocked, \
         cost = least(1::bigint << 50, greatest(-(1::bigint << 50), own.cost)) + excluded.cost"
    };
}
pub(super) use added_counts;

/// The columns of these sums that count decisions: allowed, throttled, denied, blocked.
pub(super) fn counts<'u>(sums: impl Iterator<Item = &'u Usage> + Clone) -> [Vec<i64>; 4] {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let column = |count: fn(&Usage) -> u64| sums.clone().map(|usage| signed(count(usage))).collect();
    [
        column(|usage| usage.allowed),
        column(|usage| usage.throttled),
        column(|usage| usage.denied),
        column(|usage| usage.blocked),
    ]
}

/// A histogram as PostgreSQL writes an array of what [`Histogram::packed`] says.
pub(super) fn array(latency: &Histogram) -> String {
    let mut text = String::from("{");
    for (index, number) in latency.packed().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(itoa::Buffer::new().format(number));
    }
    text.push('}');
    text
}
