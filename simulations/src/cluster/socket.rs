//! A UDP socket of a simulated network for quinn, which writes down every packet that it sends.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::virtual_world::Dice;

/// The datagrams that were sent: when (in microseconds of virtual time), from where, to where, how long.
pub(super) type Trace = Arc<Mutex<Vec<(u64, SocketAddr, SocketAddr, usize)>>>;

type Readable = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// The socket of one host.
pub(super) struct Socket {
    inner: Arc<turmoil::net::UdpSocket>,
    own: SocketAddr,
    readable: Mutex<Option<Readable>>,
    trace: Trace,
    /// Chooses what is lost.
    dice: Mutex<Dice>,
    loss: f64,
}

impl Socket {
    /// `own` is how the trace names this host.
    pub(super) fn new(
        inner: turmoil::net::UdpSocket,
        own: SocketAddr,
        trace: Trace,
        dice: Dice,
        loss: f64,
    ) -> Self {
        Self { inner: Arc::new(inner), own, readable: Mutex::new(None), trace, dice: Mutex::new(dice), loss }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated socket {}", self.own)
    }
}

/// There is always room: what is too much is lost, as on a network.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let at = u64::try_from(turmoil::elapsed().as_micros()).unwrap_or(u64::MAX);
        let note = (at, self.own, transmit.destination, transmit.contents.len());
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        let lost = self.dice.lock().unwrap_or_else(PoisonError::into_inner).chance(self.loss);
        if !lost {
            // A full queue, or nobody there, is a lost packet too.
            let _ = self.inner.try_send_to(transmit.contents, transmit.destination);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let (Some(buf), Some(meta)) = (bufs.first_mut(), meta.first_mut()) else { return Poll::Ready(Ok(0)) };
        loop {
            match self.inner.try_recv_from(buf) {
                Ok((len, addr)) => {
                    *meta = RecvMeta { addr, len, stride: len, ecn: None, dst_ip: None };
                    return Poll::Ready(Ok(1));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            let mut waiting = self.readable.lock().unwrap_or_else(PoisonError::into_inner);
            let inner = Arc::clone(&self.inner);
            let readable = waiting.get_or_insert_with(|| Box::pin(async move { inner.readable().await }));
            match readable.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => {
                    *waiting = None;
                    ready?;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.own)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
