//! Tidegate answers, beside the gateways of one region, whether a request may pass, and holds limits
//! worldwide.
//!
//! # The map
//! * [`core`]: pure, and a crate of its own. Rules, algorithms and the protocol between regions, without I/O
//!   or clocks.
//! * [`database`]: where rules come from: files, with every problem told at its place; PostgreSQL; the audit
//!   log.
//! * [`config`]: what a daemon runs with: `tidegate.toml`, the environment and flags; its types are the
//!   manual.
//! * [`engine`]: decisions under concurrency; the ports that the layers around it implement; the only clock.
//! * [`store`]: where buckets are kept: in memory, or in the region's Redis.
//! * [`api`]: the servers: Envoy's and Kuadrant's rate limit services over gRPC; check, forward-auth and
//!   views over HTTP.
//! * [`daemon`]: wires the layers together: start, reload, drain.
//! * [`cli`]: one file a command; client commands speak to a daemon over HTTP.
//! * [`telemetry`]: every metric's name and handle; logs; spans.
//! * [`peer`]: between daemons. One QUIC endpoint, mutual TLS, membership, and the messages on the wire.
//!
//! `docs/internals/protocol.md` has the words, messages and sequences between regions. It names the function
//! of each step from a report to a budget, and from a right that is asked to one that is taken.

pub use tidegate_core as core;

pub mod api;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod database;
pub mod engine;
pub mod peer;
pub mod store;
pub mod telemetry;
