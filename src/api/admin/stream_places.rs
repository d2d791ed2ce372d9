//! The places for streams of events. One client may have them all while nobody else wants one; a client with
//! fewer takes a place of the client with most.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Streams that one daemon serves at the same time. As many may be about to end.
pub(super) const STREAMS_MAX: usize = 32;

/// The places of a daemon.
#[derive(Default)]
pub(in crate::api) struct StreamPlaces(Mutex<Open>);

#[derive(Default)]
struct Open {
    next: u64,
    /// The oldest first.
    streams: Vec<OpenStream>,
}

struct OpenStream {
    id: u64,
    /// The name of the client's token.
    client: String,
    /// True: it ends with its next message.
    ends: Arc<AtomicBool>,
}

impl OpenStream {
    fn stays(&self) -> bool {
        !self.ends.load(Ordering::Relaxed)
    }
}

/// The place of one stream, given back when dropped.
pub(super) struct WatchPlace {
    places: Arc<StreamPlaces>,
    id: u64,
    ends: Arc<AtomicBool>,
}

impl Open {
    fn of(&self, client: &str) -> usize {
        self.streams.iter().filter(|entry| entry.stays() && entry.client == client).count()
    }

    /// Has the oldest stream of the client with most end, if that has at least two more than this one.
    fn make_room(&self, client: &str) -> bool {
        let staying = || self.streams.iter().filter(|entry| entry.stays());
        let most = staying().map(|entry| self.of(&entry.client)).max().unwrap_or_default();
        if most <= self.of(client) + 1 {
            return false;
        }
        let oldest = staying().find(|entry| self.of(&entry.client) == most);
        oldest.inspect(|entry| entry.ends.store(true, Ordering::Relaxed)).is_some()
    }
}

impl StreamPlaces {
    /// A place for a stream of this client; `None` where it has its share, or too many are about to end.
    pub(super) fn enter(self: &Arc<Self>, client: &str) -> Option<WatchPlace> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let staying = open.streams.iter().filter(|entry| entry.stays()).count();
        let is_crowded = open.streams.len() >= 2 * STREAMS_MAX;
        if is_crowded || (staying >= STREAMS_MAX && !open.make_room(client)) {
            return None;
        }
        let (id, ends) = (open.next, Arc::<AtomicBool>::default());
        open.next += 1;
        open.streams.push(OpenStream { id, client: client.to_owned(), ends: Arc::clone(&ends) });
        Some(WatchPlace { places: Arc::clone(self), id, ends })
    }
}

impl WatchPlace {
    /// True if another client has this place.
    pub(super) fn is_taken(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        let mut open = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.streams.retain(|entry| entry.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_fewer_streams_takes_a_place_of_the_one_with_most() {
        let places = Arc::<StreamPlaces>::default();
        let mut first: Vec<_> = (0..STREAMS_MAX).map_while(|_| places.enter("first")).collect();
        assert_eq!(first.len(), STREAMS_MAX);
        assert!(places.enter("first").is_none(), "its own streams go on");
        let mut second: Vec<_> = (0..STREAMS_MAX).map_while(|_| places.enter("second")).collect();
        assert_eq!(second.len(), STREAMS_MAX / 2);
        assert!(first.iter().take(STREAMS_MAX / 2).all(WatchPlace::is_taken), "the oldest ones go");
        first.retain(|place| !place.is_taken());
        assert_eq!(first.len(), STREAMS_MAX / 2);
        assert!(places.enter("first").is_none() && places.enter("second").is_none());
        assert!(places.enter("third").is_some());
        second.clear();
        assert!(places.enter("first").is_some());
    }
}
