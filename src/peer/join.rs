//! The addresses to join through: names are resolved again and again, since what they mean may change.

use std::collections::{BTreeMap, BTreeSet};
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
/// Names that did not resolve are tried again sooner.
const FAILED_AGAIN: Duration = Duration::from_secs(2);

/// Splits what the operator wrote into addresses and names.
pub(super) fn split(join: &[String]) -> (BTreeSet<SocketAddr>, Vec<String>) {
    let addresses = join.iter().filter_map(|text| text.parse().ok()).collect();
    let names = join.iter().filter(|text| text.parse::<SocketAddr>().is_err()).cloned().collect();
    (addresses, names)
}

/// Resolves names for ever, also those that are wanted later. A name that cannot be resolved keeps the
/// addresses it had.
pub(super) async fn resolve(
    mut wanted: watch::Receiver<Vec<String>>,
    resolved: Arc<watch::Sender<BTreeSet<SocketAddr>>>,
) {
    let mut meant: BTreeMap<String, Vec<SocketAddr>> = BTreeMap::new();
    let mut told: BTreeSet<String> = BTreeSet::new();
    loop {
        let (addresses, names) = split(&wanted.borrow_and_update());
        meant.retain(|name, _| names.contains(name));
        told.retain(|name| names.contains(name));
        let mut wait = RESOLVED_AGAIN;
        for name in names {
            let Some((host, port)) =
                name.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)))
            else {
                continue;
            };
            match names::shared().addresses(host, RESOLVE_DEADLINE).await {
                Ok(found) => {
                    told.remove(&name);
                    let found = found.into_iter().map(|address| SocketAddr::new(address, port)).collect();
                    meant.insert(name, found);
                }
                Err(error) => {
                    wait = FAILED_AGAIN;
                    if !told.contains(&name) {
                        tracing::warn!(name, %error, "an address to join through cannot be used; trying on");
                        told.insert(name);
                    }
                }
            }
        }
        let all = addresses.iter().chain(meant.values().flatten()).copied().collect();
        resolved.send_if_modified(|before| {
            let changed = *before != all;
            *before = all;
            changed
        });
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(wait), if !meant.is_empty() || !told.is_empty() => {}
        }
    }
}
