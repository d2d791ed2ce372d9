//! Quotas that gateways spend by themselves: the assignments of Envoy's rate limit quota service.
//!
//! A gateway opens a *stream*, names the *buckets* that its requests fall in, and sends a *report* of each
//! bucket's use every few seconds. The daemon answers with *assignments*: a token bucket and a time to live.
//! The gateway then decides alone, and goes on deciding while nobody can reach it.
//!
//! One rule keeps the limit: **an assignment is spent when it is sent, until its known receipt, its time to
//! live and a margin have passed.** Its permits are taken from the rule's bucket before it is sent, at the
//! most that it can ever be worth. Its time begins when the gateway reads it, so the time that counts is that
//! of a proof that it was read: the answer to a PING that left behind it on the same connection.
//!
//! Permits come back only by what a gateway has proved: that a newer assignment has taken the place of an
//! older one, or, by a report that was surely written later, that less was used. They go into the *pool* of
//! the bucket, from which the daemon's other streams are served before more is taken. Nothing of a stream
//! that broke comes back. Everything is counted by window: what may be used beyond the end of one is charged
//! in the next one too.

mod bucket;
mod divide;
mod spending;
mod table;
mod terms;
#[cfg(test)]
mod tests;

pub use bucket::{Assignment, AssignmentPlan, BucketAssignments, RightsLeft, UsageReport};
pub use table::{QuotaTable, TableFull};
pub use terms::QuotaTerms;

use super::time::Span;

/// How long an assignment lives: three of Envoy's reports, so that one that is lost opens nothing.
pub const TTL: Span = Span::from_secs(15);
/// What a gateway may be late by when it lets an assignment lapse.
pub const MARGIN: Span = Span::from_secs(1);
/// After so long without a known receipt a stream is given up.
pub const RECEIPT_WITHIN: Span = Span(TTL.0 / 2);
/// For so long an assignment of unknown receipt may still be delivered by a network that held it back.
pub const DELIVERED_WITHIN: Span = Span(TTL.0 * 10);
/// Shortest window of a rule whose permits are assigned: below that too much of it is on its way.
pub const WINDOW_LEAST: Span = Span::from_secs(60);
