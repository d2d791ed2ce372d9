//! Random worlds under random faults, then peace: a safety phase and a liveness phase for each seed, with the
//! invariants checked at every step.
//!
//! A seed chooses everything ([`case`]). A failure names the seed and the commit, and with both it happens
//! again exactly.

mod arrivals;
mod bounds;
mod case;
mod check;
mod command;
mod cuts;
mod denial;
mod intervals;
mod joins;
mod kind;
mod levels;
mod mutate;
mod people;
mod places;
mod play;
mod reports;
mod reservations;
mod restarts;
mod serves;
mod starts;
mod tables;
mod waits;
mod whole;
mod witness;

pub(crate) use self::command::{Check, Meta, Vopr};
pub(crate) use self::mutate::Mutate;
pub(crate) use self::people::People;
