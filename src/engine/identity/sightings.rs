//! When users and API keys were last seen: noted by decisions, and taken by whoever writes it down.
//!
//! A decision notes a name once a minute; until the minute is over that costs it a hash and a look at two
//! numbers. Names wait here for the database, which is then told of many at once. Where there is none this is
//! the memory of them.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use metrics::Counter;

use super::{IdentityName, Kind, NameRef};
use crate::core::time::{Span, Timestamp};

/// A name is noted once in so long: what is told of it is older by so much at most.
const STEP: Span = Span::from_secs(60);
/// Marks of names that were noted in this step. Two names may share one, which costs them a further note.
const MARKS: usize = 1 << 16;
/// Parts that the waiting names are spread over, so that threads seldom wait for each other.
const PARTS: usize = 16;
/// Most names that wait in one part; all of them take some 5 MB. Full: new ones are counted and left out.
const PART_NAMES_MAX: usize = 4_096;
/// The bits of a mark that tell names apart; the others are the number of the step.
const NAME_BITS: u64 = !0 << 32;

/// A name, and when it was seen.
pub type Sighting = (IdentityName, Timestamp);

/// Users and API keys that were seen, as far as nobody has written it down.
#[derive(Debug)]
pub struct Sightings {
    /// Made when somebody is seen for the first time.
    marks: OnceLock<Box<[AtomicU64]>>,
    parts: [Mutex<WaitingNames>; PARTS],
    /// The part that is taken first, so that none waits for ever while more is seen than is written.
    first: AtomicUsize,
    lost: Counter,
}

/// Names that wait, by kind.
#[derive(Debug, Default)]
struct WaitingNames([HashMap<Box<str>, Timestamp, RandomState>; 2]);

impl WaitingNames {
    fn len(&self) -> usize {
        self.0.iter().map(HashMap::len).sum()
    }

    /// Keeps the newer of what is known and this. `false`: there is no room.
    fn keep(&mut self, name: NameRef<'_>, at: Timestamp) -> bool {
        let has_room = self.len() < PART_NAMES_MAX;
        let waiting = &mut self.0[name.kind as usize];
        if let Some(known) = waiting.get_mut(name.id) {
            *known = at.max(*known);
        } else if has_room {
            waiting.insert(name.id.into(), at);
        } else {
            return false;
        }
        true
    }
}

impl Sightings {
    /// Nobody was seen yet. Names that find no room are counted by `lost`.
    #[must_use]
    pub fn new(lost: Counter) -> Self {
        let parts = std::array::from_fn(|_| Mutex::default());
        Self { marks: OnceLock::new(), parts, first: AtomicUsize::new(0), lost }
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, WaitingNames> {
        let place = usize::try_from(hash >> 48).unwrap_or(0) % PARTS;
        self.parts[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that somebody was seen now.
    pub(in crate::engine) fn note(&self, name: NameRef<'_>, now: Timestamp) {
        let hash = hash_of(name);
        let marks = self.marks.get_or_init(|| (0..MARKS).map(|_| AtomicU64::new(0)).collect());
        let own = (hash & NAME_BITS) | (now.window_index(STEP) & !NAME_BITS);
        let place = usize::try_from(hash & !NAME_BITS).unwrap_or(0) % MARKS;
        let [mark, other] = [&marks[place], &marks[place ^ 1]];
        if mark.load(Ordering::Relaxed) == own || other.load(Ordering::Relaxed) == own {
            return;
        }
        if !self.part(hash).keep(name, now) {
            self.lost.increment(1);
            return;
        }
        // Of the two places the one whose name was seen longer ago, or either.
        let step = |mark: &AtomicU64| mark.load(Ordering::Relaxed) & !NAME_BITS;
        let older = if step(other) < step(mark) { other } else { mark };
        older.store(own, Ordering::Relaxed);
    }

    /// Returns when somebody was last seen, as far as that waits here.
    #[must_use]
    pub fn of(&self, name: NameRef<'_>) -> Option<Timestamp> {
        self.part(hash_of(name)).0[name.kind as usize].get(name.id).copied()
    }

    /// Takes names that wait, at most so many.
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<Sighting> {
        let first = self.first.fetch_add(1, Ordering::Relaxed);
        let mut taken = Vec::new();
        for place in 0..PARTS {
            let part = &self.parts[first.wrapping_add(place) % PARTS];
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            for (waiting, kind) in part.0.iter_mut().zip([Kind::User, Kind::Key]) {
                let room = most.saturating_sub(taken.len());
                let some = waiting.extract_if(|_, _| true).take(room);
                taken.extend(some.map(|(id, at)| (IdentityName { kind, id }, at)));
            }
        }
        taken
    }

    /// Gives back what could not be written down.
    pub fn give_back(&self, taken: Vec<Sighting>) {
        for (name, at) in taken {
            let name = name.as_ref();
            if !self.part(hash_of(name)).keep(name, at) {
                self.lost.increment(1);
            }
        }
    }
}

fn hash_of(name: NameRef<'_>) -> u64 {
    FixedState::default().hash_one(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: &str) -> NameRef<'_> {
        NameRef { kind: Kind::User, id }
    }

    fn minute(n: u64) -> Timestamp {
        Timestamp(n * STEP.micros() + 7)
    }

    #[test]
    fn a_name_is_noted_once_a_minute_and_taken_once() {
        let sightings = Sightings::new(Counter::noop());
        assert_eq!(sightings.of(user("ann")), None);
        sightings.note(user("ann"), minute(5));
        sightings.note(user("ann"), minute(5) + Span::from_secs(30));
        assert_eq!(sightings.of(user("ann")), Some(minute(5)));
        assert_eq!(sightings.of(NameRef { kind: Kind::Key, id: "ann" }), None, "a key of the same name");
        let taken = sightings.take(10);
        assert_eq!(taken, [(user("ann").to_owned(), minute(5))]);
        sightings.note(user("ann"), minute(5) + Span::from_secs(50));
        assert_eq!(sightings.take(10), [], "it was told of in this minute");
        sightings.note(user("ann"), minute(6));
        sightings.give_back(taken);
        assert_eq!(sightings.of(user("ann")), Some(minute(6)), "the newer stays");
        assert_eq!(sightings.take(10).len(), 1);
    }

    #[test]
    fn only_so_many_wait_and_all_of_them_are_taken_in_turn() {
        let sightings = Sightings::new(Counter::noop());
        let many = PARTS * PART_NAMES_MAX;
        (0..2 * many).for_each(|n| sightings.note(user(&n.to_string()), minute(1)));
        let (mut taken, mut largest) = (std::collections::BTreeSet::new(), 0);
        loop {
            let some = sightings.take(1_000);
            if some.is_empty() {
                break;
            }
            largest = largest.max(some.len());
            taken.extend(some.into_iter().map(|(name, _)| name));
        }
        assert_eq!(largest, 1_000);
        assert!(taken.len() <= many && taken.len() > many * 9 / 10, "{}", taken.len());
        // What found no room is noted when it is seen again.
        let seen = (0..2 * many).map(|n| n.to_string()).find(|id| !taken.contains(&user(id).to_owned()));
        let late = seen.unwrap();
        sightings.note(user(&late), minute(1));
        assert_eq!(sightings.of(user(&late)), Some(minute(1)));
    }
}
