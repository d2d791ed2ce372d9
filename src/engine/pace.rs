//! Holding answers back: `delay = "hold"` of a `throttle` rule.
//!
//! A gateway that cannot delay a request waits for the answer of whom it asks. So an answer that comes after
//! the delay paces requests at every gateway. The decision is made, and charged, before the delay begins.
//!
//! Each answer that is held back is an open request of its gateway, and a gateway has as many as it may:
//! Envoy asks no more, and lets everything pass, once 1,024 calls of its cluster are open. So answers wait
//! only as long as there is room, in all and for each bucket. The rule does not queue without room: what is
//! not in time is denied.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::Counter;
use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::clock::Deadline;
use super::port::Decisions;
use super::turns::{BucketTurns, HeldTurn, LeftTurns};
use crate::core::decision::Decision;
use crate::core::key::Key;
use crate::core::request::{Cost, Request};
use crate::core::time::Span;
use crate::telemetry::Metrics;

/// Answers that may be held back at once, unless set otherwise: a quarter of what Envoy leaves open.
pub const HELD_ANSWERS_MAX: usize = 256;
/// The places of one bucket: one client does not take the places of the others.
pub(super) const BUCKET_MAX: usize = 12;

/// Places for those who wait, in all and for each bucket.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    all: Semaphore,
    buckets: Mutex<HashMap<Key, BucketQueue, foldhash::fast::RandomState>>,
    /// The number of the turn that was taken last.
    newest_turn: AtomicU64,
}

/// Those of one bucket who wait, or may have to.
#[derive(Debug, Default)]
struct BucketQueue {
    places: usize,
    turns: BucketTurns,
}

/// The place of one that waits, or may have to, among those of its bucket. Given back when dropped.
#[derive(Debug)]
pub(super) struct WaitingPlace {
    room: Arc<WaitingRoom>,
    key: Key,
    /// The number of its turn; zero without one.
    turn: AtomicU64,
}

impl WaitingRoom {
    pub(super) fn new(all: usize) -> Arc<Self> {
        let newest_turn = AtomicU64::new(0);
        Arc::new(Self { all: Semaphore::new(all), buckets: Mutex::default(), newest_turn })
    }

    /// A place among those of this bucket; `None` where it has as many as it may, or nobody else may wait.
    pub(super) fn place(self: &Arc<Self>, key: &Key) -> Option<WaitingPlace> {
        if self.all.available_permits() == 0 {
            return None;
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        match buckets.get_mut(key) {
            Some(queue) if queue.places >= BUCKET_MAX => return None,
            Some(queue) => queue.places += 1,
            None => {
                drop(buckets.insert(key.copied(), BucketQueue { places: 1, turns: BucketTurns::default() }));
            }
        }
        Some(WaitingPlace { room: Arc::clone(self), key: key.copied(), turn: AtomicU64::new(0) })
    }

    /// One of the places in all, while it waits.
    pub(super) fn enter(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        self.all.try_acquire().ok()
    }
}

impl WaitingPlace {
    /// Returns the key of its bucket.
    pub(super) const fn key(&self) -> &Key {
        &self.key
    }

    /// Takes down the turn that its request has, behind those of its bucket that were taken before.
    pub(super) fn take_turn(&self, turn: HeldTurn) {
        let number = self.room.newest_turn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut buckets = self.room.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = buckets.get_mut(&self.key) {
            queue.turns.put(number, turn);
            self.turn.store(number, Ordering::Relaxed);
        }
    }

    /// Its client has left. Returns the turns that nobody waits for, nor behind, any more.
    fn leave(&self) -> Vec<HeldTurn> {
        let number = self.turn.swap(0, Ordering::Relaxed);
        if number == 0 {
            return Vec::new();
        }
        let mut buckets = self.room.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.get_mut(&self.key).map(|queue| queue.turns.leave(number)).unwrap_or_default()
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut buckets = self.room.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = buckets.get_mut(&self.key) {
            queue.places -= 1;
            if queue.places == 0 {
                buckets.remove(&self.key);
            }
        }
    }
}

/// The calls that are held back.
#[derive(Debug)]
pub(super) struct Pacing {
    room: Arc<WaitingRoom>,
    /// Cancelled: from now on nobody is held back.
    released: CancellationToken,
    /// Holds that lasted to their end, that the end of the daemon cut short, that did not begin for want of
    /// room, or whose client left: by turns.
    ended: [Counter; 4],
    left: LeftTurns,
}

impl Pacing {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self::with_room(HELD_ANSWERS_MAX, metrics)
    }

    pub(super) fn with_room(room: usize, metrics: &Metrics) -> Self {
        let ended = ["held", "released", "full", "left"]
            .map(|outcome| metrics.counter("throttle_holds_total", "outcome", outcome));
        let (room, left) = (WaitingRoom::new(room), LeftTurns::default());
        Self { room, released: CancellationToken::new(), ended, left }
    }

    /// Returns where those wait who are held back.
    pub(super) const fn room(&self) -> &Arc<WaitingRoom> {
        &self.room
    }

    /// Counts a turn that is given back.
    pub(super) fn count_left(&self) {
        let [.., left] = &self.ended;
        left.increment(1);
    }

    /// Returns the turns that wait to be given back.
    pub(super) const fn left_turns(&self) -> &LeftTurns {
        &self.left
    }

    /// Waits for `most`, or until all are released. Returns how long that was.
    async fn hold(&self, most: Span) -> Span {
        let [held, released, full, _] = &self.ended;
        let Some(_room) = self.room.enter() else {
            full.increment(1);
            return Span::ZERO;
        };
        let deadline = Deadline::after(most.to_std());
        tokio::select! {
            biased;
            () = self.released.cancelled() => {
                released.increment(1);
                let left = u64::try_from(deadline.left().as_micros()).unwrap_or(u64::MAX);
                Span(most.micros().saturating_sub(left))
            }
            () = tokio::time::sleep(deadline.left()) => {
                held.increment(1);
                most
            }
        }
    }
}

/// The turns of one call while its answer is held back. Dropped before they have come, they are given back.
struct CallTurns<'e> {
    engine: &'e Engine,
    places: SmallVec<[Arc<WaitingPlace>; 1]>,
}

impl<'e> CallTurns<'e> {
    fn of(engine: &'e Engine, decisions: &[Decision]) -> Self {
        let things = decisions.iter().flat_map(|decision| decision.guards.things());
        let places = things.filter_map(|thing| Arc::clone(thing).downcast::<WaitingPlace>().ok());
        Self { engine, places: places.collect() }
    }

    /// They have come, or the client is told when they do.
    fn are_told(mut self) {
        self.places.clear();
    }
}

impl Drop for CallTurns<'_> {
    fn drop(&mut self) {
        for place in self.places.drain(..) {
            for turn in place.leave() {
                self.engine.turn_left(place.key(), turn);
            }
        }
    }
}

/// Returns how long the answer to one call is held back: as long as the latest of its requests. A call that
/// is denied is not, nor is one that only asks, gives back or reports.
fn hold_of(requests: &[Request<'_>], decisions: &[Decision]) -> Option<Span> {
    if decisions.iter().any(|decision| !decision.allowed) {
        return None;
    }
    let takes = |cost: Cost| matches!(cost, Cost::Take(_) | Cost::Hold(_)) && cost.taken() > 0;
    let both = requests.iter().zip(decisions).filter(|(request, _)| takes(request.cost));
    both.map(|(_, decision)| decision.hold()).max().filter(|most| *most > Span::ZERO)
}

impl Engine {
    /// True if the answer to these requests is to be held back.
    #[must_use]
    pub fn holds_back(requests: &[Request<'_>], decisions: &[Decision]) -> bool {
        hold_of(requests, decisions).is_some()
    }

    /// The same decisions when they may be told: at once, or after the delay of a rule with `delay = "hold"`.
    /// The gateway keeps the rest of a delay then. Dropped before, it gives back the turns that have not
    /// come.
    pub async fn held_back(&self, requests: &[Request<'_>], mut decisions: Decisions) -> Decisions {
        let Some(most) = hold_of(requests, &decisions) else { return decisions };
        Box::pin(async move {
            let turns = CallTurns::of(self, &decisions);
            let held = self.pacing.hold(most).await;
            turns.are_told();
            decisions.iter_mut().for_each(|decision| decision.was_held(held));
            decisions
        })
        .await
    }

    /// The same engine, which holds back so many answers at once.
    #[must_use]
    pub fn holding_back(mut self, answers: usize) -> Self {
        self.pacing.room = WaitingRoom::new(answers);
        self
    }

    /// Lets go of all answers that are held back, and holds none from now on: the daemon ends.
    pub fn release_held(&self) {
        self.pacing.released.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::key::Shape;
    use std::time::Duration;

    const LONG: Span = Span::from_secs(3_600);

    #[tokio::test]
    async fn what_finds_no_room_is_told_at_once_and_a_release_frees_the_others() {
        let pacing = Pacing::with_room(1, &Metrics::new());
        let second = async {
            assert_eq!(pacing.hold(LONG).await, Span::ZERO, "it finds no room");
            pacing.released.cancel();
        };
        let both = async { tokio::join!(biased; pacing.hold(LONG), second) };
        let (held, ()) = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        assert!(held < LONG, "{held:?}");
        assert!(pacing.hold(LONG).await < LONG, "after the release nobody is held back");
    }

    #[test]
    fn a_bucket_has_a_dozen_places_and_gives_them_back() {
        let room = WaitingRoom::new(100);
        let (one, other) = (Key::new(Shape(8), ["ann"]), Key::new(Shape(8), ["bob"]));
        let mut taken: Vec<_> = (0..20).filter_map(|_| room.place(&one)).collect();
        assert_eq!(taken.len(), BUCKET_MAX);
        assert!(room.place(&other).is_some());
        taken.pop();
        assert!(room.place(&one).is_some());
        drop(taken);
        assert!(room.buckets.lock().unwrap().is_empty(), "nothing is left of them");
    }

    #[test]
    fn nobody_has_a_place_where_all_wait_that_may() {
        let room = WaitingRoom::new(1);
        let waits = room.enter();
        assert!(waits.is_some() && room.enter().is_none());
        assert!(room.place(&Key::new(Shape(8), ["ann"])).is_none());
    }

    #[tokio::test]
    async fn an_answer_is_held_for_its_delay() {
        let pacing = Pacing::with_room(1, &Metrics::new());
        let deadline = Deadline::after(Duration::from_millis(100));
        for _ in 0..2 {
            assert_eq!(pacing.hold(Span::from_millis(60)).await, Span::from_millis(60));
        }
        assert!(deadline.left().is_zero());
    }
}
