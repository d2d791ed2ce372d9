//! The baseline that is exact and slow: one store for all regions, in the first of them.

use std::collections::BTreeMap;

use tidegate::core::algorithm::{Limit, State};
use tidegate::core::time::{Span, Timestamp};

use super::{Answer, Ask, Late, Model, START};
use crate::plan::{FaultKind, Plan};
use crate::virtual_world::Network;
use crate::virtual_world::network::Traffic;

/// The bytes of a question or an answer, with the connection's share.
const MESSAGE_BYTES: usize = 90;

/// One store; everyone else asks it over the network. A question or answer that is lost is sent again by TCP
/// after two delays.
#[derive(Debug)]
pub(crate) struct Central {
    now: Timestamp,
    limit: Limit,
    plan: Plan,
    buckets: BTreeMap<u64, State>,
    network: Network<Message>,
    answered: Vec<Late>,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    ask: Ask,
    asked: Timestamp,
    answer: Option<Option<u64>>,
}

impl Central {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut weather = plan.weather.clone();
        // A lost message comes later instead; a doubled one is dropped by the receiver.
        weather.reorder = (weather.reorder + weather.loss).min(1.0);
        (weather.loss, weather.double) = (0.0, 0.0);
        Self {
            now: START,
            limit: super::shell::limit(&plan.rule),
            network: Network::new(weather, plan.seed).with_each_region(),
            plan: plan.clone(),
            buckets: BTreeMap::new(),
            answered: Vec::new(),
        }
    }

    fn decide(&mut self, ask: Ask) -> Option<u64> {
        let algorithm = self.plan.rule.algorithm;
        let state = self.buckets.entry(ask.user).or_insert_with(|| State::new(algorithm));
        let admitted = state.check(&self.limit, None, self.now, ask.cost).admitted;
        if admitted {
            state.take(&self.limit, self.now, ask.cost);
        }
        admitted.then(|| self.now.window_index(self.limit.window))
    }
}

impl Model for Central {
    fn ask(&mut self, ask: Ask) -> Answer {
        if ask.region == 0 {
            return self.decide(ask).map_or(Answer::Refused, |window| Answer::Admitted { window });
        }
        if self.network.is_blocked(ask.region, 0) || self.network.is_blocked(0, ask.region) {
            return Answer::Refused;
        }
        let message = Message { ask, asked: self.now, answer: None };
        self.network.send(self.now, ask.region, 0, MESSAGE_BYTES, &message);
        Answer::Waits
    }

    fn step(&mut self, step: Span) {
        let end = self.now + step;
        while let Some(flight) = self.network.landed(end) {
            self.now = flight.at.max(self.now);
            let Message { ask, asked, answer } = flight.message;
            match answer {
                None => {
                    let answer = Some(self.decide(ask));
                    self.network.send(
                        self.now,
                        0,
                        ask.region,
                        MESSAGE_BYTES,
                        &Message { ask, asked, answer },
                    );
                }
                Some(admitted) => {
                    self.answered.push(Late { ask, admitted, delay: self.now.since(asked) });
                }
            }
        }
        self.now = end;
    }

    fn late(&mut self) -> Vec<Late> {
        std::mem::take(&mut self.answered)
    }

    fn fault(&mut self, fault: &FaultKind, broken: bool) {
        match fault {
            FaultKind::Cut { regions, inward, outward } => {
                self.network.cut(regions, *inward, *outward, broken);
            }
            FaultKind::StoreLost { region: 0 } if broken => self.buckets.clear(),
            FaultKind::Limit(permits) => {
                self.limit.permits = if broken { *permits } else { self.plan.rule.limit };
            }
            _ => {}
        }
    }

    fn traffic(&self) -> Traffic {
        self.network.traffic
    }

    fn lag(&self) -> Span {
        Span::ZERO
    }

    fn late_reports(&self) -> u64 {
        0
    }
}
