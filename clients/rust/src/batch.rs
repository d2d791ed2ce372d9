//! Batches: checks that tasks ask for at the same time go to the daemon in one call.
//!
//! A check that finds fewer calls under way than there may be is sent at once. One that comes meanwhile waits
//! for an answer, and goes with all others that wait: nobody waits for a timer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::answer::{Decision, Decisions};
use crate::error::{AwayCause, Refused};
use crate::transport::{Failure, Route, Transport};

/// The most checks that a daemon takes in one call.
const CHECKS_MAX: usize = 1_000;

/// The longest body that a daemon takes, less what stands around the checks.
const BYTES_MAX: usize = (1 << 20) - 64;

/// Checks that wait, and the calls that are under way.
#[derive(Debug)]
pub(crate) struct Queue {
    calls_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    calls: usize,
}

#[derive(Debug)]
struct Waiting {
    /// The check, in JSON.
    check: Vec<u8>,
    answer: oneshot::Sender<Result<Decision, Failure>>,
}

impl Queue {
    pub(crate) fn new(calls_max: usize) -> Self {
        Self { calls_max, state: Mutex::default() }
    }

    /// Decides one check, with others where there are any.
    pub(crate) async fn check(
        self: &Arc<Self>,
        to: &Arc<Transport>,
        check: Vec<u8>,
    ) -> Result<Decision, Failure> {
        let (answer, answered) = oneshot::channel();
        if self.push(Waiting { check, answer }) {
            let call = Call { queue: self.clone(), ended: false };
            tokio::spawn(call.run(to.clone()));
        }
        match tokio::time::timeout(to.timeout(), answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(to.away(Route::Check, AwayCause::Stopped)),
            Err(_) => Err(to.late(Route::Check)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a check, and says if its caller is to begin another call.
    fn push(&self, waiting: Waiting) -> bool {
        let mut state = self.state();
        state.waiting.push_back(waiting);
        let begins = state.calls < self.calls_max;
        state.calls += usize::from(begins);
        begins
    }

    /// Takes the next checks for a call, or ends it where none wait.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut state = self.state();
        let batch = take(&mut state.waiting);
        if batch.is_empty() {
            state.calls -= 1;
            return None;
        }
        Some(batch)
    }
}

/// Takes as many checks as fit into one call, and forgets those whose callers wait no longer.
fn take(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while let Some(first) = waiting.front() {
        let size = first.check.len() + 1;
        if !first.answer.is_closed() {
            // One that is too long by itself goes alone, and the daemon says so to its caller.
            if batch.len() == CHECKS_MAX || (!batch.is_empty() && bytes + size > BYTES_MAX) {
                break;
            }
            bytes += size;
            batch.extend(waiting.pop_front());
        } else {
            waiting.pop_front();
        }
    }
    batch
}

/// One of the calls that are under way at the same time. It goes on while checks wait.
struct Call {
    queue: Arc<Queue>,
    ended: bool,
}

impl Call {
    async fn run(mut self, to: Arc<Transport>) {
        while let Some(batch) = self.queue.next() {
            decide(&to, batch).await;
        }
        self.ended = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Its runtime has ended: the next check, on another one, begins anew.
        if !self.ended {
            self.queue.state().calls -= 1;
        }
    }
}

/// Sends checks until all but the wrong ones are decided: a daemon charges nothing of a batch with a wrong
/// one.
async fn decide(to: &Transport, mut batch: Vec<Waiting>) {
    while !batch.is_empty() {
        match send(to, &batch).await {
            Ok(decisions) => {
                for (waiting, decision) in batch.into_iter().zip(decisions) {
                    // A caller that waits no longer has decided already.
                    let _ = waiting.answer.send(Ok(decision));
                }
                return;
            }
            Err(Failure::Refused(refused)) => match wrong_one(&refused, batch.len()) {
                Some((place, refused)) => {
                    let _ = batch.remove(place).answer.send(Err(Failure::Refused(refused)));
                }
                None => return fail(batch, &Failure::Refused(refused)),
            },
            Err(away) => return fail(batch, &away),
        }
    }
}

async fn send(to: &Transport, batch: &[Waiting]) -> Result<Vec<Decision>, Failure> {
    let size: usize = batch.iter().map(|waiting| waiting.check.len() + 1).sum();
    let mut body = Vec::with_capacity(size + 16);
    body.extend_from_slice(br#"{"checks":["#);
    for (place, waiting) in batch.iter().enumerate() {
        if place > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&waiting.check);
    }
    body.extend_from_slice(b"]}");
    let answer = to.call(Route::Check, body).await?;
    let Decisions { decisions } = to.read(Route::Check, &answer)?;
    if decisions.len() != batch.len() {
        let message = format!("{} checks were answered with {} decisions", batch.len(), decisions.len());
        return Err(Failure::Refused(Refused::unexpected(200, message)));
    }
    Ok(decisions)
}

fn fail(batch: Vec<Waiting>, failure: &Failure) {
    for waiting in batch {
        let _ = waiting.answer.send(Err(failure.clone()));
    }
}

/// Returns which check of a batch was refused, and the refusal as if it had been asked alone.
fn wrong_one(refused: &Refused, checks: usize) -> Option<(usize, Refused)> {
    let (place, within) = refused.field.as_deref()?.strip_prefix("checks[")?.split_once(']')?;
    let place = place.parse().ok().filter(|place| *place < checks)?;
    let field = within.strip_prefix('.').map(str::to_owned);
    Some((place, Refused { field, ..refused.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(bytes: usize) -> (Waiting, oneshot::Receiver<Result<Decision, Failure>>) {
        let (answer, answered) = oneshot::channel();
        (Waiting { check: vec![b' '; bytes], answer }, answered)
    }

    #[test]
    fn a_batch_has_what_a_daemon_takes_of_those_who_still_wait() {
        let queue = Queue::new(2);
        let mut callers = Vec::new();
        for _ in 0..CHECKS_MAX + 3 {
            let (one, caller) = waiting(10);
            let begun = callers.len();
            assert_eq!(queue.push(one), begun < 2, "two calls are begun, and no third");
            callers.push(caller);
        }
        callers.remove(0);
        assert_eq!(queue.next().unwrap().len(), CHECKS_MAX);
        assert_eq!(queue.next().unwrap().len(), 2);
        assert!(queue.next().is_none() && queue.next().is_none());
        assert!(queue.push(waiting(1).0), "a call that ended leaves its place");
    }

    #[test]
    fn a_batch_is_no_longer_than_a_body_may_be() {
        let (checks, _callers): (VecDeque<_>, Vec<_>) =
            [BYTES_MAX / 2, BYTES_MAX / 2, 2 * BYTES_MAX, 1].map(waiting).into_iter().unzip();
        let mut checks = checks;
        let sizes: Vec<_> =
            std::iter::from_fn(|| Some(take(&mut checks).len()).filter(|size| *size > 0)).collect();
        assert_eq!(sizes, [1, 1, 1, 1]);
    }

    #[test]
    fn the_wrong_check_of_a_batch_is_found_by_its_field() {
        let refused = |field: &str| Refused {
            field: Some(field.to_owned()),
            ..Refused::unexpected(400, "no".to_owned())
        };
        let found =
            |field: &str| wrong_one(&refused(field), 3).map(|(place, refused)| (place, refused.field));
        assert_eq!(found("checks[2].attributes.user"), Some((2, Some("attributes.user".to_owned()))));
        assert_eq!(found("checks[0]"), Some((0, None)));
        assert_eq!((found("checks[3].cost"), found("checks"), found("domain")), (None, None, None));
    }
}
