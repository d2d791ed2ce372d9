//! The most that one stream may have spent of one bucket in one window.
//!
//! All of it is a sum of three: permits spent before an instant (the anchor), permits that the assignment in
//! force can still be worth from there to its end, and permits of an assignment whose receipt is not known.

use super::{DELIVERED_WITHIN, MARGIN, QuotaTerms, RECEIPT_WITHIN};
use crate::time::{Span, Timestamp};

/// An assignment that is known to be received.
#[derive(Debug, Clone, Copy)]
struct ReceivedAssignment {
    terms: QuotaTerms,
    /// From here on it is counted.
    anchor: Timestamp,
    /// When its receipt was known.
    known: Timestamp,
    /// Until then it lives for sure: it was received after it was sent.
    alive: Timestamp,
    /// Until then it may live.
    end: Timestamp,
}

/// An assignment whose receipt is not known.
#[derive(Debug, Clone, Copy)]
struct SentAssignment {
    terms: QuotaTerms,
    is_fresh: bool,
    ttl: Span,
    at: Timestamp,
    /// When the connection had it.
    written: Option<Timestamp>,
}

/// Permits that a lost stream may still spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostPermits {
    pub(super) permits: u64,
    pub(super) until: Timestamp,
}

/// One stream's part of a bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Spending {
    /// Permits spent before the anchor, at most.
    pub(super) spent: u64,
    /// Permits that the stream has reported in this window, as far as it can have spent them in it.
    reported: u64,
    in_force: Option<ReceivedAssignment>,
    sent: Option<SentAssignment>,
    /// Permits taken for it.
    pub(super) charged: u64,
}

impl SentAssignment {
    fn worst(self) -> u64 {
        self.terms.worst(self.ttl + MARGIN)
    }
}

impl ReceivedAssignment {
    fn worst(&self) -> u64 {
        self.terms.worst(self.end.since(self.anchor))
    }
}

impl Spending {
    /// Permits that it may have spent, and may still spend.
    pub(super) fn worst(&self) -> u64 {
        let in_force = self.in_force.map_or(0, |in_force| in_force.worst());
        self.spent.saturating_add(in_force).saturating_add(self.sent.map_or(0, SentAssignment::worst))
    }

    /// Permits that it can have spent by now.
    fn spent_by(&self, now: Timestamp) -> u64 {
        let in_force = self.in_force.map_or(0, |it| it.terms.worst(it.end.min(now).since(it.anchor)));
        self.spent.saturating_add(in_force).saturating_add(self.sent.map_or(0, SentAssignment::worst))
    }

    /// Permits of the assignment in force that were not reported yet.
    pub(super) fn unreported(&self) -> u64 {
        let in_force = self.in_force.map_or(0, |in_force| in_force.worst());
        self.spent.saturating_add(in_force).saturating_sub(self.reported)
    }

    /// When the assignment in force was known to be received.
    pub(super) fn known(&self) -> Timestamp {
        self.in_force.map_or(Timestamp::default(), |in_force| in_force.known)
    }

    /// Permits that it has spent, by all that is known.
    pub(super) fn used(&self) -> u64 {
        self.spent.max(self.reported)
    }

    /// Permits charged that may still be spent.
    pub(super) const fn outstanding(&self) -> u64 {
        self.charged.saturating_sub(self.spent)
    }

    /// The terms in force, until when.
    pub(super) fn terms(&self, now: Timestamp) -> Option<(QuotaTerms, Timestamp)> {
        self.in_force.filter(|in_force| in_force.alive > now).map(|in_force| (in_force.terms, in_force.alive))
    }

    /// True while the receipt of an assignment is not known.
    pub(super) const fn awaits_receipt(&self) -> bool {
        self.sent.is_some()
    }

    /// The instant at which an assignment that was not received by then is given up.
    pub(super) fn receipt_due(&self) -> Option<Timestamp> {
        self.sent.map(|sent| sent.at + RECEIPT_WITHIN)
    }

    /// An assignment leaves. At most one is on its way.
    pub(super) fn send(&mut self, terms: QuotaTerms, is_fresh: bool, ttl: Span, now: Timestamp) {
        self.sent = Some(SentAssignment { terms, is_fresh, ttl, at: now, written: None });
    }

    /// The connection has the assignment.
    pub(super) fn written(&mut self, now: Timestamp) {
        if let Some(sent) = &mut self.sent {
            sent.written = Some(now);
        }
    }

    /// Everything that the connection had before `pinged` is received by `now`.
    pub(super) fn received(&mut self, pinged: Timestamp, now: Timestamp) {
        let received = |sent: &SentAssignment| sent.written.is_some_and(|written| written < pinged);
        let Some(sent) = self.sent.filter(received) else { return };
        self.sent = None;
        let end = now + sent.ttl + MARGIN;
        let (known, alive) = (now, sent.at + sent.ttl);
        // Equal terms that come while those before are alive go on with the same bucket.
        if let Some(before) = &mut self.in_force
            && !sent.is_fresh
            && before.terms == sent.terms
            && now < before.alive
        {
            *before = ReceivedAssignment { known, alive, end, ..*before };
            return;
        }
        if let Some(before) = self.in_force {
            let used = before.terms.worst(before.end.min(now).since(before.anchor));
            self.spent = self.spent.saturating_add(used);
        }
        self.in_force = Some(ReceivedAssignment { terms: sent.terms, anchor: sent.at, known, alive, end });
    }

    /// A report of `allowed` permits, which was written after `anchor`: all that was spent before it is in
    /// the sum of the stream's reports.
    pub(super) fn report(&mut self, allowed: u64, anchor: Option<Timestamp>, now: Timestamp) {
        // The first of a window tells also of the one before.
        self.reported = self.reported.saturating_add(allowed).min(self.spent_by(now));
        let Some(anchor) = anchor else { return };
        let Some(in_force) = self.in_force else { return };
        if in_force.known > anchor {
            return;
        }
        let before = self.spent.saturating_add(in_force.worst());
        let after = (anchor < in_force.end)
            .then(|| ReceivedAssignment { anchor: anchor.max(in_force.anchor), ..in_force });
        if self.reported.saturating_add(after.map_or(0, |after| after.worst())) < before {
            (self.spent, self.in_force) = (self.reported, after);
        }
    }

    /// A window ended at `at`. Returns the permits that may be spent in the next one, which are charged to
    /// it.
    pub(super) fn turn(&mut self, at: Timestamp) -> u64 {
        (self.spent, self.reported) = (0, 0);
        self.in_force = self.in_force.filter(|in_force| in_force.end > at);
        if let Some(in_force) = &mut self.in_force {
            in_force.anchor = in_force.anchor.max(at);
        }
        self.charged = self.worst();
        self.charged
    }

    /// The stream is gone. Returns what it may still spend.
    pub(super) fn lose(&self, now: Timestamp) -> impl Iterator<Item = LostPermits> {
        let in_force = self.in_force.map(|in_force| LostPermits {
            permits: in_force.terms.worst(in_force.end.since(now)),
            until: in_force.end,
        });
        let sent =
            self.sent.map(|sent| LostPermits { permits: sent.worst(), until: sent.at + DELIVERED_WITHIN });
        in_force.into_iter().chain(sent).filter(move |lost| lost.permits > 0 && lost.until > now)
    }
}
