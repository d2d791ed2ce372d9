//! Sends parts to their nodes, and brings each its answer.
//!
//! Decisions that leave for a node together go as few calls: as one for all, or in a cluster as one for each
//! slot, all in one write. So a hot key costs one call a batch, however many ask for it. A task of its own
//! follows up whatever is not plainly answered: a slot that has moved, a script that is not loaded, a key
//! that another shape holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::core::regions::escrow::StepResult;
use crate::core::time::Timestamp;
use crate::engine::clock::{Clock, Deadline};
use crate::store::redis::batch::batch_queue::{Enqueued, Waiting, expire_all};
use crate::store::redis::batch::call::{CallTerms, DecideCall, Part};
use crate::store::redis::batch::epochs::ReplicationEpochs;
use crate::store::redis::batch::replay::{Answered, replay};
use crate::store::redis::batch::rights;
use crate::store::redis::batch::scripts::DECIDE;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::link::{Completion, Link};
use crate::store::redis::client::slots::ClusterSlot;
use crate::store::redis::servers::metrics::{StoreMetrics, Timer};
use crate::store::redis::servers::node::{BreakerPermit, Node, Wire};
use crate::store::redis::servers::topology::Places;

/// Buckets in one call beyond which no part is added.
const BUCKETS_MAX: usize = 1_024;
/// Times that one call is sent: redirects, a missing script, a slot on its way.
const TRIES_MAX: usize = 8;
/// Before asking again for a slot that is on its way.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// Sends parts.
#[derive(Debug)]
pub(in crate::store::redis) struct Dispatcher {
    places: Arc<Places>,
    metrics: Arc<StoreMetrics>,
    epochs: ReplicationEpochs,
    /// A test's clock in place of the servers'.
    clock: Option<Arc<Clock>>,
    runtime: Handle,
}

/// Parts that go as one call.
struct Group {
    slot: ClusterSlot,
    call: DecideCall,
    waiting: Vec<Waiting>,
}

impl Dispatcher {
    pub(in crate::store::redis) fn new(
        places: Arc<Places>,
        metrics: Arc<StoreMetrics>,
        clock: Option<Arc<Clock>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            places,
            metrics,
            epochs: ReplicationEpochs::default(),
            clock,
            runtime: Handle::current(),
        })
    }

    /// The topology.
    pub(in crate::store::redis) const fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Has a part decided, or says why not by `deadline`: the connection's timer sees to that.
    pub(in crate::store::redis) async fn ask(
        self: &Arc<Self>,
        part: Arc<Part>,
        deadline: Deadline,
    ) -> Result<Answered, Failure> {
        let answered = self.begin(Arc::clone(&part), deadline)?.answer().await?;
        if answered.lapsed {
            return self.begin(Arc::new(part.with_notes()), deadline)?.answer().await;
        }
        Ok(answered)
    }

    /// Puts a part in line. Parts that are begun later for the same buckets are decided later, as long as
    /// they stay where they are.
    pub(in crate::store::redis) fn begin(
        self: &Arc<Self>,
        part: Arc<Part>,
        deadline: Deadline,
    ) -> Result<Begun, Failure> {
        let node = self.places.map().node(part.slot).cloned().ok_or(Failure::NoNode)?;
        let (waiting, answered) = Waiting::new(part, deadline);
        let next_batch = match node.queue.enqueue(waiting) {
            Enqueued::Full => return Err(Failure::Timeout),
            Enqueued::Waits => None,
            Enqueued::First { at_once: true } => {
                self.dispatch(&node);
                None
            }
            Enqueued::First { at_once: false } => Some(NextBatch { dispatcher: Arc::clone(self), node }),
        };
        Ok(Begun { next_batch, answered })
    }

    /// Sends what waits for a node.
    fn dispatch(self: &Arc<Self>, node: &Arc<Node>) {
        loop {
            let leaving = node.queue.take_batch();
            if leaving.is_empty() || !self.send(node, leaving) || !node.queue.completed() {
                return;
            }
        }
    }

    /// Sends parts to a node. True where that batch is over already, since nothing could be sent.
    fn send(self: &Arc<Self>, node: &Arc<Node>, leaving: Vec<Waiting>) -> bool {
        let Some(wire) = node.wire() else {
            self.refuse(leaving, &Failure::Down);
            return true;
        };
        let groups = self.coalesced(leaving);
        // One more than there are, so that it is not over before all have left.
        let left = Arc::new(AtomicUsize::new(groups.len() + 1));
        for group in groups {
            self.post(&wire, &left, group);
        }
        wire.flush();
        is_last(&left)
    }

    fn refuse(&self, leaving: Vec<Waiting>, failure: &Failure) {
        self.metrics.failed(failure);
        for mut waiting in leaving {
            waiting.answer(Err(failure.clone()));
        }
    }

    /// Parts of one slot (of any, where calls may reach over slots) together, in their order.
    fn coalesced(&self, leaving: Vec<Waiting>) -> Vec<Group> {
        let joins_slots = self.places.joins_slots();
        let mut groups: Vec<Group> = Vec::new();
        let mut newest: HashMap<ClusterSlot, usize, foldhash::fast::FixedState> = HashMap::default();
        for waiting in leaving {
            let slot = waiting.part.slot;
            let place = if joins_slots { ClusterSlot(0) } else { slot };
            if let Some(group) = newest.get(&place).and_then(|index| groups.get_mut(*index))
                && group.call.buckets.len() < BUCKETS_MAX
                && group.call.add(Arc::clone(&waiting.part)).is_ok()
            {
                group.waiting.push(waiting);
                continue;
            }
            let mut call = DecideCall::new();
            if call.add(Arc::clone(&waiting.part)).is_err() {
                self.refuse(vec![waiting], &Failure::Unexpected("a part that contradicts itself".to_owned()));
                continue;
            }
            newest.insert(place, groups.len());
            groups.push(Group { slot, call, waiting: vec![waiting] });
        }
        groups
    }

    fn post(self: &Arc<Self>, wire: &Wire, left: &Arc<AtomicUsize>, group: Group) {
        self.metrics.coalesced(group.waiting.len().saturating_sub(1));
        let Some(pass) = wire.pass() else {
            left.fetch_sub(1, Ordering::AcqRel);
            return self.refuse(group.waiting, &Failure::Down);
        };
        let mut bytes = Vec::new();
        group.call.write(&mut bytes, &DECIDE, false, self.terms(wire.keys_bound()));
        let under_way = CallUnderWay {
            dispatcher: Arc::clone(self),
            link: wire.link(),
            pass,
            left: Arc::clone(left),
            group,
            timer: self.metrics.sample(),
        };
        if let Err(refused) = wire.post(|into| into.extend_from_slice(&bytes), Box::new(under_way)) {
            refused.complete(Err(Failure::Down));
        }
    }

    /// Answers what a call decided.
    fn settle(self: &Arc<Self>, mut group: Group, answer: Result<Value, Failure>) {
        let failure = match answer.and_then(|value| group.call.reply(value)) {
            Ok(Ok(reply)) => {
                self.epochs.learn(&reply.epoch);
                let answers = replay(&group.call, &reply);
                return self.answer(&mut group, answers);
            }
            Ok(Err(strangers)) => {
                group.call.step_aside(&strangers);
                None
            }
            Err(failure) => Some(failure),
        };
        match failure {
            None | Some(Failure::NoScript | Failure::Moved(_) | Failure::Ask(_) | Failure::TryAgain) => {
                self.runtime.spawn(Arc::clone(self).follow_up(group, failure));
            }
            Some(failure) => self.refuse(group.waiting, &failure),
        }
    }

    fn answer(&self, group: &mut Group, answers: Vec<Result<Answered, Failure>>) {
        for (waiting, answer) in group.waiting.iter_mut().zip(answers) {
            if let Err(failure) = &answer {
                self.metrics.failed(failure);
                if let Some(node) = self.places.map().node(group.slot) {
                    node.failed(failure);
                }
            }
            waiting.answer(answer);
        }
    }

    /// Sends a call again and again, to wherever it belongs, until it is answered.
    async fn follow_up(self: Arc<Self>, mut group: Group, first: Option<Failure>) {
        let deadline = group.waiting.iter().map(|waiting| waiting.deadline).max();
        let deadline = deadline.unwrap_or_else(|| Deadline::after(Duration::ZERO));
        let answers = self.insist(&mut group.call, group.slot, first, deadline).await;
        match answers {
            Ok(answers) => self.answer(&mut group, answers),
            Err(failure) => self.refuse(group.waiting, &failure),
        }
    }

    async fn insist(
        &self,
        call: &mut DecideCall,
        slot: ClusterSlot,
        mut before: Option<Failure>,
        deadline: Deadline,
    ) -> Result<Vec<Result<Answered, Failure>>, Failure> {
        let mut whole = false;
        for _ in 0..TRIES_MAX {
            whole |= before == Some(Failure::NoScript);
            let mut packed = Vec::new();
            let bound = self.places.map().node(slot).and_then(|node| node.keys_bound());
            call.write(&mut packed, &DECIDE, whole, self.terms(bound));
            match self.redirected(&packed, slot, before.take(), deadline).await {
                Ok(value) => match call.reply(value)? {
                    Ok(reply) => {
                        self.epochs.learn(&reply.epoch);
                        return Ok(replay(call, &reply));
                    }
                    Err(strangers) => call.step_aside(&strangers),
                },
                Err(Failure::NoScript) => before = Some(Failure::NoScript),
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Unexpected("no key is free for a bucket".to_owned()))
    }

    /// Has a step carried out on the rights of a bucket. `None`: no answer came in time.
    pub(in crate::store::redis) async fn rights(
        &self,
        call: &rights::StepCall,
        deadline: Deadline,
    ) -> Option<StepResult> {
        let slot = call.name.slot;
        let packed = |whole| call.command(whole, self.clock(), &self.epochs).get_packed_command();
        let mut answer = self.redirected(&packed(false), slot, None, deadline).await;
        if matches!(answer, Err(Failure::NoScript)) {
            answer = self.redirected(&packed(true), slot, None, deadline).await;
        }
        match answer {
            Ok(value) => rights::read(value, call.counting, &self.epochs),
            Err(failure) => {
                self.metrics.failed(&failure);
                None
            }
        }
    }

    /// Sends a plain command to the node that serves a slot.
    pub(in crate::store::redis) async fn plain(
        &self,
        command: &Cmd,
        slot: ClusterSlot,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let answer = self.redirected(&command.get_packed_command(), slot, None, deadline).await;
        if let Err(failure) = &answer {
            self.metrics.failed(failure);
        }
        answer
    }

    /// Sends a command to wherever the slot is now; `before` is what it was told already.
    async fn redirected(
        &self,
        packed: &[u8],
        slot: ClusterSlot,
        before: Option<Failure>,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let mut node = self.places.map().node(slot).cloned().ok_or(Failure::NoNode)?;
        let mut asking = false;
        let mut before = before.filter(|failure| *failure != Failure::NoScript);
        for _ in 0..TRIES_MAX {
            let answer = match before.take() {
                Some(failure) => Err(failure),
                None if asking => node.call_asking(packed, deadline).await,
                None => node.call(packed, deadline).await,
            };
            asking = false;
            match answer {
                Err(Failure::Moved(address)) => {
                    node = self.reach(&address, deadline).await?;
                    self.places.moved(slot, &node);
                    self.places.trouble();
                }
                Err(Failure::Ask(address)) => {
                    node = self.reach(&address, deadline).await?;
                    asking = true;
                }
                Err(Failure::TryAgain) if !deadline.left().is_zero() => sleep(TRY_AGAIN).await,
                answer => return answer,
            }
        }
        Err(Failure::Unexpected("redirected without end".to_owned()))
    }

    /// A node that a redirect names; one that is new is waited for.
    async fn reach(&self, address: &str, deadline: Deadline) -> Result<Arc<Node>, Failure> {
        let node = self.places.named(address).ok_or(Failure::NoNode)?;
        node.connected(deadline.left()).await;
        Ok(node)
    }

    fn terms(&self, keys_bound: Option<u64>) -> CallTerms<'_> {
        CallTerms { clock: self.clock(), epochs: &self.epochs, keys_bound }
    }

    fn clock(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }
}

fn is_last(left: &AtomicUsize) -> bool {
    left.fetch_sub(1, Ordering::AcqRel) == 1
}

/// A part that is in line.
pub(in crate::store::redis) struct Begun {
    next_batch: Option<NextBatch>,
    answered: oneshot::Receiver<Result<Answered, Failure>>,
}

impl Begun {
    /// Waits for its answer.
    pub(in crate::store::redis) async fn answer(self) -> Result<Answered, Failure> {
        if let Some(next_batch) = self.next_batch {
            // Other requests that are about to ask come along. Only where something is under way anyway: to
            // yield wakes another thread.
            tokio::task::yield_now().await;
            drop(next_batch);
        }
        self.answered.await.unwrap_or(Err(Failure::Timeout))
    }
}

/// Sees to a batch, also for a caller who goes away.
struct NextBatch {
    dispatcher: Arc<Dispatcher>,
    node: Arc<Node>,
}

impl Drop for NextBatch {
    fn drop(&mut self) {
        self.dispatcher.dispatch(&self.node);
    }
}

/// One call of a batch that is under way.
struct CallUnderWay {
    dispatcher: Arc<Dispatcher>,
    link: Weak<Link>,
    pass: BreakerPermit,
    /// Calls of the batch without an answer.
    left: Arc<AtomicUsize>,
    group: Group,
    timer: Option<Timer>,
}

impl Completion for CallUnderWay {
    fn complete(self: Box<Self>, answer: Result<Value, Failure>) {
        let Self { dispatcher, link, pass, left, group, timer } = *self;
        let node = Arc::clone(pass.node());
        if let Some(timer) = timer {
            dispatcher.metrics.record(timer);
        }
        node.judge(&link, pass, &answer);
        dispatcher.settle(group, answer);
        if is_last(&left) && node.queue.completed() {
            dispatcher.dispatch(&node);
        }
    }

    fn expire(&mut self, now: Deadline) -> Option<Deadline> {
        expire_all(&mut self.group.waiting, now)
    }
}
