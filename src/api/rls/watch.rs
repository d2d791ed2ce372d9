//! PINGs of a connection: whether its client is still there, and what it has read.

use std::task::{Context, Poll, Waker};

use h2::{Ping, PingPong};

use super::Line;
use super::quota::Pings;
use crate::core::time::Timestamp;

/// Watches whether there is still someone at the other end.
pub(super) struct Watch {
    pings: Option<PingPong>,
    pub(super) calls: usize,
    /// True if there ever was a call.
    pub(super) has_begun: bool,
    waiting: bool,
    /// When the PING of a receipt was sent that is on its way.
    pinged: Option<Timestamp>,
    /// The same at the look before.
    pinged_before: Option<Timestamp>,
}

impl Watch {
    pub(super) const fn new(pings: Option<PingPong>) -> Self {
        Self { pings, calls: 0, has_begun: false, waiting: false, pinged: None, pinged_before: None }
    }

    /// Ready where the PING of a receipt was begun.
    pub(super) fn poll_receipt(&mut self, line: &Line, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        let own = Pings { pings, pinged: &mut self.pinged, looks: &mut self.waiting };
        line.receipts.poll(own, &line.servers.engine, &line.way.unsent, cx)
    }

    /// One look: pings a connection without calls, and finds it silent if it has not answered by the next.
    pub(super) fn is_silent(&mut self) -> bool {
        let quiet = std::mem::take(&mut self.calls) == 0;
        if let Some(pinged) = self.pinged {
            return self.pinged_before.replace(pinged) == Some(pinged) && quiet;
        }
        let Some(pings) = &mut self.pings else { return false };
        let mut nobody = Context::from_waker(Waker::noop());
        if self.waiting && pings.poll_pong(&mut nobody).is_pending() {
            return quiet;
        }
        self.waiting = quiet && pings.send_ping(Ping::opaque()).is_ok();
        false
    }
}
