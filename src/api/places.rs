//! The connections of one listener: how many there are, from which addresses, how long each has been idle,
//! and which of them goes when the listener is full.
//!
//! A listener has places of its own, so that connections of one never take those of another.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::address;
use crate::telemetry::Metrics;

/// Addresses of IPv6 that share so many bits are one client.
const IPV6_PREFIX: u8 = 64;
/// One of this many places is freed at once when the listener is full: looking for the longest idle goes over
/// all of them.
const FREED_AT_ONCE: usize = 64;
/// One of this many places may be used besides while those that were told to end do so, and as many newcomers
/// may wait for a place.
const ENDING: usize = 16;
/// Time that a newcomer may wait for the place of a connection that ends: a gateway that is turned away lets
/// its client pass.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest time between two looks of a listener whether it takes newcomers.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Time that a full listener gives those that are being answered to leave, before it turns a newcomer away.
const ANSWERED_WITHIN: Duration = Duration::from_millis(2);
/// A listener is crowded when fewer than one of this many places is free. From then on connections end with
/// their answer, which tells the gateway so: a burst of new ones finds places, and no request is lost.
const CROWDED: usize = 4;
/// Seconds without a request after which a connection may go.
const IDLE_SECONDS_MIN: u32 = 1;
/// A client with fewer than this part of the places that the largest client has gets one, busy as all of them
/// may be.
const FAIR_PART: usize = 4;
/// A full listener says so once in so many seconds.
const SAY_EVERY_SECONDS: u32 = 60;

/// Every connection of one listener.
pub(super) struct Places {
    name: &'static str,
    max: usize,
    /// Most connections of one client; loopback and Unix sockets are no clients.
    client_max: usize,
    /// Seconds since the start, as well as the listener counts them.
    now: AtomicU32,
    table: Mutex<Table>,
    is_crowded: AtomicBool,
    /// One turn for each newcomer that may wait.
    turns: Arc<Semaphore>,
    left: Notify,
    open: Gauge,
    refused: Counter,
    evicted: Counter,
    unread: Counter,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Entry>,
    /// Connections of each client that were not told to end.
    staying: HashMap<Option<IpAddr>, usize>,
    ending: usize,
    said: Option<u32>,
    refused: u64,
    evicted: u64,
}

struct Entry {
    client: Option<IpAddr>,
    last: Arc<LastRequest>,
    end: CancellationToken,
}

/// The last request of a connection.
#[derive(Debug)]
struct LastRequest {
    /// Instant at which it was there whole; of a connection without any, when that began.
    at: AtomicU32,
    /// True if it asked for a decision.
    decides: AtomicBool,
}

impl Entry {
    /// Returns whether it may go, and when it would: connections that ask for decisions go after all others,
    /// and the longest idle go first. A connection that asks for decisions goes only if it is idle.
    fn goes(&self, now: u32) -> Option<(bool, u32)> {
        let (at, decides) = (self.last.at.load(Ordering::Relaxed), self.last.decides.load(Ordering::Relaxed));
        let is_idle = now.saturating_sub(at) >= IDLE_SECONDS_MIN;
        (is_idle || !decides).then_some((decides, at))
    }
}

/// The place of one connection, given back when dropped.
pub(super) struct ConnectionPlace {
    places: Arc<Places>,
    id: u64,
    last: Arc<LastRequest>,
    /// Asks the connection to make room.
    pub(super) end: CancellationToken,
}

/// The fate of a newcomer.
pub(super) enum Entering {
    /// It has a place.
    At(ConnectionPlace),
    /// It may have one as soon as another connection has left.
    Waiting(WaitingConnection),
}

/// A connection that waits for a place.
pub(super) struct WaitingConnection {
    places: Arc<Places>,
    client: Option<IpAddr>,
    _turn: OwnedSemaphorePermit,
}

impl Entering {
    /// Returns the place, within a second; `None`: the connection is to be closed.
    pub(super) async fn place(self) -> Option<ConnectionPlace> {
        match self {
            Self::At(place) => Some(place),
            Self::Waiting(waiting) => waiting.place().await,
        }
    }
}

impl WaitingConnection {
    async fn place(self) -> Option<ConnectionPlace> {
        let entered = async {
            loop {
                let left = self.places.left.notified();
                if let Some(place) = self.places.take(self.client) {
                    return place;
                }
                left.await;
            }
        };
        let place = tokio::time::timeout(WAIT_MAX, entered).await.ok();
        if place.is_none() {
            self.places.refuse();
        }
        place
    }
}

impl Places {
    /// Places for so many connections, and so many of one client; 0: any number of them.
    pub(super) fn new(name: &'static str, max: usize, client_max: usize, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            name,
            max: max.max(1),
            client_max: if client_max == 0 { usize::MAX } else { client_max },
            now: AtomicU32::new(0),
            table: Mutex::default(),
            is_crowded: AtomicBool::default(),
            turns: Arc::new(Semaphore::new(Self::above(max.max(1)))),
            left: Notify::new(),
            open: metrics.gauge("connections", "listener", name),
            refused: metrics.counter("connections_refused_total", "listener", name),
            evicted: metrics.counter("connections_evicted_total", "listener", name),
            unread: metrics.counter("connections_unread_total", "listener", name),
        })
    }

    /// Connections above the number of places that may be open for a moment.
    pub(super) const fn above(max: usize) -> usize {
        let above = max / ENDING;
        if above == 0 { 1 } else { above }
    }

    /// A second has passed.
    pub(super) fn tick(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns once the listener may take a newcomer. While as many wait as may, and connections that were
    /// told to end have not, newcomers stay in the queue of the system: one that is turned away may be a
    /// gateway. Where none was told to end, they stay for a moment.
    pub(super) async fn takes_newcomers(&self) {
        loop {
            let left = self.left.notified();
            if self.turns.available_permits() > 0 {
                return;
            }
            if !self.are_ending() {
                let _ = tokio::time::timeout(ANSWERED_WITHIN, left).await;
                return;
            }
            let _ = tokio::time::timeout(LOOK_AGAIN, left).await;
        }
    }

    fn are_ending(&self) -> bool {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).ending > 0
    }

    /// Returns how many are open.
    pub(super) fn len(&self) -> usize {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).open.len()
    }

    /// A place for a connection from this address, or a turn to wait for one; `None`: it is to be closed at
    /// once.
    pub(super) fn enter(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<Entering> {
        let client = peer.map(|address| address::grouped(address, IPV6_PREFIX));
        if let Some(place) = self.take(client) {
            return Some(Entering::At(place));
        }
        let turn = Arc::clone(&self.turns).try_acquire_owned().ok().filter(|_| !self.has_its_part(client));
        let Some(turn) = turn else {
            self.refuse();
            return None;
        };
        Some(Entering::Waiting(WaitingConnection { places: Arc::clone(self), client, _turn: turn }))
    }

    fn take(self: &Arc<Self>, client: Option<IpAddr>) -> Option<ConnectionPlace> {
        let now = self.now.load(Ordering::Relaxed);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_room(&mut table, client, now) {
            return None;
        }
        let id = table.next;
        table.next += 1;
        let (at, decides) = (AtomicU32::new(now), AtomicBool::default());
        let (last, end) = (Arc::new(LastRequest { at, decides }), CancellationToken::new());
        table.open.insert(id, Entry { client, last: Arc::clone(&last), end: end.clone() });
        *table.staying.entry(client).or_default() += 1;
        self.look_for_crowd(&table);
        self.open.increment(1);
        Some(ConnectionPlace { places: Arc::clone(self), id, last, end })
    }

    fn look_for_crowd(&self, table: &Table) {
        let free = self.max.saturating_sub(table.open.len() - table.ending);
        self.is_crowded.store(free < self.max / CROWDED, Ordering::Relaxed);
    }

    fn refuse(&self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.refused += 1;
        self.refused.increment(1);
        self.say(&mut table, self.now.load(Ordering::Relaxed));
    }

    /// True if a client has as many connections as one may have.
    fn has_its_part(&self, client: Option<IpAddr>) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_at_its_bound(&table, client)
    }

    fn is_at_its_bound(&self, table: &Table, client: Option<IpAddr>) -> bool {
        let own = table.staying.get(&client).copied().unwrap_or_default();
        own >= self.client_max && client.is_some_and(|address| !address.is_loopback())
    }

    fn has_room(&self, table: &mut Table, client: Option<IpAddr>, now: u32) -> bool {
        if self.is_at_its_bound(table, client) {
            return false;
        }
        let own = table.staying.get(&client).copied().unwrap_or_default();
        if table.open.len() - table.ending >= self.max && !self.evict(table, own, now) {
            return false;
        }
        table.open.len() < self.max + Self::above(self.max)
    }

    /// File descriptors ran out: lets the longest idle go.
    pub(super) fn make_room(&self) {
        let now = self.now.load(Ordering::Relaxed);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.evict(&mut table, 0, now);
    }

    /// Has connections of the client with the most of them end: see [`Entry::goes`]. `own`: how many the
    /// newcomer has.
    fn evict(&self, table: &mut Table, own: usize, now: u32) -> bool {
        let largest = table.staying.iter().max_by_key(|(_, count)| **count);
        let Some((&largest, &count)) = largest else { return false };
        let staying =
            table.open.iter().filter(|(_, entry)| entry.client == largest && !entry.end.is_cancelled());
        // Connections that stay come last: the first of them goes only for a client that has far fewer.
        let mut staying: Vec<(bool, (bool, u32), u64)> = staying
            .map(|(id, entry)| match entry.goes(now) {
                Some(order) => (false, order, *id),
                None => (true, (false, entry.last.at.load(Ordering::Relaxed)), *id),
            })
            .collect();
        staying.sort_unstable();
        let free = staying.partition_point(|(stays, ..)| !stays);
        let enough = if own.saturating_mul(FAIR_PART) < count { free.max(1) } else { free };
        let going = enough.min((self.max / FREED_AT_ONCE).max(1));
        for (_, _, id) in staying.iter().take(going) {
            if let Some(entry) = table.open.get(id) {
                entry.end.cancel();
                table.ending += 1;
                table.leave(largest);
            }
        }
        self.look_for_crowd(table);
        let gone = u64::try_from(going).unwrap_or_default();
        table.evicted += gone;
        self.evicted.increment(gone);
        if going > 0 {
            self.say(table, now);
        }
        going > 0
    }

    /// Says that the listener is full, seldom enough to be read.
    fn say(&self, table: &mut Table, now: u32) {
        if table.said.is_some_and(|said| now.saturating_sub(said) < SAY_EVERY_SECONDS) {
            return;
        }
        table.said = Some(now);
        tracing::warn!(
            listener = self.name,
            open = table.open.len(),
            max = self.max,
            closed = std::mem::take(&mut table.evicted),
            refused = std::mem::take(&mut table.refused),
            "a listener has as many connections as it may: the longest idle are closed (listen.max_connections)"
        );
    }

    /// A connection is closed because its client reads nothing.
    pub(super) fn count_unread(&self) {
        self.unread.increment(1);
    }
}

impl Table {
    /// A connection of this client does not stay.
    fn leave(&mut self, client: Option<IpAddr>) {
        if let Some(count) = self.staying.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.staying.remove(&client);
            }
        }
    }
}

impl ConnectionPlace {
    /// A request is there, which asks for a decision or watches.
    pub(super) fn touch(&self, decides: bool) {
        self.last.at.store(self.places.now.load(Ordering::Relaxed), Ordering::Relaxed);
        self.last.decides.store(decides, Ordering::Relaxed);
    }

    /// True if the connection ends with the answer to a request for a decision, which is about to be sent:
    /// its listener is crowded, and its client is one of those with the most connections.
    pub(super) fn ends_with_answer(&self) -> bool {
        let places = &self.places;
        if !places.is_crowded.load(Ordering::Relaxed) {
            return false;
        }
        let mut table = places.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = table.open.get(&self.id) else { return false };
        if entry.end.is_cancelled() {
            return true;
        }
        let (client, end) = (entry.client, entry.end.clone());
        let own = table.staying.get(&client).copied().unwrap_or_default();
        let most = table.staying.values().max().copied().unwrap_or_default();
        if own.saturating_mul(FAIR_PART) < most {
            return false;
        }
        end.cancel();
        table.ending += 1;
        table.leave(client);
        places.look_for_crowd(&table);
        places.evicted.increment(1);
        true
    }

    /// Its client reads nothing, and so it is closed.
    pub(super) fn count_unread(&self) {
        self.places.count_unread();
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut table = self.places.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = table.open.remove(&self.id) {
            if entry.end.is_cancelled() {
                table.ending = table.ending.saturating_sub(1);
            } else {
                table.leave(entry.client);
            }
            self.places.look_for_crowd(&table);
            self.places.open.decrement(1);
        }
        drop(table);
        self.places.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([203, 0, 113, last]))
    }

    fn places(max: usize, client_max: usize) -> Arc<Places> {
        Places::new("http", max, client_max, &Metrics::new())
    }

    fn at_once(places: &Arc<Places>, peer: Option<IpAddr>) -> Option<ConnectionPlace> {
        match places.enter(peer)? {
            Entering::At(place) => Some(place),
            Entering::Waiting(_) => None,
        }
    }

    #[test]
    fn when_full_the_longest_idle_goes_and_the_newcomer_stays() {
        let places = places(3, 0);
        let held: Vec<ConnectionPlace> = (0..3).map(|_| at_once(&places, LOCAL).unwrap()).collect();
        held.iter().for_each(|place| place.touch(true));
        assert!(at_once(&places, LOCAL).is_none(), "none has been idle yet");
        places.tick();
        held[0].touch(true);
        let newcomer = at_once(&places, LOCAL);
        assert!(newcomer.is_some());
        let going: Vec<bool> = held.iter().map(|place| place.end.is_cancelled()).collect();
        assert_eq!(going, [false, true, false]);
        drop((held, newcomer));
        assert_eq!(places.len(), 0);
        let table = places.table.lock().unwrap();
        assert_eq!((table.ending, table.staying.len()), (0, 0));
    }

    #[test]
    fn those_that_end_slowly_do_not_let_any_number_in() {
        let places = places(32, 0);
        let mut held = Vec::new();
        for _ in 0..1_000 {
            held.extend(at_once(&places, LOCAL));
            places.tick();
        }
        assert_eq!(held.len(), 32 + Places::above(32));
    }

    #[test]
    fn the_client_with_the_most_connections_pays_even_when_all_are_busy() {
        let places = places(10, 0);
        let gateway = at_once(&places, address(1)).unwrap();
        let many: Vec<ConnectionPlace> = (0..9).map(|_| at_once(&places, address(2)).unwrap()).collect();
        many.iter().chain([&gateway]).for_each(|place| place.touch(true));
        assert!(at_once(&places, address(2)).is_none(), "it has its part");
        assert!(at_once(&places, address(3)).is_some());
        assert!(!gateway.end.is_cancelled());
        assert_eq!(many.iter().filter(|place| place.end.is_cancelled()).count(), 1);
    }

    #[test]
    fn connections_of_a_crowded_listener_end_with_their_answer() {
        let places = places(8, 0);
        let held: Vec<ConnectionPlace> = (0..8).map(|_| at_once(&places, LOCAL).unwrap()).collect();
        held.iter().for_each(|place| place.touch(true));
        assert!(at_once(&places, LOCAL).is_none(), "all of them decide");
        let ends: Vec<bool> = held.iter().map(ConnectionPlace::ends_with_answer).collect();
        assert_eq!(ends, [true, true, false, false, false, false, false, false], "two places are free then");
        assert!(at_once(&places, LOCAL).is_some(), "it waits for no second to pass");
    }

    #[test]
    fn a_gateway_keeps_its_connections_beside_a_client_that_crowds_the_listener() {
        let places = places(16, 0);
        let gateway = at_once(&places, address(1)).unwrap();
        let many: Vec<ConnectionPlace> = (0..15).map(|_| at_once(&places, address(2)).unwrap()).collect();
        assert!(!gateway.ends_with_answer());
        assert!(many[0].ends_with_answer());
    }

    #[test]
    fn who_decides_keeps_its_place_before_those_who_watch_however_busy_they_are() {
        // So many that three may be open for a moment beside those that end.
        let places = places(48, 0);
        let gateway = at_once(&places, LOCAL).unwrap();
        gateway.touch(true);
        let watching: Vec<ConnectionPlace> = (0..47).map(|_| at_once(&places, LOCAL).unwrap()).collect();
        // The gateway was idle for longer than any of them.
        places.tick();
        places.tick();
        watching.iter().for_each(|place| place.touch(false));
        let newcomers: Vec<ConnectionPlace> = (0..3).map(|_| at_once(&places, LOCAL).unwrap()).collect();
        assert!(!gateway.end.is_cancelled());
        assert_eq!(watching.iter().filter(|place| place.end.is_cancelled()).count(), 3);
        assert!(newcomers.iter().all(|place| !place.end.is_cancelled()), "they may be a gateway's");
        newcomers.iter().for_each(|place| place.touch(true));
        drop(watching);
        let busy: Vec<ConnectionPlace> = (0..44).map(|_| at_once(&places, LOCAL).unwrap()).collect();
        busy.iter().for_each(|place| place.touch(true));
        gateway.touch(true);
        assert!(at_once(&places, LOCAL).is_none(), "all of them decide");
    }

    #[test]
    fn a_client_may_be_bounded_and_this_machine_is_none() {
        let places = places(100, 2);
        let held: Vec<Option<ConnectionPlace>> = (0..3).map(|_| at_once(&places, address(1))).collect();
        assert_eq!(held.iter().flatten().count(), 2);
        let local: Vec<Option<ConnectionPlace>> =
            (0..10).map(|n| at_once(&places, if n < 5 { LOCAL } else { None })).collect();
        assert_eq!(local.iter().flatten().count(), 10);
        drop(held);
        assert!(at_once(&places, address(1)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_waits_for_the_place_of_one_that_leaves_and_not_for_ever() {
        let places = places(2, 0);
        let mut held: Vec<ConnectionPlace> = (0..2).map(|_| at_once(&places, LOCAL).unwrap()).collect();
        held.iter().for_each(|place| place.touch(true));
        let waiting = places.enter(LOCAL).unwrap();
        assert!(places.enter(LOCAL).is_none(), "one may wait for two places");
        let waiting = tokio::spawn(waiting.place());
        tokio::time::sleep(WAIT_MAX / 2).await;
        held.pop();
        let place = waiting.await.unwrap().unwrap();
        place.touch(true);
        let begun = tokio::time::Instant::now();
        assert!(places.enter(LOCAL).unwrap().place().await.is_none());
        assert_eq!(begun.elapsed(), WAIT_MAX);
        assert!(places.enter(LOCAL).is_some(), "its turn is another's");
    }

    #[tokio::test(start_paused = true)]
    async fn newcomers_stay_in_the_queue_while_others_end_and_none_may_wait() {
        let places = places(2, 0);
        let watching: Vec<ConnectionPlace> = (0..2).map(|_| at_once(&places, LOCAL).unwrap()).collect();
        places.takes_newcomers().await;
        let mut held = vec![at_once(&places, LOCAL).unwrap()];
        let waiting = places.enter(LOCAL).unwrap();
        let taking = Arc::clone(&places);
        let taking = tokio::spawn(async move { taking.takes_newcomers().await });
        tokio::time::sleep(LOOK_AGAIN * 3).await;
        assert!(!taking.is_finished(), "one waits for a connection that ends");
        drop(watching);
        held.extend(waiting.place().await);
        assert_eq!(held.len(), 2);
        taking.await.unwrap();
    }
}
