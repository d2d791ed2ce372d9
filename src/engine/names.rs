//! Names of hosts: looked up so that a name service that does not answer costs one thread for each name and
//! nothing else.
//!
//! The system's look-up cannot be called off: one that is given up still holds its thread, for twenty seconds
//! and more. So there is one look-up for a name at a time, in a thread of its own, and whoever asks waits
//! only as long as he wants to. The last good addresses stay in use while no newer ones can be had, and a
//! name that fails is looked up ever more rarely.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::clock::Stopwatch;

/// Most names kept in mind. More: those that are not being looked up are forgotten.
const NAMES_MAX: usize = 1_024;
/// Most addresses taken of one name.
const ADDRESSES_MAX: usize = 16;
/// Addresses are not looked up again for so long.
const FRESH: Duration = Duration::from_secs(1);
/// Time that somebody waits for newer addresses who could use those known.
const PATIENCE: Duration = Duration::from_millis(200);
/// First wait after a look-up that failed; each further one is twice as long.
const BACKOFF_MIN: Duration = Duration::from_millis(250);
/// Longest wait.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The names that this process looks up.
pub fn shared() -> &'static Arc<Names> {
    static SHARED: LazyLock<Arc<Names>> = LazyLock::new(|| {
        Names::new(|host| Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    });
    &SHARED
}

type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Names, and what is known of them.
pub struct Names {
    resolve: Box<Resolve>,
    names: Mutex<HashMap<String, Arc<LookedUpName>>>,
    started: Stopwatch,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct LookedUpName {
    state: Mutex<NameState>,
    /// Wakes those who wait whenever a look-up has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct NameState {
    /// Addresses of the last look-up that succeeded.
    known: Vec<IpAddr>,
    is_under_way: bool,
    /// Instant at which the next look-up may begin, since the start.
    next: Duration,
    backoff: Duration,
    /// Reason for which the last look-up failed; `None` after a good one.
    problem: Option<String>,
}

impl LookedUpName {
    fn state(&self) -> std::sync::MutexGuard<'_, NameState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    /// Names that are looked up by this, which may block.
    pub fn new(resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { resolve: Box::new(resolve), names: Mutex::default(), started: Stopwatch::start() })
    }

    /// The addresses of a host: as they are now, or were, where nothing newer comes in time.
    ///
    /// # Errors
    /// None are known, and none came within `longest`.
    pub async fn addresses(self: &Arc<Self>, host: &str, longest: Duration) -> io::Result<Vec<IpAddr>> {
        if let Some(address) = literal(host) {
            return Ok(vec![address]);
        }
        let name = self
            .look(host, |state| if state.known.is_empty() { longest } else { PATIENCE.min(longest) })
            .await;
        let state = name.state();
        if state.known.is_empty() { Err(failed(host, &state)) } else { Ok(state.known.clone()) }
    }

    /// Checks whether the host's addresses can be looked up just now: for who looks them up himself, and
    /// would block.
    ///
    /// # Errors
    /// They cannot, or no answer came within `longest`.
    pub async fn can_look_up(self: &Arc<Self>, host: &str, longest: Duration) -> io::Result<()> {
        if literal(host).is_some() {
            return Ok(());
        }
        let name = self.look(host, |_| longest).await;
        let state = name.state();
        if state.is_under_way || state.problem.is_some() { Err(failed(host, &state)) } else { Ok(()) }
    }

    /// Looks a name up where that is due, and waits for a look-up that is under way.
    async fn look(
        self: &Arc<Self>,
        host: &str,
        longest: impl FnOnce(&NameState) -> Duration,
    ) -> Arc<LookedUpName> {
        let name = self.name(host);
        {
            let ended = name.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let (waits, longest) = {
                let mut state = name.state();
                if !state.is_under_way && self.started.elapsed() >= state.next {
                    state.is_under_way = self.begin(host, &name);
                }
                (state.is_under_way, longest(&state))
            };
            if waits {
                // A task that waited in vain sees that it is still under way.
                let _ = timeout(longest, ended).await;
            }
        }
        name
    }

    fn name(&self, host: &str) -> Arc<LookedUpName> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(host) {
            return Arc::clone(known);
        }
        if names.len() >= NAMES_MAX {
            names.retain(|_, name| name.state().is_under_way);
        }
        Arc::clone(names.entry(host.to_owned()).or_default())
    }

    /// Looks it up in a thread. `false`: the system gives none.
    fn begin(self: &Arc<Self>, host: &str, name: &Arc<LookedUpName>) -> bool {
        let (own, host, name) = (Arc::clone(self), host.to_owned(), Arc::clone(name));
        let thread = std::thread::Builder::new().name("names".to_owned());
        let begun = thread.spawn(move || {
            let found = (own.resolve)(&host);
            let now = own.started.elapsed();
            let mut state = name.state();
            state.is_under_way = false;
            let problem = match found {
                Ok(found) if found.is_empty() => Some("it has no address".to_owned()),
                Ok(found) => {
                    state.known = found.into_iter().take(ADDRESSES_MAX).collect();
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            state.backoff = match &problem {
                Some(_) => (state.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX),
                None => Duration::ZERO,
            };
            state.next = now + state.backoff.max(if problem.is_none() { FRESH } else { BACKOFF_MIN });
            state.problem = problem;
            drop(state);
            name.ended.notify_waiters();
        });
        begun.is_ok()
    }
}

/// An address in place of a name.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn failed(host: &str, state: &NameState) -> io::Error {
    let why = match &state.problem {
        Some(problem) if !state.is_under_way => problem,
        _ => "the name service does not answer",
    };
    io::Error::other(format!("{host} cannot be looked up: {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(30);

    fn at(last: u8) -> Vec<IpAddr> {
        vec![IpAddr::from([192, 0, 2, last])]
    }

    /// Names whose look-ups end when the test says how, and how many were begun.
    fn scripted() -> (Arc<Names>, mpsc::Sender<io::Result<Vec<IpAddr>>>, Arc<AtomicUsize>) {
        let (answers, script) = mpsc::channel::<io::Result<Vec<IpAddr>>>();
        let (script, begun) = (Mutex::new(script), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&begun);
        let names = Names::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            let script = script.lock().unwrap_or_else(PoisonError::into_inner);
            script.recv().unwrap_or_else(|_| Err(io::Error::other("the test is over")))
        });
        (names, answers, begun)
    }

    async fn past(names: &Names, host: &str) {
        while names.name(host).state().next > names.started.elapsed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_name_service_that_does_not_answer_is_asked_once_and_the_last_addresses_stay() {
        let (names, answers, begun) = scripted();
        for _ in 0..20 {
            let error = names.addresses("db", Duration::from_millis(5)).await.unwrap_err().to_string();
            assert_eq!(error, "db cannot be looked up: the name service does not answer");
        }
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        // Slower than any connection may take to open, and used all the same.
        answers.send(Ok(at(1))).unwrap();
        assert_eq!(names.addresses("db", LONG).await.unwrap(), at(1));
        past(&names, "db").await;
        for _ in 0..5 {
            assert_eq!(names.addresses("db", SOON).await.unwrap(), at(1), "the last good ones");
            assert!(names.can_look_up("db", Duration::from_millis(5)).await.is_err());
        }
        assert_eq!(begun.load(Ordering::Relaxed), 2);
        answers.send(Ok(at(2))).unwrap();
        assert!(names.can_look_up("db", LONG).await.is_ok());
        assert_eq!(names.addresses("db", SOON).await.unwrap(), at(2));
    }

    #[tokio::test]
    async fn a_name_that_fails_is_looked_up_ever_more_rarely() {
        let (names, answers, begun) = scripted();
        answers.send(Err(io::Error::other("no such host"))).unwrap();
        for _ in 0..10 {
            let error = names.addresses("db", LONG).await.unwrap_err().to_string();
            assert_eq!(error, "db cannot be looked up: no such host");
        }
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        past(&names, "db").await;
        answers.send(Err(io::Error::other("no such host"))).unwrap();
        assert!(names.addresses("db", LONG).await.is_err());
        assert_eq!(names.name("db").state().backoff, BACKOFF_MIN * 2);
    }

    #[tokio::test]
    async fn addresses_need_no_look_up() {
        let (names, _answers, begun) = scripted();
        for host in ["192.0.2.7", "::1", "[::1]"] {
            assert_eq!(names.addresses(host, SOON).await.unwrap().len(), 1);
        }
        assert_eq!(begun.load(Ordering::Relaxed), 0);
    }
}
