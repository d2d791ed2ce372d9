//! Proofs that a gateway has read what one connection sent: PINGs of HTTP/2 and their answers.
//!
//! A stream that has sent an assignment asks for a PING. The connection sends it once the bytes before it
//! are written, so that its answer says that they were read. Answers and reports come in one order too: a
//! report that arrives after an answer was written after its PING was sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use h2::{Ping, PingPong};
use tokio::sync::watch;

use super::super::super::unsent_bytes::Unsent;
use crate::core::time::Timestamp;
use crate::engine::Engine;

/// The newest answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api::rls) struct Receipt {
    /// When its PING was sent.
    pub(super) pinged: Timestamp,
    /// When it came.
    pub(super) known: Timestamp,
}

/// The receipts of one connection.
#[derive(Debug)]
pub(in crate::api::rls) struct Receipts {
    is_used: AtomicBool,
    is_wanted: AtomicBool,
    connection: AtomicWaker,
    newest: watch::Sender<Option<Receipt>>,
}

/// The PINGs of one connection.
pub(in crate::api::rls) struct Pings<'a> {
    pub(in crate::api::rls) pings: &'a mut PingPong,
    /// When the one for a receipt was sent that is on its way.
    pub(in crate::api::rls) pinged: &'a mut Option<Timestamp>,
    /// True while one of another kind is.
    pub(in crate::api::rls) looks: &'a mut bool,
}

impl Default for Receipts {
    fn default() -> Self {
        Self {
            is_used: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            connection: AtomicWaker::new(),
            newest: watch::Sender::new(None),
        }
    }
}

impl Receipts {
    /// A stream of this connection wants receipts from now on.
    pub(super) fn follow(&self) -> watch::Receiver<Option<Receipt>> {
        self.newest.subscribe()
    }

    /// The connection is asked for receipts from now on.
    pub(in crate::api::rls) fn begin(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Asks for the receipt of everything that was given to the connection before.
    pub(super) fn want(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        self.connection.wake();
    }

    /// Sends and receives PINGs. Ready where one was begun, which the connection has to write.
    pub(in crate::api::rls) fn poll(
        &self,
        pings: Pings<'_>,
        engine: &Engine,
        unsent: &Unsent,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Pings { pings, pinged, looks } = pings;
        if !self.is_used.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        self.connection.register(cx.waker());
        if let Some(sent) = *pinged {
            match pings.poll_pong(cx) {
                Poll::Ready(Ok(_)) => {
                    *pinged = None;
                    let receipt = Receipt { pinged: sent, known: engine.now() };
                    self.newest.send_replace(Some(receipt));
                }
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            }
        }
        if !self.is_wanted.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        // The time before the look: what is given to the connection after it is not covered.
        let now = engine.now();
        if !unsent.is_empty() {
            self.is_wanted.store(true, Ordering::SeqCst);
            return Poll::Pending;
        }
        let mut begun = pings.send_ping(Ping::opaque()).is_ok();
        // One of another kind may be on its way, whose answer says only that somebody is there.
        if !begun && pings.poll_pong(cx).is_ready() {
            *looks = false;
            begun = pings.send_ping(Ping::opaque()).is_ok();
        }
        if !begun {
            self.is_wanted.store(true, Ordering::SeqCst);
            return Poll::Pending;
        }
        *pinged = Some(now);
        Poll::Ready(())
    }
}
