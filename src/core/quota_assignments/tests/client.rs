//! One gateway process with one bucket, by what a stock Envoy 1.40.0 was seen to do.

use crate::quota_assignments::{Assignment, QuotaTerms};
use crate::time::{Span, Timestamp};

/// Between two reports, whatever happens.
pub(super) const TICK: Span = Span::from_secs(5);

/// The limiter of the bucket.
#[derive(Debug, Clone, Copy)]
struct Limiter {
    terms: QuotaTerms,
    /// Tokens, in millionths.
    tokens: u64,
    filled: Timestamp,
    lapses: Timestamp,
}

/// What it reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

#[derive(Debug, Default)]
pub(super) struct Client {
    limiter: Option<Limiter>,
    counters: Counters,
    /// When its tick began, with its first request.
    first: Option<Timestamp>,
    reported: Option<Timestamp>,
    next: Option<Timestamp>,
}

impl Client {
    /// A request comes; true if it passes. Without an assignment it is denied, as the manual says to set.
    pub(super) fn request(&mut self, now: Timestamp) -> bool {
        self.first.get_or_insert(now);
        self.fill(now);
        let passes = self.limiter.as_mut().is_some_and(|limiter| {
            let passes = limiter.tokens >= 1_000_000;
            limiter.tokens -= if passes { 1_000_000 } else { 0 };
            passes
        });
        let counter = if passes { &mut self.counters.allowed } else { &mut self.counters.denied };
        *counter += 1;
        passes
    }

    /// The report that is due, if one is: its first at its first request, then one in five seconds. The
    /// counters are reset whether or not there is a stream to send it on.
    pub(super) fn report(&mut self, now: Timestamp) -> Option<(Counters, Span)> {
        let first = self.first?;
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        let elapsed = self.reported.map_or(Span::ZERO, |reported| now.since(reported));
        self.next = Some(self.next.unwrap_or(first) + TICK);
        self.reported = Some(now);
        Some((std::mem::take(&mut self.counters), elapsed))
    }

    /// An assignment arrives.
    pub(super) fn assigned(&mut self, assignment: Assignment, now: Timestamp) {
        self.fill(now);
        let Assignment { terms, ttl_s, is_fresh } = assignment;
        // A blanket rule is told before it.
        self.limiter = self.limiter.filter(|_| !is_fresh);
        let lapses = now + Span::from_secs(ttl_s.into());
        match &mut self.limiter {
            // It compares tokens alone: another interval would change nothing.
            Some(limiter)
                if (limiter.terms.max_tokens, limiter.terms.tokens_per_fill)
                    == (terms.max_tokens, terms.tokens_per_fill) =>
            {
                limiter.lapses = lapses;
            }
            other => {
                let whole = u64::from(terms.max_tokens);
                let tokens = match other {
                    // A blanket rule has no ratio to inherit.
                    Some(before) if before.terms.max_tokens > 0 => {
                        whole * before.tokens / (u64::from(before.terms.max_tokens) * 1_000_000)
                    }
                    _ => whole,
                };
                *other = Some(Limiter { terms, tokens: tokens * 1_000_000, filled: now, lapses });
            }
        }
    }

    fn fill(&mut self, now: Timestamp) {
        self.limiter = self.limiter.filter(|limiter| now < limiter.lapses);
        let Some(limiter) = &mut self.limiter else { return };
        let filled = now.since(limiter.filled).0 * u64::from(limiter.terms.tokens_per_fill)
            / u64::from(limiter.terms.fill_interval);
        limiter.tokens = (limiter.tokens + filled).min(u64::from(limiter.terms.max_tokens) * 1_000_000);
        limiter.filled = now;
    }
}
