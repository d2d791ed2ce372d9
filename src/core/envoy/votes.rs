//! The outcome of the descriptors of one call together.

use serde_json::{Map, Value};

/// The vote of one descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    /// True if the descriptor is over its limit.
    pub over: bool,
    /// Weight of the vote: it denies by itself, with other quotas, or not at all.
    pub kind: VoteKind,
}

/// The weight of a descriptor among the others of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteKind {
    /// It denies by itself.
    Ordinary,
    /// It denies together with all other quotas.
    Quota,
    /// Not at all.
    Absent,
}

/// Returns whether a call is denied: an ordinary limit is over, or there are quotas and all of them are.
#[must_use]
pub fn is_over(votes: impl IntoIterator<Item = Vote>) -> bool {
    let (mut ordinary, mut quotas, mut left) = (false, false, false);
    for Vote { over, kind } in votes {
        match kind {
            VoteKind::Ordinary => ordinary |= over,
            VoteKind::Quota => {
                quotas = true;
                left |= !over;
            }
            VoteKind::Absent => {}
        }
    }
    ordinary || (quotas && !left)
}

/// Adds what `other` says to `into`: tables are merged, and of all else what is there first stays.
pub fn merge_metadata(into: &mut Map<String, Value>, other: &Map<String, Value>) {
    for (key, value) in other {
        match (into.get_mut(key), value) {
            (Some(Value::Object(own)), Value::Object(other)) => merge_metadata(own, other),
            (Some(_), _) => {}
            (None, value) => drop(into.insert(key.clone(), value.clone())),
        }
    }
}
