//! One connection to a server. Commands leave in the order in which they were posted; replies come back in
//! that order.
//!
//! The task that posts also writes, straight to the socket, all that was posted since the last write: an idle
//! connection costs a decision no task, no timer and no second wait. One task reads, and hands each reply on
//! to whoever awaits it; one more writes what the socket did not take at once. Deadlines are kept by one
//! timer for all that is in flight.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use redis::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::engine::clock::Deadline;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::resp;

/// Commands without an answer on one connection. Full: no more are taken.
const IN_FLIGHT_MAX: usize = 8_192;
/// Room for what is read at once.
const READ_BYTES: usize = 64 * 1_024;

/// The one that awaits one reply.
pub(in crate::store::redis) trait Completion: Send {
    /// The reply, or why there is none. Never called while a lock is held.
    fn complete(self: Box<Self>, answer: Result<Value, Failure>);

    /// Gives up what has waited long enough, and says until when the rest waits; `None` if nothing does any
    /// more. Called under a lock, so it only leaves word.
    fn expire(&mut self, now: Deadline) -> Option<Deadline>;
}

/// Awaits a reply.
pub(in crate::store::redis) type Awaiting = Box<dyn Completion>;

/// One connection.
pub(in crate::store::redis) struct Link {
    out: Mutex<Out>,
    /// For writing at once; `None` where only a task can write, which TLS needs.
    socket: Option<OwnedWriteHalf>,
    /// Something is left to be written.
    backlog: Notify,
    /// Something is in flight and no timer runs.
    timer: Notify,
    closed: CancellationToken,
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    /// In the order of the commands; `None` for one that nobody awaits any more.
    in_flight: VecDeque<Option<Awaiting>>,
    timed: bool,
    closed: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

impl Link {
    /// A connection whose socket can be written by whoever posts.
    pub(in crate::store::redis) fn plain(socket: OwnedWriteHalf) -> Self {
        Self { socket: Some(socket), ..Self::tasked() }
    }

    /// A connection that only [`Self::write`] writes.
    pub(in crate::store::redis) fn tasked() -> Self {
        Self {
            out: Mutex::default(),
            socket: None,
            backlog: Notify::new(),
            timer: Notify::new(),
            closed: CancellationToken::new(),
        }
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a command in line, perhaps with some before it whose replies nobody awaits. Gives back what
    /// awaits the reply if the connection takes no more.
    pub(in crate::store::redis) fn post(
        &self,
        write: impl FnOnce(&mut Vec<u8>),
        unawaited: usize,
        awaiting: Awaiting,
    ) -> Result<(), Awaiting> {
        let mut out = self.out();
        if out.closed || out.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(awaiting);
        }
        write(&mut out.bytes);
        out.in_flight.extend((0..unawaited).map(|_| None));
        out.in_flight.push_back(Some(awaiting));
        if !std::mem::replace(&mut out.timed, true) {
            self.timer.notify_one();
        }
        Ok(())
    }

    /// Writes what was posted.
    pub(in crate::store::redis) fn flush(&self) {
        let mut out = self.out();
        match &self.socket {
            Some(socket) => match write_some(socket, &mut out.bytes) {
                Ok(true) => {}
                Ok(false) => self.backlog.notify_one(),
                // The reader finds that out too, and tells everybody.
                Err(_) => self.closed.cancel(),
            },
            None => self.backlog.notify_one(),
        }
    }

    /// Ends it: what is in flight is told that the connection broke.
    pub(in crate::store::redis) fn close(&self) {
        self.closed.cancel();
        let in_flight = {
            let mut out = self.out();
            out.closed = true;
            out.bytes = Vec::new();
            std::mem::take(&mut out.in_flight)
        };
        for awaiting in in_flight.into_iter().flatten() {
            awaiting.complete(Err(Failure::Broken("closed before the reply".to_owned())));
        }
    }

    /// Waits until it has ended.
    pub(in crate::store::redis) async fn ended(&self) {
        self.closed.cancelled().await;
    }

    /// Writes what a socket did not take at once, until the connection ends.
    pub(in crate::store::redis) async fn write_backlog(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = self.backlog.notified() => {}
            }
            let Some(socket) = &self.socket else { return };
            loop {
                tokio::select! {
                    biased;
                    () = self.closed.cancelled() => return,
                    ready = socket.writable() => if ready.is_err() { return self.closed.cancel() },
                }
                match write_some(socket, &mut self.out().bytes) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(_) => return self.closed.cancel(),
                }
            }
        }
    }

    /// Writes all that is posted, until the connection ends.
    pub(in crate::store::redis) async fn write(self: Arc<Self>, mut socket: impl AsyncWrite + Unpin) {
        loop {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = self.backlog.notified() => {}
            }
            let bytes = std::mem::take(&mut self.out().bytes);
            let write = async {
                socket.write_all(&bytes).await?;
                socket.flush().await
            };
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                written = write => if written.is_err() { return self.closed.cancel() },
            }
        }
    }

    /// Reads replies until the connection ends. `pace` is how often deadlines are looked at, at least, while
    /// anything is in flight; `tick` is called then too.
    pub(in crate::store::redis) async fn read(
        self: Arc<Self>,
        mut socket: impl AsyncRead + Unpin,
        pace: Duration,
        tick: impl Fn(Deadline) -> Option<Deadline>,
    ) {
        let mut bytes = BytesMut::with_capacity(READ_BYTES);
        let mut timer = pin!(sleep(pace));
        let mut timed = false;
        loop {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => break,
                read = socket.read_buf(&mut bytes) => {
                    if !matches!(read, Ok(1..)) || self.take_replies(&mut bytes).is_err() {
                        break;
                    }
                }
                () = self.timer.notified(), if !timed => {
                    timed = true;
                    timer.set(sleep(pace));
                }
                () = timer.as_mut(), if timed => match self.expire(tick(Deadline::after(Duration::ZERO))) {
                    Some(next) => timer.set(sleep(next.left().min(pace))),
                    None => timed = false,
                },
            }
        }
        self.close();
    }

    fn take_replies(&self, bytes: &mut BytesMut) -> Result<(), resp::Garbled> {
        let mut replies = Vec::new();
        let mut at = 0;
        while let Some((reply, len)) = resp::read(bytes.get(at..).unwrap_or_default())? {
            at += len;
            replies.push(reply);
        }
        bytes.advance(at);
        bytes.reserve(READ_BYTES / 4);
        let awaiting: Vec<Option<Awaiting>> = {
            let mut out = self.out();
            let replied = replies.len().min(out.in_flight.len());
            out.in_flight.drain(..replied).collect()
        };
        // A reply that nobody asked for: nothing after it can be trusted.
        let garbled = awaiting.len() < replies.len();
        for (awaiting, reply) in awaiting.into_iter().zip(replies) {
            if let Some(awaiting) = awaiting {
                awaiting.complete(reply);
            }
        }
        if garbled { Err(resp::Garbled) } else { Ok(()) }
    }

    /// Gives up what has waited long enough. Returns when to look again; `None` once nothing is in flight.
    fn expire(&self, also: Option<Deadline>) -> Option<Deadline> {
        let now = Deadline::after(Duration::ZERO);
        let mut next = also;
        let mut late = Vec::new();
        {
            let mut out = self.out();
            for place in &mut out.in_flight {
                let Some(awaiting) = place else { continue };
                match awaiting.expire(now) {
                    Some(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
                    None => late.extend(place.take()),
                }
            }
            out.timed = next.is_some();
        }
        for awaiting in late {
            awaiting.complete(Err(Failure::Timeout));
        }
        next
    }
}

/// Writes without waiting. Returns whether that was all.
fn write_some(socket: &OwnedWriteHalf, bytes: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match socket.try_write(rest) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(some) => written += some,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                bytes.drain(..written);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    bytes.clear();
    Ok(true)
}
