//! Mode `gossip`: counters that merge, budgets that add up, what to tell whom and when.
//!
//! A [`Replica`] is one daemon's side: a state machine that takes what happened (`handle_*`) and hands out what to do (`poll_*`). It
//! never waits, and a decision never waits for it: it only moves the [`crate::algorithm::Allowance`] that the region's store enforces.

mod bucket;
mod care;
mod counts;
mod credit;
mod cut;
mod first;
mod keys;
mod labels;
mod link;
mod lives;
mod own;
mod partition;
mod parts;
mod pool;
mod receive;
mod replica;
mod settled;
mod status;
mod transmit;
pub mod uncertainty;
mod voice;

pub use bucket::UncertaintyCause;
pub use care::GossipSafety;
pub use first::FirstShare;
pub use link::{BYTES_AT_ONCE, BYTES_PER_SECOND};
pub use replica::{INTERVAL_DEFAULT, KEYS_MAX_DEFAULT, LINKS_MAX, Policy, Replica, ReplicaConfig, Tally};
pub use status::{KeyStatus, PeerView, RegionStatus, STATUS_KEYS_MAX, Status};
pub use transmit::FRAME_BYTES_MAX;

#[cfg(test)]
mod tests;
