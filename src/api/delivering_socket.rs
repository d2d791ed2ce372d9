//! A socket by whose reads, writes and end it is known which answers were delivered.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Sleep, timeout};

use super::delivery::{Deliveries, LOST_WITHIN};
use super::listener::Socket;

/// Time that the end of a connection that was just answered waits for the reset that says so.
const END_WITHIN: Duration = Duration::from_millis(250);

/// One connection's socket, which tells its deliveries what becomes of it.
pub(super) struct DeliveringSocket {
    socket: Socket,
    deliveries: Arc<Deliveries>,
    /// True if answers have the order of their requests. Then what arrives after one tells that it is there.
    in_order: bool,
    /// Bytes that have arrived; counted only where answers have an order.
    received: u64,
    /// The wait for the answer to a client that may have closed its own half alone.
    answer: Option<Pin<Box<Sleep>>>,
    /// The wait for the reset by a client that did not take its answer.
    reset: Option<Pin<Box<Sleep>>>,
}

impl DeliveringSocket {
    /// A socket on which each answer follows the one before: HTTP/1 and the Redis protocol.
    pub(super) fn in_order(socket: Socket, deliveries: &Arc<Deliveries>) -> Self {
        Self::new(socket, deliveries, true)
    }

    /// A socket on which answers have numbers: HTTP/2.
    pub(super) fn by_number(socket: Socket, deliveries: &Arc<Deliveries>) -> Self {
        Self::new(socket, deliveries, false)
    }

    fn new(socket: Socket, deliveries: &Arc<Deliveries>, in_order: bool) -> Self {
        let deliveries = Arc::clone(deliveries);
        Self { socket, deliveries, in_order, received: 0, answer: None, reset: None }
    }

    /// Reads. The end is passed on only when it is known what it means. `is_asked`: an answer is still to be
    /// made.
    pub(super) fn poll_read_while(
        &mut self,
        is_asked: bool,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.socket).poll_read(cx, into));
        let bytes = into.filled().len() - before;
        // Many clients of TLS end the connection without saying so first. It is no reset.
        let ended = matches!(&read, Err(error) if error.kind() == io::ErrorKind::UnexpectedEof);
        if ended {
            return Poll::Ready(ready!(self.poll_end(is_asked, cx)).and(read));
        } else if read.is_err() {
            self.deliveries.lost();
        } else if bytes == 0 {
            return self.poll_end(is_asked, cx);
        } else if self.in_order {
            self.received = self.received.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
            self.deliveries.received(self.received);
        }
        Poll::Ready(read)
    }

    fn poll_end(&mut self, is_asked: bool, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !is_asked && self.reset.is_none() && self.deliveries.ends(LOST_WITHIN) {
            return Poll::Ready(Ok(()));
        }
        loop {
            let wait = if is_asked { &mut self.answer } else { &mut self.reset };
            let waiting = wait.get_or_insert_with(|| Box::pin(tokio::time::sleep(END_WITHIN)));
            // Asking forgets what it answers.
            let broken = self.socket.is_broken() || {
                ready!(waiting.as_mut().poll(cx));
                self.socket.is_broken()
            };
            if broken {
                self.deliveries.lost();
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            // A client that has asked all may close its own half, and reads on. The library would drop the
            // answer, and those that wait before it. One that left for good is noticed a moment later.
            if is_asked || self.deliveries.ends(END_WITHIN) {
                return Poll::Ready(Ok(()));
            }
            *wait = None;
        }
    }

    /// Says that nothing follows, and waits until the client has closed as well, where that tells whether it
    /// has what it was just given.
    pub(super) async fn finish(&mut self) {
        if !self.deliveries.may_be_lost() {
            return;
        }
        let finishing = async {
            // A client that is gone by now is found by reading.
            let _ = self.shutdown().await;
            let mut rest = [0; 1_024];
            while self.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
        };
        let _ = timeout(LOST_WITHIN, finishing).await;
    }

    /// Notes before each write what its client has sent: a quick one goes on before the write returns.
    fn sends(&mut self) {
        let Self { socket, deliveries, in_order, received, .. } = self;
        if *in_order {
            deliveries.sent(|| received.saturating_add(socket.unread()));
        }
    }

    fn wrote<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(written, Poll::Ready(Err(_))) {
            self.deliveries.lost();
        }
        written
    }
}

impl Drop for DeliveringSocket {
    fn drop(&mut self) {
        self.deliveries.close(self.in_order);
    }
}

impl AsyncRead for DeliveringSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_while(false, cx, into)
    }
}

impl AsyncWrite for DeliveringSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.sends();
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.wrote(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.sends();
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
