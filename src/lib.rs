//! Tidegate answers, beside the gateways of one region, whether a request may pass, and holds limits worldwide.
//!
//! # The map
//! * [`core`]: pure. Rules, algorithms and the protocol between regions, without I/O or clocks.
//! * [`database`]: where rules come from: files, with every problem told at its place.
//! * [`engine`]: decisions under concurrency; the ports that the layers around it implement; the only clock.

pub mod core;
pub mod database;
pub mod engine;
pub mod telemetry;
