//! What tests need that look at the daemon from outside: real processes, a small HTTP client, a gRPC client,
//! a service behind a gateway.
//!
//! Nothing here knows how the daemon works inside: only `tidegate --help`, its ports and its files.

#![allow(dead_code, unused_imports, reason = "every test binary uses its own part")]

pub(crate) mod authority;
pub(crate) mod command;
pub(crate) mod daemon;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod manual;
pub(crate) mod nginx;
pub(crate) mod origin;
pub(crate) mod paced;
pub(crate) mod penalties;
pub(crate) mod ports;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod receiver;
pub(crate) mod reports;
pub(crate) mod reservations;
pub(crate) mod resp;
pub(crate) mod rls;
pub(crate) mod rolling;
pub(crate) mod spans;
pub(crate) mod spellings;
pub(crate) mod unjudged;
pub(crate) mod usage;
pub(crate) mod web_authority;

use std::time::{Duration, Instant};

pub(crate) use ports::{free_tcp, free_udp};
pub(crate) use unjudged::not_judged;

/// Longest wait for something that should happen soon: generous, because machines that run tests are busy.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Asks again and again until there is an answer.
///
/// # Panics
/// When there is none within [`SOON`]; `what` says what was waited for.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {SOON:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
