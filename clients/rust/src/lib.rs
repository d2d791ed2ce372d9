#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests fail by panic"))]

mod answer;
mod away;
mod batch;
mod client;
mod error;
mod held;
mod layer;
mod request;
mod transport;
#[cfg(unix)]
mod unix;

pub use answer::{Cause, Decision, Lease, Reservation, RuleAnswer, Settled};
pub use away::WhenAway;
pub use client::{Builder, Tidegate};
pub use error::{Away, BuildError, Denied, Error, Refused};
pub use held::{InFlight, total_tokens};
pub use layer::{Limit, LimitLayer, PlainText, Refuse};
pub use request::{Acquire, Attributes, Check, Report, Reserve};
