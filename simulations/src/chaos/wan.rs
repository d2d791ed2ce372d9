//! The network between real daemons: each is reached only through a relay, which holds datagrams back, loses,
//! doubles and reorders them, and can be cut.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tidegate::core::time::Span;
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::number::part;
use crate::virtual_world::{Dice, Weather};

/// Most datagrams that wait on one way. A real link would drop what comes beyond, too.
const WAITING_MAX: usize = 20_000;
const DATAGRAM_MAX: usize = 65_535;

/// All relays, and what happens on them.
pub(super) struct Wan {
    sky: Arc<Sky>,
    runtime: Runtime,
}

/// The fate of every datagram.
struct Sky {
    now: Mutex<Now>,
}

struct Now {
    weather: Weather,
    /// By region: whether nothing reaches it, and whether nothing of it reaches others.
    deaf: Vec<bool>,
    mute: Vec<bool>,
    /// The region of each daemon, by its own address.
    region_of: HashMap<SocketAddr, usize>,
    dice: Dice,
}

impl Sky {
    /// When a datagram between two daemons arrives: not at all, once, or twice.
    fn fate(&self, from: SocketAddr, to: SocketAddr) -> impl Iterator<Item = Instant> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let now = &mut *now;
        let (Some(&from), Some(&to)) = (now.region_of.get(&from), now.region_of.get(&to)) else {
            return Vec::new().into_iter();
        };
        let is = |list: &[bool], region: usize| list.get(region) == Some(&true);
        let apart = from != to;
        let cut = apart && (is(&now.mute, from) || is(&now.deaf, to));
        if cut || (apart && now.dice.chance(now.weather.loss)) {
            return Vec::new().into_iter();
        }
        let way = now.weather.delay.get(from).and_then(|row| row.get(to)).copied().unwrap_or_default();
        let times = if now.dice.chance(now.weather.double) { 2 } else { 1 };
        let arrivals: Vec<Instant> = (0..times)
            .map(|_| {
                let late = now.dice.unit() * now.weather.jitter;
                let late =
                    if now.dice.chance(now.weather.reorder) { late + now.dice.unit() * 3.0 } else { late };
                Instant::now() + Duration::from_micros(way.0 + part(way, late).0)
            })
            .collect();
        arrivals.into_iter()
    }
}

impl Wan {
    pub(super) fn new(weather: Weather, regions: usize, seed: u64) -> anyhow::Result<Self> {
        let now = Now {
            weather,
            deaf: vec![false; regions],
            mute: vec![false; regions],
            region_of: HashMap::new(),
            dice: Dice::new(seed, 4),
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Self { sky: Arc::new(Sky { now: Mutex::new(now) }), runtime })
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        change(&mut self.sky.now.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A way to the daemon that listens at `target`; returns the address that the others must use.
    pub(super) fn way_to(&self, target: SocketAddr, region: usize) -> anyhow::Result<SocketAddr> {
        self.change(|now| {
            now.region_of.insert(target, region);
        });
        let outer = self.runtime.block_on(UdpSocket::bind("127.0.0.1:0")).context("no port for a relay")?;
        let address = outer.local_addr()?;
        self.runtime.spawn(carry(Arc::new(outer), target, Arc::clone(&self.sky)));
        Ok(address)
    }

    /// Nothing gets through between these regions and all others, as far as `inward` and `outward` say.
    pub(super) fn cut(&self, regions: &[usize], (inward, outward): (bool, bool), broken: bool) {
        self.change(|now| {
            for &region in regions {
                for (list, meant) in [(&mut now.deaf, inward), (&mut now.mute, outward)] {
                    if let (Some(place), true) = (list.get_mut(region), meant) {
                        *place = broken;
                    }
                }
            }
        });
    }

    /// Makes everything that these regions and the others send each other take so much longer, or no longer.
    pub(super) fn slow(&self, regions: &[usize], ways: (bool, bool), by: Span, begins: bool) {
        self.change(|now| now.weather.slow(regions, ways, by, begins));
    }

    /// Another loss and jitter.
    pub(super) fn storm(&self, loss: f64, jitter: f64) {
        self.change(|now| (now.weather.loss, now.weather.jitter) = (loss, jitter));
    }
}

/// Carries what is sent to one daemon, and back what it answers.
async fn carry(outer: Arc<UdpSocket>, target: SocketAddr, sky: Arc<Sky>) {
    let mut ways: HashMap<SocketAddr, mpsc::Sender<(Instant, Vec<u8>)>> = HashMap::new();
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let Ok((len, source)) = outer.recv_from(&mut buffer).await else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        let way = match ways.entry(source) {
            Entry::Occupied(way) => way.into_mut(),
            Entry::Vacant(free) => match open(&outer, source, target, &sky).await {
                Some(way) => free.insert(way),
                None => continue,
            },
        };
        for due in sky.fate(source, target) {
            let _ = way.try_send((due, buffer.get(..len).unwrap_or_default().to_vec()));
        }
    }
}

/// A socket that stands for `source` before `target`.
async fn open(
    outer: &Arc<UdpSocket>,
    source: SocketAddr,
    target: SocketAddr,
    sky: &Arc<Sky>,
) -> Option<mpsc::Sender<(Instant, Vec<u8>)>> {
    let inner = Arc::new(UdpSocket::bind("127.0.0.1:0").await.ok()?);
    inner.connect(target).await.ok()?;
    let (there, parcels) = mpsc::channel(WAITING_MAX);
    let sender = Arc::clone(&inner);
    tokio::spawn(deliver(parcels, move |datagram| {
        let _ = sender.try_send(datagram);
    }));
    tokio::spawn(answers(inner, Arc::clone(outer), (source, target), Arc::clone(sky)));
    Some(there)
}

async fn answers(
    inner: Arc<UdpSocket>,
    outer: Arc<UdpSocket>,
    (source, target): (SocketAddr, SocketAddr),
    sky: Arc<Sky>,
) {
    let (back, parcels) = mpsc::channel(WAITING_MAX);
    tokio::spawn(deliver(parcels, move |datagram| {
        let _ = outer.try_send_to(datagram, source);
    }));
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        match inner.recv(&mut buffer).await {
            Ok(len) => {
                for due in sky.fate(target, source) {
                    let _ = back.try_send((due, buffer.get(..len).unwrap_or_default().to_vec()));
                }
            }
            // The daemon is not listening at this moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Sends each datagram when it is due. They lie in order of arrival, so one that was delayed further waits
/// aside.
async fn deliver(mut parcels: mpsc::Receiver<(Instant, Vec<u8>)>, send: impl Fn(&[u8])) {
    let mut waiting: Vec<(Instant, Vec<u8>)> = Vec::new();
    loop {
        let next = waiting.iter().map(|(due, _)| *due).min();
        tokio::select! {
            came = parcels.recv(), if waiting.len() < WAITING_MAX => match came {
                Some(parcel) => waiting.push(parcel),
                None => return,
            },
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                let now = Instant::now();
                let mut due: Vec<(Instant, Vec<u8>)> = Vec::new();
                waiting.retain_mut(|(at, datagram)| {
                    let is_due = *at <= now;
                    if is_due {
                        due.push((*at, std::mem::take(datagram)));
                    }
                    !is_due
                });
                due.sort_by_key(|(at, _)| *at);
                due.iter().for_each(|(_, datagram)| send(datagram));
            }
        }
    }
}
