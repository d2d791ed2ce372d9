//! The one UDP socket, watched: counts datagrams that cannot be QUIC. QUIC itself drops them without a word.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use super::counters::{Counters, Refusal};

/// Every QUIC packet of ours has this bit; our endpoints do not agree to leave it out.
const FIXED_BIT: u8 = 0x40;
/// No QUIC packet is shorter: header, connection, number and seal.
const PACKET_BYTES_MIN: usize = 21;

/// A socket that counts garbage on its way in.
pub(super) struct Watched {
    inner: Arc<dyn AsyncUdpSocket>,
    counters: Arc<Counters>,
}

impl Watched {
    /// Watches `inner`.
    pub(super) fn new(inner: Arc<dyn AsyncUdpSocket>, counters: Arc<Counters>) -> Self {
        Self { inner, counters }
    }

    fn look(&self, bytes: &[u8], meta: &RecvMeta) {
        let Some(received) = bytes.get(..meta.len) else { return };
        let garbage = received.chunks(meta.stride.max(1)).filter(|datagram| is_garbage(datagram)).count();
        if garbage > 0 {
            self.counters.refuse_many(Refusal::Garbage, u64::try_from(garbage).unwrap_or(u64::MAX));
        }
    }
}

fn is_garbage(datagram: &[u8]) -> bool {
    datagram.len() < PACKET_BYTES_MIN || datagram.first().is_none_or(|first| first & FIXED_BIT == 0)
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl AsyncUdpSocket for Watched {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.inner.poll_recv(cx, bufs, meta);
        if let Poll::Ready(Ok(count)) = received {
            for (bytes, meta) in bufs.iter().zip(meta.iter()).take(count) {
                self.look(bytes, meta);
            }
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
