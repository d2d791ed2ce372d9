//! Rights of a bucket without windows (`token_bucket`, `leaky_bucket`, `gcra`): permits forwarded between
//! regions.
//!
//! Each region owns its share of the refill and of the capacity. A region forwards idle permits to another:
//! they leave the giver's level at once, enter the receiver's at most once, and stay charged to the giver's
//! capacity until the receiver has acknowledged them. So permits in levels and under way never exceed the
//! whole capacity together, and all regions together admit at most `burst + rate x time`, whatever is lost,
//! late, doubled or reordered.
//!
//! If the receiver's level is full, the permits are discarded. The exception are permits for which a cost
//! larger than the own capacity waits: they are *kept* beyond the capacity for [`KEPT_LIFE`], and
//! acknowledged only when they are kept no more, so the giver does without that capacity meanwhile. Kept
//! permits that are used do not raise this level: the giver's level paid for them.
//!
//! Nobody knows which permits a lost memory had under way. So they were never more than a bounded part of the
//! capacity, and the next memory keeps that part empty until no message of the old one can still arrive. The
//! same steps are in `lua/rights.lua`.

use super::super::super::algorithm::{Algorithm, Allowance, Limit, State};
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::rights::{LevelTotals, TOTALS_MAX, Total};
use super::EscrowSafety;
use super::totals::{Giving, MovedRights, RECOVERY_MARGIN, Taking, sum, total};

mod partner;
mod planner;
mod transfers;

pub(super) use self::partner::LevelPartner;
pub(super) use self::transfers::{LevelEstimate, level_transfers};

/// No message arrives later than this after it was sent: a QUIC connection that is silent ends long before.
pub const MESSAGE_LIFE: Span = Span::from_secs(60);
/// For so long after the first of them came permits are kept beyond the capacity: whoever was refused asks
/// again by then.
pub const KEPT_LIFE: Span = Span::from_secs(3);
/// For so long a memory counts with what the one before it had under way, or kept elsewhere.
pub const RECOVERY_WINDOW: Span = Span(MESSAGE_LIFE.0 + KEPT_LIFE.0 + RECOVERY_MARGIN.0);

/// Something to be done to the permits of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LevelStep {
    /// Take permits out for another region.
    Give(Giving),
    /// Put in what another region gave.
    Take {
        /// What it gave.
        taking: Taking,
        /// How many may be kept beyond what there is room for, those of other regions included.
        keep: u64,
    },
    /// Charge what was given to another region no more: it has it.
    Acknowledge {
        /// Who has it.
        to: String,
        /// Its session.
        session: u64,
        /// All that it has taken from this session of ours.
        permits: u64,
    },
}

/// One region's permits of one bucket. All counts run since the session began; what was given, taken and used
/// is in the level.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LevelLedger {
    /// Names the memory of this store; see [`super::super::super::wire::rights::Statement::session`].
    pub session: u64,
    /// The region's part of the capacity, less what an earlier memory may still have under way.
    pub minted: u64,
    /// What went to other regions: of each its latest session.
    pub forwarded: Vec<Forwarded>,
    /// What came from other regions: of each its latest session.
    pub taken: Vec<Total>,
    /// What of it waits beyond the capacity.
    pub kept: Option<Reserve>,
}

/// Permits that went to one region in its latest session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Forwarded {
    /// The other region.
    pub region: String,
    /// Its session.
    pub session: u64,
    /// Permits that went there, all together.
    pub permits: u64,
    /// Permits of these that it said to have.
    pub acknowledged: u64,
}

impl Forwarded {
    /// Returns what went there.
    pub(super) fn given(&self) -> MovedRights<'_> {
        MovedRights { region: &self.region, session: self.session, permits: self.permits }
    }
}

/// Permits of other regions that found no room, and wait for a cost that is larger than the own capacity.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reserve {
    /// They can be used before this.
    pub until: Timestamp,
    /// From whom, and in which session. These are not acknowledged.
    pub totals: Vec<Total>,
}

/// The terms that a region's bucket is held to.
#[derive(Debug, Clone, Copy)]
pub struct LevelTerms {
    /// How it counts.
    pub algorithm: Algorithm,
    /// The region's part of limit, burst and queue.
    pub limit: Limit,
    /// When the store's memory began.
    pub begun: Timestamp,
    /// The rules in force.
    pub safety: EscrowSafety,
}

impl LevelTerms {
    /// The most that its level holds, in permits.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.limit.capacity(self.algorithm)
    }

    /// The most that is ever forwarded and not acknowledged.
    #[must_use]
    pub fn under_way_max(&self) -> u64 {
        under_way_max(self.capacity())
    }

    /// True if enough of this memory has passed to name it to others: its name, an instant, is then later
    /// than that of any memory before it.
    #[must_use]
    pub fn is_settled(&self, now: Timestamp) -> bool {
        self.begun == Timestamp(0) || now >= self.begun + RECOVERY_MARGIN
    }

    /// Returns what a memory before this one may still have under way.
    #[must_use]
    pub fn burnt(&self, now: Timestamp) -> u64 {
        let over = self.begun == Timestamp(0) || now >= self.begun + RECOVERY_WINDOW;
        if over || !self.safety.doubt_is_burnt { 0 } else { self.under_way_max() }
    }

    /// A bucket that is not there.
    #[must_use]
    pub fn fresh(&self, now: Timestamp) -> State {
        let mut state = State::new(self.algorithm);
        self.raise(&mut state, None, now);
        state
    }

    /// The permits that are not known to have drained yet: all may have been taken before this memory began.
    /// They are worked out anew for whoever asks, since daemons of one region may hold different shares for a
    /// while.
    fn unknown(&self, now: Timestamp) -> u64 {
        // A leaky bucket's queue is part of its burst.
        let queue = if self.algorithm == Algorithm::LeakyBucket { 0 } else { self.limit.queue };
        let most = u64::from(self.limit.burst).saturating_add(u64::from(queue));
        let drained = u128::from(now.since(self.begun).0) * u128::from(self.limit.permits);
        let over = drained >= u128::from(most) * u128::from(self.limit.window.0.max(1));
        if over || self.begun == Timestamp(0) || !self.safety.doubt_is_burnt {
            return 0;
        }
        let mut full = State::new(self.algorithm);
        full.debit(&self.limit, self.begun, most);
        full.used(&self.limit, now)
    }

    /// The fewest permits that its level holds now.
    ///
    /// Permits that other regions let in stay in, though they lower the level below what is not known. In the
    /// worst case the level was full when this memory began; call W the level that has counted every step
    /// since from there on. This memory raised the level to all of `unknown` before its first step, when
    /// nothing was let in yet, so the level was at least W then. From there both drain, rise by what is used
    /// and fall by what is let in alike, down to the same floor, and this only ever raises the level: so it
    /// stays at least W, and what was let in and used since counts in it. The bound need not follow that use.
    #[must_use]
    pub fn least(&self, ledger: Option<&LevelLedger>, now: Timestamp) -> u64 {
        let let_in = ledger.map_or(0, LevelLedger::let_in);
        self.floor(ledger, now).max(self.unknown(now).saturating_sub(let_in))
    }

    /// Below this many permits the level does not drain now: they are charged to its capacity.
    #[must_use]
    pub fn floor(&self, ledger: Option<&LevelLedger>, now: Timestamp) -> u64 {
        let charged = ledger.filter(|_| self.safety.forwarded_stays_charged).map_or(0, LevelLedger::charged);
        charged.saturating_add(self.burnt(now)).min(self.capacity())
    }

    /// Permits that its level holds and a refund here cannot give back: those charged to its capacity or not
    /// known, and kept ones, which their givers' levels paid for.
    #[must_use]
    pub fn unreturnable(&self, ledger: Option<&LevelLedger>, now: Timestamp) -> u64 {
        self.least(ledger, now).saturating_add(ledger.map_or(0, LevelLedger::kept))
    }

    /// Has a level hold what is charged to its capacity, or not known.
    pub fn raise(&self, state: &mut State, ledger: Option<&LevelLedger>, now: Timestamp) {
        state.raise(&self.limit, now, self.least(ledger, now));
    }

    /// Returns what other regions leave a bucket at `now`: the permits that may be used beyond the capacity.
    /// `None`: nothing.
    #[must_use]
    pub fn view(ledger: Option<&LevelLedger>, now: Timestamp) -> Option<Allowance> {
        let kept = ledger?.kept.as_ref().filter(|kept| now < kept.until)?;
        Some(Allowance::Kept { permits: sum(&kept.totals) })
    }

    /// Carries out a step, or only looks, atomically with decisions on the level.
    pub fn carry_out(
        &self,
        state: &mut State,
        ledger: &mut LevelLedger,
        step: Option<&LevelStep>,
        now: Timestamp,
    ) {
        // Under the charges as they were: a level does not drain the faster for having been charged.
        self.raise(state, Some(ledger), now);
        self.make_room(state, ledger, now);
        match step {
            None => {}
            Some(LevelStep::Give(giving)) => self.give(state, ledger, giving, now),
            Some(LevelStep::Take { taking, keep }) => self.take(state, ledger, (taking, *keep), now),
            Some(LevelStep::Acknowledge { to, session, permits }) => {
                ledger.acknowledge(to, *session, *permits);
            }
        }
        ledger.minted = self.capacity().saturating_sub(self.burnt(now));
        self.raise(state, Some(ledger), now);
    }

    fn give(&self, state: &mut State, ledger: &mut LevelLedger, giving: &Giving, now: Timestamp) {
        let free = self.free(state, ledger, now);
        let room = self.under_way_max().saturating_sub(ledger.charged());
        let fits = giving.permits > 0 && giving.permits <= room;
        let enough = giving.permits <= free || !self.safety.gives_only_what_is_free;
        if fits && enough && ledger.forward(giving) {
            state.take(&self.limit, now, giving.permits);
        }
    }

    fn take(
        &self,
        state: &mut State,
        ledger: &mut LevelLedger,
        (taking, keep): (&Taking, u64),
        now: Timestamp,
    ) {
        if taking.to_session != ledger.session && self.safety.sessions_are_fenced {
            return;
        }
        let came = ledger.receive(taking, &self.safety);
        let room = state.used(&self.limit, now).saturating_sub(self.floor(Some(ledger), now));
        let kept = came.saturating_sub(room).min(keep.saturating_sub(ledger.kept()));
        let kept = if ledger.keep(taking, kept, now) { kept } else { 0 };
        // Permits that find no room are discarded: their giver was charged for them, and is not any more.
        state.refund(&self.limit, now, came - kept);
    }

    /// How much of the ledger's budget is in use or charged.
    #[must_use]
    pub fn used(&self, state: &State, ledger: &LevelLedger, now: Timestamp) -> u64 {
        ledger.budget().saturating_sub(self.free(state, ledger, now))
    }

    fn free(&self, state: &State, ledger: &LevelLedger, now: Timestamp) -> u64 {
        state.check(&self.limit, Self::view(Some(ledger), now).as_ref(), now, 0).remaining
    }

    /// Gives up as much of the room beyond the capacity as is not needed for what is there, and all of it
    /// once it is over. From here on it is the givers', and what was used of it.
    fn make_room(&self, state: &mut State, ledger: &mut LevelLedger, now: Timestamp) {
        let used = state.used(&self.limit, now).saturating_sub(self.floor(Some(ledger), now));
        let Some(kept) = &mut ledger.kept else { return };
        let mut back = if now >= kept.until { u64::MAX } else { used }.min(sum(&kept.totals));
        state.refund(&self.limit, now, back);
        for total in &mut kept.totals {
            let part = back.min(total.permits);
            total.permits -= part;
            back -= part;
        }
        kept.totals.retain(|total| total.permits > 0);
        if kept.totals.is_empty() {
            ledger.kept = None;
        }
        self.raise(state, Some(ledger), now);
    }
}

/// The most that is ever forwarded of a capacity and not acknowledged: three quarters, so that what remains
/// still serves while the rest is in doubt.
#[must_use]
pub fn under_way_max(capacity: u64) -> u64 {
    (capacity - capacity / 4).min(capacity.saturating_sub(1)).max(capacity.min(1))
}

impl LevelLedger {
    /// An empty one, made at `now`. Its session is that instant: of two memories of a region the later has
    /// the larger.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { session: now.0.max(1), minted: 0, forwarded: Vec::new(), taken: Vec::new(), kept: None }
    }

    /// Returns what may be used, or is charged.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.minted.saturating_add(self.kept())
    }

    /// Returns what was forwarded and is not acknowledged.
    #[must_use]
    pub fn charged(&self) -> u64 {
        let open = |to: &Forwarded| to.permits.saturating_sub(to.acknowledged);
        self.forwarded.iter().map(open).fold(0, u64::saturating_add)
    }

    /// Permits kept beyond the capacity, whether or not they can still be used.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| sum(&kept.totals))
    }

    /// Permits that came from other regions and lowered this level, or found no room in it.
    fn let_in(&self) -> u64 {
        sum(&self.taken).saturating_sub(self.kept())
    }

    /// Returns what others are told: what is kept is not acknowledged.
    #[must_use]
    pub fn totals(&self, safety: &EscrowSafety) -> LevelTotals {
        let kept = self.kept.as_ref().map(|kept| kept.totals.clone()).unwrap_or_default();
        let settled = |taken: &Total| {
            let kept = if safety.kept_stays_charged { total(&kept, &taken.region, taken.session) } else { 0 };
            Total { permits: taken.permits.saturating_sub(kept), ..taken.clone() }
        };
        LevelTotals { settled: self.taken.iter().map(settled).collect(), kept }
    }

    /// Keeps permits of what a region's session gave. Whether there was room to note it.
    fn keep(&mut self, taking: &Taking, permits: u64, now: Timestamp) -> bool {
        if permits == 0 {
            return false;
        }
        let (from, session) = (taking.from.as_str(), taking.session);
        // None is kept for longer because others come: its giver may have forgotten it. Whole milliseconds
        // are what Redis notes.
        let until = Timestamp((now + KEPT_LIFE).0 / 1_000 * 1_000);
        let totals = &mut self.kept.get_or_insert_with(|| Reserve { until, totals: Vec::new() }).totals;
        let room = totals.len() < TOTALS_MAX;
        match totals.iter_mut().find(|total| total.region == from && total.session == session) {
            Some(total) => total.permits = total.permits.saturating_add(permits),
            None if room => totals.push(Total { region: from.to_owned(), session, permits }),
            None => return false,
        }
        true
    }

    /// Returns what went to a region, in its latest session.
    #[must_use]
    pub fn forwarded_to(&self, region: &str) -> Option<&Forwarded> {
        self.forwarded.iter().find(|to| to.region == region)
    }

    fn forward(&mut self, giving: &Giving) -> bool {
        let Some(to) = self.enter_session(&giving.to, giving.session) else { return false };
        to.permits = to.permits.saturating_add(giving.permits);
        true
    }

    /// Permits that a region has said to have received in one of its sessions.
    pub(super) fn acknowledged_by(&self, to: &str, session: u64) -> u64 {
        let known = self.forwarded.iter().find(|known| known.region == to && known.session == session);
        known.map_or(0, |known| known.acknowledged)
    }

    fn acknowledge(&mut self, to: &str, session: u64, permits: u64) {
        if let Some(to) = self.enter_session(to, session) {
            to.acknowledged = to.acknowledged.max(permits.min(to.permits));
        }
    }

    /// Follows a region into a later memory. Permits that were under way to the one before can never be
    /// taken: they are not charged any more. `None`: the session is over, or there is no room for another
    /// region.
    fn enter_session(&mut self, region: &str, session: u64) -> Option<&mut Forwarded> {
        let anew = || Forwarded { region: region.to_owned(), session, permits: 0, acknowledged: 0 };
        let place = match self.forwarded.iter().position(|to| to.region == region) {
            Some(place) => place,
            None if self.forwarded.len() >= TOTALS_MAX => return None,
            None => {
                self.forwarded.push(anew());
                self.forwarded.len() - 1
            }
        };
        let to = self.forwarded.get_mut(place)?;
        if to.session < session {
            *to = anew();
        }
        (to.session == session).then_some(to)
    }

    /// Permits that had not come before, of all that a region sent.
    fn receive(&mut self, taking: &Taking, safety: &EscrowSafety) -> u64 {
        let (from, session, permits) = (taking.from.as_str(), taking.session, taking.permits);
        let room = self.taken.len() < TOTALS_MAX;
        match self.taken.iter_mut().find(|taken| taken.region == from) {
            // The giver has lost the memory that sent this, and does not charge it any more.
            Some(taken) if taken.session > session && safety.sessions_are_fenced => 0,
            Some(taken) if taken.session == session => {
                let came =
                    if safety.takes_are_cumulative { permits.saturating_sub(taken.permits) } else { permits };
                taken.permits = taken.permits.max(permits);
                came
            }
            Some(taken) => {
                (taken.session, taken.permits) = (session, permits);
                permits
            }
            None if room => {
                self.taken.push(Total { region: from.to_owned(), session, permits });
                permits
            }
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

    fn terms(begun: Timestamp) -> LevelTerms {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(1), burst: 40, queue: 0 };
        LevelTerms { algorithm: Algorithm::TokenBucket, limit, begun, safety: EscrowSafety::ALL }
    }

    fn give(session: u64, permits: u64) -> LevelStep {
        LevelStep::Give(Giving { to: "b".into(), session, permits })
    }

    fn acknowledge(session: u64, permits: u64) -> LevelStep {
        LevelStep::Acknowledge { to: "b".into(), session, permits }
    }

    impl LevelTerms {
        fn free_after(&self, state: &State, ledger: &LevelLedger, now: Timestamp) -> u64 {
            ledger.budget() - self.used(state, ledger, now)
        }
    }

    #[test]
    fn what_is_forwarded_stays_charged_to_the_capacity_until_it_is_acknowledged() {
        let terms = terms(Timestamp(0));
        let (mut state, mut ledger) = (terms.fresh(NOW), LevelLedger::new(NOW));
        terms.carry_out(&mut state, &mut ledger, Some(&give(7, 20)), NOW);
        assert_eq!(terms.free_after(&state, &ledger, NOW), 20);
        // However long it refills.
        let later = NOW + Span::from_secs(100);
        terms.raise(&mut state, Some(&ledger), later);
        assert_eq!(terms.free_after(&state, &ledger, later), 20);
        terms.carry_out(&mut state, &mut ledger, Some(&acknowledge(7, 15)), later);
        assert_eq!(terms.free_after(&state, &ledger, later), 20, "it refills from then on");
        let last = later + Span::from_secs(100);
        terms.raise(&mut state, Some(&ledger), last);
        assert_eq!(terms.free_after(&state, &ledger, last), 35);
    }

    #[test]
    fn no_more_is_under_way_than_the_next_memory_keeps_empty() {
        let terms = terms(Timestamp(0));
        let (mut state, mut ledger) = (terms.fresh(NOW), LevelLedger::new(NOW));
        for step in [give(7, 31), give(7, 30), give(7, 1)] {
            terms.carry_out(&mut state, &mut ledger, Some(&step), NOW);
        }
        assert_eq!(ledger.charged(), 30);
        let next = LevelTerms { begun: NOW, ..terms };
        let later = NOW + Span::from_secs(59);
        let mut state = next.fresh(later);
        next.raise(&mut state, None, later);
        assert_eq!(state.check(&next.limit, None, later, 0).remaining, 10);
    }

    #[test]
    fn after_a_loss_nobody_has_more_because_another_daemon_with_a_smaller_share_asked_first() {
        let large = terms(NOW);
        let small = LevelTerms { limit: Limit { permits: 5, burst: 20, ..large.limit }, ..large };
        for (after, free) in [(0, 0), (500, 5), (1_000, 10), (30_000, 10), (70_000, 40)] {
            let now = NOW + Span::from_millis(after);
            let mut state = small.fresh(now);
            large.raise(&mut state, None, now);
            let left = state.check(&large.limit, None, now, 0).remaining;
            assert_eq!(left, free, "after {after} ms");
        }
    }

    #[test]
    fn after_a_loss_what_other_regions_let_in_is_there_and_is_used_once() {
        let terms = terms(NOW);
        let terms = LevelTerms { limit: Limit { window: Span::from_secs(3_600), ..terms.limit }, ..terms };
        let now = NOW + RECOVERY_WINDOW;
        let (mut state, mut ledger) = (terms.fresh(now), LevelLedger::new(now));
        let take = |permits| {
            let taking = Taking { from: "a".into(), session: 5, to_session: now.0, permits };
            LevelStep::Take { taking, keep: 0 }
        };
        assert_eq!(terms.free_after(&state, &ledger, now), 0, "all of it may have been used before");
        for total in [8, 16, 30] {
            let came = total - sum(&ledger.taken);
            for step in [Some(take(total)), Some(take(total)), None] {
                terms.carry_out(&mut state, &mut ledger, step.as_ref(), now);
                assert_eq!(terms.free_after(&state, &ledger, now), came);
            }
            state.take(&terms.limit, now, came);
            terms.carry_out(&mut state, &mut ledger, None, now);
            assert_eq!(terms.free_after(&state, &ledger, now), 0);
        }
    }

    #[test]
    fn what_was_on_its_way_to_a_lost_memory_is_charged_no_more_once_the_next_one_is_known() {
        let terms = terms(Timestamp(0));
        let (mut state, mut ledger) = (terms.fresh(NOW), LevelLedger::new(NOW));
        for step in [give(7, 10), acknowledge(9, 0), give(7, 5), acknowledge(7, 10)] {
            terms.carry_out(&mut state, &mut ledger, Some(&step), NOW);
        }
        let to = ledger.forwarded_to("b").map(|to| (to.session, to.permits));
        assert_eq!((ledger.charged(), to), (0, Some((9, 0))));
    }

    #[test]
    fn permits_of_a_memory_that_its_region_has_lost_are_not_taken_after_those_of_the_next() {
        let terms = terms(Timestamp(0));
        let (mut state, mut ledger) = (terms.fresh(NOW), LevelLedger::new(NOW));
        state.take(&terms.limit, NOW, 40);
        let take = |session, permits| {
            let taking = Taking { from: "a".into(), session, to_session: NOW.0, permits };
            LevelStep::Take { taking, keep: 0 }
        };
        for (step, free) in
            [(take(5, 4), 4), (take(5, 4), 4), (take(6, 3), 7), (take(5, 9), 7), (take(6, 4), 8)]
        {
            terms.carry_out(&mut state, &mut ledger, Some(&step), NOW);
            assert_eq!(terms.free_after(&state, &ledger, NOW), free);
        }
    }

    #[test]
    fn what_a_large_cost_waits_for_is_kept_beyond_the_capacity_and_told_when_it_is_kept_no_more() {
        let terms = terms(Timestamp(0));
        let (mut state, mut ledger) = (terms.fresh(NOW), LevelLedger::new(NOW));
        state.take(&terms.limit, NOW, 5);
        let take = |permits| {
            let taking = Taking { from: "a".into(), session: 5, to_session: NOW.0, permits };
            LevelStep::Take { taking, keep: 12 }
        };
        let told = |ledger: &LevelLedger| {
            ledger.totals(&EscrowSafety::ALL).settled.first().map(|total| total.permits)
        };
        // Five find room, twelve are kept, three are gone.
        for (step, free, settled) in [(take(11), 46, 5), (take(20), 52, 8)] {
            terms.carry_out(&mut state, &mut ledger, Some(&step), NOW);
            assert_eq!(terms.free_after(&state, &ledger, NOW), free);
            assert_eq!(told(&ledger), Some(settled));
        }
        let fits = |ledger: &LevelLedger, state: &State, at| {
            state.check(&terms.limit, LevelTerms::view(Some(ledger), at).as_ref(), at, 52).admitted
        };
        let over = NOW + KEPT_LIFE;
        assert!(fits(&ledger, &state, Timestamp(over.0 - 1_000)) && !fits(&ledger, &state, over));
        // As what is there fits the capacity again, the room is the giver's.
        let (mut spent, mut known) = (state.clone(), ledger.clone());
        spent.take(&terms.limit, NOW, 7);
        terms.carry_out(&mut spent, &mut known, None, NOW);
        assert_eq!((terms.free_after(&spent, &known, NOW), told(&known)), (45, Some(15)));
        spent.take(&terms.limit, NOW, 45);
        terms.carry_out(&mut spent, &mut known, None, NOW);
        assert_eq!((terms.free_after(&spent, &known, NOW), told(&known)), (0, Some(20)));
        // And once it is over, whatever was used.
        terms.carry_out(&mut state, &mut ledger, None, over);
        assert_eq!((terms.free_after(&state, &ledger, over), told(&ledger)), (40, Some(20)));
    }

    #[test]
    fn a_part_that_may_be_under_way_leaves_something_to_serve_with() {
        assert_eq!([0, 1, 2, 3, 4, 40, 333].map(under_way_max), [0, 1, 1, 2, 3, 30, 250]);
    }
}
