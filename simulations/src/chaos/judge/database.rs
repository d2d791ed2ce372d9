//! PostgreSQL: no decision waits for it, and it remembers every denial once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::clocks::moved;
use super::{Evidence, Happened, Kept, Promise, Remembered, STALL, Seen, Verdict};
use crate::number::place;
use crate::plan::FaultKind;

/// A decision that takes longer than this waits for something. A call to the database may take five seconds.
const WAITS: Duration = Duration::from_millis(250);

impl Evidence<'_> {
    pub(super) fn nothing_waits_for_the_database(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "No decision waits for PostgreSQL",
            manual: "Decisions never wait for it (docs/reference/audit.md: for PostgreSQL)",
        };
        let away: Vec<&Happened> = self
            .told
            .faults
            .iter()
            .filter(|fault| fault.kind.is_of_the_database())
            .filter(|fault| !self.stalled(STALL, (fault.from, fault.until)))
            .collect();
        let mut took: Vec<Duration> = Vec::new();
        for seen in self.seen {
            let sent = self.since(seen.sent);
            if away.iter().any(|fault| (fault.from..=fault.until).contains(&sent)) {
                took.push(seen.answered.saturating_sub(seen.sent));
            }
        }
        took.sort_unstable();
        let found = took.get(took.len() * 99 / 100).zip(took.last()).map(|(most, longest)| {
            let found = format!(
                "{} asked while it was away: 99 of 100 were answered within {:.1} ms, the last within {:.1} ms",
                took.len(),
                most.as_secs_f64() * 1e3,
                longest.as_secs_f64() * 1e3
            );
            (*most <= WAITS, found)
        });
        Verdict::new(PROMISE, found)
    }

    pub(super) fn denials_are_remembered(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "Each denial is in the audit log once, or counted as dropped",
            manual: "Each denial is in `audit_log` once, or counted as dropped (docs/reference/audit.md, What happens to a record)",
        };
        // A daemon that is killed takes along what it held for half a second.
        let killed = self.told.faults.iter().any(|fault| match fault.kind {
            FaultKind::Crash { .. } => true,
            FaultKind::StoreLost { region } => self.plan.counts_in_memory(region),
            _ => false,
        });
        let Some(Remembered { denials, dropped }) = &self.remembered else {
            return Verdict::new(PROMISE, None);
        };
        let (mut forgotten, mut doubled) = (0, 0);
        for (at, region) in self.plan.regions.iter().enumerate() {
            let of_region = denials.iter().filter(|(name, _)| *name == region.name);
            let (no_row, too_many) = self.compare(at, of_region.map(|(_, decided)| *decided).collect());
            forgotten += no_row;
            doubled += too_many;
        }
        let named = |name: &str| self.plan.regions.iter().any(|region| region.name == name);
        doubled += place(denials.iter().filter(|(name, _)| !named(name)).count());
        let seen = self.seen.iter().filter(|seen| seen.answer.denied()).count();
        let missing = forgotten.saturating_sub(*dropped);
        let found = format!(
            "clients saw {seen} denials, {} are remembered and {dropped} counted as dropped: {missing} missing, {doubled} too many",
            denials.len()
        );
        let mut verdict = Verdict::new(PROMISE, Some((missing == 0 && doubled == 0, found)));
        if killed && doubled == 0 {
            verdict.kept = Kept::NotJudged;
        }
        verdict
    }

    /// Finds for each denial that clients of a region saw a row of its own, decided between question and
    /// answer. Returns how many have none, and how many rows are of no denial.
    fn compare(&self, region: usize, mut rows: Vec<Duration>) -> (u64, u64) {
        let when = |seen: &Seen| {
            let (low, high) = self.clock(region, (self.since(seen.sent), self.since(seen.answered)));
            (moved(seen.sent, low).saturating_sub(STALL), moved(seen.answered, high) + STALL)
        };
        let of_region = || self.seen.iter().filter(|seen| seen.ask.region == region);
        let denials = of_region().filter(|seen| seen.answer.denied()).map(when);
        rows.sort_unstable();
        let (no_row, others) = matched(denials.collect(), rows);
        // Nobody saw what was decided of these.
        let unclear = of_region().filter(|seen| seen.answer.decision().is_none()).map(when);
        let (_, others) = matched(unclear.collect(), others);
        (no_row, place(others.len()))
    }
}

/// Gives each instant, in order, to the interval that ends first of those that hold it. Returns how many
/// intervals go without, and the instants that are in none.
fn matched(mut intervals: Vec<(Duration, Duration)>, instants: Vec<Duration>) -> (u64, Vec<Duration>) {
    intervals.sort_unstable();
    let (mut coming, mut open, mut without) = (intervals.into_iter().peekable(), BinaryHeap::new(), 0);
    let mut left = Vec::new();
    for instant in instants {
        while let Some((_, end)) = coming.next_if(|(begin, _)| *begin <= instant) {
            open.push(Reverse(end));
        }
        while open.peek().is_some_and(|Reverse(end)| *end < instant) {
            open.pop();
            without += 1;
        }
        if open.pop().is_none() {
            left.push(instant);
        }
    }
    (without + place(open.len() + coming.count()), left)
}
