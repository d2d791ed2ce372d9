//! The address on which a server listens.

use std::net::SocketAddr;

use crate::api::Listener;

/// The address on which a server listens.
pub(super) struct Bound {
    /// `None`: a socket in the file system.
    pub(super) address: Option<SocketAddr>,
    pub(super) text: String,
}

impl Bound {
    pub(super) fn of(listener: &Listener) -> Self {
        Self { address: listener.local_addr(), text: listener.to_string() }
    }
}
