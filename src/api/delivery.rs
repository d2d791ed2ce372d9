//! Places and permits that an answer gives, until its client has the answer.
//!
//! A client that resets its call, lets it time out or closes its connection before it has the answer never
//! gives back what it does not know of: nobody else could use it until its hold ends. So whatever an answer
//! gives is given back where the answer was not delivered. The client may leave at the instant of the answer.
//! Over HTTP/2 its reset then comes after it. Over TCP the client's system resets the connection when the
//! answer reaches a socket that is closed, or is closed with the answer unread.

use std::collections::VecDeque;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::listener::Socket;
use crate::core::decision::Decision;
use crate::core::hold::{HELD_RULES_MAX, HoldStep, Lease};
use crate::core::reservation::Reservation;
use crate::engine::Engine;
use crate::engine::clock::Deadline;

/// Time after an answer in which a reset of its call may come that was sent before the answer came. Beyond it
/// the client has the answer.
const RESET_WITHIN: Duration = Duration::from_secs(10);
/// Time after an answer in which the end of its connection may mean that it was not delivered.
const LOST_WITHIN: Duration = Duration::from_secs(2);
/// Time that the end of a connection that was just answered waits for the reset that says so.
const END_WITHIN: Duration = Duration::from_millis(250);
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
    /// True if there ever was one: connections that give nothing pay this look alone.
    gives: AtomicBool,
    table: Mutex<DeliveryTable>,
}

#[derive(Default)]
struct DeliveryTable {
    answers: VecDeque<GivenAnswer>,
    /// Calls that were reset before they were answered, the newest last.
    reset: VecDeque<u32>,
}

struct GivenAnswer {
    call: u32,
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

    /// The next bytes of a connection are the answer to this call. False where it was reset meanwhile: then
    /// there is nothing to be sent.
    pub(super) fn answers(&self, call: u32, mut undelivered: Undelivered) -> bool {
        let mut table = self.table();
        if table.reset.contains(&call) {
            return false;
        }
        let Some(given) = undelivered.given.take() else { return true };
        self.gives.store(true, Ordering::Release);
        table.answers.retain(|answered| !answered.open.left().is_zero());
        if table.answers.len() >= ANSWERS_MAX {
            table.answers.pop_front();
        }
        table.answers.push_back(GivenAnswer { call, open: Deadline::after(RESET_WITHIN), given });
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

    /// The client goes on after its answers, so it has them.
    pub(super) fn go_on(&self) {
        if self.gives.load(Ordering::Acquire) {
            self.table().answers.clear();
        }
    }

    /// The connection broke, or its client reads nothing: what was just answered was not delivered.
    pub(super) fn lost(&self) {
        if !self.gives.load(Ordering::Acquire) {
            return;
        }
        for answered in std::mem::take(&mut self.table().answers) {
            if answered.is_recent() {
                self.give_back(answered.given);
            }
        }
    }

    /// True if the end of the connection may mean that an answer was not delivered.
    fn is_waiting(&self) -> bool {
        self.gives.load(Ordering::Acquire) && self.table().answers.iter().any(GivenAnswer::is_recent)
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
    fn is_recent(&self) -> bool {
        self.open.left() + LOST_WITHIN > RESET_WITHIN
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(given) = self.given.take() {
            self.deliveries.give_back(given);
        }
    }
}

/// Finds out, when a connection ends, whether its client still reads, and has what it was just answered.
#[derive(Default)]
pub(super) struct ConnectionEnd {
    /// The wait for the answer to a client that may have closed its own half alone.
    answer: Option<Pin<Box<Sleep>>>,
    /// The wait for the reset by a client that did not take its answer.
    reset: Option<Pin<Box<Sleep>>>,
}

impl ConnectionEnd {
    /// Looks at what a read of the socket came to. The end is passed on only when it is known what it means.
    /// `is_asked`: an answer is still to be made.
    pub(super) fn poll_read(
        &mut self,
        read: Poll<io::Result<()>>,
        bytes: usize,
        (socket, deliveries): (&Socket, &Deliveries),
        is_asked: bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match read {
            Poll::Ready(Ok(())) if bytes > 0 => read,
            // Who has asked all may close its own half, and reads on. The library would drop the answer, and
            // those that wait before it. Whoever left for good is noticed a moment later.
            Poll::Ready(Ok(())) if is_asked => {
                let wait = self.answer.get_or_insert_with(|| Box::pin(tokio::time::sleep(END_WITHIN)));
                ready!(wait.as_mut().poll(cx));
                read
            }
            Poll::Ready(Ok(())) if self.reset.is_some() || deliveries.is_waiting() => {
                let wait = self.reset.get_or_insert_with(|| Box::pin(tokio::time::sleep(END_WITHIN)));
                // Asking forgets what it answers.
                let broken = socket.is_broken() || {
                    ready!(wait.as_mut().poll(cx));
                    socket.is_broken()
                };
                if broken {
                    deliveries.lost();
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => {
                deliveries.lost();
                read
            }
            _ => read,
        }
    }
}
