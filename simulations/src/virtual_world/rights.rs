//! A daemon that speaks of rights alone: the machine of `escrow`, and a store that carries out its steps.

use std::mem::take;

use tidegate_core::regions::escrow::{Escrow, Event, StepRequest, StepResult, rights_frame_bytes};
use tidegate_core::regions::{Member, NodeName, Refused, StoreSeen, Touched, WorldKey};
use tidegate_core::time::{Span, Timestamp};
use tidegate_core::wire::rights::RightsFrame;

use super::Host;

/// A store that holds rights.
pub(crate) trait RightsStore {
    /// Carries out what its daemon's machine asks for; `None` where that is too early.
    fn carry_out(&mut self, now: Timestamp, machine: &Escrow, ask: &StepRequest) -> Option<StepResult>;

    /// Decisions since the last call, by bucket.
    fn touched(&mut self) -> Vec<Touched>;
}

/// A bucket of which nothing was decided.
pub(crate) fn untouched(key: WorldKey) -> Touched {
    Touched {
        key,
        window: 0,
        offered: 0,
        admitted: 0,
        returned: 0,
        refused: 0,
        largest: 1,
        own: None,
        store: StoreSeen::default(),
    }
}

/// The daemon.
#[derive(Debug)]
pub(crate) struct RightsHost<S> {
    pub(crate) machine: Escrow,
    pub(crate) store: S,
    /// True: the store answers a tick later, and decides meanwhile.
    pub(crate) slow: bool,
    asks: Vec<StepRequest>,
    /// Everything that the machine said, and nobody took yet.
    pub(crate) events: Vec<Event>,
    /// A daemon of the same region that is believed dead, and whose version does not see what of a sliding
    /// rule is lent.
    pub(crate) older: Option<NodeName>,
}

impl<S: RightsStore> RightsHost<S> {
    pub(crate) const fn new(machine: Escrow, store: S, slow: bool) -> Self {
        Self { machine, store, slow, asks: Vec::new(), events: Vec::new(), older: None }
    }

    /// The daemon begins anew with this machine, and its store stays.
    pub(crate) fn begin_again(&mut self, machine: Escrow) {
        self.machine = machine;
        self.asks.clear();
    }

    fn answer(&mut self, now: Timestamp, ask: &StepRequest) {
        let balance = self.store.carry_out(now, &self.machine, ask);
        self.machine.handle_balance(now, &ask.key, balance);
    }
}

impl<S: RightsStore> Host for RightsHost<S> {
    type Message = RightsFrame;

    fn meet(&mut self, now: Timestamp, members: &[(Member, Span)]) {
        let mut list: Vec<Member> = members.iter().map(|(member, _)| member.clone()).collect();
        let older = self.older.iter().cloned();
        list.extend(older.map(|name| Member { name, live: false, draining: false, sees_capacity: false }));
        self.machine.handle_members(now, &list);
        for (member, trip) in members {
            self.machine.handle_link(now, &member.name, *trip);
        }
    }

    fn hear(&mut self, now: Timestamp, from: &NodeName, message: RightsFrame) -> Result<(), Refused> {
        self.machine.handle_frame(now, from, message)
    }

    fn tick(&mut self, now: Timestamp) {
        let touched = self.store.touched();
        for ask in take(&mut self.asks) {
            self.answer(now, &ask);
        }
        for touched in touched {
            self.machine.handle_touched(now, &touched);
        }
        self.machine.handle_timeout(now);
    }

    fn carry_out(&mut self, now: Timestamp) -> Vec<(NodeName, usize, RightsFrame)> {
        while let Some(ask) = self.machine.poll_ask() {
            if self.slow {
                self.asks.push(ask);
            } else {
                self.answer(now, &ask);
            }
        }
        while let Some(event) = self.machine.poll_event() {
            self.events.push(event);
        }
        let mut out = Vec::new();
        while let Some((to, frame)) = self.machine.poll_transmit(now) {
            out.push((to, rights_frame_bytes(&frame), frame));
        }
        out
    }
}
