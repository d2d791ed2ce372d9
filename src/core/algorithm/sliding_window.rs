//! sliding_window (contract only).

use super::{Limit, Verdict, View};
use crate::core::time::{Span, Timestamp};

/// SlidingWindow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlidingWindow {}

impl SlidingWindow {
    pub(super) fn check(&self, limit: &Limit, view: Option<&View>, now: Timestamp, cost: u64) -> Verdict {
        let _ = (limit, view, now, cost);
        Verdict { admitted: true, remaining: 0, reset: Span::ZERO, retry: None, delay: Span::ZERO }
    }
    pub(super) fn take(&mut self, _: &Limit, _: Timestamp, _: u64) {}
    pub(super) fn refund(&mut self, _: &Limit, _: Timestamp, _: u64) -> u64 {
        0
    }
    pub(super) fn debit(&mut self, _: &Limit, _: Timestamp, _: u64) {}
    pub(super) fn used(&self, _: &Limit, _: Timestamp) -> u64 {
        0
    }
    pub(super) fn expiry(&self, _: &Limit) -> Timestamp {
        Timestamp::default()
    }
    pub(super) fn heap_bytes(&self) -> usize {
        0
    }
}
