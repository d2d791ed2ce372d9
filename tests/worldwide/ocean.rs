//! A wide-area network on one machine: every daemon is reached only through a relay that holds datagrams
//! back, loses some, and can be cut.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// What happens to every datagram.
struct Weather {
    one_way: Duration,
    /// Of a thousand datagrams so many are lost.
    loss_permille: u64,
    /// Daemons that are cut off from all others.
    cut: Mutex<HashSet<SocketAddr>>,
    dice: AtomicU64,
}

impl Weather {
    /// When a datagram between these two arrives; `None`: never.
    fn fate(&self, from: SocketAddr, to: SocketAddr) -> Option<Instant> {
        let cut = self.cut.lock().unwrap();
        if cut.contains(&from) || cut.contains(&to) {
            return None;
        }
        let dice = self.dice.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let dice = (dice ^ (dice >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32;
        // Delays vary by a tenth, so that datagrams overtake each other.
        let late = self.one_way.mul_f64(0.1 * (dice % 997) as f64 / 997.0);
        (dice % 1_000 >= self.loss_permille).then(|| Instant::now() + self.one_way + late)
    }
}

/// The sea between all daemons.
pub(crate) struct Ocean {
    weather: Arc<Weather>,
    runtime: Runtime,
}

impl Ocean {
    pub(crate) fn new(rtt: Duration, loss_permille: u64) -> Self {
        let weather =
            Weather { one_way: rtt / 2, loss_permille, cut: Mutex::default(), dice: AtomicU64::new(7) };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { weather: Arc::new(weather), runtime }
    }

    /// A way to the daemon that listens at `target`; returns the address that the others must use.
    pub(crate) fn way_to(&self, target: SocketAddr) -> SocketAddr {
        let outer = Arc::new(self.runtime.block_on(UdpSocket::bind("127.0.0.1:0")).unwrap());
        let address = outer.local_addr().unwrap();
        self.runtime.spawn(carry(outer, target, Arc::clone(&self.weather)));
        address
    }

    /// From now on nothing reaches this daemon, and nothing of it reaches others.
    pub(crate) fn cut(&self, daemon: SocketAddr) {
        self.weather.cut.lock().unwrap().insert(daemon);
    }

    pub(crate) fn heal(&self, daemon: SocketAddr) {
        self.weather.cut.lock().unwrap().remove(&daemon);
    }
}

async fn carry(outer: Arc<UdpSocket>, target: SocketAddr, weather: Arc<Weather>) {
    let mut ways: HashMap<SocketAddr, mpsc::UnboundedSender<(Instant, Vec<u8>)>> = HashMap::new();
    let mut buffer = vec![0; 65_535];
    while let Ok((len, source)) = outer.recv_from(&mut buffer).await {
        let way = match ways.entry(source) {
            Entry::Occupied(way) => way.into_mut(),
            Entry::Vacant(free) => {
                let inner = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                inner.connect(target).await.unwrap();
                let (there, parcels) = mpsc::unbounded_channel();
                let sender = Arc::clone(&inner);
                tokio::spawn(deliver(parcels, move |datagram| {
                    let _ = sender.try_send(datagram);
                }));
                tokio::spawn(answers(inner, Arc::clone(&outer), source, target, Arc::clone(&weather)));
                free.insert(there)
            }
        };
        if let Some(due) = weather.fate(source, target) {
            let _ = way.send((due, buffer[..len].to_vec()));
        }
    }
}

async fn answers(
    inner: Arc<UdpSocket>,
    outer: Arc<UdpSocket>,
    source: SocketAddr,
    target: SocketAddr,
    weather: Arc<Weather>,
) {
    let (back, parcels) = mpsc::unbounded_channel();
    tokio::spawn(deliver(parcels, move |datagram| {
        let _ = outer.try_send_to(datagram, source);
    }));
    let mut buffer = vec![0; 65_535];
    loop {
        match inner.recv(&mut buffer).await {
            Ok(len) => {
                if let Some(due) = weather.fate(target, source) {
                    let _ = back.send((due, buffer[..len].to_vec()));
                }
            }
            // The daemon is not listening at this moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn deliver(mut parcels: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>, send: impl Fn(&[u8])) {
    while let Some((due, datagram)) = parcels.recv().await {
        sleep_until(due).await;
        send(&datagram);
    }
}
