//! Mode `gossip`: counters that merge, budgets that add up, what to tell whom and when.
//!
//! A [`Replica`] is one daemon's side: a state machine that takes what happened (`handle_*`) and hands out
//! what to do (`poll_*`). It never waits, and a decision never waits for it: it only moves the
//! [`crate::algorithm::Allowance`] that the region's store enforces.

mod allocation;
mod bucket;
mod bucket_table;
mod common_cuts;
mod counts;
mod crowded;
mod delays;
mod first_share;
mod key_dictionary;
mod late_rules;
mod link;
mod listed;
mod missed_rules;
mod new_process;
mod own_key_ids;
mod own_limit;
mod partition;
mod plausibility;
mod receive;
mod refill;
mod replica;
mod replica_config;
mod retired;
mod safety;
mod settled;
mod shared_level;
mod status;
mod transmit;
pub mod uncertainty;

pub use bucket::UncertaintyCause;
pub use first_share::FirstShare;
pub use link::{BYTES_AT_ONCE, BYTES_PER_SECOND};
pub use replica::{LINKS_MAX, Replica, Tally};
pub use replica_config::{INTERVAL_DEFAULT, KEYS_MAX_DEFAULT, Policy, ReplicaConfig};
pub use safety::GossipSafety;
pub use status::{KeyStatus, PeerView, RegionStatus, STATUS_KEYS_MAX, Status};
pub use transmit::FRAME_BYTES_MAX;

#[cfg(test)]
mod tests;
