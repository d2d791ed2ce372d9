//! The addresses to join through: names are resolved again and again, since what they mean may change.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::engine::names;

/// Longest time to resolve one name.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(2);
/// Names that resolved are resolved again after this long.
const RESOLVED_AGAIN: Duration = Duration::from_secs(30);
/// If one did not, sooner.
const FAILED_AGAIN: Duration = Duration::from_secs(2);

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
    resolved: Arc<watch::Sender<BTreeSet<SocketAddr>>>,
) {
    let mut meant: Vec<Vec<SocketAddr>> = vec![Vec::new(); names.len()];
    let mut told: BTreeSet<&str> = BTreeSet::new();
    while !names.is_empty() {
        let mut wait = RESOLVED_AGAIN;
        for (name, meant) in names.iter().zip(&mut meant) {
            let Some((host, port)) =
                name.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)))
            else {
                continue;
            };
            match names::shared().addresses(host, RESOLVE_DEADLINE).await {
                Ok(found) => {
                    *meant = found.into_iter().map(|address| SocketAddr::new(address, port)).collect();
                    told.remove(name.as_str());
                }
                Err(error) => {
                    wait = FAILED_AGAIN;
                    if told.insert(name) {
                        tracing::warn!(name, %error, "an address to join through cannot be used; trying on");
                    }
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
