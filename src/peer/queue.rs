//! Messages waiting for one peer: bounded, and full it forgets the oldest, since a newer message carries its
//! sum.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// Messages that wait for a peer. Full: the oldest is dropped and counted.
pub const PEER_QUEUE_LEN_MAX: usize = 256;

/// A queue that never makes its writers wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Bytes>>,
    ready: Notify,
}

impl Queue {
    /// Appends; returns how many older messages had to go.
    pub(super) fn push(&self, message: Bytes) -> usize {
        let dropped = {
            let mut waiting = self.lock();
            waiting.push_back(message);
            shorten(&mut waiting, PEER_QUEUE_LEN_MAX)
        };
        self.ready.notify_one();
        dropped
    }

    /// Takes the oldest, waiting for one if need be. Cancelling loses nothing.
    pub(super) async fn pop(&self) -> Bytes {
        loop {
            if let Some(message) = self.lock().pop_front() {
                return message;
            }
            self.ready.notified().await;
        }
    }

    /// Forgets all but the newest few; returns how many went.
    pub(super) fn keep_newest(&self, count: usize) -> usize {
        shorten(&mut self.lock(), count)
    }

    /// Returns how many wait.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shorten(waiting: &mut VecDeque<Bytes>, len: usize) -> usize {
    let excess = waiting.len().saturating_sub(len);
    waiting.drain(..excess);
    excess
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_forgets_the_oldest() {
        let queue = Queue::default();
        let dropped: usize =
            (0..=PEER_QUEUE_LEN_MAX).map(|nth| queue.push(vec![u8::from(nth == 1)].into())).sum();
        assert_eq!((dropped, queue.len()), (1, PEER_QUEUE_LEN_MAX));
        assert_eq!(queue.pop().await, Bytes::from_static(&[1]));
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let queue = std::sync::Arc::new(Queue::default());
        let waiting = tokio::spawn({
            let queue = std::sync::Arc::clone(&queue);
            async move { queue.pop().await }
        });
        tokio::task::yield_now().await;
        queue.push(Bytes::from_static(b"x"));
        assert_eq!(waiting.await.unwrap(), Bytes::from_static(b"x"));
    }
}
