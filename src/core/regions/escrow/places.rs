//! Places of a `concurrency` rule, lent between regions.
//!
//! Each region owns its share of the places and may hold as many, less what it lent, plus what it has
//! borrowed. Both are read from cumulative totals of each pair of regions, as rights of windows are
//! ([`super::ledger`]): what was given and not come back is *lent*, what was taken and not given back is
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
//!    of this one, what it still has ([`Step::OpenSession`]; from then on nothing of the old session is
//!    taken), and counts that as lent. Who does not say so in time has nothing left: a region uses what it
//!    borrowed only for [`Margins::loan_life`] after the owner was heard, in the session that lent it or one
//!    that has counted it. So a lost memory's loans have ended, and with them who was held there, when
//!    message life, loan life and a hold have passed since the next memory began. Nothing that is said
//!    afterwards is counted as lent, and nothing is used of it: it is dropped on the other side after the
//!    same time. Until the next memory has counted a loan, the borrower gives it nothing: an owner that no
//!    longer expects a loan would own those places twice if they came back.
//!
//! Only 3 reads two regions' clocks, and only durations: a region that was cut off from an owner that lost
//! its memory must not have its clock stepped back meanwhile by more than the margin. Who has no loans out is
//! hurt by none of this.
//!
//! A share that shrinks below what is lent lets the loans run out: the owner stops confirming them, and
//! others grow only when [`Margins::recall`] has passed.

use super::super::super::algorithm::Limit;
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::rights::{TOTALS_MAX, Total};
use super::EscrowSafety;
use super::ledger::{Ledger, RECOVERY_MARGIN, Step, StepRequest, StepResult};
use super::level::MESSAGE_LIFE;

/// For so long after its owner was heard a region may use what it borrowed.
pub const LOAN_LIFE: Span = Span::from_secs(60);
/// A ledger with loans is kept for so long after it was last used: a clock that is set forward must not make
/// an owner forget.
pub const LENT_KEPT: Span = Span::from_secs(30 * 24 * 3_600);

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
    /// How long places are held without renewing.
    pub hold: Span,
    /// When the store's memory began.
    pub begun: Timestamp,
    /// How long what is sent and lent may last.
    pub margins: Margins,
    /// The rules in force.
    pub safety: EscrowSafety,
}

/// What a ledger of places says beyond its totals.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoanBook {
    /// The region's part of the limit when the ledger was last used.
    pub share: u64,
    /// Places that could be held then.
    pub capacity: u64,
    /// Every other region has said what it has of a memory before this one.
    pub vouched: bool,
    /// Regions that have been met. Each has one entry in what was given and one in what was taken, of its
    /// latest session.
    pub bonds: Vec<LoanPartner>,
}

/// What is known of another region beyond totals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoanPartner {
    /// Which.
    pub region: String,
    /// When it last confirmed what was borrowed from it, by the own clock.
    pub heard: Timestamp,
    /// It has said what it has of a memory before ours.
    pub told: bool,
    /// Something was borrowed from a memory that it lost, and it has not yet counted that as lent.
    pub carried: bool,
}

impl PlacesTerms {
    /// Whether this memory may be named to others: no holder of one before it is left.
    #[must_use]
    pub fn is_settled(&self, now: Timestamp) -> bool {
        self.begun == Timestamp(0) || now >= self.begun + self.hold + RECOVERY_MARGIN
    }

    /// Whether nothing is left of what a memory before this one had lent.
    fn is_past(&self, now: Timestamp) -> bool {
        self.begun == Timestamp(0)
            || now >= self.begun + self.margins.recall(self.hold)
            || !self.safety.lost_loans_are_burnt
    }

    /// Places that are this region's to hold or to lend.
    #[must_use]
    pub fn own(&self, ledger: Option<&Ledger>, now: Timestamp) -> u64 {
        let vouched = ledger.and_then(|ledger| ledger.loans.as_ref()).is_some_and(|loans| loans.vouched);
        if vouched || self.is_past(now) { self.share } else { 0 }
    }

    /// Places that may be held here at `now`.
    #[must_use]
    pub fn capacity(&self, ledger: Option<&Ledger>, now: Timestamp) -> u64 {
        let own = self.own(ledger, now);
        let Some(ledger) = ledger else { return own };
        let bonds = ledger.loans.iter().flat_map(|loans| &loans.bonds);
        let borrowed =
            bonds.filter(|bond| self.is_alive(bond, now)).map(|bond| ledger.borrowed_from(&bond.region));
        borrowed.fold(own.saturating_sub(ledger.lent()), u64::saturating_add)
    }

    /// The limit that holders are checked against.
    #[must_use]
    pub fn limit(&self, ledger: Option<&Ledger>, now: Timestamp) -> Limit {
        let permits = u32::try_from(self.capacity(ledger, now)).unwrap_or(u32::MAX);
        Limit { calendar: None, permits, window: self.hold, burst: permits, queue: 0 }
    }

    fn is_alive(&self, bond: &LoanPartner, now: Timestamp) -> bool {
        now < bond.heard + self.margins.loan_life || !self.safety.loans_lapse
    }

    /// Whether nobody can hold what was borrowed under this bond any more.
    fn is_over(&self, bond: &LoanPartner, now: Timestamp) -> bool {
        now >= bond.heard + self.margins.loan_life + self.hold
    }

    /// Carries out a step of a ledger beside which `held` places have holders.
    pub fn carry_out(&self, ledger: &mut Ledger, held: u64, ask: &StepRequest, now: Timestamp) {
        self.drop_lost(ledger, now);
        // Not later than now, whatever clock it was read from.
        let heard = Timestamp(ask.window).min(now);
        match &ask.step {
            Step::Read | Step::Acknowledge { .. } => {}
            Step::Give { to, session, permits } => self.give(ledger, (to, *session, *permits), held, now),
            Step::Take { from, session, to_session, permits, .. } => {
                let ours = *to_session == ledger.session || !self.safety.sessions_are_fenced;
                if ours && self.meet(ledger, from, *session, now) {
                    let taken = ledger.taken_from(from, *session);
                    if let Some(total) = entry(&mut ledger.taken, from) {
                        total.permits = if self.safety.takes_are_cumulative {
                            taken.max(*permits)
                        } else {
                            taken.saturating_add(*permits)
                        };
                    }
                    self.confirm(ledger, from, *permits >= taken, heard);
                }
            }
            Step::OpenSession { region, session, has, gave } => {
                if self.meet(ledger, region, *session, now) {
                    if let Some(has) = has {
                        self.count(ledger, region, *has, now);
                    }
                    if let Some(gave) = gave {
                        self.confirm(ledger, region, *gave >= ledger.taken_from(region, *session), heard);
                    }
                }
            }
            Step::ConfirmRecovery { regions } => {
                if let Some(loans) = &mut ledger.loans {
                    let told =
                        |name: &String| loans.bonds.iter().any(|bond| bond.region == *name && bond.told);
                    loans.vouched = loans.vouched || regions.iter().all(told);
                }
            }
        }
        self.show(ledger, now);
    }

    /// Has a ledger say what holds at `now`.
    fn show(&self, ledger: &mut Ledger, now: Timestamp) {
        ledger.minted = self.own(Some(ledger), now);
        let capacity = self.capacity(Some(ledger), now);
        let loans = ledger.loans.get_or_insert_default();
        (loans.share, loans.capacity) = (self.share, capacity);
    }

    /// The ledger as it is at `now`, with the places that are held.
    #[must_use]
    pub fn balance(&self, ledger: &Ledger, held: u64, now: Timestamp) -> StepResult {
        let mut ledger = ledger.clone();
        self.show(&mut ledger, now);
        StepResult { ledger, used: held }
    }

    /// How long a ledger is kept after it was used.
    #[must_use]
    pub fn kept(&self, ledger: &Ledger) -> Span {
        let bonds = ledger.loans.iter().flat_map(|loans| &loans.bonds);
        let level =
            |bond: &LoanPartner| ledger.lent_to(&bond.region) == 0 && ledger.borrowed_from(&bond.region) == 0;
        let recall = self.margins.recall(self.hold);
        // What was under way from here has come before another ledger can be begun.
        if bonds.clone().all(level) { recall } else { recall.max(LENT_KEPT) }
    }

    fn give(&self, ledger: &mut Ledger, (to, session, permits): (&str, u64, u64), held: u64, now: Timestamp) {
        let Some(bond) = ledger.bond(to).filter(|_| ledger.session_of(to) == Some(session)) else { return };
        // Its owner has not counted this loan yet, and perhaps never will.
        if bond.carried && self.safety.gives_back_only_what_is_counted {
            return;
        }
        let capacity = self.capacity(Some(ledger), now);
        let borrowed = ledger.borrowed_from(to);
        // What is not used any more leaves no place less to hold.
        let unused = if self.is_alive(bond, now) || held > capacity { 0 } else { borrowed };
        let free = capacity.saturating_sub(held).saturating_add(unused);
        let lent = ledger.lent().saturating_add(permits.saturating_sub(borrowed));
        let owned = permits <= borrowed || lent <= self.own(Some(ledger), now);
        let enough = permits <= free || !self.safety.gives_only_what_is_free;
        let may = permits > 0 && enough && (owned || !self.safety.lends_only_its_own);
        if let Some(total) = entry(&mut ledger.given, to).filter(|_| may) {
            total.permits = total.permits.saturating_add(permits);
        }
    }

    /// Follows a region into a later session. `false`: this one is over, or there is no room for another
    /// region.
    fn meet(&self, ledger: &mut Ledger, region: &str, session: u64, now: Timestamp) -> bool {
        let Some(known) = ledger.session_of(region) else {
            let loans = ledger.loans.get_or_insert_default();
            if loans.bonds.len() >= TOTALS_MAX {
                return false;
            }
            let region = region.to_owned();
            ledger.given.push(Total { region: region.clone(), session, permits: 0 });
            ledger.taken.push(Total { region: region.clone(), session, permits: 0 });
            loans.bonds.push(LoanPartner { region, heard: Timestamp(0), told: false, carried: false });
            return true;
        };
        if known >= session {
            return known == session || !self.safety.sessions_are_fenced;
        }
        // What was lent to the memory before is at home again; what is borrowed of it is for it to count.
        let borrowed = ledger.borrowed_from(region);
        let Some(bond) = ledger.loans.as_mut().and_then(|loans| loans.bond_mut(region)) else { return false };
        let carried = if self.is_over(bond, now) && self.safety.loans_lapse { 0 } else { borrowed };
        bond.carried = carried > 0;
        if let Some(given) = entry(&mut ledger.given, region) {
            (given.session, given.permits) = (session, 0);
        }
        if let Some(taken) = entry(&mut ledger.taken, region) {
            (taken.session, taken.permits) = (session, carried);
        }
        true
    }

    /// A region has said what it has of us: what a lost memory had lent to it is counted as lent.
    fn count(&self, ledger: &mut Ledger, region: &str, has: u64, now: Timestamp) {
        let vouched = ledger.loans.as_ref().is_some_and(|loans| loans.vouched);
        let Some(bond) = ledger.loans.as_mut().and_then(|loans| loans.bond_mut(region)) else { return };
        if std::mem::replace(&mut bond.told, true) || vouched || self.is_past(now) {
            return;
        }
        if let Some(given) = entry(&mut ledger.given, region) {
            given.permits = given.permits.max(has);
        }
    }

    /// An owner was heard that counts as lent what is borrowed from it, or `counts` that now.
    fn confirm(&self, ledger: &mut Ledger, region: &str, counts: bool, heard: Timestamp) {
        let Some(bond) = ledger.loans.as_mut().and_then(|loans| loans.bond_mut(region)) else { return };
        if counts || !bond.carried {
            bond.carried = false;
            bond.heard = bond.heard.max(heard);
        }
    }

    /// Gives up what was borrowed from a memory that is lost, once its owner may count without it.
    fn drop_lost(&self, ledger: &mut Ledger, now: Timestamp) {
        let Ledger { given, taken, loans: Some(loans), .. } = ledger else { return };
        for bond in &mut loans.bonds {
            if bond.carried && self.safety.loans_lapse && self.is_over(bond, now) {
                bond.carried = false;
                let back =
                    given.iter().find(|total| total.region == bond.region).map_or(0, |given| given.permits);
                if let Some(taken) = entry(taken, &bond.region) {
                    taken.permits = taken.permits.min(back);
                }
            }
        }
    }
}

impl LoanBook {
    fn bond_mut(&mut self, region: &str) -> Option<&mut LoanPartner> {
        self.bonds.iter_mut().find(|bond| bond.region == region)
    }
}

impl Ledger {
    /// What is known of another region, where places are lent.
    #[must_use]
    pub fn bond(&self, region: &str) -> Option<&LoanPartner> {
        self.loans.as_ref()?.bonds.iter().find(|bond| bond.region == region)
    }

    /// Places lent to a region that have not come back.
    #[must_use]
    pub fn lent_to(&self, region: &str) -> u64 {
        net(&self.given, &self.taken, region)
    }

    /// Places borrowed from a region that were not given back.
    #[must_use]
    pub fn borrowed_from(&self, region: &str) -> u64 {
        net(&self.taken, &self.given, region)
    }

    /// Places lent to all regions together.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.given.iter().map(|given| self.lent_to(&given.region)).fold(0, u64::saturating_add)
    }

    /// Whether the share covers what is lent. If not, a larger one was lent of, and nothing is said that
    /// would confirm it.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.loans.as_ref().is_none_or(|loans| self.lent() <= loans.share)
    }

    /// The latest session of a region that was met.
    fn session_of(&self, region: &str) -> Option<u64> {
        self.given.iter().find(|total| total.region == region).map(|total| total.session)
    }
}

fn net(from: &[Total], to: &[Total], region: &str) -> u64 {
    let of = |totals: &[Total]| {
        totals.iter().find(|total| total.region == region).map_or(0, |total| total.permits)
    };
    of(from).saturating_sub(of(to))
}

fn entry<'t>(totals: &'t mut [Total], region: &str) -> Option<&'t mut Total> {
    totals.iter_mut().find(|total| total.region == region)
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

    fn ask(now: Timestamp, step: Step) -> StepRequest {
        let rule = super::super::RuleName { domain: "default".into(), name: "r".into() };
        StepRequest {
            key: super::super::WorldKey { rule, identity: Vec::new() },
            window: now.0,
            step,
            own: None,
        }
    }

    fn meet(region: &str, session: u64, has: Option<u64>, gave: Option<u64>) -> Step {
        Step::OpenSession { region: region.into(), session, has, gave }
    }

    fn give(to: &str, permits: u64) -> Step {
        Step::Give { to: to.into(), session: 7, permits }
    }

    fn take(ledger: &Ledger, from: &str, session: u64, permits: u64) -> Step {
        Step::Take { from: from.into(), session, to_session: ledger.session, permits, keep: 0 }
    }

    /// Carries out steps beside `held` holders; what may be held then.
    fn after(terms: &PlacesTerms, ledger: &mut Ledger, held: u64, now: Timestamp, steps: &[Step]) -> u64 {
        for step in steps {
            terms.carry_out(ledger, held, &ask(now, step.clone()), now);
        }
        terms.capacity(Some(ledger), now)
    }

    #[test]
    fn what_is_held_is_not_lent_and_what_is_lent_is_not_held() {
        let (terms, mut ledger) = (terms(5, Timestamp(0)), Ledger::without_windows(NOW));
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[give("b", 1)]), 5, "nobody has met b");
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[meet("b", 7, None, None), give("b", 4)]), 5);
        assert_eq!(after(&terms, &mut ledger, 2, NOW, &[give("b", 3)]), 2);
        assert_eq!((ledger.lent(), ledger.lent_to("b")), (3, 3));
    }

    #[test]
    fn what_was_borrowed_only_goes_home() {
        let (terms, mut ledger) = (terms(0, Timestamp(0)), Ledger::without_windows(NOW));
        let steps = [meet("b", 7, None, None), meet("c", 7, None, None), take(&ledger, "b", 7, 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 4);
        assert_eq!(after(&terms, &mut ledger, 1, NOW, &[give("c", 1)]), 4);
        assert_eq!(after(&terms, &mut ledger, 1, NOW, &[give("b", 3)]), 1);
    }

    #[test]
    fn a_loan_is_of_use_while_its_owner_is_heard_and_revives_when_it_is_heard_again() {
        let (terms, mut ledger) = (terms(1, Timestamp(0)), Ledger::without_windows(NOW));
        let steps = [take(&ledger, "b", 7, 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 5);
        let late = NOW + LOAN_LIFE;
        assert_eq!(terms.capacity(Some(&ledger), late), 1);
        assert_eq!(after(&terms, &mut ledger, 0, late, &[meet("b", 7, None, Some(4))]), 5);
    }

    #[test]
    fn a_new_memory_owns_nothing_until_all_have_said_what_they_have_or_all_loans_are_over() {
        let (terms, mut ledger) = (terms(5, NOW), Ledger::without_windows(NOW));
        let now = NOW + SECOND;
        let vouch = Step::ConfirmRecovery { regions: vec!["b".into(), "c".into()] };
        let told = [meet("b", 7, Some(2), None), vouch.clone()];
        assert_eq!(after(&terms, &mut ledger, 0, now, &told), 0);
        assert_eq!(after(&terms, &mut ledger, 0, now, &[meet("c", 7, Some(0), None), vouch]), 3);
        let mut silent = Ledger::without_windows(NOW);
        let over = NOW + terms.margins.recall(terms.hold);
        assert_eq!(after(&terms, &mut silent, 0, Timestamp(over.0 - 1), &[Step::Read]), 0);
        assert_eq!(after(&terms, &mut silent, 0, over, &[Step::Read]), 5);
        // What is said too late was dropped by who says it, or will be.
        assert_eq!(after(&terms, &mut silent, 0, over, &[meet("b", 7, Some(2), None)]), 5);
    }

    #[test]
    fn what_was_borrowed_of_a_lost_memory_is_kept_for_its_owner_to_count_and_dropped_if_it_does_not() {
        let (terms, begun) = (terms(1, Timestamp(0)), Ledger::without_windows(NOW));
        let lent = |ledger: &mut Ledger| after(&terms, ledger, 0, NOW, &[take(&begun, "b", 7, 4)]);
        let (mut counted, mut forgotten) = (begun.clone(), begun.clone());
        assert_eq!((lent(&mut counted), lent(&mut forgotten)), (5, 5));
        let soon = NOW + Span::from_secs(50);
        let known = [meet("b", 9, None, None), meet("b", 9, Some(0), Some(4))];
        assert_eq!(after(&terms, &mut counted, 0, soon, &known), 5);
        assert_eq!(after(&terms, &mut forgotten, 0, soon, &known[..1]), 5);
        let later = NOW + LOAN_LIFE + terms.hold;
        assert_eq!(terms.capacity(Some(&counted), later), 5);
        assert_eq!(after(&terms, &mut forgotten, 0, later, &[meet("b", 9, Some(0), Some(0))]), 1);
        assert_eq!(forgotten.taken_from("b", 9), 0);
        // What the lost memory had sent is not taken any more.
        assert_eq!(after(&terms, &mut counted, 0, later, &[take(&begun, "b", 7, 6)]), 5);
    }

    #[test]
    fn what_was_borrowed_of_a_lost_memory_is_not_given_back_to_one_that_never_counted_it() {
        let hold = Span::from_secs(10);
        let at = |seconds| NOW + Span::from_secs(seconds);
        // The owner lends eight of its ten, and loses its memory.
        let (before, mut lender) = (terms(10, Timestamp(0)), Ledger::without_windows(NOW));
        let (own, mut borrower) = (terms(10, Timestamp(0)), Ledger::without_windows(NOW));
        let meets = meet("b", borrower.session, None, None);
        let gives = Step::Give { to: "b".into(), session: borrower.session, permits: 8 };
        assert_eq!(after(&before, &mut lender, 0, at(2), &[meets, gives]), 2);
        let takes = take(&borrower, "a", lender.session, 8);
        assert_eq!(after(&own, &mut borrower, 0, at(2), &[takes]), 18);
        // The next memory is heard by the borrower, and does not hear it.
        let (next, mut owner) = (terms(10, at(10)), Ledger::without_windows(at(10) + hold + RECOVERY_MARGIN));
        let session = owner.session;
        let heard = [meet("a", session, None, None), Step::Give { to: "a".into(), session, permits: 8 }];
        assert_eq!(after(&own, &mut borrower, 0, at(24), &heard), 18);
        assert_eq!(borrower.given_to("a", session), 0);
        // The cut ends when the loan is over on both sides. Whatever the borrower says then is of no loan.
        let late = at(10) + next.margins.recall(hold) + SECOND;
        after(&own, &mut borrower, 0, late, &[meet("a", session, Some(0), Some(0))]);
        let (has, gave) = (borrower.taken_from("a", session), borrower.given_to("a", session));
        assert_eq!((has, gave), (0, 0));
        let told = [meet("b", borrower.session, Some(has), Some(gave))];
        let owned = after(&next, &mut owner, 0, late, &told);
        assert_eq!((owned, own.capacity(Some(&borrower), late)), (10, 10));
    }

    #[test]
    fn what_was_borrowed_of_a_lost_memory_goes_home_once_it_is_counted() {
        let (terms, mut ledger) = (terms(0, Timestamp(0)), Ledger::without_windows(NOW));
        let steps = [take(&ledger, "b", 5, 4), meet("b", 7, None, None), give("b", 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 4);
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &[meet("b", 7, Some(0), Some(4)), give("b", 4)]), 0);
        assert_eq!(ledger.given_to("b", 7), 4);
    }

    #[test]
    fn what_was_lent_to_a_lost_memory_is_at_home_again_once_the_next_one_speaks() {
        let (terms, mut ledger) = (terms(5, Timestamp(0)), Ledger::without_windows(NOW));
        let steps = [meet("b", 7, None, None), give("b", 4)];
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &steps), 1);
        assert_eq!(after(&terms, &mut ledger, 0, NOW, &[meet("b", 9, None, None)]), 5);
    }

    #[test]
    fn a_ledger_with_loans_is_not_forgotten_because_a_clock_was_set_forward() {
        let (terms, mut ledger) = (terms(5, Timestamp(0)), Ledger::without_windows(NOW));
        after(&terms, &mut ledger, 0, NOW, &[meet("b", 7, None, None)]);
        assert_eq!(terms.kept(&ledger), terms.margins.recall(terms.hold));
        after(&terms, &mut ledger, 0, NOW, &[give("b", 1)]);
        assert_eq!(terms.kept(&ledger), LENT_KEPT);
    }
}
