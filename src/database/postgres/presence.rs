//! The presence of the database, with a schema that still is for this build: looked at for all who ask at
//! once, and not again for as long as an absence is fresh.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::{Database, Failure, migrate};
use crate::engine::clock::Stopwatch;

/// The oldest build that the schema is for.
pub(super) const OLDEST: &str = "SELECT oldest_version FROM schema_compatibility";
/// Longest time for a sign of life, before what an operator asked for is refused.
const PROBE: Duration = Duration::from_secs(1);
/// For so long the absence of a sign of life holds for others who ask.
const FRESH: Duration = Duration::from_millis(500);
/// Time after which whoever calls the database next looks at the schema.
const SCHEMA_LOOK: Duration = Duration::from_secs(4);

/// The facts known of it.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The newest look; `None` before the first.
    sign: tokio::sync::Mutex<Option<LastLook>>,
    /// Time since the schema was last looked at.
    looked: Mutex<Option<Stopwatch>>,
    /// The version that forbids this build; zero: none does.
    forbidding: AtomicI64,
}

/// The outcome of a look at the database.
#[derive(Debug)]
struct LastLook {
    begun: Stopwatch,
    ended: Stopwatch,
    found: Result<(), Failure>,
}

impl LastLook {
    /// True if it answers a question that was asked then. A look that began before and found the database
    /// says nothing of now: the call that trusts it would wait for as long as a call may take.
    fn answers(&self, asked: Stopwatch) -> bool {
        self.begun.elapsed() <= asked.elapsed() || (self.found.is_err() && self.ended.elapsed() < FRESH)
    }
}

impl Presence {
    /// True for one caller now and then, who is to look at the schema.
    fn is_due(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = looked.is_none_or(|since| since.elapsed() >= SCHEMA_LOOK);
        if due {
            *looked = Some(Stopwatch::start());
        }
        due
    }
}

impl Database {
    /// Says within about a second whether it answers: all who ask at once wait for one look.
    ///
    /// # Errors
    /// It does not, or its schema is not for this build.
    pub async fn is_there(&self) -> Result<(), Failure> {
        let asked = Stopwatch::start();
        let mut sign = self.presence.sign.lock().await;
        if let Some(last) = sign.as_ref().filter(|last| last.answers(asked)) {
            return last.found.clone();
        }
        let (begun, longest) = (Stopwatch::start(), PROBE.min(self.timeout));
        let found = self.in_time(longest, Box::pin(self.look_at_it())).await;
        *sign = Some(LastLook { begun, ended: Stopwatch::start(), found: found.clone() });
        found
    }

    async fn look_at_it(&self) -> Result<(), Failure> {
        let question = || sqlx::query_scalar::<_, i64>(OLDEST);
        // One that is idle may have been cut off meanwhile.
        if let Some(mut idle) = self.pool.try_acquire() {
            match tokio::time::timeout(PROBE / 2, question().fetch_one(&mut *idle)).await {
                Ok(Ok(oldest)) => return self.fits(oldest),
                _ => idle.close_on_drop(),
            }
        }
        let connected = PgConnection::connect_with(&self.options).await;
        let mut fresh = match connected.map_err(|error| self.failure(&error, PROBE)) {
            Ok(fresh) => fresh,
            // It answers: all that it would give are taken, perhaps by this very daemon.
            Err(Failure::NotServing { why, .. }) if why.contains("too many") || why.contains("slots") => {
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        let oldest = question().fetch_one(&mut fresh).await;
        let _ = tokio::time::timeout(Duration::from_millis(100), fresh.close()).await;
        match oldest.map_err(|error| self.failure(&error, PROBE)) {
            Ok(oldest) => self.fits(oldest),
            Err(failure) if failure.is_away() => Err(failure),
            // A question for what is not there is told so.
            Err(_) => Ok(()),
        }
    }

    /// Takes in which builds the schema is for.
    ///
    /// # Errors
    /// Not for this one.
    pub(super) fn fits(&self, oldest: i64) -> Result<(), Failure> {
        let forbids = oldest > migrate::newest();
        self.presence.forbidding.store(if forbids { oldest } else { 0 }, Ordering::Relaxed);
        if forbids {
            return Err(Failure::SchemaTooNew { name: self.name.to_string(), version: oldest });
        }
        Ok(())
    }

    /// Says whether the schema is still for this build, as of the last seconds: another build may have
    /// migrated it under a daemon that runs.
    ///
    /// # Errors
    /// It is not.
    pub async fn still_fits(&self) -> Result<(), Failure> {
        if self.presence.is_due() {
            let oldest = Box::pin(async {
                let oldest: Result<i64, _> = sqlx::query_scalar(OLDEST).fetch_one(&self.pool).await;
                oldest.map_err(|error| self.failure(&error, self.timeout))
            });
            if let Ok(oldest) = self.in_time(self.timeout, oldest).await {
                return self.fits(oldest);
            }
        }
        match self.presence.forbidding.load(Ordering::Relaxed) {
            0 => Ok(()),
            version => Err(Failure::SchemaTooNew { name: self.name.to_string(), version }),
        }
    }
}
