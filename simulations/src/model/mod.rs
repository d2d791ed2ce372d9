//! The ways to hold a limit over regions, each a whole world that is asked, moved on in time and made to
//! suffer.
//!
//! [`daemons`] is the product: stores and replicas as in the daemon. The others are the textbook baselines it
//! is measured against.

pub(crate) mod central;
pub(crate) mod daemons;
pub(crate) mod duties;
pub(crate) mod engine;
pub(crate) mod marks;
pub(crate) mod naive;
pub(crate) mod node;
pub(crate) mod rights;
pub(crate) mod shell;

use tidegate::core::time::{Span, Timestamp};

use crate::plan::{FaultKind, Plan, Way};
use crate::virtual_world::network::Traffic;

/// When virtual time begins: a whole hour, so that windows of every length begin with it.
pub(crate) const START: Timestamp = Timestamp(1_700_002_800_000_000);

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) region: usize,
    pub(crate) user: u64,
    pub(crate) cost: u64,
    /// Names it, for answers that come later.
    pub(crate) id: u64,
}

/// The answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Admitted, counted in this window by the clock of whoever decided.
    Admitted {
        window: u64,
    },
    Refused,
    /// The answer comes later, by [`Model::late`].
    Waits,
}

/// An answer that came later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) ask: Ask,
    /// The window it was admitted in.
    pub(crate) admitted: Option<u64>,
    pub(crate) delay: Span,
}

/// A world that holds a limit.
pub(crate) trait Model {
    /// One request, now.
    fn ask(&mut self, ask: Ask) -> Answer;
    /// Moves time on and lets everything happen that is due.
    fn step(&mut self, step: Span);
    /// Answers that came since the last call.
    fn late(&mut self) -> Vec<Late>;
    /// Something breaks, or is put right again.
    fn fault(&mut self, fault: &FaultKind, broken: bool);
    /// Returns what went over the network between regions so far.
    fn traffic(&self) -> Traffic;
    /// The age of the oldest newest thing that any region knows of any other.
    fn lag(&self) -> Span;
    /// Reports that came too late to be used by all at once.
    fn late_reports(&self) -> u64;
}

/// Builds the world of a plan in which the limit is held in this way.
pub(crate) fn build(plan: &Plan, way: Way) -> anyhow::Result<Box<dyn Model>> {
    Ok(match way {
        Way::Central => Box::new(central::Central::new(plan)),
        Way::Naive10s => Box::new(naive::Naive::new(plan, Span::from_secs(10))),
        Way::Naive100ms => Box::new(naive::Naive::new(plan, Span::from_millis(100))),
        way => Box::new(daemons::World::new(plan, way)?),
    })
}
