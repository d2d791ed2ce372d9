//! What is remembered of a server for its operator. Nothing here decides anything.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::failure::Failure;
use crate::core::time::Span;

/// Longest text of a trouble that is kept, in characters.
const TEXT_MAX: usize = 300;

/// Notes on one server.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Microseconds plus one; zero: none yet.
    rtt: AtomicU64,
    trouble: Mutex<Option<(String, Duration)>>,
    warning: Mutex<Option<String>>,
    /// Why the server refuses this daemon's user, if that is why there is no connection.
    refusal: Mutex<Option<String>>,
    inspected: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    /// Remembers a round trip.
    pub(super) fn answered(&self, after: Duration) {
        self.rtt.store(Span::from(after).micros().saturating_add(1), Ordering::Relaxed);
    }

    /// The newest round trip.
    pub(super) fn rtt(&self) -> Option<Span> {
        self.rtt.load(Ordering::Relaxed).checked_sub(1).map(Span)
    }

    /// Remembers a trouble at `now`, unless it is but a redirect or what follows from a trouble that is known.
    pub(super) fn failed(&self, failure: &Failure, now: Duration) {
        if failure.is_of_interest() {
            self.trouble(&failure.to_string(), now);
        }
    }

    /// The same in words.
    pub(super) fn trouble(&self, text: &str, now: Duration) {
        *locked(&self.trouble) = Some((text.chars().take(TEXT_MAX).collect(), now));
    }

    /// The newest trouble, and how long before `now` it was.
    pub(super) fn newest_trouble(&self, now: Duration) -> Option<(String, Span)> {
        let trouble = locked(&self.trouble).clone();
        trouble.map(|(text, at)| (text, Span::from(now.saturating_sub(at))))
    }

    /// Replaces what the operator should change.
    pub(super) fn warn(&self, warning: Option<String>) {
        *locked(&self.warning) = warning;
    }

    /// What the operator should change.
    pub(super) fn warning(&self) -> Option<String> {
        locked(&self.warning).clone()
    }

    /// Takes note of how an attempt to connect went. A new connection is to be inspected.
    pub(super) fn connected(&self, refusal: Option<String>) {
        if refusal.is_none() {
            self.inspected.store(false, Ordering::Relaxed);
        }
        *locked(&self.refusal) = refusal;
    }

    /// Why the server refuses this daemon's user.
    pub(super) fn refusal(&self) -> Option<String> {
        locked(&self.refusal).clone()
    }

    /// Whether the caller is to inspect the server now: once for each connection.
    pub(super) fn begin_inspection(&self) -> bool {
        !self.inspected.swap(true, Ordering::Relaxed)
    }
}
