//! Answers that a client does not read: how many bytes of them one connection and one listener may hold.
//!
//! A connection counts its own bytes. It tells its listener only in steps, so that small answers, which are
//! sent at once, touch nothing that other connections use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use bytes::{Buf, Bytes};

/// Unsent bytes above which a connection's calls are not taken up any more until it has read some.
const CONNECTION_BYTES_MAX: usize = 1 << 20;
/// Unsent bytes of one listener, over all connections. Full: connections that have more than a step of their
/// own wait, and long answers are refused.
const LISTENER_BYTES_MAX: usize = 256 << 20;
/// The steps in which a connection tells its listener; less than that it keeps to itself.
const STEP_BYTES: usize = 32 << 10;
/// Looks at a connection that has sent nothing of what waits, after which it is closed. See
/// [`LOOK_EVERY`](super::connection::LOOK_EVERY).
const UNREAD_LOOKS_MAX: u32 = 2;

/// Unsent bytes of all connections of one listener.
#[derive(Debug, Default)]
pub(super) struct ListenerUnsent(Arc<AtomicUsize>);

impl ListenerUnsent {
    /// The count of one new connection.
    pub(super) fn connection(&self) -> Arc<Unsent> {
        Arc::new(Unsent {
            waiting: AtomicUsize::new(0),
            sent: AtomicU32::new(0),
            told: AtomicUsize::new(0),
            listener: Arc::clone(&self.0),
        })
    }
}

/// Unsent bytes of one connection.
#[derive(Debug)]
pub(super) struct Unsent {
    waiting: AtomicUsize,
    /// Bytes sent since the connection began, modulo 2^32.
    sent: AtomicU32,
    /// Bytes of `waiting` that the listener was told of.
    told: AtomicUsize,
    listener: Arc<AtomicUsize>,
}

/// The state that the look before this one saw.
#[derive(Debug, Default)]
pub(super) struct UnreadLooks {
    sent: u32,
    unread: u32,
}

impl Unsent {
    /// True if the connection has taken everything for sending.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// True if further calls may be taken up.
    pub(super) fn has_room(&self) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        waiting <= STEP_BYTES
            || (waiting < CONNECTION_BYTES_MAX && self.listener.load(Ordering::Relaxed) < LISTENER_BYTES_MAX)
    }

    /// True if an answer of so many bytes may be kept until it is read. Short ones always may.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        bytes <= STEP_BYTES
            || self.listener.load(Ordering::Relaxed).saturating_add(bytes) <= LISTENER_BYTES_MAX
    }

    /// True if the client has read nothing of what waits for two whole pauses between looks.
    pub(super) fn is_unread(&self, looks: &mut UnreadLooks) -> bool {
        let sent = self.sent.load(Ordering::Relaxed);
        let stands = self.waiting.load(Ordering::Relaxed) > 0 && sent == looks.sent;
        looks.unread = if stands { looks.unread.saturating_add(1) } else { 0 };
        looks.sent = sent;
        looks.unread > UNREAD_LOOKS_MAX
    }

    /// So many bytes wait to be sent.
    pub(super) fn add(&self, bytes: usize) {
        let waiting = self.waiting.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let told = self.told.load(Ordering::Relaxed);
        if waiting > told.saturating_add(STEP_BYTES)
            && self.told.compare_exchange(told, waiting, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.listener.fetch_add(waiting - told, Ordering::Relaxed);
        }
    }

    /// So many bytes were sent, some of which may not have been counted: heads are not.
    pub(super) fn sent(&self, bytes: usize) {
        self.remove(bytes.min(self.waiting.load(Ordering::Relaxed)));
    }

    /// Nothing waits any more.
    pub(super) fn all_sent(&self) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > 0 {
            self.remove(waiting);
        }
    }

    fn remove(&self, bytes: usize) {
        let waiting = self.waiting.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes);
        self.sent.fetch_add(u32::try_from(bytes).unwrap_or(u32::MAX), Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        if told > waiting.saturating_add(STEP_BYTES)
            && self.told.compare_exchange(told, waiting, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.listener.fetch_sub(told - waiting, Ordering::Relaxed);
        }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.listener.fetch_sub(self.told.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Bytes of an answer, counted until the connection has taken them for sending or lets them go.
#[derive(Debug)]
pub(super) struct CountedWriter {
    bytes: Bytes,
    of: Arc<Unsent>,
}

impl CountedWriter {
    /// These bytes wait to be sent.
    pub(super) fn new(bytes: Bytes, of: &Arc<Unsent>) -> Self {
        of.add(bytes.len());
        Self { bytes, of: Arc::clone(of) }
    }
}

impl Drop for CountedWriter {
    fn drop(&mut self) {
        self.of.remove(self.bytes.len());
    }
}

impl Buf for CountedWriter {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        let before = self.bytes.len();
        self.bytes.advance(count);
        self.of.remove(before - self.bytes.len());
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let taken = self.bytes.copy_to_bytes(len);
        self.of.remove(taken.len());
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(listener: &ListenerUnsent) -> usize {
        listener.0.load(Ordering::Relaxed)
    }

    #[test]
    fn what_is_sent_or_let_go_is_given_back_to_the_byte() {
        let listener = ListenerUnsent::default();
        let connection = listener.connection();
        let mut first = CountedWriter::new(Bytes::from(vec![0; 100_000]), &connection);
        let second = CountedWriter::new(Bytes::from(vec![0; 100_000]), &connection);
        assert_eq!(of(&listener), 200_000);
        first.advance(90_000);
        assert_eq!(first.copy_to_bytes(10_000).len(), 10_000);
        assert_eq!(first.remaining(), 0);
        assert!((100_000..=100_000 + STEP_BYTES).contains(&of(&listener)), "told in steps");
        drop((first, second));
        assert_eq!((connection.waiting.load(Ordering::Relaxed), of(&listener)), (0, 0));
    }

    #[test]
    fn small_answers_are_no_news_to_the_listener_and_a_closed_connection_leaves_nothing() {
        let listener = ListenerUnsent::default();
        let connection = listener.connection();
        let small = CountedWriter::new(Bytes::from(vec![0; STEP_BYTES]), &connection);
        assert_eq!(of(&listener), 0);
        let large = CountedWriter::new(Bytes::from(vec![0; STEP_BYTES]), &connection);
        assert_eq!(of(&listener), 2 * STEP_BYTES);
        drop((small, large, connection));
        assert_eq!(of(&listener), 0);
    }

    #[test]
    fn a_connection_that_reads_nothing_takes_up_nothing_and_one_that_reads_does() {
        let listener = ListenerUnsent::default();
        let (unread, read) = (listener.connection(), listener.connection());
        let answer = CountedWriter::new(Bytes::from(vec![0; CONNECTION_BYTES_MAX]), &unread);
        assert!(!unread.has_room() && read.has_room());
        drop(answer);
        assert!(unread.has_room());
    }

    #[test]
    fn a_full_listener_holds_only_those_to_it_who_have_filled_it() {
        let listener = ListenerUnsent::default();
        let (mut connections, mut answers) = (Vec::new(), Vec::new());
        while of(&listener) < LISTENER_BYTES_MAX {
            let connection = listener.connection();
            answers.push(CountedWriter::new(Bytes::from(vec![0; CONNECTION_BYTES_MAX / 2]), &connection));
            connections.push(connection);
        }
        assert!(connections.iter().all(|connection| !connection.has_room()));
        let other = listener.connection();
        assert!(other.has_room() && other.has_room_for(1_000) && !other.has_room_for(1_000_000));
    }

    #[test]
    fn two_pauses_without_reading_end_a_connection_and_any_byte_begins_them_anew() {
        let listener = ListenerUnsent::default();
        let connection = listener.connection();
        let mut looks = UnreadLooks::default();
        assert!((0..100).all(|_| !connection.is_unread(&mut looks)), "nothing waits");
        let mut answer = CountedWriter::new(Bytes::from_static(b"answer"), &connection);
        answer.advance(1);
        assert!(!connection.is_unread(&mut looks), "some of it was read since");
        assert!(!connection.is_unread(&mut looks) && !connection.is_unread(&mut looks));
        assert!(connection.is_unread(&mut looks));
        answer.advance(1);
        assert!(!connection.is_unread(&mut looks));
    }
}
