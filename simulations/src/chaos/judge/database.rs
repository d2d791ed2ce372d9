//! PostgreSQL: no decision waits for it, and it remembers every denial once.

use std::time::Duration;

use super::{Evidence, Happened, Kept, Remembered, STALL, Verdict};
use crate::number::place;
use crate::plan::FaultKind;

/// A decision that takes longer than this waits for something. A call to the database may take five seconds.
const WAITS: Duration = Duration::from_millis(250);

impl Evidence<'_> {
    pub(super) fn nothing_waits_for_the_database(&self) -> Verdict {
        const PROMISE: &str = "Decisions never wait for it (docs/reference/audit.md: for PostgreSQL)";
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
        const PROMISE: &str = "Each denial is in `audit_log` once, or counted as dropped (docs/reference/audit.md, What happens to a record)";
        // A daemon that is killed takes along what it held for half a second.
        let killed = self.told.faults.iter().any(|fault| match fault.kind {
            FaultKind::Crash { .. } => true,
            FaultKind::StoreLost { region } => self.plan.counts_in_memory(region),
            _ => false,
        });
        let Some(Remembered { denials, dropped }) = self.remembered else {
            return Verdict::new(PROMISE, None);
        };
        let seen = place(self.seen.iter().filter(|seen| seen.answer.denied()).count());
        // Nobody saw what was decided of these.
        let unclear = self.seen.iter().filter(|seen| seen.answer.decision().is_none()).count();
        let missing = seen.saturating_sub(denials + dropped);
        let doubled = denials.saturating_sub(seen + place(unclear));
        let found = format!(
            "clients saw {seen} denials, {denials} are remembered and {dropped} counted as dropped: {missing} missing, {doubled} too many"
        );
        let mut verdict = Verdict::new(PROMISE, Some((missing == 0 && doubled == 0, found)));
        if killed && doubled == 0 {
            verdict.kept = Kept::NotJudged;
        }
        verdict
    }
}
