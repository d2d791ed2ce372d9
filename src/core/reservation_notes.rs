//! The reservations of one bucket: a note for each, until it is committed or lapses.
//!
//! The permits themselves are charged to the bucket. A note says how many, and when, so that what was not
//! used goes back where the charge still counts: windows that are over give nothing back, a level gives back
//! what has not drained meanwhile, a log takes out the very entry. So whatever is given back, the bucket
//! never counts less than what was used.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::algorithm::{Allowance, Limit, State};
use super::request::ReportedCost;
use super::reservation::{COMMIT_MAX, Commit, ReservationFate, ReservationId, ReservedCharge, TTL_MAX};
use super::reservation_terms::OnLapse;
use super::time::{Span, Timestamp};

/// Most reservations that one bucket holds at once.
pub const RESERVATIONS_MAX: usize = 10_000;
/// Most commits that one bucket remembers, so that none of them is charged twice.
pub const COMMITS_MAX: usize = 10_000;
/// Time for which a commit is remembered: until the same reservation may be committed no more.
pub const COMMIT_KEPT: Span = Span(TTL_MAX.0 + COMMIT_MAX.0);
/// Most reservations that one look lets lapse; the next look goes on.
pub const LAPSES_MAX: usize = 100;
/// So many ends of what is over already wait at least until they are cleared away.
const CLEARED_ABOVE: usize = 64;

/// The limit that a commit is charged to, and when.
#[derive(Debug, Clone, Copy)]
pub struct CommitTerms<'a> {
    /// Limit that the bucket keeps to.
    pub limit: &'a Limit,
    /// Permits of the whole limit: with none, nothing could ever pay a debt.
    pub whole: u32,
    /// Part of it that other regions leave, where others count too.
    pub view: Option<&'a Allowance>,
    /// Instant at which the commit arrives.
    pub now: Timestamp,
}

/// The effect of a commit on its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitResult {
    /// Fate of the reservation: noted, committed, repeated or gone.
    pub fate: ReservationFate,
    /// Permits given back: those that were reserved and not used.
    pub returned: u64,
    /// Permits charged beyond what was reserved.
    pub reported: u64,
    /// Permits used beyond what was reserved, and not charged: the bucket may owe no more.
    pub uncharged: u64,
    /// True if that was within the limit; where it was charged before, if nothing is owed now.
    pub fits: bool,
}

/// The reservations of one bucket.
#[derive(Debug, Clone, Default)]
pub struct ReservationNotes {
    held: HashMap<ReservationId, ReservedCharge, RandomState>,
    /// Reservations by the instant at which they lapse.
    due: Ends,
    /// Commits, and until when they are remembered.
    committed: HashMap<ReservationId, Timestamp, RandomState>,
    /// Commits by the instant at which they are forgotten.
    forgotten: Ends,
    /// All of them are forgotten by then.
    commits_kept: Timestamp,
    noted: u64,
    /// From when on nothing that was ever noted can be given back.
    kept: Timestamp,
}

/// The ends of reservations, or of what is remembered of them. The first is of one that is still there; of
/// the others up to as many are over already as are there, and [`CLEARED_ABOVE`].
#[derive(Debug, Clone, Default)]
struct Ends(BinaryHeap<Reverse<(Timestamp, ReservationId)>>);

impl Ends {
    fn push(&mut self, end: Timestamp, id: ReservationId) {
        self.0.push(Reverse((end, id)));
    }

    fn first(&self) -> Option<(Timestamp, ReservationId)> {
        self.0.peek().map(|first| first.0)
    }

    /// Forgets those that are over: the first at once, others when they are many beside `there`.
    fn clear(&mut self, there: usize, is_there: impl Fn(Timestamp, ReservationId) -> bool) {
        let holds = |end: &Reverse<(Timestamp, ReservationId)>| is_there(end.0.0, end.0.1);
        if self.0.len() > there * 2 + CLEARED_ABOVE {
            self.0.retain(holds);
        }
        while self.0.peek().is_some_and(|first| !holds(first)) {
            self.0.pop();
        }
    }
}

impl ReservationNotes {
    /// Permits that this one reserves; `None` if it is not reserved.
    #[must_use]
    pub fn permits_of(&self, id: ReservationId) -> Option<u64> {
        self.held.get(&id).map(|charge| charge.permits)
    }

    /// True if no more may be reserved.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held.len() >= RESERVATIONS_MAX
    }

    /// Returns how many were noted so far.
    #[must_use]
    pub const fn noted(&self) -> u64 {
        self.noted
    }

    fn give_back(
        &mut self,
        state: &mut State,
        limit: &Limit,
        now: Timestamp,
        charge: ReservedCharge,
        permits: u64,
    ) -> u64 {
        let returned = state.give_back(limit, now, charge.counted(), permits);
        if charge.used > 0 && returned.started > 0 {
            // The level that later charges noted counts as if so much less had been charged.
            for later in self.held.values_mut().filter(|later| later.number > charge.number) {
                later.used = later.used.saturating_sub(returned.started);
            }
        }
        returned.whole
    }

    /// Notes a charge that was just made. An id that was committed before begins anew.
    pub fn note(&mut self, id: ReservationId, charge: ReservedCharge, limit: &Limit) {
        self.forget_commit(id);
        // Permits that are charged now can be given back until their window is over, or the level has
        // drained.
        self.kept =
            self.kept.max(charge.due + limit.window).max(charge.at + limit.time_to_drain(charge.used));
        self.noted += 1;
        self.held.insert(id, charge);
        self.due.push(charge.due, id);
    }

    fn clear_due(&mut self) {
        let held = &self.held;
        self.due.clear(held.len(), |due, id| held.get(&id).is_some_and(|charge| charge.due == due));
    }

    /// Gives back what is to lapse until `due`, a bounded part at a time. Returns the permits given back.
    pub fn lapse(&mut self, state: &mut State, limit: &Limit, now: Timestamp, due: Timestamp) -> u64 {
        let mut returned = 0_u64;
        for _ in 0..LAPSES_MAX {
            let Some((_, id)) = self.due.first().filter(|(first, _)| *first <= due) else { break };
            let charge = self.held.remove(&id).filter(|charge| charge.on_lapse == OnLapse::Release);
            if let Some(charge) = charge {
                returned = returned.saturating_add(self.give_back(state, limit, now, charge, charge.permits));
            }
            self.clear_due();
        }
        returned
    }

    /// True if something has lapsed by `now`.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.due.first().is_some_and(|(due, _)| due <= now)
    }

    /// Releases what is reserved and charges what was really used, unless the whole limit admits nothing that
    /// could pay. A commit without a reservation is charged in full; a second one is not
    /// charged at all.
    pub fn commit(&mut self, state: &mut State, terms: &CommitTerms<'_>, commit: &Commit) -> CommitResult {
        let CommitTerms { limit, whole, view, now } = *terms;
        let nothing = CommitResult {
            fate: ReservationFate::Repeated,
            returned: 0,
            reported: 0,
            uncharged: 0,
            fits: true,
        };
        if commit.id == ReservationId::NONE {
            return nothing;
        }
        if self.committed.get(&commit.id).is_some_and(|until| *until > now) {
            // A report that is sent again is told of the debt that it or others have made, as it was at
            // first.
            return CommitResult { fits: state.owes_nothing(limit, view, now), ..nothing };
        }
        let held = self.held.remove(&commit.id);
        self.clear_due();
        self.note_commit(commit.id, now);
        let reserved = held.as_ref().map_or(0, |charge| charge.permits);
        let mut done = CommitResult {
            fate: if held.is_some() { ReservationFate::Released } else { ReservationFate::Lapsed },
            ..nothing
        };
        if commit.actual > reserved {
            let permits = commit.actual - reserved;
            let report = ReportedCost { permits, debt_max: commit.debt_max };
            done.fits = state.check(limit, view, now, permits).admitted;
            if state.can_pay(whole, &report) {
                done.reported = state.report_beyond(limit, view, now, &report);
            }
            done.uncharged = permits.saturating_sub(done.reported);
        } else if let Some(charge) = held {
            done.returned = self.give_back(state, limit, now, charge, reserved - commit.actual);
        }
        done
    }

    fn note_commit(&mut self, id: ReservationId, now: Timestamp) {
        while let Some((until, oldest)) = self.forgotten.first() {
            if until > now && self.committed.len() < COMMITS_MAX {
                break;
            }
            self.forget_commit(oldest);
        }
        let until = now + COMMIT_KEPT;
        self.committed.insert(id, until);
        self.forgotten.push(until, id);
        self.commits_kept = self.commits_kept.max(until);
    }

    fn forget_commit(&mut self, id: ReservationId) {
        if self.committed.remove(&id).is_none() {
            return;
        }
        let committed = &self.committed;
        self.forgotten.clear(committed.len(), |until, id| committed.get(&id) == Some(&until));
        // Notes that stay for longer than the last commit lose nothing, and looking for it takes time.
        if self.committed.is_empty() {
            self.commits_kept = Timestamp::default();
        }
    }

    /// From when on these notes say nothing more.
    #[must_use]
    pub fn expiry(&self) -> Timestamp {
        let held = if self.held.is_empty() { Timestamp(0) } else { self.kept };
        held.max(self.commits_kept)
    }

    /// True if permits are reserved.
    #[must_use]
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns what is reserved.
    pub fn into_held(self) -> impl Iterator<Item = (ReservationId, ReservedCharge)> {
        self.held.into_iter()
    }

    /// Permits reserved.
    #[must_use]
    pub fn permits(&self) -> u64 {
        self.held.values().fold(0, |sum, charge| sum.saturating_add(charge.permits))
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let ends = self.due.0.capacity() + self.forgotten.0.capacity();
        self.held.allocation_size()
            + self.committed.allocation_size()
            + ends * size_of::<Reverse<(Timestamp, ReservationId)>>()
    }
}
