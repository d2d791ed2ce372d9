//! One bucket of a rule, as far as it is assigned: what each stream may spend of it, and the pool.

use std::collections::BTreeMap;

use super::divide::level;
use super::spending::{LostPermits, Spending};
use super::{MARGIN, QuotaTerms, TTL};
use crate::time::{Span, Timestamp};

/// A stream whose need is not known yet is given one of so many parts of what is left, within these bounds.
const UNKNOWN_PART: u64 = 8;
const UNKNOWN_LEAST: u64 = 8;
const UNKNOWN_MOST: u64 = 10_000;
/// Where there is too little for longer, a stream has as much as it needs for so long.
const STEADY_LEAST: Span = Span::from_secs(7);
/// The least where others may give more when they hear of it.
const UNKNOWN_WISH: u64 = 64;
/// So long after more was asked for than there is it may have come.
const WISH_HEARD: Span = Span::from_millis(750);
/// An amount lasts for so long: until the next report, and a while.
const AMOUNT_LASTS: Span = Span::from_millis(6_500);
/// An amount that lasts no longer is followed by the next.
const NEARLY_SPENT: Span = Span::from_millis(250);
/// So long before the end of an amount its stream is looked at.
const NEXT_AHEAD: Span = Span::from_millis(150);
/// So late in the time of a report an assignment may come that its denials are said of.
const ARRIVES_WITHIN: Span = Span::from_secs(1);
/// The least amount.
const AMOUNT_LEAST: u64 = 2;
/// The least need of a stream, in thousandths of a permit a second.
const NEED_LEAST: u64 = 200;
/// Terms stay as they are while they are so many eighths of what the stream would be assigned now.
const KEEP_LEAST: u64 = 7;
const KEEP_MOST: u64 = 11;
/// The division between streams is worked out again after so long, or at once where they are few.
const DIVISION_HOLDS: Span = Span::from_millis(100);
const FEW_STREAMS: usize = 64;
/// Terms in force that live longer than that outlive the next report.
const NEXT_REPORT: Span = Span::from_millis(5_500);
/// A stream that finds too little is looked at again after so long, while more may come back.
const RETRY: Span = Span::from_millis(250);
/// So long before the end of a window assignments are renewed once more: times to live are whole seconds, and
/// two of them reach from there to the margin.
const LAST_RENEWAL: Span = Span(MARGIN.0 + 2_030_000);
/// Entries of what lost streams may still spend. Beyond that the oldest two become one.
const LOST_MAX: usize = 64;
/// After a window has ended, what is assigned of the next one waits for so long: the store's clock decides
/// which window counts it.
const SETTLE: Span = Span::from_millis(200);

/// A gateway's report of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageReport {
    /// Requests that it let pass.
    pub allowed: u64,
    /// Requests that it denied.
    pub denied: u64,
    /// Since the report before; zero for the first.
    pub elapsed: Span,
}

/// The permits that the rule's bucket has left, and the end of the window that they are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RightsLeft {
    /// Permits left.
    pub permits: u64,
    /// The begin of their window.
    pub begins: Timestamp,
    /// The end of their window.
    pub ends: Timestamp,
    /// Others may give more where they hear that it is asked for.
    pub may_grow: bool,
}

/// The permits that a stream may have, and those that there are.
#[derive(Debug, Clone, Copy)]
struct MayHave {
    allowed: u64,
    available: u64,
}

/// An assignment as it is planned, before its permits are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignmentPlan {
    terms: QuotaTerms,
    ttl: Span,
    ends: Timestamp,
    is_fresh: bool,
    /// Permits to take from the rule's bucket first, all or none.
    pub take: u64,
    /// More than that to ask for before, where others may give more when they hear of it.
    pub wish: Option<u64>,
}

/// An assignment that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The token bucket.
    pub terms: QuotaTerms,
    /// Its time to live, in whole seconds.
    pub ttl_s: u32,
    /// The gateway begins it full: what is left of the one before it is void.
    pub is_fresh: bool,
}

/// The newest report of a stream, as far as plans need it.
#[derive(Debug, Clone, Copy)]
struct LastHeard {
    at: Timestamp,
    /// It tells of denials while the assignment in force was there: that is spent.
    is_dry: bool,
}

#[derive(Debug, Clone, Default)]
struct StreamShare {
    spending: Spending,
    /// Thousandths of a request a second; `None`: not known yet.
    demand: Option<u64>,
    last: Option<LastHeard>,
    /// More than there was has been asked for since the last report.
    has_wished: bool,
    /// When the stream is to be looked at although it reports nothing.
    due: Option<Timestamp>,
}

impl StreamShare {
    /// Permits that it needs in `during`, by its demand and a little more; `None` where that is not known.
    fn need(&self, during: Span) -> Option<u64> {
        Some(permits(rate_needed(self.demand?), during))
    }

    /// Permits that it has spent of this window, and needs for the rest of it.
    fn total(&self, rest: Span) -> u64 {
        match self.need(rest + MARGIN) {
            Some(need) => self.spending.used().saturating_add(need.max(AMOUNT_LEAST)),
            None => self.spending.charged,
        }
    }

    /// Permits of an amount in force that are left, by all that is known.
    fn left_of_amount(&self, now: Timestamp) -> u64 {
        let Some(last) = self.last.filter(|last| !last.is_dry) else { return 0 };
        let demand = self.demand.unwrap_or(0);
        // What was void when it came is not reported either, so its size counts as well.
        let whole = self.spending.terms(now).map_or(0, |(terms, _)| terms.max_tokens.into());
        let known = self.spending.known();
        let by_size = u64::saturating_sub(whole, permits(demand, now.since(known)));
        let by_report = permits(demand, now.since(last.at.max(known)));
        self.spending.unreported().saturating_sub(by_report).min(by_size)
    }
}

/// The rate for a demand, in thousandths of a permit a second.
fn rate_needed(demand: u64) -> u64 {
    demand.saturating_add(demand / 8).max(NEED_LEAST)
}

/// As much of it as is whole seconds.
fn whole_seconds(span: Span) -> Span {
    Span(span.0 - span.0 % 1_000_000)
}

/// Permits that this rate comes to.
fn permits(millis: u64, during: Span) -> u64 {
    u64::try_from(u128::from(millis) * u128::from(during.0) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// How long so many permits last at this rate.
fn lasting(permits: u64, millis: u64) -> Span {
    let micros = u128::from(permits) * 1_000_000_000 / u128::from(millis.max(1));
    Span(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// How a window is divided: the most that one stream has of it in all.
#[derive(Debug, Clone, Copy)]
struct Division {
    level: u64,
    at: Timestamp,
}

/// The assigned part of one bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketAssignments {
    /// The end of the window that the pool and all charges are of.
    ends: Option<Timestamp>,
    /// Permits taken that no stream has.
    pool: u64,
    lost: Vec<LostPermits>,
    /// Permits that may be spent in this window although they were taken from the one before, and that are
    /// still to be charged. Nothing is assigned meanwhile: it could be taken before them.
    carried: u64,
    streams: BTreeMap<u64, StreamShare>,
    division: Option<Division>,
}

impl BucketAssignments {
    /// Adds a stream, unless it is there.
    pub fn join(&mut self, stream: u64) {
        self.streams.entry(stream).or_default();
    }

    /// Notes a report. `anchor`: an instant after which it was surely written.
    pub fn report(&mut self, stream: u64, usage: UsageReport, anchor: Option<Timestamp>, now: Timestamp) {
        self.settle(stream, |share| {
            share.spending.report(usage.allowed, anchor, now);
            let asked = usage.allowed.saturating_add(usage.denied);
            if let Some(per_second) = asked.saturating_mul(1_000_000_000).checked_div(usage.elapsed.0) {
                let before = share.demand.unwrap_or(0);
                share.demand = Some(per_second.max(before / 2));
            }
            // What was denied before the assignment came says nothing of it.
            let was_there = share.spending.known() <= now - (usage.elapsed - ARRIVES_WITHIN);
            let is_dry = was_there && lasting(usage.denied, share.demand.unwrap_or(0)) >= NEARLY_SPENT;
            share.last = Some(LastHeard { at: now, is_dry });
            share.has_wished = false;
        });
    }

    /// Everything that a stream's connection had before `pinged` is received by `now`.
    pub fn received(&mut self, stream: u64, pinged: Timestamp, now: Timestamp) {
        self.settle(stream, |share| share.spending.received(pinged, now));
    }

    /// The connection of a stream has its newest assignment.
    pub fn written(&mut self, stream: u64, now: Timestamp) {
        if let Some(share) = self.streams.get_mut(&stream) {
            share.spending.written(now);
        }
    }

    /// Notes what a stream did, and puts permits that it cannot spend any more into the pool.
    fn settle(&mut self, stream: u64, note: impl FnOnce(&mut StreamShare)) {
        let Some(share) = self.streams.get_mut(&stream) else { return };
        note(share);
        let back = share.spending.charged.saturating_sub(share.spending.worst());
        share.spending.charged -= back;
        self.pool = self.pool.saturating_add(back);
    }

    /// Ends the window if it is over. Returns the permits that may be spent in the next one all the same:
    /// they are to be charged whatever is left.
    pub fn turn(&mut self, now: Timestamp) -> u64 {
        match self.ends {
            Some(ends) if ends <= now => self.turn_at(ends),
            _ => 0,
        }
    }

    fn turn_at(&mut self, at: Timestamp) -> u64 {
        (self.ends, self.pool, self.division) = (None, 0, None);
        self.lost.retain(|lost| lost.until > at);
        let lost: u64 = self.lost.iter().map(|lost| lost.permits).sum();
        let turn = |share: &mut StreamShare| {
            share.due = Some(at + SETTLE);
            share.spending.turn(at)
        };
        let streams: u64 = self.streams.values_mut().map(turn).sum();
        let carried = lost.saturating_add(streams);
        self.carried = self.carried.saturating_add(carried);
        carried
    }

    /// So many of the permits that [`Self::turn`] or [`Self::enter`] returned are charged now.
    pub fn carried(&mut self, permits: u64) {
        self.carried = self.carried.saturating_sub(permits);
    }

    /// Notes which window the rule counts in now. A rule that changed counts in another: what may still be
    /// spent is to be charged there.
    pub fn enter(&mut self, ends: Timestamp, now: Timestamp) -> u64 {
        let forced = self.ends.filter(|known| *known != ends).map_or(0, |known| self.turn_at(known.min(now)));
        self.ends = Some(ends);
        forced
    }

    /// The next assignment of a stream; `None` where it has what it needs, or nothing can be said now.
    #[must_use]
    pub fn plan(&mut self, stream: u64, left: RightsLeft, now: Timestamp) -> Option<AssignmentPlan> {
        let rest = left.ends.since(now);
        let share = self.streams.get_mut(&stream)?;
        let settled = left.begins + SETTLE;
        share.due = (now < settled).then_some(settled);
        if self.carried > 0 {
            share.due = share.due.or(Some(now + RETRY));
        }
        if share.has_wished && share.spending.awaits_receipt() {
            share.due = share.due.or(Some(now + RETRY));
        }
        if share.due.is_some() || share.spending.awaits_receipt() || self.ends != Some(left.ends) {
            return None;
        }
        let ttl = whole_seconds(rest - MARGIN).min(TTL);
        if ttl == Span::ZERO {
            return None;
        }
        let available = left.permits.saturating_add(self.pool);
        let (mut wish, demand) = (0, self.streams.get(&stream)?.demand);
        let (terms, ttl) = match demand {
            None if self.is_spendable(stream, now) => return None,
            None => {
                let least = if left.may_grow { UNKNOWN_WISH } else { UNKNOWN_LEAST };
                let part = (available / UNKNOWN_PART).clamp(least, UNKNOWN_MOST);
                wish = part;
                (QuotaTerms::amount(part.min(available)).unwrap_or(QuotaTerms::DENY), ttl)
            }
            Some(demand) => {
                let allowed = self.allowance(stream, available, rest, now).min(available);
                let steady = self.steady(stream, demand, now);
                match steady.lives_of(allowed).map(|lives| whole_seconds(lives - MARGIN).min(ttl)) {
                    Some(fits) if fits >= STEADY_LEAST.min(ttl) => (steady, fits),
                    _ => {
                        wish = permits(rate_needed(demand), AMOUNT_LASTS.min(ttl));
                        (self.amount(stream, MayHave { allowed, available }, ttl, now)?, ttl)
                    }
                }
            }
        };
        let is_fresh = terms.is_amount();
        let take = terms.worst(ttl + MARGIN).saturating_sub(self.pool);
        let share = self.streams.get_mut(&stream)?;
        let may_wish = left.may_grow && !share.has_wished;
        let wish = Some(wish.saturating_sub(self.pool)).filter(|wish| may_wish && *wish > left.permits);
        if wish.is_some() {
            (share.has_wished, share.due) = (true, Some(now + WISH_HEARD));
        }
        Some(AssignmentPlan { terms, ttl, ends: left.ends, is_fresh, take, wish })
    }

    /// The terms of a stream that has as much as it needs: those in force as long as they are near.
    fn steady(&self, stream: u64, demand: u64, now: Timestamp) -> QuotaTerms {
        let rate = rate_needed(demand);
        let in_force = self.streams.get(&stream).and_then(|share| share.spending.terms(now));
        let is_near = |terms: &QuotaTerms| {
            let eighths = terms.rate().saturating_mul(8);
            !terms.is_amount()
                && (rate.saturating_mul(KEEP_LEAST)..=rate.saturating_mul(KEEP_MOST)).contains(&eighths)
        };
        in_force.map(|(terms, _)| terms).filter(is_near).unwrap_or_else(|| QuotaTerms::of_rate(rate))
    }

    /// The terms of a stream that cannot have as much as it needs for as long as an assignment lives: permits
    /// until its next report, which it may use as fast as it likes. An amount that takes the place of one
    /// before makes what is left of that void, which only later reports give back: so it waits until the one
    /// before is nearly spent.
    fn amount(&mut self, stream: u64, most: MayHave, ttl: Span, now: Timestamp) -> Option<QuotaTerms> {
        let MayHave { allowed, available } = most;
        let level = self.division.map_or(u64::MAX, |division| division.level);
        let share = self.streams.get(&stream)?;
        let in_force = share.spending.terms(now).filter(|(terms, _)| *terms != QuotaTerms::DENY);
        let is_amount = in_force.is_some_and(|(terms, _)| terms.is_amount());
        let allowed =
            if is_amount { allowed.min(level.saturating_sub(share.spending.charged)) } else { allowed };
        let wanted = share.need(AMOUNT_LASTS.min(ttl))?.max(AMOUNT_LEAST);
        let mut left = 0;
        if let Some((before, until)) = in_force {
            let alive = until.since(now);
            left = if is_amount { share.left_of_amount(now) } else { before.filled(alive) };
            let lasts = lasting(left, rate_needed(share.demand?)).min(alive);
            if lasts >= NEXT_REPORT.min(ttl) {
                return None;
            }
            if is_amount && lasts > NEARLY_SPENT {
                return self.look_at(stream, now + (lasts - NEXT_AHEAD));
            }
        }
        let is_too_little = in_force.is_some() && wanted.min(allowed) <= left;
        if (is_too_little || wanted > available) && self.awaits_any_receipt() {
            // Permits that another was worth come back as soon as its successor's receipt is known.
            return self.look_at(stream, now + RETRY);
        }
        if is_too_little {
            return None;
        }
        Some(QuotaTerms::amount(wanted.min(allowed)).unwrap_or(QuotaTerms::DENY))
    }

    /// Has a stream looked at again.
    fn look_at(&mut self, stream: u64, due: Timestamp) -> Option<QuotaTerms> {
        self.streams.get_mut(&stream)?.due = Some(due);
        None
    }

    /// The permits that a stream may still have of this window, with those that it has: by max-min of what
    /// each has spent and needs for the rest of it.
    fn allowance(&mut self, stream: u64, available: u64, rest: Span, now: Timestamp) -> u64 {
        let is_many = self.streams.len() > FEW_STREAMS;
        let known = self.division.filter(|known| is_many && now.since(known.at) < DIVISION_HOLDS);
        let division = known.unwrap_or_else(|| {
            let charged: u64 = self.streams.values().map(|share| share.spending.charged).sum();
            let mut totals: Vec<u64> = self.streams.values().map(|share| share.total(rest)).collect();
            Division { level: level(available.saturating_add(charged), &mut totals), at: now }
        });
        self.division = Some(division);
        let Some(share) = self.streams.get(&stream) else { return 0 };
        share.total(rest).min(division.level).saturating_sub(share.spending.used())
    }

    /// True while a receipt of few streams is not known, for which it is worth waiting.
    fn awaits_any_receipt(&self) -> bool {
        self.streams.len() <= FEW_STREAMS
            && self.streams.values().any(|share| share.spending.awaits_receipt())
    }

    /// True if a stream still has something to spend.
    fn is_spendable(&self, stream: u64, now: Timestamp) -> bool {
        let terms = self.streams.get(&stream).and_then(|share| share.spending.terms(now));
        terms.is_some_and(|(terms, _)| terms != QuotaTerms::DENY)
    }

    /// Assigns what was planned; `taken`: its permits were taken. `None`: there is nothing to send.
    #[must_use]
    pub fn assign(
        &mut self,
        stream: u64,
        plan: AssignmentPlan,
        taken: bool,
        now: Timestamp,
    ) -> Option<Assignment> {
        // What was taken of a window that is over is gone with it.
        if self.ends != Some(plan.ends) || plan.ends <= now {
            return None;
        }
        let lives = plan.ttl + MARGIN;
        if taken {
            self.pool = self.pool.saturating_add(plan.take);
        }
        let share = self.streams.get_mut(&stream)?;
        let spendable = share.spending.terms(now).is_some_and(|(terms, _)| terms != QuotaTerms::DENY);
        let (terms, is_fresh) = match QuotaTerms::amount(self.pool) {
            _ if plan.terms.worst(lives) <= self.pool => (plan.terms, plan.is_fresh),
            _ if spendable => return None,
            Some(terms) => (terms, true),
            None => (QuotaTerms::DENY, false),
        };
        let worst = terms.worst(lives);
        self.pool -= worst;
        share.spending.charged = share.spending.charged.saturating_add(worst);
        share.spending.send(terms, is_fresh, plan.ttl, now);
        let ttl_s = u32::try_from(plan.ttl.0 / 1_000_000).unwrap_or(u32::MAX);
        Some(Assignment { terms, ttl_s, is_fresh })
    }

    /// When a stream is to be looked at again, besides at its reports.
    #[must_use]
    pub fn due(&self, stream: u64, now: Timestamp) -> Option<Timestamp> {
        let share = self.streams.get(&stream)?;
        let window = self.ends.map(|ends| ends + SETTLE);
        let last = self.ends.map(|ends| ends - LAST_RENEWAL).filter(|last| *last > now);
        let lapse = share.spending.terms(now).map(|(_, until)| until);
        [share.due, window, last, lapse, share.spending.receipt_due()].into_iter().flatten().min()
    }

    /// True if a receipt of this stream should have been known by now.
    #[must_use]
    pub fn is_overdue(&self, stream: u64, now: Timestamp) -> bool {
        let due = self.streams.get(&stream).and_then(|share| share.spending.receipt_due());
        due.is_some_and(|due| due <= now)
    }

    /// True while the receipt of an assignment of this stream is not known.
    #[must_use]
    pub fn awaits_receipt(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|share| share.spending.awaits_receipt())
    }

    /// A stream is gone. What it was assigned stays spent.
    pub fn leave(&mut self, stream: u64, now: Timestamp) {
        let Some(share) = self.streams.remove(&stream) else { return };
        self.lost.retain(|lost| lost.until > now);
        self.lost.extend(share.spending.lose(now));
        while let (true, [first, second, ..]) = (self.lost.len() > LOST_MAX, self.lost.as_mut_slice()) {
            second.permits = second.permits.saturating_add(first.permits);
            second.until = second.until.max(first.until);
            self.lost.remove(0);
        }
    }

    /// Permits that streams may still spend, and those in the pool.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        let streams: u64 = self.streams.values().map(|share| share.spending.outstanding()).sum();
        streams.saturating_add(self.pool)
    }

    /// The end of the window that it counts in; `None`: it counts in none.
    #[must_use]
    pub const fn ends(&self) -> Option<Timestamp> {
        self.ends
    }

    /// True if nothing of it has to be remembered.
    #[must_use]
    pub fn is_forgettable(&self, now: Timestamp) -> bool {
        let is_free = self.free_from().is_some_and(|free_from| free_from <= now);
        is_free && self.ends.is_none_or(|ends| ends <= now)
    }

    /// Returns the instant from which nobody can spend anything of it; `None` while a stream has it. Where
    /// there is no room it may go then, before its window ends: what it has in its pool stays charged.
    #[must_use]
    pub fn free_from(&self) -> Option<Timestamp> {
        let last = self.lost.iter().map(|lost| lost.until).max();
        self.streams.is_empty().then(|| last.unwrap_or_default())
    }
}
