//! When to begin, when to stop, on how many threads; and the sum of what each found.
//!
//! The only reader of the clock in the load generator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::histogram::Histogram;
use super::process::Usage;

/// The time that one answer may take before its connection is given up.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The run as asked for.
#[derive(Debug)]
pub(super) struct Plan {
    /// Connections in all.
    pub(super) connections: u16,
    /// Threads that share them.
    pub(super) threads: u16,
    /// The measured time.
    pub(super) measured: Duration,
    measure_from: Instant,
    until: Instant,
    pid: Option<u32>,
}

/// The findings of one thread, or of all of them, in the measured time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Requests whose (first) decision let them pass.
    pub(super) ok: u64,
    /// Requests whose (first) decision denied them.
    pub(super) over_limit: u64,
    /// Requests without a usable answer.
    pub(super) errors: u64,
    /// Reason of the first of the errors.
    pub(super) first_error: Option<String>,
    /// From sending to the last byte of the answer.
    pub(super) latency: Histogram,
}

/// A usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The request may pass.
    Ok,
    /// It may not.
    OverLimit,
}

impl Plan {
    /// A run that begins now.
    ///
    /// # Errors
    /// When a length of time is not a sensible number.
    #[allow(clippy::disallowed_methods, reason = "a load generator measures real time")]
    pub(super) fn new(
        warm_up: f64,
        seconds: f64,
        connections: u16,
        threads: u16,
        pid: Option<u32>,
    ) -> anyhow::Result<Arc<Self>> {
        let warm_up = Duration::try_from_secs_f64(warm_up).context("--warm-up is not a length of time")?;
        let measured = Duration::try_from_secs_f64(seconds).context("--seconds is not a length of time")?;
        let measure_from = Instant::now() + warm_up;
        let until = measure_from + measured;
        let threads = threads.min(connections);
        Ok(Arc::new(Self { connections, threads, measured, measure_from, until, pid }))
    }

    /// The time now, or `None` once the run is over.
    #[allow(clippy::disallowed_methods, reason = "a load generator measures real time")]
    pub(super) fn begin(&self) -> Option<Instant> {
        let now = Instant::now();
        (now < self.until).then_some(now)
    }

    /// Counts an answer to what began at `begin`, if it belongs to the measured time.
    #[allow(clippy::disallowed_methods, reason = "a load generator measures real time")]
    pub(super) fn end(&self, begin: Instant, answer: anyhow::Result<Answer>, tally: &mut Tally) {
        let now = Instant::now();
        if begin < self.measure_from || now > self.until {
            // A failure always matters, and so does its reason.
            if let Err(error) = answer {
                tally.fail(&error);
            }
            return;
        }
        match answer {
            Ok(Answer::Ok) => tally.ok += 1,
            Ok(Answer::OverLimit) => tally.over_limit += 1,
            Err(error) => return tally.fail(&error),
        }
        tally.latency.record(u64::try_from((now - begin).as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns how many connections the thread with this number has.
    fn share(&self, thread: u16) -> u16 {
        let extra = u16::from(thread < self.connections % self.threads);
        self.connections / self.threads + extra
    }

    /// Sleeps to the measured time's two ends and reads the server's process there.
    #[allow(clippy::disallowed_methods, reason = "a load generator measures real time")]
    fn watch(&self) -> anyhow::Result<Option<Usage>> {
        let sleep_until = |at: Instant| std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let Some(pid) = self.pid else { return Ok(None) };
        sleep_until(self.measure_from);
        let before = Usage::of(pid)?;
        sleep_until(self.until);
        Ok(Some(Usage::of(pid)?.since(before)))
    }
}

impl Tally {
    /// Counts a failure and keeps the first one's reason.
    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| format!("{error:#}"));
    }

    fn merge(&mut self, other: Self) {
        self.ok += other.ok;
        self.over_limit += other.over_limit;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.latency.merge(&other.latency);
    }
}

/// Runs `ask` with its share of the connections on every thread, each with a runtime of its own, and sums up.
///
/// # Errors
/// When a runtime cannot start or the server's process cannot be read.
pub(super) fn drive<A>(plan: &Arc<Plan>, ask: A) -> anyhow::Result<(Tally, Option<Usage>)>
where
    A: AsyncFn(Arc<Plan>, u16) -> Tally + Sync,
{
    std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                scope.spawn(move || -> anyhow::Result<Tally> {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                    Ok(tokio::task::LocalSet::new()
                        .block_on(&runtime, ask(Arc::clone(plan), plan.share(thread))))
                })
            })
            .collect();
        let usage = plan.watch();
        let mut sum = Tally::default();
        for thread in threads {
            let tally = thread.join().map_err(|_| anyhow::anyhow!("a load thread panicked"))??;
            sum.merge(tally);
        }
        Ok((sum, usage?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_all_connections() {
        for (connections, threads) in [(8, 1), (8, 3), (64, 7), (2, 5)] {
            let plan = Plan::new(0.0, 1.0, connections, threads, None).unwrap();
            let sum: u16 = (0..plan.threads).map(|thread| plan.share(thread)).sum();
            assert_eq!(sum, connections);
        }
    }

    #[test]
    fn what_began_in_the_warm_up_is_not_counted_but_its_failure_is() {
        let plan = Plan::new(60.0, 1.0, 1, 1, None).unwrap();
        let mut tally = Tally::default();
        let begin = plan.begin().unwrap();
        plan.end(begin, Ok(Answer::Ok), &mut tally);
        plan.end(begin, Err(anyhow::anyhow!("reset")), &mut tally);
        assert_eq!((tally.ok, tally.errors, tally.first_error.as_deref()), (0, 1, Some("reset")));
    }

    #[test]
    fn a_length_of_time_must_be_one() {
        assert!(Plan::new(-1.0, 1.0, 1, 1, None).is_err());
        assert!(Plan::new(0.0, f64::NAN, 1, 1, None).is_err());
    }
}
