//! Everything between daemons on the network.

pub mod certificate;
pub mod codec;
pub mod counters;
pub mod identity;
