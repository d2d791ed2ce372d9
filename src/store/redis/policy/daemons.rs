//! The number of daemons that share this Redis, as far as peers and the registry tell.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The numbers by which shares of a limit are divided.
#[derive(Debug)]
pub(in crate::store::redis) struct Daemons {
    /// Daemons of this region that are alive, as its peers tell.
    peers: Arc<AtomicUsize>,
    /// The same as the registry in Redis last told.
    registered: AtomicUsize,
    /// Daemons among them that list other servers.
    apart: Mutex<Vec<String>>,
}

impl Daemons {
    pub(in crate::store::redis) fn new(peers: Arc<AtomicUsize>) -> Self {
        Self { peers, registered: AtomicUsize::new(1), apart: Mutex::default() }
    }

    /// Daemons that count together, this one included. The larger of the two numbers counts: to divide by too
    /// many is too strict, to divide by too few admits more than the limit.
    pub(in crate::store::redis) fn count(&self) -> u32 {
        let peers = self.peers.load(Ordering::Relaxed);
        let count = peers.max(self.registered.load(Ordering::Relaxed)).max(1);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Takes in what the registry tells: how many there are, and the names of those that list other servers.
    pub(in crate::store::redis) fn registered(&self, count: usize, apart: Vec<String>) {
        let before = self.registered.swap(count.max(1), Ordering::Relaxed);
        if before != count {
            tracing::info!(daemons = count, "daemons that share this redis");
        }
        let mut known = self.apart.lock().unwrap_or_else(PoisonError::into_inner);
        if apart.is_empty() != known.is_empty() {
            match listed_apart(&apart) {
                Some(sentence) => tracing::warn!("{sentence}"),
                None => tracing::info!("all daemons of the ring list the same servers again"),
            }
        }
        *known = apart;
    }

    /// The names of those that list other servers of the ring.
    pub(in crate::store::redis) fn apart(&self) -> Vec<String> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns what is wrong where daemons list other servers.
pub(in crate::store::redis) fn listed_apart(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| {
        format!(
            "store.redis.nodes of {} differs from this daemon's: the ring then places some keys on other servers, where limits are counted anew; list the same servers everywhere",
            names.join(", ")
        )
    })
}
