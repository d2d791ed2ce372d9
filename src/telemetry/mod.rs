//! Every metric's name, unit and handle; logs; and spans.
//!
//! A daemon has a registry of its own, so that several daemons in one process (`demo`, tests) do not mix.
//! Handles are made once and kept: looking one up per decision would cost ten times its increment.

pub mod log;
mod metrics;
pub mod traces;

pub use metrics::{IdentityMetrics, METRICS, MetricKind, Metrics, RuleMetrics};
