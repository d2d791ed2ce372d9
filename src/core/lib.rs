//! The pure middle: rules, algorithms and the protocol between regions.
//!
//! Nothing here waits, locks, logs, draws a random number or reads a clock. Time and messages come in as
//! arguments and effects go out as values, so that tests and simulations run the very code that production
//! runs.

pub mod algorithm;
pub mod answer;
pub mod audit;
pub mod calendar;
pub mod cell;
pub mod counted_charge;
pub mod decision;
pub mod denial_cause;
pub mod envoy;
pub mod estimate;
pub mod event;
pub mod hold;
pub mod hot;
pub mod identity;
pub mod key;
pub mod notice;
pub mod open_reservations;
pub mod penalty;
pub mod price;
pub mod quota_assignments;
pub mod rates;
pub mod region_list;
pub mod regions;
pub mod request;
pub mod reservation;
pub mod reservation_notes;
pub mod reservation_terms;
pub mod ring;
pub mod rule;
pub mod rule_name;
pub mod ruleset;
pub mod share;
pub mod table;
pub mod time;
mod unit_price;
pub mod uri;
pub mod wire;
pub mod written;

#[cfg(test)]
extern crate self as tidegate_core;

#[cfg(test)]
#[path = "../../simulations/src/virtual_world/mod.rs"]
#[expect(dead_code, reason = "simulations use the rest")]
mod virtual_world;
