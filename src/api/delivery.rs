//! Places and permits that an answer gives, until its client has the answer.
//!
//! A client that resets its call, lets it time out or closes its connection before it has the answer never
//! gives back what it does not know of: nobody else could use it until its hold ends. So whatever an answer
//! gives is given back where the answer was not delivered. The client may leave at the instant of the answer.
//! Over HTTP/2 its reset then comes after it. Over TCP the client's system resets the connection when the
//! answer reaches a socket that is closed, or is closed with the answer unread.
//!
//! Here it is decided, for every server, whether an answer was delivered. Servers say what they answer;
//! [`DeliveringSocket`](super::delivering_socket::DeliveringSocket) tells what becomes of the connection, and
//! [`WatchedFrames`](super::frames::WatchedFrames) which calls are reset.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::core::decision::Decision;
use crate::core::hold::{HELD_RULES_MAX, HoldStep, Lease};
use crate::core::reservation::Reservation;
use crate::engine::Engine;
use crate::engine::clock::Deadline;

/// Time after an answer in which a reset of its call may come that was sent before the answer came. Beyond it
/// the client has the answer.
const RESET_WITHIN: Duration = Duration::from_secs(10);
/// Time after an answer in which the end of its connection may mean that it was not delivered.
pub(super) const LOST_WITHIN: Duration = Duration::from_secs(2);
/// Answers of one connection that are remembered. Beyond that the oldest are taken to be delivered.
const ANSWERS_MAX: usize = 4_096;
/// Resets of one connection that are remembered until an answer that is on its way finds them.
const RESETS_MAX: usize = 256;

/// The places or permits that an answer gives.
#[derive(Debug)]
pub(super) enum Given {
    /// Places of `concurrency` rules.
    Places(Lease),
    /// Permits that are reserved.
    Reservation(Reservation),
}

impl Given {
    /// The places that a call's decisions acquired, as one lease; `None` if they acquired none. Places of
    /// more than [`HELD_RULES_MAX`] rules are free when their hold ends.
    pub(super) fn places(decisions: &[Decision]) -> Option<Lease> {
        let mut leased = decisions.iter().filter_map(|decision| decision.lease.as_deref());
        let mut lease = leased.next()?.lease.clone();
        for more in leased {
            let room = HELD_RULES_MAX.saturating_sub(lease.held.len());
            lease.held.extend(more.lease.held.iter().take(room).cloned());
        }
        Some(lease)
    }

    async fn give_back(self, engine: Arc<Engine>) {
        match self {
            Self::Places(lease) => drop(engine.step(&lease, HoldStep::Release).await),
            Self::Reservation(reservation) => drop(engine.commit(&reservation, 0).await),
        }
    }
}

/// The answers of one connection that gave something a moment ago.
pub(super) struct Deliveries {
    engine: Arc<Engine>,
    /// True if there may be one: connections that give nothing pay this look alone.
    gives: AtomicBool,
    table: Mutex<DeliveryTable>,
}

#[derive(Default)]
struct DeliveryTable {
    answers: VecDeque<GivenAnswer>,
    /// Calls that were reset before they were answered, the newest last.
    reset: VecDeque<u32>,
    /// Nothing is sent any more.
    closed: bool,
}

struct GivenAnswer {
    /// The number of its stream; zero where answers have an order instead.
    call: u32,
    /// Where answers have an order: the bytes that its client had sent when this one was sent. Whoever sends
    /// more goes on after it, and so has it.
    sent: Option<u64>,
    /// Instant until which it may turn out that it was not delivered.
    open: Deadline,
    given: Given,
}

/// The places and permits of a call whose answer is still to be sent. Given back when dropped.
pub(super) struct Undelivered {
    deliveries: Arc<Deliveries>,
    given: Option<Given>,
}

impl Deliveries {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        let (gives, table) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { engine: Arc::clone(engine), gives, table })
    }

    /// Holds what a call is given until it is answered.
    pub(super) fn hold(self: &Arc<Self>, given: Given) -> Undelivered {
        Undelivered { deliveries: Arc::clone(self), given: Some(given) }
    }

    /// The next bytes of a connection are the answer to this call. False where the call was reset or the
    /// connection has ended meanwhile: then there is nothing to be sent.
    pub(super) fn answers(&self, call: u32, mut undelivered: Undelivered) -> bool {
        let mut table = self.table();
        if table.closed || table.reset.contains(&call) {
            return false;
        }
        let Some(given) = undelivered.given.take() else { return true };
        self.gives.store(true, Ordering::Release);
        while table.answers.front().is_some_and(|oldest| oldest.open.left().is_zero()) {
            table.answers.pop_front();
        }
        if table.answers.len() >= ANSWERS_MAX {
            table.answers.pop_front();
        }
        table.answers.push_back(GivenAnswer { call, sent: None, open: Deadline::after(RESET_WITHIN), given });
        true
    }

    /// The answer to this call could not be sent, or the client did not want it any more.
    pub(super) fn reset(&self, call: u32) {
        let mut table = self.table();
        let found = table.answers.iter().position(|answered| answered.call == call);
        match found.and_then(|place| table.answers.remove(place)) {
            Some(answered) => self.give_back(answered.given),
            None => {
                if table.reset.len() >= RESETS_MAX {
                    table.reset.pop_front();
                }
                table.reset.push_back(call);
            }
        }
    }

    /// All answers so far are about to be sent, in their order. `received`: the bytes that the client has
    /// sent before.
    pub(super) fn sent(&self, received: impl FnOnce() -> u64) {
        if !self.gives.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table();
        let mut unsent = table.answers.iter_mut().rev().take_while(|answer| answer.sent.is_none()).peekable();
        if unsent.peek().is_some() {
            let received = received();
            unsent.for_each(|answer| answer.sent = Some(received));
        }
    }

    /// The client has sent so many bytes by now. Whatever it sends after an answer says that it has it. What
    /// it had sent before, as one does that does not wait for its answers, says nothing.
    pub(super) fn received(&self, bytes: u64) {
        if !self.gives.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table();
        let has = |answer: &GivenAnswer| answer.sent.is_some_and(|sent| bytes > sent);
        while table.answers.front().is_some_and(has) {
            table.answers.pop_front();
        }
        self.gives.store(!table.answers.is_empty(), Ordering::Release);
    }

    /// The connection broke, or its client reads nothing: what was just answered was not delivered. One that
    /// breaks behind its end breaks because its client is gone by then, which had it.
    pub(super) fn lost(&self) {
        let mut table = self.table();
        if std::mem::replace(&mut table.closed, true) {
            return;
        }
        for answer in std::mem::take(&mut table.answers) {
            if answer.is_younger_than(LOST_WITHIN) {
                self.give_back(answer.given);
            }
        }
    }

    /// The client sends no more. True if the connection has ended with that; false if an answer is younger
    /// than this, so that it may turn out that it was not delivered.
    pub(super) fn ends(&self, age: Duration) -> bool {
        let mut table = self.table();
        table.closed = !table.answers.back().is_some_and(|newest| newest.is_younger_than(age));
        table.closed
    }

    /// True if it may still turn out that an answer was not delivered.
    pub(super) fn may_be_lost(&self) -> bool {
        let newest = |table: &DeliveryTable| table.answers.back().map(|it| it.is_younger_than(LOST_WITHIN));
        self.gives.load(Ordering::Acquire) && newest(&self.table()) == Some(true)
    }

    /// Nothing is sent any more. `in_order`: it is known which answers never were.
    pub(super) fn close(&self, in_order: bool) {
        let mut table = self.table();
        table.closed = true;
        while in_order && table.answers.back().is_some_and(|newest| newest.sent.is_none()) {
            if let Some(unsent) = table.answers.pop_back() {
                self.give_back(unsent.given);
            }
        }
    }

    fn give_back(&self, given: Given) {
        // Only at the very end of a daemon there is no runtime, and then nobody counts on.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(given.give_back(Arc::clone(&self.engine))));
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, DeliveryTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GivenAnswer {
    fn is_younger_than(&self, age: Duration) -> bool {
        self.open.left() + age > RESET_WITHIN
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(given) = self.given.take() {
            self.deliveries.give_back(given);
        }
    }
}
