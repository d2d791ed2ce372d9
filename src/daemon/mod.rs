//! Wires the layers of one daemon together: start, ready, reload, drain.
//!
//! Several daemons may live in one process (`demo` and tests do that): nothing here is global.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::engine::clock::Clock;
use crate::peer::Peers;
use crate::store::memory::MemoryStore;
use crate::telemetry::Metrics;

mod reload;
mod run;
mod setup;
mod upkeep;

pub use crate::peer::certificate;
pub use reload::{read_rules, rules_of};
pub use run::{RunError, run};
pub use setup::{DemoRegion, DemoRule, PeersSetup, RulesSource, Setup, demo_setup};

/// Longest time that draining takes, all parts together.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(9);
