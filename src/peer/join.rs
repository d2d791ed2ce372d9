//! The addresses to join through: names are resolved again and again, since what they mean may change.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Longest time to resolve one name.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(2);
/// Names that resolved are resolved again after this long.
const RESOLVED_AGAIN: Duration = Duration::from_secs(30);
/// If one did not, sooner.
const FAILED_AGAIN: Duration = Duration::from_secs(2);
/// Most addresses taken from one name.
const ADDRESSES_MAX: usize = 16;

/// Splits what the operator wrote into addresses and names.
pub(super) fn split(join: &[String]) -> (BTreeSet<SocketAddr>, Vec<String>) {
    let addresses = join.iter().filter_map(|text| text.parse().ok()).collect();
    let names = join.iter().filter(|text| text.parse::<SocketAddr>().is_err()).cloned().collect();
    (addresses, names)
}

/// Resolves names for ever. A name that cannot be resolved keeps the addresses it had.
pub(super) async fn resolve(
    addresses: BTreeSet<SocketAddr>,
    names: Vec<String>,
    resolved: watch::Sender<BTreeSet<SocketAddr>>,
) {
    let mut meant: Vec<Vec<SocketAddr>> = vec![Vec::new(); names.len()];
    while !names.is_empty() {
        let mut wait = RESOLVED_AGAIN;
        for (name, meant) in names.iter().zip(&mut meant) {
            match timeout(RESOLVE_DEADLINE, lookup_host(name.as_str())).await {
                Ok(Ok(found)) => *meant = found.take(ADDRESSES_MAX).collect(),
                failed => {
                    let reason = failed.err().map_or("unknown or unreachable", |_| "no answer in time");
                    tracing::warn!(name, reason, "an address to join through cannot be resolved");
                    wait = FAILED_AGAIN;
                }
            }
        }
        let all = addresses.iter().chain(meant.iter().flatten()).copied().collect();
        resolved.send_if_modified(|before| {
            let changed = *before != all;
            *before = all;
            changed
        });
        sleep(wait).await;
    }
}
