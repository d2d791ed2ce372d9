//! One bucket of a rule, as far as it is assigned: what each stream may spend of it, and the pool.

use std::collections::BTreeMap;

use super::divide::level;
use super::spending::{LostPermits, Spending};
use super::{MARGIN, QuotaTerms, TTL};
use crate::time::{Span, Timestamp};

/// The need of a stream that has not been heard of for long enough to be known: a part of what there is.
const NEED_UNKNOWN_PART: u64 = 4;
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
}

/// An assignment as it is planned, before its permits are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignmentPlan {
    terms: QuotaTerms,
    ttl: Span,
    ends: Timestamp,
    /// Permits to take from the rule's bucket first, all or none.
    pub take: u64,
}

/// An assignment that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The token bucket.
    pub terms: QuotaTerms,
    /// Its time to live, in whole seconds.
    pub ttl_s: u32,
}

#[derive(Debug, Clone, Default)]
struct StreamShare {
    spending: Spending,
    /// Thousandths of a request a second; `None`: not known yet.
    demand: Option<u64>,
    /// When the stream is to be looked at although it reports nothing.
    due: Option<Timestamp>,
}

impl StreamShare {
    fn need(&self, whole: u64) -> u64 {
        match self.demand {
            Some(demand) => demand.saturating_add(demand / 8).max(NEED_LEAST),
            None => (whole / NEED_UNKNOWN_PART).max(NEED_LEAST),
        }
    }
}

/// How a bucket's rate is divided, in thousandths of a permit a second.
#[derive(Debug, Clone, Copy)]
struct Division {
    /// The rate of all streams together.
    whole: u64,
    /// The most that one stream has of it.
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
    streams: BTreeMap<u64, StreamShare>,
    division: Option<Division>,
}

impl BucketAssignments {
    /// Adds a stream, unless it is there.
    pub fn join(&mut self, stream: u64) {
        self.streams.entry(stream).or_default();
    }

    /// Notes a report. `anchor`: an instant after which it was surely written.
    pub fn report(&mut self, stream: u64, usage: UsageReport, anchor: Option<Timestamp>) {
        self.settle(stream, |share| {
            share.spending.report(usage.allowed, anchor);
            let asked = usage.allowed.saturating_add(usage.denied);
            if let Some(per_second) = asked.saturating_mul(1_000_000_000).checked_div(usage.elapsed.0) {
                let before = share.demand.unwrap_or(0);
                share.demand = Some(per_second.max(before / 2));
            }
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
        lost.saturating_add(streams)
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
        if share.due.is_some() || share.spending.awaits_receipt() || self.ends != Some(left.ends) {
            return None;
        }
        let ttl = Span::from_secs((rest - MARGIN).0 / 1_000_000).min(TTL);
        let lives = ttl + MARGIN;
        let available = left.permits.saturating_add(self.pool);
        let in_force = share.spending.terms(now);
        if ttl == Span::ZERO {
            return None;
        }
        let Division { whole, level, .. } = self.divide(available, (lives, rest), now);
        let share = self.streams.get(&stream)?;
        let rate = share.need(whole).min(level);
        let kept = in_force.map(|(terms, _)| terms).filter(|terms| {
            let eighths = terms.rate().saturating_mul(8);
            let kept = rate.saturating_mul(KEEP_LEAST)..=rate.saturating_mul(KEEP_MOST);
            *terms != QuotaTerms::DENY && kept.contains(&eighths)
        });
        let wanted = kept.unwrap_or_else(|| QuotaTerms::of_rate(rate));
        let afforded =
            if wanted.worst(lives) <= available { Some(wanted) } else { QuotaTerms::worth(available, lives) };
        if afforded != Some(wanted) && self.awaits_any_receipt() {
            // Permits that the one before was worth come back as soon as its successor's receipt is known.
            self.streams.get_mut(&stream)?.due = Some(now + RETRY);
            return None;
        }
        let lives_on =
            in_force.filter(|(terms, until)| *terms != QuotaTerms::DENY && until.since(now) > NEXT_REPORT);
        let terms = match (afforded, lives_on) {
            // What it has is worth more than what could take its place.
            (None, Some(_)) => return None,
            (Some(terms), Some((before, _))) if terms != wanted && terms.rate() <= before.rate() => {
                return None;
            }
            (None, None) if self.is_spendable(stream, now) => return None,
            (None, None) => QuotaTerms::DENY,
            (Some(terms), _) => terms,
        };
        let take = terms.worst(lives).saturating_sub(self.pool);
        Some(AssignmentPlan { terms, ttl, ends: left.ends, take })
    }

    fn awaits_any_receipt(&self) -> bool {
        self.streams.values().any(|share| share.spending.awaits_receipt())
    }

    /// True if a stream still has something to spend.
    fn is_spendable(&self, stream: u64, now: Timestamp) -> bool {
        let terms = self.streams.get(&stream).and_then(|share| share.spending.terms(now));
        terms.is_some_and(|(terms, _)| terms != QuotaTerms::DENY)
    }

    /// The rate that all streams together may have while an assignment lives, in thousandths of a permit a
    /// second. What streams of little need want for the rest of the window is set aside for them.
    fn rate_of_all(&self, available: u64, lives: Span, rest: Span) -> u64 {
        let outstanding: u64 = self.streams.values().map(|share| share.spending.outstanding()).sum();
        let whole = available.saturating_add(outstanding);
        let rate = |permits: u64, during: Span| {
            u64::try_from(u128::from(permits) * 1_000_000_000 / u128::from(during.0.max(1)))
                .unwrap_or(u64::MAX)
        };
        let mut known: Vec<u64> = self.streams.values().filter_map(|share| share.demand).collect();
        let even = level(rate(whole, rest), &mut known);
        let modest: u64 = known.iter().filter(|demand| **demand < even).sum();
        let later = u128::from(rest.0.saturating_sub(lives.0));
        let aside = u64::try_from(u128::from(modest) * later / 1_000_000_000).unwrap_or(u64::MAX);
        rate(whole.saturating_sub(aside), lives)
    }

    /// How the rate is divided now. Between many streams it is worked out ten times a second at most.
    fn divide(&mut self, available: u64, (lives, rest): (Span, Span), now: Timestamp) -> Division {
        let is_many = self.streams.len() > FEW_STREAMS;
        if let Some(division) = self.division.filter(|known| is_many && now.since(known.at) < DIVISION_HOLDS)
        {
            return division;
        }
        let whole = self.rate_of_all(available, lives, rest);
        let mut needs: Vec<u64> = self.streams.values().map(|share| share.need(whole)).collect();
        let division = Division { whole, level: level(whole, &mut needs), at: now };
        self.division = Some(division);
        division
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
        let terms = match QuotaTerms::worth(self.pool, lives) {
            _ if plan.terms.worst(lives) <= self.pool => plan.terms,
            _ if spendable => return None,
            Some(terms) => terms,
            None => QuotaTerms::DENY,
        };
        let worst = terms.worst(lives);
        self.pool -= worst;
        share.spending.charged = share.spending.charged.saturating_add(worst);
        share.spending.send(terms, plan.ttl, now);
        let ttl_s = u32::try_from(plan.ttl.0 / 1_000_000).unwrap_or(u32::MAX);
        Some(Assignment { terms, ttl_s })
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
        self.streams.is_empty()
            && self.lost.iter().all(|lost| lost.until <= now)
            && self.ends.is_none_or(|ends| ends <= now)
    }
}
