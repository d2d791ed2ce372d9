//! The only clock. Everything else is told the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::core::time::Timestamp;

/// The source of the time.
#[derive(Debug, Default)]
pub enum Clock {
    /// The machine's wall clock.
    #[default]
    System,
    /// A clock that tests move by hand.
    Manual(AtomicU64),
}

impl Clock {
    /// Microseconds since the Unix epoch. May step back when the machine's clock is set: every algorithm is
    /// told so and none minds.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match self {
            #[expect(clippy::disallowed_methods, reason = "this is the only clock")]
            Self::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
            }
            Self::Manual(micros) => Timestamp(micros.load(Ordering::Relaxed)),
        }
    }

    /// Sets a manual clock; the system's is left alone.
    pub fn set(&self, now: Timestamp) {
        if let Self::Manual(micros) = self {
            micros.store(now.0, Ordering::Relaxed);
        }
    }
}

/// The instant at which something is given up: a point on the runtime's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    /// This long from now.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        Self(tokio::time::Instant::now() + wait)
    }

    /// Returns how long until then; zero once it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(tokio::time::Instant::now())
    }

    /// Waits for a future until then.
    ///
    /// # Errors
    /// When the time has passed first.
    pub async fn wait<F: Future>(self, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
        tokio::time::timeout_at(self.0, future).await
    }
}

/// Measures how long something took, on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the only clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
