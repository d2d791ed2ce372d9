//! Mode `gossip`: counters that merge, budgets that add up, what to tell whom and when.
//!
//! A [`Replica`] is one daemon's side: a state machine that takes what happened (`handle_*`) and hands out what to do (`poll_*`). It
//! never waits, and a decision never waits for it: it only moves the [`crate::algorithm::Allowance`] that the region's store enforces.

mod bucket;
mod safety;
mod counts;
mod plausibility;
mod common_cuts;
mod first_share;
mod bucket_table;
mod key_dictionary;
mod link;
mod new_process;
mod own_limit;
mod partition;
mod allocation;
mod shared_level;
mod receive;
mod replica;
mod settled;
mod status;
mod transmit;
pub mod uncertainty;
mod own_key_ids;

pub use bucket::UncertaintyCause;
pub use safety::GossipSafety;
pub use first_share::FirstShare;
pub use link::{BYTES_AT_ONCE, BYTES_PER_SECOND};
pub use replica::{INTERVAL_DEFAULT, KEYS_MAX_DEFAULT, LINKS_MAX, Policy, Replica, ReplicaConfig, Tally};
pub use status::{KeyStatus, PeerView, RegionStatus, STATUS_KEYS_MAX, Status};
pub use transmit::FRAME_BYTES_MAX;

#[cfg(test)]
mod tests;
