//! The bounds of a connection's cost: the time that it may dawdle, and the bytes of half-received requests
//! that a server holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Time between two looks of a connection whether it is idle. A request that is not there whole after two
/// looks ends the connection.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Looks without a request after which a connection is idle for too long: five minutes.
const IDLE_LOOKS_MAX: u32 = 30;
/// Bytes of bodies that arrive in pieces, over all connections of one server. Full: the next such request is
/// refused.
const BUDGET_BYTES: usize = 128 << 20;
/// Calls of one HTTP/2 connection that its client may give up before they are taken up. With more of them the
/// connection is closed, and with it every other call of the gateway: clients that leave early must not bring
/// that about. The library keeps a record and the head of each, about 2 KiB of a gateway's call, so 32 MiB at
/// most; and only until the calls are taken up, with the next turn of the connection.
pub(super) const GIVEN_UP_MAX: usize = 16_384;
/// Time that a connection that makes room for another may take to end.
pub(super) const END_WITHIN: Duration = Duration::from_secs(1);

/// The progress of a connection, by which an idle one is told. One look every [`LOOK_EVERY`] costs less than
/// a timer for each request.
///
/// Touched from one task only; atomics because that task moves between threads.
#[derive(Debug, Default)]
pub(super) struct IdleDetection {
    /// Requests that this connection has read whole since it was accepted; wraps at 2^32.
    whole: AtomicU32,
    /// Requests whose answers are under way; a connection that has any is not idle.
    answering: AtomicU32,
    /// Requests whose head is there, and whose answer is not.
    asked: AtomicU32,
    /// Bytes received since the connection began, modulo 2^32.
    received: AtomicU32,
    /// `received` when the last request was whole.
    at_whole: AtomicU32,
    /// The next answer is the last.
    closing: AtomicBool,
    /// A head that is arriving says how long its body is.
    says_length: AtomicBool,
    /// A request was answered whose body nobody has read.
    leaves_body: AtomicBool,
}

/// The state that the look before this one saw.
#[derive(Debug, Default)]
pub(super) struct Looks {
    whole: u32,
    partial: bool,
    idle: u32,
}

/// A request until its answer is made.
#[derive(Debug)]
pub(super) struct Asked(Arc<IdleDetection>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked.fetch_sub(1, Ordering::Relaxed);
    }
}

impl IdleDetection {
    /// Bytes have arrived.
    pub(super) fn received(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if any bytes have arrived.
    pub(super) fn has_received(&self) -> bool {
        self.received.load(Ordering::Relaxed) > 0
    }

    /// A head is there. Its answer is made when what this returns is dropped.
    pub(super) fn asks(self: &Arc<Self>) -> Asked {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Asked(Arc::clone(self))
    }

    /// True if an answer is still to be made.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > 0
    }

    /// A request is there, head and body.
    pub(super) fn request_is_whole(&self) {
        self.whole.fetch_add(1, Ordering::Relaxed);
        self.answering.fetch_add(1, Ordering::Relaxed);
        self.at_whole.store(self.received.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Looks for a length in what has arrived: the library forgets it where a body is sent in chunks as well.
    pub(super) fn look_for_length(&self, received: &[u8]) {
        const NAME: &[u8] = b"content-length";
        let says = |line: &[u8]| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME));
        if received.split(|byte| *byte == b'\n').any(says) {
            self.says_length.store(true, Ordering::Relaxed);
        }
    }

    /// True if the head that has arrived says how long its body is.
    pub(super) fn says_length(&self) -> bool {
        self.says_length.load(Ordering::Relaxed)
    }

    /// A request is answered, and its body is not read: what follows on the connection may be that body.
    pub(super) fn leave_body(&self) {
        self.leaves_body.store(true, Ordering::Relaxed);
    }

    /// True if a body was left unread.
    pub(super) fn has_left_body(&self) -> bool {
        self.leaves_body.load(Ordering::Relaxed)
    }

    /// From now on each answer is the last of the connection.
    pub(super) fn close_after_answer(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// True if the next answer is the last.
    pub(super) fn closes_after_answer(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Its answer is ready to be sent.
    pub(super) fn answered(&self) {
        self.says_length.store(false, Ordering::Relaxed);
        self.answering.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if the connection should be closed: a request has been arriving since before the last look, or
    /// none has come for too long.
    pub(super) fn stuck(&self, looks: &mut Looks) -> bool {
        let whole = self.whole.load(Ordering::Relaxed);
        let partial = self.received.load(Ordering::Relaxed) != self.at_whole.load(Ordering::Relaxed);
        let progress = whole != looks.whole || self.answering.load(Ordering::Relaxed) > 0;
        let dawdles = partial && looks.partial && !progress;
        looks.idle = if progress { 0 } else { looks.idle.saturating_add(1) };
        looks.whole = whole;
        looks.partial = partial;
        dawdles || looks.idle > IDLE_LOOKS_MAX
    }
}

/// Room for bodies that arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct Budget(Arc<AtomicUsize>);

/// Bytes taken from a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    server: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    /// Nothing yet.
    pub(super) fn hold(&self) -> Held {
        Held { server: Arc::clone(&self.0), bytes: 0 }
    }
}

impl Held {
    /// Returns how many it holds.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds so many instead of what it held; `false` if the server has no room for more.
    pub(super) fn resize(&mut self, bytes: usize) -> bool {
        if let Some(fewer) = self.bytes.checked_sub(bytes) {
            self.server.fetch_sub(fewer, Ordering::Relaxed);
            self.bytes = bytes;
            return true;
        }
        self.grow(bytes - self.bytes)
    }

    /// Takes more; `false` if the server has no room.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let before = self.server.fetch_add(bytes, Ordering::Relaxed);
        self.bytes = self.bytes.saturating_add(bytes);
        before.saturating_add(bytes) <= BUDGET_BYTES
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.server.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_arrives_in_drops_ends_its_connection_at_the_second_look() {
        let (idle, mut looks) = (IdleDetection::default(), Looks::default());
        idle.received(10);
        assert!(!idle.stuck(&mut looks));
        idle.received(1);
        assert!(idle.stuck(&mut looks));
    }

    #[test]
    fn a_connection_that_gets_on_is_left_alone() {
        let (idle, mut looks) = (IdleDetection::default(), Looks::default());
        for _ in 0..100 {
            idle.received(10);
            idle.request_is_whole();
            idle.answered();
            idle.received(3);
            assert!(!idle.stuck(&mut looks));
        }
    }

    #[test]
    fn an_answer_that_takes_long_is_waited_for() {
        let (idle, mut looks) = (IdleDetection::default(), Looks::default());
        idle.received(10);
        idle.request_is_whole();
        assert!((0..100).all(|_| !idle.stuck(&mut looks)));
    }

    #[test]
    fn an_idle_connection_is_kept_for_five_minutes() {
        let (idle, mut looks) = (IdleDetection::default(), Looks::default());
        let kept = (0..1_000).take_while(|_| !idle.stuck(&mut looks)).count();
        assert_eq!(LOOK_EVERY * u32::try_from(kept).unwrap(), Duration::from_secs(300));
    }

    #[test]
    fn a_budget_is_bounded_and_given_back() {
        let budget = Budget::default();
        let mut held = budget.hold();
        assert!(held.grow(BUDGET_BYTES));
        assert!(!budget.hold().grow(1));
        drop(held);
        assert!(budget.hold().grow(1));
    }
}
