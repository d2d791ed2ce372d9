//! Background tasks that never end by themselves: each is watched, and one that ends all the same is started
//! again.
//!
//! An end that nobody asked for (a return, a panic) is logged and counted by task, and the daemon turns
//! unready until the task has run again for a while, so that gateways ask elsewhere as long as a part of this
//! daemon is missing.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock::Stopwatch;
use crate::telemetry::Metrics;

/// The times after which a task is started again, and after which it counts as well.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// First wait before a task is started again; each further one is twice as long.
    backoff_min: Duration,
    /// Longest wait before a task is started again.
    backoff_max: Duration,
    /// A task that was started again counts as well after running for so long.
    settled: Duration,
    /// After running for so long it begins with the first wait again.
    calm: Duration,
}

const PACE: Pace = Pace {
    backoff_min: Duration::from_millis(100),
    backoff_max: Duration::from_secs(30),
    settled: Duration::from_secs(1),
    calm: Duration::from_secs(60),
};

/// One run of a task. Boxed, and made by a box, so that what watches tasks is compiled once and not for each.
type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Names of tasks that are missing, and how many of each.
type Missing = BTreeMap<&'static str, usize>;

/// The background tasks of one daemon.
#[derive(Clone)]
pub struct Tasks {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None`: nothing is counted, in tests.
    metrics: Option<Arc<Metrics>>,
    tracker: TaskTracker,
    missing: watch::Sender<Missing>,
    pace: Pace,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").field("missing", &self.missing()).finish_non_exhaustive()
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self::with(None, PACE)
    }
}

impl Tasks {
    /// None yet. Their ends are counted here.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self::with(Some(metrics), PACE)
    }

    /// Tasks that are waited for apart from these, and missed beside them.
    #[must_use]
    pub fn apart(&self) -> Self {
        let Shared { metrics, missing, pace, .. } = &*self.shared;
        let (metrics, missing, tracker) = (metrics.clone(), missing.clone(), TaskTracker::new());
        let shared = Shared { metrics, tracker, missing, pace: *pace };
        Self { shared: Arc::new(shared) }
    }

    fn with(metrics: Option<Arc<Metrics>>, pace: Pace) -> Self {
        let (tracker, missing) = (TaskTracker::new(), watch::Sender::default());
        Self { shared: Arc::new(Shared { metrics, tracker, missing, pace }) }
    }

    /// Runs the task that `make` makes until `stop`, and makes it anew whenever it ends before. `name` is its
    /// metric label; several tasks may share one. Must be called inside a tokio runtime.
    pub fn spawn<F, T>(&self, name: &'static str, stop: &CancellationToken, mut make: F)
    where
        F: FnMut() -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.watch(name, stop, Box::new(move || Box::pin(make())));
    }

    /// The same of a task that works on something shared.
    pub fn spawn_on<O, F, T>(&self, name: &'static str, stop: &CancellationToken, own: &Arc<O>, run: F)
    where
        O: ?Sized + Send + Sync + 'static,
        F: Fn(Arc<O>, CancellationToken) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let (own, ending) = (Arc::clone(own), stop.clone());
        self.spawn(name, stop, move || run(Arc::clone(&own), ending.clone()));
    }

    fn watch(&self, name: &'static str, stop: &CancellationToken, mut make: Box<dyn FnMut() -> Run + Send>) {
        let counter = |metrics: &Arc<Metrics>| metrics.counter("task_ends_total", "task", name);
        let ends = self.shared.metrics.as_ref().map_or_else(Counter::noop, counter);
        let watched = Watched { name, shared: Arc::clone(&self.shared), ends, is_missing: false };
        // Here and not in the task: what the task needs exists as soon as this returns.
        let first = tokio::spawn(make());
        self.shared.tracker.spawn(watched.keep(first, make, stop.clone()));
    }

    /// The tasks that ended and do not run again yet.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        self.shared.missing.borrow().keys().copied().collect()
    }

    /// Tells when [`Self::missing`] changes.
    #[must_use]
    pub fn changes(&self) -> TaskChanges {
        TaskChanges(self.shared.missing.subscribe())
    }

    /// Waits for the tasks to end, once they were stopped.
    pub async fn ended(&self) {
        self.shared.tracker.close();
        self.shared.tracker.wait().await;
    }
}

/// Tells when tasks end and when they run again.
#[derive(Debug)]
pub struct TaskChanges(watch::Receiver<Missing>);

impl TaskChanges {
    /// Waits for the next change.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One task, and whether it is there.
struct Watched {
    name: &'static str,
    shared: Arc<Shared>,
    ends: Counter,
    is_missing: bool,
}

impl Watched {
    async fn keep(
        mut self,
        first: JoinHandle<()>,
        mut make: Box<dyn FnMut() -> Run + Send>,
        stop: CancellationToken,
    ) {
        let mut task = Running(first);
        let pace = self.shared.pace;
        let mut backoff = pace.backoff_min;
        loop {
            let ran = Stopwatch::start();
            let ended = match timeout(pace.settled, &mut task.0).await {
                Ok(ended) => ended,
                Err(_) => {
                    self.set_missing(false);
                    (&mut task.0).await
                }
            };
            // A runtime that ends takes its tasks along.
            if stop.is_cancelled() || ended.as_ref().is_err_and(JoinError::is_cancelled) {
                break;
            }
            self.ends.increment(1);
            self.set_missing(true);
            if ran.elapsed() > pace.calm {
                backoff = pace.backoff_min;
            }
            let how = if ended.is_err() { "panicked" } else { "returned" };
            tracing::error!(
                task = self.name,
                again_in = ?backoff,
                "a background task ended that should not have: it {how}; the daemon is not ready until it runs again"
            );
            if stop.run_until_cancelled(sleep(backoff)).await.is_none() {
                break;
            }
            backoff = (backoff * 2).min(pace.backoff_max);
            task = Running(tokio::spawn(make()));
        }
        self.set_missing(false);
    }

    fn set_missing(&mut self, is_missing: bool) {
        if std::mem::replace(&mut self.is_missing, is_missing) == is_missing {
            return;
        }
        self.shared.missing.send_modify(|missing| {
            let many = missing.entry(self.name).or_default();
            *many = if is_missing { *many + 1 } else { many.saturating_sub(1) };
            if *many == 0 {
                missing.remove(self.name);
            }
        });
    }
}

/// A task that ends with whoever watches it.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A thousand times as fast.
    const QUICK: Pace = Pace {
        backoff_min: Duration::from_micros(100),
        backoff_max: Duration::from_millis(30),
        settled: Duration::from_millis(20),
        calm: Duration::from_secs(60),
    };

    async fn until(what: impl Fn() -> bool) {
        while !what() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_task_that_panics_or_returns_is_missed_counted_and_started_again() {
        let metrics = Metrics::new();
        let (tasks, stop) = (Tasks::with(Some(Arc::clone(&metrics)), QUICK), CancellationToken::new());
        let starts = Arc::new(AtomicU32::new(0));
        let (counted, ending) = (Arc::clone(&starts), stop.clone());
        tasks.spawn("brittle", &stop, move || {
            let (start, stop) = (counted.fetch_add(1, Ordering::Relaxed), ending.clone());
            async move {
                match start {
                    0 => sleep(Duration::from_millis(50)).await,
                    1 => std::panic::panic_any("injected"),
                    _ => stop.cancelled().await,
                }
            }
        });
        assert!(metrics.render().contains("tidegate_task_ends_total{task=\"brittle\"} 0"));
        assert!(tasks.missing().is_empty());
        until(|| !tasks.missing().is_empty()).await;
        assert_eq!(tasks.missing(), ["brittle"]);
        until(|| tasks.missing().is_empty()).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
        assert!(metrics.render().contains("tidegate_task_ends_total{task=\"brittle\"} 2"));
        stop.cancel();
        tasks.ended().await;
        assert!(metrics.render().contains("tidegate_task_ends_total{task=\"brittle\"} 2"), "told to stop");
    }

    #[tokio::test]
    async fn a_task_that_ends_again_and_again_is_started_ever_more_rarely() {
        let (tasks, stop) = (Tasks::with(None, QUICK), CancellationToken::new());
        let starts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&starts);
        tasks.spawn("hopeless", &stop, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            async {}
        });
        let begun = Stopwatch::start();
        until(|| starts.load(Ordering::Relaxed) >= 15).await;
        // 0.1 + 0.2 + … + 25.6 ms, then 30 ms each.
        assert!(begun.elapsed() > Duration::from_millis(51 + 5 * 30), "{:?}", begun.elapsed());
        assert_eq!(tasks.missing(), ["hopeless"]);
        stop.cancel();
        tasks.ended().await;
    }
}
