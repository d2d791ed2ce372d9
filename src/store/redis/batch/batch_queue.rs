//! What waits to be sent to one node, and how much of it leaves when.
//!
//! A few batches at most are under way to a node. What comes meanwhile waits, and leaves together as soon as
//! one of them is answered: so a busy node gets many decisions with one write, an idle one is asked at once,
//! and there is no timer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::engine::clock::Deadline;
use crate::store::redis::batch::call::Part;
use crate::store::redis::batch::replay::Answered;
use crate::store::redis::client::failure::Failure;

/// Flights to a node at once: while one is decided, the next is on its way.
const BATCHES_MAX: usize = 3;
/// Parts in one batch at most: a script keeps a server from everything else while it runs.
const PARTS_MAX: usize = 256;
/// Parts that wait for one node at most. More are answered by their failure policy.
const WAITING_MAX: usize = 16_384;

/// One decision's part, and who waits for it.
#[derive(Debug)]
pub(in crate::store::redis) struct Waiting {
    pub(in crate::store::redis) part: Arc<Part>,
    /// `None` once it was answered.
    answer: Option<oneshot::Sender<Result<Answered, Failure>>>,
    pub(in crate::store::redis) deadline: Deadline,
}

impl Waiting {
    /// A part, and where its answer will come.
    pub(in crate::store::redis) fn new(
        part: Arc<Part>,
        deadline: Deadline,
    ) -> (Self, oneshot::Receiver<Result<Answered, Failure>>) {
        let (answer, answered) = oneshot::channel();
        (Self { part, answer: Some(answer), deadline }, answered)
    }

    /// Answers, unless that has happened.
    pub(in crate::store::redis) fn answer(&mut self, answer: Result<Answered, Failure>) {
        if let Some(waiting) = self.answer.take() {
            let _ = waiting.send(answer);
        }
    }

    /// Gives it up if its deadline has passed; until when it waits otherwise.
    pub(in crate::store::redis) fn expire(&mut self, now: Deadline) -> Option<Deadline> {
        if self.is_over() {
            return None;
        }
        if self.deadline <= now {
            self.answer(Err(Failure::Timeout));
            return None;
        }
        Some(self.deadline)
    }

    /// Whether nobody waits for it any more.
    fn is_over(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// The earliest deadline of those that are still waited for; gives the others up.
pub(in crate::store::redis) fn expire_all<'a>(
    waiting: impl IntoIterator<Item = &'a mut Waiting>,
    now: Deadline,
) -> Option<Deadline> {
    waiting.into_iter().filter_map(|waiting| waiting.expire(now)).min()
}

/// What waits to be sent to one node.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct BatchQueue {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    batches: usize,
    /// Somebody will soon send the next batch.
    has_sender: bool,
}

/// What became of a part that was put in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Enqueued {
    /// It leaves with the next batch.
    Waits,
    /// It leaves with the next batch, which the caller has to see to: at once if nothing else is under way.
    First { at_once: bool },
    /// Too many wait already; it was dropped.
    Full,
}

impl BatchQueue {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a part in line.
    pub(in crate::store::redis) fn enqueue(&self, waiting: Waiting) -> Enqueued {
        let mut queue = self.queue();
        if queue.waiting.len() >= WAITING_MAX {
            return Enqueued::Full;
        }
        queue.waiting.push_back(waiting);
        if queue.has_sender || queue.batches >= BATCHES_MAX {
            return Enqueued::Waits;
        }
        queue.has_sender = true;
        Enqueued::First { at_once: queue.batches == 0 }
    }

    /// The parts that leave now, as one more batch that must be told of with [`Self::completed`]; empty if
    /// nothing does.
    pub(in crate::store::redis) fn take_batch(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        queue.has_sender = false;
        if queue.batches >= BATCHES_MAX {
            return Vec::new();
        }
        let mut leaving = Vec::with_capacity(queue.waiting.len().min(PARTS_MAX));
        while leaving.len() < PARTS_MAX
            && let Some(next) = queue.waiting.pop_front()
        {
            // Nobody waits for it any more, so it was not carried out, for certain.
            if !next.is_over() {
                leaving.push(next);
            }
        }
        if !leaving.is_empty() {
            queue.batches += 1;
        }
        leaving
    }

    /// One batch is over. True where the caller has to see to the next.
    pub(in crate::store::redis) fn completed(&self) -> bool {
        let mut queue = self.queue();
        queue.batches = queue.batches.saturating_sub(1);
        if queue.has_sender || queue.waiting.is_empty() {
            return false;
        }
        queue.has_sender = true;
        true
    }

    /// Gives up what has waited too long. Until when the rest waits.
    pub(in crate::store::redis) fn expire(&self, now: Deadline) -> Option<Deadline> {
        expire_all(&mut self.queue().waiting, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smallvec::SmallVec;

    use super::*;
    use crate::store::redis::batch::call::Action;
    use crate::store::redis::client::slots::ClusterSlot;

    type Answers = Vec<oneshot::Receiver<Result<Answered, Failure>>>;

    fn enqueue(queue: &BatchQueue, answers: &mut Answers, within: Duration) -> Enqueued {
        let part = Part {
            slot: ClusterSlot(1),
            action: Action::Charge,
            buckets: SmallVec::new(),
            charges: SmallVec::new(),
        };
        let (waiting, answer) = Waiting::new(Arc::new(part), Deadline::after(within));
        answers.push(answer);
        queue.enqueue(waiting)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_idle_node_is_asked_at_once_and_a_busy_one_for_many_together() {
        let (queue, mut answers) = (BatchQueue::default(), Answers::new());
        for batches in 0..BATCHES_MAX {
            assert_eq!(enqueue(&queue, &mut answers, LONG), Enqueued::First { at_once: batches == 0 });
            assert_eq!(queue.take_batch().len(), 1);
        }
        for _ in 0..10 {
            assert_eq!(enqueue(&queue, &mut answers, LONG), Enqueued::Waits);
        }
        assert!(queue.take_batch().is_empty());
        assert!(queue.completed());
        assert_eq!(queue.take_batch().len(), 10);
    }

    #[test]
    fn those_who_come_while_somebody_boards_leave_with_them() {
        let (queue, mut answers) = (BatchQueue::default(), Answers::new());
        assert_eq!(enqueue(&queue, &mut answers, LONG), Enqueued::First { at_once: true });
        assert_eq!(enqueue(&queue, &mut answers, LONG), Enqueued::Waits);
        assert_eq!(queue.take_batch().len(), 2);
        assert!(!queue.completed());
    }

    #[test]
    fn a_flight_takes_no_more_than_its_bound_and_the_queue_neither() {
        let (queue, mut answers) = (BatchQueue::default(), Answers::new());
        for _ in 0..WAITING_MAX {
            assert_ne!(enqueue(&queue, &mut answers, LONG), Enqueued::Full);
        }
        assert_eq!(enqueue(&queue, &mut answers, LONG), Enqueued::Full);
        assert_eq!(queue.take_batch().len(), PARTS_MAX);
    }

    #[test]
    fn who_has_gone_away_or_waited_too_long_does_not_leave() {
        let (queue, mut answers) = (BatchQueue::default(), Answers::new());
        enqueue(&queue, &mut answers, LONG);
        enqueue(&queue, &mut answers, Duration::ZERO);
        enqueue(&queue, &mut answers, LONG);
        drop(answers.remove(0));
        assert!(queue.expire(Deadline::after(Duration::ZERO)).is_some());
        assert!(matches!(answers[0].try_recv(), Ok(Err(Failure::Timeout))));
        assert_eq!(queue.take_batch().len(), 1);
    }
}
