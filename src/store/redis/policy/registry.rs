//! The daemons that share this Redis: each notes every few seconds in the same Redis that it is alive, and
//! reads who else is.
//!
//! So they know of each other with or without peers, and `local` divides limits by their number. The number
//! last read holds while Redis is away. On a ring each notes itself on every server that it lists, so that
//! daemons with other lists meet it on those that both list.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::engine::clock::Deadline;
use crate::store::redis::batch::scripts::REGISTRY;
use crate::store::redis::client::breaker::Phase;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::slots::slot_of_tag;
use crate::store::redis::policy::daemons::Daemons;
use crate::store::redis::servers::dispatcher::Dispatcher;
use crate::store::redis::settings::Topology;

/// Time between two notes of a daemon.
pub(in crate::store::redis) const BEAT: Duration = Duration::from_secs(2);
/// Time for which a note holds.
const HOLDS: Duration = Duration::from_secs(10);
/// For one call.
const CALL_MAX: Duration = Duration::from_millis(500);
/// A daemon that is not read of counts for so many readings more: a server that lost its memory forgets all
/// of them at once.
const ABSENT_MAX: u32 = 3;
/// Daemons remembered.
const DAEMONS_MAX: usize = 10_000;
const TAG: &str = "daemons";

/// This daemon's view of those that share its Redis.
#[derive(Debug)]
pub(in crate::store::redis) struct Registry {
    /// Number, name and digest, as they are noted.
    note: String,
    daemons: Arc<Daemons>,
    /// Every daemon known, and for how many readings it has been missing.
    known: Mutex<BTreeMap<String, u32>>,
}

impl Registry {
    /// A registry for the daemon of this name. In a ring, `addresses` are the servers that it lists.
    pub(in crate::store::redis) fn new(
        name: &str,
        topology: Topology,
        addresses: &[String],
        daemons: Arc<Daemons>,
    ) -> Self {
        // Random, so that two daemons of one name are two.
        let number = std::hash::RandomState::new().build_hasher().finish();
        let name = if name.is_empty() { "-" } else { name };
        let digest = if topology == Topology::Ring { digest(addresses) } else { "-".to_owned() };
        Self { note: format!("{number:016x} {name} {digest}"), daemons, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes this daemon, and takes in who else is there. Nothing changes where no server answers.
    pub(in crate::store::redis) async fn beat(&self, dispatcher: &Arc<Dispatcher>) {
        let holds = u64::try_from(HOLDS.as_millis()).unwrap_or(u64::MAX);
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&REGISTRY.text).arg(1).arg(key()).arg(&self.note).arg(holds);
        let mut read: Option<BTreeSet<String>> = None;
        for answer in each(dispatcher, &command).await {
            if let Ok(Value::Array(notes)) = answer {
                let notes = notes.into_iter().filter_map(|note| match note {
                    Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
                    _ => None,
                });
                read.get_or_insert_default().extend(notes);
            }
        }
        if let Some(read) = read {
            self.take_in(read);
        }
    }

    /// Takes this daemon's note away.
    pub(in crate::store::redis) async fn leave(&self, dispatcher: &Arc<Dispatcher>) {
        let mut command = Cmd::new();
        command.arg("ZREM").arg(key()).arg(&self.note);
        each(dispatcher, &command).await;
    }

    fn take_in(&self, read: BTreeSet<String>) {
        let mut known = self.known();
        for (note, missing) in known.iter_mut() {
            *missing = if read.contains(note) { 0 } else { *missing + 1 };
        }
        known.retain(|_, missing| *missing <= ABSENT_MAX);
        for note in read {
            if known.len() < DAEMONS_MAX {
                known.entry(note).or_insert(0);
            }
        }
        let own = self.note.rsplit(' ').next();
        let others = known.keys().filter(|note| note.rsplit(' ').next() != own);
        let apart: Vec<String> = others.filter_map(|note| Some(note.split(' ').nth(1)?.to_owned())).collect();
        self.daemons.registered(known.len(), apart);
    }
}

fn key() -> String {
    format!("tg:{{{TAG}}}")
}

/// Sends a command to each server that keeps a registry: the one, all of a ring, or the one that serves its
/// slot.
async fn each(dispatcher: &Arc<Dispatcher>, command: &Cmd) -> Vec<Result<Value, Failure>> {
    let map = Arc::clone(&dispatcher.places().map());
    if dispatcher.places().topology() == Topology::Cluster {
        let slot = slot_of_tag(TAG.as_bytes());
        let answers = map.node(slot).is_some_and(|node| node.phase() == Phase::Closed);
        return if answers {
            vec![dispatcher.plain(command, slot, Deadline::after(CALL_MAX)).await]
        } else {
            Vec::new()
        };
    }
    let asked = map.nodes().iter().map(|node| node.upkeep(command, CALL_MAX));
    futures_util::future::join_all(asked).await
}

/// A digest of a ring's servers, whatever their order; the same in every daemon (FNV-1a).
fn digest(addresses: &[String]) -> String {
    let mut sorted: Vec<&str> = addresses.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", sorted.join(",").bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn registry() -> Registry {
        let daemons = Arc::new(Daemons::new(Arc::new(AtomicUsize::new(1))));
        Registry::new("eu-1", Topology::Ring, &["a:1".to_owned(), "b:2".to_owned()], daemons)
    }

    #[test]
    fn a_daemon_that_is_missing_once_still_counts_and_one_that_stays_away_does_not() {
        let registry = registry();
        let digest = digest(&["b:2".to_owned(), "a:1".to_owned()]);
        let own = registry.note.clone();
        let both = || BTreeSet::from([own.clone(), format!("1 eu-2 {digest}")]);
        registry.take_in(both());
        assert_eq!(registry.daemons.count(), 2);
        for _ in 0..ABSENT_MAX {
            registry.take_in(BTreeSet::from([own.clone()]));
            assert_eq!(registry.daemons.count(), 2);
        }
        registry.take_in(BTreeSet::from([own.clone()]));
        assert_eq!(registry.daemons.count(), 1);
        assert_eq!(registry.daemons.apart(), [""; 0], "the order of a list does not matter");
    }

    #[test]
    fn a_daemon_with_another_list_of_servers_is_named() {
        let registry = registry();
        registry.take_in(BTreeSet::from([registry.note.clone(), "1 eu-2 0123".to_owned()]));
        assert_eq!(registry.daemons.apart(), ["eu-2"]);
    }
}
