//! Places of a `concurrency` rule, lent between regions; and the capacity of sliding windows and logs, which
//! is lent in the same way.
//!
//! Each region owns its share of the places and may hold as many, less what it lent, plus what it has
//! borrowed. Both are read from cumulative totals of each pair of regions, as rights of windows are
//! ([`super::window`]): what was given and not come back is *lent*, what was taken and not given back is
//! *borrowed*. A region lends only places of its own; what it borrowed it can only give back. The same steps
//! are in `lua/places.lua`.
//!
//! **Never more holders than places.** Every holder can be given a place of some owner, so that no owner's
//! are given twice: a region admits while `held < (own - lent) + borrowed`, and gives only what nobody holds.
//! While nobody forgets, what is borrowed from an owner was lent by it (credits follow debits, and each at
//! most once), so that of its share `own - lent` at home, what is under way and what is borrowed are
//! disjoint. No clock is read for that; and because nothing borrowed is lent on, each pair of regions can be
//! judged by itself.
//!
//! A memory that is lost takes with it what it knew of three things:
//! 1. *Its holders.* It is silent, and admits nobody, for one hold and [`RECOVERY_MARGIN`]: then they have
//!    ended. So whoever hears its next session may take back at once what it lent to the one before: nobody
//!    can hold it any more.
//! 2. *What it borrowed* is lost with its session: it is the owner's again (see 1), and what is still under
//!    way to it is fenced.
//! 3. *What it lent.* Its next memory owns nothing until each other region has said, in a session that knows
//!    of this one, what it still has ([`PlacesStep::OpenSession`]; from then on nothing of the old session is
//!    taken), and counts that as lent. A region that does not say so in time has nothing left: it uses
//!    borrowed places only for [`Margins::loan_life`] after the owner was heard, in the session that lent
//!    them or one that has counted them. So a lost memory's loans have ended, and with them who was held
//!    there, when message life, loan life and a hold have passed since the next memory began. Nothing that is
//!    said afterwards is counted as lent, and nothing is used of it: it is dropped on the other side after
//!    the same time. Until the next memory has counted a loan, the borrower gives it nothing: an owner that
//!    no longer expects a loan would own those places twice if they came back.
//!
//! Only 3 reads two regions' clocks, and only durations: a region that was cut off from an owner that lost
//! its memory must not have its clock stepped back meanwhile by more than the margin. A region without loans
//! is hurt by none of this.
//!
//! A share that shrinks below what is lent lets the loans run out: the owner stops confirming them, and
//! others grow only when [`Margins::recall`] has passed.
//!
//! **What slides.** Each permit of a `sliding_log` has a place until it leaves the window; of a
//! `sliding_window` as many places are held as the region estimates to be used, what fades of the window
//! before included. Without admissions that only falls, at the turn of a window too. So *held* is what the
//! bucket counts, a hold is as long as a permit can count ([`counted_for`]), and all of the above is true of
//! it: a log of the whole world never holds more than the limit. Each region rounds its own fading part down
//! to whole permits, so an estimate of the world stays below the limit and one permit for each region. No
//! window admits more than the limit by clocks that agree: what a region counts in it stays within its
//! capacity, and is not lent.

use super::super::super::algorithm::{Algorithm, Limit};
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::rights::{PlacesTotals, TOTALS_MAX};
use super::EscrowSafety;
use super::level::MESSAGE_LIFE;
use super::totals::{Giving, MovedRights, RECOVERY_MARGIN, Taking};

mod partner;
mod planner;

pub(super) use self::partner::PlacesPartner;

/// For so long after its owner was heard a region may use what it borrowed.
pub const LOAN_LIFE: Span = Span::from_secs(60);
/// A ledger with loans is kept for so long after it was last used: a clock that is set forward must not make
/// an owner forget.
pub const LENT_KEPT: Span = Span::from_secs(30 * 24 * 3_600);

/// Returns how long at most a permit counts after it was admitted, or a place is held without renewing.
#[must_use]
pub const fn counted_for(algorithm: Algorithm, window: Span) -> Span {
    match algorithm {
        // Until the window after its own is over.
        Algorithm::SlidingWindow => Span(window.0.saturating_mul(2)),
        _ => window,
    }
}

/// How long what is sent and lent may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margins {
    /// No message arrives later than this after it was sent.
    pub message_life: Span,
    /// See [`LOAN_LIFE`].
    pub loan_life: Span,
}

impl Margins {
    /// Those of every daemon.
    pub const USUAL: Self = Self { message_life: MESSAGE_LIFE, loan_life: LOAN_LIFE };

    /// Until everything lent is back or over, from when its owner stops confirming it.
    #[must_use]
    pub fn recall(&self, hold: Span) -> Span {
        self.message_life + self.loan_life + hold + RECOVERY_MARGIN
    }
}

/// What a region's places are held to.
#[derive(Debug, Clone, Copy)]
pub struct PlacesTerms {
    /// The region's part of the limit.
    pub share: u64,
    /// How long places are held without renewing; see [`counted_for`].
    pub hold: Span,
    /// When the store's memory began.
    pub begun: Timestamp,
    /// How long what is sent and lent may last.
    pub margins: Margins,
    /// The rules in force.
    pub safety: EscrowSafety,
}

/// Something to be done to places that are lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacesStep {
    /// Take places out for another region: lend own ones, or give back what was borrowed.
    Give(Giving),
    /// Give back what was borrowed, and lend nothing of the own ones: a daemon of this region does not see
    /// what is lent.
    GiveBack(Giving),
    /// Put in what another region gave.
    Take(Taking),
    /// Know a region's session, and what it says of the own one.
    OpenSession {
        /// Which region.
        region: String,
        /// Its session.
        session: u64,
        /// All that it has taken from this session of ours; `None`: it does not know this session yet.
        has: Option<u64>,
        /// All that it gave to this session of ours; `None`: it does not know it, or lets what it lent run
        /// out.
        gave: Option<u64>,
    },
    /// Own the whole share if all of these have said what they have of a memory before this one.
    ConfirmRecovery {
        /// All other regions.
        regions: Vec<String>,
    },
}

/// One region's places of one bucket.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PlacesLedger {
    /// Names the memory of this store; see [`super::super::super::wire::rights::Statement::session`].
    pub session: u64,
    /// Places that are the region's to hold or to lend: its share, or none until it is known what an earlier
    /// memory had lent.
    pub owned: u64,
    /// The region's part of the limit when the ledger was last used.
    pub share: u64,
    /// Places that could be held then.
    pub capacity: u64,
    /// True if every other region has said what it has of a memory before this one.
    pub is_recovered: bool,
    /// Regions that have been met.
    pub partners: Vec<LoanPartner>,
}

/// What moved between this region and another, and what is known of that one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct LoanPartner {
    /// Which.
    pub region: String,
    /// Its latest session.
    pub session: u64,
    /// Places that went to that session, all together.
    pub given: u64,
    /// Places that came from it, all together.
    pub taken: u64,
    /// When it last confirmed what was borrowed from it, by the own clock.
    pub heard: Timestamp,
    /// True if it has said what it has of a memory before ours.
    pub has_reported: bool,
    /// True if something was borrowed from a memory that it lost, and it has not yet counted that as lent.
    pub is_uncounted: bool,
}

impl PlacesTerms {
    /// True if this memory may be named to others: no holder of one before it is left.
    #[must_use]
    pub fn is_settled(&self, now: Timestamp) -> bool {
        self.begun == Timestamp(0) || now >= self.begun + self.hold + RECOVERY_MARGIN
    }

    /// True if nothing is left of what a memory before this one had lent.
    fn is_past(&self, now: Timestamp) -> bool {
        self.begun == Timestamp(0)
            || now >= self.begun + self.margins.recall(self.hold)
            || !self.safety.lost_loans_are_burnt
    }

    /// Places that are this region's to hold or to lend.
    #[must_use]
    pub fn own(&self, ledger: Option<&PlacesLedger>, now: Timestamp) -> u64 {
        let recovered = ledger.is_some_and(|ledger| ledger.is_recovered);
        if recovered || self.is_past(now) { self.share } else { 0 }
    }

    /// Places that may be held here at `now`.
    #[must_use]
    pub fn capacity(&self, ledger: Option<&PlacesLedger>, now: Timestamp) -> u64 {
        let own = self.own(ledger, now);
        let Some(ledger) = ledger else { return own };
        let alive = ledger.partners.iter().filter(|partner| self.is_alive(partner, now));
        let borrowed = alive.map(LoanPartner::borrowed);
        borrowed.fold(own.saturating_sub(ledger.lent()), u64::saturating_add)
    }

    /// Returns what of the `whole` limit may be held or counted here. Never more than it: permits that were
    /// borrowed of a larger one may not be back yet.
    #[must_use]
    pub fn limit(&self, whole: &Limit, ledger: Option<&PlacesLedger>, now: Timestamp) -> Limit {
        let capacity = u32::try_from(self.capacity(ledger, now)).unwrap_or(u32::MAX);
        Limit { permits: capacity.min(whole.permits), ..*whole }
    }

    fn is_alive(&self, partner: &LoanPartner, now: Timestamp) -> bool {
        now < partner.heard + self.margins.loan_life || !self.safety.loans_lapse
    }

    /// True if nobody can hold what was borrowed from this region any more.
    fn is_over(&self, partner: &LoanPartner, now: Timestamp) -> bool {
        now >= partner.heard + self.margins.loan_life + self.hold
    }

    /// Carries out a step whose reason was `heard` then, or only looks. Beside the ledger `held` places have
    /// holders.
    pub fn carry_out(
        &self,
        ledger: &mut PlacesLedger,
        held: u64,
        step: Option<(Timestamp, &PlacesStep)>,
        now: Timestamp,
    ) {
        self.drop_lost(ledger, now);
        if let Some((heard, step)) = step {
            // Not later than now, whatever clock it was read from.
            self.change(ledger, held, (heard.min(now), step), now);
        }
        self.show(ledger, now);
    }

    fn change(
        &self,
        ledger: &mut PlacesLedger,
        held: u64,
        (heard, step): (Timestamp, &PlacesStep),
        now: Timestamp,
    ) {
        match step {
            PlacesStep::Give(giving) => self.give(ledger, giving, held, now),
            PlacesStep::GiveBack(giving) => {
                let borrowed = ledger.borrowed_from(&giving.to);
                if giving.permits <= borrowed || !self.safety.lends_only_in_sight {
                    self.give(ledger, giving, held, now);
                }
            }
            PlacesStep::Take(taking) => self.take(ledger, taking, heard, now),
            PlacesStep::OpenSession { region, session, has, gave } => {
                let over = ledger.is_recovered || self.is_past(now);
                let Some(partner) = self.open_session(ledger, region, *session, now) else { return };
                if let Some(has) = has {
                    partner.report(*has, over);
                }
                if let Some(gave) = gave {
                    partner.confirm(*gave >= partner.taken_in(*session), heard);
                }
            }
            PlacesStep::ConfirmRecovery { regions } => {
                let reported = |name: &String| ledger.partner(name).is_some_and(|known| known.has_reported);
                ledger.is_recovered = ledger.is_recovered || regions.iter().all(reported);
            }
        }
    }

    /// Has a ledger say what holds at `now`.
    fn show(&self, ledger: &mut PlacesLedger, now: Timestamp) {
        let (owned, capacity) = (self.own(Some(ledger), now), self.capacity(Some(ledger), now));
        (ledger.owned, ledger.share, ledger.capacity) = (owned, self.share, capacity);
    }

    /// The ledger as it is at `now`.
    #[must_use]
    pub fn shown(&self, ledger: &PlacesLedger, now: Timestamp) -> PlacesLedger {
        let mut ledger = ledger.clone();
        self.show(&mut ledger, now);
        ledger
    }

    /// How long a ledger is kept after it was used.
    #[must_use]
    pub fn kept(&self, ledger: &PlacesLedger) -> Span {
        let recall = self.margins.recall(self.hold);
        // Places that were under way from here have come before another ledger can be begun.
        if ledger.has_loans() { recall.max(LENT_KEPT) } else { recall }
    }

    fn give(&self, ledger: &mut PlacesLedger, giving: &Giving, held: u64, now: Timestamp) {
        let (permits, all_lent) = (giving.permits, ledger.lent());
        let (owned, capacity) = (self.own(Some(ledger), now), self.capacity(Some(ledger), now));
        let partner = ledger.partner_mut(&giving.to).filter(|partner| partner.session == giving.session);
        let Some(partner) = partner else { return };
        // Its owner has not counted this loan yet, and perhaps never will.
        if partner.is_uncounted && self.safety.gives_back_only_what_is_counted {
            return;
        }
        let borrowed = partner.borrowed();
        // Borrowed places that are not used any more go back without taking a place from anybody.
        let unused = if self.is_alive(partner, now) || held > capacity { 0 } else { borrowed };
        let free = capacity.saturating_sub(held).saturating_add(unused);
        let lent = all_lent.saturating_add(permits.saturating_sub(borrowed));
        let own = permits <= borrowed || lent <= owned;
        let enough = permits <= free || !self.safety.gives_only_what_is_free;
        if permits > 0 && enough && (own || !self.safety.lends_only_its_own) {
            partner.given = partner.given.saturating_add(permits);
        }
    }

    fn take(&self, ledger: &mut PlacesLedger, taking: &Taking, heard: Timestamp, now: Timestamp) {
        if taking.to_session != ledger.session && self.safety.sessions_are_fenced {
            return;
        }
        let partner = self.open_session(ledger, &taking.from, taking.session, now);
        let Some(partner) = partner else { return };
        let (permits, taken) = (taking.permits, partner.taken_in(taking.session));
        partner.taken = match self.safety.takes_are_cumulative {
            true => taken.max(permits),
            false => taken.saturating_add(permits),
        };
        partner.confirm(permits >= taken, heard);
    }

    /// Follows a region into a later session. `None`: this one is over, or there is no room for another
    /// region.
    fn open_session<'l>(
        &self,
        ledger: &'l mut PlacesLedger,
        region: &str,
        session: u64,
        now: Timestamp,
    ) -> Option<&'l mut LoanPartner> {
        let place = match ledger.partners.iter().position(|partner| partner.region == region) {
            Some(place) => place,
            None if ledger.partners.len() >= TOTALS_MAX => return None,
            None => {
                ledger.partners.push(LoanPartner::met(region, session));
                ledger.partners.len() - 1
            }
        };
        let partner = ledger.partners.get_mut(place)?;
        if partner.session < session {
            // Places that were lent to the memory before are at home again; those that were borrowed of it
            // are for it to count.
            let over = self.is_over(partner, now) && self.safety.loans_lapse;
            let uncounted = if over { 0 } else { partner.borrowed() };
            (partner.session, partner.given, partner.taken) = (session, 0, uncounted);
            partner.is_uncounted = uncounted > 0;
        }
        (partner.session == session || !self.safety.sessions_are_fenced).then_some(partner)
    }

    /// Gives up what was borrowed from a memory that is lost, once its owner may count without it.
    fn drop_lost(&self, ledger: &mut PlacesLedger, now: Timestamp) {
        for partner in &mut ledger.partners {
            if partner.is_uncounted && self.safety.loans_lapse && self.is_over(partner, now) {
                partner.is_uncounted = false;
                partner.taken = partner.taken.min(partner.given);
            }
        }
    }
}

impl PlacesLedger {
    /// An empty one, whose session has this name: the instant at which it is made. The later of two memories
    /// of a region has the larger.
    #[must_use]
    pub const fn new(session: u64) -> Self {
        Self { session, owned: 0, share: 0, capacity: 0, is_recovered: false, partners: Vec::new() }
    }

    /// Returns what is known of another region.
    #[must_use]
    pub fn partner(&self, region: &str) -> Option<&LoanPartner> {
        self.partners.iter().find(|partner| partner.region == region)
    }

    fn partner_mut(&mut self, region: &str) -> Option<&mut LoanPartner> {
        self.partners.iter_mut().find(|partner| partner.region == region)
    }

    /// Places borrowed from a region that were not given back.
    #[must_use]
    pub fn borrowed_from(&self, region: &str) -> u64 {
        self.partner(region).map_or(0, LoanPartner::borrowed)
    }

    /// Places lent to all regions together.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.partners.iter().map(LoanPartner::lent).fold(0, u64::saturating_add)
    }

    /// True if anything is lent or borrowed.
    #[must_use]
    pub fn has_loans(&self) -> bool {
        self.partners.iter().any(|partner| partner.lent() > 0 || partner.borrowed() > 0)
    }

    /// True if the share covers what is lent. If not, a larger one was lent of, and nothing is said that
    /// would confirm it.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.lent() <= self.share
    }

    /// Returns what others are told. Loans are confirmed only while the share covers them.
    #[must_use]
    pub fn totals(&self) -> PlacesTotals {
        let taken = self.partners.iter().map(|partner| partner.taken().into()).collect();
        let given = self.partners.iter().filter(|_| self.is_covered());
        PlacesTotals { taken, given: given.map(|partner| partner.given().into()).collect() }
    }

    /// True if it does not own its share yet.
    #[must_use]
    pub const fn is_recovering(&self) -> bool {
        self.owned < self.share
    }
}

impl LoanPartner {
    fn met(region: &str, session: u64) -> Self {
        Self {
            region: region.to_owned(),
            session,
            given: 0,
            taken: 0,
            heard: Timestamp(0),
            has_reported: false,
            is_uncounted: false,
        }
    }

    /// Places lent to it that have not come back.
    #[must_use]
    pub const fn lent(&self) -> u64 {
        self.given.saturating_sub(self.taken)
    }

    /// Places borrowed from it that were not given back.
    #[must_use]
    pub const fn borrowed(&self) -> u64 {
        self.taken.saturating_sub(self.given)
    }

    /// Returns what went there.
    pub(super) fn given(&self) -> MovedRights<'_> {
        MovedRights { region: &self.region, session: self.session, permits: self.given }
    }

    /// Returns what came from there.
    pub(super) fn taken(&self) -> MovedRights<'_> {
        MovedRights { region: &self.region, session: self.session, permits: self.taken }
    }

    const fn taken_in(&self, session: u64) -> u64 {
        if self.session == session { self.taken } else { 0 }
    }

    /// It has said what it has of us: what a lost memory had lent to it is counted as lent, unless all of
    /// that is known or `over`.
    fn report(&mut self, has: u64, over: bool) {
        let again = std::mem::replace(&mut self.has_reported, true);
        if !again && !over {
            self.given = self.given.max(has);
        }
    }

    /// Its owner was heard: it counts as lent what is borrowed from it, or `counts` that now.
    fn confirm(&mut self, counts: bool, heard: Timestamp) {
        if counts || !self.is_uncounted {
            self.is_uncounted = false;
            self.heard = self.heard.max(heard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);
    const SECOND: Span = Span::from_secs(1);

    fn terms(share: u64, begun: Timestamp) -> PlacesTerms {
        PlacesTerms {
            share,
            hold: Span::from_secs(10),
            begun,
            margins: Margins::USUAL,
            safety: EscrowSafety::ALL,
        }
    }

    fn open_session(region: &str, session: u64, has: Option<u64>, gave: Option<u64>) -> PlacesStep {
        PlacesStep::OpenSession { region: region.into(), session, has, gave }
    }

    fn give(to: &str, permits: u64) -> PlacesStep {
        gives(to, 7, permits)
    }

    fn gives(to: &str, session: u64, permits: u64) -> PlacesStep {
        PlacesStep::Give(Giving { to: to.into(), session, permits })
    }

    fn take(ledger: &PlacesLedger, from: &str, session: u64, permits: u64) -> PlacesStep {
        PlacesStep::Take(Taking { from: from.into(), session, to_session: ledger.session, permits })
    }

    fn empty(now: Timestamp) -> PlacesLedger {
        PlacesLedger::new(now.0)
    }

    /// The session of a region, and what went there and came from there.
    fn moved(ledger: &PlacesLedger, region: &str) -> (u64, u64, u64) {
        let partner = ledger.partner(region).unwrap();
        (partner.session, partner.given, partner.taken)
    }

    /// Carries out steps beside `held` holders; what may be held then.
    fn after(
        terms: &PlacesTerms,
        ledger: &mut PlacesLedger,
        held: u64,
        now: Timestamp,
        steps: &[PlacesStep],
    ) -> u64 {
        for step in steps {
            terms.carry_out(ledger, held, Some((now, step)), now);
        }
        terms.capacity(Some(ledger), now)
    }

    #[test]
    fn what_is_held_is_not_lent_and_what_is_lent_is_not_held() {
        let (terms, mut ledger) = (terms(5, Timestamp(0)), empty(NOW));
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[give("b", 1)]), 5, "nobody has met b");
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[open_session("b", 7, None, None), give("b", 4)]), 5);
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[give("b", 3)]), 2);
        assert_eq!((ledger.lent(), ledger.partner("b").map(LoanPartner::lent)), (3, Some(3)));
    }

    #[test]
    fn what_was_borrowed_only_goes_home() {
        let (terms, mut ledger) = (terms(0, Timestamp(0)), empty(NOW));
        let steps =
            [open_session("b", 7, None, None), open_session("c", 7, None, None), take(&ledger, "b", 7, 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 4);
        assert_eq!(after(&terms, &mut ledger, 1, NOW, &[give("c", 1)]), 4);
        assert_eq!(after(&terms, &mut ledger, 1, NOW, &[give("b", 3)]), 1);
    }

    #[test]
    fn beside_a_daemon_that_does_not_see_loans_nothing_is_lent_however_late_a_step_is() {
        let (terms, mut ledger) = (terms(5, Timestamp(0)), empty(NOW));
        let steps = [open_session("b", 7, None, None), take(&ledger, "b", 7, 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 9);
        let back = |permits| PlacesStep::GiveBack(Giving { to: "b".into(), session: 7, permits });
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[back(3)]), 6);
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[back(3)]), 6, "one of them was borrowed");
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[back(1), back(1)]), 5);
    }

    #[test]
    fn a_loan_is_of_use_while_its_owner_is_heard_and_revives_when_it_is_heard_again() {
        let (terms, mut ledger) = (terms(1, Timestamp(0)), empty(NOW));
        let steps = [take(&ledger, "b", 7, 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 5);
        let late = NOW + LOAN_LIFE;
        assert_eq!(terms.capacity(Some(&ledger), late), 1);
        assert_eq!(after(&terms, &mut ledger, 0, late, &[open_session("b", 7, None, Some(4))]), 5);
    }

    #[test]
    fn a_new_memory_owns_nothing_until_all_have_said_what_they_have_or_all_loans_are_over() {
        let (terms, mut ledger) = (terms(5, NOW), empty(NOW));
        let now = NOW + SECOND;
        let confirm = PlacesStep::ConfirmRecovery { regions: vec!["b".into(), "c".into()] };
        let told = [open_session("b", 7, Some(2), None), confirm.clone()];
        assert_eq!(after(&terms, &mut ledger, 0, now, &told), 0);
        assert_eq!(after(&terms, &mut ledger, 0, now, &[open_session("c", 7, Some(0), None), confirm]), 3);
        let mut silent = empty(NOW);
        let over = NOW + terms.margins.recall(terms.hold);
        assert_eq!(after(&terms, &mut silent, 0, Timestamp(over.0 - 1), &[]), 0);
        assert_eq!(after(&terms, &mut silent, 0, over, &[]), 5);
        // Places of a statement that comes too late were given up by the region that sends it, or will be.
        assert_eq!(after(&terms, &mut silent, 0, over, &[open_session("b", 7, Some(2), None)]), 5);
    }

    #[test]
    fn what_was_borrowed_of_a_lost_memory_is_kept_for_its_owner_to_count_and_dropped_if_it_does_not() {
        let (terms, begun) = (terms(1, Timestamp(0)), empty(NOW));
        let lent = |ledger: &mut PlacesLedger| after(&terms, ledger, 0, NOW, &[take(&begun, "b", 7, 4)]);
        let (mut counted, mut forgotten) = (begun.clone(), begun.clone());
        assert_eq!((lent(&mut counted), lent(&mut forgotten)), (5, 5));
        let soon = NOW + Span::from_secs(50);
        let known = [open_session("b", 9, None, None), open_session("b", 9, Some(0), Some(4))];
        assert_eq!(after(&terms, &mut counted, 0, soon, &known), 5);
        assert_eq!(after(&terms, &mut forgotten, 0, soon, &known[..1]), 5);
        let later = NOW + LOAN_LIFE + terms.hold;
        assert_eq!(terms.capacity(Some(&counted), later), 5);
        assert_eq!(after(&terms, &mut forgotten, 0, later, &[open_session("b", 9, Some(0), Some(0))]), 1);
        assert_eq!(moved(&forgotten, "b"), (9, 0, 0));
        // Places that the lost memory had sent are not taken any more.
        assert_eq!(after(&terms, &mut counted, 0, later, &[take(&begun, "b", 7, 6)]), 5);
    }

    #[test]
    fn what_was_borrowed_of_a_lost_memory_is_not_given_back_to_one_that_never_counted_it() {
        let hold = Span::from_secs(10);
        let at = |seconds| NOW + Span::from_secs(seconds);
        // The owner lends eight of its ten, and loses its memory.
        let (before, mut lender) = (terms(10, Timestamp(0)), empty(NOW));
        let (own, mut borrower) = (terms(10, Timestamp(0)), empty(NOW));
        let opens = open_session("b", borrower.session, None, None);
        let lends = gives("b", borrower.session, 8);
        assert_eq!(after(&before, &mut lender, 0, at(2), &[opens, lends]), 2);
        let takes = take(&borrower, "a", lender.session, 8);
        assert_eq!(after(&own, &mut borrower, 0, at(2), &[takes]), 18);
        // The next memory is heard by the borrower, and does not hear it.
        let (next, mut owner) = (terms(10, at(10)), empty(at(10) + hold + RECOVERY_MARGIN));
        let session = owner.session;
        let heard = [open_session("a", session, None, None), gives("a", session, 8)];
        assert_eq!(after(&own, &mut borrower, 0, at(24), &heard), 18);
        assert_eq!(moved(&borrower, "a").1, 0);
        // The cut ends when the loan is over on both sides. Whatever the borrower says then is of no loan.
        let late = at(10) + next.margins.recall(hold) + SECOND;
        after(&own, &mut borrower, 0, late, &[open_session("a", session, Some(0), Some(0))]);
        let (known, gave, has) = moved(&borrower, "a");
        assert_eq!((known, has, gave), (session, 0, 0));
        let told = [open_session("b", borrower.session, Some(has), Some(gave))];
        let owned = after(&next, &mut owner, 0, late, &told);
        assert_eq!((owned, own.capacity(Some(&borrower), late)), (10, 10));
    }

    #[test]
    fn what_was_borrowed_of_a_lost_memory_goes_home_once_it_is_counted() {
        let (terms, mut ledger) = (terms(0, Timestamp(0)), empty(NOW));
        let steps = [take(&ledger, "b", 5, 4), open_session("b", 7, None, None), give("b", 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 4);
        assert_eq!(
            after(&terms, &mut ledger, 0, NOW, &[open_session("b", 7, Some(0), Some(4)), give("b", 4)]),
            0
        );
        assert_eq!(moved(&ledger, "b").1, 4);
    }

    #[test]
    fn what_was_lent_to_a_lost_memory_is_at_home_again_once_the_next_one_speaks() {
        let (terms, mut ledger) = (terms(5, Timestamp(0)), empty(NOW));
        let steps = [open_session("b", 7, None, None), give("b", 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 1);
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &[open_session("b", 9, None, None)]), 5);
    }

    #[test]
    fn a_ledger_with_loans_is_not_forgotten_because_a_clock_was_set_forward() {
        let (terms, mut ledger) = (terms(5, Timestamp(0)), empty(NOW));
        after(&terms, &mut ledger, 0, NOW, &[open_session("b", 7, None, None)]);
        assert_eq!(terms.kept(&ledger), terms.margins.recall(terms.hold));
        after(&terms, &mut ledger, 0, NOW, &[give("b", 1)]);
        assert_eq!(terms.kept(&ledger), LENT_KEPT);
    }
}
