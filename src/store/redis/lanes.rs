//! Sends parts to their nodes, one call at a time for each lane.
//!
//! While a call is under way, further parts of its lane wait and then go as one call that decides them in order. So a hot key
//! costs one call a round trip, however many ask for it, and an idle one is asked for at once: there is no timer. In a cluster
//! each slot is a lane; elsewhere a few lanes for each server join all slots, since one call may reach over them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::Histogram;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::call::{Call, Part};
use super::failure::Failure;
use super::meter::Meter;
use super::node::Node;
use super::replay::{Answered, replay};
use super::rights::{self, Stints};
use super::scripts::DECIDE;
use super::slots::{SLOTS, Slot};
use super::topology::Places;
use crate::core::time::Timestamp;
use crate::core::worldwide::escrow::Balance;
use crate::engine::clock::{Clock, Deadline, Stopwatch};

/// Parts that go as one call at most: a script keeps a server from everything else while it runs.
const BATCH_MAX: usize = 256;
/// Buckets in one call beyond which no part is added.
const BUCKETS_MAX: usize = 1_024;
/// Lanes for each server where calls may reach over slots: while one call is decided, the next is on its way.
const LANES_PER_NODE: usize = 3;
/// Parts that wait for one slot at most. More are answered by their failure policy.
const WAITING_MAX: usize = 16_384;
/// Times that one call is sent: redirects, a missing script, a slot on its way.
const TRIES_MAX: usize = 8;
/// Before asking again for a slot that is on its way.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// Sends parts.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Box<[Mutex<Lane>]>,
    places: Arc<Places>,
    meter: Arc<Meter>,
    stints: Stints,
    /// A test's clock in place of the servers'.
    clock: Option<Arc<Clock>>,
    runtime: Handle,
}

#[derive(Debug, Default)]
struct Lane {
    busy: bool,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    part: Arc<Part>,
    answer: oneshot::Sender<Result<Answered, Failure>>,
    deadline: Deadline,
}

impl Lanes {
    pub(super) fn new(places: Arc<Places>, meter: Arc<Meter>, clock: Option<Arc<Clock>>) -> Arc<Self> {
        let lanes = (0..SLOTS).map(|_| Mutex::default()).collect();
        Arc::new(Self { lanes, places, meter, stints: Stints::default(), clock, runtime: Handle::current() })
    }

    /// The topology.
    pub(super) const fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Has a part decided, or says why not by `deadline`.
    pub(super) async fn ask(
        self: &Arc<Self>,
        part: Arc<Part>,
        deadline: Deadline,
    ) -> Result<Answered, Failure> {
        let slot = part.slot;
        let waiting = {
            let Some(mut lane) = self.lane(slot) else { return Err(Failure::NoNode) };
            if !lane.busy {
                lane.busy = true;
                None
            } else if lane.waiting.len() < WAITING_MAX {
                let (answer, waiting) = oneshot::channel();
                lane.waiting.push_back(Waiting { part: Arc::clone(&part), answer, deadline });
                Some(waiting)
            } else {
                return Err(Failure::Timeout);
            }
        };
        if let Some(waiting) = waiting {
            return match deadline.wait(waiting).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => Err(Failure::Timeout),
            };
        }
        let _turn = Turn { lanes: self, slot };
        let mut call = Call::new();
        if call.add(part).is_err() {
            return Err(Failure::Unexpected("a part that contradicts itself".to_owned()));
        }
        let answers = self.send(&mut call, slot, deadline).await?;
        answers.into_iter().next().ok_or_else(|| Failure::Unexpected("no answer".to_owned()))
    }

    fn lane(&self, slot: Slot) -> Option<MutexGuard<'_, Lane>> {
        let index = if self.places.joins_slots() {
            self.places.map().place(slot) * LANES_PER_NODE + usize::from(slot.0) % LANES_PER_NODE
        } else {
            usize::from(slot.0)
        };
        let lane = self.lanes.get(index % SLOTS)?;
        Some(lane.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends what waits for a slot until nothing does.
    async fn drive(self: Arc<Self>, slot: Slot) {
        while let Some((mut call, waiting)) = self.next_batch(slot) {
            let deadline = waiting
                .iter()
                .map(|waiting| waiting.deadline)
                .max()
                .unwrap_or_else(|| Deadline::after(Duration::ZERO));
            self.meter.coalesced(waiting.len().saturating_sub(1));
            match self.send(&mut call, slot, deadline).await {
                Ok(answers) => {
                    for (waiting, answer) in waiting.into_iter().zip(answers) {
                        let _ = waiting.answer.send(Ok(answer));
                    }
                }
                Err(failure) => {
                    for waiting in waiting {
                        let _ = waiting.answer.send(Err(failure.clone()));
                    }
                }
            }
        }
    }

    /// What goes next, in one call; `None` marks the lane as free.
    fn next_batch(&self, slot: Slot) -> Option<(Call, Vec<Waiting>)> {
        let mut lane = self.lane(slot)?;
        let mut call = Call::new();
        let mut batch: Vec<Waiting> = Vec::new();
        while batch.len() < BATCH_MAX
            && call.buckets.len() < BUCKETS_MAX
            && let Some(next) = lane.waiting.pop_front()
        {
            // Nobody waits for it any more, so it was not carried out, for certain.
            if next.answer.is_closed() {
                continue;
            }
            if call.add(Arc::clone(&next.part)).is_err() {
                lane.waiting.push_front(next);
                break;
            }
            batch.push(next);
        }
        if batch.is_empty() {
            lane.busy = false;
            return None;
        }
        Some((call, batch))
    }

    async fn send(&self, call: &mut Call, slot: Slot, deadline: Deadline) -> Result<Vec<Answered>, Failure> {
        let timer = self.meter.sample();
        let answer = self.send_untimed(call, slot, deadline).await;
        if let Some((timer, histogram)) = timer {
            record(timer, histogram);
        }
        if let Err(failure) = &answer {
            self.meter.failed(failure);
        }
        answer
    }

    async fn send_untimed(
        &self,
        call: &mut Call,
        slot: Slot,
        deadline: Deadline,
    ) -> Result<Vec<Answered>, Failure> {
        let mut whole = false;
        for _ in 0..TRIES_MAX {
            let command = call.command(&DECIDE, whole, self.clock(), &self.stints);
            match self.redirected(&command, slot, deadline).await {
                Ok(value) => match call.reply(value)? {
                    Ok(reply) => {
                        self.stints.learn(&reply.stint);
                        return Ok(replay(call, &reply));
                    }
                    Err(strangers) => call.step_aside(&strangers),
                },
                Err(Failure::NoScript) => whole = true,
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Unexpected("no key is free for a bucket".to_owned()))
    }

    /// Has a step carried out on the rights of a bucket. `None`: no answer came in time.
    pub(super) async fn rights(&self, call: &rights::Call, deadline: Deadline) -> Option<Balance> {
        let slot = call.name.slot;
        let mut answer = self.redirected(&call.command(false, self.clock(), &self.stints), slot, deadline).await;
        if matches!(answer, Err(Failure::NoScript)) {
            answer = self.redirected(&call.command(true, self.clock(), &self.stints), slot, deadline).await;
        }
        match answer {
            Ok(value) => rights::read(value, &self.stints),
            Err(failure) => {
                self.meter.failed(&failure);
                None
            }
        }
    }

    /// Sends a plain command to the node that serves a slot.
    pub(super) async fn plain(
        &self,
        command: &Cmd,
        slot: Slot,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let answer = self.redirected(command, slot, deadline).await;
        if let Err(failure) = &answer {
            self.meter.failed(failure);
        }
        answer
    }

    /// Sends a command to wherever the slot is now.
    async fn redirected(&self, command: &Cmd, slot: Slot, deadline: Deadline) -> Result<Value, Failure> {
        let mut node = self.places.map().node(slot).cloned().ok_or(Failure::NoNode)?;
        let mut asking = false;
        for _ in 0..TRIES_MAX {
            let answer = if asking {
                node.call_asking(command, deadline).await
            } else {
                node.call(command, deadline).await
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

    fn clock(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }
}

fn record(timer: Stopwatch, histogram: &Histogram) {
    histogram.record(timer.elapsed().as_secs_f64());
}

/// The right to send for a slot. Given up, also by a caller who goes away, it passes to a task that sends what waits.
struct Turn<'a> {
    lanes: &'a Arc<Lanes>,
    slot: Slot,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(mut lane) = self.lanes.lane(self.slot) else { return };
        if lane.waiting.is_empty() {
            lane.busy = false;
            return;
        }
        drop(lane);
        self.lanes.runtime.spawn(Arc::clone(self.lanes).drive(self.slot));
    }
}
