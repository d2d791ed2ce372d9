//! Everything between daemons on the network: who is there, and what is said.
//!
//! * One QUIC endpoint on one UDP socket dials and accepts; mutual TLS against the cluster's own authority
//!   keeps everybody else out ([`tls`]), and a node is who its certificate says ([`identity`]).
//! * Both sides of a connection agree on one wire version in its handshake (`negotiation`): the newest that
//!   they share, so that daemons of two neighbouring versions count together.
//! * Membership is gossiped by `chitchat` on the same connections; counts travel as [`codec`] frames beside
//!   it.
//! * Each node dials every other one and sends only on what it dialled: two directions, two owners, no
//!   agreement needed.
//! * Nothing here decides: a frame that is lost, late or refused costs accuracy, never an answer.
//!
//! [`Peers`] is the handle. Telemetry reads [`counters::Counters`]; nothing here names a metric.

pub mod certificate;
pub mod codec;
pub mod counters;
pub mod identity;
pub mod operator;
pub mod present;
pub mod renewal;
pub mod revocation;
pub mod tls;

mod chitchat;
#[cfg(feature = "fuzzing")]
pub mod fuzzed {
    //! Entry points for the targets in `fuzz/`, which write what members write. There only with the feature
    //! `fuzzing`.

    /// A message of membership.
    pub fn chitchat(message: &[u8]) {
        super::chitchat::fuzzed(message);
    }
}
mod congestion;
mod contacts;
mod endpoint;
mod inbound;
mod join;
mod link;
mod links;
mod membership;
mod negotiation;
mod offset;
mod peers;
mod queue;
mod rights;
mod rules;
mod socket;
mod strangers;
pub mod sync;
mod trust;

pub use endpoint::Refuser;
pub use endpoint::Wire;
pub use link::LinkStatus;
pub use membership::Member;
pub use peers::{
    EVENTS_LEN_MAX, GOSSIP_INTERVAL_DEFAULT, PeerEvent, Peers, PeersConfig, StartError, TrustChanges,
};
pub use queue::PEER_QUEUE_LEN_MAX;
pub use rules::{FetchError, RULES_BYTES_MAX, RulesStatement};
pub use tls::{CertificateDates, TlsError, TlsPem};
