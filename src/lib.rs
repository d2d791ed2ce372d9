//! Tidegate answers, beside the gateways of one region, whether a request may pass, and holds limits worldwide.
//!
//! # The map
//! * [`core`]: pure. Rules, algorithms and the protocol between regions, without I/O or clocks.
//! * [`engine`]: decisions under concurrency; the ports that the layers around it implement; the only clock.

pub mod core;
pub mod engine;
pub mod store;
pub mod telemetry;
