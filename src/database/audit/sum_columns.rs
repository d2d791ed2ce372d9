//! The text of the columns that all tables of sums have.

use crate::core::audit::Histogram;

/// Permits of a row and of what is added to it. A row stops at [`crate::core::audit::usage::COST_MAX`] before
/// more is added, so that no row can make the adding of all others fail.
macro_rules! added_cost {
    () => {
        "least(1::bigint << 50, greatest(-(1::bigint << 50), own.cost)) + excluded.cost"
    };
}
pub(super) use added_cost;

/// A count as PostgreSQL has it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
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
