//! Drives `escrow` mode: asks the region's store what the machine wants to know, and carries its frames.
//!
//! A part of the task in [`super::sync`]. A store that answers at once is asked in place; one that must be
//! waited for is asked in a task of its own, so nothing here waits.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Peers;
use crate::core::regions::escrow::{Escrow, EscrowConfig, Event, StepResult};
use crate::core::regions::{NodeName, WorldKey};
use crate::core::time::Timestamp;
use crate::core::wire::rights::RightsFrame;
use crate::engine::port::Answer;
use crate::engine::world::WorldPort;

/// Steps that may wait for the store at once. More are given up; the machine asks again.
const ASKS_MAX: usize = 1_024;
/// Frames handed out at once; the rest goes out at the next turn, at most a tick later.
const FRAMES_AT_ONCE: usize = 4_096;

/// The store's answer to one step, which takes up the place of its question until it is taken in.
#[derive(Debug)]
pub(super) struct Told {
    key: WorldKey,
    balance: Option<StepResult>,
    _place: OwnedSemaphorePermit,
}

/// The machine with its surroundings.
pub(super) struct Rights {
    pub(super) machine: Escrow,
    port: Arc<dyn WorldPort>,
    peers: Arc<Peers>,
    answers: mpsc::Sender<Told>,
    asks: Arc<Semaphore>,
}

impl Rights {
    /// The machine, and where the answers come that must be waited for.
    pub(super) fn new(
        config: EscrowConfig,
        port: Arc<dyn WorldPort>,
        peers: Arc<Peers>,
    ) -> (Self, mpsc::Receiver<Told>) {
        let (answers, told) = mpsc::channel(ASKS_MAX);
        let asks = Arc::new(Semaphore::new(ASKS_MAX));
        (Self { machine: Escrow::new(config), port, peers, answers, asks }, told)
    }

    /// A frame of rights has come.
    pub(super) fn take(&mut self, now: Timestamp, from: &NodeName, frame: RightsFrame) {
        if let Err(refused) = self.machine.handle_frame(now, from, frame) {
            self.port.refused(refused.as_str(), 1);
        }
    }

    /// An answer has come.
    pub(super) fn answer(&mut self, told: Told) {
        self.machine.handle_balance(self.port.now(), &told.key, told.balance);
    }

    /// Hands out what the machine asks for.
    pub(super) fn carry_out(&mut self) {
        while let Some(ask) = self.machine.poll_ask() {
            let answer = match self.port.rights(&ask) {
                Answer::Now(balance) => Some(balance),
                Answer::Later(_) => None,
            };
            match answer {
                Some(balance) => self.machine.handle_balance(self.port.now(), &ask.key, balance),
                None => self.ask_later(ask),
            }
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Gave { to, permits } => self.port.rights_moved(&to, permits),
                Event::Took { .. } => {}
                Event::Dry { key, window } => self.port.dry(&key, window),
                Event::Closed { key, window, used, limit } => {
                    self.port.window_closed(&key, window, used, limit)
                }
            }
        }
        let now = self.port.now();
        for _ in 0..FRAMES_AT_ONCE {
            let Some((to, frame)) = self.machine.poll_transmit(now) else { break };
            self.peers.send_rights(&to, &frame);
        }
    }

    fn ask_later(&mut self, ask: crate::core::regions::escrow::StepRequest) {
        let Ok(place) = Arc::clone(&self.asks).try_acquire_owned() else {
            self.port.dropped("rights", 1);
            self.machine.handle_balance(self.port.now(), &ask.key, None);
            return;
        };
        let (port, answers) = (Arc::clone(&self.port), self.answers.clone());
        tokio::spawn(async move {
            let balance = port.rights(&ask).get().await;
            // As many fit as there are places.
            let _ = answers.try_send(Told { key: ask.key, balance, _place: place });
        });
    }
}
