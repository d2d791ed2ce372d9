//! Which replication epochs of the servers this daemon has seen, and since when.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Epochs remembered: more than a region has servers. The oldest makes way; forgotten, it is looked up again.
const EPOCHS_MAX: usize = 32;
/// A replication id, since when it lasts, and the mark of the server's memory.
pub(in crate::store::redis) const EPOCH_BYTES: usize = 55;
/// Where the mark begins.
const MARK_AT: usize = 47;
/// The replication id alone.
pub(in crate::store::redis) const ID_BYTES: usize = 40;

/// The replication epochs that were seen.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct ReplicationEpochs(Mutex<Vec<u8>>);

impl ReplicationEpochs {
    fn known(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, as scripts read them.
    pub(in crate::store::redis) fn packed(&self) -> Vec<u8> {
        self.known().clone()
    }

    /// Remembers one, since when it was first seen.
    pub(in crate::store::redis) fn learn(&self, epoch: &[u8]) {
        if epoch.len() != EPOCH_BYTES {
            return;
        }
        let mut known = self.known();
        let same = |one: &[u8]| one.get(..ID_BYTES) == epoch.get(..ID_BYTES);
        match known.chunks_exact_mut(EPOCH_BYTES).find(|one| same(one)) {
            // A server that was flushed begins anew under the same id.
            Some(one) if epoch.get(MARK_AT..) != one.get(MARK_AT..) => one.copy_from_slice(epoch),
            // Whoever saw it first knows best: the bytes of the time sort like it.
            Some(one) if epoch.get(ID_BYTES..) < one.get(ID_BYTES..) => one.copy_from_slice(epoch),
            Some(_) => {}
            None => {
                if known.len() >= EPOCHS_MAX * EPOCH_BYTES {
                    known.drain(..EPOCH_BYTES);
                }
                known.extend_from_slice(epoch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::batch::bytes::push;

    fn epoch(id: char, begun: u64) -> Vec<u8> {
        marked(id, begun, 1)
    }

    fn marked(id: char, begun: u64, mark: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = std::iter::repeat_n(u8::try_from(id).unwrap(), ID_BYTES).collect();
        push(&mut bytes, begun, 7);
        push(&mut bytes, mark, 8);
        bytes
    }

    #[test]
    fn the_first_sight_of_a_replication_epoch_stands() {
        let epochs = ReplicationEpochs::default();
        for (id, begun) in [('a', 50), ('b', 70), ('a', 40), ('a', 60)] {
            epochs.learn(&epoch(id, begun));
        }
        assert_eq!(epochs.packed(), [epoch('a', 40), epoch('b', 70)].concat());
        epochs.learn(b"short");
        assert_eq!(epochs.packed().len(), 2 * EPOCH_BYTES);
    }

    #[test]
    fn a_server_that_was_flushed_begins_anew() {
        let epochs = ReplicationEpochs::default();
        for (begun, mark) in [(50, 1), (90, 2), (95, 2), (80, 2)] {
            epochs.learn(&marked('a', begun, mark));
        }
        assert_eq!(epochs.packed(), marked('a', 80, 2));
    }

    #[test]
    fn only_so_many_epochs_are_remembered() {
        let epochs = ReplicationEpochs::default();
        for n in 0..100_u8 {
            epochs.learn(&epoch(char::from(n + 20), 1));
        }
        assert_eq!(epochs.packed().len(), EPOCHS_MAX * EPOCH_BYTES);
    }
}
