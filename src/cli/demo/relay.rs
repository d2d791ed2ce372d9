//! A wide-area network on one machine: a UDP relay that holds every datagram back for a while.
//!
//! Each daemon is reached only through a relay of its own, whose address it advertises. No kernel support is
//! needed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Datagrams on their way in one direction; more are lost, as a full router would lose them.
const IN_FLIGHT_MAX: usize = 8_192;
/// Sources that one relay remembers.
const SOURCES_MAX: usize = 64;
/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A relay that waits for the address it leads to.
pub(super) struct Relay {
    socket: Arc<UdpSocket>,
    delay: Duration,
}

impl Relay {
    /// Opens a relay with a one-way delay, on a free port.
    pub(super) async fn open(delay: Duration) -> std::io::Result<Self> {
        Ok(Self { socket: Arc::new(UdpSocket::bind("127.0.0.1:0").await?), delay })
    }

    /// Where the others must send to.
    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Carries datagrams to `target` and its answers back, until dropped.
    pub(super) async fn run(self, target: SocketAddr) -> std::io::Result<()> {
        let mut lines: HashMap<SocketAddr, mpsc::Sender<Parcel>> = HashMap::new();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let (len, source) = self.socket.recv_from(&mut buffer).await?;
            let Some(datagram) = buffer.get(..len) else { continue };
            if !lines.contains_key(&source) {
                if lines.len() >= SOURCES_MAX {
                    continue;
                }
                lines.insert(source, self.line(source, target).await?);
            }
            if let Some(line) = lines.get(&source) {
                let _ =
                    line.try_send(Parcel { due: Instant::now() + self.delay, datagram: datagram.to_vec() });
            }
        }
    }

    /// Opens the way between one source and the target; returns where to put what goes there.
    async fn line(&self, source: SocketAddr, target: SocketAddr) -> std::io::Result<mpsc::Sender<Parcel>> {
        let inner = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
        inner.connect(target).await?;
        let (there, parcels) = mpsc::channel(IN_FLIGHT_MAX);
        let sender = Arc::clone(&inner);
        tokio::spawn(deliver(parcels, move |datagram| {
            let _ = sender.try_send(datagram);
        }));
        let (back, parcels) = mpsc::channel(IN_FLIGHT_MAX);
        let outer = Arc::clone(&self.socket);
        tokio::spawn(deliver(parcels, move |datagram| {
            let _ = outer.try_send_to(datagram, source);
        }));
        let delay = self.delay;
        tokio::spawn(async move {
            let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
            loop {
                match inner.recv(&mut buffer).await {
                    Ok(len) => {
                        let Some(datagram) = buffer.get(..len) else { continue };
                        let parcel = Parcel { due: Instant::now() + delay, datagram: datagram.to_vec() };
                        if matches!(back.try_send(parcel), Err(mpsc::error::TrySendError::Closed(_))) {
                            return;
                        }
                    }
                    // The target is not listening at this moment.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        Ok(there)
    }
}

/// A datagram and when it arrives.
struct Parcel {
    due: Instant,
    datagram: Vec<u8>,
}

async fn deliver(mut parcels: mpsc::Receiver<Parcel>, send: impl Fn(&[u8])) {
    while let Some(parcel) = parcels.recv().await {
        sleep_until(parcel.due).await;
        send(&parcel.datagram);
    }
}
